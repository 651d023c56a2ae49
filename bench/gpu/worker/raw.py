"""Training jobs in hand-written loops, which know nothing about headroom.

raw.py TASK FOLDER
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.nn import functional as F

from log import Log
from models import DEVICE, gpt2, images, resnet, shifted, size, tokens

STEPS = int(os.environ.get("STEPS", "12"))


def autocast(dtype: torch.dtype = torch.bfloat16) -> AbstractContextManager[Any]:
    return torch.autocast(DEVICE, dtype=dtype)


def language(log: Log, layers: int, compiled: bool = False, small: int = 0) -> None:
    """Trains GPT-2 in bf16, with the loss computed from its logits. The first ``small`` batches are half as large."""
    full, length = size(40, 8), size(512, 32)
    model = gpt2(layers).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    called = torch.compile(model) if compiled else model
    for step in range(STEPS):
        rows = full // 2 if step < small else full
        ids = tokens(step, rows, length).to(DEVICE)
        optimizer.zero_grad()
        with autocast():
            loss = shifted(called(ids).logits, ids)
        loss.backward()
        optimizer.step()
        log.step(len(ids), loss)


def scaler(log: Log) -> None:
    """Trains GPT-2 of 4 layers in fp16, with loss scaling."""
    rows, length = size(40, 8), size(512, 32)
    model = gpt2(4).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaled = torch.amp.GradScaler(DEVICE)
    for step in range(STEPS):
        ids = tokens(step, rows, length).to(DEVICE)
        optimizer.zero_grad()
        with autocast(torch.float16 if DEVICE == "cuda" else torch.bfloat16):
            loss = shifted(model(ids).logits, ids)
        scaled.scale(loss).backward()
        scaled.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaled.step(optimizer)
        scaled.update()
        log.step(len(ids), loss, scale=scaled.get_scale())


def vision(log: Log) -> None:
    """Trains ResNet-50 in fp32. Its normalisation uses statistics of the whole batch."""
    rows, side = size(128, 8), size(128, 32)
    model = resnet().to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    for step in range(STEPS):
        x, y = (t.to(DEVICE) for t in images(step, rows, side))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        log.step(len(x), loss)


def optimizer(log: Log) -> None:
    """Trains a model for which only weights, gradients and Adam's state take much memory, as in fine-tuning that barely fits."""
    width = size(4096, 64)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(12))).to(DEVICE)
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        x = torch.randn(8, width, generator=torch.Generator().manual_seed(step)).to(DEVICE)
        adam.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()
        adam.step()
        log.step(len(x), loss)


def evaluation(log: Log) -> None:
    """Trains GPT-2 of 4 layers on small batches and evaluates it every 4 steps on large ones. The loss is computed inside the model."""
    rows, large, length = size(8, 2), size(64, 16), size(512, 32)
    model = gpt2(4).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(STEPS):
        evaluated = None
        if step % 4 == 3:
            model.eval()
            held = tokens(10_000 + step, large, length).to(DEVICE)
            with torch.no_grad(), autocast():
                evaluated = model(held, labels=held).loss.item()
            model.train()
        ids = tokens(step, rows, length).to(DEVICE)
        optimizer.zero_grad()
        with autocast():
            loss = model(ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        log.step(len(ids), loss if evaluated is None else loss.item() + evaluated)


def leak(log: Log) -> None:
    """Trains GPT-2 and keeps the outputs of every step, so that memory leaks."""
    predictions = []
    model = gpt2(2).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(STEPS):
        ids = tokens(step, 2, 64).to(DEVICE)
        optimizer.zero_grad()
        with autocast():
            out = model(ids, labels=ids)
        out.loss.backward()
        optimizer.step()
        predictions.append(out.logits)
        log.step(len(ids), out.loss)


def accelerated(log: Log) -> None:
    """Trains GPT-2 with Accelerate, with three batches per step."""
    from accelerate import Accelerator

    rows, length, every = size(40, 8), size(512, 32), 3
    accelerator = Accelerator(gradient_accumulation_steps=every, mixed_precision="bf16", cpu=DEVICE == "cpu")
    model = gpt2(4)
    ids = torch.cat([tokens(i, rows, length) for i in range(every * STEPS)])
    loader = torch.utils.data.DataLoader(ids, batch_size=rows)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-4), loader)
    samples, total = 0, torch.zeros((), device=DEVICE)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = shifted(model(batch).logits, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        samples, total = samples + len(batch), total + loss.detach() / every
        if accelerator.sync_gradients:
            log.step(samples, total)
            samples, total = 0, torch.zeros((), device=DEVICE)


TASKS = {
    "gpt2": lambda log: language(log, 12),
    "later": lambda log: language(log, 12, small=6),
    "compiled": lambda log: language(log, 4, compiled=True),
    "scaler": scaler,
    "optimizer": optimizer,
    "resnet": vision,
    "evaluation": evaluation,
    "leak": leak,
    "accelerate": accelerated,
}

if __name__ == "__main__":
    with Log(sys.argv[2], STEPS) as log:
        TASKS[sys.argv[1]](log)
