"""Checks what is decided and said about memory of the host, without a GPU.

python host.py
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch

import trial
from forked import checked

trial.attach()

from headroom_train import _torch, failure, memory  # noqa: E402
from headroom_train.failure import NoMemory  # noqa: E402
from headroom_train.hooks import moves  # noqa: E402
from headroom_train.hooks.changes import changed  # noqa: E402
from headroom_train.proof import proof  # noqa: E402
from headroom_train.recover import recovery  # noqa: E402
from headroom_train.spill import pool, saved, spill  # noqa: E402
from headroom_train.tape.tape import Tape  # noqa: E402

GIB = 1 << 30


waited: list[Any] = []  # for a GPU's kernels
torch.cuda.synchronize = waited.append  # type: ignore[assignment]


class Imitated:
    """A pool of 8 GiB of which so much is in use, one number for each step, and what the GPU had refused by then."""

    bytes, device, highest, counts = 8 * GIB, "imitated", 9 * GIB, False

    def __init__(self, used: list[int], refused: Iterable[int] = ()) -> None:
        self._used, self._refused, self.held, self.ballast = used, iter(refused), 0, True

    def used(self) -> int:
        return self._used.pop(0)

    def refused(self) -> int:
        return next(self._refused, 0)

    def peak(self) -> int:
        return self.highest

    @contextmanager
    def withheld(self) -> Iterator[bool]:
        self.held += 1
        yield True

    def release_ballast(self) -> None:
        self.ballast = False

    def keep_ballast(self) -> None:
        self.ballast = True


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
    turns = spill.Pace()  # two optimizers, one of which steps right after the other
    said = [turns.step(s, i == 6, i % 2) for i, s in enumerate((1, 1e-4, 1, 1e-4, 1, 1e-4, 3))]
    for i in range(200):  # optimizers that come and go
        turns.step(1, False, i)
    if said != [None] * 6 + [3.0] or len(turns._whole) > spill.OPTIMIZERS:
        return f"{said}, {len(turns._whole)}"
    recorder: Any = _torch._recorder
    optimizers = [torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1) for _ in range(2)]
    named: list[int] = []
    with changed(spill.Spill, "step", lambda self, number, optimizer=0: named.append(optimizer)):
        for i in (0, 1, 0):
            optimizers[i].step()
    return "" if recorder and named == [id(optimizers[i]) for i in (0, 1, 0)] else f"{named}"


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
        "step 4 uses up to 1.0 GiB of the host's memory and takes 3.0 times as long: the GPU's is not enough",
        "step 6 uses up to 2.0 GiB of the host's memory and takes 900.0 times as long: the GPU's is not enough",
        "5 steps used up to 2.0 GiB of the host's memory, which took 904 s",
    ]
    if figures[3:5] != [{}, {"spilled": GIB, "lost": 2.0}] or figures[7] != {"spilled": GIB, "lost": 903.0}:
        return f"{figures}"
    return "" if said == want else f"{said}"


def within_a_step() -> str:
    """A step that gives back what it had of the host counts as one that used it, unless the GPU's refusals were wanted:
    it has had as much as was refused, beside what was in use when it began, and no more than there is, or than was ever in
    use at once."""
    s = spill.Spill(lambda text: None)
    refused = [0, GIB, 5 * GIB, 7 * GIB, 7 * GIB, 7 * GIB, 39 * GIB]  # the third and fourth around what is withheld
    s._pools[0] = Imitated([0, 2 * GIB, 2 * GIB, 0, 0], refused)  # type: ignore[assignment]
    found = []
    for step in range(5):
        if step == 2:
            with s.withheld():
                pass
        s.step(step)
        found.append(s._newest // GIB)
    s._pools[0] = Imitated([0], [99 * GIB])  # type: ignore[assignment]
    s._pools[0].highest = 3 * GIB  # type: ignore[attr-defined]
    s.step(5)
    found.append(s._newest // GIB)
    return "" if (found, s.pace.spilled) == ([0, 2, 6, 2, 8, 3], 5) else f"{found}, {s.pace.spilled}"


def measured_to_their_ends() -> str:
    """A step that has used memory of the host, or of which something was moved there, lasts until its kernels have
    ended. No other step waits for them."""
    now, found = 0.0, []
    s = spill.Spill(lambda text: None, lambda: now + 10 * len(waited))
    s._pools[0] = Imitated([0] * 5, [0, 5, 5, 5, 9])  # type: ignore[assignment]
    for step in range(5):
        before = len(waited)
        now += 1
        s.saved._share, s.saved._moved = (saved.Share(), 1) if step == 3 else (None, 0)
        s.step(step)
        found.append(len(waited) - before)
    if found != [0, 1, 0, 1, 1]:
        return f"{found}"
    return "" if s.pace._whole == {0: [1.0]} else f"{s.pace._whole}"


def moved_within_a_step() -> str:
    """What was moved to the host counts as used, although nothing of it is left when the step ends."""
    s = spill.Spill(lambda text: None)
    s._pools[0] = Imitated([0, 0, 0], [])  # type: ignore[assignment]
    found = []
    for step, moved in enumerate((0, 3 * GIB, 0)):
        s.saved._share, s.saved._moved = (saved.Share() if moved else None), moved
        s.step(step)
        found.append(s._newest // GIB)
    return "" if (found, s.pace.spilled) == ([0, 3, 0], 1) else f"{found}, {s.pace.spilled}"


def handles_once_there_is_room() -> str:
    """Handles of libraries that found no room are made when a failed try has been let go, before the backward pass, and
    when a step has ended, after more and more steps."""
    made: list[str] = []
    s = spill.Spill(lambda text: None)

    def warm(device: int) -> None:
        made.append(f"warm {device}")
        s._cold.setdefault(device, 0)

    s._pools[0], s._warm = Imitated([0] * 7), warm  # type: ignore[assignment, method-assign]
    with changed(torch.cuda, "empty_cache", lambda: made.append("emptied")):
        s.keep_ballast()
        s._cold[0] = 0
        s.keep_ballast()
        made.append("backward")
        s.warms()
        for step in range(1, 8):
            made.append(f"step {step}")
            s.step(step)
    tried = [made[i - 2] for i, m in enumerate(made) if m == "warm 0" and made[i - 1] == "emptied"]
    return "" if made[0] == "warm 0" and tried == ["backward", "step 1", "step 2", "step 4"] else f"{made}"


def where_saved_tensors_go() -> str:
    """Where nothing but hosting has helped, all that is saved goes to the pool if there is one, and to pinned memory if
    there is none."""
    recorder: Any = _torch._recorder
    found = []
    for pools in ({}, {0: Imitated([])}):
        record = SimpleNamespace(share=None, hosted=None)
        with changed(recorder.spill, "_pools", pools):
            recorder.hosts(record)
        found.append((record.hosted is None, record.share is not None and record.share.bytes == saved.EVERYTHING))
    return "" if found == [(False, False), (True, True)] else f"{found}"


def at_the_end() -> str:
    """The process's end tells of it, once."""
    recorder: Any = _torch._recorder
    said: list[str] = []
    recorder.spill._say, recorder.spill.pace.spilled, recorder.spill._most = said.append, 3, GIB
    recorder.report.ends()
    recorder.spill.pace.spilled = 0
    return "" if said == ["3 steps used up to 1.0 GiB of the host's memory"] else f"{said}"


