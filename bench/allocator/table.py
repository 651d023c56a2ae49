"""Compare the replays of one trace, in a Markdown table and in a JSON file that holds all figures.

python3 table.py RUNS OUTPUT

RUNS holds trace.json, about.txt, which becomes the top of the page, and a result-*.json from each run of
allocbench and replay.py. The rows are in the order of the files' names. The output is OUTPUT/allocator.json and
OUTPUT/allocator.md. The exit status is 1 if allocators that completed every step report different
peaks of allocated memory, because then they cannot have replayed the same trace.
"""

import json
import sys
from pathlib import Path
from typing import Any

GIB = 2**30

NOTES = """\
- A pair is an allocation and its free: the time of a step ÷ its pairs. The median is a step that finds
  everything in the cache; the mean has the calls of the driver in it.
- PyTorch is called from Python: *less Python* is the median less that of the same loop with tensors of
  0 bytes. The driver's times have about 1 µs of Python in them.
- *At peak* is the largest amount reserved ÷ the largest allocated; *at the end* and *emptied*, reserved ÷
  allocated after the last step, when the state alone is left, before and after the cache was emptied.
- *Driver calls* are segments reserved + given back, ≈ where they are those of a replay that came to
  slightly other amounts.
- *Retries* are allocations that succeeded after the allocator had emptied its cache by itself. A *failed*
  step is made again with the cache emptied by hand; a *lost* one failed even then.
"""

HEADER = [
    "allocator",
    "limit ÷ peak",
    "steps",
    "ns a pair: median",
    "less Python",
    "99 %",
    "mean",
    "peak allocated, GiB",
    "peak reserved, GiB",
    "at peak",
    "at the end",
    "emptied",
    "driver calls",
    "retries",
    "failed",
    "lost",
]


def label(r: dict[str, Any]) -> str:
    names = {"headroom": "headroom", "pytorch": "PyTorch", "driver": "cuMemAlloc, no cache"}
    settings = r.get("settings")
    return names[r["allocator"]] + (f", `{settings}`" if settings else "")


def ratio(a: float, b: float) -> str:
    return f"{a / b:.3f}" if b else "–"


def calls(r: dict[str, Any]) -> str:
    c = r["driver_calls"]
    return f"{'' if c['exact'] else '≈ '}{c['reserve']:,} + {c['release']:,}"


def row(r: dict[str, Any]) -> list[str]:
    overhead = r["overhead_ns"]
    return [
        label(r),
        f"{r['factor']:g}" if r["factor"] else "none",
        f"{r['steps']:,}",
        f"{r['pair_ns']:,.0f}",
        "–" if overhead is None else f"{r['pair_ns'] - overhead:,.0f}",
        f"{r['pair_ns_p99']:,.0f}",
        f"{r['pair_ns_mean']:,.0f}",
        f"{r['peak_allocated'] / GIB:.3f}",
        f"{r['peak_reserved'] / GIB:.3f}",
        ratio(r["peak_reserved"], r["peak_allocated"]),
        ratio(r["reserved"], r["allocated"]),
        ratio(r["emptied"], r["allocated"]),
        calls(r),
        f"{r['retries']:,}",
        f"{r['failed']:,}",
        f"{r['lost']:,}",
    ]


def driver(r: dict[str, Any]) -> str:
    """Return a sentence about how much memory the driver could still give out."""
    return (
        f"- cuMemAlloc in the middle of the longest step: {r['free'] / GIB:.2f} GiB free, of which one "
        f"allocation got {r['largest'] / GIB:.2f}: {1 - r['largest'] / r['free']:.2%} could not be given out.\n"
    )


def markdown(trace: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    lines = [HEADER, ["---", *["---:"] * (len(HEADER) - 1)], *map(row, rows)]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    shape = (
        f"{trace['model']}: {len(trace['lengths']):,} steps, {len(trace['ops']) // 2} tensors a step, "
        f"at most {trace['peak'] / GIB:.3f} GiB at once."
    )
    versions = ", ".join(dict.fromkeys(f"{r['allocator']} {r['version']}" for r in rows))
    where = ", ".join(dict.fromkeys(r["device"] for r in rows))
    extra = "".join(driver(r) for r in rows if r.get("free"))
    return f"{shape}  \nOn {where}; {versions}.\n\n{table}\n{NOTES}{extra}"


def disagree(rows: list[dict[str, Any]], steps: int) -> list[str]:
    """Return the peaks of the allocators that replayed the whole trace, or nothing if the peaks are equal."""
    whole = [r for r in rows if r["steps"] == steps and not r["lost"] and r["peak_allocated"]]
    peaks = {label(r): r["peak_allocated"] for r in whole}
    return [f"{name}: {peak}" for name, peak in peaks.items()] if len(set(peaks.values())) > 1 else []


def main() -> int:
    runs, output = Path(sys.argv[1]), Path(sys.argv[2])
    trace = json.loads((runs / "trace.json").read_text())
    rows = [json.loads(path.read_text()) for path in sorted(runs.glob("result-*.json"))]
    about = (runs / "about.txt").read_text()
    text = f"{about}\n{markdown(trace, rows)}"
    (output / "allocator.md").write_text(text)
    (output / "allocator.json").write_text(
        json.dumps({"trace": trace["model"], "rows": rows}, indent=1) + "\n"
    )
    print(text)
    different = disagree(rows, len(trace["lengths"]))
    if different:
        print("peaks of what was allocated differ:", "; ".join(different), file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
