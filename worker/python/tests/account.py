"""Checks the account of a process's memory: what each tensor is for, each piece of memory once.

python account.py
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import weakref
from collections import UserDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

import trial
from forked import status
from inject import Whole
from watching import Watched

trial.attach()

from headroom_train import _torch  # noqa: E402
from headroom_train.account import fragments, inventory, shares  # noqa: E402
from headroom_train.account.graphs import SHOWS  # noqa: E402
from headroom_train.account.shares import (  # noqa: E402
    ACTIVATIONS,
    BUFFERS,
    CACHE,
    GRADIENTS,
    KEPT,
    KINDS,
    OPTIMIZER,
    PIECES,
    WEIGHTS,
    Part,
)
from headroom_train.tape.graph import sequence  # noqa: E402
from headroom_train.wire import report as reports  # noqa: E402

WIDE = 1000
ROW = WIDE * 4  # bytes


def segment(address: int, *blocks: tuple[int, str]) -> dict[str, Any]:
    found, at = [], address
    for size, state in blocks:
        found.append({"address": at, "size": size, "state": state})
        at += size
    return {"device": 0, "total_size": at - address, "blocks": found}


USED, IDLE, PENDING = "active_allocated", "inactive", "active_pending_free"


def blocks_count_once() -> str:
    """Parts are counted in whole blocks, each once, and with what is free they make up the segments."""
    for name, parts, segments, want in (
        ("nothing", [], [], {}),
        ("a block is larger than its tensor", [(WEIGHTS, 0, 90)], [segment(0, (100, USED))], {WEIGHTS: 100}),
        ("two in a block", [(KEPT, 0, 9), (WEIGHTS, 50, 9)], [segment(0, (100, USED))], {WEIGHTS: 100}),
        ("nobody's block", [(KEPT, 0, 9)], [segment(0, (100, USED), (50, USED))], {KEPT: 100}),
        ("a block that waits", [(KEPT, 0, 9)], [segment(0, (100, USED), (50, PENDING))], {KEPT: 100}),
        ("a part elsewhere", [(KEPT, 500, 9), (KEPT, 150, 9)], [segment(0, (100, USED))], {}),
        ("a part in a free block", [(KEPT, 0, 9)], [segment(0, (100, IDLE))], {CACHE: 100}),
        ("an empty segment", [], [segment(0, (60, IDLE)), segment(99, (40, IDLE))], {CACHE: 100}),
        ("pieces", [(KEPT, 60, 9)], [segment(0, (60, IDLE), (40, USED), (7, IDLE))], {KEPT: 40, PIECES: 67}),
    ):
        got = shares.by_block([Part(*p) for p in parts], segments)  # type: ignore[arg-type]
        if got != want:
            return f"{name}: {got}"
    return ""


def shares_add_up() -> str:
    """Whatever the blocks and the parts, nothing is negative, and only blocks in use that no part is in are missing."""
    draw = random.Random(0)
    for _ in range(300):
        segments, at = [], 0
        for _ in range(draw.randint(0, 5)):
            blocks = [
                (draw.choice((0, 512, 4096)), draw.choice((USED, IDLE, PENDING))) for _ in range(draw.randint(1, 6))
            ]
            segments.append(segment(at, *blocks))
            at += segments[-1]["total_size"] + draw.choice((0, 1 << 20))
        parts = [Part(draw.choice(KINDS[:6]), draw.randrange(at + 1), draw.randrange(9000)) for _ in range(9)]
        got = shares.by_block(parts, segments)
        blocks = [b for s in segments for b in s["blocks"]]
        nobodys = sum(
            b["size"]
            for b in blocks
            if b["state"] != IDLE and not any(b["address"] <= p.address < b["address"] + b["size"] for p in parts)
        )
        if sum(got.values()) + nobodys != shares.reserved(segments) or min(got.values(), default=1) <= 0:
            return f"{got} and {nobodys} of {segments}"
    return ""


def fragments_are_found() -> str:
    """What is free beside something in use, its sizes, and how much of it is whole pages."""
    mib = 1 << 20
    for name, segments, want in (
        ("nothing", [], None),
        ("a segment that is free", [segment(0, (90 * mib, IDLE))], None),
        ("one that is full", [segment(0, (90 * mib, USED))], None),
        (
            "pieces",
            [segment(0, (30 * mib, IDLE), (1, USED), (70 * mib, IDLE), (1, PENDING), (mib // 2, IDLE))],
            (100 * mib + mib // 2, 3, 70 * mib, [(mib, 1, mib // 2), (100 * mib, 2, 100 * mib)], 40 * mib),
        ),
        (
            "of small blocks",
            [{**segment(0, (mib, USED), (5 * mib, IDLE)), "segment_type": "small"}, segment(0, (90 * mib, IDLE))],
            (5 * mib, 1, 90 * mib, [(10 * mib, 1, 5 * mib)], 2 * mib),
        ),
        (
            "large ones",
            [segment(0, (mib, USED), (2048 * mib, IDLE), (mib, USED), (1024 * mib, IDLE))],
            (3072 * mib, 2, 2048 * mib, [(0, 2, 3072 * mib)], 20 * mib * (101 + 50)),
        ),
    ):
        got = fragments.fragments(segments, freed=7)
        sizes = None if got is None else [(s["below"], s["number"], s["bytes"]) for s in got.sizes]
        if (got and (got.pieces, got.number, got.largest, sizes, got.pages)) != want:
            return f"{name}: {got}"
        if got and (got.freed, got.expandable) != (7, False):
            return f"{name}: {got}"
    got = fragments.fragments([{**segment(0, (30, IDLE), (1, USED)), "is_expandable": True}])
    return "" if got is not None and got.expandable else f"{got}"


def of_host(begun: int = 0, failure: Any = None) -> dict[str, int]:
    """Memory by kind, in rows; those of everything but tensors are left out."""
    found = inventory.memories(begun, failure)
    assert [m.device for m in found] == ["host"], found
    kinds = dict(found[0].kinds)
    assert sum(kinds.values()) + found[0].base <= found[0].total + (64 << 20), found
    kinds.pop(CACHE)
    return {kind: size // ROW for kind, size in kinds.items() if size >= ROW}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8, WIDE))
        self.register_buffer("shift", torch.zeros(4, WIDE))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale[0] + self.shift[0]).tanh()


def trained(net: nn.Module, opt: torch.optim.Optimizer, rows: int = 100) -> Tensor:
    out = net(torch.ones(rows, WIDE))
    loss = out.square().mean()
    loss.backward()
    opt.step()
    return loss


def roles_are_told_apart() -> str:
    net = Net()
    opt = torch.optim.Adam(net.parameters())
    kept: list[Tensor] = []
    for _ in range(20):
        trained(net, opt)
        kept.append(torch.ones(3, WIDE) + 1)
    views = [k[0] for k in kept]  # of the same memory
    got = of_host(sequence())
    want = {WEIGHTS: 8, GRADIENTS: 8, OPTIMIZER: 16, BUFFERS: 4, KEPT: 60}
    return "" if got == want and views else f"{got}"


def a_step_is_told_from_those_before() -> str:
    """What the graph of the step under way has saved, and what its variables name, is its own. A sum over all steps is
    reached from a variable, too, but its graph is older."""
    other, net = nn.Linear(1, 1), Net()
    torch.optim.SGD(other.parameters(), lr=0.1)  # the net is not recorded
    total: Any = 0.0
    for _ in range(20):
        total = total + net(torch.ones(5, WIDE)).square().mean()
    begun = sequence()
    x = torch.ones(50, WIDE)
    total = total + net(x).square().mean()
    batch = UserDict({"x": torch.ones(7, WIDE)})
    got = of_host(begun)
    # A graph has saved the input of the net and its result, which is that of tanh.
    want = {WEIGHTS: 8, BUFFERS: 4, KEPT: 200, ACTIVATIONS: 107}
    return "" if got == want and batch else f"{got}"


def results_of_an_evaluation_are_kept() -> str:
    net = Net().eval()
    seen = []
    for _ in range(10):
        seen.append(net(torch.ones(5, WIDE)))
    own = net(torch.ones(50, WIDE))
    got = of_host()
    # Earlier versions of PyTorch show what is saved only to those who may run the script's hooks.
    graphs = {KEPT: 100, ACTIVATIONS: 100} if SHOWS else {KEPT: 150, ACTIVATIONS: 50}
    return "" if got == {WEIGHTS: 8, BUFFERS: 4, **graphs} and own is not None else f"{got}"


def a_failed_call_shows_what_it_had_made() -> str:
    class Fails(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x + 1
            z = (y.tanh(), y * 2)
            raise RuntimeError(str(z[0].dim()))

    failed: Any = None
    try:
        Fails()(torch.ones(10, WIDE))
    except RuntimeError as e:
        failed = e
    without = of_host().get(ACTIVATIONS, 0)
    return "" if (of_host(0, failed), without) == ({ACTIVATIONS: 40}, 0) else f"{of_host(0, failed)}, {without}"


def nothing_is_held_by_an_account() -> str:
    """All tensors die with their last variable, without the collector, also those that an account has seen."""
    import gc

    net = Net()
    gc.disable()
    out = net(torch.ones(5, WIDE).requires_grad_())
    inventory.memories(0)
    seen = weakref.ref(out), weakref.ref(net)
    del out, net
    left = [r() is not None for r in seen]
    return "" if not any(left) else f"{left}"


def nothing_of_the_scripts_is_run() -> str:
    calls: list[str] = []

    class Lazy(dict):
        def values(self) -> Any:
            calls.append("values")
            return super().values()

        def __iter__(self) -> Any:
            calls.append("iter")
            return super().__iter__()

    def unpack(t: Tensor) -> Tensor:
        calls.append("unpack")
        return t

    mine = torch.ones(5, WIDE).as_subclass(Watched)
    lazy = Lazy(x=torch.ones(3, WIDE))
    net = Net()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), unpack):
        out = net(torch.ones(2, WIDE))
    Watched.calls = 0
    got = of_host()
    said = f"{calls}, {Watched.calls}, {got}"
    return "" if not calls and Watched.calls == 0 and mine is not None and lazy and out is not None else said


class Heard:
    """Stands for a connection to headroom."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.asked_to_look = self.asked_for_memory = False
        self.limit = self.asked = 0
        self.made = (0, 0.0)

    def __getattr__(self, kind: str) -> Any:
        return lambda *_, **fields: self.sent.append((kind, fields))

    def accounts(self) -> list[tuple[str, int]]:
        return [(f["why"], f["step"]) for kind, f in self.sent if kind == "memory"]


