"""Finds modules whose code does something else for a large batch, or for rows beyond some number, than for a few rows.

A trial runs a module on a few rows, and pieces have more of them, but never as many as the batch. Code that asks for
the size of its batch, or that treats rows by their numbers (``h[:3000]``), may do something else for the batch than for
any piece. Here the call is made with tensors that have no memory, for a few rows and for all of them, and its
operations are compared.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..failure import interrupts
from ..sandbox.sandbox import Watched, Watcher
from ..tape.functions import BOUNDS, LAYOUT, LOOKS_UP, TOTALS
from ..tape.graph import walk
from ..tape.snapshot import USUAL, submodules
from ..tape.trees import tensors_in

# A foreign kernel that asks for memory that is not there gets an exception.
GUARDED = hasattr(torch._C, "_set_throw_on_mutable_data_ptr")
_INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_"}
_NUMBERS = ("number", "float", "Optional[number]", "Optional[float]", "Tensor")


class Made(NamedTuple):
    """An operation: its name, the numbers among its arguments that are no sizes, and the shapes of its results."""

    name: str
    numbers: tuple[float, ...]
    shapes: tuple[tuple[int, ...], ...]


class Calls(Watcher):
    """The operations that it sees. Their results have no memory, and asking for it is an exception. :attr:`bounds` are
    the numbers with which the code compares numbers that it has given to the rows, or numbers of rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._numbered: dict[int, torch.Tensor] = {}  # tensors that are made from the numbers of rows, by id
        self.made: list[Made] = []
        self.bounds: set[float] = set()

    def after(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        name, found = func._schema.name.split("::")[-1], [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        for t in found:
            if t.is_meta:
                torch._C._set_throw_on_mutable_data_ptr(t)
        numbers = _numbers(func, args, kwargs)
        if self._follows(name, args, kwargs, found) and name.rstrip("_") in BOUNDS:
            self.bounds.update(numbers)
        if name not in LAYOUT:
            self.made.append(Made(name, numbers, tuple(tuple(t.shape) for t in found)))

    def _follows(self, name: str, args: Any, kwargs: Any, found: Sequence[torch.Tensor]) -> bool:
        """Notes which results are made from the numbers of rows, or count them. Returns whether an argument is."""
        before = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        given = any(id(t) in self._numbered for t in before)
        rows = any(self._rows in t.shape for t in found)
        numbers = name == "arange" and rows
        totals = name in TOTALS and not rows and any(self._rows in t.shape for t in before)
        if given and name not in LOOKS_UP or numbers or totals:
            self._numbered.update({id(t): t for t in found})
        return given


class Hollow(Watched):
    """A context in which tensors without memory can be used beside others, which then count as tensors without memory,
    too. Where an operation needs values, a condition counts as true for every row, and a sum is the number of
    ``rows``."""

    def __init__(self, rows: int, watcher: Watcher) -> None:
        super().__init__([watcher])
        self._rows = rows
        # Numbers that stand for sums, by the ids of their tensors.
        self._sums: dict[int, tuple[torch.Tensor, float]] = {}

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not any(isinstance(t, torch.Tensor) and t.is_meta for t in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        name = func._schema.name.split("::")[-1]
        known = self._sums.get(id(args[0])) if args else None
        if name == "_local_scalar_dense" and known is not None:
            return _number(known[1], args[0].dtype)
        if name in _SELECT:
            return _SELECT[name](args[0])
        args, kwargs = tree_map(_emptied, args), tree_map(_emptied, kwargs)
        if name in _INDEXES:
            args = (args[0], [i for index in args[1] for i in _numbered(index)], *args[2:])
        result = func(*args, **kwargs)
        if name in ("sum", "count_nonzero") and result.numel() == 1:
            self._sums[id(result)] = result, float(self._rows)
        elif known is not None and name in _ON_NUMBERS:
            self._compute(name, known[1], args[1:], result)
        return result

    def _compute(self, name: str, value: float, others: Sequence[Any], result: Any) -> None:
        """Notes the number that stands for the result of an operation on such a number and another number."""
        if others and isinstance(others[0], (int, float)):
            self._sums[id(result)] = result, float(_ON_NUMBERS[name](value, others[0]))


def _number(value: float, dtype: torch.dtype) -> Any:
    """The value as the Python number that an item of a tensor of this dtype is."""
    if dtype == torch.bool:
        return bool(value)
    return value if dtype.is_floating_point else int(value)


def _emptied(value: Any) -> Any:
    return without_memory(value) if isinstance(value, torch.Tensor) and not value.is_meta else value


_SELECT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nonzero": lambda t: torch.empty((t.numel(), t.dim()), dtype=torch.long, device="meta"),
    "bincount": lambda t: torch.empty(1, dtype=torch.long, device="meta"),
    "masked_select": lambda t: torch.empty(t.numel(), dtype=t.dtype, device="meta"),
}
_ON_NUMBERS = {n: getattr(operator, n) for n in ("gt", "ge", "lt", "le", "eq", "ne", "add", "sub", "mul")} | {
    "div": operator.truediv
}


def _numbered(index: Optional[torch.Tensor]) -> list[Optional[torch.Tensor]]:
    """What indexes as a condition that is true everywhere does."""
    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    return [torch.empty(index.numel(), dtype=torch.long, device="meta") for _ in range(index.dim())]


def _numbers(func: Any, args: Any, kwargs: Any) -> tuple[float, ...]:
    found = []
    for i, wanted in enumerate(func._schema.arguments):
        given = args[i] if i < len(args) else kwargs.get(wanted.name)
        if isinstance(given, (int, float)) and str(wanted.type) in _NUMBERS:
            found.append(float(given))
    return tuple(found)


def without_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape and type that has no memory."""
    with torch._C.DisableTorchFunction():
        made = torch.empty_like(tensor, device="meta", requires_grad=tensor.requires_grad and tensor.is_leaf)
    if GUARDED:
        torch._C._set_throw_on_mutable_data_ptr(made)
    return made


@contextmanager
def hollow(module: torch.nn.Module) -> Iterator[dict[int, torch.Tensor]]:
    """A context in which a module's parameters, buffers and other tensors have no memory. Yields what stands for them,
    by their ids."""
    made: dict[int, torch.Tensor] = {}

    def instead(value: Any) -> Any:
        """A tensor without memory for a tensor, also in a list, tuple or dictionary; anything else unchanged."""
        if isinstance(value, torch.Tensor):
            if id(value) not in made:
                made[id(value)] = without_memory(value)
            return made[id(value)]
        inside = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
        if not any(isinstance(v, torch.Tensor) for v in inside):
            return value
        return {k: instead(v) for k, v in value.items()} if type(value) is dict else type(value)(map(instead, value))

    had: list[tuple[dict, str, Any]] = []
    try:
        for m in submodules([module]):
            for held in (m._parameters, m._buffers, vars(m)):
                for name, value in [*held.items()]:
                    other = value if held is vars(m) and name in USUAL else instead(value)
                    if other is not value:
                        had.append((held, name, value))
                        held[name] = other
        yield made
    finally:
        for held, name, value in had:
            held[name] = value


def otherwise(module: torch.nn.Module, calls: dict[int, Callable[[], Callable[[], Any]]]) -> Optional[str]:
    """How two calls of a module are seen to differ, other than by their size; None if they are not, or if the module
    needs values. ``calls`` has functions that prepare the calls, by their number of rows, the smaller one first; their
    arguments have no memory. Whatever the calls change must be undone by the caller."""
    if not GUARDED:
        return None
    seen, back = [Calls(rows) for rows in calls], [Calls(rows) for rows in calls]
    try:
        with hollow(module) as made:
            for rows, forward, backward in zip(calls, seen, back):
                call = calls[rows]()
                with Hollow(rows, forward):
                    result = call()
                _differentiated(result, [t for t in made.values() if t.requires_grad], Hollow(rows, backward))
    except Exception as e:
        if interrupts(e):
            raise
        return None
    few, many = calls
    return _differ(seen, few, many) or _differ(back, few, many)


def _differentiated(result: Any, leaves: Sequence[torch.Tensor], within: Hollow) -> None:
    """Runs the backward pass of a call whose graph has functions that are written in Python: others do the same for any
    number of rows."""
    roots = [t for t in tensors_in(result) if t.requires_grad]
    if leaves and any(
        isinstance(node, torch.autograd.function.BackwardCFunction) for node in walk([t.grad_fn for t in roots])
    ):
        with within:
            torch.autograd.grad(roots, leaves, [torch.empty_like(t) for t in roots], allow_unused=True)


def _differ(seen: Sequence[Calls], few: int, many: int) -> Optional[str]:
    """How what two calls have done differs."""
    here, there = (s.made for s in seen)
    if any(few < bound < many for bound in seen[0].bounds & seen[1].bounds):
        return "rows are compared with a number, or counted"
    if [m.name for m in here] == [m.name for m in there]:
        for a, b in zip(here, there):
            if not _in_proportion(a.shapes, b.shapes, few, many) or not _alike(a.numbers, b.numbers, few, many):
                return a.name
        return None
    return _unlike(here, there, few, many)


def _unlike(here: Sequence[Made], there: Sequence[Made], few: int, many: int) -> Optional[str]:
    """The name of an operation that one call has made with numbers with which the other has not made it."""
    for name in dict.fromkeys(m.name for m in (*here, *there)):
        some, others = ({m.numbers for m in made if m.name == name} for made in (here, there))
        pairs = [(a, b) for a in some for b in others if _alike(a, b, few, many)]
        if some != {a for a, _ in pairs} or others != {b for _, b in pairs}:
            return name
    return None


def _alike(some: tuple[float, ...], others: tuple[float, ...], few: int, many: int) -> bool:
    """Whether numbers are the same in a call with ``few`` rows and in one with ``many``, or as many times larger or
    smaller as there are rows."""
    ratio = many / few
    return len(some) == len(others) and all(
        any(math.isclose(a * r, b, rel_tol=1e-6) or a == b for r in (1.0, ratio, 1 / ratio))
        for a, b in zip(some, others)
    )


def _in_proportion(some: Sequence[tuple[int, ...]], others: Sequence[tuple[int, ...]], few: int, many: int) -> bool:
    """Whether shapes are the same but for dimensions that grow as the rows do."""
    return len(some) == len(others) and all(
        len(a) == len(b) and all(m == n or m * many == n * few for m, n in zip(a, b)) for a, b in zip(some, others)
    )
