"""Replay a trace of allocbench on PyTorch's caching allocator, or directly on the driver.

python3 replay.py --trace trace.json --allocator pytorch --factor 1.15 --out result.json

The keys of the result are those of allocbench. With PyTorch, torch.empty and the release of its tensor
are timed, and overhead_ns is the time of the same loop with tensors of 0 bytes, which reach no allocator.
The driver is called through ctypes. It is slow, so it replays only as many steps as --budget allows. It keeps
no cache, so the memory that it reserves is measured as the drop in the device's free memory. In the middle
of the longest step, "largest" is the largest allocation that the driver still grants, and "free" is
the number of bytes that it reports as free.

PyTorch itself reads PYTORCH_CUDA_ALLOC_CONF. With --pretend no GPU is needed: PyTorch's tensors are on the
host, and the C library's malloc replaces the driver, with a capacity of GIB gibibytes.
"""

import argparse
import ctypes
import gc
import json
import os
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

GRANULE = 512  # bytes; allocators round sizes up to a multiple of it
PAGE = 2**21
OVERHEAD_STEPS = 200


class OutOfMemory(Exception):
    pass


class Allocator(ABC):
    """An allocator under test. alloc and free are attributes rather than methods, so that calling them costs little."""

    alloc: Callable[[int], Any]
    free: Callable[[Any], None]
    no_room: type[Exception]
    device: str
    version: str

    @abstractmethod
    def limit(self, amount: int) -> None:
        """Limit the memory that may be reserved to amount bytes."""

    @abstractmethod
    def empty_cache(self) -> None: ...

    @abstractmethod
    def stats(self) -> dict[str, Any]:
        """Return peak_allocated, peak_reserved, allocated, reserved, retries and driver_calls, as far as they are known."""


class PyTorch(Allocator):
    def __init__(self, pretend: bool) -> None:
        import torch

        self.torch, self.pretend = torch, pretend
        place = torch.device("cpu" if pretend else "cuda")
        empty, byte = torch.empty, torch.uint8
        self.alloc = lambda size: empty(size, dtype=byte, device=place)
        self.free = lambda _: None  # a tensor is released with its last reference
        self.no_room = torch.OutOfMemoryError
        self.version = torch.__version__
        self.device = "pretended" if pretend else torch.cuda.get_device_name()

    def limit(self, amount: int) -> None:
        if not self.pretend:
            total = self.torch.cuda.get_device_properties(0).total_memory
            self.torch.cuda.set_per_process_memory_fraction(amount / total)

    def empty_cache(self) -> None:
        if not self.pretend:
            self.torch.cuda.empty_cache()

    def stats(self) -> dict[str, Any]:
        s = {} if self.pretend else self.torch.cuda.memory_stats()
        return {
            "peak_allocated": s.get("allocated_bytes.all.peak", 0),
            "peak_reserved": s.get("reserved_bytes.all.peak", 0),
            "allocated": s.get("allocated_bytes.all.current", 0),
            "reserved": s.get("reserved_bytes.all.current", 0),
            "inactive_split": s.get("inactive_split_bytes.all.current", 0),
            "peak_inactive_split": s.get("inactive_split_bytes.all.peak", 0),
            "retries": s.get("num_alloc_retries", 0),
            "ooms": s.get("num_ooms", 0),
            "driver_calls": {
                "reserve": s.get("num_device_alloc", 0),
                "release": s.get("num_device_free", 0),
                "exact": True,
            },
        }


