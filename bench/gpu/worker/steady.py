"""Steps of GPT-2 with ample memory: the median of 60 after 20, in steps.json of a folder.

steady.py FOLDER LAYERS ROWS LENGTH COMPILED. It imports all it needs, leaves a file "ready" in the
folder and waits until somebody opens its "go": processes that are timed in turn start at once.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import transformers.models.gpt2.modeling_gpt2  # noqa: F401, before the wait
from models import DEVICE, gpt2, shifted, size, tokens

WARM, STEPS = 20, 60


def training(layers: int, rows: int, length: int, compiled: bool) -> Callable[[int], float]:
    """A training that is ready: makes the step with a number, and returns its loss when the
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
    folder, layers, rows, length, compiled = sys.argv[1], *map(int, sys.argv[2:6])
    open(os.path.join(folder, "ready"), "w").close()
    open(os.path.join(folder, "go")).close()
    step = training(layers, rows, length, bool(compiled))
    seconds = []
    for i in range(size(WARM + STEPS, 10)):
        begun = time.perf_counter()
        loss = step(i)
        seconds.append(time.perf_counter() - begun)
    timed = seconds[size(WARM, 4) :]
    with open(os.path.join(folder, "steps.json"), "w") as f:
        json.dump({"median": statistics.median(timed), "seconds": seconds, "loss": loss}, f)


if __name__ == "__main__":
    main()
