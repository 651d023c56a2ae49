"""Makes operations of a training step fail where PyTorch dispatches them, as an allocator
that has no memory left would: with a real torch.OutOfMemoryError, before the operation
has changed anything.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Fault:
    """Which operations of a step fail. `mode` is one of these:

    once: operation number `at` fails, once.

    again: operation number `at` fails. If the first dimension of one of its arguments is the batch,
    the operation then fails whenever its arguments have the same shapes, until the end of the step.
    So the whole batch never fits there, but pieces do. The operation does not fail in a call that
    headroom repeats for comparison, since such a call saves nothing for backward.

    limit: every operation that allocates more than `elements` elements fails until the end of the
    step.
    """

    mode: str = "again"
    at: int = 0
    rows: int = 7
    elements: int = 0
    # number of operations from the first failure to a second one, which happens once; no second one if negative
    second: int = -1


@dataclass(frozen=True)
class Operation:
    name: str
    phase: str  # before, module, tail, own, backward, between, optimizer
    where: str  # file:line of the innermost frame outside PyTorch
    elements: int  # of the largest result


Sizes = tuple[tuple[int, ...], ...]


def tensors(args: Any, kwargs: Any) -> list[Tensor]:
    return [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]


def sizes_of(args: Any, kwargs: Any) -> Sizes:
    return tuple(tuple(t.shape) for t in tensors(args, kwargs))


def of_batch(sizes: Sizes, rows: int) -> bool:
    return any(s and s[0] and s[0] % rows == 0 for s in sizes)


def imagined(args: Any, kwargs: Any) -> bool:
    """Whether only shapes are computed, which takes no memory and so cannot fail."""
    return (
        any(isinstance(t, FakeTensor) or t.is_meta for t in tensors(args, kwargs))
        or str(kwargs.get("device")) == "meta"
    )


class Injector(TorchDispatchMode):
    """Counts the operations dispatched between begin and end, and makes those that the Fault names
    fail."""

    def __init__(self, fault: Fault | None = None, phases: Phases | None = None) -> None:
        super().__init__()
        self.fault, self.phases = fault, phases
        self.active = self.quiet = False
        self.count, self.first_at = 0, -1
        self.raised: list[torch.OutOfMemoryError] = []
        self.names: list[str] = []
        self.again: tuple[str, Sizes] | None = None

    def begin(self) -> None:
        self.active, self.count, self.first_at, self.again = True, 0, -1, None
        self.names = []

    def end(self) -> None:
        self.active = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A context for the test's own operations, which are not counted."""
        before, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = before

    def fail(self, name: str) -> None:
        if self.first_at < 0:
            self.first_at = self.count
        error = torch.OutOfMemoryError(
            f"CUDA out of memory. Tried to allocate 2.00 GiB. (injected: {len(self.raised)} at {name})"
        )
        self.raised.append(error)
        raise error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.active or self.quiet or imagined(args, kwargs):
            return func(*args, **kwargs)
        name = str(func)
        self.count += 1
        self.names.append(name)
        if self.fault is not None:
            self.before(self.fault, name, args, kwargs)
        out = func(*args, **kwargs)
        if self.fault is not None and self.fault.mode == "limit":
            self.after(self.fault, name, args, kwargs, out)
        if self.phases is not None:
            self.phases.note(name, (args, kwargs), out)
        return out

    def before(self, fault: Fault, name: str, args: Any, kwargs: Any) -> None:
        if fault.mode != "limit" and self.first_at < 0 and self.count - 1 == fault.at:
            sizes = sizes_of(args, kwargs)
            if fault.mode == "again" and of_batch(sizes, fault.rows):
                self.again = name, sizes
            self.fail(name)
        if self.first_at >= 0 and self.count - self.first_at - 1 == fault.second:
            self.fail(name)
        if (
            self.again is not None
            and name == self.again[0]
            and sizes_of(args, kwargs) == self.again[1]
            and not compared(sys._getframe(2))
        ):
            self.fail(name)

    def after(self, fault: Fault, name: str, args: Any, kwargs: Any, out: Any) -> None:
        given = {t.untyped_storage()._cdata for t in tensors(args, kwargs)}
        for t in tree_leaves(out):
            if isinstance(t, Tensor) and t.numel() > fault.elements and t.untyped_storage()._cdata not in given:
                self.fail(name)


