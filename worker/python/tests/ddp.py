"""Fails every operation of a step that allocates memory, in turn, on one of two ranks under DistributedDataParallel, and
some on both. Either the step is survived, and both ranks end with the weights of an undisturbed run; or the script gets
the exception, and the other rank is told by its own collectives. No rank may wait forever.

    python ddp.py [--loops a,b] [--every N] [--most N] [--seconds N]

Two ranks try one fault after the other. After a failure that was left to the script, two new ones go on.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import pickle
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import trial
from ddp_loops import LOOPS, Loop
from forked import silenced
from inject import Allocating, Fault

STEPS = 5  # of a run; a fault is in the first step, or in one for which all buckets are as they will stay
SECONDS = 60  # a fault that takes longer counts as waiting forever
# How long a rank may take to notice that the other has failed. With NCCL it does not: a launcher ends it.
GRACE = 5 if trial.DEVICE == "cuda" else SECONDS
FAULTY = (0, 3)
FEW = 12
LEAST, PART = 25, 0.85  # configurations in which failures are to be survived, and the part of all of them that is


@dataclass(frozen=True)
class Task:
    step: int = -1
    ranks: tuple[int, ...] = ()
    at: tuple[int, ...] = ()  # the operation that fails, for each of those ranks
    mode: str = "again"


@dataclass
class Told:
    """What a rank tells of a task."""

    raised: bool = False  # something has failed
    error: str = ""  # what the script got
    weights: list[torch.Tensor] = field(default_factory=list)
    printed: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)  # of operations that allocate, by step
    names: list[str] = field(default_factory=list)
    said: str = ""


def trained(kind: type[Loop], rank: int, task: Task) -> Told:
    """One run of a loop on one rank, with its faults."""
    told, loop = Told(), kind(rank)
    for step in range(STEPS):
        mine = step == task.step and rank in task.ranks
        fault = Fault(task.mode, task.at[task.ranks.index(rank)], loop.rows) if mine else None
        with Allocating(fault) as injector:
            loop.fails = lambda on, i=injector: i.begin() if on else i.end()  # type: ignore[misc]
            try:
                told.printed.append(loop.step(step))
            finally:
                told.raised = told.raised or bool(injector.raised)
                told.counts.append(len(injector.names))
                told.names += injector.names[-1:] if mine else []
    told.weights = [t.detach().to("cpu", copy=True) for t in loop.tensors()]
    return told


def rank_of(kind: type[Loop], rank: int, place: str, tasks: list[Task], attached: bool, out: Any) -> None:
    """Runs in a child: all tasks, up to the first in which the script gets an exception."""
    said = silenced()
    torch.set_num_threads(1)
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), "2"
    if attached:
        trial.attach()
    gpu = trial.DEVICE == "cuda"
    if gpu:
        torch.cuda.set_device(rank)
        trial.deterministic()
    dist.init_process_group(
        "nccl" if gpu else "gloo",
        store=dist.FileStore(place, 2),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=SECONDS),
    )
    for n, task in enumerate(tasks):
        begun = len(said())
        try:
            told = trained(kind, rank, task)
        except BaseException as e:
            told = Told(raised="injected" in str(e), error=f"{type(e).__name__}: {e}"[:300])
            if not told.raised:
                told.error += "".join(traceback.format_exc()[-1500:])
        told.said = " | ".join(line[:250] for line in said()[begun:].splitlines() if line.startswith("headroom:"))
        out.write(pickle.dumps((rank, n, told)))
        out.flush()
        if told.error:
            return
        dist.barrier()


class Pair:
    """Two ranks that carry out tasks."""

    def __init__(self, kind: type[Loop], tasks: list[Task], attached: bool) -> None:
        self.kind, self.tasks = kind, tasks
        self.folder = tempfile.mkdtemp()
        self.pids, self.ends = [], []
        for rank in (0, 1):
            read, write = os.pipe()
            pid = os.fork()
            if not pid:
                os.close(read)
                try:
                    with os.fdopen(write, "wb") as out:
                        rank_of(kind, rank, str(Path(self.folder) / "meet"), tasks, attached, out)
                finally:
                    os._exit(0)
            os.close(write)
            self.pids.append(pid)
            self.ends.append(os.fdopen(read, "rb", buffering=0))

    def results(self) -> Iterator[tuple[int, dict[int, Told | str]]]:
        """For each task what each rank tells; text in place of that for a rank that has ended, or waits forever."""
        found: dict[int, dict[int, Any]] = {}
        data, watched = [b"", b""], selectors.DefaultSelector()
        for rank, end in enumerate(self.ends):
            watched.register(end, selectors.EVENT_READ, rank)
        until, next_ = time.monotonic() + SECONDS, 0
        while watched.get_map() and time.monotonic() < until:
            for key, _ in watched.select(timeout=1):
                rank = key.data
                part = os.read(key.fd, 1 << 20)
                if not part:
                    watched.unregister(key.fileobj)
                    continue
                data[rank] += part
                while data[rank]:
                    stream = io.BytesIO(data[rank])
                    try:
                        _, n, told = pickle.load(stream)
                    except (pickle.UnpicklingError, EOFError):
                        break
                    data[rank] = data[rank][stream.tell() :]
                    found.setdefault(n, {})[rank] = told
                    until = time.monotonic() + (GRACE if told.error else SECONDS)
            while len(found.get(next_, ())) == 2:
                yield next_, found.pop(next_)
                next_ += 1
        why: Any = "waits" if watched.get_map() else "ended"
        if trial.DEVICE == "cuda" and any(told.error for told in found.get(next_, {}).values()):
            why = Told(error="NCCL waits; a launcher ends this rank")
        if next_ < len(self.tasks) and (found.get(next_) or why == "waits" or next_ == 0):
            yield next_, {0: why, 1: why, **found.get(next_, {})}

    def end(self) -> None:
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            os.waitpid(pid, 0)
        for end in self.ends:
            end.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def carried_out(kind: type[Loop], tasks: list[Task], attached: bool = True) -> Iterator[tuple[Task, dict]]:
    """Carries out all tasks, with as many pairs of ranks as that takes."""
    while tasks:
        pair, last = Pair(kind, tasks, attached), -1
        try:
            for n, told in pair.results():
                last = n
                yield tasks[n], told
                if not all(isinstance(t, Told) and not t.error for t in told.values()):
                    break
        finally:
            pair.end()
        if last < 0:
            yield tasks[0], {0: "ended", 1: "ended"}
            last = 0
        tasks = tasks[last + 1 :]


@dataclass
class Found:
    """What a sweep found for a loop."""

    survived: int = 0
    left: int = 0  # to the script
    wrong: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    why: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)


def off(some: list[torch.Tensor], others: list[torch.Tensor]) -> float:
    """How far tensors are apart, relative to the largest element of each."""
    worst = 0.0
    for a, b in zip(some, others):
        size = max(float(a.double().abs().max()) if a.numel() else 0.0, 1e-3)
        worst = max(worst, float((a.double() - b.double()).abs().max()) / size if a.numel() else 0.0)
    return worst


def sweep(name: str, every: int, most: int) -> Found:
    kind, found = LOOPS[name], Found()
    [(_, bare)] = list(carried_out(kind, [Task()], attached=False))
    [(_, calm)] = list(carried_out(kind, [Task()]))
    for both in (bare, calm):
        if not all(isinstance(t, Told) and not t.error for t in both.values()):
            found.wrong.append(f"nothing failed, and {[t if isinstance(t, str) else t.error for t in both.values()]}")
            return found
    for rank in (0, 1):
        a, b = bare[rank], calm[rank]
        if a.printed != b.printed or any(not torch.equal(x, y) for x, y in zip(a.weights, b.weights)):
            found.wrong.append(f"rank {rank}, nothing failed: other bits than without headroom")
    tasks = []
    for step in FAULTY:
        for rank in (0, 1):
            count = calm[rank].counts[step]
            first = (5 + 7 * step + 11 * rank) % max(1, min(every, count))
            at = range(first, count, every)
            tasks += [
                Task(step, (rank,), (k,), "once" if kind.whole and n % 2 else "again")
                for n, k in enumerate(at, len(tasks))
            ]
        least = min(calm[0].counts[step], calm[1].counts[step])
        tasks += [
            Task(step, (0, 1), (k, (k * 7 + 3) % least), "again" if k % 2 else "once")
            for k in range(every // 2, least, 4 * every)
        ]
    if kind.left:
        most = -(-most // 3)  # each takes two new ranks
    if most:
        tasks = tasks[:: max(1, -(-len(tasks) // most))]
    for task, told in carried_out(kind, tasks):
        judge(found, kind, task, told, bare)
    return found


def judge(found: Found, kind: type[Loop], task: Task, told: dict, bare: dict) -> None:
    text = f"step {task.step}, ranks {task.ranks}, operations {task.at}, {task.mode}"
    faulty = [told[r] for r in task.ranks]
    if any(t == "waits" for t in told.values()):
        found.hung.append(f"{text}: {told}")
    elif any(isinstance(t, str) for t in told.values()):
        found.wrong.append(f"{text}: {told}")
    elif any(t.error for t in told.values()):
        if not any("injected" in t.error for t in faulty):
            found.wrong.append(f"{text}: {[t.error for t in told.values()]}")
            return
        found.left += 1
        said = next(t for t in faulty if "injected" in t.error)
        found.why[said.said.rpartition("in pieces: ")[2][:150] or said.error[:150]] += 1
        found.missed.append(f"{text}: {said.error[:120]} | {said.said[:300]}")
    elif any(t.raised for t in faulty):
        tolerance = max(kind.tolerance, 1e-6 if trial.DEVICE == "cpu" else 1e-4)
        apart = [off(told[r].weights, bare[r].weights) for r in (0, 1)]
        if max(apart) > tolerance or any(x != x for x in apart):
            found.wrong.append(f"{text}: weights are off by {apart} | {[t.said for t in faulty]}")
        elif kind.same and any(not torch.equal(a, b) for a, b in zip(told[0].weights, told[1].weights)):
            found.wrong.append(f"{text}: the ranks have other weights | {[t.said for t in faulty]}")
        elif any(
            abs(a - b) > max(10 * tolerance, 1e-5) * max(abs(a), 1e-2)
            for r in (0, 1)
            for a, b in zip(bare[r].printed, told[r].printed)
        ):
            found.wrong.append(f"{text}: printed {[t.printed for t in told.values()]}")
        else:
            found.survived += 1


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--loops", default="")
    p.add_argument("--every", type=int, default=1)
    p.add_argument("--most", type=int, default=0, help="failures of each loop; 0 for any number")
    p.add_argument("--seconds", type=float, default=float("inf"), help="after which no further loop begins")
    p.add_argument("--frameworks", action="store_true", help="also Accelerate, Lightning and Transformers")
    p.add_argument("--verbose", action="store_true")
    args = p.parse_args()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    began, failed, total, meant = time.monotonic(), 0, Counter(), Counter()
    if args.frameworks:
        importlib.import_module("ddp_frameworks")
    every = [name for name, kind in LOOPS.items() if not kind.gpu or trial.DEVICE == "cuda"]
    for name in args.loops.split(",") if args.loops else every:
        if time.monotonic() - began > args.seconds:
            print(f"not reached: {name}", flush=True)
            failed += 1
            continue
        found = sweep(name, args.every, args.most)
        kind = LOOPS[name]
        swept = found.survived + found.left
        few = swept < FEW  # to tell which part is survived
        rare = kind.least > 0.5 and not found.survived if few else found.survived < kind.least * swept
        rare = rare and not kind.left
        untrue = [] if os.environ.get("HEADROOM_QUIET") else [why for why in found.why if kind.why not in why]
        bad = bool(found.wrong or found.hung or kind.why and untrue) or not swept or rare
        failed += bad
        total.update(survived=found.survived, left=found.left, wrong=len(found.wrong), hung=len(found.hung))
        if not kind.left:
            meant.update(configurations=1, survived=found.survived, swept=swept)
        print(
            f"{'FAILED' if bad else 'ok':6} {name}: survived {found.survived} of {swept} {dict(found.why) or ''}",
            flush=True,
        )
        for line in (*found.wrong, *found.hung, *(found.missed if args.verbose or bad else ())):
            print(f"       {line}", flush=True)
    print(f"{dict(total)}; {failed} loops failed; {time.monotonic() - began:.0f} s")
    part = meant["survived"] / max(1, meant["swept"])
    if meant:
        print(f"of {meant['configurations']} configurations in which failures are to be survived: {part:.1%} survived")
    few = not args.loops and (meant["configurations"] < LEAST or part < PART)
    return 1 if failed or few else 0


if __name__ == "__main__":
    sys.exit(main())
