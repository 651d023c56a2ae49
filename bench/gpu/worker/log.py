"""Writes the files that a training run of this bench leaves in its folder: steps.jsonl, with a line per optimizer step, and end.json."""

from __future__ import annotations

import json
import os
import time
from types import TracebackType
from typing import Any, Optional

import torch


class Log:
    """A context manager around a training run. A step's seconds are measured from the end of the previous step."""

    def __init__(self, folder: str, asked: int) -> None:
        os.makedirs(folder, exist_ok=True)
        self.folder, self.asked = folder, asked
        self.begun = self.last = time.perf_counter()
        self.done = 0

    def step(self, samples: int, loss: Any, **more: Any) -> None:
        """Records a step. If the loss is on a device, it waits for the loss."""
        value = loss.item() if isinstance(loss, torch.Tensor) else float(loss)
        now = time.perf_counter()
        self.done += 1
        line = {"at": time.time(), "step": self.done, "samples": samples, "loss": value, "seconds": now - self.last, **more}
        with open(os.path.join(self.folder, "steps.jsonl"), "a") as f:
            f.write(json.dumps(line) + "\n")
        self.last = time.perf_counter()

    def __enter__(self) -> Log:
        return self

    def __exit__(self, kind: Optional[type], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        end = {
            "end": "done" if error is None else type(error).__name__,
            "asked": self.asked,
            "seconds": time.perf_counter() - self.begun,
            **memory(),
        }
        text = json.dumps(end)
        with open(os.path.join(self.folder, "end.json"), "w") as f:
            f.write(text + "\n")
        print(text, flush=True)


def memory() -> dict[str, int]:
    """Returns the peaks of the whole process and the memory of the device, in bytes; zeros without a GPU."""
    if not torch.cuda.is_available():
        return {"allocated": 0, "reserved": 0, "total": 0}
    return {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "total": torch.cuda.get_device_properties(0).total_memory,
    }
