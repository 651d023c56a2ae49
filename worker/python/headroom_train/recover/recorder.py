"""Records the calls that a training run makes, and responds when one of them runs out of memory.

There is one recorder per process. It works on one thread at a time, as :mod:`headroom_train.tape.owner`
says; the calls of other threads pass through. :meth:`Recorder.call` sees the outermost module calls, and
:meth:`Recorder.function` the functions that are called on their results.
"""

from __future__ import annotations

import os
import traceback
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache, wraps
from types import FrameType
from typing import Any, Callable, NoReturn, Optional

import torch

from ..callsite import relay
from ..failure import (
    Elsewhere,
    NoMemory,
    Refused,
    Survival,
    Writes,
    bare,
    clean,
    is_out_of_memory,
    patiently,
    release_frames,
    unframed,
)
from ..hooks.changes import Change
from ..hooks.genuine import apart, clone, in_place, is_backward, numel, replaced, set_aside
from ..proof.recheck import note, unsaved
from ..proof.rerun import altered, modules_of, versions_of
from ..proof.rows import Other, Plan, Slot
from ..replay.deferred import LEFT, Deferred, disown, foreign, gone, make, postpone
from ..replay.pieces import approximable, on_host, refuse_unless_approximable
from ..replay.sizes import Sizes
from ..sandbox.norms import Batchwise, allowed, batchwise, refuse_batchwise
from ..sandbox.sandbox import rehearsal
from ..tape.functions import ASKS, GETTERS, METADATA, OPAQUE, PRINTS, changes, gives_tensor, recorded
from ..tape.graph import KEEP, leaves_behind, sequence
from ..tape.idle import Idle, shapes_of
from ..tape.owner import Owner
from ..tape.recorded_module import RecordedModule, number_of, record_of
from ..tape.snapshot import Snapshot, Unavailable
from ..tape.tape import Entry, Place, Recorded, Tape, place_of, plain_class, random_state, set_random_state
from ..tape.trees import flatten, mapped, tensors_in, unflatten
from .backward import bypass, finish, reduced, state_of
from .evaluate import Watch, in_pieces


def changes_deferred(name: str, args: tuple) -> bool:
    """Whether a function changes a tensor whose values are not in memory."""
    place = place_of(args[0]) if changes(name) and args and isinstance(args[0], torch.Tensor) else None
    return place is not None and place.deferred


def needs_gradient(t: torch.Tensor) -> bool:
    """Whether what a function makes of a deferred tensor may still be differentiated: its graph has not been used by a
    backward pass."""
    place: Any = place_of(t)
    return torch.is_grad_enabled() and (
        not place.deferred or place.slot == LEFT or place.tape.deferred.differentiable(place.slot)
    )


def called(func: Callable, args: tuple, kwargs: dict) -> Any:
    """Calls a function."""
    return func(*args, **kwargs)


