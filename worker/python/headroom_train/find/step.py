"""A training run's step, made on any number of rows as the script makes it: forward, loss, backward, and the
optimizers' steps."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple, Optional

import torch

from ..failure import clean, is_out_of_memory
from ..hooks.genuine import backward
from ..proof.rows import arguments, perform
from ..tape.found import as_they_are
from ..tape.snapshot import buffers, parameters
from ..tape.tape import Tape, place_of, random_state, set_random_state
from ..tape.trees import flatten
from .copies import Copies
from .meter import Gpu, Host, settled
from .stretch import Repeated, Stretch, release

SLOW = 2.0  # seconds of a step that is made only once


class Part(NamedTuple):
    """A part of the step, from a module's call to ``backward``."""

    tape: Tape
    targets: Sequence[int]  # the slots of what backward is called on; empty if that is not known
    held: Sequence[tuple[weakref.ref[torch.Tensor], int]]  # what the script held then, with the slots
    times: int  # how often the step contains such a part


class Tried(NamedTuple):
    """What a trial has shown. Amounts are in bytes."""

    rows: int
    fits: bool
    peak: int = 0  # of forward and backward
    first: int = 0  # as peak, with nothing left of a step before; 0 if that is not known
    update: int = 0  # the peak of the optimizers' steps
    capacity: int = 0
    seconds: float = 0.0
    failure: Optional[dict[str, Any]] = None  # what is known of it


class Kept(NamedTuple):
    """What the script still holds of a part's results."""

    updating: frozenset[int]  # slots, until the optimizer's step
    always: frozenset[int]  # of these, until the same results of the next step are there


