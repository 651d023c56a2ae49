"""Knows whether a call changes what it is given.

A replay gives a call new lists and dicts, in which the tensors are those of some rows, and the same objects again.
What the call puts into them, such as a loss of its own or a state for the next call, would be lost, or made several
times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch

from .snapshot import PLAIN, Contents, Names, Walk, is_own, within
from .trees import is_a

CHANGES = "changes its argument"
LARGE = 1 << 20  # bytes: larger arrays are not looked at
_WITHOUT = {torch.Tensor, torch.nn.Parameter, *PLAIN}  # types of what has no parts that a call could change


class Given:
    """What the containers, the objects of the script's own classes and the arrays among a call's arguments held before
    it. Tensors are not among it: a call that writes to one is seen by its version."""

    def __init__(self, args: Iterable, kwargs: dict) -> None:
        self._contents: list[Contents] = []
        self._arrays: list[tuple[Any, Any]] = []
        values = [v for v in (*args, *kwargs.values()) if type(v) not in _WITHOUT]
        if not values:
            return
        seen: set[int] = set()
        while values:
            value = values.pop()
            self._keep_array(value)
            for contents in _inside(value, seen):
                self._contents.append(contents)
                held = contents.before.values() if is_a(contents.before, dict) else contents.before
                for inner in held if not is_a(held, int) else ():
                    self._keep_array(inner)
                    if type(inner) in (FunctionType, MethodType):
                        values.append(inner)

    def _keep_array(self, value: Any) -> None:
        if type(value).__name__ == "ndarray" and type(value).__module__ == "numpy" and value.nbytes <= LARGE:
            self._arrays.append((value, value.copy()))

    def changed(self) -> bool:
        return any(c.keys() for c in self._contents) or any(a.tobytes() != b.tobytes() for a, b in self._arrays)

    def put_back(self) -> bool:
        """Undoes what has changed since. Returns whether all of it could be undone."""
        for contents in self._contents:
            contents.put_back()
        for array, before in self._arrays:
            if array.tobytes() != before.tobytes():
                array[...] = before
        return not self.changed()


def _inside(value: Any, seen: set[int]) -> Iterator[Contents]:
    """Everything inside an argument that may change, except what is in ``seen``."""
    if type(value) is MethodType:
        value = value.__self__
    if type(value) is not FunctionType:
        yield from within(value, seen)
    elif is_own(value.__module__) and id(value) not in seen:
        seen.add(id(value))
        for _, used in Walk().used(value):
            yield from (used,) if is_a(used, Names) else within(used, seen)
