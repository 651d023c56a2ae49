"""What a call of a module finds in the modules' attributes, which the script may set anew before a replay: a gradient
reversal's factor that is another one in a step's second call, or an attribute that is set back after a call. A replay
of the call runs with what the call found, and leaves what the script has set. Looked at are plain values, functions,
tensors without a graph, and lists and dicts of plain values."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any, NamedTuple, Optional

import torch

from ..failure import Refused
from .snapshot import PLAIN, USUAL, WIDE, Snapshot, Unavailable, is_same

_KINDS = {*PLAIN, FunctionType}
_APART = USUAL | {"_parameters", "_buffers"}
_NORMS = torch.nn.modules.batchnorm._NormBase
_MISSING = object()
_replay: Optional[object] = None  # a new object for each replay: the script runs between two of them


Held = list[tuple[weakref.ref[torch.nn.Module], dict]]  # attributes of modules


class Still:
    """What the modules hold whose attributes no call changes: shared by calls between which the script has set
    nothing."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._source = snapshot.held()
        self.kept: Held = [(ref, _kept(own)) for ref, own in self._source]

    def now(self, snapshot: Snapshot) -> Still:
        """The same for what a snapshot has followed to."""
        return self if snapshot.held() is self._source else Still(snapshot)


class Found:
    """What one call has found. ``moving`` is for modules whose calls change attributes: those that this one has not
    changed."""

    def __init__(self, still: Still, moving: Held) -> None:
        self._still = still
        self._moving = [(ref, {n: v for n, v in own.items() if type(v) in _KINDS}) for ref, own in moving]
        self._asked: Optional[object] = None
        self._others: list[_Other] = []

    def others(self) -> list[_Other]:
        """What the script has set since, as it was when the replay that now runs began."""
        if self._asked is not _replay:
            self._others = [*self._differing()]
            self._asked = _replay
        return self._others

    def _differing(self) -> Iterator[_Other]:
        for every, found in ((True, self._still.kept), (False, self._moving)):
            for ref, own in found:
                module = ref()
                if module is None:
                    continue
                now = vars(module)
                for name, value in own.items():
                    if not _equal(now.get(name, _MISSING), value):
                        _refuse_norm(module, name)
                        yield _Other(now, name, value)
                for name in [n for n in now if n not in own and n not in _APART] if every else ():
                    if type(now[name]) in _KINDS:
                        yield _Other(now, name, _MISSING)


class _Other(NamedTuple):
    """An attribute that has another value now than a call found."""

    owner: dict
    name: str
    value: Any

    def put(self) -> tuple[Any, Any]:
        """Gives the attribute what the call found. Returns what it had, and what it has now, for :meth:`put_back`."""
        had = self.owner.get(self.name, _MISSING)
        if type(had) is not Unavailable:
            kind = type(self.value)
            _set(self.owner, self.name, kind(self.value) if kind in (dict, list) else self.value)
        return had, self.owner.get(self.name, _MISSING)

    def put_back(self, had: Any, given: Any) -> None:
        """Gives the attribute what it had, unless the call has changed it."""
        if self.owner.get(self.name, _MISSING) is given:
            _set(self.owner, self.name, had)


def _set(owner: dict, name: str, value: Any) -> None:
    if value is not _MISSING:
        owner[name] = value
    else:
        owner.pop(name, None)


def _kept(own: dict) -> dict:
    """Those attributes that a replay can be given again. Nothing with a graph is held, which would keep a tape, nor a
    container itself, into which something with a graph may come."""
    found = {}
    for name, value in own.items():
        kind = type(value)
        if kind in _KINDS or kind is torch.Tensor and not value.requires_grad:
            found[name] = value
        elif kind in (dict, list) and len(value) <= WIDE and name not in _APART:
            inside = value.values() if kind is dict else value
            if all(type(v) in _KINDS for v in inside):
                found[name] = kind(value)
    return found


def _equal(now: Any, then: Any) -> bool:
    if type(now) is type(then) and type(then) in (dict, list) and len(now) == len(then):
        if type(then) is list:
            return all(map(is_same, now, then))
        return [*now] == [*then] and all(map(is_same, now.values(), then.values()))
    return is_same(now, then)


def _refuse_norm(module: torch.nn.Module, name: str) -> None:
    """Raises :class:`Refused` for a layer with running statistics whose mode is another one now."""
    if name == "training" and isinstance(module, _NORMS) and module.running_mean is not None:
        mode = "training" if module.training else "evaluation"
        raise Refused(f"a {type(module).__name__} has been put into {mode} mode since it was called")


@contextmanager
def replay() -> Iterator[None]:
    """A context for headroom's own work between two of the script's, in which calls are repeated as they were."""
    global _replay
    was, _replay = _replay, object()
    try:
        yield
    finally:
        _replay = was


@contextmanager
def as_they_are() -> Iterator[None]:
    """A context in which calls are repeated with the attributes as they are."""
    global _replay
    was, _replay = _replay, None
    try:
        yield
    finally:
        _replay = was


@contextmanager
def as_found(found: Optional[Found]) -> Iterator[None]:
    """A context in which modules have the attributes that a call found."""
    others = () if found is None or _replay is None else found.others()
    had = [(other, *other.put()) for other in others]
    try:
        yield
    finally:
        for other, before, given in reversed(had):
            other.put_back(before, given)
