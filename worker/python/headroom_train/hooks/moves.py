"""Moving a module to a GPU that has not enough memory for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import wraps
from typing import Any, Callable

import torch

from ..failure import is_out_of_memory, unframed
from .changes import Change

_on_cpu: Callable[[torch.Tensor], bool] = vars(torch._C.TensorBase)["is_cpu"].__get__  # nothing of the script's runs
ROOM = 256 << 20  # bytes of a GPU that weights leave to libraries and kernels


def retry(opened: Callable[[], bool], arranged: Callable[[], None]) -> None:
    """Makes ``Module.to`` and ``Module.cuda`` go on where they ran out of memory, if ``opened`` has made memory of the
    host available. What has been moved by then is not moved again, but for what has to give libraries room, which
    ``arranged`` then keeps free."""
    for name in ("to", "cuda"):
        Change(torch.nn.Module, name, _going_on(vars(torch.nn.Module)[name], opened, arranged))


def _going_on(move: Callable, opened: Callable[[], bool], arranged: Callable[[], None]) -> Callable:
    @wraps(move)
    def moved(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        try:
            before = [] if torch.compiler.is_compiling() else arriving(self)
            try:
                return move(self, *args, **kwargs)
            except Exception as e:
                if torch.compiler.is_compiling() or not is_out_of_memory(e) or not opened():
                    raise
            for p in giving_room(before):
                p.data = p.data.cpu()
            torch.cuda.empty_cache()
            arranged()
            return move(self, *args, **kwargs)
        except BaseException as e:
            unframed(e)
            raise

    return moved


def arriving(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """The parameters of a module that are on the CPU."""
    try:
        with torch._C.DisableTorchFunction():  # modes of the script's see nothing of this
            every = [p for m in torch.nn.Module.modules(module) for p in m._parameters.values()]
            return [p for p in every if type(p) is torch.nn.Parameter and _on_cpu(p)]
    except Exception:  # a module that is not ready, or one of its own kind: it is moved as without headroom
        return []


def giving_room(parameters: Sequence[torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """Of parameters that have just been moved, the last ones, of :data:`ROOM` bytes: a GPU that is full to the last
    byte has no memory for libraries."""
    found, left = [], ROOM
    for p in reversed(parameters):
        if left > 0 and not _on_cpu(p):
            left -= p.nbytes
            found.append(p)
    return found