# Operations that return no memory of their own, although their schemas do not say so.
NOTHING_NEW = {
    "aten::_local_scalar_dense",
    "aten::is_same_size",
    "aten::reshape",
    "aten::_reshape_alias",
    "aten::sym_size",
}


@cache
def allocates(func: Any) -> bool:
    """Whether an operation returns memory of its own. Collectives and PyTorch's profiler do not count."""
    returns = func._schema.returns
    return (
        func.namespace == "aten" and any(r.alias_info is None for r in returns) and func._schema.name not in NOTHING_NEW
    )


class Allocating(Injector):
    """An injector that counts only operations that allocate memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not allocates(func):
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def compared(frame: FrameType | None) -> bool:
    """Whether an operation belongs to a call that is repeated for comparison."""
    while frame is not None:
        if frame.f_code.co_filename.endswith("/headroom_train/proof/recheck.py"):
            return True
        frame = frame.f_back
    return False


class Phases:
    """Determines, from the Python frames that called an operation, in which part of a step it was
    dispatched. Only for steps in which nothing fails, since inspecting frames keeps alive what they
    hold.

    An operation is in the phase "own" if it comes after the first module call but none of its
    tensors came out of a module. An operation on the user's labels is an example: headroom, which
    records a module's outputs, cannot see it.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.kept: list[torch.UntypedStorage] = []  # keeps the memory alive, so that no address is reused
        self.recorded: set[int] = set()
        self.seen = False  # a module's call since the last backward

    def begin(self) -> None:
        self.operations, self.kept, self.recorded, self.seen = [], [], set(), False

    def note(self, name: str, given: Any, out: Any) -> None:
        phase, where = innermost(sys._getframe(2))
        arguments = [t for t in tree_leaves(given) if isinstance(t, Tensor)]
        if phase == "module" and not torch.is_grad_enabled():
            phase = ""  # a teacher or an evaluation: nothing is trained in it
        if phase == "module":
            self.seen = True
        elif phase == "backward":
            self.seen = False
        elif not phase:
            phase = "tail" if self.seen else "between" if self.operations and self.kept else "before"
            if phase == "tail" and not any(t.untyped_storage()._cdata in self.recorded for t in arguments):
                phase = "own"
        # if a gradient were kept here, backward would copy it instead of taking it over
        if phase in ("module", "tail"):
            for t in tree_leaves(out):
                if isinstance(t, Tensor):
                    self.kept.append(t.untyped_storage())
                    self.recorded.add(t.untyped_storage()._cdata)
        self.operations.append(
            Operation(
                name, phase, where, max((t.numel() for t in tree_leaves(out) if isinstance(t, Tensor)), default=0)
            )
        )


def innermost(frame: FrameType | None) -> tuple[str, str]:
    """The phase in which code is called ("backward", "module", "optimizer" or ""), and the innermost line of the
    user's code as file:line."""
    phase, where = "", ""
    if threading.current_thread() is not threading.main_thread():
        return "backward", where  # the backward pass of a GPU, which has a thread of its own
    while frame is not None:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if not where and "/torch/" not in file and "/headroom_train/" not in file:
            where = f"{file.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        if function == "_engine_run_backward":
            return "backward", where
        if not phase and function == "_call_impl" and any(True for _ in frame.f_locals["self"].parameters()):
            phase = "module"
        if not phase and "/torch/optim/" in file:
            phase = "optimizer"
        frame = frame.f_back
    return phase, where


class Whole(TorchDispatchMode):
    """Makes one operation fail whenever the first dimension of one of its arguments has this size,
    except in a call that headroom repeats for comparison."""

    def __init__(self, name: str, rows: int) -> None:
        super().__init__()
        self.name, self.rows, self.raised = name, rows, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (
            str(func) == self.name
            and any(t.dim() and t.shape[0] == self.rows for t in tensors(args, {}))
            and not compared(sys._getframe(1))
        ):
            self.raised += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (injected)")
        return func(*args, **(kwargs or {}))
