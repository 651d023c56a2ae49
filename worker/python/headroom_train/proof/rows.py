"""Finds out, by trial, which dimension of each tensor on a tape is the batch.

The tape is run on two different small numbers of rows. A dimension that grows in proportion to the rows belongs
to the batch, and a tensor that stays the same size is shared. Anything else, such as a similarity of every row
with every other or a shape that depends on values, cannot be cut and raises :class:`Refused`. A dimension is
never taken for the batch merely because it happens to be as large as the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from copy import copy
from itertools import combinations, count
from typing import Any, Callable, ClassVar, NamedTuple, NoReturn, Optional

import torch
from torch.utils._pytree import tree_flatten, tree_map

from ..failure import Mixed, Refused, Writes, is_out_of_memory, patiently
from ..hooks.genuine import in_place
from ..sandbox.sandbox import ANYWHERE, NoRandomness, Sealed, Watcher, rehearsal
from ..tape.functions import INDEXING, JOINING, RUNNING, SELECTING, SHAPING
from ..tape.graph import signature
from ..tape.recorded_module import number_of, record_of, state_of
from ..tape.snapshot import Change, Snapshot, Unavailable, submodules
from ..tape.tape import Entry, Outside, Packed, Ref, Tape, autocast_as, modes_as, random_state, same_outside_torch
from ..tape.trees import FIXED, flatten, mapped, tensors_in
from .branching import otherwise, without_memory
from .mixing import Operations, mixing


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


class Other(NamedTuple):
    """An object among a call's results that cannot be put together from those of pieces."""

    name: str  # of its class


class Cut(NamedTuple):
    """How an entry is run on some rows: which outside tensors are cut, how many slices of each
    belong to a row, and whether sizes among the entry's arguments are scaled."""

    outside: dict[int, Axis]  # by index
    scaled: bool


class Given(NamedTuple):
    """What a module's call returned for a few rows."""

    values: dict[int, torch.Tensor]  # some values of each tensor, by its place in the result
    graph: int  # the signature of the result's graph
    draws: list[tuple]  # random numbers that would have been drawn
    half: bool  # something was computed in half precision

    def like(self, now: Given, most: float) -> bool:
        """Whether another call has returned the same except for rounding errors of at most ``most``, relative to the
        largest element."""
        same = self.draws == now.draws and self.graph == now.graph and self.values.keys() == now.values.keys()
        return same and all(alike(value, now.values[key], most) for key, value in self.values.items())


NOTHING = Cut({}, False)
SAMPLE = 4096  # the most values of a result that are kept
MANY = 10000  # kinds of calls that are remembered
MEANT = 1e-3  # a relative difference that is more than rounding
MADE_UP = (0.25, 0.75)  # in a trial, values of a number of the batch that has not been computed for a few rows
_NUMBERS = count(1)
_PLAIN = (int, float, str, type(None))


