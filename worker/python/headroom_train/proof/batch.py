"""Where the batch is in the arguments of a tape's first call: how many rows it has, and in which dimension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch
from torch.utils._pytree import tree_flatten

from ..failure import Refused, is_out_of_memory, patiently
from ..sandbox.sandbox import NoRandomness, rehearsal
from ..tape.recorded_module import number_of
from ..tape.snapshot import submodules
from ..tape.tape import Entry, Outside, Ref, Tape
from ..tape.trees import tensors_in
from .rows import Axis, Cut, Rows, arguments, perform


def batch_of(tape: Tape, first: Entry) -> int:
    """The number of rows of a tape's batch: the size of dimension 0 that most tensor arguments of
    the first module's call have. Raises :class:`Refused` if there is no such size."""
    sizes = [tape.outside[i].shape[0] for i in first.references()[1] if tape.outside[i].dim() > 0]
    listed = next(filter(None, map(_listed, (*first.args, *first.kwargs.values()))), 0)
    if listed and not _most(listed, sizes):
        raise Refused(f"the first module is given a list of {listed} items, and only tensors are cut")
    if sizes[:1] == [1] and _most(1, sizes):
        return 1
    sizes = [s for s in sizes if s > 1] or sizes
    if not sizes:
        raise Refused("the first module is given no tensor with a batch dimension")
    batch = max(set(sizes), key=sizes.count)
    if not _most(batch, sizes):
        objects = " and ".join(dict.fromkeys(f"in a {name} object" for name in first.packed()))
        raise Refused(
            f"the first module's arguments{f', {objects},' if objects else ''} disagree about the size of the batch"
        )
    return batch


def _most(size: int, sizes: list[int]) -> bool:
    return sizes.count(size) * 2 > len(sizes)


def _listed(argument: object) -> int:
    """The number of items of a list that has tensors in them; 0 for a list of one item, and for anything else."""
    if not isinstance(argument, list) or len(argument) < 2:
        return 0
    leaves = tree_flatten(argument, is_leaf=lambda t: type(t) in (Ref, Outside))[0]
    return len(argument) if any(type(t) in (Ref, Outside) for t in leaves) else 0


def axis_in(tensor: torch.Tensor, batch: int, dim: int) -> Optional[Axis]:
    """Where the rows of a batch would be in a tensor from outside, if dimension ``dim`` of the first module's arguments
    is the batch; None if the tensor cannot be cut."""
    if dim and tensor.dim() > dim and tensor.shape[dim] == batch:
        return Axis(dim)
    if tensor.dim() == 0 or tensor.shape[0] == 0 or tensor.shape[0] % batch:
        return None
    each = tensor.shape[0] // batch
    return Axis(0, each) if dim else Axis(0, 1, each)


# The dimension that is the batch, by module and kinds of arguments; -1 if neither 0 nor 1 is.
_dims: dict[tuple, int] = {}


def rows_in(tape: Tape, first: Entry) -> tuple[int, int, str]:
    """The number of rows of a tape's batch, the dimension of the first call's arguments that is the batch, and why it
    may not be, or an empty text. This is dimension 0, unless layers that expect time in dimension 0 make it likely to
    be dimension 1, and a trial shows that it is."""
    turned = next((m for m in submodules([first.module]) if getattr(m, "batch_first", True) is False), None)  # type: ignore[list-item]
    given = [tape.outside[i] for i in first.references()[1] if tape.outside[i].dim()]
    second = {t.shape[1] for t in given if t.dim() > 1}
    if turned is None or len(second) != 1 or max(second) < 2 or first.references()[0]:
        batch = batch_of(tape, first)
        return batch, 0, _beside(first, batch, given)
    key = number_of(first.module), tuple((t.dim(), t.dtype) for t in given)
    if key not in _dims:
        _dims[key] = _separate_in(tape, first, max(second))
    if _dims[key] == 1:
        return max(second), 1, ""
    batch = batch_of(tape, first)
    return (
        batch,
        0,
        "" if _dims[key] == 0 else _doubt(first, batch, f"its {type(turned).__name__} has batch_first=False"),
    )


def _beside(first: Entry, batch: int, given: Sequence[torch.Tensor]) -> str:
    for t in given:
        if t.dim() == 1 and not t.is_floating_point() and 1 < len(t) != batch:
            return _doubt(first, batch, f"{len(t)} whole numbers are given with it, such as the ends of sequences")
    return ""


def _doubt(first: Entry, batch: int, why: str) -> str:
    return f"dimension 0 of the arguments of {first.call_name()}, of {batch}, may not be the batch, since {why}"


def _separate_in(tape: Tape, first: Entry, second: int) -> int:
    """The dimension of a module's arguments, 0 or 1, along which two slices have the same results together as each
    alone; -1 if there is none. ``second`` is the size of dimension 1."""

    def tried() -> int:
        with rehearsal([first.module]), NoRandomness(), torch.no_grad():  # type: ignore[list-item]
            for dim in (0, 1):
                try:
                    if _separate(tape, first, second if dim else batch_of(tape, first), dim):
                        return dim
                except Exception as e:
                    if is_out_of_memory(e):
                        raise
        return -1

    return patiently(tried, "there is not enough memory for a trial on a few rows")


def _separate(tape: Tape, first: Entry, batch: int, dim: int) -> bool:
    """Whether two slices in a dimension have the same results together as each alone."""
    axes = {i: axis_in(tape.outside[i], batch, dim) for i in first.references()[1]}
    cut = Cut({i: axis for i, axis in axes.items() if axis is not None and axis.each() == 1}, False)
    results = []
    for slices in ((0, 1), (0,), (1,)):
        args, kwargs = arguments(tape, first, cut, {}, Rows.chosen(batch, slices))
        results.append(tensors_in(perform(first, args, kwargs, trial=True)))
    grown = False
    for both, one, other in zip(*results):
        moved = [d for d in range(both.dim()) if both.shape[d] != one.shape[d]]
        grown = grown or bool(moved)
        if moved and (len(moved) > 1 or not _joined(both, one, other, moved[0], dim)):
            return False
    return grown


def _joined(both: torch.Tensor, one: torch.Tensor, other: torch.Tensor, along: int, dim: int) -> bool:
    """Whether a result of two slices together, which grows in dimension ``along``, is that of each alone."""
    if both.shape[along] != 2 * one.shape[along] or one.shape != other.shape:
        return False
    if not both.is_floating_point():
        return True
    joined = Axis(along, one.shape[along] if dim and not along else 1).joined([one, other])
    return torch.allclose(both, joined, rtol=1e-2, atol=1e-4 * float(both.abs().max()))
