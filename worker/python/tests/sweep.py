"""Fails every operation of a training step in turn, in every loop. Each failure must be survived
with the gradients and weights of the undisturbed step, or it must change nothing and reach the
user's code as the exception that was raised.

    python sweep.py [--loops a,b] [--every N] [--seed S] [--pairs LOOP] [--json]

With HEADROOM_TEST_DEVICE=cuda it runs on a GPU. Loops written for the CPU are then left out, and
their names are printed.

Exits with status 1 if anything went wrong, or if a loop that must survive did not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import torch

import trial
from compare import differs, wrong
from forked import Died, forked, silenced
from inject import Fault, Operation
from loop import Shape, load
from trial import Record, State

DETACH = "aten.detach.default"
MUST = ("module", "tail", "backward")  # phases in which an exact loop must survive


@dataclass(frozen=True)
class Task:
    step: int
    fault: Fault
    attached: bool = True


@dataclass
class Outcome:
    """The outcome of one run; empty fields do not apply."""

    kind: str  # survived, approximate, raised, WRONG, none (nothing failed)
    why: str = ""
    error: str = ""
    before: State | None = None
    after: State | None = None
    at: int = -1
    names: list[str] = field(default_factory=list)
    failures: int = 0
    steps: int = 0  # steps of optimizers, in the training step that failed
    said: str = ""  # by headroom


@dataclass
class Found:
    """What a sweep found for a loop."""

    name: str
    kind: str
    operations: int = 0
    runs: int = 0
    survived: int = 0
    approximate: int = 0
    raised: int = 0
    wrong: int = 0
    where: dict[str, int] = field(default_factory=dict)  # how many were raised, by phase
    missed: list[str] = field(default_factory=list)  # raised where it should have survived
    notes: list[str] = field(default_factory=list)
    random: int = 0  # raised with another random state than the bare script's
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return self.wrong > 0 or (self.kind == "exact" and bool(self.missed))


def tried(shape: Shape, seed: int, want: Record, task: Task) -> Outcome:
    """Runs a task. Called in a child, whose output is captured, since headroom writes there why it refuses a step."""
    said = silenced()
    out = judged(shape, seed, want, task)
    out.said = " | ".join(line[:250] for line in said().splitlines() if line.startswith("headroom:"))
    return out


def users(error: BaseException) -> bool:
    """Whether an exception's traceback contains no frame of headroom's. The guard of an optimizer's
    step does not count: it passes on the exception it gets."""
    trace = error.__traceback__
    while trace is not None:
        folder, name = os.path.split(trace.tb_frame.f_code.co_filename)
        if "headroom_train" in folder.split(os.sep)[-2:] and name != "optimizers.py":
            return False
        trace = trace.tb_next
    return True


def judged(shape: Shape, seed: int, want: Record, task: Task) -> Outcome:
    if task.attached:
        trial.attach()
    got = trial.run(shape, seed, task.step + 2, task.step, task.fault)
    names, steps = got.names[: got.at + 1], len(got.gradients[-1])
    out = Outcome(
        "raised", before=got.before, after=got.after, at=got.at, names=names, failures=len(got.failed), steps=steps
    )
    if got.error is not None:
        out.error = trial.described(got.error)
        if not got.failed:
            out.kind, out.why = "WRONG", f"nothing had failed: {out.error}"
        elif got.step != task.step:
            out.kind, out.why = "WRONG", f"raised in step {got.step}, in which nothing had failed: {out.error}"
        elif str(got.error) == got.failed[-1] != got.failed[0] and users(got.error):
            out.kind = "none"  # the first failure was survived, and then an operation of the user's own failed
        elif str(got.error) not in got.failed:  # a step in pieces raises a copy; a later one may be the script's own
            out.kind, out.why = "WRONG", f"not an exception that was injected: {out.error}"
        elif said := made(want, got, task.step, shape):
            out.kind, out.why = "WRONG", said
        return out
    if not got.failed:
        out.kind = "none"
    elif said := wrong(want, got, task.step, shape.tolerance, shape.dropout):
        out.kind, out.why = "WRONG", said
    else:
        out.kind = (
            "approximate" if shape.dropout and wrong(want, got, task.step, shape.tolerance, False) else "survived"
        )
    return out


def made(want: Record, got: Record, step: int, shape: Shape) -> str:
    """What is wrong with the optimizer's steps before the one that failed; empty if nothing is."""
    if shape.dropout:
        return ""
    pairs = zip(want.gradients[step], got.gradients[step])
    return next(
        (
            f"gradients of a step before the failure: {said}"
            for a, b in pairs
            if (said := differs(a, b, shape.tolerance))
        ),
        "",
    )


