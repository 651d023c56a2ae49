"""Asks headroom for the largest batch of public training scripts, unmodified, and tries the answers in fresh processes.

    python bench/gpu/find_scripts.py HEADROOM SCRIPTS OUT [--only NAME…] [--gib GIB] [--budget SECONDS] [--cpu]

SCRIPTS is as for real.py, with find.json in place of table.json: its commands have $BATCH where the size of the batch stands, and

    start        the size that the command has when headroom is asked
    most         the largest for which there are data; 0 for no limit

Another process holds all of the GPU but --gib (with --cpu, memory is the process's data segment). `headroom find --json -- COMMAND` is
asked once. Then the command itself is run with two sizes: the answer, which must make STEPS steps, and the smallest of which the answer
would be less than 0.98, which must run out of memory. If it does not, larger ones are tried, each by a tenth. Rows of
OUT/found.md and lines of OUT/found.jsonl.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import time
from pathlib import Path
from typing import Any, Optional

from real import GIB, Gpu, Host, arguments, begin, end, losses, prepared, table

STEPS = 3
LARGER = 3  # sizes above the answer that are tried
OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|CUBLAS_STATUS_ALLOC_FAILED|MemoryError")
COLUMNS = "script, GiB, start, answer, holds, the next size by 2 %, answer / true, sizes tried, ran out, s"


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.scripts, self.out = args, args.scripts.resolve(), args.out.resolve()
        self.until = time.monotonic() + args.budget
        self.device = Host() if args.cpu else Gpu()
        self.room = int(args.gib * GIB)
        self.lines: list[dict[str, Any]] = []

    def left(self) -> float:
        return self.until - time.monotonic()

    def run(self, row: dict[str, Any], kind: str, rows: int, find: bool = False) -> tuple[Optional[bool], float, str]:
        """Runs a command. Returns whether it made its steps (None if neither that nor that it ran out of memory was
        seen), its seconds, and what it printed."""
        work = self.out / f"{row['name']}-{kind}"
        work.mkdir(parents=True)
        command, folder, env = prepared(row, self.scripts, work, self.out / "runs", self.device, BATCH=rows)
        if find:
            command = [str(self.args.headroom.resolve()), "find", "--json", "--", *command]
        self.device.leave(self.room)
        begun = time.monotonic()
        with open(work / "output.log", "w") as log, open(work / "said.json", "w") as said:
            child = subprocess.Popen(
                command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=said if find else log, stderr=log, start_new_session=True,
                preexec_fn=self.device.limit(self.room)
            )  # fmt: skip
            made = False
            while child.poll() is None and time.monotonic() < begun + max(1.0, min(self.args.limit, self.left())) and not made:
                time.sleep(0.1)
                made = not find and len(losses(row, work, self.printed(work))) >= STEPS
        seconds, ended = time.monotonic() - begun, child.poll()
        end(str(work), child)
        self.device.settle()
        if find:
            return ended == 0, seconds, (work / "said.json").read_text()
        printed = self.printed(work)
        if made or ended == 0:
            return True, seconds, printed
        return (False if OUT_OF_MEMORY.search(printed) else None), seconds, printed

    def printed(self, work: Path) -> str:
        return (work / "output.log").read_text(errors="replace").replace("\r", "\n")

    def case(self, row: dict[str, Any]) -> None:
        most = row.get("most") or 1 << 30
        ok, seconds, said = self.run(row, "find", row["start"], find=True)
        line: dict[str, Any] = {"name": row["name"], "gib": self.args.gib, "start": row["start"], "seconds": seconds, "tries": []}
        try:
            found = json.loads(said)
        except ValueError:
            found = {}
        answer = found.get("largest") or 0
        line |= {"answer": answer, "ok": ok, "tried": [(t["rows"], t["fits"]) for t in found.get("tried", [])]}
        if not answer:
            line["end"] = self.printed(self.out / f"{row['name']}-find").splitlines()[-6:]
        sizes = [answer, int(answer / 0.98) + 1] if answer else []
        while sizes and self.left() > 20:
            rows = sizes.pop(0)
            if rows > most:
                line["tries"].append((rows, "no data"))
                continue
            fits, _, printed = self.run(row, f"try-{rows}", rows)
            line["tries"].append((rows, {True: "fits", False: "out of memory", None: "failed"}[fits]))
            if fits is None:
                line["end"] = printed.splitlines()[-4:]
            if fits and not sizes and len(line["tries"]) < 2 + LARGER:
                sizes.append(rows + max(1, rows // 10))
        self.lines.append(line)
        with open(self.out / "found.jsonl", "a") as f:
            print(json.dumps(line), file=f)
        names = COLUMNS.split(", ")
        (self.out / "found.md").write_text("\n".join([table(names), table(["---"] * len(names)), *map(cells, self.lines)]) + "\n")
        print(cells(line), flush=True)
        if line.get("end"):
            print("\n".join(f"    {text[:300]}" for text in line["end"]), flush=True)

    def all(self) -> None:
        for row in json.loads((self.scripts / "find.json").read_text()):
            if row["on"] != ("cpu" if self.args.cpu else "gpu") or self.args.only and row["name"] not in self.args.only:
                continue
            if self.left() < 60:
                print(f"{row['name']}: left out, the budget is spent", flush=True)
                continue
            try:
                self.case(row)
            except Exception as failure:
                print(f"{row['name']}: {type(failure).__name__}: {failure}", flush=True)


def cells(line: dict[str, Any]) -> str:
    tries = line["tries"]
    held = [rows for rows, what in tries if what == "fits"]
    failed = [rows for rows, what in tries if what == "out of memory"]
    holds = tries[0][1] if tries else "–"
    if tries and holds == "fits" and failed:
        share = f"≥ {line['answer'] / (min(failed) - 1):.3f}"
    else:
        share = f"≤ {line['answer'] / max(held):.3f}" if len(held) > 1 else "–"
    return table([
        line["name"], line["gib"], line["start"], line["answer"] or "–", holds, "; ".join(f"{rows} {what}" for rows, what in tries[1:]) or "–", share,
        " ".join(f"{n}" if ok else f"{n}!" for n, ok in line["tried"]) or "–", sum(not ok for _, ok in line["tried"]),
        f"{line['seconds']:.1f}",
    ])  # fmt: skip


def main() -> None:
    parser = arguments(__doc__, 120.0)
    parser.add_argument("--gib", type=float, default=10.0)
    begin(parser, Bench)


if __name__ == "__main__":
    main()
