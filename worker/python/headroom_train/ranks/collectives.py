"""Collectives: none may be called by a replay, and none may be given a tensor without values.

A rank that runs a part of its step again does so alone, while the others wait in their next collective. Were the replay
to call one, it would meet another one of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import get_ident
from typing import Any, Optional

import torch

from ..failure import Refused, unframed
from ..hooks.changes import Change
from ..sandbox.sandbox import Watcher
from ..tape.tape import Recorded, place_of
from ..world import calls

# Methods of process groups. What they are given first they write to; but send and a barrier write to nothing.
_WRITING = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced", "alltoall_base", "alltoall", "recv", "recv_anysource",
)  # fmt: skip
_OTHERS = ("send", "barrier", "monitored_barrier")
_OPERATORS = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional")


class Talks(Refused):
    """Raised in place of a collective in a replay. Nothing has been sent, and nothing may be run again."""

    code, final = "talks", True


class Silent(Watcher):
    """Raises :class:`Talks` before a collective is called, from Python or from C++."""

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        if func.namespace in _OPERATORS:
            raise Talks(f"a module communicates with other ranks ({func._schema.name})")


class _Replays:
    """The replays that are under way."""

    depth = 0
    thread: Optional[int] = None
    handing = 0  # the gradients of a replay are being handed back: reducing them communicates


@contextmanager
def replaying() -> Iterator[None]:
    """A context for work that is headroom's rather than the script's."""
    had = _Replays.thread
    _Replays.depth, _Replays.thread = _Replays.depth + 1, get_ident()
    try:
        yield
    finally:
        _Replays.depth, _Replays.thread = _Replays.depth - 1, had


@contextmanager
def handing_back() -> Iterator[None]:
    """A context, within a replay's, for the backward pass that gives the parameters their gradients."""
    _Replays.handing += 1
    try:
        yield
    finally:
        _Replays.handing -= 1


def _in_replay() -> bool:
    """Whether a call made now is made by a replay: on its thread, or on one that runs its backward pass."""
    if not _Replays.depth or _Replays.handing:
        return False
    return get_ident() == _Replays.thread or torch._C._current_graph_task_id() != -1


def watch_groups(recovery: Any) -> None:
    """Changes the methods of process groups, as the module's docstring says. ``recovery`` computes values."""
    kind = torch.distributed.ProcessGroup
    for name in (*_WRITING, *_OTHERS):
        original = getattr(kind, name, None)
        if original is not None:
            Change(kind, name, _watched(recovery, name, original))


def _watched(recovery: Any, name: str, original: Callable) -> Callable:
    @wraps(original)
    def called(group: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            if _in_replay():
                raise Talks(f"a call that would be repeated communicates with other ranks ({name})")
            if any(map(_recorded, (*args, *kwargs.values()))):
                written, *read = args or (None,)
                if name in _WRITING:
                    _writes(recovery, name, _tensors(written))
                else:
                    written = _valued(recovery, written)
                args = (written, *(_valued(recovery, t) for t in read)) if args else ()
                kwargs = {k: _valued(recovery, t) for k, t in kwargs.items()}
            calls()
            return original(group, *args, **kwargs)
        except BaseException as e:
            unframed(e)
            raise

    return called


def _tensors(tree: Any) -> list[Any]:
    """The recorded tensors in lists of lists of tensors."""
    if isinstance(tree, (list, tuple)):
        return [t for part in tree for t in _tensors(part)]
    return [tree] if type(tree) is Recorded else []


def _recorded(tree: Any) -> bool:
    return type(tree) is Recorded or isinstance(tree, (list, tuple)) and any(map(_recorded, tree))


def _valued(recovery: Any, tree: Any) -> Any:
    """The tree with values in the places of tensors that have none."""
    if isinstance(tree, (list, tuple)):
        return type(tree)(_valued(recovery, t) for t in tree)
    if type(tree) is not Recorded or not place_of(tree).deferred:  # type: ignore[union-attr]
        return tree
    return recovery.value_of(tree).contiguous()


def _writes(recovery: Any, name: str, tensors: list[Any]) -> None:
    """Takes tensors that a collective is about to write to off their tape, with their values: what they are given is
    plain data."""
    for tensor in tensors:
        place: Any = place_of(tensor)
        if tensor.requires_grad or shares(place.tape, tensor):
            place.tape.refuse(f"{name} writes to a result of the model")
            if place.deferred:
                recovery.refused(
                    place.tape.step.failure, Refused(f"{name} writes to a result whose values are not in memory")
                )
            continue
        if place.deferred:
            value = recovery.value_of(tensor)
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                tensor.data = value.detach().clone()
        place.tape.let_go([tensor])


def shares(tape: Any, tensor: torch.Tensor) -> bool:
    """Whether another tensor of the tape has the memory of one that has values."""
    if place_of(tensor).deferred:  # type: ignore[union-attr]
        return False
    with torch._C.DisableTorchFunctionSubclass():
        memory = tensor.untyped_storage()._cdata
        others = ((t, place_of(t)) for t in (ref() for ref in tape.live) if t is not None and t is not tensor)
        return any(
            t.untyped_storage()._cdata == memory
            for t, place in others
            if not place.deferred  # type: ignore[union-attr]
        )
