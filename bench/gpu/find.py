"""Compares how headroom and others find the largest batch of training runs, side by side on one GPU.

    python bench/gpu/find.py HEADROOM OUT [--only CASE…] [--budget SECONDS] [--most ROWS] [--smoke]

For each case of find_cases.py another process holds all of the GPU but the case's GiB. Then, one after the other:

headroom       headroom find --json -- python find_cases.py train CASE 8 1000
truth          bisection with a fresh process for each size, which makes three steps. It begins at headroom's answer and goes outwards,
               and ends when the largest size that fits is known to within half a percent, or after TRIALS sizes
others         find_peers.py: Lightning's two modes from 2 rows up; Accelerate and the Trainer's auto_find_batch_size from --most rows down

Seconds are those of the whole process of a method, with Python's imports. "holds" says whether a fresh process makes three steps with
the answer; where a larger size was seen to fit, or a smaller one not to, that is not tried again. Rows of OUT/find.md and lines of
OUT/find.jsonl. A case or method that fails keeps no other from running; what --budget may not suffice for is left out, and named.

With --smoke the models are tiny, and memory is the data segment of a process on the CPU: that tries this file, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Optional

from real import CPU, GIB, MARK, Gpu, end, table

HERE = Path(__file__).resolve().parent
CASES = ("gpt2", "resnet", "vit", "trainer")
GIBS = {"gpt2": 24, "resnet": 16, "vit": 12, "trainer": 16}
GUESS = {"gpt2": 40, "resnet": 160, "vit": 120, "trainer": 60}  # where bisection begins if headroom has found nothing
PEERS = ("lightning, power", "lightning, binsearch", "accelerate", "transformers")
TRIALS = 9  # sizes of a bisection
WITHIN = 0.005  # of the largest size that fits, to which it is to be known
LIMIT = 120.0  # seconds that a process may take
SMOKE_GIB = 1.3
COLUMNS = "case, GiB, method, answer, true, answer / true, holds, trials, ran out, seconds, sizes"


class Host:
    """The data segment of a process in place of a GPU's memory."""

    def leave(self, _: Optional[int]) -> None: ...

    def close(self) -> None: ...


