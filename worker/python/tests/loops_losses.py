"""Regression and penalties: ordinary losses other than cross-entropy."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from loop import shape
from loops_batchwise import Batchwise
from loops_composed import vectors


@shape()
class Regression(Batchwise):
    def loss(self, i: int) -> Tensor:
        x, _ = vectors(self, i)
        return F.smooth_l1_loss(self.net(x), x[:, :5] * 2)


@shape()
class SummedRegression(Batchwise):
    def loss(self, i: int) -> Tensor:
        x, _ = vectors(self, i)
        return (self.net(x) - x[:, :5]).square().sum() * 0.1


@shape()
class BinaryByHand(Batchwise):
    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i, classes=2)
        p = torch.sigmoid(self.net(x)[:, 0]).clamp(1e-6, 1 - 1e-6)
        return -(y * p.log() + (1 - y) * (1 - p).log()).mean()


@shape()
class CosineDistance(Batchwise):
    def loss(self, i: int) -> Tensor:
        x, _ = vectors(self, i)
        return (1 - F.cosine_similarity(self.net(x), x[:, :5], dim=1)).mean()


@shape("refuse")
class PenaltyOnParameters(Batchwise):
    """A loss with a term whose graph does not go through the module."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return F.cross_entropy(self.net(x), y) + 0.01 * sum(p.square().sum() for p in self.net.parameters())


@shape("refuse")
class RegressionOnUneven(Batchwise):
    """Each row's loss is weighted by a number that comes with the batch, and the sum is divided by
    the sum of these weights."""

    def loss(self, i: int) -> Tensor:
        x, _ = vectors(self, i)
        w = torch.rand(self.rows, 1, generator=self.draw(i + 500))
        return (w * (self.net(x) - x[:, :5]).square()).sum() / w.sum()
