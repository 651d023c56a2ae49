"""Finds out, by trial, how a call can be made on some rows: which of its arguments are cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import combinations
from typing import Any, Callable, NamedTuple, NoReturn, Optional

import torch
from torch.utils._pytree import tree_leaves

from ..failure import Refused, Unrepeatable, Writes, clean, interrupts, is_out_of_memory, passes
from ..sandbox.kept import Kept
from ..sandbox.sandbox import NoRandomness, Sealed
from ..tape.functions import JOINING, RUNNING, SELECTING, SHAPING
from ..tape.recorded_module import record_of
from ..tape.snapshot import Change, Snapshot, Unavailable, buffers, submodules
from ..tape.tape import Entry, Outside, Ref, is_place
from ..tape.trees import flatten, tensors_in
from .branching import otherwise, without_memory
from .deciding import Decisions, differs
from .rows import NOTHING, Axis, Cut, Rows, Slot, arguments, numbers, perform, rounding
from .trials import Given, Trials


class Tried(NamedTuple):
    """What the trial of a call has shown."""

    cut: Cut
    results: list  # for the trials' two numbers of rows
    left: Sequence[Change] = ()  # attributes in which a module's call has left tensors with a graph
    keeps: str = ""  # the name of something else that a module's call changes; empty if there is none


def tried(trials: Trials, entry: Entry, made: bool) -> Tried:
    """How a call can be cut. ``made`` says whether the script has already made it. Raises :class:`Refused` if it
    cannot be cut in exactly one way."""
    refs = entry.references()[0]
    if any(r not in trials.slots for r in refs):
        raise Refused("a result of a call that needs the whole batch is used")
    known = [trials.slots[r] for r in refs]
    apart = getattr(entry.call, "apart", False)  # each result belongs to one of the arguments
    if any(s.dim is not None for s in known) and any(s.whole for s in known) and not apart:
        does = f"{entry.call_name()} combines single rows with a value"
        if trials.differs(refs):
            raise trials.mixed(f"{does} computed from the whole batch")
        raise Refused(f"{does} that may be computed from the whole batch")
    trials.make_up(entry)
    return _Function(trials, entry).tried() if entry.module is None else _Module(trials, entry).tried(made)


class _Module:
    """The trial of a module's call: nothing but its arguments may say how many rows there are."""

    def __init__(self, trials: Trials, entry: Entry) -> None:
        self._trials, self._entry, self._module = trials, entry, entry.module
        self._cut = Cut(trials.axes(entry.references()[1], {1}, self._module))
        self._sealed: Any = None  # what the call must not change

    def tried(self, made: bool) -> Tried:
        trials, entry, module, (refs, outside) = self._trials, self._entry, self._module, self._entry.references()
        if any(trials.tape.outside[i].is_cuda for i in outside):
            refuse_pointing(trials, entry, self._cut)
        before = Snapshot(submodules([module]), deep=True)
        free = [*buffers([module]), *(env[r] for env in trials.env for r in refs)]
        leaves = trials.tape.leaves(module) if entry.grad else None
        self._sealed = [Sealed(f"a call to {entry.call_name()}", free, known=leaves)]
        results = self._both(before)
        left: list[Change] = []
        kept: list[Change] = []
        for change in trials.before.changed():
            (left if _only_graph(change) else kept).append(change)
        keeps = _called(kept[0]) if kept else ""
        if kept:
            changes = f"a call to {entry.call_name()} changes {keeps}"
            if self._reads(kept, Refused(changes)) and made and entry.snapshot is None:
                raise Refused(changes)
            if not made:
                entry.snapshot = before
            results = trials.both(entry, self._cut, sealed=self._sealed)
        self._refuse_branching()
        self._refuse_deciding(results)
        return Tried(self._cut, results, left, keeps)

    def _both(self, before: Snapshot) -> list:
        """The results for the two small numbers of rows. A call that is given none of the rows is made as a whole."""
        try:
            self._refuse_keeping(before)
            return self._trials.both(self._entry, self._cut, sealed=self._sealed)
        except Exception as e:
            if self._cut.outside or self._entry.references()[0] or not is_out_of_memory(e):
                raise
        raise Refused(f"a call to {self._entry.call_name()} is given other rows than the step's first call")

    def _refuse_keeping(self, before: Snapshot) -> None:
        """Raises :class:`Refused` if something that ``before``, a snapshot, does not show keeps what the call computes
        of its rows: an object of a hook's, for example. After pieces, it would have what the last piece has computed;
        and if it gathers what every call leaves, it has some of this trial's as well."""
        name = self._entry.call_name()
        first = self._kept_by_call(before)
        if not first.stays():
            return
        second = self._kept_by_call(before)
        if first.stays():
            raise Unrepeatable(f"something gathers what calls to {name} compute, so that none may be repeated")
        if second.stays():
            raise Refused(f"a call to {name} leaves what it computes of the rows somewhere outside the module")

    def _kept_by_call(self, before: Snapshot) -> Kept:
        """Makes the call on few rows, and puts back what it changes as far as a snapshot shows that."""
        self._put_back()
        kept = Kept()
        self._trials.one(self._entry, self._cut, 0, [*self._sealed, kept])
        before.put_back()
        return kept

    def _reads(self, kept: Sequence[Change], why: Refused) -> bool:
        """Whether the call reads attributes that it also changes; if so, a repeated call must find the values that
        the script's call found. Raises ``why`` if these values may belong to the rows of a batch, such as a state that
        is carried from one batch to the next."""
        rows = [c for c in kept if not self._trials.before.plain(c)]
        after = Snapshot(submodules([self._module]), deep=True)
        if any(c.name == "_parameters" for c in kept):
            raise Writes(f"a call to {self._entry.call_name()} replaces a parameter")

        def read() -> NoReturn:
            raise why

        def called(lost: Sequence[Change]) -> Given:
            after.put_back()
            for change in lost:
                change.replace(Unavailable(read))
            self._trials.one(self._entry, self._cut, 1, self._sealed)
            return self._trials.given

        usual = called(())

        def unread(changes: Sequence[Change]) -> bool:
            try:
                return usual.like(called(changes), rounding(self._trials.tape, usual.half))
            except Exception as e:
                if passes(e):
                    raise
                return False

        if unread(kept):
            found = ((id(c.module()), c.name) for c in kept if c.inside is None)
            record_of(self._module).unread.update(found)  # type: ignore[union-attr]
            return False
        if rows and not unread(rows):
            raise why
        return True

    def _refuse_branching(self) -> None:
        """Raises :class:`Refused` if the module is seen to do something else for the whole batch than for a few
        rows."""
        trials, entry = self._trials, self._entry
        which = 1 if trials.rows[1].count < trials.batch else 0
        few = trials.rows[which]

        def call(rows: Optional[Rows]) -> Callable[[], Any]:
            known = trials.slots if rows is None else trials.env[which]
            with torch._C.DisableTorchFunction():  # a mode of the script's might put new tensors elsewhere
                env = {}
                for r in entry.references()[0]:
                    env[r] = torch.empty(known[r].shape, dtype=trials.slots[r].dtype, device="meta")
                args, kwargs = arguments(trials.tape, entry, self._cut, env, rows, without_memory)

            def made() -> Any:
                if entry.snapshot is not None:
                    entry.snapshot.put_back()
                return perform(entry, args, kwargs, trial=True)

            return made

        tries = {few.count: lambda: call(few), trials.batch: lambda: call(None)}
        why = otherwise(self._module, tries)  # type: ignore[arg-type]
        if why is not None:
            raise Refused(
                f"{entry.call_name()} does something else with {trials.batch} rows than with {few.count} ({why})"
            )

    def _refuse_deciding(self, results: Sequence) -> None:
        """Raises :class:`Refused` if the module decides by the contents of its batch, and that is seen to make few rows
        come to something else than they do in the batch."""
        trials, entry = self._trials, self._entry
        if not any(d.made for d in trials.decided):
            return
        whole, usual, most = self._decided_of_all(), trials.given, rounding(trials.tape, trials.given.half)

        def call(which: int, decisions: Decisions) -> Any:
            self._put_back()
            return trials.one(entry, self._cut, which, [*self._sealed, decisions])

        differ = differs(results, trials.decided, whole, call, most)
        trials.given = usual
        if differ:
            does = f"a call to {entry.call_name()} decides by the contents of its batch what it does"
            if whole is None:
                raise Refused(f"{does}, and there is not enough memory to know how")
            raise Refused(f"{does}, and does something else for few rows of it")

    def _decided_of_all(self) -> Optional[list]:
        """What the module decides about the whole batch; None if that cannot be known."""
        trials, entry, decisions = self._trials, self._entry, Decisions()
        env = trials.tape.values(entry.references()[0])
        if env is None:
            return None
        decisions.given([trials.tape.outside[i] for i in self._cut.outside], [*env.values()])
        self._put_back()
        try:
            args, kwargs = arguments(trials.tape, entry, self._cut, env, None)
            with torch.no_grad(), NoRandomness(watchers=[decisions], apart=True):
                perform(entry, args, kwargs, trial=True)
        except Exception as e:
            if interrupts(e):
                raise
            clean(e)
            return None
        return decisions.made

    def _put_back(self) -> None:
        if self._entry.snapshot is not None:
            self._entry.snapshot.put_back()


