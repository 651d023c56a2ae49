"""Whether numbers that a module computes for pieces of a batch add up to the number for the whole batch.

Trials on a few rows may not show that they do not: a root of a mean, or an exponential, is nearly the weighted mean of
its values for parts that are alike. So, for the two pieces whose numbers differ most, parts of one are put together
with parts of the other. All four calls have the same number of rows, so the same kernels run, and no rounding hides a
difference. The error for the whole batch is of the order of that for these two.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Optional

import torch

from ..failure import Refused
from ..sandbox.sandbox import HALF
from .rows import Rows
from .weights import Rule, weight


class Adding:
    """Collects the numbers of pieces, by slot. ``rules`` say by which weights they are added up. ``kind`` is the same
    for calls of the same kind. ``numbers`` are the slots of what were Python's numbers, whose dtype does not say how
    precisely they were computed."""

    # By kind and slot, how far apart the numbers of two pieces have been that did add up, relative to the larger.
    known: ClassVar[dict[tuple, float]] = {}

    def __init__(self, batch: int, rules: dict[int, Rule], kind: tuple, numbers: Collection[int] = ()) -> None:
        self._batch, self._rules, self._kind, self._numbers = batch, rules, kind, numbers
        self._found: list[tuple[Rows, dict[int, torch.Tensor]]] = []

    def note(self, rows: Rows, values: dict[int, torch.Tensor]) -> None:
        """Keeps the numbers of a piece."""
        self._found.append((rows, {s: values[s].detach() for s in self._rules if s in values}))

    def confirm(self, again: Callable[[Rows], dict[int, torch.Tensor]]) -> None:
        """Raises :class:`Refused` if numbers do not add up. ``again`` computes them for other rows, without drawing
        random numbers."""
        made: dict[tuple[int, ...], dict[int, float]] = {}

        def value(slot: int, rows: Sequence[int]) -> float:
            if tuple(rows) not in made:
                env = again(Rows.chosen(self._batch, rows))
                made[tuple(rows)] = {s: float(env[s]) for s in self._rules}
            return made[tuple(rows)][slot] * weight(self._rules[slot], rows)

        for slot in self._rules:
            apart = self._furthest(slot)
            if apart is None or apart[0] <= Adding.known.get((*self._kind, slot), 0.0):
                continue
            one, other = apart[1:]
            half = min(len(one), len(other)) // 2
            a, b, c, d = one[:half], one[half : 2 * half], other[:half], other[half : 2 * half]
            if half:
                straight, crossed = [a + b, c + d], [a + c, b + d]
            else:  # pieces of one row
                straight, crossed = [one[:1], other[:1]], [one[:1] + other[:1]]
            want, got = (sum(value(slot, rows) for rows in cut) for cut in (straight, crossed))
            size = max(abs(value(slot, rows)) for rows in (*straight, *crossed))
            if not abs(want - got) <= self._rounding(slot, not half) * size:
                raise Refused("the loss of a batch is not a weighted sum of the losses of its rows")
            Adding.known[(*self._kind, slot)] = apart[0]

    def _furthest(self, slot: int) -> Optional[tuple[float, list[int], list[int]]]:
        """How far the numbers of two pieces are apart, relative to the larger, and the rows of the pieces: those that
        differ most. None if fewer than two pieces count."""
        counting = [
            (values[slot], rows)
            for rows, values in self._found
            if weight(self._rules[slot], range(rows.start, rows.stop)) and slot in values
        ]
        if len(counting) < 2:
            return None
        numbers = torch.stack([v.double().reshape(()) for v, _ in counting]).tolist()
        least, most = (pick(range(len(numbers)), key=numbers.__getitem__) for pick in (min, max))
        size = max(abs(numbers[least]), abs(numbers[most]))
        apart = (numbers[most] - numbers[least]) / size if size else 0.0
        rows = [[*range(counting[i][1].start, counting[i][1].stop)] for i in (most, least)]
        return apart, rows[0], rows[1]

    def _rounding(self, slot: int, single: bool) -> float:
        """The largest relative difference that may be a rounding error. A single row may have a kernel of its own."""
        value = next(values[slot] for _, values in self._found if slot in values)
        exact = 1e-9 if value.dtype == torch.float64 and slot not in self._numbers else 1e-5
        if value.dtype in HALF:
            exact = 4 * torch.finfo(value.dtype).eps
        return max(exact, 1e-2 if value.is_cuda else 1e-4) if single else exact
