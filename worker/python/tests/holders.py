"""Checks that what holds growing memory is found in small trainings, and that nothing is said of trainings that only
look as if they kept something.

python holders.py [NAME…]

A script is a text. They are in holders_scripts.py. With HEADROOM_TEST_DEVICE=cuda, what they make is on the GPU.
"""

from __future__ import annotations

import ast
import gc
import os
import re
import sys
import tempfile
import textwrap
import threading
import warnings
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import trial
from forked import Died, checked, forked
from holders_scripts import CLEAN, LEAKS
from inject import Whole
from watching import Watched

trial.attach()

from headroom_train import _torch  # noqa: E402
from headroom_train.account import account, trigger  # noqa: E402
from headroom_train.failure import Refused  # noqa: E402
from headroom_train.hooks.changes import changed  # noqa: E402
from headroom_train.wire import report as reports  # noqa: E402

if TYPE_CHECKING:
    from headroom_train.account.kinds import Holder

trigger.SHARE = 0  # a figure in each step, however fast the machine is

# What a tensor on a GPU cannot be given to, and where the default device is another.
HOST = re.compile(r"\bnp\.|numpy\(|DataLoader|Thread\(")

START = """
import copy, collections, functools
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
def batch(rows=1024):
    return torch.randn(rows, 256)
def train(x):
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    opt.step()
    return loss
"""


def ran(name: str) -> tuple[str, int, int]:
    """Runs a script in a child. Returns what was found."""
    leak = LEAKS.get(name)
    text = START + textwrap.dedent(leak.text if leak is not None else CLEAN[name])
    if trial.DEVICE != "cpu":
        text = text.replace(
            "from torch import nn\n", f"from torch import nn; torch.set_default_device('{trial.DEVICE}')\n", 1
        )
    folder = Path(tempfile.mkdtemp())
    file = folder / "train.py"
    file.write_text(text)
    os.utime(file, (0, 0))  # older than this process
    os.environ["HEADROOM_DEBUG"] = str(folder / "debug")
    said = ""
    try:
        exec(compile(text, str(file), "exec"), {"__name__": "__main__", "__file__": str(file)})
    except Exception as error:
        said = trial.described(error)
    report = _torch._recorder.report  # type: ignore[union-attr]
    if (folder / "debug").exists():
        said += (folder / "debug").read_text()
    left = torch._C._len_torch_function_stack() - (trial.DEVICE != "cpu")  # the default device is one
    if left and report.account._search is None and report.evaluation._search is None:
        said += f"{left} modes are left behind"
    found = report.account.told or report.evaluation.told
    lines = text.splitlines()
    if leak is None:
        return said if found is None else f"{said} accused: {found}", report.steps, 0
    if found is None:
        return f"{said} nothing was said; candidate {report.account._candidate}", report.steps, 0
    wants = [f"{file}:{1 + i}" for i, line in enumerate(lines) if "#kept" in line]
    makes = [f"{file}:{1 + i}" for i, line in enumerate(lines) if "#made" in line]
    for what, got, want in (
        ("kind", found.kind, [leak.kind]),
        ("name", found.name, [leak.name]),
        ("kept", found.kept, wants),
        ("made", found.made, makes or [found.made]),
    ):
        if got not in want:
            said += f"\n  {what}: {got}, not {want}"
    if leak.cure not in found.cure:
        said += f"\n  cure: {found.cure}, not {leak.cure}"
    return (f"{said}\n  {found}" if said else ""), report.steps, 0


def of_tensors(work: Callable[[int], None], steps: int = 40, slope: int = 0) -> list[Holder]:
    """What a search finds in some steps of ``work``, in which memory grows by ``slope`` bytes each."""
    from headroom_train.account.search import Search  # not imported as long as nothing grows

    search, found = Search(0, lambda file: "/torch/" in file), None
    search.slope = slope
    for step in range(1, steps):
        work(step)
        found = search.step(step)
        if found is not None:
            break
    search.ends()
    return found or []


def frames_that_run_are_not_kept() -> str:
    """What a function has in its variables dies with it, although it has looked at all frames that run: since Python
    3.12 the frame of a function that walks them had itself in its variables."""
    from headroom_train.account.look import frames

    gc.disable()

    def looks() -> tuple[weakref.ref, bool]:
        local = torch.ones(3)
        own = [f.f_code.co_name for f in frames()]
        return weakref.ref(local), own[0] == "looks"

    kept, first = looks()
    return "" if kept() is None and first else f"{kept()} is kept, or not the caller's frame is first: {first}"


