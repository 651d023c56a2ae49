"""Checks steps whose results are computed in pieces, twice, because nothing is known about the loss.

python twopass.py
"""

from __future__ import annotations

import copy
import itertools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trial
from forked import checked
from inject import Fault, Injector, Whole
from manners import Failing
from watching import Bank, Multiplied

trial.attach()

from headroom_train import _torch  # noqa: E402
from headroom_train.hooks.changes import changed  # noqa: E402
from headroom_train.recover.backward import hooks_nodes  # noqa: E402
from headroom_train.replay.deferred import Deferred, strays  # noqa: E402
from headroom_train.tape.graph import sequence  # noqa: E402
from headroom_train.tape.tape import place_of  # noqa: E402

ROWS = 12
FAILS = {"forward": "aten.addmm.default", "backward": "aten.gelu_backward.default"}
IN_PIECES = ("dice", "a quotient")  # the losses are computed from sums over the rows

LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "contrastive": lambda out, y: F.cross_entropy(F.normalize(out) @ F.normalize(out).T / 0.1, torch.arange(len(out))),
    "dice": lambda out, y: (
        1 - 2 * (out.sigmoid()[:, 0] * (y > 2)).sum() / (out.sigmoid()[:, 0].sum() + (y > 2).sum() + 1)
    ),
    "class weights of the batch": lambda out, y: F.cross_entropy(
        out, y, weight=1 / (1 + torch.bincount(y, minlength=5))
    ),
    "weights that are learned from the batch": lambda out, y: (
        F.cross_entropy(out, y, reduction="none") * F.cross_entropy(out, y, reduction="none").softmax(0)
    ).sum(),
    "hard examples": lambda out, y: F.cross_entropy(out, y, reduction="none").topk(5)[0].mean(),
    "the first rows": lambda out, y: F.cross_entropy(out[:5], y[:5]),
    "statistics of the batch": lambda out, y: ((out - out.mean(0)) / (out.std(0) + 1e-3))[:, 0].mul(y).mean(),
    "sorted": lambda out, y: (out[:, 0].sort()[0] * torch.arange(len(out))).sum(),
    "a quotient": lambda out, y: out.square().mean() / out.exp().mean(),
    "the largest": lambda out, y: F.cross_entropy(out, y, reduction="none").max(),
    "a determinant": lambda out, y: (out.T @ out + torch.eye(5)).logdet(),
    "pairs": lambda out, y: F.relu(1 + out[:6, 0] - out[6:, 0]).mean() + torch.pdist(out).mean(),
}


def trained(loss: Callable[[Tensor, Tensor], Tensor], fails: str = "") -> tuple[list[Tensor], list[float]]:
    """Gradients of the last of some steps, and the losses. The operation ``fails`` fails on the whole batch from the
    third step on."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y, said = torch.randn(ROWS, 6), torch.arange(ROWS) % 5, []
    for i in range(5):
        optimizer.zero_grad()
        with Whole(fails, ROWS) if fails and i >= 2 else nullcontext():
            value = loss(net(x), y)
            value.backward()
        said.append(value.item())
        grads = [p.grad.clone() for p in net.parameters()]  # type: ignore[union-attr]
        optimizer.step()
    return grads, said


def exact(name: str, fails: str) -> str:
    want, losses = trained(LOSSES[name])
    told = _torch._recorder.report.told  # type: ignore[union-attr]
    before = len(told)
    try:
        got, values = trained(LOSSES[name], fails)
    except torch.OutOfMemoryError:
        return f"{_torch._recorder.report.told[before:]}"  # type: ignore[union-attr]
    how = [t.get("how", t.get("why")) for t in _torch._recorder.report.told[before:]]  # type: ignore[union-attr]
    most = max(float(g.abs().max()) for g in want)
    off = max(float((a - b).abs().max()) for a, b in zip(want, got)) / most
    apart = max(abs(a - b) / max(abs(a), 1e-6) for a, b in zip(losses, values))
    if not any("each computed twice" in str(h) for h in how) and name not in IN_PIECES:
        return f"{how}"
    return "" if off <= 1e-5 and apart <= 1e-5 else f"gradients {off:.1g}, losses {apart:.1g}"


def clip(step: Callable[[Callable[[], Tensor]], None]) -> list[nn.Parameter]:
    """Two towers, a scale that is a parameter of its own, and gradients of an earlier loss that are added to."""
    image, text = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)), nn.Linear(6, 4)
    scale = nn.Parameter(torch.tensor(0.5))
    params = [*image.parameters(), *text.parameters(), scale]
    optimizer, x = torch.optim.SGD(params, lr=0.1), torch.randn(ROWS, 6)

    def loss() -> Tensor:
        a, b = F.normalize(image(x)), F.normalize(text(x.flip(1)))
        logits = scale.exp() * a @ b.T
        target = torch.arange(ROWS)
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    for _ in range(3):
        optimizer.zero_grad()
        (F.mse_loss(image(x), torch.ones(ROWS, 4)) + F.mse_loss(text(x), torch.ones(ROWS, 4))).backward()
        step(loss)
        optimizer.step()
    return params


def tied(step: Callable[[Callable[[], Tensor]], None]) -> list[nn.Parameter]:
    """The loss uses a weight of the model, too, and is one of several summands."""
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
    optimizer, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.randn(ROWS, 6)

    def loss() -> Tensor:
        out = net(x)
        return related(out @ net[2].weight) + 0.1 * out.std(0).sum()  # type: ignore[operator]

    for _ in range(3):
        optimizer.zero_grad()
        step(loss)
        optimizer.step()
    return [*net.parameters()]


def twice_the_model(step: Callable[[Callable[[], Tensor]], None]) -> list[nn.Parameter]:
    """The model is called several times, and a weight of no module scales what one call returns."""
    net, scale = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)), nn.Parameter(torch.ones(4))
    params = [*net.parameters(), scale]
    optimizer, x = torch.optim.SGD(params, lr=0.1), torch.randn(ROWS, 6)

    def loss() -> Tensor:
        return related(torch.cat([net(x), net(x + 0.1)])) + (scale * net(x)).logsumexp(0).sum()

    for _ in range(3):
        optimizer.zero_grad()
        step(loss)
        optimizer.step()
    return params


def structure(kind: Callable[[Callable], list[nn.Parameter]], fails: str) -> str:
    """Compares what steps have left in parameters and gradients with what they leave without a failure."""

    def step(loss: Callable[[], Tensor]) -> None:
        loss().backward()

    def failing(loss: Callable[[], Tensor]) -> None:
        with Whole(fails, ROWS):
            loss().backward()

    found = []
    report: Any = _torch._recorder.report  # type: ignore[union-attr]
    for each in (step, failing):
        torch.manual_seed(0)
        before = len(report.told)
        params = kind(each)
        found.append([t for p in params for t in (p.detach(), p.grad)])
    how = [t.get("how", t.get("why")) for t in report.told[before:]]
    off = max(float((a - b).abs().max()) for a, b in zip(*found))  # type: ignore[operator]
    if not any("each computed twice" in str(h) for h in how):
        return f"{how}"
    return "" if off < 1e-5 else f"{off:.1g}"


def structure_of(kind: Callable, where: str) -> Callable[[], str]:
    def check() -> str:
        return structure(kind, FAILS[where])

    check.__name__ = f"{kind.__name__}_{where}"
    return check


def the_same_masks() -> str:
    """Both passes draw the same random numbers: with the last weight the identity, its gradient is that of the results,
    times the results themselves, dropout included."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 16, bias=False))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    torch.nn.init.eye_(net[2].weight)  # type: ignore[arg-type]
    x = torch.randn(ROWS, 6)

    def related(out: Tensor) -> Tensor:
        return F.cross_entropy(out @ out.T, torch.arange(len(out)))

    related(net(x)).backward()
    optimizer.step()
    optimizer.zero_grad()
    with Whole("aten.addmm.default", ROWS):
        out = net(x)
        related(out).backward()
    values = out.detach().clone().requires_grad_()
    related(values).backward()
    want = values.grad.T @ values.detach()  # type: ignore[union-attr]
    off = float((net[2].weight.grad - want).abs().max() / want.abs().max())  # type: ignore[operator]
    dropped = float((values == 0).float().mean())
    return "" if off < 1e-5 and 0.3 < dropped < 0.7 else f"{off:.1g}, {dropped:.2f} dropped"


