"""Compare the runs of headroom and PyTorch, in a Markdown table and in a JSON file that holds all figures.

python3 compare.py RUNS OUTPUT [LIMIT]

RUNS holds headroom-NAME.json and pytorch-NAME.json, and .safetensors files of the same names with the gradients
of the first step. NAME is precision-context, or precision-context-variant for a run whose losses have no limit.
control-NAME.json, if present, is a second run of PyTorch that rounds differently. about.txt becomes the top of
the page. The output is OUTPUT/gpt2.json and OUTPUT/gpt2.md. The exit status is 1 if a run is missing or does
not meet a limit; LIMIT replaces the limits of losses and gradients.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

# The limits that must hold. Those of losses are differences, those of gradients relative errors, and those of
# speed and memory ratios of headroom's value to PyTorch's.
LIMITS = {
    "loss": {"fp32": 1e-4, "tf32": 1e-3},
    "gradient": {"fp32": 1e-4, "bf16": 1e-2},
    "speed": {"tf32-512": 0.8, "bf16-512": 0.6},
    "memory": {"tf32": 1.1, "bf16": 1.1},
}

Gradients = dict[str, torch.Tensor]


def read_gradients(path: Path, scale: float, prefix: str) -> Gradients:
    found = {}
    with safe_open(path, framework="pt", device="cpu") as file:
        for name in file.keys():  # noqa: SIM118, it is not a mapping
            if name.startswith(prefix):
                found[name.removeprefix(prefix)] = file.get_tensor(name).double() / scale
    return found


def distance(a: Gradients, b: Gradients) -> dict[str, Any]:
    """Return ‖a − b‖ ÷ ‖b‖ over all parameters together, and the parameter with the largest such ratio."""
    if a.keys() != b.keys():
        raise ValueError(f"gradients of different parameters: {sorted(a.keys() ^ b.keys())}")
    difference = {name: float((a[name] - b[name]).square().sum()) for name in b}
    size = {name: float(b[name].square().sum()) for name in b}
    each = {name: (difference[name] / size[name]) ** 0.5 for name in b if size[name] > 0}
    worst = max(each, key=lambda name: each[name])
    overall = (sum(difference.values()) / sum(size.values())) ** 0.5
    return {"relative": overall, "worst": each[worst], "worst_parameter": worst}


def slope(run: dict[str, Any]) -> float | None:
    """Return the increase in peak memory per sample, in bytes, from the smallest micro-batch to the largest."""
    points = sorted((m["micro"], m["peak_bytes"]) for m in run.get("memory") or [])
    if len(points) < 2:
        return None
    (a, low), (b, high) = points[0], points[-1]
    return (high - low) / (b - a)


def ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


class Pair:
    """A run of headroom and the same run of PyTorch."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.precision = folder, name, name.split("-")[0]
        self.ours = json.loads((folder / f"headroom-{name}.json").read_text())
        self.theirs = json.loads((folder / f"pytorch-{name}.json").read_text())
        control = folder / f"control-{name}.json"
        self.control = json.loads(control.read_text()) if control.exists() else None
        for other in [self.theirs, self.control or self.theirs]:
            for key in ["stream_crc32", "precision", "context", "micro", "effective"]:
                if self.ours[key] != other[key]:
                    raise ValueError(f"{key}: headroom {self.ours[key]}, PyTorch {other[key]}")

    def our_gradients(self) -> Gradients:
        path = self.folder / f"headroom-{self.name}.safetensors"
        return read_gradients(path, self.ours["moment_scale"], "adamw.m.")

    def their_gradients(self, name: str) -> Gradients:
        return read_gradients(self.folder / f"pytorch-{name}.safetensors", 1.0, "")

    def gradients(self, row: dict[str, Any]) -> None:
        ours, theirs = self.our_gradients(), self.their_gradients(self.name)
        row["gradient"] = distance(ours, theirs)
        exact = "fp32-" + self.name.split("-")[1]
        if self.precision != "fp32" and (self.folder / f"pytorch-{exact}.safetensors").exists():
            # Each of the two rounds in different places. Their distances from PyTorch in fp32 show which one is
            # further off.
            best = self.their_gradients(exact)
            row["gradient_to_fp32"] = {"headroom": distance(ours, best), "pytorch": distance(theirs, best)}

    def row(self) -> dict[str, Any]:
        ours, theirs = self.ours, self.theirs
        losses = list(zip(ours["losses"] or [], theirs["losses"], strict=False))
        again = zip(self.control["losses"], theirs["losses"], strict=False) if self.control else ()
        row: dict[str, Any] = {
            "name": self.name,
            "micro": ours["micro"],
            "effective": ours["effective"],
            "steps": len(losses),
            "loss_difference": max((abs(a - b) for a, b in losses), default=None),
            "loss_difference_of_pytorch": max((abs(a - b) for a, b in again), default=None),
            "losses_first_last": [losses[0], losses[-1]] if losses else None,
            "first_grad_norm": [x["grad_norms"][0] for x in (ours, theirs) if losses],
            "tokens_per_second": [ours.get("tokens_per_second"), theirs.get("tokens_per_second")],
            "bytes_per_sample": [slope(ours), slope(theirs)],
            "peak_bytes": [ours.get("peak_bytes"), theirs.get("peak_bytes")],
        }
        row["speed"] = ratio(*row["tokens_per_second"])
        row["memory"] = ratio(*row["bytes_per_sample"])
        self.gradients(row)
        row["missed"] = missed(self.name, row)
        return row


