"""Checks BatchNorm in pieces, which the user has allowed: what each piece computes, which running
statistics are left, and that nothing else is approximate.

    python approximate.py
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trial
from forked import status
from inject import Whole

trial.attach()
from headroom_train import _torch  # noqa: E402
from headroom_train.failure import APPROXIMATE as NOTE  # noqa: E402
from headroom_train.replay.pieces import pieces_of  # noqa: E402
from headroom_train.sandbox.norms import ALLOWANCE, HINT  # noqa: E402

ROWS = 7
FAILING = ("addmm", "_log_softmax", "nll_loss_backward")  # in the module, in the loss, in backward


def model(seed: int = 0, **options: Any) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5, **options), nn.ReLU(), nn.Linear(5, 4))


def batch(i: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(i)
    return torch.randn(ROWS, 6, generator=source), torch.randint(0, 4, (ROWS,), generator=source)


def entropy(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), y)


def told() -> dict:
    return _torch._recorder.report.told[-1]  # type: ignore[union-attr]


def step(net: nn.Module, optimizer: torch.optim.Optimizer, i: int, at: str, loss: Callable = entropy) -> bool:
    """Runs a step in which the operation ``at`` fails for whole batches. Returns whether the failure was survived."""
    x, y = batch(i)
    optimizer.zero_grad()
    try:
        with Whole(f"aten.{at}.default", ROWS):
            loss(net, x, y).backward()
    except torch.OutOfMemoryError:
        return False
    optimizer.step()
    return True


def by_hand(
    net: nn.Module,
    optimizer: torch.optim.Optimizer,
    i: int,
    pieces: int,
    whole: bool,
    loss: Callable = entropy,
    calls: int = 1,
) -> None:
    """Runs the same step as a script that accumulates gradients over the given number of pieces. Afterwards the
    running statistics are those that the whole batch leaves if ``whole`` is true; otherwise they are the mean
    of those that the single pieces leave. ``calls`` is the number of times that the loss calls the model."""
    x, y = batch(i)
    optimizer.zero_grad()
    buffers = dict(net.named_buffers())
    before = {name: b.clone() for name, b in buffers.items()}
    total = {name: torch.zeros_like(b, dtype=torch.float64) for name, b in buffers.items()}
    for rows in [None] if whole else pieces_of(ROWS, -(-ROWS // pieces)):
        part = slice(None) if rows is None else slice(rows.start, rows.stop)
        with torch.no_grad():
            for _ in range(calls):
                net(x[part])
            for name, b in buffers.items():
                total[name] += b.double() * (len(x[part]) / ROWS)
                b.copy_(before[name])
    for rows in pieces_of(ROWS, -(-ROWS // pieces)):
        part = slice(rows.start, rows.stop)
        share = float((y[part] >= 0).sum() / (y >= 0).sum())
        if share:
            (loss(net, x[part], y[part]) * share).backward()
    optimizer.step()
    for name, b in buffers.items():
        b.copy_(total[name])


def compared(net: nn.Module, other: nn.Module) -> str:
    for (name, a), b in zip(net.state_dict().items(), other.state_dict().values()):
        if not torch.allclose(a.double(), b.double(), rtol=1e-5, atol=1e-6):
            return f"{name}: {a} in place of {b}"
    return ""


def trained(at: str, loss: Callable = entropy, calls: int = 1, **options: Any) -> str:
    os.environ["HEADROOM_ALLOW"] = f"other,{ALLOWANCE}"
    net, other = model(**options), model(**options)
    optimizer, its = (torch.optim.SGD(n.parameters(), lr=0.1, momentum=0.9) for n in (net, other))
    for i in range(4):
        if not step(net, optimizer, i, at, loss):
            return f"{at}, step {i}: {told()['why']}"
        rows, pieces = _torch._recorder.sizes.ran()  # type: ignore[union-attr]
        by_hand(other, its, i, pieces, whole=i == 0 and at != "addmm", loss=loss, calls=calls)
        wrong = compared(net, other)
        if wrong or rows != ROWS or pieces < 2:
            return f"{at}, step {i}, {rows} rows in {pieces} pieces: {wrong}"
    survived = [s for s in _torch._recorder.report.told if "how" in s]  # type: ignore[union-attr]
    # later steps go in pieces straight away
    return "" if len(survived) == 1 and survived[0]["why"] == NOTE else f"{at}: {survived}"


def as_by_hand() -> str:
    """Weights are those of a script that accumulates gradients. If the script's own call was
    completed, the statistics that it left stay. Otherwise the statistics are the mean of those that
    each piece leaves, and the call counts once."""
    for at in FAILING:
        for options in ({}, {"momentum": None}, {"track_running_stats": False}):
            _torch._recorder.report.told.clear()  # type: ignore[union-attr]
            wrong = trained(at, **options)
            if wrong:
                return f"{options}, {wrong}"
    return ""


def ignored(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x), torch.where(torch.arange(len(y)) < 2, -100, y) if len(y) == ROWS else y)


def rows_without_weight() -> str:
    """Rows whose labels are ignored are part of the statistics, even if no other row is in their piece."""
    os.environ["HEADROOM_ALLOW"] = ALLOWANCE
    net = model()
    pieces = pieces_of(ROWS, 3)
    with torch.no_grad():
        first = net[0](batch(0)[0])
        want = sum((0.1 * first[p.start : p.stop].mean(0) * p.count / ROWS for p in pieces), torch.zeros(5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    _torch._recorder.sizes._fits = 3 * 6  # type: ignore[union-attr]  # three rows
    survived = step(net, optimizer, 0, "addmm", ignored)
    found = net[1].running_mean
    if not survived or _torch._recorder.sizes.ran()[1] != len(pieces) or pieces[0].count != 2:  # type: ignore[union-attr]
        return f"{told()}"
    return "" if torch.allclose(found, want, atol=1e-6) else f"{found} in place of {want}"


def twice(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(net(x) + net(x), y)


def two_calls() -> str:
    """The statistics of a layer that is called twice in a step are updated twice."""
    return trained("addmm", twice, calls=2)


def half_of_two_calls() -> str:
    """If only the second of two calls fails, it is unclear what the layer's statistics should be,
    so the step is refused."""
    os.environ["HEADROOM_ALLOW"] = ALLOWANCE
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = batch(0)
    first = net(x)
    before = {name: b.clone() for name, b in net.state_dict().items()}
    try:
        with Whole("aten.addmm.default", ROWS):
            F.cross_entropy(first + net(x), y).backward()
    except torch.OutOfMemoryError:
        unchanged = all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values()))
        return (
            ""
            if "both before the failure and after it" in told()["why"] and unchanged and optimizer.state == {}
            else f"{told()}, unchanged: {unchanged}"
        )
    return "survived"


def refused() -> str:
    """A refused step changes neither weights nor statistics, whether or not the user has allowed
    BatchNorm in pieces. The reason for the refusal mentions this permission only where it would
    have helped."""

    def spread_out(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return net(x).std()

    cases: Sequence[tuple[str, Callable, dict, str, bool]] = (
        ("", entropy, {}, "BatchNorm1d computes statistics over the batch", True),
        ("", entropy, {"track_running_stats": False}, "BatchNorm1d computes statistics over the batch", True),
        (ALLOWANCE, spread_out, {}, "the loss of a batch is not a weighted sum", False),
    )
    for allow, loss, options, why, hint in cases:
        os.environ["HEADROOM_ALLOW"] = allow
        for at in FAILING if loss is entropy else ("addmm",):
            net = model(**options)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            before = {name: b.clone() for name, b in net.state_dict().items()}
            if step(net, optimizer, 0, at, loss):
                return f"{at}, {allow}, {options}: survived"
            found = told()["why"]
            if not found.startswith(why) or hint != found.endswith(HINT):
                return f"{at}, {allow}, {options}: {found}"
            if at == "addmm" and not all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values())):
                return f"{at}, {allow}, {options}: something has changed"
    return ""


class Rarely(Whole):
    """Like :class:`Whole`, but the operation fails only once."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) if self.raised else super().__torch_dispatch__(func, types, args, kwargs)


