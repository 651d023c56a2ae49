"""Causes a thousand out-of-memory failures in a row, one in every step, in a small hand-written loop.

constant.py FOLDER [FAILURES] writes statistics of the bytes allocated at the ends of steps to end.json, and prints a sentence about them.
"""

from __future__ import annotations

import json
import os
import sys

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models import DEVICE, gpt2, shifted, tokens

FAILS = int(os.environ.get("FAILS", "40"))  # which operation of every step fails


class Fail(TorchDispatchMode):
    """Makes a single operation fail: the one after the first FAILS operations."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.raised = FAILS, False

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.left -= 1
        if self.left < 0 and not self.raised:
            self.raised = True
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. (injected)")
        return function(*args, **(kwargs or {}))


def main() -> None:
    folder, failures = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    model = gpt2(2).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    allocated: list[int] = []
    raised = 0
    for step in range(failures):
        ids = tokens(step, 8, 16).to(DEVICE)
        fail = Fail()
        with fail:
            loss = shifted(model(ids).logits, ids)
            loss.backward()
        raised += fail.raised
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.item()
        if DEVICE == "cuda":
            allocated.append(torch.cuda.memory_allocated())
    late = allocated[1:] or [0]  # the first step creates the optimizer's state and workspaces
    end = {"failures": raised, "steps": failures, "first": allocated[:1], "min": min(late), "max": max(late), "distinct": sorted(set(late))[:20]}
    with open(os.path.join(folder, "end.json"), "w") as f:
        json.dump(end, f)
    between = f"between {min(late)} and {max(late)} bytes, {len(set(late))} different values"
    print(f"{raised} failures in {failures} steps, loss {loss:.4f}: allocated at their ends {between}")


if __name__ == "__main__":
    main()