def once_known() -> str:
    """Once results had to be computed twice, the next steps do that at once: nothing is tried on the whole batch, and
    the proof is not looked for again."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(ROWS, 6)

    def step() -> None:
        optimizer.zero_grad()
        out = net(x)
        (out[:, 0].sort()[0] * torch.arange(ROWS)).sum().backward()
        optimizer.step()

    step()
    with Whole("aten.addmm.default", ROWS):
        step()
        step()
        with Multiplied() as seen:
            step()
    return "" if seen.rows == [6] * 8 else f"{seen.rows}"  # two layers, two pieces, two passes


class Shared(torch.autograd.Function):
    """Gives each row its own values, and a part of the mean of the rows' gradients."""

    part = 1.0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad - Shared.part * grad.mean(0)


class Sharing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return Shared.apply(self.body(x))  # type: ignore[no-any-return]


def refused(net: nn.Module, loss: Callable[[Any], Tensor], fails: str = FAILS["forward"]) -> str:
    """Trains a step in which an operation fails on the whole batch. Returns what went wrong if the failure does not
    reach the script."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(ROWS, 6)
    for _ in range(2):
        loss(net(x)).backward()
        optimizer.step()
        optimizer.zero_grad()
    with Whole(fails, ROWS):
        try:
            loss(net(x)).backward()
        except torch.OutOfMemoryError:
            return left(net, fails)
    return f"{_torch._recorder.report.told[-1]}"  # type: ignore[union-attr]


def left(net: nn.Module, fails: str) -> str:
    """What is wrong with the gradients after a failure that has reached the script. A backward pass that fails in the
    GELU has reached the layer behind it, as without headroom."""
    unreached = [*net.parameters()][: 2 if fails == FAILS["backward"] else None]
    return "some gradients" if any(p.grad is not None for p in unreached) else ""


def related(out: Tensor) -> Tensor:
    return F.cross_entropy(out @ out.T, torch.arange(len(out)))


def gradients_of_other_rows_are_refused() -> str:
    """A module whose gradients relate the rows, be it only a little, and although its values do not, is not computed in
    pieces."""
    torch.manual_seed(0)
    wrong = []
    for part in (1.0, 1e-3):
        Shared.part = part
        wrong.append(refused(Sharing(), related))
    return "; ".join(filter(None, wrong))


def what_a_loss_was_given_has_changed() -> str:
    """A function of the step is not run again on an argument that the script has changed since."""
    torch.manual_seed(0)
    net, offset = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5)), torch.ones(ROWS, 1)

    def loss(out: Tensor) -> Tensor:
        shifted = out + offset
        with torch.no_grad():
            offset.add_(2)
        return related(shifted)

    return "; ".join(filter(None, (refused(net, loss, fails) for fails in FAILS.values())))


def halved(out: Tensor) -> Tensor:
    loss = related(out)
    loss /= 2
    return loss


def added_up(out: Tensor) -> Tensor:
    total = torch.zeros((), dtype=out.dtype)
    total += related(out)
    total += out.std(0).sum()
    return total


def column_by_a_view(out: Tensor) -> Tensor:
    column = out[:, 0]
    column.zero_()
    return related(out)


def read_after_a_view(out: Tensor) -> Tensor:
    out[:, 0].zero_()
    return related(out) + sum(map(sum, out.tolist()))


def results_divided(out: Tensor) -> Tensor:
    out.div_(out.detach().norm(dim=1, keepdim=True))
    return related(out)


def diagonal(out: Tensor) -> Tensor:
    scores = out @ out.T
    scores.fill_diagonal_(-1e9)
    return scores.logsumexp(1).mean()


def seen_and_changed(out: Tensor) -> Tensor:
    rows = F.cross_entropy(out, torch.arange(ROWS) % 5, reduction="none")
    rows[0].mul_(3)
    loss = (rows * rows.detach().softmax(0)).sum()
    seen = loss.detach()
    loss *= 2
    return loss + 0.1 * loss * seen


def later(out: Tensor) -> Tensor:
    loss = related(out + 0)
    out.mul_(2)
    return loss + related(out + 0)


# What a training needs: its modules, and what computes the loss. Other numbers that are to be compared go into a list.
Made = tuple[nn.Module, Callable[[list[float]], Tensor]]


def off(make: Callable[[], Made], fails: str, steps: int = 4) -> float:
    """How far the weights, the newest gradients, the losses and other numbers of a training in double precision are from
    those of an undisturbed one, if an operation fails on the whole batch from the third step on."""

    def trained(at: int) -> list[Tensor]:
        torch.manual_seed(0)
        modules, loss = make()
        optimizer, said = torch.optim.SGD(modules.double().parameters(), lr=0.1), list[float]()
        for i in range(steps):
            optimizer.zero_grad()
            with Whole(fails, ROWS) if i >= at else nullcontext():
                value = loss(said)
                value.backward()
            said.append(value.item())
            grads = [p.grad.clone() for p in modules.parameters() if p.grad is not None]
            optimizer.step()
        return [torch.tensor(said).double(), *grads, *(t.detach().clone() for t in modules.state_dict().values())]

    want = trained(steps)
    return max(float((a - b).abs().max()) for a, b in zip(want, trained(2), strict=True))


def survived(make: Callable[[], Made], fails: str, steps: int = 4) -> str:
    """What is wrong with a training that must survive, with the gradients of an undisturbed one."""
    try:
        far = off(make, fails, steps)
        return f"{fails}: off by {far:.1g}" if far > 1e-9 else ""
    except torch.OutOfMemoryError:
        return f"{fails}: {_torch._recorder.report.told[-1]}"  # type: ignore[union-attr]


def unharmed(make: Callable[[], Made], fails: str, steps: int = 4) -> str:
    """What is wrong with a training that may end in the failure, but must not go wrong."""
    try:
        far = off(make, fails, steps)
        return f"{fails}: off by {far:.1g}" if far > 1e-9 else ""
    except torch.OutOfMemoryError:
        return ""


def rows_of(wide: int = 6) -> Tensor:
    return torch.randn(ROWS, wide).double()


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))


def written_to_in_place() -> str:
    """What the script writes to in place, before or after the failure, has the values and gradients of an undisturbed
    run: results, parts of them, numbers, and what shares memory with those."""
    wrong = []
    for loss in (
        halved,
        added_up,
        column_by_a_view,
        read_after_a_view,
        results_divided,
        diagonal,
        seen_and_changed,
        later,
    ):

        def make(loss: Callable[[Tensor], Tensor] = loss) -> Made:
            both, x = nn.ModuleList([layers(), nn.Sequential(nn.Linear(6, 5), nn.SiLU())]), rows_of()

            def step(said: list[float]) -> Tensor:
                first, second = loss(both[0](x)), both[1](x)
                value = first + 0.1 * second.square().mean() + 0.1 * related(second)
                said.append(first.item())
                return value

            return both, step

        for fails in ("aten.addmm.default", "aten.gelu_backward.default", "aten.silu.default"):
            if (loss, fails) == (seen_and_changed, "aten.gelu_backward.default"):
                wrong.append(unharmed(make, fails))
            else:
                wrong.append(survived(make, fails))
    return "; ".join(filter(None, wrong))


def a_number_of_the_batch() -> str:
    """A number that a module computes beside its rows belongs to the whole batch: its gradient cannot be given to
    pieces."""
    torch.manual_seed(0)

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            out = self.body(x)
            return out, out.std(0).sum()

    return refused(Beside(), lambda found: related(found[0]) + found[1], FAILS["backward"])


class Learned(nn.Module):
    """Returns a number that it has learned beside its rows, as CLIP does."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.body(x), self.scale.exp()


