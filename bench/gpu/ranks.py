"""Two ranks on two GPUs, with NCCL: failures that are injected, and memory that really runs out.

    python bench/gpu/ranks.py OUT [--parts gpt2 sweep exhaustion] [--only NAME…] [--seconds N]

- gpt2: GPT-2 (Transformers, 124M random weights) under DistributedDataParallel, FSDP2 and, where it is installed, DeepSpeed ZeRO-2 and ZeRO-3: twice with
  room; then without headroom and with it, while another process holds the second GPU but for a part of the peak.
- sweep: worker/python/tests/ddp.py on the GPUs: operations that allocate fail in turn, a sample of them.
- exhaustion: as gpt2, with a GPT of PyTorch's own modules under DistributedDataParallel in several configurations, once with room.

Writes OUT/ranks.md, and prints it at the end: what a part has found, whatever became of the others. What is not reached in N seconds is named there. No Go is
needed: the worker is used as it stands in worker/python. With --smoke all of it is tried on the CPU with gloo and small models; no memory runs out then.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Optional

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = ROOT / "worker" / "python"
GIB = 1 << 30
CONTEXT = int(1.6 * GIB)  # of a process that uses the GPU and NCCL, before it trains
LIMIT = 100  # seconds for a run
SWEPT = "plain,find_unused,static_graph,bucket_view,accumulation,hooked,sync_norm"
SHARDED = ("DDP", "FSDP2", "ZeRO-2", "ZeRO-3")
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "find_unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "bucket view": {"gradient_as_bucket_view": True},
    "no_sync": {},
    "fp16 hook": {},
    "SyncBatchNorm": {},
}


def train(name: str, rank: int, place: str, steps: int, batch: int, smoke: bool) -> None:
    """One rank. Prints its losses, times and peak as JSON."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    if not smoke:
        torch.cuda.set_device(rank)
    dist.init_process_group("gloo" if smoke else "nccl", store=dist.FileStore(place, 2), rank=rank, world_size=2)
    torch.manual_seed(0)
    words, length = (100, 16) if smoke else (50257, 512)
    device = torch.device("cpu") if smoke else torch.device("cuda", rank)
    made = gpt2(name, device, smoke, batch) if name in SHARDED else gpt(name, device, smoke)
    losses, seconds = [], []
    for step in range(steps):
        begun = time.perf_counter()
        losses.append(made(torch.Generator().manual_seed(1000 * step + rank), batch, words, length))
        if not smoke:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    peak = 0 if smoke else torch.cuda.max_memory_reserved()
    print("RESULT " + json.dumps({"losses": losses, "seconds": seconds, "peak": peak}), flush=True)


def gpt2(name: str, device: Any, smoke: bool, batch: int) -> Any:
    """The steps of GPT-2, sharded as the name says."""
    import torch
    from torch import nn
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 100, "n_positions": 16} if smoke else {"n_positions": 512}
    model: Any = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **small)).to(device)
    engine = None
    if name.startswith("ZeRO"):
        import deepspeed

        if smoke:
            sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]  # would compile C++
        settings = {
            "train_micro_batch_size_per_gpu": batch,
            "zero_optimization": {"stage": int(name[-1])},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 10**9,
        }
        optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-4)
        engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings)
        model = engine
    elif name == "FSDP2":
        from torch.distributed.fsdp import fully_shard

        for block in model.transformer.h:
            fully_shard(block)
        fully_shard(model)
    else:
        model = nn.parallel.DistributedDataParallel(model, device_ids=None if smoke else [device.index])
    if engine is None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)

    def step(draw: Any, batch: int, words: int, length: int) -> float:
        ids = torch.randint(0, words, (batch, length), generator=draw).to(device)
        loss = model(input_ids=ids, labels=ids).loss
        if engine is not None:
            engine.backward(loss)
            engine.step()
        else:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    return step


