"""When the machine's memory ends for this process, if it goes on growing as it does."""

from __future__ import annotations

from typing import Callable, Optional

from ..spill.pool import host_memory

# Limits on one process, as resource calls them, and what counts against each, as /proc/self/status calls it.
_LIMITS = (("RLIMIT_DATA", "VmData"), ("RLIMIT_AS", "VmSize"))


def left(free: Callable[[], int] = host_memory) -> Optional[int]:
    """Bytes that this process can still take of the machine's memory, within its limits and those of its control
    groups; None if the system does not say."""
    try:
        import resource

        with open("/proc/self/status") as f:
            held = {name: line.split()[0] for name, _, line in (text.partition(":") for text in f) if line.strip()}
        room = free()
        for limit, counted in _LIMITS:
            most = resource.getrlimit(getattr(resource, limit))[0]
            if most != resource.RLIM_INFINITY:
                room = min(room, max(0, most - (int(held[counted]) << 10)))
        return room
    except (ImportError, OSError, ValueError, KeyError, AttributeError):
        return None


def forecast(room: Optional[int], per_step: int, pace: float) -> tuple[int, float]:
    """In how many steps, and in how many seconds, memory ends if each step takes ``per_step`` bytes of the ``room``,
    and ``pace`` seconds; 0 and 0 if that is not known."""
    if room is None or per_step <= 0:
        return 0, 0.0
    steps = max(1, room // per_step)
    return steps, steps * pace
