"""This process's reports. They go to headroom over the wire. If there is no headroom, reports on
failures are shown to the user instead."""

from __future__ import annotations

import atexit
import os
import re
import sys
import time
from collections.abc import Container
from contextlib import suppress
from types import FrameType
from typing import Any, Callable, NamedTuple, Optional

import torch

from ..account.account import Account
from ..failure import OURS, Mixed, OutOfMemoryError, Refused, Survival, debugged, is_out_of_memory
from ..memory import may_ask, pooled, unreserved
from ..replay.sizes import Sizes
from ..tape.graph import sequence
from ..world import training
from . import beside
from .phases import Phases
from .trackers import Scalars, Trackers
from .wire import Wire, notice

EVERY = 0.2  # seconds between two reported steps, unless a step has failed or is cut in a new way
# When an account of all memory is taken: at a failure, where memory begins to grow, and when headroom asks.
FAILED, GROWS, ASKED = "failed", "grows", "asked"
RARELY = 50  # accounts of failures take at most 1/RARELY of the time
CUTS = 1000  # the most pairs of rows and pieces that are remembered
_SIZE = r"([\d.]+) ?([KMGT]iB|GB|MB|bytes)"
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "MB": 1 << 20, "GiB": 1 << 30, "GB": 1 << 30, "TiB": 1 << 40}
# The functions that generate, in Transformers, TRL and most other libraries.
_GENERATES = {"generate", "_generate", "_generate_and_score_completions"}
_OPERATIONS = {"__torch_function__", "__torch_dispatch__"}  # what torch calls in place of an operation
_ELSEWHERE = (os.path.join(os.path.dirname(torch.__file__), ""), OURS)
_TORCH = _ELSEWHERE[0]
_OPTIM = os.path.join(_TORCH, "optim", "")
_OPTIMIZER = os.path.join(_OPTIM, "optimizer.py")  # calls the steps of all optimizers


class _SoFar(NamedTuple):
    """A step that has been survived so far."""

    mark: object  # of its failure, and of the copies of that
    done: dict[str, Any]  # what headroom is told
    text: str  # what the user is told
    at: float  # when it was survived, in seconds
    told: list[dict[str, Any]]  # what Report.told has of it


