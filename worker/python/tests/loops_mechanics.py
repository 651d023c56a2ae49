"""Loops with everything that surrounds forward and backward: accumulation, clipping, averages,
scalers, mixed precision, closures, checkpointing, gradients taken twice.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from loop import Raw, shape
from loops_composed import Classified, mlp, vectors
from loops_language import VOCABULARY, Language, tokens


class Plain(Raw):
    def build(self) -> None:
        self.net: nn.Module = mlp(10, 12, 5)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return F.cross_entropy(self.net(x), y)


@shape()
class Accumulation(Plain):
    def step(self, i: int) -> list[float]:
        total = 0.0
        self.optimizer.zero_grad()
        for micro in range(3):
            loss = self.loss(3 * i + micro) / 3
            loss.backward()
            total += loss.item()
        self.optimizer.step()
        return [total]


@shape()
class ClippingAndAverage(Language):
    """Clipped gradients, a schedule, and an exponential moving average of the weights."""

    def build(self) -> None:
        super().build()
        self.average = copy.deepcopy(self.net)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)

    def step(self, i: int) -> list[float]:
        ids, labels = tokens(self, i)
        self.optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(self.net(ids).view(-1, VOCABULARY), labels.view(-1))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.optimizer.step()
        self.schedule.step()
        with torch.no_grad():
            for kept, p in zip(self.average.parameters(), self.net.parameters()):
                kept.lerp_(p, 0.1)
        return [loss.item(), norm.item()]


class Marked(TorchFunctionMode):
    """A mode that changes the results of a loss, and also the tensors that ``torch.ones`` creates, as a default
    device does."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        return out * 2 if func in (torch.ones, F.cross_entropy) else out


@shape()
class UnderAMode(Plain):
    """The user has entered a mode for torch's functions. The mode must handle each call exactly
    once, both inside a module and outside."""

    def build(self) -> None:
        super().build()
        self.net = OnesAdded(self.net)

    def loss(self, i: int) -> Tensor:
        with Marked():
            return super().loss(i)


class OnesAdded(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x + torch.ones(x.shape[1]))


@shape()
class DefaultDevice(Plain):
    """The mode of a default device is active for the whole program, so backward is called in it,
    too."""

    def build(self) -> None:
        super().build()
        self.net = OnesAdded(self.net)

    def step(self, i: int) -> list[float]:
        with Marked():
            return super().step(i)


class Scaled(nn.Module):
    """A model whose results depend on a number in an attribute of its own and on one in an attribute of its class."""

    everywhere = 1.0

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.here = body, 1.0

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x * self.here * Scaled.everywhere)


@shape("refuse")
class SwitchedAround(Plain):
    """An attribute has a different value during the call than before and after it, as when
    adapters are disabled for the call."""

    def build(self) -> None:
        super().build()
        self.net = Scaled(self.net)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        self.net.here = 2.0
        out = self.net(x)
        self.net.here = 1.0
        return F.cross_entropy(out, y)


@shape("refuse")
class SwitchedEverywhere(Plain):
    """Like SwitchedAround, but the value is an attribute of the class, not of the module."""

    def build(self) -> None:
        super().build()
        self.net = Scaled(self.net)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        Scaled.everywhere = 2.0
        out = self.net(x)
        Scaled.everywhere = 1.0
        return F.cross_entropy(out, y)


@shape("refuse")
class OtherWeights(Plain):
    """The module is called with weights other than its own, as in a step of meta-learning."""

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        own = dict(self.net.named_parameters())
        fast = {name: p * 0.5 for name, p in own.items()}
        return F.cross_entropy(torch.func.functional_call(self.net, fast, x), y)


@shape()
class GradScaler(Plain):
    def build(self) -> None:
        super().build()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)

    def step(self, i: int) -> list[float]:
        self.optimizer.zero_grad()
        loss = self.loss(i)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return [loss.item(), self.scaler.get_scale()]


@shape(tolerance=3e-2)
class ReadBeforeItIsScaled(GradScaler):
    """Half precision whose loss is read where nothing is differentiated, as scripts do that stop at a loss of NaN."""

    def step(self, i: int) -> list[float]:
        x, y = vectors(self, i)
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(self.net(x), y)
        said = loss.item()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return [said, self.scaler.get_scale()]


@shape(tolerance=3e-2)
class AutocastBf16(Language):
    def step(self, i: int) -> list[float]:
        ids, labels = tokens(self, i)
        self.optimizer.zero_grad()
        with torch.autocast(ids.device.type, dtype=torch.bfloat16):
            logits = self.net(ids)
            loss = F.cross_entropy(logits.view(-1, VOCABULARY).float(), labels.view(-1))
        loss.backward()
        self.optimizer.step()
        return [loss.item()]


@shape(tolerance=3e-2)
class AutocastInside(Language):
    """As in Accelerate: the module's own forward runs in half precision and returns single precision."""

    def build(self) -> None:
        super().build()
        forward = self.net.forward
        self.net.forward = lambda ids: torch.autocast(ids.device.type, dtype=torch.bfloat16)(forward)(ids).float()

    def step(self, i: int) -> list[float]:
        ids, labels = tokens(self, i)
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(ids).view(-1, VOCABULARY), labels.view(-1))
        loss.backward()
        self.optimizer.step()
        return [loss.item()]


