"""Functions that the script calls on results whose values are not in memory."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Callable, Optional

import torch

from ..failure import Refused, Survival, Unrepeatable, bare, clean, is_out_of_memory, passes
from ..hooks.genuine import in_place, numel
from ..proof.groups import NUMBER
from ..proof.rerun import needed, records_of
from ..proof.rows import Slot
from ..replay.deferred import LEFT, Deferred, emptied, foreign, make, postpone, strays, uniform
from ..sandbox.sandbox import NEVER
from ..tape.functions import ASKS, FILLS, LIKE, NOISY, OPAQUE, PATHWISE, SAMPLES, changes, gives_tensor
from ..tape.graph import HOOKED, has_hooks, walk
from ..tape.recorded_module import draws_of
from ..tape.tape import Entry, Place, Tape, place_of, recorded
from ..tape.trees import mapped, tensors_in
from .backward import trained
from .recovery import TOGETHER, Recovery, Way, note_backward

_SAME_FOR_OTHER_ROWS = "the loss is the same for other rows, so it is not known how it depends on them"
_OTHER_ROWS = "the loss depends on none of the rows that the step's first call was given"


def changes_deferred(name: str, args: tuple) -> bool:
    """Whether a function changes a tensor whose values are not in memory."""
    place = place_of(args[0]) if changes(name) and args and isinstance(args[0], torch.Tensor) else None
    return place is not None and place.deferred


def needs_gradient(t: torch.Tensor) -> bool:
    """Whether what a function makes of a deferred tensor may still be differentiated: its graph has not been used by a
    backward pass."""
    place: Any = place_of(t)
    if not torch._C.is_grad_enabled():
        return False
    return not place.deferred or place.slot == LEFT or place.tape.deferred.differentiable(place.slot)


def changed(recovery: Recovery, tape: Tape, deferred: Deferred, entry: Entry, target: torch.Tensor) -> None:
    """Records an in-place operation on a result whose values are not in memory, or are about to be released."""
    recovery.result(tape, deferred, entry)
    deferred.writes(place_of(target).slot)  # type: ignore[union-attr]
    tape.add(entry, target)
    deferred.plan.accept()
    postpone(tape)


def filled(recovery: Recovery, tape: Tape, func: Callable, begun: torch.Tensor, args: tuple, kwargs: dict) -> bool:
    """Makes a buffer of the script's into which results are written one without values as well; false if that is
    impossible. ``begun`` is what it held before."""
    deferred, target = tape.deferred, args[0]
    entry = Entry(func, None, tape.encode((begun, *args[1:])), tape.encode(kwargs))
    entry.fresh = True
    [known], _ = recovery.result(tape, deferred, entry)
    if not known.requires_grad or (known.shape, known.dtype) != (target.shape, target.dtype):
        return False
    with torch.enable_grad():
        target.add_(make(known))  # it has a graph now
    emptied(target)
    tape.add(entry, target, deferred=True)
    deferred.plan.accept()
    return True


TWICE = "gradients of gradients are computed"
SPENT = "gradients are computed of results whose graph a backward pass has used up: it did not keep it (retain_graph)"
WITH_RESPECT = "gradients are computed with respect to a result whose values are not in memory"


class DeferredFunction:
    """One call of a function on recorded tensors of which some have no values. Some functions are recorded, and what
    they return has no values either; for others, values are computed."""

    def __init__(self, recovery: Recovery, tape: Tape, func: Callable, name: str, args: tuple, kwargs: dict) -> None:
        self._recovery, self._tape, self._deferred = recovery, tape, tape.deferred
        self._func, self._name, self._args, self._kwargs = func, name, args, kwargs
        self._changes = changes_deferred(name, args)

    def call(self) -> Any:
        name, recovery, tape = self._name, self._recovery, self._tape
        if name == "__get__" and not gives_tensor(self._func, self._args):
            got = self._plainly()
            if hasattr(got, "next_functions"):  # grad_fn: what is hooked to it would never run
                self._deferred.nodes.append(got)
            return got
        if name in ("__set__", "data_ptr") or name in OPAQUE or self._kwargs.get("out") is not None:
            what = tape.described(next(iter(self._recorded()), None), "a result whose values are not in memory")
            recovery.refused(tape.step.failure, Refused(f"{name} is used on {what}"))
        if name in ("backward", "grad") and any(map(has_hooks, walk(self._deferred.nodes))):
            recovery.refused(tape.step.failure, Refused(HOOKED))
        if not tape.step.done and self._deferred.written_through_arrays():
            recovery.refused(
                tape.step.failure, Refused("the array of a result whose values are not in memory is written to")
            )
        if name in ("backward", "grad") and self._kwargs.get("retain_graph"):
            tape.step.retain = True
        failure = tape.step.failure
        try:
            if self._only_asks():
                if name in ("backward", "grad"):
                    raise Refused(SPENT)
                return recovery.guarded(self._asked)
            recovery.may(tape)
            if self._unplanned():
                recovery.guarded(lambda: recovery.plan_all(tape, self._deferred))
            if foreign(tape, tensors_in((self._args, self._kwargs))):
                raise Refused("the loss uses a tensor that a module computed but did not return")
            if name in ASKS and (noise := self._noise()):
                raise Refused(f"the script reads what {noise} has drawn")
            if name in ASKS or self._samples():
                return recovery.guarded(self._asked)
            if name in LIKE and (drawn := self._drawn()) is not None:
                return drawn
            if name in FILLS and self._changes:
                return recovery.guarded(self._filled)
            known = [r.twice for r in records_of(tape)]
            twice = tape.step.preemptive and bool(known) and all(known)
            if twice and not self._real_already() and not self._asks_for_a_number():
                raise Refused("results had to be computed twice in an earlier step")
            if tape.step.preemptive and self._differentiates_twice():
                raise Refused(TWICE)
            if self._lacking() and any(place_of(t) is not None for t in self._respected()):
                raise Refused(WITH_RESPECT)
            recovery.guarded(self._unite)
            self._replace(self._real)
            if self._is_derived():
                result = recovery.guarded(self._derived)
                if result is not None:
                    return result
            self._replace(self._resolved)
            if self._lacking():
                return recovery.guarded(self._result)
            params = trained(tape) if name == "backward" else []
            result = self._with_values()
            if name == "backward":
                note_backward(tape)
                if tape.reducers is not None:
                    tape.reducers.confirm()
                recovery.passed(tape, params)
            return result
        except Refused as why:
            refused = bare(why)
        return self._otherwise(failure, refused)

    def _noise(self) -> str:
        """The name of what has drawn what is asked for, a function of the script's or a module; empty if there is
        nothing of the kind. Pieces would draw something else once more for the loss; of results that are made real it
        is drawn once. Single numbers of modules that draw are left out: they are read for a log."""
        several = any(numel(t) > 1 for t in self._recorded())
        for entry in self._tape.makers([place.slot for place in self._lacking()]).values():
            name, module = entry.call_name(), entry.module
            if name in NOISY if module is None else several and draws_of(module) != NEVER:
                return name
        return ""

    def _unplanned(self) -> bool:
        """Whether the plan has left out a call whose result has lost its values since: the call had been made as it is,
        before another one failed."""
        return any(p.tape is self._tape and p.slot not in self._deferred.plan.slots for p in self._lacking())

    def _lacking(self) -> list[Place]:
        """The places of the arguments that have no values."""
        return [place for place in map(place_of, self._recorded()) if place is not None and place.deferred]

    def _samples(self) -> bool:
        """Whether the function draws numbers that cannot be differentiated. The script may act upon them, so they are
        drawn once, from the values of the whole batch: each way of making the step again would draw others."""
        return self._name in SAMPLES or self._name in PATHWISE and not any(map(needs_gradient, self._recorded()))

    def _drawn(self) -> Any:
        """Random numbers for the whole batch, which the script draws once, as :meth:`_samples` says. What has no values
        has a shape. None if there is no memory for them."""
        try:
            return self._plainly()
        except Exception as e:
            if not is_out_of_memory(e):
                raise
        return None  # each piece draws its own, unless the script reads them

    def _filled(self) -> Any:
        """Gives a result without values, such as that of ``empty_like``, memory of its own, which the function fills
        with random numbers: the script draws them once. It is no result of the step any more."""
        target, tape = self._args[0], self._tape
        place: Any = place_of(target)
        if target.requires_grad or any(place.slot in e.references()[0] for e in tape.entries):
            raise Refused("a result whose values are not in memory is filled with random numbers")
        with torch._C.DisableTorchFunctionSubclass():
            values = torch.empty(target.shape, dtype=target.dtype, device=target.device)
            tape.let_go([target])
            target.data = values
        return self._plainly()

    def _real_already(self) -> bool:
        slots = [place_of(t).slot for t in self._recorded()]  # type: ignore[union-attr]
        return all(self._deferred.real(s) is not None for s in slots)

    def _recorded(self) -> Sequence[torch.Tensor]:
        return recorded(self._args, self._kwargs)

    def _plainly(self) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return self._func(*self._args, **self._kwargs)

    def _replace(self, by: Callable[[Any], Any]) -> None:
        self._args, self._kwargs = self._recovery.guarded(lambda: (mapped(by, self._args), mapped(by, self._kwargs)))

    def _only_asks(self) -> bool:
        """Whether the step is over, and what the function returns cannot be differentiated any more."""
        return self._tape.step.done and not self._changes and not any(map(needs_gradient, self._recorded()))

    def _unite(self) -> None:
        """Makes a number of the batch real if it is about to be changed, and shares memory with others."""
        target = place_of(self._args[0]) if self._changes else None
        plan = self._deferred.plan
        if target is None or target.tape is not self._tape:
            return
        if plan.is_shared(target.slot) and plan.slots[target.slot].dim is None:
            self._deferred.unite(target.slot)

    def _real(self, t: Any) -> Any:
        """The scalar that has been handed back in place of ``t``. What belongs to another step is a scalar with its
        gradients, or values if it cannot be differentiated any more."""
        place = place_of(t) if isinstance(t, torch.Tensor) else None
        if place is None or not place.deferred:
            return t
        other = place.tape is not self._tape
        whole = self._tape.step.done and place.tape.deferred.plan.slots[place.slot].dim is None
        if (other or whole) and not needs_gradient(t):
            return place.tape.deferred.value(place.slot)
        if other:
            if not place.tape.deferred.plan.is_scalar(place.slot):
                raise Refused(TOGETHER)
            return place.tape.deferred.scalar(place.slot)
        found = self._deferred.real(place.slot)
        return t if found is None else found

    def _resolved(self, t: Any) -> Any:
        """What takes the place of ``t`` if the function needs it now: a scalar with its gradients, or values."""
        place = place_of(t) if isinstance(t, torch.Tensor) else None
        if place is None or not place.deferred:
            return t
        if self._deferred.plan.is_scalar(place.slot):
            return self._deferred.scalar(place.slot, self._incoming(t))
        known = self._deferred.plan.slots[place.slot]
        # A tensor of the script's own, such as a sum for a log, is changed.
        outward = changes(self._name) and not self._changes
        wanted = (self._tape.step.done or outward and known.dim is None) and not known.requires_grad
        return self._deferred.value(place.slot) if wanted else t

    def _incoming(self, t: torch.Tensor) -> Optional[torch.Tensor]:
        """The gradient of ``t`` that the script gives to what computes gradients; None if it is 1, or not known."""
        at, name = {"backward": (1, "gradient"), "grad": (2, "grad_outputs")}.get(self._name, (0, ""))
        given = self._args[at] if 0 < at < len(self._args) else self._kwargs.get(name)
        if isinstance(given, (list, tuple)) and len(given) == 1:
            [given] = given
        if not isinstance(given, torch.Tensor) or place_of(given) is not None or given.shape != t.shape:
            return None
        return given.detach() if given.numel() == 1 and float(given.abs()) not in (0.0, inf) else None

    def _is_derived(self) -> bool:
        """Whether what a function returns belongs to the batch as a whole and may be differentiated: its deferred
        arguments are scalars, or other numbers of the batch. It can then be computed once something asks for it."""
        plan = self._deferred.plan
        slots = [place_of(t).slot for t in self._recorded()]  # type: ignore[union-attr]
        if self._name in ("backward", "grad", "__setitem__") or not slots or torch.is_inference_mode_enabled():
            return False
        if changes(self._name):  # what it changes must be a number that nothing else refers to
            target = place_of(self._args[0])
            if not torch._C.is_grad_enabled() or numel(self._args[0]) != 1:
                return False
            if plan.is_shared(target.slot) if target is not None else not self._tape.may_begin(self._args[0]):
                return False
        if any(s not in plan.slots for s in slots):  # a result that has values, of calls that were not planned
            return False
        return all(plan.slots[s].dim is None for s in slots) and any(plan.is_scalar(s) for s in slots)

    def _derived(self) -> Any:
        """Records a function for which :meth:`_is_derived` is true. Returns its deferred result, or None if the
        function cannot be computed later."""
        tape, deferred, args = self._tape, self._deferred, self._args

        def kept(t: Any) -> Any:  # the script may change it before it is used
            return t.clone() if type(t) is torch.Tensor and not t.requires_grad else t

        entry = Entry(self._func, None, tape.encode(mapped(kept, args)), tape.encode(mapped(kept, self._kwargs)))
        entry.fresh = changes(self._name)
        try:
            leaves, tree = self._recovery.result(tape, deferred, entry)
        except Exception as e:  # if it is the script's own mistake, the script's own call makes it as well
            if passes(e):
                raise
            return None
        if not all(isinstance(leaf, Slot) for leaf in leaves):
            return None
        if not entry.fresh:
            return self._recovery.postponed(tape, deferred, entry, leaves, tree)
        [known] = leaves
        if not self._begins(known):
            return None
        tape.add(entry, args[0], deferred=True)
        deferred.plan.accept()
        return args[0]

    def _begins(self, known: Slot) -> bool:
        """Makes the number to which a deferred one is added a deferred one as well; false if that is impossible."""
        target = self._args[0]
        alike = (known.shape, known.dtype) == (target.shape, target.dtype)
        if place_of(target) is None and known.requires_grad and alike:
            with torch.enable_grad():
                target.add_(make(known))  # from now on its values are not in memory, and it has a graph
            return True
        return known.requires_grad == target.requires_grad

    def _respected(self) -> list[torch.Tensor]:
        """The tensors with respect to which the function computes gradients; none where it does not name them."""
        at, args = {"backward": 4, "grad": 1}.get(self._name, 0), self._args
        return tensors_in(args[at] if 0 < at < len(args) else self._kwargs.get("inputs")) if at else []

    def _connected(self) -> bool:
        """Whether what is differentiated depends on the results with respect to which it is. Scalars with the gradients
        of pieces do not."""
        wanted = {t.grad_fn for t in self._respected()} - {None}
        roots = self._args[:1] or self._kwargs.get("outputs")
        return not wanted or wanted.issubset(walk(t.grad_fn for t in tensors_in(roots)))

    def _with_values(self) -> Any:
        """Calls the function, whose arguments have their values now. If it runs out of memory, it is called once more,
        unless it changes something."""
        once = self._name in ("backward", "grad") or changes(self._name)
        if not self._connected():
            raise Refused(WITH_RESPECT)
        for _ in range(1 if once else 2):
            failed: Optional[BaseException] = None
            try:
                return self._plainly()
            except BaseException as e:
                if not is_out_of_memory(e) or hasattr(e, "_headroom_refused"):
                    raise
                failed = e
            clean(failed)
        raise (Unrepeatable if once else Refused)("an operation after the loss runs out of memory too")

    def _otherwise(self, failure: Any, why: Refused) -> Any:
        """Calls the function where the step cannot be run in pieces: the results that the script holds become real."""
        recovery, tape, deferred = self._recovery, self._tape, self._deferred
        # What a call that has succeeded left elsewhere depends on a graph that has been released.
        if tape.step.done or tape.why_not or strays(tape, recovery.tidy):
            recovery.refused(failure, why)

        def each() -> int:
            call, counts = recovery.one_by_one(tape)
            deferred.make_real("each", call)
            recovery.sizes.refused()
            return max((pieces for _, pieces in counts), default=0)

        def by(way: str) -> Way:
            def go(reason: Optional[Refused]) -> Any:
                if way == "spill":
                    recovery.open_spill()
                recovery.guarded(lambda: recovery.extend(tape, deferred))
                if self._respected():  # a loss that the script has read is made again, from the results
                    deferred.forgets(place_of(t).slot for t in self._recorded())  # type: ignore[union-attr]
                if way == "two-pass" and self._asks_for_a_number():
                    raise Refused(NUMBER)
                count = recovery.guarded(each if way == "each" else lambda: deferred.make_real(way))
                recovery.spill.opened()  # what the script makes of real results is not recorded: nothing else can help
                self._replace(self._real)
                if self._lacking():
                    raise Refused("a result without values is left")
                result = self._with_values()
                for record in records_of(tape) if count and way == "two-pass" else ():
                    record.twice = True
                if count and tape.step.preemptive and way not in ("two-pass", "each"):
                    recovery.sizes.whole(recovery.report, reason)
                elif count and not tape.step.preemptive:
                    said = "two-pass" if way == "each" else way
                    recovery.report.survived(failure, Survival(said, reason, deferred.plan.batch, count))
                return result

            return go

        on_gpu = ["host", "spill"] if any(known.device.type == "cuda" for known in deferred.plan.slots.values()) else []
        ways = ("batch", *on_gpu) if str(why) == TWICE else ("two-pass", "each", "batch", *on_gpu)
        return recovery.recover(failure, [by(way) for way in ways], why=why)

    def _differentiates_twice(self) -> bool:
        """Whether gradients are computed that will be differentiated: results of pieces have no such graph."""
        return self._name == "grad" and bool(self._kwargs.get("create_graph") or len(self._args) > 4 and self._args[4])

    def _asks_for_a_number(self) -> bool:
        """Whether an argument without values is a number that a module has computed, such as a loss."""
        known, slots = self._deferred.plan.slots, [place.slot for place in self._lacking()]
        return any(known[s].whole for s in slots if s in known and self._deferred.maker(s).module is not None)

    def _result(self) -> Any:
        """Records the function on results without values, or computes the values where it cannot be recorded."""
        tape, deferred, args = self._tape, self._deferred, self._args
        if self._name == "backward":
            slot, plan = place_of(args[0]).slot, deferred.plan  # type: ignore[union-attr]
            if not plan.slots[slot].fixed:
                raise Refused("backward is called on a result that is not a scalar")
            cut = any(plan.cuts[i].outside for i in needed(tape, [slot]))
            raise Refused(_SAME_FOR_OTHER_ROWS if cut else _OTHER_ROWS)
        if self._name == "grad":
            raise Refused(WITH_RESPECT)
        if self._name == "__setitem__" and not self._changes and torch._C.is_grad_enabled() and tape.may_begin(args[0]):
            begun = uniform(args[0])
            if begun is not None and filled(self._recovery, tape, self._func, begun, args, self._kwargs):
                return None
        entry = Entry(self._func, None, tape.encode(args), tape.encode(self._kwargs))
        if changes(self._name):
            if not changes_deferred(self._name, args):
                raise Refused(
                    "a tensor from outside the step is updated in place from a result whose values are not in memory"
                )
            entry.inplace = True
            changed(self._recovery, tape, deferred, entry, args[0])
            return args[0] if self._name != "__setitem__" else None
        try:
            leaves, tree = self._recovery.result(tape, deferred, entry)
        except Refused:
            slots = (deferred.plan.slots[place_of(t).slot] for t in self._recorded())  # type: ignore[union-attr]
            if any(known.requires_grad for known in slots):
                raise
            return self._asked()  # an accuracy, for example
        if not any(isinstance(leaf, Slot) for leaf in leaves):
            return self._asked()
        return self._recovery.postponed(tape, deferred, entry, leaves, tree)

    def _asked(self) -> Any:
        """What the function returns for the values of the whole batch."""

        def valued(t: Any) -> Any:
            place = place_of(t) if isinstance(t, torch.Tensor) else None
            if place is None or not place.deferred:
                return t
            deferred = place.tape.deferred
            real = deferred.real(place.slot) if self._name == "__repr__" else None  # it prints that it has a graph
            return deferred.value(place.slot) if real is None else real

        args, kwargs = mapped(valued, self._args), mapped(valued, self._kwargs)
        with torch._C.DisableTorchFunctionSubclass(), in_place():
            result = self._func(*args, **kwargs)
        if self._name in ("numpy", "__array__"):
            self._deferred.share(self._lacking())
        return result
