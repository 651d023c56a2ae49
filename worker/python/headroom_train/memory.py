"""How much memory of a GPU this process has, and could have."""

from __future__ import annotations

from typing import NamedTuple, Optional

import torch


class Memory(NamedTuple):
    """The memory of one GPU, in bytes."""

    allowed: int  # to this process
    free: int
    reserved: int
    allocated: int
    peak: int  # of reserved
    failures: int  # allocations that have failed


def may_ask() -> bool:
    """Whether a GPU is in use and may be queried for its memory, which is not possible while a CUDA
    graph is captured."""
    return torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing()


def memories() -> list[Memory]:
    """The memory of each GPU on which this process has reserved any; empty if one of them does not report it."""
    if not may_ask():
        return []
    found = []
    for device in range(torch.cuda.device_count()):
        stats = torch.cuda.memory_stats_as_nested_dict(device)
        try:
            reserved = stats["reserved_bytes"]["all"]
            if reserved["peak"]:
                free, total = torch.cuda.mem_get_info(device)
                allowed = allowed_of(total, device)
                if allowed is None:
                    return []
                allocated = stats["allocated_bytes"]["all"]["current"]
                found.append(Memory(allowed, free, reserved["current"], allocated, reserved["peak"], stats["num_ooms"]))
        except (KeyError, RuntimeError):  # another allocator
            return []
    return found


def allowed_of(total: int, device: Optional[int] = None) -> Optional[int]:
    """How many of the ``total`` bytes of a GPU this process may use. The GPU is the current one if
    ``device`` is None. Returns None if an older PyTorch or another allocator does not report a
    limit."""
    try:
        return int(total * torch.cuda.get_per_process_memory_fraction(device))
    except (AttributeError, RuntimeError):
        return None


def unreserved() -> tuple[int, int]:
    """Bytes of the current GPU that this process could still reserve, and bytes that it may use in all."""
    free, total = torch.cuda.mem_get_info()
    allowed = allowed_of(total)
    capacity = total if allowed is None else allowed
    return min(free, max(0, capacity - torch.cuda.memory_reserved())), capacity


def room() -> int:
    """Bytes that this process could still allocate on the current GPU; 0 if no GPU is in use."""
    if not torch.cuda.is_initialized():
        return 0
    return unreserved()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


POOLS: dict[int, int] = {}  # bytes of memory of the host that PyTorch counts as allocated on a GPU, by its number


def pooled() -> int:
    """Those bytes for the current GPU: all of a pool is in use, or withheld, when an allocation fails."""
    return POOLS.get(torch.cuda.current_device(), 0) if POOLS else 0
