"""How what is free in the allocator lies between what is in use. Pure: a snapshot of the memory in, figures out."""

from __future__ import annotations

from typing import NamedTuple, Optional

from .shares import IDLE, Segments, largest

MIB = 1 << 20
BELOW = (1 * MIB, 10 * MIB, 100 * MIB, 1024 * MIB)  # sizes of pieces that are told apart
PAGE = {"small": 2 * MIB, "large": 20 * MIB}  # what expandable segments map and unmap, by the kind of segment


class Fragments(NamedTuple):
    """What is free beside what is in use, in bytes."""

    pieces: int
    number: int
    largest: int  # block that the allocator could hand out as it is
    sizes: tuple[dict[str, int], ...]
    pages: int  # at least so much of the pieces are whole pages, wherever the pieces begin
    freed: int  # given back between the failure and the snapshot
    expandable: bool


def _pieces(segments: Segments) -> list[tuple[int, int]]:
    """What is free in segments of which something is in use: the size of each piece, and of a page there."""
    return [
        (b["size"], PAGE.get(s.get("segment_type", "large"), PAGE["large"]))
        for s in segments
        if any(b["state"] != IDLE for b in s["blocks"])
        for b in s["blocks"]
        if b["state"] == IDLE and b["size"]
    ]


def fragments(segments: Segments, freed: int = 0) -> Optional[Fragments]:
    """The fragments of some segments; None if nothing is free beside what is in use."""
    pieces = _pieces(segments)
    if not pieces:
        return None
    sizes = []
    for low, below in zip((0, *BELOW), (*BELOW, 0)):
        some = [size for size, _ in pieces if size >= low and (size < below or not below)]
        if some:
            sizes.append({"below": below, "number": len(some), "bytes": sum(some)})
    return Fragments(
        sum(size for size, _ in pieces),
        len(pieces),
        largest(segments),
        tuple(sizes),
        sum(max(0, size // page - 1) * page for size, page in pieces),
        freed,
        any(s.get("is_expandable") for s in segments),
    )