class Driver(Allocator):
    """The driver without a cache: cuMemAlloc and cuMemFree for every tensor."""

    no_room = OutOfMemory
    version = ""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", name, len(name), device)
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.device = name.value.decode()
        self.version = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        allocate, release = self.cuda.cuMemAlloc_v2, self.cuda.cuMemFree_v2
        self.reserves = self.releases = 0

        def alloc(size: int) -> ctypes.c_uint64:
            address = ctypes.c_uint64()
            status = allocate(ctypes.byref(address), ctypes.c_size_t(size))
            if status == 2:
                raise OutOfMemory
            self.check("cuMemAlloc", status)
            self.reserves += 1
            return address

        def free(address: ctypes.c_uint64) -> None:
            self.check("cuMemFree", release(address))
            self.releases += 1

        self.alloc, self.free = alloc, free

    def check(self, name: str, status: int) -> None:
        if status:
            raise RuntimeError(f"{name}: CUDA error {status}")

    def call(self, name: str, *arguments: Any) -> None:
        self.check(name, getattr(self.cuda, name)(*arguments))

    def limit(self, amount: int) -> None:
        raise SystemExit("the driver takes no limit: leave --factor out")

    def empty_cache(self) -> None:
        """Do nothing, because there is no cache."""

    def room(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def stats(self) -> dict[str, Any]:
        return {
            "retries": 0,
            "driver_calls": {"reserve": self.reserves, "release": self.releases, "exact": True},
        }


class Malloc(Driver):
    """The C library's malloc in place of the driver, with a limited capacity."""

    def __init__(self, capacity: int) -> None:
        self.device, self.version = "pretended", ""
        self.reserves = self.releases = 0
        self.left = capacity
        c = ctypes.CDLL(None)
        c.malloc.restype, c.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        c.free.argtypes = [ctypes.c_void_p]

        def alloc(size: int) -> tuple[int, int]:
            size = -(-size // PAGE) * PAGE
            if size > self.left:
                raise OutOfMemory
            self.left -= size
            self.reserves += 1
            return c.malloc(size), size

        def free(piece: tuple[int, int]) -> None:
            c.free(piece[0])
            self.left += piece[1]
            self.releases += 1

        self.alloc, self.free = alloc, free

    def room(self) -> int:
        return self.left


Op = tuple[int, int, int]  # slot, fixed, each: allocates fixed + each·length bytes, or frees if both are 0


class Replay:
    def __init__(self, trace: dict[str, Any], on: Allocator) -> None:
        self.ops: list[Op] = [(o["slot"], o.get("fixed", 0), o.get("each", 0)) for o in trace["ops"]]
        self.lengths: list[int] = trace["lengths"]
        self.pairs = len(self.ops) // 2
        self.on = on
        self.live: list[Any] = [None] * trace["slots"]
        self.state = [on.alloc(n) for n in trace["state"]]
        self.failed = self.lost = 0

    def step(self, ops: list[Op], length: int) -> None:
        """Run one step. If memory runs out, the tensors allocated so far stay allocated."""
        alloc, free, live = self.on.alloc, self.on.free, self.live
        for slot, fixed, each in ops:
            if fixed or each:
                live[slot] = alloc(fixed + each * length)
            else:
                free(live[slot])
                live[slot] = None

    def attempt(self, length: int) -> bool:
        try:
            self.step(self.ops, length)
            return True
        except self.on.no_room:
            pass
        self.drop()
        return False

    def drop(self) -> None:
        for slot, tensor in enumerate(self.live):
            if tensor is not None:
                self.on.free(tensor)
                self.live[slot] = None

    def whole_step(self, length: int) -> None:
        """Run one step. If memory runs out, do the same as a training run: empty the cache and try once more."""
        if self.attempt(length):
            return
        self.failed += 1
        self.on.empty_cache()
        self.lost += not self.attempt(length)

    def run(self, budget: float) -> list[float]:
        """Run steps until all are done or the budget is used up, and return the seconds of each."""
        clock, seconds = time.perf_counter, []
        begun = clock()
        for length in self.lengths:
            start = clock()
            if start - begun > budget:
                break
            self.whole_step(length)
            seconds.append(clock() - start)
        return seconds

    def overhead(self) -> float:
        """Return the nanoseconds per pair that the same loop takes with tensors of 0 bytes."""
        nothing = [(slot, 0, 1) if fixed or each else (slot, 0, 0) for slot, fixed, each in self.ops]
        seconds = []
        for _ in range(OVERHEAD_STEPS):
            start = time.perf_counter()
            self.step(nothing, 0)
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds) * 1e9 / self.pairs

    def to_peak(self) -> int:
        """Run the longest step up to the point where the most memory is allocated. Return the bytes allocated there."""
        length = max(self.lengths)
        sizes, now, most, at = {}, 0, 0, 0
        for i, (slot, fixed, each) in enumerate(self.ops):
            if fixed or each:
                sizes[slot] = rounded(fixed + each * length)
                now += sizes[slot]
            else:
                now -= sizes[slot]
            if now > most:
                most, at = now, i
        self.step(self.ops[: at + 1], length)
        return most


def rounded(size: int) -> int:
    return -(-size // GRANULE) * GRANULE


def largest(driver: Driver, most: int) -> int:
    """Return the size of the largest allocation that succeeds, accurate to a page."""
    low, high = 0, most // PAGE + 1
    while high - low > 1:
        middle = (low + high) // 2
        try:
            driver.free(driver.alloc(middle * PAGE))
            low = middle
        except OutOfMemory:
            high = middle
    return low * PAGE


def fragmentation(driver: Driver, replay: Replay, state: int, start: int) -> dict[str, Any]:
    """Measure and return the amounts that the driver does not report itself. start is the number of bytes that
    were free before the trace."""
    between = start - driver.room()
    peak = state + replay.to_peak()
    free = driver.room()
    found = {
        "peak_allocated": peak,
        "peak_reserved": start - free,
        "allocated": state,
        "reserved": between,
        "emptied": between,
        "free": free,
        "largest": largest(driver, free),
    }
    replay.drop()
    return found


def measure(a: argparse.Namespace) -> dict[str, Any]:
    with open(a.trace) as file:
        trace = json.load(file)
    if a.allocator == "pytorch":
        on: Allocator = PyTorch(bool(a.pretend))
    else:
        on = Malloc(int(a.pretend * 2**30)) if a.pretend else Driver()
    start = on.room() if isinstance(on, Driver) else 0
    limit = int(a.factor * trace["peak"])
    if limit:
        on.limit(limit)
    replay = Replay(trace, on)
    gc.disable()
    seconds = replay.run(a.budget)
    result = {
        "allocator": a.allocator,
        "settings": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "") if a.allocator == "pytorch" else "",
        "device": on.device,
        "version": on.version,
        "limit": limit,
        "factor": a.factor,
        "steps": len(seconds),
        "pairs": replay.pairs,
        "failed": replay.failed,
        "lost": replay.lost,
    } | on.stats()
    each = 1e9 / replay.pairs
    result["pair_ns"] = statistics.median(seconds) * each
    result["pair_ns_p99"] = sorted(seconds)[len(seconds) * 99 // 100] * each
    result["pair_ns_mean"] = statistics.fmean(seconds) * each
    if isinstance(on, Driver):
        state = sum(rounded(n) for n in trace["state"])
        return result | {"overhead_ns": None} | fragmentation(on, replay, state, start)
    on.empty_cache()
    return result | {"emptied": on.stats()["reserved"], "overhead_ns": replay.overhead()}


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--trace", required=True, help="written by allocbench -write")
    p.add_argument("--allocator", required=True, choices=["pytorch", "driver"])
    p.add_argument(
        "--factor", type=float, default=0, help="limit the memory to this many times the trace's peak"
    )
    p.add_argument("--budget", type=float, default=60, help="end the replay after so many seconds")
    p.add_argument("--pretend", type=float, default=0, metavar="GIB")
    p.add_argument("--out", help="write the JSON here instead of to standard output")
    a = p.parse_args()
    text = json.dumps(measure(a), indent=2) + "\n"
    if a.out:
        with open(a.out, "w") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
