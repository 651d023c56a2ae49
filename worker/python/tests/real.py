"""Checks training runs that really run out of memory: under RLIMIT_DATA, the CPU's allocator fails. Each is run
three times. The first run has enough memory. The second has too little, and no headroom: it must die, or the
test proves nothing. The third has too little memory, and headroom: it must finish with the losses of the first
run.

    python real.py [--kinds
    raw,transformers,lightning,accelerate,evaluation,optimizer,optimizer_closure,evaluation_transformers]
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

# With these settings, freed memory goes back to the system, so that the limit is meaningful. They are read when
# a process begins.
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "1048576"}
if __name__ == "__main__" and not MALLOC.keys() <= os.environ.keys():
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **MALLOC})

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trial
from forked import Died, forked, silenced

MIB = 1 << 20
ROWS, STEPS, LENGTH, VOCABULARY = 64, 4, 32, 4096


@dataclass
class Run:
    kind: str
    room: int  # bytes beyond what the process holds when it begins
    attached: bool


@dataclass
class Ended:
    losses: list[float] = field(default_factory=list)
    weights: float = 0.0  # the sum of their squares
    error: str = ""
    memory: bool = False  # whether error came from the allocator
    seconds: float = 0.0
    said: str = ""  # by headroom


class Tokens(nn.Module):
    """A language model that needs nearly all its memory for its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, VOCABULARY))

    def forward(self, ids: Tensor) -> Tensor:
        return self.layers(self.tokens(ids))


def ids(i: int) -> Tensor:
    return torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=torch.Generator().manual_seed(i))


def loss_of(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def raw() -> tuple[list[float], nn.Module]:
    net = Tokens()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-4)
    losses = []
    for i in range(STEPS):
        batch = ids(i)
        optimizer.zero_grad()
        loss = loss_of(net(batch), batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, net


def transformers(evaluate: int = 0) -> tuple[list[float], nn.Module]:
    """Trains with Transformers' Trainer. If ``evaluate`` is not 0, that many rows are evaluated
    after each step."""
    import tempfile

    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    net = GPT2LMHeadModel(config)
    rows = [{"input_ids": row, "labels": row} for i in range(STEPS) for row in ids(i)]
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            out, max_steps=STEPS, per_device_train_batch_size=ROWS, learning_rate=1e-3, adam_epsilon=1e-4, logging_steps=1, disable_tqdm=True,
            use_cpu=True, save_strategy="no", report_to="none", dataloader_pin_memory=False,
            **({"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": evaluate} if evaluate else {}),
        )  # fmt: skip
        trainer = Trainer(net, arguments, train_dataset=rows, eval_dataset=rows[:evaluate] or None)
        trainer.train()
    return [line[name] for line in trainer.state.log_history for name in ("loss", "eval_loss") if name in line], net


def lightning() -> tuple[list[float], nn.Module]:
    import lightning as pl
    from torch.utils.data import DataLoader

    losses: list[float] = []

    class Net(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Tokens()

        def training_step(self, batch: Tensor, index: int) -> Tensor:
            loss = loss_of(self.net(batch), batch)
            losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3, eps=1e-4)

    net = Net()
    trainer = pl.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(net, DataLoader(torch.cat([ids(i) for i in range(STEPS)]), batch_size=ROWS))
    return losses, net


def accelerate() -> tuple[list[float], nn.Module]:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = Tokens()
    model, optimizer = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-4))
    losses = []
    for i in range(2 * STEPS):
        batch = ids(i)
        with accelerator.accumulate(model):
            loss = loss_of(model(batch), batch)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, net


