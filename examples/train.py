"""Fits a small network to a function of 16 numbers: a one-page PyTorch training script for the CPU or a GPU.

    python examples/train.py                                   # ten steps of 65,536 rows
    python examples/train.py --room 256                        # the same, which runs out of memory
    headroom run -- python examples/train.py --room 256        # the same, which finishes

It knows nothing of headroom.
"""

import argparse
import os
import resource

import torch
from torch import nn

MIB = 1 << 20


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layers = [nn.Linear(16, 128), nn.SiLU()]
    for _ in range(args.depth):
        layers += [nn.Linear(128, 128), nn.SiLU()]
    model = nn.Sequential(*layers, nn.Linear(128, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    done = 0
    if args.resume:
        saved = torch.load(args.resume, map_location=device)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["step"]
        print(f"continues after step {done}", flush=True)
    if args.room:
        limit(args.room * MIB, model, device)

    for step in range(done + 1, args.steps + 1):
        x, y = rows(step, args.batch_size * args.accum, args.seed)
        total = 0.0
        for part, want in zip(x.chunk(args.accum), y.chunk(args.accum)):
            loss = nn.functional.mse_loss(model(part.to(device)), want.to(device)) / args.accum
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {total:.5f}", flush=True)
        if step % args.save_every == 0:
            save(os.path.join(args.out, f"step-{step:04}.pt"), model=model.state_dict(), optimizer=optimizer.state_dict(), step=step)


def rows(step: int, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of a step depend only on the step and the seed, so a resumed run sees the rows that it would have
    seen without the interruption."""
    chance = torch.Generator().manual_seed(1000 * seed + step)
    x = torch.rand(n, 16, generator=chance)
    return x, (x[:, :8] * x[:, 8:]).sum(1, keepdim=True).sin()


def save(path: str, **state: object) -> None:
    """Save a checkpoint that is either whole or absent: it gets its name once all of it is written."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    torch.save(state, path + ".partial")
    os.replace(path + ".partial", path)


def limit(room: int, model: nn.Module, device: torch.device) -> None:
    """Leave hardly any memory free, to show what happens then."""
    model(torch.rand(8, 16, device=device)).sum().backward()  # allocates what only a first step needs: threads, libraries
    model.zero_grad()
    if device.type == "cuda":
        whole = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(device) + room) / whole, device)
        return
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + room, used + room))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=65536, help="rows per micro-batch")
    parser.add_argument("--accum", type=int, default=1, help="micro-batches per optimizer step")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--out", default="out", help="folder for the checkpoints")
    parser.add_argument("--resume", metavar="CHECKPOINT", help="continue from this one")
    parser.add_argument("--room", type=int, metavar="MIB", help="limit the memory that it may take on top of what it has before its first step")
    return parser.parse_args()


if __name__ == "__main__":
    main()
