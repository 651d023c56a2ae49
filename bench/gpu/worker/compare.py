"""Reads the files that training runs left, and compares a training run with its reference in a row of a Markdown table."""

from __future__ import annotations

import datetime
import json
import os
from statistics import median
from typing import Any, Optional

NAMES = (
    "part, of the peak, bare, with headroom, steps, effective batch, processes, survived, refused, largest loss difference, "
    "seconds reference, seconds headroom, seconds lost at failures, steady step of the reference's"
)
PEERS_NAMES = "with, end, steps, redone, effective batch, largest loss difference, seconds"
WARM = 2  # first steps of a process, which are left out of medians


def line(cells: Any) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def header(names: str) -> str:
    cells = names.split(", ")
    return line(cells) + "\n" + line("---" for _ in cells)


HEADER, PEERS_HEADER = header(NAMES), header(PEERS_NAMES)


def read(path: str) -> list[dict[str, Any]]:
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return [json.loads(text) for text in f]


class Ran:
    """A training run that has ended. If a step was run more than once, the last time counts."""

    def __init__(self, folder: str, run: Optional[str], status: int, seconds: float) -> None:
        self.folder, self.status, self.seconds = folder, status, seconds
        self.lines = read(os.path.join(folder, "steps.jsonl"))
        self.steps = {made["step"]: made for made in self.lines}
        self.end = (read(os.path.join(folder, "end.json")) or [{"end": f"status {status}", "asked": 0}])[-1]
        self.journal = read(os.path.join(run, "journal.jsonl")) if run else []

    def entries(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.journal if entry["kind"] == kind]

    def ended(self) -> str:
        if self.end["end"] == "done" and self.status == 0:
            return "done"
        return f"{self.end['end']} in step {len(self.steps) + 1}, status {self.status}"

    def failing(self) -> set[int]:
        """Returns the steps in which headroom survived a failure, identified by the times in the journal."""
        times = [seconds(entry["time"]) for entry in self.entries("survived")]
        return {s for s, made in self.steps.items() if any(made["at"] - made["seconds"] <= t <= made["at"] + 0.005 for t in times)}

    def median(self, after: int = WARM) -> float:
        """Returns the median seconds of the steps after the given one, or NaN if there are none."""
        return median([made["seconds"] for s, made in self.steps.items() if s > after] or [float("nan")])


def seconds(text: str) -> float:
    """Returns the Unix time of a timestamp with up to nine decimals."""
    stamp, _, zone = text.replace("Z", "+00:00").partition("+")
    return datetime.datetime.fromisoformat(f"{stamp[:26].ljust(19)}+{zone or '00:00'}").timestamp()


def difference(want: Ran, got: Ran) -> str:
    pairs = [(want.steps[s]["loss"], got.steps[s]["loss"]) for s in want.steps.keys() & got.steps.keys()]
    return f"{max(abs(a - b) / abs(a) for a, b in pairs):.1e}" if pairs else "–"


def batch(want: Ran, got: Ran) -> str:
    """Says whether every step that was run had as many samples as the same step of the reference."""
    found = {made["samples"] for s, made in got.steps.items() if want.steps.get(s, made)["samples"] != made["samples"]}
    asked = want.steps[min(want.steps)]["samples"]
    return f"{asked}, kept" if not found else f"{', '.join(map(str, sorted(found)))} instead of {asked}"


def row(part: str, fraction: float, reference: Ran, bare: Ran, armed: Ran) -> str:
    """Returns the row of one fraction. The seconds lost are the time that failing steps took beyond the median of
    the steps after the last failure. First steps are slower in any case, so the time that the same steps of the reference
    took beyond the reference's median is subtracted."""
    failing = armed.failing()
    behind = max([WARM, *failing])
    steady, usual = armed.median(behind), reference.median()
    lost = sum(armed.steps[s]["seconds"] - steady - max(0.0, reference.steps[s]["seconds"] - usual) for s in failing if s in reference.steps)
    return line(
        (
            part,
            fraction,
            bare.ended(),
            armed.ended(),
            f"{len(armed.steps)} of {reference.end['asked']}" + (f", {again} redone" if (again := len(armed.lines) - len(armed.steps)) else ""),
            batch(reference, armed) if armed.steps else "–",
            len(armed.entries("attempt")),
            len(armed.entries("survived")),
            len(armed.entries("refused")),
            difference(reference, armed),
            f"{reference.seconds:.1f}",
            f"{armed.seconds:.1f}",
            f"{lost:.2f} in step{'s' if len(failing) > 1 else ''} {', '.join(map(str, sorted(failing)))}" if failing else "–",
            f"{steady / reference.median(behind):.3f}",
        )
    )


def peer(name: str, reference: Optional[Ran], ran: Ran, asked: Ran) -> str:
    """Returns the row of one peer. Without a reference run of the same training job, the row compares no losses."""
    return line(
        (
            name,
            ran.ended(),
            f"{len(ran.steps)} of {asked.end['asked']}",
            len(ran.lines) - len(ran.steps),
            batch(asked, ran) if ran.steps else "–",
            difference(reference, ran) if reference else "–",
            f"{ran.seconds:.1f}",
        )
    )
