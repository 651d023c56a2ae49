"""Runs public training scripts, unmodified, with room and in a part of the memory that each takes, bare and under headroom.

    python bench/gpu/real.py HEADROOM SCRIPTS OUT [--parts 0.6 0.35] [--only NAME…] [--budget SECONDS] [--limit SECONDS] [--cpu]

SCRIPTS holds the scripts, their data, and table.json, a list of objects:

    name         of the case
    on           "gpu" or "cpu": the machine that the flags are for
    folder       where the command runs, below SCRIPTS
    command      the arguments of Python. $SCRIPTS is that folder, $WORK a new folder for each run
    environment  variables; one that ends with + is put in front of what is there. SCRIPTS/wheels and SCRIPTS/stubs are on PYTHONPATH
    losses       an expression whose first group is a loss in the output; or, in its place,
    file, column of a CSV file below $WORK
    steps        how many losses a whole run has
    in_work      true if the script writes into the folder where it runs: then it runs in $WORK

A script is run with room once for each part, which tells its peak of memory, its losses, and how far two such runs differ. Then another
process holds all of the GPU but the part of that peak, and the script is run again, bare and under headroom. A part is of what the
script takes beyond a CUDA context (CONTEXT); at least LEAST is left. Each case is a line of OUT/real.jsonl and a row of OUT/real.md. A
case that fails or takes longer than --limit keeps no other from running; one for which --budget may not suffice is left out.

With --cpu, there is no GPU: memory is the process's data segment, limited with RLIMIT_DATA, and a part is of what a script takes
beyond the imports of torch and torchvision.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Optional

GIB = 1 << 30
CONTEXT = int(0.9 * GIB)  # of a process that uses the GPU, before it trains
LEAST = int(1.2 * GIB)
LARGEST = 8 << 20  # of the files that a run leaves, which are checkpoints otherwise
MARK = "HEADROOM_BENCH_RUN"  # in the environment of each run, so that nothing that it started outlives it
CPU = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "262144", "MALLOC_TRIM_THRESHOLD_": "262144", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
COLUMNS = (
    "script, part, GiB of peak, bare, headroom, losses, largest loss difference, of two runs with room, s with room, s headroom, "
    "attempts, survived in place, refused"
)


class Gpu:
    """The memory of a GPU, as NVML tells it: reading it costs microseconds and takes no memory. It is the first, or the
    number in CUDA_VISIBLE_DEVICES, so that several GPUs can share the cases."""

    def __init__(self) -> None:
        self.nvml, self.device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        index = int(os.environ.get("CUDA_VISIBLE_DEVICES") or 0)
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self.device)):
            sys.exit("NVML finds no GPU")
        self.holder = subprocess.Popen([sys.executable, __file__, "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.leave(None)
        self.rest = self.before

    def free(self) -> int:
        numbers = (ctypes.c_ulonglong * 3)()  # total, free, used
        if failed := self.nvml.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(numbers)):
            raise RuntimeError(f"nvmlDeviceGetMemoryInfo: {failed}")
        return int(numbers[1])

    def used(self, _: int) -> int:
        return self.before - self.free()

    def least(self, peak: int, part: float) -> int:
        return max(LEAST, int(CONTEXT + part * (peak - CONTEXT)))

    def leave(self, room: Optional[int]) -> None:
        """Holds all of the GPU but room bytes, or nothing."""
        assert self.holder.stdin and self.holder.stdout
        print(-1 if room is None else room, file=self.holder.stdin, flush=True)
        if not self.holder.stdout.readline():
            raise RuntimeError("the process that holds the GPU's memory has ended")
        self.before = self.free()

    def settle(self) -> None:
        """Waits until the driver has taken back what a run held."""
        self.leave(None)
        until = time.monotonic() + 5
        while self.free() < self.rest - (64 << 20) and time.monotonic() < until:
            time.sleep(0.05)

    def environment(self) -> dict[str, str]:
        return {}

    def limit(self, _: Optional[int]) -> Any:
        return None

    def close(self) -> None:
        self.holder.kill()
        self.holder.wait()


class Host:
    """The data segment of a process in place of a GPU's memory."""

    def __init__(self) -> None:
        code = "import torch, torchvision; print(open('/proc/self/status').read())"
        ran = subprocess.run([sys.executable, "-c", code], env={**os.environ, **CPU}, capture_output=True, text=True, check=True)
        self.imports = data(ran.stdout)

    def used(self, pid: int) -> int:
        try:
            return data(Path(f"/proc/{pid}/status").read_text())
        except OSError:
            return 0

    def least(self, peak: int, part: float) -> int:
        return int(self.imports + part * (peak - self.imports))

    def leave(self, _: Optional[int]) -> None: ...

    def settle(self) -> None: ...

    def environment(self) -> dict[str, str]:
        return CPU

    def limit(self, room: Optional[int]) -> Any:
        return None if room is None else lambda: resource.setrlimit(resource.RLIMIT_DATA, (room, room))

    def close(self) -> None: ...


