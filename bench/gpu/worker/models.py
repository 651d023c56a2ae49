"""Models with random weights, and batches from which a model can learn. A batch can be recreated from its number."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.nn import functional as F

TINY = bool(os.environ.get("BENCH_TINY"))  # uses sizes that a CPU can handle
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCAB = 101 if TINY else 50257
CLASSES = 1000


def size(full: int, tiny: int) -> int:
    return tiny if TINY else full


def gpt2(layers: int = 12) -> nn.Module:
    """Returns GPT-2 without dropout; with 12 layers it has 124M parameters."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_layer=size(layers, 2),
            n_embd=size(768, 64),
            n_head=size(12, 2),
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
    )


def tokens(first: int, rows: int, length: int) -> torch.Tensor:
    """Returns rows of tokens. Each row counts up from a random start with a random stride; first is the seed of
    the random numbers."""
    g = torch.Generator().manual_seed(first)
    start, stride = torch.randint(VOCAB, (rows, 1), generator=g), torch.randint(1, 8, (rows, 1), generator=g)
    return (start + stride * torch.arange(length)) % VOCAB


def shifted(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Returns the loss of a language model, as scripts compute it outside the model."""
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


class Rows(torch.utils.data.IterableDataset):
    """A data set with the given number of rows of tokens, in a fixed order. Rows whose numbers are in late are twice as long."""

    def __init__(self, count: int, length: int, late: range = range(0)) -> None:
        self.count, self.length, self.late = count, length, late

    def __iter__(self):
        for i in range(self.count):
            ids = tokens(i, 1, self.length * (2 if i in self.late else 1))[0]
            yield {"input_ids": ids, "labels": ids}


class Bottleneck(nn.Module):
    def __init__(self, into: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.body = nn.Sequential(
            *(nn.Conv2d(into, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or into != out:
            self.skip = nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.skip(x))


def resnet(blocks: tuple[int, ...] = (3, 4, 6, 3)) -> nn.Module:
    """Returns a ResNet with bottlenecks; with the default blocks, it is ResNet-50."""
    torch.manual_seed(0)
    into, first = 64, [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    layers: list[nn.Module] = first
    for stage, count in enumerate((1, 1, 1, 1) if TINY else blocks):
        for i in range(count):
            layers.append(Bottleneck(into, 64 << stage, 2 if i == 0 and stage > 0 else 1))
            into = 4 * (64 << stage)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(into, CLASSES))


def images(first: int, rows: int, side: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(first)
    labels = torch.randint(CLASSES, (rows,), generator=g)
    return torch.randn(rows, 3, side, side, generator=g) + labels.view(-1, 1, 1, 1) / CLASSES, labels
