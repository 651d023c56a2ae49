"""A Transformers script in the shape of run_clm.py: TrainingArguments on the command
line, the real Trainer, and a checkpoint to resume from if one is named. It does not
know about headroom; a callback appends what every step did to steps.jsonl.
"""

import dataclasses
import json
import os
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainerCallback, TrainingArguments


class Tokens(torch.utils.data.Dataset):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        ids = (torch.arange(64) * (i % 13 + 1) + i) % 128
        return {"input_ids": ids, "labels": ids}


@dataclasses.dataclass
class Size:
    width: int = 64
    layers: int = 2
    eval_rows: int = 0


class Steps(TrainerCallback):
    def __init__(self, path: str) -> None:
        self.path = path

    def on_log(self, args, state, control, logs=None, **kwargs):
        if logs and "loss" in logs:
            line = {"at": time.time(), "step": state.global_step, "micro": args.per_device_train_batch_size,
                    "samples": args.per_device_train_batch_size * args.gradient_accumulation_steps, "lr": logs["learning_rate"], "loss": logs["loss"]}
            with open(self.path, "a") as f:
                f.write(json.dumps(line) + "\n")


def main() -> None:
    args, size = HfArgumentParser((TrainingArguments, Size)).parse_args_into_dataclasses()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=128, n_positions=64, n_embd=size.width, n_layer=size.layers, n_head=size.width // 32, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    os.makedirs(args.output_dir, exist_ok=True)
    trainer = Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=Tokens(1024), eval_dataset=Tokens(size.eval_rows),
                      callbacks=[Steps(os.path.join(args.output_dir, "steps.jsonl"))])
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)


if __name__ == "__main__":
    main()
