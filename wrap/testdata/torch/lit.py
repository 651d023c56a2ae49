"""A LightningCLI script: a module, a data module whose batch size is in the configuration, and whatever trainer.*
keys the configuration contains. It does not know about headroom.

Every optimizer step appends what it did to trainer.default_root_dir/steps.jsonl, for the tests to read.
"""

import json
import os
import time

import lightning
import torch
from lightning.pytorch.cli import LightningCLI
from torch import nn


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> tuple[int, torch.Tensor]:
        return i, torch.full((16,), i % 97 / 97.0)


class Data(lightning.LightningDataModule):
    def __init__(self, batch_size: int = 64, rows: int = 1024, validate: bool = False) -> None:
        super().__init__()
        self.batch_size, self.rows, self.validate = batch_size, rows, validate

    def train_dataloader(self) -> torch.utils.data.DataLoader:
        return torch.utils.data.DataLoader(Rows(self.rows), batch_size=self.batch_size)

    def val_dataloader(self) -> torch.utils.data.DataLoader | list:
        return torch.utils.data.DataLoader(Rows(64), batch_size=16) if self.validate else []


class Net(lightning.LightningModule):
    def __init__(self, width: int = 2048, long_epoch: int = -1) -> None:
        super().__init__()
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.layers = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 1))
        self.long_epoch = long_epoch
        self.ids: list[int] = []
        self.total = 0.0

    def loss(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x = batch[1]
        if self.current_epoch == self.long_epoch:
            x = x.unsqueeze(1).expand(-1, 64, -1)  # samples that take more memory
        return (self.layers(x).squeeze(-1) - x.sum(-1)).square().mean()

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        loss = self.loss(batch)
        self.ids += batch[0].tolist()
        self.total += loss.item() * len(batch[0])
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        self.log("val_loss", self.loss(batch))

    def on_train_batch_end(self, outputs, batch, index: int) -> None:
        trainer = self.trainer
        if (index + 1) % trainer.accumulate_grad_batches and index + 1 < trainer.num_training_batches:
            return
        line = {"at": time.time(), "step": trainer.global_step, "first": self.ids[0], "samples": len(self.ids), "micro": len(batch[0]),
                "lr": trainer.optimizers[0].param_groups[0]["lr"], "loss": self.total / len(self.ids)}
        with open(os.path.join(trainer.default_root_dir, "steps.jsonl"), "a") as f:
            f.write(json.dumps(line) + "\n")
        self.ids, self.total = [], 0.0

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-5, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "epoch"}}


if __name__ == "__main__":
    LightningCLI(Net, lightning.LightningDataModule, subclass_mode_data=True)
