"""Measures what a loss that is a Python sum of K terms costs in steps that run in pieces, for K = 1, 4 and 16.

    python bench/worker/sums.py OUT.md HEADROOM…

Each training runs bare with room, and under `headroom run` of each of the given binaries with a part of that memory
(`ulimit -d`), so that its first step runs out of memory. Everything runs on one core. A table of ratios is written to OUT.md:
steady steps, and the first step, over the median step with room of the same K.
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

import limited

STEPS, ROWS, PART = 12, 16000, 0.5
TERMS = (1, 4, 16)


def train(terms: int, out: str) -> None:
    """Trains, and writes the seconds of each step and the memory before the first step and within steps to a file."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    body, heads = nn.Sequential(nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 64)), nn.Linear(64, 64)
    optimizer = torch.optim.SGD([*body.parameters(), *heads.parameters()], lr=0.001)
    before, most, seconds, losses = limited.held(), 0, [], []
    for _ in range(STEPS):
        x, began = torch.randn(ROWS, 32), time.monotonic()
        optimizer.zero_grad()
        out_rows, loss = heads(body(x)), 0
        for k in range(terms):
            loss = loss + (out_rows[:, k] - x[:, k % 32]).pow(2).mean()
        most = max(most, limited.held())
        (loss / terms).backward()
        optimizer.step()
        losses.append((loss / terms).item())
        seconds.append(time.monotonic() - began)
    Path(out).write_text(json.dumps({"seconds": seconds, "losses": losses, "before": before, "most": most}))


def run(terms: int, prefix: list[str], limit: int | None) -> dict:
    """What one training has written. ``limit`` is in KiB."""
    return limited.run([*prefix, sys.executable, os.path.abspath(__file__), "--train", str(terms)], limit)


def row(name: str, ratios: list[float]) -> str:
    return "| " + " | ".join([name, *(f"{r:.2f}" for r in ratios)]) + " |"


def main(out: str, binaries: list[str]) -> None:
    room = {k: run(k, [], None) for k in TERMS}
    usual = {k: median(room[k]["seconds"][1:]) for k in TERMS}
    lines = [f"With room, a step takes {', '.join(f'{usual[k]:.2f} s with K = {k}' for k in TERMS)}.", ""]
    lines += ["| | " + " | ".join(f"K = {k}" for k in TERMS) + " |", "|---" * (len(TERMS) + 1) + "|"]
    for binary in binaries:
        version = subprocess.run([binary, "version"], capture_output=True, text=True).stdout.split("\n")[0]
        found = {}
        for k in TERMS:
            limit = int(room[k]["before"] + PART * (room[k]["most"] - room[k]["before"]))
            found[k] = run(k, [binary, "run", "--"], limit)
            for a, b in zip(room[k]["losses"], found[k]["losses"]):
                assert abs(a - b) <= 1e-4 * abs(a), (a, b)
        lines.append(row(f"{version}: a steady step", [median(found[k]["seconds"][1:]) / usual[k] for k in TERMS]))
        lines.append(row(f"{version}: the step that fails", [found[k]["seconds"][0] / usual[k] for k in TERMS]))
    Path(out).write_text("\n".join(lines) + "\n")
    print(platform.processor(), *lines, sep="\n")


if __name__ == "__main__":
    if sys.argv[1] == "--train":
        train(int(sys.argv[2]), sys.argv[3])
    else:
        main(sys.argv[1], [os.path.abspath(b) for b in sys.argv[2:]])
