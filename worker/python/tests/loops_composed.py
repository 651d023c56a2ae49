"""Steps of several modules, and trained tensors that belong to no module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loop import Raw, shape


def vectors(loop: Raw, i: int, width: int = 10, classes: int = 5) -> tuple[Tensor, Tensor]:
    source = loop.draw(i)
    return torch.randn(loop.rows, width, generator=source), torch.randint(0, classes, (loop.rows,), generator=source)


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for given, made in zip(widths, widths[1:]):
        layers += [nn.Linear(given, made), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


class Classified(Raw):
    """One model classifies vectors. All its parameters that are not frozen are trained."""

    model: Callable[[], nn.Module]

    def build(self) -> None:
        self.net: Any = self.model()
        self.optimizer = torch.optim.SGD([p for p in self.net.parameters() if p.requires_grad], lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return F.cross_entropy(self.net(x), y)


@shape()
class BackboneHead(Raw):
    def build(self) -> None:
        self.backbone, self.head = mlp(10, 12, 9), mlp(9, 6, 5)
        self.optimizer = torch.optim.Adam([*self.backbone.parameters(), *self.head.parameters()], lr=0.01, eps=1e-3)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        features = torch.relu(self.backbone(x))
        return F.cross_entropy(self.head(features * 1.5), y)


@shape()
class FrozenBackbone(Raw):
    def build(self) -> None:
        self.backbone, self.head = mlp(10, 12, 9).eval(), mlp(9, 6, 5)
        self.optimizer = torch.optim.SGD(self.head.parameters(), lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        with torch.no_grad():
            features = self.backbone(x)
        return F.cross_entropy(self.head(features), y)


@shape()
class SeveralHeads(Raw):
    def build(self) -> None:
        self.backbone = mlp(10, 12, 9)
        self.heads = nn.ModuleList([mlp(9, 5), mlp(9, 5), mlp(9, 1)])
        self.optimizer = torch.optim.SGD([*self.backbone.parameters(), *self.heads.parameters()], lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        features = self.backbone(x)
        losses = [F.cross_entropy(self.heads[0](features), y), F.cross_entropy(self.heads[1](features), (y + 1) % 5)]
        losses.append(
            F.binary_cross_entropy_with_logits(self.heads[2](features).squeeze(1), (y > 2).float(), reduction="sum")
        )
        return sum(losses) / len(losses)


@shape()
class SiameseTriplet(Raw):
    """Three calls of one module."""

    def build(self) -> None:
        self.net = mlp(10, 12, 6)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, i: int) -> Tensor:
        source = self.draw(i)
        anchor, positive, negative = (torch.randn(self.rows, 10, generator=source) for _ in range(3))
        return F.triplet_margin_loss(self.net(anchor), self.net(positive), self.net(negative), margin=5.0)


@shape()
class LearnedTemperature(Raw):
    """Two tensors outside the module are trained along with it: a temperature and a shift."""

    def build(self) -> None:
        self.net = mlp(10, 12, 5)
        self.scale = nn.Parameter(torch.tensor(0.3))
        self.shift = nn.Parameter(torch.zeros(5))
        self.optimizer = torch.optim.SGD([*self.net.parameters(), self.scale, self.shift], lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return F.cross_entropy(self.net(x) * self.scale + self.shift, y)


@shape("refuse")
class LearnedTemperatureExp(LearnedTemperature):
    """The temperature's exp was computed before the failure, and backward may have freed that graph."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        scale = self.scale.exp()
        return F.cross_entropy(self.net(x) * scale + self.shift, y)