def exact_first() -> str:
    """If the whole batch fits on a second try, nothing is approximate."""
    os.environ["HEADROOM_ALLOW"] = ALLOWANCE
    for at in FAILING:
        net, other = model(), model()
        x, y = batch(0)
        torch.optim.SGD(net.parameters(), lr=0.1)
        with Rarely(f"aten.{at}.default", ROWS) as fault:
            entropy(net, x, y).backward()
        entropy(other, x, y).backward()
        same = all(
            torch.allclose(a.grad, b.grad, rtol=1e-5, atol=1e-7) for a, b in zip(net.parameters(), other.parameters())
        )  # type: ignore[arg-type]
        if not fault.raised or not same or compared(net, other) or told()["why"] == NOTE:
            return f"{at}: {fault.raised} failures, {told()}"
    return ""


def nothing_is_kept() -> str:
    """If a call is refused and then succeeds when repeated, nothing of the step is kept alive, even
    without a search for reference cycles."""
    os.environ["HEADROOM_ALLOW"] = ""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = batch(0)
    out = net(x)
    with Rarely("aten._log_softmax.default", ROWS) as fault:
        loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    gc.collect()
    gc.disable()
    out = net(x)
    fault.raised = 0
    with fault:
        loss = F.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
    left = weakref.ref(out)
    del out, loss
    gc.enable()
    return "" if left() is None and fault.raised else f"{left()}"


def asked_for_values() -> str:
    """Reading a step's outputs, for example for an accuracy, leaves the statistics as they are."""

    def with_accuracy(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        out = net(x)
        if len(x) == ROWS:
            (out.argmax(1) == y).float().mean().item()
        loss = F.cross_entropy(out, y)
        if len(x) == ROWS:
            out.detach().sum().item()
        return loss

    return trained("addmm", with_accuracy)


def too_small_pieces() -> str:
    """If no piece fits, or only the first one does, the statistics stay as they were before the
    step."""
    os.environ["HEADROOM_ALLOW"] = ALLOWANCE
    for fits in (0, 1):
        _torch._recorder.sizes._fits = None  # type: ignore[union-attr]
        net = model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        left = fits

        def limited(given: Tensor) -> Tensor:
            nonlocal left
            if torch.is_grad_enabled() and net[1].training:  # not in a trial
                if len(given) == ROWS or not left:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (injected)")
                left -= 1
            return F.linear(given, net[3].weight, net[3].bias)

        net[3].forward = limited  # type: ignore[method-assign]
        before = {name: b.clone() for name, b in net.state_dict().items()}
        if step(net, optimizer, 0, "none"):
            return "survived"
        if left or told()["why"] != "BatchNorm cannot compute statistics over a piece of one row":
            return f"{told()}, {left} left"
        if not all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values())):
            return "something has changed"
    return ""


CHECKS = [
    as_by_hand,
    rows_without_weight,
    two_calls,
    half_of_two_calls,
    refused,
    exact_first,
    nothing_is_kept,
    asked_for_values,
    too_small_pieces,
]


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(status(CHECKS))