def numbers(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The versions of tensors, which show whether the tensors have been written to."""
    with apart():
        return [t._version for t in tensors]


def explained() -> None:
    """Appends the traceback of the exception that is being handled to the file that HEADROOM_DEBUG names, if any."""
    if os.environ.get("HEADROOM_DEBUG"):
        with open(os.environ["HEADROOM_DEBUG"], "a") as f:
            traceback.print_exc(file=f)


class Recorder:
    """Records one process's calls, as the module's docstring says."""

    def __init__(self, report: Any) -> None:
        self.report = report
        self.owner = Owner()
        self.mine = self.owner.mine
        self.sizes = Sizes()
        self.evaluation = Sizes()  # of calls without gradients
        self.check: Any = None  # for headroom check: the object that checks the first step
        self.observe: Optional[str] = None  # the reason why nothing is replayed; None if failures are recovered from
        # Kinds of tapes whose graphs were walked → why a loss bypasses the modules' outputs.
        self.kinds: dict[tuple, Optional[str]] = {}
        self.idle = Idle()

    def here(self) -> bool:
        """Whether a call made now may be recorded."""
        if torch.compiler.is_compiling() or self.observe is not None:
            return False
        if torch._C._current_graph_task_id() != -1:  # a backward pass is recomputing activations
            return False
        if torch._C._get_tracing_state() is not None:  # torch.jit.trace
            return False
        return not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())

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

    def only_observes(self, why: str) -> None:
        """From now on, nothing is recorded."""
        self.observe = self.report.observes = why

    def step_begins(self) -> bool:
        """Called before an optimizer's step: the tape ends here. Returns whether the step is to be
        guarded against failures."""
        if self.mine().stepping:
            raise Refused("the optimizer's step is inside the function: call it after the function returns")
        self._settle()
        self._close()
        self.report.phases.backward_ends()
        return not self.idle.now

    def step_ends(self) -> None:
        """Called after an optimizer's step. A step with a closure ends here, too, although it
        begins without :meth:`step_begins`."""
        self._close()
        if self.sizes.failure is not None or self.evaluation.failure is not None:
            self.idle.failed()
        self.idle.step()

    def _settle(self) -> None:
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
                    self._guarded(
                        lambda deferred=deferred, slot=slot: (
                            deferred.plan.slots[slot].dim is not None and deferred.has(slot) or deferred.value(slot)
                        )
                    )
            deferred.settle()

    def _close(self) -> None:
        thread = self.mine()
        if thread.tape is not None:
            thread.tape.close()
            thread.tape = None

    def value_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The values of a deferred tensor."""
        tape = place_of(tensor).tape  # type: ignore[union-attr]
        try:
            return self._guarded(lambda: tape.deferred.value(place_of(tensor).slot))  # type: ignore[union-attr]
        except Refused as why:
            self._refused(tape.failure, why)

    # Modules.

    def call(self, record: RecordedModule, module: torch.nn.Module, call: Callable, args: tuple, kwargs: dict) -> Any:
        """Makes and records a module's call. If recording is impossible, for example because an argument contains
        itself, the module is left alone from then on."""
        try:
            taped, args, kwargs = self._usable(args, kwargs)
        except Exception as e:
            if is_out_of_memory(e):  # a value that does not exist was used
                raise
            record.unreadable(e)
        if not record.why_not:
            try:
                with apart():
                    tape = self._tape_for(taped)
                    tape.shorten(taped)
                    entry = Entry(call, module, tape.encode(args), tape.encode(kwargs))
                    entry.versions = versions_of(record.params)
                    large = tape.failure is not None or self.sizes.too_large(record, args, kwargs)
                    if not large:
                        record.before(entry.versions.count(-1))
            except Exception as e:
                record.unreadable(e)
        if record.why_not:
            return self.unrecorded(record.why_not, call, args, kwargs)
        if large:
            tape.preemptive = tape.preemptive or tape.failure is None
            failure: Any = tape.failure or self.sizes.failure
            return self._deferred_call(tape, record, entry, failure, lambda: call(*args, **kwargs), taped)
        return self._recorded(tape, record, entry, taped, args, kwargs)

    def _usable(self, args: tuple, kwargs: dict) -> tuple[list, tuple, dict]:
        """The recorded tensors among a call's arguments, and the arguments. Deferred tensors of finished steps are
        replaced by their values."""
        taped = recorded(args, kwargs)
        self._left_behind([place_of(t) for t in taped])  # type: ignore[misc]
        if not any(place_of(t).deferred and place_of(t).tape.done for t in taped):  # type: ignore[union-attr]
            return taped, args, kwargs
        args, kwargs = mapped(self._old, args), mapped(self._old, kwargs)
        return recorded(args, kwargs), args, kwargs

    def _recorded(
        self, tape: Tape, record: RecordedModule, entry: Entry, taped: Sequence[torch.Tensor], args: tuple, kwargs: dict
    ) -> Any:
        call, module = entry.call, entry.module
        entry.nth = record.calls
        begin, versions = sequence(), numbers(taped)
        entry.random = random_state() if tape.entries else tape.random
        failed: Optional[BaseException] = None
        try:
            with self._inside(taped), self.sizes.hosting(record) or nullcontext():
                result = call(*args, **kwargs)
        except BaseException as e:
            if not is_out_of_memory(e):
                raise
            failed = e
        if failed is None:
            try:
                with apart():
                    entry.between = (begin, sequence())
                    entry.snapshot = record.after()
                    tape.add(entry, result)
                    record.known.add(shapes_of(args, kwargs))
            except Exception as e:  # the call itself has succeeded, and its result is the script's
                record.unreadable(e)
                tape.refuse(record.why_not)
            return result
        tape.spans.append((begin, sequence()))
        self.sizes.failed(record, args, kwargs, failed)
        set_random_state(entry.random)
        again: Optional[Callable] = lambda: call(*args, **kwargs)  # noqa: E731
        if not record.put_back():
            again = None
            tape.refuse(
                f"{type(module).__name__} had changed a buffer, an attribute or a frozen parameter when it failed"
            )
        changed = altered(tape, entry)
        if changed is not None:
            tape.refuse(changed)
        if changed is not None or versions != numbers(taped):
            again = None
        return self._deferred_call(tape, record, entry, failed, again, taped)

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

    def evaluate(
        self, record: RecordedModule, module: torch.nn.Module, call: Callable, args: tuple, kwargs: dict
    ) -> Any:
        """Calls a module without gradients. Repeats the call in pieces if it runs out of memory."""
        sizes, limits = self.evaluation, record.evaluation
        try:
            taped = recorded(args, kwargs)
            if not taped:
                with apart():
                    watch, state = Watch(record, tensors_in((args, kwargs))), random_state()
                    failed: Optional[BaseException] = sizes.failure if sizes.too_large(limits, args, kwargs) else None
        except Exception as e:
            record.unreadable(e)
        if record.why_not:
            return self.unrecorded(record.why_not, call, args, kwargs)
        if taped:
            if any(place_of(t).deferred for t in taped):  # type: ignore[union-attr]
                return call(*args, **kwargs)
            with self._inside(taped):  # some modules are faster with plain tensors, and round otherwise
                return call(*args, **kwargs)
        preemptive = failed is not None
        if not preemptive:
            try:
                result = call(*args, **kwargs)
            except BaseException as e:
                if not is_out_of_memory(e):
                    raise
                failed = e
            if failed is None:
                try:
                    watch.passed()
                except Exception as e:
                    record.unreadable(e)
                return result
            release_frames(failed)
            set_random_state(state)
            sizes.failed(limits, args, kwargs, failed)
        try:
            changed = watch.why_not()
            if changed:
                raise Refused(f"{type(module).__name__} had changed {changed} when it failed")
            clean(failed)
            result, count, batch = self._guarded(lambda: self._evaluated(module, call, args, kwargs, failed))
        except Refused as refused:
            why = bare(refused)  # its traceback would keep this frame, and what the frame holds
        else:
            sizes.confirm(count)
            if not preemptive:
                self.report.survived(failed, Survival.pieces(batch, count))
            return result
        sizes.refused()
        if preemptive:
            return call(*args, **kwargs)
        if watch.why_not() is not None or isinstance(why, Writes):
            self._refused(failed, why, training=False)
        clean(failed)
        set_random_state(state)
        again: Optional[BaseException] = None
        try:
            result = call(*args, **kwargs)
        except Exception as e:
            again = e
        if again is not None:
            self._refused(failed, why, training=False)
        self.report.survived(failed, Survival("call", why))
        return result

    def _evaluated(
        self, module: torch.nn.Module, call: Callable, args: tuple, kwargs: dict, failure: Optional[BaseException]
    ) -> tuple[Any, int, int]:
        refuse_batchwise([module])
        tape = Tape()
        tape.failure = failure
        entry = Entry(call, module, tape.encode(args), tape.encode(kwargs))
        plan = Plan(tape, entry)
        leaves, tree = self._tried(tape, [module], lambda: plan.result(entry))
        entry.slots = [i if isinstance(leaf, Slot) else None for i, leaf in enumerate(leaves)]
        tape.entries.append(entry)
        plan.accept()
        if plan.left or plan.keeps:
            raise Refused("a call changes an attribute")
        leaves = [self._unavailable(entry, failure, leaf) if isinstance(leaf, Other) else leaf for leaf in leaves]
        return (*in_pieces(tape, plan, leaves, tree, self.evaluation), plan.batch)

    @contextmanager
    def _inside(self, taped: Sequence[torch.Tensor]) -> Iterator[None]:
        """A context for a module's call on recorded tensors: nothing in it is recorded."""
        thread = self.mine()
        thread.busy = True
        try:
            with plain_class(taped):
                yield
        finally:
            thread.busy = False

    def _left_behind(self, places: Sequence[Place]) -> None:
        for place in places:
            if place.slot == LEFT:
                self._refused(
                    place.failure, Refused("the script uses a tensor that a module computed but did not return")
                )
            if place.deferred and not place.tape.done and place.tape.thread() is not self.mine():
                self._refused(
                    place.tape.failure, Refused("a result whose values are not in memory is used in another thread")
                )

    def _valued(
        self,
        args: tuple,
        kwargs: dict,
        taped: Sequence[torch.Tensor],
        refused: str = "a module uses a stored tensor whose values are not in memory",
    ) -> tuple[tuple, dict]:
        """Returns the arguments of a function that is called with deferred tensors and not recorded. Deferred tensors
        of finished steps that require no gradient are replaced by their values. If any other tensor is deferred, raises
        its failure; ``refused`` is the reason that is reported."""
        self._left_behind([place_of(t) for t in taped])  # type: ignore[misc]
        args, kwargs = mapped(self._old, args), mapped(self._old, kwargs)
        for t in recorded(args, kwargs):
            if place_of(t).deferred:  # type: ignore[union-attr]
                self._refused(place_of(t).tape.failure, Refused(self.observe or refused))  # type: ignore[union-attr]
        return args, kwargs

    def _old(self, t: Any) -> Any:
        """The values of ``t`` if it is a deferred tensor of a finished step and requires no gradient; else ``t``
        itself."""
        place = place_of(t) if isinstance(t, torch.Tensor) else None
        return t if place is None or not place.deferred or not place.tape.done or t.requires_grad else self.value_of(t)

    def _tape_for(self, taped: Sequence[torch.Tensor]) -> Tape:
        for t in taped:
            if place_of(t).deferred:  # type: ignore[union-attr]
                return place_of(t).tape  # type: ignore[union-attr]
        thread = self.mine()
        if thread.tape is not None and (thread.tape.closed or thread.tape.done or not thread.tape.alive()):
            self._close()
        if thread.tape is None:
            thread.tape = Tape()
            thread.tape.thread = weakref.ref(thread)
        return thread.tape

    def _deferred_call(
        self,
        tape: Tape,
        record: RecordedModule,
        entry: Entry,
        failure: BaseException,
        again: Optional[Callable] = None,
        taped: Sequence = (),
    ) -> Any:
        """Returns the result of a module's call that ran out of memory, or is expected to. The
        tensors of the result are deferred: they are computed afterwards, in pieces. If pieces would be wrong, the call
        is repeated instead, and its result is returned."""
        release_frames(failure)
        tape.failure = failure
        module: Any = entry.module
        state = random_state()
        try:
            self._may(tape)
            self._guarded(lambda: note(tape))
            disown(tape, [*modules_of(tape), module])
            deferred = self._deferred(tape, entry)
            if record.changes_buffers() or batchwise([module]):
                # If a batch is run in pieces straight away, nothing exact has fitted before.
                tape.approximate = (tape.approximate or tape.preemptive and allowed()) and approximable([module])
            if (record.changes_buffers() or batchwise([module])) and not tape.approximate:
                self._guarded(lambda: self._sealed(tape, deferred, record, entry))
                refuse_batchwise([module])
                raise Refused(f"{type(module).__name__} changes its buffers")
            leaves, tree = self._guarded(lambda: self._result(tape, deferred, entry))
            if deferred.plan.keeps:
                entry.snapshot = entry.snapshot or Snapshot(module.modules(), deep=True)
            if deferred.plan.keeps or any(isinstance(leaf, (int, float)) for leaf in leaves):
                leaves = self._guarded(lambda: self._made_once(tape, entry, leaves, again, taped))
            return self._guarded(lambda: self._postponed(tape, deferred, entry, leaves, tree))
        except Refused as why:
            if isinstance(why, Writes):  # the call may have written before it failed
                again = None
            if entry.snapshot is not None:  # the call may have been repeated for what it leaves behind
                entry.snapshot.put_back()
            set_random_state(state)
            return self._once_more(tape, record, entry, failure, why, again, taped)

    def _made_once(self, tape: Tape, entry: Entry, leaves: Sequence, call: Optional[Callable], taped: Sequence) -> list:
        """Repeats, on the whole batch, a call that will be run in pieces. The script needs what the
        call leaves behind, such as a count or a number for a log, and the numbers among its
        results, which a few rows do not show. Nothing is saved for a backward pass. Returns the
        leaves of the call's result, with these numbers."""
        does = f"changes {tape.deferred.plan.keeps}" if tape.deferred.plan.keeps else "returns a number"
        refused = (
            f"a call to {entry.call_name()} {does}, and there is not enough memory to repeat the call for "
            "the whole batch"
        )
        if call is None or any(place_of(t).deferred for t in taped if place_of(t) is not None):  # type: ignore[union-attr]
            raise Refused(refused)
        state, begin = random_state(), sequence()

        def made() -> list:
            if entry.snapshot is not None:
                entry.snapshot.put_back()
            set_random_state(state)
            try:
                with self._inside(taped), unsaved(), in_place():
                    whole = flatten(call())[0]
            finally:
                tape.spans.append((begin, sequence()))
            if len(whole) != len(leaves):
                raise Refused(f"{entry.call_name()} returns a different number of results for another batch")
            return [w if isinstance(leaf, (int, float)) else leaf for leaf, w in zip(leaves, whole)]

        return patiently(made, refused)

    def _sealed(self, tape: Tape, deferred: Deferred, record: RecordedModule, entry: Entry) -> None:
        """Raises :class:`Writes` if a call must not be repeated on the whole batch, or if there is not enough memory to
        find out."""
        if not record.tried:
            try:
                self._result(tape, deferred, entry)
            except (Writes, Elsewhere):
                raise
            except NoMemory as why:
                raise Writes(str(why)) from None
            except Refused:
                pass
            record.tried = True

    def _postponed(self, tape: Tape, deferred: Deferred, entry: Entry, leaves: Sequence, tree: Any) -> Any:
        result = unflatten([self._made(entry, tape.failure, leaf) for leaf in leaves], tree)
        self.mine().deferred.add(tape)
        postpone(tape)
        tape.add(entry, result, deferred=True)
        deferred.plan.accept()
        if entry.module is not None:
            for change in deferred.plan.left:
                change.replace(gone(tape))
        return result

    @staticmethod
    def _tried(tape: Tape, modules: Sequence, trial: Callable) -> Any:
        """Runs a trial on a few rows. If there is not enough memory, releases the values of the
        failed try and runs the trial once more."""

        def rehearsed() -> Any:
            with rehearsal(modules):
                return trial()

        return patiently(rehearsed, "there is not enough memory for a trial on a few rows", lambda: postpone(tape))

    def _result(self, tape: Tape, deferred: Deferred, entry: Entry) -> tuple[list, Any]:
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

        found = self._tried(tape, list(modules.values()), tried)
        tape.spans.append((begin, sequence()))
        return found

    def _made(self, entry: Entry, failure: Optional[BaseException], leaf: Any) -> Any:
        if isinstance(leaf, Slot):
            return patiently(lambda: make(leaf), "there is not enough memory for a single element")
        return self._unavailable(entry, failure, leaf) if isinstance(leaf, Other) else leaf

    def _unavailable(self, entry: Entry, failure: Optional[BaseException], leaf: Other) -> Unavailable:
        why = (
            f"the script uses a {leaf.name} object that a call to {entry.call_name()} returns, and such an "
            "object cannot be joined from pieces"
        )
        return Unavailable(lambda: self._refused(failure, Refused(why)))

    def _once_more(
        self,
        tape: Tape,
        record: RecordedModule,
        entry: Entry,
        failure: BaseException,
        why: Refused,
        again: Optional[Callable],
        taped: Sequence,
    ) -> Any:
        """Repeats the call on the same rows, after cleaning up. This is the last exact method for
        calls that cannot be cut. On a GPU, the tensors that autograd saves are kept on the host if
        necessary."""
        if again is None or any(place_of(t).deferred for t in taped if place_of(t) is not None):  # type: ignore[union-attr]
            return self._approximately(tape, record, entry, failure, why, taped)
        tape.failure = tape.sampled = None
        clean(failure)
        record.before(entry.versions.count(-1))  # type: ignore[union-attr]  # if a batch goes in pieces straight away, this is its first real call
        entry.nth = record.calls
        state = random_state()
        hosts = (None, on_host) if any(p.is_cuda for p in record.params) else (None,)
        for host in hosts:
            failed: Optional[BaseException] = None
            begin = sequence()
            try:
                with self._inside(taped), host() if host is not None else nullcontext():
                    result = again()
            except Exception as e:
                failed = e
            if failed is None:
                entry.between = (begin, sequence())
                entry.snapshot = record.after()
                self.sizes.refused()
                if host is not None:
                    record.hosted = self.sizes.cost()
                self.report.survived(failure, Survival("call" if host is None else "host", why))
                tape.add(entry, result)
                return result
            tape.spans.append((begin, sequence()))
            clean(failed)
            set_random_state(state)
            if not is_out_of_memory(failed) or not record.put_back():
                self._refused(failure, why)
        return self._approximately(tape, record, entry, failure, why, taped)

    def _approximately(
        self, tape: Tape, record: RecordedModule, entry: Entry, failure: BaseException, why: Refused, taped: Sequence
    ) -> Any:
        """Responds to a call for which nothing exact has fitted: with approximate pieces, if the
        user has allowed them."""
        if tape.approximate or not isinstance(why, Batchwise):
            self._refused(failure, why)
        try:
            refuse_unless_approximable([entry.module], why)  # type: ignore[list-item]
        except Refused as still:
            self._refused(failure, still)
        tape.approximate = True
        return self._deferred_call(tape, record, entry, failure, None, taped)

    # Functions.

    def opaque(self, call: Callable) -> Callable:
        """Wraps a compiled function so that each call of it is one entry of the tape. The function
        never sees our class of tensors."""

        @wraps(call)
        def plainly(*args: Any, **kwargs: Any) -> Any:
            with plain_class(recorded(args, kwargs)):
                return call(*args, **kwargs)

        plainly.opaque = True  # type: ignore[attr-defined]

        @wraps(call)
        def compiled(*args: Any, **kwargs: Any) -> Any:
            thread = self.mine()
            if torch.compiler.is_compiling() or thread.busy:
                return call(*args, **kwargs)
            if not recorded(args, kwargs):
                # A module that it calls after a graph break would return our class, which would be compiled as well.
                thread.busy = True
                try:
                    return call(*args, **kwargs)
                finally:
                    thread.busy = False
            try:
                return self.function(plainly, args, kwargs)
            except BaseException as e:
                unframed(e)
                raise

        return compiled

    def watch_functions(self) -> None:
        """Makes sure that a custom autograd function applied to recorded tensors is recorded as one call, with its
        own backward: functions called inside its forward are not part of the script's graph."""
        original = vars(torch.autograd.Function)["apply"]

        def applied(kind: Any, *args: Any, **kwargs: Any) -> Any:
            return original.__get__(None, kind)(*args, **kwargs)

        @lru_cache(maxsize=256)
        def opaque(kind: Any) -> Callable:
            def whole(*args: Any, **kwargs: Any) -> Any:
                given = tensors_in((args, kwargs))
                versions = numbers(given)
                result = applied(kind, *args, **kwargs)
                if versions != numbers(given) or any(r is t for r in flatten(result)[0] for t in given):
                    why = f"{kind.__name__} changes its argument"
                    if self.mine().busy:
                        raise Refused(why)
                    for place in filter(None, (t.__dict__.get("_headroom") for t in given)):
                        place.tape.refuse(why)
                return result

            whole.__name__ = kind.__name__
            return self.opaque(whole)

        @wraps(original.__func__)
        def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if self.mine().busy or not recorded(args, kwargs):
                    return applied(kind, *args, **kwargs)
                return opaque(kind)(*args, **kwargs)
            except BaseException as e:
                unframed(e)
                raise

        Change(torch.autograd.Function, "apply", classmethod(apply))

    def function(self, func: Callable, args: tuple, kwargs: dict, frame: Optional[FrameType] = None) -> Any:
        """Records a function that is called on recorded tensors. ``frame`` called ``__torch_function__``, if that was
        called."""
        name = getattr(func, "__name__", "")
        if name in METADATA or name == "__get__" and func in GETTERS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        call = called if frame is None else relay(frame)
        taped = recorded(args, kwargs)
        thread = self.mine()
        if thread.busy or not self.here() or any(place_of(t).tape.thread() is not thread for t in taped):  # type: ignore[union-attr]
            if any(place_of(t).deferred for t in taped):  # type: ignore[union-attr]
                args, kwargs = self._valued(args, kwargs, taped)
            with torch._C.DisableTorchFunctionSubclass():
                return call(func, args, kwargs)
        places = [place_of(t) for t in taped]
        if name in PRINTS and places and not places[0].deferred:  # type: ignore[union-attr]
            with plain_class(args[:1]):
                return call(func, args, kwargs)
        tape = next((p.tape for p in places if p.deferred), places[0].tape if places else None)  # type: ignore[union-attr]
        self._left_behind(places)  # type: ignore[arg-type]
        if tape is None:
            with torch._C.DisableTorchFunctionSubclass():
                return call(func, args, kwargs)
        if tape.failure is not None and any(p.deferred for p in places):  # type: ignore[union-attr]
            return self._deferred_function(tape, func, name, args, kwargs)
        if name in ("backward", "grad") and is_backward(func):
            return self._backward(tape, func, name, args, kwargs, call)
        failed: Optional[BaseException] = None
        begun = self._begun(tape, name, args)
        with torch._C.DisableTorchFunctionSubclass():
            try:
                result = call(func, args, kwargs)
            except BaseException as e:
                if not is_out_of_memory(e):
                    raise
                failed = e
        if failed is not None:
            try:
                return self._failed_function(tape, func, name, args, kwargs, failed)
            finally:
                failed = None  # its traceback holds this frame, and with it the arguments
        try:
            with apart():
                self._note(tape, func, name, args, kwargs, result, begun)
        except Exception as e:  # the call itself succeeded, and its result is the user's
            tape.refuse(f"{name} could not be recorded: {type(e).__name__}")
        return result

    def shared(self, func: Callable, args: tuple, kwargs: dict, frame: FrameType) -> Any:
        """Calls a function on recorded tensors and on objects of a class that has its own ``__torch_function__``. That
        class decides what is computed, as it does for plain tensors, and its results are not on the tape."""
        taped = recorded(args, kwargs)
        if any(place_of(t).deferred for t in taped):  # type: ignore[union-attr]
            others = (
                type(t).__name__
                for t in tensors_in((args, kwargs))
                if type(t) not in (torch.Tensor, Recorded, torch.nn.Parameter)
            )
            other = next(others, "another class")
            args, kwargs = self._valued(
                args,
                kwargs,
                taped,
                f"{other} decides what is computed of a result of the model, and its values are not in memory",
            )
            taped = recorded(args, kwargs)
        versions = numbers(taped)
        with plain_class(taped):
            result = relay(frame)(func, args, kwargs)
        if versions != numbers(taped):
            place_of(taped[0]).tape.refuse(  # type: ignore[union-attr]
                f"{getattr(func, '__name__', 'a function')} of another class changes a result of the model"
            )
        return result

    @staticmethod
    def _begun(tape: Tape, name: str, args: tuple) -> Optional[torch.Tensor]:
        """A copy of the number to which a function is about to add a result of the tape, if a sum begins with it; else
        None."""
        if (
            not changes(name)
            or name == "__setitem__"
            or not args
            or not isinstance(args[0], torch.Tensor)
            or not torch.is_grad_enabled()
        ):
            return None
        try:
            with apart():
                return clone(args[0]) if type(args[0]) is torch.Tensor and tape.may_begin(args[0]) else None
        except Exception:  # the error is our own, not the script's; the step is then refused later
            return None

    def _note(
        self,
        tape: Tape,
        func: Callable,
        name: str,
        args: tuple,
        kwargs: dict,
        result: Any,
        begun: Optional[torch.Tensor] = None,
    ) -> None:
        inplace = changes(name)
        if inplace or name in OPAQUE or kwargs.get("out") is not None:
            first = place_of(args[0]) if args and isinstance(args[0], torch.Tensor) else None
            if name in OPAQUE or kwargs.get("out") is not None:
                if name not in ("data_ptr", "untyped_storage", "storage"):
                    tape.refuse(f"{name} is used on a result of the model")
                return
            if begun is not None and result is args[0] and result.requires_grad:
                entry = Entry(func, None, tape.encode((begun, *args[1:])), tape.encode(kwargs))
                entry.fresh = True
                tape.add(entry, result)
                return
            # A tensor from outside the tape is changed, which a replay does not repeat.
            if first is None or first.tape is not tape:
                if isinstance(result, torch.Tensor) and result.requires_grad:
                    tape.refuse(
                        "a tensor from outside the step is changed in place and becomes part of the step's graph"
                    )
                return
            entry = Entry(func, None, tape.encode(args), tape.encode(kwargs))
            entry.fresh = numel(args[0]) == 1
            entry.inplace = not entry.fresh
            tape.add(entry, args[0])
            return
        if (
            isinstance(result, torch.Tensor)
            or isinstance(result, (tuple, list))
            and any(isinstance(t, torch.Tensor) for t in result)
        ):
            tape.add(Entry(func, None, tape.encode(args), tape.encode(kwargs)), result)

    def _failed_function(
        self, tape: Tape, func: Callable, name: str, args: tuple, kwargs: dict, failure: BaseException
    ) -> Any:
        release_frames(failure)

        def again(why: Optional[Refused] = None) -> tuple[Any, Optional[BaseException]]:
            """Repeats the call after cleaning up. Returns its result, or None and the exception."""
            clean(failure)
            with torch._C.DisableTorchFunctionSubclass():
                try:
                    result = func(*args, **kwargs)
                except Exception as e:
                    release_frames(e)
                    return None, e
            self.report.survived(failure, Survival("call", why))
            self._note(tape, func, name, args, kwargs, result)
            return result, None

        # Neither arithmetic on scalars nor counting a handful of labels contains anything that could be cut.
        given = recorded(args, kwargs)
        if not changes(name) and all(numel(t) == 1 or numel(t) <= KEEP and not t.requires_grad for t in given):
            result, failed = again()
            if failed is None:
                return result
            if all(numel(t) == 1 for t in given):
                self._refused(failure, failed)

        def postponed() -> Any:
            tape.failure = failure
            self._may(tape)
            if changes(name) and (not recorded(args[:1], {}) or place_of(args[0]).tape is not tape):  # type: ignore[union-attr]
                raise Refused(f"{name} may have changed its argument when it failed")
            self._guarded(lambda: note(tape))
            if not tape.approximate:
                refuse_batchwise(modules_of(tape))
            deferred = self._deferred(tape, tape.entries[0])
            tape.complete = True
            disown(tape, modules_of(tape))
            entry = Entry(func, None, tape.encode(args), tape.encode(kwargs))
            entry.inplace = changes(name)
            if entry.inplace:
                self._guarded(lambda: self._changed(tape, deferred, entry, args[0]))
                return None if name == "__setitem__" else args[0]
            return self._guarded(lambda: self._postponed(tape, deferred, entry, *self._result(tape, deferred, entry)))

        self.sizes.failed_after(failure)
        try:
            return postponed()
        except Refused as refused:
            why = bare(refused)  # its traceback would keep this frame, and what the frame holds
        tape.failure = tape.sampled = None
        if changes(name) or any(place_of(t).deferred for t in given):  # type: ignore[union-attr]
            self._refused(failure, why)
        result, failed = again(why)
        if failed is None:
            self.sizes.refused()
            return result
        try:
            if not is_out_of_memory(failed) or not isinstance(why, Batchwise):
                raise why
            refuse_unless_approximable(modules_of(tape), why)
            tape.approximate = True
            return postponed()
        except Refused as still:
            self._refused(failure, still)

    def _deferred_function(self, tape: Tape, func: Callable, name: str, args: tuple, kwargs: dict) -> Any:
        deferred = tape.deferred
        failure = tape.failure
        if name == "__get__" and not gives_tensor(func, args):
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name in ("__set__", "data_ptr") or name in OPAQUE or kwargs.get("out") is not None:
            self._refused(failure, Refused(f"{name} is used on a result whose values are not in memory"))

        def real(t: Any) -> Any:
            place = place_of(t) if isinstance(t, torch.Tensor) else None
            if place is None or not place.deferred:
                return t
            if (
                place.tape is not tape
                or tape.done
                and deferred.plan.slots[place.slot].dim is None
                and not needs_gradient(t)
            ):
                return place.tape.deferred.value(place.slot)
            found = deferred.real(place.slot)
            return t if found is None else found

        def resolved(t: Any) -> Any:
            place = place_of(t) if isinstance(t, torch.Tensor) else None
            if place is None or not place.deferred:
                return t
            if deferred.plan.is_scalar(place.slot):
                return deferred.scalar(place.slot)
            known = deferred.plan.slots[place.slot]
            return (
                deferred.value(place.slot)
                if (tape.done or outward and known.dim is None) and not known.requires_grad
                else t
            )

        # A tensor of the script's own, such as a sum for a log, is changed.
        outward = changes(name) and not changes_deferred(name, args)

        if name == "backward" and kwargs.get("retain_graph"):
            tape.retain = True
        try:
            if (
                tape.done
                and not changes_deferred(name, args)
                and not any(needs_gradient(t) for t in recorded(args, kwargs))
            ):
                return self._guarded(lambda: self._asked(deferred, func, args, kwargs))
            self._may(tape)
            if foreign(tape, tensors_in((args, kwargs))):
                raise Refused("the loss uses a tensor that a module computed but did not return")
            if name in ASKS:
                return self._guarded(lambda: self._asked(deferred, func, args, kwargs))
            target = place_of(args[0]) if changes_deferred(name, args) else None
            if (
                target is not None
                and target.tape is tape
                and deferred.plan.is_shared(target.slot)
                and deferred.plan.slots[target.slot].dim is None
            ):
                self._guarded(lambda: deferred.unite(target.slot))
            args, kwargs = self._guarded(lambda: (mapped(real, args), mapped(real, kwargs)))
            if self._is_derived(tape, deferred, name, args, kwargs):
                result = self._guarded(lambda: self._derived(tape, deferred, func, name, args, kwargs))
                if result is not None:
                    return result
            args, kwargs = self._guarded(lambda: (mapped(resolved, args), mapped(resolved, kwargs)))
            if any(place_of(t).deferred for t in recorded(args, kwargs)):  # type: ignore[union-attr]
                return self._guarded(lambda: self._deferred_result(tape, deferred, func, name, args, kwargs))
        except Refused as why:
            self._refused(failure, why)
        return self._with_values(tape, lambda: func(*args, **kwargs), name in ("backward", "grad") or changes(name))

    @staticmethod
    def _is_derived(tape: Tape, deferred: Deferred, name: str, args: tuple, kwargs: dict) -> bool:
        """Whether what a function returns belongs to the batch as a whole and may be differentiated: its deferred
        arguments are scalars, or other numbers of the batch. It can then be computed once something asks for it."""
        slots = [place_of(t).slot for t in recorded(args, kwargs)]  # type: ignore[union-attr]
        if name in ("backward", "grad", "__setitem__") or not slots or torch.is_inference_mode_enabled():
            return False
        if changes(name):  # what it changes must be a number that nothing else refers to
            target = place_of(args[0])
            if not torch.is_grad_enabled() or numel(args[0]) != 1:
                return False
            if deferred.plan.is_shared(target.slot) if target is not None else not tape.may_begin(args[0]):
                return False
        return all(deferred.plan.slots[s].dim is None for s in slots) and any(deferred.plan.is_scalar(s) for s in slots)

    def _derived(self, tape: Tape, deferred: Deferred, func: Callable, name: str, args: tuple, kwargs: dict) -> Any:
        """Records a function for which :meth:`_is_derived` is true. Returns its deferred result, or None if the
        function cannot be computed later."""

        def kept(t: Any) -> Any:  # the script may change it before it is used
            return t.clone() if type(t) is torch.Tensor and not t.requires_grad else t

        entry = Entry(func, None, tape.encode(mapped(kept, args)), tape.encode(mapped(kept, kwargs)))
        entry.fresh = changes(name)
        try:
            leaves, tree = self._result(tape, deferred, entry)
        except Exception as e:  # if it is the script's own mistake, the script's own call makes it as well
            if is_out_of_memory(e):
                raise
            return None
        if not all(isinstance(leaf, Slot) for leaf in leaves):
            return None
        if not entry.fresh:
            return self._postponed(tape, deferred, entry, leaves, tree)
        [known] = leaves
        if (
            place_of(args[0]) is None
            and known.requires_grad
            and (known.shape, known.dtype) == (args[0].shape, args[0].dtype)
        ):
            with torch.enable_grad():
                args[0].add_(make(known))  # from now on its values are not in memory, and it has a graph
        elif known.requires_grad != args[0].requires_grad:
            return None
        tape.add(entry, args[0], deferred=True)
        deferred.plan.accept()
        return args[0]

    def _with_values(self, tape: Tape, call: Callable, once: bool) -> Any:
        """Calls ``call``, which applies a function to results whose values are now available. If it runs out of
        memory, it is called once more, unless ``once`` is true."""
        for _ in range(1 if once else 2):
            with torch._C.DisableTorchFunctionSubclass():
                try:
                    return call()
                except BaseException as e:
                    if not is_out_of_memory(e):
                        raise
                    failed = e
            clean(failed)
        self._refused(tape.failure, Refused("an operation after the loss runs out of memory too"))

    def _deferred_result(
        self, tape: Tape, deferred: Deferred, func: Callable, name: str, args: tuple, kwargs: dict
    ) -> Any:
        if name == "backward":
            known = deferred.plan.slots[place_of(args[0]).slot]  # type: ignore[union-attr]
            same = "the loss is the same for other rows, so it is not known how it depends on them"
            raise Refused(same if known.fixed else "backward is called on a result that is not a scalar")
        if changes(name) and not changes_deferred(name, args):
            raise Refused(
                "a tensor from outside the step is updated in place from a result whose values are not in memory"
            )
        entry = Entry(func, None, tape.encode(args), tape.encode(kwargs))
        if changes(name):
            entry.inplace = True
            self._changed(tape, deferred, entry, args[0])
            return args[0] if name != "__setitem__" else None
        try:
            leaves, tree = self._result(tape, deferred, entry)
        except Refused:
            if any(deferred.plan.slots[place_of(t).slot].requires_grad for t in recorded(args, kwargs)):  # type: ignore[union-attr]
                raise
            return self._asked(deferred, func, args, kwargs)  # an accuracy, for example
        if not any(isinstance(leaf, Slot) for leaf in leaves):
            return self._asked(deferred, func, args, kwargs)
        return self._postponed(tape, deferred, entry, leaves, tree)

    def _changed(self, tape: Tape, deferred: Deferred, entry: Entry, target: torch.Tensor) -> None:
        """Records an in-place operation on a result whose values are not in memory, or are about to be released."""
        self._result(tape, deferred, entry)
        tape.add(entry, target)
        deferred.plan.accept()
        postpone(tape)

    @staticmethod
    def _asked(deferred: Deferred, func: Callable, args: tuple, kwargs: dict) -> Any:
        def valued(t: Any) -> Any:
            place = place_of(t) if isinstance(t, torch.Tensor) else None
            return place.tape.deferred.value(place.slot) if place is not None and place.deferred else t

        args, kwargs = mapped(valued, args), mapped(valued, kwargs)
        with torch._C.DisableTorchFunctionSubclass(), in_place():
            return func(*args, **kwargs)

    # Backward.

    def _backward(self, tape: Tape, func: Callable, name: str, args: tuple, kwargs: dict, call: Callable) -> Any:
        special = kwargs.get("create_graph") or kwargs.get("retain_graph") or kwargs.get("inputs") is not None
        usual = name == "backward" and not special and 1 <= len(args) <= 2 and isinstance(args[0], torch.Tensor)
        if not usual:
            if not kwargs.get("retain_graph") or kwargs.get("create_graph"):
                tape.refuse("gradients are computed by autograd.grad, or by backward with special arguments")
        else:
            self._walk(tape, args[0])
        params: list[torch.Tensor] = list(
            {
                id(p): p for f in map(record_of, modules_of(tape)) if f is not None for p in f.params if p.requires_grad
            }.values()
        )
        outside = [t for t in tape.outside if t.requires_grad]
        params = [
            *{
                id(p): p
                for p in [
                    *params,
                    *(t for t in outside if t.is_leaf),
                    *(leaves_behind([t for t in outside if not t.is_leaf]) or ()),
                ]
            }.values()
        ]
        before = [state_of(p) for p in params] if usual else []
        failed: Optional[BaseException] = None
        try:
            with torch._C.DisableTorchFunctionSubclass():
                result = call(func, args, kwargs)
        except BaseException as e:
            if not is_out_of_memory(e):
                raise
            failed = e
        if failed is None:
            if usual:
                if self.check is not None:
                    self.check.backward(self, tape, args, kwargs)
                tape.close()
                self._leave(tape)
            return result
        release_frames(failed)
        self.sizes.failed_after(failed)
        tape.failure = failed
        self._leave(tape)
        try:
            self._may(tape)
            if not usual:
                raise Refused("the graph is kept to be used again (retain_graph)")
            if reduced(params):
                raise Refused("DistributedDataParallel had begun to reduce gradients when memory ran out in backward")
            self._guarded(lambda: note(tape))
            return self._guarded(lambda: finish(tape, args, kwargs, params, before, failed, self.sizes, self.report))
        except Refused as why:
            self._refused(failed, why)

    def _leave(self, tape: Tape) -> None:
        thread = self.mine()
        thread.tape = None if thread.tape is tape else thread.tape

    # Shared by the above.

    def _deferred(self, tape: Tape, first: Entry) -> Deferred:
        """Returns the tape's :class:`Deferred`, and makes it if there is none. If the tape has no entries yet,
        ``first`` is the entry that will be its first."""
        if tape.deferred is None:
            tape.deferred = Deferred(
                tape,
                self._guarded(lambda: Plan(tape, tape.entries[0] if tape.entries else first)),
                self.sizes,
                self.report,
            )
        return tape.deferred

    def _may(self, tape: Tape) -> None:
        """Raises Refused if this tape must not be replayed."""
        if tape.why_not:
            raise Refused(tape.why_not)

    def _guarded(self, work: Callable) -> Any:
        """Runs work that is headroom's rather than the script's: nothing in it is recorded, and any exception
        becomes a refusal."""
        thread = self.mine()
        was, thread.busy = thread.busy, True
        try:
            if not self.owner.alone() and replaced():
                raise Refused("another thread, too, calls the functions of PyTorch that the script has replaced")
            with set_aside():
                return work()
        except Refused as why:
            if why.__cause__ is not None:
                explained()
                release_frames(why.__cause__)
                why.__cause__ = None
            raise
        except Exception as e:
            explained()
            release_frames(e)
            raise Refused(
                "there is not enough memory for values that the step needs at once"
                if is_out_of_memory(e)
                else f"{type(e).__name__}: {e}"
            ) from None
        finally:
            thread.busy = was

    def _refused(self, failure: Optional[BaseException], why: BaseException, training: bool = True) -> NoReturn:
        self.sizes.refused()
        self.mine().tape = None  # whatever the user's own handler runs next is a new step
        self.report.refused(failure, why if isinstance(why, Refused) else Refused(str(why)), training)
        raise failure from None  # type: ignore[misc]  # something has failed

    def _walk(self, tape: Tape, loss: torch.Tensor) -> None:
        """Checks, once per kind of tape, that the loss depends on every module only through the module's
        outputs: a replay would miss a tensor that a module left behind."""
        kind = tuple((number_of(e.module), e.call_name()) for e in tape.entries)
        if kind not in self.kinds:
            with torch._C.DisableTorchFunctionSubclass():
                self.kinds[kind] = bypass(tape, loss)
        if self.kinds[kind]:
            tape.refuse(self.kinds[kind])  # type: ignore[arg-type]