class Plan:
    """How a tape is cut. Grows with the tape."""

    def __init__(self, tape: Tape, first: Entry) -> None:
        self.tape = tape
        self.batch, self.dim, self._doubt = rows_in(tape, first)
        self.cuts: list[Cut] = []
        self.slots: dict[int, Slot] = {}
        if self.batch < 2:
            raise Refused("a batch of one row cannot be split")
        sizes = (2, 3) if self.batch > 3 else (1, 2)
        self._rows = [Rows(self.batch, 0, sizes[0]), Rows(self.batch, self.batch - sizes[1], self.batch)]
        self._env: list[dict[int, torch.Tensor]] = [{}, {}]
        self._recognised: tuple = (None, 0)  # the entry for which a key was computed last, and that key
        self.left: list[Change] = []  # attributes in which the newest trial has left tensors with a graph
        self.keeps = ""  # the name of something else that the call in the newest trial changes; empty if there is none
        self.keys: list[int] = []  # the entries' keys: see _key
        self.leaves = False  # some entries leave something behind on modules
        self.deep = False  # some entries leave behind more than tensors with a graph in attributes
        self.skipped: set[int] = set()  # entries that are not needed
        self._made_up: set[int] = set()  # slots whose values in a trial are made up, or computed from such values
        self._shared: set[int] = set()  # slots of tensors that share memory with each other

    def mixed(self, text: str) -> Refused:
        """The exception for rows that are seen to depend on each other: :class:`Mixed`, unless they may not be the
        rows of a batch."""
        return Refused(f"{text.replace(' of the batch', '')}; {self._doubt}") if self._doubt else Mixed(text)

    def extend(self, wanted: Optional[Sequence[int]] = None) -> None:
        """Adds the entries that are new on the tape; the script has already made their calls.
        ``wanted`` has the indices of the entries that are needed, or is None if all are. Functions
        that are not needed, such as an accuracy for a log, are not tried."""
        with torch._C.DisableTorchFunctionSubclass():
            while len(self.cuts) < len(self.tape.entries):
                entry = self.tape.entries[len(self.cuts)]
                key = self._key(entry)
                if wanted is not None and entry.module is None and len(self.cuts) not in wanted:
                    self.skipped.add(len(self.cuts))
                    self.cuts.append(NOTHING)
                    self.keys.append(key)
                    continue
                cut, results = self._try(entry, made=True)
                self._accept(entry, cut, results)
                self._add_key(entry, key)
                self._note_left(entry)

    def is_scalar(self, slot: int) -> bool:
        """Whether a slot's tensor belongs to the batch as a whole, and requires a gradient."""
        known = self.slots[slot]
        return known.dim is None and known.requires_grad and not known.fixed

    def is_derived(self, entry: Entry) -> bool:
        """Whether a function is given nothing of the batch but numbers that belong to it as a whole. It is then
        called once for all rows, whatever they are."""
        refs = entry.references()[0]
        return (
            entry.module is None
            and bool(refs)
            and all(self.slots[r].dim is None and not self.slots[r].fixed for r in refs)
        )

    def is_shared(self, slot: int) -> bool:
        """Whether a slot's tensor may share memory with another tensor on the tape."""
        return slot in self._shared

    # (Cut, leaves of the result, their tree, left, keeps) by key; shared by all plans
    memory: ClassVar[dict[int, tuple]] = {}
    # Keys, by the function called, its arguments and the key of the call before.
    numbers: ClassVar[dict[tuple, int]] = {}
    sure: ClassVar[set[int]] = set()  # keys of calls that returned the same for a few rows when they were repeated
    # Keys of calls that, repeated together, returned the same for the whole batch.
    same: ClassVar[set[tuple[int, ...]]] = set()

    def known(self, entry: Entry) -> bool:
        """Whether the same call, after the same calls, was tried on earlier batches of this size. If gradients
        depend on the call, it must also have returned the same when it was repeated."""
        key = self._key(entry)
        return key in Plan.memory and (entry.module is None or not entry.grad or key in Plan.sure)

    def result(self, entry: Entry) -> tuple[list, Any]:
        """The result of a call that is not on the tape yet, as leaves and their tree. A leaf is a
        :class:`Slot` for a tensor, a plain value, or an :class:`Other`.
        Samples of what a module's call returns now, at its place in the script, are kept for
        :meth:`confirm`, unless the call is :meth:`known`."""
        key = self._key(entry)
        if self.known(entry):
            cut, leaves, tree, self.left, self.keeps = Plan.memory[key]
            self._pending: tuple = entry, cut, None, leaves, key
            return leaves, tree
        if not self.is_derived(entry):
            self._catch_up()
        cut, results = self._try(entry)
        (small, tree), (large, other) = (flatten(r) for r in results)
        same = [a == b for a, b in zip(small, large) if isinstance(a, _PLAIN)]
        if len(small) != len(large) or tree.shells != other.shells or not all(same):
            raise Refused(
                f"{named(entry)} returns a different number of results, or different non-tensor values, "
                "for another batch"
            )
        leaves = [self._whole(a, b, entry, cut) for a, b in zip(small, large)]
        self._pending = entry, cut, results, leaves, key
        Plan.memory[key] = cut, leaves, tree, self.left, self.keeps
        if entry.module is not None:
            entry.seen = self._given
        return leaves, tree

    def confirm(self, entries: Sequence[int]) -> None:
        """Repeats, on the same few rows, the modules' calls whose results were kept. Raises
        :class:`Refused` if a result is now different: if a script changes something for a call and
        then changes it back, a replay computes other gradients than the script."""
        self._catch_up()
        for i in entries:
            entry = self.tape.entries[i]
            if entry.seen is not None:
                if entry.snapshot is not None:
                    entry.snapshot.put_back()
                # In the trial's mode: under another one a view has another node.
                with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
                    self._one(entry, self.cuts[i], 1)
                if not entry.seen.like(self._given, rounding(self.tape, entry.seen.half)):
                    Plan.forget()
                    raise Refused(f"a call to {named(entry)} returns different results when it is repeated")
                entry.seen = None
                Plan.sure.add(self.keys[i])

    @staticmethod
    def forget() -> None:
        """Forgets all trials, so that calls are tried again."""
        Plan.memory.clear()
        Plan.sure.clear()
        Plan.same.clear()

    def accept(self) -> None:
        """Adds the call for which :meth:`result` was called last. The call is now on the tape."""
        entry, cut, results, leaves, key = self._pending
        self._add_key(entry, key)
        self._note_left(entry)
        if results is not None:
            self._accept(entry, cut, results)
            return
        self.cuts.append(cut)
        for slot, leaf in zip(entry.slots, leaves):
            if slot is not None:
                self._put(slot, leaf, entry)

    def _add_key(self, entry: Entry, key: int) -> None:
        """Adds a call's key to those on which the keys of later calls depend, unless no trial of theirs depends on
        the call: a coefficient of a loss may be another number in every step."""
        self.keys.append(self.keys[-1] if self.keys and self.is_derived(entry) else key)

    def _put(self, slot: int, known: Slot, entry: Entry) -> None:
        self.slots[slot] = known
        if known.shared:
            self._shared.update((slot, *entry.references()[0]))

    def _note_left(self, entry: Entry) -> None:
        if entry.module is not None:
            self.deep |= bool(self.keeps)
            self.leaves |= bool(self.keeps or self.left)

    def _key(self, entry: Entry) -> int:
        """A number by which a call is recognised. It depends on the function called, on its
        arguments and on the calls before it."""
        if self._recognised[0] is entry:
            return self._recognised[1]
        outside = [self.tape.outside[i] for i in entry.references()[1]]
        shapes = tuple((tuple(t.shape), t.dtype, t.requires_grad) for t in outside)
        called = number_of(entry.module) or entry.call
        if entry.state is None and entry.module is not None:
            entry.state = state_of(entry.module)
        modes = entry.grad, entry.state, entry.inplace, entry.fresh, repr(entry.autocast)
        key = (
            self.keys[-1] if self.keys else 0,
            self.batch,
            called,
            entry.call_name(),
            repr((entry.args, entry.kwargs)),
            shapes,
            modes,
        )
        if len(Plan.numbers) > MANY:
            Plan.numbers.clear()
            Plan.forget()
        number = Plan.numbers.setdefault(key, next(_NUMBERS))
        self._recognised = entry, number
        return number

    def behind(self, entry: Entry) -> bool:
        """Whether calls on the tape have to be run for a few rows before ``entry`` can be tried."""
        if len(self.cuts) == len(self.tape.entries) and self.is_derived(entry):
            return False
        return len(self.cuts) < len(self.tape.entries) or any(not self._there(i) for i in range(len(self.cuts)))

    def _there(self, i: int) -> bool:
        entry = self.tape.entries[i]
        return (
            i in self.skipped
            or self.is_derived(entry)
            or all(s is None or s in self._env[0] for s in entry.slots)
            and not entry.inplace
        )

    def _catch_up(self) -> None:
        """Computes, for a few rows, the results of those entries that have not been tried because
        they were :meth:`known`."""
        for i, (entry, cut) in enumerate(zip(self.tape.entries, self.cuts)):
            if not self._there(i):
                self._make_up(entry)
                for env, result in zip(self._env, self._both(entry, cut)):
                    env.update({s: v for s, v in zip(entry.slots, flatten(result)[0]) if s is not None})

    def _accept(self, entry: Entry, cut: Cut, results: list) -> None:
        self.cuts.append(cut)
        flat = [flatten(r)[0] for r in results]
        for slot, small, large in zip(entry.slots, *flat):
            if slot is not None:
                self._put(slot, self._slot(small, large, entry, cut), entry)
                self._env[0][slot], self._env[1][slot] = small, large
                if self._made_up.intersection(entry.references()[0]):
                    self._made_up.add(slot)

    def _whole(self, small: Any, large: Any, entry: Entry, cut: Cut) -> Any:
        """A leaf of a call's result for the whole batch: see :meth:`result`."""
        if isinstance(small, torch.Tensor):
            return self._slot(small, large, entry, cut)
        if type(small) is torch.Size and len(small) == len(large):
            few, more = (r.count for r in self._rows)
            if all(a == b or a * more == b * few and not a % few for a, b in zip(small, large)):
                return torch.Size(a if a == b else a // few * self.batch for a, b in zip(small, large))
        return (
            small
            if isinstance(small, _PLAIN) or isinstance(small, FIXED) and small is large
            else Other(type(small).__name__)
        )

    def _slot(self, small: torch.Tensor, large: torch.Tensor, entry: Entry, cut: Cut) -> Slot:
        n = [r.count for r in self._rows]
        if small.dim() != large.dim():
            raise Refused(f"{named(entry)} returns results with different numbers of dimensions for different batches")
        moved = [d for d in range(small.dim()) if small.shape[d] != large.shape[d]]
        shape, axis = list(small.shape), None
        if len(moved) > 1:
            if self._depends(entry, cut, small, large):
                raise self.mixed(f"{named(entry)} compares every row of the batch with every other")
            raise Refused(f"{named(entry)} returns a result that grows with the batch in two dimensions")
        if moved:
            dim = moved[0]
            per_row, rest = divmod(small.shape[dim], n[0])
            if rest or per_row * n[1] != large.shape[dim]:
                raise Refused(f"{named(entry)} returns a result whose size is not proportional to the batch")
            shape[dim] = per_row * self.batch
            axis = self._placed(dim, per_row, entry)
        refs = entry.references()[0]
        # Fixed: a temperature, for example; not a loss, which differs between rows unless it is zero.
        if entry.module is not None:
            fixed = (
                not moved
                and small.is_floating_point()
                and torch.equal(small.detach(), large.detach())
                and bool(small.any())
            )
        else:
            fixed = not moved and bool(refs) and all(self.slots[r].fixed for r in refs)
        shared = entry.module is None and any(
            _memory(small) == _memory(self._env[0][r]) for r in refs if r in self._env[0]
        )
        return Slot(tuple(shape), axis, small.dtype, small.device, small.requires_grad, fixed, shared)

    def _along(self, dim: int, per_row: int) -> Axis:
        """Where the rows are if each has ``per_row`` slices in dimension ``dim``: if the batch is dimension 1, the time
        steps come first."""
        return Axis(dim, per_row) if self.dim and per_row > 1 else Axis(dim, 1, per_row)

    def _placed(self, dim: int, per_row: int, entry: Entry) -> Axis:
        """Where the rows are in a result that has ``per_row`` slices for each row in dimension ``dim``."""
        axis = self._along(dim, per_row)
        if axis.outer == 1:
            return axis
        given = {self.slots[r].axis for r in entry.references()[0]} - {None}
        folded = (
            dim == 0
            and entry.call_name() in SHAPING
            and all(self.slots[r].shape[0] == per_row for r in entry.references()[0])
        )
        if entry.module is None and given != {axis} and not (folded and given == {Axis(1)}):
            raise Refused(f"{named(entry)} folds the batch into another dimension")
        return axis

    def _make_up(self, entry: Entry) -> None:
        """Puts made-up values in the place of a call's arguments that belong to the batch as a whole and have not been
        computed for a few rows. What a loss is worth does not matter to the shape of what is computed from it."""
        for r in entry.references()[0]:
            known = self.slots[r]
            for env, value in zip(self._env, MADE_UP):
                if known.dim is None and not known.fixed and r not in env:
                    env[r] = (
                        torch.full(known.shape, value, device=known.device)
                        .to(known.dtype)
                        .requires_grad_(known.requires_grad)
                    )
                    self._made_up.add(r)

    def _try(self, entry: Entry, made: bool = False) -> tuple[Cut, list]:
        refs, outside = entry.references()
        known = [self.slots[r] for r in refs]
        rowful = [s for s in known if s.dim is not None]
        if rowful and any(s.dim is None and not s.fixed for s in known):
            if self._differs(refs):
                raise self.mixed(f"{named(entry)} combines single rows with a value computed from the whole batch")
            raise Refused(f"{named(entry)} combines single rows with a value that may be computed from the whole batch")
        self._make_up(entry)
        if entry.module is not None:
            cut = Cut({i: axis for i, axis in self._axes(outside, {1}).items()}, False)
            if any(self.tape.outside[i].is_cuda for i in outside):
                self.refuse_pointing(entry, cut)
            before = Snapshot(entry.module.modules(), deep=True)
            free = [*entry.module.buffers(), *(env[r] for env in self._env for r in refs)]
            sealed = Sealed(
                f"a call to {named(entry)}", free, known=self.tape.leaves(entry.module) if entry.grad else None
            )
            results = self._both(entry, cut, sealed=[sealed])
            changes = list(self._before.changed())
            kept = [
                c
                for c in changes
                if c.inside
                or c.name == "_parameters"
                or not all(isinstance(v, torch.Tensor) and v.requires_grad for v in c.values())
            ]
            self.left, self.keeps = [c for c in changes if c not in kept], _called(kept[0]) if kept else ""
            if kept:
                if self._reads(entry, cut, kept, sealed) and made and entry.snapshot is None:
                    raise Refused(f"a call to {named(entry)} changes {self.keeps}")
                if not made:
                    entry.snapshot = before
                results = self._both(entry, cut, sealed=[sealed])
            self._refuse_branching(entry, cut)
            return cut, results
        if not rowful and refs:
            if selects(entry, [s.dtype for s in known] + [self.tape.outside[i].dtype for i in outside]):
                raise Refused(f"{named(entry)} returns a result whose size depends on tensor values")
            return NOTHING, self._both(entry, NOTHING)
        return self._alternatives(entry, rowful, outside)

    def _refuse_branching(self, entry: Entry, cut: Cut) -> None:
        """Raises :class:`Refused` if a module is seen to do something else for the whole batch than for a few rows."""

        def call(rows: Optional[Rows]) -> Callable[[], Any]:
            shapes = {
                r: self.slots[r].shape if rows is None else self._env[self._rows.index(rows)][r].shape
                for r in entry.references()[0]
            }
            with torch._C.DisableTorchFunction():  # a mode of the script's might put new tensors elsewhere
                env = {r: torch.empty(shape, dtype=self.slots[r].dtype, device="meta") for r, shape in shapes.items()}
                args, kwargs = arguments(self.tape, entry, cut, env, rows, without_memory)

            def made() -> Any:
                if entry.snapshot is not None:
                    entry.snapshot.put_back()
                return perform(entry, args, kwargs, trial=True)

            return made

        few = next((rows for rows in reversed(self._rows) if rows.count < self.batch), None)
        if few is None:
            return
        why = otherwise(entry.module, {few.count: lambda: call(few), self.batch: lambda: call(None)})  # type: ignore[arg-type]
        if why is not None:
            raise Refused(f"{named(entry)} does something else with {self.batch} rows than with {few.count} ({why})")

    def refuse_pointing(self, entry: Entry, cut: Cut) -> None:
        """Raises :class:`Refused` if a tensor that stays whole seems to number the rows, as the edges of a graph number
        its nodes. On a GPU an index out of range is no exception: it breaks the CUDA context."""
        for i in entry.references()[1]:
            t = self.tape.outside[i]
            if i in cut.outside or t.is_floating_point() or t.is_complex() or t.dtype == torch.bool or not t.numel():
                continue
            most = int(t.max())
            if self.batch // 2 <= most < self.batch and most >= self._rows[1].count:
                raise Refused(
                    f"a call to {named(entry)} is given numbers up to {most}, which may stand for "
                    f"{self.batch} rows, in a tensor that cannot be cut"
                )

    def _reads(self, entry: Entry, cut: Cut, kept: list[Change], sealed: Sealed) -> bool:
        """Whether a call reads attributes that it also changes; if so, a repeated call must find the values that
        the script's call found. Raises :class:`Refused` if these values may belong to the rows of a batch, such
        as a state that is carried from one batch to the next."""
        why = Refused(f"a call to {named(entry)} changes {self.keeps}")
        after = Snapshot(entry.module.modules(), deep=True)  # type: ignore[union-attr]

        def read() -> NoReturn:
            raise why

        def called(lost: list[Change]) -> Given:
            after.put_back()
            for change in lost:
                change.replace(Unavailable(read))
            self._one(entry, cut, 1, [sealed])
            return self._given

        def unread(changes: list[Change]) -> bool:
            try:
                return usual.like(called(changes), rounding(self.tape, usual.half))
            except Exception as e:
                if is_out_of_memory(e):
                    raise
                return False

        rows = [c for c in kept if not self._before.plain(c)]
        if any(c.name == "_parameters" for c in kept):
            raise Writes(f"a call to {named(entry)} replaces a parameter")
        usual = called([])
        if unread(kept):
            record_of(entry.module).unread.update((id(c.module()), c.name) for c in kept if c.inside is None)  # type: ignore[union-attr]
            return False
        if rows and not unread(rows):
            raise why
        return True

    def _alternatives(self, entry: Entry, rowful: list[Slot], outside: list[int]) -> tuple[Cut, list]:
        axes = self._axes(outside, {s.axis.each() for s in rowful if s.axis is not None} | {1})
        could = [*axes]
        if len(could) > 4:
            raise Refused(f"{named(entry)} takes too many tensors of the batch's size")
        scalings = (True, False) if entry.call_name() in SHAPING and mentions(entry, self.batch) else (False,)
        found: list[tuple[Cut, list, list]] = []
        why: Optional[Refused] = None
        error: Optional[Exception] = None
        for scaled in scalings:
            for size in range(len(could) + 1):
                for chosen in combinations(could, size):
                    cut = Cut({i: axes[i] for i in chosen}, scaled)
                    try:
                        results = self._both(entry, cut, rehearse=True)
                        shapes = self._proper(entry, cut, rowful, results)
                    except Refused as e:
                        why = e
                    except Exception as e:
                        if is_out_of_memory(e):
                            raise
                        error = e
                    else:
                        found.append((cut, results, shapes))
        if not found:
            joined = self._joined(entry)
            if joined is None and why is not None:
                raise why.more(str(why))
            raise Refused(joined or f"{named(entry)} cannot be run on fewer rows: {error}")
        if len(found) > 1:
            raise Refused(f"the arguments of {named(entry)} can be split in more than one way")
        cut, results, _ = found[0]
        return cut, self._both(entry, cut) if entry.inplace else results

    def _joined(self, entry: Entry) -> Optional[str]:
        """The reason why a function cannot be cut if the script has cut the batch itself, for several calls of one
        module: the function joins their results, or changes the shape of what was joined. None if that is not so."""
        makers = {s: e for e in self.tape.entries for s in e.slots if s is not None}
        join = makers[entry.references()[0][0]] if entry.call_name() in SHAPING and entry.references()[0] else entry
        refs = join.references()[0]
        calls = list({id(makers[r]): makers[r] for r in refs}.values())
        if (
            join.call_name() not in JOINING
            or not 1 < len(calls) == len(refs)
            or {id(c.module) for c in calls} != {id(calls[0].module)}
            or not calls[0].module
        ):
            return None
        sizes = " + ".join(str(self.slots[r].shape[0]) for r in refs[:4]) + (" + …" if len(refs) > 4 else "")
        return (
            f"{named(calls[0])} is called {len(calls)} times, on {sizes} rows, and the results are joined, "
            "so that their rows are not those of one call"
        )

    def _proper(self, entry: Entry, cut: Cut, rowful: list[Slot], results: list) -> list:
        small, large = (flatten(r)[0] for r in results)
        if len(small) != len(large):
            raise Refused(f"{named(entry)} returns a different number of results for another batch")
        slots = [self._slot(a, b, entry, cut) for a, b in zip(small, large) if isinstance(a, torch.Tensor)]
        if entry.call_name().rstrip("_") in RUNNING and slots and slots[0].axis is not None:
            given = entry.args[1] if len(entry.args) > 1 else entry.kwargs.get("dim", -1)
            if type(given) is not int or given % len(slots[0].shape) == slots[0].dim:
                raise Refused(f"{named(entry)} counts along the rows of the batch")
        if entry.call_name() == "__setitem__":  # what it returns does not show which rows it writes to
            read = copy(entry)
            read.call, read.args, read.inplace = torch.Tensor.__getitem__, tuple(entry.args[:2]), False
            try:
                self._proper(read, cut, rowful, self._both(read, cut))
            except Refused:
                raise Refused(
                    "__setitem__ writes to rows by their numbers, or to a part of the batch that is not "
                    "in proportion to it"
                ) from None
        shapes = self._imagined(entry)
        if shapes is not None and shapes != [s.shape for s in slots]:
            raise Refused(f"{named(entry)} returns a result whose size is not proportional to the batch")
        if entry.call_name() in SHAPING and all(s.dim == 0 for s in rowful) and any(s.dim != 0 for s in slots):
            raise Refused(f"{named(entry)} folds the batch into another dimension")
        return slots

    def _imagined(self, entry: Entry) -> Optional[list[tuple]]:
        """The shapes of a function's results for the whole batch. A trial might not show them, since
        numbers among the arguments, such as the end of a slice, may be larger than the few rows of
        the trial. None if the shapes cannot be computed without values, or if the function is not
        PyTorch's own, because a foreign kernel might not check that its tensors are on the meta device
        and have no memory. Raises :class:`Refused`
        if the shapes depend on values."""
        if getattr(entry.call, "opaque", False):
            return None
        index = tree_flatten(entry.args[1:], is_leaf=lambda t: type(t) in (Ref, Outside))[0]
        if selects(
            entry,
            [
                self.slots[t.slot].dtype if type(t) is Ref else self.tape.outside[t.index].dtype
                for t in index
                if type(t) in (Ref, Outside)
            ],
        ):
            raise Refused(f"{named(entry)} returns a result whose size depends on tensor values")
        try:
            env = {
                r: torch.empty(self.slots[r].shape, dtype=self.slots[r].dtype, device="meta")
                for r in entry.references()[0]
            }
            args, kwargs = arguments(
                self.tape, entry, NOTHING, env, None, lambda t: torch.empty_like(t, device="meta", requires_grad=False)
            )
            with torch.no_grad():
                result = perform(entry, args, kwargs, trial=True)
        except Exception:
            return None
        return [tuple(t.shape) for t in tensors_in(result)]

    def _axes(self, outside: Sequence[int], factors: set[int]) -> dict[int, Axis]:
        """Where the rows would be in those outside tensors that can be cut, by index. ``factors`` are the numbers of
        slices that a row may have."""
        found = {i: axis_in(self.tape.outside[i], self.batch, self.dim) for i in outside}
        return {i: axis for i, axis in found.items() if axis is not None and axis.each() in factors}

    def _both(self, entry: Entry, cut: Cut, rehearse: bool = False, sealed: Sequence[Sealed] = ()) -> list:
        """What a call returns for each of the trial's two numbers of rows, without graphs. Raises
        :class:`Refused` if a module's call relates rows to each other."""
        results, made = [], (Operations(), Operations())
        for which, (env, rows) in enumerate(zip(self._env, self._rows)):
            if rehearse and entry.inplace:
                env = {k: v.clone() for k, v in env.items()}
            if (
                entry.call_name() in INDEXING
                and not sliced(entry)
                and self.tape.outside
                and self.tape.outside[0].is_cuda
            ):
                # An index out of range raises an exception on the CPU, but breaks the CUDA context on a GPU.
                copies = {k: v.detach().cpu() for k, v in env.items() if k in entry.references()[0]}
                args, kwargs = arguments(self.tape, entry, cut, copies, rows, lambda t: t.detach().cpu())
                with torch.no_grad():
                    entry.call(*args, **kwargs)
            if entry.module is None:
                args, kwargs = arguments(self.tape, entry, cut, env, rows)
                results.append(mapped(_cut_off, perform(entry, args, kwargs, trial=True)))
                continue
            if entry.snapshot is not None:
                entry.snapshot.put_back()
            if which == 1:  # only the second call's changes count: the first may have filled a cache
                self._before = Snapshot(entry.module.modules(), deep=True)
            results.append(self._one(entry, cut, which, [*sealed, made[which]]))
        if entry.module is not None:
            mixed = mixing(made[0].made, made[1].made, *(r.count for r in self._rows))
            if mixed is not None and self._depends(entry, cut, *results):
                raise self.mixed(f"a call to {named(entry)} mixes rows of the batch with each other ({mixed})")
            if mixed is not None:
                raise Refused(f"a call to {named(entry)} may mix rows of the batch with each other ({mixed})")
        return results

    def _depends(self, entry: Entry, cut: Cut, small: Any, large: Any) -> bool:
        """Whether a call is seen to return something else for a row beside another row. ``small`` and ``large`` are
        results for the trial's two numbers of rows, which show where the rows are."""
        along = [
            next((d for d, (a, b) in enumerate(zip(s.shape, t.shape)) if a != b), None)
            for s, t in zip(tensors_in(small), tensors_in(large))
        ]
        known = self._rows[1]
        # Once more beside the same row: it may draw numbers.
        beside = [[0, 1], [0, 1], [0, known.count - 1] if known.count > 2 else [0, 0]]
        found = []
        for index in beside:
            env = {r: pick(self._env[1][r], self.slots[r], index) for r in entry.references()[0]}
            args, kwargs = arguments(
                self.tape, entry, cut, env, Rows(self.batch, 0, self.batch, [known.start + i for i in index])
            )
            if entry.snapshot is not None:
                entry.snapshot.put_back()
            with torch.no_grad(), NoRandomness(apart=True):
                made = tensors_in(perform(entry, args, kwargs, trial=True))
            found.append([as_real(self._first(t, d)).cpu().double() for d, t in zip(along, made) if d is not None])
        one, again, other = found

        def same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
            return len(some) == len(others) and all(
                a.shape == b.shape and alike(a, b, MEANT) for a, b in zip(some, others)
            )

        return same(one, again) and not same(one, other) and all(bool(t.isfinite().all()) for t in (*one, *other))

    def _first(self, made: torch.Tensor, dim: int) -> torch.Tensor:
        """What belongs to the first of two rows in a result that grows in dimension ``dim``."""
        each, rest = divmod(made.shape[dim], 2)
        return made.narrow(dim, 0, each) if rest else self._along(dim, each).some(made, 0, 1)

    def _differs(self, slots: Sequence[int]) -> bool:
        """Whether one of these numbers of the batch is seen to be different for other rows."""
        known = [s for s in slots if self.slots[s].dim is None and s in self._env[0] and s not in self._made_up]
        return any(not alike(sample(self._env[0][s]), sample(self._env[1][s]), MEANT) for s in known)

    def _one(self, entry: Entry, cut: Cut, which: int, watchers: Sequence[Watcher] = ()) -> Any:
        """What a module's call returns for one of the trial's two numbers of rows, without a graph.
        ``which`` is 0 for the first number and 1 for the second. For the second, samples of the
        results are kept in ``_given``."""
        modules = list(entry.module.modules())  # type: ignore[union-attr]
        args, kwargs = arguments(self.tape, entry, cut, self._env[which], self._rows[which])
        buffers = [b for m in modules for b in m.buffers(recurse=False)]
        params = [p for m in modules for p in m.parameters(recurse=False) if type(p) is torch.nn.Parameter]
        versions, places = [b._version for b in buffers], [p.data_ptr() for p in params]
        state = random_state()
        with NoRandomness(ANYWHERE, watchers, apart=True) as trial:
            try:
                result = perform(entry, args, kwargs, trial=True)
            except Exception as e:
                if is_out_of_memory(e) or isinstance(e, Refused):
                    raise
                said = (str(e).strip().splitlines() or [""])[0]
                why = (
                    f"a call to {named(entry)} fails if dimension {self.dim} of its arguments is cut from "
                    f"{self.batch} to {self._rows[which].count}"
                )
                raise Refused(f"{why} ({type(e).__name__}: {said})") from e
        for watcher in watchers:
            watcher.returned(tensors_in(result))
        record = record_of(entry.module)
        if record is not None:
            record.remember(trial.half, trial.where)
        if not same_outside_torch(state, random_state()):
            raise Refused(f"a call to {named(entry)} draws random numbers from Python or NumPy")
        if versions != [b._version for b in buffers]:
            raise Refused(f"{named(entry)} changes its buffers")
        if places != [p.data_ptr() for p in params]:
            raise Writes(f"a call to {named(entry)} assigns new data to a parameter")
        if which == 1:
            tensors = {i: v for i, v in enumerate(flatten(result)[0]) if isinstance(v, torch.Tensor)}
            graph = signature(tensors.values(), {id(t) for t in self.tape.leaves(entry.module)})
            self._given = Given({i: sample(v) for i, v in tensors.items()}, graph, trial.draws, trial.half)
        return mapped(_cut_off, result)  # free its activations before the next call


def steps_of(shape: Sequence[int]) -> tuple[int, ...]:
    """For each dimension, the stride at which to take at most :data:`SAMPLE` values from all over a
    tensor. The last dimensions are thinned first, so that as many rows as possible have values in
    the sample."""
    left = math.prod(shape)
    steps: list[int] = []
    for size in reversed(shape):
        step = min(max(1, size), -(-left // SAMPLE)) or 1
        left = left // max(1, size) * -(-size // step)
        steps.insert(0, step)
    return tuple(steps)


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of real numbers itself; of a complex one, the real and the imaginary parts, along one more dimension."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


@torch.no_grad()
def sample(tensor: torch.Tensor, steps: Optional[Sequence[int]] = None) -> torch.Tensor:
    """Some of a tensor's values, as float64 on the CPU: of complex ones both parts."""
    steps = steps_of(tensor.shape) if steps is None else steps
    return (
        as_real(tensor[tuple(slice((size - 1) % step // 2, None, step) for size, step in zip(tensor.shape, steps))])
        .cpu()
        .double()
    )


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


def _called(change: Change) -> str:
    return f"its attribute {change.name}" if change.name in vars(change.module()) else change.name


def _cut_off(value: Any) -> Any:
    """``value`` without the graph that made it: the graph would keep its activations in memory."""
    if not isinstance(value, torch.Tensor) or value.grad_fn is None:
        return value
    return value.detach().requires_grad_()


def batch_of(tape: Tape, first: Entry) -> int:
    """The number of rows of a tape's batch: the size of dimension 0 that most tensor arguments of
    the first module's call have. Raises :class:`Refused` if there is no such size."""
    sizes = [tape.outside[i].shape[0] for i in first.references()[1] if tape.outside[i].dim() > 0]
    listed = next(
        (
            len(a)
            for a in (*first.args, *first.kwargs.values())
            if isinstance(a, list) and len(a) > 1 and tensors_listed(a)
        ),
        0,
    )
    if listed and (not sizes or sizes.count(listed) * 2 <= len(sizes)):
        raise Refused(f"the first module is given a list of {listed} items, and only tensors are cut")
    if sizes[:1] == [1] and sizes.count(1) * 2 > len(sizes):
        return 1
    sizes = [s for s in sizes if s > 1] or sizes
    if not sizes:
        raise Refused("the first module is given no tensor with a batch dimension")
    most = max(set(sizes), key=sizes.count)
    if sizes.count(most) * 2 <= len(sizes):
        objects = " and ".join({f"in a {name} object": None for name in first.packed()})
        raise Refused(
            f"the first module's arguments{f', {objects},' if objects else ''} disagree about the size of the batch"
        )
    return most


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
    given = [t for t in (tape.outside[i] for i in first.references()[1]) if t.dim()]
    second = {t.shape[1] for t in given if t.dim() > 1}
    if turned is None or len(second) != 1 or max(second) < 2 or first.references()[0]:
        batch = batch_of(tape, first)
        return batch, 0, doubt(tape, first, batch)
    key = number_of(first.module), tuple((t.dim(), t.dtype) for t in given)
    if key not in _dims:
        _dims[key] = separate_in(tape, first, max(second))
    if _dims[key] == 1:
        return max(second), 1, ""
    batch = batch_of(tape, first)
    may = (
        f"dimension 0 of the arguments of {named(first)}, of {batch}, may not be the batch, since its "
        f"{type(turned).__name__} has batch_first=False"
    )
    return batch, 0, "" if _dims[key] == 0 else may


def separate_in(tape: Tape, first: Entry, second: int) -> int:
    """The dimension of a module's arguments, 0 or 1, along which two slices have the same results together as each
    alone; -1 if there is none. ``second`` is the size of dimension 1."""

    def separate(batch: int, dim: int) -> bool:
        axes = {i: axis_in(tape.outside[i], batch, dim) for i in first.references()[1]}
        cut = Cut({i: axis for i, axis in axes.items() if axis is not None and axis.each() == 1}, False)

        def made(*rows: int) -> list[torch.Tensor]:
            args, kwargs = arguments(tape, first, cut, {}, Rows(batch, 0, batch, [*rows]))
            return tensors_in(perform(first, args, kwargs, trial=True))

        grown = 0
        for both, one, other in zip(made(0, 1), made(0), made(1)):
            moved = [d for d in range(both.dim()) if both.shape[d] != one.shape[d]]
            if not moved:
                continue
            grown += 1
            axis = Axis(moved[0], one.shape[moved[0]] if dim and not moved[0] else 1)
            if len(moved) > 1 or both.shape[moved[0]] != 2 * one.shape[moved[0]] or one.shape != other.shape:
                return False
            if both.is_floating_point() and not torch.allclose(
                both, axis.joined([one, other]), rtol=1e-2, atol=1e-4 * float(both.abs().max())
            ):
                return False
        return grown > 0

    def tried() -> int:
        with rehearsal([first.module]), NoRandomness(), torch.no_grad():  # type: ignore[list-item]
            for dim in (0, 1):
                try:
                    if separate(second if dim else batch_of(tape, first), dim):
                        return dim
                except Exception as e:
                    if is_out_of_memory(e):
                        raise
        return -1

    return patiently(tried, "there is not enough memory for a trial on a few rows")


def tensors_listed(items: list) -> bool:
    """Whether a list of an entry's arguments has tensors in its items."""
    return any(type(t) in (Ref, Outside) for t in tree_flatten(items, is_leaf=lambda t: type(t) in (Ref, Outside))[0])


def doubt(tape: Tape, first: Entry, batch: int) -> str:
    """Why dimension 0 of the arguments may not be the batch; empty if nothing speaks against it."""
    why = f"dimension 0 of the arguments of {named(first)}, of {batch}, may not be the batch"
    given = [tape.outside[i] for i in first.references()[1]]
    beside = next((t for t in given if t.dim() == 1 and not t.is_floating_point() and 1 < len(t) != batch), None)
    if beside is not None:
        return f"{why}, since {len(beside)} whole numbers are given with it, such as the ends of sequences"
    return ""


def perform(entry: Entry, args: Any, kwargs: Any, trial: bool = False) -> Any:
    """Repeats an entry's call in the modes that were active when the script made it. In a trial, a
    function that changes its argument in place builds no graph, so that the argument may be a
    leaf."""
    with ExitStack() as stack:
        for context in [modes_as(entry.modes), *autocast_as(entry.autocast)]:
            stack.enter_context(context)
        stack.enter_context(
            torch.set_grad_enabled(entry.grad and torch.is_grad_enabled() and not (trial and entry.inplace))
        )
        if entry.fresh:
            args = (args[0].clone(), *args[1:])
        stack.enter_context(in_place())
        result = entry.call(*args, **kwargs)
    return args[0] if result is None and entry.inplace else result


def arguments(
    tape: Tape,
    entry: Entry,
    cut: Cut,
    env: dict,
    rows: Optional[Rows],
    also: Optional[Callable] = None,
    leaves: Optional[dict] = None,
) -> tuple[Any, Any]:
    """An entry's arguments for the given rows, or for all rows if ``rows`` is None. ``leaves``
    replace the outside tensors whose gradients are wanted, by index; ``also`` is applied to all
    other outside tensors."""

    filling = _Filling(tape, cut, env, rows, also, leaves or {})
    return filling.put(entry.args), filling.put(entry.kwargs)


class _Filling(NamedTuple):
    """Puts values in the places of references, for :func:`arguments`."""

    tape: Tape
    cut: Cut
    env: dict
    rows: Optional[Rows]
    also: Optional[Callable]
    leaves: dict

    def put(self, tree: Any) -> Any:
        kind = type(tree)
        if kind is Ref:
            return self.env[tree.slot]
        if kind is Outside:
            return self._outer(tree.index)
        if kind is tuple or kind is list or kind is torch.Size:
            return (tuple if kind is not list else list)(self.put(t) for t in tree)
        if kind is dict:
            return {k: self.put(v) for k, v in tree.items()}
        rows = self.rows
        if self.cut.scaled and kind is int and tree > 0 and rows is not None and tree % rows.batch == 0:
            return tree // rows.batch * rows.count
        if kind in (int, float, bool, str, type(None)):
            return tree
        if kind is Packed:
            return tree.filled(self._packed)
        return put_tree(tree, self.put)

    def _packed(self, leaf: Any) -> Any:
        if type(leaf) is torch.Size:
            return self._sized(leaf)
        return self.put(leaf) if type(leaf) in (Ref, Outside) else leaf

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


def put_tree(tree: Any, put: Callable) -> Any:
    return tree_map(
        lambda leaf: put(leaf) if type(leaf) in (Ref, Outside, Packed) else leaf,
        tree,
        is_leaf=lambda t: type(t) in (Ref, Outside),
    )


def mentions(entry: Entry, batch: int) -> bool:
    return any(type(leaf) is int and leaf > 0 and leaf % batch == 0 for leaf in entry.leaves())


def sliced(entry: Entry) -> bool:
    """Whether an entry indexes only with integers, slices, None and ``...``. PyTorch checks these before it runs
    anything, unlike the values in a list, an array or a tensor of indices."""
    if entry.call_name() not in ("__getitem__", "__setitem__") or len(entry.args) < 2:
        return False
    index = entry.args[1]
    return all(
        item is None or item is ... or type(item) in (int, slice)
        for item in (index if type(index) is tuple else (index,))
    )


def pick(value: torch.Tensor, slot: Slot, where: list[int]) -> torch.Tensor:
    """Some rows of an output."""
    return value.clone() if slot.axis is None else slot.axis.chosen(value, torch.tensor(where, device=value.device))


def selects(entry: Entry, dtypes: Sequence[torch.dtype]) -> bool:
    """Whether the size of a function's result depends on values. ``dtypes`` are those of the tensors by which it may
    index."""
    name = entry.call_name()
    return (
        name in SELECTING
        or name == "__getitem__"
        and (torch.bool in dtypes or torch.uint8 in dtypes)
        or name == "where"
        and len(entry.args) == 1
    )


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)


def named(entry: Entry) -> str:
    return entry.call_name()
