"""Functions that the script calls on results of recorded modules: they are recorded, and may fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial, wraps
from types import FrameType
from typing import Any, Callable, Optional

import torch

from ..callsite import called, relay
from ..failure import Refused, Survival, arrive, clean, interrupts, is_out_of_memory, release_frames, unframed
from ..hooks.changes import Change
from ..hooks.genuine import apart, is_backward, numel, unseen_copy
from ..proof.recheck import note
from ..proof.rerun import modules_of, records_of
from ..ranks import ddp
from ..replay.deferred import disown, postpone, uniform
from ..sandbox.norms import refuse_batchwise
from ..tape.functions import ASKS, DRAWING, FILLS, GETTERS, LIKE, METADATA, OPAQUE, PRINTS, SAMPLES, changes
from ..tape.graph import KEEP
from ..tape.tape import (
    Entry,
    Place,
    Recorded,
    Tape,
    alone,
    place_of,
    plain_class,
    random_state,
    recorded,
    set_random_state,
    unrecorded,
)
from ..tape.trees import flatten, mapped, tensors_in
from ..world import talked
from .backward import of_one
from .deferred_functions import DeferredFunction, changed, filled
from .recovery import Recovery, Way

LARGE = 1 << 24  # elements of a tensor whose functions may fail for want of memory rather than use the host's


def numbers(tensors: Sequence[torch.Tensor]) -> list[int]:
    """The versions of tensors, which show whether the tensors have been written to."""
    with apart():
        return [t._version for t in tensors]


@contextmanager
def _as_called(thread: Any) -> Iterator[None]:
    """A context for a compiled function, in which __torch_function__ is on, as where the script calls it, and nothing
    is recorded."""
    was, thread.busy = thread.busy, True
    try:
        with torch._C._EnableTorchFunction():
            yield
    finally:
        thread.busy = was


class Functions:
    """Records the functions that are called on recorded tensors, and responds when one of them runs out of memory.
    ``backward`` is called in place of a function that computes gradients."""

    def __init__(self, recovery: Recovery, backward: Callable) -> None:
        self._recovery, self._backward = recovery, backward

    def opaque(self, call: Callable, compiled: bool = False) -> Callable:
        """Wraps a compiled function so that each call of it is one entry of the tape. The function
        never sees our class of tensors."""

        @wraps(call)
        def plainly(*args: Any, **kwargs: Any) -> Any:
            # What is compiled for calls on which __torch_function__ is off is not used where it is on.
            with plain_class(recorded(args, kwargs)), _as_called(self._recovery.mine()) if compiled else nullcontext():
                return call(*args, **kwargs)

        plainly.opaque = True  # type: ignore[attr-defined]

        @wraps(call)
        def outer(*args: Any, **kwargs: Any) -> Any:
            thread = self._recovery.mine()
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

        if compiled and hasattr(outer, "_torchdynamo_wrapper_id"):  # so that it can be compiled once more
            outer._torchdynamo_wrapper_id = id(outer)
        return outer

    def swaps(self, tensors: tuple) -> None:
        """Called before tensors change places with each other: no step of which there is a tape is run again, and a
        result is a plain tensor from then on."""
        thread = self._recovery.mine()
        if thread.tape is not None:
            thread.tape.refuse("torch.utils.swap_tensors exchanges tensors during the step")
        for t in recorded(tensors, {}):
            place: Any = place_of(t)
            if place.deferred:
                self._recovery.refused(place.tape.step.failure, Refused("torch.utils.swap_tensors is given a result"))
            place.tape.refuse("torch.utils.swap_tensors is given a result")
            place.tape.let_go([t])

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
                    if self._recovery.mine().busy:
                        raise Refused(why)
                    for place in filter(None, (t.__dict__.get("_headroom") for t in given)):
                        place.tape.refuse(why)
                return result

            whole.__name__ = kind.__name__
            return self.opaque(whole)

        @wraps(original.__func__)
        def apply(kind: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                taped = () if self._recovery.mine().busy else recorded(args, kwargs)
                if not taped:
                    return applied(kind, *args, **kwargs)
                if ddp.is_sink(kind):
                    late = next((p for p in map(place_of, taped) if p is not None and p.deferred), None)
                    if late is not None:
                        if late.tape.reducers is not None:
                            late.tape.reducers.passed()
                        return args[1:]
                    sink = ddp.sink(applied, kind, args[0], lambda: self._recovery.mine().busy)
                    return self.opaque(sink)(*args[1:])
                return opaque(kind)(*args, **kwargs)
            except BaseException as e:
                unframed(e)
                raise

        Change(torch.autograd.Function, "apply", classmethod(apply))

    def function(self, func: Callable, args: tuple, kwargs: dict, frame: Optional[FrameType] = None) -> Any:
        """Records a function that is called on recorded tensors. ``frame`` called ``__torch_function__``, if that was
        called."""
        arrive()
        name = getattr(func, "__name__", "")
        if name in METADATA or name == "__get__" and func in GETTERS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if kwargs and kwargs.get("inplace") is True:  # as relu_ is: see changes
            name += "_"
        call = called if frame is None else relay(frame)
        recovery, taped = self._recovery, recorded(args, kwargs)
        if name == "new_tensor" and len(taped) == 1 and taped[0] is args[0]:  # of numbers that are the script's own
            with torch._C.DisableTorchFunctionSubclass():
                return call(func, args, kwargs)
        places: list[Place] = [place_of(t) for t in taped]  # type: ignore[misc]
        deferred, thread = next((p for p in places if p.deferred), None), recovery.mine()
        if thread.busy or not recovery.here() or any(p.tape.thread() is not thread for p in places):
            if deferred is not None:
                args, kwargs = self._valued(args, kwargs, taped)
            with torch._C.DisableTorchFunctionSubclass():
                return call(func, args, kwargs)
        if getattr(func, "__module__", "") == "torch.distributed.distributed_c10d":
            with torch._C.DisableTorchFunctionSubclass():  # of tensors without values: see ranks.collectives
                return call(func, args, kwargs)
        if name in PRINTS and places and not places[0].deferred:
            with plain_class(args[:1]):
                return call(func, args, kwargs)
        recovery.left_behind(places)
        if not places:
            with torch._C.DisableTorchFunctionSubclass():
                return call(func, args, kwargs)
        tape = (deferred or places[0]).tape
        if name == "backward" and is_backward(func):
            args, kwargs = of_one(args, kwargs)
        if deferred is not None and tape.step.failed:
            return DeferredFunction(recovery, tape, func, name, args, kwargs).call()
        if name in ("backward", "grad") and is_backward(func):
            return self._backward(tape, func, name, args, kwargs, call)
        return self._recorded(tape, func, name, args, kwargs, call)

    def _recorded(self, tape: Tape, func: Callable, name: str, args: tuple, kwargs: dict, call: Callable) -> Any:
        """Calls a function, and records that."""
        failed: Optional[BaseException] = None
        begun = begins(tape, name, args, kwargs)
        spoken = talked() if getattr(func, "opaque", False) else -1
        state = random_state() if name in DRAWING else None
        with torch._C.DisableTorchFunctionSubclass():
            try:
                with self._withheld(tape, name, args):
                    result = call(func, args, kwargs)
            except BaseException as e:
                if not is_out_of_memory(e):
                    raise
                failed = e
        if failed is not None:
            if state is not None:  # it may have drawn before it failed
                set_random_state(state)
            try:
                return self._recovery.recover(failed, self._ways(tape, func, name, args, kwargs, failed, spoken, begun))
            finally:
                failed = None  # its traceback holds this frame, and with it the arguments
        try:
            with apart():
                note_call(tape, func, name, args, kwargs, result, begun)
                if tape.heavy():
                    tape.shorten(recorded((result,), {}))
        except Exception as e:  # the call itself succeeded, and its result is the user's
            if interrupts(e):
                raise
            tape.refuse(f"{name} could not be recorded: {type(e).__name__}")
        return result

    def _withheld(self, tape: Tape, name: str, args: tuple) -> Any:
        """As :meth:`Recovery.withheld`, for a function: not for one that must not be called again. To find out what
        could be withheld takes a millisecond, so small tensors are left out."""
        if (
            not self._recovery.spill.open
            or changes(name)
            or not any(isinstance(t, torch.Tensor) and numel(t) >= LARGE for t in args)
        ):
            return nullcontext()
        return self._recovery.withheld(records_of(tape))

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
        self._recovery.left_behind([place_of(t) for t in taped])  # type: ignore[misc]
        args, kwargs = mapped(self._recovery.current, args), mapped(self._recovery.current, kwargs)
        for t in recorded(args, kwargs):
            place: Place = place_of(t)  # type: ignore[assignment]
            if place.deferred:
                self._recovery.refused(place.tape.step.failure, Refused(self._recovery.observe or refused))
        return args, kwargs

    def _ways(
        self,
        tape: Tape,
        func: Callable,
        name: str,
        args: tuple,
        kwargs: dict,
        failure: BaseException,
        spoken: int,
        begun: Optional[torch.Tensor],
    ) -> Sequence[Way]:
        """How to go on after a function has failed. ``spoken`` is what :func:`talked` returned before the call, or -1
        for a function that does not communicate, ``begun`` what :func:`begins` did."""
        recovery, given = self._recovery, recorded(args, kwargs)
        recovery.sizes.failed_after(failure)
        release_frames(failure)

        def released() -> bool:
            return any(place_of(t).deferred for t in given)  # type: ignore[union-attr]

        def again(why: Optional[Refused], way: str = "call") -> Any:
            """Makes the call once more, after cleaning up."""
            if changes(name) or released():
                raise Refused("the call must not be repeated")
            clean(failure)
            failed: Optional[BaseException] = None
            with torch._C.DisableTorchFunctionSubclass():
                try:
                    result = func(*args, **kwargs)
                except Exception as e:
                    if interrupts(e):
                        raise
                    release_frames(e)
                    failed = e
            if failed is not None:
                raise Refused(str(failed))
            if why is not None:
                recovery.sizes.refused()
            recovery.report.survived(failure, Survival(way, why))
            note_call(tape, func, name, args, kwargs, result)
            return result

        def spilled(why: Optional[Refused]) -> Any:
            """Makes the call once more, with memory of the host for what does not fit."""
            recovery.open_spill()
            return again(why, "spill")

        def pieces(_: Optional[Refused]) -> Any:
            """Makes results without values of what the script holds, and of what the function returns."""
            tape.step.fails(failure)
            try:
                return self._deferred(tape, func, name, args, kwargs, begun)
            except Refused:
                if not released():
                    tape.step.repeated()
                raise

        if spoken not in (-1, talked()):
            tape.refuse(f"{name} communicates with other ranks")
            return []
        # Neither arithmetic on scalars nor counting a handful of labels contains anything that could be cut.
        if not changes(name) and all(numel(t) == 1 or numel(t) <= KEEP and not t.requires_grad for t in given):
            return [again, spilled] if all(numel(t) == 1 for t in given) else [again, pieces, spilled]
        return [pieces, again, spilled]

    def _deferred(
        self, tape: Tape, func: Callable, name: str, args: tuple, kwargs: dict, begun: Optional[torch.Tensor]
    ) -> Any:
        """Records a function that has failed; what it returns has no values. Raises :class:`Refused` if the step cannot
        be run in pieces."""
        recovery = self._recovery
        recovery.may(tape)
        begins_buffer = begun is not None and name == "__setitem__"
        if changes(name) and not begins_buffer and not _is_of(tape, args[:1]):
            raise Refused(f"{name} may have changed its argument when it failed")
        recovery.guarded(lambda: note(tape))
        refuse_batchwise(modules_of(tape))
        deferred = recovery.deferred_of(tape, tape.entries[0])
        tape.step.complete = True
        disown(tape, modules_of(tape))
        if begins_buffer:
            fills = partial(filled, recovery, tape, func, begun, args, kwargs)  # type: ignore[arg-type]
            if not recovery.guarded(fills):
                raise Refused(f"{name} may have changed its argument when it failed")
            return postpone(tape)
        entry = Entry(func, None, tape.encode(args), tape.encode(kwargs))
        entry.inplace = changes(name)
        if entry.inplace:
            recovery.guarded(lambda: changed(recovery, tape, deferred, entry, args[0]))
            return None if name == "__setitem__" else args[0]

        def postponed() -> Any:
            return recovery.postponed(tape, deferred, entry, *recovery.result(tape, deferred, entry))

        return recovery.guarded(postponed)


def _is_of(tape: Tape, first: tuple) -> bool:
    """Whether a function's first argument is a tensor of a tape."""
    return bool(recorded(first, {})) and place_of(first[0]).tape is tape  # type: ignore[union-attr]


