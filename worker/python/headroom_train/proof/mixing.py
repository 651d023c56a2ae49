"""Finds the operations inside a module that relate rows of the batch to each other.

Whether rows affect each other may depend on their contents: two rows may have the same label, or more rows may choose
an expert than the expert accepts. A trial on a few rows of one batch may then show nothing, although pieces of a later
batch would have wrong gradients. But the operations that relate rows to each other run in every batch, whatever the
rows contain. They are found by the shapes of their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, Optional

import torch
from torch.utils._pytree import tree_leaves

from ..sandbox.sandbox import Watcher
from ..tape.functions import ALONG, DIVISORS

COUNTED = -1
MEAN = 1  # how PyTorch's operations call the reduction "mean"


class Operation(NamedTuple):
    """One operation of a call."""

    name: str
    shapes: list[tuple[int, ...]]  # of the tensors among its results
    # The size of the dimension along which it sorts or accumulates; 0 if it does neither; COUNTED if its gradient
    # counts what is in the batch.
    along: int
    by: Optional[float] = None  # the number by which it divides, if that is a tensor


class Operations(Watcher):
    """Keeps the operations that it sees, in order. If ``lengths`` is true, a one-dimensional tensor of whole numbers
    that is sorted or accumulated has one length for each row: that serves to pack rows, and does not mix them."""

    def __init__(self, lengths: bool = True) -> None:
        self.made: list[Operation] = []
        self._lengths = lengths

    def after(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        leaves = (result,) if isinstance(result, torch.Tensor) else tree_leaves(result)
        name, at = _named(func)
        along = self._along(at, args, kwargs) if at >= 0 else COUNTED if _counts(func, args, kwargs) else 0
        shapes = [_shape(t) for t in leaves if isinstance(t, torch.Tensor)]
        self.made.append(Operation(name, shapes, along, _divisor(name, args)))

    def _along(self, at: int, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
        """The size of the dimension given by the argument at position ``at`` or named ``dim``."""
        tensor, dim = args[0], args[at] if at < len(args) else kwargs.get("dim", -1)
        if self._lengths and tensor.dim() == 1 and not tensor.is_floating_point():
            return 0
        return _shape(tensor)[dim] if _shape(tensor) else 0


def mixing(few: Sequence[Operation], more: Sequence[Operation], rows: int, others: int) -> Optional[str]:
    """Compares two calls, one of ``rows`` rows and one of ``others``. Returns the name of the first
    operation that relates rows to each other, or None if there is none. An operation does so if its
    result grows with the rows in two dimensions, if it sorts or accumulates along the rows, or if its gradient depends
    on what else is in the batch. The comparison ends where the calls begin to run different operations."""

    def grows(a: int, b: int) -> bool:
        return a != b and a * others == b * rows

    for one, other in zip(few, more):
        if one.name != other.name or [len(s) for s in one.shapes] != [len(s) for s in other.shapes]:
            return None
        twice = any(sum(map(grows, a, b)) > 1 for a, b in zip(one.shapes, other.shapes))
        if twice or grows(one.along, other.along) or one.along == COUNTED:
            return one.name
    return None


def divides(few: Sequence[Operation], more: Sequence[Operation]) -> bool:
    """Compares two calls as :func:`mixing` does. Returns whether they divide by a number that depends on the rows, such
    as the sum of a mask. As long as it only counts the rows, a mean over the rows looks the same."""
    pairs = zip(few, more)
    return any(a.name == b.name and None not in (a.by, b.by) and a.by != b.by for a, b in pairs)


def counts(made: Sequence[Operation]) -> bool:
    """Whether the gradient of an operation counts what is in the batch."""
    return any(one.along == COUNTED for one in made)


def _divisor(name: str, args: Sequence[Any]) -> Optional[float]:
    at = DIVISORS.get(name)
    by = args[at] if at is not None and at < len(args) else None
    return float(by) if isinstance(by, torch.Tensor) and by.dim() == 0 and not (by.is_complex() or by.is_meta) else None


def _counts(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an operation counts what is in the batch: an embedding divides the gradient of a row of its table by the
    number of times that the batch uses it, and a mean with class weights is one over the sum of the targets' weights,
    which looks like a mean over the rows as long as all targets have the same weight."""
    if func._schema.name in ("aten::nll_loss_forward", "aten::nll_loss2d_forward"):
        return args[2] is not None and args[3] == MEAN
    at = next((i for i, a in enumerate(func._schema.arguments) if a.name == "scale_grad_by_freq"), None)
    return at is not None and bool(args[at] if at < len(args) else kwargs.get("scale_grad_by_freq"))


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return () if tensor.is_nested else tuple(tensor.shape)


@cache
def _named(func: Any) -> tuple[str, int]:
    """The name of an operation, and the position of its argument ``dim`` if the operation sorts or
    accumulates along that dimension; -1 otherwise."""
    name: str = func._schema.name.split("::")[-1]
    return name, next((i for i, a in enumerate(func._schema.arguments) if a.name == "dim" and name in ALONG), -1)
