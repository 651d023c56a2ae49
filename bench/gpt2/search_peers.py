"""How PyTorch's own tools find the largest micro-batch of GPT-2 under a memory limit.

python3 search_peers.py --out peers.json

Each method runs in a process of its own, capped by set_per_process_memory_fraction, over the same model,
AdamW state and three steps a trial:

bisection    the truth: between 1 and --most, exhaustively, with the cache emptied before each trial
lightning    Tuner.scale_batch_size, mode binsearch, as it comes: from 2 up, its margin of 5 % taken off
accelerate   find_executable_batch_size from --most down

Imports, building the model and a first step with one sample are not in the seconds. A size holds if
three steps with it run afterwards in the same process, cache emptied. sizes are those tried, ! where it
ran out of memory. --pretend N needs no GPU: a toy model that runs out of memory above N samples.
"""

import argparse
import gc
import importlib
import json
import logging
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gpt2 import GPT2, Config, adamw

STEPS = 3
TOY = Config(layers=1, width=16, heads=2, vocab=64, positions=8)


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--precision", default="bf16", choices=["fp32", "tf32", "bf16"])
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--gib", type=float, default=24, help="cap on the process, in GiB")
    p.add_argument("--most", type=int, default=512, help="largest micro-batch considered")
    p.add_argument("--pretend", type=int, default=0)
    p.add_argument("--only", choices=sorted(METHODS), help="run this one, here")
    p.add_argument("--out", help="write the JSON here instead of to standard output")
    return p.parse_args()


class Bench:
    """The model under search. Trials records every size tried, and whether it ran to its end."""

    def __init__(self, a: argparse.Namespace) -> None:
        self.a = a
        self.device = "cpu" if a.pretend else "cuda"
        self.context = TOY.positions if a.pretend else a.context
        self.trials: list[tuple[int, bool]] = []
        if not a.pretend:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(a.gib * 2**30 / total)
        torch.backends.cuda.matmul.allow_tf32 = a.precision == "tf32"
        self.model = GPT2(TOY if a.pretend else Config()).to(self.device)
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
        """Three optimizer steps with micro-batches of this size."""
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
        """Whether three steps run. The recovery is outside except, where nothing pins tensors."""
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
    from lightning.pytorch.tuner import Tuner
    from torch.utils.data import DataLoader

    class Rows(torch.utils.data.Dataset[torch.Tensor]):
        row = torch.zeros(b.context + 1, dtype=torch.long)

        def __len__(self) -> int:
            return 3 * 8192  # more than any batch that it tries

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

    for name in ["lightning.pytorch", "lightning.pytorch.utilities.rank_zero"]:
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    with tempfile.TemporaryDirectory() as folder:
        trainer = pl.Trainer(
            accelerator="cpu" if b.a.pretend else "gpu",
            devices=1,
            precision="bf16-mixed" if b.a.precision == "bf16" else "32-true",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=folder,
        )
        found = Tuner(trainer).scale_batch_size(Module(), mode="binsearch", steps_per_trial=STEPS)
    if found is None:
        raise RuntimeError("Lightning found no size")
    b.model.to(b.device)  # Lightning leaves it on the host
    return found


METHODS: dict[str, Callable[[Bench], int]] = {
    "bisection": bisection,
    "lightning": lightning,
    "accelerate": accelerate,
}


MODULES = {"lightning": "lightning.pytorch.tuner", "accelerate": "accelerate.utils"}


def measure(a: argparse.Namespace) -> dict[str, Any]:
    """One method, in this process."""
    b = Bench(a)
    b.steps(1)
    b.clean()
    if a.only in MODULES:
        importlib.import_module(MODULES[a.only])  # its seconds are not the search's
    start = time.perf_counter()
    found = METHODS[a.only](b)
    seconds = time.perf_counter() - start
    b.model.to(b.device)  # Lightning leaves it, and the optimizer's state, on the host
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


def versions() -> dict[str, str]:
    import accelerate
    import lightning

    return {
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "accelerate": accelerate.__version__,
    }


def main() -> int:
    a = arguments()
    if a.only:
        print(json.dumps(measure(a)))
        return 0
    rows = []
    for method in METHODS:
        command = [sys.executable, *sys.argv, "--only", method]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode == 0:
            rows.append(json.loads(done.stdout.splitlines()[-1]))
        else:
            rows.append({"method": method, "error": f"status {done.returncode}, see standard error"})
        print(rows[-1], file=sys.stderr)
    result = vars(a) | {"versions": versions(), "rows": rows}
    text = json.dumps(result, indent=1) + "\n"
    if a.out:
        with open(a.out, "w") as file:
            file.write(text)
    else:
        sys.stdout.write(text)
    return 1 if any("error" in r for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
