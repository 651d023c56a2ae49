"""Checks DistributedDataParallel with one rank, and DataParallel with one GPU: a module that fails is run in pieces, and the gradients are
reduced once.

    python alone.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import trial
from forked import status
from inject import Allocating, Fault, Injector, Whole
from loops_composed import mlp

trial.attach()
from headroom_train import _torch  # noqa: E402

ROWS = 7


class Training:
    def __init__(self, **options: Any) -> None:
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        torch.manual_seed(0)
        self.net = nn.parallel.DistributedDataParallel(mlp(10, 12, 5), **options)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.failed = False

    def step(self, at: int = -1, second: bool = False, accumulates: bool = True) -> None:
        """Makes a step of two micro-batches, of which the first is not reduced, or of one. Operation ``at`` of one of
        them never fits with all rows."""
        self.optimizer.zero_grad()
        for last in (False, True)[not accumulates :]:
            x, y = torch.randn(ROWS, 10), torch.randint(0, 5, (ROWS,))
            with Allocating(Fault("again", at, ROWS) if at >= 0 and last is second else None) as injector:
                injector.begin()
                if last:
                    F.cross_entropy(self.net(x), y).backward()
                else:
                    with self.net.no_sync():
                        F.cross_entropy(self.net(x), y).backward()
                injector.end()
            self.failed = self.failed or bool(injector.raised)
        self.optimizer.step()


def told() -> list[dict[str, Any]]:
    return _torch._recorder.report.told  # type: ignore[union-attr]


def every_operation() -> str:
    """Every second operation that allocates memory fails in turn, in the first step and in a later one."""
    survived = 0
    for options in ({}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}, {"static_graph": True}):
        accumulates = "static_graph" not in options  # whose first step cannot accumulate
        bare = Training(**options)
        for _ in range(3):
            bare.step(accumulates=accumulates)
        want = [p.detach().clone() for p in bare.net.parameters()]
        for first in (True, False):
            for second in (False, True) if accumulates else (True,):
                for at in range(0, 60, 2):
                    t = Training(**options)
                    told().clear()
                    try:
                        for i in range(3):
                            t.step(at if i == (0 if first else 2) else -1, second, accumulates)
                    except torch.OutOfMemoryError as e:
                        if "empty.memory_format" in str(e):  # DistributedDataParallel's own, outside the module
                            continue
                        return f"operation {at}: {e}, {told()[-1:]}"
                    if not t.failed:
                        break
                    if any(not torch.allclose(p, w, rtol=1e-5, atol=1e-7) for p, w in zip(t.net.parameters(), want)):
                        return f"operation {at}: other weights"
                    survived += bool(told())
    return "" if survived >= 60 else f"{survived} survived"


def an_evaluation_goes_on() -> str:
    t, x = Training(), torch.randn(ROWS, 10)
    t.step()
    with torch.no_grad():
        want = t.net.module.forward(x)
        with Injector(Fault("again", 1, ROWS)) as injector:
            injector.begin()
            got = t.net.eval()(x)
            injector.end()
    return "" if injector.raised and torch.allclose(want, got) else "not survived"


def data_parallel() -> str:
    """DataParallel with one GPU, or on the CPU, only calls the module inside, which is run in pieces; so is a model of
    which it is a part."""
    wraps: list[Callable[[nn.Module], nn.Module]] = [
        nn.DataParallel,
        lambda net: nn.Sequential(nn.DataParallel(net), nn.Identity()),
    ]
    for wrap in wraps:
        found = []
        for fails in (False, True):
            torch.manual_seed(0)
            net: Any = wrap(mlp(10, 12, 5))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(3):
                optimizer.zero_grad()
                x, y = torch.randn(ROWS, 10), torch.randint(0, 5, (ROWS,))
                with Whole("aten.addmm.default", ROWS) if fails else nullcontext():
                    F.cross_entropy(net(x), y).backward()
                optimizer.step()
            found.append([p.detach() for p in net.parameters()])
        if any(not torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(*found)):
            return "other weights"
    return ""


CHECKS = [every_operation, an_evaluation_goes_on, data_parallel]


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(status(CHECKS))
