"""Checks what is decided and said about memory of the host, without a GPU.

python host.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import trial
from forked import checked

trial.attach()

from headroom_train import _torch  # noqa: E402
from headroom_train.hooks import moves  # noqa: E402
from headroom_train.spill import pool, spill  # noqa: E402

GIB = 1 << 30


class Imitated:
    """A pool of which so much is in use, one number for each step."""

    def __init__(self, used: list[int]) -> None:
        self._used, self.held, self.ballast = used, 0, True

    def used(self) -> int:
        return self._used.pop(0)

    def hold(self) -> Any:
        self.held += 1
        return object()

    def release_ballast(self) -> None:
        self.ballast = False


def how_much() -> str:
    """Half of what the host has free, shared by its ranks, unless the user has said something else; never more than it
    has."""
    cases = {("", 8 * GIB): 4 * GIB, ("1024", 8 * GIB): 1024, (str(9 * GIB), 8 * GIB): 8 * GIB}
    got = {given: spill.wanted(*given) for given in cases}
    if got != cases:
        return f"{got}"
    shared = []
    for ranks in ("4", "", "many"):
        os.environ["LOCAL_WORLD_SIZE"] = ranks
        shared.append(spill.wanted("", 8 * GIB))
    return "" if shared == [GIB, 4 * GIB, 4 * GIB] else f"{shared}"


def of_several_ranks() -> str:
    """Where several ranks train and nothing can be made again, memory of the host is there before anything fails; if it
    cannot be, that is part of the reason that is given."""
    recorder: Any = _torch._recorder
    found = []
    for world, opens in (("2", True), ("2", False), ("1", True)):
        os.environ["WORLD_SIZE"] = world
        asked: list[int] = []
        s = spill.Spill(lambda text: None)
        s.why_not = None if opens else "it is off"

        def opened(asked: list[int] = asked, opens: bool = opens) -> bool:
            asked.append(1)
            return opens

        s.opened = opened  # type: ignore[method-assign]
        recorder.spill, recorder.observe = s, None
        net = trial.torch.nn.Linear(2, 2)
        if world == "1":
            recorder.only_observes("a reason")
        else:
            trial.torch.optim.SGD(net.parameters(), lr=0.1)
            net(trial.torch.ones(1, 2))
        found.append((len(asked), recorder.report.observes))
    why = "several ranks train a Linear that is not inside DistributedDataParallel"
    return "" if found == [(1, why), (1, f"{why}; it is off"), (0, "a reason")] else f"{found}"


def slower() -> str:
    """A step is compared with the median of those that did not spill, once there are three of them."""
    pace = spill.Pace()
    said = [
        pace.step(s, spilled) for s, spilled in ((1, False), (9, True), (1, False), (4, False), (3, True), (2, True))
    ]
    if said != [None, None, None, None, 3.0, 2.0] or (pace.spilled, pace.lost) != (3, 3.0):
        return f"{said}, {pace.spilled}, {pace.lost}"
    return ""


def told() -> str:
    """Spilling is told at the first step whose duration can be compared, then at most every fifteen minutes, and at the
    end."""
    said: list[str] = []
    now = 0.0
    s = spill.Spill(said.append, lambda: now)
    used = [0, 0, 0, 0, GIB, 2 * GIB, GIB, 0, GIB]
    s._pools[0] = Imitated(used)  # type: ignore[assignment]
    figures = []
    for i, seconds in enumerate((0, 1, 1, 1, 3, 3, 900, 1, 2)):
        now += seconds
        s.step(i)
        figures.append(s.figures())
    s.ends()
    want = [
        "step 4 uses 1.0 GiB of the host's memory and takes 3.0 times as long: the GPU's is not enough",
        "step 6 uses 1.0 GiB of the host's memory and takes 900.0 times as long: the GPU's is not enough",
        "4 steps used up to 2.0 GiB of the host's memory, which took 904 s",
    ]
    if figures[3:5] != [{}, {"spilled": GIB, "lost": 2.0}] or figures[7] != {"spilled": 0, "lost": 903.0}:
        return f"{figures}"
    return "" if said == want else f"{said}"


def at_the_end() -> str:
    """The process's end tells of it, once."""
    recorder: Any = _torch._recorder
    said: list[str] = []
    recorder.spill._say, recorder.spill.pace.spilled, recorder.spill._most = said.append, 3, GIB
    recorder.report.ends()
    recorder.spill.pace.spilled = 0
    return "" if said == ["3 steps used up to 1.0 GiB of the host's memory"] else f"{said}"