def a_learned_number() -> str:
    """A number that does not depend on the rows has its gradient once, not once for each piece."""

    def make() -> Made:
        net, x = Learned(), rows_of()

        def step(_: list[float]) -> Tensor:
            out, scale = net(x)
            return related(F.normalize(out) * scale)

        return net, step

    return "; ".join(filter(None, (survived(make, fails) for fails in FAILS.values())))


class Drawing(Learned):
    """Returns a number that is the same in all trials, where nothing is drawn, and another one for each piece."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.body(x), self.scale * (1 + torch.rand(()))


def a_number_that_is_drawn() -> str:
    """A number that is another one in each piece is no learned number."""
    torch.manual_seed(0)
    return refused(Drawing(), lambda found: related(F.normalize(found[0]) * found[1]))


class Losing(nn.Module):
    """Returns rows, and a loss of its own that need not be used."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = self.body(x)
        return {"rows": out, "loss": out.std(0).sum()}


def a_number_that_is_not_used() -> str:
    """A number of the batch that the script only holds keeps nothing from being computed twice; one that it uses
    does."""

    def made(uses: bool) -> Made:
        net, x = Losing(), rows_of()

        def step(_: list[float]) -> Tensor:
            found = net(x)
            loss = related(F.normalize(found["rows"]))
            return loss + found["loss"] if uses else loss

        return net, step

    wrong = survived(lambda: made(False), FAILS["forward"]), unharmed(lambda: made(True), FAILS["forward"])
    return "; ".join(filter(None, wrong))


def a_number_that_is_read() -> str:
    """A script reads a number of the batch beside rows which could be computed twice. Where the whole batch can be tried
    again for the number, the rows are computed twice when they are needed; where it fits only as the last way, that
    makes both real."""
    wrong = []
    for late in (False, True):
        torch.manual_seed(0)
        net, x = Losing().double(), rows_of()
        fails: Any = Whole("aten.addmm.default", ROWS) if late else Injector(Fault("once", at=1))

        made = list[str]()

        def made_real(self: Any, way: str, *call: Any, fails: Any = fails, made: list[str] = made) -> int:
            fails.rows = -1 if way == "batch" else ROWS
            count = make_real(self, way, *call)
            made += [way] * (count > 0)
            return count

        def step(net: nn.Module = net, x: Tensor = x) -> list[Tensor]:
            net.zero_grad()
            found = net(x)
            said = found["loss"].item()
            loss = related(F.normalize(found["rows"])) + found["loss"] * said
            loss.backward()
            return [loss.detach(), *(p.grad.clone() for p in net.parameters() if p.grad is not None)]

        want, make_real = step(), Deferred.make_real
        before = len(_torch._recorder.report.told)  # type: ignore[union-attr]
        with fails, changed(Deferred, "make_real", made_real):
            if not late:
                fails.begin()
            got = step()
        told = [t.get("way") for t in _torch._recorder.report.told[before:]]  # type: ignore[union-attr]
        far = max(float((a - b).abs().max()) for a, b in zip(got, want, strict=True))
        # The late one's first is the call by itself, whose number is refused.
        ways = (["batch"], ["two-pass", "batch"]) if late else (["batch", "two-pass"], ["two-pass"])
        if far > 1e-9 or (told, made) != ways:
            wrong.append(f"{late}: off by {far:.1g}, {told}, {made}")
    return "; ".join(wrong)


