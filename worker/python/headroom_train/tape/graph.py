"""Walks through autograd's graphs, and releases the tensors that a graph has saved while the graph
itself is still held.

A user's variables, such as ``out`` and ``loss``, keep the graph of a failed try alive, and with it
every activation. Each tensor that a node has saved is replaced by a hook that raises, so the
activations are freed even while a variable still holds the graph. Nothing is released before a
failure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from functools import cache
from typing import Any, Callable, Optional

import torch

from ..hooks.genuine import apart, hidden

# The name of a reentrant checkpoint's node, in PyTorch and in libraries that have their own.
REENTRANT = "CheckpointFunctionBackward"
# Why a step whose nodes have hooks is not made again.
HOOKED = "the script has registered a hook on a node of the graph (grad_fn)"
MOST = 10000  # nodes of a graph that are looked at
SMALL = 1000  # nodes of a graph that the script has built outside a step
KEEP = 16  # saved tensors with at most this many elements are kept, so that the graphs of scalars stay usable


def sequence() -> int:
    """The sequence number that autograd will give its next node."""
    return torch._C._autograd._get_sequence_nr()


def within(node: Any, spans: Iterable[tuple[int, int]]) -> bool:
    """Whether a node's sequence number is in one of the given spans."""
    number = node._sequence_nr()
    return any(a <= number < b for a, b in spans)


def walk(
    roots: Iterable[Any],
    closed: Iterable[Any] = (),
    enter: Callable[[Any], bool] = lambda _: True,
    most: float = float("inf"),
) -> Iterator[Any]:
    """Yields each node that can be reached from ``roots``, once. Nodes in ``closed`` are not
    visited. The walk goes on from a node to its inputs only if ``enter`` returns true for the node.
    It ends early once ``most`` nodes, including those in ``closed``, have been seen."""
    todo, seen = list(roots), set(closed)
    while todo and len(seen) < most:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        if enter(node):
            todo += [n for n, _ in node.next_functions]


