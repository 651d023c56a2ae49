"""Which exceptions count as out of memory, and how to clean up after one."""

from __future__ import annotations

import gc
import inspect
import os
import re
import signal
import threading
import traceback
from types import FrameType
from typing import Any, Callable, ClassVar, NamedTuple, Optional

import torch

from .callsite import is_relay

# Since 2.5.
OutOfMemoryError = torch.OutOfMemoryError if hasattr(torch, "OutOfMemoryError") else torch.cuda.OutOfMemoryError
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
OURS = os.path.join(os.path.dirname(__file__), "")  # where all of this package is
_TEXTS = re.compile(
    r"DefaultCPUAllocator: (?:can't|not enough) (?:allocate )?memory"
    r"|CUDA out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|CUDA error: out of memory|HIP out of memory|MPS backend out of memory"
)
# What libraries say that could not allocate memory of their own, and after other failures as well; and what is said of
# a kernel whose code could not be loaded, from its second use on.
_STARVED = re.compile(
    r"(?:CUDNN|CUBLAS|CUSOLVER)_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED|NOT_INITIALIZED)|CUFFT_INTERNAL_ERROR"
    r"|CUDA error: unknown error"
)
LITTLE = 64 << 20  # bytes of a GPU that are free where a library may have found none
# OneDNN also says this if it has no kernel for the tensors.
_ONEDNN = re.compile(r"could not (?:create|execute) a primitive")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception reports that memory for a computation could not be allocated."""
    if isinstance(error, OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    text = str(error)
    if _TEXTS.search(text) is not None:
        return True
    return _ONEDNN.match(text) is not None and _limited() or _STARVED.search(text) is not None and starved()


def interrupts(error: BaseException) -> bool:
    """Whether an exception has nothing to do with the code that it was raised in: Ctrl-C, or what a signal's handler of
    the script's has raised. It is the script's, wherever it comes."""
    if not isinstance(error, Exception):
        return True
    codes, at = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code in codes:
            return True
        at = at.tb_next
    return False


def passes(error: BaseException) -> bool:
    """Whether an exception says nothing about what is tried: memory has run out, or it :func:`interrupts`."""
    return is_out_of_memory(error) or interrupts(error)


def _code_of(handler: Any) -> Any:
    """The code of a signal's handler; None if it is not written in Python."""
    called = handler if hasattr(handler, "__code__") or hasattr(handler, "__func__") else type(handler).__call__
    return getattr(getattr(called, "__func__", called), "__code__", None)


# Exceptions that interrupted a callback, in which they would be lost: the script gets them in its next call.
_late: list[BaseException] = []


def comes_later(error: BaseException) -> None:
    """Keeps an exception that :func:`interrupts` a callback for :func:`arrive`."""
    _late.append(error)


def arrive() -> None:
    """Raises an exception that has interrupted a callback, in the thread in which signals are handled."""
    if _late and threading.current_thread() is threading.main_thread():
        raise _late.pop()


def starved() -> bool:
    """Whether the current GPU has hardly any memory left for what allocates past PyTorch."""
    try:
        return torch.cuda.is_initialized() and torch.cuda.mem_get_info()[0] < LITTLE
    except RuntimeError:  # the CUDA context is broken
        return False


def _limited() -> bool:
    """Whether ulimit limits the host memory that this process may allocate."""
    try:
        import resource
    except ImportError:  # Windows has no limits
        return False
    return any(
        resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS)
    )


class Refused(Exception):
    """Raised for a step that cannot be replayed exactly. The message says why."""

    code: ClassVar[str] = ""  # the kind of reason, for headroom's journal; empty if it has no name
    final: ClassVar[bool] = False  # nothing of the step may be run again, in whatever way

    def more(self, text: str) -> Refused:
        """The same reason in other words."""
        return type(self)(text)


class Mixed(Refused):
    """Raised if the result depends on which rows are in a batch together. Then a smaller micro-batch
    with accumulation trains something else, too."""

    code = "mixed"


class NoMemory(Refused):
    """Raised if there is not enough memory for a small piece of our own work, such as a trial on a
    few rows."""

    code = "no memory"


class Failed(Refused):
    """Raised where a trial fails for a reason of its own, and shows nothing."""


class Writes(Refused):
    """Raised for a call that must not be repeated, since it writes to something that existed before
    the call."""

    code, final = "writes", True


class Unrepeatable(Refused):
    """Raised where nothing of a step may be run again for some other reason."""

    final = True


class Elsewhere(Refused):
    """Raised for a call that uses a trained tensor which is neither its module's parameter nor an argument: a replay
    would not give that tensor its gradient."""

    code = "elsewhere"


