"""Checks functions decorated with headroom_train.step. Every operation of one call fails in turn. The
gradients and the result must be those of a call that had enough memory, or the exception must reach
the user.

    python explicit.py
"""

from __future__ import annotations

import sys
import traceback
from collections import UserDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headroom_train
import trial
from compare import close
from evaluation import equal
from inject import Fault, Injector

ROWS = 7


class Training:
    """A model, and a function that trains it. ``survives`` says which failures the function must
    survive: "again", a whole batch that never fits, whichever operation fails; "most", the same for
    nearly all operations; "some", failures in some places; "", none."""

    survives = "again"
    tolerance = 1e-5
    norm: Callable[[], nn.Module] = staticmethod(nn.Identity)
    accumulates = False

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(10, 12), self.norm(), nn.GELU(), nn.Linear(12, 5))
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.optimizer = torch.optim.SGD([*self.net.parameters(), self.scale], lr=0.1)
        self.run = headroom_train.step(self.net, self.optimizer)(self.step)

    def given(self) -> tuple:
        x, y = torch.randn(ROWS, 10), torch.randint(0, 5, (ROWS,))
        y[[1, 5]] = -100
        return x, y

    def step(self, x: Tensor, y: Tensor) -> Any:
        loss = F.cross_entropy(self.net(x) * self.scale, y)
        loss.backward()
        return loss


class Accumulates(Training):
    accumulates = True


class Grown(Training):
    """The model gets a layer after the function has been decorated."""

    def __init__(self) -> None:
        super().__init__()
        self.net.append(nn.Linear(5, 5))
        self.optimizer.add_param_group({"params": self.net[-1].parameters()})


class Sums(Training):
    def step(self, x: Tensor, y: Tensor) -> Any:
        F.cross_entropy(self.net(x), y, reduction="sum").backward()