def begins(tape: Tape, name: str, args: tuple, kwargs: dict) -> Optional[torch.Tensor]:
    """What a tensor of the script's holds before a function of the tape's results changes it, if it is a number to
    which something is added, or a buffer of equal numbers into which results are written; else None."""
    if not changes(name) or not args or type(args[0]) is not torch.Tensor or not torch._C.is_grad_enabled():
        return None
    try:
        with apart():
            if not tape.may_begin(args[0]):
                return None
            if name != "__setitem__":
                return unseen_copy(args[0]) if numel(args[0]) == 1 else None
            return uniform(args[0]) if any(t.requires_grad for t in recorded(args[2:], kwargs)) else None
    except Exception as e:  # the error is our own, not the script's; the step is then refused later
        if interrupts(e):
            raise
        return None


def note_call(
    tape: Tape,
    func: Callable,
    name: str,
    args: tuple,
    kwargs: dict,
    result: Any,
    begun: Optional[torch.Tensor] = None,
) -> None:
    """Puts a function that has been called on recorded tensors on their tape. ``begun`` is what :func:`begins` returned
    before the call."""
    if name in OPAQUE or kwargs.get("out") is not None:
        if name not in ("data_ptr", "untyped_storage", "storage"):
            what = tape.described(next(iter(recorded(args, kwargs)), None), "a result of the model")
            tape.refuse(f"{name} is used on {what}")
    elif name in ASKS:
        for t in recorded(args, kwargs):
            tape.reads(t)
    elif name in FILLS:
        _note_fill(tape, args[0])
    elif changes(name):
        _note_change(tape, func, args, kwargs, args[0] if name == "__setitem__" else result, begun)
    elif name in SAMPLES or name in LIKE:  # a constant of the step: the script may act upon it
        if result.requires_grad:
            drawn = result.detach().clone()
            tape.add(Entry(as_drawn(func), None, tape.encode((drawn, *args)), tape.encode(kwargs)), result)
    elif _has_tensors(result):
        tape.add(Entry(func, None, tape.encode(args), tape.encode(kwargs)), result)


