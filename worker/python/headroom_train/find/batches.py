"""What a script's loaders give. With ``headroom find --look N`` the largest of the first N batches is given first: so
the step that is tried is made on it, by the script itself, and nothing has to be known of what makes a batch large."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from functools import wraps
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..hooks.changes import Change
from ..tape.trees import flatten

LENGTHS = 4  # of at most so many dimensions it is told that they differ
TENSORS = 64  # of a batch whose shapes are looked at
_COUNTS = "_headroom_counts"  # of an iterator's batches: how many samples its loader puts into each


class Seen(NamedTuple):
    """The shapes of a batch's tensors by their names, and how many samples the loader has put into it, 0 if that is not
    known."""

    shapes: dict[str, tuple[int, ...]]
    rows: int

    def size(self) -> float:
        """The elements of a sample; of the batch if the number of samples is not known."""
        return sum(torch.Size(s).numel() for s in self.shapes.values()) / max(1, self.rows)


class Found:
    """What one iteration of a loader has given. ``used`` is the batch that was given first."""

    def __init__(self) -> None:
        self.first: Optional[Seen] = None
        self.used: Optional[Seen] = None
        self.number = 0
        self.differ = False  # in the tensors that they have
        self.time = 0.0  # of the newest
        self._sizes: dict[tuple[str, int], set[tuple[int, int]]] = {}  # with the rows, by tensor and dimension

    def add(self, seen: Seen) -> None:
        self.first = self.first or seen
        self.number, self.time = self.number + 1, time.monotonic()
        one, other = self.first.shapes, seen.shapes
        self.differ = self.differ or {k: len(s) for k, s in one.items()} != {k: len(s) for k, s in other.items()}
        for name, shape in seen.shapes.items():
            for dim, size in enumerate(shape):
                self._sizes.setdefault((name, dim), set()).add((size, seen.rows))

    def lengths(self) -> list[dict[str, Any]]:
        """The dimensions whose sizes differ between batches, and not in proportion to the rows."""
        found: dict[tuple, dict[str, Any]] = {}
        for (name, dim), pairs in self._sizes.items():
            sizes = {size for size, _ in pairs}
            rows = all(n for _, n in pairs) and len({size / n for size, n in pairs}) == 1
            first = self.first.shapes.get(name, ()) if self.first is not None else ()
            used = self.used.shapes.get(name, ()) if self.used is not None else ()
            if len(sizes) == 1 or rows or len(first) <= dim or self.used is not None and len(used) <= dim:
                continue
            length = {"least": min(sizes), "most": max(sizes), "first": first[dim]}
            if self.used is not None:
                length["used"] = used[dim]
                if self.used.rows:
                    length["each"] = torch.Size(used).numel() // self.used.rows
            # Masks and targets are as long as what they belong to.
            found.setdefault((*length.values(),), {"tensor": name, "dim": dim, **length})
        return [*found.values()][:LENGTHS]


class Batches:
    """What the loaders give until the first step is over. ``most`` is how many batches of a loader are looked at before
    it gives its first; 0 is none."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._found: list[tuple[weakref.ref[Read], Found]] = []

    def watch(self) -> None:
        """Changes what PyTorch's loaders return when they are iterated over."""
        original, index = DataLoader.__iter__, _BaseDataLoaderIter._next_index

        @wraps(original)
        def iterated(loader: DataLoader) -> Any:
            def begin() -> Iterator:
                kept = getattr(loader, "_iterator", None)  # which is used again
                if kept is not None:
                    vars(kept).pop(_COUNTS, None)
                return original(loader)

            read = Read(loader, begin, self.most)
            self._found.append((weakref.ref(read), read.found))
            return read

        @wraps(index)
        def counted(iterator: Any) -> Any:
            found = index(iterator)
            counts = vars(iterator).setdefault(_COUNTS, deque())
            counts.append(len(found) if isinstance(found, (list, tuple)) else 0)
            return found

        Change(DataLoader, "__iter__", iterated)
        Change(_BaseDataLoaderIter, "_next_index", counted)

    def told(self) -> dict[str, Any]:
        """What is reported: of the loaders that the script still iterates over; if there are none, of the newest."""
        given = [(ref() is not None, found) for ref, found in self._found if found.number]
        now = [found for there, found in given if there] or [found for _, found in given][-1:]
        told = {"look": self.most, "read": sum(found.number for found in now)}
        lengths = [length for found in now for length in found.lengths()][:LENGTHS]
        tensors = any(found.first is not None and found.first.shapes for found in now)
        return {**told, "tensors": tensors, "differ": any(found.differ for found in now), "lengths": lengths}


class Read:
    """An iterator over a loader's batches. If it looks ahead, the largest of those batches comes first. Then come those
    that follow them, and the others last, read once more: as many as without it."""

    def __init__(self, loader: DataLoader, begin: Callable[[], Iterator], most: int) -> None:
        self._full = loader.batch_size or 0
        self._begin, self._most = begin, most
        self._inner, self._again = begin(), False
        self._left = 0  # batches that were looked at, and have not been given
        self._largest: list[Any] = []  # to be given next
        self.found = Found()

    def __iter__(self) -> Read:
        return self

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __next__(self) -> Any:
        if self._most:
            most, self._most = self._most, 0
            self._look(most)
        if self._largest:
            return self._largest.pop()
        if not self._again:
            try:
                return self._next()[0] if self.found.used is None else next(self._inner)
            except StopIteration:
                if not self._left:
                    raise
            self._inner, self._again = self._begin(), True
        if not self._left:
            raise StopIteration
        self._left -= 1
        return next(self._inner)

    def _next(self) -> tuple[Any, Optional[Seen]]:
        """The next batch, and what was seen of it; None for a last batch with fewer rows than the others."""
        batch = next(self._inner)
        counts = getattr(self._inner, _COUNTS, None)
        seen = Seen(_shapes(batch), counts.popleft() if counts else 0)
        if self.found.number and seen.rows < self._full:
            return batch, None
        self.found.add(seen)
        return batch, seen

    def _look(self, most: int) -> None:
        count = 0
        while count < most:
            try:
                batch, seen = self._next()
            except StopIteration:
                break
            except Exception:  # the script need not have come to this batch
                if not count:
                    raise
                break
            count += 1
            if seen is not None and (self.found.used is None or seen.size() > self.found.used.size()):
                self._largest, self.found.used = [batch], seen
            del batch
        self._left = count - len(self._largest)


def _shapes(batch: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of a batch's tensors, by their names: the keys of a dict, and otherwise which of them it is."""
    items = [(str(key), value) for key, value in batch.items()] if isinstance(batch, Mapping) else [("", batch)]
    found: dict[str, tuple[int, ...]] = {}
    for key, value in items:
        for leaf in flatten(value)[0]:
            if isinstance(leaf, torch.Tensor) and len(found) < TENSORS:
                name = key if isinstance(value, torch.Tensor) and key else f"tensor {len(found) + 1}"
                found[name] = tuple(leaf.shape)
    return found
