"""Records the calls that a training run makes, and responds when one of them runs out of memory.

There is one recorder per process. It works on one thread at a time, as :mod:`headroom_train.tape.owner`
says; the calls of other threads pass through. :meth:`Recorder.call` sees the outermost module calls, and
:class:`Functions` the functions that are called on their results.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Callable, Optional

import torch

from ..failure import Refused, interrupts, is_out_of_memory
from ..hooks.genuine import apart
from ..ranks import ddp
from ..replay.sizes import Sizes
from ..tape.given import Given, changes, labels
from ..tape.graph import sequence
from ..tape.idle import Idle, shapes_of
from ..tape.recorded_module import RecordedModule
from ..tape.tape import Entry, Tape, place_of, random_state, recorded, set_random_state, versions_of
from ..tape.trees import mapped
from ..world import several, talked
from .backward import Backward
from .calls import FailedCall
from .evaluate import evaluate as _evaluate
from .functions import Functions, numbers
from .left import Left
from .recovery import TOGETHER, Recovery


class Recorder(Recovery):
    """Records one process's calls, as the module's docstring says."""

    evaluate = _evaluate

    def __init__(self, report: Any) -> None:
        super().__init__(report)
        self.evaluation = Sizes()  # of calls without gradients
        self.check: Any = None  # for headroom check: the object that checks the first step
        self.idle = Idle()
        self.backward = Backward(self)
        self.functions = Functions(self, self.backward)

    def claims(self, record: RecordedModule, trains: bool) -> bool:
        """Whether this thread may record a call that trains a module, or watch one without gradients. If not, another
        thread is in the midst of a step."""
        allowed, owner = self.owner.claim(trains), self.owner.now()
        if allowed and trains:
            thread = self.mine()
            if not thread.in_step():
                thread.training.clear()
            thread.training.add(record.number)
        elif trains and owner is not None and record.number in owner.training:
            self.only_observes(f"two threads train one {type(record.module()).__name__} at once")
        elif trains:
            self.report.remark(
                "two threads train at once; if memory runs out, only the one that was in its step first goes on",
                "warning",
            )
        return allowed

    @staticmethod
    def passes(module: torch.nn.Module) -> bool:
        """Whether a module's call is not to be recorded, but what it calls."""
        return ddp.around() is not None and ddp.is_redirected(module)

    def only_observes(self, why: str) -> None:
        """From now on, nothing is recorded. Of several ranks, none can make a call again without the others: memory of
        the host is made available before anything fails."""
        if several() and not self.spill.opened() and self.spill.why_not is not None:
            why = f"{why}; {self.spill.why_not}"
        self.observe = self.report.observes = why

    def step_begins(self) -> bool:
        """Called before an optimizer's step: the tape ends here. Returns whether the step is to be
        guarded against failures."""
        if self.mine().stepping:
            raise Refused("the optimizer's step is inside the function: call it after the function returns")
        self.settle()
        self._close()
        self.spill.look()
        self.report.phases.backward_ends()
        return not self.idle.now

    @property
    def short(self) -> bool:
        """Whether memory has run out in this process."""
        return self.sizes.failure is not None or self.evaluation.failure is not None

    def step_ends(self, optimizer: Optional[torch.optim.Optimizer] = None) -> None:
        """Called after an optimizer's step. A step with a closure ends here, too, although it
        begins without :meth:`step_begins`."""
        self._close()
        if self.short:
            self.idle.failed()
        self.idle.step()
        self.spill.step(self.report.steps, id(optimizer))

    def updated(self) -> None:
        """Called when a step of a script that has no optimizer has ended. Recording never rests then, since nothing
        would tell when such a step ends."""
        self._close()
        self.spill.step(self.report.steps)

    def _close(self) -> None:
        thread = self.mine()
        if thread.tape is not None:
            thread.tape.close()
            thread.tape = None

    # Modules.

    def call(self, record: RecordedModule, module: torch.nn.Module, call: Callable, args: tuple, kwargs: dict) -> Any:
        """Makes and records a module's call. If recording is impossible, for example because an argument contains
        itself, the module is left alone from then on."""
        own = args, kwargs
        try:
            taped, args, kwargs = self._usable(args, kwargs)
        except Exception as e:
            if is_out_of_memory(e) or interrupts(e):  # a value that does not exist was used
                raise
            record.unreadable(e)
        if not record.why_not:
            try:
                with apart():
                    tape = self._tape_for(taped)
                    tape.shorten(taped)
                    entry = Entry(call, module, tape.encode(args), tape.encode(kwargs))
                    record.renew()
                    entry.versions = versions_of(record.params)
                    self._reducing(tape, record)
                    large = tape.step.failed or self.sizes.too_large(record, args, kwargs)
                    if not large:
                        record.before(entry.versions.count(-1), tape)
                        given = Given(args, kwargs)
            except Exception as e:
                if interrupts(e):
                    raise
                record.unreadable(e)
        if record.why_not:
            return self.unrecorded(record.why_not, call, args, kwargs)
        with tape.used():
            if not large:
                return self._recorded(tape, record, entry, taped, given, args, kwargs)
            tape.step.preemptive = tape.step.preemptive or not tape.step.failed
            failure: Any = tape.step.failure or self.sizes.failure
            failed = FailedCall(self, tape, record, entry, failure, (args, kwargs), taped, args is own[0])
            return self.recover(failure, failed.ways())

    @staticmethod
    def _reducing(tape: Tape, record: RecordedModule) -> None:
        """Notes which DistributedDataParallel, if any, has called a module."""
        around = ddp.around()
        if around is not None:
            tape.reducers = tape.reducers or ddp.Reducers()
            why = tape.reducers.note(around)
            if why is not None:
                tape.refuse(why)
        if record.talks:
            tape.refuse(f"a call to {type(record.module()).__name__} communicates with other ranks")

    def _usable(self, args: tuple, kwargs: dict) -> tuple[list, tuple, dict]:
        """The recorded tensors among a call's arguments, and the arguments, in which real tensors take the places of
        deferred ones where there are any."""
        taped = recorded(args, kwargs)
        self.left_behind([place_of(t) for t in taped])  # type: ignore[misc]
        if not any(place_of(t).deferred for t in taped):  # type: ignore[union-attr]
            return taped, args, kwargs
        args, kwargs = mapped(self.current, args), mapped(self.current, kwargs)
        taped = recorded(args, kwargs)
        deferred = [p for p in map(place_of, taped) if p is not None and p.deferred]
        if any(p.tape is not deferred[0].tape for p in deferred):
            self.refused(deferred[0].tape.step.failure, Refused(TOGETHER))
        return taped, args, kwargs

    def _recorded(
        self,
        tape: Tape,
        record: RecordedModule,
        entry: Entry,
        taped: Sequence[torch.Tensor],
        before: Given,
        args: tuple,
        kwargs: dict,
    ) -> Any:
        call, module = entry.call, entry.module
        entry.nth = record.calls
        begin, versions, spoken = sequence(), numbers(taped), talked()
        entry.random = random_state() if tape.entries else tape.random
        failed: Optional[BaseException] = None
        try:
            with self.inside(taped), self._placed(tape, record):
                result = call(*args, **kwargs)
        except BaseException as e:
            if not is_out_of_memory(e):
                raise
            failed = e
        if failed is None:
            try:
                with apart():
                    entry.between = (begin, sequence())
                    entry.snapshot, entry.found = record.after(), record.found
                    entry.holds(record.fixed, values=self.sizes.asks_for_pieces())
                    if before.changed():  # the modules inside are recorded instead
                        record.why_not = changes(entry)
                    if record.why_not:
                        tape.refuse(record.why_not)
                    self.heard(tape, record, spoken)
                    tape.add(entry, result)
                    if entry.labelled:
                        record.why_not = labels(entry)
                        tape.refuse(record.why_not)
                    record.known.add(shapes_of(args, kwargs))
            except Exception as e:  # the call itself has succeeded, and its result is the script's
                if interrupts(e):
                    raise
                record.unreadable(e)
                tape.refuse(record.why_not)
            return result
        tape.spans.append((begin, sequence()))
        self.sizes.failed(record, args, kwargs, failed)
        left = Left(record.may_change(), module, args, kwargs)  # type: ignore[arg-type]
        set_random_state(entry.random)
        given: Optional[tuple[tuple, dict]] = (args, kwargs)
        if not before.put_back():
            given = None
            tape.refuse(changes(entry))
        if not record.put_back():
            given = None
            had = f"{type(module).__name__} had changed a buffer, an attribute or a frozen parameter when it failed"
            tape.refuse(record.why_not or had)
        if self.heard(tape, record, spoken):
            given = None
        changed = tape.altered(entry)
        if changed is not None:
            tape.refuse(changed)
        if changed is not None or versions != numbers(taped):
            given = None
        try:
            return self.recover(failed, FailedCall(self, tape, record, entry, failed, given, taped).ways())
        except BaseException:
            left.put_back()
            raise

    def leave(self, tape: Tape) -> None:
        """What the script calls next on this thread belongs to a new step."""
        thread = self.mine()
        thread.tape = None if thread.tape is tape else thread.tape

    def _tape_for(self, taped: Sequence[torch.Tensor]) -> Tape:
        for t in taped:
            if place_of(t).deferred:  # type: ignore[union-attr]
                return place_of(t).tape  # type: ignore[union-attr]
        thread = self.mine()
        if thread.tape is not None and (thread.tape.step.over or not thread.tape.alive()):
            self._close()
        if thread.tape is None:
            self.updates.forward()
            self.report.over()
            self.spill.look()
            thread.tape = Tape()
            thread.tape.thread = weakref.ref(thread)
        return thread.tape

    def _placed(self, tape: Tape, record: RecordedModule) -> Any:
        """A context for a module's call, which says what may go to the host: something of what is saved for backward;
        everything; or nothing at first, as in :meth:`withheld`."""
        saved = self.spill.saved.around(record) or self.sizes.hosting(record)
        return saved or (nullcontext() if tape.why_not else self.withheld([record]))

    def unwatched(self, call: Callable, args: tuple, kwargs: dict) -> Any:
        """Makes a call that is not recorded because there is plenty of memory."""
        try:
            return call(*args, **kwargs)
        except BaseException as e:
            if is_out_of_memory(e):
                self.idle.failed()
                self.report.refused(
                    e, Refused("nothing was recorded, because more than half of the memory had been free until then")
                )
            raise

    def unrecorded(self, why: str, call: Callable, args: tuple, kwargs: dict) -> Any:
        """Makes a call that cannot be recorded, for the given reason."""
        try:
            return call(*args, **kwargs)
        except BaseException as e:
            if is_out_of_memory(e):
                self.report.refused(e, Refused(why))
            raise
