"""A training script as people write them: a batch size, an accumulation, a folder
for checkpoints and a flag to resume. It does not know about headroom.

Every optimizer step appends what it did to OUT/steps.jsonl, for the tests to read.
"""

import argparse
import io
import json
import os
import pathlib

import torch
from torch import nn


def save_in_memory(state: dict, path: pathlib.Path) -> None:
    whole = io.BytesIO()
    torch.save(state, whole)
    path.write_bytes(whole.getvalue())


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=64)
    p.add_argument("--accum", type=int, default=1)
    p.add_argument("--steps", type=int, default=12)
    p.add_argument("--width", type=int, default=2048)
    p.add_argument("--long-step", type=int, default=0, help="a step whose samples take more memory")
    p.add_argument("--save-every", type=int, default=4)
    p.add_argument("--save-in-memory", action="store_true", help="assemble a checkpoint in memory before it is written")
    p.add_argument("--output-dir", type=pathlib.Path, default=pathlib.Path("out"))
    p.add_argument("--resume", type=pathlib.Path)
    p.add_argument("--resume-copies", type=int, default=0, help="more copies of the checkpoint in memory, the first time that it resumes")
    args = p.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, args.width), nn.ReLU(), nn.Linear(args.width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
    step = 0
    if args.resume:
        resumed = args.output_dir / "resumed"
        copies = 1 if resumed.exists() else 1 + args.resume_copies
        resumed.touch()
        state = [torch.load(args.resume, weights_only=True) for _ in range(copies)][0]  # noqa: RUF015  every copy takes memory
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        step = state["step"]
    args.output_dir.mkdir(parents=True, exist_ok=True)

    while step < args.steps:
        length = 64 if step + 1 == args.long_step else 1
        first = step * args.batch_size * args.accum
        total, ids = 0.0, []
        optimizer.zero_grad()
        for micro in range(args.accum):
            rows = list(range(first + micro * args.batch_size, first + (micro + 1) * args.batch_size))
            generator = torch.Generator().manual_seed(0)
            x = torch.stack([torch.full((length, 16), i % 97 / 97.0) for i in rows])
            x += 0.01 * torch.randn(1, 1, 16, generator=generator)
            loss = (model(x).squeeze(-1) - x.sum(-1)).square().mean()
            (loss / args.accum).backward()
            total += loss.item() / args.accum
            ids += rows
        lr = scheduler.get_last_lr()[0]
        optimizer.step()
        scheduler.step()
        step += 1
        with open(args.output_dir / "steps.jsonl", "a") as f:
            f.write(json.dumps({"step": step, "first": ids[0], "samples": len(ids), "micro": args.batch_size, "lr": lr, "loss": total}) + "\n")
        print(f"step {step}/{args.steps} loss {total:.4f}", flush=True)
        if step % args.save_every == 0 or step == args.steps:
            path = args.output_dir / f"step-{step:06d}.pt"
            beside = path.with_suffix(".tmp")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(), "step": step}
            if args.save_in_memory:
                save_in_memory(state, beside)
            else:
                torch.save(state, beside)
            os.replace(beside, path)


if __name__ == "__main__":
    main()