def _only_graph(change: Change) -> bool:
    """Whether all that a call has left in an attribute is tensors with a graph."""
    if change.inside or change.name == "_parameters":
        return False
    return all(isinstance(v, torch.Tensor) and v.requires_grad for v in change.values())


def _called(change: Change) -> str:
    return f"its attribute {change.name}" if change.name in vars(change.module()) else change.name


def refuse_pointing(trials: Trials, entry: Entry, cut: Cut) -> None:
    """Raises :class:`Refused` if a tensor that stays whole seems to number the rows, as the edges of a graph number
    its nodes. On a GPU an index out of range is no exception: it breaks the CUDA context."""
    for i in entry.references()[1]:
        t = trials.tape.outside[i]
        if i in cut.outside or t.is_floating_point() or t.is_complex() or t.dtype == torch.bool or not t.numel():
            continue
        most = int(t.max())
        if trials.batch // 2 <= most < trials.batch and most >= trials.rows[1].count:
            raise Refused(
                f"a call to {entry.call_name()} is given numbers up to {most}, which may stand for "
                f"{trials.batch} rows, in a tensor that cannot be cut"
            )


class _Function:
    """The trial of a function's call: every way to cut its arguments is tried, and only one may be right."""

    def __init__(self, trials: Trials, entry: Entry) -> None:
        self._trials, self._entry, self._name = trials, entry, entry.call_name()
        self._given = [trials.slots[r] for r in entry.references()[0]]

    def tried(self) -> Tried:
        trials, entry, outside = self._trials, self._entry, self._entry.references()[1]
        rowful = [s.axis for s in self._given if s.axis is not None]
        if self._given and not rowful:
            self._refuse_selecting([s.dtype for s in self._given] + [trials.tape.outside[i].dtype for i in outside])
            return Tried(NOTHING, trials.both(entry, NOTHING))
        found: list[Tried] = []
        why: Optional[Refused] = None
        error: Optional[Exception] = None
        for cut in self._cuts(trials.axes(outside, {1, *(axis.each() for axis in rowful)})):
            try:
                results = trials.both(entry, cut, rehearse=True)
                self._refuse_improper(cut, results)
                found.append(Tried(cut, results))
            except Refused as e:
                why = e
            except Exception as e:
                if passes(e):
                    raise
                error = e
        if not found:
            raise self._uncut(why, error)
        if len(found) > 1:
            raise Refused(f"the arguments of {self._name} can be split in more than one way")
        cut = found[0].cut
        return Tried(cut, trials.both(entry, cut)) if entry.inplace else found[0]

    def _cuts(self, axes: dict[int, Axis]) -> Iterator[Cut]:
        """All ways to cut the function's arguments, where ``axes`` says where rows would be in outside tensors. They
        may be in any dimension of a buffer into which results are written."""
        buffer = self._entry.args[0].index if self._entry.fresh and self._name == "__setitem__" else -1
        if buffer >= 0:
            sizes = self._trials.tape.outside[buffer].shape
            for axis in (Axis(d) for d, n in enumerate(sizes) if n == self._trials.batch):
                yield from (cut for cut in self._chosen({**axes, buffer: axis}) if buffer in cut.outside)
            axes = {i: axis for i, axis in axes.items() if i != buffer}
        yield from self._chosen(axes)

    def _chosen(self, axes: dict[int, Axis]) -> Iterator[Cut]:
        if len(axes) > 4:
            raise Refused(f"{self._name} takes too many tensors of the batch's size")
        every = enumerate(numbers((self._entry.args, self._entry.kwargs)) if self._name in SHAPING else ())
        # Others may be multiples of the batch's size as well, such as a number of channels.
        multiples = [i for i, number in every if number > 0 and number % self._trials.batch == 0]
        for sized in (*multiples, None):
            for size in range(len(axes) + 1):
                for chosen in combinations(axes, size):
                    yield Cut({i: axes[i] for i in chosen}, sized)

    def _uncut(self, why: Optional[Refused], error: Optional[Exception]) -> Refused:
        """The exception if there is no way to cut the arguments: ``why`` says so of one way, or ``error`` was raised in
        its trial."""
        joined = self._joined()
        if joined is not None or why is None:
            return Refused(joined or f"{self._name} cannot be run on fewer rows: {error}")
        return why.more(str(why))

    def _joined(self) -> Optional[str]:
        """The reason why a function cannot be cut if the script has cut the batch itself, for several calls of one
        module: the function joins their results, or changes the shape of what was joined. None if that is not so."""
        entry, slots = self._entry, self._trials.slots
        makers = {s: e for e in self._trials.tape.entries for s in e.slots if s is not None}
        join = makers[entry.references()[0][0]] if self._name in SHAPING and self._given else entry
        refs = join.references()[0]
        calls = list({id(makers[r]): makers[r] for r in refs}.values())
        if join.call_name() not in JOINING or not 1 < len(calls) == len(refs):
            return None
        if calls[0].module is None or any(c.module is not calls[0].module for c in calls):
            return None
        sizes = " + ".join(str(slots[r].shape[0]) for r in refs[:4]) + (" + …" if len(refs) > 4 else "")
        return (
            f"{calls[0].call_name()} is called {len(calls)} times, on {sizes} rows, and the results are joined, "
            "so that their rows are not those of one call"
        )

    def _refuse_improper(self, cut: Cut, results: Sequence) -> None:
        """Raises :class:`Refused` if ``results``, for the two numbers of rows, show that the call is not made row by
        row if its arguments are cut like this."""
        name, trials, entry = self._name, self._trials, self._entry
        small, large = (flatten(r)[0] for r in results)
        if len(small) != len(large):
            raise Refused(f"{name} returns a different number of results for another batch")
        slots = [trials.slot(a, b, entry, cut) for a, b in zip(small, large) if isinstance(a, torch.Tensor)]
        if name.rstrip("_") in RUNNING and slots and self._runs_along(slots[0]):
            raise Refused(f"{name} counts along the rows of the batch")
        if name == "__setitem__":
            self._refuse_writing(cut)
        shapes = self._imagined()
        if shapes is not None and shapes != [s.shape for s in slots]:
            raise Refused(f"{name} returns a result whose size is not proportional to the batch")
        if name in SHAPING and self._folds(slots):
            raise Refused(f"{name} folds the batch into another dimension")
        # What is joined along the rows has the entries of a row in several places.
        if name not in JOINING and any(s.axis is not None for s in slots) and trials.relates(entry, cut, results):
            raise Refused(f"{name} relates rows of the batch to each other")

    def _runs_along(self, slot: Slot) -> bool:
        """Whether the dimension along which the function accumulates is, or may be, that of a result's rows."""
        args = self._entry.args
        dim = args[1] if len(args) > 1 else self._entry.kwargs.get("dim", -1)
        return slot.axis is not None and (type(dim) is not int or dim % len(slot.shape) == slot.dim)

    def _folds(self, slots: Sequence[Slot]) -> bool:
        """Whether the batch is dimension 0 of all that the function is given, but not of all its results."""
        return all(s.dim in (0, None) for s in self._given) and any(s.dim != 0 for s in slots)

    def _refuse_writing(self, cut: Cut) -> None:
        """Raises :class:`Refused` if the rows to which ``__setitem__`` writes, which its result does not show, could
        not be read row by row."""
        read = copy(self._entry)
        read.call, read.args, read.inplace = torch.Tensor.__getitem__, tuple(self._entry.args[:2]), False
        try:
            _Function(self._trials, read)._refuse_improper(cut, self._trials.both(read, cut))
        except Refused:
            raise Refused(
                "__setitem__ writes to rows by their numbers, or to a part of the batch that is not in proportion to it"
            ) from None

    def _refuse_selecting(self, dtypes: Sequence[torch.dtype]) -> None:
        """Raises :class:`Refused` if the size of the function's result depends on values. ``dtypes`` are those of the
        tensors by which it may index."""
        masked = self._name == "__getitem__" and (torch.bool in dtypes or torch.uint8 in dtypes)
        if self._name in SELECTING or masked or self._name == "where" and len(self._entry.args) == 1:
            raise Refused(f"{self._name} returns a result whose size depends on tensor values")

    def _imagined(self) -> Optional[list[tuple]]:
        """The shapes of the function's results for the whole batch. A trial might not show them, since
        numbers among the arguments, such as the end of a slice, may be larger than the few rows of
        the trial. None if the shapes cannot be computed without values, or if the function is not
        PyTorch's own, because a foreign kernel might not check that its tensors are on the meta device
        and have no memory. Raises :class:`Refused` if the shapes depend on values."""
        entry, slots, outside = self._entry, self._trials.slots, self._trials.tape.outside
        if getattr(entry.call, "opaque", False):
            return None
        dtypes = []
        for t in tree_leaves(entry.args[1:], is_leaf=is_place):
            if type(t) is Ref:
                dtypes.append(slots[t.slot].dtype)
            elif type(t) is Outside:
                dtypes.append(outside[t.index].dtype)
        self._refuse_selecting(dtypes)

        def empty(t: torch.Tensor) -> torch.Tensor:
            return torch.empty_like(t, device="meta", requires_grad=False)

        try:
            env = {}
            for r in entry.references()[0]:
                env[r] = torch.empty(slots[r].shape, dtype=slots[r].dtype, device="meta")
            args, kwargs = arguments(self._trials.tape, entry, NOTHING, env, None, empty)
            with torch.no_grad():
                result = perform(entry, args, kwargs, trial=True)
        except Exception as e:
            if interrupts(e):
                raise
            return None
        return [tuple(t.shape) for t in tensors_in(result)]
