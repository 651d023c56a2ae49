"""``torch.utils.swap_tensors``, which refuses tensors to which there are weak references, such as the worker's own."""

from __future__ import annotations

import weakref
from functools import wraps
from types import ModuleType
from typing import Any, Callable

import torch

from ..failure import unframed
from .changes import Change, changed


class Weak(weakref.ref):
    """A weak reference of the worker's to a tensor. It names an object, whatever that holds."""

    __slots__ = ()


class _Uncounted(ModuleType):
    """The module weakref, but for the worker's own references."""

    def __getattr__(self, name: str) -> Any:
        return getattr(weakref, name)

    @staticmethod
    def getweakrefs(thing: Any) -> list:
        return [ref for ref in weakref.getweakrefs(thing) if type(ref) is not Weak]


def watch(swaps: Callable[[tuple], Any]) -> None:
    """Has ``swaps`` called with the arguments before two tensors are swapped."""
    original, uncounted = torch.utils.swap_tensors, _Uncounted("weakref")

    @wraps(original)
    def swap_tensors(*args: Any, **kwargs: Any) -> Any:
        try:
            swaps((*args, *kwargs.values()))
            with changed(torch.utils, "weakref", uncounted):
                return original(*args, **kwargs)
        except BaseException as e:
            unframed(e)
            raise

    Change(torch.utils, "swap_tensors", swap_tensors)
