"""Checks calls without gradients that run out of memory. Every operation of each call fails in
turn. The results must be those of a call that had enough memory, or the exception must reach the
user.

    python evaluation.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import trial
from inject import Fault, Injector

ROWS = 7


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 12), nn.BatchNorm1d(12), nn.Dropout(0.5), nn.GELU(), nn.Linear(12, 5))

    def forward(self, x: Tensor) -> Any:
        return self.body(x)


class WithLoss(Classifier):
    """Like a language model: returns the loss over the targets that are not ignored, and some
    results without a batch dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        z = self.body(x) * self.scale
        return {
            "loss": F.cross_entropy(z, y, ignore_index=-100),
            "logits": z,
            "scale": self.scale * 2,
            "right": (z.argmax(1) % 2 == y % 2).sum(),
            "count": 3,
        }


class Turned(Classifier):
    """Returns results with the rows in another dimension, with two slices per row, and with no rows
    at all."""

    def forward(self, x: Tensor) -> Any:
        z = self.body(x)
        return z.t(), torch.cat([z, -z], 1).reshape(-1, 5), (z > 0, torch.arange(4))


class Cached(Classifier):
    class Cache:
        def __init__(self, values: Tensor) -> None:
            self.values = values

    def forward(self, x: Tensor) -> Any:
        z = self.body(x)
        return z, Cached.Cache(z)


@dataclass(frozen=True)
class Both:
    values: Tensor
    policy: Categorical


class Objects(Classifier):
    """Returns a dataclass with a distribution inside."""

    def forward(self, x: Tensor) -> Any:
        z = self.body(x)
        return Both(z, Categorical(logits=z))


class Numbered(Classifier):
    """Returns Python's numbers beside its rows: means, sums, the number of rows, and constants."""

    def forward(self, x: Tensor) -> Any:
        z = self.body(x)
        right = z[:, 0] > 0
        every = {"mean": z.mean().item(), "right": right.double().mean().item(), "count": int(right.sum())}
        return {**every, "out": z, "rows": len(x), "constant": 0.1, "steps": 3, "flag": True, "name": "numbered"}


class Largest(Classifier):
    """Returns a number that does not add up."""

    def forward(self, x: Tensor) -> Any:
        z = self.body(x)
        return z, z.max().item()


class Flagged(Classifier):
    """Returns a flag that says something of all rows."""

    def forward(self, x: Tensor) -> Any:
        z = self.body(x)
        return z, bool(z.max() > 1.0), len(x) > 4


class Compares(Classifier):
    def forward(self, x: Tensor) -> Any:
        z = self.body(x)
        return z - z.mean(0)


class Similar(Classifier):
    def forward(self, x: Tensor) -> Any:
        z = self.body(x)
        return z @ z.t()


class Draws(Classifier):
    def forward(self, x: Tensor) -> Any:
        return self.body(x + torch.randn_like(x))


class Uncounted(Classifier):
    """Has running statistics of its own, which are written without raising their versions."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("var", torch.ones(5))

    def forward(self, x: Tensor) -> Any:
        z = self.body[0](x)[:, :5]
        return torch.sigmoid(F.batch_norm(z, self.mean, self.var, training=self.training))


class Centred(Classifier):
    """Follows the mean of what it is given in training mode, as a centre that is updated in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(12))

    def forward(self, x: Tensor) -> Any:
        z = self.body[0](x)
        if self.training:
            self.centre.mul_(0.9).add_(z.detach().mean(0), alpha=0.1)
        return torch.relu(z - self.centre)


class Counts(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: Tensor) -> Any:
        self.seen += 1
        return self.body(x)


class Logs(Classifier):
    """Keeps, as an attribute, a number computed from the whole batch."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = 0.0

    def forward(self, x: Tensor) -> Any:
        z = self.body(x)
        self.mean = z.mean().item()
        return z


class Totals(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        self.rows += len(x)
        return self.body(x)


class Scales(Classifier):
    """Halves its input in place, and cannot be tried on fewer rows."""

    def forward(self, x: Tensor) -> Any:
        return self.body(x.view(ROWS, 10).mul_(0.5))


class Follows(Classifier):
    """Keeps a tensor of its own, to which it writes without incrementing the tensor's version counter."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Parameter(torch.ones(10), requires_grad=False)

    def forward(self, x: Tensor) -> Any:
        self.frozen.data.mul_(0.5)
        return self.body(x * self.frozen)


