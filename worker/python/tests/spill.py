"""Training steps that do not fit on a GPU, with memory of the host for what does not.

    python spill.py [CASE…]

Needs a GPU. Each case is trained in a process of its own: with room, then with a part of the memory that it took, bare
and with headroom; another process holds the rest, so the failures are real. Prints a row for each: it holds if the
training with headroom ends with the same weights, or with losses as close as rounding allows where steps ran in pieces.

Below each row stands how long a step takes beside its floor: the step with room, and the bytes in memory of the host
that its operations read and write (each tensor once for each operation) at the speed of a copy between a GPU and pinned
memory.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

STEPS = 8
GIB = 1 << 30
SHARES = (0.6, 0.35)
SPARE = 900 << 20  # what a process takes beside PyTorch's allocator


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.other = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, width // 64, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.other(x))))


class Language(nn.Module):
    def __init__(self, words: int = 32000, width: int = 768, depth: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.words(tokens)))


def convolutions(width: int) -> nn.Module:
    layers: list[nn.Module] = []
    for i in range(10):
        layers += [nn.Conv2d(3 if i == 0 else width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


Step = Callable[[int], float]


def wide(net: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Steps of 64 rows of 8192 numbers."""

    def step(i: int) -> float:
        torch.manual_seed(i)
        optimizer.zero_grad()
        loss = net(torch.randn(64, 8192, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def linear() -> tuple[nn.Module, Step]:
    """Weights, gradients and Adam's state alone do not fit."""
    net = nn.Sequential(*(m for _ in range(12) for m in (nn.Linear(8192, 8192), nn.ReLU()))).cuda()
    return net, wide(net, torch.optim.AdamW(net.parameters(), lr=1e-4))


def deterministic() -> tuple[nn.Module, Step]:
    """As linear, where PyTorch fills what it allocates: not all memory of the host that is set aside."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True)
    return linear()


def language() -> tuple[nn.Module, Step]:
    """The loss of a language model takes the most memory, outside the model."""
    net = Language().cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)

    def step(i: int) -> float:
        torch.manual_seed(i)
        tokens = torch.randint(0, 32000, (32, 513), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            out = net(tokens[:, :-1])
            loss = F.cross_entropy(out.float().flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return net, step


def normalised() -> tuple[nn.Module, Step]:
    """BatchNorm relates the rows to each other."""
    net = convolutions(64).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(i: int) -> float:
        torch.manual_seed(i)
        x, y = torch.randn(256, 3, 112, 112, device="cuda"), torch.randint(0, 10, (256,), device="cuda")
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return net, step


def contrastive() -> tuple[nn.Module, Step]:
    """The loss relates every row to every other."""
    net = nn.Sequential(nn.Linear(512, 8192), *(m for _ in range(6) for m in (nn.GELU(), nn.Linear(8192, 8192)))).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(i: int) -> float:
        torch.manual_seed(i)
        x = torch.randn(32768, 512, device="cuda")
        optimizer.zero_grad()
        a, b = F.normalize(net(x)[:, :128], dim=1), F.normalize(net(x + 0.1)[:, :128], dim=1)
        loss = F.cross_entropy(a @ b.T / 0.1, torch.arange(len(x), device="cuda"))
        loss.backward()
        optimizer.step()
        return loss.item()

    return net, step


def own_lines() -> tuple[nn.Module, Step]:
    """Most of the memory is taken in lines of the script's own, without a module."""
    net = nn.Linear(16384, 16384).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(i: int) -> float:
        torch.manual_seed(i)
        x = torch.randn(64, 16384, device="cuda")
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            parts = [net.weight * n for n in range(1 + 3 * (i % 2))]  # an evaluation of the script's own
            found = torch.stack(parts).sum().item()
        return loss.item() + 0 * found

    return net, step


def kept() -> tuple[nn.Module, Step]:
    """Results are kept from step to step."""
    net = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)).cuda()
    optimizer, seen = torch.optim.SGD(net.parameters(), lr=0.01), []

    def step(i: int) -> float:
        torch.manual_seed(i)
        optimizer.zero_grad()
        out = net(torch.randn(65536, 2048, device="cuda"))
        loss = out.square().mean()
        loss.backward()
        optimizer.step()
        seen.append(out)
        return loss.item()

    return net, step


def moved() -> tuple[nn.Module, Step]:
    """The weights alone do not fit, and nothing has been seen of the memory when they are moved to the GPU."""
    net = nn.Sequential(*(nn.Linear(8192, 8192) for _ in range(16)))
    net.cuda()
    return net, wide(net, torch.optim.SGD(net.parameters(), lr=1e-4))


CASES = {c.__name__: c for c in (linear, deterministic, language, normalised, contrastive, own_lines, kept, moved)}


