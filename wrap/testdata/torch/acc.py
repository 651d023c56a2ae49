"""A user's own loop with Accelerate: accumulate, backward, save_state and
load_state. It does not know about headroom.

Every optimizer step appends what it did to OUT/steps.jsonl, for the tests to read.
"""

import argparse
import json
import pathlib

import torch
from accelerate import Accelerator
from torch import nn


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows: int, long_from: int) -> None:
        self.rows, self.long_from = rows, long_from

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> tuple[int, torch.Tensor]:
        return i, torch.full((64 if i >= self.long_from else 1, 16), i % 97 / 97.0)


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--accum", type=int, default=1)
    p.add_argument("--steps", type=int, default=6)
    p.add_argument("--width", type=int, default=2048)
    p.add_argument("--rows", type=int, default=4096)
    p.add_argument("--long-from", type=int, default=1 << 30, help="samples from this row on take more memory")
    p.add_argument("--save-every", type=int, default=2)
    p.add_argument("--output-dir", type=pathlib.Path, default=pathlib.Path("out"))
    p.add_argument("--resume", type=pathlib.Path)
    args = p.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accum)
    model = nn.Sequential(nn.Linear(16, args.width), nn.ReLU(), nn.Linear(args.width, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)
    loader = torch.utils.data.DataLoader(Rows(args.rows, args.long_from), batch_size=args.batch_size)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    step = 0
    if args.resume:
        accelerator.load_state(args.resume)
        step = int(args.resume.name.rpartition("_")[2])
    args.output_dir.mkdir(parents=True, exist_ok=True)

    ids, total = [], 0.0
    for index, x in accelerator.skip_first_batches(loader, step * args.accum):
        with accelerator.accumulate(model):
            loss = (model(x).squeeze(-1) - x.sum(-1)).square().mean()
            accelerator.backward(loss)
            lr = scheduler.get_last_lr()[0]
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        ids += index.tolist()
        total += loss.item() * len(index)
        if not accelerator.sync_gradients:
            continue
        step += 1
        with open(args.output_dir / "steps.jsonl", "a") as f:
            f.write(json.dumps({"step": step, "first": ids[0], "samples": len(ids), "micro": args.batch_size, "lr": lr, "loss": total / len(ids)}) + "\n")
        ids, total = [], 0.0
        if step % args.save_every == 0:
            accelerator.save_state(args.output_dir / f"step_{step}")
        if step == args.steps:
            break


if __name__ == "__main__":
    main()