class Case:
    """One kind of call. ``survives`` says what the call must survive: "once", a failure that does
    not happen again; "again", such a failure and also a whole batch that never fits; "", nothing at
    all. A module that is not ``trained`` is called for the first time beside one that is, or for the second time if it
    is ``known``."""

    def __init__(
        self,
        kind: type[Classifier],
        survives: str,
        train: bool = False,
        autocast: bool = False,
        trained: bool = True,
        known: bool = False,
    ) -> None:
        self.kind, self.survives, self.train, self.autocast, self.trained, self.known = (
            kind,
            survives,
            train,
            autocast,
            trained,
            known,
        )
        self.name = kind.__name__ + (" in training mode" if train else "") + (", autocast" if autocast else "")
        self.name += "" if trained else ", not trained, called before" if known else ", not trained"

    def made(self) -> nn.Module:
        """A module that has been trained for two steps, unless it is not trained."""
        torch.manual_seed(0)
        net = self.kind()
        if not self.trained:
            torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
            if self.known:
                with torch.no_grad():
                    net.train(self.train)(*self.given())
            return net.train(self.train)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            sum(
                t.float().square().mean()
                for t in leaves(net(*self.given()))
                if isinstance(t, Tensor) and t.requires_grad
            ).backward()
            optimizer.step()
        return net.train(self.train)

    def given(self) -> tuple:
        x, y = torch.randn(ROWS, 10), torch.randint(0, 5, (ROWS,))
        y[[1, 2, 5]] = -100
        return (x, y) if self.kind is WithLoss else (x,)


CASES = [
    Case(Classifier, "again"),
    Case(Classifier, "again", autocast=True),
    Case(WithLoss, "again"),
    Case(Turned, "again"),
    Case(Cached, "again"),
    Case(Objects, "again"),
    Case(Numbered, "again"),
    Case(Largest, "once"),
    Case(Flagged, "once"),
    Case(Compares, "once"),
    Case(Similar, "once"),
    Case(Draws, "again"),
    Case(Counts, ""),
    Case(Logs, ""),
    Case(Totals, ""),
    Case(Scales, ""),
    Case(Follows, ""),
    Case(Classifier, "once", train=True),
    Case(Uncounted, "once", train=True),
    Case(Centred, "once", train=True),
]
CASES += [
    Case(c.kind, c.survives, c.train, c.autocast, trained=False, known=known) for c in CASES for known in (False, True)
]


def leaves(result: Any) -> list:
    """What is in a result. What is in a distribution includes what it computes."""
    if isinstance(result, Both):
        result = (
            result.values,
            result.policy.logits,
            result.policy.probs,
            result.policy.log_prob(torch.zeros(ROWS)),
            list(result.policy.batch_shape),
        )
    return tree_leaves(result)


def state(net: nn.Module) -> tuple:
    random = torch.get_rng_state()
    own = [v for m in net.modules() for k, v in vars(m).items() if isinstance(v, (int, float))]
    return {n: t.detach().clone() for n, t in net.state_dict().items()}, random, own


def equal(a: Any, b: Any, tolerance: float = 0.0) -> bool:
    a, b = leaves(a), leaves(b)
    if len(a) != len(b):
        return False
    for x, y in zip(a, b):
        if isinstance(x, Tensor):
            if (
                not isinstance(y, Tensor)
                or type(y) is not Tensor
                or x.dtype != y.dtype
                or x.device != y.device
                or x.requires_grad != y.requires_grad
            ):
                return False
            if x.shape != y.shape or not torch.allclose(
                x.double(), y.double(), rtol=tolerance, atol=tolerance, equal_nan=True
            ):
                return False
        elif isinstance(x, (int, float)) and not abs(x - y) <= tolerance * abs(x) or isinstance(x, str) and x != y:
            return False
    return True


def called(case: Case, net: nn.Module, mode: Callable[[], Any], given: tuple) -> Any:
    with mode(), torch.autocast("cpu", enabled=case.autocast):
        return net(*given)


