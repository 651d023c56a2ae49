"""Autograd's graphs: walking through one, and letting go of what it has saved although it
is still held.

A user's variables (``out``, ``loss``) keep the graph of a failed try alive, and with it
every activation. Each tensor that a node has saved is replaced by a hook that raises:
the activations are free, whoever still holds the graph. Nothing is done before a failure.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Iterable, Iterator

import torch

KEEP = 16  # elements; the graphs of scalars stay usable


def sequence() -> int:
    """The number that autograd gives its next node."""
    return torch._C._autograd._get_sequence_nr()


def within(node: Any, spans: Iterable[tuple[int, int]]) -> bool:
    """Whether a node was made in one of some spans of sequence numbers."""
    number = node._sequence_nr()
    return any(a <= number < b for a, b in spans)


def walk(roots: Iterable[Any], closed: Iterable[Any] = (), enter: Callable[[Any], bool] = lambda _: True, most: float = float("inf")) -> Iterator[Any]:
    """The nodes that can be reached from some, each once, ``most`` of them at most, and none
    of ``closed``. What is behind a node is reached only if ``enter`` says so."""
    todo, seen = list(roots), set(closed)
    while todo and len(seen) < most:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if enter(node):
            todo += [n for n, _ in node.next_functions]


@lru_cache(maxsize=None)
def _names(kind: type) -> tuple:
    return tuple(n for n in dir(kind) if n.startswith("_raw_saved_"))


@lru_cache(maxsize=None)
def _constants(kind: type) -> tuple:
    every = set(dir(kind))
    return tuple(sorted(n for n in every if n.startswith("_saved_") and "_raw" + n not in every))


_COPIES = ("ToCopyBackward", "CloneBackward")


def _behind(node: Any) -> Any:
    """A node, or what it copies."""
    while node is not None and node.name().startswith(_COPIES):
        node = node.next_functions[0][0]
    return node


def signature(tensors: Iterable[Any], most: int = 10000) -> int:
    """What the graphs of some tensors are recognised by: which functions made them of what, with
    which numbers, to which leaves. Copies and conversions are left out: autocast keeps those of
    weights, and a scalar that is changed in place is replayed on a copy."""
    parts = []
    for node in walk([t.grad_fn for t in tensors], most=most):
        name = node.name()
        if not name.startswith(_COPIES):
            leaf = id(node.variable) if name.endswith("AccumulateGrad") else 0
            following = tuple(n.name() for n in (_behind(n) for n, _ in node.next_functions) if n is not None)
            parts.append((name, leaf, following, repr([getattr(node, n) for n in _constants(type(node))])))
    return hash(tuple(parts))


def drop(nodes: Iterable[Any], borders: Iterable[Any], failure: BaseException) -> None:
    """Empties the graphs that end in some nodes. ``borders`` are nodes of the user's own
    graphs, which are not entered. Whoever uses one of these graphs all the same gets
    ``failure``, which must have no traceback: its frames hold the tensors that hold the
    graph."""

    def pack(tensor: torch.Tensor) -> Any:
        return tensor if tensor.numel() <= KEEP else failure

    def unpack(kept: Any) -> torch.Tensor:
        if kept is failure:
            raise failure
        return kept

    for node in walk(nodes, closed=borders):
        for name in _names(type(node)):
            try:
                found = getattr(node, name)
            except RuntimeError:
                continue  # a backward has been here
            for saved in found if isinstance(found, tuple) else (found,):
                try:
                    saved.register_hooks(pack, unpack)
                except (RuntimeError, AttributeError):
                    pass  # nothing was saved, or it lies where the user's own hooks have put it