def listening() -> tuple[Any, Heard]:
    report, wire = _torch._recorder.report, Heard()  # type: ignore[union-attr]
    report.wire = lambda: wire
    report._greeted = wire
    return report, wire


def a_failure_has_an_account() -> str:
    """Of the failures of a step, the first one; the step is then survived as it would be without."""
    _, wire = listening()
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        with Whole("aten.addmm.default", 12) if step == 2 else Whole("aten.addmm.default", 99):
            net(torch.randn(12, 6)).square().mean().backward()
        opt.step()
        opt.zero_grad()
    kinds = [kind for kind, _ in wire.sent if kind in ("oom", "memory", "survived")]
    return "" if wire.accounts() == [("failed", 3)] and kinds == ["oom", "memory", "survived"] else f"{wire.sent}"


def an_account_is_taken_on_request() -> str:
    """At the end of a step, and once."""
    _, wire = listening()
    net = nn.Linear(6, 5)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        net(torch.randn(12, 6)).square().mean().backward()
        wire.asked_for_memory = wire.asked_for_memory or step == 1
        opt.step()
    return "" if wire.accounts() == [("asked", 2)] and not wire.asked_for_memory else f"{wire.sent}"


def growth_has_two_accounts() -> str:
    """One where memory is seen to grow, and one where it is known what holds it."""
    report, wire = listening()
    net = nn.Linear(6, 5)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    kept: list[Tensor] = []
    opt.step()
    report.account._trigger.step = lambda steps: True
    for _ in range(9):
        kept.append(torch.ones(50, WIDE) + 1)
        opt.step()
    report.account.says(report.account.failed(9))
    held = [kind for kind, _ in wire.sent if kind in ("memory", "holds")]
    return "" if held == ["memory", "memory", "holds"] else f"{held}, {wire.accounts()}"


