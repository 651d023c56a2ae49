"""What is alive in this process, and what each tensor is for: an account of all memory, taken when it is asked for.

It is taken by the thread whose step has just ended or failed: any other thread would see tensors come and go, and
graphs that are being built. It allocates nothing on a device, runs nothing of the script's, and takes some tenths of a
second."""

from __future__ import annotations

import ctypes
import gc
from collections import UserDict
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple, Optional

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from ..failure import OURS
from ..memory import may_ask
from ..tape.trees import is_a
from . import graphs
from .fragments import fragments
from .look import CONTAINERS, LONG, Key, Variables, frames, key_of
from .shares import (
    ACTIVATIONS,
    BUFFERS,
    CACHE,
    GRADIENTS,
    KEPT,
    OPTIMIZER,
    WEIGHTS,
    Part,
    Segments,
    by_block,
    by_size,
    reserved,
)
from .trigger import BASE, private

_ROUNDED = 11 << 20  # bytes by which two amounts in the text of an exception may differ from what they were
_DEPTH = 3  # of small containers in a variable that are looked into


class Alive(NamedTuple):
    """What the garbage collector knows, of the kinds that matter here."""

    tensors: list[torch.Tensor]
    modules: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]


def alive() -> Alive:
    found = Alive([], [], [])
    roles: dict[int, Any] = {}
    kinds: list[type] = []  # so that no id is used twice
    for o in gc.get_objects():
        kind = type(o)
        if id(kind) not in roles:
            kinds.append(kind)
            bases = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
            roles[id(kind)] = next((found[i] for i, base in enumerate(bases) if issubclass(kind, base)), None)
        if roles[id(kind)] is not None:
            roles[id(kind)].append(o)
    return found


class Inventory:
    """All memory behind tensors by what it is for. ``begun`` is the number of autograd's first node in the step that is
    under way: older ones are of earlier steps. ``failure`` is the exception whose frames hold what that step had made;
    None if nothing has failed."""

    def __init__(self, begun: int, failure: Optional[BaseException] = None) -> None:
        self._begun = begun
        self._parts: dict[Key, tuple[torch.device, Part]] = {}
        self._nodes: list[Any] = []  # those that were seen, so that no id is used twice
        with torch._C.DisableTorchFunction():  # a class of tensors, the script's or ours, may intercept every question
            self._take(alive(), failure)

    def of(self, device: torch.device) -> list[Part]:
        return [part for where, part in self._parts.values() if where == device]

    def _take(self, found: Alive, failure: Optional[BaseException]) -> None:
        """What a tensor is for is what it is added as first."""
        tensors, modules, optimizers = found
        groups = [g for o in optimizers for g in getattr(o, "param_groups", ()) if type(g) is dict]
        self._add(WEIGHTS, (p for m in modules for p in m.__dict__.get("_parameters", {}).values()))
        self._add(WEIGHTS, (p for g in groups for p in g.get("params", ())))
        self._add(GRADIENTS, (graphs.grad(t) for t in tensors))
        self._add(OPTIMIZER, (t for o in optimizers for t in _inside(getattr(o, "state", None), _DEPTH, False)))
        self._add(BUFFERS, (b for m in modules for b in m.__dict__.get("_buffers", {}).values()))
        trains = any(m.__dict__.get("training") for m in modules if m.__dict__.get("_parameters"))
        current = {id(t): t for t in _current(failure)}
        seen: set[int] = set()
        self._graphs((t for t in current.values()), True, seen)
        self._graphs((t for t in tensors if id(t) not in current), trains, seen)
        self._add(ACTIVATIONS, (t for t in current.values() if t.grad_fn is None))
        self._add(KEPT, tensors)

    def _add(self, kind: str, tensors: Iterable[Any]) -> None:
        for t in tensors:
            if not is_a(t, torch.Tensor):
                continue
            for inner in _plain(t):
                key = key_of(inner)
                if key is None or key in self._parts or not (size := inner.untyped_storage().nbytes()):
                    continue
                if inner.device.type == "cpu" and inner.untyped_storage().is_shared():
                    continue  # memory that belongs to several processes
                self._parts[key] = inner.device, Part(kind, key[1], size)

    def _graphs(self, tensors: Iterable[torch.Tensor], current: bool, seen: set[int]) -> None:
        """Adds tensors that have graphs, and what those have saved. Unless ``current``, it is kept."""
        todo = [(t.grad_fn, t) for t in tensors if t.grad_fn is not None]
        for node, t in todo:
            self._add(self._kind(node, current), [t])
        nodes: list[Any] = [node for node, _ in todo]
        while nodes and len(self._nodes) < graphs.MOST:
            node = nodes.pop()
            if node is None or id(node) in seen:
                continue
            seen.add(id(node))
            self._nodes.append(node)
            self._add(self._kind(node, current), graphs.contents(node, True))
            nodes += [n for n, _ in node.next_functions]

    def _kind(self, node: Any, current: bool) -> str:
        try:
            return ACTIVATIONS if current and node._sequence_nr() >= self._begun else KEPT
        except (AttributeError, RuntimeError):
            return ACTIVATIONS if current else KEPT


