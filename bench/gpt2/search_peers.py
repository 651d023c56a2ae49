"""Compare how headroom and tools for PyTorch find the largest micro-batch of GPT-2 under a memory limit.

python3 search_peers.py --headroom bin/headroom --out peers.json

Each method runs in a process of its own, limited by set_per_process_memory_fraction, with the same model and
AdamW state, and three steps per trial:

bisection    the reference: bisects between 1 and --most, with the cache emptied before each trial
lightning    Tuner.scale_batch_size in mode binsearch with its defaults: from 2 up, minus its margin of 5 %
accelerate   find_executable_batch_size from --most down
headroom     headroom find on find.yaml, the same model, up to --most: a trial is one forward and
             backward pass with the optimizer's state in place, and the last trials are confirmations

The seconds do not include imports, the building of the model, or a first step with one sample; for headroom,
that step is its first trial. A size holds if three steps with it run afterwards in the same process, with the
cache emptied. For headroom, a size holds if the whole step that find runs with it succeeded. "sizes" lists the
sizes tried; ! marks those that ran out of memory. The JSON goes to --out, and a table to a file of the same
name with the suffix .md. --pretend N needs no GPU: it uses a toy model that runs out of memory above N samples,
which for headroom runs on the embedded device.
"""

import argparse
import gc
import importlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch

from gpt2 import GPT2, Config, adamw
from lightning_size import found_by_lightning

STEPS = 3
TOY = Config(layers=1, width=16, heads=2, vocab=64, positions=8)
HERE = Path(__file__).resolve().parent


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--precision", default="bf16", choices=["fp32", "tf32", "bf16"])
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--gib", type=float, default=24, help="cap on the process, in GiB")
    p.add_argument("--most", type=int, default=512, help="largest micro-batch considered")
    p.add_argument("--pretend", type=int, default=0)
    p.add_argument("--headroom", type=Path, help="the program; without it there is no row of headroom's")
    p.add_argument("--only", choices=sorted(METHODS), help="run this one, here")
    p.add_argument("--out", type=Path, help="write the JSON here instead of to standard output")
    return p.parse_args()


class Bench:
    """The model that the methods search with. trials holds every size that was tried, and whether its steps ran to
    their end."""

    def __init__(self, a: argparse.Namespace) -> None:
        self.a = a
        self.device = "cpu" if a.pretend else "cuda"
        self.context = TOY.positions if a.pretend else a.context
        self.trials: list[tuple[int, bool]] = []
        if not a.pretend:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(a.gib * 2**30 / total)
        torch.backends.cuda.matmul.allow_tf32 = a.precision == "tf32"
        self.model = GPT2(TOY if a.pretend else Config(positions=a.context)).to(self.device)
        self.optimizer = adamw(self.model, lr=3e-4, decay=0.1)

    def autocast(self) -> AbstractContextManager[Any]:
        if self.a.precision == "bf16":
            return torch.autocast(self.device, dtype=torch.bfloat16)
        return nullcontext()

    def loss(self, rows: torch.Tensor) -> torch.Tensor:
        if self.a.pretend and len(rows) > self.a.pretend:
            raise torch.OutOfMemoryError("CUDA out of memory. Pretended.")
        return self.model(rows[:, :-1], rows[:, 1:])

    def steps(self, micro: int) -> None:
        """Run three optimizer steps with micro-batches of this size."""
        for _ in range(STEPS):
            rows = torch.zeros(micro, self.context + 1, dtype=torch.long).to(self.device)
            self.optimizer.zero_grad(set_to_none=True)
            with self.autocast():
                loss = self.loss(rows)
            loss.backward()
            self.optimizer.step()
            loss.item()

    def clean(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        gc.collect()
        if not self.a.pretend:
            torch.cuda.empty_cache()

    def fits(self, micro: int) -> bool:
        """Return whether three steps succeed. The clean-up comes after the except block, because inside it the
        exception would keep tensors alive."""
        self.clean()
        try:
            self.steps(micro)
            ok = True
        except torch.OutOfMemoryError:
            ok = False
        self.clean()
        return ok


def bisection(b: Bench) -> int:
    low, high = 0, b.a.most + 1
    while high - low > 1:
        middle = (low + high) // 2
        ok = b.fits(middle)
        b.trials.append((middle, ok))
        low, high = (middle, high) if ok else (low, middle)
    return low


def accelerate(b: Bench) -> int:
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=b.a.most)
    def train(batch_size: int) -> int:
        b.trials.append((batch_size, False))
        b.steps(batch_size)
        b.trials[-1] = (batch_size, True)
        return batch_size

    return train()


