"""What modules hold: their attributes, what is in the lists and dicts among them, and, where
that is asked for, what those and objects of the script's own classes hold in turn."""

from __future__ import annotations

import sys
import sysconfig
import weakref
from collections import deque
from functools import lru_cache
from itertools import islice
from typing import Any, Iterable, Iterator, NamedTuple, Optional

import torch
from torch.utils._pytree import tree_flatten

MOST = 10000  # elements of a container that are looked at, and objects of all modules
DEPTH = 4  # of objects in one another
# What every module has, and no call changes.
USUAL = set(vars(torch.nn.Module())) - {"_parameters", "_buffers", "training"}
_PLAIN = (int, float, str, bool, bytes, type(None), torch.Size, torch.dtype, torch.device)
_FIRST = len(vars(torch.nn.Module()))  # attributes that every module is given before any of its own


def attributes(module: torch.nn.Module) -> list[tuple[str, Any]]:
    """What a module holds, but for :data:`USUAL`."""
    own = vars(module)
    if next(iter(own)) == "training":
        return [(n, own[n]) for n in ("training", "_parameters", "_buffers")] + list(islice(own.items(), _FIRST, None))
    return [(n, v) for n, v in own.items() if n not in USUAL]


def submodules(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """The modules and what they consist of, each once."""
    return list({id(m): m for root in modules for m in root.modules()}.values())


def tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    """Those among a module's attributes and in the containers among them, but for parameters, buffers
    and what has a graph."""
    found: list[torch.Tensor] = []
    for name, value in attributes(module):
        if name not in ("_parameters", "_buffers"):
            inside = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else (value,)
            found += [t for t in islice(inside, MOST) if type(t) is torch.Tensor and not t.requires_grad]
    return found


def _contents(value: Any) -> Any:
    """A copy of a container, or None for anything else."""
    if isinstance(value, list) and len(value) <= MOST:
        return list(value)
    if isinstance(value, dict) and len(value) <= MOST:
        return dict(value)
    return None


def _same(a: Any, b: Any) -> bool:
    return a is b or type(a) is type(b) and isinstance(a, _PLAIN) and a == b


def _differing(before: Any, now: Any) -> list:
    """Keys or indices of a container at which there is something other than before."""
    if isinstance(now, dict):
        return [k for k, v in now.items() if k not in before or not _same(before[k], v)] + [k for k in before if k not in now]
    return [i for i, v in enumerate(now) if i >= len(before) or not _same(before[i], v)] + list(range(len(now), len(before)))


@lru_cache(maxsize=None)
def _own(kind: type) -> bool:
    """Whether a class is the script's own, and not a library's: those hold the whole training, much
    of which other threads change."""
    if kind.__module__ == "__main__":
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if kind.__module__.startswith(__package__ + "."):
        return False
    libraries = [sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return file is not None and not file.startswith(tuple(libraries)) and "-packages" not in file


def _inner(value: Any) -> Any:
    """What is to be compared of something that can be changed: a dict, a list or a set. None for
    anything else."""
    if isinstance(value, (dict, list, set, deque)):
        return value if len(value) <= MOST else None
    if isinstance(value, (torch.nn.Module, torch.Tensor)) or not _own(type(value)):
        return None
    return getattr(value, "__dict__", None)


class Inside(NamedTuple):
    """Something that can be changed, inside an attribute, and a copy of what was in it."""

    value: Any
    before: Any

    def changed(self) -> bool:
        now = _inner(self.value)
        if isinstance(now, set) or now is None:
            return bool(now != self.before)
        return len(now) != len(self.before) or bool(_differing(self.before, now if isinstance(now, dict) else list(now)))

    def put_back(self) -> None:
        now = _inner(self.value)
        if now is not None:
            now.clear()
            (now.extend if isinstance(now, (list, deque)) else now.update)(self.before)


def _within(attribute: Any, seen: set[int]) -> list[Inside]:
    """Everything inside an attribute that can be changed, but for what :class:`Held` compares by keys."""
    found, todo = [], [(attribute, 0)]
    while todo and len(seen) < MOST:
        value, depth = todo.pop()
        if isinstance(value, tuple):
            todo += [(v, depth + 1) for v in value] if depth < DEPTH else []
            continue
        inner = None if type(value) in _PLAIN else _inner(value)
        if inner is None or id(inner) in seen:
            continue
        seen.add(id(inner))
        if depth or not isinstance(value, (dict, list)):
            found.append(Inside(value, (dict if isinstance(inner, dict) else set if isinstance(inner, set) else list)(inner)))
        if depth < DEPTH and not isinstance(inner, set):
            todo += [(v, depth + 1) for v in (inner.values() if isinstance(inner, dict) else inner)]
    return found


class Change(NamedTuple):
    """An attribute that is not as it was, with the keys that differ if it is a container that has
    stayed the same object, else with none."""

    module: weakref.ref
    name: str
    keys: tuple
    inside: bool = False  # it is something inside it that has changed

    def values(self) -> list:
        """What stands there now."""
        value = vars(self.module()).get(self.name)
        if not self.keys:
            return tree_flatten(value)[0] or [None]
        if isinstance(value, dict):
            return [value.get(k) for k in self.keys]
        return [value[k] if k < len(value) else None for k in self.keys]

    def replace(self, value: Any) -> None:
        """Puts something in the place of what a call has left there."""
        module = self.module()
        if module is None:
            return
        container = vars(module).get(self.name)
        if isinstance(container, dict) and self.keys:
            container.update(dict.fromkeys(self.keys, value))
        elif isinstance(container, list) and self.keys:
            container[len(container) :] = [value] * (max(self.keys) + 1 - len(container))
            for k in self.keys:
                container[k] = value
        else:
            vars(module)[self.name] = value


class Held:
    """What some modules held at a moment, and what was inside that if ``deep``. Holds references,
    and copies no tensor."""

    def __init__(self, modules: Iterable[torch.nn.Module], deep: bool = False) -> None:
        self.before: list[tuple[torch.nn.Module, dict, dict]] = []
        self._inside: list[tuple[torch.nn.Module, str, list[Inside]]] = []
        seen: set[int] = set()
        for m in modules:
            own = dict(attributes(m))
            self.before.append((m, own, {n: c for n, v in own.items() if (c := _contents(v)) is not None}))
            if deep:
                self._inside += [(m, n, w) for n, v in own.items() if type(v) not in _PLAIN and (w := _within(v, seen))]

    def changed(self) -> Iterator[Change]:
        """What is not as it was."""
        for m, own, inside in self.before:
            now = vars(m)
            for name in [*own, *(n for n in now if n not in own and n not in USUAL)]:
                if name not in now or name not in own or not _same(own[name], now[name]):
                    yield Change(weakref.ref(m), name, ())
                elif name in inside:
                    keys = _differing(inside[name], now[name])
                    if keys:
                        yield Change(weakref.ref(m), name, tuple(keys))
        for m, name, found in self._inside:
            if any(i.changed() for i in found):
                yield Change(weakref.ref(m), name, (), True)

    def put_back(self) -> None:
        """Puts everything back as it was."""
        kept = {id(m): (m, own, inside) for m, own, inside in self.before}
        for _, _, found in self._inside:
            for i in found:
                if i.changed():
                    i.put_back()
        for module, name, *_ in [c for c in self.changed() if not c.inside]:
            m, own, inside = kept[id(module())]
            if name not in own:
                del vars(m)[name]
                continue
            value = vars(m)[name] = own[name]
            if isinstance(value, list) and name in inside:
                value[:] = inside[name]
            elif name in inside:
                value.clear()
                value.update(inside[name])
