"""Two ranks under DistributedDataParallel on two GPUs, with NCCL: failures that are injected, and memory that really runs out.

    python bench/gpu/ranks.py OUT [--only NAME…] [--every N] [--part P] [--steps N] [--batch N] [--skip sweep exhaustion]

The first part is worker/python/tests/ddp.py on the GPUs: operations that allocate fail in turn, every N-th of them. In the second, a GPT
of 124M parameters trains in each configuration: with room; then without headroom and with it, while another process holds the second GPU but for a
part P of the peak. Writes OUT/ranks.md and prints it. No Go is needed: the worker is used as it stands in worker/python.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = ROOT / "worker" / "python"
GIB = 1 << 30
CONTEXT = int(1.6 * GIB)  # of a process that uses the GPU and NCCL, before it trains
LIMIT = 150  # seconds for a run
SWEPT = (
    "plain,find_unused,unused,static_graph,static_unused,bucket_view,bucket_view_kept,accumulation,accumulation_views,"
    "hooked,builtin,stateful,two_losses_unused,together,siamese,metrics,gathered,related,sync_norm,zero_redundancy"
)
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "find_unused": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "bucket view": {"gradient_as_bucket_view": True},
    "no_sync": {},
    "fp16 hook": {},
    "SyncBatchNorm": {},
}


def train(name: str, rank: int, place: str, steps: int, batch: int) -> None:
    """One rank. Prints its losses, times and peak as JSON."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", store=dist.FileStore(place, 2), rank=rank, world_size=2)
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.LayerNorm(768), nn.LayerNorm(768)
            self.qkv, self.out = nn.Linear(768, 3 * 768), nn.Linear(768, 768)
            self.mlp = nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768))

        def forward(self, x: Any) -> Any:
            q, k, v = (t.unflatten(-1, (12, 64)).transpose(1, 2) for t in self.qkv(self.a(x)).chunk(3, -1))
            x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
            return x + self.mlp(self.b(x))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(50257, 768), nn.Embedding(512, 768)
            self.blocks = nn.Sequential(*(Block() for _ in range(12)))
            self.norm = nn.SyncBatchNorm(768) if name == "SyncBatchNorm" else None
            self.last = nn.LayerNorm(768)
            self.unused = nn.Linear(768, 8) if name in ("find_unused", "static") else None

        def forward(self, ids: Any) -> Any:
            x = self.blocks(self.words(ids) + self.places.weight[: ids.shape[1]])
            if self.norm is not None:
                x = self.norm(x.transpose(1, 2).float()).transpose(1, 2)
            return self.last(x) @ self.words.weight.T

    model = nn.parallel.DistributedDataParallel(Gpt().cuda(), device_ids=[rank], **CONFIGURATIONS[name])
    if name == "fp16 hook":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    losses, seconds = [], []
    parts = 2 if name == "no_sync" else 1
    for step in range(steps):
        begun = time.perf_counter()
        optimizer.zero_grad()
        total = 0.0
        for part in range(parts):
            draw = torch.Generator().manual_seed(1000 * step + 10 * part + rank)
            ids = torch.randint(0, 50257, (batch, 513), generator=draw).cuda()
            with model.no_sync() if part < parts - 1 else nullcontext(), torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten()) / parts
                loss.backward()
            total += loss.item()
        optimizer.step()
        torch.cuda.synchronize()
        losses.append(total)
        seconds.append(time.perf_counter() - begun)
    check = float(sum(p.detach().double().abs().sum() for p in model.parameters()))
    found = {"losses": losses, "seconds": seconds, "peak": torch.cuda.max_memory_reserved(), "weights": check}
    print("RESULT " + json.dumps(found), flush=True)


