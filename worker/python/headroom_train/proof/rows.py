"""Which part of each tensor of a tape belongs to some of the rows of the batch, and calls with these parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..failure import Refused, passes, patiently
from ..hooks.genuine import in_place
from ..hooks.registered import noting
from ..sandbox.sandbox import NoRandomness, rehearsal
from ..tape.found import as_found
from ..tape.given import Given, changes
from ..tape.recorded_module import number_of
from ..tape.snapshot import submodules
from ..tape.tape import Entry, Outside, Packed, Ref, Tape, autocast_as, is_place, modes_as
from ..tape.trees import elements, is_a, size, tensors_in

CHANNELS = 4  # the most that an image has by itself, in its first dimension
SAMPLE = 4096  # the most values of a result that are kept


class Axis(NamedTuple):
    """Where the rows of a batch are in a tensor. Dimension ``dim`` consists of ``outer`` blocks, one after the other,
    and each block has ``inner`` slices for each row. Time steps that were flattened together with the rows are
    blocks."""

    dim: int
    outer: int = 1
    inner: int = 1

    def each(self) -> int:
        """The number of slices of a row."""
        return self.outer * self.inner

    def apart(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor with the rows in dimension ``dim + 1``, between the blocks and the slices."""
        return tensor.unflatten(self.dim, (self.outer, -1, self.inner))

    def some(self, tensor: torch.Tensor, start: int, count: int) -> torch.Tensor:
        """``count`` rows, beginning with row ``start``."""
        if tensor.layout != torch.strided:  # it has no views
            return self.chosen(tensor, torch.arange(start, start + count, device=tensor.device))
        if self.outer == 1:
            return tensor.narrow(self.dim, start * self.inner, count * self.inner)
        return self.apart(tensor).narrow(self.dim + 1, start, count).flatten(self.dim, self.dim + 2)

    def chosen(self, tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        """The rows that the index lists."""
        if self.each() == 1:
            return tensor.index_select(self.dim, index)
        return self.apart(tensor).index_select(self.dim + 1, index).flatten(self.dim, self.dim + 2)

    def put(self, whole: torch.Tensor, start: int, part: torch.Tensor) -> int:
        """Writes a part into the whole tensor, beginning with row ``start``. Returns how many rows the part has."""
        count = part.shape[self.dim] // self.each()
        if self.outer == 1:
            whole.narrow(self.dim, start * self.inner, count * self.inner).copy_(part)
        else:
            self.apart(whole).narrow(self.dim + 1, start, count).copy_(self.apart(part))
        return count

    def joined(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor of which the parts are the rows, in order."""
        if self.outer == 1:
            return torch.cat([*parts], self.dim)
        return torch.cat([self.apart(part) for part in parts], self.dim + 1).flatten(self.dim, self.dim + 2)


class Rows:
    """Rows ``start`` to ``stop``, exclusive, of a batch of ``batch`` rows. If ``index`` is given,
    the rows that it lists instead."""

    __slots__ = ("batch", "start", "stop", "index", "count")

    def __init__(self, batch: int, start: int, stop: int, index: Optional[list[int]] = None) -> None:
        self.batch, self.start, self.stop, self.index = batch, start, stop, index
        self.count = stop - start if index is None else len(index)

    @classmethod
    def chosen(cls, batch: int, index: Sequence[int]) -> Rows:
        """The rows that ``index`` lists."""
        return cls(batch, 0, batch, [*index])

    def of(self, tensor: torch.Tensor, axis: Axis) -> torch.Tensor:
        """These rows of a tensor."""
        if self.count == self.batch and self.index is None:
            return tensor
        if self.index is None:
            return axis.some(tensor, self.start, self.count)
        return axis.chosen(tensor, torch.tensor(self.index, device=tensor.device))


class Slot(NamedTuple):
    """What is known about a tensor of the tape."""

    shape: tuple  # for the whole batch
    axis: Optional[Axis]  # where its rows are; None if no dimension grows with the batch
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    fixed: bool  # the tensor does not depend on the batch at all
    shared: bool = False  # it shares memory with an argument of the call that made it

    @property
    def dim(self) -> Optional[int]:
        """The dimension that grows with the batch; None if there is none."""
        return None if self.axis is None else self.axis.dim

    @property
    def whole(self) -> bool:
        """Whether the tensor belongs to the batch as a whole, as a loss does."""
        return self.axis is None and not self.fixed

    def pick(self, value: torch.Tensor, where: Sequence[int]) -> torch.Tensor:
        """Some rows of the tensor, of which ``value`` is what there is."""
        return value.clone() if self.axis is None else self.axis.chosen(value, torch.tensor(where, device=value.device))


class Other(NamedTuple):
    """An object among a call's results that cannot be put together from those of pieces."""

    name: str  # of its class


class Cut(NamedTuple):
    """How an entry is run on some rows: which outside tensors are cut, how many slices of each belong to a row, and
    which of the :func:`numbers` among the entry's arguments is the size that grows with the rows."""

    outside: dict[int, Axis]  # by index
    sized: Optional[int] = None


NOTHING = Cut({})


def numbers(tree: Any) -> Iterator[int]:
    """The numbers among a call's arguments, in the order in which they are replaced."""
    kind = type(tree)
    if kind is int:
        yield tree
    elif kind in (list, tuple, torch.Size):
        for t in tree:
            yield from numbers(t)
    elif kind is dict:
        for t in tree.values():
            yield from numbers(t)


def perform(entry: Entry, args: Any, kwargs: Any, trial: bool = False) -> Any:
    """Repeats an entry's call in the modes that were active when the script made it. In a trial, a function that
    changes its argument in place builds no graph, so that the argument may be a leaf."""
    with ExitStack() as stack:
        for context in [modes_as(entry.modes), *autocast_as(entry.autocast)]:
            stack.enter_context(context)
        if entry.saving is not None:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*entry.saving))
        graph = entry.grad and torch._C.is_grad_enabled() and not (trial and entry.inplace)
        stack.enter_context(torch.set_grad_enabled(graph))
        if entry.fresh:
            args = (args[0].clone(), *args[1:])
        stack.enter_context(in_place())
        if entry.module is not None:
            stack.enter_context(noting(trial or entry.grad and not graph))
        stack.enter_context(as_found(entry.found))
        given = Given(args, kwargs) if entry.module is not None else Given((), {})
        try:
            result = entry.call(*args, **kwargs)
            if given.changed():
                raise Refused(changes(entry))
        except BaseException:
            given.put_back()  # objects are the script's own
            raise
    return args[0] if result is None and (entry.inplace or entry.fresh) else result