class HalfAlone(nn.Module):
    """Refuses single precision, as some kernels do."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("HalfAlone only supports fp16 and bf16")
        return x.tanh()


@shape(tolerance=3e-2)
class KernelForHalf(Classified):
    model = staticmethod(lambda: nn.Sequential(nn.Linear(10, 12), HalfAlone(), nn.Linear(12, 5)))

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return F.cross_entropy(self.net(x).float(), y)


@shape(tolerance=3e-2)
class AutocastAndScaler(Plain):
    def step(self, i: int) -> list[float]:
        x, y = vectors(self, i)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(self.net(x), y)
        scaler.scale(loss).backward()
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad()
        return [loss.item()]


@shape("refuse")
class Closure(Plain):
    def again(self, i: int) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(i)
        loss.backward()
        return loss

    def step(self, i: int) -> list[float]:
        return [self.optimizer.step(lambda: self.again(i)).item()]


@shape("refuse")
class ClosureTwice(Closure):
    """A manual line search: the closure is called again before the step."""

    def step(self, i: int) -> list[float]:
        before = self.again(i).item()
        return [before, *super().step(i)]


class Checkpointed(nn.Module):
    def __init__(self, dropout: float, reentrant: bool) -> None:
        super().__init__()
        self.first, self.last = mlp(10, 12, 9), nn.Linear(9, 5)
        self.middle = nn.Sequential(nn.Linear(9, 9), nn.Tanh(), nn.Dropout(dropout), nn.Linear(9, 9))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant))


@shape()
class Checkpointing(Plain):
    dropout, reentrant = 0.0, False

    def build(self) -> None:
        self.net = Checkpointed(self.dropout, self.reentrant)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)


@shape(dropout=True)
class CheckpointingDropout(Checkpointing):
    dropout = 0.1


@shape()
class CheckpointingReentrant(Checkpointing):
    reentrant = True


@shape()
class BackwardOfAutograd(Plain):
    """``torch.autograd.backward`` for one loss, in each of its spellings."""

    def step(self, i: int) -> list[float]:
        loss, half = self.loss(i), torch.tensor(0.5)
        self.optimizer.zero_grad()
        spelled = i % 4
        if spelled == 0:
            torch.autograd.backward(loss, half)
        elif spelled == 1:
            torch.autograd.backward([loss])
        elif spelled == 2:
            torch.autograd.backward(tensors=(loss,), grad_tensors=(half,))
        else:
            torch.autograd.backward(loss, retain_graph=False)
        self.optimizer.step()
        return [loss.item()]


@shape("refuse")
class TwoBackwards(Plain):
    """Two backward calls on one graph."""

    def step(self, i: int) -> list[float]:
        x, y = vectors(self, i)
        self.optimizer.zero_grad()
        z = self.net(x)
        first, second = F.cross_entropy(z, y), z.square().mean()
        first.backward(retain_graph=True)
        (0.1 * second).backward()
        self.optimizer.step()
        return [first.item(), second.item()]


@shape("refuse")
class GradientByHand(Plain):
    """The user calls autograd.grad and then takes an optimizer step."""

    def step(self, i: int) -> list[float]:
        loss = self.loss(i)
        for p, g in zip(self.net.parameters(), torch.autograd.grad(loss, list(self.net.parameters()))):
            p.grad = g
        self.optimizer.step()
        return [loss.item()]


@shape("refuse")
class GradientHooks(Plain):
    """Hooks on parameters and on the logits."""

    def build(self) -> None:
        super().build()
        for p in self.net.parameters():
            p.register_hook(lambda g: 0.5 * g)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        z = self.net(x)
        z.register_hook(lambda g: g.clamp(-0.05, 0.05))
        return F.cross_entropy(z, y)


@shape()
class UnevenRows(Plain):
    """Some batches have fewer rows than the first, and one has more rows than any before."""

    rows = 13

    def rows_in(self, i: int) -> int:
        return (11, 7, 13, 7)[i % 4]

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        keep = self.rows_in(i)
        return F.cross_entropy(self.net(x[:keep]), y[:keep])


@shape()
class ThreeRows(Plain):
    """Batches of only three rows."""

    rows = 3

    def build(self) -> None:
        self.net = mlp(10, 11, 5)  # no other size is a multiple of the batch's
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)


@shape("refuse")
class OneRow(Plain):
    rows = 1


@shape(dropout=True)
class TransformerLayer(Plain):
    """PyTorch's own encoder, with padding masked."""

    def build(self) -> None:
        self.embedding, self.head = nn.Embedding(VOCABULARY, 12), nn.Linear(12, 5)
        self.encoder = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.1, batch_first=True)
        self.optimizer = torch.optim.Adam(
            [p for m in self.modules().values() for p in m.parameters()], lr=0.01, eps=1e-3
        )

    def loss(self, i: int) -> Tensor:
        ids, labels = tokens(self, i)
        x = self.encoder(self.embedding(ids), src_key_padding_mask=labels == -100)
        return F.cross_entropy(self.head(x.mean(1)), ids[:, 0] % 5)
