"""How a tape is cut: what trials have shown about each of its calls, and what they have shown before."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any, ClassVar, NamedTuple, Optional

import torch

from ..failure import Refused
from ..tape.found import as_found
from ..tape.recorded_module import number_of, state_of
from ..tape.snapshot import Change
from ..tape.tape import Entry, Tape
from ..tape.trees import described, flatten
from .cutting import Tried, tried
from .rows import NOTHING, Cut, Slot, rounding
from .trials import NUMBERS, PLAIN, Trials

MANY = 10000  # kinds of calls that are remembered
_NUMBERS = count(1)


class Found(NamedTuple):
    """What is remembered about a call."""

    cut: Cut
    leaves: list  # of its result, for the whole batch: see Plan.result
    tree: Any
    left: Sequence[Change]
    keeps: str


class Plan:
    """How a tape is cut. Grows with the tape."""

    # By key; shared by all plans.
    memory: ClassVar[dict[int, Found]] = {}
    # Keys, by the function called, its arguments and the key of the call before.
    numbers: ClassVar[dict[tuple, int]] = {}
    sure: ClassVar[set[int]] = set()  # keys of calls that returned the same for a few rows when they were repeated
    # Keys of calls that, repeated together, returned the same for the whole batch.
    same: ClassVar[set[tuple[int, ...]]] = set()

    def __init__(self, tape: Tape, first: Entry) -> None:
        self.tape, self._trials = tape, Trials(tape, first)
        self.batch, self.slots, self.mixed = self._trials.batch, self._trials.slots, self._trials.mixed
        self.cuts: list[Cut] = []
        self.keys: list[int] = []  # the entries' keys: see _key
        self._recognised: tuple = (None, 0)  # the entry for which a key was computed last, and that key
        # The call for which result was called last: its entry, its key, what was found, and its results for a few
        # rows, which are None if it was not tried.
        self._pending: Any = None
        self.left: Sequence[Change] = ()  # attributes in which the newest trial has left tensors with a graph
        self.keeps = ""  # the name of something else that the call in the newest trial changes; empty if there is none
        self.leaves = False  # some entries leave something behind on modules
        self.deep = False  # some entries leave behind more than tensors with a graph in attributes
        self.skipped: set[int] = set()  # entries that are not needed
        self.outlines: Any = None  # of the graphs of pieces like those that are made next: see proof.Outlines
        self._shared: set[int] = set()  # slots of tensors that share memory with each other

    def extend(self, wanted: Optional[Sequence[int]] = None) -> None:
        """Adds the entries that are new on the tape; the script has already made their calls.
        ``wanted`` has the indices of the entries that are needed, or is None if all are. What is
        not needed, such as an accuracy for a log, is not tried."""
        with torch._C.DisableTorchFunctionSubclass():
            while len(self.cuts) < len(self.tape.entries):
                entry = self.tape.entries[len(self.cuts)]
                key = self._key(entry)
                if wanted is not None and len(self.cuts) not in wanted:
                    self.skipped.add(len(self.cuts))
                    self.cuts.append(NOTHING)
                    self.keys.append(key)
                else:
                    trial = self._tried(entry, made=True)
                    self._add_results(entry, trial.cut, trial.results)
                    self._add_key(entry, key)

    def is_scalar(self, slot: int) -> bool:
        """Whether a slot's tensor belongs to the batch as a whole, and requires a gradient."""
        return self.slots[slot].whole and self.slots[slot].requires_grad

    def is_derived(self, entry: Entry) -> bool:
        """Whether a function is given nothing of the batch but numbers that belong to it as a whole. It is then
        called once for all rows, whatever they are."""
        refs = entry.references()[0]
        return entry.module is None and bool(refs) and all(self.slots[r].whole for r in refs)

    def is_shared(self, slot: int) -> bool:
        """Whether a slot's tensor may share memory with another tensor on the tape."""
        return slot in self._shared

    def known(self, entry: Entry) -> bool:
        """Whether the same call, after the same calls, was tried on earlier batches of this size. If gradients
        depend on the call, it must also have returned the same when it was repeated."""
        key = self._key(entry)
        return key in Plan.memory and (entry.module is None or not entry.grad or key in Plan.sure)

    def result(self, entry: Entry) -> tuple[list, Any]:
        """The result of a call that is not on the tape yet, as leaves and their tree. A leaf is a :class:`Slot` for a
        tensor, a plain value, or an :class:`Other`. A number that a module returns is that of a few rows. Samples of
        what a module's call returns now, at its place in the script, are kept for :meth:`confirm`, unless the call is
        :meth:`known`."""
        key, results = self._key(entry), None
        if self.known(entry):
            found = Plan.memory[key]
            self.left, self.keeps = found.left, found.keeps
        else:
            if not self.is_derived(entry):
                self._catch_up()
            trial = self._tried(entry, made=False)
            results = trial.results
            leaves, tree = self._leaves(entry, trial)
            found = Plan.memory[key] = Found(trial.cut, leaves, tree, self.left, self.keeps)
            if entry.module is not None:
                entry.seen = self._trials.given
        self._pending = entry, key, found, results
        return found.leaves, found.tree

    def _tried(self, entry: Entry, made: bool) -> Tried:
        trial = tried(self._trials, entry, made)
        if entry.module is not None:
            self.left, self.keeps = trial.left, trial.keeps
        return trial

    def _leaves(self, entry: Entry, trial: Tried) -> tuple[list, Any]:
        """The leaves of a call's result for the whole batch, and their tree: see :meth:`result`."""
        (small, tree), (large, other) = (flatten(r) for r in trial.results)
        name = entry.call_name()
        if len(small) != len(large) or tree.shells != other.shells:
            raise Refused(f"{name} returns a different number of results for another batch")
        for a, b in zip(small, large):
            if entry.module is not None and isinstance(a, NUMBERS) and type(a) is type(b):
                continue  # the caller finds the number of the whole batch
            plain = [isinstance(v, PLAIN) for v in (a, b)]
            if any(plain) and not (all(plain) and a == b):
                raise Refused(f"{name} returns another {type(a).__name__}, which is no tensor, for another batch")
        return [self._trials.leaf(a, b, entry, trial.cut) for a, b in zip(small, large)], tree

    def accept(self) -> None:
        """Adds the call for which :meth:`result` was called last. The call is now on the tape."""
        entry, key, found, results = self._pending
        self._add_key(entry, key)
        if results is not None:
            self._add_results(entry, found.cut, results)
            return
        self.cuts.append(found.cut)
        for slot, leaf in zip(entry.slots, found.leaves):
            if slot is not None:
                self._add_slot(slot, leaf, entry)

    def _add_key(self, entry: Entry, key: int) -> None:
        """Adds a call's key to those on which the keys of later calls depend, unless no trial of theirs depends on
        the call: a coefficient of a loss may be another number in every step. Also notes what a module's call leaves
        behind."""
        self.keys.append(self.keys[-1] if self.keys and self.is_derived(entry) else key)
        if entry.module is not None:
            self.deep |= bool(self.keeps)
            self.leaves |= bool(self.keeps or self.left)

    def _add_results(self, entry: Entry, cut: Cut, results: Sequence) -> None:
        self.cuts.append(cut)
        small, large = (flatten(r)[0] for r in results)
        for slot, a, b in zip(entry.slots, small, large):
            if slot is not None:
                self._add_slot(slot, self._trials.slot(a, b, entry, cut), entry)
        self._trials.note(entry, results)
        self._trials.note_made_up(entry)

    def _add_slot(self, slot: int, known: Slot, entry: Entry) -> None:
        self.slots[slot] = known
        if known.shared:
            self._shared.update((slot, *entry.references()[0]))

    def confirm(self, entries: Sequence[int]) -> None:
        """Repeats, on the same few rows, the modules' calls whose results were kept. Raises
        :class:`Refused` if a result is now different: if a script changes something for a call and
        then changes it back, a replay computes other gradients than the script."""
        self._catch_up()
        for i in entries:
            entry = self.tape.entries[i]
            if entry.seen is None:
                continue
            if entry.snapshot is not None:
                entry.snapshot.put_back()
            # In the trial's mode: under another one a view has another node.
            with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
                self._trials.one(entry, self.cuts[i], 1, known=entry.seen.known)
            if not entry.seen.like(self._trials.given, rounding(self.tape, entry.seen.half)):
                Plan.forget()
                repeated = f"a call to {entry.call_name()} returns different results when it is repeated"
                raise Refused(self.tape.altered(entry) or repeated)
            entry.seen = None
            Plan.sure.add(self.keys[i])

    @staticmethod
    def forget() -> None:
        """Forgets all trials, so that calls are tried again."""
        Plan.memory.clear()
        Plan.sure.clear()
        Plan.same.clear()

    def _key(self, entry: Entry) -> int:
        """A number by which a call is recognised. It depends on the function called, on its
        arguments and on the calls before it."""
        if self._recognised[0] is entry:
            return self._recognised[1]
        outside = [self.tape.outside[i] for i in entry.references()[1]]
        shapes = tuple((tuple(t.shape), t.dtype, t.requires_grad) for t in outside)
        called = number_of(entry.module) or entry.call
        if entry.state is None and entry.module is not None:
            with as_found(entry.found):
                entry.state = state_of(entry.module)
        modes = entry.grad, entry.state and entry.state[:2], entry.inplace, entry.fresh, repr(entry.autocast)
        before, name, given = (
            self.keys[-1] if self.keys else 0,
            entry.call_name(),
            described((entry.args, entry.kwargs)),
        )
        key = before, self.batch, called, name, given, shapes, modes
        if len(Plan.numbers) > MANY:
            Plan.numbers.clear()
            Plan.forget()
        number = Plan.numbers.setdefault(key, next(_NUMBERS))
        self._recognised = entry, number
        return number

    def behind(self, entry: Entry) -> bool:
        """Whether calls on the tape have to be run for a few rows before ``entry`` can be tried."""
        if len(self.cuts) < len(self.tape.entries):
            return True
        return not self.is_derived(entry) and not all(map(self._there, range(len(self.cuts))))

    def _there(self, i: int) -> bool:
        """Whether what an entry returns for a few rows is known, or not needed."""
        entry, few = self.tape.entries[i], self._trials.env[0]
        if i in self.skipped or self.is_derived(entry):
            return True
        return not entry.inplace and all(s is None or s in few for s in entry.slots)

    def _catch_up(self) -> None:
        """Computes, for a few rows, the results of those entries that have not been tried because
        they were :meth:`known`."""
        for i, (entry, cut) in enumerate(zip(self.tape.entries, self.cuts)):
            if not self._there(i):
                self._trials.make_up(entry)
                self._trials.note(entry, self._trials.both(entry, cut))
