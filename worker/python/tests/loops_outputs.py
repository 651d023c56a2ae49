"""What modules return, and what loops do with these results apart from computing the loss."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal, SigmoidTransform, TransformedDistribution

from loop import Raw, shape
from loops_composed import mlp, vectors

Pair = namedtuple("Pair", "logits features")


class Classifier(nn.Module):
    """Returns its logits in one of the containers that people use."""

    def __init__(self, container: str) -> None:
        super().__init__()
        self.container = container
        self.body, self.head = mlp(10, 12, 9), nn.Linear(9, 5)

    def forward(self, x: Tensor) -> object:
        features = torch.relu(self.body(x))
        logits = self.head(features)
        if self.container == "dict":
            return {"logits": logits, "features": features, "nothing": None}
        if self.container == "named":
            return Pair(logits, features)
        if self.container == "nested":
            return [logits, ({"features": features},), 3]
        if self.container == "integers":
            return logits, logits.argmax(-1)
        return logits


class Classifying(Raw):
    container = "plain"

    def build(self) -> None:
        self.net = Classifier(self.container)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)


@shape()
class DictOutputs(Classifying):
    container = "dict"

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        out = self.net(x)
        return F.cross_entropy(out["logits"], y) + 0.01 * out["features"].square().mean()


@shape()
class NamedTupleOutputs(Classifying):
    container = "named"

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        out = self.net(x)
        return F.cross_entropy(out.logits, y) + 0.01 * out.features.abs().sum(1).mean()


@shape("refuse")
class NestedOutputs(Classifying):
    """A number among the results takes a call of the whole batch, and where the operation that failed never fits, that
    call fails as well."""

    container = "nested"

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        logits, (inner,), count = self.net(x)
        return F.cross_entropy(logits, y) + inner["features"].pow(2).mean() / count


@shape()
class UsedAfterTheStep(Classifying):
    """Counts what was right, keeps predictions, and uses the outputs in other ways, all after the weights have
    changed."""

    def build(self) -> None:
        super().build()
        self.right: Tensor | int = 0
        self.seen: list[Tensor] = []

    def step(self, i: int) -> list[float]:
        x, y = vectors(self, i)
        out = self.net(x)
        loss = F.cross_entropy(out, y)
        beside = out.softmax(1) * 2  # which the loss does not need
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.right = self.right + (out.argmax(1) == y).sum()
        self.seen.append(out.detach().softmax(1))
        shares = out.softmax(1).max(1).values
        said = [loss.item(), float(shares.mean()), float(out[0, 0]), float(beside.detach().std())]
        if i % 2:  # as at the end of an epoch
            said += [float(self.right), float(torch.cat(self.seen).sum()), float(self.seen[0].std())]
        return said


class Flow(nn.Module):
    """Returns the logarithm of each row's likelihood, and a number that weights alone decide."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.linspace(0.5, 1.5, 10)), mlp(10, 12, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        z = x * self.scale + self.inner(x)
        return -0.5 * z.square().sum(1), self.scale.abs().log().sum(), [z]


@shape()
class PartsOfTheLossForALog(Raw):
    """Reads, after the weights have changed, numbers that the loss is not computed from: one of the rows, and one of
    weights alone."""

    def build(self) -> None:
        self.net = Flow()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def step(self, i: int) -> list[float]:
        x, _ = vectors(self, i)
        likelihood, determinant, _ = self.net(x)
        determinant = determinant.mean()
        loss = (-(likelihood + determinant) / 10).mean()
        likelihood, determinant = (likelihood / 10).mean(), (determinant / 10).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return [loss.item(), likelihood.item(), determinant.item()]


class Shifted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


