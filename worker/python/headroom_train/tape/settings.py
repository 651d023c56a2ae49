"""Plain values that decide what a module computes, in the objects and containers among its attributes: the flags of a
configuration, the epoch of a schedule. A step in pieces is tried anew when one of them changes."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Collection, Iterator
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, Optional

import torch

from ..hooks.genuine import data_ptr, numel
from .snapshot import PLAIN, USUAL, WIDE, names_of
from .trees import base_of, elements, is_a, size

MOST = 200  # the most values of one module
FEW = 16  # the most elements of a tensor or an array that is a setting
DEEP = 4  # containers and objects inside each other
OFTEN = 4  # what has changed more often than this changes by itself, as a counter does
_EXACT = {*PLAIN}
# What is told from another one by which it is.
_NAMED = (*PLAIN, enum.Enum, FunctionType, MethodType, BuiltinFunctionType, type, torch.nn.Module)


class Settings:
    """The values of one module, but for those that change by themselves: each costs :data:`OFTEN` trials at most."""

    def __init__(self) -> None:
        self._last: list = []
        self._changes: list[int] = []
        self._others = 0  # how often there have been more or fewer values

    def settled(self, now: list) -> tuple:
        """What stands for these values in a key."""
        if len(now) != len(self._last):
            self._others += bool(self._last)
            self._changes = [0] * len(now)
        else:
            pairs = zip(self._last, now)
            self._changes = [n + (type(a) is not type(b) or a != b) for n, (a, b) in zip(self._changes, pairs)]
        self._last = now
        if self._others > OFTEN:  # something grows
            return ()
        return tuple(value for value, changes in zip(now, self._changes) if changes <= OFTEN)


def settings(module: torch.nn.Module, unread: Collection[tuple[int, str]] = ()) -> list:
    """The plain values in the objects and containers that a module of the script's own holds, as far as its methods
    name them, and what small tensors and arrays hold on the CPU. Functions and modules are represented by their ids.
    What is in ``unread`` is left out: attributes, by the module's id, that calls do not read. Nothing of the script's
    is run."""
    names = names_of(type(module)) - USUAL  # type: ignore[arg-type]
    found: list = []
    for name, value in (*vars(module).items(), *module._buffers.items()) if names else ():
        if name in names and type(value) not in _EXACT and (id(module), name) not in unread:
            for inside in _inside(value, names, DEEP, set()):
                found.append(inside)
                if len(found) == MOST:
                    return found
    return found


def _inside(value: Any, names: frozenset[str], left: int, seen: set[int]) -> Iterator[Any]:
    kind: Any = type(value)
    if kind in _EXACT:
        yield value
    elif is_a(value, _NAMED):
        yield id(value)
    elif is_a(value, torch.Tensor):
        yield _numbers(value)
    elif kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        yield value.tobytes() if value.size <= FEW else None
    elif left and id(value) not in seen:
        seen.add(id(value))
        for item in _parts(value, names):
            yield from _inside(item, names, left - 1, seen)


def _numbers(tensor: torch.Tensor) -> Optional[bytes]:
    """What a small tensor on the CPU holds."""
    usual = type(tensor) is torch.Tensor and tensor.is_cpu and tensor.layout == torch.strided
    if not usual or tensor.requires_grad or numel(tensor) > FEW or not tensor.is_contiguous():
        return None
    return ctypes.string_at(data_ptr(tensor), numel(tensor) * tensor.element_size())


def _parts(value: Any, names: frozenset[str]) -> list:
    """The elements of a small container, and what an object holds under one of the names."""
    if is_a(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if base_of(value) is not None:
        return elements(value) if size(value) <= WIDE else []
    held = object.__getattribute__(value, "__dict__") if type(value).__dictoffset__ else {}
    return [held[name] for name in held if name in names]