def in_a_forked_process() -> str:
    """A forked process, such as a loader's worker, has no pools: it cannot use the GPUs of its parent."""
    said: list[str] = []
    s = spill.Spill(said.append)
    s.pace.step(1.0, True)
    imitated = Imitated([1])
    s._pools[0], s._cold[0], memory.POOLS[0] = imitated, 0, 1  # type: ignore[assignment]
    pid = os.fork()
    if not pid:
        with s.withheld() as any_held:
            s.ends()
            os._exit(1 if said or any_held or s.open or s.used() or memory.pooled() or s._cold or imitated.held else 0)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    found = ended, s.open, memory.POOLS.pop(0)
    return "" if found == (0, True, 1) else f"{found}"


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
    """The first looks at the memory come one after the other, later ones have pauses: longer ones if a look is slow."""
    now, takes, looks = 0.0, 0.0, 0

    def scarce() -> bool:
        nonlocal looks, now
        looks, now = looks + 1, now + takes
        return False

    spill.scarce = scarce  # type: ignore[attr-defined]
    s = spill.Spill(lambda text: None, lambda: now)
    for _ in range(2 * spill.EAGER):
        s.look()
    now, takes = now + spill.EVERY, 0.01
    s.look()
    s.look()
    now += 0.01 * spill.RARELY - 0.1
    s.look()
    seen = looks
    now += 0.1
    s.look()
    return "" if (seen, looks) == (spill.EAGER + 1, spill.EAGER + 2) else f"{seen}, {looks}"


