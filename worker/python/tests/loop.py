"""The base class of the training loops under test, and the list of all these loops.

A loop is small enough that every operation of a step can be made to fail in turn. It is written as
people write their loops: it knows nothing about headroom.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Loop:
    """A model, an optimizer, and batches that depend only on the seed and the step.

    A subclass defines two methods. build sets its modules and optimizers as attributes. step performs one whole
    optimizer step, and returns what the loop would print.
    """

    rows = 7  # of a batch; prime, so that few other sizes are multiples of it

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.printed: list[list[float]] = []
        torch.manual_seed(seed)
        self.build()

    def build(self) -> None:
        raise NotImplementedError

    def step(self, i: int) -> list[float]:
        raise NotImplementedError

    def run(self, steps: int, begin: Callable[[int], None]) -> None:
        """Performs the given number of optimizer steps; begin is called before each."""
        for i in range(steps):
            begin(i)
            self.printed.append(self.step(i))

    def rows_in(self, i: int) -> int:
        return self.rows

    def draw(self, i: int) -> torch.Generator:
        """The generator for step i's batch. The global random state is left to the model."""
        return torch.Generator().manual_seed(1000 * self.seed + i)

    def modules(self) -> dict[str, nn.Module]:
        return {name: value for name, value in vars(self).items() if isinstance(value, nn.Module)}

    def parameters(self) -> dict[str, Tensor]:
        """Everything that is trained, by name."""
        found = {name: value for name, value in vars(self).items() if isinstance(value, nn.Parameter)}
        for prefix, module in self.modules().items():
            found.update({f"{prefix}.{name}": p for name, p in module.named_parameters()})
        return found

    def buffers(self) -> dict[str, Tensor]:
        return {
            f"{prefix}.{name}": b for prefix, module in self.modules().items() for name, b in module.named_buffers()
        }


class Raw(Loop):
    """A loop of the usual kind: zero_grad, forward and loss, backward, step."""

    optimizer: torch.optim.Optimizer

    def loss(self, i: int) -> Tensor:
        raise NotImplementedError

    def step(self, i: int) -> list[float]:
        self.optimizer.zero_grad()
        loss = self.loss(i)
        loss.backward()
        self.optimizer.step()
        return [loss.item()]


@dataclass(frozen=True)
class Shape:
    """A loop and what is expected of it."""

    name: str
    make: Callable[[int], Loop]
    # "exact": must survive failures from the first module call to the end of backward; "refuse": may refuse them, but
    # must not go wrong
    kind: str
    dropout: bool  # whether it draws random numbers, so that gradients can only be compared roughly
    tolerance: float  # relative, of gradients
    every: int  # multiplies the stride of a sampled sweep, which is set by --every


SHAPES: dict[str, Shape] = {}

FILES = (
    "vision",
    "language",
    "composed",
    "outputs",
    "batchwise",
    "losses",
    "weighted",
    "mechanics",
    "parts",
    "stateful",
    "adapters",
    "sums",
)
FRAMEWORKS = ("transformers_loops", "lightning_loops", "accelerate_loops")


def shape(
    kind: str = "exact", *, dropout: bool = False, tolerance: float = 1e-5, every: int = 1
) -> Callable[[type], type]:
    """Returns a class decorator that adds a loop to SHAPES, under the class's name in snake
    case."""

    def enter(made: type) -> type:
        name = "".join("_" + c.lower() if c.isupper() else c for c in made.__name__).lstrip("_")
        assert name not in SHAPES, name
        SHAPES[name] = Shape(name, made, kind, dropout, tolerance, every)
        return made

    return enter


def load(names: list[str] | None = None) -> list[Shape]:
    """The loops with these names, or all loops if there are no names. Frameworks are imported only
    if needed."""
    for file in FILES:
        importlib.import_module(f"loops_{file}")
    if not names or not set(names) <= set(SHAPES):
        for file in FRAMEWORKS:
            importlib.import_module(file)
    unknown = set(names or ()) - set(SHAPES)
    if unknown:
        raise SystemExit(f"no such loop: {', '.join(sorted(unknown))}; there are {', '.join(SHAPES)}")
    return [SHAPES[name] for name in names or SHAPES]