def a_step_has_one_account_of_failures() -> str:
    report, wire = listening()
    reports.RARELY = 0
    for _ in range(3):
        report.memory(reports.FAILED, RuntimeError("out of memory"))
        report.memory(reports.FAILED, RuntimeError("out of memory"))
        report._steps += 1
    return "" if wire.accounts() == [("failed", 1), ("failed", 2), ("failed", 3)] else f"{wire.accounts()}"


def accounts_of_failures_take_little_time() -> str:
    """Where each step fails, at most one part in RARELY of the time."""
    report, _ = listening()
    now = [0.0]
    reports.time = SimpleNamespace(monotonic=lambda: now[0])  # type: ignore[assignment]

    def memories(*_: Any) -> list[Any]:
        now[0] += 0.3
        return []

    inventory.memories = memories  # type: ignore[assignment]
    taken = 0
    for _ in range(1000):
        before = now[0]
        report.memory(reports.FAILED, RuntimeError("out of memory"))
        taken += now[0] > before
        now[0] += 0.1
        report._steps += 1
    share = 0.3 * taken / now[0]
    return "" if 0.015 < share < 0.025 else f"{share:.4f} of the time, {taken} accounts"


def a_snapshot_is_written_at_the_first_failure() -> str:
    """PyTorch's own, into a new file, and only if it was asked for; of the CPU there is none, which is said once."""
    report, wire = listening()
    reports.RARELY = 0
    folder = tempfile.mkdtemp()
    path, said = os.path.join(folder, "snapshot.pickle"), []

    def fails() -> list[str]:
        report._steps += 1
        report.memory(reports.FAILED, RuntimeError("out of memory"))
        said.append([name for kind, name in wire.sent if kind == "note"])
        return os.listdir(folder)

    wire.note = lambda text, level: wire.sent.append(("note", f"{level}: {text}"))  # type: ignore[attr-defined, arg-type]
    if fails() or said[-1]:
        return f"nothing was asked for: {said}"
    os.environ["HEADROOM_SNAPSHOT"] = path
    fails()
    if fails() or len(said[-1]) != 1 or "PyTorch makes none of the CPU's memory" not in said[-1][0]:
        return f"{said}"
    report._saved = False
    torch.cuda.is_initialized = lambda: True
    torch.cuda.memory._dump_snapshot = lambda name: Path(name).write_text("1")  # type: ignore[assignment]
    inventory.memories = lambda *_: []  # type: ignore[assignment]
    fails()
    torch.cuda.memory._dump_snapshot = lambda name: 1 / 0  # type: ignore[assignment]
    fails()
    report._saved = False  # as in another process
    fails()
    good = Path(path).read_text() == "1" and len(said[-1]) == 2 and said[-1][1].endswith(path)
    os.unlink(path)
    report._saved = False
    fails()
    failed = said[-1][-1] == "warning: no snapshot of the memory was written: ZeroDivisionError: division by zero"
    return "" if good and failed and not os.listdir(folder) else f"{said}, {os.listdir(folder)}"


def an_error_of_ours_is_not_the_scripts() -> str:
    report, wire = listening()
    inventory.memories = lambda *_: 1 / 0  # type: ignore[assignment]
    for why in (reports.ASKED, reports.FAILED):
        report.memory(why)
    return "" if not wire.accounts() else f"{wire.sent}"


CHECKS = (
    blocks_count_once,
    shares_add_up,
    fragments_are_found,
    roles_are_told_apart,
    a_step_is_told_from_those_before,
    results_of_an_evaluation_are_kept,
    a_failed_call_shows_what_it_had_made,
    nothing_is_held_by_an_account,
    nothing_of_the_scripts_is_run,
    a_failure_has_an_account,
    an_account_is_taken_on_request,
    growth_has_two_accounts,
    a_step_has_one_account_of_failures,
    accounts_of_failures_take_little_time,
    a_snapshot_is_written_at_the_first_failure,
    an_error_of_ours_is_not_the_scripts,
)

if __name__ == "__main__":
    sys.exit(status(CHECKS))