def leaves(nodes: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The leaves among the nodes of a graph."""
    return (n.variable for n in nodes if n.name().endswith("AccumulateGrad"))


def leaves_behind(tensors: Iterable[Any]) -> Optional[list[Any]]:
    """The leaves behind the graphs of some tensors; None if the graphs have more than :data:`SMALL` nodes."""
    nodes = [*walk([t.grad_fn for t in tensors], most=SMALL)]
    return None if len(nodes) >= SMALL else [*leaves(nodes)]


def has_hooks(node: Any) -> bool:
    """Whether Python's hooks are registered on a node. Those of a kind share a dict, which one more hook shows."""
    for register in (node.register_prehook, node.register_hook):
        handle = register(lambda *_: None)
        others = len(handle.hooks_dict_ref()) > 1
        handle.remove()
        if others:
            return True
    return False


def has_hooks_at_leaves(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether Python's hooks are registered on the node that adds to the gradient of any of the tensors that are
    leaves."""
    with apart(), hidden(), torch.enable_grad():
        nodes = (_view(t).grad_fn.next_functions[0][0] for t in tensors if t.requires_grad and t.is_leaf)
        return any(map(has_hooks, nodes))


def _view(tensor: torch.Tensor) -> Any:
    return torch._C.TensorBase.view_as(tensor, tensor)


def may_bend(tensor: torch.Tensor) -> bool:
    """Whether the backward pass of a tensor's graph may not be linear in the gradient that it is given: a function is
    written in Python, as one that clamps gradients is, or a node has hooks. Hooks of parameters do not count. Those
    that :meth:`torch.Tensor.register_hook` adds to a node are not seen from Python."""
    inner = (n for n in walk([tensor.grad_fn]) if not n.name().endswith("AccumulateGrad"))
    return any(_in_python(n) or has_hooks(n) for n in inner)


def in_python(tensor: torch.Tensor) -> bool:
    """Whether a function of a tensor's graph is written in Python. Its backward pass may free what it needs."""
    return any(map(_in_python, walk([tensor.grad_fn], most=MOST)))


def _in_python(node: Any) -> bool:
    return isinstance(node, torch.autograd.function.BackwardCFunction)


def unused(tensors: Iterable[Any]) -> bool:
    """Whether it is certain that no backward pass has used the graphs of some tensors up, as far as it reached leaves:
    whatever they have saved is still there. What a function written in Python keeps is not known."""
    nodes = [*walk([t.grad_fn for t in tensors], most=SMALL)]
    return len(nodes) < SMALL and not any(map(_may_be_used, nodes))


def _may_be_used(node: Any) -> bool:
    if _in_python(node):
        return True
    for name in _names(type(node)):  # type: ignore[arg-type]
        try:
            found = getattr(node, name)
        except RuntimeError:
            return True  # a backward pass has freed it
        for saved in found if isinstance(found, tuple) else (found,):
            if getattr(saved, "data", None) is not None:
                continue
            try:
                saved.register_hooks(_itself, _itself)
                return True  # an older PyTorch, in which this is not seen
            except RuntimeError as e:
                if "freed" in str(e):
                    return True
    return False


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


@cache
def _names(kind: type) -> tuple:
    return tuple(n for n in dir(kind) if n.startswith("_raw_saved_"))


@cache
def _constants(kind: type) -> tuple:
    every = set(dir(kind))
    return tuple(sorted(n for n in every if n.startswith("_saved_") and "_raw" + n not in every))


_COPIES = ("ToCopyBackward", "CloneBackward")


def _behind(node: Any) -> Any:
    """The node itself, or, if it is a copy or a conversion, the node whose result is copied."""
    while node is not None and node.name().startswith(_COPIES):
        node = node.next_functions[0][0]
    return node


def reentrant(tensor: torch.Tensor) -> bool:
    """Whether a tensor's graph contains a checkpoint with ``use_reentrant=True``. Such a checkpoint has a graph of its
    own, and adds the gradients that it finds there to ``.grad`` itself."""
    return any(n.name() == REENTRANT for n in walk([tensor.grad_fn], most=MOST))


def signature(tensors: Iterable[Any], known: Container[int]) -> int:
    """A hash by which the graphs of some tensors are recognised. It covers the graphs' functions,
    how these are connected, their constants, and the leaves. Of the leaves, those whose ids are in ``known`` existed
    before the call; any other may have been made in it, as by ``requires_grad_()`` on what a frozen layer returns,
    and counts by its shape and dtype. Copies and conversions are left out:
    autocast caches converted weights, and a scalar that is changed in place is replayed on a
    copy."""
    parts = []
    for node in walk([t.grad_fn for t in tensors], most=MOST):
        name = node.name()
        if not name.startswith(_COPIES):
            leaf = _leaf(node.variable, known) if name.endswith("AccumulateGrad") else 0
            following = tuple(n.name() for n in (_behind(n) for n, _ in node.next_functions) if n is not None)
            constants = repr([getattr(node, n) for n in _constants(type(node))])  # type: ignore[arg-type]
            parts.append((name, leaf, following, constants))
    return hash(tuple(parts))


def outline(tensors: Iterable[torch.Tensor]) -> int:
    """A hash of the functions of some tensors' graphs and their order, whatever sizes and numbers these have. Copies
    and conversions are left out, as in :func:`signature`."""
    names = (n.name() for n in walk([t.grad_fn for t in tensors], most=MOST))
    return hash(tuple(name for name in names if not name.startswith(_COPIES)))


def _leaf(tensor: torch.Tensor, known: Container[int]) -> Any:
    return id(tensor) if id(tensor) in known else (tuple(tensor.shape), tensor.dtype)


def drop(nodes: Iterable[Any], borders: Iterable[Any], failure: BaseException) -> None:
    """Releases the tensors that are saved in the graphs of the given nodes, except those of at most
    :data:`KEEP` elements. ``borders`` are nodes of the user's own graphs, which are not entered.
    Using an emptied graph raises ``failure``. That exception must have no traceback, since a
    traceback's frames would hold the tensors that hold the graph."""

    def pack(tensor: torch.Tensor) -> Any:
        return tensor if tensor.numel() <= KEEP else failure

    def unpack(kept: Any) -> torch.Tensor:
        if kept is failure:
            raise failure
        return kept

    for node in walk(nodes, closed=borders):
        for name in _names(type(node)):  # type: ignore[arg-type]
            try:
                found = getattr(node, name)
            except RuntimeError:
                continue  # a backward pass has freed it
            for saved in found if isinstance(found, tuple) else (found,):
                try:
                    saved.register_hooks(pack, unpack)
                except (RuntimeError, AttributeError):
                    pass  # nothing was saved, or the user's own hooks have packed it
