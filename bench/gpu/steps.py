"""Compares the steps of two runs, and prints how long the pauses between attempts were.

    steps.py REFERENCE.jsonl OTHER.jsonl [RUN]

If a step was run more than once, the last time counts. With several ranks, the lines of
all ranks agree. The exit status is 1 unless samples and learning rates are equal and losses
agree to within a thousandth.
"""

import datetime
import json
import sys


def steps(path: str) -> dict[int, dict]:
    with open(path) as f:
        return {line["step"]: line for line in map(json.loads, f)}


def seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00").timestamp()


def pauses(run: str, path: str) -> None:
    with open(path) as f:
        lines = [json.loads(line) for line in f]
    with open(f"{run}/journal.jsonl") as f:
        entries = [entry for entry in map(json.loads, f) if entry["kind"] in ("attempt", "exit")]
    for ended, attempt, end in zip(entries[1::2], entries[2::2], entries[3::2]):
        at, began = seconds(ended["time"]), seconds(attempt["time"])
        first = next((line["at"] for line in lines if began < line.get("at", 0) < seconds(end["time"])), None)
        print(f"attempt {attempt['attempt']}: {began - at:.3f} s after the last one had ended and the GPUs had its memory back, "
              + (f"first step after {first - began:.1f} s more" if first else f"no step in its {end['seconds']:.1f} s"))


want, got = steps(sys.argv[1]), steps(sys.argv[2])
equal = want.keys() == got.keys() and all(want[s]["samples"] == got[s]["samples"] and want[s]["lr"] == got[s]["lr"] for s in want)
worst = max((abs(want[s]["loss"] - got[s]["loss"]) / abs(want[s]["loss"]) for s in want.keys() & got.keys()), default=1.0)
print(f"{len(got)} of {len(want)} steps, samples and learning rates {'equal' if equal else 'DIFFER'}, losses within {worst:.1e}; "
      f"micro-batches {want[min(want)]['micro']} and {got[max(got)]['micro']}")
if len(sys.argv) > 3 and sys.argv[3]:
    pauses(sys.argv[3], sys.argv[2])
sys.exit(not (equal and worst <= 1e-3))
