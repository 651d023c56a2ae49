"""How much memory is allocated at the ends of a step's forward and backward.

Of some steps only: asking the allocator takes 0.05 ms, and its own peak is the user's, who may
reset it.
"""

from __future__ import annotations

from typing import Callable, Optional

import torch

from .rest import may_ask


def allocated() -> Optional[int]:
    """Bytes that tensors have on the current GPU; None without one, or while a graph is captured."""
    if not may_ask():
        return None
    return torch.cuda.memory_allocated()


class Phases:
    """Of the step that is being made, while ``measuring``. ``read`` reports what is allocated."""

    def __init__(self, read: Callable[[], Optional[int]] = allocated) -> None:
        self._read = read
        self._forward, self._backward = 0, 0
        self.measuring = True

    def forward_ends(self) -> None:
        """The outermost module's call has ended; of several in a step the one that leaves most counts."""
        if self.measuring:
            self._forward = max(self._forward, self._read() or 0)

    def backward_ends(self) -> None:
        """The optimizer is about to make its step: its backward was before that, unless a closure
        is to make it."""
        if self.measuring and self._forward:
            self._backward = self._read() or 0

    def step_ends(self, whole: bool) -> dict[str, int]:
        """What was measured in a step; nothing unless it was run ``whole``, for the forward of
        pieces is none of the user's."""
        found = {"forward": self._forward, "backward": self._backward} if whole else {}
        self._forward = self._backward = 0
        return {name: amount for name, amount in found.items() if amount}
