"""A script in nanoGPT's shape: settings are assignments, a configuration file and
--key=value override them, and one checkpoint is overwritten in place. It does not
know about headroom.

Every optimizer step appends what it did to out_dir/steps.jsonl, for the tests to read.
"""

import ast
import json
import os
import sys

import torch
from tiny import GPT, GPTConfig

out_dir = "out"
init_from = "scratch"  # or "resume"
eval_interval = 2  # it saves at the same interval
gradient_accumulation_steps = 1  # over all ranks
batch_size = 12
block_size = 16
n_embd = 64
max_iters = 6
long_iter = -1  # a step whose blocks are longer
learning_rate = 1e-3

for argument in sys.argv[1:]:
    if not argument.startswith("--"):
        exec(open(argument).read())
        continue
    key, value = argument[2:].split("=", 1)
    was = globals()[key]
    globals()[key] = type(was)(value if isinstance(was, str) else ast.literal_eval(value))

ranks = int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    assert gradient_accumulation_steps % ranks == 0
    gradient_accumulation_steps //= ranks

torch.manual_seed(1337)
torch.set_num_threads(1)
os.makedirs(out_dir, exist_ok=True)
model = GPT(GPTConfig(block_size=block_size, n_embd=n_embd))
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
path = os.path.join(out_dir, "ckpt.pt")
iter_num = 0
if init_from == "resume":
    checkpoint = torch.load(path, weights_only=True)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    iter_num = checkpoint["iter_num"]


def get_batch(first: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.stack([(torch.arange(length + 1) * (i % 13 + 1) + i) % 128 for i in range(first, first + batch_size)])
    return tokens[:, :-1], tokens[:, 1:]


while iter_num < max_iters:
    lr = learning_rate * (1 - iter_num / max_iters)
    for group in optimizer.param_groups:
        group["lr"] = lr
    length = block_size * (8 if iter_num + 1 == long_iter else 1)
    start = iter_num * batch_size * gradient_accumulation_steps
    total = 0.0
    for micro_step in range(gradient_accumulation_steps):
        x, y = get_batch(start + micro_step * batch_size, length)
        loss = model(x, y) / gradient_accumulation_steps
        total += loss.item()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    with open(os.path.join(out_dir, "steps.jsonl"), "a") as f:
        samples = batch_size * gradient_accumulation_steps
        f.write(json.dumps({"step": iter_num, "first": start, "samples": samples, "micro": batch_size, "lr": lr, "loss": total}) + "\n")
    print(f"iter {iter_num}: loss {total:.4f}", flush=True)
    if iter_num % eval_interval == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": iter_num}, path)