class Penalised(Training):
    """The loss contains a gradient of a gradient, which recording cannot follow."""

    survives = "most"

    def step(self, x: Tensor, y: Tensor) -> Any:
        x = x.requires_grad_()
        out = self.net(x)
        (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        loss = out.square().mean() + gradient.square().sum(1).mean()
        loss.backward()
        return {"loss": loss.item(), "out": out.detach(), "rows": len(x), "name": "penalised"}


class Batch(UserDict):  # type: ignore[type-arg]
    pass


class InMapping(Training):
    def given(self) -> tuple:
        x, y = super().given()
        return (Batch(x=x, y=y, weights=torch.ones(3)),)

    def step(self, batch: Batch) -> Any:  # type: ignore[override]
        loss = F.cross_entropy(self.net(batch["x"]), batch["y"])
        loss.backward()
        return loss.detach(), batch["weights"].sum().item()


class InObject(Training):
    """The function gets a batch as an object, and returns one."""

    def given(self) -> tuple:
        x, y = super().given()
        return (SimpleNamespace(x=x, y=y, weights=torch.ones(3)),)

    def step(self, batch: SimpleNamespace) -> Any:  # type: ignore[override]
        loss = F.cross_entropy(self.net(batch.x), batch.y)
        loss.backward()
        return {"loss": loss.detach(), "weights": batch.weights.sum().item()}


class Autocast(Training):
    """The function computes in half precision. It returns a loss and two counts, one of them a
    tensor and the other an integer."""

    tolerance = 3e-2

    def step(self, x: Tensor, y: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = self.net(x)
            loss = F.cross_entropy(out.float(), y)
        loss.backward()
        return loss.detach(), (y >= 0).sum(), int((y < 0).sum())


class Twice(Training):
    """The function calls backward twice. If one of these calls fails halfway, it is unknown which gradients it has
    already added to."""

    survives = "some"  # failures before the first backward call
    accumulates = True

    def step(self, x: Tensor, y: Tensor) -> Any:
        F.cross_entropy(self.net(x), y.clamp_min(0)).backward()
        self.net(x).square().mean().backward()


class Texts(Training):
    """The function has arguments that cannot be cut but may contain one item for each row."""

    survives = ""

    def given(self) -> tuple:
        return (*super().given(), {"texts": ["a"] * ROWS})

    def step(self, x: Tensor, y: Tensor, named: Any) -> Any:  # type: ignore[override]
        return super().step(x, y)


class Contrastive(Training):
    survives = ""

    def step(self, x: Tensor, y: Tensor) -> Any:
        z = self.net(x)
        loss = F.cross_entropy(z @ z.t(), torch.arange(len(x)))
        loss.backward()
        return loss


class Normed(Training):
    survives = ""
    norm = staticmethod(lambda: nn.BatchNorm1d(12))


class Warming(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return x


class Counts(Training):
    """The model counts its calls. In pieces, it would count each piece."""

    survives = ""
    norm = Warming


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.logged: dict[str, list[float]] = {"means": []}

    def forward(self, x: Tensor) -> Tensor:
        self.logged["means"].append(x.detach().mean().item())
        return x


class Listed(Training):
    """The model adds to a list in each call. In pieces, it would do so for each piece."""

    survives = ""
    norm = Lists


class Logs(Training):
    """Adds to a tensor of the script's own, once per call."""

    survives = ""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(())

    def step(self, x: Tensor, y: Tensor) -> Any:
        loss = super().step(x, y)
        self.total += loss.detach()
        return loss


class Clips(Training):
    survives = ""

    def step(self, x: Tensor, y: Tensor) -> Any:
        loss = super().step(x, y)
        nn.utils.clip_grad_norm_(self.net.parameters(), 1e9)  # changes nothing here, but may elsewhere
        return loss


class Zeroes(Training):
    survives = ""
    accumulates = True

    def step(self, x: Tensor, y: Tensor) -> Any:
        self.optimizer.zero_grad()
        return super().step(x, y)


class Steps(Training):
    survives = "some"  # failures in the optimizer's step itself

    def step(self, x: Tensor, y: Tensor) -> Any:
        loss = super().step(x, y)
        self.optimizer.step()
        return loss


CASES = [
    Training,
    Accumulates,
    Grown,
    Sums,
    Penalised,
    InMapping,
    InObject,
    Autocast,
    Texts,
    Twice,
    Contrastive,
    Normed,
    Counts,
    Listed,
    Logs,
    Clips,
    Zeroes,
    Steps,
]


def begun(kind: type[Training]) -> tuple[Training, tuple]:
    t = kind()
    for p in [*t.net.parameters(), t.scale]:
        p.grad = torch.ones_like(p) if kind.accumulates else None
    return t, t.given()


def left(t: Training) -> dict[str, Any]:
    named = {**dict(t.net.named_parameters()), "scale": t.scale}
    weights, grads = {n: p.detach().clone() for n, p in named.items()}, {n: p.grad for n, p in named.items()}
    return {"weights": weights, "grads": grads, "buffers": dict(t.net.named_buffers())}


def judged(kind: type[Training], fault: Fault) -> tuple[str, int, bool]:
    """Makes a call with the given fault, and compares it with the same call without a fault.
    Returns what is wrong, how many operations there were, and whether a failure was survived."""
    t, given = begun(kind)
    want_result, want, random = t.step(*given), left(t), torch.get_rng_state()
    t, given = begun(kind)
    before = {n: p.detach().clone() for n, p in left(t)["weights"].items()}
    injector = Injector(fault)
    failed: BaseException | None = None
    result = None
    try:
        with injector:
            injector.begin()
            result = t.run(*given)
            injector.end()
    except torch.OutOfMemoryError as e:
        failed = e
    now = left(t)
    if failed is not None:
        wrong = "" if failed is injector.raised[0] else f"another exception: {failed}"
        stepped = want["weights"] if kind is Steps else before
        if not all(equal(w, before[n]) or equal(w, stepped[n], 1e-6) for n, w in now["weights"].items()):
            wrong = "raised, and weights were changed"
        return wrong, injector.count, False
    if not equal(want_result, result, kind.tolerance) and not (
        isinstance(want_result, Tensor) and close(want_result, result, kind.tolerance)
    ):
        return f"{result} instead of {want_result}", injector.count, True
    for name in want:
        if not equal(want[name], now[name], kind.tolerance):
            return f"{name} {now[name]} instead of {want[name]}", injector.count, True
    survived = bool(injector.raised) and not in_our_copies(injector.raised[0])
    return "" if torch.equal(random, torch.get_rng_state()) else "random numbers were drawn", injector.count, survived


def in_our_copies(failure: BaseException) -> bool:
    """Whether the failure occurred while headroom was copying buffers before a call. These copies are then made on
    the host, so the function itself has not failed."""
    return any(frame.f_code.co_name == "copies" for frame, _ in traceback.walk_tb(failure.__traceback__))


def checked(kind: type[Training]) -> str:
    """Returns what is wrong with the result of ``headroom check``. The result must say that pieces
    are right if and only if a failure would be survived, and the check must leave no trace."""
    from headroom_train import _torch
    from headroom_train.recover.check import Check

    recorder = _torch._recorder
    assert recorder is not None
    t, given = begun(kind)
    t.step(*given)
    want, random = left(t), torch.get_rng_state()
    t, given = begun(kind)
    recorder.check = Check(recorder.report)
    try:
        t.run(*given)
    finally:
        found, recorder.check = recorder.check._found, None
    if not equal(want, left(t)) or not torch.equal(random, torch.get_rng_state()):
        return "it left a trace"
    if len(found) != 1 or not found[0]["where"] or found[0]["modules"] != "Sequential":
        return f"{found}"
    exact = kind is Twice or kind.survives in ("again", "most")  # nothing has failed half way
    right = (
        "why" not in found[0]
        and found[0]["error"] <= kind.tolerance
        and (found[0]["rows"], found[0]["pieces"]) == (ROWS, 2)
    )
    return "" if right == exact and (exact or found[0]["why"]) else f"{found}"


def a_step_inside() -> str:
    """An optimizer's step inside the function is refused before a trial on a few rows gives the optimizer any state."""
    from headroom_train import _torch

    recorder = _torch._recorder
    assert recorder is not None
    t, given = begun(Steps)
    t.optimizer = torch.optim.SGD(t.net.parameters(), lr=0.1, momentum=0.9)
    try:
        with Injector(Fault("again", 2, ROWS)) as injector:
            injector.begin()
            t.run(*given)
        return "survived"
    except torch.OutOfMemoryError:
        why = recorder.report.told[-1]["why"]
    return (
        ""
        if why.startswith("the optimizer's step is inside the function") and not t.optimizer.state
        else f"{why}, {len(t.optimizer.state)} states"
    )


def main() -> int:
    trial.attach_for_many()
    said = a_step_inside()
    bad = int(bool(said))
    print(f"{'FAILED' if said else 'ok':6} a step inside {said}", flush=True)
    for kind in CASES:
        said = checked(kind)
        bad += bool(said)
        print(f"{'FAILED' if said else 'ok':6} headroom check of {kind.__name__} {said}", flush=True)
    for kind in CASES:
        survived = {"again": 0, "once": 0}
        wrong: list[str] = []
        _, count, _ = judged(kind, Fault("once", 1 << 30))
        for mode in survived:
            for at in range(count):
                said, _, well = judged(kind, Fault(mode, at, ROWS))
                survived[mode] += well
                if said:
                    wrong.append(f"operation {at}, {mode}: {said}")
        if survived["again"] < {"again": 1.0, "most": 0.95}.get(kind.survives, 0) * count:
            wrong.append("not always survived")
        if not kind.survives and survived["again"]:
            wrong.append("survived")
        bad += bool(wrong)
        print(
            f"{'FAILED' if wrong else 'ok':6} {kind.__name__}: {count} operations, survived {survived} {wrong[:2]}",
            flush=True,
        )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
