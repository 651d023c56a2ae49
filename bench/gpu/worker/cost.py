"""What the worker costs while nothing fails: bare and armed in turn, in processes of their own.

cost.py HEADROOM OUT [CASE…]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from statistics import median

HERE = os.path.dirname(os.path.abspath(__file__))
ROUNDS = 5
CASES = {  # layers, rows, length, compiled
    "large": (12, 40, 512, 0),
    "small": (2, 2, 64, 0),
    "small-compiled": (2, 2, 64, 1),
    "large-compiled": (12, 40, 512, 1),
}


def start(headroom: str, out: str, name: str, case: str, armed: bool) -> subprocess.Popen:
    folder = os.path.join(out, name)
    os.makedirs(folder)
    os.mkfifo(os.path.join(folder, "go"))
    command = [sys.executable, os.path.join(HERE, "steady.py"), folder, *map(str, CASES[case])]
    if armed:
        command = [headroom, "run", "--name", name, "--hang", "0", "--", *command]
    with open(os.path.join(folder, "output.log"), "w") as log:
        return subprocess.Popen(command, cwd=out, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def wait_ready(process: subprocess.Popen, path: str) -> None:
    while not os.path.exists(path):
        if process.poll() is not None:
            sys.exit(f"{path}: its process ended with {process.returncode}: see output.log there")
        time.sleep(0.05)


def measure(headroom: str, out: str, case: str) -> None:
    names = [(f"cost-{case}-{i}-{kind}", kind) for i in range(ROUNDS) for kind in (("bare", "armed") if i % 2 == 0 else ("armed", "bare"))]
    begun = time.monotonic()
    processes = {name: start(headroom, out, name, case, kind == "armed") for name, kind in names}
    found: dict[str, list[float]] = {"bare": [], "armed": []}
    try:
        for name, process in processes.items():
            wait_ready(process, os.path.join(out, name, "ready"))
        for name, kind in names:
            with open(os.path.join(out, name, "go"), "w"):
                pass
            if processes[name].wait() != 0:
                sys.exit(f"{name}: status {processes[name].returncode}: see its output.log")
            with open(os.path.join(out, name, "steps.json")) as f:
                found[kind].append(json.load(f)["median"] * 1e3)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.terminate()
    bare, armed = median(found["bare"]), median(found["armed"])
    print(f"| {case} | {bare:.3f} | {armed:.3f} | {bare / armed:.4f} | {show(found['bare'])} | {show(found['armed'])} | {time.monotonic() - begun:.0f} |", flush=True)


def show(rounds: list[float]) -> str:
    return ", ".join(f"{r:.3f}" for r in rounds)


if __name__ == "__main__":
    print("| case | bare, ms | armed, ms | bare/armed | rounds bare | rounds armed | seconds |\n|---|---|---|---|---|---|---|", flush=True)
    for case in sys.argv[3:] or list(CASES)[:3]:
        measure(os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2]), case)