def _plain(t: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor, or those of which it is made, such as the local one of a distributed tensor."""
    kind = type(t)
    if kind is torch.Tensor or not kind.__module__.startswith("torch.") or not is_traceable_wrapper_subclass(t):
        yield t
        return
    names, _ = t.__tensor_flatten__()
    for name in names:
        yield from _plain(getattr(t, name))


def _current(failure: Optional[BaseException]) -> Iterator[torch.Tensor]:
    """The tensors that variables of running functions name, and those of functions through which a failure has come."""
    for frame in _running(failure):
        if not frame.f_code.co_filename.startswith(OURS):
            with Variables(frame) as variables:
                for value in variables.values():
                    yield from _inside(value, _DEPTH)


def _running(failure: Optional[BaseException]) -> Iterator[FrameType]:
    """To be used up, and not put into a list: that would hold the frame of the function whose variable it is."""
    yield from frames()
    while failure is not None:
        trace = failure.__traceback__
        while trace is not None:
            yield trace.tb_frame
            trace = trace.tb_next
        failure = failure.__cause__ or failure.__context__


def _inside(value: Any, depth: int, small: bool = True) -> Iterator[torch.Tensor]:
    """The tensors in a value, and in containers in it: only small ones, unless told otherwise. Nothing of the script's
    is run to find them."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        yield value
        return
    if issubclass(kind, UserDict):  # a batch of Transformers
        value = value.__dict__.get("data")
        kind = type(value)
    if issubclass(kind, dict):
        inner: Iterable[Any] = dict.values(value)
    elif issubclass(kind, tuple):
        inner = tuple.__iter__(value)
    elif kind in CONTAINERS:
        inner = value
    else:
        return
    # Scripts append to lists, but not to a batch.
    if depth and (not small or len(value) < (2 * LONG if issubclass(kind, (dict, tuple)) else LONG)):
        for one in [*inner]:
            yield from _inside(one, depth - 1, small)


class Memory(NamedTuple):
    """The figures of one memory, in bytes, as they go to headroom."""

    device: str  # "host", or as PyTorch names it
    kinds: dict[str, int]  # as in :mod:`.shares`
    total: int  # of the device; of the host, what this process has
    free: int = 0  # of the device
    reserved: int = 0  # of the device, by this process's allocator
    base: int = 0  # of the host, what this process had when PyTorch had been imported
    fragments: Optional[dict[str, Any]] = None  # of what is free in the allocator, as in :mod:`.fragments`
    uuid: str = ""


def memories(
    begun: int, failure: Optional[BaseException] = None, host: bool = True, device: bool = True, pools: Any = ()
) -> list[Memory]:
    """The account of this process's memory: of each GPU that it uses, and of the host. ``begun`` and ``failure`` are as
    for :class:`Inventory`. ``pools`` has the ids of pools of the allocator's that are no memory of the device."""
    taken = Inventory(begun, failure)
    found = []
    if device and may_ask():
        every = _snapshot()
        for index in range(torch.cuda.device_count()):
            segments = _of(index, every, pools)
            if segments:
                found.append(_of_device(torch.device("cuda", index), taken, segments))
    if host:
        kinds = by_size(taken.of(torch.device("cpu")))
        kinds[CACHE] = _freed()
        found.append(Memory("host", kinds, private() or 0, base=BASE or 0))
    return found


def fragmented(index: int, pools: Any, allocated: int) -> Optional[dict[str, Any]]:
    """The fragments of what is free in the allocator of a GPU, now that a failure has come up to here: there were so
    many bytes ``allocated`` when it happened. None if there are none."""
    freed = allocated - torch.cuda.memory_allocated(index)
    found = fragments(_of(index, _snapshot(), pools), freed if freed > _ROUNDED else 0)
    return None if found is None else found._asdict()


def _snapshot() -> Segments:
    try:
        return torch.cuda.memory_snapshot(
            include_traces=False
        )  # what the script may have recorded takes seconds to copy
    except TypeError:  # before PyTorch 2.10
        return torch.cuda.memory_snapshot()


def _of(index: int, every: Segments, pools: Any) -> list[dict[str, Any]]:
    return [s for s in every if s["device"] == index and s.get("segment_pool_id") not in pools]


def _of_device(device: torch.device, taken: Inventory, segments: Segments) -> Memory:
    free, total = torch.cuda.mem_get_info(device)
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", "")
    found = fragments(segments)
    return Memory(
        str(device),
        by_block(taken.of(device), segments),
        total,
        free,
        reserved(segments),
        fragments=None if found is None else found._asdict(),
        uuid=str(uuid) if uuid else "",
    )


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


def _freed() -> int:
    """Bytes that the C library has free for this process; 0 if it does not say."""
    try:
        ask = ctypes.CDLL(None).mallinfo2  # glibc, from 2.33 on
    except (AttributeError, OSError):
        return 0
    ask.restype = _Mallinfo
    return int(ask().fordblks)