def moved() -> str:
    """A module that does not fit on the GPU is moved once more when memory of the host has been made available, and what
    is wrong otherwise reaches the script."""
    said, arranged = [], list[int]()
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
            got: Any = moves._going_on(move, lambda: opens, lambda: arranged.append(1))(net, "cuda")
            said.append((got is net, calls))
        except RuntimeError as e:
            said.append((str(e), calls))
    want = [(True, 2), ("CUDA out of memory.", 1), ("CUDA out of memory.", 2), ("mine", 1)]
    if said != want or len(arranged) != 2:
        return f"{said}, {arranged}"
    # The device without memory stands for a GPU. Of five parameters of 100 MiB the first has not been moved just now.
    parts = [trial.torch.nn.Parameter(trial.torch.empty(100 << 18, device="meta")) for _ in range(5)]
    pair = trial.torch.nn.Sequential(trial.torch.nn.Linear(1, 1), trial.torch.nn.Linear(1, 1, device="meta"))
    if [*map(id, moves.arriving(pair))] != [*map(id, pair[0].parameters())] or moves.arriving(None):  # type: ignore
        return "others arrive"
    left = moves.giving_room([*parts[1:], trial.torch.nn.Parameter(trial.torch.ones(2))])
    return "" if [*map(id, left)] == [*map(id, reversed(parts[2:]))] else f"{len(left)} go back"


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


