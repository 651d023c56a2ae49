"""What the memory of a GPU is held for, as `headroom explain RUN` says it, in a few trainings, each alone on the GPU and beside another process.

    python account.py HEADROOM [--cpu] [--hold GIB] [CASE…]

Needs transformers; uses torchvision's ResNet-50 if that is there. Prints each account, and the share that is unknown. The exit status is 1 if an account does
not add up to what nvidia-smi says is used within 2 %, if more than 2 % of that is unknown, if the other process is not named, or if weights, gradients,
the optimizer's state or the other process differ from what their programs say by more than 2 %. With --cpu, small models train on the CPU, and only the sums
are checked.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MIB = 1 << 20
CLOSE = 0.02
STEPS = 12  # before the account is asked for
SECONDS = 240  # that a case may take to get there


# What is measured: each case trains until the file "stop" is there, and says what its model needs.


def said(model: Any, optimizer: Any) -> None:
    import torch

    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    grads = sum(p.grad.numel() * p.grad.element_size() for p in model.parameters() if p.grad is not None)
    state = sum(t.numel() * t.element_size() for s in optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.is_cuda)
    Path("said.tmp").write_text(json.dumps({"weights": weights, "gradients": grads, "optimizer": state}))
    os.replace("said.tmp", "said.json")


def stops() -> bool:
    return Path("stop").exists()


def loop(model: Any, batch: Callable[[], dict[str, Any]], keep: bool = False) -> None:
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step, kept = 0, []
    while not stops():
        optimizer.zero_grad(set_to_none=False)
        out = model(**batch())
        loss = out.loss if hasattr(out, "loss") else torch.nn.functional.cross_entropy(out, torch.zeros(len(out), dtype=torch.long, device=out.device))
        loss.backward()
        optimizer.step()
        if keep and step < 40:
            kept.append(loss.detach().new_ones(4 << 20))
        step += 1
        if step == STEPS:
            said(model, optimizer)


def device() -> str:
    return "cpu" if os.environ.get("ACCOUNT_CPU") else "cuda"


def gpt2_model() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    small = {"n_layer": 2, "n_embd": 128, "n_head": 2} if device() == "cpu" else {}
    return GPT2LMHeadModel(GPT2Config(**small)).to(device())


def tokens(rows: int, length: int) -> dict[str, Any]:
    import torch

    ids = torch.randint(0, 50257, (rows, length), device=device())
    return {"input_ids": ids, "labels": ids}


def gpt2() -> None:
    """GPT-2 of 124 million parameters, 8 rows of 512 tokens; 40 tensors of 16 MiB are kept."""
    loop(gpt2_model(), lambda: tokens(2 if device() == "cpu" else 8, 64 if device() == "cpu" else 512), keep=True)


def resnet50() -> None:
    """A ResNet-50, 64 images."""
    import torch

    rows, size = (2, 64) if device() == "cpu" else (64, 224)
    try:
        from torchvision.models import resnet50 as make

        model, name = make(num_classes=100), "x"
    except ImportError:
        from transformers import ResNetConfig, ResNetForImageClassification

        model, name = ResNetForImageClassification(ResNetConfig(num_labels=100)), "pixel_values"

        inner = model.forward
        model.forward = lambda pixel_values: inner(pixel_values).logits
    model = model.to(device())
    loop(model, lambda: {name: torch.randn(rows, 3, size, size, device=device())})


def trainer() -> None:
    """Transformers' Trainer with GPT-2."""
    import torch
    from transformers import Trainer, TrainerCallback, TrainingArguments

    model = gpt2_model()
    length = 64 if device() == "cpu" else 512

    class Data(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, i: int) -> dict[str, Any]:
            ids = torch.full((length,), i % 50257)
            return {"input_ids": ids, "labels": ids}

    class Stops(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step + 1 == STEPS:
                said(model, of.optimizer.optimizer if hasattr(of.optimizer, "optimizer") else of.optimizer)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = stops()
            return control

    rows = 2 if device() == "cpu" else 8
    args = TrainingArguments("out", per_device_train_batch_size=rows, max_steps=1 << 20, report_to=[], save_strategy="no", disable_tqdm=True)
    of = Trainer(model=model, args=args, train_dataset=Data(), callbacks=[Stops()])
    of.train()


def evaluation() -> None:
    """An evaluation with gradients that keeps its results, until memory runs out; the account is that of the failure."""
    import torch

    model = gpt2_model().eval()
    if device() == "cuda":
        _, total = torch.cuda.mem_get_info()
        torch.cuda.set_per_process_memory_fraction(min(1.0, (12 << 30) / total))
    else:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (int(3e9), int(3e9)))
    seen = []
    while True:
        batch = tokens(8, 64 if device() == "cpu" else 256)
        seen.append(model(**batch).logits)


CASES: dict[str, Callable[[], None]] = {"gpt2": gpt2, "resnet50": resnet50, "trainer": trainer, "evaluation": evaluation}
FAILS = {"evaluation"}  # the account is that of a failure


def hold(gib: float) -> None:
    import torch

    held = torch.empty(int(gib * 2**30), dtype=torch.uint8, device="cuda")
    print(held.numel(), flush=True)
    sys.stdin.read()


# The measurement.


