"""When memory of the host takes what does not fit on a GPU, and what is said about it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any, Callable, Optional

import torch

from ..failure import OutOfMemoryError, debugged
from ..memory import POOLS, may_ask
from ..world import neighbours
from .pool import Pool, Unavailable, host_memory, supported, unseen
from .saved import Saved

SHARE = 0.25  # a pool is made once steps have used this share of the memory that the process may use
EAGER = 128  # the first looks at the memory, each where a step may have come to need more
EVERY = 0.2  # seconds between two later looks, at least,
RARELY = 500  # and so many times as long as the last one took
SAID = 900.0  # seconds between two reports that are alike
WHOLE = 31  # the newest steps without spilling whose durations are kept
LEAST = 3  # as many of them as it takes to compare a duration with
OPTIMIZERS = 64  # optimizers whose steps are known apart


def wanted(setting: str, free: int) -> int:
    """How many bytes of the host may be used. ``setting`` is what the user has set: a number of bytes, or nothing,
    which means half of the ``free`` bytes of the host, shared equally by the ranks that it has."""
    return min(int(setting), free) if setting else free // (2 * neighbours())


class Pace:
    """Compares the durations of steps that used memory of the host with those of steps that did not. Several
    optimizers may take turns, each with steps of its own length."""

    def __init__(self) -> None:
        self._whole: dict[int, list[float]] = {}  # by optimizer
        self.spilled = 0  # steps that used memory of the host
        self.lost = 0.0  # seconds that they took longer, as far as that is known

    def step(self, seconds: float, spilled: bool, optimizer: int = 0) -> Optional[float]:
        """Notes a step of the optimizer with this number. Returns how many times as long as usual it took, if it
        spilled and that is known."""
        whole = self._whole.get(optimizer, [])
        if not spilled:
            if len(self._whole) >= OPTIMIZERS and not whole:
                self._whole.clear()
            self._whole[optimizer] = [*whole[1 - WHOLE :], seconds]
            return None
        self.spilled += 1
        if len(whole) < LEAST:
            return None
        usual = median(whole)
        self.lost += max(0.0, seconds - usual)
        return seconds / usual if usual > 0 else None


class Spill:
    """Owns the pools of a process. ``say`` receives what the user is told: a sentence.

    There is no pool until memory is scarce or has run out, so a script that never runs short sees nothing of this. From
    then on PyTorch uses the pool wherever an allocation would fail. Where a failure is wanted, because the step can go
    faster in pieces, :meth:`withheld` keeps the pool out of reach."""

    def __init__(self, say: Callable[[str], Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._pools: dict[int, Pool] = {}
        self._parents: list[Pool] = []  # those that the process had which this one was forked from
        self.saved = Saved(self._pool)
        self._cold: dict[int, int] = {}  # GPUs on which libraries have not got what they need → steps since then
        self.why_not: Optional[str] = None  # the reason why there is no pool; None if there is one, or may be
        self.pace = Pace()
        self._looks, self._next = 0, 0.0
        self._begun: Optional[float] = None  # when the newest step ended
        self._told: Optional[float] = None
        # Bytes of the host: used when the newest step ended, used at most in the newest step, used at most in any.
        self._used = self._newest = self._most = 0
        self._refused = 0  # what the GPU had refused by the end of the newest step, except what was withheld
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """Called in a forked process, such as a loader's worker, which cannot use the GPUs of its parent."""
        self._parents, self._pools = [*self._pools.values()], {}  # to let go of a pool is to use its GPU, too
        self.pace = Pace()  # nothing is told of its parent's steps
        self._cold.clear()
        POOLS.clear()

    def opened(self) -> bool:
        """Makes a pool for the current GPU, unless there is one. Returns whether there is one now."""
        if not may_ask() or self.why_not is not None:
            return False
        device = torch.cuda.current_device()
        if device not in self._pools:
            try:
                setting = os.environ.get("HEADROOM_SPILL", "")
                if setting == "off":
                    raise Unavailable("it is turned off")
                supported()
                self._pools[device] = Pool(wanted(setting, host_memory()), device)
            except Exception as e:  # without memory of the host the step fails as it would have
                said = str(e) if isinstance(e, Unavailable) else f"{type(e).__name__}: {e}"
                self.why_not = f"memory of the host cannot be used: {said}"
                return False
            self._warm(device)
        return True

    def _warm(self, device: int) -> None:
        """Makes what libraries need on a GPU while there is room: cuBLAS has a handle for each thread, and backward
        runs in a thread of its own. Where there is no room now, there may be once a failed try has been let go."""
        try:
            with unseen(), torch.cuda.device(device), torch.enable_grad():
                a = torch.ones(8, 8, device=device, requires_grad=True)
                (a @ a).sum().backward()
            self._cold.pop(device, None)
        except RuntimeError:
            debugged()
            self._cold.setdefault(device, 0)

    def warms(self) -> None:
        """Makes what libraries lack, where what the step has used by now may be free, in PyTorch's cache: called before
        backward passes and at the ends of steps."""
        for device in [*self._cold]:
            if self._cold[device].bit_count() <= 1:  # more and more rarely: steps wait for this
                torch.cuda.empty_cache()
                self._warm(device)

    @property
    def open(self) -> bool:
        return bool(self._pools)

    def _pool(self) -> Optional[Pool]:
        """The pool of the current GPU."""
        return self._pools.get(torch.cuda.current_device()) if self._pools and torch.cuda.is_initialized() else None

    def release_ballast(self, failure: Optional[BaseException]) -> None:
        """Gives libraries the memory that is kept for them, if one of them has failed."""
        if self._pools and failure is not None and not isinstance(failure, OutOfMemoryError):
            for pool in self._pools.values():
                pool.release_ballast()

    def keep_ballast(self) -> None:
        """Called when what a failed try had used has been let go: keeps some of it for libraries, if none is kept."""
        for device, pool in self._pools.items():
            if device in self._cold:
                self._warm(device)
            pool.keep_ballast()

    @contextmanager
    def withheld(self) -> Iterator[bool]:
        """A context in which the pools' free memory is out of PyTorch's reach. Yields whether there is any."""
        refused = self.refused()
        try:
            with ExitStack() as stack:
                yield any([stack.enter_context(pool.withheld()) for pool in self._pools.values()])
        finally:
            self._refused += self.refused() - refused

    def used(self) -> int:
        """Bytes of the host in use."""
        return sum(pool.used() for pool in self._pools.values())

    def refused(self) -> int:
        """Bytes for which PyTorch has asked the GPUs in vain, as far as that is known."""
        return next((pool.refused() for pool in self._pools.values()), 0)

    def look(self) -> None:
        """Makes a pool if memory is scarce. Called where steps begin and end, after calls of modules, and before
        backward passes."""
        now = self._clock()
        if not self._pools and self.why_not is None and (now >= self._next or self._looks < EAGER):
            short = scarce()
            self._looks, self._next = self._looks + 1, now + max(EVERY, RARELY * (self._clock() - now))
            if short:
                self.opened()

    def step(self, number: int, optimizer: int = 0) -> None:
        """Called after each optimizer step, with the number of steps so far, and one that names the optimizer."""
        if not self._pools:
            self._begun = self._clock()
            self.look()
            return
        refused = self.refused()
        try:
            if refused != self._refused or self.saved.moves:
                self._wait()
            # To look through the pools takes milliseconds: not where nothing of them can be in use.
            unused = refused == self._refused and not (self.saved.moves or self._used)
            held = 0 if unused and all(pool.counts for pool in self._pools.values()) else self.used()
        except RuntimeError:  # the GPU is lost: the script finds out by itself
            return
        now = self._clock()
        begun, self._begun = self._begun, now
        for device in self._cold:
            self._cold[device] += 1
        self.warms()
        new = refused - self._refused
        new += self.saved.step(now - begun if begun is not None else 0.0, new)
        # What a step takes and gives back is not seen at its end. At no time can it have had more than this.
        most = sum(min(pool.bytes, pool.peak()) for pool in self._pools.values()) if new or self._used else 0
        used = max(held, min(self._used + new, most))
        self._used, self._refused = held, refused
        self._newest, self._most = used, max(self._most, used)
        factor = self.pace.step(now - begun, used > 0, optimizer) if begun is not None else None
        if used and (self._told is None or now - self._told >= SAID) and (factor is not None or self.pace.spilled >= 2):
            self._told = now
            slower = f" and takes {factor:.1f} times as long" if factor is not None else ""
            self._say(f"step {number} uses up to {size(used)} of the host's memory{slower}: the GPU's is not enough")

    def _wait(self) -> None:
        """Waits for the GPUs where a step has used memory of the host: its kernels run for much longer than it takes to
        launch them, and its duration decides, and is told."""
        for pool in self._pools.values():
            torch.cuda.synchronize(pool.device)

    def ids(self) -> list[Any]:
        """The ids of the pools, as PyTorch's snapshots of its memory have them."""
        return [pool.id for pool in self._pools.values()]

    def figures(self) -> dict[str, Any]:
        """What is reported of the newest step, if any has used memory of the host."""
        return {"spilled": self._newest, "lost": round(self.pace.lost, 3)} if self.pace.spilled else {}

    def ends(self) -> None:
        """Called when the process ends."""
        if self.pace.spilled:
            lost = f", which took {self.pace.lost:.0f} s" if self.pace.lost >= 1 else ""
            self._say(f"{self.pace.spilled} steps used up to {size(self._most)} of the host's memory{lost}")


def size(bytes: int) -> str:
    """A number of bytes, for a sentence."""
    return f"{bytes / 2**30:.1f} GiB" if bytes >= 1 << 30 else f"{max(1, bytes >> 20)} MiB"


def scarce() -> bool:
    """Whether steps have used a good part of the memory of the current GPU that this process may use."""
    if not may_ask():
        return False
    try:
        free, total = torch.cuda.mem_get_info()
        peak, reserved = torch.cuda.max_memory_reserved(), torch.cuda.memory_reserved()
    except (KeyError, RuntimeError):  # another allocator, which has no such numbers
        return False
    return peak > SHARE * min(total, free + reserved)
