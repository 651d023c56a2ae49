"""Losses and models in which rows depend on one another. No split of the batch is exact, so each
failure must be refused, or survived by trying the whole batch again.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loop import Raw, shape
from loops_composed import Classified, mlp, vectors


class Batchwise(Classified):
    model = staticmethod(lambda: mlp(10, 12, 5))


@shape("refuse")
class InBatchNegatives(Batchwise):
    """CLIP's loss: for each row, every other row is a negative example."""

    def loss(self, i: int) -> Tensor:
        source = self.draw(i)
        a, b = (F.normalize(self.net(torch.randn(self.rows, 10, generator=source)), dim=1) for _ in range(2))
        similar = a @ b.t() * 5
        wanted = torch.arange(self.rows)
        return (F.cross_entropy(similar, wanted) + F.cross_entropy(similar.t(), wanted)) / 2


@shape("refuse")
class NormalisedTail(Batchwise):
    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        z = self.net(x)
        return F.cross_entropy((z - z.mean(0)) / (z.std(0) + 0.1), y)


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(10, 12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(torch.tanh(x - x.mean(0)))


@shape("refuse")
class NormalisedInside(Classified):
    model = Centred


@shape("refuse")
class HardNegatives(Batchwise):
    """The mean loss of the three worst rows of the batch."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        each = F.cross_entropy(self.net(x), y, reduction="none")
        return each.topk(3).values.mean()


@shape("refuse")
class NormOfErrors(Batchwise):
    """The first scalar that is computed from the rows is the root of a sum."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return (self.net(x) - F.one_hot(y, 5)).norm()


@shape("refuse")
class VarianceOfBatch(Batchwise):
    """VICReg's regulariser added to an ordinary loss."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        z = self.net(x)
        return F.cross_entropy(z, y) + F.relu(1 - z.var(dim=0).sqrt()).mean()


@shape("refuse")
class MedianOfRows(Batchwise):
    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return F.cross_entropy(self.net(x), y, reduction="none").median()


@shape("refuse")
class PairwiseRanking(Batchwise):
    """Each row is compared with the next one."""

    def loss(self, i: int) -> Tensor:
        x, _ = vectors(self, i)
        scores = self.net(x)[:, 0]
        return F.softplus(scores[1:] - scores[:-1]).mean()


@shape("refuse")
class MixedRows(Batchwise):
    """Mixup in the loss: each row's outputs are mixed with those of another row, by a
    permutation."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        z = self.net(x)
        order = torch.randperm(self.rows, generator=self.draw(i + 500))
        return F.cross_entropy(0.7 * z + 0.3 * z[order], y)


@shape("refuse")
class ClassesAsManyAsRows(Batchwise):
    """The loss uses plain tensors whose first dimension is as long as the batch, but has one entry
    for each class."""

    def build(self) -> None:
        self.net = mlp(10, 12, self.rows)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.prior = torch.linspace(-1, 1, self.rows)
        self.confusion = torch.eye(self.rows) + 0.1 * torch.arange(self.rows).float()

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i, classes=self.rows)
        return F.cross_entropy((self.net(x) + self.prior) @ self.confusion, y)


@shape("refuse")
class WeightsByRowNumber(Batchwise):
    """The loss weights a row by its position in the batch."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        each = F.cross_entropy(self.net(x), y, reduction="none")
        return (each * torch.arange(1, len(each) + 1)).sum() / 10


@shape("refuse")
class BatchAtDimOne(Raw):
    """An LSTM with PyTorch's default layout, [L, B, F]."""

    def build(self) -> None:
        self.lstm, self.head = nn.LSTM(6, 9), nn.Linear(9, 5)
        self.optimizer = torch.optim.SGD([*self.lstm.parameters(), *self.head.parameters()], lr=0.1)

    def loss(self, i: int) -> Tensor:
        source = self.draw(i)
        x, y = torch.randn(4, self.rows, 6, generator=source), torch.randint(0, 5, (self.rows,), generator=source)
        out, _ = self.lstm(x)
        return F.cross_entropy(self.head(out[-1]), y)


@shape("refuse")
class PositionsByRow(Raw):
    """The batch has positions in dimension 0 and rows in dimension 1. Both are folded into one
    dimension for the loss."""

    def build(self) -> None:
        self.lstm, self.head = nn.GRU(6, 9), nn.Linear(9, 5)
        self.optimizer = torch.optim.SGD([*self.lstm.parameters(), *self.head.parameters()], lr=0.1)

    def loss(self, i: int) -> Tensor:
        source = self.draw(i)
        x, y = torch.randn(4, self.rows, 6, generator=source), torch.randint(0, 5, (4, self.rows), generator=source)
        out, _ = self.lstm(x)
        return F.cross_entropy(self.head(out).flatten(0, 1), y.flatten())
