"""Runs calls of a tape on two different small numbers of rows, to see where the rows of the batch are in their results.

A dimension that grows in proportion to the rows belongs to the batch, and a tensor that stays the same size is shared.
Anything else, such as a similarity of every row with every other or a shape that depends on values, cannot be cut and
raises :class:`Refused`. A dimension is never taken for the batch merely because it happens to be as large as the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch

from ..failure import Mixed, Refused, Writes, passes
from ..hooks.registered import registered
from ..ranks.collectives import Silent
from ..sandbox.sandbox import ANYWHERE, NoRandomness, Sealed, Watched, Watcher
from ..tape.functions import INDEXING, SHAPING
from ..tape.given import labels
from ..tape.graph import signature
from ..tape.recorded_module import record_of, same_values
from ..tape.snapshot import Snapshot, attributes, buffers, may_keep, parameters, submodules
from ..tape.tape import Entry, Tape, random_state, same_outside_torch
from ..tape.trees import FIXED, flatten, mapped, set_on, tensors_in
from ..world import several
from .deciding import Decisions
from .mixing import Operations, divides, mixing
from .rows import (
    Axis,
    Cut,
    Other,
    Rows,
    Slot,
    alike,
    arguments,
    as_real,
    axis_in,
    layers_in,
    perform,
    rows_in,
    said,
    sample,
)

NUMBERS = (int, float)
PLAIN = (*NUMBERS, str, type(None))
MEANT = 1e-3  # a relative difference that is more than rounding
MADE_UP = (0.25, 0.75)  # in a trial, values of a number of the batch that has not been computed for a few rows


class Given(NamedTuple):
    """What a module's call returned for a few rows."""

    values: dict[int, torch.Tensor]  # some values of each tensor, by its place in the result
    graph: int  # the signature of the result's graph
    known: frozenset[int]  # the ids of the leaves that existed before the call, as far as was known then
    draws: list[tuple]  # random numbers that would have been drawn
    half: bool  # something was computed in half precision

    def like(self, now: Given, most: float) -> bool:
        """Whether another call has returned the same except for rounding errors of at most ``most``, relative to the
        largest element."""
        same = self.draws == now.draws and self.graph == now.graph and self.values.keys() == now.values.keys()
        return same and all(alike(value, now.values[key], most) for key, value in self.values.items())


