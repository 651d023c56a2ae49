"""Lets go of what a failed cell keeps alive.

IPython keeps the last exception in many places: in ``sys.last_value``, ``sys.last_exc`` and ``sys.last_traceback``,
in the tracebacks that ``%tb`` and ``%debug`` show, in the result of the last cell, and in ``Out`` where a cell has
displayed it. All of them hold tensors through the frames of one traceback, so it is those that are emptied: the places
stay as they are, and the traceback can still be shown. Variables of the user's, and results in ``Out``, are the user's.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType, TracebackType
from typing import Any, Optional

import torch

from ..account.look import function
from ..account.trigger import private
from ..failure import clean, is_out_of_memory

_MAY_BE_SUSPENDED = {GeneratorType: "gi_frame", CoroutineType: "cr_frame", AsyncGeneratorType: "ag_frame"}


def last_failure() -> Optional[BaseException]:
    """The exception that was shown last, if it, or one that it came from, was for want of memory; else None."""
    shown = getattr(sys, "last_value", None)
    return shown if any(is_out_of_memory(e) for e in _chain(shown)) else None


def held() -> int:
    """Bytes that this process holds: of the GPUs, in tensors, if it uses any; else of the host."""
    if torch.cuda.is_initialized():
        return sum(torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count()))
    return private() or 0


def let_go(shell: Any, error: BaseException, cell: int) -> int:
    """Empties the frames that hold what an exception left behind, and removes what the failed cell, number ``cell``,
    has put into ``Out`` that belongs to the failed step. Returns how many bytes fewer are held."""
    before = held()
    suspended = {id(frame) for frame in _suspended()}
    for frame in _frames(shell, error):
        if id(frame) not in suspended:
            _empty(frame)
    _forget(shell, cell)
    clean()
    return before - held()


def _chain(error: Optional[BaseException]) -> Iterator[BaseException]:
    """An exception and those that it came from."""
    seen = set()
    todo = [error]
    while todo:
        error = todo.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            yield error
            todo += [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]


def _frames(shell: Any, error: BaseException) -> Iterator[FrameType]:
    """The frames of all of an exception's tracebacks, and those that have called them: some are in no traceback, such
    as our own. They may be running."""
    chain = [*_chain(error)]
    traces: list[Optional[TracebackType]] = [e.__traceback__ for e in chain]
    if getattr(sys, "last_value", None) in chain:
        traces += [getattr(sys, "last_traceback", None), getattr(shell.InteractiveTB, "tb", None)]
    seen = set()
    for trace in traces:
        while trace is not None:
            frame: Optional[FrameType] = trace.tb_frame
            while frame is not None and id(frame) not in seen:
                seen.add(id(frame))
                yield frame
                frame = frame.f_back
            trace = trace.tb_next


def _suspended() -> Iterator[FrameType]:
    """The frames of all generators and coroutines that have not ended, which emptying would end."""
    for o in gc.get_objects():
        attribute = _MAY_BE_SUSPENDED.get(type(o))
        frame = getattr(o, attribute) if attribute is not None else None
        if frame is not None:
            yield frame


def _empty(frame: FrameType) -> None:
    """Empties a frame, unless it is running. The variables of a cell, and of a class's body, stay."""
    try:
        frame.clear()
    except RuntimeError:
        return
    # Until Python 3.13 there may be a copy of its variables, which IPython and pdb have asked for.
    if sys.version_info < (3, 13) and function(frame):
        frame.f_locals.clear()


def _forget(shell: Any, cell: int) -> None:
    """Removes what a failed cell has put into ``Out`` if it has a graph: with IPython's ``ast_node_interactivity``, a
    cell may display several results before it fails."""
    space = shell.user_ns
    result = space.get("_oh", {}).get(cell)
    if not isinstance(result, torch.Tensor) or result.grad_fn is None:
        return
    del space["_oh"][cell]
    space.pop(f"_{cell}", None)
    hook = shell.displayhook
    for name in ("_", "__", "___"):
        if getattr(hook, name, None) is result:
            setattr(hook, name, "")
        if space.get(name) is result:
            space[name] = ""
