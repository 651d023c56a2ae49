"""Checks DistributedDataParallel with one rank, and DataParallel with one GPU: a module that fails is run in pieces, and the gradients are
reduced once.

    python alone.py
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import trial
from compare import close
from forked import status
from inject import Allocating, Fault, Injector, Whole
from loops_composed import mlp

trial.attach()
from headroom_train import _torch, world  # noqa: E402
from headroom_train.ranks import ddp  # noqa: E402

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
                for at in range(1, 60, 5 if not options else 9):
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
                    if any(not close(p, w) for p, w in zip(t.net.parameters(), want)):
                        return f"operation {at}: other weights"
                    survived += bool(told())
    return "" if survived >= 20 else f"{survived} survived"


def an_evaluation_goes_on() -> str:
    t, x = Training(), torch.randn(ROWS, 10)
    t.step()
    with torch.no_grad():
        want = t.net.module.forward(x)
        with Injector(Fault("again", 1, ROWS)) as injector:
            injector.begin()
            got = t.net.eval()(x)
            injector.end()
    return "" if injector.raised and close(want, got) else "not survived"


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
        if any(not close(a, b) for a, b in zip(*found)):
            return "other weights"
    return ""


class Failing(Training):
    """A training whose first operation of a kind never fits with all rows in one of its steps."""

    def run(self, name: str, step: int = 0, steps: int = 3) -> str:
        """Returns why the failure was left to the script; empty if all steps were made."""
        told().clear()
        try:
            for i in range(steps):
                self.optimizer.zero_grad(set_to_none=self.set_to_none)
                x, y = torch.randn(ROWS, 10), torch.randint(0, 5, (ROWS,))
                with Whole(name, ROWS) if i == step else nullcontext():
                    F.cross_entropy(self.net(x), y).backward()
                self.optimizer.step()
        except torch.OutOfMemoryError:
            return str(told()[-1]["why"])
        return ""

    set_to_none = True


def buckets_are_the_same() -> str:
    """The order in which gradients are handed back decides once and for all which bucket they are in."""
    found = []
    for name in ("", "aten.tanh.default", "aten._log_softmax.default", "aten.tanh_backward.default"):
        t = Failing(bucket_cap_mb=0.0002)
        if why := t.run(name):
            return why
        data = t.net._get_ddp_logging_data()
        found.append((data["rebuilt_bucket_sizes"], data["prev_iteration_grad_ready_order_indices"]))
    return "" if len(set(found)) == 1 else f"{found}"


def gradients_that_share_a_bucket() -> str:
    """They have one version: only the reducer knows which of them are complete."""
    found = []
    for step in (-1, 2):
        t = Failing(gradient_as_bucket_view=True)
        t.set_to_none = False
        if why := t.run("aten.tanh_backward.default", step, steps=4):
            return why
        found.append([p.detach().clone() for p in t.net.parameters()])
    return "" if all(close(a, b) for a, b in zip(*found)) else "other weights"


def nobody_waits_too_long() -> str:
    """Pieces end once the other ranks might give up."""
    import time

    limit, clock = ddp._limit, time.monotonic
    try:
        ddp._limit = lambda _: 600.0
        if why := Failing().run("aten.tanh.default"):
            return f"in time: {why}"
        calls = iter(range(10**6))
        ddp.time.monotonic = lambda: clock() + 1000.0 * next(calls)
        why = Failing().run("aten.tanh.default")
    finally:
        ddp._limit, ddp.time.monotonic = limit, clock
    return "" if "would not wait any longer than 600 s" in why else f"too late: {why}"


def what_has_a_limit_is_known() -> str:
    from datetime import timedelta

    class Group:
        def size(self) -> int:
            return 2

        def __getattr__(self, name: str) -> Any:
            return getattr(dist.group.WORLD, name)

    t = Training()
    t.net.process_group = Group()
    want = dist.group.WORLD._get_backend(torch.device("cpu")).options._timeout  # type: ignore[union-attr]
    return "" if want > timedelta(0) and ddp._limit(t.net) == want.total_seconds() else f"{ddp._limit(t.net)}, {want}"


def nothing_is_completed_that_has_ended() -> str:
    """If DistributedDataParallel itself fails after the last gradient, a replay would leave gradients that are not
    averaged."""
    for options in ({}, {"find_unused_parameters": True}):
        t = Training(**options)
        told().clear()
        loss = F.cross_entropy(t.net(torch.randn(ROWS, 10)), torch.randint(0, 5, (ROWS,)))
        try:
            with _EndsBadly():
                loss.backward()
            return "survived"
        except torch.OutOfMemoryError:
            if "had reduced the gradients" not in (why := told()[-1]["why"]):
                return why
    return ""


class _EndsBadly(TorchDispatchMode):
    """Makes what ends a backward pass fail, once the reducer has ended the reduction."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "tanh_backward" in str(func):
            torch.autograd.Variable._execution_engine.queue_callback(self._late)
        return func(*args, **(kwargs or {}))

    def _late(self) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(self._later)

    def _later(self) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def a_parameter_that_is_not_used() -> str:
    """DistributedDataParallel would wait for its gradient; with one from before, its average would be another."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.other = nn.Linear(10, 5), nn.Linear(10, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.body(x))

    for options, kept, want in (
        ({}, False, "a parameter has no gradient, for which"),
        ({"find_unused_parameters": True}, False, ""),
        ({"find_unused_parameters": True}, True, "has a gradient from before"),
    ):
        t = Failing(**options)
        t.net = nn.parallel.DistributedDataParallel(Heads(), **options)
        t.optimizer = torch.optim.SGD(t.net.parameters(), lr=0.1)
        if kept:
            t.set_to_none = False
            t.optimizer.zero_grad = lambda **_: None  # type: ignore[method-assign]
            for p in t.net.module.other.parameters():
                p.grad = torch.ones_like(p)
        why = t.run("aten.tanh.default", steps=1)
        if want not in why or bool(why) != bool(want):
            return f"{options}, {kept}: {why}"
    return ""


def hooks_see_whole_gradients() -> str:
    """A hook may have taken away a gradient that the reducer has not been told of."""
    t = Failing()
    t.net.module[2].weight.register_post_accumulate_grad_hook(lambda p: None)
    why = t.run("aten.tanh_backward.default")
    return "" if "a hook on a parameter's gradient had already run" in why else why or "survived"


def adam_is_the_same_on_all_ranks() -> str:
    """A step tensor by tensor rounds otherwise: of several ranks, none makes it."""
    from headroom_train.hooks import crowded

    param = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.Adam([param], foreach=True)
    fits, several, found = crowded.fits, crowded.several, []
    try:
        crowded.fits = lambda *_: False
        for many in (False, True):
            crowded.several = lambda many=many: many
            with crowded.one_by_one(optimizer):
                found.append(optimizer.param_groups[0]["foreach"])
    finally:
        crowded.fits, crowded.several = fits, several
    return "" if found == [False, True] else f"{found}"


def a_step_that_has_communicated_is_not_made_again() -> str:
    class Summing(torch.optim.SGD):
        calls = 0

        def step(self, closure: Any = None) -> Any:
            Summing.calls += 1
            dist.all_reduce(torch.ones(1))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    t = Training()
    t.optimizer = Summing(t.net.parameters(), lr=0.1)
    told().clear()
    world.several = lambda: True
    try:
        t.step()
    except torch.OutOfMemoryError:
        why = told()[-1]["why"]
        return "" if Summing.calls == 1 and "communicate" in why else f"{Summing.calls} calls, {why}"
    return "survived"


def communication_hooks_are_called_once_more() -> str:
    """But not one that has written to its bucket, has changed what it keeps, or keeps what nobody can look into."""
    kept: Any = {"calls": 0, "lost": torch.ones(2)}

    class Counter:
        def __init__(self) -> None:
            self.calls, self.inner = 0, [torch.ones(2)]

    def counts(state: Any) -> None:
        state["calls"] += 1

    def keeps(state: Any) -> None:
        state["lost"] = torch.ones(2)

    def frees(state: Any) -> None:
        address, others = id(state.pop("lost")), []
        while "lost" not in state and len(others) < 1000:  # at the address of the other
            others.append(torch.ones(2))
            if id(others[-1]) == address:
                state["lost"] = others[-1]

    def writes(state: Any) -> None:
        state["lost"].add_(1.0)

    for state, changes, survives in (
        (None, None, True),
        (None, lambda _: counts(kept), False),  # reached through closures
        (None, _counts_in_a_global, False),
        (kept, None, True),
        (kept, counts, False),
        (kept, keeps, False),
        (kept, frees, False),
        (kept, writes, False),
        (Counter(), None, True),
        (Counter(), lambda state: state.inner.append(1), False),
        (random.Random(1), None, False),
        (torch.Generator(), None, False),
        ({"draws": torch.Generator()}, None, False),
        (nn.Linear(2, 2), None, False),
        (None, "bucket", False),
    ):

        def hook(state, bucket, changes=changes):
            if changes == "bucket":
                bucket.buffer().mul_(1.0)
            elif changes is not None:
                changes(state)
            _fail_once()
            done: Any = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        t = Training()
        t.net.register_comm_hook(state, hook)
        if t.net._comm_hooks[0][0] is not hook:
            return "another hook is registered"
        _failing.clear()
        try:
            F.cross_entropy(t.net(torch.randn(ROWS, 10)), torch.randint(0, 5, (ROWS,))).backward()
            survived = True
        except torch.OutOfMemoryError:
            survived = False
        if survived != survives:
            return f"{state}, {changes}: {survived}"
    return ""


_COUNT = {"calls": 0}
_failing: list[int] = []


def _counts_in_a_global(_: Any) -> None:
    _COUNT["calls"] += 1


def _fail_once() -> None:
    """Fails at its first call. In another module it would be a function of C: nobody looks at what it keeps."""
    _failing.append(1)
    if len(_failing) == 1:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


_fail_once.__module__ = "torch"


def what_precedes_the_module_is_called_once_more() -> str:
    """Copying buffers and inputs, and telling a join: unless it has communicated."""
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import distributed

    t = Training()
    t.net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(10, 5), nn.BatchNorm1d(5)))
    with Join([t.net]):
        for name, call in (
            ("aten.ones.default", lambda: Join.notify_join_context(t.net)),
            ("aten.ones.default", lambda: t.net._check_global_requires_backward_grad_sync(is_joined_rank=False)),
            ("aten.cat.default", lambda: t.net._default_broadcast_coalesced()),
            (
                "aten._to_copy.default",
                lambda: distributed._to_kwargs((torch.ones(2),), {}, torch.device("meta"), False),
            ),
        ):
            for spoken in (False, True):
                with _Once(name, (lambda: dist.all_reduce(torch.zeros(1))) if spoken else None) as once:
                    world.several = lambda: True
                    try:
                        call()
                        survived = True
                    except torch.OutOfMemoryError:
                        survived = False
                if not once.failed or survived is spoken:
                    return f"{name}, {spoken}: {once.failed}, {survived}"
    return ""


class _Once(TorchDispatchMode):
    """Makes the first operation of a kind fail, after ``before``."""

    def __init__(self, name: str, before: Callable[[], Any] | None) -> None:
        super().__init__()
        self.name, self.before, self.failed = name, before, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == self.name and not self.failed:
            self.failed = True
            if self.before is not None:
                self.before()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return func(*args, **(kwargs or {}))


def a_group_that_does_not_count() -> str:
    """It cannot be told whether a call has communicated: none may be made again."""

    class Group:
        _device_types = (torch.device("cpu"),)

        def _get_backend(self, _: Any) -> Any:
            raise RuntimeError("does not yet support sequence numbers")

    t = Training()
    first, world.several = world.talked(), lambda: True
    counted = world.talked()
    dist.all_reduce(torch.ones(1))
    if first != 0 or not 0 <= counted < world.talked():
        return f"{first}, {counted}, {world.talked()}"
    dist.distributed_c10d._world.pg_map[Group()] = ("x", None)
    a, b = world.talked(), world.talked()
    return "" if a != b and max(a, b) < 0 and "cannot be told" in str(ddp.why_not(t.net)) else f"{a}, {b}"


CHECKS = [
    every_operation,
    an_evaluation_goes_on,
    data_parallel,
    buckets_are_the_same,
    gradients_that_share_a_bucket,
    nobody_waits_too_long,
    what_has_a_limit_is_known,
    nothing_is_completed_that_has_ended,
    a_parameter_that_is_not_used,
    hooks_see_whole_gradients,
    adam_is_the_same_on_all_ranks,
    a_step_that_has_communicated_is_not_made_again,
    communication_hooks_are_called_once_more,
    what_precedes_the_module_is_called_once_more,
    a_group_that_does_not_count,
]


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(status(CHECKS))