def faults(operations: list[Operation], rows: int, every: int, seed: int, step: int) -> Iterator[Fault]:
    """Yields the faults of a sweep. In the first of them an operation fails whenever the whole batch is run, in
    the next ones an operation fails once, and in the last ones all operations larger than a limit fail. A
    sampled sweep includes fewer operations outside the phases in :data:`MUST`.
    """
    for n, k in enumerate(range((seed + step) % every, len(operations), every)):
        if every == 1 or operations[k].phase in MUST or n % 4 == 0:
            yield Fault("again", k, rows)
    for k in range(seed % (3 * every), len(operations), 3 * every):
        yield Fault("once", k, rows)
    largest = max(o.elements for o in operations)
    for part in (0.99, 0.7, 0.4):
        yield Fault("limit", elements=int(part * largest))


def places(bare: list[Operation], out: Outcome) -> list[int]:
    """Which operations of the bare step may correspond to the one that failed, the likeliest first.
    Recording may add or save a detach where autograd keeps a tensor, and may add operations of its
    own. If one of those failed, the result is the operation with which the bare step would have
    continued.
    """
    names, i = [o.name for o in bare], 0
    matched = False
    for name in out.names:
        matched = False
        j = i
        while j < len(names) and names[j] != name and names[j] == DETACH:
            j += 1
        if j < len(names) and names[j] == name:
            i, matched = j + 1, True
    i = min(i - matched, len(names) - 1)
    if not out.names or out.names[-1] != DETACH:
        return [i]
    first, last = i, i
    while first > 0 and names[first - 1] == DETACH:
        first -= 1
    while last + 1 < len(names) and names[last] == DETACH:
        last += 1
    return [i, *range(max(first - 1, 0), last + 1)]


def changed(out: Outcome, bare: Outcome, later: bool) -> str:
    """What a failed step changed in addition to the changes that the same failure makes in the bare
    script. ``later`` says that one failure was survived and another one in backward was not, which
    leaves partial gradients."""
    assert out.before and out.after and bare.after
    if out.steps > bare.steps:  # one failure was survived, and another one in the same step was not
        return ""
    for name in ("parameters", "buffers") if later else ("parameters", "gradients", "buffers"):
        now = getattr(out.after, name)
        if now not in (getattr(out.before, name), getattr(bare.after, name)):
            return name
    return ""


class Elsewhere(Exception):
    """Raised if a loop that is written for the CPU is run on another device."""


class Sweep:
    def __init__(self, shape: Shape, seed: int, every: int, jobs: int, deep: bool) -> None:
        self.shape, self.seed, self.every, self.jobs, self.deep = shape, seed, every, jobs, deep
        self.found = Found(shape.name, shape.kind)
        self.bare: dict[tuple[int, int], Outcome] = {}

    def reference(self) -> Record:
        for _, record in forked(lambda _: trial.run(self.shape, self.seed, trial.STEPS, trace=True), [None], 1):
            if isinstance(record, Died):
                raise SystemExit(f"{self.shape.name}: the bare loop: {record.why}")
            if record.error is not None:
                if trial.DEVICE != "cpu":
                    raise Elsewhere(trial.described(record.error))
                raise SystemExit(f"{self.shape.name}: the bare loop: {trial.described(record.error)}")
            self.want: Record = record
        return self.want

    def tasks(self) -> Iterator[Task]:
        """Yields the faults to try, in the very first step and in a step after two that
        succeeded."""
        every = self.every * self.shape.every
        for step in (0, 2):
            rows = self.shape.make.rows_in(self.shape.make, step)  # type: ignore[attr-defined]
            for n, fault in enumerate(faults(self.want.operations[step], rows, every, self.seed, step)):
                if self.deep or n % 2 == (step == 2):
                    yield Task(step, fault)

    def run(self, tasks: list[Task] | None = None) -> Found:
        began = time.monotonic()
        self.reference()
        self.found.operations = len(self.want.operations[2])
        work = lambda task: tried(self.shape, self.seed, self.want, task)  # noqa: E731
        unsure: list[tuple[Task, Outcome]] = []
        for task, out in forked(work, tasks or self.tasks(), self.jobs):
            if isinstance(out, Died):
                out = Outcome("WRONG", out.why)
            if out.kind == "raised" and out.before != out.after:
                unsure.append((task, out))
            else:
                self.count(task, out)
        self.compare(unsure)
        self.found.seconds = round(time.monotonic() - began, 1)
        return self.found

    def compare(self, unsure: list[tuple[Task, Outcome]]) -> None:
        """Judges steps that raised an exception and changed something. They are wrong unless the
        bare script changes the same things."""
        wanted = {(t.step, k) for t, o in unsure for k in places(self.want.operations[t.step], o)}
        bare = [Task(step, Fault("once", k), attached=False) for step, k in sorted(wanted)]
        for task, out in forked(lambda task: tried(self.shape, self.seed, self.want, task), bare, self.jobs):
            if isinstance(out, Died) or out.kind not in ("raised", "none"):
                raise SystemExit(f"{self.shape.name}: bare, {task}: {out.why}")
            if out.kind == "raised":
                self.bare[task.step, task.fault.at] = out
        for task, out in unsure:
            others = [self.bare.get((task.step, k)) for k in places(self.want.operations[task.step], out)]
            known = [other for other in others if other] or [Outcome("raised", after=out.before)]
            first = self.want.operations[task.step][places(self.want.operations[task.step], out)[0]]
            later = out.failures > 1 and first.phase in ("before", "module", "tail")  # before: a call without gradients
            said = [changed(out, other, later) for other in known]
            if all(said):
                out.kind, out.why = "WRONG", f"{said[0]} changed, and {out.error}"
            elif out.after and all(
                out.after.random not in (other.after and other.after.random, out.before and out.before.random)
                for other in known
            ):
                self.found.random += 1
            self.count(task, out)

    def count(self, task: Task, out: Outcome) -> None:
        found, operations = self.found, self.want.operations[task.step]
        if out.kind == "none":
            return
        k = places(operations, out)[0]
        phase = operations[k].phase
        found.runs += 1
        text = (
            f"{task.fault.mode} {task.fault.at if task.fault.mode != 'limit' else task.fault.elements}, step "
            f"{task.step}"
        )
        if task.fault.second >= 0:
            text += f", then {task.fault.second} later"
        text += f": {phase}, {out.names[-1] if out.names else '?'} at {operations[k].where}"
        if out.kind == "WRONG":
            found.wrong += 1
            found.notes.append(f"{text}: {out.why}{' | ' + out.said if out.said else ''}")
        elif out.kind == "raised":
            found.raised += 1
            found.where[phase] = found.where.get(phase, 0) + 1
            trained = out.steps == len(self.want.gradients[task.step])  # if so, only a number to print was lost
            # the user asks for exactly that value
            asked = "(injected: " in out.said.partition("cannot be run in pieces")[2]
            # Rows are cut by slicing, and buffers are written to through views: what cannot be sliced cannot be cut. Neither
            # takes memory, so neither runs out of it.
            asked = asked or out.names[-1:] in (["aten.slice.Tensor"], ["aten.select.int"])
            if phase in MUST and task.fault.mode != "limit" and task.fault.second < 0 and not trained and not asked:
                found.missed.append(f"{text}: {out.said or out.error}")
        else:
            found.survived += 1
            found.approximate += out.kind == "approximate"