class Report:
    """This process's reports to headroom. ``watches`` is the reason why this process only observes
    failures; it is empty if the process recovers from them."""

    def __init__(self, watches: str = "") -> None:
        self._trackers, self._scalars = Trackers(), Scalars()
        self._watches = {"mode": "observe", "why": watches} if watches else {}
        self._greeted: Optional[Wire] = None
        self._steps = 0
        self._next = 0.0
        self._open = False  # whether headroom has been asked about a failure that is not reported as survived yet
        self._so_far: Optional[_SoFar] = None
        self.sizes = Sizes()  # those of the newest step
        self.phases = Phases()
        self._ended = time.monotonic()  # when the previous step ended
        self.account = Account(self._holds, _foreign, lambda: self.memory(GROWS))
        self.evaluation = Account(self._holds, _foreign, lambda: self.memory(GROWS), evaluating=True)
        self._evaluated = 0  # calls of models with gradients in evaluation mode since the newest step
        self._begun = 0  # the number of autograd's first node in the step that is under way
        self._failing = -1  # the step whose failure the newest account is about
        self._saved = False  # PyTorch's snapshot of the memory, or it could not be
        self._rests = 0.0  # when there may be another
        self._grown: Any = None  # what was reported to hold memory that grows
        self._cuts: set[tuple[int, int]] = set()  # pairs of rows and pieces that were reported
        self._warned: set[str] = set()  # beginnings of the warnings that were shown
        self.told: list[dict[str, Any]] = []  # the newest failures that were survived or refused
        self.trained: Container[Any] = ()  # the parameters that optimizers train
        self.observes: Optional[str] = None  # why nothing is recorded any more
        self.last: Callable[[], None] = lambda: None  # what is to be said before the process ends
        self.left = False  # the worker has been taken out
        atexit.register(self.ends)

    def wire(self) -> Optional[Wire]:
        """This process's connection to headroom, on which the hello has been sent; None if there is
        no headroom."""
        wire = Wire.get()
        if wire is not None and wire is not self._greeted:
            self._greeted = wire
            atexit.unregister(self.ends)
            atexit.register(self.ends)  # before the wire says bye
            wire.hello(torch=str(torch.__version__), training=training(), **self._watches)
        return wire

    def failed(self, rows: int, failure: BaseException) -> None:
        """Report that a call of ``rows`` rows has failed. What becomes of it is reported later."""
        self.over()
        self._next, self._open = 0.0, True
        self._grew()
        wire = self.wire()
        if wire is not None:
            said = {name: value for name, value in self.evidence(failure).items() if value}
            # Many exceptions' messages contain no amounts.
            wire.oom(rows=rows, micro=rows, step=self._steps + 1, **{**_memory(), **said})
        self.memory(FAILED, failure)

    @property
    def steps(self) -> int:
        """Optimizer steps that have ended."""
        return self._steps

    def limit(self) -> int:
        """How many rows to run at once from the start, learned in an earlier attempt; 0 if nothing was learned."""
        wire = self.wire()
        return 0 if wire is None else wire.limit

    def asked(self) -> int:
        """How many rows to run at once at most, as the user has asked; 0 for any number."""
        wire = self.wire()
        return 0 if wire is None else wire.asked

    def found(self) -> bool:
        """Whether that number was found in a trial, which has shown that a step can be made in such pieces."""
        wire = self.wire()
        return wire is not None and wire.found

    def survived(self, failure: BaseException, how: Survival, over: bool = True) -> None:
        """Report that a failure was survived. Where a loss is computed from several scalars, each of them
        survives the failure; only the first one is reported, unless there was a new failure meanwhile. If it is not
        ``over``, the step may still be refused: nothing is said before :meth:`over` is called, and nothing at all if
        the same failure is refused."""
        why = str(how.why or "")
        told = {"where": _where(failure), "how": str(how._replace(why=None)), "way": how.way, "why": why}
        self.told = [*self.told[-15:], told]
        mark = getattr(failure, "_headroom_reported", None)
        reported, self._open = mark is not None and not self._open, False
        so_far = self._so_far if self._so_far is not None and self._so_far.mark is mark else None
        if reported and (so_far is None or not over):
            if so_far is not None:
                so_far.told.append(told)
            return
        if so_far is None:
            self.over()
        failure._headroom_reported = mark = object()  # type: ignore[attr-defined]
        done = {"way": how.way, "rows": how.rows, "pieces": how.number, "why": why, **evidence(failure)}
        done["step"] = self._steps + 1
        self._so_far = _SoFar(mark, done, f"out of memory, survived: {how}; {short(failure)}", time.monotonic(), [told])
        if over:
            self.over()

    def over(self) -> None:
        """Called when a step is over, or another one has begun or failed: if it was survived so far, that is said
        now."""
        so_far, self._so_far = self._so_far, None
        if so_far is None:
            return
        wire = self.wire()
        if wire is not None:
            wire.survived(**so_far.done, ago=time.monotonic() - so_far.at)
        self._tell(so_far.text, wire is not None)

    def refused(self, failure: Optional[BaseException], why: Refused, training: bool = True) -> None:
        """Report that a failure is left to the script. ``training`` is false for a call without gradients, whose rows
        say nothing about those of a training step."""
        if self._so_far is not None and self._so_far.mark is getattr(failure, "_headroom_reported", None):
            self.told = [told for told in self.told if not any(told is t for t in self._so_far.told)]
            self._so_far = None
        self.over()
        if failure is not None:
            self._grew()
            # Kept here, it would keep what its frames hold.
            failure._headroom_refused = True  # type: ignore[attr-defined]
        self.told = [*self.told[-15:], {"where": _where(failure), "why": str(why), "code": why.code}]
        wire = self.wire()
        if wire is not None:
            if failure is not None:
                self.memory(FAILED, failure)
            reason = {"code": why.code, "mixed": training and isinstance(why, Mixed)}
            wire.refused(
                str(why), step=self._steps + 1, **reason, **(self.evidence(failure) if failure is not None else {})
            )
        self._tell(f"out of memory, and this step cannot be run in pieces: {why}", wire is not None)

    def ends(self) -> None:
        """Called when the process ends. If that is because memory ran out where nothing is recorded, report why."""
        self.last()
        self.over()
        # Set by Python when it prints an exception that nobody has caught.
        error = chained = getattr(sys, "last_value", None)
        if error is not None and is_out_of_memory(error):
            self.memory(FAILED, error)
        while chained is not None and not getattr(chained, "_headroom_refused", False):
            chained = chained.__cause__ or chained.__context__
        if error is not None and (isinstance(error, MemoryError) or is_out_of_memory(error)):
            self._grew()
        if self._watches or error is None or chained is not None or not is_out_of_memory(error):
            return
        from .ending import Ending, ending, line  # not needed for training

        found = ending(error, self.trained) if self.observes is None else Ending(self.observes)
        wire = self.wire()
        if wire is not None:
            known = self.evidence(error)
            known.update(where=line(error, _foreign) or known["where"], phase="" if found.apart else known["phase"])
            wire.refused(found.why, hint=found.hint, step=self._steps + 1, **known)
        else:
            say(f"out of memory, and this step cannot be run in pieces: {found.why}")

    def remark(self, text: str, level: str = "info", **figures: Any) -> None:
        """Add a sentence to the journal, with the figures that it is about. With the level "warning" the sentence
        is also shown to the user at once, unless an earlier warning was the same up to the first semicolon. If there is
        no headroom, the sentence is always shown."""
        if level == "warning":
            begins = text.partition(";")[0]
            level = "info" if begins in self._warned else level
            self._warned.add(begins)
        wire = self.wire()
        if wire is not None:
            wire.note(text, level, **figures)
        if wire is None or level == "warning":
            self._tell(text, wire is not None)

    def checked(self, found: list[dict[str, Any]]) -> None:
        """Report what :mod:`headroom_train.recover.check` has found."""
        wire = self.wire()
        if wire is not None:
            wire.check(found=found)
        else:
            say(f"check: {found}")

    def here(self) -> str:
        """The line of the user's code that is being run."""
        return _where(None)

    def step(self) -> None:
        """Count an optimizer's step, and report it if it is due: the first step, the first one
        after a failure, each one that is cut in a new way, and otherwise one every 0.2 s."""
        self.over()
        self._steps += 1
        if self._evaluated:
            self._evaluated = 0
            self.evaluation.anew()
        asks = self._greeted if self._greeted is not None and self._greeted.asked_to_look else None
        self.account.step(self._steps, asks is not None)
        if asks is not None:
            asks.asked_to_look = False
        self._begun = sequence()
        if self._greeted is not None and self._greeted.asked_for_memory:
            self._greeted.asked_for_memory = False
            self.memory(ASKED)
        now, ran = time.monotonic(), self.sizes.ran()
        phases = self.phases.step_ends(whole=ran[1] == 1)
        due = now >= self._next or ran not in self._cuts and len(self._cuts) < CUTS
        if due:
            self._next = now + EVERY
        # Whether the next step will be due if it takes as long as this one.
        self.phases.measuring = now + (now - self._ended) >= self._next
        self._ended = now
        if self._greeted is not None:
            self._greeted.made = (self._steps, now)
        if not due:
            return
        self._cuts.add(ran)
        wire, (rows, pieces) = self.wire(), ran
        spilled = self.sizes.spill.figures() if self.sizes.spill is not None else {}
        self._scalars.made(self._steps, pieces, spilled.get("spilled", 0))
        if wire is not None:
            limit = self.sizes.limit()
            known = {} if limit is None else {"limit": limit}
            wire.made = (self._steps, now)
            for run in self._trackers.news():
                wire.tracks(**run)
            wire.step(step=self._steps, rows=rows, pieces=pieces, **known, **_memory(), **phases, **spilled)

    def evaluates(self) -> None:
        """Count a call of a model in evaluation mode that computes gradients."""
        self._evaluated += 1
        self.evaluation.step(self._evaluated)

    def memory(self, why: str, failure: Optional[BaseException] = None) -> None:
        """Report what all of this process's memory is held for. Of the failures of a step, only the first has an
        account. It is taken here, in the thread whose step has ended or failed: another one would see graphs that are
        being built, and tensors that are about to be freed."""
        began = time.monotonic()
        if why == FAILED:
            if self._failing == self._steps or began < self._rests:
                return
            self._failing = self._steps
            self._snapshot()
        wire = self.wire()
        if wire is None:
            return
        try:
            from ..account.inventory import memories  # not needed for training

            cuda = torch.cuda.is_initialized()
            spill = self.sizes.spill
            host = why == ASKED or not cuda or not isinstance(failure, OutOfMemoryError)
            for memory in memories(self._begun, failure, host, cuda, spill.ids() if spill is not None else ()):
                wire.memory(why=why, step=self._steps + (why == FAILED), **memory._asdict())
        except Exception:
            debugged()
        self._rests = time.monotonic() + RARELY * (time.monotonic() - began)

    def _snapshot(self) -> None:
        """When memory runs out for the first time, write PyTorch's own snapshot of it to where the user has asked for
        it. It has the lines that have allocated, if the script has PyTorch record them."""
        path = os.environ.get("HEADROOM_SNAPSHOT", "")
        if not path or self._saved:
            return
        self._saved = True
        if not torch.cuda.is_initialized():
            self.remark("no snapshot of the memory was written: PyTorch makes none of the CPU's memory", "warning")
            return
        made = False
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            made = True
            torch.cuda.memory._dump_snapshot(path)
            self.remark(f"PyTorch's snapshot of its memory at the first failure is in {path}")
        except FileExistsError:
            pass  # another process, or an earlier attempt, has been first
        except Exception as e:
            with suppress(OSError):
                if made:
                    os.unlink(path)
            self.remark(f"no snapshot of the memory was written: {type(e).__name__}: {e}", "warning")

    def evidence(self, failure: BaseException) -> dict[str, Any]:
        """What is known of the memory at a failure that has just come up to here."""
        found = evidence(failure)
        return {**found, **self._fragments(failure, found["allocated"])}

    def _fragments(self, failure: BaseException, allocated: int) -> dict[str, Any]:
        """How the free memory of the GPU on which an allocation has failed lies, when so many bytes were ``allocated``;
        empty if that is not known."""
        found = re.search(r"GPU (\d+) has", str(failure))
        if found is None or not may_ask():
            return {}
        try:
            from ..account.inventory import fragmented  # not needed for training

            spill = self.sizes.spill
            return {"fragments": fragmented(int(found[1]), spill.ids() if spill is not None else (), allocated)}
        except Exception:
            debugged()
            return {}

    def _grew(self) -> None:
        """When memory has run out, report what holds memory that grows, if it is known."""
        holder = self.evaluation.failed(self._evaluated) if self._evaluated else None
        holder = holder or self.account.failed(self._steps)
        if holder is not None and holder != self._grown:
            self._holds(holder, "info")

    def _holds(self, holder: Any, level: str = "warning") -> None:
        """Report what holds memory that grows. With the level "warning" the user is told at once; otherwise only if the
        run ends for want of memory."""
        self._grown = holder
        wire = self.wire()
        if level == "warning":
            self.memory(GROWS)
        if wire is not None:
            wire.holds(level=level, **holder._asdict())
        if level == "warning":
            self._tell(str(holder), wire is not None)

    def _tell(self, text: str, told: bool) -> None:
        """Shows the user a line. If headroom has been ``told``, that shows it, though not beside a notebook's cell."""
        if beside.show is not None or not told:
            say(text)

    def leaves(self) -> None:
        """Called when the worker is taken out: nothing is said any more."""
        self.left = True
        atexit.unregister(self.ends)


