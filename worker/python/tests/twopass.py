"""Checks steps whose results are computed in pieces, twice, because nothing is known about the loss.

python twopass.py
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
from forked import checked
from inject import Whole

trial.attach()

from headroom_train import _torch  # noqa: E402

ROWS = 12
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


def trained(loss: Callable[[Tensor, Tensor], Tensor], fails: bool) -> tuple[list[Tensor], list[float]]:
    """Gradients of the last of some steps, and the losses."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y, said = torch.randn(ROWS, 6), torch.arange(ROWS) % 5, []
    for i in range(4):
        optimizer.zero_grad()
        with Whole("aten.addmm.default", ROWS) if fails and i == 2 else nullcontext():
            value = loss(net(x), y)
            value.backward()
        said.append(value.item())
        grads = [p.grad.clone() for p in net.parameters()]  # type: ignore[union-attr]
        optimizer.step()
    return grads, said


def exact(name: str) -> str:
    want, losses = trained(LOSSES[name], False)
    told = _torch._recorder.report.told  # type: ignore[union-attr]
    before = len(told)
    try:
        got, values = trained(LOSSES[name], True)
    except torch.OutOfMemoryError:
        return f"{_torch._recorder.report.told[before:]}"  # type: ignore[union-attr]
    how = [t.get("how", t.get("why")) for t in _torch._recorder.report.told[before:]]  # type: ignore[union-attr]
    most = max(float(g.abs().max()) for g in want)
    off = max(float((a - b).abs().max()) for a, b in zip(want, got)) / most
    apart = max(abs(a - b) / max(abs(a), 1e-6) for a, b in zip(losses, values))
    if not any("each computed twice" in str(h) for h in how) and name not in IN_PIECES:
        return f"{how}"
    return "" if off <= 1e-5 and apart <= 1e-5 else f"gradients {off:.1g}, losses {apart:.1g}"


def check_of(name: str) -> Callable[[], str]:
    def check() -> str:
        return exact(name)

    check.__name__ = name.replace(" ", "_")
    return check


CHECKS: list[Callable[[], Any]] = [check_of(name) for name in LOSSES]

if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(checked(CHECKS, 2))