def arguments(
    tape: Tape,
    entry: Entry,
    cut: Cut,
    env: dict,
    rows: Optional[Rows],
    also: Optional[Callable] = None,
    leaves: Optional[dict] = None,
) -> tuple[Any, Any]:
    """An entry's arguments for the given rows, or for all rows if ``rows`` is None. ``leaves`` replace the outside
    tensors whose gradients are wanted, by index; ``also`` is applied to all other outside tensors."""
    filling = _Filling(tape, cut, env, rows, also, leaves or {}, itertools.count())
    return filling.put(entry.args), filling.put(entry.kwargs)


class _Filling(NamedTuple):
    """Puts values in the places of references, for :func:`arguments`."""

    tape: Tape
    cut: Cut
    env: dict
    rows: Optional[Rows]
    also: Optional[Callable]
    leaves: dict
    met: Iterator[int]  # counts the numbers

    def put(self, tree: Any) -> Any:
        kind = type(tree)
        if kind is Ref:
            return self.env[tree.slot]
        if kind is Outside:
            return self._outer(tree.index)
        if kind is list:
            return [self.put(t) for t in tree]
        if kind is tuple or kind is torch.Size:
            return tuple(self.put(t) for t in tree)
        if kind is dict:
            return {k: self.put(v) for k, v in tree.items()}
        if kind is int:
            return self._number(tree)
        if kind in (float, bool, str, type(None)):
            return tree
        if kind is Packed:
            return tree.filled(self._packed)
        return tree_map(
            lambda leaf: self.put(leaf) if type(leaf) in (Ref, Outside, Packed) else leaf,
            tree,
            is_leaf=is_place,
        )

    def _number(self, number: int) -> int:
        sized = next(self.met) == self.cut.sized
        return number if self.rows is None or not sized else number // self.rows.batch * self.rows.count

    def _packed(self, leaf: Any) -> Any:
        if type(leaf) is torch.Size:
            return self._sized(leaf)
        return self.put(leaf) if is_place(leaf) else leaf

    def _sized(self, shape: torch.Size) -> torch.Size:
        """The shape that an object on these rows would keep of its tensors."""
        rows = self.rows
        if rows is None or not shape or shape[0] != rows.batch or rows.count == rows.batch:
            return shape
        return torch.Size((rows.count, *shape[1:]))

    def _outer(self, index: int) -> torch.Tensor:
        if index in self.leaves:
            return self.leaves[index]
        tensor = self.tape.outside[index]
        if self.rows is not None and index in self.cut.outside:
            tensor = self.rows.of(tensor, self.cut.outside[index])
        return tensor if self.also is None else self.also(tensor)


