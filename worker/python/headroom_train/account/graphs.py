"""Measures autograd's graphs, without running anything that the script has hooked into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, Optional

import torch

MOST = 60_000  # nodes that one look walks through, 5 µs each
NODE = 400  # bytes that a node takes, about


class Saved(NamedTuple):
    """What a graph holds."""

    alive: bool  # a backward pass has not freed it
    bytes: int  # of its nodes as well
    tensors: int
    host: bool  # all of it in the machine's memory


def deepest(tensors: Iterable[torch.Tensor]) -> int:
    roots = [t.grad_fn for t in tensors if t.grad_fn is not None]
    roots += [g.grad_fn for t in tensors if (g := grad(t)) is not None and g.grad_fn is not None]
    return max(depths(roots), default=0)


def grad(t: torch.Tensor) -> Optional[torch.Tensor]:
    """The gradient of a leaf; None if there is none."""
    return t.grad if t.requires_grad and t.is_leaf else None


def depths(roots: list[Any]) -> list[int]:
    """The lengths of the longest paths from some nodes; 0 for those beyond the first :data:`MOST` nodes."""
    known: dict[int, int] = {}
    kept: list[Any] = []  # so that no id is used twice
    for root in roots:
        todo = [(root, False)]
        while todo and len(kept) < MOST:
            node, done = todo.pop()
            if done:
                known[id(node)] = 1 + max(
                    (known.get(id(n), 0) for n, _ in node.next_functions if n is not None), default=0
                )
            elif id(node) not in known:
                known[id(node)] = 0
                kept.append(node)
                todo.append((node, True))
                todo += [(n, False) for n, _ in node.next_functions if n is not None and id(n) not in known]
    return [known.get(id(root), 0) for root in roots]


def reaches(root: Any, before: int) -> bool:
    """Whether the graph of a node goes back to a node that autograd made before it gave the number ``before``."""
    todo, seen = [root], set()
    kept: list[Any] = []  # so that no id is used twice
    while todo and len(kept) < MOST:
        node = todo.pop()
        if node is None or id(node) in seen:
            continue
        if node._sequence_nr() < before:
            return True
        seen.add(id(node))
        kept.append(node)
        todo += [n for n, _ in node.next_functions]
    return bool(todo)


def saved(root: Any, before: Iterable[Any], packed: bool, most: int = 5000) -> Saved:
    """What the graph of a node has saved, apart from memory in ``before``. Tensors that hooks of the script have packed
    stay packed; ``packed`` if there may be some."""
    return together([root], before, packed, most)


def together(roots: Iterable[Any], before: Iterable[Any], packed: bool, most: int = 5000) -> Saved:
    """What the graphs of several nodes have saved: what they share counts once."""
    todo, seen = [*roots], set()
    kept: list[Any] = []
    storages, alive, held, host = set(before), False, 0, True
    known = len(storages)
    while todo and len(kept) < most:
        node = todo.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        kept.append(node)
        for t in contents(node, packed):
            alive = True
            key = _key(t)
            if key is not None and key not in storages:
                storages.add(key)
                host = host and t.device.type == "cpu"
                held += t.untyped_storage().nbytes()
        todo += [n for n, _ in node.next_functions]
    return Saved(alive, held + NODE * len(kept), len(storages) - known, host)


def contents(node: Any, packed: bool) -> Iterator[Any]:
    """What a node has saved and a backward pass has not freed."""
    for name in _names(type(node)):  # type: ignore[arg-type]
        try:
            raw = getattr(node, name)
            if SHOWS:
                found = [getattr(one, "data", None) for one in (raw if isinstance(raw, tuple) else (raw,))]
            elif not packed:  # to ask for it would call the hooks
                unpacked = getattr(node, name.replace("_raw", "", 1))
                found = [*unpacked] if isinstance(unpacked, tuple) else [unpacked]
            else:
                found = []
        except (RuntimeError, AttributeError):  # a backward pass has freed it, or it has another name
            continue
        yield from (one for one in found if one is not None)


SHOWS = hasattr(torch._C._autograd.SavedTensor, "data")  # PyTorch shows what is saved as it is saved


def _key(t: Any) -> Optional[tuple[int, int]]:
    if not isinstance(t, torch.Tensor):
        return None
    try:
        storage = t.untyped_storage()
        return storage._cdata, storage.data_ptr()
    except Exception:  # sparse, or of a library that has no storages
        return None


@cache
def _names(kind: type) -> tuple:
    return tuple(n for n in dir(kind) if n.startswith("_raw_saved_"))


def copies(node: Any) -> bool:
    """Whether a node is a copy of a tensor to another place."""
    return str(node.name()).startswith(("ToCopyBackward", "CloneBackward"))


def sums(node: Any) -> bool:
    """Whether a node adds something to a tensor."""
    return str(node.name()).startswith(("AddBackward", "SubBackward", "AddcmulBackward", "AddcdivBackward"))