def pairs(sweep: Sweep, every: int) -> Found:
    """Makes a second operation fail after the first, anywhere in the recovery from the first
    failure."""
    sweep.reference()
    operations = sweep.want.operations[2]
    inside = [k for k, o in enumerate(operations) if o.phase in MUST]
    rows = sweep.shape.make.rows  # type: ignore[attr-defined]
    sweep.found.name += " (pairs)"
    return sweep.run(
        [
            Task(2, Fault("again", k, rows, second=later))
            for k in inside[:: 2 * every]
            for later in range(k % 3, 300, 9 * every)
        ]
    )


def show(found: Found, verbose: bool) -> None:
    where = ", ".join(f"{n} {phase}" for phase, n in sorted(found.where.items()))
    verdict = "FAILED" if found.failed else "ok"
    print(
        f"{verdict:6} {found.name} ({found.kind}): {found.operations} operations, {found.runs} runs: "
        f"survived {found.survived}"
        + (f" ({found.approximate} approximate)" if found.approximate else "")
        + (
            f", raised {found.raised}{f' ({where})' if where else ''}, wrong {found.wrong}, random state "
            f"moved {found.random}; {found.seconds} s"
        ),
        flush=True,
    )
    shown = Counter[str]()
    for line in [f"WRONG: {n}" for n in found.notes] + ([f"raised: {n}" for n in found.missed] if found.failed else []):
        kind = line.split(":")[0]
        shown[kind] += 1
        if verbose or shown[kind] <= 5:
            print(f"       {line}", flush=True)


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--loops", default="", help="names, with commas between; all of them if left out")
    p.add_argument("--every", type=int, default=1, help="only every N-th operation")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument(
        "--deep", action="store_true", help="each operation in the first step and in a later one, not in one of the two"
    )
    p.add_argument("--pairs", default="", help="a loop in which a second failure follows the first")
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    p.add_argument("--json", action="store_true", help="a line of JSON for each loop")
    p.add_argument("--verbose", action="store_true")
    args = p.parse_args()
    torch.set_num_threads(1)

    failed = total = 0
    names = [name for name in args.loops.split(",") if name]
    shapes = load([args.pairs] if args.pairs else names)
    for shape in shapes:
        sweep = Sweep(shape, args.seed, args.every, args.jobs, args.deep)
        try:
            found = pairs(sweep, args.every) if args.pairs else sweep.run()
        except Elsewhere as why:
            print(f"left out {shape.name}: {why}", flush=True)
            continue
        if args.json:
            print(json.dumps({**asdict(found), "failed": found.failed}), flush=True)
        else:
            show(found, args.verbose)
        failed += found.failed
        total += found.runs
    if not args.json:
        print(f"{len(shapes)} loops, {total} runs, {failed} loops failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
