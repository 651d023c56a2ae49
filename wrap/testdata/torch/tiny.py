"""The model of nano.py: it needs memory rather than time."""

import dataclasses

import torch
from torch import nn


@dataclasses.dataclass
class GPTConfig:
    block_size: int = 16
    vocab_size: int = 128
    n_embd: int = 64


class GPT(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, 16)
        self.layers = nn.Sequential(nn.Linear(16, config.n_embd), nn.GELU(), nn.Linear(config.n_embd, 16))
        self.head = nn.Linear(16, config.vocab_size)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.layers(self.embed(tokens)))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
