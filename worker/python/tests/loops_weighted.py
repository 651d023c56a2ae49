"""Losses whose weights are easily mistaken for other weights: focal, smoothed, by class, by the number of words."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


class Tagger(nn.Module):
    """Returns the loss of a conditional random field, from a loop over time, in which sentences end at their mask."""

    def __init__(self, tokens: bool, tags: int = 4) -> None:
        super().__init__()
        self.tokens = tokens
        self.words, self.score = nn.Embedding(9, 6), nn.Linear(6, tags)
        self.moves = nn.Parameter(0.1 * torch.randn(tags, tags))

    def forward(self, words: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        scores = self.score(self.words(words).tanh())
        path, every = scores[:, 0].gather(1, tags[:, :1]).squeeze(1), scores[:, 0]
        for t in range(1, words.size(1)):
            following = torch.logsumexp(every[:, :, None] + self.moves[None] + scores[:, t][:, None], 1)
            every = torch.where(mask[:, t][:, None], following, every)
            path = path + mask[:, t] * (
                scores[:, t].gather(1, tags[:, t : t + 1]).squeeze(1) + self.moves[tags[:, t - 1], tags[:, t]]
            )
        lost = torch.logsumexp(every, 1) - path
        return lost.sum() / mask.sum() if self.tokens else lost.mean()


@shape()
class CrfSentences(Raw):
    tokens = False

    def build(self) -> None:
        self.net: nn.Module = Tagger(self.tokens)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def sentences(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        source = self.draw(i)
        words, tags = (
            torch.randint(9, (self.rows, 5), generator=source),
            torch.randint(4, (self.rows, 5), generator=source),
        )
        return words, tags, torch.arange(5)[None] < torch.tensor([5, 2, 4, 5, 3, 1, 4])[:, None]

    def loss(self, i: int) -> Tensor:
        return self.net(*self.sentences(i))


@shape()
class CrfTokens(CrfSentences):
    tokens = True


class Alike(nn.Module):
    """At first all words have about the same loss, so that the loss is about the same by whatever the rows are
    weighted."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.score = nn.Embedding(9, 6), nn.Linear(6, 4)
        nn.init.normal_(self.score.weight, std=1e-4)
        nn.init.zeros_(self.score.bias)

    def forward(self, words: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        each = F.cross_entropy(self.score(self.words(words)).transpose(1, 2), tags, reduction="none")
        return (each * mask).sum() / mask.sum()


@shape()
class AlikeAtFirst(CrfSentences):
    def build(self) -> None:
        self.net = Alike()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
