"""Checks that a training run cannot tell that headroom is there as long as nothing fails: 50 steps
with and without headroom, each in a process of its own, end with the same bits. In a few steps more, modes that a
script might enter see the same functions and operations. torch.compile looks into such modes: loops with it have none.

    python undisturbed.py [--loops a,b] [--steps N]

With HEADROOM_TEST_DEVICE=cuda the steps run on a GPU. Loops that are written for the CPU are then
left out, and so are loops that end with different bits each time, as some of CUDA's sums do. Their
names are printed.
"""

from __future__ import annotations

import argparse
import copy
import gc
import importlib
import os
import pickle
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch

import trial
from forked import Died, checked, forked
from loop import SHAPES, Loop, Shape, load
from manners import CHECKS
from watching import counted

WATCHED = 3  # steps
COUNTED = 5  # the last steps, whose garbage is counted
SEAM = "_compiled_call_impl"  # PyTorch's own attribute, which no copy and no pickle includes


@dataclass
class Left:
    """The outcome of a training run, as far as it can be compared."""

    weights: str = ""
    gradients: str = ""
    printed: list[str] = field(default_factory=list)
    random: str = ""
    python_random: int = 0
    keys: list[str] = field(default_factory=list)  # of the modules' own attributes
    pickled: str = ""  # the outcome of pickling the modules
    copied: str = ""  # the outcome of copying the modules
    garbage: int = 0  # objects that only the garbage collector frees
    ours: str = ""  # where a trace of headroom was found
    calls: dict[str, int] = field(default_factory=dict)  # that modes have seen, by name
    error: str = ""


def attempt(work: Any) -> tuple[str, Any]:
    try:
        return "done", work()
    except Exception as error:
        return type(error).__name__, None


def watched(shape: Shape, attached: bool) -> Left:
    """Carries out a short training run in which modes count. Called in a child."""
    if attached:
        trial.attach()
    random.seed(0)
    left = Left()
    with trial.placed(), counted() as calls:
        try:
            shape.make(0).run(WATCHED, lambda i: None)
        except Exception as error:
            left.error = trial.described(error)
    left.calls = dict(calls)
    return left


def trained(shape: Shape, steps: int, attached: bool) -> Left:
    """Carries out a training run, and returns its outcome. Called in a child."""
    if attached:
        trial.attach()
    random.seed(0)  # a forked child begins with another state
    left = Left()

    def begins(i: int) -> None:
        if i == steps - COUNTED:
            gc.collect()
            gc.disable()

    with trial.placed():
        loop: Loop = shape.make(0)
        try:
            loop.run(steps, begins)
        except Exception as error:
            left.error = trial.described(error)
        left.garbage = gc.collect()
        gc.enable()
    left.printed = [repr(line) for line in loop.printed]
    parameters = loop.parameters()
    left.weights = trial.digest({**parameters, **loop.buffers()})
    left.gradients = trial.digest({name: p.grad for name, p in parameters.items()})
    left.random = trial.chance()
    left.python_random = hash(random.getstate())
    modules = loop.modules()
    left.keys = [
        f"{name}.{key}"
        for prefix, m in modules.items()
        for name, inner in m.named_modules(prefix=prefix)
        for key in vars(inner)
        if key != SEAM
    ]
    left.pickled, whole = attempt(lambda: pickle.dumps(modules))
    if whole is not None and b"headroom" in whole:
        left.ours = "the pickled modules"
    left.copied, again = attempt(lambda: copy.deepcopy(modules))
    if again is not None:
        for _name, module in again.items():
            for p in module.parameters():
                p.data.fill_(0)
        if trial.digest({**loop.parameters(), **loop.buffers()}) != left.weights:
            left.ours = "a copy of the modules, which shares their weights"
    return left


def compared(bare: Left, with_us: Left) -> list[str]:
    said = []
    for name in Left.__dataclass_fields__:
        a, b = getattr(bare, name), getattr(with_us, name)
        if a == b:
            continue
        if isinstance(a, list):
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            a, b = a[at : at + 1], b[at : at + 1]
            name += f"[{at}]"
        if isinstance(a, dict):
            differ = [k for k in {**a, **b} if a.get(k) != b.get(k)]
            a, b = ({k: some.get(k, 0) for k in differ} for some in (a, b))
        said.append(f"{name}: {b} with headroom, {a} without")
    return said


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--loops", default="")
    p.add_argument("--steps", type=int, default=50)
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = p.parse_args()
    torch.set_num_threads(1)
    importlib.import_module("loops_compiled")
    shapes = load([name for name in args.loops.split(",") if name])
    began = time.monotonic()
    left: dict[tuple[str, str, bool], Left] = {}
    ways = ("bare", "armed") if trial.DEVICE == "cpu" else ("bare", "again", "armed")
    tasks = [(s.name, way, False) for s in shapes for way in ways]
    tasks += [(s.name, way, True) for s in shapes if not s.name.startswith("compiled") for way in ways]

    def work(task: tuple[str, str, bool]) -> Left:
        name, way, modes = task
        if modes:
            return watched(SHAPES[name], way == "armed")
        return trained(SHAPES[name], args.steps, way == "armed")

    failed = 0
    for task, got in forked(work, tasks, args.jobs, seconds=120):
        left[task] = Left(error=got.why) if isinstance(got, Died) else got
        name, _, modes = task
        if any((name, way, modes) not in left for way in ways):
            continue
        bare = left[name, "bare", modes]
        if trial.DEVICE != "cpu" and (why := bare.error or ", ".join(compared(bare, left[name, "again", modes]))):
            print(f"left out {name}: {why.replace('with headroom', 'again')}", flush=True)
            continue
        said = compared(bare, left[name, "armed", modes])
        if bare.error:
            said.append(f"the bare loop: {bare.error}")
        failed += bool(said)
        print(
            f"{'FAILED' if said else 'ok':6} {name}{', watched by modes' * modes}", *said, sep="\n       ", flush=True
        )
    if not args.loops:
        failed += checked(CHECKS, args.jobs)
    print(
        f"{len(shapes)} loops, {args.steps} steps each, with and without: {failed} differ; "
        f"{time.monotonic() - began:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