def used() -> int:
    """Bytes of the first GPU that is visible in use, as nvidia-smi has it."""
    asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", os.environ.get("CUDA_VISIBLE_DEVICES") or "0"]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout) * MIB


def explained(headroom: str, folder: str, case: str) -> tuple[dict[str, Any], int, dict[str, int]]:
    """Runs a case. Returns what headroom says of it, what nvidia-smi says is used meanwhile, and what the case says that it has."""
    env = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [headroom, "run", "--name", case, "--spill", "off", "--", sys.executable, os.path.abspath(__file__), headroom, "--case", case]
    with open(os.path.join(folder, "output"), "w") as out:
        run = subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out)
        try:
            until = time.monotonic() + SECONDS
            while not (Path(folder) / "said.json").exists() and run.poll() is None and time.monotonic() < until:
                time.sleep(0.1)
            if case in FAILS:
                run.wait(SECONDS)
            elif run.poll() is not None or time.monotonic() >= until:
                raise SystemExit(f"{case}: no step was made\n{(Path(folder) / 'output').read_text()[-4000:]}")
            time.sleep(1.0)  # the allocator has all that it will need
            answer = subprocess.run([headroom, "explain", case, "--json"], cwd=folder, capture_output=True, text=True)
            if answer.returncode:
                raise SystemExit(f"{case}: {answer.stderr}\n{(Path(folder) / 'output').read_text()[-4000:]}")
            now = used() if device() == "cuda" and case not in FAILS else 0
            text = subprocess.run([headroom, "explain", case], cwd=folder, capture_output=True, text=True)
            print(text.stdout)
        finally:
            (Path(folder) / "stop").touch()
            try:
                run.wait(60)
            except subprocess.TimeoutExpired:
                run.kill()
    known = Path(folder) / "said.json"
    return json.loads(answer.stdout), now, json.loads(known.read_text()) if known.exists() else {}


def wrong(said: dict[str, Any], now: int, model: dict[str, int], other: tuple[int, int] | None) -> list[str]:
    """What is wrong with an account. ``other`` is the pid of another process on the GPU, and the bytes of its tensor."""
    found = []
    if not said["memory"]:
        return ["there is no account"]
    for memory in said["memory"]:
        shares = {s["kind"]: 0 for s in memory["shares"]}
        for s in memory["shares"]:
            shares[s["kind"]] += s["bytes"]
            if s["bytes"] < 0:
                found.append(f"{s} is negative")
        total = sum(shares.values())
        if total != memory["total"]:
            found.append(f"the shares of {memory['device']} add up to {total}, not {memory['total']}")
        if memory["device"] == "host":
            continue
        inside = total - shares.get("free", 0) - shares.get("driver", 0)
        unknown = shares.get("unknown", 0) / inside
        print(f"{memory['device']}: {inside / MIB:.0f} MiB used, {now / MIB:.0f} MiB by nvidia-smi")
        print(f"unknown: {unknown * inside / MIB:.1f} MiB, {100 * unknown:.2f} %")
        if now and abs(inside - now) > CLOSE * now:
            found.append(f"{inside / MIB:.0f} MiB are accounted for, and nvidia-smi says {now / MIB:.0f} MiB")
        if unknown > CLOSE:
            found.append(f"{100 * unknown:.2f} % of what is used is unknown")
        for kind, bytes in model.items():
            if abs(shares.get(kind, 0) - bytes) > CLOSE * bytes + 4 * MIB:
                found.append(f"{kind}: {shares.get(kind, 0) / MIB:.1f} MiB, and the program says {bytes / MIB:.1f} MiB")
        if other is not None:
            theirs = next((s for s in memory["shares"] if s["kind"] == "others" and s.get("pid") == other[0]), None)
            if theirs is None or theirs["bytes"] < other[1] or theirs["bytes"] > other[1] + (2 << 30):
                found.append(f"the other process (pid {other[0]}, {other[1] / MIB:.0f} MiB) is {theirs}")
    return found


def main() -> int:
    p = argparse.ArgumentParser()
    p.add_argument("headroom")
    p.add_argument("cases", nargs="*", metavar="CASE")
    p.add_argument("--cpu", action="store_true")
    p.add_argument("--hold", type=float, default=4.0, metavar="GIB", help="what the other process holds")
    p.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    p.add_argument("--holds", type=float, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.case:
        CASES[a.case]()
        return 0
    if a.holds:
        hold(a.holds)
        return 0
    if a.cpu:
        os.environ["ACCOUNT_CPU"] = "1"
    failed = 0
    headroom = os.path.abspath(a.headroom)
    for case in a.cases or CASES:
        for beside in (False,) if a.cpu else (False, True):
            print(f"== {case}{', beside another process' if beside else ''}", flush=True)
            other = None
            with tempfile.TemporaryDirectory() as folder:
                if beside:
                    holds = [sys.executable, os.path.abspath(__file__), headroom, "--holds", str(a.hold)]
                    other = subprocess.Popen(holds, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                    held = int(other.stdout.readline())  # type: ignore[union-attr]
                try:
                    found = wrong(*explained(headroom, folder, case), other and (other.pid, held))
                finally:
                    if other is not None:
                        other.communicate()
                log = (Path(folder) / "output").read_text()
            for text in found:
                print(f"WRONG: {text}")
            if found:
                print(log[-2000:])
            failed += bool(found)
            sys.stdout.flush()
    print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