def a_loss_beside_rows_that_are_read() -> str:
    """Rows that had to be computed twice in one step do not keep the loss beside them from being computed in pieces in
    the next."""

    def make() -> Made:
        net, x = Beside(), rows_of()

        def step(said: list[float]) -> Tensor:
            loss, out = net(x)
            said += F.cross_entropy(out, torch.arange(ROWS) % 5, reduction="none").topk(ROWS // 2)[0].tolist()
            return loss

        return net, step

    class Beside(Losing):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            out = self.body(x)
            return out.square().mean(), out

    return survived(make, FAILS["forward"], 5)


class Louder(nn.Module):
    loud = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * Louder.loud


def something_that_is_changed_back() -> str:
    """A call that would return something else when it is repeated is not computed twice, even if its loss would be the
    same."""
    torch.manual_seed(0)
    net = Louder()
    optimizer, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.randn(ROWS, 6)
    for i in range(3):
        optimizer.zero_grad()
        with Whole(FAILS["backward"], ROWS) if i == 2 else nullcontext():
            Louder.loud = 3.0 if i == 2 else 1.0
            out = net(x)
            Louder.loud = 1.0
            try:
                related(F.normalize(out)).backward()
            except torch.OutOfMemoryError:
                return left(net, FAILS["backward"])
        optimizer.step()
    return f"{_torch._recorder.report.told[-1]}"  # type: ignore[union-attr]


def something_between_calls_that_is_changed_back() -> str:
    """The same where each call is computed twice by itself."""
    torch.manual_seed(0)
    one, net = nn.Linear(6, 6), Louder()
    optimizer, x = torch.optim.SGD([*one.parameters(), *net.parameters()], lr=0.1), torch.randn(ROWS, 6)
    for i in range(3):
        optimizer.zero_grad()
        with Whole(FAILS["backward"], ROWS) if i == 2 else nullcontext():
            Louder.loud = 3.0 if i == 2 else 1.0
            out = net(one(x).flip(0))
            Louder.loud = 1.0
            try:
                related(F.normalize(out)).backward()
            except torch.OutOfMemoryError:
                return ""
        optimizer.step()
    return f"{_torch._recorder.report.told[-1]}"  # type: ignore[union-attr]


def the_rest_of_the_step_goes_on() -> str:
    """Once a call has been computed twice by itself, and nothing lacks values, the next calls are made as they are
    written."""
    torch.manual_seed(0)
    net, other = layers(), nn.Linear(6, 7)
    optimizer, x = torch.optim.SGD([*net.parameters(), *other.parameters()], lr=0.1), torch.randn(ROWS, 6)
    for i in range(4):
        optimizer.zero_grad()
        with Whole("aten.gelu.default", ROWS) if i >= 2 else nullcontext():
            before = related(F.normalize(other(x)))  # the step cannot be cut, so that the call is computed by itself
            with Multiplied() as tried:
                out = net(x)
            with Multiplied() as seen:
                after = other(x)
        (before + related(F.normalize(out)) + after.square().mean()).backward()
        optimizer.step()
        if seen.rows != [ROWS] or i == 3 and tried.rows.count(ROWS) != 1:  # the whole batch has not fitted before
            return f"step {i}: {tried.rows}, {seen.rows}"
    return ""


def what_is_held_elsewhere() -> str:
    """With memory of the host, nothing is let go of while something else holds what an earlier call has made: a call that
    fails is computed by itself."""

    def make() -> Made:
        both, x, kept = nn.ModuleList([layers(), nn.Sequential(nn.Linear(6, 5), nn.SiLU())]), rows_of(), {}
        both[0][0].register_forward_hook(lambda module, given, made: kept.update(features=made))

        def step(_: list[float]) -> Tensor:
            a = both[0](x)
            return related(a + both[1](x)) + kept["features"].square().mean()

        return both, step

    with changed(_torch._recorder.spill, "_pools", {0: Bank()}):  # type: ignore[union-attr]
        return survived(make, "aten.silu.default")


class Leaving(nn.Module):
    """Leaves a penalty on itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.penalty = nn.Linear(6, 5), torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        self.penalty = out.square().mean()
        return out


def a_graph_that_has_been_released() -> str:
    """If the model's call has succeeded, what it left elsewhere has no graph any more: nothing is computed twice then,
    or backward would fail half way."""
    torch.manual_seed(0)
    net = Leaving()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(ROWS, 6), torch.arange(ROWS) % 5
    for fails in (0, 0, 1, 2, 3):
        optimizer.zero_grad()
        try:
            out = net(x)
            with Failing("nll_loss_forward", fails):
                loss = F.cross_entropy(out, y)
            (loss + (out @ out.T).logsumexp(1).mean() + net.penalty).backward()
        except torch.OutOfMemoryError:
            if any(p.grad is not None for p in net.parameters()):
                return f"{fails} failures: some gradients"
        optimizer.step()
    return ""


def after_a_call_that_succeeded() -> str:
    """The first of two models has succeeded when the second fails: both are computed twice, unless something else holds
    what the first has made, which has no graph any more."""
    wrong = []
    for hooked in (False, True):
        torch.manual_seed(0)
        one, two = (
            nn.Sequential(nn.Linear(6, 16), nn.Linear(16, 5)),
            nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5)),
        )
        params = [*one.parameters(), *two.parameters()]
        optimizer, x, kept = torch.optim.SGD(params, lr=0.1), torch.randn(ROWS, 6), {}

        def step() -> None:
            optimizer.zero_grad()
            a, b = F.normalize(one(x)), F.normalize(two(x))
            loss = F.cross_entropy(a @ b.T, torch.arange(ROWS))
            (loss + kept["features"].square().mean() if hooked else loss).backward()

        if hooked:
            one[0].register_forward_hook(lambda module, given, made: kept.update(features=made))
        for _ in range(2):
            step()
            optimizer.step()
        step()
        want = [p.grad.clone() for p in params]  # type: ignore[union-attr]
        try:
            with Whole("aten.gelu.default", ROWS):
                step()
        except torch.OutOfMemoryError:
            if not hooked or any(p.grad is not None for p in params):
                wrong.append(f"hooked {hooked}: raised, {_torch._recorder.report.told[-1]}")  # type: ignore[union-attr]
            continue
        off = max(float((p.grad - w).abs().max()) for p, w in zip(params, want))  # type: ignore[operator]
        if hooked or off > 1e-6:
            wrong.append(f"hooked {hooked}: {off:.1g}, {_torch._recorder.report.told[-1]}")  # type: ignore[union-attr]
    return "; ".join(wrong)


def what_only_a_graph_has_saved_is_held_by_nobody() -> str:
    """Tensors that a graph has saved are known to the collector as well; only what something refers to is a stray."""
    other = nn.Linear(1, 1)
    torch.optim.SGD(other.parameters(), lr=0.1)  # nothing else is recorded
    net, x = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5)), torch.randn(ROWS, 6)
    begin = sequence()
    out = net(x)
    entry = SimpleNamespace(module=net, between=(begin, sequence()), call_name=lambda: "net")
    tape: Any = SimpleNamespace(entries=[entry], spans=[], deferred=None, step=SimpleNamespace(preemptive=False))
    alone = strays(tape, set())
    kept = [out]
    return "" if (alone, strays(tape, set())) == (False, True) and kept else f"{alone}"


class Policy(nn.Module):
    """Returns the logits of actions, actions that are drawn where it is called, and their log-probabilities."""

    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.net, self.draws = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4)), draws

    def forward(self, x: Tensor, actions: Any = None) -> tuple[Tensor, Any, Tensor]:
        logits = self.net(x).log_softmax(-1)
        if actions is None:
            actions = torch.multinomial(logits.detach().exp(), 1) if self.draws else torch.zeros(len(x), 1).long()
        return logits, actions, logits.gather(1, actions)[:, 0]


def played(
    policy: Policy, x: Tensor, normed: bool, early: bool, given: Any = None, fails: Any = None
) -> tuple[Tensor, list[Tensor]]:
    """A loss of REINFORCE after two actions, and the actions. ``fails`` is an operation and the turn from which on it
    fails."""
    chosen, rewards, drawn = [], [], []
    for turn in range(2):
        if fails:
            fails[0].rows = 64 if turn >= fails[1] else -1
        logits, actions, likely = policy(x, given and given[turn])
        if not policy.draws:
            policy_of = torch.distributions.Categorical(logits=logits)
            actions = given[turn] if given else policy_of.sample()[:, None]
            likely = policy_of.log_prob(actions[:, 0])
        drawn.append(actions)
        x = 0.9 * x + 0.1 * (torch.tensor(actions.tolist()) if early else actions)
        chosen.append(likely)
        rewards.append(x.detach().abs().sum(1))
    got = torch.stack(rewards)
    if normed:
        got = (got - got.mean()) / got.std()
    return -(torch.stack(chosen) * got).sum(0).mean(), drawn


def what_is_drawn_is_what_is_used() -> str:
    """The actions that a script acts upon are those in the gradient, whether a module draws them or the script does, and
    whether it acts upon them before the loss or not; or the step is left alone. The script itself draws what it would
    have drawn undisturbed, and goes on."""
    fails = ("aten.tanh_backward.default", 0), ("aten.tanh.default", 0), ("aten.tanh.default", 1)
    flags = (True, False)
    for draws, normed, early, (name, turn) in itertools.product(flags, flags, flags, fails):
        torch.manual_seed(0)
        policy, x = Policy(draws).double(), torch.randn(64, 6).double()
        torch.optim.SGD(policy.parameters(), lr=0.1)
        before = copy.deepcopy(policy)
        torch.manual_seed(1)
        undisturbed = played(before, x, normed, early)[1]
        torch.manual_seed(1)
        whole = Whole(name, 64)
        try:
            with whole:
                loss, actions = played(policy, x, normed, early, fails=(whole, turn))
                loss.backward()
        except torch.OutOfMemoryError:
            if draws:
                continue
            raise
        seen = [torch.tensor(a.tolist()) for a in actions]
        want = torch.autograd.grad(played(before, x, normed, early, seen)[0], [*before.parameters()])
        worst = max(float((p.grad - g).norm() / g.norm()) for p, g in zip(policy.parameters(), want))  # type: ignore[operator]
        # What a module drew before something failed, and nobody has read, may be drawn anew, as a dropout's mask is.
        used = early or not draws or (name, turn) == fails[1]
        if used and worst > 1e-9 or not draws and not all(a.equal(b) for a, b in zip(seen, undisturbed)):
            return f"{draws}, {normed}, {early}, {name} {turn}: {worst:.1g}, {seen}, undisturbed {undisturbed}"
    return ""


def no_actions_but_those_used() -> str:
    """What the script draws after a module has drawn is drawn in between when pieces are run again, so that the module's
    later pieces draw other actions than the script has acted upon: these pieces do not count."""
    torch.manual_seed(0)
    policy, x = Policy(draws=True).double(), torch.randn(64, 6).double()
    torch.optim.SGD(policy.parameters(), lr=0.1)
    before = copy.deepcopy(policy)
    with Whole("aten.tanh.default", 64):
        _, actions, chosen = policy(x)
        seen = torch.tensor(actions.tolist())
        rewards = seen[:, 0] * x[:, 0]
        (F.dropout(chosen, 1e-9) * rewards).mean().backward()  # it draws, and keeps everything
    want = torch.autograd.grad((before(x, seen)[2] * rewards).mean(), [*before.parameters()])
    worst = max(float((p.grad - g).norm() / g.norm()) for p, g in zip(policy.parameters(), want))  # type: ignore[operator]
    return "" if worst < 1e-6 else f"{worst:.1g}"


def a_function_that_returns_its_argument() -> str:
    """What a policy has returned is an argument that ``broadcast_tensors`` returns in ``log_prob``. The call that has
    made it is not forgotten while the tape of several turns is shortened."""
    torch.manual_seed(0)
    policy, x = Policy(False).double(), torch.randn(ROWS, 6).double()
    torch.optim.SGD(policy.parameters(), lr=0.1)

    def loss() -> Tensor:
        torch.manual_seed(1)
        state, chosen = x, list[Tensor]()
        for _ in range(4):
            policy_of = torch.distributions.Categorical(logits=policy(state, torch.zeros(ROWS, 1).long())[0])
            actions = policy_of.sample()
            state = 0.9 * state + 0.1 * torch.tensor(actions.tolist())[:, None]
            chosen.append(policy_of.log_prob(actions))
        return -(torch.stack(chosen) * state[:, 0]).mean()

    want = torch.autograd.grad(loss(), [*policy.parameters()])
    with Whole("aten.tanh_backward.default", ROWS):
        loss().backward()
    far = max(float((p.grad - g).norm() / g.norm()) for p, g in zip(policy.parameters(), want))  # type: ignore[operator]
    return f"off by {far:.1g}" if far > 1e-9 else ""


NOISES: dict[str, Callable[[Tensor], Tensor]] = {
    "multinomial": lambda likely: torch.multinomial(likely.detach(), 1)[:, 0],
    "rand_like": lambda likely: (likely.log() - (-torch.rand_like(likely).log()).log()).argmax(1),
    "randn_like": lambda likely: (likely + 0.1 * torch.randn_like(likely)).detach().sum(1).mul(8).long().clamp(0, 3),
    "exponential_": lambda likely: (likely / torch.empty_like(likely.detach()).exponential_()).argmax(1),
    "bernoulli": lambda likely: torch.bernoulli(likely)[:, 0].long(),
}
# Those that may be left alone, too.
NOISES_INSIDE: dict[str, Callable[[Tensor], Tensor]] = {
    "a part that is filled": lambda likely: (
        (likely + torch.zeros_like(likely.detach())[:, :2].uniform_().sum(1)[:, None]).mul(10).sum(1).long().clamp(0, 3)
    ),
    "gumbel_softmax": lambda likely: F.gumbel_softmax(likely.log(), hard=True).argmax(1),
    "dropout": lambda likely: F.dropout(likely, 0.5).argmax(1),
}


def what_a_script_draws_is_drawn_once() -> str:
    """What a script has drawn from a policy's results, and has read, is what pieces use: whether the forward pass fails
    or the backward pass, and whether it has read integers or other numbers."""
    wrong = []
    every = itertools.product({**NOISES, **NOISES_INSIDE}.items(), FAILS.items(), (False, True))
    for (name, chosen), (where, fails), precise in every:
        torch.manual_seed(0)
        policy, x = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 4)).double(), rows_of()
        torch.optim.SGD(policy.parameters(), lr=0.1)

        def loss(
            seen: list[Tensor],
            policy: nn.Module = policy,
            x: Tensor = x,
            chosen: Callable[[Tensor], Tensor] = chosen,
            precise: bool = precise,
            given: Any = None,
        ) -> Tensor:
            torch.manual_seed(1)
            terms = []
            for turn, state in enumerate((x, x + 1)):  # of one draw alone, pieces in order would draw the same numbers
                logits = policy(state)
                actions = given[turn] if given else chosen(logits.softmax(1))
                actions = actions.double() if precise else actions
                read = actions.clone() if precise else actions  # something else than the loss uses
                seen.append(torch.tensor(read.tolist()))
                terms.append((seen[-1] * F.cross_entropy(logits, actions.long(), reduction="none")).mean())
            return terms[0] + terms[1]

        seen: list[Tensor] = []
        try:
            with Whole(fails, ROWS):
                loss(seen).backward()
        except torch.OutOfMemoryError:
            if name in NOISES:
                wrong.append(f"{name}, {where}, {precise}: {_torch._recorder.report.told[-1]}")  # type: ignore[union-attr]
            continue
        got, undisturbed = [p.grad for p in policy.parameters()], list[Tensor]()
        policy.zero_grad()
        loss([], given=seen).backward()
        with torch.no_grad():
            loss(undisturbed)
        far = max(float((g - p.grad).norm() / p.grad.norm()) for g, p in zip(got, policy.parameters()))  # type: ignore[operator]
        if far > 1e-9 or name in NOISES and not all(map(torch.equal, seen, undisturbed)):
            wrong.append(f"{name}, {where}, {precise}: off by {far:.1g}")
    return "; ".join(wrong)


def a_part_that_is_filled_with_the_whole() -> str:
    """A view of a result without values has the random numbers with which the result is filled later."""

    def make() -> Made:
        net, x = layers(), rows_of()

        def step(_: list[float]) -> Tensor:
            out = net(x)
            noise = torch.zeros_like(out.detach())
            part = noise[:, :2]
            noise.uniform_()
            return (out[:, :2] + part).square().mean() + (out * noise).mean()

        return net, step

    return unharmed(make, FAILS["forward"])


def a_draw_that_is_straight_through() -> str:
    """A gradient flows beside what has been drawn. A training goes on exactly as undisturbed, later draws included."""

    def make() -> Made:
        both, x = nn.ModuleList([layers(), nn.Sequential(nn.Linear(5, 16), nn.GELU(), nn.Linear(16, 6))]), rows_of()

        def step(_: list[float]) -> Tensor:
            likely = both[0](x).sigmoid()
            return F.mse_loss(both[1](torch.bernoulli(likely) + likely - likely.detach()), x)

        return both, step

    return "; ".join(filter(None, (survived(make, fails, 6) for fails in FAILS.values())))


def numbers_that_are_read_for_a_log() -> str:
    """An accuracy that is read before backward keeps no model with a dropout from being run in pieces."""
    wrong = []
    for where, fails in FAILS.items():
        torch.manual_seed(0)
        net, x = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 5)), torch.randn(ROWS, 6)
        torch.optim.SGD(net.parameters(), lr=0.1)
        with Whole(fails, ROWS):
            out = net(x)
            right = (out.argmax(1) == 1).sum().item()
            F.cross_entropy(out, torch.full((ROWS,), 1)).backward()
        told = _torch._recorder.report.told[-1]  # type: ignore[union-attr]
        if told.get("way") != "pieces" or not 0 <= right <= ROWS:
            wrong.append(f"{where}: {told}")
    return "; ".join(wrong)


def random_numbers_in_a_part() -> str:
    """A result that shares its memory with what is filled with random numbers cannot be computed again."""
    net, x = layers(), torch.randn(ROWS, 6)
    torch.optim.SGD(net.parameters(), lr=0.1)
    wrong = []
    for name, fill in {
        "a part": lambda e: e[:, :2].uniform_(),
        "what has parts": lambda e: (e.view(-1), e.uniform_()),
        "the whole": lambda e: e.uniform_(),
    }.items():
        out = net(x)
        kept = fill(torch.zeros_like(out.detach()))
        refused = place_of(out).tape.why_not is not None  # type: ignore[union-attr]
        if refused != (name != "the whole") or kept is None:
            wrong.append(name)
        out.sum().backward()
    return ", ".join(wrong)


def calls_with_other_numbers_of_rows() -> str:
    """Two calls have different numbers of rows, and the second fails: the step goes on, whether the first call's loss has
    been computed by then or not. If the second's loss fails as well, the step goes on or ends in that failure."""
    xl, xu = rows_of(), torch.randn(2 * ROWS, 6).double()
    y, guessed = torch.arange(ROWS) % 5, torch.arange(2 * ROWS) % 5

    def early() -> Tensor:
        first = F.cross_entropy(net(xl), y)
        out = net(xu)
        return first + F.cross_entropy(out, guessed)

    def late() -> Tensor:
        first, out = net(xl), net(xu)
        return F.cross_entropy(first, y) + F.cross_entropy(out, guessed)

    wrong = []
    for loss, also in itertools.product((early, late), (True, False)):
        net = layers().double()  # of which nothing is known yet
        torch.optim.SGD(net.parameters(), lr=0.1)
        loss().backward()
        want = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        net.zero_grad()
        tail = Whole("aten._log_softmax.default", 2 * ROWS) if also else nullcontext()
        try:
            with Whole("aten.addmm.default", 2 * ROWS), tail:
                loss().backward()
        except torch.OutOfMemoryError as e:
            if not also:
                wrong.append(f"{loss.__name__}: {e}")
            continue
        except KeyError as e:
            wrong.append(f"{loss.__name__}, {also}: KeyError {e}")
            continue
        far = max(float((p.grad - g).abs().max()) for p, g in zip(net.parameters(), want))  # type: ignore[operator]
        if far > 1e-9:
            wrong.append(f"{loss.__name__}, {also}: off by {far:.1g}")
    return "; ".join(wrong)


def hooks_on_nodes() -> str:
    """A hook that the script registers on a node of the graph runs, or the failure is the script's. What PyTorch
    registers for a module's hook is registered anew. A hook of a parameter's node is run, unless it may have run before
    backward failed."""

    def halved(g: tuple[Tensor, ...], *_: object) -> tuple[Tensor, ...]:
        return tuple(t * 0.5 for t in g)

    def accumulates(p: Tensor) -> Any:
        return p.view_as(p).grad_fn.next_functions[0][0]  # type: ignore[union-attr]

    def training(hook: Callable[[Any, Any, Any], object]) -> Callable[[], Made]:
        def make() -> Made:
            both, x = nn.ModuleList([layers(), nn.ParameterList([torch.ones(())])]), rows_of()

            def step(_: list[float]) -> Tensor:
                net, (scale,) = both
                out = net(x)
                loss = (out * scale).square().mean()
                hook(out, loss, (net, scale))
                return loss

            return both, step

        return make

    hooks: dict[str, tuple[Callable, Callable]] = {
        "the loss's, before": (unharmed, lambda out, loss, net: loss.grad_fn.register_prehook(halved)),
        "the loss's, after": (unharmed, lambda o, loss, n: loss.grad_fn.register_hook(lambda g, _: halved(g))),
        "a result's": (unharmed, lambda out, loss, net: out.grad_fn.register_prehook(halved)),
        "further down": (unharmed, lambda o, loss, n: loss.grad_fn.next_functions[0][0].register_prehook(halved)),
        "none": (survived, lambda out, loss, net: None),
        "a weight's": (survived, lambda out, loss, net: accumulates(net[0][0].weight).register_hook(lambda *_: None)),
        "the script's": (survived, lambda out, loss, net: accumulates(net[1]).register_hook(lambda *_: None)),
    }
    every = [
        (how, unharmed if of == "backward" and how in ("a weight's", "the script's") else judge, training(hook), fails)
        for of, fails in FAILS.items()
        for how, (judge, hook) in hooks.items()
    ]
    wrong = [f"{how}: {said}" for how, judge, make, fails in every if (said := judge(make, fails, 3))]
    net = layers()
    torch.optim.SGD(net.parameters(), lr=0.1)
    net.register_full_backward_hook(lambda *_: None)
    loss = net(rows_of().float()).square().mean()
    with torch._C.DisableTorchFunctionSubclass():
        if hooks_nodes(place_of(loss).tape, loss):  # type: ignore[union-attr]
            wrong.append("a module's own is taken for the script's")
    return "; ".join(wrong)


class Acting(nn.Module):
    """Returns the mean of a policy, and what it has drawn around it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 4))

    def forward(self, x: Tensor, given: Any = None) -> tuple[Tensor, Tensor]:
        mean = self.body(x)
        return mean, (mean + torch.randn_like(mean)).detach() if given is None else given


def what_a_module_draws_and_the_script_reads() -> str:
    """The script reads a copy of what a module has drawn, or each number by itself, and its rewards depend on that: the
    loss has the same. Memory runs out in the first turn, in the second, or in backward."""
    wrong = []
    reads: dict[str, Callable[[Tensor, int], Any]] = {
        "all": lambda drawn, _: drawn.clone()[:, 0].tolist(),
        "one by one": lambda drawn, _: [drawn[i, 0].item() for i in range(len(drawn))],
        "of the first turn": lambda drawn, turn: drawn.clone()[:, 0].tolist() if turn == 0 else None,
    }
    every = itertools.product((("forward", 0), ("forward", 1), ("backward", 0)), reads.items())
    for (where, since), (how, read) in every:
        torch.manual_seed(0)
        policy, x = Acting().double(), rows_of()
        torch.optim.SGD(policy.parameters(), lr=0.1)
        whole = Whole(FAILS[where], ROWS)

        def loss(
            seen: list[Tensor],
            given: Any = None,
            policy: nn.Module = policy,
            x: Tensor = x,
            read: Callable[[Tensor, int], Any] = read,
            since: int = since,
            whole: Whole = whole,
        ) -> Tensor:
            terms = []
            for turn, state in enumerate((x, x + 1)):
                whole.rows = ROWS if turn >= since else -1
                mean, actions = policy(state, given[turn] if given and turn < len(given) else None)
                known = read(actions, turn)
                if known is None:  # then the loss has nothing that was drawn, either
                    terms.append(mean.square().mean())
                    continue
                seen.append(torch.tensor(known, dtype=torch.float64)[:, None])
                terms.append((seen[-1][:, 0] * (actions[:, :1] - mean[:, :1]).square()[:, 0]).mean())
            return terms[0] + terms[1]

        seen: list[Tensor] = []
        try:
            with whole:
                loss(seen).backward()
        except torch.OutOfMemoryError:
            continue
        got = [p.grad for p in policy.parameters()]
        policy.zero_grad()
        loss([], seen).backward()
        far = max(float((g - p.grad).norm() / p.grad.norm()) for g, p in zip(got, policy.parameters()))  # type: ignore[operator]
        if far > 1e-9:
            wrong.append(f"{where} {since}, {how}: off by {far:.1g}")
    return "; ".join(wrong)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Sequential(nn.Linear(6, 6), nn.GELU()), nn.Linear(6, 5)
        self.batchwise = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))


def in_between(both: Two, x: Tensor) -> Tensor:
    return related(both.two(both.one(x).flip(0) * torch.arange(ROWS)[:, None]))


def written_to_in_between(both: Two, x: Tensor) -> Tensor:
    middle = both.one(x)
    middle -= middle.mean(0)
    return related(both.two(middle))


def beside_one_that_needs_the_batch(both: Two, x: Tensor) -> Tensor:
    return related(both.two(both.one(x)) + both.batchwise(x))


def one_by_one() -> str:
    """Where a function that relates rows stands between two modules' calls, or one of them needs the whole batch, each
    call that can be is computed twice by itself."""
    wrong = []
    for loss in (in_between, written_to_in_between, beside_one_that_needs_the_batch):

        def make(loss: Callable[[Two, Tensor], Tensor] = loss) -> Made:
            both, x = Two(), rows_of()
            return both, lambda _: loss(both, x)

        for fails in FAILS.values() if loss is not beside_one_that_needs_the_batch else ("aten.gelu.default",):
            wrong.append(survived(make, fails, 5))
    return "; ".join(filter(None, wrong))


class Capturing(nn.Module):
    """Uses a number that the script has computed from the call's own argument."""

    number: Any = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) * Capturing.number