def as_drawn(func: Callable) -> Callable:
    """A function that returns what ``func`` has drawn before, its own first argument, and draws nothing. Its graph is
    that of ``func``, through which no gradient flows."""

    @wraps(func)
    def again(drawn: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        state = random_state()
        result: torch.Tensor = func(*args, **kwargs)
        set_random_state(state)
        result.data.copy_(drawn)
        return result

    return again


def _note_fill(tape: Tape, filled: torch.Tensor) -> None:
    """Takes a tensor that has been filled with random numbers off the tape: a replay would draw others, and the script
    may act upon these."""
    with unrecorded():
        if place_of(filled) is not None and not filled.requires_grad and alone(filled):
            tape.let_go([filled])
        elif place_of(filled) is not None or filled.requires_grad:
            tape.refuse("a part of a result of the model is filled with random numbers")


def _has_tensors(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return any(isinstance(t, torch.Tensor) for t in result)
    return isinstance(result, torch.Tensor)


def _note_change(
    tape: Tape, func: Callable, args: tuple, kwargs: dict, result: Any, begun: Optional[torch.Tensor]
) -> None:
    if begun is not None and result is args[0] and result.requires_grad:  # a sum or a buffer begins
        entry = Entry(func, None, tape.encode((begun, *args[1:])), tape.encode(kwargs))
        entry.fresh = True
        tape.add(entry, result)
        return
    first = place_of(args[0]) if args and isinstance(args[0], torch.Tensor) else None
    if first is None or first.tape is not tape:
        # A tensor from outside the tape is changed, which a replay does not repeat.
        if isinstance(result, torch.Tensor) and result.requires_grad:
            tape.refuse("a tensor from outside the step is changed in place and becomes part of the step's graph")
        return
    entry = Entry(func, None, tape.encode(args), tape.encode(kwargs))
    with unrecorded():
        entry.fresh = numel(args[0]) == 1 and alone(args[0])
    entry.inplace = not entry.fresh
    tape.add(entry, args[0])
