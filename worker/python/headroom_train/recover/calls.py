"""A module's call that has run out of memory, or is expected to, and how to make it all the same."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any, Callable, Optional

import torch

from ..failure import (
    Elsewhere,
    NoMemory,
    Refused,
    Survival,
    Writes,
    clean,
    interrupts,
    is_out_of_memory,
    patiently,
    release_frames,
)
from ..hooks.genuine import in_place
from ..proof.recheck import note, unsaved
from ..proof.rerun import modules_of
from ..proof.trials import NUMBERS
from ..replay.deferred import Deferred, disown, strays
from ..sandbox.norms import batchwise, refuse_batchwise
from ..spill.saved import on_host
from ..tape.given import Given, changes
from ..tape.graph import sequence
from ..tape.recorded_module import RecordedModule
from ..tape.snapshot import Snapshot, submodules
from ..tape.tape import Entry, Tape, place_of, random_state, recorded, set_random_state
from ..tape.trees import flatten, mapped
from ..world import talked
from .recovery import Recovery, Way


class FailedCall:
    """A module's call that has failed. ``given`` are its arguments, and None if it must not be made again. ``taped``
    are the recorded tensors among them. If they are not the script's ``own``, others with the same values are in the
    places of some."""

    def __init__(
        self,
        recovery: Recovery,
        tape: Tape,
        record: RecordedModule,
        entry: Entry,
        failure: BaseException,
        given: Optional[tuple[tuple, dict]],
        taped: Sequence[torch.Tensor],
        own: bool = True,
    ) -> None:
        self._recovery, self._tape, self._record, self._entry = recovery, tape, record, entry
        self._failure, self._given, self._taped, self._own = failure, given, taped, own
        release_frames(failure)
        tape.step.fails(failure)
        try:
            entry.found = record.finds()
            entry.holds(record.fixed, values=True)
        except Exception as e:
            if interrupts(e):
                raise
            record.unreadable(e)
            tape.refuse(record.why_not)

    def ways(self) -> Sequence[Way]:
        on_gpu = [self.hosted, self.spilled] if any(p.is_cuda for p in self._record.params) else []
        own = [self.twice, self.pieces, self.whole] if self._record.apart else [self.pieces, self.whole, self.twice]
        if not any(place_of(t).deferred for t in self._taped):  # type: ignore[union-attr]
            return [*own, *on_gpu]
        return [*own, *map(self._real, ("two-pass", "batch", *(("host", "spill") if on_gpu else ())))]

    def pieces(self, _: Optional[Refused]) -> Any:
        """Returns results without values: they are computed afterwards, in pieces."""
        state = random_state()
        try:
            return self._in_pieces()
        except Refused:
            self._record.uncut = True
            if self._entry.snapshot is not None:  # the call may have been repeated for what it leaves behind
                self._entry.snapshot.put_back()
            set_random_state(state)
            raise

    def _in_pieces(self) -> Any:
        recovery, tape, record, entry = self._recovery, self._tape, self._record, self._entry
        module: Any = entry.module
        recovery.may(tape)
        if recovery.spill.open and strays(tape, recovery.tidy):
            raise Refused("something outside the step holds what a call has made, with its graph")
        recovery.guarded(lambda: note(tape))
        disown(tape, [*modules_of(tape), module])
        deferred = recovery.deferred_of(tape, entry)
        self._keep(tape, entry)
        if record.changes_buffers() or batchwise([module]):
            recovery.guarded(lambda: self._sealed(deferred))
            refuse_batchwise([module])
            raise Refused(f"{type(module).__name__} changes its buffers")
        leaves, tree = recovery.guarded(lambda: recovery.result(tape, deferred, entry))
        if deferred.plan.keeps:
            entry.snapshot = entry.snapshot or Snapshot(submodules([module]), deep=True)
        if deferred.plan.keeps or any(isinstance(leaf, NUMBERS) for leaf in leaves):
            leaves = recovery.guarded(lambda: self._made_once(leaves))
        return recovery.guarded(lambda: recovery.postponed(tape, deferred, entry, leaves, tree))

    def _keep(self, tape: Tape, entry: Entry) -> None:
        """Puts copies in the places of the call's arguments if the script may write to them before the call is made
        again."""
        if self._record.rewritten:
            self._recovery.guarded(lambda: tape.keep(entry))
        elif self._record.rewritten is None:
            with suppress(Refused):  # it may do without
                self._recovery.guarded(lambda: tape.keep(entry, views=False))

    def _sealed(self, deferred: Deferred) -> None:
        """Raises :class:`Writes` if the call must not be repeated on the whole batch, or if there is not enough memory
        to find out."""
        if not self._record.tried:
            try:
                self._recovery.result(self._tape, deferred, self._entry)
            except (Writes, Elsewhere):
                raise
            except NoMemory as why:
                raise Writes(str(why)) from None
            except Refused:
                pass
            self._record.tried = True

    def _made_once(self, leaves: Sequence) -> list:
        """Repeats, on the whole batch, a call that will be run in pieces. The script needs what the call leaves behind,
        such as a count or a number for a log, and the numbers among its results, which a few rows do not show. Nothing
        is saved for a backward pass. Returns the leaves of the call's result, with these numbers."""
        tape, entry, keeps = self._tape, self._entry, self._tape.deferred.plan.keeps
        does = f"changes {keeps}" if keeps else "returns a number"
        refused = (
            f"a call to {entry.call_name()} {does}, and there is not enough memory to repeat the call for the whole "
            "batch"
        )
        if not self._may_repeat():
            raise Refused(refused)
        state, begin = random_state(), sequence()

        def made() -> list:
            if entry.snapshot is not None:
                entry.snapshot.put_back()
            set_random_state(state)
            try:
                with self._recovery.inside(self._taped), unsaved(), in_place():
                    whole = flatten(self._again())[0]
            finally:
                tape.spans.append((begin, sequence()))
            kept = entry.snapshot.keeps_graph() if entry.snapshot is not None else None
            if kept is not None:
                raise Refused(f"a call to {entry.call_name()} keeps a tensor with its graph in {kept}")
            if len(whole) != len(leaves):
                raise Refused(f"{entry.call_name()} returns a different number of results for another batch")
            numbers = [isinstance(leaf, NUMBERS) for leaf in leaves]
            if any(n and type(w) is not type(leaf) for n, leaf, w in zip(numbers, leaves, whole)):
                raise Refused(f"{entry.call_name()} returns a number of another type for another batch")
            return [w if n else leaf for n, leaf, w in zip(numbers, leaves, whole)]

        return patiently(made, refused)

    def _again(self) -> Any:
        args, kwargs = self._given  # type: ignore[misc]
        before = Given(args, kwargs)
        try:
            result = self._entry.call(*args, **kwargs)
        except BaseException:
            if not before.put_back():
                self._given = None
            raise
        if not self._own and before.changed():
            self._given = None
            raise Refused(changes(self._entry))
        return result

    def _may_repeat(self) -> bool:
        places = map(place_of, self._taped)
        return self._given is not None and not any(p.deferred for p in places if p is not None)

    def twice(self, why: Optional[Refused]) -> Any:
        """Makes the call in pieces, which are computed twice. Nothing has to be known about the rest of the step, which
        keeps its values."""
        if not self._may_repeat():
            raise Refused("the call must not be repeated")
        (args, kwargs), state, begin = self._given, random_state(), sequence()  # type: ignore[misc]
        try:
            with self._recovery.inside(self._taped):
                result, batch, count = self._recovery.twice(self._tape, self._entry, args, kwargs, self._keep)
        except Refused:
            set_random_state(state)
            raise
        self._recovery.sizes.refused()  # not straight away in later steps: a second derivative could not be taken
        if not self._tape.step.preemptive:
            self._recovery.report.survived(self._failure, Survival("two-pass", why, batch, count))
        return self._goes_on(result, begin)

    def whole(self, why: Optional[Refused]) -> Any:
        """Makes the call on the same rows, after cleaning up: this is for calls that cannot be cut."""
        return self._repeated(why, "call", nullcontext)

    def hosted(self, why: Optional[Refused]) -> Any:
        """Makes the call on the same rows, with the tensors that autograd saves on the host."""
        return self._repeated(why, "host", on_host)

    def spilled(self, why: Optional[Refused]) -> Any:
        """Makes the call on the same rows, with memory of the host for what does not fit."""
        self._recovery.open_spill()
        return self._repeated(why, "spill", nullcontext)

    def _real(self, way: str) -> Way:
        """Makes the results without values real that the call is given, and then the call on the same rows."""

        def made(why: Optional[Refused]) -> Any:
            recovery, tape = self._recovery, self._tape
            if self._given is None or tape.why_not or tape.deferred is None or strays(tape, recovery.tidy):
                raise Refused("the call must not be repeated")
            if way == "spill":
                recovery.open_spill()
            recovery.guarded(lambda: recovery.extend(tape, tape.deferred))
            recovery.guarded(lambda: tape.deferred.make_real(way))
            self._given = mapped(recovery.current, self._given)
            self._taped, self._own = recorded(*self._given), False
            return self.spilled(why) if way == "spill" else self.whole(why)

        return made

    def _repeated(self, why: Optional[Refused], way: str, context: Callable[[], Any]) -> Any:
        if not self._may_repeat():
            raise Refused("the call must not be repeated")
        recovery, record = self._recovery, self._record
        clean(self._failure)
        recovery.spill.keep_ballast()
        state, begin, spoken = random_state(), sequence(), talked()
        failed: Optional[BaseException] = None
        record.before(self._entry.versions.count(-1))  # type: ignore[union-attr]
        try:
            with recovery.inside(self._taped), context():
                result = self._again()
        except Refused:
            raise
        except Exception as e:
            if interrupts(e):
                raise
            failed = e
        if recovery.heard(self._tape, record, spoken):
            self._given = None
        if failed is None:
            recovery.sizes.refused()
            if way == "host":
                recovery.hosts(record)
            if self._tape.step.preemptive:
                recovery.sizes.whole(recovery.report, why)
            else:
                recovery.report.survived(self._failure, Survival(way, why))
            self._entry.nth, self._entry.snapshot = record.calls, record.after()
            self._entry.found = record.found
            self._entry.holds(record.fixed)
            return self._goes_on(result, begin)
        self._tape.spans.append((begin, sequence()))
        recovery.spill.release_ballast(failed)
        clean(failed)
        set_random_state(state)
        if not is_out_of_memory(failed) or not record.put_back():
            self._given = None
        raise Refused("the call does not fit as a whole")

    def _goes_on(self, result: Any, begin: int) -> Any:
        """Puts the call on the tape, now that it has been made. Unless results of earlier calls have no values, the
        step goes on as if nothing had failed."""
        self._entry.between = begin, sequence()
        if not self._tape.lacks_values():
            self._tape.step.repeated()
            self._tape.deferred = None
        self._tape.add(self._entry, result)
        return result