def judged(case: Case, mode: Callable[[], Any], fault: Fault | None) -> tuple[str, int, bool]:
    """Makes a call with the given fault, and compares it with the same call without a fault.
    Returns what is wrong, how many operations there were, and whether the failure was survived."""
    net = case.made()
    given = case.given()
    before = torch.get_rng_state()
    buffers = state(net)
    want = called(case, net, mode, given)
    after = state(net)
    net = case.made()
    given = case.given()  # the same values as before
    torch.set_rng_state(before)
    injector = Injector(fault)
    failed: BaseException | None = None
    got: Any = None
    try:
        with injector:
            injector.begin()
            got = called(case, net, mode, given)
            injector.end()
    except torch.OutOfMemoryError as e:
        failed = e
    now = state(net)
    if failed is not None:
        if failed is not injector.raised[0]:
            return f"another exception: {failed}", injector.count, False
        changed = not equal(buffers[0], now[0]) and case.kind not in (Totals, Follows) and not case.train
        # A call that fails once it has drawn leaves that to the script as well.
        if changed or not torch.equal(now[1], before) and case.kind is not Draws and not case.train:
            return "raised, and changed something", injector.count, False
        return "", injector.count, False
    if case.kind is Draws and injector.raised and not torch.equal(now[1], after[1]):  # each piece has drawn its own
        drawn = got.shape == want.shape and torch.isfinite(got).all() and len({*got[:, 0].tolist()}) == len(got)
        return "" if drawn else f"{got}", injector.count, True
    if not equal(want, got, 2e-2 if case.autocast else 1e-5):
        return f"{got} instead of {want}", injector.count, True
    if not equal(after[0], now[0], 1e-6) or not torch.equal(after[1], now[1]) or after[2] != now[2]:
        return "the module or the random state is not what it would be", injector.count, True
    return "", injector.count, bool(injector.raised)


class Most(TorchDispatchMode):
    """Records the largest number of rows that are run at once."""

    rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "addmm" in str(func):
            self.rows = max(self.rows, len(args[1]))
        return func(*args, **(kwargs or {}))


def steady(case: Case) -> str:
    """Returns what is wrong with the way batches are run after a failure; empty if nothing is. Only the batches of
    the evaluation may be run in pieces straight away, and a whole batch must be tried now and then."""
    net, at_once, training = case.made(), [], 0
    for i in range(100):
        given, injector, most = case.given(), Injector(Fault("again", 1, ROWS) if i == 0 else None), Most()
        with most, injector, torch.no_grad():
            injector.begin()
            net(*given)
            injector.end()
        at_once.append(most.rows)
        if i == 9:
            with Most() as most:
                net.train()(*case.given())
            net.eval()
            training = most.rows
    if training != ROWS:
        return f"{training} rows at once of a training's batch"
    whole = at_once.count(ROWS)
    return "" if max(at_once[1:10]) < ROWS and 0 < whole <= 50 else f"rows at once: {at_once}"


def main() -> int:
    trial.attach_for_many()
    bad = 0
    for case in CASES:
        for mode in (torch.no_grad, torch.inference_mode):
            survived = {"again": 0, "once": 0}
            wrong: list[str] = []
            _, count, _ = judged(case, mode, None)
            for kind in survived:
                for at in range(count):
                    said, _, well = judged(case, mode, Fault(kind, at, ROWS))
                    survived[kind] += well
                    if said:
                        wrong.append(f"operation {at}, {kind}: {said}")
            wrong += [
                f"{kind} was not survived"
                for kind in ("once", "again")[: ["", "once", "again"].index(case.survives)]
                if survived[kind] < count
            ]
            failed = bool(wrong)
            bad += failed
            print(
                f"{'FAILED' if failed else 'ok':6} {case.name}, {mode.__name__}: {count} operations, "
                f"survived {survived} {wrong[:2]}",
                flush=True,
            )
    said = steady(CASES[0])
    print(f"{'FAILED' if said else 'ok':6} after a failure: {said}", flush=True)
    return 1 if bad or said else 0


if __name__ == "__main__":
    sys.exit(main())