class Wide(nn.Module):
    """A classifier of tokens that needs nearly all its memory for its activations."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 16)
        self.layers = nn.Sequential(nn.Linear(16, VOCABULARY // 2), nn.Tanh(), nn.Linear(VOCABULARY // 2, 8))

    def forward(self, ids: Tensor) -> Tensor:
        return self.layers(self.tokens(ids))


def evaluation() -> tuple[list[float], nn.Module]:
    """Evaluates on four times as many rows at once as it trains on."""
    net = Wide()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-4)
    losses = []
    for i in range(STEPS):
        batch = ids(i)
        optimizer.zero_grad()
        F.cross_entropy(net(batch).flatten(0, 1), batch.flatten() % 8).backward()
        optimizer.step()
        net.eval()
        with torch.inference_mode():
            held_out = torch.cat([ids(STEPS + k) for k in range(4)])
            losses.append(F.cross_entropy(net(held_out).flatten(0, 1), held_out.flatten() % 8).item())
        net.train()
    return losses, net


def optimizer(closed: bool = False) -> tuple[list[float], nn.Module]:
    """Trains a model whose weights, gradients and Adam state are as large as four, four and eight
    batches of logits. An optimizer's step over all tensors at once needs memory for four more, and
    allocates it after it has begun to change the state. A step tensor by tensor needs memory for
    only one more."""
    net = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8)))
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-4, foreach=True)
    losses = []
    for i in range(STEPS):
        batch = torch.randn(4, 2048, generator=torch.Generator().manual_seed(i))

        def closure(batch: Tensor = batch) -> Tensor:
            adam.zero_grad()
            loss = net(batch).square().mean()
            loss.backward()
            losses.append(loss.item())
            return loss

        if closed:
            adam.step(closure)  # type: ignore[arg-type]
        else:
            closure()
            adam.step()
    return losses, net


# The trainings, and the amounts of memory that each is given, in whole batches of logits: too little for
# the model, the loss or backward; for the evaluation alone; or for the optimizer's step alone.
KINDS: dict[str, tuple[Callable[[], tuple[list[float], nn.Module]], tuple[float, ...]]] = {
    "raw": (raw, (1.3, 2.2, 3.0)),
    "transformers": (transformers, (1.6, 2.2, 3.1)),
    "lightning": (lightning, (1.3, 2.2, 3.0)),
    "accelerate": (accelerate, (1.3, 2.2, 3.0)),
    "evaluation": (evaluation, (2.5,)),
    "optimizer": (optimizer, (18.5, 19.5)),
    "optimizer_closure": (lambda: optimizer(closed=True), (19.0,)),
    "evaluation_transformers": (lambda: transformers(4 * ROWS), (7.0,)),
}

LOGITS = 4 * ROWS * LENGTH * VOCABULARY  # bytes


def held() -> int:
    """The memory that counts against RLIMIT_DATA at present, in bytes."""
    with open("/proc/self/status") as f:
        found = re.search(r"VmData:\s+(\d+) kB", f.read())
    assert found
    return int(found.group(1)) * 1024


def ran(run: Run) -> Ended:
    """Carries out the run. Called in a child."""
    said = silenced()
    torch.manual_seed(0)
    if run.attached:
        trial.attach()
    if run.room:
        resource.setrlimit(resource.RLIMIT_DATA, (held() + run.room, resource.RLIM_INFINITY))
    began, ended = time.monotonic(), Ended()
    try:
        ended.losses, net = KINDS[run.kind][0]()
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        ended.weights = sum(p.detach().double().square().sum().item() for p in net.parameters())
    except Exception as error:
        ended.error = trial.described(error)
        ended.memory = "can't allocate memory" in str(error)
    ended.seconds = time.monotonic() - began
    # so that the report has enough memory
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    ended.said = next((line for line in said().splitlines() if line.startswith("headroom:")), "")
    return ended


def judged(room: Ended, bare: Ended, ours: Ended) -> str:
    if room.error:
        return f"with room: {room.error}"
    if not bare.memory:
        return f"the bare script did not run out of memory: {bare.error or 'it finished'}"
    if ours.error:
        return f"{ours.said} | {ours.error}"
    if len(ours.losses) != len(room.losses) or any(
        abs(a - b) > 1e-4 * abs(a) for a, b in zip(room.losses, ours.losses)
    ):
        return f"losses {ours.losses}, with room {room.losses}"
    return (
        ""
        if abs(ours.weights - room.weights) <= 1e-5 * room.weights
        else f"weights {ours.weights}, with room {room.weights}"
    )


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--kinds", default=",".join(KINDS))
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = p.parse_args()
    torch.set_num_threads(1)
    import accelerate  # noqa: F401  not under a limit
    import lightning  # noqa: F401
    import transformers

    transformers.utils.logging.set_verbosity_error()
    rooms = [(kind, int(part * LOGITS)) for kind in args.kinds.split(",") for part in KINDS[kind][1]]
    tasks = [Run(kind, 0, False) for kind in args.kinds.split(",")] + [
        Run(kind, room, attached) for kind, room in rooms for attached in (False, True)
    ]
    ended: dict[tuple[str, int, bool], Ended] = {}
    for run, got in forked(ran, tasks, args.jobs, seconds=240):
        ended[run.kind, run.room, run.attached] = Ended(error=got.why) if isinstance(got, Died) else got
    failed = 0
    for kind, little in rooms:
        room, bare, ours = ended[kind, 0, False], ended[kind, little, False], ended[kind, little, True]
        said = judged(room, bare, ours)
        failed += bool(said)
        held_out = f"{ours.seconds:.1f} s, with room {room.seconds:.1f} s; bare: {bare.error[-120:]}"
        print(f"{'FAILED' if said else 'ok':6} {kind} in {little // MIB} MiB: {said or held_out}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