class Step:
    """The step. ``updates`` are the optimizers, each with its own ``step``. If ``kept`` is true, gradients stay in
    memory between steps. ``survives`` says whether the script holds a result until the next step makes the same one;
    ``own`` is how many bytes of the host's memory headroom takes, and ``evidence`` says what is known of a failure. The
    process can do nothing but trials from now on."""

    def __init__(
        self,
        parts: Sequence[Part],
        updates: Sequence[tuple[torch.optim.Optimizer, Callable]],
        kept: bool,
        survives: Callable[[torch.Tensor], bool],
        own: int = 0,
        evidence: Callable[[BaseException], dict[str, Any]] = lambda failure: {},
    ) -> None:
        self._updates, self._kept, self._evidence = updates, kept, evidence
        modules = [e.module for part in parts for e in part.tape.entries if e.module is not None]
        self._modules = modules
        groups = [g for optimizer, _ in updates for g in optimizer.param_groups]
        every = [*parameters(modules), *(p for g in groups for p in g["params"])]
        self._params = [*{id(p): p for p in every}.values()]
        self._buffers = buffers(modules)
        before = settled()
        stretches = [Stretch(part.tape, part.targets) for part in parts]
        own += max(0, settled() - before)  # what the trials on a few rows have had Python import
        # A part without a loss is one that the script never calls backward on.
        self._parts = [(s, part) for s, part in zip(stretches, parts) if s.targets]
        self._holds = [self._held(part, survives) for _, part in self._parts]
        self._last = [_last_uses(s.tape) for s, _ in self._parts]
        self._together = max((_together(s, part) for s, part in self._parts), default=0)
        self._stays = sum(_staying(part, held) for (_, part), held in zip(self._parts, self._holds))
        self._random = random_state()
        self._before, self._states = Copies([*self._params, *self._buffers]), Copies(self._state())
        self.rows = max((s.batch for s, _ in self._parts), default=0)
        self.times = max((part.times for _, part in self._parts), default=0)
        for p in self._params:
            p.grad = None
        self._seeds: dict[int, torch.Tensor] = {}
        for stretch, _ in self._parts:
            self._seeds.update(stretch.released())
        self._put_back()
        self.meter: Any = Gpu() if any(p.is_cuda for p in self._params) else Host(own)
        self.meter.start()

    def held(self) -> dict[str, Any]:
        """What the memory that does not depend on rows is for, in bytes, and on what device."""
        amounts = {
            "weights": _bytes(self._params),
            "gradients": _bytes(p for p in self._params if p.requires_grad),
            "states": _bytes(self._state()),
            "full": _bytes(t for t in self._state() if t.dtype == torch.float32),
            "together": self._together,
            "stays": self._stays,
            "keeps": self._kept and self.times == 1,
        }
        meter, now = self.meter, self.meter.read()
        device = {"device": meter.device, "uuid": meter.uuid, "beside": meter.beside, "reserved": meter.reserved}
        return {**device, "capacity": now.capacity, "allocated": now.held, **amounts}

    def _state(self) -> list[torch.Tensor]:
        """The tensors of the optimizers' states."""
        states = [s for optimizer, _ in self._updates for s in optimizer.state.values() if isinstance(s, dict)]
        return [v for s in states for v in s.values() if isinstance(v, torch.Tensor)]

    def _held(self, part: Part, survives: Callable[[torch.Tensor], bool]) -> Kept:
        there = {slot: t for t, slot in ((ref(), slot) for ref, slot in part.held) if t is not None}
        always = frozenset(slot for slot, t in there.items() if survives(t))
        others = (*self._params, *self._buffers, *part.tape.outside)
        known = {t.untyped_storage().data_ptr() for t in others if t.layout == torch.strided}
        with torch._C.DisableTorchFunctionSubclass():  # what has no values after a failure would get them
            for t in there.values():
                place = place_of(t)
                if place is not None and place.deferred and place.tape.deferred is not None:
                    place.tape.deferred.free()
                if t.layout == torch.strided and t.untyped_storage().data_ptr() not in known:
                    release(t)
        return Kept(frozenset(there), always)

    def tried(self, rows: int, most: int = 0, evaluates: bool = False) -> Tried:
        """Makes the step on so many rows, twice if it is fast, or what it is in an evaluation. ``most`` is how many
        bytes may be held meanwhile; 0 is as many as there are. Everything is as before afterwards, whether the step
        fits or not.

        On a GPU everything gets its memory in the order of a new process: the weights, then what forward and backward
        need, and the states of the optimizers once these are done. Other orders leave other gaps, where less fits.
        """
        failed, known = None, dict[str, Any]()
        self._before.release()
        released = self._states.release()
        self.meter.start()
        self._before.put_back()
        with self.meter.within(most):
            try:
                result = self._evaluated(rows, released) if evaluates else self._made(rows, released)
            except Exception as e:
                if not is_out_of_memory(e):
                    raise
                failed, known = e, self._evidence(e)
            clean(failed)
            capacity = self.meter.read().capacity
        self._put_back()
        if failed is not None:
            return Tried(rows, False, capacity=capacity, failure=known)
        return result

    def _made(self, rows: int, released: bool) -> Tried:
        before: list[dict[int, torch.Tensor]] = [{} for _ in self._parts]
        peak = first = update = 0
        seconds = 0.0
        for again in (False, True):
            began = time.perf_counter()
            for p in self._params:
                if not self._kept:
                    p.grad = None
            for index, (_, part) in enumerate(self._parts):
                for _ in range(min(2, part.times)):  # from the second on, there are gradients
                    before[index] = self._pass(index, rows, before[index])
            now = self.meter.read().peak
            if self.times == 1 and not again:
                first = now + (_bytes(self._states.each()) if released else 0)
            peak = max(peak, now)
            self.meter.kept()
            if released and not again:
                self._states.put_back()
            for optimizer, step in self._updates:
                step(optimizer)
            update = max(update, self.meter.read().peak)
            self.meter.kept()
            before = [{s: t for s, t in b.items() if s in held.always} for b, held in zip(before, self._holds)]
            seconds = time.perf_counter() - began
            if seconds > SLOW and not released and not self._kept and not any(before):
                break
        parts = sum(min(2, part.times) for _, part in self._parts)
        several = max(1, parts // max(1, len(self._parts)))
        return Tried(rows, True, peak, first, update, self.meter.read().capacity, seconds / several)

    def _evaluated(self, rows: int, released: bool) -> Tried:
        """Makes the forward passes twice, without gradients and in evaluation mode. Those of the last step are still in
        memory, and the results of the first passes are when the second ones are made, as in a script's loop."""
        if released:
            self._states.put_back()
        for p in self._params:
            p.grad = p.detach().clone() if p.requires_grad else None
        before: list[dict[int, torch.Tensor]] = [{} for _ in self._parts]
        began = time.perf_counter()
        with evaluating(self._modules):
            for _ in range(2):
                for index in range(len(self._parts)):
                    before[index] = self._pass(index, rows, before[index], evaluates=True)
        now = self.meter.read()
        seconds = (time.perf_counter() - began) / 2 / len(self._parts)
        return Tried(rows, True, now.peak, capacity=now.capacity, seconds=seconds)

    def _pass(
        self, index: int, rows: int, before: dict[int, torch.Tensor], evaluates: bool = False
    ) -> dict[int, torch.Tensor]:
        """Makes one part of the step. ``before`` are the results of the step before that the script still holds.
        Returns those of this one that it holds until the optimizer's step."""
        stretch, tape = self._parts[index][0], self._parts[index][0].tape
        held, last = self._holds[index], self._last[index]
        some, env = Repeated(stretch.batch, rows, self._seeds), dict[int, torch.Tensor]()
        with torch.set_grad_enabled(not evaluates):
            for i, entry in enumerate(tape.entries):
                args, kwargs = arguments(tape, entry, stretch.cuts[i], env, some)
                if entry.snapshot is not None:
                    entry.snapshot.put_back()
                leaves = flatten(perform(entry, args, kwargs))[0]
                del args, kwargs
                for slot, value in zip(entry.slots, leaves):
                    if slot is not None:
                        env[slot] = value
                        before.pop(slot, None)
                del leaves
                value = None
                for slot in last.get(i, ()):
                    if slot not in held.updating and slot not in stretch.targets:
                        env.pop(slot, None)
            total: Any = sum(env[s].float().sum() for s in stretch.targets)
        env = {s: t for s, t in env.items() if s in held.updating}
        if not evaluates:
            backward(total)
        return env

    def _put_back(self) -> None:
        for p in self._params:
            p.grad = None
        self._before.put_back()
        self._states.put_back()
        set_random_state(self._random)


@contextmanager
def evaluating(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """A context in which modules are in evaluation mode."""
    training = [m for module in modules for m in module.modules() if m.training]
    try:
        for m in training:
            m.training = False
        with as_they_are():
            yield
    finally:
        for m in training:
            m.training = True


def _together(stretch: Stretch, part: Part) -> int:
    """The bytes of a batch and of those of its results that the script holds: all of them are there, in however many
    pieces the step is made."""
    held = [t for t in (ref() for ref, _ in part.held) if t is not None]
    with torch._C.DisableTorchFunctionSubclass():
        return _bytes([*(part.tape.outside[i] for i in stretch.stretched()), *held])


def _staying(part: Part, held: Kept) -> int:
    """The bytes of those results of a part that the script holds until the next step makes its own."""
    with torch._C.DisableTorchFunctionSubclass():
        return _bytes(t for t in (ref() for ref, slot in part.held if slot in held.always) if t is not None)


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _last_uses(tape: Tape) -> dict[int, list[int]]:
    """The slots that no later call uses, by the index of the call that uses them last."""
    last: dict[int, int] = {}
    for i, entry in enumerate(tape.entries):
        last.update(dict.fromkeys((s for s in entry.slots if s is not None), i))
        last.update(dict.fromkeys(entry.references()[0], i))
    found: dict[int, list[int]] = {}
    for slot, i in last.items():
        found.setdefault(i, []).append(slot)
    return found
