"""Performs the same run as gpt2bench in eager PyTorch, with the same weights, tokens, optimizer and JSON output.

python3 torch_gpt2.py --weights W.safetensors --precision tf32 --context 512 --micro 16 --out R.json
"""

import argparse
import json
import statistics
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

import stream
from gpt2 import GPT2, Config, adamw, gradients, load


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    p.add_argument("--precision", default="tf32", choices=["fp32", "tf32", "bf16"])
    for name, default in vars(Config()).items():
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--context", type=int, default=512)
    p.add_argument("--micro", type=int, default=16)
    p.add_argument("--effective", type=int, default=0, help="samples per step; 0 is one micro-batch")
    p.add_argument("--steps", type=int, default=100)
    p.add_argument("--warmup", type=int, default=10, help="steps left out of the timing")
    p.add_argument("--seed", type=int, default=1, help="of the tokens")
    p.add_argument("--lr", type=float, default=3e-4)
    p.add_argument("--lr-warmup", type=int, default=10)
    p.add_argument("--decay", type=float, default=0.1)
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument(
        "--attention",
        default="default",
        choices=["default", "math"],
        help="math has PyTorch compute attention in another order, to see what rounding alone does",
    )
    p.add_argument("--memory", default="", help="measure micro-batches of these sizes, such as 4,8")
    p.add_argument("--weights", required=True, help="initial weights, written by gpt2bench -save-weights")
    p.add_argument("--gradients", help="write the gradients of the first step here")
    p.add_argument("--out", help="write the JSON here instead of to standard output")
    a = p.parse_args()
    a.effective = a.effective or a.micro
    return a


def autocast(device: str, precision: str) -> AbstractContextManager[Any]:
    if precision == "bf16":
        return torch.autocast(device, dtype=torch.bfloat16)
    return nullcontext()


def attention(kind: str) -> AbstractContextManager[Any]:
    return sdpa_kernel(SDPBackend.MATH) if kind == "math" else nullcontext()


class Run:
    def __init__(self, a: argparse.Namespace) -> None:
        self.a = a
        torch.backends.cuda.matmul.allow_tf32 = a.precision == "tf32"
        self.model = GPT2(Config(a.layers, a.width, a.heads, a.vocab, a.positions))
        load(self.model, a.weights)
        self.model.to(a.device)
        self.optimizer = adamw(self.model, a.lr, a.decay)
        rows = stream.samples(a.seed, max(1, a.steps * a.effective), a.context, a.vocab)
        self.checksum = stream.checksum(rows)
        self.rows = torch.from_numpy(rows).long()

    def sync(self) -> None:
        if self.a.device == "cuda":
            torch.cuda.synchronize()

    def pieces(self, step: int) -> list[torch.Tensor]:
        """Return the micro-batches of a step. Their sizes differ by at most one, as in headroom."""
        rows = self.rows[step * self.a.effective : (step + 1) * self.a.effective]
        return list(rows.tensor_split(-(-self.a.effective // self.a.micro)))

    def backward(self, rows: torch.Tensor, share: float) -> torch.Tensor:
        """Run the forward and backward pass of one micro-batch, which is the given share of its step."""
        rows = rows.to(self.a.device)
        with autocast(self.a.device, self.a.precision), attention(self.a.attention):
            loss = self.model(rows[:, :-1], rows[:, 1:]) * share
        loss.backward()
        return loss.detach()

    def step(self, i: int) -> tuple[float, float]:
        """Run one optimizer step. Return its loss and the norm of its gradients before clipping."""
        a = self.a
        for group in self.optimizer.param_groups:
            group["lr"] = a.lr * min(1.0, (i + 1) / a.lr_warmup) if a.lr_warmup else a.lr
        self.optimizer.zero_grad(set_to_none=True)
        loss = sum(self.backward(rows, len(rows) / a.effective) for rows in self.pieces(i))
        if i == 0 and a.gradients:
            save_file(gradients(self.model), a.gradients)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), a.clip or float("inf"))
        self.optimizer.step()
        return float(loss), float(norm)

    def train(self) -> dict[str, Any]:
        a = self.a
        losses, norms, seconds = [], [], []
        for i in range(a.steps):
            self.sync()
            start = time.perf_counter()
            loss, norm = self.step(i)
            self.sync()
            seconds.append(time.perf_counter() - start)
            losses.append(loss)
            norms.append(norm)
            if i == 0 or (i + 1) % 20 == 0 or i + 1 == a.steps:
                text = f"step {i + 1}: loss {loss:.6f}, gradient norm {norm:.4f}, {seconds[-1]:.4f} s"
                print(text, file=sys.stderr)
        found: dict[str, Any] = {"losses": losses, "grad_norms": norms, "step_seconds": seconds}
        if seconds[a.warmup :]:
            found["median_step_seconds"] = statistics.median(seconds[a.warmup :])
            found["tokens_per_second"] = a.effective * a.context / found["median_step_seconds"]
        if a.device == "cuda":
            found["peak_bytes"] = torch.cuda.max_memory_allocated()
            found["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        return found

    def memory(self) -> list[dict[str, int]]:
        """Return the peak memory of the forward and backward pass of one micro-batch of each size."""
        found = []
        for micro in [int(n) for n in self.a.memory.split(",") if n]:
            self.optimizer.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            self.backward(torch.zeros(micro, self.a.context + 1, dtype=torch.long), 1.0)
            self.sync()
            peak = torch.cuda.max_memory_allocated()
            found.append(
                {
                    "micro": micro,
                    "peak_bytes": peak,
                    "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
                }
            )
            print(f"micro-batch {micro}: peak {peak / 2**30:.2f} GiB", file=sys.stderr)
        return found


def main() -> None:
    a = arguments()
    run = Run(a)
    result: dict[str, Any] = {
        "tool": "pytorch",
        "device": torch.cuda.get_device_name() if a.device == "cuda" else "cpu",
        "command": sys.argv,
        "revision": torch.__version__,
        "precision": a.precision,
        "context": a.context,
        "micro": a.micro,
        "effective": a.effective,
        "seed": a.seed,
        "stream_crc32": run.checksum,
    }
    result |= run.train()
    if a.device == "cuda":
        result["memory"] = run.memory()
    text = json.dumps(result, indent=2) + "\n"
    if a.out:
        with open(a.out, "w") as file:
            file.write(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
