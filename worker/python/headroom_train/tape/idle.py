"""Decides when calls need not be recorded: while a training run's steps use only a small part of
the memory.

Recording costs 0.3 ms of CPU time per step, which matters in a step of a few milliseconds but not
in a step that fills a GPU. A call that is not recorded is said to be *idle*. It cannot be recovered if
it fails, so calls are idle only on GPUs with plenty of room, only at sizes that have succeeded before,
and never again once memory has run out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Callable

import torch

from ..memory import Memory, memories
from .trees import is_a

STEPS = 20  # the first optimizer steps, which are always recorded
EVERY = 0.2  # seconds between two checks of the memory
SHARE = 0.5  # calls are idle only while at most this share of the memory available to this process has been used
MOST = 1024  # the most shapes that are remembered for each module


def roomy(memories: Sequence[Memory]) -> bool:
    """Whether there is plenty of room for steps that have used this much memory; False if
    ``memories`` is empty."""
    return bool(memories) and all(
        not m.failures and m.peak <= SHARE * min(m.allowed, m.free + m.reserved) for m in memories
    )


Shapes = tuple[tuple[int, ...], ...]


def shapes_of(args: tuple, kwargs: dict) -> Shapes:
    return tuple(tuple(t.shape) for t in (*args, *kwargs.values()) if is_a(t, torch.Tensor))


class Known:
    """Shapes of arguments with which a module's calls have succeeded."""

    def __init__(self) -> None:
        self._shapes: set[Shapes] = set()

    def add(self, shapes: Shapes) -> None:
        if len(self._shapes) < MOST:
            self._shapes.add(shapes)

    def covers(self, shapes: Shapes) -> bool:
        """Whether a call at least as large in every dimension has succeeded. False for a call without
        tensors, about whose size nothing is known."""
        if not shapes:
            return False
        if shapes in self._shapes:
            return True
        if not any(_within(shapes, known) for known in self._shapes):
            return False
        self.add(shapes)
        return True


def _within(shapes: Shapes, known: Shapes) -> bool:
    return len(shapes) == len(known) and all(
        len(a) == len(b) and all(x <= y for x, y in zip(a, b)) for a, b in zip(shapes, known)
    )


class Idle:
    """Decides which calls are idle. ``look`` returns the memory, and ``clock`` the time in seconds."""

    def __init__(
        self, look: Callable[[], Sequence[Memory]] = memories, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self._clock = look, clock
        self._steps, self._next = 0, 0.0
        self._failed = False
        self.now = False

    def step(self) -> None:
        """Called after an optimizer's step. Calls begin or cease to be idle only here, or when memory
        runs out."""
        self._steps += 1
        if self._failed or self._steps < STEPS:
            return
        now = self._clock()
        if now >= self._next:
            self._next = now + EVERY
            self.now = roomy(self._look())

    def failed(self) -> None:
        """Called when memory has run out: everything is recorded from now on."""
        self._failed, self.now = True, False

    def may(self, known: Known, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call with these arguments may be idle, that is, go unrecorded. ``known`` has the shapes with
        which the module's calls have succeeded."""
        return self.now and known.covers(shapes_of(args, kwargs))
