"""Measures how much memory is allocated at the end of a step's forward pass and of its backward
pass.

This is done in some steps only, since asking the allocator takes 0.05 ms. The allocator's own peak
cannot be used: it belongs to the user, who may reset it.
"""

from __future__ import annotations

from typing import Callable, Optional

import torch

from ..memory import may_ask


def allocated() -> Optional[int]:
    """Bytes allocated to tensors on the current GPU; None without a GPU, or while a graph is captured."""
    if not may_ask():
        return None
    return torch.cuda.memory_allocated()


class Phases:
    """The measurements of the current step, which are taken only while ``measuring`` is true.
    ``read`` returns the bytes allocated, or None."""

    def __init__(self, read: Callable[[], Optional[int]] = allocated) -> None:
        self._read = read
        self._forward, self._backward = 0, 0
        self.measuring = True

    def forward_ends(self) -> None:
        """Called when an outermost module's call has ended. If a step has several such calls, the
        largest measurement counts."""
        if self.measuring:
            self._forward = max(self._forward, self._read() or 0)

    def backward_ends(self) -> None:
        """Called when the optimizer's step is about to begin. The backward pass is over then,
        unless a closure will run it."""
        if self.measuring and self._forward:
            self._backward = self._read() or 0

    def step_ends(self, whole: bool) -> dict[str, int]:
        """Returns the bytes that were measured in a step, by phase. The result is empty unless the
        step was run ``whole``, since a piece's forward pass says nothing about that of the whole
        batch."""
        found = {"forward": self._forward, "backward": self._backward} if whole else {}
        self._forward = self._backward = 0
        return {name: amount for name, amount in found.items() if amount}
