"""Times steps of GPT-2 with ample memory, a few at a time, and writes steps.json to a folder.

steady.py FOLDER LAYERS ROWS LENGTH COMPILED SLICES. It runs its first steps and leaves a file "ready" in the
folder. Then it runs a slice of steps whenever another process opens the pipe "go" in the folder, and opens "done"
afterwards. This lets several processes take turns. All of them run on the same few cores, no matter how they were started.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

if __name__ == "__main__":  # before any threads are started
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-4:])

import torch
import transformers.models.gpt2.modeling_gpt2  # noqa: F401, before the wait

from models import DEVICE, gpt2, shifted, size, tokens

WARM, STEPS = 40, 10  # warm-up steps of a process, and steps of a slice


def training(layers: int, rows: int, length: int, compiled: bool) -> Callable[[int], float]:
    """Returns a function that runs the training step with the given number, and returns the loss when the
    GPU is done."""
    model = gpt2(layers).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    called = torch.compile(model) if compiled else model
    batches = [tokens(i, size(rows, 2), size(length, 16)).to(DEVICE) for i in range(8)]

    def step(i: int) -> float:
        ids = batches[i % len(batches)]
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = shifted(called(ids).logits, ids)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def main() -> None:
    folder, layers, rows, length, compiled, slices = sys.argv[1], *map(int, sys.argv[2:7])
    step = training(layers, rows, length, bool(compiled))
    for i in range(size(WARM, 10)):
        loss = step(i)
    open(os.path.join(folder, "ready"), "w").close()
    timed: list[list[float]] = []
    for _ in range(slices):
        open(os.path.join(folder, "go")).close()
        seconds = []
        for i in range(STEPS):
            begun = time.perf_counter()
            loss = step(i)
            seconds.append(time.perf_counter() - begun)
        timed.append(seconds)
        open(os.path.join(folder, "done"), "w").close()
    with open(os.path.join(folder, "steps.json"), "w") as f:
        json.dump({"slices": timed, "loss": loss}, f)


if __name__ == "__main__":
    main()
