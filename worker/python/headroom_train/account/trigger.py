"""Notices that a training's memory grows: one cheap figure per optimizer step, judged over many of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from math import inf
from typing import Optional

import torch

from ..memory import may_ask, room

WARM = 4  # steps at the beginning that are left out: the optimizer's state and workspaces are made in them
PARTS = 6  # into which the steps are cut: each counts with its smallest figure, so that evaluations do not
LEAST = 6  # the fewest figures that are judged
FEW = 3  # the fewest rises, all of about the same size, by which memory is said to grow once it has run out
NEAR = 64  # steps: memory that grows evenly, and ends sooner, is believed to grow at once
STEEP = 0.2  # the rise that is believed at once, as a share of what is held; otherwise there are two figures to a part
MOST = 384  # figures that are kept; then every second one is dropped
SHARE = 200  # a figure is read at most so often that reading takes 1/SHARE of the time
RISE = 8 << 20  # bytes: the smallest rise that counts
NOISE = 16 << 20  # of the machine's memory, of which libraries keep what they have freed
OF_ALL = 0.002  # and the smallest share of the memory that is held


def rises(held: Sequence[int], least: int = RISE, steep: float = STEEP) -> bool:
    """Whether amounts of memory, equally spaced in time, keep rising: in the newer half as well, so that what fills
    and stops does not count, and without falling back, so that what is emptied does not."""
    size = len(held) // PARTS
    if size == 0:
        return False
    begin = len(held) - PARTS * size
    floors = [min(held[begin + i * size : begin + (i + 1) * size]) for i in range(PARTS)]
    rise = floors[-1] - floors[0]
    if (
        rise < max(least, (steep if size == 1 else OF_ALL) * floors[0])
        or floors[-1] - floors[PARTS // 2 - 1] < 0.3 * rise
    ):
        return False
    highest = floors[0]
    for floor in floors:
        if floor < highest - 0.2 * rise:
            return False
        highest = max(highest, floor)
    return True


def steady(held: Sequence[int], least: int) -> bool:
    """Whether amounts of memory, equally spaced in time, have risen by about as much each time, and by enough."""
    rises = [b - a for a, b in zip(held, held[1:])]
    even = len(rises) >= FEW and min(rises) > 0.5 * max(rises)
    return even and held[-1] - held[0] >= max(least, OF_ALL * held[0])


class Series:
    """One figure over the steps."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.held: list[int] = []
        self._every = 1
        self._seen = 0

    def add(self, step: int, held: int) -> None:
        self._seen += 1
        if self._seen % self._every:
            return
        self.steps.append(step)
        self.held.append(held)
        if len(self.held) >= MOST:
            self.steps, self.held, self._every = self.steps[1::2], self.held[1::2], 2 * self._every

    def per_step(self) -> int:
        """Bytes by which the figure has risen per step."""
        if len(self.held) < 2:
            return 0
        return (self.held[-1] - self.held[0]) // max(1, self.steps[-1] - self.steps[0])


def resident(pid: object = "self", held: Sequence[bytes] = (b"RssAnon:", b"RssShmem:")) -> Optional[int]:
    """Bytes of the machine's memory that a process holds itself, or shares with others: files that it has mapped are
    left out. None if the system does not say."""
    try:
        with open(f"/proc/{pid}/status", "rb", buffering=0) as status:
            text = status.read(4096)
        return sum(int(text[text.index(name) + len(name) :].split(None, 1)[0]) << 10 for name in held)
    except (OSError, ValueError, IndexError):
        return None


def private() -> Optional[int]:
    """Bytes of memory that belong to this process alone and that it may write to, whether it has used them or not: what
    a limit on the data of a process counts (``ulimit -d``). None if the system does not say."""
    pages = _pages()
    return pages[5] * _PAGE if pages is not None else None


