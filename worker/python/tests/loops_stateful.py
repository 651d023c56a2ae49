"""Models that keep something, such as a hidden state, a loss of their own or a feature."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loop import Raw, shape
from loops_composed import Classified, mlp, vectors


@shape("refuse")
class CarriedState(Raw):
    """Truncated backpropagation: each step begins with the state in which the previous one
    ended."""

    def build(self) -> None:
        self.cell, self.head = nn.GRUCell(10, 9), nn.Linear(9, 5)
        self.optimizer = torch.optim.SGD([*self.cell.parameters(), *self.head.parameters()], lr=0.1)
        self.hidden: Tensor = torch.zeros(self.rows, 9)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        hidden = self.hidden.detach()
        for _ in range(2):
            hidden = self.cell(x, hidden)
        self.hidden = hidden
        return F.cross_entropy(self.head(hidden), y)


class Remembering(nn.Module):
    """A model that keeps its hidden state itself, from one call to the next."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(10, 9), nn.Linear(9, 5)
        self.hidden = torch.zeros(rows, 9)

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.cell(x, self.hidden.detach())
        return self.head(self.hidden)


@shape("refuse")
class CarriedInside(Classified):
    def build(self) -> None:
        self.net = Remembering(self.rows)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)


class Leaning(nn.Module):
    """Uses a value that the loop sets on the model after each step."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.body = mlp(10, 12, 5)
        self.before = torch.zeros(rows, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + 0.1 * self.before


@shape("refuse")
class StateSetOutside(Raw):
    """The loop stores the outputs on the model, for use in the next step."""

    def build(self) -> None:
        self.net = Leaning(self.rows)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        z = self.net(x)
        self.net.before = z.detach()
        return F.cross_entropy(z, y)


class Balanced(nn.Module):
    """A mixture of experts that leaves a loss of its own on the module."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.body, self.head = nn.Linear(10, 3), mlp(10, 12, 6), nn.Linear(6, 5)
        self.aux_loss: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        self.aux_loss = shares.mean(0).square().sum()
        return self.head(self.body(x)) * shares.amax(-1, keepdim=True)


@shape("refuse")
class LossOnModule(Classified):
    model = Balanced

    def loss(self, i: int) -> Tensor:
        return super().loss(i) + 0.5 * self.net.aux_loss


@shape("refuse")
class FeatureByHook(Raw):
    """A hook keeps a layer's output, and the loss uses it."""

    def build(self) -> None:
        self.net = mlp(10, 12, 5)
        self.kept: list[Tensor] = []
        self.net[0].register_forward_hook(lambda module, given, out: self.kept.append(out))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        self.kept.clear()
        z = self.net(x)
        return F.cross_entropy(z, y) + 0.01 * self.kept[0].square().mean()


@shape("exact")
class WeightNorm(Classified):
    """Before every call, a hook sets the layer's weight to a tensor that has a graph."""

    def build(self) -> None:
        self.net = mlp(10, 12, 5)
        for layer in self.net:
            if isinstance(layer, nn.Linear):
                nn.utils.weight_norm(layer)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)


class Counting(nn.Module):
    """Counts its calls and keeps a moving average, in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(10, 12, 5)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("average", torch.zeros(10))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.calls += 1
            self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return self.body(x)


@shape("refuse")
class BuffersThatChange(Classified):
    model = Counting


class Warming(nn.Module):
    """Counts its calls in an attribute, keeps the last scales in a list, and uses both."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(10, 12, 5)
        self.seen = 0
        self.scales: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.scales.append(0.5 + 0.1 * self.seen)
        return self.body(x) * (sum(self.scales[-2:]) / 2)


@shape("refuse")
class AttributesThatChange(Classified):
    model = Warming


class Counted(nn.Module):
    """Counts its calls in an attribute that its results do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(10, 12, 5)
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.body(x)


@shape("refuse")
class CountedCalls(Classified):
    """The count of calls is printed, so it would show if each piece made a call."""

    model = Counted

    def step(self, i: int) -> list[float]:
        return [*super().step(i), float(self.net.seen)]


class Target(nn.Module):
    """Moves the weights of a second network closer to its own whenever it is called."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.body, self.head, self.target = nn.Linear(10, 6), nn.Linear(6, 5), nn.Linear(10, 6).requires_grad_(False)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()

    def follow(self) -> None:
        with torch.no_grad():
            self.target.weight.lerp_(self.body.weight, 0.1)

    def forward(self, x: Tensor) -> Tensor:
        self.follow()
        return self.head(self.norm(self.body(x)).tanh() + self.target(x))


@shape("refuse")
class TargetInside(Classified):
    """Each repeated call would move the target closer to the trained weights."""

    model = staticmethod(lambda: Target(norm=False))


class Replaced(Target):
    def follow(self) -> None:
        self.target.weight.data = 0.9 * self.target.weight.data + 0.1 * self.body.weight.data


@shape("refuse")
class TargetReplaced(TargetInside):
    model = staticmethod(lambda: Replaced(norm=False))


class Unseen(Target):
    def follow(self) -> None:
        self.target.weight.data.lerp_(self.body.weight.data, 0.1)


@shape("refuse")
class TargetWithNorm(TargetInside):
    """Because of a norm, only the whole batch can be repeated. The repeat would change the target
    again, and no tensor's version would show this."""

    model = staticmethod(lambda: Unseen(norm=True))


class OfOneSize(Target):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.view(7, 10))


@shape("refuse")
class TargetOfOneSize(TargetInside):
    """The model cannot be run on fewer rows, so there is no trial."""

    model = staticmethod(lambda: OfOneSize(norm=False))


