"""Losses that are computed from several scalars: sums over heads, tasks, steps of a decoder and micro-batches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loop import Raw, shape
from loops_batchwise import Batchwise
from loops_composed import vectors


@shape()
class SumOfMeans(Batchwise):
    def loss(self, i: int) -> Tensor:
        x, _ = vectors(self, i)
        out = self.net(x)
        return sum((out[:, k] - x[:, k]).square().mean() for k in range(5)) / 5  # type: ignore[return-value]


@shape()
class SumFromZero(Batchwise):
    """The sum begins with a tensor, to which the terms are added in place."""

    def loss(self, i: int) -> Tensor:
        x, _ = vectors(self, i)
        out, loss = self.net(x), torch.zeros(())
        for k in range(3):
            loss += (k + 1) * (out[:, k] - x[:, k]).square().mean()
        return loss


@shape()
class StackedMeans(Batchwise):
    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        out = self.net(x)
        return torch.stack([F.cross_entropy(out, y), out.square().mean(), out.abs().sum() * 0.01]).mean()


@shape()
class PrintedTerms(Batchwise):
    """Each term is read before there is a sum, and the sum before backward. Its average is collected for a log."""

    def build(self) -> None:
        super().build()
        self.average = torch.zeros(())

    def step(self, i: int) -> list[float]:
        x, y = vectors(self, i)
        out = self.net(x)
        terms = [F.cross_entropy(out, y), out.square().mean()]
        said = [t.item() for t in terms]
        loss = terms[0] + 0.1 * terms[1]
        self.average = self.average + loss.detach()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return [*said, loss.item(), self.average.item(), terms[1].item()]


@shape()
class ProductOfTerms(Batchwise):
    """How much a term counts depends on the values of the others, and of itself; one term counts only as a number."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        out = self.net(x)
        a, b, c = F.cross_entropy(out, y), out.square().mean(), (out - 1).abs().mean()
        return a * b.sqrt() + b / c.detach() + torch.maximum(a, c)


class TwoTasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.label, self.depth = nn.Linear(10, 8), nn.Linear(8, 5), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.body(x).tanh()
        return self.label(z), self.depth(z).squeeze(1)


@shape("refuse")
class UncertaintyWeights(Raw):
    """Two tasks with learned weights that are no part of the module. One loss is a mean over the rows that are valid.
    A backward that fails before it has reached the learned weights has used up their graph."""

    def build(self) -> None:
        self.net, self.scales = TwoTasks(), nn.Parameter(torch.zeros(2))
        self.optimizer = torch.optim.SGD([*self.net.parameters(), self.scales], lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        valid = torch.rand(self.rows, generator=self.draw(i + 500)) < 0.6
        valid[0] = True
        label, depth = self.net(x)
        first, second = F.cross_entropy(label, y), ((depth - x[:, 0]).abs() * valid).sum() / valid.sum()
        return torch.exp(-self.scales[0]) * first + torch.exp(-self.scales[1]) * second + 0.5 * self.scales.sum()


class Decoder(nn.Module):
    """One step of a decoder that looks at all states of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.out = nn.Embedding(6, 5), nn.GRUCell(10, 5), nn.Linear(5, 6)

    def forward(self, word: Tensor, state: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        looked = torch.softmax((states @ state.unsqueeze(2)).squeeze(2), 1)
        state = self.cell(torch.cat([self.words(word), (looked.unsqueeze(2) * states).sum(1)], 1), state)
        return self.out(state), state


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(6, 5), nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.words(x)).tanh()


@shape(every=3)
class DecoderLoop(Raw):
    """A loss for each step of a decoder. Sentences have different lengths."""

    def build(self) -> None:
        self.encoder, self.decoder, self.criterion = Encoder(), Decoder(), nn.CrossEntropyLoss(ignore_index=0)
        self.optimizer = torch.optim.SGD([*self.encoder.parameters(), *self.decoder.parameters()], lr=0.3)

    def loss(self, i: int) -> Tensor:
        source = self.draw(i)
        x, y = (
            torch.randint(1, 6, (self.rows, 4), generator=source),
            torch.randint(1, 6, (self.rows, 4), generator=source),
        )
        y[torch.arange(4) >= torch.randint(2, 5, (self.rows, 1), generator=source)] = 0
        states = self.encoder(x)
        state, loss = states.mean(1), 0
        for t in range(3):
            out, state = self.decoder(y[:, t], state, states)
            loss += self.criterion(out, y[:, t + 1])
        return loss / 3  # type: ignore[return-value]


@shape()
class SummedMicroBatches(Batchwise):
    """The losses of several forward passes are added, and backward is called once."""

    def step(self, i: int) -> list[float]:
        self.optimizer.zero_grad()
        total, said = torch.tensor(0.0), []
        for part in range(3):
            x, y = vectors(self, 10 * i + part)
            loss = F.cross_entropy(self.net(x), y)
            said.append(loss.item())
            total = total + loss
        (total / 3).backward()
        self.optimizer.step()
        return said


@shape()
class FrozenFeatures(Raw):
    """The results of a model and a target are compared in the features of a frozen network, which a hook collects."""

    def build(self) -> None:
        self.net = nn.Sequential(nn.Linear(10, 12), nn.ReLU(), nn.Linear(12, 10))
        self.eye = nn.Sequential(nn.Linear(10, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU()).requires_grad_(False)
        self.seen: list[Tensor] = []
        for k in (1, 3):
            self.eye[k].register_forward_hook(lambda module, args, out: self.seen.append(out))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def features(self, x: Tensor) -> list[Tensor]:
        self.seen.clear()
        self.eye(x)
        return list(self.seen)

    def loss(self, i: int) -> Tensor:
        x = torch.rand(self.rows, 10, generator=self.draw(i))
        with torch.no_grad():
            wanted = self.features(x)
        out = self.net(x)
        return (out - x).abs().mean() + sum(0.1 * (a - b).square().mean() for a, b in zip(self.features(out), wanted))
