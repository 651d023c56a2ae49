"""Checks when calls are idle, that is, not recorded, and what happens to failures then.

python idle.py
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trial
from compare import close
from forked import Died, forked, status
from inject import Fault, Injector

trial.attach()
from headroom_train import _torch  # noqa: E402
from headroom_train.memory import Memory, room, unreserved  # noqa: E402
from headroom_train.tape.idle import EVERY, STEPS, Idle, Known, roomy  # noqa: E402
from headroom_train.tape.tape import Recorded, place_of  # noqa: E402
from headroom_train.wire.phases import Phases  # noqa: E402

GIB = 1 << 30
ROOM = Memory(allowed=80 * GIB, free=60 * GIB, reserved=20 * GIB, allocated=15 * GIB, peak=20 * GIB, failures=0)


def table() -> str:
    cases = {
        "a quarter is taken": ([ROOM], True),
        "exactly half": ([ROOM._replace(free=40 * GIB, reserved=40 * GIB, peak=40 * GIB)], True),
        "more than half": ([ROOM._replace(free=39 * GIB, reserved=41 * GIB, peak=41 * GIB)], False),
        "it was more than half": ([ROOM._replace(peak=41 * GIB)], False),
        "others hold the rest": ([ROOM._replace(free=19 * GIB)], False),
        "others hold much, and enough is left": ([ROOM._replace(free=20 * GIB)], True),
        "little is allowed": ([ROOM._replace(allowed=39 * GIB)], False),
        "an allocation was refused": ([ROOM._replace(failures=1)], False),
        "one of two GPUs is full": ([ROOM, ROOM._replace(free=0)], False),
        "both have room": ([ROOM, ROOM], True),
        "nothing is known": ([], False),
    }
    return ", ".join(name for name, (memories, want) in cases.items() if roomy(memories) is not want)


def phases() -> str:
    amounts = iter([7, 9, 5, 8, 3, 6])
    p = Phases(lambda: next(amounts))
    p.forward_ends(), p.forward_ends(), p.backward_ends()
    found = [p.step_ends(True)]
    p.forward_ends(), p.backward_ends()
    found += [p.step_ends(False), p.step_ends(True)]  # a step in pieces, and one without a module's call
    p.backward_ends(), p.forward_ends()  # the optimizer has a closure
    found.append(p.step_ends(True))
    p.measuring = False
    p.forward_ends(), p.backward_ends()
    found.append(p.step_ends(True))
    want = [{"forward": 9, "backward": 5}, {}, {}, {"forward": 6}, {}]
    return "" if found == want else f"{found}"


def rooms() -> str:
    """Memory that is reserved but not allocated also counts as room. Memory that this process may
    not use does not count."""
    wrong = []
    for fraction, want, left in ((1.0, 25, 15), (0.5, 15, 5), (0.2, 10, 0), (None, 25, 15)):
        told = {"is_initialized": True, "mem_get_info": (15, 100), "memory_reserved": 45, "memory_allocated": 35}
        for name, value in told.items():  # each check runs in a child of its own
            setattr(torch.cuda, name, lambda *_, value=value: value)
        torch.cuda.get_per_process_memory_fraction = (
            (lambda *_, value=fraction: value) if fraction is not None else None
        )  # type: ignore[assignment]
        if fraction is None:
            del torch.cuda.get_per_process_memory_fraction  # as in older versions
        if (room(), unreserved()[0]) != (want, left):
            wrong.append(f"{fraction}: {room()}, {unreserved()}")
    torch.cuda.is_initialized = lambda: False
    return ", ".join(wrong) or ("" if room() == 0 else "room without a GPU")


def shapes() -> str:
    known = Known()
    known.add(((8, 512), (8, 512)))
    known.add(((2, 1024), (2, 1024)))
    cases = {
        ((8, 512), (8, 512)): True,
        ((3, 100), (3, 100)): True,
        ((2, 1024), (1, 900)): True,
        ((9, 512), (9, 512)): False,
        ((8, 513), (8, 513)): False,
        ((3, 1024), (3, 1024)): False,  # each size has been seen, but not both together
        ((8, 512),): False,
        ((8, 512), (8,)): False,
        (): False,
    }
    found = [s for s, want in cases.items() if known.covers(s) is not want]
    known.add(())
    return f"{found}" if found else "a call without tensors is known" if known.covers(()) else ""


def times() -> str:
    """The memory is checked only at optimizers' steps, at most once every ``EVERY`` seconds. A
    failure ends this for good."""
    looks, now, memory = 0, 0.0, [ROOM]

    def look() -> list[Memory]:
        nonlocal looks
        looks += 1
        return memory

    idle = Idle(look, lambda: now)
    said = []
    for _ in range(STEPS):
        said.append((idle.now, looks))
        idle.step()
    if said != [(False, 0)] * STEPS or (idle.now, looks) != (True, 1):
        return f"{said}, then {idle.now}, {looks} looks"
    memory = [ROOM._replace(free=0)]
    idle.step()
    if (idle.now, looks) != (True, 1):
        return "looked again at once"
    now += EVERY
    idle.step()
    if (idle.now, looks) != (False, 2):
        return "did not see that there is no room any more"
    memory, now = [ROOM], now + EVERY
    idle.step()
    if not idle.now:
        return "did not see that there is room again"
    idle.failed()
    now += EVERY
    idle.step()
    return "rests after a failure" if idle.now or looks != 3 else ""


class Training:
    """A backbone and a head whose calls are idle from the beginning if ``rests``."""

    def __init__(self, rests: bool = True) -> None:
        torch.manual_seed(0)
        self.backbone, self.head = nn.Sequential(nn.Linear(6, 9), nn.GELU()), nn.Linear(9, 4)
        self.optimizer = torch.optim.SGD([*self.backbone.parameters(), *self.head.parameters()], lr=0.1)
        self.recorder = _torch._recorder
        self.seen: list[str] = []
        self.called: list[str] = []  # names of the calls on the newest step's tape
        if rests:
            self.recorder.idle = Idle(lambda: [ROOM], lambda: 0.0)
            for _ in range(STEPS):
                self.step(7)
            self.seen = []

    def step(self, rows: int, more: int = 0, fails: int = -1) -> list[Tensor]:
        """Runs a step, and returns its gradients. After the backbone, ``more`` rows are added, or removed if
        ``more`` is negative."""
        source = torch.Generator().manual_seed(rows)
        x, y = torch.randn(rows, 6, generator=source), torch.randint(0, 4, (rows + more,), generator=source)
        noise = torch.randn(max(0, more), 9, generator=source)
        self.optimizer.zero_grad()
        with Injector(Fault("again", fails, rows + more) if fails >= 0 else None) as injector:
            injector.begin()
            z = self.backbone(x)
            out = self.head(torch.cat([z, noise]) if more > 0 else z[: rows + more])
            self.seen.append(" ".join("Recorded" if type(t) is Recorded else "Tensor" for t in (z, out)))
            place = place_of(out)
            self.called = [] if place is None else [e.call_name() for e in place.tape.entries]
            F.cross_entropy(out, y).backward()
            injector.end()
        gradients = [p.grad.clone() for g in self.optimizer.param_groups for p in g["params"]]
        self.optimizer.step()
        return gradients


def with_a_closure() -> str:
    """Modules' calls are also idle when they are made in a closure, as in Lightning's steps. A failure in a larger
    step is survived."""
    t = Training(rests=False)
    t.recorder.idle = Idle(lambda: [ROOM], lambda: 0.0)
    x, y = torch.randn(14, 6), torch.randint(0, 4, (14,))
    seen = []

    def step(rows: int, fails: bool = False) -> None:
        def closure() -> Tensor:
            t.optimizer.zero_grad()
            with Injector(Fault("again", 2, rows) if fails else None) as injector:
                injector.begin()
                out = t.head(t.backbone(x[:rows]))
                seen.append("Recorded" if type(out) is Recorded else "Tensor")
                loss = F.cross_entropy(out, y[:rows])
                loss.backward()
                injector.end()
            return loss

        t.optimizer.step(closure)

    for _ in range(STEPS + 1):
        step(7)
    step(14, fails=True)
    step(7)
    return "" if seen == ["Recorded"] * STEPS + ["Tensor", "Recorded", "Recorded"] else f"{seen}"


def steps_are_measured() -> str:
    """Memory is measured after each of two modules' calls and before the optimizer's step, whether
    or not the calls idle. A step that follows too soon is not measured."""
    t = Training(rests=False)
    report, said = t.recorder.report, []
    wire = type(
        "Said",
        (),
        {
            "step": lambda _, **message: said.append(message),
            "asked_to_look": False,
            "asked_for_memory": False,
            "limit": 0,
            "asked": 0,
        },
    )()
    report.wire = lambda: wire
    for rests in (False, True):
        t.recorder.idle = Idle(lambda: [ROOM] if rests else [], lambda: 0.0)
        for _ in range(STEPS):
            t.step(7)
        amounts = iter([7, 9, 5])
        report.phases = Phases(lambda: next(amounts))
        report._next = 0.0
        t.step(7)
        measured, report._next = said[-1], float("inf")
        report.phases.measuring = False
        t.step(7)
        if {name: measured.get(name) for name in ("forward", "backward")} != {"forward": 9, "backward": 5} or said[
            -1
        ] is not measured:
            return f"{measured}"
        report._next = 0.0
        report.phases._read = lambda: 1
        t.step(7)
        if "forward" in said[-1] or report.phases.measuring:
            return f"not asked for: {said[-1]}"
        report._ended -= 1e6  # a step that took days: the next one is due when it ends
        t.step(7)
        if not report.phases.measuring:
            return "a step that is due is not measured"
    del report.wire
    return ""


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(close(x, y) for x, y in zip(a, b))


def rests() -> str:
    t = Training()
    t.step(7)
    t.step(5)
    t.step(8)
    t.step(8)
    want = ["Tensor Tensor", "Tensor Tensor", "Recorded Recorded", "Tensor Tensor"]
    return "" if t.seen == want and Recorded is not Tensor else f"{t.seen}"


def a_step_that_is_recorded_is_recorded_whole() -> str:
    """The head is not idle, although it has seen as many rows before. The tape contains the head
    as one module, and not the functions that the head calls."""
    t = Training()
    t.step(8, more=-1)
    return "" if t.called == ["Sequential", "__getitem__", "Linear"] else f"{t.called}"


def a_larger_batch_is_survived() -> str:
    want = Training().step(14)
    t = Training()
    if not same(want, t.step(14, fails=2)):
        return "other gradients"
    t.step(7)
    return "" if t.seen[-1] == "Recorded Recorded" else "rests after a failure"


def what_rested_is_no_part_of_a_replay() -> str:
    """The backbone's call has a known size and rests; the head's is larger than ever and is
    recorded. Every operation fails in turn: each failure is survived with the same gradients, or
    reaches the user."""

    def made(fails: int) -> Any:
        t = Training()
        try:
            return t.step(7, more=2, fails=fails), t.seen[-1]
        except torch.OutOfMemoryError:
            return None

    results = dict(forked(made, [-1, *range(60)], 2))
    want, seen = results.pop(-1)
    if seen != "Tensor Recorded":
        return seen
    died = [r.why for r in results.values() if isinstance(r, Died)]
    survived = {k: r[0] for k, r in results.items() if r is not None and not died}
    wrong = [k for k, gradients in survived.items() if not same(want, gradients)]
    return (
        died[0]
        if died
        else f"other gradients after failures of {wrong}"
        if wrong
        else ""
        if 0 < len(survived) < 60
        else f"{len(survived)} survived"
    )


def a_failure_reaches_the_user() -> str:
    t = Training()
    try:
        t.step(7, fails=1)
    except torch.OutOfMemoryError as e:
        frames, trace = [], e.__traceback__
        while trace is not None:
            frames.append(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        told = t.recorder.report.told[-1]
        if "half of the memory" not in told["why"]:
            return f"told {told}"
        t.step(7)
        return "" if t.seen[-1] == "Recorded Recorded" else "rests on"
    return "nothing failed"


def an_optimizer_that_rests_raises() -> str:
    """An optimizer's step is not guarded while calls are idle, but is guarded after a failure."""
    t = Training()
    for guarded in (False, True):
        t.optimizer.zero_grad()
        F.cross_entropy(t.head(t.backbone(torch.randn(7, 6))), torch.randint(0, 4, (7,))).backward()
        with Injector(Fault("once", 0, 7)) as injector:
            injector.begin()
            try:
                t.optimizer.step()
                raised = False
            except torch.OutOfMemoryError:
                raised = True
            injector.end()
        if not injector.raised or raised is guarded:
            return f"guarded: {guarded}, and raised: {raised}"
        t.recorder.idle.failed()
    return ""


CHECKS = [
    table, rooms, shapes, phases, steps_are_measured, times, rests, with_a_closure,
    a_step_that_is_recorded_is_recorded_whole, a_larger_batch_is_survived, what_rested_is_no_part_of_a_replay,
    a_failure_reaches_the_user, an_optimizer_that_rests_raises,
]  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(status(CHECKS))
