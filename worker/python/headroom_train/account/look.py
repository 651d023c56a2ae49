"""One look at everything that Python's garbage collector knows: the memory behind all tensors, and the lengths of
all containers. It keeps numbers only. A look takes some tenths of a second."""

from __future__ import annotations

import gc
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from types import FrameType
from typing import Any, NamedTuple, Optional

import torch
from torch.autograd.graph import saved_tensors_hooks

from ..tape.graph import sequence
from . import graphs

CONTAINERS = frozenset((list, dict, set, deque, OrderedDict, defaultdict))
LONG = 6  # containers with fewer elements are not counted
_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: the frame of a function

Key = tuple[int, int]  # of the memory behind a tensor


class Sort(NamedTuple):
    """What tensors that are made at the same place have in common, whatever the length of the batch."""

    dtype: torch.dtype
    dimensions: int
    device: str
    graph: bool


class Census(NamedTuple):
    """All tensors and containers at one moment. To be dropped as soon as possible, as it holds them."""

    tensors: list[torch.Tensor]
    containers: list[Any]
    tasks: list[Any]  # of asyncio
    packs: bool  # graphs may hold what hooks of the script have packed


class Look(NamedTuple):
    step: int
    storages: frozenset[Key]
    sorts: Counter[Sort]
    lengths: dict[int, int]  # id of a container → its length
    largest: dict[Sort, int]  # bytes of the largest tensor of each sort
    depth: int  # of the deepest graph that a tensor holds
    sequence: int  # the number that autograd would have given to its next node


def census() -> Census:
    tensors: list[torch.Tensor] = []
    containers: list[Any] = []
    tasks: list[Any] = []
    task: Any = getattr(sys.modules.get("asyncio"), "Task", None)
    packs = False
    known: dict[int, int] = {}
    ours = {id(tensors), id(containers), id(tasks), id(known)}
    for o in gc.get_objects():
        kind = type(o)
        role = known.get(id(kind))
        if role is None:
            role = 1 if issubclass(kind, torch.Tensor) else 2 if kind in CONTAINERS else 3 if kind is task else 0
            known[id(kind)] = role
            packs = packs or issubclass(kind, saved_tensors_hooks) or kind.__module__ == "torch.utils.checkpoint"
        if role == 1:
            tensors.append(o)
        elif role == 2 and len(o) >= LONG and id(o) not in ours:
            containers.append(o)  # itself in itself, it would be freed only by the collector
        elif role == 3:
            tasks.append(o)
    return Census(tensors, containers, tasks, packs)


def look(step: int, found: Census) -> Look:
    storages, sorts = set(), Counter[Sort]()
    largest: dict[Sort, int] = {}
    for t in found.tensors:
        key = key_of(t)
        if key is not None:
            sort = sort_of(t)
            sorts[sort] += 1
            storages.add(key)
            largest[sort] = max(largest.get(sort, 0), size_of(t))
    lengths = {id(c): len(c) for c in found.containers}
    return Look(step, frozenset(storages), sorts, lengths, largest, graphs.deepest(found.tensors), sequence())


def key_of(t: torch.Tensor) -> Optional[Key]:
    """Identifies the memory behind a tensor; None if it has none of its own kind."""
    try:
        storage = t.untyped_storage()
        return None if t.device.type == "meta" else (storage._cdata, storage.data_ptr())
    except Exception:  # sparse, or of a library that has no storages
        return None


def size_of(t: torch.Tensor) -> int:
    """Bytes behind a tensor that has memory."""
    return t.untyped_storage().nbytes()


def sort_of(t: torch.Tensor) -> Sort:
    return Sort(t.dtype, t.dim(), t.device.type, t.grad_fn is not None)


def frames() -> list[FrameType]:
    """The frames that are running now in all threads, innermost first, from the caller's. This function's own frame is
    not among them: it would have itself in its variables, and keep alive what its callers have in theirs."""
    tops = sys._current_frames()
    del tops[threading.get_ident()]
    found: list[FrameType] = []
    for top in (sys._getframe(1), *tops.values()):
        frame: Optional[FrameType] = top
        while frame is not None:
            found.append(frame)
            frame = frame.f_back
    return found


def function(frame: FrameType) -> bool:
    """Whether a frame is that of a function, whose variables are its own."""
    return bool(frame.f_code.co_flags & _OPTIMIZED)


class Variables:
    """The local variables of a frame, by name. Until Python 3.13, a frame whose locals are asked for keeps a copy of
    them, which would hold what the script's own variables no longer do: it is emptied on leaving."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame

    def __enter__(self) -> dict[str, Any]:
        return {**self._frame.f_locals}

    def __exit__(self, *_: Any) -> None:
        if sys.version_info < (3, 13) and function(self._frame):
            copy = self._frame.f_locals
            if sys.getrefcount(copy) <= 3:  # the script has not asked for it itself, and holds it
                copy.clear()
