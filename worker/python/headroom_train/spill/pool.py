"""A pool of host memory from which PyTorch's allocator serves what does not fit on a GPU.

Since PyTorch 2.8, a pool may be used for any allocation that would fail otherwise, before the exception is
raised. Kernels reach the pool's memory at the same kind of address: it is managed memory of CUDA that stays on the
host. So the same kernels run in the same order on the same numbers, and only the time differs. PyTorch uses no memory
for a pool until it takes a block from it, and the host none until a page is touched.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Optional

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..failure import is_out_of_memory
from ..hooks.changes import Change
from ..hooks.genuine import set_aside
from ..memory import POOLS

STEP = 2 << 20  # PyTorch makes segments in multiples of this
SMALL = 1 << 20  # requests up to this size come from blocks of their own, two in a segment of 2 MiB
SMALLS = 128  # segments for small requests, at least
SMALL_SHARE = 16  # at most this part of a pool is for small requests: an RNN may make thousands of small tensors,
MANY = 1024  # segments
# Bytes of the GPU that PyTorch leaves free: libraries and the code of kernels need memory of their own. A kernel whose
# code finds none when it is first used fails for as long as the process lives.
RESERVE = 192 << 20
LEAST = 32 << 20  # the same before anything has failed

# From cuda.h.
_ATTACH_GLOBAL = 1
_PREFERRED_LOCATION, _ACCESSED_BY, _ON_HOST = 3, 5, -1
_CONCURRENT_MANAGED_ACCESS = 89

# Of PyTorch's memory statistics.
_PARTS = ("all", "large_pool", "small_pool")
_IN_USE = ("allocated_bytes", "active_bytes", "requested_bytes")


class Unavailable(Exception):
    """Raised where there can be no pool. The message says why."""


class Pool:
    """One GPU's pool. It is never given back: PyTorch may use its blocks until the process ends."""

    def __init__(self, bytes: int, device: int) -> None:
        self.bytes = bytes // STEP * STEP
        if self.bytes < (SMALLS + 64) * STEP:
            raise Unavailable("there is not enough memory on the host")
        library, driver = _library(), _driver(device)
        self._area = self._made(driver, device)
        library.headroom_area(self._area, ctypes.c_ulong(self.bytes))
        alloc, free = (ctypes.cast(f, ctypes.c_void_p).value for f in (library.headroom_alloc, library.headroom_free))
        self._driver, self._device, self._library = driver, device, library
        self.device, self._stream = torch.device("cuda", device), torch.cuda.current_stream(device).cuda_stream
        self._allocator = torch._C._cuda_customAllocator(alloc or 0, free or 0)
        with torch.cuda.device(device), unseen():
            self._pool = torch.cuda.MemPool(self._allocator, use_on_oom=True)
            expandable = any(s.get("is_expandable") for s in torch.cuda.memory_snapshot())
            self._reserves = not expandable and self._leaves(LEAST)  # those are not made with cudaMalloc
            self._ballast = self._kept()
            self._statistics = Statistics(device)
            self._fill(smalls(self.bytes, self._reserves))
            self._statistics.hide()
        POOLS[device] = self.bytes

    def _made(self, driver: Any, device: int) -> ctypes.c_void_p:
        area, size = ctypes.c_void_p(), ctypes.c_size_t(self.bytes)
        if driver.cuMemAllocManaged(ctypes.byref(area), size, _ATTACH_GLOBAL):
            raise Unavailable("the driver does not give managed memory")
        driver.cuMemAdvise(area, size, _PREFERRED_LOCATION, _ON_HOST)
        driver.cuMemAdvise(area, size, _ACCESSED_BY, device)
        return area

    def _fill(self, smalls: int) -> None:
        """Makes the pool's blocks, so many segments of them for small requests, by allocating all of it once."""
        try:
            with torch.cuda.use_mem_pool(self._pool, self._device):
                few = [self._block(SMALL) for _ in range(2 * smalls)]
                large = self._block(self.bytes - smalls * STEP)
                del few, large
        except Exception as e:
            if not is_out_of_memory(e):
                raise
            raise Unavailable("the process may not use more memory (set_per_process_memory_fraction)") from None

    def _block(self, bytes: int) -> torch.UntypedStorage:
        """Memory that nothing is written to: a new tensor is filled where the script uses deterministic algorithms,
        which would take all of the host's memory, and minutes."""
        return torch.UntypedStorage(bytes, device=torch.device("cuda", self._device))

    def _leaves(self, bytes: int) -> bool:
        """Makes PyTorch leave so much of the GPU free. Returns whether it can be made to."""
        free = self._driver.cuMemGetInfo_v2
        return bool(self._library.headroom_reserve(free, b"libc10_cuda.so", ctypes.c_ulong(bytes)))

    def _kept(self) -> Optional[ctypes.c_void_p]:
        """Memory of the GPU that PyTorch cannot take, if there is any, where it cannot be made to leave some free."""
        kept = ctypes.c_void_p()
        free, _ = torch.cuda.mem_get_info(self._device)
        few = self._reserves or free < 2 * RESERVE
        if few or self._driver.cuMemAlloc_v2(ctypes.byref(kept), ctypes.c_size_t(RESERVE)):
            return None
        return kept

    def keep_ballast(self) -> None:
        """Keeps memory for libraries and kernels, now that memory has run out."""
        if self._reserves:
            self._leaves(RESERVE)
        elif self._ballast is None:
            self._ballast = self._kept()

    def release_ballast(self) -> None:
        """Gives libraries the memory that was kept for them."""
        kept, self._ballast = self._ballast, None
        if kept is not None:
            self._driver.cuMemFree_v2(kept)

    @property
    def counts(self) -> bool:
        """Whether :meth:`refused` is known."""
        return self._reserves

    @property
    def id(self) -> Any:
        return self._pool.id

    def free(self) -> int:
        """Bytes of the largest block that is not in use."""
        return max((b["size"] for b in self._blocks() if b["state"] == "inactive"), default=0)

    def used(self) -> int:
        """Bytes in use."""
        return sum(b["size"] for b in self._blocks() if b["state"] != "inactive")

    def refused(self) -> int:
        """Bytes for which this process has asked its GPUs in vain since the first pool was made: what it has taken from
        pools since, and what has failed. Always 0 with expandable segments, of which this is not known."""
        return int(self._library.headroom_refused())

    def peak(self) -> int:
        """The most bytes that PyTorch has had in use at once, those in the pool included."""
        with unseen():
            return int(torch.cuda.memory_stats(self._device).get("allocated_bytes.all.peak", 0))

    def cached(self) -> int:
        """Bytes of the GPU that PyTorch has and does not use."""
        with unseen():
            taken = torch.cuda.memory_stats(self._device).get("active_bytes.all.current", 0) - self.used()
            return max(0, torch.cuda.memory_reserved(self._device) - taken)

    def empties(self) -> None:
        """Gives the GPU back what PyTorch has cached. The releases of PyTorch that take memory from a pool before they
        do so (2.11 does) would use the host's memory while the GPU has enough, in blocks of other sizes."""
        with unseen():
            torch.cuda.empty_cache()

    def _blocks(self) -> list[dict[str, Any]]:
        return [b for segment in torch.cuda.memory_snapshot(self._pool.id) for b in segment["blocks"]]

    @contextmanager
    def withheld(self) -> Iterator[bool]:
        """A context in which the largest free block is out of the pool. Yields whether there is one."""
        free = self.free()
        if free < 64 * STEP:
            yield False
            return
        with self._statistics.leaving_out(free):
            held = self.taken(free)
            try:
                yield held is not None
            finally:
                del held

    def taken(self, bytes: int) -> Optional[torch.UntypedStorage]:
        """So much of the pool's memory; None if there is no such block."""
        try:
            with torch.cuda.use_mem_pool(self._pool, self._device), unseen():
                return self._block(bytes)
        except Exception as e:
            if not is_out_of_memory(e):
                raise
            return None

    def has(self, address: int) -> bool:
        """Whether an address is in the pool."""
        begin = self._area.value or 0
        return begin <= address < begin + self.bytes

    def here(self) -> bool:
        """Whether the current stream is the one whose kernels use the pool's blocks."""
        return torch.cuda.current_stream(self._device).cuda_stream == self._stream


