"""What modules hold besides parameters and buffers: their attributes, and what is in the
lists and dicts among them."""

from __future__ import annotations

import weakref
from itertools import islice
from typing import Any, Iterable, Iterator, NamedTuple

import torch
from torch.utils._pytree import tree_flatten

MOST = 10000  # elements of a container that are looked at
# What every module has, and no call changes.
USUAL = set(vars(torch.nn.Module())) - {"_buffers", "training"}
_PLAIN = (int, float, str, bool, bytes, type(None), torch.Size, torch.dtype, torch.device)
_FIRST = len(vars(torch.nn.Module()))  # attributes that every module is given before any of its own


def attributes(module: torch.nn.Module) -> list[tuple[str, Any]]:
    """What a module holds, but for :data:`USUAL`."""
    own = vars(module)
    if next(iter(own)) == "training":
        return [("training", own["training"]), ("_buffers", own["_buffers"]), *islice(own.items(), _FIRST, None)]
    return [(n, v) for n, v in own.items() if n not in USUAL]


def submodules(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """The modules and what they consist of, each once."""
    return list({id(m): m for root in modules for m in root.modules()}.values())


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


class Change(NamedTuple):
    """An attribute that is not as it was, with the keys that differ if it is a container that has
    stayed the same object, else with none."""

    module: weakref.ref
    name: str
    keys: tuple

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
    """What some modules held at a moment. Holds references, and copies no tensor."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self.before: list[tuple[torch.nn.Module, dict, dict]] = []
        for m in modules:
            own = dict(attributes(m))
            self.before.append((m, own, {n: c for n, v in own.items() if (c := _contents(v)) is not None}))

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

    def put_back(self) -> None:
        """Puts everything back as it was."""
        kept = {id(m): (m, own, inside) for m, own, inside in self.before}
        for module, name, _ in list(self.changed()):
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