class Centres(nn.Module):
    """A criterion that is itself trained: it holds a centre for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(5, 6))

    def forward(self, features: Tensor, y: Tensor) -> Tensor:
        return (features - self.centres[y]).square().sum(1).mean()


@shape()
class TrainedCriterion(Raw):
    def build(self) -> None:
        self.net, self.criterion = mlp(10, 12, 6), Centres()
        self.optimizer = torch.optim.SGD([*self.net.parameters(), *self.criterion.parameters()], lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return self.criterion(self.net(x), y)


@shape("refuse")
class SharedFakeGan(Raw):
    """The usual GAN: the generator's graph is older than the discriminator's backward."""

    def build(self) -> None:
        self.generator, self.critic = mlp(4, 8, 10), mlp(10, 8, 1)
        self.g_optimizer = torch.optim.Adam(self.generator.parameters(), lr=0.01, betas=(0.5, 0.999), eps=1e-3)
        self.d_optimizer = torch.optim.Adam(self.critic.parameters(), lr=0.01, betas=(0.5, 0.999), eps=1e-3)

    def made(self, noise: Tensor, before: Tensor) -> Tensor:
        return before

    def step(self, i: int) -> list[float]:
        x, _ = vectors(self, i)
        noise = torch.randn(self.rows, 4, generator=self.draw(i + 500))
        ones, zeros = torch.ones(self.rows, 1), torch.zeros(self.rows, 1)
        fake = self.generator(noise)
        self.d_optimizer.zero_grad()
        d_loss = F.binary_cross_entropy_with_logits(self.critic(x), ones) + F.binary_cross_entropy_with_logits(
            self.critic(fake.detach()), zeros
        )
        d_loss.backward()
        self.d_optimizer.step()
        self.g_optimizer.zero_grad()
        g_loss = self.g_loss(x, self.made(noise, fake), ones)
        g_loss.backward()
        self.g_optimizer.step()
        return [d_loss.item(), g_loss.item()]

    def g_loss(self, x: Tensor, fake: Tensor, ones: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(self.critic(fake), ones)


@shape("refuse")
class RelativisticGan(SharedFakeGan):
    """Rows of one kind are compared with the mean of the other kind, whose graph is older."""

    def g_loss(self, x: Tensor, fake: Tensor, ones: Tensor) -> Tensor:
        real, made = self.critic(x), self.critic(fake)
        return F.binary_cross_entropy_with_logits(made - real.mean(), ones) + F.binary_cross_entropy_with_logits(
            real - made.mean(), 0 * ones
        )


@shape("refuse")
class Probe(Raw):
    """A probe on detached features has a step of its own, before that of the features, whose loss has statistics of the
    batch."""

    def build(self) -> None:
        self.body, self.head, self.probe = mlp(10, 12, 6), mlp(6, 8, 1), mlp(6, 8, 1)
        self.optimizer = torch.optim.SGD([*self.body.parameters(), *self.head.parameters()], lr=0.1)
        self.p_optimizer = torch.optim.SGD(self.probe.parameters(), lr=0.1)

    def step(self, i: int) -> list[float]:
        x, _ = vectors(self, i)
        features = self.body(x)
        self.p_optimizer.zero_grad()
        probed = F.mse_loss(self.probe(features.detach()), x[:, :1])
        probed.backward()
        self.p_optimizer.step()
        self.optimizer.zero_grad()
        out = self.head(features)
        centred = out - out.mean(0)
        loss = F.mse_loss(out, x[:, :1]) - (centred * x[:, :1]).mean() / (centred.std() + 0.1)
        loss.backward()
        self.optimizer.step()
        return [probed.item(), loss.item()]


@shape()
class FreshFakeGan(SharedFakeGan):
    def made(self, noise: Tensor, before: Tensor) -> Tensor:
        return self.generator(noise)


@shape("refuse")
class GradientPenalty(SharedFakeGan):
    """WGAN-GP, whose loss contains a gradient of a gradient."""

    def step(self, i: int) -> list[float]:
        x, _ = vectors(self, i)
        with torch.no_grad():
            fake = self.generator(torch.randn(self.rows, 4, generator=self.draw(i + 500)))
        between = (0.4 * x + 0.6 * fake).requires_grad_(True)
        self.d_optimizer.zero_grad()
        score = self.critic(between)
        (gradient,) = torch.autograd.grad(score.sum(), between, create_graph=True)
        penalty = ((gradient.norm(2, dim=1) - 1) ** 2).mean()
        loss = self.critic(fake).mean() - self.critic(x).mean() + 10 * penalty
        loss.backward()
        self.d_optimizer.step()
        return [loss.item()]
