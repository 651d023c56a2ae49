"""Moving a module to a GPU that has not enough memory for it."""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable

import torch

from ..failure import is_out_of_memory, unframed
from .changes import Change


def retry(opened: Callable[[], bool]) -> None:
    """Makes ``Module.to`` and ``Module.cuda`` go on where they ran out of memory, if ``opened`` has made memory of the
    host available. What has been moved by then is not moved again."""
    for name in ("to", "cuda"):
        Change(torch.nn.Module, name, _going_on(vars(torch.nn.Module)[name], opened))


def _going_on(move: Callable, opened: Callable[[], bool]) -> Callable:
    @wraps(move)
    def moved(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        try:
            try:
                return move(self, *args, **kwargs)
            except Exception as e:
                if torch.compiler.is_compiling() or not is_out_of_memory(e) or not opened():
                    raise
            return move(self, *args, **kwargs)
        except BaseException as e:
            unframed(e)
            raise

    return moved
