"""Compares steps that headroom runs in pieces with the same pieces cut by hand. Both take turns in one process.
It prints a row of a Markdown table.

pieces.py FRACTION, under `headroom run --`. The limit is FRACTION of the memory that an uncut step takes. A step's time
ends when the GPU is done. On a CPU, any call with more than half of the rows fails.
"""

from __future__ import annotations

import sys
import time
from statistics import mean, median, stdev
from typing import Any

import torch

from models import DEVICE, gpt2, shifted, size, tokens

ROWS, LENGTH = size(40, 8), size(512, 32)
SETTLED, MEASURED = size(40, 12), size(120, 20)  # steps of each kind
ROUNDS = 5


class Training:
    def __init__(self) -> None:
        self.model = gpt2().to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.batches = [tokens(i, ROWS, LENGTH).to(DEVICE) for i in range(8)]

    def whole(self, i: int) -> float:
        """Runs a step the way a script that knows nothing about pieces runs it."""
        ids = self.batches[i % len(self.batches)]
        self.optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = shifted(self.model(ids).logits, ids)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def by_hand(self, i: int, pieces: int) -> float:
        """Runs a step in pieces, in the way that gradient accumulation is usually written."""
        ids = self.batches[i % len(self.batches)]
        self.optimizer.zero_grad()
        total = torch.zeros((), device=DEVICE)
        for piece in ids.tensor_split(pieces):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = shifted(self.model(piece).logits, piece) * (len(piece) / ROWS)
            loss.backward()
            total += loss.detach()
        self.optimizer.step()
        return total.item()


def limit(fraction: float, model: torch.nn.Module) -> None:
    if DEVICE == "cuda":
        peak, total = torch.cuda.max_memory_allocated(), torch.cuda.get_device_properties(0).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(fraction * peak / total)
        return

    def fail(_: Any, args: tuple, kwargs: dict) -> None:
        if len((*args, *kwargs.values())[0]) > ROWS // 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model.register_forward_pre_hook(fail, with_kwargs=True)


def main() -> None:
    from headroom_train import _torch

    fraction = float(sys.argv[1])
    training, recorder = Training(), _torch._recorder
    for i in range(size(5, 2)):  # steps in which the worker finds the model
        training.whole(i)
    limit(fraction, training.model)
    for i in range(SETTLED):
        training.whole(i)
    pieces: dict[int, int] = {}
    seconds: dict[str, list[float]] = {"headroom": [], "by hand": []}
    count = recorder.sizes.ran()[1]
    for i in range(2 * MEASURED):
        ours = i % 4 in (0, 3)
        recorder.observe = None if ours else "measured"
        begun = time.perf_counter()
        training.whole(i) if ours else training.by_hand(i, count)
        seconds["headroom" if ours else "by hand"].append(time.perf_counter() - begun)
        if ours:
            count = recorder.sizes.ran()[1]
            pieces[count] = pieces.get(count, 0) + 1
    ours, theirs = (median(s) * 1e3 for s in seconds.values())
    per = MEASURED // ROUNDS
    rounds = [median(seconds["by hand"][i * per : (i + 1) * per]) / median(seconds["headroom"][i * per : (i + 1) * per]) for i in range(ROUNDS)]
    print(
        f"| {fraction} | {', '.join(f'{n} × {p}' for p, n in sorted(pieces.items()))} | {ours:.1f} | {theirs:.1f} | **{theirs / ours:.3f}** "
        f"| {mean(rounds):.3f} ± {stdev(rounds):.3f} |"
    )


if __name__ == "__main__":
    main()
