"""How much memory is held for what. Pure: what is alive and the allocator's blocks in, amounts by kind out."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

WEIGHTS = "weights"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer"  # its state
BUFFERS = "buffers"
ACTIVATIONS = "activations"  # of the step that is under way: its graph has saved them, or its variables name them
KEPT = "kept"  # any other tensor: results, graphs and inputs that something holds
CACHE = "cache"  # free in the allocator
PIECES = "pieces"  # free in the allocator, beside something that is in use: it can neither be given back nor joined
KINDS = (WEIGHTS, GRADIENTS, OPTIMIZER, BUFFERS, ACTIVATIONS, KEPT, CACHE, PIECES)

IDLE = "inactive"  # the state of a block that is free
Segments = Sequence[dict[str, Any]]  # as torch.cuda.memory_snapshot() gives them


class Part(NamedTuple):
    """The memory behind a tensor, which counts once however many tensors share it."""

    kind: str
    address: int
    bytes: int


def by_size(parts: Iterable[Part]) -> dict[str, int]:
    """Bytes by kind, of parts that are each a piece of memory of their own."""
    found: dict[str, int] = {}
    for part in parts:
        found[part.kind] = found.get(part.kind, 0) + part.bytes
    return found


def by_block(parts: Iterable[Part], segments: Segments) -> dict[str, int]:
    """Bytes by kind, counted in whole blocks of the allocator, whose sizes are rounded. Parts outside the segments are
    not counted; of those in the same block, the kind counts that comes first in :data:`KINDS`. The sum is that of the
    segments, but for blocks that are in use and that no part is in."""
    blocks = sorted(
        (b["address"], b["size"], b["state"]) for segment in segments for b in segment["blocks"] if b["size"]
    )
    begins = [address for address, _, _ in blocks]
    kinds: dict[int, str] = {}
    for part in sorted(parts, key=lambda p: KINDS.index(p.kind)):
        at = bisect_right(begins, part.address) - 1
        if at >= 0 and part.address < begins[at] + blocks[at][1] and blocks[at][2] != IDLE:
            kinds.setdefault(at, part.kind)
    found: dict[str, int] = {}
    for at, kind in kinds.items():
        found[kind] = found.get(kind, 0) + blocks[at][1]
    for segment in segments:
        idle = sum(b["size"] for b in segment["blocks"] if b["state"] == IDLE)
        if idle:
            kind = CACHE if idle == segment["total_size"] else PIECES
            found[kind] = found.get(kind, 0) + idle
    return found


def reserved(segments: Segments) -> int:
    """Bytes that the allocator has taken from the device."""
    return sum(s["total_size"] for s in segments)


def largest(segments: Segments) -> int:
    """Bytes of the largest block that the allocator could hand out as it is."""
    return max((b["size"] for s in segments for b in s["blocks"] if b["state"] == IDLE), default=0)