def what_is_behind_an_argument() -> str:
    """An argument may have a graph of its own. A call that uses something else of that graph is not repeated."""

    def made(captures: bool) -> Made:
        net, before, rows = Capturing(), nn.Linear(6, 6), rows_of()

        def step(_: list[float]) -> Tensor:
            x = rows @ before.weight
            Capturing.number = x.square().mean() if captures else 1.0
            return related(net(x))

        return nn.ModuleList([net, before]), step

    fails = "aten.gelu.default"
    return "; ".join(filter(None, (survived(lambda: made(False), fails), unharmed(lambda: made(True), fails))))


class Related(nn.Module):
    """Adds a small part of the next row to each."""

    def __init__(self) -> None:
        super().__init__()
        self.body = layers()

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(x)
        return out + 0.01 * out.roll(1, 0)


def rows_that_are_hardly_related() -> str:
    """In double precision, too, rows that a model relates to each other by a hundredth are noticed."""

    def make() -> Made:
        net, x = Related(), rows_of()
        return net, lambda _: F.cross_entropy(net(x), torch.arange(ROWS) % 5)

    return "; ".join(filter(None, (unharmed(make, fails) for fails in FAILS.values())))


def a_number_beside_a_view_of_it() -> str:
    """A number that a view shares has the value that was written to it, where a later call fails."""

    def make() -> Made:
        both, x = nn.ModuleList([layers(), nn.Sequential(nn.Linear(6, 5), nn.SiLU())]), rows_of()

        def step(said: list[float]) -> Tensor:
            total = F.cross_entropy(both[0](x), torch.arange(ROWS) % 5)
            total.view(1).mul_(2)
            loss = total * both[1](x).square().mean()
            said.append(total.item())
            return loss

        return both, step

    return survived(make, "aten.silu.default")