def smalls(bytes: int, counts: bool) -> int:
    """How many segments of a pool are for small requests: few where it is not known whether a step has used the pool,
    as they are looked through after every step then."""
    return max(SMALLS, min(MANY, bytes // STEP // SMALL_SHARE)) if counts else SMALLS


class Statistics:
    """Leaves a pool out of what PyTorch tells of a GPU's memory: a script may print that, or decide by it."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._read, self._reset = torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats
        self._before = self._read(device)
        self._peaks = _peaks(self._before)  # those that PyTorch has forgotten
        self._added: dict[str, int] = {}  # bytes of the pool, by part

    def hide(self) -> None:
        """Called when the pool has been made."""
        after, before = self._read(self._device)["reserved_bytes"], self._before["reserved_bytes"]
        self._reset(self._device)
        self._added = {part: after[part]["current"] - before[part]["current"] for part in _PARTS}

        @wraps(self._read)
        def memory_stats(device: int) -> Any:
            return self._told() if device == self._device else self._read(device)

        @wraps(self._reset)
        def reset_peak_memory_stats(device: int) -> None:
            if device == self._device:
                self._peaks.clear()
            self._reset(device)

        # The pool is in use for as long as one of the script's tensors is in it.
        Change(torch._C, "_cuda_memoryStats", memory_stats, lasting=True)
        Change(torch._C, "_cuda_resetPeakMemoryStats", reset_peak_memory_stats, lasting=True)

    def _told(self) -> Any:
        found = self._read(self._device)
        for part, more in self._added.items():
            for of in ("current", "peak", "allocated"):
                found["reserved_bytes"][part][of] -= more
        for (kind, part), peak in self._peaks.items():
            found[kind][part]["peak"] = max(found[kind][part]["peak"], peak)
        return found

    @contextmanager
    def leaving_out(self, bytes: int) -> Iterator[None]:
        """A context in which so many bytes are taken from PyTorch, and given back, that are in no peak."""
        self._peaks = before = _peaks(self._told())
        self._reset(self._device)
        try:
            yield
        finally:
            now = _peaks(self._told())
            for key, peak in now.items():
                if key[0] in _IN_USE and key[1] != "small_pool":
                    now[key] = max(before[key], peak - bytes)
            self._peaks = now
            self._reset(self._device)


def _peaks(statistics: dict[str, Any]) -> dict[tuple[str, str], int]:
    """The peaks among statistics of memory, by kind and part."""
    kinds = {kind: parts for kind, parts in statistics.items() if isinstance(parts, dict) and _PARTS[0] in parts}
    return {(kind, part): parts[part]["peak"] for kind, parts in kinds.items() for part in parts}


@contextmanager
def unseen() -> Iterator[None]:
    """A context in which the script's modes do not see what is called, nor does what it has put in place of PyTorch's
    own functions run."""
    with set_aside(), torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def _library() -> Any:
    """The allocator's functions (area.c)."""
    machine = platform.machine()
    path = os.path.join(os.path.dirname(__file__), f"area-{machine}.so")
    if not os.path.exists(path):
        raise Unavailable(f"headroom has no allocator for this machine ({machine})")
    try:
        library = ctypes.CDLL(path)
    except OSError as e:
        raise Unavailable(f"the allocator cannot be loaded: {e}") from None
    library.headroom_refused.restype = ctypes.c_ulong
    return library


def _driver(device: int) -> Any:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as e:
        raise Unavailable(f"the driver cannot be loaded: {e}") from None
    value = ctypes.c_int()
    if driver.cuDeviceGetAttribute(ctypes.byref(value), _CONCURRENT_MANAGED_ACCESS, device) or not value.value:
        raise Unavailable("the GPU cannot use managed memory that stays on the host")
    return driver


def supported() -> None:
    """Raises :class:`Unavailable` if this PyTorch cannot use a pool when memory runs out."""
    if torch.version.hip is not None:
        raise Unavailable("this PyTorch is built for ROCm")
    version = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 8):
        raise Unavailable(f"PyTorch {torch.__version__} cannot use it: only 2.8 and later can")


def host_memory() -> int:
    """Bytes of memory that the host has free for this process: what the kernel calls available, within the limits of
    the process's control groups (version 2)."""
    with open("/proc/meminfo") as f:
        found = {line.split(":")[0]: int(line.split()[1]) << 10 for line in f if line.split()[-1] == "kB"}
    free = found.get("MemAvailable", 0)
    try:
        with open("/proc/self/cgroup") as f:
            group = next(line.split("::", 1)[1].strip() for line in f if line.startswith("0::"))
    except (OSError, StopIteration):
        return free
    folder = os.path.join("/sys/fs/cgroup", group.lstrip("/"))
    while folder.startswith("/sys/fs/cgroup"):
        free = min(free, _left(folder, free))
        folder = os.path.dirname(folder)
    return free


def _left(folder: str, most: int) -> int:
    """Bytes that a control group may still use, at most ``most``. Memory of files that the kernel can drop counts as
    free."""
    try:
        numbers = []
        for name in ("memory.max", "memory.current"):
            with open(os.path.join(folder, name)) as f:
                numbers.append(f.read().strip())
        if numbers[0] == "max":
            return most
        with open(os.path.join(folder, "memory.stat")) as f:
            files = next((int(line.split()[1]) for line in f if line.startswith("inactive_file ")), 0)
        return max(0, int(numbers[0]) - int(numbers[1]) + files)
    except (OSError, ValueError):
        return most
