"""Compares steps whose results headroom computes twice with the same done by hand, and with steps that have room.

    python bench/worker/twopass.py OUT.md HEADROOM [cpu|cuda]

The loss is contrastive: it relates every row to every other. By hand means what a user would write: results of some rows
at a time without a graph, the loss on all of them, and the rows again with their gradients (gradient caching). It is
given as many pieces as headroom has used. headroom has a part of the memory that a step takes with room (`ulimit -d`, or
a fraction of the GPU), so that the first step runs out of it. The three take turns, in processes of their own; a table of
ratios of the medians of their steady steps is written to OUT.md.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import limited

STEPS, FIRST, PART, ROUNDS = 8, 3, 0.75, int(os.environ.get("ROUNDS", 3))
CUDA = {"rows": 16384, "width": 8192, "layers": 6}
CPU = {"rows": 2048, "width": 1024, "layers": 6}


def train(device: str, pieces: int, fraction: float, out: str) -> None:
    """Trains, by hand in so many pieces unless ``pieces`` is 0. Writes what it has seen to a file."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    cuda, size = device == "cuda", CUDA if device == "cuda" else CPU
    torch.manual_seed(0)
    layers = [m for _ in range(size["layers"]) for m in (nn.GELU(), nn.Linear(size["width"], size["width"]))]
    net = nn.Sequential(nn.Linear(256, size["width"]), *layers, nn.GELU(), nn.Linear(size["width"], 64)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    if fraction:
        torch.cuda.set_per_process_memory_fraction(fraction)

    def loss_of(rows: torch.Tensor) -> torch.Tensor:
        a, b = F.normalize(rows, dim=1).chunk(2)
        return F.cross_entropy(a @ b.T / 0.1, torch.arange(len(a), device=device))

    def step(x: torch.Tensor) -> torch.Tensor:
        nonlocal most
        loss = loss_of(net(x))
        most = max(most, limited.held())  # with what backward needs
        loss.backward()
        return loss

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            rows = torch.cat([net(part) for part in x.chunk(pieces)])
        loss = loss_of(rows.requires_grad_())
        loss.backward()
        for part, grad in zip(x.chunk(pieces), rows.grad.chunk(pieces)):  # type: ignore[union-attr]
            net(part).backward(grad)
        return loss

    before, most, seconds, losses = limited.held(), 0, [], []
    for i in range(STEPS):
        torch.manual_seed(i)
        x = torch.randn(size["rows"], 256, device=device)
        if cuda:
            torch.cuda.synchronize()
        began = time.monotonic()
        optimizer.zero_grad()
        losses.append((by_hand if pieces else step)(x).item())
        optimizer.step()
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.monotonic() - began)
    peak = torch.cuda.max_memory_reserved() / torch.cuda.mem_get_info()[1] if cuda else 0.0
    found = {"seconds": seconds, "losses": losses, "before": before, "most": most, "peak": peak}
    Path(out).write_text(json.dumps(found))


def run(device: str, pieces: int, prefix: list[str], limit: int | None, fraction: float) -> dict[str, Any]:
    """What one training has written. ``limit`` is in KiB."""
    return limited.run([*prefix, sys.executable, os.path.abspath(__file__), "--train", device, str(pieces), str(fraction)], limit)


def main(out: str, binary: str, device: str) -> None:
    found: dict[str, list[dict[str, Any]]] = {"with room": [], "by hand": [], "headroom": []}
    for _ in range(ROUNDS):
        room = run(device, 0, [], None, 0.0)
        limit = int(room["before"] + PART * (room["most"] - room["before"])) if device == "cpu" else None
        ours = run(device, 0, [os.path.abspath(binary), "run", "--"], limit, PART * room["peak"])
        assert "each computed twice" in ours["said"], ours["said"]
        hand = run(device, ours["pieces"], [], None, 0.0)
        for name, one in zip(found, (room, hand, ours)):
            found[name].append(one)
            assert all(abs(a - b) <= 1e-3 * abs(a) for a, b in zip(room["losses"], one["losses"])), name
    usual = {name: median(s for one in some for s in one["seconds"][FIRST:]) for name, some in found.items()}
    pieces = sorted({one["pieces"] for one in found["headroom"]})
    version = subprocess.run([binary, "version"], capture_output=True, text=True).stdout.split("\n")[0]
    lines = [
        f"{version}; {device}, {platform.processor() or platform.machine()}; {' or '.join(map(str, pieces))} pieces.",
        "",
        "| | seconds a step | of that with room | of that by hand |",
        "|---|---|---|---|",
        *(f"| {name} | {s:.3f} | {s / usual['with room']:.2f} | {s / usual['by hand']:.2f} |" for name, s in usual.items()),
        f"| headroom, the step that fails | {median(one['seconds'][0] for one in found['headroom']):.3f} | | |",
    ]
    Path(out).write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), sys.argv[5])
    else:
        main(sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "cpu")
