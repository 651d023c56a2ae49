"""The optimizer's step, and what happens when memory runs out in it."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import wraps
from typing import Any, Callable

import torch

from ..failure import Refused, Survival, clean, is_out_of_memory, release_frames, unframed
from ..world import talked
from .crowded import KNOWN, one_by_one
from .genuine import apart

# .step is True while this thread is in a step: a wrapper around an optimizer calls that optimizer's step within its own
_inside = threading.local()


def guard(
    step: Callable, report: Any, begins: Callable[[], bool], closes: Callable[[], None], opened: Callable[[], bool]
) -> Callable:
    """Returns a version of ``step`` that calls ``step`` once more if memory runs out before it has
    changed anything. State that the failed call created, and that nobody else has seen, is removed
    first. If it fails again, ``opened`` makes memory of the host available, and there is one more call.
    ``begins`` is called before the step, and returns whether to guard the step. A step with
    a closure is not run again, but it goes tensor by tensor if there is not enough memory for all
    tensors at once; ``closes`` is called when the closure of an optimizer of PyTorch's has returned."""

    @wraps(step)
    def guarded(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or report.left:  # the first: the step becomes a part of a graph
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
            if type(self).__module__.startswith("torch.optim.") and len(given) == 1 and callable(given[0]):

                def closure() -> Any:
                    loss = given[0]()
                    closes()
                    if type(self) in KNOWN:
                        crowded()
                    return loss

                return step(self, closure)
            if given:
                return step(self, *args, **kwargs)
            crowded()
            return attempt(self, step, report, opened)

    return guarded


class Before:
    """What an optimizer and its parameters were like before a step."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, state = optimizer, optimizer.state
        with apart():
            params = [p for g in optimizer.param_groups for p in g["params"]]
            self._had = None if len(state) >= len(params) else set(state)
            states = [s for s in state.values() if isinstance(s, dict)]
            self._tensors = params + [v for s in states for v in s.values() if isinstance(v, torch.Tensor)]
            self._versions = [t._version for t in self._tensors]

    def changed(self) -> bool:
        """Whether weights or state that existed before have been written to."""
        return [t._version for t in self._tensors] != self._versions

    def remove_new(self) -> None:
        """Removes state that did not exist before."""
        state = self._optimizer.state
        for p in [p for p in state if self._had is not None and p not in self._had]:
            del state[p]


def attempt(optimizer: torch.optim.Optimizer, step: Callable, report: Any, opened: Callable[[], bool]) -> Any:
    before, failed, spoken = Before(optimizer), None, talked()
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
    for way in ("step", "spill"):
        if talked() != spoken:
            report.refused(failed, Refused("the optimizer's step had begun to communicate with other ranks"))
            raise failed
        if before.changed():
            report.refused(failed, Refused("the optimizer had begun to change weights or its state"))
            raise failed
        if way == "spill" and not opened():
            break
        before.remove_new()
        clean(failed)
        again = None
        try:
            result = step(optimizer)
        except BaseException as e:
            if not is_out_of_memory(e):
                raise
            again = e
        if again is None:
            report.survived(failed, Survival(way))
            return result
        release_frames(again)
    report.refused(failed, Refused("the optimizer's step failed twice"))
    raise failed
