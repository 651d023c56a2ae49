"""Loops with Lightning: automatic optimization with accumulation and clipping, and manual
optimization."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import lightning
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import trial
from loop import Loop, shape
from loops_composed import mlp, vectors

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")


class Net(lightning.LightningModule):
    def __init__(self, begin: Callable[[int], None], printed: list[list[float]]) -> None:
        super().__init__()
        self.begin, self.printed = begin, printed
        self.layers = mlp(10, 12, 5)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        x, y = batch
        logits = self.layers(x)
        loss = F.cross_entropy(logits, y)
        self.log("accuracy", (logits.argmax(1) == y).float().mean())
        self.printed.append([loss.item()])
        return loss

    def on_train_batch_start(self, batch: object, index: int) -> None:
        if index % self.trainer.accumulate_grad_batches == 0:
            self.begin(index // self.trainer.accumulate_grad_batches)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.01, eps=1e-3)


class ByHand(Net):
    def __init__(self, begin: Callable[[int], None], printed: list[list[float]]) -> None:
        super().__init__(begin, printed)
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        x, y = batch
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = F.cross_entropy(self.layers(x), y)
        self.manual_backward(loss)
        optimizer.step()
        self.printed.append([loss.item()])


@shape(every=5)
class LightningAutomatic(Loop):
    accumulation, net_type = 1, Net

    def build(self) -> None:
        self.net = self.net_type(lambda i: None, self.printed)

    def run(self, steps: int, begin: Callable[[int], None]) -> None:
        self.net.begin = begin
        batches = [vectors(self, i) for i in range(steps * self.accumulation)]
        rows = TensorDataset(*(torch.cat(column) for column in zip(*batches)))
        lightning.Trainer(
            max_steps=steps, accelerator=trial.DEVICE, devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
            enable_model_summary=False, accumulate_grad_batches=self.accumulation,
            gradient_clip_val=None if self.net_type is ByHand else 1.0,
        ).fit(self.net, DataLoader(rows, batch_size=self.rows))  # fmt: skip


@shape(every=5)
class LightningAccumulation(LightningAutomatic):
    accumulation = 3


@shape(every=5)
class LightningManual(LightningAutomatic):
    net_type = ByHand
