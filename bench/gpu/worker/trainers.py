"""Training jobs run by Transformers and Lightning, and the ways in which libraries and guarftrain find a batch size.

trainers.py TASK FOLDER
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from log import Log
from models import DEVICE, Rows, gpt2, size, tokens

LATE, LATE_STEPS, STEPS = 30, 80, int(os.environ.get("STEPS", "12"))
LENGTH = size(512, 32)


def transformers(log: Log, rows: int, data: Rows, **more: Any) -> None:
    """Trains with the Trainer of Transformers. The loss is computed inside the model."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Counted(Trainer):
        samples, loss = 0, 0.0

        def training_step(self, model, inputs, *args, **kwargs):  # type: ignore[no-untyped-def]
            loss = super().training_step(model, inputs, *args, **kwargs)
            self.samples, self.loss = self.samples + len(inputs["input_ids"]), self.loss + loss
            return loss

    class Steps(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
            log.step(trainer.samples, trainer.loss, step=state.global_step)
            trainer.samples, trainer.loss = 0, 0.0

    args = TrainingArguments(
        output_dir=log.folder,
        max_steps=log.asked,
        per_device_train_batch_size=rows,
        learning_rate=3e-4,
        bf16=True,
        use_cpu=DEVICE == "cpu",
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **more,
    )
    trainer = Counted(model=gpt2(4), args=args, train_dataset=data, callbacks=[Steps()])
    trainer.train()


def lightning(log: Log, *callbacks: Any) -> None:
    """Trains GPT-2 with Lightning's Trainer in bf16-mixed."""
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.batch_size = gpt2(4), size(40, 8)

        def training_step(self, batch, index):  # type: ignore[no-untyped-def]
            return self.net(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.net.parameters(), lr=3e-4)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Rows(STEPS * size(40, 8), LENGTH), batch_size=self.batch_size)

    class Steps(pl.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, index):  # type: ignore[no-untyped-def]
            log.step(len(batch["input_ids"]), outputs["loss"], step=trainer.global_step)

    pl.Trainer(
        max_steps=log.asked,
        precision="bf16-mixed",
        accelerator="gpu" if DEVICE == "cuda" else "cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Steps(), *callbacks],
    ).fit(Model())


def finder(log: Log) -> None:
    """Trains with Lightning's BatchSizeFinder, which starts from the batch size asked for."""
    from lightning.pytorch.callbacks import BatchSizeFinder

    lightning(log, BatchSizeFinder(init_val=size(40, 8), steps_per_trial=1, max_trials=1 if DEVICE == "cpu" else 8))


def executable(log: Log) -> None:
    """Puts Accelerate's find_executable_batch_size around a whole training job."""
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size(starting_batch_size=size(40, 8))
    def train(batch_size: int) -> None:
        model = gpt2(4).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        for step in range(STEPS):
            ids = tokens(step, batch_size, LENGTH).to(DEVICE)
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = model(ids, labels=ids).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            log.step(batch_size, loss, step=step + 1)

    train()


def watched(log: Log) -> None:
    """Trains with a batch size from the command line, where guarftrain sets it."""
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, required=True)
    for flag in ("--resume", "--checkpoint"):  # without them guarftrain does not restart anything
        parser.add_argument(flag)
    rows = parser.parse_known_args()[0].batch_size
    transformers(log, rows, Rows(STEPS * rows, LENGTH))


def late(log: Log) -> None:
    rows = size(16, 4)
    transformers(log, rows, Rows(LATE_STEPS * rows, LENGTH, range((LATE - 1) * rows, LATE * rows)))


def plain(log: Log, **more: Any) -> None:
    transformers(log, size(40, 8), Rows(STEPS * size(40, 8), LENGTH), **more)


TASKS = {
    "late": late,
    "lightning": lightning,
    "trainer": plain,
    "auto": lambda log: plain(log, auto_find_batch_size=True),
    "executable": executable,
    "finder": finder,
    "watched": watched,
}

if __name__ == "__main__":
    with Log(sys.argv[2], LATE_STEPS if sys.argv[1] == "late" else STEPS) as log:
        TASKS[sys.argv[1]](log)
