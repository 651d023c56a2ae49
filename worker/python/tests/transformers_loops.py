"""Loops with Transformers: with its Trainer, and with its models in a raw loop."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import trial
from loop import Loop, Raw, shape
from loops_language import LENGTH, VOCABULARY, tokens

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def tiny(dropout: float = 0.0) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=12, n_layer=1, n_head=2,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


@shape(every=2)
class HfLossInside(Raw):
    def build(self) -> None:
        self.net = tiny()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01, eps=1e-3)

    def loss(self, i: int) -> Tensor:
        ids, labels = tokens(self, i)
        return self.net(input_ids=ids, labels=labels).loss


@shape(every=2)
class HfLogits(HfLossInside):
    def loss(self, i: int) -> Tensor:
        ids, labels = tokens(self, i)
        out = self.net(input_ids=ids)
        return F.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Begins(TrainerCallback):
    """Calls ``begin`` whenever the Trainer begins an optimizer step."""

    def __init__(self, begin: Callable[[int], None]) -> None:
        self.begin = begin

    def on_step_begin(self, args, state, control, **kwargs) -> None:
        self.begin(state.global_step)


@shape(every=6)
class HfTrainer(Loop):
    accumulation, dropout = 1, 0.0

    def build(self) -> None:
        self.net = tiny(self.dropout)

    def run(self, steps: int, begin: Callable[[int], None]) -> None:
        rows = []
        # the number does not depend on the steps made, since the rows are shuffled
        for i in range(60 * self.accumulation):
            rows += [{"input_ids": a, "labels": b} for a, b in zip(*tokens(self, i))]
        with tempfile.TemporaryDirectory() as out:
            arguments = TrainingArguments(
                out, max_steps=steps, per_device_train_batch_size=self.rows, gradient_accumulation_steps=self.accumulation,
                learning_rate=0.01, adam_epsilon=1e-3, lr_scheduler_type="constant", seed=self.seed, logging_steps=1, disable_tqdm=True,
                use_cpu=trial.DEVICE == "cpu", save_strategy="no", report_to="none", dataloader_pin_memory=False,
            )  # fmt: skip
            trainer = Trainer(self.net, arguments, train_dataset=rows, callbacks=[Begins(begin)])
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()
        self.printed = [[line["loss"]] for line in trainer.state.log_history if "loss" in line]


@shape(every=6)
class HfTrainerAccumulation(HfTrainer):
    accumulation = 2


@shape(dropout=True, every=12)
class HfTrainerDropout(HfTrainer):
    dropout = 0.1
