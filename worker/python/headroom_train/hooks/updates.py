"""Steps of a script that has no optimizer, and changes its weights by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch

from .swaps import Weak


def state_of(param: torch.Tensor) -> Any:
    """A value that is different once a backward pass has computed the parameter's gradient, or the gradient has been
    reset."""
    grad = param.grad if param.is_leaf else None  # computed weights (functional_call) have none, and reading it warns
    return None if grad is None else (id(grad), grad._version)


class Updates:
    """Tells when such a step ends: when the next forward pass begins, if parameters or their gradients have changed
    since the last backward pass. All of ``ends`` are called then. A script that changes both without raising their
    versions (``p.data``, ``p.grad.data``) is seen to make no steps, and nothing else depends on that."""

    def __init__(self) -> None:
        self.ends: Sequence[Callable[[], Any]] = ()
        self._params: list[Weak] = []
        self._states: Optional[list] = None  # of these parameters, after the last backward pass

    def backward(self, params: Sequence[torch.Tensor]) -> None:
        """Called after a backward pass that may have given gradients to these parameters."""
        self._params = [*map(Weak, params)]
        self._states = self._now()

    def forward(self) -> None:
        """Called when a forward pass begins."""
        if self._states is not None and self._states != self._now():
            self._states = None
            for work in self.ends:
                work()

    def _now(self) -> list:
        there = (ref() for ref in self._params)
        return [None if p is None else (p._version, state_of(p)) for p in there]
