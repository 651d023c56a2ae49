"""How much memory a trial takes: of a GPU, or of the host if no GPU is in use."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import torch

from ..account.ends import left
from ..failure import Refused
from ..memory import unreserved
from ..world import neighbours

LARGE = 1 << 16  # bytes from which the C library takes each allocation from the system, and gives it back
SHARE = 0.9  # of the machine's free memory, which trials may use
_M_MMAP_THRESHOLD = -3


class Reading(NamedTuple):
    """Amounts of memory, in bytes."""

    held: int  # now
    peak: int  # since the meter was started; at least held
    capacity: int  # that this process could hold


class Gpu:
    """Measures the memory of the current GPU. ``beside`` is what of it is in use and not PyTorch's: this process's
    context and libraries, and other processes."""

    device = "gpu"

    def __init__(self) -> None:
        free, self._total = torch.cuda.mem_get_info()
        self._allowed = unreserved()[1]
        self.reserved = torch.cuda.memory_reserved()
        self.beside = max(0, self._total - free - self.reserved)
        device = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.uuid = str(getattr(device, "uuid", ""))  # as its driver has it, but for a beginning such as "GPU-"

    @contextmanager
    def within(self, most: int) -> Iterator[None]:
        """PyTorch may hold only so many bytes of the GPU; 0 is as many as before."""
        if most <= 0:
            yield
            return
        torch.cuda.set_per_process_memory_fraction(min(most, self._allowed) / self._total)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(self._allowed / self._total)

    def start(self) -> None:
        torch.cuda.synchronize()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def read(self) -> Reading:
        torch.cuda.synchronize()
        room, allowed = unreserved()
        capacity = min(allowed, room + torch.cuda.memory_reserved())  # what libraries hold beside PyTorch is gone
        return Reading(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), capacity)

    def kept(self) -> None:
        """Starts to measure a new peak, with the caches as they are."""
        torch.cuda.reset_peak_memory_stats()


class Host:
    """Measures what this process holds of the host's memory. ``own`` is how much of it is headroom's, which ``beside``
    takes off. The peak is that of the pages in memory, which the kernel keeps."""

    device, uuid, reserved = "cpu", "", 0

    def __init__(self, own: int) -> None:
        self.beside = -own
        try:
            self.start()
            self._limit(own)
        except (OSError, AttributeError):
            raise Refused("the system does not say how much memory a process has needed") from None

    @staticmethod
    def _limit(own: int) -> None:
        """Raises this process's limit by what headroom itself has taken, which the script would have without it. Where
        nothing limits the process, the machine's memory becomes its limit: otherwise the kernel would end the process,
        or another one."""
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        room = left()
        if soft != resource.RLIM_INFINITY:
            most = soft + own
        elif room is not None:
            most = _status()["VmData"] + int(SHARE * room / neighbours())
        else:
            return
        ceiling = hard if hard == resource.RLIM_INFINITY else max(most, hard)
        with suppress(ValueError, OSError):  # only root may raise the hard limit
            resource.setrlimit(resource.RLIMIT_DATA, (most, ceiling))

    @contextmanager
    def within(self, most: int) -> Iterator[None]:
        """This process may hold only so many bytes of data; 0 is as many as before."""
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if most <= 0 or soft != resource.RLIM_INFINITY and most >= soft:
            yield
            return
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def start(self) -> None:
        settled()
        self.kept()

    def read(self) -> Reading:
        now = _status()
        room = left()  # read last: what Python takes to read must not count as room, and as held
        if room is None:
            raise Refused("the system does not say how much memory is left")
        return Reading(now["VmData"], self._held + max(0, now["VmHWM"] - self._pages), now["VmData"] + room)

    def kept(self) -> None:
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")  # the peak is what is held now
        now = _status()
        self._held, self._pages = now["VmData"], now["VmRSS"]


def _status() -> dict[str, int]:
    """The amounts of memory of this process, in bytes, as the kernel names them."""
    with open("/proc/self/status") as f:
        lines = (line.split() for line in f)
        return {words[0][:-1]: int(words[1]) << 10 for words in lines if len(words) == 3 and words[2] == "kB"}


def settled() -> int:
    """As :func:`data`, once what is free has been given back to the system. From now on large allocations are given
    back when they are freed: otherwise a trial would have less room than a training step."""
    gc.collect()
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, LARGE)
        libc.malloc_trim(0)
    return data()


def data() -> int:
    """How many bytes of data this process has; 0 if the system does not say."""
    try:
        return _status()["VmData"]
    except (OSError, KeyError):
        return 0