def data(status: str) -> int:
    found = re.search(r"VmData:\s*(\d+)", status)
    return int(found[1]) << 10 if found else 0


def hold() -> None:
    """Reads numbers of bytes, each on a line, and holds all of the GPU's free memory but that many; none if it is negative."""
    import torch

    held = torch.empty(0, dtype=torch.uint8, device="cuda")
    for line in sys.stdin:
        del held
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info()
        size = max(0, free - int(line)) if int(line) >= 0 else 0
        while True:
            try:
                held = torch.empty(size, dtype=torch.uint8, device="cuda")
                break
            except torch.OutOfMemoryError:  # the driver has kept a little
                size -= 16 << 20
        print(held.numel(), flush=True)


class Ran:
    """A run that has ended."""

    def __init__(self, row: dict[str, Any], work: Path, runs: Path, status: int, seconds: float, peak: int) -> None:
        self.work, self.status, self.seconds, self.peak = work, status, seconds, peak
        self.output = (work / "output.log").read_text(errors="replace").replace("\r", "\n")
        self.losses = losses(row, work, self.output)
        journal = runs / work.name / "journal.jsonl"
        self.journal = [json.loads(text) for text in journal.read_text().splitlines()] if journal.exists() else []

    def entries(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.journal if entry["kind"] == kind]

    def ways(self) -> str:
        return ", ".join(f"{n} × {way}" for way, n in Counter(e.get("in_place", {}).get("way", "?") for e in self.entries("survived")).items()) or "–"

    def said(self) -> list[str]:
        """What headroom itself printed."""
        return [text for text in self.output.splitlines() if text.startswith("headroom:")]

    def record(self) -> dict[str, Any]:
        return {
            "status": self.status, "seconds": round(self.seconds, 2), "peak": self.peak, "losses": self.losses, "attempts": len(self.entries("attempt")),
            "ways": self.ways(), "refused": [entry.get("text") for entry in self.entries("refused")], "said": self.said()[-12:],
            "journal": [entry.get("text") for entry in self.journal if entry["kind"] in ("worker", "survived", "warning", "exit")][-16:],
            "output": str(self.work / "output.log"), "end": self.output.splitlines()[-3:],
        }  # fmt: skip


def losses(row: dict[str, Any], work: Path, output: str) -> list[float]:
    if row["file"]:
        file = work / row["file"]
        if not file.exists():
            return []
        with file.open() as f:
            return [float(read[row["column"]]) for read in csv.DictReader(f) if read.get(row["column"])]
    return [float(found) for found in re.findall(row["losses"], output, re.M)]


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.scripts, self.out = args, args.scripts.resolve(), args.out.resolve()
        self.until = time.monotonic() + args.budget
        self.runs = self.out / "runs"
        self.device = Host() if args.cpu else Gpu()
        self.rows = [r for r in json.loads((self.scripts / "table.json").read_text()) if r["on"] == ("cpu" if args.cpu else "gpu")]
        self.rows = [r for r in self.rows if not args.only or r["name"] in args.only]
        self.room: dict[str, list[Ran]] = {r["name"]: [] for r in self.rows}
        self.lines: list[dict[str, Any]] = []

    def left(self) -> float:
        return self.until - time.monotonic()

    def run(self, row: dict[str, Any], kind: str, room: Optional[int] = None, under: bool = False) -> Ran:
        """Runs a script once, alone with the room that it is given, and ends whatever it leaves behind."""
        work = self.out / f"{row['name']}-{kind}"
        work.mkdir(parents=True)
        command, folder, env = prepared(row, self.scripts, work, self.runs, self.device)
        if under:
            command = [str(self.args.headroom.resolve()), "run", "--name", work.name, "--hang", "0", "--", *command]
        self.device.leave(room)
        begun, peak = time.monotonic(), 0
        with open(work / "output.log", "w") as log:
            child = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=self.device.limit(room)
            )
            until = begun + max(1.0, min(self.args.limit, self.left()))
            while child.poll() is None and time.monotonic() < until:
                peak = max(peak, self.device.used(child.pid))
                time.sleep(0.02)
        late = child.poll() is None
        seconds = time.monotonic() - begun
        end(str(work), child)
        self.device.settle()
        for file in work.rglob("*"):
            if file.is_file() and file.stat().st_size > LARGEST:
                file.unlink()
        return Ran(row, work, self.runs, 124 if late else child.wait(), seconds, peak)

    def case(self, row: dict[str, Any], part: float, number: int) -> None:
        known = self.room[row["name"]]
        if len(known) <= number:
            known.append(self.run(row, f"room-{len(known) + 1}"))
            print(f"{row['name']}: with room: status {known[-1].status}, {known[-1].seconds:.1f} s, peak {known[-1].peak / GIB:.2f} GiB, "
                  f"{len(known[-1].losses)} of {row['steps']} losses", flush=True)  # fmt: skip
        whole = known[0]
        line: dict[str, Any] = {"name": row["name"], "part": part, "steps": row["steps"], "room": [ran.record() for ran in known]}
        if whole.status == 0:
            line["limit"] = self.device.least(whole.peak, part)
            bare = self.run(row, f"{part}-bare", line["limit"])
            armed = self.run(row, f"{part}-headroom", line["limit"], under=True)
            line |= {"bare": bare.record(), "headroom": armed.record(), "difference": difference(whole.losses, armed.losses)}
            line["noise"] = difference(whole.losses, known[1].losses) if len(known) > 1 else None
        self.lines.append(line)
        with open(self.out / "real.jsonl", "a") as f:
            print(json.dumps(line), file=f)
        write(self.out / "real.md", self.lines)
        print(cells(line), flush=True)
        if whole.status != 0:
            print("\n".join(whole.output.splitlines()[-8:]), flush=True)
        elif armed.status != 0 or armed.entries("refused"):
            print("\n".join(armed.said()[-14:]), flush=True)

    def all(self) -> None:
        for number, part in enumerate(self.args.parts):
            for row in self.rows:
                known = self.room[row["name"]]
                if self.left() < (10 + 4 * known[0].seconds if known else 30):
                    print(f"{row['name']}, {part}: left out, the budget is spent", flush=True)
                    continue
                try:
                    self.case(row, part, number)
                except Exception as failure:
                    print(f"{row['name']}, {part}: {type(failure).__name__}: {failure}", flush=True)


