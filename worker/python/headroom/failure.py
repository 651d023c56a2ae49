"""What counts as running out of memory, and how its traces are cleaned up."""

from __future__ import annotations

import gc
import re
import traceback
from typing import Any, Callable, Optional

import torch

OutOfMemoryError = torch.OutOfMemoryError if hasattr(torch, "OutOfMemoryError") else torch.cuda.OutOfMemoryError  # since 2.5
_TEXTS = re.compile(
    r"DefaultCPUAllocator: (?:can't|not enough) (?:allocate )?memory"
    r"|CUDA out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|CUDA error: out of memory|HIP out of memory|MPS backend out of memory"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that an allocation of a tensor failed."""
    if isinstance(error, OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and _TEXTS.search(str(error)) is not None


class Refused(Exception):
    """A step that cannot be replayed exactly, with the reason in a sentence."""


class Writes(Refused):
    """A call that would do to something twice what it does to it once."""


def bare(failure: Any) -> Any:
    """The same exception without the frames that it came through."""
    return None if failure is None else type(failure)(*failure.args)


def release_frames(error: Optional[BaseException]) -> None:
    """Empties the frames that an exception keeps alive; its traceback still prints."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def clean(error: Optional[BaseException] = None, thorough: bool = True) -> None:
    """Gives back what a failed try left behind. Not to be called inside ``except``. Reference
    cycles are looked for among the newest objects alone if not ``thorough``: among all of them
    that takes a fifth of a second in a process with Transformers."""
    release_frames(error)
    cuda = torch.cuda.is_initialized()
    if cuda:
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return  # the context is gone, and whoever uses it next hears of it
    gc.collect(2 if thorough else 1)
    torch.clear_autocast_cache()
    if cuda:
        if hasattr(torch._C, "_cuda_clearCublasWorkspaces"):
            torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def patiently(work: Callable[[], Any], why: str, release: Callable[[], Any] = lambda: None) -> Any:
    """Does something small of ours, and once more, after ``release``, if memory ran out in it. It
    must have changed nothing by then. Raises :class:`Refused`, for ``why``, if there is no
    room."""
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
    raise Refused(why)