class Touched(TorchDispatchMode):
    """Counts the bytes in memory of the host that operations on a GPU read and write."""

    IS_MANAGED = 8  # CU_POINTER_ATTRIBUTE_IS_MANAGED

    def __init__(self) -> None:
        super().__init__()
        self._driver = ctypes.CDLL("libcuda.so.1")
        self.read = self.written = 0

    def _on_host(self, values: Any) -> int:
        tensors = {
            (t.data_ptr(), t.numel()): t for t in tree_leaves(values) if isinstance(t, torch.Tensor) and t.is_cuda
        }
        return sum(t.numel() * t.element_size() for (at, _), t in tensors.items() if at and self._managed(at))

    def _managed(self, at: int) -> bool:
        found = ctypes.c_uint()
        failed = self._driver.cuPointerGetAttribute(ctypes.byref(found), self.IS_MANAGED, ctypes.c_uint64(at))
        return not failed and found.value == 1

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.is_view or "empty" in func._schema.name:
            return result
        into = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        named = {a.name: v for a, v in zip(func._schema.arguments, args)} | (kwargs or {})
        self.read += self._on_host([v for n, v in named.items() if n != "out"])
        self.written += self._on_host([v for n, v in named.items() if n in into] if into else result)
        return result


def bandwidth() -> tuple[float, float]:
    """Bytes a second from pinned memory to the GPU, and back."""
    there, here = (
        torch.empty(1 << 28, dtype=torch.uint8, device="cuda"),
        torch.empty(1 << 28, dtype=torch.uint8).pin_memory(),
    )
    found = []
    for to, of in ((there, here), (here, there)):
        seconds = []
        for _ in range(5):
            torch.cuda.synchronize()
            begun = time.monotonic()
            to.copy_(of, non_blocking=True)
            torch.cuda.synchronize()
            seconds.append(time.monotonic() - begun)
        found.append(len(there) / min(seconds))
    return found[0], found[1]


def train(case: str, alone: bool) -> None:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    net, step = CASES[case]()
    losses, seconds = [], []
    for i in range(STEPS):
        torch.cuda.synchronize()
        begun = time.monotonic()
        losses.append(step(i))
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - begun)
    peak = torch.cuda.max_memory_allocated()
    total = sum(p.detach().double().sum().item() for p in net.parameters())
    said = {"losses": losses, "seconds": seconds, "peak": peak, "weights": total}
    if os.environ.get("HEADROOM_WORKER"):
        with Touched() as touched:
            step(STEPS - 1)
        said.update(read=touched.read, written=touched.written)
    elif alone:
        said["speed"] = bandwidth()
    print(json.dumps(said), flush=True)


def run(case: str, armed: bool, alone: bool = False) -> tuple[dict[str, Any] | None, str]:
    """What a training reports, None if it died, and what it said. ``alone`` says that it has the whole GPU."""
    log = Path(f"/tmp/spill-{os.getpid()}.log")
    log.unlink(missing_ok=True)
    env = {**os.environ, "HEADROOM_QUIET": "1", "HEADROOM_LOG": str(log)}
    if armed:
        env["HEADROOM_WORKER"] = "armed"
    start = "import headroom_train; headroom_train.attach()\n" if armed else ""
    code = f"{start}import sys; sys.argv = ['spill.py']; import spill; spill.train({case!r}, {alone})"
    got = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    said = log.read_text() if log.exists() else ""
    last = (got.stderr.strip().splitlines() or [""])[-1]
    return (json.loads(got.stdout.splitlines()[-1]), said) if got.returncode == 0 else (None, f"{said}\n{last}")


@contextmanager
def leaving(free: int) -> Iterator[None]:
    """A context in which another process holds all but ``free`` bytes of the GPU."""
    code = (
        "import sys, torch; free, _ = torch.cuda.mem_get_info(); n = max(0, free - int(sys.argv[1]))\n"
        "t = torch.empty(n, dtype=torch.uint8, device='cuda'); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(free)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    try:
        yield
    finally:
        holder.kill()
        holder.wait()


def compared(case: str) -> bool:
    whole, _ = run(case, False, alone=True)
    assert whole is not None
    holds = True
    usual = sorted(whole["seconds"])[STEPS // 2]
    for share in SHARES:
        with leaving(int(share * whole["peak"]) + SPARE):
            bare, _ = run(case, False)
            armed, said = run(case, True)
        if armed is None:
            result, holds = f"DIED: {said.strip()[-300:]}", False
        else:
            off = max(abs(a - b) / max(abs(a), 1e-9) for a, b in zip(whole["losses"], armed["losses"]))
            same = "weights equal" if armed["weights"] == whole["weights"] else f"losses within {off:.1g}"
            result = f"{same}; {sorted(armed['seconds'])[STEPS // 2] / usual:.2f} times as long"
            holds = holds and off < 1e-2
        print(f"| {case} | {share} | {whole['peak'] / GIB:.1f} | {'ends' if bare else 'dies'} | {result} |", flush=True)
        for line in said.splitlines():
            print(f"    {line}", flush=True)
        if armed is not None:
            print(f"    seconds a step: {[round(s, 3) for s in (usual, *armed['seconds'])]}", flush=True)
            (to, back), last = whole["speed"], armed["seconds"][-1]
            floor = usual + armed["read"] / to + armed["written"] / back
            print(
                f"    the last: {last:.3f} s; floor {floor:.3f} s: {armed['read'] / GIB:.2f} GiB read at {to / GIB:.1f} GiB/s,"
                f" {armed['written'] / GIB:.2f} GiB written at {back / GIB:.1f}; {last / floor:.2f} times the floor",
                flush=True,
            )
    return holds


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("spill.py: SKIPPED, there is no GPU")
    print("| case | part of the peak | peak, GiB | bare | with headroom |\n|---|---|---|---|---|", flush=True)
    sys.exit(not all([compared(case) for case in sys.argv[1:] or CASES]))