def lightning(b: Bench) -> int:
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader

    class Rows(torch.utils.data.Dataset[torch.Tensor]):
        row = torch.zeros(b.context + 1, dtype=torch.long)

        def __len__(self) -> int:
            return 3 * 8192  # more than any batch that Lightning tries

        def __getitem__(self, _: int) -> torch.Tensor:
            return self.row

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.batch_size = b.model, 2

        def on_train_start(self) -> None:
            b.trials.append((self.batch_size, False))

        def on_train_end(self) -> None:
            b.trials[-1] = (self.batch_size, True)

        def training_step(self, rows: torch.Tensor, _: int) -> torch.Tensor:
            return b.loss(rows)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return b.optimizer

        def train_dataloader(self) -> DataLoader[torch.Tensor]:
            return DataLoader(Rows(), batch_size=self.batch_size)

    return found_by_lightning(Module(), "binsearch", STEPS, bool(b.a.pretend), b.a.precision == "bf16")


METHODS: dict[str, Callable[[Bench], int]] = {
    "bisection": bisection,
    "lightning": lightning,
    "accelerate": accelerate,
}


MODULES = {"lightning": "lightning.pytorch.tuner", "accelerate": "accelerate.utils"}


def measure(a: argparse.Namespace) -> dict[str, Any]:
    """Run one method in this process and return its results."""
    b = Bench(a)
    b.steps(1)
    b.clean()
    if a.only in MODULES:
        importlib.import_module(MODULES[a.only])  # before the search is timed
    start = time.perf_counter()
    found = METHODS[a.only](b)
    seconds = time.perf_counter() - start
    b.model.to(b.device)  # Lightning leaves the model and the optimizer's state on the host
    b.optimizer = adamw(b.model, lr=3e-4, decay=0.1)
    sizes = b.trials
    return {
        "method": a.only,
        "found": found,
        "holds": b.fits(found),
        "trials": len(sizes),
        "failures": sum(not ok for _, ok in sizes),
        "largest_that_ran": max((n for n, ok in sizes if ok), default=0),
        "seconds": round(seconds, 2),
        "sizes": " ".join(f"{n}" if ok else f"{n}!" for n, ok in sizes),
    }


