"""Checks scripts whose steps differ from each other, and scripts that change something for a call
and then change it back. What was learned in one step must not make the gradients of another step
wrong.

    python changes.py

Every script is made to run out of memory in its module, in its loss and in backward. There are two
runs for each of these places. In one run only the first step fails, and the other steps then run in
pieces straight away. In the other run every step fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trial
from forked import silenced, status
from inject import Whole

trial.attach()
from headroom_train import _torch  # noqa: E402

ROWS, STEPS = 8, 6
PLACES = {
    "module": "aten.addmm.default",
    "loss": "aten._log_softmax.default",
    "backward": "aten._log_softmax_backward_data.default",
}


class Net(nn.Module):
    everywhere = 1.0

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.early, self.first, self.drop, self.act, self.last = (
            nn.Dropout(drop),
            nn.Linear(6, 16),
            nn.Dropout(drop),
            nn.GELU(),
            nn.Linear(16, 5),
        )
        self.mixed, self.scale, self.stops = False, 1.0, False

    def forward(self, x: Tensor, mix: bool = False) -> Tensor:
        if mix or self.mixed:
            x = (x + x.flip(0)) / 2
        features = self.drop(self.act(self.first(self.early(x))))
        return self.last(features.detach() if self.stops else features) * self.scale * Net.everywhere


@contextmanager
def put(on: Any, name: str, value: Any) -> Iterator[None]:
    """A context in which the attribute ``name`` of ``on`` has the given value."""
    before = getattr(on, name)
    setattr(on, name, value)
    yield
    setattr(on, name, before)


def around(context: Callable[[Net], Any], every: int = 2) -> Callable:
    """Returns a loss function that calls the model in the given context once every ``every`` steps, in the last of
    them, and without the context in the other steps."""

    def loss(net: Net, x: Tensor, y: Tensor, i: int) -> Tensor:
        with context(net) if i % every == every - 1 else nullcontext():
            out = net(x)
        return F.cross_entropy(out, y)

    return loss


@contextmanager
def undropped(net: Net) -> Iterator[None]:
    with put(net.early, "training", False), put(net.drop, "training", False):
        yield


@contextmanager
def hooked(net: Net) -> Iterator[None]:
    handle = net.act.register_forward_hook(lambda module, args, out: out * 2)
    yield
    handle.remove()


@contextmanager
def frozen(net: Net) -> Iterator[None]:
    net.first.requires_grad_(False)
    yield
    net.first.requires_grad_(True)


def other_weights(net: Net, x: Tensor, y: Tensor, i: int) -> Tensor:
    fast = {name: p * 0.5 for name, p in net.named_parameters()}
    return F.cross_entropy(torch.func.functional_call(net, fast, (x,)) if i % 2 else net(x), y)


def freezing(net: Net, x: Tensor, y: Tensor, i: int) -> Tensor:
    net.first.requires_grad_(i % 2 == 0)
    return F.cross_entropy(net(x), y)


def thawing(net: Net, x: Tensor, y: Tensor, i: int) -> Tensor:
    net.first.requires_grad_(i > 0)
    return F.cross_entropy(net(x), y)


def annealed(net: Net, x: Tensor, y: Tensor, i: int) -> Tensor:
    net.scale = 1.0 / (i + 1)
    return F.cross_entropy(net(x), y) * (i + 1)


def dropped(net: Net, x: Tensor, y: Tensor, i: int) -> Tensor:
    """In step 1 the model is called once more, and the result is not used. In step 3 the loss is
    computed from such a call."""
    if i == 1:
        with put(net, "scale", 3.0):
            net(x)
    with put(net, "scale", 3.0) if i == 3 else nullcontext():
        out = net(x)
    return F.cross_entropy(out, y)


def by_attribute(net: Net, x: Tensor, y: Tensor, i: int) -> Tensor:
    net.mixed = i % 2 == 1
    return F.cross_entropy(net(x), y)


def classes(even: bool) -> Tensor:
    return (torch.ones(5) if even else torch.arange(1.0, 6.0)).to(trial.DEVICE)


# Scripts whose steps must all survive, with the same gradients as without failures.
EXACT: dict[str, Callable] = {
    "reduction": lambda net, x, y, i: F.cross_entropy(net(x), y, reduction="sum" if i % 2 else "mean"),
    "ignored": lambda net, x, y, i: F.cross_entropy(net(x), y, ignore_index=2 if i % 2 else -100),
    "smoothing": lambda net, x, y, i: F.cross_entropy(net(x), y, label_smoothing=0.5 * (i % 2)),
    "annealed": annealed,
    "freezing": freezing,
    "thawing": thawing,
}

# Scripts whose odd steps may be refused, or all steps if "always" is part of the name; each with the model's dropout.
REFUSED: dict[str, tuple[Callable, float]] = {
    "class weights": (lambda net, x, y, i: F.cross_entropy(net(x), y, classes(i % 2 == 0)), 0.0),
    "new class weights": (lambda net, x, y, i: F.cross_entropy(net(x), y, classes(False) if i % 2 else None), 0.0),
    "no dropout": (around(undropped), 0.5),
    "always without dropout": (around(undropped, 1), 0.5),
    "less dropout": (around(lambda net: put(net.drop, "p", 0.0)), 0.5),
    "no dropout of inputs": (around(lambda net: put(net.early, "training", False)), 0.5),
    "approximate": (around(lambda net: put(net.act, "approximate", "tanh")), 0.0),
    "stopped gradients": (around(lambda net: put(net, "stops", True)), 0.0),
    "another part": (around(lambda net: put(net, "act", nn.ReLU())), 0.0),
    "scaled": (around(lambda net: put(net, "scale", 3.0)), 0.0),
    "always scaled": (around(lambda net: put(net, "scale", 3.0), 1), 0.0),
    "always another global": (around(lambda net: put(Net, "everywhere", 3.0), 1), 0.0),
    "always another global, with dropout": (around(lambda net: put(Net, "everywhere", 3.0), 1), 0.1),
    "another global": (around(lambda net: put(Net, "everywhere", 3.0)), 0.0),
    "hooked": (around(hooked), 0.0),
    "frozen around": (around(frozen), 0.0),
    "other weights": (other_weights, 0.0),
    "scaled once before": (dropped, 0.0),
    "mixing": (lambda net, x, y, i: F.cross_entropy(net(x, mix=i % 2 == 1), y), 0.0),
    "mixing by an attribute": (by_attribute, 0.0),
}


def steps(loss: Callable, drop: float, fails: Callable[[int], str], anew: bool) -> list[Any]:
    """The gradients of each step, or the exception raised in it. All steps begin with the same weights."""
    torch.manual_seed(1)
    net, found = Net(drop).to(trial.DEVICE), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for i in range(STEPS):
        draw = torch.Generator().manual_seed(i)
        x, y = (
            torch.randn(ROWS, 6, generator=draw).to(trial.DEVICE),
            torch.randint(0, 5, (ROWS,), generator=draw).to(trial.DEVICE),
        )
        optimizer.zero_grad()
        torch.manual_seed(100 + i)
        if anew:
            _torch._recorder.sizes.refused()  # the next call is made whole, and fails
        with Whole(fails(i), ROWS) as whole:
            try:
                loss(net, x, y, i).backward()
                found.append([None if p.grad is None else p.grad.clone() for p in net.parameters()])
            except torch.OutOfMemoryError as e:
                found.append(str(e))
        if fails(i) and anew and not whole.raised:
            raise RuntimeError(f"nothing failed in step {i}")
        optimizer.step()
    return found


def off(want: list, got: list) -> float:
    """The largest difference between gradients, relative to the largest element of each tensor."""
    if any((a is None) != (b is None) for a, b in zip(want, got)):
        return float("inf")
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-6)) for a, b in zip(want, got) if a is not None)


def check(name: str, loss: Callable, drop: float, exact: bool) -> Callable[[], str]:
    def run() -> str:
        silenced()
        wrong: list[str] = []
        bare = steps(loss, drop, lambda _: "", False)
        for place, operation in PLACES.items():
            for anew in (False, True):
                got = steps(loss, drop, lambda i: operation if anew or i == 0 else "", anew)
                for i, (a, b) in enumerate(zip(bare, got)):
                    where = f"{place}, {'each' if anew else 'first'}, step {i}"
                    another = not exact and (i % 2 == 1 or "always" in name)
                    if isinstance(b, str):
                        wrong += [] if another else [f"{where} is refused"]
                    elif (not drop or another) and off(
                        a, b
                    ) > 1e-5:  # with dropout the gradients of pieces are different
                        wrong.append(f"{where} is off by {off(a, b):.2g}")
        return ", ".join(wrong)

    run.__name__ = name
    return run


CHECKS = [check(name, loss, 0.0, True) for name, loss in EXACT.items()] + [
    check(name, loss, drop, False) for name, (loss, drop) in REFUSED.items()
]


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(status(CHECKS))
