"""A training run that keeps the output of every step, so that it runs out of memory after a while,
whichever step it started from. It saves a checkpoint every few seconds. Each process prints the steps that it has run."""

import argparse
import os
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--steps", type=int, default=3000)
parser.add_argument("--every", type=float, default=8, help="seconds between checkpoints")
parser.add_argument("--capacity", type=float, default=6, help="GiB of the GPU that this process may use")
parser.add_argument("--resume", default="")
args = parser.parse_args()

total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(args.capacity * 2**30 / total)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 16384)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
begin, saved, kept = 0, time.monotonic(), []
if args.resume:
    state = torch.load(args.resume, map_location="cuda")
    begin = state["step"]
    net.load_state_dict(state["net"])
    del state
for step in range(begin + 1, args.steps + 1):
    for _ in range(args.accum):
        x = torch.randn(args.batch_size, 4096, generator=torch.Generator().manual_seed(step)).cuda()
        out = net(x)
        (out.square().mean() / args.accum).backward()
        kept.append(out.detach())  # the leak: 4 MiB per step
    optimizer.step()
    optimizer.zero_grad()
    torch.cuda.synchronize()
    time.sleep(0.02)
    if time.monotonic() - saved > args.every:
        torch.save({"step": step, "net": net.state_dict()}, f"step-{step}.tmp")
        os.replace(f"step-{step}.tmp", f"step-{step}.pt")
        saved = time.monotonic()
    if step % 100 == 0:
        print(f"step {step} of {args.steps}, {torch.cuda.memory_allocated() / 2**30:.2f} GiB", flush=True)
print(f"made steps {begin + 1} to {args.steps}", flush=True)
