"""How many ranks train together, and how often this one has communicated with the others."""

from __future__ import annotations

import torch

_dist = torch.distributed
_called = 0  # calls of process groups from Python: sending to one rank and receiving from it have no sequence numbers


def several() -> bool:
    """Whether this process is one of several ranks."""
    return _dist.is_available() and _dist.is_initialized() and _dist.get_world_size() > 1


def calls() -> None:
    """Notes that a process group is called from Python."""
    global _called
    _called += 1


def talked() -> int:
    """A number that is different once this process has communicated with another rank, in whatever group. A call that
    has communicated must not be made again: the other ranks would not take part."""
    if not _dist.is_available() or not _dist.is_initialized():
        return 0
    groups = _dist.distributed_c10d._world.pg_map
    return _called + sum(group._get_sequence_number_for_group() for group in groups)  # type: ignore[attr-defined]
