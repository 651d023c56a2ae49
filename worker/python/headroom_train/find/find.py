"""headroom find: lets the first optimizer step be made, then makes it on the numbers of rows for which headroom asks.

The process gets no further than that: neither weights nor random numbers change after the first step, and none of the
script's code runs. Then it waits until headroom ends it.
"""

from __future__ import annotations

import gc
import linecache
import os
import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from types import FrameType
from typing import Any, Optional

import torch

from ..account.source import source
from ..failure import OURS, Refused, is_out_of_memory
from ..hooks.swaps import Weak
from ..ranks.collectives import replaying
from ..recover.backward import kind_of, planned
from ..recover.check import ENDING
from ..tape.tape import Tape, place_of
from ..tape.trees import tensors_in
from ..wire.report import Report
from ..wire.wire import Wire
from ..world import talked
from .batches import Batches
from .meter import data
from .step import Part, Step, Tried

_TORCH = torch.__file__.rpartition("/")[0] + "/"
# What leaves gradients in memory between steps.
_KEEPS = re.compile(r"set_to_none\s*=\s*False|\.grad(\.data)?\.zero_\(|zero_grad\(\s*False")


class Find:
    """Takes the place of :class:`headroom_train.recover.check.Check`."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._losses: dict[int, list[int]] = {}  # slots on which backward was called, by the id of a tape
        self._parts: dict[tuple, Part] = {}  # by kind
        self._counted: weakref.WeakSet[Tape] = weakref.WeakSet()
        self._updates: list[tuple[torch.optim.Optimizer, Callable]] = []
        self._inside = False  # an optimizer's step is under way
        self._over = False  # the first step is, and trials are made
        self._why = ""  # why the step cannot be repeated
        self._uncut = ""  # why the step cannot be made in pieces
        self._asked: set[tuple] = set()  # kinds of tapes of which it is known whether they can
        self._own = 0  # bytes of the host's memory that headroom takes
        if "_headroom_hook" in sys.modules:
            had = sys.modules["_headroom_hook"].held
            self._own = max(0, data() - had) if had else 0
        look = os.environ.get("HEADROOM_LOOK", "")
        self._batches = Batches(int(look) if look.isdigit() else 0)
        self._batches.watch()
        Tape.closes = self._closes

    def backward(self, recorder: Any, tape: Tape, args: tuple, kwargs: dict) -> None:
        """Called when a backward call has succeeded, while its tape still exists."""
        place = place_of(args[0])
        if place is None:
            return
        self._losses.setdefault(id(tape), []).append(place.slot)
        kind = kind_of(tape)
        if self._uncut or kind in self._asked:
            return
        self._asked.add(kind)
        given = args[1] if len(args) > 1 else kwargs.get("gradient")
        self._uncut = recorder.guarded(lambda: _why_whole(tape, place.slot, given, recorder.sizes))

    def function(self, recorder: Any, gradients_of: Callable, models: Sequence[torch.nn.Module]) -> None:
        """Called for a successful call of a function decorated with headroom_train.step."""
        self._why = "the step is a function that is decorated with headroom_train.step, and what it calls is not known"

    def _closes(self, tape: Tape) -> None:
        if self._over or not _has_loss(tape):
            return
        targets = self._losses.pop(id(tape), [])
        kind = kind_of(tape)
        before, again = self._parts.get(kind), tape in self._counted
        self._counted.add(tape)
        times = (before.times if before is not None else 0) + (not again)
        if before is not None and not again and _size(before.tape) > _size(tape):
            self._parts[kind] = before._replace(times=times)
            return
        if tape.why_not:
            self._why = self._why or tape.why_not
        # The tape forgets its calls when it is closed.
        own = Tape()
        own.entries, own.outside, own.contents, own.count = [*tape.entries], [*tape.outside], tape.contents, tape.count
        there = [(t, place_of(t)) for t in (ref() for ref in tape.live) if t is not None]
        held = [(Weak(t), place.slot) for t, place in there if place is not None]
        self._parts[kind] = Part(own, targets, held, times)

    def instead(self, recorder: Any, step: Callable, guarded: Callable, why: str = "") -> Callable:
        """Returns a replacement for an optimizer's step. ``guarded`` makes the step as in training. Without a
        ``recorder`` nothing is recorded, and ``why`` says why; then not even the first step is made."""
        plain = getattr(step, "__wrapped__", step)  # without the script's hooks

        @wraps(step)
        def looked(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
            if self._inside:  # a wrapper around an optimizer calls that optimizer's step within its own
                return step(optimizer, *args, **kwargs)
            if any(a is not None for a in (*args, *kwargs.values())):
                self._end(recorder, "the optimizer's step is given a function, which computes the gradients")
            if recorder is None:
                self._end(None, why)
            if torch._C._current_graph_task_id() != -1:
                self._end(recorder, "the optimizer's step is a part of the backward pass")
            if any(o is optimizer for o, _ in self._updates):
                self._end(recorder)
            self._inside, result = True, None
            before = talked()
            try:
                result = guarded(optimizer)
            finally:
                self._inside = False
            if talked() != before:
                self._why = self._why or "the optimizer's step communicates with other ranks"
            self._updates.append((optimizer, plain))
            if not self._left():
                self._end(recorder)
            return result

        return looked

    def _left(self) -> bool:
        """Whether there are optimizers that have made no step, and train something else than those that have."""
        stepped = {id(p) for o, _ in self._updates for g in o.param_groups for p in g["params"]}
        every = [o for o in gc.get_objects() if issubclass(type(o), torch.optim.Optimizer)]
        groups = [g for o in every for g in getattr(o, "param_groups", ())]
        return any(id(p) not in stepped for g in groups for p in g["params"] if p.requires_grad)

    def _end(self, recorder: Any, why: str = "") -> None:
        """Makes the trials, and waits for the end of the process."""
        why = why or self._why
        try:
            if why:
                raise Refused(why)
            if recorder.observe is not None:
                raise Refused(recorder.observe)
            self._over = True
            recorder.guarded(lambda: self.answer(self._step(recorder)))
        except Refused as refused:
            wire = self._report.wire()
            if wire is not None:
                wire.trial("cannot", why=str(refused))
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # there is nothing to save
        time.sleep(ENDING)
        raise SystemExit("headroom find: headroom did not end this process, so it is exiting by itself")

    def _step(self, recorder: Any) -> Step:
        frames, evidence = _frames(), self._report.evidence
        kept = any(map(_keeps, frames))
        step = Step([*self._parts.values()], self._updates, kept, lambda t: _survives(t, frames), self._own, evidence)
        if not step.rows:
            raise Refused("no loss of a module that the optimizer trains was seen")
        return step

    def answer(self, step: Step) -> None:
        """Makes the step on each number of rows for which headroom asks."""
        wire: Optional[Wire] = self._report.wire()
        if wire is None:
            return
        whole = not any(told.get("way") != "step" for told in self._report.told)
        known = {"whole": whole, "why": self._uncut, "batches": self._batches.told(), **_rank()}
        asked = wire.trial("ready", rows=step.rows, times=step.times, **known, **step.held())
        while asked is not None:
            rows, most = asked.get("rows"), asked.get("most", 0)
            if not isinstance(rows, int) or rows < 1 or not isinstance(most, int):
                return
            evaluates = bool(asked.get("evaluates"))
            try:
                with torch._C.DisableTorchFunctionSubclass(), replaying():
                    known = _told(step.tried(rows, most, evaluates))
            except Exception as e:
                if not evaluates:
                    raise
                # In evaluation mode modules may return something else, on which the loss cannot be computed.
                known = {"rows": rows, "fits": False, "why": f"{type(e).__name__}: {e}"}
            asked = wire.trial("tried", **known)


def _rank() -> dict[str, int]:
    """Which of how many ranks this process is."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized():
        return {}
    return {"rank": dist.get_rank(), "world": dist.get_world_size()}


