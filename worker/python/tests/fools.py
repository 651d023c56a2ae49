"""Checks losses made to fool the rules by which pieces are weighted, with random shapes, masks and
labels. Each failure must be survived exactly or refused; gradients must never be wrong.

    python fools.py [--count N] [--seed S]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inject import Fault
from loop import Raw, Shape
from loops_composed import mlp
from sweep import MUST, Found, Sweep, Task

CLASSES = 5

# Losses of logits [N, C] or [B, T, C], labels (some -100), and another integer tensor shaped like the labels.
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def flat(z: Tensor, y: Tensor, reduction: str = "mean", smooth: float = 0.0, weight: Tensor | None = None) -> Tensor:
    return F.cross_entropy(z.reshape(-1, CLASSES), y.reshape(-1), weight, reduction=reduction, label_smoothing=smooth)


def each(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z.reshape(-1, CLASSES), y.reshape(-1), reduction="none").view(y.shape)


def valid(y: Tensor) -> Tensor:
    return (y != -100).float()


def per_row(z: Tensor, y: Tensor) -> Tensor:
    whole, count = each(z, y).view(len(y), -1).sum(1), valid(y).view(len(y), -1).sum(1)
    return whole / count.clamp(min=1)


def positive(y: Tensor) -> Tensor:
    return (y > 1).float()


def dice(z: Tensor, y: Tensor) -> Tensor:
    p = z.softmax(-1)[..., 1]
    return 1 - 2 * (p * positive(y)).sum() / (p.sum() + positive(y).sum() + 1)


def balanced(z: Tensor, y: Tensor) -> Tensor:
    """Weights each class by how rarely it occurs in this batch."""
    counts = torch.bincount(y[y >= 0].reshape(-1), minlength=CLASSES).float()
    return flat(z, y, weight=1 / (counts + 1))


def focal(z: Tensor, y: Tensor) -> Tensor:
    nll = each(z, y)
    return (1 - (-nll).exp()) ** 2 * nll


WEIGHTS = torch.tensor([0.1, 1.0, 3.0, 0.5, 7.0])

LOSSES: dict[str, Loss] = {
    "mean": lambda z, y, k: flat(z, y),
    "sum": lambda z, y, k: flat(z, y, "sum"),
    "sum over the valid": lambda z, y, k: flat(z, y, "sum") / valid(y).sum(),
    "sum over all": lambda z, y, k: flat(z, y, "sum") / y.numel(),
    "mean of rows' means": lambda z, y, k: per_row(z, y).mean(),
    "mean of rows' sums": lambda z, y, k: each(z, y).view(len(y), -1).sum(1).mean(),
    "over another tensor's valid": lambda z, y, k: each(z, y).sum() / valid(k).sum().clamp(min=1),
    "masked by another tensor": lambda z, y, k: (each(z, y) * valid(k)).sum() / valid(k).sum().clamp(min=1),
    "mean with the other's labels": lambda z, y, k: flat(z, y) + 0.5 * flat(z, k, "sum"),
    "focal over the positive": lambda z, y, k: focal(z, y).sum() / positive(y).sum().clamp(min=1),
    "focal mean": lambda z, y, k: focal(z, y).mean(),
    "smoothed": lambda z, y, k: flat(z, y, smooth=0.2),
    "smoothed sum": lambda z, y, k: flat(z, y, "sum", smooth=0.2),
    "class weights": lambda z, y, k: flat(z, y, weight=WEIGHTS),
    "class weights summed": lambda z, y, k: flat(z, y, "sum", weight=WEIGHTS),
    "balanced classes": lambda z, y, k: balanced(z, y),
    "worst rows": lambda z, y, k: each(z, y).reshape(-1).topk(2).values.mean(),
    "worst row": lambda z, y, k: each(z, y).max(),
    "median": lambda z, y, k: each(z, y).median(),
    "normalised over the batch": lambda z, y, k: flat((z - z.mean(0)) / (z.std(0) + 0.1), y),
    "centred on the batch": lambda z, y, k: flat(z, y) + 0.1 * (z - z.mean(0, keepdim=True)).abs().mean(),
    "mean of squares, root": lambda z, y, k: each(z, y).square().mean().sqrt(),
    "norm": lambda z, y, k: each(z, y).norm(),
    "logsumexp": lambda z, y, k: each(z, y).reshape(-1).logsumexp(0),
    "dice": lambda z, y, k: dice(z, y),
    "entropy of the mean": lambda z, y, k: (
        flat(z, y) - 0.3 * torch.special.entr(z.softmax(-1).reshape(-1, CLASSES).mean(0)).sum()
    ),
    "product of two": lambda z, y, k: flat(z, y) * z.square().mean(),
    "product in one": lambda z, y, k: (each(z, y).sum() * z.square()).mean(),
    "scaled by the largest": lambda z, y, k: flat(z / z.detach().abs().max(), y),
    "over the number of classes seen": lambda z, y, k: each(z, y).sum() / y.unique().numel(),
    "cumulative": lambda z, y, k: each(z, y).reshape(-1).cumsum(0).mean(),
    "neighbours": lambda z, y, k: flat(z, y) + (z[1:] - z[:-1]).square().mean(),
    "rolled": lambda z, y, k: flat(z + 0.2 * z.roll(1, 0), y),
    "sorted": lambda z, y, k: (each(z, y).reshape(-1).sort().values * torch.linspace(0, 1, y.numel())).mean(),
    "first row more": lambda z, y, k: flat(z, y) + z[0].square().mean(),
    "divided by rows twice": lambda z, y, k: each(z, y).sum() / len(y) / len(y),
    "times rows": lambda z, y, k: each(z, y).mean() * len(z),
    "variance": lambda z, y, k: flat(z, y) + z.var(0).mean(),
    "two in a stack": lambda z, y, k: torch.stack([flat(z, y), z.square().sum()]).mean(),
}

EXACT = {
    "mean",
    "sum",
    "sum over all",
    "mean of rows' means",
    "mean of rows' sums",
    "focal mean",
    "smoothed sum",
    "class weights summed",
}


class Fool(Raw):
    """A linear model with a batch whose size, length and labels come from the seed."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        super().__init__(seed)

    def build(self) -> None:
        chosen = random.Random(self.seed)
        self.rows = chosen.choice([2, 3, 4, 5, 6, 8, 9, 12])
        self.length = chosen.choice([0, 0, 2, 3, self.rows])
        self.ignored = chosen.choice([0.0, 0.0, 0.2, 0.5])
        self.pattern = chosen.choice(["random", "last", "halves alike"])
        self.net: nn.Module = mlp(6, 7, CLASSES)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)

    def labels(self, source: torch.Generator) -> Tensor:
        shape = (self.rows, self.length) if self.length else (self.rows,)
        y = torch.randint(0, CLASSES, shape, generator=source)
        gone = torch.rand(shape, generator=source) < self.ignored
        if self.pattern == "last":
            gone = gone.sort(dim=0).values
        elif self.pattern == "halves alike":
            half = self.rows // 2
            gone[half : 2 * half] = gone[:half]
        y[gone] = -100
        y.view(self.rows, -1)[0, 0] = 2  # so that at least one label is left
        return y

    def loss(self, i: int) -> Tensor:
        source = self.draw(i)
        y, k = self.labels(source), self.labels(source)
        x = torch.randn(*y.shape, 6, generator=source)
        return LOSSES[self.name](self.net(x), y, k)