def nothing_is_computed_from_nothing() -> str:
    """Once a failure has been left to the script, a result whose values were released raises, and is never a tensor of
    NaN."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(ROWS, 6), torch.arange(ROWS) % 5
    F.cross_entropy(net(x), y).backward()
    optimizer.step()
    out = net(x)
    try:
        with Failing("_log_softmax.default", 3):
            loss = F.cross_entropy(out, y)
    except torch.OutOfMemoryError:
        try:
            loss = F.mse_loss(out, torch.zeros_like(out))
        except torch.OutOfMemoryError:
            return ""
    return "" if loss.isfinite() else f"{loss}"


def no_function_gets_a_result_without_values() -> str:
    """If a result has not become real after all, its function is not called."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
    optimizer, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.randn(ROWS, 6)
    related(net(x)).backward()
    optimizer.step()
    Deferred.make_real = lambda self, way: 0  # type: ignore[method-assign]
    with Whole("aten.addmm.default", ROWS):
        out = net(x)
        try:
            return f"{related(out)}"
        except torch.OutOfMemoryError:
            return ""


def weights_that_change_in_between() -> str:
    """A weight that is written to between the two passes is not used, as PyTorch itself refuses it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(ROWS, 6)
    F.cross_entropy(net(x), torch.arange(ROWS) % 5).backward()
    optimizer.step()
    with Whole("aten.addmm.default", ROWS):
        out = net(x)
        loss = F.cross_entropy(out @ out.T, torch.arange(ROWS))
    with torch.no_grad():
        net[2].weight.mul_(2)
    try:
        loss.backward()
    except RuntimeError:
        return ""
    return "computed with other weights"


def check_of(name: str, where: str) -> Callable[[], str]:
    def check() -> str:
        return exact(name, FAILS[where])

    check.__name__ = f"{name.replace(' ', '_')}_{where}"
    return check


CHECKS: list[Callable[[], Any]] = [
    *(check_of(name, where) for name in LOSSES for where in FAILS),
    *(structure_of(kind, where) for kind in (clip, tied, twice_the_model) for where in FAILS),
    the_same_masks,
    once_known,
    gradients_of_other_rows_are_refused,
    what_a_loss_was_given_has_changed,
    written_to_in_place,
    a_number_of_the_batch,
    a_learned_number,
    a_number_that_is_drawn,
    a_number_that_is_not_used,
    a_number_that_is_read,
    a_loss_beside_rows_that_are_read,
    something_that_is_changed_back,
    something_between_calls_that_is_changed_back,
    the_rest_of_the_step_goes_on,
    what_is_held_elsewhere,
    a_graph_that_has_been_released,
    after_a_call_that_succeeded,
    what_is_drawn_is_what_is_used,
    no_actions_but_those_used,
    a_function_that_returns_its_argument,
    what_a_script_draws_is_drawn_once,
    what_a_module_draws_and_the_script_reads,
    a_draw_that_is_straight_through,
    numbers_that_are_read_for_a_log,
    random_numbers_in_a_part,
    calls_with_other_numbers_of_rows,
    a_part_that_is_filled_with_the_whole,
    hooks_on_nodes,
    what_only_a_graph_has_saved_is_held_by_nobody,
    one_by_one,
    rows_that_are_hardly_related,
    a_number_beside_a_view_of_it,
    what_is_behind_an_argument,
    nothing_is_computed_from_nothing,
    no_function_gets_a_result_without_values,
    weights_that_change_in_between,
]

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(checked(CHECKS, 2))
