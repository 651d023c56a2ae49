"""Loops over token sequences. The loss is inside or outside the model, labels are shifted, a different number of
them is ignored in each row, and rows are folded together with positions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loop import Raw, shape

VOCABULARY, LENGTH, WIDTH = 23, 6, 12


class Gpt(nn.Module):
    """One layer, with learned positions, and an embedding that shares its weight with the head."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.first, self.last = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:
        rows, length = ids.shape
        x = self.tokens(ids) + self.positions(torch.arange(length))
        q, k, v = self.mix(self.first(x)).view(rows, length, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(rows, length, WIDTH)))
        return F.linear(self.last(x), self.tokens.weight)


def tokens(loop: Raw, i: int) -> tuple[Tensor, Tensor]:
    """Token ids, and labels. Row r keeps the labels of about r of its positions; the other labels
    are ignored."""
    source = loop.draw(i)
    ids = torch.randint(0, VOCABULARY, (loop.rows, LENGTH), generator=source)
    lengths = torch.randint(2, LENGTH + 1, (loop.rows,), generator=source)
    labels = ids.masked_fill(torch.arange(LENGTH) >= lengths.unsqueeze(1), -100)
    return ids, labels


class Language(Raw):
    def build(self) -> None:
        self.net: nn.Module = Gpt()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01, eps=1e-3)


@shape()
class GptLossOutside(Language):
    def loss(self, i: int) -> Tensor:
        ids, labels = tokens(self, i)
        logits = self.net(ids)
        return F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))


@shape()
class GptShifted(Language):
    """The usual shift by one, with B x (L-1) rows after folding."""

    def loss(self, i: int) -> Tensor:
        ids, labels = tokens(self, i)
        logits = self.net(ids).float()
        shifted, targets = logits[..., :-1, :].contiguous(), labels[..., 1:].contiguous()
        return F.cross_entropy(shifted.view(-1, shifted.size(-1)), targets.view(-1), ignore_index=-100)


@shape()
class GptLiteralSizes(Language):
    """Calls view with the batch's sizes as literal numbers."""

    def loss(self, i: int) -> Tensor:
        ids, labels = tokens(self, i)
        logits = self.net(ids)
        b, t, v = logits.shape
        return F.cross_entropy(logits.view(b * t, v), labels.view(b * t))


@shape(dropout=True)
class GptDropout(Language):
    def build(self) -> None:
        self.net = Gpt(0.1)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.01, eps=1e-3)

    def loss(self, i: int) -> Tensor:
        ids, _ = tokens(self, i)
        return F.cross_entropy(self.net(ids).flatten(0, 1), ids.flatten())


class WithLoss(nn.Module):
    """Returns logits and loss from one forward pass, as nanoGPT does."""

    def __init__(self, shift: bool) -> None:
        super().__init__()
        self.gpt, self.shift = Gpt(), shift

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = self.gpt(ids)
        if labels is None:
            return logits, None
        if self.shift:
            return logits, F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1))
        return logits, F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1))


@shape()
class GptLossInside(Language):
    shift = False

    def build(self) -> None:
        self.net = WithLoss(self.shift)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)

    def loss(self, i: int) -> Tensor:
        _, loss = self.net(*tokens(self, i))
        return loss


@shape()
class GptShiftedLossInside(GptLossInside):
    shift = True


@shape()
class MaskedMeanByHand(Language):
    def loss(self, i: int) -> Tensor:
        ids, labels = tokens(self, i)
        mask = (labels != -100).float()
        each = F.cross_entropy(self.net(ids).transpose(1, 2), labels.clamp(min=0), reduction="none")
        return (each * mask).sum() / mask.sum()


@shape()
class SumOverCount(Language):
    """The loss that Transformers uses: a sum, divided by a number that was counted beforehand."""

    def loss(self, i: int) -> Tensor:
        ids, labels = tokens(self, i)
        count = (labels != -100).sum().item()
        return F.cross_entropy(self.net(ids).flatten(0, 1), labels.flatten(), reduction="sum") / count


@shape()
class MeanOfMeans(Language):
    """The mean over each row's own positions, then the mean over rows."""

    def loss(self, i: int) -> Tensor:
        ids, labels = tokens(self, i)
        mask = (labels != -100).float()
        each = F.cross_entropy(self.net(ids).transpose(1, 2), labels, reduction="none")
        return ((each * mask).sum(1) / mask.sum(1)).mean()


@shape()
class LogSoftmaxNll(Language):
    def loss(self, i: int) -> Tensor:
        ids, labels = tokens(self, i)
        scores = F.log_softmax(self.net(ids) / 0.7, dim=-1)
        return 0.5 * F.nll_loss(scores.permute(0, 2, 1), labels)


