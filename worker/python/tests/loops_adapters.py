"""Loops that fine-tune a frozen model through low-rank adapters, with checkpoints of both kinds, and whose attention
is written in several ways."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from loop import Raw, shape
from loops_composed import mlp, vectors

WIDTH, WORDS = 8, 11


class Adapted(nn.Module):
    """A frozen linear layer beside the product of two small trained matrices."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.base = nn.Linear(inner, outer).requires_grad_(False)
        self.a, self.b = nn.Parameter(0.3 * torch.randn(2, inner)), nn.Parameter(0.3 * torch.randn(outer, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2.0 * (x @ self.a.t()) @ self.b.t()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH).requires_grad_(False)
        self.qkv, self.out = Adapted(WIDTH, 3 * WIDTH), Adapted(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4)
        return x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))


class Adapters(nn.Module):
    def __init__(self, reentrant: bool, blocks: nn.ModuleList) -> None:
        super().__init__()
        self.reentrant, self.blocks = reentrant, blocks
        self.words, self.head = (m.requires_grad_(False) for m in (nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)))

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def sentences(loop: Raw, i: int) -> Tensor:
    return torch.randint(WORDS, (loop.rows, 6), generator=loop.draw(i))


class Tuned(Raw):
    """The embedding's output is made to require a gradient, as ``enable_input_require_grads`` does, so that checkpoints
    have one: a new leaf in every call."""

    reentrant = False

    def blocks(self) -> list[nn.Module]:
        return [Block(), Block()]

    def build(self) -> None:
        self.net = Adapters(self.reentrant, nn.ModuleList(self.blocks()))
        self.net.words.register_forward_hook(lambda _m, _args, out: out.requires_grad_(True))
        self.optimizer: Any = torch.optim.AdamW(
            [p for p in self.net.parameters() if p.requires_grad], lr=0.01, eps=1e-3
        )

    def loss(self, i: int) -> Tensor:
        words = sentences(self, i)
        return F.cross_entropy(self.net(words[:, :-1]).reshape(-1, WORDS), words[:, 1:].reshape(-1))


@shape()
class AdaptersCheckpointed(Tuned):
    pass


@shape()
class AdaptersReentrant(Tuned):
    reentrant = True


@shape()
class AdaptersReentrantAccumulated(AdaptersReentrant):
    """The second of two batches adds to the gradients of the first."""

    def step(self, i: int) -> list[float]:
        self.optimizer.zero_grad()
        losses = []
        for n in range(2):
            loss = self.loss(2 * i + n) / 2
            loss.backward()
            losses.append(loss.item())
        self.optimizer.step()
        return losses


@shape("refuse")
class AdaptersReentrantShared(AdaptersReentrant):
    """One block twice: its gradients are added up in two steps, and backward may fail between them."""

    def blocks(self) -> list[nn.Module]:
        return [Block()] * 2


class Einsum(nn.Module):
    """Attention from products of five dimensions, whose views are named differently when they are watched."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.q, self.k, self.v = (nn.Parameter(0.3 * torch.randn(2, WIDTH, WIDTH // 2)) for _ in range(3))

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        q, k, v = (torch.einsum("btd,hde->bhte", x, w) for w in (self.q, self.k, self.v))
        mixed = torch.einsum("bhts,bhse->bhte", torch.einsum("bhte,bhse->bhts", q, k).softmax(-1), v)
        return self.head(x + mixed.transpose(1, 2).reshape(*x.shape))


@shape()
class EinsumAttention(Tuned):
    def build(self) -> None:
        self.net = Einsum()  # type: ignore[assignment]
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)


class Borrowing(nn.Module):
    """Uses a trained tensor that is not among its parameters, where a reentrant checkpoint may hide it."""

    def __init__(self, factor: Tensor, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last, self.box, self.reentrant = mlp(10, 12, 9), nn.Linear(9, 5), [factor], reentrant

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.box[0]

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.last(checkpoint(self.scaled, x, use_reentrant=True) if self.reentrant else self.scaled(x))


@shape("refuse")
class Borrowed(Raw):
    reentrant = False

    def build(self) -> None:
        self.factor = nn.Parameter(torch.tensor(0.7))
        self.net = Borrowing(self.factor, self.reentrant)
        self.optimizer = torch.optim.SGD([*self.net.parameters(), self.factor], lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return F.cross_entropy(self.net(x), y)


@shape("refuse")
class BorrowedReentrant(Borrowed):
    reentrant = True


@shape("refuse")
class BorrowedBatchwise(Borrowed):
    """The whole batch is run again, which must not lose the tensor's gradient either."""

    def build(self) -> None:
        super().build()
        self.net.first.insert(1, nn.BatchNorm1d(12))