def evidence(failure: BaseException) -> dict[str, Any]:
    """What an out-of-memory exception says about the memory at that moment, and where it was raised."""
    text = str(failure)
    found = {
        "requested": _size(rf"(?i:tried to allocate|allocate) {_SIZE}", text),
        "capacity": _size(rf"total capacity of {_SIZE}", text),
        "free": _size(rf"of which {_SIZE} is free", text),
        "allocated": _size(rf"{_SIZE} is allocated by PyTorch", text),
    }
    found["allocated"] -= pooled() if found["allocated"] > pooled() else 0
    found["reserved"] = found["allocated"] + _size(rf"{_SIZE} is reserved by PyTorch", text)
    allowed = _size(rf"{_SIZE} allowed", text)
    if allowed:  # the process may use less memory than the device has
        found["capacity"] = allowed
        found["free"] = min(found["free"], max(0, allowed - found["reserved"]))
    return {**found, "phase": _phase(failure), "where": _where(failure)}


def _size(pattern: str, text: str) -> int:
    """The first amount that a pattern finds, in bytes; 0 if there is none."""
    match = re.search(pattern, text)
    return int(float(match[1]) * _UNITS[match[2]]) if match else 0


def _phase(failure: BaseException) -> str:
    """The phase in which a failure happened: forward, backward, update, eval or generation. Only
    frames of libraries show a phase, whatever the user's own functions are called."""
    phase, caller, operation, trace = "forward", "", False, failure.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if code.co_filename.startswith(_TORCH):
            if code.co_name == "_engine_run_backward":
                return "backward"
            if code.co_filename.startswith(_OPTIM):
                phase = "update"
        operation = operation or code.co_name in _OPERATIONS
        if not _foreign(code.co_filename) and caller != _OPTIMIZER and not operation:
            phase = "forward"  # a closure; torch itself calls a step that the user has written
        caller = code.co_filename
        trace = trace.tb_next
    if torch._C.is_grad_enabled() or phase != "forward":
        return phase
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None and not (frame.f_code.co_name in _GENERATES and _foreign(frame.f_code.co_filename)):
        frame = frame.f_back
    return "eval" if frame is None else "generation"