class Survival(NamedTuple):
    """How a failure was survived. ``way`` is "pieces", "call" (the same call again), "host" (the same, with saved
    tensors on the host), "batch" (the whole batch again) or "step" (the optimizer's step again). ``why`` says why the
    batch could not be run in pieces, where that was tried."""

    way: str
    why: Optional[Refused] = None
    rows: int = 0  # in the whole batch: what the pieces have been proven on, and not just the size of a dimension
    number: int = 0  # of pieces

    @classmethod
    def pieces(cls, rows: int, number: int) -> Survival:
        """A batch of ``rows`` rows has been run in ``number`` pieces."""
        return cls("pieces", None, rows, number)

    def __str__(self) -> str:
        ways = {
            "pieces": f"{self.rows} rows in {self.number} pieces",
            "call": "the same call again",
            "host": "the same call again, with saved tensors on the host",
            "spill": "the same again, with memory of the host for what does not fit on the GPU",
            "two-pass": f"{self.rows} rows in {self.number} pieces, each computed twice",
            "batch": "the whole batch again",
            "step": "the optimizer's step again",
        }
        return ways[self.way] + (f" ({self.why})" if self.why else "")


def bare(failure: Any) -> Any:
    """A copy of an exception, without its traceback; None if ``failure`` is None."""
    if failure is None:
        return None
    copy = type(failure)(*failure.args)
    if hasattr(failure, "_headroom_reported"):  # see Report.survived
        copy._headroom_reported = failure._headroom_reported
    return copy


def release_frames(error: Optional[BaseException]) -> None:
    """Empties the frames that an exception keeps alive, except those that are still running; the traceback can still be
    printed. From Python 3.11 on, these frames also keep those that have called them, and what was passed through them
    would count as held by the script."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        if error.__traceback__ is not None:
            _release_callers(error.__traceback__.tb_frame.f_back)
        error = error.__cause__ or error.__context__


def _release_callers(frame: Optional[FrameType]) -> None:
    while frame is not None:
        if not frame.f_code.co_flags & _SUSPENDED:  # a generator would end
            try:
                frame.clear()
            except RuntimeError:  # it is running, and so are those that have called it
                return
        frame = frame.f_back


def debugged(refused: Optional[Refused] = None) -> None:
    """Write why a way did not hold, or the traceback of the exception that is being handled, to the file that
    HEADROOM_DEBUG names, if any."""
    if os.environ.get("HEADROOM_DEBUG"):
        with open(os.environ["HEADROOM_DEBUG"], "a") as f:
            print(refused, file=f) if refused is not None else traceback.print_exc(file=f)


def unframed(error: BaseException) -> None:
    """Takes our own frames out of the traceback of an exception that goes on to the user's code. To
    be called by the outermost of our functions, in ``except``, before ``raise``. From Python 3.11 on
    that function's own frame goes, too; before, it stays."""
    if os.environ.get("HEADROOM_DEBUG"):
        return
    head = trace = error.__traceback__
    kept = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(OURS) and not is_relay(trace.tb_frame.f_code):
            kept.append(trace)
        trace = trace.tb_next
    chain = kept if head is None or kept[:1] == [head] else [head, *kept]
    for entry, following in zip(chain, [*chain[1:], None]):
        if entry.tb_next is not following:
            entry.tb_next = following
    error.__traceback__ = kept[0] if kept else None


def clean(error: Optional[BaseException] = None, thorough: bool = True) -> None:
    """Releases the memory that a failed try left behind. Must not be called inside ``except``. If
    ``thorough`` is false, only newer objects are searched for reference cycles: searching all
    objects takes a fifth of a second in a process that uses Transformers."""
    release_frames(error)
    cuda = torch.cuda.is_initialized()
    if cuda:
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return  # the CUDA context is broken, and its next user gets the error
    gc.collect(2 if thorough else 1)
    torch.clear_autocast_cache()
    if cuda:
        if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def patiently(work: Callable[[], Any], why: str, release: Callable[[], Any] = lambda: None) -> Any:
    """Calls ``work``, a small piece of our own work, and returns its result. If ``work`` runs out
    of memory, calls ``release`` and tries once more. When ``work`` fails, it must leave everything
    as it was. Raises :class:`NoMemory` with the message ``why`` if the second try runs out of
    memory, too."""
    for _ in range(2):
        failed: Optional[BaseException] = None
        try:
            return work()
        except Exception as e:
            if not is_out_of_memory(e):
                raise
            failed = e
        release()
        clean(failed)
    raise NoMemory(why)