def left_free() -> str:
    """A library's cudaMalloc fails if it would leave less memory free than the reserve; another's does not. What fails
    twice in a row has been refused for good; once a request is not repeated, each that fails."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text, *needs in (
            ("runtime", "int cudaMalloc(void **block, unsigned long bytes) { *block = (void *)bytes; return 0; }"),
            ("first", GROW, "-lruntime", "-Wl,-rpath,$ORIGIN"),
            ("second", GROW, "-lruntime", "-Wl,-rpath,$ORIGIN,-z,now"),
        ):
            built = [
                "gcc",
                "-shared",
                "-fPIC",
                "-xc",
                "-",
                "-xnone",
                "-L",
                folder,
                *needs,
                "-o",
                f"{folder}/lib{name}.so",
            ]
            subprocess.run(built, input=text.replace("grow", f"grow_{name}"), text=True, check=True)
        area, first, second = pool._library(), *(ctypes.CDLL(f"{folder}/lib{n}.so") for n in ("first", "second"))
    grown = [lambda n, f=f: f(ctypes.c_ulong(n)) for f in (first.grow_first, second.grow_second)]
    free = 100

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_ulong), ctypes.POINTER(ctypes.c_ulong))
    def information(left: Any, total: Any) -> int:
        left[0] = free
        return 0

    said = [[grow(90) for grow in grown]]  # each has called it before
    limited = [area.headroom_reserve(information, name, ctypes.c_ulong(20)) for name in (b"libfirst.so", b"libnone.so")]
    said += [[grow(n) for grow in grown] for n in (80, 81)]
    grown[0](81)
    refused = [area.headroom_refused()]
    limited.append(area.headroom_reserve(information, b"libsecond.so", ctypes.c_ulong(30)))
    said += [[grow(n) for grow in grown] for n in (70, 71)]
    free = 1000
    said.append([grow(71) for grow in grown])
    said = [[code == 2 for code in codes] for codes in said]  # without a GPU, PyTorch's own has other reasons to fail
    want = [[False, False], [False, False], [True, False], [False, False], [True, True], [False, False]]
    free = 100
    for bytes in (90, 90, 90, 91):  # the third begins another request, which is not repeated
        refused.append(area.headroom_refused())
        grown[0](bytes)
    refused.append(area.headroom_refused())
    each = 2 * 81 + 2 * 71 + 3 * 90 + 91
    return "" if (limited, said, refused) == ([1, 0, 1], want, [81, 152, 152, 242, 242, each]) else f"{said}, {refused}"


GROW = """
int cudaMalloc(void **, unsigned long);
int grow(unsigned long bytes) { void *block; return cudaMalloc(&block, bytes); }
"""


def a_trial_does_without() -> str:
    """Trials use memory of the host only if two rows do not fit on the GPU, and few rows then: first for what autograd
    saves, then for all that does not fit."""
    said = []
    for spare, cuda in (True, True), (False, True), (False, False):
        using, tried = list[str](), []

        @contextmanager
        def context(name: str, value: bool, using: list[str] = using) -> Iterator[bool]:
            using.append(name)
            try:
                yield value
            finally:
                using.remove(name)

        def work(count: int, tolerance: float) -> str:
            tried.append((count, *using))
            if using:
                raise trial.torch.OutOfMemoryError("CUDA out of memory.")
            return "found"

        p = proof.Proof.__new__(proof.Proof)
        p.tape, p.modules, p.used = Tape(), [], proof.Uses()
        p._withheld = lambda spare=spare: context("withheld", spare)  # type: ignore[misc]
        p.tape.outside = [SimpleNamespace(is_cuda=cuda)]  # type: ignore[list-item]
        try:
            with changed(proof, "on_host", lambda: context("saved", True)):
                got = p._tried([], 16, work)
        except NoMemory as why:
            got = str(why)
        said.append((got, tried))
    fewer, saved = [(n, "withheld") for n in (16, 8, 4, 2)], [(n, "withheld", "saved") for n in (4, 2)]
    none = "there is not enough memory for a trial on two rows"
    want = [("found", [*fewer, *saved, (4,)]), (none, [*fewer, *saved]), (none, fewer)]
    return "" if said == want else f"{said}"


def peaks_without_a_pool() -> str:
    """PyTorch's statistics leave out the pool, and what is taken so that trials cannot use it; what a trial has used is in
    them. A script's own reset of its peaks holds."""
    kinds = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes", "segment")
    now = {kind: dict.fromkeys(("current", "peak", "allocated"), 0) for kind in kinds}

    def use(more: int, *of: str) -> None:
        for kind in of or kinds[:3]:
            now[kind]["current"] += more
            now[kind]["peak"] = max(now[kind]["current"], now[kind]["peak"])

    def reset(device: int) -> None:
        for kind in kinds:
            now[kind]["peak"] = now[kind]["current"]

    def read(device: int) -> dict[str, Any]:
        return {kind: {part: dict(now[kind]) for part in pool._PARTS} for kind in kinds} | {"num_ooms": 1}

    def told() -> tuple[int, ...]:
        found = torch._C._cuda_memoryStats(0)
        return tuple(found[kind]["all"]["peak"] for kind in kinds)

    torch._C._cuda_memoryStats, torch._C._cuda_resetPeakMemoryStats = read, reset
    use(9), use(20, "reserved_bytes"), use(2, "segment"), use(-4)
    statistics = pool.Statistics(0)
    use(100), use(100, "reserved_bytes"), use(1, "segment"), use(-100)
    statistics.hide()
    said = [told()]
    for used in (2, 7):  # the peak was 9, of which 5 are in use
        with statistics.leaving_out(100):
            use(100), use(used), use(-used), use(-100)
        said.append(told())
    torch._C._cuda_resetPeakMemoryStats(0)
    said.append(told())
    want = [(9, 9, 9, 20, 3), (9, 9, 9, 20, 3), (12, 12, 12, 20, 3), (5, 5, 5, 20, 3)]
    return "" if said == want else f"{said}"


def what_is_looked_through() -> str:
    """A pool is looked through after a step only if something of it may be in use, or if that is not known. It has more
    blocks for small requests where it is known."""
    looked = []
    for counts in (True, False):
        s = spill.Spill(lambda text: None)
        imitated = Imitated([GIB, 0, 0, 0, 0, 0], [0, 5, 5, 5, 5])
        imitated.counts, s._pools[0] = counts, imitated  # type: ignore[assignment]
        for step in range(5):
            s.step(step)
        looked.append(6 - len(imitated._used))
    sizes = [pool.smalls(*given) for given in ((GIB, True), (8 * GIB, True), (512 * GIB, True), (512 * GIB, False))]
    return "" if (looked, sizes) == ([2, 5], [128, 256, 1024, 128]) else f"{looked}, {sizes}"


