"""Loops of two ranks in Accelerate, Lightning and Transformers."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from typing import Any

import lightning
import torch
import torch.nn.functional as F
import transformers
from accelerate import Accelerator
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from ddp_loops import Loop
from transformers_loops import tiny

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


def as_launched(rank: int) -> None:
    """Sets what torchrun sets."""
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "x"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "ACCELERATE_USE_CPU": "true"}


class Accelerated(Loop):
    """Two micro-batches, clipped."""

    def build(self) -> None:
        as_launched(self.rank)
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        net = self.net()
        self.model, self.optimizer = self.accelerator.prepare(net, self.optimized(net))

    def step(self, i: int) -> float:
        total = 0.0
        for n in range(2):
            x, y = self.batch(10 * i + n)
            with self.accelerator.accumulate(self.model):
                self.fails(True)
                loss = F.cross_entropy(self.model(x), y)
                self.accelerator.backward(loss)
                self.fails(False)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            total += loss.item()
        return total


class Module(lightning.LightningModule):
    def __init__(self, loop: Any, calls_itself: bool) -> None:
        super().__init__()
        self.loop, self.calls_itself, self.total = [loop], calls_itself, 0.0  # in a list: it is no module
        self.layers = nn.Sequential(nn.Linear(10, 12), nn.GELU(), nn.Linear(12, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x) if self.calls_itself else self.layers(x), y)
        self.total += loss.item()
        return loss

    def on_train_batch_start(self, batch: Any, index: int) -> None:
        self.loop[0].fails(True)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.loop[0].fails(False)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01, eps=1e-3)


class Lightning(Loop, find_unused_parameters=False):
    calls_itself = False

    def build(self) -> None:
        as_launched(self.rank)
        self.model = Module(self, self.calls_itself)  # type: ignore[assignment]

    def step(self, i: int) -> float:
        x, y = self.batch(i)
        rows = DataLoader(TensorDataset(x, y), batch_size=self.rows)
        lightning.Trainer(
            max_steps=1, accelerator="cpu", devices=2, strategy=DDPStrategy(process_group_backend="gloo", **self.options),
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            use_distributed_sampler=False,
        ).fit(self.model, rows)  # fmt: skip
        return float(self.model.total)


class LightningItself(Lightning, find_unused_parameters=True):
    calls_itself = True


class Begins(TrainerCallback):
    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.loop.fails(True)

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.loop.fails(False)


class Transformers(Loop):
    tolerance, least = 1e-5, 0.8

    def build(self) -> None:
        as_launched(self.rank)
        self.model = tiny()  # type: ignore[assignment]

    def step(self, i: int) -> float:
        draw = torch.Generator().manual_seed(i)
        ids = torch.randint(0, 11, (2 * self.rows, 5), generator=draw)
        rows = [{"input_ids": a, "labels": a} for a in ids]
        with tempfile.TemporaryDirectory() as out:
            arguments = TrainingArguments(
                out, max_steps=1, per_device_train_batch_size=self.rows, learning_rate=0.01, adam_epsilon=1e-3,
                lr_scheduler_type="constant", logging_steps=1, disable_tqdm=True, use_cpu=True, save_strategy="no",
                report_to="none", dataloader_pin_memory=False, ddp_backend="gloo",
            )  # fmt: skip
            trainer = Trainer(self.model, arguments, train_dataset=rows, callbacks=[Begins(self)])
            trainer.remove_callback(transformers.PrinterCallback)
            return float(trainer.train().training_loss)