def fooled(name: str, seed: int, jobs: int) -> Found:
    """Makes three operations of one loss fail, each in a run of its own. The batch's shape comes
    from the seed."""
    fool = Fool(name, seed)
    shape = Shape(f"{name} [{fool.rows} x {fool.length}]", lambda s: Fool(name, s), "refuse", False, 2e-5, 1)
    sweep = Sweep(shape, seed, 1, jobs, True)
    chosen = random.Random(seed)
    inside = [k for k, o in enumerate(sweep.reference().operations[1]) if o.phase in MUST]
    places = [(step, k) for step in (0, 1, 1) for k in chosen.sample(inside, 1)]
    return sweep.run([Task(step, Fault("again", k, fool.rows)) for step, k in places])


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--count", type=int, default=4, help="shapes of each loss")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--losses", default="", help="names, with commas between")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = p.parse_args()
    torch.set_num_threads(1)
    began, wrong, idle = time.monotonic(), 0, 0
    for name in args.losses.split(",") if args.losses else LOSSES:
        total, notes = Counter[str](), []
        for n in range(args.count):
            found = fooled(name, args.seed + n, args.jobs)
            total.update(survived=found.survived, raised=found.raised, wrong=found.wrong)
            notes += [f"seed {args.seed + n}, {found.name}: {note}" for note in found.notes]
        never = name in EXACT and not total["survived"]
        wrong += total["wrong"]
        idle += never
        verdict = "FAILED" if total["wrong"] or never else "ok"
        print(f"{verdict:6} {name}: survived {total['survived']}, refused {total['raised']}, wrong {total['wrong']}")
        print(*(f"       WRONG: {note}" for note in notes[:3]), sep="\n", end="\n" if notes else "", flush=True)
    print(
        f"{len(LOSSES)} losses, {args.count} shapes each: {wrong} wrong, {idle} ordinary ones never "
        f"survived; {time.monotonic() - began:.0f} s"
    )
    return 1 if wrong or idle else 0


if __name__ == "__main__":
    sys.exit(main())
