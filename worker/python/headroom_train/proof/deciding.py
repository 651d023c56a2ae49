"""Finds modules whose code decides by the contents of the batch: ``if mask.any()``, ``while error.max() > tolerance``.

A few rows, and a piece, may be decided about otherwise than the whole batch. That is harmless where both ways come to
the same, as where a mask is left out if it hides nothing. So a few rows are computed both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch
from torch.utils._pytree import tree_leaves

from ..failure import Refused, passes
from ..sandbox.sandbox import Watcher, memory_of
from ..tape.trees import flatten
from .rows import alike, sample

_QUANTIFIERS = {"any": True, "all": False}  # what settles them, whatever more rows there are
_NOT = {"logical_not", "bitwise_not"}


class Decisions(Watcher):
    """The truth values and the floating-point numbers that code reads from tensors which are computed of the rows, in
    order. Whole numbers are sizes for the most part. As far as there are any in ``instead``, the code is given those in
    their places."""

    def __init__(self, instead: Sequence = ()) -> None:
        self.made: list = []
        self.settled: list[bool] = []  # for each of them: it would be the same if there were more rows
        self._instead = instead
        self._of_rows: set[int] = set()  # memory
        self._settles: dict[int, bool] = {}  # by the memory of a quantifier's result: the value that more rows leave

    def given(self, rows: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
        self._of_rows.update(map(memory_of, (*rows, *others)))
        self._of_rows.discard(0)

    def after(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        given = [memory_of(t) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        made = {memory_of(t) for t in tree_leaves(result) if isinstance(t, torch.Tensor)} - {0}
        if self._of_rows.isdisjoint(given):
            self._of_rows -= made  # memory that has become free is used again
            return None
        if type(result) in (bool, float):
            at = len(self.made)
            self.made.append(result)
            self.settled.append(self._settles.get(given[0]) is result)
            return self._instead[at] if at < len(self._instead) else None
        name = func._schema.name.split("::")[-1]
        known = _QUANTIFIERS.get(name)
        if name in _NOT and given[0] in self._settles:
            known = not self._settles[given[0]]
        for m in made:
            self._of_rows.add(m)
            self._settles.pop(m, None)
            if known is not None:
                self._settles[m] = known
        return None


def differs(
    usual: Sequence[Any],
    decided: Sequence[Decisions],
    whole: Optional[Sequence],
    call: Callable[[int, Decisions], Any],
    most: float,
) -> bool:
    """Whether a call is seen to come to something else for a few rows if it decides about them as about the whole
    batch. ``usual`` and ``decided`` are its results, and what it has decided, for two numbers of rows. ``call`` makes
    it again. ``most`` is how much two results may differ by rounding. If what is decided about the ``whole`` batch is
    not known, everything is decided the other way that more rows may change."""
    for which, (result, here) in enumerate(zip(usual, decided)):
        other: Any = whole
        if whole is None:
            other = [not v if type(v) is bool and not s else v for v, s in zip(here.made, here.settled)]
        if [*other] == here.made:
            continue
        try:
            if not _same(result, call(which, Decisions(other)), most):
                return True
        except Exception as e:
            asserted = isinstance(e, Refused) and e.__cause__ is not None  # so the script's own call has not decided so
            if whole is not None or not asserted or passes(e):
                raise
    return False


def _same(some: Any, others: Any, most: float) -> bool:
    some, others = flatten(some)[0], flatten(others)[0]
    return len(some) == len(others) and all(_like(a, b, most) for a, b in zip(some, others))


def _like(one: Any, other: Any, most: float) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and alike(sample(one), sample(other), most)
    return type(one) is type(other) and (type(one) is not str or one == other)
