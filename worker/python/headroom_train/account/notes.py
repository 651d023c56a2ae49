"""Notes for a few steps, once memory has been seen to grow, which line of the script makes which tensor."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, Callable, Optional
from weakref import ReferenceType, ref

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from ..callsite import relay
from .look import Key, key_of

MOST = 50_000  # notes


class Notes(TorchFunctionMode):
    """Notes the line in which each tensor of a thread is made. ``foreign`` says whether a file is not the user's.
    A view and a tensor that is changed in place keep the note of the tensor that they come from."""

    def __init__(self, foreign: Callable[[str], bool]) -> None:
        super().__init__()
        self._foreign, self._pid = foreign, os.getpid()
        self._lines: dict[Key, tuple[tuple[str, int], ReferenceType[Any]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if os.getpid() != self._pid:  # a worker process of a loader, which was forked meanwhile
            return func(*args, **(kwargs or {}))
        frame = sys._getframe(1)
        made = relay(frame)(func, args, kwargs or {})
        if getattr(func, "__name__", "") != "__get__" and len(self._lines) < MOST:
            try:
                with torch._C.DisableTorchFunction():
                    self._note(frame, made, args, kwargs or {})
            except Exception:  # a note is never worth a failure of the script
                pass
        return made

    def _note(self, frame: FrameType, made: Any, args: Any, kwargs: Any) -> None:
        results = [t for t in (made if isinstance(made, (tuple, list)) else (made,)) if isinstance(t, torch.Tensor)]
        if not results:
            return
        given = set()
        for a in (*args, *kwargs.values()):
            given |= {key_of(t) for t in (a if isinstance(a, (tuple, list)) else (a,)) if isinstance(t, torch.Tensor)}
        new = {key: t for t in results[:16] if (key := key_of(t)) is not None and key not in given}
        line = self._line(frame) if new else None
        if line is not None:
            for key, t in new.items():
                self._lines[key] = line, ref(t.untyped_storage())

    def lines(self) -> dict[Key, tuple[str, int]]:
        """The lines of all memory that has been in use ever since: what a backward pass makes has no note, and may lie
        where something else was."""
        return {key: line for key, (line, storage) in self._lines.items() if storage() is not None}

    def _line(self, frame: Optional[FrameType]) -> Optional[tuple[str, int]]:
        while frame is not None and self._foreign(frame.f_code.co_filename):
            frame = frame.f_back
        return None if frame is None else (frame.f_code.co_filename, frame.f_lineno)

    def begin(self) -> None:
        """Begin, below all modes that the script has entered, so that it leaves its own."""
        above = _unwound()
        if above and isinstance(above[-1], DeviceContext):  # which has to be the lowest
            torch.overrides._push_mode(above.pop())
        torch.overrides._push_mode(self)
        for mode in reversed(above):
            torch.overrides._push_mode(mode)

    def end(self) -> None:
        for mode in reversed(_unwound()):
            if mode is not self:
                torch.overrides._push_mode(mode)


def _unwound() -> list[Any]:
    """The modes of this thread, innermost first, all of them left."""
    return [torch.overrides._pop_mode() for _ in range(torch._C._len_torch_function_stack())]


def compiles() -> bool:
    """Whether the script compiles something: compiled code depends on the modes that are entered."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    return any(backend is not None for backend in getattr(frames, "cached_backends", {}).values())
