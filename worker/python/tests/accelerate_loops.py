"""A loop with Accelerate, which prepares the model, the optimizer, the schedule and the loader."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from loop import Loop, shape
from loops_composed import mlp, vectors


@shape(every=3)
class AccelerateAccumulation(Loop):
    accumulation = 3

    def build(self) -> None:
        self.net = mlp(10, 12, 5)
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01, eps=1e-3)
        batches = [vectors(self, i) for i in range(60 * self.accumulation)]
        rows = TensorDataset(*(torch.cat(column) for column in zip(*batches)))
        self.accelerator = Accelerator(cpu=True, gradient_accumulation_steps=self.accumulation)
        loader = DataLoader(rows, batch_size=self.rows)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(self.net, optimizer, loader)
        self.batches = iter(self.loader)

    def step(self, i: int) -> list[float]:
        total = 0.0
        for _ in range(self.accumulation):
            x, y = next(self.batches)
            with self.accelerator.accumulate(self.model):
                loss = F.cross_entropy(self.model(x), y)
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.optimizer.zero_grad()
            total += loss.item()
        return [total]


@shape(every=3)
class AcceleratePlain(AccelerateAccumulation):
    accumulation = 1