class Room:
    """The memory that there is for a process."""

    def __init__(self, smoke: bool) -> None:
        self.smoke = smoke
        self.device: Any = Host() if smoke else Gpu()
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        if smoke:
            self.environment |= {**CPU, "MALLOC_MMAP_THRESHOLD_": "65536", "SMOKE": "1"}

    def limit(self) -> Optional[Callable[[], None]]:
        most = int(SMOKE_GIB * GIB)
        return (lambda: resource.setrlimit(resource.RLIMIT_DATA, (most, most))) if self.smoke else None

    def settle(self) -> None:
        """Waits until the driver has taken back what a process held, with the rest of the GPU still held."""
        until = time.monotonic() + 5
        while not self.smoke and self.device.free() < self.device.before - (64 << 20) and time.monotonic() < until:
            time.sleep(0.05)


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.out = args, args.out.resolve()
        self.until = time.monotonic() + args.budget
        self.room = Room(args.smoke)
        self.lines: list[dict[str, Any]] = []
        self.known: dict[str, dict[int, bool]] = {}  # by case and rows: whether three steps of a fresh process fit
        self.waiting: list[tuple[str, subprocess.Popen[str]]] = []

    def left(self) -> float:
        return self.until - time.monotonic()

    def run(self, name: str, command: list[str]) -> tuple[int, float, str]:
        """Runs a command to its end, and everything that it starts. Returns its status, its seconds, and what it printed."""
        log = self.out / f"{name}.log"
        env = {**self.room.environment, MARK: name, "HEADROOM_RUNS_DIR": str(self.out / "runs")}
        began = time.monotonic()
        with log.open("w") as errors:
            child = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=self.room.limit(), cwd=self.out
            )
            try:
                said, status = child.communicate(timeout=max(1.0, min(LIMIT, self.left())))[0], child.returncode
            except subprocess.TimeoutExpired:
                said, status = "", 124
        seconds = time.monotonic() - began
        end(name, child)  # type: ignore[arg-type]
        self.room.settle()
        return status, seconds, said

    def wait(self, case: str) -> None:
        """Starts a process that has imported everything when its turn comes. It takes no memory of the GPU before."""
        command = [sys.executable, str(HERE / "find_cases.py"), "wait", case, "3"]
        with (self.out / f"{case}-truth.log").open("a") as log:
            child = subprocess.Popen(
                command, env=self.room.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                preexec_fn=self.room.limit(), cwd=self.out
            )  # fmt: skip
        self.waiting.append((case, child))

    def fits(self, case: str, rows: int) -> bool:
        """Whether a fresh process makes three steps."""
        known = self.known.setdefault(case, {})
        if any(ok and n >= rows for n, ok in known.items()) or any(not ok and n <= rows for n, ok in known.items()):
            return max((n for n, ok in known.items() if ok), default=0) >= rows
        for _ in range(2):
            while len(self.waiting) < (1 if self.args.smoke else 3):
                self.wait(case)
            _, child = self.waiting.pop(0)
            assert child.stdin and child.stdout
            child.stdout.readline()  # ready
            try:
                said = child.communicate(f"{rows}\n", timeout=max(1.0, min(LIMIT, self.left())))[0].strip()
            except (subprocess.TimeoutExpired, BrokenPipeError):
                said = "took too long"
            child.kill()
            child.wait()
            self.room.settle()
            if said in ("fits", "out of memory"):
                known[rows] = said == "fits"
                return known[rows]
        raise RuntimeError(f"{case}, {rows} rows: {said or 'the process failed'}, see {case}-truth.log")

    def rest(self) -> None:
        for _, child in self.waiting:
            child.kill()
            child.wait()
        self.waiting = []

    def truth(self, case: str, answer: int) -> int:
        """The largest size that fits, from an answer outwards."""
        low = high = 0
        step, rows = max(1, answer // 100) if answer else GUESS[case] // 4, answer or GUESS[case]
        for _ in range(TRIALS):
            if self.fits(case, rows):
                low = max(low, rows)
            else:
                high = min(high or rows, rows)
            if low and high:
                if high - low <= max(1, WITHIN * low):
                    break
                rows = (low + high) // 2
            else:
                rows, step = max(1, rows + (step if low else -step)), 2 * step
        self.rest()
        return low

    def headroom(self, case: str) -> dict[str, Any]:
        train = [sys.executable, str(HERE / "find_cases.py"), "train", case, "8", "1000"]
        status, seconds, said = self.run(f"{case}-headroom", [str(self.args.headroom.resolve()), "find", "--json", "--", *train])
        if status:
            return self.failed(case, "headroom", status, seconds)
        found = json.loads(said)
        (self.out / f"{case}-headroom.json").write_text(said)
        tried = [(t["rows"], t["fits"]) for t in found["tried"]]
        return {"found": found["largest"], "recommended": found["recommended"]["micro"], "reason": found["reason"], "tried": tried, "seconds": seconds}

    def peer(self, case: str, method: str) -> dict[str, Any]:
        name = f"{case}-{method.replace(', ', '-')}"
        status, seconds, said = self.run(name, [sys.executable, str(HERE / "find_peers.py"), method, case, str(self.args.most)])
        if status:
            return self.failed(case, method, status, seconds)
        return {**json.loads(said.splitlines()[-1]), "seconds": seconds}

    def failed(self, case: str, method: str, status: int, seconds: float) -> dict[str, Any]:
        text = (self.out / f"{case}-{method.replace(', ', '-')}.log").read_text(errors="replace")
        print("\n".join(text.splitlines()[-8:]), flush=True)
        return {"error": "took too long" if status == 124 else f"status {status}", "seconds": seconds}

    def attempt(self, case: str, method: str, needs: float, tried: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Adds a line for a method, whatever becomes of it."""
        line: dict[str, Any] = {"case": case, "gib": SMOKE_GIB if self.args.smoke else GIBS[case], "method": method}
        try:
            line |= tried() if self.left() > needs else {"error": "left out, the budget is spent"}
        except Exception as failure:
            line["error"] = f"{type(failure).__name__}: {failure}"
        self.lines.append(line)
        return line

    def case(self, case: str) -> None:
        """headroom's answer, and the truth."""
        line = self.attempt(case, "headroom", 30, lambda: self.headroom(case))
        try:
            line["true"] = self.truth(case, line.get("found", 0)) or None
        except Exception as failure:
            print(f"{case}: {type(failure).__name__}: {failure}", flush=True)
        self.rest()
        self.told(line)

    def told(self, line: dict[str, Any]) -> None:
        """Completes a line with what is known about its answer."""
        case, found = line["case"], line.get("found")
        if found is not None:
            try:
                line["holds"] = self.fits(case, found)
            except Exception as failure:
                print(f"{case}: {type(failure).__name__}: {failure}", flush=True)
            self.rest()
        for other in self.lines:
            if other["case"] == case and other["method"] == "headroom":
                line["true"] = other.get("true")
        line["fresh"] = sorted(self.known.get(case, {}).items())
        print(cells(line), flush=True)
        with (self.out / "find.jsonl").open("w") as f:
            f.writelines(json.dumps(each) + "\n" for each in self.lines)
        names = COLUMNS.split(", ")
        order = sorted(self.lines, key=lambda each: CASES.index(each["case"]))
        rows = [table(names), table(["---"] * len(names)), *map(cells, order)]
        (self.out / "find.md").write_text("\n".join(rows) + "\n")

    def all(self) -> None:
        cases = [c for c in CASES if not self.args.only or c in self.args.only]
        for case in cases:
            self.room.device.leave(GIBS[case] * GIB)
            self.case(case)
        for case in cases:
            self.room.device.leave(GIBS[case] * GIB)
            for method in PEERS:
                if (method == "transformers") == (case == "trainer"):
                    self.told(self.attempt(case, method, 35, lambda m=method, c=case: self.peer(c, m)))


def cells(line: dict[str, Any]) -> str:
    tried, found, true = line.get("tried", []), line.get("found"), line.get("true")
    share = f"{found / true:.3f}" if found and true else "–"
    holds = {True: "yes", False: "no"}.get(line.get("holds"), "–")  # type: ignore[arg-type]
    sizes = " ".join(f"{n}" if ok else f"{n}!" for n, ok in tried)
    seconds = f"{line['seconds']:.1f}" if "seconds" in line else "–"
    return table([
        line["case"], line["gib"], line["method"], found or line.get("error", "–"), true or "–", share, holds,
        len(tried), sum(not ok for _, ok in tried), seconds, sizes,
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("headroom", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=[], choices=CASES)
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("--most", type=int, default=256)
    parser.add_argument("--smoke", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    bench = Bench(args)
    try:
        bench.all()
    finally:
        bench.rest()
        bench.room.device.close()


if __name__ == "__main__":
    main()
