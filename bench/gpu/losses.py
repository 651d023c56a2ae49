"""Compares the losses of runs with those of their references, step by step.

    python losses.py RUNS
"""

import json
import pathlib
import sys

runs = pathlib.Path(sys.argv[1])


def metrics(name: str) -> list[dict]:
    return [json.loads(line) for line in (runs / name / "metrics.jsonl").open()]


def entries(name: str) -> list[dict]:
    return [json.loads(line) for line in (runs / name / "journal.jsonl").open()]


print("| run | steps | samples per step | failures | verdicts | micro-batches | largest relative loss difference |")
print("|---|---|---|---|---|---|---|")
for name, reference in [
    ("capped-8", "reference"),
    ("capped-24", "capped-24-reference"),
    ("foreign", "foreign-reference"),
    ("whole", "whole-reference"),
]:
    if not (runs / name).exists() or not (runs / reference).exists():
        continue
    steps, wanted = metrics(name), metrics(reference)
    verdicts = [e["verdict"]["cause"] for e in entries(name) if e["kind"] == "oom"]
    micros: list[int] = []
    for s in steps:
        if not micros or micros[-1] != max(s["splits"]):
            micros.append(max(s["splits"]))
    apart = max(abs(a["loss"] - b["loss"]) / b["loss"] for a, b in zip(steps, wanted, strict=True))
    samples = sorted({s["samples"] for s in steps})
    print(
        f"| {name} | {len(steps)} | {', '.join(map(str, samples))} | {len(verdicts)} | {', '.join(sorted(set(verdicts)))} "
        f"| {' → '.join(map(str, micros))} | {apart:.1e} |"
    )