def gpt(name: str, device: Any, smoke: bool) -> Any:
    """The steps of a GPT of PyTorch's own modules under DistributedDataParallel, in a configuration."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    width, layers, words = (16, 2, 100) if smoke else (768, 12, 50257)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            q, k, v = (t.unflatten(-1, (width // 8 if smoke else 12, -1)).transpose(1, 2) for t in self.qkv(self.a(x)).chunk(3, -1))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            return x + self.mlp(self.b(x))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(512, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(layers)))
            self.norm = nn.SyncBatchNorm(width) if name == "SyncBatchNorm" else None
            self.last = nn.LayerNorm(width)
            self.unused = nn.Linear(width, 8) if name in ("find_unused", "static") else None

        def forward(self, ids: Any) -> Any:
            x = self.blocks(self.words(ids) + self.places.weight[: ids.shape[1]])
            if self.norm is not None:
                x = self.norm(x.transpose(1, 2).float()).transpose(1, 2)
            return self.last(x) @ self.words.weight.T

    model = nn.parallel.DistributedDataParallel(Gpt().to(device), device_ids=None if smoke else [device.index], **CONFIGURATIONS[name])
    if name == "fp16 hook":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    parts = 2 if name == "no_sync" else 1

    def step(draw: Any, batch: int, words: int, length: int) -> float:
        optimizer.zero_grad()
        total = 0.0
        for part in range(parts):
            ids = torch.randint(0, words, (batch, length + 1), generator=draw).to(device)
            with model.no_sync() if part < parts - 1 else nullcontext(), torch.autocast(device.type, torch.bfloat16):
                loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten()) / parts
                loss.backward()
            total += loss.item()
        optimizer.step()
        return total

    return step


@dataclass
class Ran:
    """What became of both ranks of a run."""

    ranks: list[Optional[dict[str, Any]]]  # what each has printed; None if it did not end
    said: str = ""
    late: bool = False

    @property
    def ended(self) -> bool:
        return None not in self.ranks

    def how(self) -> str:
        return "ends" if self.ended else "LATE" if self.late else "dies" if "out of memory" in self.said.lower() else "FAILS"

    def seconds(self) -> float:
        """The median duration of the later steps, of the slower rank."""
        return max(median(r["seconds"][2:]) for r in self.ranks if r is not None)

    def off(self, other: Ran) -> float:
        """The largest relative difference of the losses."""
        pairs = ((a, b) for x, y in zip(self.ranks, other.ranks) if x and y for a, b in zip(x["losses"], y["losses"]))
        return max(abs(a - b) / abs(a) for a, b in pairs)


class Bench:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.until = args, time.monotonic() + args.seconds
        self.text: list[str] = []

    def left(self) -> float:
        return self.until - time.monotonic()

    def put(self, line: str) -> None:
        """Adds a line to what is found, and keeps it."""
        print(line, flush=True)
        self.text.append(line)
        (self.args.out / "ranks.md").write_text("\n".join(self.text) + "\n")

    def ran(self, name: str, armed: bool) -> Ran:
        """Runs both ranks. When one fails, the other is ended, as a launcher does."""
        with tempfile.TemporaryDirectory() as folder:
            kids, texts = [], [Path(folder) / f"{rank}.txt" for rank in (0, 1)]
            for rank in (0, 1):
                env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
                env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29511 + os.getpid() % 1000), "GLOO_SOCKET_IFNAME": "lo"}
                env |= {"NCCL_NVLS_ENABLE": "0", "PYTHONUNBUFFERED": "1"}
                env.pop("HEADROOM_WORKER", None)
                paths = [*self.args.also, env.get("PYTHONPATH", "")]
                if armed:
                    env["HEADROOM_WORKER"] = "armed"
                    paths = [str(PYTHON), str(PYTHON / "inject"), *paths]
                env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
                given = (name, rank, Path(folder) / "meet", self.args.steps, self.args.batch, int(self.args.smoke))
                with texts[rank].open("w") as out:
                    words = [sys.executable, __file__, "train", *map(str, given)]
                    kids.append(subprocess.Popen(words, env=env, stdout=out, stderr=subprocess.STDOUT))
            until = time.monotonic() + max(1.0, min(LIMIT, self.left()))
            while any(k.poll() is None for k in kids) and time.monotonic() < until and not any(k.poll() for k in kids):
                try:
                    next(k for k in kids if k.poll() is None).wait(0.5)
                except subprocess.TimeoutExpired:
                    pass
            late = any(k.poll() is None for k in kids) and not any(k.poll() for k in kids)
            for k in kids:
                k.kill()
                k.wait()
            said = [t.read_text() for t in texts]
        found = [next((json.loads(line[7:]) for line in text.splitlines() if line.startswith("RESULT ")), None) for text in said]
        lines = [f"rank {rank}: {line}" for rank, text in enumerate(said) for line in text.splitlines()]
        return Ran(found, "\n".join(lines), late)

    @contextmanager
    def short(self, left: int) -> Iterator[None]:
        """A context in which another process holds the second GPU but for so many bytes."""
        if self.args.smoke:
            yield
            return
        words = [sys.executable, str(ROOT / "bench" / "gpu" / "hold.py"), str(left / GIB), "100000"]
        second = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0,1").split(",")[1]
        with subprocess.Popen(words, env={**os.environ, "CUDA_VISIBLE_DEVICES": second}, stdout=subprocess.PIPE, text=True) as hold:
            try:
                assert hold.stdout is not None
                if not hold.stdout.readline().startswith("holding"):
                    raise RuntimeError("the second GPU could not be filled")
                yield
            finally:
                hold.kill()

    def compared(self, name: str, rooms: int) -> None:
        """A row: runs with room, and runs while the second GPU is nearly full, without headroom and with it."""
        room = [self.ran(name, False) for _ in range(rooms)]
        for r in room:
            if not r.ended:
                print(r.said[-3000:], flush=True)
                self.put(f"| {name} | with room: {r.how()} |")
                return
        peak = max(r["peak"] for r in room[0].ranks if r is not None)
        left = int(self.args.part * peak) + CONTEXT
        with self.short(left):
            bare, ours = self.ran(name, False), self.ran(name, True)
        (self.args.out / f"{name.replace(' ', '_')}.txt").write_text(ours.said)
        cells = [name, f"{peak / GIB:.1f}", f"{left / GIB:.1f}", bare.how(), ours.how()]
        if ours.ended:
            rows = f"{room[0].off(room[1]):.0e}" if rooms > 1 else ""
            cells += [f"{room[0].seconds():.3f}", f"{ours.seconds():.3f}", rows, f"{room[0].off(ours):.0e}"]
        else:
            print(ours.said[-3000:], flush=True)
            cells += [""] * 4
        lines = [line.replace("headroom: ", "") for line in ours.said.splitlines() if "headroom:" in line]
        self.put(f"| {' | '.join(cells)} | {' / '.join(lines)[:300]} |")

    def table(self, title: str, names: list[str], rooms: int) -> None:
        self.put(f"\n{title}: {self.args.batch} rows a rank, {self.args.steps} steps\n")
        self.put("| | peak, GiB | left, GiB | bare | headroom | s a step with room | short | two runs with room differ by | short differs by | said |")
        self.put("|---|---|---|---|---|---|---|---|---|---|")
        for name in names:
            if name.startswith("ZeRO") and importlib.util.find_spec("deepspeed") is None:
                self.put(f"| {name} | DeepSpeed is not installed |")
                continue
            if self.left() < 30:
                self.put(f"| {name} | not reached |")
                continue
            try:
                self.compared(name, rooms)
            except Exception as e:
                self.put(f"| {name} | {type(e).__name__}: {e} |")

    def gpt2(self) -> None:
        self.table("GPT-2", [n for n in SHARDED if not self.args.only or n in self.args.only], 2)

    def exhaustion(self) -> None:
        self.table("DistributedDataParallel", [n for n in CONFIGURATIONS if not self.args.only or n in self.args.only], 1)

    def sweep(self) -> None:
        self.put("\nInjected failures\n")
        device = "cpu" if self.args.smoke else "cuda"
        env = {**os.environ, "HEADROOM_TEST_DEVICE": device, "PYTHONPATH": str(PYTHON), "HEADROOM_QUIET": "", "NCCL_NVLS_ENABLE": "0"}
        words = [sys.executable, "-u", str(PYTHON / "tests" / "ddp.py"), "--loops", self.args.loops]
        words += ["--most", str(self.args.most), "--seconds", str(int(self.left()) - 20)]
        with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as tests:
            ends = threading.Timer(max(1.0, self.left()), tests.kill)
            ends.start()
            for line in tests.stdout or ():
                if line.startswith(("ok", "FAILED", "  ", "{", "of ", "not reached")):
                    self.put("    " + line.rstrip()[:400])
                else:
                    print(line.rstrip(), flush=True)
            if tests.wait():
                self.put(f"ended with {tests.returncode}")
            ends.cancel()


def main() -> int:
    if sys.argv[1:2] == ["train"]:
        name, rank, place, steps, batch, smoke = sys.argv[2:8]
        train(name, int(rank), place, int(steps), int(batch), smoke == "1")
        return 0
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=Path)
    p.add_argument("--parts", nargs="*", default=["gpt2", "sweep", "exhaustion"], choices=["gpt2", "sweep", "exhaustion"])
    p.add_argument("--only", nargs="*", default=[], help="of gpt2 and exhaustion")
    p.add_argument("--loops", default=SWEPT, help="of ddp.py")
    p.add_argument("--most", type=int, default=10, help="failures of each loop")
    p.add_argument("--part", type=float, default=0.6, help="of the peak that is left")
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--batch", type=int, default=0, help="rows a rank; 24 if not given")
    p.add_argument("--seconds", type=float, default=285, help="for everything")
    p.add_argument("--also", nargs="*", default=[], help="folders with more packages, such as DeepSpeed")
    p.add_argument("--smoke", action="store_true")
    args = p.parse_args()
    args.batch = args.batch or (4 if args.smoke else 24)
    sys.path += args.also
    args.out.mkdir(parents=True, exist_ok=True)
    bench = Bench(args)
    for part in args.parts:
        try:
            getattr(bench, part)()
        except Exception as e:
            bench.put(f"{part}: {type(e).__name__}: {e}")
    print("\n" + "\n".join(bench.text))
    return 0


if __name__ == "__main__":
    sys.exit(main())
