"""Letting go of what a graph has saved, although the graph is still held.

A user's variables (``out``, ``loss``) keep the graph of a failed try alive, and with it
every activation. Each tensor that a node has saved is replaced by a hook that raises:
the activations are free, whoever still holds the graph. Nothing is done before a failure.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Iterable

import torch

KEEP = 16  # elements; the graphs of scalars stay usable


@lru_cache(maxsize=None)
def _names(kind: type) -> tuple:
    return tuple(n for n in dir(kind) if n.startswith("_raw_saved_"))


def drop(nodes: Iterable[Any], borders: Iterable[Any], failure: BaseException) -> int:
    """Empties the graphs that end in some nodes, and counts the tensors. ``borders`` are
    nodes of the user's own graphs, which are not entered. Whoever uses one of these graphs
    all the same gets ``failure``, which must have no traceback: its frames hold the
    tensors that hold the graph."""

    def pack(tensor: torch.Tensor) -> Any:
        return tensor if tensor.numel() <= KEEP else failure

    def unpack(kept: Any) -> torch.Tensor:
        if kept is failure:
            raise failure
        return kept

    todo, seen, count = list(nodes), set(borders), 0
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for name in _names(type(node)):
            try:
                found = getattr(node, name)
            except RuntimeError:
                continue  # a backward has been here
            for saved in found if isinstance(found, tuple) else (found,):
                try:
                    saved.register_hooks(pack, unpack)
                    count += 1
                except (RuntimeError, AttributeError):
                    pass  # nothing was saved, or it lies where the user's own hooks have put it
        todo += [n for n, _ in node.next_functions]
    return count
