"""Checks scripts that have no optimizer, and change their weights by themselves.

python updates.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trial
from compare import close
from forked import status
from inject import Whole

trial.attach()
from headroom_train import _torch  # noqa: E402
from headroom_train.tape.recorded_module import record_of  # noqa: E402
from headroom_train.tape.tape import Recorded  # noqa: E402

ROWS = 12
FAILS = ("aten.addmm.default", "aten.gelu_backward.default", "aten._log_softmax.default")


def through_data(net: nn.Module) -> None:
    for p in net.parameters():
        p.data.add_(p.grad, alpha=-0.5)  # type: ignore[arg-type]


def under_no_grad(net: nn.Module) -> None:
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.5 * p.grad  # type: ignore[operator]


def trained(update: Callable[[nn.Module], None], fails: str) -> tuple[list[Tensor], list[float]]:
    """The weights after some steps, in which an operation may fail on the whole batch, and what the script prints, some
    of it after the weights have changed."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 5))
    x, y, said = torch.randn(ROWS, 6), torch.arange(ROWS) % 5, list[float]()
    for _ in range(5):
        net.zero_grad()
        with Whole(fails, ROWS) if fails else nullcontext():
            out = net(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
        update(net)
        said += [loss.item(), float((out.argmax(1) == y).float().mean()), float(out.detach().sum())]
    return [p.detach() for p in net.parameters()], said


def told() -> list[dict[str, Any]]:
    return _torch._recorder.report.told  # type: ignore[union-attr]


def exact(update: Callable[[nn.Module], None]) -> str:
    weights, said = trained(update, "")
    for fails in FAILS:
        before = len(told())
        got, values = trained(update, fails)
        off = max(float((a - b).abs().max()) for a, b in zip(weights, got))
        apart = max(abs(a - b) for a, b in zip(said, values))
        if off > 1e-5 or apart > 1e-5 or {t.get("way") for t in told()[before:]} != {"pieces"}:
            return f"{fails}: weights {off:.1g}, printed {apart:.1g}, {told()[before:]}"
    return ""


def weights_change_through_data() -> str:
    return exact(through_data)


def weights_change_under_no_grad() -> str:
    return exact(under_no_grad)


def steps_are_counted() -> str:
    steps = lambda: _torch._recorder.report.steps  # type: ignore[union-attr]  # noqa: E731
    net, x = nn.Linear(6, 5), torch.randn(ROWS, 6)
    for _ in range(3):
        net.zero_grad()
        for part in x.chunk(2):  # accumulated gradients are one step
            net(part).sum().backward()
        under_no_grad(net)
    net(x)
    return "" if steps() == 3 else f"{steps()} steps"


def results_beside_the_loss_have_the_old_weights() -> str:
    """The script reads a result that is in no loss once the weights have changed."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5)), torch.randn(ROWS, 6)
    want = net(x.flip(1)).detach().clone()
    with Whole("aten.gelu.default", ROWS):
        out, beside = net(x), net(x.flip(1))
        out.square().mean().backward()
        through_data(net)
        try:
            return "" if close(beside.detach() + 0, want) else "other results"
        except torch.OutOfMemoryError:
            return f"{told()}"


def old_results_of_new_weights_are_refused() -> str:
    """A result that no backward pass has kept is not computed with other weights, although no version has changed."""
    net, x = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5)), torch.randn(ROWS, 6)
    with Whole("aten.gelu.default", ROWS):
        out = net(x)
        for p in net.parameters():
            p.data.add_(0.1)
        try:
            return f"{out.detach().sum()} with new weights"
        except torch.OutOfMemoryError:
            return "" if "parameters have been changed" in told()[-1]["why"] else f"{told()}"


def once_there_is_an_optimizer_it_says_what_is_trained() -> str:
    """A network that is called before the optimizer of another one is made is taken to be trained only until then."""
    net, teacher, x = nn.Linear(6, 5), nn.Linear(6, 5), torch.randn(ROWS, 6)
    before = type(teacher(x)) is Recorded and type(net(x)) is Recorded
    torch.optim.SGD(net.parameters(), lr=0.1)
    after = type(net(x)) is Recorded and type(teacher(x)) is Tensor and not record_of(teacher).trained
    return "" if before and after else f"{before} before, {after} after"


def what_is_not_trained_is_left_alone() -> str:
    """Without an optimizer: calls in evaluation mode, without gradients, and with frozen parameters."""
    net, frozen, x = nn.Linear(6, 5).eval(), nn.Linear(6, 5).requires_grad_(False), torch.randn(ROWS, 6)
    found = [type(net(x)) is Tensor, type(frozen(x)) is Tensor]
    with torch.no_grad():
        net.train()(x)
    return "" if all(found) and record_of(net) is record_of(frozen) is None else f"{found}"


def the_search_ends_if_nothing_is_trained() -> str:
    net, x = nn.Linear(6, 5).eval(), torch.randn(ROWS, 6)
    for _ in range(_torch.MANY):
        net(x)
    return "" if type(vars(nn.Module)["_compiled_call_impl"]) is not _torch.Looking else "modules are still looked for"


CHECKS = [
    weights_change_through_data, weights_change_under_no_grad, steps_are_counted,
    results_beside_the_loss_have_the_old_weights, old_results_of_new_weights_are_refused,
    once_there_is_an_optimizer_it_says_what_is_trained, what_is_not_trained_is_left_alone,
    the_search_ends_if_nothing_is_trained,
]  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(status(CHECKS))