def room_for_code() -> str:
    """Where a failure finds the GPU full, what the failed try holds is let go before anything is tried, and memory is
    left for libraries and the code of kernels; a kernel that could not be loaded counts as out of memory then."""
    said = []
    unloaded = RuntimeError("CUDA error: unknown error")
    for full in (True, False):
        done: list[str] = []
        recover = recovery.Recovery(_torch._recorder.report)  # type: ignore[union-attr]
        recover.spill = Imitated([])  # type: ignore[assignment]
        recover.spill.why_not = None
        recover.spill.opened = lambda: True  # type: ignore[method-assign]
        recover.spill.release_ballast = lambda failed: done.append("released")  # type: ignore[method-assign]
        recover.spill.keep_ballast = lambda done=done: done.append("kept")  # type: ignore[method-assign, misc]
        recovery.starved = failure.starved = lambda full=full: full  # type: ignore[attr-defined, assignment]
        recovery.clean = lambda failed, done=done: done.append("cleaned")  # type: ignore[attr-defined]
        recover.recover(unloaded, [lambda why, done=done: done.append("tried")])  # type: ignore[misc]
        said.append((done, failure.is_out_of_memory(unloaded)))
    want = [(["released", "cleaned", "kept", "tried"], True), (["released", "kept", "tried"], False)]
    return "" if said == want else f"{said}"


def how_much_is_moved() -> str:
    """All is moved first, then half as much as long as that is faster; nothing where it does not help. Later it is
    tried again."""

    def steps(time: Callable[[int, int], float], needs: int, saves: int, count: int) -> list[int]:
        """What is moved in each step of a training that lacks so many bytes, and saves so many for backward. ``time``
        is what a step takes by what was moved, and what still did not fit."""
        share, moved = saved.Share(), []
        for _ in range(count):
            moved.append(min(share.bytes, saves))
            lacks = max(0, needs - moved[-1])
            share.step(time(moved[-1], lacks), lacks, moved[-1], saves)
        return moved

    def slow(moved: int, lacks: int) -> float:
        return 10 + moved + 9 * lacks

    share = saved.Share()
    share.everything()
    fewer = []
    for _ in range(4):
        fewer.append(min(160, share.bytes))
        share.step(slow(fewer[-1], max(0, 70 - fewer[-1])), 0, fewer[-1], 160)
    found = {
        "fits": steps(slow, 0, 100, 4),
        "helps": steps(slow, 40, 160, 8),
        "with all": steps(lambda moved, lacks: 1 if moved == 160 else 9, 40, 160, 6),
        "is slower": steps(lambda moved, lacks: 10 + moved + 0.1 * lacks, 40, 160, 6),
        "nothing is saved": steps(slow, 40, 0, 5),
        "everything": fewer,
    }
    want = {
        "fits": [0, 0, 0, 0],
        "helps": [0, 0, 160, 160, 80, 40, 20, 40],
        "with all": [0, 0, 160, 160, 80, 160],
        "is slower": [0, 0, 160, 160, 0, 0],
        "nothing is saved": [0, 0, 0, 0, 0],
        "everything": [160, 160, 80, 40],
    }
    later = steps(slow, 40, 160, 8 + saved.PATIENCE)
    return "" if found == want and later[-2:] == [40, 0] else f"{found}, {later[-4:]}"


