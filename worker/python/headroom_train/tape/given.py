"""Knows whether a call changes what it is given.

A replay gives a call new lists and dicts, in which the tensors are those of some rows, and the same objects again.
What the call puts into them, such as a loss of its own or a state for the next call, would be lost, or made several
times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any

import torch

from .snapshot import PLAIN, Contents, Names, OnTensors, Walk, is_own, within
from .tape import Entry
from .trees import elements, is_a

_WITHOUT = set(PLAIN)  # types of what has no parts that a call could change


def changes(entry: Entry) -> str:
    """Why a call that changes what it is given cannot be repeated."""
    return f"a call to {entry.call_name()} changes its argument"


def labels(entry: Entry) -> str:
    """Why a call that sets attributes on a tensor which it returns cannot be repeated."""
    return f"a call to {entry.call_name()} sets an attribute of a tensor that it returns"


class Given:
    """What the containers, the objects of the script's own classes and the arrays among a call's arguments held before
    it, and the attributes of the tensors. A call that writes to a tensor is seen by its version."""

    def __init__(self, args: Iterable, kwargs: dict) -> None:
        values = [v for v in (*args, *kwargs.values()) if type(v) not in _WITHOUT]
        tensors = {i: v for i, v in enumerate(values) if is_a(v, torch.Tensor)}
        self._contents: list[Contents] = []
        values = [v for v in values if not is_a(v, torch.Tensor)] if tensors else values
        seen: set[int] = set()
        while values:
            value = values.pop()
            inside = [elements(value)] if is_a(value, tuple) else []
            for contents in _inside(value, seen):
                self._contents.append(contents)
                if type(contents) is Contents and not is_a(contents.before, int):
                    inside.append(contents.before.values() if is_a(contents.before, dict) else contents.before)
            for v in (v for held in inside for v in held):
                if type(v) in (FunctionType, MethodType) or is_a(v, tuple):
                    values.append(v)
                elif is_a(v, torch.Tensor):
                    tensors[len(tensors)] = v
        if tensors:
            self._contents.append(OnTensors(tensors))

    def changed(self) -> bool:
        return any(c.keys() for c in self._contents)

    def put_back(self) -> bool:
        """Undoes what has changed since. Returns whether all of it could be undone."""
        for contents in self._contents:
            contents.put_back()
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