def _told(tried: Tried) -> dict[str, Any]:
    known = tried._asdict()
    failure = known.pop("failure") or {}
    known.update({k: v for k, v in failure.items() if v and k in ("requested", "free", "reserved", "fragments")})
    if "reserved" in known:  # of a GPU
        known["allocated"] = failure["allocated"]
    return known


def _why_whole(tape: Tape, loss: int, given: Any, sizes: Any) -> str:
    """Why a step cannot be made in pieces; empty if it can, or if memory is too scarce to tell."""
    try:
        if tape.why_not:
            return tape.why_not
        with torch._C.DisableTorchFunctionSubclass():
            planned(tape, loss, given, sizes)
    except Refused as why:
        return str(why)
    except Exception as e:
        if not is_out_of_memory(e):
            raise
    return ""


def _has_loss(tape: Tape) -> bool:
    deferred = tape.deferred
    return bool(tape.scalars) or deferred is not None and any(map(deferred.plan.is_scalar, deferred.plan.slots))


def _size(tape: Tape) -> int:
    return sum(t.numel() for t in tape.outside)


def _frames() -> list[FrameType]:
    """The frames of the script's code, and of libraries other than PyTorch, innermost first."""
    found: list[FrameType] = []
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((OURS, _TORCH, "<")):
            found.append(frame)
        frame = frame.f_back
    return found


def _keeps(frame: FrameType) -> bool:
    """Whether a file of the script seems to leave gradients in memory between steps."""
    name = frame.f_code.co_filename
    return "site-packages" not in name and _KEEPS.search("".join(linecache.getlines(name))) is not None


def _survives(tensor: torch.Tensor, frames: Sequence[FrameType]) -> bool:
    """Whether the script still holds a tensor when the next step makes its own: not if only functions hold it that
    return before, which they do if they are called in no loop of theirs."""
    found = False
    for frame in frames:
        if any(t is tensor for t in tensors_in([*frame.f_locals.values()])):
            found = True
            text = source(frame.f_code.co_filename)
            if text is None or text.in_loop(frame.f_lineno):
                return True
    return not found
