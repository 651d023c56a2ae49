"""Loops with compiled modules and compiled losses. A dispatch mode cannot see into compiled code,
so these loops are run only without failures. Their backend traces like the default one but
generates no code: generating code would take a compiler and half a minute.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from loop import Raw, shape
from loops_composed import mlp, vectors
from loops_language import VOCABULARY, Gpt, tokens


@shape()
class Compiled(Raw):
    def build(self) -> None:
        self.net = Gpt()
        self.fast = torch.compile(self.net, backend="aot_eager")
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01, eps=1e-3)

    def loss(self, i: int) -> Tensor:
        ids, labels = tokens(self, i)
        return F.cross_entropy(self.fast(ids).view(-1, VOCABULARY), labels.view(-1))


@shape()
class CompiledInPlace(Raw):
    """A model compiled in place, by module.compile()."""

    def build(self) -> None:
        self.net = mlp(10, 12, 12, 5)
        self.net.compile(backend="aot_eager")
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return F.cross_entropy(self.net(x), y)


def summed(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z * 2, y) + z.square().mean()


@shape()
class CompiledLoss(Raw):
    def build(self) -> None:
        self.net = mlp(10, 12, 5)
        self.summed = torch.compile(summed, backend="aot_eager")  # as in a script, which imports torch first
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return self.summed(self.net(x), y)