def ran(name: str, armed: bool, steps: int, batch: int) -> tuple[list[Optional[dict[str, Any]]], str, bool]:
    """What both ranks have printed; what they said; whether they took too long. When one fails, the other is ended, as
    a launcher does."""
    with tempfile.TemporaryDirectory() as folder:
        kids, texts = [], [Path(folder) / f"{rank}.txt" for rank in (0, 1)]
        for rank in (0, 1):
            env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "NCCL_NVLS_ENABLE": "0", "PYTHONUNBUFFERED": "1"}
            env.pop("HEADROOM_WORKER", None)
            if armed:
                env |= {"HEADROOM_WORKER": "armed", "PYTHONPATH": os.pathsep.join([str(PYTHON), str(PYTHON / "inject")])}
            words = [sys.executable, __file__, "train", name, str(rank), str(Path(folder) / "meet"), str(steps), str(batch)]
            with texts[rank].open("w") as out:
                kids.append(subprocess.Popen(words, env=env, stdout=out, stderr=subprocess.STDOUT))
        until = time.monotonic() + LIMIT
        while any(k.poll() is None for k in kids) and time.monotonic() < until and not any(k.poll() for k in kids):
            try:
                next(k for k in kids if k.poll() is None).wait(0.5)
            except subprocess.TimeoutExpired:
                pass
        late = time.monotonic() >= until
        for k in kids:
            k.kill()
            k.wait()
        said = [t.read_text() for t in texts]
    found = [next((json.loads(line[7:]) for line in text.splitlines() if line.startswith("RESULT ")), None) for text in said]
    return found, "\n".join(said), late


def exhaustion(names: list[str], part: float, steps: int, batch: int) -> list[str]:
    rows = [
        "| configuration | peak, GiB | left, GiB | bare | headroom | s a step with room | short | largest loss difference | weights alike | said |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        room, said, late = ran(name, False, steps, batch)
        if None in room:
            rows.append(f"| {name} | with room: {'too late' if late else said[-300:]!r} |")
            continue
        peak = max(r["peak"] for r in room)  # type: ignore[index]
        left = int(part * peak) + CONTEXT
        hold = subprocess.Popen(
            [sys.executable, str(ROOT / "bench" / "gpu" / "hold.py"), str(left / GIB), "100000"],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert hold.stdout is not None
            hold.stdout.readline()
            bare, _, bare_late = ran(name, False, steps, batch)
            ours, said, late = ran(name, True, steps, batch)
        finally:
            hold.kill()
            hold.wait()
        ended = "late" if bare_late else "dies" if None in bare else "ends"
        lines = [line for line in said.splitlines() if line.startswith("headroom:")]
        cells = [name, f"{peak / GIB:.1f}", f"{left / GIB:.1f}", ended]
        if None in ours:
            rows.append(f"| {' | '.join(cells)} | {'LATE' if late else 'left to the script'} | | | | | {' / '.join(lines)[:300]} |")
            print(said[-3000:], flush=True)
        else:
            off = max(abs(a - b) / abs(a) for r, o in zip(room, ours) for a, b in zip(r["losses"], o["losses"]))  # type: ignore[index]
            fast, slow = (sum(r[1]["seconds"][-4:]) / 4 for r in (room, ours))  # type: ignore[index]
            alike = ours[0]["weights"] == ours[1]["weights"]  # type: ignore[index]
            cells += ["ends", f"{fast:.3f}", f"{slow:.3f}", f"{off:.1e}", "yes" if alike else "NO", " / ".join(lines)[:200]]
            rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    if sys.argv[1] == "train":
        name, rank, place, steps, batch = sys.argv[2:7]
        train(name, int(rank), place, int(steps), int(batch))
        return 0
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=Path)
    p.add_argument("--only", nargs="*", default=list(CONFIGURATIONS))
    p.add_argument("--loops", default=SWEPT)
    p.add_argument("--every", type=int, default=9)
    p.add_argument("--part", type=float, default=0.6)
    p.add_argument("--steps", type=int, default=8)
    p.add_argument("--batch", type=int, default=24)
    p.add_argument("--skip", nargs="*", default=[])
    args = p.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    text = []
    if "exhaustion" not in args.skip:
        text += exhaustion(args.only, args.part, args.steps, args.batch)
    if "sweep" not in args.skip:
        env = {**os.environ, "HEADROOM_TEST_DEVICE": "cuda", "PYTHONPATH": str(PYTHON), "HEADROOM_QUIET": "", "NCCL_NVLS_ENABLE": "0"}
        words = [sys.executable, "-u", str(PYTHON / "tests" / "ddp.py"), "--loops", args.loops, "--every", str(args.every)]
        with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as sweep:
            for line in sweep.stdout or ():
                print(line, end="", flush=True)
                text.append(line.rstrip()[:400])
                (args.out / "ranks.md").write_text("\n".join(text) + "\n")
    (args.out / "ranks.md").write_text("\n".join(text) + "\n")
    print("\n".join(text[:12]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
