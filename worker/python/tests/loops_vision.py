"""Loops over images: convolutions with and without BatchNorm and dropout, dense labels, and complex numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loop import Raw, shape


def images(loop: Raw, i: int, classes: int = 5) -> tuple[Tensor, Tensor]:
    source = loop.draw(i)
    return torch.randn(loop.rows, 3, 6, 6, generator=source), torch.randint(0, classes, (loop.rows,), generator=source)


@shape()
class Cnn(Raw):
    def build(self) -> None:
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(6, 5),
        )
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def loss(self, i: int) -> Tensor:
        x, y = images(self, i)
        return F.cross_entropy(self.net(x), y)


@shape("refuse")
class CnnBatchnorm(Raw):
    def build(self) -> None:
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
        )
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = images(self, i)
        return F.cross_entropy(self.net(x), y)


@shape()
class CnnFrozenBatchnorm(Raw):
    """Fine-tuning: running statistics are used but not updated."""

    def build(self) -> None:
        norm = nn.BatchNorm2d(4)
        norm.running_mean, norm.running_var = torch.randn(4), torch.rand(4) + 0.5
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
        )
        norm.eval()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = images(self, i)
        return F.cross_entropy(self.net(x), y)


@shape("refuse", dropout=True)
class CnnBatchnormDropout(Raw):
    def build(self) -> None:
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 5),
        )
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01, eps=1e-3)

    def loss(self, i: int) -> Tensor:
        x, y = images(self, i)
        return F.cross_entropy(self.net(x), y)


@shape(dropout=True)
class CnnDropout(Raw):
    def build(self) -> None:
        self.net = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Dropout(0.1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5)
        )
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = images(self, i)
        return F.cross_entropy(self.net(x), y, label_smoothing=0.1)


@shape()
class Segmentation(Raw):
    """Cross-entropy over [B, C, H, W]; pixels without a label are ignored."""

    def build(self) -> None:
        self.net = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 5, 1))
        self.criterion = nn.CrossEntropyLoss(ignore_index=255)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, _ = images(self, i)
        source = self.draw(i)
        y = torch.randint(0, 5, (self.rows, 6, 6), generator=source)
        y[torch.rand(y.shape, generator=source) < torch.linspace(0, 0.9, self.rows).view(-1, 1, 1)] = 255
        return self.criterion(self.net(x), y)


class Vae(nn.Module):
    def __init__(self, sample: bool) -> None:
        super().__init__()
        self.sample = sample
        self.encode, self.decode = nn.Linear(12, 10), nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 12))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, logvar = self.encode(x).chunk(2, dim=1)
        z = mean + 0.2 * torch.randn_like(mean) * (0.5 * logvar).exp() if self.sample else mean
        return self.decode(z), mean, logvar


@shape(dropout=True)
class VaeTwoLosses(Raw):
    sample = True

    def build(self) -> None:
        self.net = Vae(self.sample)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01, eps=1e-3)

    def step(self, i: int) -> list[float]:
        x = torch.rand(self.rows, 12, generator=self.draw(i))
        self.optimizer.zero_grad()
        again, mean, logvar = self.net(x)
        reconstruction = F.mse_loss(again, x, reduction="sum")
        divergence = -0.5 * torch.mean(1 + logvar - mean.pow(2) - logvar.exp())
        loss = reconstruction + 0.3 * divergence
        loss.backward()
        self.optimizer.step()
        return [reconstruction.item(), divergence.item()]


@shape()
class TwoReductions(VaeTwoLosses):
    """A sum and a mean, each with a rule of its own, are added."""

    sample = False


class Spectral(nn.Module):
    """Multiplies the low frequencies of an image by complex weights, and writes them into a tensor of zeros."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.low, self.high = (
            nn.Parameter(0.5 * torch.randn(channels, channels, 2, 2, dtype=torch.cfloat)) for _ in range(2)
        )
        self.skip = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = torch.fft.rfft2(x)
        out = torch.zeros(x.size(0), *found.shape[1:], dtype=torch.cfloat)
        out[:, :, :2, :2] = torch.einsum("bixy,ioxy->boxy", found[:, :, :2, :2], self.low)
        out[:, :, -2:, :2] = torch.einsum("bixy,ioxy->boxy", found[:, :, -2:, :2], self.high)
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.skip(x))


@shape()
class FourierOperator(Raw):
    """The error of each image, relative to its size."""

    def build(self) -> None:
        self.net: nn.Module = nn.Sequential(nn.Conv2d(3, 4, 1), Spectral(4), Spectral(4), nn.Conv2d(4, 1, 1))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01, eps=1e-3)

    def loss(self, i: int) -> Tensor:
        x, _ = images(self, i)
        wanted = x.cumsum(2).sum(1, keepdim=True).flatten(1)
        return ((self.net(x).flatten(1) - wanted).norm(dim=1) / wanted.norm(dim=1)).mean()


class Transform(nn.Module):
    """Returns complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.turn = nn.Conv2d(3, 2, 1), nn.Parameter(torch.randn(2, 6, 4, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft2(self.conv(x)) * self.turn


@shape()
class ComplexResults(FourierOperator):
    def build(self) -> None:
        self.net = Transform()
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01, eps=1e-3)

    def loss(self, i: int) -> Tensor:
        x, _ = images(self, i)
        return (self.net(x) - torch.fft.rfft2(x[:, :2])).abs().square().mean()


@shape("refuse")
class ComplexSum(ComplexResults):
    """The whole batch is reduced to one complex number, which has no gradient of its own."""

    def loss(self, i: int) -> Tensor:
        x, _ = images(self, i)
        return (self.net(x) * torch.fft.rfft2(x[:, :2])).sum().abs()