def withheld() -> str:
    """What is withheld is taken from every pool, and a library's failure gives it the ballast; PyTorch's own does
    not."""
    s = spill.Spill(lambda text: None)
    imitated = Imitated([])
    s._pools[0] = imitated  # type: ignore[assignment]
    with s.withheld():
        pass
    s.release_ballast(trial.torch.OutOfMemoryError("CUDA out of memory"))
    kept = imitated.ballast
    s.release_ballast(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED"))
    return "" if (imitated.held, kept, imitated.ballast) == (1, True, False) else f"{imitated.__dict__}"


def the_host() -> str:
    """What the host has free is a plausible number here."""
    with open("/proc/meminfo") as f:
        total = int(f.readline().split()[1]) << 10
    return "" if 0 < pool.host_memory() <= total else f"{pool.host_memory()} of {total}"


def turned_off() -> str:
    """If the user has turned it off, that is the reason that is given."""
    spill.may_ask = lambda: True  # type: ignore[attr-defined]
    trial.torch.cuda.current_device = lambda: 0
    os.environ["HEADROOM_SPILL"] = "off"
    s = spill.Spill(lambda text: None)
    want = "memory of the host cannot be used: it is turned off"
    return "" if not s.opened() and s.why_not == want else f"{s.why_not}"


def looked_at() -> str:
    """The first looks at the memory come one after the other, later ones have pauses."""
    now, looks = 0.0, 0

    def scarce() -> bool:
        nonlocal looks
        looks += 1
        return False

    spill.scarce = scarce  # type: ignore[attr-defined]
    s = spill.Spill(lambda text: None, lambda: now)
    for _ in range(100):
        s.look()
    now += spill.EVERY
    s.look()
    s.look()
    return "" if looks == spill.EAGER + 1 else f"{looks}"


def moved() -> str:
    """A module that does not fit on the GPU is moved once more when memory of the host has been made available, and what
    is wrong otherwise reaches the script."""
    said = []
    for opens, fails, error in ((True, 1, ""), (False, 1, "memory"), (True, 2, "memory"), (True, 1, "other")):
        calls = 0

        def move(self: Any, *args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls <= fails:
                kind = RuntimeError if error == "other" else trial.torch.OutOfMemoryError
                raise kind("CUDA out of memory." if error != "other" else "mine")
            return self

        net = trial.torch.nn.Linear(1, 1)
        try:
            got: Any = moves._going_on(move, lambda: opens)(net, "cuda")
            said.append((got is net, calls))
        except RuntimeError as e:
            said.append((str(e), calls))
    want = [(True, 2), ("CUDA out of memory.", 1), ("CUDA out of memory.", 2), ("mine", 1)]
    return "" if said == want else f"{said}"


def another_allocator() -> str:
    """An allocator that reports no numbers does not end the training."""

    def raises(*_: Any) -> Any:
        raise RuntimeError("not supported by this allocator")

    spill.may_ask = lambda: True  # type: ignore[attr-defined]
    trial.torch.cuda.mem_get_info = lambda *_: (GIB, 2 * GIB)
    trial.torch.cuda.max_memory_reserved = raises
    s = spill.Spill(lambda text: None)
    s.step(1)
    imitated = Imitated([])
    imitated.used = raises  # type: ignore[method-assign]
    s._pools[0] = imitated  # type: ignore[assignment]
    s.step(2)
    return ""


def without_a_gpu() -> str:
    """Nothing is opened, and no reason is given, where no GPU is in use."""
    s = spill.Spill(lambda text: None)
    return "" if not s.opened() and s.why_not is None and not s.open else f"{s.why_not}"


CHECKS: list[Callable[[], str]] = [
    how_much,
    of_several_ranks,
    slower,
    told,
    at_the_end,
    withheld,
    the_host,
    turned_off,
    looked_at,
    moved,
    another_allocator,
    without_a_gpu,
]

if __name__ == "__main__":
    sys.exit(checked(CHECKS, 2))