def nothing_is_held_after_a_search() -> str:
    """All tensors die with their last variable, without the collector, also those of functions that go on."""
    gc.disable()
    kept: list[Tensor] = []
    local = torch.ones(100)
    first = weakref.ref(local)

    def work(step: int) -> None:
        kept.append(torch.ones(1000) + step)

    found = of_tensors(work)
    some = [weakref.ref(t) for t in kept]
    kept.clear()
    del local
    left = sum(r() is not None for r in (*some, first))
    return "" if left == 0 and found and not gc.isenabled() else f"{left} are left, found {found}"


def the_host_grows_by_more_than_is_kept() -> str:
    """Free memory between what is kept makes a process grow by several times as much: what is kept is named all the
    same, unless it is hardly a part of the growth."""
    said = []
    for times, words in ((8, 1 << 15), (50, 1 << 15), (8, 100)):
        kept: list[Tensor] = []

        def work(step: int, kept: list[Tensor] = kept, words: int = words) -> None:
            kept.append(torch.ones(words) + step)

        said.append([h.kind for h in of_tensors(work, slope=times * 4 * words)])
    return "" if said == [["collected"], [], []] else f"{said}"


def what_fills_is_no_growth() -> str:
    """Of a dict that gets tensors in the place of others, as the newest of each class does, the more of them the fewer
    new keys, nothing is said; of one that gets them under new keys only, or hardly ever under an old one, it is."""
    from headroom_train.account.holding import content
    from headroom_train.account.search import _Between, _now

    wrong = []
    for old, every, refills in (
        (0, False, False),
        (1, False, False),
        (2, False, True),
        (6, False, True),
        (8, True, True),
        (8, False, True),
    ):
        newest = {key: torch.ones(1000) for key in range(8)}
        first = _now(0)
        newest.update({key: torch.ones(1000) for key in (*range(old), *range(8, 16))})
        second = _now(12)
        if every:  # also those that have come since
            newest.update({key: torch.ones(1000) for key in newest})
        between = _Between(first, second, _now(24), {}, 0, False)
        if between.refills(newest, content(newest, first.storages, False, set())) != refills:
            wrong.append(f"{old} of 8 replaced, of the others {8 * every}")
    return ", ".join(wrong)


def all_parts_are_counted() -> str:
    """Of a dict with a list of each epoch everything counts, not only what is in the newest lists."""
    kept: dict[int, list[Tensor]] = {}

    def work(step: int) -> None:
        kept.setdefault(step // 9, []).append(torch.ones(1000) + step)

    found = of_tensors(work)
    number = sum(map(len, kept.values()))
    return "" if [h.tensors for h in found] == [number] else f"{number} tensors, {found}"


def what_a_graph_saves_and_a_list_has_counts_once() -> str:
    """The result of exp is what its graph has saved, and so it is for all that is computed from it."""
    kept: list[Tensor] = []
    weight = torch.ones(100_000, requires_grad=True)

    def work(step: int) -> None:
        base = (weight * step).exp()
        kept.extend((base, base.sin(), base.cos()))

    found = of_tensors(work)
    share = found[0].bytes / sum(t.numel() * t.element_size() for t in kept) if found else 0
    return "" if 0.9 < share < 1.1 else f"{share} of what there is"


def what_several_graphs_share_counts_once() -> str:
    kept: list[Tensor] = []
    weight = torch.ones(100_000, requires_grad=True)

    def work(step: int) -> None:
        base = (weight * step).exp()
        kept.extend((base.sin(), base.cos()))

    found = of_tensors(work)
    share = found[0].bytes / sum(1.5 * t.numel() * t.element_size() for t in kept) if found else 0
    return "" if 0.9 < share < 1.1 else f"{share} of what there is"


def an_evaluation_ends_with_the_next_step() -> str:
    """Its account forgets what it has seen, and ends a search."""
    report = _torch._recorder.report  # type: ignore[union-attr]
    net = nn.Linear(256, 256)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(8, 256)).sum().backward()
    opt.step()
    net.eval()
    kept, modes = [], torch._C._len_torch_function_stack()
    while report.evaluation._search is None and len(kept) < 200:
        kept.append(net(torch.randn(4096, 256)))
    begun = report.evaluation._search is not None
    kept.clear()
    opt.step()
    trigger = report.evaluation._trigger
    left = trigger is None or trigger.host.held or torch._C._len_torch_function_stack() != modes
    left = left or report.evaluation._search is not None
    return "" if begun and not left else f"a search begun: {begun}, left: {left}"


