"""The training runs whose largest batch bench/gpu/find.py looks for.

    find_cases.py train CASE ROWS STEPS    trains with batches of ROWS
    find_cases.py wait CASE STEPS          reads ROWS once everything is imported, and says whether the steps fit

Weights are random, and built from a configuration. With SMOKE in the environment the models are tiny, and run on the CPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from transformers import GPT2Config, GPT2LMHeadModel, ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

SMOKE = "SMOKE" in os.environ
DEVICE = "cpu" if SMOKE else "cuda"


class Case(NamedTuple):
    about: str
    model: Callable[[], torch.nn.Module]
    row: Callable[[], dict[str, torch.Tensor]]
    bf16: bool
    trainer: bool = False  # whether the Trainer of Transformers runs it


def gpt2(length: int) -> Callable[[], torch.nn.Module]:
    def built() -> torch.nn.Module:
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 2000} if SMOKE else {}
        return GPT2LMHeadModel(GPT2Config(n_positions=length, use_cache=False, **sizes))

    return built


def resnet() -> torch.nn.Module:
    sizes: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1]} if SMOKE else {}
    return ResNetForImageClassification(ResNetConfig(num_labels=CLASSES, **sizes))


def vit() -> torch.nn.Module:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64} if SMOKE else {}
    return ViTForImageClassification(ViTConfig(num_labels=CLASSES, image_size=SIDE, **sizes))


def tokens(length: int) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: dict.fromkeys(("input_ids", "labels"), torch.arange(length) % 1000)


def image() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.linspace(-1, 1, 3 * SIDE * SIDE).view(3, SIDE, SIDE), "labels": torch.tensor(1)}


CLASSES, SIDE = (10, 64) if SMOKE else (1000, 224)
LONG, SHORT = (64, 32) if SMOKE else (512, 256)
CASES = {
    "gpt2": Case(f"GPT-2 124M, bf16, {LONG} tokens, AdamW", gpt2(LONG), tokens(LONG), True),
    "resnet": Case(f"ResNet-50, TF32, {SIDE} × {SIDE}, AdamW", resnet, image, False),
    "vit": Case(f"ViT-B/16, bf16, {SIDE} × {SIDE}, AdamW", vit, image, True),
    "trainer": Case(f"GPT-2 124M in the Trainer of Transformers, bf16, {SHORT} tokens", gpt2(SHORT), tokens(SHORT), True, True),
}


def batch(case: Case, rows: int) -> dict[str, torch.Tensor]:
    return {name: value.expand(rows, *value.shape).contiguous().to(DEVICE) for name, value in case.row().items()}


def autocast(case: Case) -> AbstractContextManager[Any]:
    return torch.autocast(DEVICE, torch.bfloat16) if case.bf16 else nullcontext()


class Rows(torch.utils.data.Dataset):
    def __init__(self, case: Case, count: int) -> None:
        self.row, self.count = case.row(), count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, _: int) -> dict[str, torch.Tensor]:
        return self.row


def train(case: Case, rows: int, steps: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not case.bf16
    torch.manual_seed(0)
    if case.trainer:
        return trained(case, rows, steps)
    model = case.model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for _ in range(steps):
        rows_of_step = batch(case, rows)
        with autocast(case):
            loss = model(**rows_of_step).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    loss.item()


def trained(case: Case, rows: int, steps: int, finds: bool = False, callbacks: Any = None, most: int = 0) -> None:
    """Trains with the Trainer of Transformers. If finds is true, it looks for a batch size that fits."""
    import tempfile

    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=rows,
            bf16=case.bf16 and not SMOKE,
            use_cpu=SMOKE,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            auto_find_batch_size=finds,
        )
        Trainer(model=case.model(), args=args, train_dataset=Rows(case, max(most, steps * rows)), callbacks=callbacks).train()


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def waited(case: Case, steps: int) -> None:
    """Trains with as many rows as the first line of the input says. Only what this says goes to the output."""
    said, sys.stdout = sys.stdout, sys.stderr
    if case.trainer:
        import transformers.trainer  # noqa: F401
    print("ready", file=said, flush=True)
    rows = sys.stdin.readline()
    if not rows:
        return
    try:
        train(case, int(rows), steps)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        print("out of memory", file=said, flush=True)
    else:
        print("fits", file=said, flush=True)


def main() -> None:
    kind, case = sys.argv[1], CASES[sys.argv[2]]
    if kind == "train":
        return train(case, int(sys.argv[3]), int(sys.argv[4]))
    waited(case, int(sys.argv[3]))


if __name__ == "__main__":
    main()