class Averaged(nn.Module):
    """Keeps an average in a tensor that is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.averages = mlp(10, 12, 5), [torch.zeros(10)]

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x - self.averages[0])
        with torch.no_grad():
            self.averages[0].mul_(0.9).add_(x.mean(0), alpha=0.1)
        return z


@shape("refuse")
class AverageBeside(Classified):
    model = Averaged


class Scaling(nn.Module):
    """Scales its input in place. With ``norm``, a batch can only be repeated as a whole."""

    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.norm, self.body = nn.BatchNorm1d(10) if norm else nn.Identity(), mlp(10, 12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(0.5)
        return self.body(self.norm(x) + x)


@shape("refuse")
class ScaledInput(Classified):
    model = staticmethod(lambda: Scaling(norm=False))


@shape("refuse")
class ScaledInputOfNorm(Classified):
    model = staticmethod(lambda: Scaling(norm=True))


@shape("refuse")
class ScaledFeature(Raw):
    """The input that is scaled is another module's result."""

    def build(self) -> None:
        self.backbone, self.head = nn.Linear(10, 10), Scaling(True)
        self.optimizer = torch.optim.SGD([*self.backbone.parameters(), *self.head.parameters()], lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        return F.cross_entropy(self.head(self.backbone(x)), y)


METERED = 0  # the number of calls


class Meter:
    __slots__ = ("sum", "count")

    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0


class Metered(nn.Module):
    """Keeps a meter in an object of its own, a list of values in a dict, and a count in a
    global."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.meter, self.logged = mlp(10, 12, 5), Meter(), {"norms": [0.0]}

    def forward(self, x: Tensor) -> Tensor:
        global METERED
        METERED += 1
        z = self.body(x)
        self.meter.sum += z.detach().mean().item()
        self.meter.count += 1
        self.logged["norms"].append(z.detach().norm().item())
        return z


@shape("refuse")
class MeteredCalls(Classified):
    """The model's meter is printed."""

    model = Metered

    def build(self) -> None:
        global METERED
        METERED = 0
        super().build()

    def step(self, i: int) -> list[float]:
        return [
            *super().step(i),
            self.net.meter.sum,
            float(self.net.meter.count),
            float(METERED),
            *self.net.logged["norms"][-2:],
        ]


NORMS: list[float] = []  # norms of a model's results, kept as a script would keep them


class Watched(nn.Module):
    """Leaves all kinds of things for a log: a tensor without a graph, a number, a number in a global list."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(10, 12, 6), nn.Linear(6, 5)
        self.shares: Tensor = torch.zeros(0)
        self.largest, self.history = 0.0, [torch.zeros(0)]
        NORMS.clear()

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        self.shares = z.detach().softmax(-1)
        self.largest = z.detach().abs().max().item()
        self.history.append(z.detach().mean(0))
        NORMS.append(z.detach().norm().item())
        return self.head(z)


@shape("refuse")
class LoggedInside(Classified):
    """Prints everything that is left for a log, including what a hook has captured."""

    model = Watched

    def build(self) -> None:
        super().build()
        self.taken: dict[str, Tensor] = {}
        self.net.head.register_forward_hook(lambda module, given, out: self.taken.update(given=given[0].detach()))

    def step(self, i: int) -> list[float]:
        loss = super().step(i)
        net = self.net
        seen = [
            net.shares.sum().item(),
            net.shares[-1, 0].item(),
            net.largest,
            float(len(net.history)),
            net.history[-1].sum().item(),
        ]
        return [
            *loss,
            *seen,
            float(len(NORMS)),
            NORMS[-1],
            self.taken["given"].norm().item(),
            float(len(self.taken["given"])),
        ]


class Echoing(nn.Module):
    """Adds what it kept from the previous batch if that batch had the same size. A trial on fewer
    rows therefore takes another path."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(10, 12, 6), nn.Linear(6, 5)
        self.kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        if isinstance(self.kept, Tensor) and self.kept.shape == z.shape:
            z = z + 0.5 * self.kept
        self.kept = z.detach()
        return self.head(z)


@shape("refuse")
class Echoes(Classified):
    model = Echoing


class Glancing(nn.Module):
    """Keeps a scale in every call, but reads it only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.scale, self.told = mlp(10, 12, 6), nn.Linear(6, 5), torch.ones(6), False

    def forward(self, x: Tensor) -> Tensor:
        z = self.body(x)
        if self.told:
            z = z * self.scale
        self.scale = 1 + z.detach().abs().mean(0)
        return self.head(z)


@shape("refuse")
class Glances(Raw):
    def build(self) -> None:
        self.net = Glancing()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        self.net.told = i % 2 == 0
        return F.cross_entropy(self.net(x), y)


@shape("refuse")
class TwoForwards(Raw):
    """Two forward passes update the statistics before the first backward pass."""

    def build(self) -> None:
        self.net = nn.Sequential(nn.Linear(10, 12), nn.BatchNorm1d(12), nn.Linear(12, 5))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def step(self, i: int) -> list[float]:
        x, y = vectors(self, i)
        self.optimizer.zero_grad()
        losses = [F.cross_entropy(self.net(given), y) for given in (x, 2 * x)]
        for loss in losses:
            loss.backward()
        self.optimizer.step()
        return [loss.item() for loss in losses]


@shape("refuse")
class ChangedTargets(Raw):
    """The user writes to the batch after the forward pass."""

    def build(self) -> None:
        self.net = mlp(10, 12, 5)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def loss(self, i: int) -> Tensor:
        x, y = vectors(self, i)
        noisy = x * 2
        z = self.net(noisy.clone())
        noisy.zero_()
        wanted = F.one_hot(y, 5).float()
        loss = (0.3 * (z - wanted)).exp().mean()  # autograd does not save the targets
        wanted.zero_()
        return loss
