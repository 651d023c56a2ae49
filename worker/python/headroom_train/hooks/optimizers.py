"""The optimizer's step, and what happens when memory runs out in it."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import wraps
from typing import Any, Callable

import torch

from ..failure import Refused, Survival, clean, is_out_of_memory, release_frames, unframed
from .crowded import KNOWN, one_by_one
from .genuine import apart

# .step is True while this thread is in a step: a wrapper around an optimizer calls that optimizer's step within its own
_inside = threading.local()


def guard(step: Callable, report: Any, begins: Callable[[], bool]) -> Callable:
    """Returns a version of ``step`` that calls ``step`` once more if memory runs out before it has
    changed anything. State that the failed call created, and that nobody else has seen, is removed
    first. ``begins`` is called before the step, and returns whether to guard the step. A step with
    a closure is not run again, but it goes tensor by tensor if there is not enough memory for all
    tensors at once."""

    @wraps(step)
    def guarded(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():  # the step becomes a part of a graph
            return step(self, *args, **kwargs)
        try:
            return _guarded(self, args, kwargs)
        except BaseException as e:
            unframed(e)
            raise

    def _guarded(self: torch.optim.Optimizer, args: tuple, kwargs: dict) -> Any:
        if getattr(_inside, "step", False):
            return step(self, *args, **kwargs)
        if not args and not kwargs and not begins():
            return step(self)
        with ExitStack() as stack:

            def crowded() -> None:
                if stack.enter_context(one_by_one(self)):
                    report.remark(
                        "there is not enough memory for the optimizer's step over all tensors at once: "
                        "the step is done tensor by tensor"
                    )

            given = [*args, *kwargs.values()]
            # A closure, which computes the gradients.
            if type(self) in KNOWN and len(given) == 1 and callable(given[0]):

                def closure() -> Any:
                    loss = given[0]()
                    crowded()
                    return loss

                return step(self, closure)
            if given:
                return step(self, *args, **kwargs)
            crowded()
            return attempt(self, step, report)

    return guarded


def attempt(optimizer: torch.optim.Optimizer, step: Callable, report: Any) -> Any:
    with apart():
        params = [p for g in optimizer.param_groups for p in g["params"]]
        had = None if len(optimizer.state) >= len(params) else set(optimizer.state)
        tensors = params + [
            v
            for s in optimizer.state.values()
            if isinstance(s, dict)
            for v in s.values()
            if isinstance(v, torch.Tensor)
        ]
        before = [t._version for t in tensors]
    failed = None
    _inside.step = True
    try:
        return step(optimizer)
    except BaseException as e:
        if not is_out_of_memory(e):
            raise
        failed = e
    finally:
        _inside.step = False
    release_frames(failed)
    if [t._version for t in tensors] != before:
        report.refused(failed, Refused("the optimizer had begun to change weights or its state"))
        raise failed
    if had is not None:
        for p in [p for p in optimizer.state if p not in had]:
            del optimizer.state[p]
    clean(failed)
    again = None
    try:
        result = step(optimizer)
    except BaseException as e:
        if not is_out_of_memory(e):
            raise
        again = e
    if again is not None:
        report.refused(failed, Refused("the optimizer's step failed twice"))
        raise failed
    report.survived(failed, Survival("step"))
    return result
