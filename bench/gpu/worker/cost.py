"""Measures what the worker costs while nothing fails: training without headroom (bare) and under it (armed), each
in a process of its own. Two processes are measured at a time and take turns, a few steps each.

cost.py HEADROOM OUT [CASE…]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from statistics import median, stdev

HERE = os.path.dirname(os.path.abspath(__file__))
ROUNDS = 5
CASES = {  # layers, rows, length, compiled, slices of 10 steps
    "large": (12, 40, 512, 0, 12),
    "small": (2, 2, 64, 0, 160),
    "small-compiled": (2, 2, 64, 1, 160),
    "large-compiled": (12, 40, 512, 1, 12),
}


def start(headroom: str, out: str, name: str, case: str, armed: bool) -> subprocess.Popen:
    folder = os.path.join(out, name)
    os.makedirs(folder)
    for turn in ("go", "done"):
        os.mkfifo(os.path.join(folder, turn))
    command = [sys.executable, os.path.join(HERE, "steady.py"), folder, *map(str, CASES[case])]
    if armed:
        command = [headroom, "run", "--name", name, "--hang", "0", "--", *command]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    with open(os.path.join(folder, "output.log"), "w") as log:
        return subprocess.Popen(command, cwd=out, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def wait_ready(process: subprocess.Popen, path: str) -> None:
    while not os.path.exists(path):
        if process.poll() is not None:
            sys.exit(f"{path}: its process exited with status {process.returncode}: see output.log there")
        time.sleep(0.05)


def pair(headroom: str, out: str, case: str, number: int) -> tuple[list[float], list[float]]:
    """Returns the milliseconds of bare and of armed steps: the median of each slice, from two processes that take turns."""
    names = {kind: f"cost-{case}-{number}-{kind}" for kind in ("bare", "armed")}
    processes = {kind: start(headroom, out, name, case, kind == "armed") for kind, name in names.items()}
    found = {}
    try:
        for kind, process in processes.items():
            wait_ready(process, os.path.join(out, names[kind], "ready"))
        for i in range(CASES[case][-1]):
            for kind in ("bare", "armed") if (i + number) % 2 == 0 else ("armed", "bare"):
                for turn, mode in (("go", "w"), ("done", "r")):
                    open(os.path.join(out, names[kind], turn), mode).close()
        for kind, process in processes.items():
            if process.wait() != 0:
                sys.exit(f"{names[kind]}: status {process.returncode}: see its output.log")
            with open(os.path.join(out, names[kind], "steps.json")) as f:
                found[kind] = [median(seconds) * 1e3 for seconds in json.load(f)["slices"]]
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
    return found["bare"], found["armed"]


def measure(headroom: str, out: str, case: str) -> None:
    """Prints the row of a case. It compares slices that ran one right after the other. The median of their ratios is
    steadier than the ratio of the medians of all slices, which other work on the processor shifts by several percent."""
    begun = time.monotonic()
    pairs = [pair(headroom, out, case, number) for number in range(ROUNDS)]
    bare, armed = ([median(p[side]) for p in pairs] for side in (0, 1))
    ratios = [[b / a for b, a in zip(*p)] for p in pairs]
    every = [r for p in ratios for r in p]
    # The standard error of the median of these ratios, if they are normally
    # distributed.
    error = 1.25 * stdev(every) / len(every) ** 0.5
    took = time.monotonic() - begun
    print(f"| {case} | {median(every):.4f} ± {error:.4f} | {show(map(median, ratios))} | {show(bare)} | {show(armed)} | {took:.0f} |", flush=True)


def show(rounds: Iterable[float]) -> str:
    return ", ".join(f"{r:.3f}" for r in rounds)


if __name__ == "__main__":
    print("| case | bare/armed | each pair | bare, ms | armed, ms | seconds |\n|---|---|---|---|---|---|", flush=True)
    for case in sys.argv[3:] or list(CASES)[:3]:
        measure(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), case)
