"""What DistributedDataParallel calls around a module, and its communication hooks: called once more if there is not
enough memory, after the cache has been emptied. Nothing is called again that has communicated, since the other ranks
would not take part, or that has changed what it works on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Optional

import torch

from ..failure import clean, is_out_of_memory
from ..hooks.swaps import Weak
from ..tape.snapshot import PLAIN
from ..world import talked

_MOST = 256  # parts of what a hook can reach
_NOT_CHANGED = (type, ModuleType, BuiltinFunctionType)
_PLAIN_OBJECT = type("Plain", (), {}).__basicsize__  # of one that has nothing but a dictionary


def patient(work: Callable, reaches: Optional[Callable[..., Optional[Stamp]]] = None) -> Callable:
    """A function that calls ``work``, and once more if memory has run out. ``reaches`` returns, for the arguments of
    the call, the :class:`Stamp` of what ``work`` may change; None if that is not known. Without it, there is nothing.
    """

    @wraps(work)
    def called(*args: Any, **kwargs: Any) -> Any:
        spoken, stamp = talked(), Stamp() if reaches is None else reaches(*args, **kwargs)
        failed: Optional[BaseException] = None
        try:
            return work(*args, **kwargs)
        except Exception as e:
            if not is_out_of_memory(e) or stamp is None or spoken != talked():
                raise
            if reaches is not None and stamp != reaches(*args, **kwargs):
                raise
            failed = e
        clean(failed, thorough=False)
        return work(*args, **kwargs)

    return called


class Stamp:
    """Tells whether things have changed, or anything that they hold. Two stamps of the same things are equal as long as
    nothing has. Keeps no tensor alive."""

    def __init__(self) -> None:
        self._parts: list[Any] = []
        self._tensors: list[Weak] = []
        self._kept: list[Any] = []  # so that nothing else gets their ids

    @classmethod
    def of(cls, *things: Any) -> Optional[Stamp]:
        """None if it cannot be told what the things hold: what is written in C has a state of its own."""
        made, seen, todo = cls(), set[int](), [*things]
        while todo:
            thing = todo.pop()
            if len(made._parts) > _MOST:
                return None
            if isinstance(thing, PLAIN):
                made._parts.append((type(thing), thing))
                continue
            made._parts.append(id(thing))
            if isinstance(thing, torch.Tensor):
                made._tensors.append(Weak(thing))
                if thing.is_inference():
                    return None
                made._parts.append(thing._version)
                continue
            made._kept.append(thing)
            if id(thing) in seen or isinstance(thing, _NOT_CHANGED) or _is_group(thing):
                continue
            seen.add(id(thing))
            inside = _inside(thing)
            if inside is None:
                return None
            todo += inside
        return made

    def __eq__(self, other: object) -> bool:
        alive = isinstance(other, Stamp) and all(ref() is not None for ref in self._tensors)
        return alive and self._parts == other._parts  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


def _is_group(thing: Any) -> bool:
    return torch.distributed.is_available() and isinstance(thing, torch.distributed.ProcessGroup)


def _inside(thing: Any) -> Optional[list[Any]]:
    """What a thing holds; None if that cannot be told."""
    if isinstance(thing, FunctionType):
        return _used(thing)
    if isinstance(thing, MethodType):
        return [thing.__func__, thing.__self__]
    if isinstance(thing, partial):
        return [thing.func, thing.args, thing.keywords]
    if type(thing) in (list, tuple, set, frozenset, deque):
        return [*thing]
    if type(thing) is dict:
        return [*thing.keys(), *thing.values()]
    plain = type(thing).__basicsize__ <= _PLAIN_OBJECT and hasattr(thing, "__dict__")
    return [vars(thing)] if plain else None


def _used(function: FunctionType) -> list[Any]:
    """What a function has in its closure, and, if it is not PyTorch's own, in its defaults and in globals."""
    found = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # the cell is still empty
            found.append(cell.cell_contents)
    if (function.__module__ or "").partition(".")[0] == "torch":
        return found
    names = _names(function.__code__)
    found += [value for name, value in function.__globals__.items() if name in names]
    return [*found, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _names(code: CodeType) -> set[str]:
    return {*code.co_names}.union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))
