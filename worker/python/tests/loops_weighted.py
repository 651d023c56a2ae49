"""Losses whose weights are easily mistaken for other weights: focal, smoothed, by class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from loop import Raw, shape
from loops_batchwise import Batchwise
from loops_composed import vectors


def ignoring(loop: Raw, i: int) -> tuple[Tensor, Tensor]:
    """A batch in which most of the ignored rows come last, so that its halves differ."""
    x, y = vectors(loop, i)
    y[-3:-1] = -100
    return x, y


@shape()
class FocalMean(Batchwise):
    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        each = F.cross_entropy(self.net(x), y, reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).mean()


@shape("refuse")
class FocalOverPositives(Batchwise):
    """RetinaNet's loss: a sum divided by the number of rows that are not background."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        each = F.cross_entropy(self.net(x), y, reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).sum() / (y > 0).sum().clamp(min=1)


@shape("refuse")
class SmoothedIgnored(Batchwise):
    """Label smoothing together with ignored rows."""

    def loss(self, i: int) -> Tensor:
        x, y = ignoring(self, i)
        return F.cross_entropy(self.net(x), y, label_smoothing=0.2)


@shape("refuse")
class ClassWeights(Batchwise):
    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return F.cross_entropy(self.net(x), y, weight=torch.tensor([0.1, 1.0, 3.0, 0.5, 7.0]))


@shape("refuse")
class ClassWeightsIgnored(Batchwise):
    def loss(self, i: int) -> Tensor:
        x, y = ignoring(self, i)
        return F.cross_entropy(self.net(x), y, weight=torch.tensor([0.1, 1.0, 3.0, 0.5, 7.0]))


@shape()
class IgnoredRows(Batchwise):
    def loss(self, i: int) -> Tensor:
        x, y = ignoring(self, i)
        return F.cross_entropy(self.net(x), y)


@shape("refuse")
class AllIgnoredInSomePieces(Batchwise):
    """Only the first row has a label, so the loss of a piece without that row is 0/0."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        y[1:] = -100
        return F.cross_entropy(self.net(x), y)


@shape("refuse")
class BooleanIndex(Batchwise):
    """The loss uses rows picked by a mask. Their number is known only when the mask is applied."""

    def loss(self, i: int) -> Tensor:
        x, y = ignoring(self, i)
        keep = y >= 0
        return F.cross_entropy(self.net(x)[keep], y[keep])


@shape("refuse")
class SumOfTwoRules(Batchwise):
    """A sum and a mean are stacked and then added, in one expression."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        z = self.net(x)
        each = F.cross_entropy(z, y, reduction="none")
        return torch.stack([each.sum(), z.square().mean()]).sum()
