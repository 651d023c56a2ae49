"""What all ways of going on after a failure have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Callable, NoReturn, Optional

import torch

from ..failure import (
    OutOfMemoryError,
    Refused,
    bare,
    clean,
    debugged,
    interrupts,
    is_out_of_memory,
    patiently,
    release_frames,
    starved,
)
from ..hooks.genuine import replaced, set_aside
from ..hooks.updates import Updates
from ..proof.groups import NUMBER
from ..proof.plan import Plan
from ..proof.rerun import modules_of, weigh
from ..proof.rows import Other, Slot, perform, said
from ..ranks.collectives import replaying
from ..replay.deferred import LEFT, Deferred, gone, make, postpone
from ..replay.sizes import Sizes
from ..sandbox.norms import refuse_batchwise
from ..sandbox.sandbox import rehearsal
from ..spill.spill import Spill
from ..tape.found import replay
from ..tape.graph import sequence
from ..tape.owner import Owner
from ..tape.recorded_module import Limits, RecordedModule, record_of
from ..tape.snapshot import Unavailable
from ..tape.tape import Entry, Place, Tape, dispatched, place_of, plain_class
from ..tape.trained import Trained
from ..tape.trees import mapped, tensors_in, unflatten
from ..world import talked

# One way of going on after a failure. It is called with the reason why the ways before it did not hold, None for the
# first, and returns what the script gets. It raises Refused if it does not hold, and has then changed nothing.
Way = Callable[[Optional[Refused]], Any]


SOON = 10  # calls of a module that show whether the script writes to its arguments afterwards
TOGETHER = "results of two steps whose values are not in memory are used together"


def note_backward(tape: Tape) -> None:
    """Notes what a backward pass shows of the modules that were called before it: that the script writes to what it has
    given one, or trains one in evaluation mode."""
    for entry in tape.entries:
        record = None if entry.module is None else record_of(entry.module)
        if record is not None and (record.calls <= SOON or record.rewritten is None):
            found = tape.rewritten(entry)
            record.rewritten = record.rewritten if found is None else found or bool(record.rewritten)


class Recovery:
    """What one process knows about failures, and what it does about them. Used on the thread whose calls are
    recorded."""

    def __init__(self, report: Any) -> None:
        self.report = report
        self.owner = Owner()
        self.mine = self.owner.mine
        self.spill = Spill(lambda text: report.remark(text, "warning", **self.spill.figures()))
        self.sizes = Sizes()
        self.sizes.spill = self.spill
        self.tidy: set[tuple] = set()  # kinds of steps whose calls have left nothing behind: see strays
        self.updates = Updates()
        self.trained = Trained()
        # The reason why nothing is replayed; None if failures are recovered from.
        self.observe: Optional[str] = None

    def here(self) -> bool:
        """Whether a call made now may be recorded."""
        if torch.compiler.is_compiling() or self.observe is not None:
            return False
        if torch._C._current_graph_task_id() != -1:  # a backward pass is recomputing activations
            return False
        if torch._C._get_tracing_state() is not None:  # torch.jit.trace
            return False
        return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())

    def recover(
        self,
        failure: Optional[BaseException],
        ways: Sequence[Way],
        training: bool = True,
        why: Optional[Refused] = None,
    ) -> Any:
        """Goes on by the first of the ways that holds, and returns what that returns. If none does, reports the reason
        that the first one gave, or ``why`` if an earlier one has given that, and raises the failure. No further way is
        tried once one has found that nothing of the step may be repeated."""
        self.spill.release_ballast(failure)
        if self.spill.opened():  # trials may use it, and a way that needs it
            if starved():  # and trials use kernels that have never run
                clean(failure)
            self.spill.keep_ballast()
        for way in ways if why is None or not why.final else ():
            try:
                return way(why)
            except Refused as refused:
                debugged(refused)
                why = why or bare(refused)  # its own traceback would keep this frame, and what the frame holds
                if refused.final:
                    break
        why = why or Refused("there is no other way to make the call")
        if self.spill.why_not is not None:
            why = why.more(f"{why}; {self.spill.why_not}")
        self.refused(failure, why, training)

    def settle(self) -> None:
        """Called before weights change: what the script still holds of steps that ran out of memory, and no replay has
        kept, gets its values. What cannot be computed is refused when the script asks for it."""
        known = self.mine().deferred
        for tape in [*known]:
            known.discard(tape)
            deferred = tape.deferred
            if deferred is None:
                continue
            for slot in deferred.held():
                with suppress(Refused):
                    self.guarded(
                        lambda deferred=deferred, slot=slot: (
                            deferred.plan.slots[slot].dim is not None and deferred.has(slot) or deferred.value(slot)
                        )
                    )
            deferred.settle()

    def passed(self, tape: Tape, params: Sequence[torch.Tensor]) -> None:
        """Called after the script's backward pass, which may have given gradients to these parameters. Without an
        optimizer nothing tells when weights are about to change: they may do so now."""
        if not self.trained:
            self.report.phases.backward_ends()
            self.settle()
            self.updates.backward(params)

    def open_spill(self) -> None:
        """Raises :class:`Refused` if memory of the host cannot be used for what does not fit."""
        if not self.spill.opened():
            raise Refused(self.spill.why_not or "no GPU is in use")

    def hosts(self, record: RecordedModule) -> None:
        """From now on, what a module's calls save for the backward pass goes to the host."""
        if self.spill.open:
            self.spill.saved.share(record).everything()
        else:
            record.hosted = self.sizes.cost()

    def withheld(self, limits: Sequence[Limits]) -> Any:
        """A context for a call that fails if the GPU's memory is not enough for it, although there is memory of the
        host: the call can then be run in pieces, as far as is known."""
        if not self.spill.open or any(known.uncut or known.hosted is not None for known in limits):
            return nullcontext()
        if not all(known.repeatable() for known in limits if isinstance(known, RecordedModule)):
            return nullcontext()  # it would fail for good
        return self.spill.withheld()

    def guarded(self, work: Callable) -> Any:
        """Runs work that is headroom's rather than the script's: nothing in it is recorded, and any exception
        becomes a refusal."""
        thread = self.mine()
        was, thread.busy = thread.busy, True
        try:
            if not self.owner.alone() and replaced():
                raise Refused("another thread, too, calls the functions of PyTorch that the script has replaced")
            with set_aside(), dispatched(), replaying(), replay():
                return work()
        except Refused as why:
            if why.__cause__ is not None:
                debugged()
                release_frames(why.__cause__)
                why.__cause__ = None
            raise
        except Exception as e:
            if interrupts(e):
                raise
            self.spill.release_ballast(e)
            debugged()
            release_frames(e)
            raise Refused(
                "there is not enough memory for values that the step needs at once"
                if is_out_of_memory(e) or isinstance(e, MemoryError)
                else f"made again in another way, it raised {said(e)}"
            ) from None
        finally:
            thread.busy = was

    def refused(self, failure: Optional[BaseException], why: BaseException, training: bool = True) -> NoReturn:
        self.sizes.refused()
        self.mine().tape = None  # whatever the user's own handler runs next is a new step
        with suppress(MemoryError):  # the script gets its own failure, whether there is memory to report it or not
            self.report.refused(failure, why if isinstance(why, Refused) else Refused(str(why)), training)
        raise failure from None  # type: ignore[misc]  # something has failed

    def may(self, tape: Tape) -> None:
        """Raises Refused if this tape must not be replayed."""
        if tape.why_not:
            raise Refused(tape.why_not)

    @contextmanager
    def inside(self, taped: Sequence[torch.Tensor]) -> Iterator[None]:
        """A context for a module's call on recorded tensors: nothing in it is recorded."""
        thread = self.mine()
        thread.busy = True
        try:
            with plain_class(taped):
                yield
        finally:
            thread.busy = False

    def heard(self, tape: Tape, record: RecordedModule, spoken: int) -> bool:
        """Whether a module's call has communicated with other ranks since there had been ``spoken``, the number that
        :func:`talked` returned. If so, its tape cannot be replayed."""
        heard = talked() != spoken
        record.talks = record.talks or heard
        if record.talks:
            tape.refuse(f"a call to {type(record.module()).__name__} communicates with other ranks")
        return heard

    def left_behind(self, places: Sequence[Place]) -> None:
        for place in places:
            if place.slot == LEFT:
                self.refused(place.failure, Refused(place.why))
            if place.deferred and not place.tape.step.done and place.tape.thread() is not self.mine():
                self.refused(
                    place.tape.step.failure,
                    Refused("a result whose values are not in memory is used in another thread"),
                )

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a deferred tensor."""
        tape = place_of(tensor).tape  # type: ignore[union-attr]
        try:
            return self.guarded(lambda: tape.deferred.value(place_of(tensor).slot))  # type: ignore[union-attr]
        except Refused as why:
            self.refused(tape.step.failure, why)

    def current(self, t: Any) -> Any:
        """What takes the place of ``t`` in a call: the real tensor if ``t`` is a deferred one that has been made real,
        its values if it belongs to a finished step and requires no gradient, else ``t`` itself."""
        place = place_of(t) if isinstance(t, torch.Tensor) else None
        if place is None or not place.deferred or place.tape.deferred is None:
            return t
        real = place.tape.deferred.whole(place.slot)
        if real is not None:
            return real
        return self.value_of(t) if place.tape.step.done and not t.requires_grad else t

    def deferred_of(self, tape: Tape, first: Entry) -> Deferred:
        """Returns the tape's :class:`Deferred`, and makes it if there is none. If the tape has no entries yet,
        ``first`` is the entry that will be its first."""
        if tape.deferred is None:
            tape.deferred = Deferred(
                tape,
                self.guarded(lambda: Plan(tape, tape.entries[0] if tape.entries else first)),
                self.sizes,
                self.report,
            )
        return tape.deferred

    @staticmethod
    def tried(tape: Tape, modules: Sequence, trial: Callable) -> Any:
        """Runs a trial on a few rows. If there is not enough memory, releases the values of the
        failed try and runs the trial once more."""

        def rehearsed() -> Any:
            with rehearsal(modules):
                return trial()

        return patiently(rehearsed, "there is not enough memory for a trial on a few rows", lambda: postpone(tape))

    def extend(self, tape: Tape, deferred: Deferred) -> None:
        """Makes the plan cover what the tape has so far, as far as that is needed for what the script holds."""
        wanted = deferred.missing()
        if len(deferred.plan.cuts) < len(tape.entries):
            self.tried(tape, modules_of(tape), lambda: deferred.plan.extend(wanted))

    def plan_all(self, tape: Tape, deferred: Deferred) -> None:
        """Makes a new plan that covers all that the tape has so far."""

        def planned() -> None:
            plan = Plan(tape, tape.entries[0])
            plan.extend()
            deferred.plan = plan

        self.tried(tape, modules_of(tape), planned)

    def result(self, tape: Tape, deferred: Deferred, entry: Entry) -> tuple[list, Any]:
        """The leaves and the tree of a call's result. There is no trial if the same call was tried
        before."""
        plan = deferred.plan
        if len(plan.cuts) == len(tape.entries) and plan.known(entry):
            return plan.result(entry)
        begin = sequence()
        modules = (
            {id(m): m for m in [*modules_of(tape), entry.module] if m is not None}
            if entry.module is not None or plan.behind(entry)
            else {}
        )

        def tried() -> tuple[list, Any]:
            plan.extend()
            return plan.result(entry)

        found = self.tried(tape, list(modules.values()), tried)
        tape.spans.append((begin, sequence()))
        return found

    def postponed(self, tape: Tape, deferred: Deferred, entry: Entry, leaves: Sequence, tree: Any) -> Any:
        result = unflatten([self._made(entry, tape.step.failure, leaf) for leaf in leaves], tree)
        self.mine().deferred.add(tape)
        postpone(tape)
        tape.add(entry, result, deferred=True)
        deferred.plan.accept()
        if not self.trained:
            weigh(tape, modules_of(tape))
        if entry.module is not None:
            for change in deferred.plan.left:
                change.replace(gone(tape))
        return result

    def twice(
        self,
        tape: Tape,
        entry: Entry,
        args: tuple,
        kwargs: dict,
        keep: Callable[[Tape, Entry], Any] = lambda tape, entry: None,
    ) -> tuple[Any, int, int]:
        """Makes a module's call in pieces, which are computed twice. Returns the result, the number of rows and the
        number of pieces. The call is the only one of a tape of its own, for which all arguments come from elsewhere;
        ``keep`` puts copies in their places where the script may write to them before backward."""
        module: Any = entry.module
        record = record_of(module)

        def work() -> tuple[Any, int, int]:
            refuse_batchwise([module])
            if record is not None and record.talks:
                raise Refused(f"a call to {type(module).__name__} communicates with other ranks")
            if record is None or record.changes_buffers():
                raise Refused(f"{type(module).__name__} changes its buffers")
            own = Tape()
            own.thread, own.step.preemptive, own.reducers = tape.thread, tape.step.preemptive, tape.reducers
            own.step.fails(tape.step.failure or OutOfMemoryError())
            call = Entry(entry.call, module, own.encode(args), own.encode(kwargs))
            call.grad, call.autocast, call.modes = entry.grad, entry.autocast, entry.modes
            call.versions, call.snapshot, call.found = entry.versions, entry.snapshot, entry.found
            call.fixed, call.buffers, call.values = entry.fixed, entry.buffers, entry.values
            keep(own, call)
            deferred = own.deferred = Deferred(own, Plan(own, call), self.sizes, self.report)
            leaves, tree = self.result(own, deferred, call)
            plan = deferred.plan
            if plan.keeps or plan.left or any(isinstance(v, (int, float, Other)) for v in leaves):
                raise Refused("the call leaves or returns more than what belongs to its rows")
            results = self.postponed(own, deferred, call, leaves, tree)
            count = deferred.make_real("two-pass")
            made = mapped(self.current, results)
            if any(place.deferred for place in map(place_of, tensors_in(made)) if place is not None):
                raise Refused(NUMBER)
            return made, plan.batch, count

        found = self.guarded(work)
        record.uncut, record.apart = False, True  # type: ignore[union-attr]
        return found

    def one_by_one(self, tape: Tape) -> tuple[Callable[[Entry, Any, Any], Any], list[tuple[int, int]]]:
        """What makes the calls of a tape, those of modules by :meth:`twice`; and a list to which each such call adds
        the number of its rows, and the number of pieces."""
        counts: list[tuple[int, int]] = []

        def call(entry: Entry, args: Any, kwargs: Any) -> Any:
            if entry.module is None:
                return perform(entry, args, kwargs)
            result, batch, pieces = self.twice(tape, entry, args, kwargs)
            counts.append((batch, pieces))
            return result

        return call, counts

    def _made(self, entry: Entry, failure: Optional[BaseException], leaf: Any) -> Any:
        if isinstance(leaf, Slot):
            return patiently(lambda: make(leaf), "there is not enough memory for a single element")
        return self.unavailable(entry, failure, leaf) if isinstance(leaf, Other) else leaf

    def unavailable(self, entry: Entry, failure: Optional[BaseException], leaf: Other) -> Unavailable:
        why = (
            f"the script uses a {leaf.name} object that a call to {entry.call_name()} returns, and such an "
            "object cannot be joined from pieces"
        )
        return Unavailable(lambda: self.refused(failure, Refused(why)))