@shape("refuse")
class ScaledInPlaceAfterwards(Classifying):
    """Changes the batch in place once the model has seen it, which the model's gradients do not need."""

    def build(self) -> None:
        super().build()
        self.net = nn.Sequential(Shifted(), self.net)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def step(self, i: int) -> list[float]:
        x, y = vectors(self, i)
        x = x.clone()
        self.optimizer.zero_grad()
        out = self.net(x)
        x.div_(2)
        loss = F.cross_entropy(out, y) + 0.1 * out[:, 0].mean() * x.mean()
        loss.backward()
        self.optimizer.step()
        return [loss.item()]


@shape()
class PreviousOutputs(Classifying):
    """Compares the outputs with those of the step before, in the loss and after the weights have changed."""

    def build(self) -> None:
        super().build()
        self.before: Tensor | None = None

    def step(self, i: int) -> list[float]:
        x, y = vectors(self, i)
        out = self.net(x)
        loss = F.cross_entropy(out, y)
        if self.before is not None:
            loss = loss + 0.1 * F.mse_loss(out, self.before)
        now = out.detach()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        moved = 0.0 if self.before is None else float((now - self.before).abs().mean() + (self.before * now).sum())
        self.before = now
        return [loss.item(), moved]


@shape()
class IntegerOutputs(Classifying):
    container = "integers"

    def step(self, i: int) -> list[float]:
        x, y = vectors(self, i)
        self.optimizer.zero_grad()
        logits, guesses = self.net(x)
        hits = ((guesses == y) & (logits.argmax(-1) == guesses)).sum()
        loss = F.cross_entropy(logits, y)
        loss.backward()
        self.optimizer.step()
        return [loss.item(), hits.item()]


@shape()
class AccuracyByArgmax(Classifying):
    """An accuracy is computed before the loss, and the logits are used again after backward."""

    def step(self, i: int) -> list[float]:
        x, y = vectors(self, i)
        self.optimizer.zero_grad(set_to_none=False)
        logits = self.net(x)
        accuracy = (logits.argmax(dim=1) == y).float().mean().item()
        loss = F.cross_entropy(logits, y, reduction="sum", label_smoothing=0.1)
        loss.backward()
        self.optimizer.step()
        return [loss.item(), accuracy, logits.detach().softmax(-1).max().item()]


@shape()
class ChangedInPlace(Classifying):
    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        z = self.net(x)
        z += 1
        z.mul_(2)
        z[:, 0] = z[:, 0] - 0.5
        z.clamp_(-4, 4)
        return F.cross_entropy(z, y)


@shape()
class SumOverLen(Classifying):
    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        each = F.cross_entropy(self.net(x), y, reduction="none")
        return each.sum() / len(each)


@shape()
class RootOfMean(Classifying):
    """The mean is the first scalar; everything after it is arithmetic."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return torch.sqrt(F.mse_loss(self.net(x), F.one_hot(y, 5).float()) + 1e-6)


@shape()
class GatheredRows(Classifying):
    """Log-probabilities gathered by label, and weights from a plain boolean mask."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        picked = self.net(x).log_softmax(1).gather(1, y.unsqueeze(1)).squeeze(1)
        weights = (y > 1).to(torch.float32) + 0.5
        return -(picked * weights).mean()