class OnCpu:
    """A pool whose memory is the process's own. ``full`` says that the GPU has no room."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.storages: list[torch.UntypedStorage] = []
        self.full = False
        self.lacks, self.cache, self.emptied = 0, 0, 0  # what was refused, what PyTorch has in its cache

    def refused(self) -> int:
        return self.lacks

    def cached(self) -> int:
        return self.cache

    def empties(self) -> None:
        self.emptied += 1
        self.cache, self.full = 0, False

    def here(self) -> bool:
        return True

    def free(self) -> int:
        return 1 << 40

    def has(self, address: int) -> bool:
        return self.full or any(s.data_ptr() == address for s in self.storages)

    def taken(self, bytes: int) -> torch.UntypedStorage:
        self.storages.append(torch.UntypedStorage(bytes))
        return self.storages[-1]


class Record:
    """What is known of a module."""

    uncut, share = True, None

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = lambda: module


class Attention(torch.nn.Module):
    """Saves views of one tensor, a tensor twice, weights, a number in half, and what a function changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)
        self.norm = torch.nn.BatchNorm1d(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.all(x).chunk(3, -1)
        mixed = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        mixed = torch.nn.functional.relu_(self.norm(self.out(mixed).transpose(1, 2)).contiguous())
        return (mixed * mixed + mixed.sigmoid()).square()


def as_without() -> str:
    """Gradients are the same to the bit, of first and second order, whatever part of what is saved is moved; what is
    moved is gone when it has been used."""
    torch.manual_seed(0)
    net, x = Attention(), torch.randn(64, 128, 64, requires_grad=True)

    def gradients(second: bool, around: Any) -> list[torch.Tensor]:
        inputs = [x, *net.parameters()]
        with around:
            loss = net(x).mean()
        found = torch.autograd.grad(loss, inputs, create_graph=second)
        return list(found if not second else torch.autograd.grad(sum(g.square().sum() for g in found), inputs))

    own = {t.untyped_storage().data_ptr() for t in (*net.parameters(), *net.buffers())}
    saves: dict[tuple[int, int], torch.Tensor] = {}  # each memory and version once

    def seen(t: torch.Tensor) -> torch.Tensor:
        if t.untyped_storage().nbytes() >= saved.LEAST and t.untyped_storage().data_ptr() not in own:
            saves[t.untyped_storage()._cdata, t._version] = t
        return t

    gradients(False, torch.autograd.graph.saved_tensors_hooks(seen, lambda t: t))
    for second in (False, True):
        want = gradients(second, nullcontext())
        for bytes in (1, 6 << 20, saved.EVERYTHING):
            for full in (False, True):
                imitated, record = OnCpu(), Record(net)
                moving = saved.Saved(lambda imitated=imitated: imitated)
                moving.share(record).bytes = bytes
                around = moving.around(record)
                imitated.full = full
                got = gradients(second, around)
                if not all(torch.equal(a, b) for a, b in zip(want, got)):
                    return f"other gradients, second order {second}, {bytes} bytes"
                moved = moving.step(1.0, 0)
                if not full and not min(bytes, 1 << 20) <= moved == sum(s.nbytes() for s in imitated.storages):
                    return f"{moved} bytes were moved, {bytes} to be moved"
                most = {1: 1, saved.EVERYTHING: len(saves)}.get(bytes, len(saves) - 1)
                if not full and len(imitated.storages) > most:
                    return f"{len(imitated.storages)} tensors were moved, {bytes} bytes to be moved"
                if moving._units:
                    return f"{len(moving._units)} are kept after the backward pass"
                if moving._own:
                    return "weights are remembered"
    return ""


def cache_of_other_sizes() -> str:
    """Where memory was refused although PyTorch had as much in its cache, the cache is emptied in the steps that follow,
    after the same tensor; not where it has less. Such steps are judged once no more of these places are found. What
    comes back finds room in the same way."""
    imitated = OnCpu()
    moving = saved.Saved(lambda: imitated)  # type: ignore[arg-type, return-value]
    record = Record(torch.nn.Linear(2, 2))
    share, emptied = moving.share(record), []
    for step in range(5):
        share.everything()
        with moving.around(record):
            for i in range(4):
                before = imitated.emptied
                torch.ones(8, requires_grad=True).square()
                emptied += [(step, i)] * (imitated.emptied - before)
                if i == 1 and (step, i) not in emptied:  # after the second, where there is no more room
                    imitated.lacks, imitated.cache = imitated.lacks + 8, 8
                if i == 2:  # the GPU is full
                    imitated.lacks, imitated.cache = imitated.lacks + 8, 7
        moving.step(1.0, 1)
    if emptied != [(step, 1) for step in range(1, 5)] or share.gaps != {2}:
        return f"emptied at {emptied}, {share.gaps}"
    moving = saved.Saved(lambda: imitated)  # type: ignore[arg-type, return-value]
    first, many = (moving.share(Record(torch.nn.Linear(2, 2))) for _ in range(2))
    first.gaps.add(0)  # before anything is saved
    for share, gaps in ((first, 1), (many, saved.GAPS)):
        record = Record(torch.nn.Linear(2, 2))
        record.share = share
        share.everything()
        before = imitated.emptied
        with moving.around(record):
            if imitated.emptied - before != (0 in share.gaps):
                return "not emptied before the first tensor"
            for _ in range((saved.GAPS + 9) if share is many else 0):
                imitated.lacks, imitated.cache = imitated.lacks + 8, 8
                torch.ones(8, requires_grad=True).square()
        if len(share.gaps) != gaps:
            return f"{len(share.gaps)} places"
        moving.step(1.0, 1)
    learned = saved.Share()
    learned.everything()
    judged = []
    for step in range(2 + 2 * saved.LEARNING):
        learned.gaps.add(step)
        learned.step(10.0, 1, 1 << 20, 1 << 30)
        judged.append(learned.bytes < saved.EVERYTHING)
    if judged.index(True) != 1 + saved.LEARNING:
        return f"judged {judged}"
    found = []
    for cache in (0, 1 << 30):
        moving, record = saved.Saved(lambda: imitated), Record(torch.nn.Linear(2, 2))  # type: ignore[arg-type, return-value]
        moving.share(record).everything()
        x = torch.randn(1024, 1024)
        moving.around(record)
        packed = moving._pack(x)
        imitated.full, imitated.cache, before = True, cache, imitated.emptied
        back = moving._unpack(packed)
        imitated.full = False
        found.append((imitated.emptied - before, back.data_ptr() == packed[0].storage.data_ptr(), torch.equal(x, back)))
    return "" if found == [(0, True, True), (1, False, True)] else f"{found}"


def not_moved() -> str:
    """Weights, small tensors, and what is no plain memory of the GPU stay, and so does all where there is nothing to
    gain."""
    imitated = OnCpu()
    moving = saved.Saved(lambda: imitated)  # type: ignore[arg-type, return-value]
    net = torch.nn.Linear(1024, 1024)
    record, x = Record(net), torch.randn(1024, 1024)
    moving.share(record).bytes = saved.EVERYTHING
    around = moving.around(record)
    kept = {
        "a weight": net.weight.t(),
        "small": torch.ones(8),
        "a part": x[:, :100],
        "repeated": torch.randn(1, 1024).expand(1024, 1024),
        "conjugated": torch.randn(1024, 1024, dtype=torch.complex64).conj(),
        "sparse": x.to_sparse(),
    }
    if around is None or (wrong := [name for name, t in kept.items() if moving._pack(t) is not t]):
        return f"moved: {wrong}"
    if not isinstance(moving._pack(x), tuple):
        return "nothing is moved"
    record.uncut = False
    if moving.around(record) is not None:
        return "a step that can be run in pieces is not"
    with torch.no_grad():
        record.uncut = True
        return "" if moving.around(record) is None else "there is no backward pass"


def without_a_gpu() -> str:
    """Nothing is opened, and no reason is given, where no GPU is in use."""
    s = spill.Spill(lambda text: None)
    return "" if not s.opened() and s.why_not is None and not s.open else f"{s.why_not}"


CHECKS: list[Callable[[], str]] = [
    how_much,
    of_several_ranks,
    slower,
    told,
    within_a_step,
    measured_to_their_ends,
    moved_within_a_step,
    handles_once_there_is_room,
    where_saved_tensors_go,
    at_the_end,
    in_a_forked_process,
    withheld,
    the_host,
    turned_off,
    left_free,
    a_trial_does_without,
    peaks_without_a_pool,
    what_is_looked_through,
    room_for_code,
    looked_at,
    moved,
    another_allocator,
    how_much_is_moved,
    as_without,
    cache_of_other_sizes,
    not_moved,
    without_a_gpu,
]

if __name__ == "__main__":
    sys.exit(checked(CHECKS, 2))