def headroom(a: argparse.Namespace) -> dict[str, Any]:
    """Run headroom find and return its results. Trials are timed by the moments at which headroom prints the lines
    about them."""
    settings = {"batch.effective": a.most, "model.context": a.context, "device.precision": a.precision}
    settings["device.capacity"] = f"{a.gib:g}GiB"
    if a.pretend:
        settings = {"batch.effective": a.most, "device.kind": "host", "device.capacity": "2MiB", "data.limit": "64KiB"}
        settings |= {f"model.{key}": getattr(TOY, key) for key in ["layers", "width", "heads"]}
        settings |= {"model.context": TOY.positions, "model.vocab": 256}
    command = [str(a.headroom.resolve()), "find", str(HERE / "find.yaml"), "--json"]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    times, begun = [], time.perf_counter()
    with subprocess.Popen(
        command, cwd=HERE.parent.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stderr
        said = []
        for line in process.stderr:
            said.append(line)
            if re.search(r"micro-batch \d+ (fits|does not fit):", line):
                times.append(time.perf_counter())
        answer = process.stdout.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: status {process.returncode}\n{''.join(said)}")
    whole = time.perf_counter() - begun
    found = json.loads(answer)
    probes = found["probes"]
    if len(times) != len(probes) or probes[0]["n"] != 1:
        raise RuntimeError(
            f"{len(probes)} probes, first {probes[0]}, and {len(times)} lines about them: expected as many, from 1 on"
        )
    return {
        "method": "headroom",
        "found": found["largest"]["micro"],
        "recommended": found["recommended"]["micro"],
        "holds": found["largest"]["steps"] > 0,
        "trials": len(probes),
        "failures": sum(not p["fits"] for p in probes),
        "largest_that_ran": max(p["n"] for p in probes if p["fits"]),
        "seconds": round(times[-1] - times[0], 2),
        "process_seconds": round(whole, 2),
        "sizes": " ".join(f"{p['n']}" if p["fits"] else f"{p['n']}!" for p in probes),
    }


SAYS = {
    "bisection": "three steps a trial",
    "lightning": "three steps a trial, its set-up, and saving and loading the model before and after",
    "accelerate": "three steps a trial",
    "headroom": "one forward and backward a trial, confirmations of what was found and is recommended",
}


def markdown(result: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    peers = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"GPT-2 124M, context {result['context']}, {result['precision']}, "
        f"{result['gib']:g} GiB of {result['device']}; {peers}.  ",
        f"Command: `{result['command']}`",
        "",
        "| method | found | holds | recommended | trials | ran out | seconds | in the seconds | sizes |",
        "|---|---:|---|---:|---:|---:|---:|---|---|",
    ]
    for r in result["rows"]:
        if "error" in r:
            lines.append(f"| {r['method']} | {r['error']} |||||||")
            continue
        lines.append(
            f"| {r['method']} | {r['found']} | {'yes' if r['holds'] else 'no'} "
            f"| {r.get('recommended', '–')} | {r['trials']} | {r['failures']} | {r['seconds']} | {SAYS[r['method']]} | `{r['sizes']}` |"
        )
    lines += [
        "",
        "No row has imports, building the model, or a first step with one sample in its seconds; "
        "headroom's is its first trial.",
    ]
    lines += [
        f"headroom find took {r['process_seconds']} s as a whole, with building the model and timing "
        "whole steps of smaller sizes."
        for r in result["rows"]
        if "process_seconds" in r
    ]
    return "\n".join(lines) + "\n"


def versions() -> dict[str, str]:
    import accelerate
    import lightning

    return {
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "accelerate": accelerate.__version__,
    }


def rows(a: argparse.Namespace) -> list[dict[str, Any]]:
    """Run every method, each in a process of its own, and return their results."""
    found: list[dict[str, Any]] = []
    for method in METHODS:
        command = [sys.executable, *sys.argv, "--only", method]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0:
            found.append(json.loads(done.stdout.splitlines()[-1]))
        else:
            found.append({"method": method, "error": f"status {done.returncode}, see standard error"})
        print(found[-1], file=sys.stderr)
    if a.headroom:
        try:
            found.append(headroom(a))
        except (RuntimeError, OSError, ValueError, LookupError) as e:
            print(e, file=sys.stderr)
            found.append({"method": "headroom", "error": "failed, see standard error"})
        print(found[-1], file=sys.stderr)
    return found


def main() -> int:
    a = arguments()
    if a.only:
        print(json.dumps(measure(a)))
        return 0
    about = {
        "command": " ".join(["python3", *sys.argv]),
        "device": "a pretended GPU" if a.pretend else torch.cuda.get_device_name(),
        "versions": versions(),
    }
    result = vars(a) | about | {"rows": rows(a)}
    text = json.dumps(result, indent=1, default=str) + "\n"
    if a.out:
        a.out.write_text(text)
        a.out.with_suffix(".md").write_text(markdown(result))
    else:
        sys.stdout.write(text)
    return 1 if any("error" in r for r in result["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