def _pages() -> Optional[list[int]]:
    try:
        with open("/proc/self/statm", "rb", buffering=0) as statm:
            pages = [int(field) for field in statm.read(200).split()]
        return pages if len(pages) >= 6 else None
    except (OSError, ValueError):
        return None


def helpers() -> list[int]:
    """The processes that this one has started to work for it, such as a loader's workers."""
    processes = sys.modules.get("multiprocessing.process")
    return [p.pid for p in [*getattr(processes, "_children", ())] if p.daemon and p.pid is not None]


def of_helpers() -> Optional[int]:
    """Bytes that they hold, what they share left out; None if there are none."""
    found = [resident(pid, (b"RssAnon:",)) for pid in helpers()]
    return sum(size or 0 for size in found) if found else None


BEGAN = time.time()  # about when the process began: a file that is newer is not what it runs
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
BASE = private()  # what the process had when it had imported PyTorch


class Trigger:
    """Follows what this process holds after its optimizer steps: of a GPU's memory, and of the machine's."""

    def __init__(self, evaluating: bool = False) -> None:
        self._steep = OF_ALL if evaluating else STEEP  # an evaluation begins with what it goes on with
        self.host, self.device, self.workers = Series(), Series(), Series()
        self.loads = False  # whether what loader workers hold keeps growing
        self._next = 0.0
        self._begin = 1 if evaluating else WARM  # the newest step that is left out
        self._judge = LEAST  # figures before the next judgement
        self._first = (0, 0.0)  # the first step that was followed, and when it ended

    def step(self, steps: int) -> bool:
        """Called after an optimizer's step. Whether memory keeps growing."""
        if steps <= self._begin or time.monotonic() < self._next:
            return False
        if not self._first[0]:
            self._first = (steps, time.monotonic())
        began = time.thread_time()  # a thread that is not running meanwhile, on a busy machine, costs nothing
        host = resident()
        if host is not None:
            self.host.add(steps, host)
        if may_ask():
            self.device.add(steps, torch.cuda.memory_allocated())
        workers = of_helpers()
        if workers is not None:
            self.workers.add(steps, workers)
        longest = max(len(self.host.held), len(self.device.held))
        found = False
        if longest >= self._judge:
            self._judge = longest + max(2, longest // 8) if longest < MOST - MOST // 8 else MOST // 2
            found = rises(self.device.held, RISE, self._steep) or rises(self.host.held, NOISE, self._steep)
            found = found or self.grown() is not None and self.left() < NEAR
            self.loads = rises(self.workers.held, NOISE)
        self._next = time.monotonic() + SHARE * (time.thread_time() - began)
        return found

    def grown(self, seen: bool = False) -> Optional[Series]:
        """The memory that has grown by about as much in each step, or at all if growth has been ``seen``; None if none
        has."""
        for series, least in (self.device, RISE), (self.host, NOISE):
            if steady(series.held, least) or seen and series.held and series.held[-1] - series.held[0] >= least:
                return series
        return None

    def left(self) -> float:
        """Steps after which memory ends if it goes on growing as it does; infinite if that is not known."""
        from .ends import left

        ends = [(room() if may_ask() else None, self.device), (left(), self.host)]
        return min((have / s.per_step() for have, s in ends if have is not None and s.per_step() > 0), default=inf)

    def slope(self) -> int:
        """Bytes per step by which memory grows."""
        return max(self.device.per_step(), self.host.per_step())

    def pace(self, steps: int) -> float:
        """Seconds that a step takes."""
        first, at = self._first
        return (time.monotonic() - at) / (steps - first) if steps > first > 0 else 0.0

    def steps(self) -> int:
        """Steps over which growth is followed."""
        longest = self.device.steps or self.host.steps
        return longest[-1] - longest[0] if longest else 0

    def rests(self, until: int) -> None:
        """Forget what was seen so far, and begin again after the step ``until``."""
        self.host, self.device, self.workers = Series(), Series(), Series()
        self.loads = False
        self._begin, self._judge, self._first = until, LEAST, (0, 0.0)