def prepared(
    row: dict[str, Any], scripts: Path, work: Path, runs: Path, device: Any, **more: object
) -> tuple[list[str], Path, dict[str, str]]:
    """A script's command, the folder in which it runs, and its environment. ``more`` are values beside $SCRIPTS and $WORK."""
    fill = {"$SCRIPTS": str(scripts), "$WORK": str(work), **{f"${name}": str(value) for name, value in more.items()}}
    folder = scripts / row["folder"]
    command = [sys.executable, *(filled(text, fill) for text in row["command"])]
    if row["in_work"]:
        command[1], folder = str(folder / command[1]), work
    env = {**os.environ, **device.environment(), "HEADROOM_RUNS_DIR": str(runs), MARK: str(work), "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
    for name, value in [("PYTHONPATH+", "$SCRIPTS/stubs:$SCRIPTS/wheels"), *row["environment"].items()]:
        name, added = name.rstrip("+"), name.endswith("+")
        env[name] = filled(value, fill) + (":" + env.get(name, "") if added else "")
    return command, folder, env


def filled(text: str, fill: dict[str, str]) -> str:
    for name, value in fill.items():
        text = text.replace(name, value)
    return text


def end(mark: str, child: subprocess.Popen[bytes]) -> None:
    """Ends a run and everything that it has started: first gently, so that headroom can close its records."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
    wanted = f"{MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)
        except OSError:
            continue


def difference(want: list[float], got: list[float]) -> Optional[float]:
    pairs = list(zip(want, got))
    return max(abs(a - b) / max(abs(a), 1e-9) for a, b in pairs) if pairs else None


def cells(line: dict[str, Any]) -> str:
    room, bare, armed = line["room"], line.get("bare"), line.get("headroom")
    if not bare or not armed:
        return table([line["name"], line["part"], f"{room[0]['peak'] / GIB:.1f}", f"with room: status {room[0]['status']}", *["–"] * 9])
    number = lambda value: "–" if value is None else f"{value:.1e}"  # noqa: E731
    return table([
        line["name"], line["part"], f"{line['limit'] / GIB:.2f} of {room[0]['peak'] / GIB:.2f}",
        f"status {bare['status']}, {len(bare['losses'])} losses", f"status {armed['status']}", f"{len(armed['losses'])} of {len(room[0]['losses'])}",
        number(line["difference"]), number(line["noise"]), room[0]["seconds"], armed["seconds"], armed["attempts"], armed["ways"],
        "; ".join(map(str, armed["refused"])).replace("|", "/") or "–",
    ])  # fmt: skip


def table(row: list[Any]) -> str:
    return "| " + " | ".join(map(str, row)) + " |"


def write(file: Path, lines: list[dict[str, Any]]) -> None:
    names = COLUMNS.split(", ")
    file.write_text("\n".join([table(names), table(["---"] * len(names)), *map(cells, lines)]) + "\n")


def arguments(doc: Optional[str], limit: float) -> argparse.ArgumentParser:
    """What the programs that run public scripts can be given. ``limit`` is how many seconds a run may take, unless told otherwise."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("headroom", type=Path)
    parser.add_argument("scripts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--budget", type=float, default=1e9)
    parser.add_argument("--limit", type=float, default=limit)
    parser.add_argument("--cpu", action="store_true")
    return parser


def begin(parser: argparse.ArgumentParser, bench: Any) -> None:
    """Makes a bench of the arguments, and runs it to its end."""
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    begun = bench(args)
    try:
        begun.all()
    finally:
        begun.device.close()


def main() -> None:
    if sys.argv[1:] == ["hold"]:
        return hold()
    parser = arguments(__doc__, 90.0)
    parser.add_argument("--parts", type=float, nargs="+", default=[0.6, 0.35])
    begin(parser, Bench)


if __name__ == "__main__":
    main()
