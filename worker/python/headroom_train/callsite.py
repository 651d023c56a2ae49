"""Calls functions in the name of the script's line that has called them.

A warning names the line that is running, and Python shows it once for each line. A function that is
called for the script must therefore look as if the script's line had called it: with the same file,
line and globals.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType, FunctionType
from typing import Any, Callable

import torch

_HANDLE = torch.overrides.handle_torch_function.__code__
_MOST = 10000  # the most lines that are remembered: a script may compile code again and again
# By the id of a script's code and a line → that code, which keeps the id, and ours.
_known: dict[tuple[int, int], tuple[CodeType, CodeType]] = {}

# On one line, which is then the line of its code.
_relay: Any = lambda _headroom, args, kwargs: _headroom(*args, **kwargs)  # noqa: E731


def called(func: Callable, args: tuple, kwargs: dict) -> Any:
    """Calls a function."""
    return func(*args, **kwargs)


def relay(frame: FrameType) -> Callable[[Callable, tuple, dict], Any]:
    """Returns a function that calls a function with the given arguments, in the name of the line that has called
    what PyTorch hands to a tensor's class. ``frame`` is the frame that called ``__torch_function__``. While a debugger
    or a profiler looks, the function is called in our name: a breakpoint on the line would stop here, too."""
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return called
    if frame.f_code is _HANDLE:  # called by a function of PyTorch's that is written in Python, and that by the line
        frame = frame.f_back.f_back or frame  # type: ignore[union-attr]
    code, line = frame.f_code, frame.f_lineno
    known = _known.get((id(code), line))
    if known is None:
        if len(_known) >= _MOST:
            _known.clear()
        ours = _relay.__code__.replace(co_filename=code.co_filename, co_firstlineno=line, co_name=code.co_name)
        known = _known[id(code), line] = code, ours
    return FunctionType(known[1], frame.f_globals)


def is_relay(code: CodeType) -> bool:
    """Whether the code is that of a function that :func:`relay` has returned."""
    return code.co_varnames[:1] == ("_headroom",)