class _Lasting:
    """What a call of a module on a few rows must leave as it is."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._buffers = buffers([module])
        self._params = [p for p in parameters([module]) if type(p) is torch.nn.Parameter]
        self._before = self._now()
        self._values = [(b, b.detach().clone()) for b in self._buffers if b.layout == torch.strided]

    def _now(self) -> tuple:
        return random_state(), [b._version for b in self._buffers], [p.data_ptr() for p in self._params]

    def confirm(self, name: str) -> None:
        """Raises :class:`Refused` if something has changed."""
        (state, versions, places), (state_now, versions_now, places_now) = self._before, self._now()
        if not same_outside_torch(state, state_now):
            raise Refused(f"a call to {name} draws random numbers from Python or NumPy")
        # What is written by .data raises no version.
        if versions != versions_now or not all(torch.equal(*both) or same_values(*both) for both in self._values):
            raise Refused(f"{name} changes its buffers")
        if places != places_now:
            raise Writes(f"a call to {name} assigns new data to a parameter")


class Trials:
    """The calls of a tape on two small numbers of rows, called few and more here. ``slots`` has what is known about
    each tensor of the tape."""

    def __init__(self, tape: Tape, first: Entry) -> None:
        self.tape = tape
        self.batch, self._dim, self._doubt = rows_in(tape, first)
        self.rows = self._few()
        self.slots: dict[int, Slot] = {}
        self.env: tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]] = {}, {}  # values by slot: few rows, more
        self._made_up: set[int] = set()  # slots whose values are made up, or computed from such values
        self.given = Given({}, 0, frozenset(), [], False)  # what the newest call with more rows has returned
        self.operations = Operations(), Operations()  # of the newest function, for few rows and for more
        self.decided = Decisions(), Decisions()  # of the newest module, for few rows and for more
        self.newest: Any = None  # what the newest module has returned for more rows,
        self._two: Optional[list[torch.Tensor]] = None  # and for two of them; None if it has not been called with two
        self.before: Any = None  # a snapshot of the module, from before its newest call with more rows

    def _few(self) -> tuple[Rows, Rows]:
        """The two small numbers of rows."""
        if self.batch < 2:
            raise Refused("a batch of one row cannot be split")
        few, more = (2, 3) if self.batch > 3 else (1, 2)
        return Rows(self.batch, 0, few), Rows(self.batch, self.batch - more, self.batch)

    def mixed(self, text: str) -> Refused:
        """The exception for rows that are seen to depend on each other: :class:`Mixed`, unless they may not be the
        rows of a batch."""
        return Refused(f"{text.replace(' of the batch', '')}; {self._doubt}") if self._doubt else Mixed(text)

    def make_up(self, entry: Entry) -> None:
        """Puts made-up values in the place of a call's arguments that belong to the batch as a whole and have not been
        computed for a few rows. What a loss is worth does not matter to the shape of what is computed from it."""
        for r in entry.references()[0]:
            known = self.slots[r]
            for env, value in zip(self.env, MADE_UP):
                if known.whole and r not in env:
                    made = torch.full(known.shape, value, device=known.device).to(known.dtype)
                    env[r] = made.requires_grad_(known.requires_grad)
                    self._made_up.add(r)

    def note(self, entry: Entry, results: Sequence) -> None:
        """Keeps the results of a call, which later calls take as arguments."""
        for env, result in zip(self.env, results):
            for slot, value in zip(entry.slots, flatten(result)[0]):
                if slot is not None:
                    env[slot] = value

    def note_made_up(self, entry: Entry) -> None:
        """Notes that what a call returns is computed from made-up values, if that is so."""
        if self._made_up.intersection(entry.references()[0]):
            self._made_up.update(s for s in entry.slots if s is not None)

    def axes(self, outside: Sequence[int], factors: set[int], module: Any = None) -> dict[int, Axis]:
        """Where the rows would be in those outside tensors that can be cut, by index. ``factors`` are the numbers of
        slices that a row may have, and ``module`` is what is given the tensors, unless it is a function."""
        found, layers = {}, frozenset() if self._dim else layers_in(module)
        for i in outside:
            axis = axis_in(self.tape.outside[i], self.batch, self._dim, layers)
            if axis is not None and axis.each() in factors:
                found[i] = axis
        return found

    def both(self, entry: Entry, cut: Cut, rehearse: bool = False, sealed: Sequence[Sealed] = ()) -> list:
        """What a call returns for each of the two numbers of rows, without graphs. Raises :class:`Refused` if a
        module's call relates rows to each other. If ``rehearse`` is true, a function that writes to its arguments gets
        copies."""
        if entry.module is None:
            self.operations = Operations(lengths=False), Operations(lengths=False)
            return [self._function(entry, cut, which, rehearse) for which in (0, 1)]
        results, made = [], (Operations(), Operations())
        self.decided = Decisions(), Decisions()
        for which in (0, 1):
            if entry.snapshot is not None:
                entry.snapshot.put_back()
            if which == 1:  # only the second call's changes count: the first may have filled a cache
                self.before = Snapshot(submodules([entry.module]), deep=True)
            silent = [Silent()] if several() else []
            results.append(self.one(entry, cut, which, [*silent, *sealed, made[which], self.decided[which]]))
        self.newest, self._two = results[1], None
        few, more = self.rows
        record = record_of(entry.module)
        if record is not None and divides(made[0].made, made[1].made, few.count, more.count):
            record.divides = True
        if record is not None:
            record.ignored.update(*(one.ignored for one in made))
        mixed = mixing(made[0].made, made[1].made, few.count, more.count)
        if mixed is None:
            return results
        if self.depends(entry, cut, *results):
            raise self.mixed(f"a call to {entry.call_name()} mixes rows of the batch with each other ({mixed})")
        raise Refused(f"a call to {entry.call_name()} may mix rows of the batch with each other ({mixed})")

    def _function(self, entry: Entry, cut: Cut, which: int, rehearse: bool) -> Any:
        env, rows, outside = self.env[which], self.rows[which], self.tape.outside
        if rehearse and entry.inplace:
            env = {k: v.clone() for k, v in env.items()}
        if entry.call_name() in INDEXING and not sliced(entry) and outside and outside[0].is_cuda:
            # An index out of range raises an exception on the CPU, but breaks the CUDA context on a GPU.
            copies = {r: env[r].detach().cpu() for r in entry.references()[0] if r in env}
            args, kwargs = arguments(self.tape, entry, cut, copies, rows, lambda t: t.detach().cpu())
            with torch.no_grad():
                entry.call(*args, **kwargs)
        args, kwargs = arguments(self.tape, entry, cut, env, rows)
        with Watched([self.operations[which]]):
            return mapped(cut_off, perform(entry, args, kwargs, trial=True))

    def relates(self, entry: Entry, cut: Cut, results: Sequence) -> bool:
        """Whether a function relates rows of the batch to each other, judging by the operations in :meth:`both`, or is
        seen to. ``results`` are those of :meth:`both`."""
        few, more = self.rows
        if mixing(self.operations[0].made, self.operations[1].made, few.count, more.count) is not None:
            return True
        small, large = results
        return self.depends(entry, cut, small, large, places=True)

    def one(
        self,
        entry: Entry,
        cut: Cut,
        which: int,
        watchers: Sequence[Watcher] = (),
        known: Optional[frozenset[int]] = None,
    ) -> Any:
        """What a module's call returns for few rows, if ``which`` is 0, or for more, if it is 1, without a graph. In
        the second case, samples of the results are kept in :attr:`given`. ``known`` are the ids of the leaves that
        existed before the call; None if they are those that are known now."""
        name, module, rows = entry.call_name(), entry.module, self.rows[which]
        args, kwargs = arguments(self.tape, entry, cut, self.env[which], rows)
        lasting = _Lasting(module)  # type: ignore[arg-type]
        whole, kept = {*map(id, self.tape.outside)}, {*map(id, self.env[which].values())}
        cut_up = [t for t in tensors_in((args, kwargs)) if id(t) not in whole]
        for watcher in watchers:
            watcher.given([t for t in cut_up if id(t) not in kept], [t for t in cut_up if id(t) in kept])
        del cut_up
        hooks: list[tuple[torch.Tensor, Any]] = []
        with NoRandomness(ANYWHERE, watchers, apart=True) as trial, registered(hooks):
            try:
                result = perform(entry, args, kwargs, trial=True)
            except Exception as e:
                if passes(e) or isinstance(e, (Refused, MemoryError)):
                    raise
                where = f"dimension {self._dim} of its arguments is cut from {self.batch} to {rows.count}"
                raise Refused(f"a call to {name} fails if {where} ({said(e)})") from e
        for watcher in watchers:
            watcher.returned(tensors_in(result))
        record = record_of(module)
        if record is not None:
            record.remember(trial.half, trial.where)
        lasting.confirm(name)
        self._leaves_hooks(entry, hooks, result, [args, kwargs])
        if which == 1:
            tensors = {i: v for i, v in enumerate(flatten(result)[0]) if isinstance(v, torch.Tensor)}
            known = frozenset(id(t) for t in self.tape.leaves(module)) if known is None else known
            graph = signature(tensors.values(), known)
            self.given = Given({i: sample(v) for i, v in tensors.items()}, graph, known, trial.draws, trial.half)
        return mapped(cut_off, result)  # free its activations before the next call

    def _leaves_hooks(self, entry: Entry, hooks: Sequence, result: Any, given: Any) -> None:
        """Raises :class:`Refused` if a call has left something on its tensors that those of the pieces do not give to
        the script."""
        name, own = entry.call_name(), {*map(id, tensors_in(given))}
        made = [t for t in tensors_in(result) if id(t) not in own]
        held = [t for m in submodules([entry.module]) for _, t in attributes(m) if type(t) is torch.Tensor]
        lasting, why = {*map(id, self.tape.leaves(entry.module))}, ""
        if any(map(set_on, made)):
            why = labels(entry)
        elif any(t.retains_grad for t in (*made, *held) if not t.is_leaf):
            why = f"a call to {name} retains the gradient of a tensor that is no leaf"
        elif any(id(t) in lasting for t, _ in hooks):
            why = f"a call to {name} registers a hook on a parameter"
        elif any(may_keep(hook) for _, hook in hooks):
            why = f"a call to {name} registers a hook on a tensor, which may keep something"
        if why:
            raise Refused(why)

    def depends(self, entry: Entry, cut: Cut, small: Any, large: Any, places: bool = False) -> bool:
        """Whether a call is seen to return something else for a row beside another row; or, if ``places``, in another
        place. ``small`` and ``large`` are results for the two numbers of rows, which show where the rows are."""
        along = []
        for s, t in zip(tensors_in(small), tensors_in(large)):
            along.append(next((d for d, (a, b) in enumerate(zip(s.shape, t.shape)) if a != b), None))
        last = self.rows[1].count - 1
        # Once more beside the same row: it may draw numbers.
        indices = [[0, 1], [0, 1], [0, last] if last > 1 else [0, 0], *([[1, 0]] if places else [])]
        one, beside_one = self._beside(entry, cut, along, indices.pop(0))

        def same(index: Sequence[int]) -> Optional[bool]:
            """Whether the row's results are those in ``one``; None if not all of them are finite, or, unless another
            place matters, if they may have got another place or length."""
            other, beside_other = self._beside(entry, cut, along, index)
            if not all(bool(t.isfinite().all()) for t in (*one, *other)):
                return None
            if _all_alike(one, other):
                return True
            if places or len(one) != len(other):
                return False
            if any(a.shape != b.shape for a, b in zip(one, other)):
                return None
            ways = itertools.product((one, beside_one), (other, beside_other))
            return None if any(_all_alike(*way) for way in ways) else False

        again, *others = map(same, indices)
        return bool(again) and None not in others and not all(others)

    def _beside(
        self, entry: Entry, cut: Cut, along: Sequence[Optional[int]], index: Sequence[int]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """What a call returns for the first of the trial's rows, in the results that grow, where it is given two rows,
        and what is in the other row's place. ``index`` has these, counted from the first of more rows, and ``along``
        the dimension in which each result grows."""
        found: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
        for dim, tensor in zip(along, self._made_of(entry, cut, index)):
            if dim is None:
                continue
            each, rest = divmod(tensor.shape[dim], 2)
            for place, at in zip(found, (index.index(0), 1 - index.index(0))):
                row = tensor.narrow(dim, at * each, each) if rest else self._along(dim, each, entry).some(tensor, at, 1)
                exact = row.dtype in (torch.float32, torch.complex64) or row.dtype.itemsize >= 8
                # On a GPU results may be large, and the host slow.
                place.append(as_real(row).clone() if exact else row.double())
        return found

    def _made_of(self, entry: Entry, cut: Cut, index: Sequence[int]) -> list[torch.Tensor]:
        """The tensors that a call returns for the rows that ``index`` lists, counted from the first of more rows."""
        env = {r: self.slots[r].pick(self.env[1][r], index) for r in entry.references()[0]}
        rows = Rows.chosen(self.batch, [self.rows[1].start + i for i in index])
        args, kwargs = arguments(self.tape, entry, cut, env, rows)
        if entry.snapshot is not None:
            entry.snapshot.put_back()
        with torch.no_grad(), NoRandomness(apart=True):
            return tensors_in(perform(entry, args, kwargs, trial=True))

    def differs(self, slots: Sequence[int]) -> bool:
        """Whether one of these numbers of the batch is seen to be different for other rows."""
        few, more = self.env
        known = [s for s in slots if self.slots[s].dim is None and s in few and s not in self._made_up]
        return any(not alike(sample(few[s]), sample(more[s]), MEANT) for s in known)

    def leaf(self, small: Any, large: Any, entry: Entry, cut: Cut) -> Any:
        """What a leaf of a call's result is for the whole batch: a :class:`Slot` for a tensor, a plain value, or an
        :class:`Other`."""
        if isinstance(small, torch.Tensor):
            return self.slot(small, large, entry, cut)
        if type(small) is torch.Size and len(small) == len(large):
            few, more = (r.count for r in self.rows)
            if all(a == b or a * more == b * few and not a % few for a, b in zip(small, large)):
                return torch.Size(a if a == b else a // few * self.batch for a, b in zip(small, large))
        if isinstance(small, PLAIN) or isinstance(small, FIXED) and small is large:
            return small
        return Other(type(small).__name__)

    def slot(self, small: torch.Tensor, large: torch.Tensor, entry: Entry, cut: Cut) -> Slot:
        """What is known about a tensor of which there are values for the two numbers of rows."""
        shape, axis = self._extent(small, large, entry, cut)
        if entry.module is not None:
            # A temperature, for example; not a loss, which differs between rows unless it is zero.
            equal = axis is None and small.is_floating_point() and torch.equal(small.detach(), large.detach())
            fixed, shared = equal and bool(small.any()), False
        else:
            refs, few = entry.references()[0], self.env[0]
            fixed = axis is None and bool(refs) and all(self.slots[r].fixed for r in refs)
            shared = any(_memory(small) == _memory(few[r]) for r in refs if r in few)
        return Slot(shape, axis, small.dtype, small.device, small.requires_grad, fixed, shared)

    def _extent(
        self, small: torch.Tensor, large: torch.Tensor, entry: Entry, cut: Cut
    ) -> tuple[tuple[int, ...], Optional[Axis]]:
        """The shape of a result for the whole batch, and where its rows are."""
        name, shape = entry.call_name(), list(small.shape)
        if small.dim() != large.dim():
            raise Refused(f"{name} returns results with different numbers of dimensions for different batches")
        moved = [d for d in range(small.dim()) if small.shape[d] != large.shape[d]]
        if not moved:
            return tuple(shape), None
        few, more = self.rows
        if len(moved) > 1:
            grows = all(small.shape[d] * more.count == large.shape[d] * few.count for d in moved)
            if grows and self.depends(entry, cut, small, large):
                raise self.mixed(f"{name} compares every row of the batch with every other")
            how = "grows with the batch in two dimensions" if grows else "has another length for other rows"
            raise Refused(f"{name} returns a result that {how}")
        dim = moved[0]
        per_row, rest = divmod(small.shape[dim], few.count)
        if rest or per_row * more.count != large.shape[dim]:
            raise Refused(f"{name} returns a result whose size is not proportional to the batch")
        shape[dim] = per_row * self.batch
        axis = self._along(dim, per_row, entry)
        if entry.module is not None:
            blocks = self._blocks(entry, cut, large, axis) if per_row > 1 and axis.outer == 1 else axis.outer
            return tuple(shape), Axis(dim, blocks, per_row // blocks)
        return tuple(shape), self._placed(axis, entry)

    def _along(self, dim: int, per_row: int, entry: Entry) -> Axis:
        """Where the rows are if each has ``per_row`` slices in dimension ``dim``: as in what a function is given, or,
        if the batch is dimension 1, after the time steps."""
        for axis in {self.slots[r].axis for r in entry.references()[0]} if entry.module is None else ():
            if axis is not None and axis.dim == dim and axis.each() == per_row and axis.outer > 1:
                return axis
        return Axis(dim, per_row) if self._dim and per_row > 1 else Axis(dim, 1, per_row)

    def _blocks(self, entry: Entry, cut: Cut, large: torch.Tensor, axis: Axis) -> int:
        """How many blocks a module's result consists of, each with all rows, as where it joins what it has computed
        for several views of the rows. They show where two of the rows are given to the module without the third."""
        at = next((i for i, t in enumerate(tensors_in(self.newest)) if t is large), None)
        if at is None or self.rows[1].count < 3:
            return 1
        if self._two is None:
            self._two = self._made_of(entry, cut, [0, 1])
        two = self._two[at]
        wanted = sample(two)
        for outer in range(1, axis.inner + 1):
            if axis.inner % outer == 0:
                part = Axis(axis.dim, outer, axis.inner // outer).some(large, 0, 2)
                if part.shape == two.shape and alike(sample(part), wanted, MEANT):
                    return outer
        return 1

    def _placed(self, axis: Axis, entry: Entry) -> Axis:
        """Where the rows are in a function's result, if they are where ``axis`` says."""
        dim, per_row = axis.dim, axis.each()
        if axis.outer == 1:
            return axis
        known = [self.slots[r] for r in entry.references()[0]]
        given = {s.axis for s in known} - {None}
        folded = dim == 0 and entry.call_name() in SHAPING and all(s.shape[0] == per_row for s in known)
        if given != {axis} and not (folded and given == {Axis(1)}):
            raise Refused(f"{entry.call_name()} folds the batch into another dimension")
        return axis


def _all_alike(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    pairs = zip(some, others)
    return len(some) == len(others) and all(a.shape == b.shape and alike(a, b, MEANT) for a, b in pairs)


def cut_off(value: Any) -> Any:
    """``value`` without the graph that made it: the graph would keep its activations in memory."""
    if not isinstance(value, torch.Tensor) or value.grad_fn is None:
        return value
    return value.detach().requires_grad_()


def sliced(entry: Entry) -> bool:
    """Whether an entry indexes only with integers, slices, None and ``...``. PyTorch checks these before it runs
    anything, unlike the values in a list, an array or a tensor of indices."""
    if entry.call_name() not in ("__getitem__", "__setitem__") or len(entry.args) < 2:
        return False
    index = entry.args[1] if type(entry.args[1]) is tuple else (entry.args[1],)
    return all(item is None or item is ... or type(item) in (int, slice) for item in index)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else id(tensor)