def only_what_evaluates_is_called_an_evaluation() -> str:
    """Calls in evaluation mode whose graphs are kept may be a rollout: backward comes later."""
    from headroom_train.account.search import QUICK, Search

    said = []
    for name in ("evaluate", "play"):
        file = Path(tempfile.mkdtemp()) / "train.py"
        file.write_text(
            f"def {name}(kept, weight, looks):\n"
            "    for step in range(1, 40):\n"
            "        kept.append((weight * step).sin())\n"
            "        found = looks(step)\n"
            "        if found is not None:\n"
            "            return found\n"
        )
        os.utime(file, (0, 0))
        own: dict[str, Any] = {"__name__": "__main__", "__file__": str(file)}
        exec(compile(file.read_text(), str(file), "exec"), own)
        search = Search(0, lambda other, file=file: other != str(file), QUICK, True)
        said.append([h.kind for h in own[name]([], torch.ones(1000, requires_grad=True), search.step)])
        search.ends()
    return "" if said == [["evaluation"], []] else f"{said}"


def an_evaluation_is_judged_early() -> str:
    """An evaluation begins with the memory that it goes on with: six figures from its first call on show that it rises,
    however much is held."""
    mib = 1 << 20
    held = iter([(1000 + 20 * i) * mib for i in range(40)])
    trigger.resident = lambda *_: next(held)  # type: ignore[assignment]
    early = trigger.Trigger(evaluating=True)
    at = next((step for step in range(1, 40) if early.step(step)), 0)
    return "" if at == 7 else f"after {at} calls"


def an_end_that_is_near_is_judged_early() -> str:
    """Memory that grows by about as much in each step, and ends soon, is looked at after six figures; the looks are so
    near each other that they end before memory does."""
    from headroom_train.account import ends

    mib, found = 1 << 20, []
    for left, uneven in (20, 0), (36, 0), (1000, 0), (20, 6):
        held = iter([(1000 + 9 * i + i % 2 * uneven) * mib for i in range(60)])
        trigger.resident = lambda *_, held=held: next(held)  # type: ignore[assignment, misc]
        with changed(ends, "left", lambda left=left: 9 * left * mib):
            one = trigger.Trigger()
            at = next(step for step in range(1, 60) if one.step(step))
            search = account.Account(lambda holder: None, lambda file: False)._searching(one, at)
            search.ends()
        found.append((at, search._apart))
    return "" if found == [(10, 5), (10, 9), (16, 12), (16, 4)] else f"{found}"


def what_is_spared_for_the_last_look() -> str:
    """A search keeps some memory for itself, at most an eighth of what is left, and lets go of it when memory has run
    out."""
    from headroom_train.account import search

    found = []
    for free in (80 << 20, 1 << 40, None):
        with changed(search, "left", lambda free=free: free):
            one = search.Search(0, lambda file: False)
        found.append(len(one._spare or b"") >> 20)
        one.step(1, at_once=True)
        one.ends()
        if one._spare is not None:
            return "it is kept"
    return "" if found == [10, 16, 0] else f"{found}"


def every_failure_asks_what_grows() -> str:
    """What holds memory is asked for also if the failure is left to the script, or is Python's own and ends it. What has
    been said is not said again."""
    from headroom_train.account.kinds import Holder

    found = []
    for error in (torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), ValueError()):
        report, asked = reports.Report(), list[int]()
        report.account.failed = asked.append  # type: ignore[method-assign, assignment]
        if isinstance(error, torch.OutOfMemoryError):
            report.refused(error, Refused("a reason"))
        else:
            sys.last_value = error
            report.ends()
            del sys.last_value
        found.append(len(asked))
    report, said = reports.Report(), list[Any]()
    report.account.failed = lambda steps: Holder("unseen", *[""] * 3, 0, 0, 0.0, 9, "")  # type: ignore[method-assign]
    report._holds = lambda holder, level: (setattr(report, "_grown", holder), said.append(holder))  # type: ignore
    for _ in range(2):
        report._grew()
    return "" if (found, len(said)) == ([1, 1, 0], 1) else f"{found}, {said}"


