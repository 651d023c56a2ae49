"""Finds the operations inside a module that relate rows of the batch to each other.

Whether rows affect each other may depend on their contents: two rows may have the same label, or more rows may choose
an expert than the expert accepts. A trial on a few rows of one batch may then show nothing, although pieces of a later
batch would have wrong gradients. But the operations that relate rows to each other run in every batch, whatever the
rows contain. They are found by the shapes of their results, and by what becomes of a result that has no rows although
it is computed from rows, such as a sum for each user: what is computed for rows from that depends on other rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, Optional

import torch
from torch.utils._pytree import tree_leaves

from ..sandbox.sandbox import Watcher, memory_of
from ..tape.functions import ADDS, ALONG, CHOOSES, COMPARED, DIVISORS, shape_only

_COMPRESSED = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
COUNTED = -1
PACKS = "_pack_padded_sequence"  # from here on rows lie one after the other by time, however many there are at each
MEAN = 1  # how PyTorch's operations call the reduction "mean"
IGNORED = 4  # the position of ignore_index among the arguments of nll_loss_forward


class Operation(NamedTuple):
    """One operation of a call."""

    name: str
    shapes: list[tuple[int, ...]]  # of the tensors among its results
    # The size of the dimension along which it sorts or accumulates; 0 if it does neither; COUNTED if its gradient
    # counts what is in the batch.
    along: int
    by: Optional[float] = None  # the number by which it divides, if that is a tensor
    given: Sequence[tuple[int, tuple[int, ...]]] = ()  # its tensors: which they are, and their shapes
    made: Sequence[int] = ()  # which its results are; one that it writes to is given as well
    divisor: Optional[int] = None  # which tensor that number is
    adds: bool = False  # whether it adds up numbers at places that are given: those of several rows may be the same


class Operations(Watcher):
    """Keeps the operations that it sees, in order. If ``lengths`` is true, a one-dimensional tensor of whole numbers
    that is sorted or accumulated has one length for each row: that serves to pack rows, and does not mix them."""

    def __init__(self, lengths: bool = True) -> None:
        self.made: list[Operation] = []
        self.ignored = set[int]()  # the targets that count for nothing in losses
        self._lengths = lengths
        self._numbers: dict[int, int] = {}  # of the tensors, by their memory
        self._count = 0

    def after(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        leaves = (result,) if isinstance(result, torch.Tensor) else tree_leaves(result)
        name, at = _named(func)
        if name.startswith("nll_loss") and len(args) > IGNORED and type(args[IGNORED]) is int:
            self.ignored.add(args[IGNORED])
        along = self._along(at, args, kwargs) if at >= 0 else COUNTED if _counts(func, args, kwargs) else 0
        along = along or _compared(name, args) or _normed(name, args)
        results = [t for t in leaves if isinstance(t, torch.Tensor)]
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        memory = set(map(_memory, tensors))
        given = [(self._number(_memory(t)), _shape(t)) for t in tensors]
        # The memory of a tensor that is gone may be that of a new one.
        made = [self._number(m, anew=m not in memory) for m in map(_memory, results)]
        by = _divisor(name, args)
        divisor = self._number(memory_of(args[DIVISORS[name]])) if by is not None else None
        self.made.append(
            Operation(name, [*map(_shape, results)], along, by, given, made, divisor, _adds(name, args, results))
        )

    def _number(self, memory: int, anew: bool = False) -> int:
        if anew or memory not in self._numbers:
            self._count += 1
            self._numbers[memory] = self._count
        return self._numbers[memory]

    def _along(self, at: int, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
        """The size of the dimension given by the argument at position ``at`` or named ``dim``."""
        tensor, dim = args[0], args[at] if at < len(args) else kwargs.get("dim", -1)
        if self._lengths and tensor.dim() == 1 and not tensor.is_floating_point():
            return 0
        return _shape(tensor)[dim] if _shape(tensor) else 0


def mixing(few: Sequence[Operation], more: Sequence[Operation], rows: int, others: int) -> Optional[str]:
    """Compares two calls, one of ``rows`` rows and one of ``others``. Returns the name of the first
    operation that relates rows to each other, or None if there is none. An operation does so if its
    result grows with the rows in two dimensions, if it sorts or accumulates along the rows, if its gradient depends
    on what else is in the batch, if it adds up rows at places that they are given, or if its result grows with the rows
    and depends on something that rows have been reduced to. The comparison ends where the calls begin to run different
    operations, or pack the rows."""
    for one, other, reduced in _side_by_side(few, more, rows, others):
        twice = any(sum(_growing(a, b, rows, others)) > 1 for a, b in zip(one.shapes, other.shapes))
        if twice or any(_growing([one.along], [other.along], rows, others)) or one.along == COUNTED:
            return one.name
        if _grow(one.shapes, other.shapes, rows, others):
            found = next((reduced[n] for n, _ in one.given if n in reduced), None)
            if found is not None:
                return found
        elif one.adds and _grow((s for _, s in one.given), (s for _, s in other.given), rows, others):
            return one.name
    return None


def divides(few: Sequence[Operation], more: Sequence[Operation], rows: int = 0, others: int = 0) -> bool:
    """Compares two calls as :func:`mixing` does. Returns whether they divide by a number that depends on the rows, such
    as the sum of a mask. As long as it only counts the rows, a mean over the rows looks the same. With the numbers of
    rows, one also counts that is the same in both calls, such as a sum of a mask that is at least 1."""
    pairs = zip(few, more)
    if any(a.name == b.name and None not in (a.by, b.by) and a.by != b.by for a, b in pairs):
        return True
    return rows != others and any(one.divisor in reduced for one, _, reduced in _side_by_side(few, more, rows, others))


def _side_by_side(
    few: Sequence[Operation], more: Sequence[Operation], rows: int, others: int
) -> Iterator[tuple[Operation, Operation, dict[int, str]]]:
    """The operations of two calls, as long as they are the same, with those tensors before each that have no rows, but
    are computed from rows: which they are in the first call, and by which operation."""
    reduced: dict[int, str] = {}
    picked: set[int] = set()  # rows that values choose, however many these are
    for one, other in zip(few, more):
        differ = one.name != other.name or [len(s) for s in one.shapes] != [len(s) for s in other.shapes]
        if differ or one.name == PACKS:
            return
        yield one, other, reduced
        if _grow(one.shapes, other.shapes, rows, others):
            continue
        given = [(n, a, b) for (n, a), (_, b) in zip(one.given, other.given) if len(a) == len(b)]
        by = next((reduced[n] for n, _, _ in given if n in reduced), None)
        # A view, such as one of a single row, is no reduction; nor is a choice of rows, such as those of an expert, or
        # what is computed for each of those.
        grows = any(n not in one.made and any(_growing(a, b, rows, others)) for n, a, b in given)
        sizes = {a[0] for n, a, _ in given if n in picked and a}
        each = not grows and bool(sizes) and all(sizes.intersection(shape) for shape in one.shapes)
        if (one.name in CHOOSES or each) and (grows or sizes):
            picked.update(one.made)
        elif by is None and (grows or sizes):
            by = one.name
        if by is not None and not shape_only(one.name):
            reduced.update(dict.fromkeys(one.made, by))


def _grow(few: Iterable[Sequence[int]], more: Iterable[Sequence[int]], rows: int, others: int) -> bool:
    """Whether a size of one of the shapes grows in proportion to the rows."""
    return any(any(_growing(a, b, rows, others)) for a, b in zip(few, more))


def _growing(few: Sequence[int], more: Sequence[int], rows: int, others: int) -> list[bool]:
    """Which sizes grow in proportion to the rows."""
    return [a != b and a * others == b * rows for a, b in zip(few, more)]


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


def _adds(name: str, args: Sequence[Any], results: Sequence[torch.Tensor]) -> bool:
    accumulates = len(args) > 3 and bool(args[3]) if "index_put" in name else name in ADDS
    return accumulates and any(map(torch.is_floating_point, results))


def _compared(name: str, args: Sequence[Any]) -> int:
    """The number of the elements that an operation compares with each other; 0 if it compares none."""
    at = COMPARED.get(name)
    tensor = args[at] if at is not None and at < len(args) else None
    return tensor.numel() if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided else 0


def _normed(name: str, args: Sequence[Any]) -> int:
    """The number of the elements that an operation scales by one norm; 0 if it does not."""
    return args[0].numel() // max(1, args[0].shape[args[2]]) if name in ("renorm", "renorm_") and args[0].dim() else 0


def _memory(tensor: torch.Tensor) -> int:
    """A number that is the same for tensors that share memory."""
    if tensor.layout == torch.sparse_coo:
        return memory_of(tensor._values())
    return memory_of(tensor if tensor.layout not in _COMPRESSED else tensor.values())


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return () if tensor.is_nested else tuple(tensor.shape)


@cache
def _named(func: Any) -> tuple[str, int]:
    """The name of an operation, and the position of its argument ``dim`` if the operation sorts or
    accumulates along that dimension; -1 otherwise."""
    name: str = func._schema.name.split("::")[-1]
    return name, next((i for i, a in enumerate(func._schema.arguments) if a.name == "dim" and name in ALONG), -1)
