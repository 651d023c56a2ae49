"""Loops with effects that a trial on a few rows could miss. They select parts of results by numbers or by values,
have models whose results depend slightly on the whole batch, or use custom autograd functions."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from loop import shape
from loops_batchwise import Batchwise
from loops_composed import mlp, vectors


@shape("refuse")
class HardExamples(Batchwise):
    """Online hard example mining. In a trial on two or three rows, all rows are among the four
    hardest."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return F.cross_entropy(self.net(x), y, reduction="none").sort(descending=True)[0][:4].mean()


@shape("refuse")
class FirstRows(Batchwise):
    """The loss uses only the first rows, and the batch has more rows than the rules are tried
    on."""

    rows = 600

    def loss(self, i: int) -> Tensor:
        return self.net(vectors(self, i)[0])[:300].square().sum() / 300


@shape("refuse")
class TwoViews(Batchwise):
    def loss(self, i: int) -> Tensor:
        one, two = self.net(vectors(self, i)[0][:6]).split(3)
        return F.mse_loss(one, two.detach()) + F.mse_loss(two, one.detach())


@shape("refuse")
class InChunks(Batchwise):
    def loss(self, i: int) -> Tensor:
        return sum(part.exp().mean() for part in self.net(vectors(self, i)[0]).split(4))


@shape("refuse")
class NonzeroMean(Batchwise):
    """The mean of the losses that are not zero: their number depends on the values."""

    def loss(self, i: int) -> Tensor:
        x, _ = vectors(self, i)
        losses = F.relu(1 - self.net(x)[:, 0] * torch.where(torch.arange(len(x)) == 3, 50.0, 0.1))
        some = losses[losses > 0]
        return some.sum() / max(1, some.numel())


class Counting(nn.Module):
    """Returns how many rows are positive, which cannot be seen in a trial on a few rows."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(10, 12, 5)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
        return self.net(x), int((y > 0).sum())


@shape("refuse")
class CountedByModel(Batchwise):
    model = Counting

    def loss(self, i: int) -> Tensor:
        x, _ = vectors(self, i)
        y = torch.zeros(len(x), dtype=torch.long)
        y[2:4] = 1  # not in the first two rows, nor in the last three
        out, positive = self.net(x, y)
        return F.cross_entropy(out, y, reduction="sum") / max(positive, 1)


class Routed(nn.Module):
    """Sends each row to two of four experts, and adds a small loss that balances the experts over
    the whole batch."""

    def __init__(self, balance: float) -> None:
        super().__init__()
        self.balance, self.gate, self.head = balance, nn.Linear(10, 4), nn.Linear(10, 5)
        self.experts = nn.ModuleList(nn.Linear(10, 10) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        top, which = shares.topk(2, -1)
        weights = torch.zeros_like(shares).scatter(-1, which, top / top.sum(-1, keepdim=True))
        x = x + sum(weights[:, i : i + 1] * expert(x).tanh() for i, expert in enumerate(self.experts))
        loss = F.cross_entropy(self.head(x), y)
        if self.balance:
            taken = F.one_hot(which, 4).float().sum(1).mean(0)
            loss = loss + self.balance * 4 * (taken * shares.mean(0)).sum()
        return loss


@shape("refuse")
class BalancedExperts(Batchwise):
    model = staticmethod(lambda: Routed(1e-3))

    def loss(self, i: int) -> Tensor:
        return self.net(*vectors(self, i))


class InHalf(nn.Module):
    """A model that enables autocast itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, *args: Tensor) -> Tensor:
        with torch.autocast(args[0].device.type, dtype=torch.bfloat16):
            return self.net(*args)


@shape("refuse")
class BalancedInHalf(BalancedExperts):
    """The balancing loss changes the gradients less than rounding to bfloat16 does."""

    model = staticmethod(lambda: InHalf(Routed(1e-3)))


@shape()
class Experts(BalancedExperts):
    model = staticmethod(lambda: Routed(0.0))


class Trimmed(nn.Module):
    """Cuts a batch to its longest row, and takes a maximum over the rest, padding included."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv1d(1, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.last(self.first(x[:, None, : int(lengths.max())]).amax(2))


@shape("refuse")
class LongestRow(Batchwise):
    """Every second row is long."""

    model = Trimmed

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        lengths = torch.where(torch.arange(len(x)) % 2 == 0, 10, 3 + torch.arange(len(x)) % 5)
        return F.cross_entropy(self.net(x * (torch.arange(10) < lengths[:, None]), lengths), y)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


class Unchanged(Reversed):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x


class Rounded(torch.autograd.Function):
    """A straight-through estimator that crashes the process if a tensor has no memory, as a kernel might."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.is_meta:
            os._exit(3)
        return (4 * x).round() / 4

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


@shape()
class GradientReversal(Batchwise):
    function: Any = Reversed

    def build(self) -> None:
        self.net, self.judge = mlp(10, 12, 5), nn.Linear(5, 2)
        self.optimizer = torch.optim.SGD([*self.net.parameters(), *self.judge.parameters()], lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i, classes=2)
        return F.cross_entropy(self.judge(self.function.apply(self.net(x))), y)


@shape()
class ReversalOfTheSame(GradientReversal):
    """The function returns its argument, of which autograd makes a view."""

    function = Unchanged


@shape()
class StraightThrough(GradientReversal):
    function = Rounded


@shape("refuse")
class DoubledInPlace(GradientReversal):
    function = Doubled

    def build(self) -> None:
        super().build()
        self.net = nn.Sequential(nn.Linear(10, 5), nn.Softplus())
        self.optimizer = torch.optim.SGD([*self.net.parameters(), *self.judge.parameters()], lr=0.1)


class Teacher(nn.Module):
    """Tosses a coin at each layer, with Python's and NumPy's generators in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(10, 10) for _ in range(4))
        self.last = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        for coin, layer in zip((random.random, numpy.random.random) * 2, self.layers):
            x = layer(x).tanh() if coin() < 0.5 else layer(x)
        return self.last(x)


@shape("refuse")
class Coins(Batchwise):
    model = Teacher

    def loss(self, i: int) -> Tensor:
        random.seed(i)
        numpy.random.seed(i)
        return super().loss(i)


class Mixing(nn.Module):
    """Mixes each row with another row, which is drawn at random."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(10, 12, 5)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        order = torch.randperm(len(x))
        return self.net(0.7 * x + 0.3 * x[order]), y[order]


@shape("refuse")
class MixedInside(Batchwise):
    """Two losses are computed from one call of the model, and both must see the same random
    draws."""

    model = Mixing

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        torch.manual_seed(i)
        out, other = self.net(x, y)
        return 0.7 * F.cross_entropy(out, y) + 0.3 * F.cross_entropy(out, other)


@shape()
class ReentrantLoss(Batchwise):
    """The loss is computed in a reentrant checkpoint, so its gradients can be obtained only with backward, not
    with autograd.grad."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return checkpoint(F.cross_entropy, self.net(x), y, use_reentrant=True)


class Coupled(nn.Module):
    """A model with an argument that says how much rows affect each other."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(10, 12, 5)

    def forward(self, x: Tensor, y: Tensor, factor: Tensor) -> Tensor:
        out = self.net(x)
        return F.cross_entropy(out, y) - factor * out.var(0, correction=0).mean()


@shape("refuse")
class CoupledLater(Batchwise):
    """Rows affect each other only in steps after those that fail in a sweep."""

    model = Coupled

    def loss(self, i: int) -> Tensor:
        return self.net(*vectors(self, i), torch.tensor(0.5 * (i % 2)))
