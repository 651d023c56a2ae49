"""``sys.unraisablehook``, which gets what a signal's handler raises just where a callback of the worker's begins."""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any, Callable

from ..failure import comes_later, interrupts
from .changes import Change


def keep(callback: Callable) -> None:
    """Keeps exceptions that would be lost in ``callback``, a method without a result: Python handles signals before the
    first line of a function, too. The script gets them in its next call: see :func:`headroom_train.failure.arrive`."""
    original, code = sys.unraisablehook, callback.__code__

    @wraps(original)
    def unraisablehook(raised: Any) -> None:
        method, error = raised.object, raised.exc_value
        if getattr(method, "__func__", None) is not callback or error is None or not interrupts(error):
            original(raised)
            return
        comes_later(error)
        at = error.__traceback__
        if at is not None and at.tb_frame.f_code is code and at.tb_lineno == code.co_firstlineno:
            method(None)  # nothing of it has run

    Change(sys, "unraisablehook", unraisablehook)
