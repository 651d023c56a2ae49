"""Hooks of the script's on the gradients of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..hooks.genuine import apart
from ..tape.graph import has_hooks_at_leaves

RAN = "a hook on a parameter's gradient had already run when backward failed"


def sees_gradients(params: Sequence[torch.Tensor]) -> bool:
    """Whether any hook of the script's sees the gradient of any of the parameters, or runs once it is complete."""
    return bool(_hooks(params)) or has_hooks_at_leaves(params)


def _hooks(params: Iterable[torch.Tensor]) -> list[dict]:
    with apart():
        return [hooks for p in params for hooks in (p._backward_hooks, p._post_accumulate_grad_hooks) if hooks]


class HookWatch:
    """A context for a backward pass, which notes whether it comes to a hook on one of the parameters. What such a hook
    does cannot be known or undone: it may have taken the gradient away, so that nothing tells that there was one. It is
    told by an entry of our own, before those of the script, so that it counts as well if the script's hook fails."""

    def __init__(self, params: Sequence[torch.Tensor]) -> None:
        self._params = params
        self._places: list[dict] = []
        self.ran = False

    def __call__(self, _: Any) -> None:
        self.ran = True

    def __enter__(self) -> None:
        self._places = _hooks(self._params)
        for hooks in self._places:  # autograd calls them in the order in which they have been put there
            others = [*hooks.items()]
            hooks.clear()
            hooks[self] = self
            hooks.update(others)

    def __exit__(self, *_: Any) -> None:
        for hooks in self._places:
            hooks.pop(self, None)