@shape()
class Distillation(Language):
    """A teacher that is run without gradients next to the student."""

    def build(self) -> None:
        super().build()
        self.teacher = Gpt().eval()

    def loss(self, i: int) -> Tensor:
        ids, labels = tokens(self, i)
        with torch.no_grad():
            wanted = self.teacher(ids).softmax(-1)
        logits = self.net(ids)
        soft = F.kl_div(logits.log_softmax(-1), wanted, reduction="batchmean")
        return 0.5 * soft + 0.5 * F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class TimeFirst(Language):
    """Time is dimension 0, and the batch dimension 1. The state is carried from one chunk of a text to the next."""

    steps = 5

    def build(self) -> None:
        self.net = Carrying()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.state = torch.zeros(1, self.rows, WIDTH), torch.zeros(1, self.rows, WIDTH)

    def chunk(self, i: int) -> tuple[Tensor, Tensor]:
        """Tokens and labels, some of which are ignored, unevenly over the rows."""
        text = torch.randint(0, VOCABULARY, (self.steps + 1, self.rows), generator=self.draw(i))
        return text[:-1], text[1:].masked_fill(text[1:] < torch.arange(self.rows), -100)

    def loss(self, i: int) -> Tensor:
        tokens, labels = self.chunk(i)
        self.state = self.state[0].detach(), self.state[1].detach()
        logits, self.state = self.net(tokens, self.state)
        return F.cross_entropy(logits, labels.reshape(-1))


class Carrying(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.body, self.out = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.LSTM(WIDTH, WIDTH),
            nn.Linear(WIDTH, VOCABULARY),
        )

    def forward(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = self.body(self.tokens(tokens), state)
        return self.out(y.view(-1, WIDTH)), state


@shape("refuse")
class CarriedStateTimeFirst(TimeFirst):
    """A trial also cuts the steps, with the whole batch in each: where that never fits, there is no trial."""


@shape("refuse")
class AsManyStepsAsRows(TimeFirst):
    steps = 7


class TimeFirstEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.body = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.body(self.tokens(tokens)))


@shape()
class TimeFirstTransformer(TimeFirst):
    """The script folds time and rows together, and counts what is right."""

    def build(self) -> None:
        self.net = TimeFirstEncoder()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def step(self, i: int) -> list[float]:
        tokens, labels = self.chunk(i)
        self.optimizer.zero_grad()
        logits = self.net(tokens)
        flat = logits.view(-1, VOCABULARY)
        loss = F.cross_entropy(flat, labels.reshape(-1)) + 0.01 * logits.square().mean()
        loss.backward()
        self.optimizer.step()
        right = (flat.argmax(1) == labels.reshape(-1)).sum()
        return [loss.item(), right.item(), float(flat.detach()[3].sum())]


class Turning(TimeFirstEncoder):
    """Is given rows in dimension 0, as usual, although its layers expect time there."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(tokens.t()).transpose(0, 1)


@shape()
class TurnedInside(TimeFirst):
    def build(self) -> None:
        self.net = Turning()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, i: int) -> Tensor:
        tokens, labels = self.chunk(i)
        return F.cross_entropy(self.net(tokens.t()).reshape(-1, VOCABULARY), labels.t().reshape(-1))


class Acoustic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = nn.GRU(10, WIDTH, batch_first=True), nn.Linear(WIDTH, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x)[0]).log_softmax(-1)


@shape()
class Ctc(Raw):
    """The loss is given time in dimension 0, and a mean over utterances, each divided by its length."""

    def build(self) -> None:
        self.net = Acoustic()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def drawn(self, i: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        source = self.draw(i)
        x, y = torch.randn(self.rows, 9, 10, generator=source), torch.randint(1, 6, (self.rows, 4), generator=source)
        frames, lengths = (
            torch.randint(7, 10, (self.rows,), generator=source),
            torch.randint(1, 4, (self.rows,), generator=source),
        )
        return x, y, frames, lengths

    def loss(self, i: int) -> Tensor:
        x, y, frames, lengths = self.drawn(i)
        return F.ctc_loss(self.net(x).transpose(0, 1), y, frames, lengths, zero_infinity=True)


@shape("refuse")
class CtcOfOneRow(Ctc):
    """The targets of all utterances are in one dimension."""

    def loss(self, i: int) -> Tensor:
        x, y, frames, lengths = self.drawn(i)
        y = torch.cat([row[:n] for row, n in zip(y, lengths)])
        return F.ctc_loss(self.net(x).transpose(0, 1), y, frames, lengths, zero_infinity=True)


@shape()
class WrittenIntoABuffer(Raw):
    """A decoder's results are written, step by step, into a tensor that was made for them, and the next step is given
    what the last one has chosen."""

    time_first = False

    def build(self) -> None:
        self.words, self.first = nn.Embedding(9, 6), nn.GRUCell(6, 8)
        self.cell, self.head = nn.GRUCell(6, 8), nn.Linear(8, 9)
        params = [p for m in self.modules().values() for p in m.parameters()]
        self.optimizer = torch.optim.SGD(params, lr=0.1)

    def loss(self, i: int) -> Tensor:
        y = torch.randint(0, 9, (self.rows, 5), generator=self.draw(i))
        state = self.first(self.words(y[:, 0]))
        out = torch.zeros(5, self.rows, 9) if self.time_first else torch.zeros(self.rows, 5, 9)
        word = y[:, 0]
        for t in range(1, 5):
            state = self.cell(self.words(word), state)
            made = self.head(state)
            if self.time_first:
                out[t] = made
            else:
                out[:, t] = made
            word = made.argmax(1) if t % 2 else y[:, t]
        out = out.transpose(0, 1) if self.time_first else out
        return F.cross_entropy(out[:, 1:].reshape(-1, 9), y[:, 1:].reshape(-1))


@shape()
class WrittenIntoABufferByTime(WrittenIntoABuffer):
    time_first = True