def _where(failure: Optional[BaseException]) -> str:
    """The innermost line of the user's code in the failure's traceback. If there is no such line,
    or no failure, the line of the user's code that is being run."""
    where = ""
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None and _foreign(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is not None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
    trace = None if failure is None else failure.__traceback__
    while trace is not None:
        if not _foreign(trace.tb_frame.f_code.co_filename):
            where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return where


def _foreign(filename: str) -> bool:
    return filename.startswith(_ELSEWHERE) or filename.startswith("<") or "site-packages" in filename


def _memory() -> dict[str, int]:
    if not may_ask():
        return {}
    free, capacity = unreserved()
    return {
        "allocated": torch.cuda.memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "peak": torch.cuda.max_memory_allocated(),
        "free": free,
        "capacity": capacity,
    }


def say(text: str) -> None:
    """Show a line to the user, unless HEADROOM_QUIET is set. Also append it to the file that HEADROOM_LOG names,
    if any."""
    if os.environ.get("HEADROOM_LOG"):
        with open(os.environ["HEADROOM_LOG"], "a") as f:
            f.write(text + "\n")
    if not os.environ.get("HEADROOM_QUIET"):
        (beside.show or notice)(text)


def short(failure: BaseException) -> str:
    return (str(failure).strip().splitlines() or [""])[0][:200]
