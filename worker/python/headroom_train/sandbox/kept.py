"""Finds out whether anything outside a call keeps what the call computes of its rows."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from ..tape.functions import shape_only
from .sandbox import Watcher, memory_of


class Kept(Watcher):
    """Follows what a call computes of the rows that it is given. What it makes without them, such as a mask for their
    number, may stay: it is the same for all rows."""

    def __init__(self) -> None:
        self._rows: set[int] = set()  # the memory of what is computed of the rows
        self._known: set[int] = {0}  # the memory that existed before
        # By memory. A weak reference also keeps another tensor from getting the same number.
        self._made: dict[int, StorageWeakRef] = {}
        self._views: list[weakref.ref[torch.Tensor]] = []

    def given(self, rows: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
        self._known.update(map(memory_of, (*rows, *others)))
        self._rows.update(self._known - {0})
        self._views += map(weakref.ref, rows)

    def after(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        made = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        used = set(map(memory_of, tree_leaves((args, kwargs))))
        if shape_only(func._schema.name.split("::")[-1]) or self._rows.isdisjoint(used):
            return
        self._known.update(used.difference(self._made))  # weights: cuDNN's recurrent layers return them, too
        for tensor in made:
            memory = memory_of(tensor)
            if memory in self._known:
                self._views.append(weakref.ref(tensor))
            elif memory not in self._made:
                self._made[memory] = StorageWeakRef(tensor.untyped_storage())
                self._rows.add(memory)

    def stays(self) -> bool:
        """Whether anything still keeps what the call has computed. Its result must have been let go of."""
        if self._alive():
            gc.collect()
        return self._alive()

    def _alive(self) -> bool:
        return any(view() is not None for view in self._views) or not all(s.expired() for s in self._made.values())