def steps_of(shape: Sequence[int]) -> tuple[int, ...]:
    """For each dimension, the stride at which to take at most :data:`SAMPLE` values from all over a tensor. The last
    dimensions are thinned first, so that as many rows as possible have values in the sample."""
    left = math.prod(shape)
    steps: list[int] = []
    for length in reversed(shape):
        step = min(max(1, length), -(-left // SAMPLE)) or 1
        left = left // max(1, length) * -(-length // step)
        steps.insert(0, step)
    return tuple(steps)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of real numbers itself; of a complex one, the real and the imaginary parts, along one more dimension."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


@torch.no_grad()
def sample(tensor: torch.Tensor, steps: Optional[Sequence[int]] = None) -> torch.Tensor:
    """A copy of some of a tensor's values, as float64 on the CPU: of complex ones both parts."""
    return as_real(thinned(tensor, steps)).to("cpu", torch.float64, copy=True)


def thinned(tensor: torch.Tensor, steps: Optional[Sequence[int]] = None) -> torch.Tensor:
    """A view of some of a tensor's values, at the given strides; None means those of :func:`steps_of`."""
    steps = steps_of(tensor.shape) if steps is None else steps
    return tensor[tuple(slice((size - 1) % step // 2, None, step) for size, step in zip(tensor.shape, steps))]


def alike(a: torch.Tensor, b: torch.Tensor, most: float) -> bool:
    """Whether two samples are the same except for rounding errors of at most ``most``, relative to the largest
    element."""
    scale = float(torch.nan_to_num(a, posinf=0.0, neginf=0.0).abs().max()) if a.numel() else 0.0
    return a.shape == b.shape and torch.allclose(a, b, rtol=most, atol=most * scale, equal_nan=True)


def rounding(tape: Tape, half: bool) -> float:
    """The largest relative difference that is accepted between results of the same call. It is
    larger on a GPU, where other kernels may be chosen when little memory is free."""
    if any(t.is_cuda for t in tape.outside):
        return 5e-2 if half else 1e-2
    return 1e-2 if half else 1e-5


def said(error: Exception) -> str:
    """The kind of an exception, and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def batch_of(tape: Tape, first: Entry) -> int:
    """The number of rows of a tape's batch: the size of dimension 0 that most tensor arguments of
    the first module's call have. Raises :class:`Refused` if there is no such size."""
    sizes = [tape.outside[i].shape[0] for i in first.references()[1] if tape.outside[i].dim() > 0]
    listed = next(filter(None, (_listed(a, tape) for a in (*first.args, *first.kwargs.values()))), 0)
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


def _listed(argument: Any, tape: Tape) -> int:
    """The number of items of a list that has tensors in them; 0 for a list of one item, for one of tensors that have
    the same rows, such as crops of a batch of images, and for anything else."""
    if not is_a(argument, list) or size(argument) < 2:
        return 0
    shapes = [tape.outside[i.index].shape if type(i) is Outside else () for i in elements(argument)]
    image = any(len(s) == 3 and s[0] <= CHANNELS for s in shapes)
    if not image and len({s[:1] for s in shapes}) == 1 and min(map(len, shapes)) >= 2:
        return 0
    leaves = tree_leaves(argument, is_leaf=is_place)
    return size(argument) if any(map(is_place, leaves)) else 0


def layers_in(module: Optional[torch.nn.Module]) -> frozenset[int]:
    """The sizes that dimension 0 of a state has in a module's recurrent layers. The rows of such a state are in
    dimension 1, although those of everything else may be in dimension 0: the layers have ``batch_first``, or the module
    turns its arguments itself."""
    layers: list[Any] = [m for m in submodules([module]) if is_a(m, torch.nn.RNNBase)]
    return frozenset(m.num_layers * (1 + m.bidirectional) for m in layers)


def _carried(tensor: torch.Tensor, batch: int, layers: Collection[int]) -> bool:
    """Whether a tensor has the shape of a state of layers for which :func:`layers_in` returns ``layers``."""
    return tensor.dim() == 3 and tensor.shape[0] in layers and tensor.shape[1] == batch and batch not in layers


def axis_in(tensor: torch.Tensor, batch: int, dim: int, layers: Collection[int] = ()) -> Optional[Axis]:
    """Where the rows of a batch would be in a tensor from outside, if dimension ``dim`` of the first module's arguments
    is the batch; None if the tensor cannot be cut. ``layers`` is what :func:`layers_in` returns for the module that is
    given the tensor."""
    if dim and tensor.dim() > dim and tensor.shape[dim] == batch or _carried(tensor, batch, layers):
        return Axis(dim or 1)
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
    inside = submodules([first.module])
    turned = next((m for m in inside if getattr(m, "batch_first", True) is False), None)
    given = [tape.outside[i] for i in first.references()[1] if tape.outside[i].dim()]
    beside = _beside_states(tape, first, given)
    if beside:
        return beside, 0, ""
    second = {t.shape[1] for t in given if t.dim() > 1}
    if turned is None or len(second) != 1 or max(second) < 2 or first.references()[0]:
        batch = batch_of(tape, first)
        return batch, 0, _beside(first, batch, given)
    key = number_of(first.module), tuple((t.dim(), t.dtype) for t in given)
    if key not in _dims:
        _dims[key] = _separate_in(tape, first, 0, max(second), (0, 1))
    if _dims[key] == 1:
        return max(second), 1, ""
    batch = batch_of(tape, first)
    return (
        batch,
        0,
        "" if _dims[key] == 0 else _doubt(first, batch, f"its {type(turned).__name__} has batch_first=False"),
    )


def _beside_states(tape: Tape, first: Entry, given: Sequence[torch.Tensor]) -> int:
    """The number of rows in dimension 0 of everything that the first call is given beside states with the rows in
    dimension 1; 0 unless there are such states, and a trial shows that their rows are separate."""
    layers = layers_in(first.module)
    batch = next((len(t) for t in given if len(t) not in layers), 0)
    states = [t for t in given if _carried(t, batch, layers)]
    if batch < 2 or not states or any(len(t) != batch for t in given if not _carried(t, batch, layers)):
        return 0
    key = number_of(first.module), layers, tuple((t.dim(), t.dtype) for t in given)
    if key not in _dims:
        _dims[key] = _separate_in(tape, first, batch, batch, (0,))
    return 0 if _dims[key] else batch


def _beside(first: Entry, batch: int, given: Sequence[torch.Tensor]) -> str:
    for t in given:
        if t.dim() == 1 and not t.is_floating_point() and 1 < len(t) != batch:
            return _doubt(first, batch, f"{len(t)} whole numbers are given with it, such as the ends of sequences")
    return ""


def _doubt(first: Entry, batch: int, why: str) -> str:
    return f"dimension 0 of the arguments of {first.call_name()}, of {batch}, may not be the batch, since {why}"


def _separate_in(tape: Tape, first: Entry, rows: int, second: int, dims: Sequence[int]) -> int:
    """The first of the dimensions ``dims`` of a module's arguments, 0 or 1, along which two slices have the same
    results together as each alone; -1 if there is none. ``rows`` and ``second`` are the sizes of dimensions 0 and 1;
    ``rows`` is 0 if it is to be the size that most arguments have."""

    def tried() -> int:
        with rehearsal([first.module]), NoRandomness(), torch.no_grad():  # type: ignore[list-item]
            for dim in dims:
                try:
                    if _separate(tape, first, second if dim else rows or batch_of(tape, first), dim):
                        return dim
                except Exception as e:
                    if passes(e):
                        raise
        return -1

    return patiently(tried, "there is not enough memory for a trial on a few rows")


def _separate(tape: Tape, first: Entry, batch: int, dim: int) -> bool:
    """Whether two slices in a dimension have the same results together as each alone."""
    layers = frozenset() if dim else layers_in(first.module)
    axes = {i: axis_in(tape.outside[i], batch, dim, layers) for i in first.references()[1]}
    cut = Cut({i: axis for i, axis in axes.items() if axis is not None and axis.each() == 1})
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
