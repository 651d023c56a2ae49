"""What a call of a module finds in the modules' attributes, which the script may set anew before a replay: a gradient
reversal's factor that is another one in a step's second call, or an attribute that is set back after a call. A replay
of the call runs with what the call found, and leaves what the script has set. Looked at are plain values, functions,
tensors without a graph, and lists and dicts of plain values."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import is_
from types import FunctionType
from typing import Any, NamedTuple, Optional

import torch

from ..failure import Refused
from .snapshot import PLAIN, USUAL, WIDE, Snapshot, Unavailable, is_own, is_same, named_by
from .trees import is_a

_KINDS = {*PLAIN, FunctionType}
_APART = USUAL | {"_parameters", "_buffers"}
_NORMS = torch.nn.modules.batchnorm._NormBase
_MISSING = object()
MOST = 128  # the most values outside modules
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


class Around:
    """Plain values outside the modules that the methods of the script's own classes name, also in lists, dicts and
    objects of its classes; those that calls change are left out. What holds them is looked up each time: nothing of the
    script's is kept."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        named = {(id(g), n): (g, n) for kind in {type(m) for m in modules} for g, n in named_by(kind)}
        self._places: list[_Place] = []
        for space, name in named.values():
            if is_a(space[name], PLAIN):
                self._places.append(_Place(space, name, None))
                continue
            inside = _inside(space[name])
            items = [*(enumerate(inside) if type(inside) is list else inside.items())] if len(inside) <= WIDE else []
            shared: set = set()  # attributes of an object's class, which may become, or be, attributes of the object
            if inside is not space[name]:
                kinds = (c for c in type(space[name]).__mro__ if is_own(c.__module__))
                shared = {n for c in kinds for n, v in vars(c).items() if n[:2] != "__" and is_a(v, PLAIN)}
            keys = [key for key, value in items if is_a(value, PLAIN)]
            self._places += [_Place(space, name, key, key in shared) for key in dict.fromkeys((*keys, *sorted(shared)))]
        del self._places[MOST:]
        self._values: list = []
        self._paired: Optional[tuple[list, list[tuple[_Place, Any]]]] = None

    def values(self) -> list:
        """The present values; the same list as before while none has changed."""
        if self._places:
            now = [place.value() for place in self._places]
            if len(now) != len(self._values) or not all(map(is_, now, self._values)):
                self._values = now
        return self._values

    def called(self, before: list) -> list[tuple[_Place, Any]]:
        """What a call has found that had these values before it. Leaves out from now on what it has changed."""
        now = self.values()
        if now is not before:
            changed = {place for place, a, b in zip(self._places, before, now) if not is_same(a, b)}
            before = [v for place, v in zip(self._places, before) if place not in changed]
            self._places = [place for place in self._places if place not in changed]
            self._values, self._paired = before, None
        if self._paired is None or self._paired[0] is not before:
            self._paired = before, [*zip(self._places, before)]
        return self._paired[1]


class _Place(NamedTuple):
    """A global, or what is at a key in one. If ``shared``, an object may be without the attribute: its class has it."""

    space: dict
    name: str
    key: Any
    shared: bool = False

    def __hash__(self) -> int:
        return hash((id(self.space), self.name, self.key))

    def __eq__(self, other: Any) -> bool:
        return self.space is other.space and self[1:] == other[1:]

    def owner(self) -> Any:
        return self.space if self.key is None else _inside(self.space.get(self.name))

    def at(self) -> Any:
        return self.name if self.key is None else self.key

    def value(self) -> Any:
        return _get(self.owner(), self.at())


def _inside(value: Any) -> Any:
    """A list or dict itself, or the attributes of an object."""
    kind = type(value)
    if kind in (dict, list):
        return value
    return object.__getattribute__(value, "__dict__") if kind.__dictoffset__ else {}


def _get(owner: Any, key: Any) -> Any:
    if type(owner) is list:
        return owner[key] if key < len(owner) else _MISSING
    return owner.get(key, _MISSING)


class Found:
    """What one call has found. ``moving`` is for modules whose calls change attributes: those that this one has not
    changed."""

    def __init__(self, still: Still, moving: Held, around: list[tuple[_Place, Any]]) -> None:
        self._still, self._around = still, around
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
        for place, value in self._around:
            had = place.value()
            if not is_same(had, value) and (place.shared or had is not _MISSING and value is not _MISSING):
                yield _Other(place.owner(), place.at(), value)


class _Other(NamedTuple):
    """An attribute, or a value elsewhere, that is another one now than a call found."""

    owner: Any
    name: Any
    value: Any

    def put(self) -> tuple[Any, Any]:
        """Gives the attribute what the call found. Returns what it had, and what it has now, for :meth:`put_back`."""
        had = _get(self.owner, self.name)
        if type(had) is not Unavailable:
            kind = type(self.value)
            _set(self.owner, self.name, kind(self.value) if kind in (dict, list) else self.value)
        return had, _get(self.owner, self.name)

    def put_back(self, had: Any, given: Any) -> None:
        """Gives the attribute what it had, unless the call has changed it."""
        if _get(self.owner, self.name) is given:
            _set(self.owner, self.name, had)


def _set(owner: Any, name: Any, value: Any) -> None:
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
    if name == "training" and is_a(module, _NORMS) and module.running_mean is not None:
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