def a_failure_before_anything_is_seen() -> str:
    """Where memory has grown in each step until it ran out, that is said although it is not known what holds it; not
    where it has grown in a few steps only, or by little."""
    mib, found = 1 << 20, []
    for held in ([0, 9, 18, 27], [0, 9, 18], [0, 3, 6, 9], [0, 0, 0, 27], [0, 30, 31, 32]):
        one = account.Account(lambda holder: None, lambda file: False)
        for step, more in enumerate(held):
            one._trigger.host.add(step + 5, (400 + more) * mib)  # type: ignore[union-attr]
        holder = one.failed(9)
        found.append(None if holder is None else (holder.kind, holder.per_step // mib, holder.bytes // mib))
    want: list[Any] = [("unseen", 9, 27), None, None, None, None]
    if found != want:
        return f"{found}"
    one = account.Account(lambda holder: None, lambda file: False)  # growth has been seen, and a look fails
    for step in range(9):
        one._trigger.host.add(step, (step // 3 * 30) * mib)  # type: ignore[union-attr]
    one._search, one._thread = SimpleNamespace(step=lambda *_, **__: 1 / 0, ends=lambda: None), threading.get_ident()  # type: ignore[assignment]
    holder = one.failed(9)
    if holder is None or holder.kind != "unseen" or one._trigger is not None:
        return f"{holder}"
    one = account.Account(lambda holder: None, lambda file: False)  # a search that has just begun knows how fast
    for step in range(9):
        one._trigger.host.add(step, step * mib)  # type: ignore[union-attr]
    search: Any = SimpleNamespace(step=lambda *_, **__: [], ends=lambda: None)
    one._search, one._thread = search, threading.get_ident()
    one.failed(9)
    return "" if search.slope == mib else f"{search}"


def one_in_many_is_found() -> str:
    """A graph may hold many tensors for each one that the script keeps, all of one sort, at equal distances."""
    said = []
    for many in (1, 2, 9):
        kept: list[Tensor] = []
        weight = torch.ones(1000, requires_grad=True)

        def work(step: int, kept: list[Tensor] = kept, weight: Tensor = weight, many: int = many) -> None:
            for _ in range(2):
                h = weight
                for _ in range(many):
                    h = h.sin()
                kept.append(h.sin())

        said.append([(h.name, h.count) for h in of_tensors(work)])
    return "" if all(len(found) == 1 and found[0][0] == "kept" for found in said) else f"{said}"


def names_of_their_own_are_not_emptied() -> str:
    """What is kept as globals, or as attributes or buffers of a module, is not answered with emptying these."""
    net, names = nn.Linear(2, 2), {"__builtins__": None}
    said = [
        of_tensors(lambda step: setattr(net, f"out_{step}", torch.ones(1 << 14) + step)),
        of_tensors(lambda step: net.register_buffer(f"mean_{step}", torch.ones(1 << 14) + step)),
        of_tensors(lambda step: names.update({f"out_{step}": torch.ones(1 << 14) + step})),
    ]
    wrong = [found for found in said if not (found and found[0].cure.startswith("do not keep each under a name"))]
    return f"{wrong}" if wrong or said[2][0].name != "globals()" else ""


def what_takes_the_place_of_something_is_not_more() -> str:
    """A dict in which most entries are replaced grows by those that are added only."""
    newest = {i: torch.ones(1 << 14) for i in range(8)}
    gone: list[torch.UntypedStorage] = []  # whose memory is free, and which no other tensor is taken for

    def work(step: int) -> None:
        gone.append(newest[step % 8].untyped_storage())
        newest[step % 8] = torch.ones(1 << 14) + step
        gone[-1].resize_(0)
        if step % 4 == 0:
            newest[step + 8] = torch.ones(1 << 14) + step

    found = of_tensors(work)
    right = bool(found) and 0.2 < found[0].rate < 0.3 and 0.2 * (1 << 16) < found[0].per_step < 0.3 * (1 << 16)
    return "" if right else f"{found}"


def the_collector_is_left_alone() -> str:
    before = gc.isenabled(), gc.get_threshold(), gc.get_debug()
    kept: list[Tensor] = []
    found = of_tensors(lambda step: kept.append(torch.ones(1000) + step))
    after = gc.isenabled(), gc.get_threshold(), gc.get_debug()
    return "" if before == after and found else f"{before}, {after}"


def the_users_modes_are_left_alone() -> str:
    """Modes that the script enters and leaves, in any order with ours, stay its own."""

    class Mine(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Mine.calls += 1
            return func(*args, **(kwargs or {}))

    from headroom_train.account.search import Search

    with torch.device("meta"):
        with Mine():
            search = Search(0, lambda file: "/torch/" in file)
        calls = Mine.calls
        inside = torch.ones(3).device.type
        with Mine():
            made = torch.ones(3, device="cpu")
            search.ends()
            torch.ones(3)
    left = torch._C._len_torch_function_stack()
    outside = torch.ones(3).device.type
    if (inside, outside, left, calls, Mine.calls) != ("meta", "cpu", 0, 0, 2):
        return f"{inside}, {outside}, {left}, {calls}, {Mine.calls}"
    return "" if search.lines and made is not None else "nothing was noted"


def a_note_is_of_what_is_still_there() -> str:
    """What a backward pass makes has no note, and may lie where something had one that is no longer there."""
    from headroom_train.account.notes import Notes

    notes = Notes(lambda file: "/torch/" in file)
    notes.begin()
    kept, gone = torch.ones(1000) + 1, torch.ones(1000) + 2
    view = kept[2:]
    del kept, gone
    notes.end()
    return "" if len(notes.lines()) == 1 and view is not None else f"{notes.lines()}"


def warnings_name_the_users_line() -> str:
    from headroom_train.account.search import Search

    search = Search(0, lambda file: "/torch/" in file)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.tensor(torch.ones(1))
        torch.ones(1).requires_grad_().mul(2).grad  # noqa: B018
    search.ends()
    return (
        "" if said and all(w.filename == __file__ for w in said) else f"{[(w.filename, str(w.message)) for w in said]}"
    )


def hooks_of_the_script_are_not_called() -> str:
    """A search calls neither what unpacks saved tensors nor what a checkpoint would compute again."""
    calls = []
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    kept: list[Tensor] = []

    def unpack(t: Tensor) -> Tensor:
        calls.append("unpack")
        return t

    def computed(x: Tensor) -> Tensor:
        calls.append("forward")
        return net(x)

    def work(step: int) -> None:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), unpack):
            kept.append(net(torch.ones(4, 8)))
        kept.append(torch.utils.checkpoint.checkpoint(computed, torch.ones(4, 8), use_reentrant=False))

    of_tensors(work)
    return "" if calls.count("unpack") == 0 and calls.count("forward") == len(kept) // 2 else f"{calls}"


def an_error_of_ours_is_not_the_scripts() -> str:
    """After an error in a look, the process is left alone, and nothing of ours stays."""
    report = reports.Report()
    kept = []
    report.account._trigger.step = lambda steps: True  # type: ignore[union-attr, method-assign]
    report.step()
    begun = report.account._search is not None and torch._C._len_torch_function_stack() == 1
    report.account._search.step = lambda *_: 1 / 0  # type: ignore[union-attr, method-assign, assignment]
    for _ in range(3):
        report.step()
        kept.append(torch.ones(3))
    left = torch._C._len_torch_function_stack()
    off = report.account._trigger is None and report.account._search is None
    return "" if begun and off and left == 0 and report.account.failed(9) is None else f"{begun}, {off}, {left}"


def nothing_is_imported_before_memory_grows() -> str:
    net = nn.Linear(8, 8)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(100):
        net(torch.ones(4, 8)).sum().backward()
        opt.step()
    ours = [name for name in sys.modules if name.startswith("headroom_train.account.")]
    steps = _torch._recorder.report.steps  # type: ignore[union-attr]
    want = ["headroom_train.account.account", "headroom_train.account.trigger"]
    return "" if sorted(ours) == want and steps == 100 else f"{ours}, {steps}"


def a_figure_is_read_rarely() -> str:
    """Reading takes at most one part in SHARE of the time, however short the steps are."""
    trigger.SHARE, now, reads = 200, [0.0], []
    trigger.time = SimpleNamespace(monotonic=lambda: now[0], thread_time=lambda: now[0])  # type: ignore[assignment]

    def read() -> int:
        now[0] += 1e-5
        reads.append(now[0])
        return 1 << 30

    trigger.resident = read
    one = trigger.Trigger()
    for step in range(10000):
        now[0] += 1e-4
        one.step(step)
    share = len(reads) * 1e-5 / now[0]
    return "" if 0.003 < share < 0.0051 else f"{share:.4f}"


def what_rises_is_told_from_what_does_not() -> str:
    mib = 1 << 20
    n = range(60)
    for name, held, want in (
        ("a ramp", [i * mib for i in n], True),
        ("a ramp with evaluations", [i * mib + (i % 10 == 9) * 900 * mib for i in n], True),
        ("a ramp of stairs", [i // 8 * 8 * mib for i in n], True),
        ("a ramp with noise", [i * mib + i * 7919 % 5 * mib for i in n], True),
        ("nothing", [5 * mib for _ in n], False),
        ("noise", [100 * mib + i * 7919 % 61 * mib for i in n], False),
        ("what fills and stops", [min(i, 25) * mib for i in n], False),
        ("a list that is emptied", [i % 20 * mib for i in n], False),
        ("too little", [i * mib // 8 for i in n], False),
        ("too little of much", [i * mib + (1 << 40) for i in n], False),
        ("what falls", [(60 - i) * mib for i in n], False),
        ("too few", [(i * 9 + 400) * mib for i in range(11)], False),
        ("few, but steep", [(i * 50 + 400) * mib for i in range(6)], True),
        ("fewer", [(i * 50 + 400) * mib for i in range(5)], False),
    ):
        if trigger.rises(held) != want:
            return name
    return ""


def a_failure_is_explained_at_once() -> str:
    """If memory runs out in the middle of a search, what is kept is found without a further step."""
    net = nn.Linear(8, 8)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    report = _torch._recorder.report  # type: ignore[union-attr]
    kept: list[Tensor] = []
    opt.step()  # the first one in this process, in which it begins anew
    report.account._trigger.step = lambda steps: True
    for _ in range(9):
        kept.append(torch.ones(1000) + 1)
        opt.step()
    found = report.account.failed(9)
    left = torch._C._len_torch_function_stack()
    return (
        "" if found is not None and found.name == "kept" and left == 0 and report.account.told is None else f"{found}"
    )


def a_failure_is_told_what_is_held_then() -> str:
    """Memory that runs out long after its holder was found is told with the figures of that moment, and not measured
    again in each of many failures."""
    from headroom_train.account import measure

    opt = torch.optim.SGD(nn.Linear(8, 8).parameters(), lr=0.1)
    report = _torch._recorder.report  # type: ignore[union-attr]
    calls, real = [], measure.measured
    measure.measured = lambda *a: calls.append(a) or real(*a)  # type: ignore[func-returns-value]
    piled: list[Tensor] = []
    opt.step()
    report.account._trigger.step = lambda steps: True
    for _ in range(100):
        piled.append(torch.ones(1000) + 1)
        opt.step()
    first, then = report.account._candidate, report.account.failed(report.steps)
    again = report.account.failed(report.steps + 1)
    right = then.tensors == 100 > first.tensors and then.bytes == 100 * 4000 and then.step == report.steps == 101
    return "" if right and first.step < 60 and again is then and len(calls) == 1 else f"{first}, {then}, {len(calls)}"


def the_end_is_foreseen() -> str:
    """The step at which memory ends under a limit of the process is told long before, and is about the one at which
    it does."""
    import resource

    from headroom_train.account import ends

    net = nn.Linear(8, 8)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    report = _torch._recorder.report  # type: ignore[union-attr]
    piled: list[Tensor] = []
    net(torch.ones(4, 8)).sum().backward()
    opt.step()
    begun, first = ends.left(), report.steps
    held = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (held + (600 << 20), resource.RLIM_INFINITY))
    limited = ends.left()
    told = None
    try:
        while report.steps < first + 2000:
            piled.append(torch.ones(1 << 19))  # 2 MiB
            opt.step()
            told = (
                told
                or report.account._candidate
                and report.account._forecast(
                    report.account._candidate, report.account._trigger or trigger.Trigger(), report.steps
                )
            )
    except (RuntimeError, MemoryError):
        pass
    failed = report.steps
    piled.clear()
    if told is None or begun is None or limited is None:
        return f"{told}, {begun}, {limited}"
    right = (
        limited <= 600 << 20 < begun and told.step < 0.5 * failed and 0.8 < (told.ends - first) / (failed - first) < 1.2
    )
    return "" if right and told.seconds > 0 else f"{limited} of {begun}, {told}: failed after {failed}"


def what_is_left_divided_by_what_a_step_takes() -> str:
    from headroom_train.account import ends

    for given, want in (
        ((1000, 10, 0.5), (100, 50.0)),
        ((5, 10, 0.5), (1, 0.5)),
        ((None, 10, 0.5), (0, 0.0)),
        ((1000, 0, 0.5), (0, 0.0)),
    ):
        if ends.forecast(*given) != want:
            return f"{given}: {ends.forecast(*given)}"
    return "" if ends.left(lambda: 1) == 1 else "more is left than the machine has"


def a_forked_child_begins_anew() -> str:
    """A child of a process in which a search is under way has nothing of that search."""
    report = reports.Report()
    report.account._trigger.step = lambda steps: True  # type: ignore[union-attr, method-assign]
    report.step()
    pid = os.fork()
    if pid == 0:
        report.step()
        left = torch._C._len_torch_function_stack() + (report.account._search is not None)
        os._exit(left)
    _, status = os.waitpid(pid, 0)
    left = torch._C._len_torch_function_stack()
    return "" if status == 0 and left == 1 and report.account._search is not None else f"{status}, {left}"


def a_graph_that_backward_has_freed_holds_nothing() -> str:
    from headroom_train.account import graphs

    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    loss = net(torch.ones(1000, 8)).square().mean()
    before = graphs.saved(loss.grad_fn, (), False)
    loss.backward()
    after = graphs.saved(loss.grad_fn, (), False)
    held = before.alive and before.tensors == 2 and before.bytes > 2 * 1000 * 8 * 4
    return "" if held and not after.alive and after.tensors == 0 else f"{before}, {after}"


def classes_of_the_script_are_not_asked() -> str:
    kept: list[Tensor] = []
    mine = torch.ones(1000).as_subclass(Watched)
    before = Watched.calls
    found = of_tensors(lambda step: kept.append(torch.ones(1000) + step))
    others: list[Tensor] = []
    again = of_tensors(lambda step: others.append(torch.ones(1000).as_subclass(Watched)))
    calls = Watched.calls - before
    return "" if found and again and calls == 0 and type(mine) is Watched else f"{calls} calls, {found}, {again}"


def a_failure_during_a_search_is_survived() -> str:
    """A step that fails while lines are noted and looks are due is survived as any other."""
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    report = _torch._recorder.report  # type: ignore[union-attr]
    kept, active = [], False
    for step in range(9):
        active = active or step == 6 and report.account._search is not None
        opt.zero_grad()
        x = torch.randn(12, 6)
        with Whole("aten.addmm.default", 12) if step == 6 else nullcontext():
            out = net(x)
            loss = (out * out.sum(1, keepdim=True)).mean()
            loss.backward()
        opt.step()
        kept.append(x)
        if step == 2:
            report.account._trigger.step = lambda steps: True
    how = [t.get("how", t.get("why")) for t in report.told]
    return "" if active and len(how) == 1 and "pieces" in how[0] else f"{active}, {how}"


def a_graph_that_two_results_share_counts_once() -> str:
    """What a graph has saved counts once, however many of the tensors that are kept have that graph, or are saved."""
    w, kept = torch.ones(250_000, requires_grad=True), []

    def work(step: int) -> None:
        out = (w * 2).exp()  # which saves its result
        kept.append((out, out.square().sum()))

    found = of_tensors(work)
    return "" if found and 1_000_000 <= found[0].per_step < 1_100_000 else f"{found}"


def objects_of_the_script_are_not_asked() -> str:
    """Objects that run code when they are compared, or asked for their class or an attribute, are not."""
    calls = []

    class Lazy:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            calls.append("class")
            return Lazy

        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            raise AttributeError(name)

        def __eq__(self, other: object) -> bool:
            calls.append("eq")
            return False

        def __len__(self) -> int:
            calls.append("len")
            return 3

        def __repr__(self) -> str:
            calls.append("repr")
            return ""

        __hash__ = object.__hash__

    def remember(t: Tensor, lazy: Any = Lazy(), into: list = []) -> None:  # noqa: B006, B008
        one = Lazy()
        vars(one)["t"] = t
        into.append({Lazy(): one})

    found = of_tensors(lambda step: remember(torch.ones(1000) + step))
    return "" if found and found[0].name == "into" and not calls else f"{calls}, {found}"


def an_edited_script_is_not_read() -> str:
    from headroom_train.account.source import source

    file = Path(tempfile.mkdtemp()) / "train.py"
    file.write_text("seen.append(x)")
    edited = source(str(file))
    source.cache_clear()
    os.utime(file, (0, 0))
    return "" if edited is None and source(str(file)) is not None else f"{edited}"


def what_a_data_set_keeps() -> str:
    """A data set keeps what it adds when a sample is loaded, by whichever method; not what its rows are read into
    before."""
    from headroom_train.account.source import Source

    text = """
        names = []
        def noted(name):
            names.append(name)
        class Read:
            def __init__(self):
                self.read()
            def read(self):
                self.rows.append(1)
                noted(2)
            def __getitem__(self, i):
                return self.rows[i]
        class Keeps:
            def __getitem__(self, i):
                return self.load(i)
            def load(self, i):
                self.seen.append(i)
        class Notes:
            def __iter__(self):
                noted(3)
    """
    file = Source("data.py", ast.parse(textwrap.dedent(text)))
    found = {
        name: [kept and kept[0] for kept in (file.added(name), file.added_outside(name))]
        for name in ("Read", "Keeps", "Notes")
    }
    want = {"Read": [None, None], "Keeps": ["seen", None], "Notes": [None, "names"]}
    return "" if found == want else f"{found}"


CHECKS = (
    what_a_data_set_keeps,
    a_graph_that_two_results_share_counts_once,
    objects_of_the_script_are_not_asked,
    an_edited_script_is_not_read,
    classes_of_the_script_are_not_asked,
    a_failure_during_a_search_is_survived,
    a_forked_child_begins_anew,
    a_graph_that_backward_has_freed_holds_nothing,
    frames_that_run_are_not_kept,
    nothing_is_held_after_a_search,
    the_host_grows_by_more_than_is_kept,
    what_fills_is_no_growth,
    all_parts_are_counted,
    what_a_graph_saves_and_a_list_has_counts_once,
    what_several_graphs_share_counts_once,
    an_evaluation_ends_with_the_next_step,
    only_what_evaluates_is_called_an_evaluation,
    an_evaluation_is_judged_early,
    an_end_that_is_near_is_judged_early,
    a_failure_before_anything_is_seen,
    what_is_spared_for_the_last_look,
    every_failure_asks_what_grows,
    one_in_many_is_found,
    names_of_their_own_are_not_emptied,
    what_takes_the_place_of_something_is_not_more,
    the_collector_is_left_alone,
    the_users_modes_are_left_alone,
    a_note_is_of_what_is_still_there,
    warnings_name_the_users_line,
    hooks_of_the_script_are_not_called,
    an_error_of_ours_is_not_the_scripts,
    nothing_is_imported_before_memory_grows,
    a_figure_is_read_rarely,
    what_rises_is_told_from_what_does_not,
    a_failure_is_explained_at_once,
    a_failure_is_told_what_is_held_then,
    the_end_is_foreseen,
    what_is_left_divided_by_what_a_step_takes,
)


def main() -> int:
    names = sys.argv[1:] or [*LEAKS, *CLEAN]
    if trial.DEVICE != "cpu":
        names = [n for n in names if not HOST.search(LEAKS[n].text if n in LEAKS else CLEAN[n])]
    torch.set_num_threads(1)
    failed = 0 if sys.argv[1:] or trial.DEVICE != "cpu" else checked(CHECKS, 2)
    for name, got in forked(ran, names, 2 if trial.DEVICE == "cpu" else 8, seconds=900):
        said, steps, _ = (got.why, 0, 0) if isinstance(got, Died) else got
        failed += bool(said)
        print(f"{'FAILED' if said else 'ok':6} {name} ({steps} steps){': ' if said else ''}{said}", flush=True)
    print(f"{len(LEAKS)} leaks, {len(CLEAN)} clean loops, {len(names)} of them run, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