def missed(name: str, row: dict[str, Any]) -> list[str]:
    """Return the limits that a row does not meet."""
    values = {
        "loss": row["loss_difference"],
        "gradient": row["gradient"]["relative"],
        "speed": row["speed"],
        "memory": row["memory"],
    }
    found = []
    for what, limits in LIMITS.items():
        limit, value = limits.get(name, limits.get(name.split("-")[0])), values[what]
        if what == "loss" and name.count("-") > 1:
            continue
        if limit is None or value is None:
            continue
        kept = value >= limit if what == "speed" else value <= limit
        if not kept:
            found.append(f"{what} {value:.3g}, limit {limit:g}")
    return found


def number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def markdown(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| run | micro | steps | loss, largest difference: to PyTorch, PyTorch to itself | gradient, relative | worst parameter "
        "| to PyTorch fp32: headroom, PyTorch | tokens/s: headroom, PyTorch | ratio "
        "| MiB a sample: headroom, PyTorch | ratio | limits missed |",
        "|---|---:|---:|---:|---:|---|---|---|---:|---|---:|---|",
    ]
    for r in rows:
        if "error" in r:
            lines.append(f"| {r['name']} | " + "– | " * 10 + r["error"].replace("|", "/") + " |")
            continue
        g, exact = r["gradient"], r.get("gradient_to_fp32")
        speed = ", ".join(number(x, ",.0f") for x in r["tokens_per_second"])
        memory = ", ".join(number(x and x / 2**20, ",.1f") for x in r["bytes_per_sample"])
        to_fp32 = f"{exact['headroom']['relative']:.1e}, {exact['pytorch']['relative']:.1e}" if exact else "–"
        cells = [
            r["name"],
            str(r["micro"]),
            str(r["steps"]),
            f"{number(r['loss_difference'], '.1e')}, {number(r['loss_difference_of_pytorch'], '.1e')}",
            f"{g['relative']:.1e}",
            f"{g['worst_parameter']} {g['worst']:.1e}",
            to_fp32,
            speed,
            number(r["speed"], ".2f"),
            memory,
            number(r["memory"], ".2f"),
            "; ".join(r["missed"]) or "none",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    if len(sys.argv) not in (3, 4):
        print("usage: compare.py RUNS OUTPUT [LIMIT]", file=sys.stderr)
        return 2
    runs, output = Path(sys.argv[1]), Path(sys.argv[2])
    if len(sys.argv) > 3:
        for what in ["loss", "gradient"]:
            LIMITS[what] = dict.fromkeys(["fp32", "tf32", "bf16"], float(sys.argv[3]))
    paths = [*runs.glob("headroom-*.json"), *runs.glob("pytorch-*.json")]
    names = sorted({p.stem.split("-", 1)[1] for p in paths}, key=lambda n: (int(n.split("-")[1]), n))
    rows, raw = [], {p.stem: json.loads(p.read_text()) for p in sorted(paths)}
    for name in names:
        try:
            rows.append(Pair(runs, name).row())
        except (OSError, KeyError, ValueError) as e:
            rows.append({"name": name, "error": f"{type(e).__name__}: {e}"})
    about = (runs / "about.txt").read_text() if (runs / "about.txt").exists() else ""
    text = markdown(rows)
    print(text, end="")
    (output / "gpt2.md").write_text(f"# GPT-2 124M: headroom and PyTorch\n\n{about}\n{text}")
    everything = {"about": about.splitlines(), "rows": rows, "runs": raw}
    (output / "gpt2.json").write_text(json.dumps(everything) + "\n")
    return 1 if not rows or any(r.get("error") or r.get("missed") for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
