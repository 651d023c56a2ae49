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

import torch
import transformers.models.gpt2.modeling_gpt2  # noqa: F401, before the wait
from models import DEVICE, gpt2, shifted, size, tokens

WARM, STEPS = 20, 60


def main() -> None:
    folder, layers, rows, length, compiled = sys.argv[1], *map(int, sys.argv[2:6])
    open(os.path.join(folder, "ready"), "w").close()
    open(os.path.join(folder, "go")).close()
    model = gpt2(layers).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    called = torch.compile(model) if compiled else model
    batches = [tokens(i, size(rows, 2), size(length, 16)).to(DEVICE) for i in range(8)]
    seconds = []
    for step in range(size(WARM + STEPS, 10)):
        begun = time.perf_counter()
        ids = batches[step % len(batches)]
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = shifted(called(ids).logits, ids)
        loss.backward()
        optimizer.step()
        loss.item()
        seconds.append(time.perf_counter() - begun)
    timed = seconds[size(WARM, 4) :]
    with open(os.path.join(folder, "steps.json"), "w") as f:
        json.dump({"median": statistics.median(timed), "seconds": seconds, "loss": loss.item()}, f)


if __name__ == "__main__":
    main()
