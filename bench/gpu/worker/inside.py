"""Measures what recording costs while nothing fails, in one process. Recorded steps, steps while the
worker rests, and steps that bypass the worker take turns. It prints the medians as a row of a Markdown table.

inside.py LAYERS ROWS LENGTH COMPILED, under `headroom run --`. A step's time ends when the GPU is done.
"""

from __future__ import annotations

import sys
import time
from statistics import median
from typing import Any

from models import size
from steady import training

KINDS = ("by", "rests", "recorded")


class Set:
    """Replaces the object that decides whether the worker rests. Its decision is always the same."""

    def __init__(self, resting: bool) -> None:
        self.resting = resting

    def step(self) -> None: ...

    def failed(self) -> None:
        raise RuntimeError("memory ran out in a measurement")

    def may(self, *_: Any) -> bool:
        return self.resting


def main() -> None:
    from headroom_train import _torch

    layers, rows, length, compiled = map(int, sys.argv[1:5])
    step = training(layers, rows, length, bool(compiled))
    recorder: Any = _torch._recorder
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for i in range(size(960, 60)):
        kind = KINDS[i % 3]
        recorder.observe, recorder.rest = "measured" if kind == "by" else None, Set(kind == "rests")
        begun = time.perf_counter()
        step(i // 3)
        seconds[kind].append(time.perf_counter() - begun)
    timed = {kind: median(s[size(20, 4) :]) * 1e3 for kind, s in seconds.items()}
    print(f"| {layers} layers, {rows} × {length}{', compiled' if compiled else ''} | {timed['by']:.3f} | {timed['rests']:.3f} | {timed['recorded']:.3f} "
          f"| {timed['by'] / timed['rests']:.4f} | {timed['by'] / timed['recorded']:.4f} |")  # fmt: skip


if __name__ == "__main__":
    main()