class Policy(nn.Module):
    """Returns a distribution over actions, and a value."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.body, self.pi, self.spread, self.value = mlp(10, 12, 9), nn.Linear(9, 5), nn.Linear(9, 5), nn.Linear(9, 1)

    def forward(self, x: Tensor) -> object:
        h = torch.tanh(self.body(x))
        if self.kind == "categorical":
            return Categorical(logits=self.pi(h)), self.value(h).squeeze(-1)
        each = Normal(self.pi(h), F.softplus(self.spread(h)) + 0.1)
        if self.kind == "squashed":
            return TransformedDistribution(Independent(each, 1), [SigmoidTransform()]), self.value(h).squeeze(-1)
        return each, self.value(h).squeeze(-1)


class Acting(Raw):
    """A clipped policy gradient, as in PPO."""

    kind = "categorical"

    def build(self) -> None:
        self.net = Policy(self.kind)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        acted, entropy = self.acted(x, y)
        policy, value = self.net(x)
        advantage = x[:, 0] - x[:, 1]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (policy.log_prob(acted).reshape(len(x), -1).sum(1) + 1).exp()
        clipped = -torch.min(advantage * ratio, advantage * ratio.clamp(0.8, 1.2)).mean()
        return clipped + 0.5 * (value - x[:, 2]).square().mean() - (0.01 * policy.entropy().mean() if entropy else 0)

    def acted(self, x: Tensor, y: Tensor) -> tuple[Tensor, bool]:
        """What was done in the rollout, and whether the policy has an entropy."""
        return y, True


@shape()
class CategoricalPolicy(Acting):
    pass


@shape()
class NormalPolicy(Acting):
    kind = "normal"

    def acted(self, x: Tensor, y: Tensor) -> tuple[Tensor, bool]:
        return x[:, :5], True


@shape()
class SquashedPolicy(Acting):
    kind = "squashed"

    def acted(self, x: Tensor, y: Tensor) -> tuple[Tensor, bool]:
        return x[:, :5].sigmoid(), False


@dataclass(frozen=True)
class Both:
    logits: Tensor
    features: Tensor
    note: str = "both"
    inner: Inner | None = None


class Inner:
    """Cannot be made without its argument, and checks it."""

    __slots__ = ("twice",)

    def __init__(self, features: Tensor) -> None:
        if features.dim() != 2:
            raise ValueError("features")
        self.twice = 2 * features


class Bag(dict):  # type: ignore[type-arg]
    """Has attributes for its items."""

    def __getattr__(self, name: str) -> object:
        return self[name]


class Objects(Classifier):
    def forward(self, x: Tensor) -> object:
        features = torch.relu(self.body(x))
        logits = self.head(features)
        if self.container == "dataclass":
            return Both(logits, features, inner=Inner(features))
        return Bag(logits=logits, features=features, inner=SimpleNamespace(twice=2 * features))


@shape()
class DataclassOutputs(Raw):
    container = "dataclass"

    def build(self) -> None:
        self.net = Objects(self.container)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        out = self.net(x)
        return F.cross_entropy(out.logits, y) + 0.01 * (out.features.square().mean() + out.inner.twice.abs().mean())


@shape()
class DictWithAttributes(DataclassOutputs):
    container = "bag"


@dataclass
class Batch:
    x: Tensor
    y: Tensor
    scale: Tensor
    name: str = "train"


class Whole(nn.Module):
    """Gets a batch as an object, and returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Classifier("plain")

    def forward(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.net(batch.x) * batch.scale, batch.y)


@shape()
class ObjectInputs(Raw):
    def build(self) -> None:
        self.net = Whole()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return self.net(Batch(x, y, torch.tensor(2.0)))


class Second(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(9, 5)

    def forward(self, given: SimpleNamespace) -> Tensor:
        return self.head(given.features) + given.logits


@shape()
class ObjectBetween(Raw):
    """A second module gets an object made of what the first has returned."""

    def build(self) -> None:
        self.net, self.second = Classifier("named"), Second()
        self.optimizer = torch.optim.SGD([*self.net.parameters(), *self.second.parameters()], lr=0.1, momentum=0.9)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        out = self.net(x)
        return F.cross_entropy(self.second(SimpleNamespace(logits=out.logits, features=out.features)), y)


@shape("refuse")
class ChunkedRays(Classifying):
    """The script calls the network on parts of its points, which do not end where a ray ends, and joins the results."""

    rows = 12

    def loss(self, i: int) -> Tensor:
        x, _ = vectors(self, i)
        points = torch.cat([self.net(x[k : k + 7]) for k in range(0, len(x), 7)]).reshape(4, 3, 5)
        return (points.sigmoid().cumsum(1).sum(1) - x[:4, :5]).square().mean()
