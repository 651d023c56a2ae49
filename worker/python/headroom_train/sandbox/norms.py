"""Batch normalisation, whose layers relate the rows of a batch to each other.

In pieces it is only approximate: each piece has statistics of its own, as each micro-batch has
under gradient accumulation. Pieces are used only if the user has allowed this, and only where
nothing exact fits.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch.nn import functional

from ..failure import Refused
from ..tape.snapshot import submodules

ALLOWANCE = "batchnorm-pieces"  # what the user allows: the argument of --allow
HINT = f"with --allow {ALLOWANCE} each piece would have statistics of its own"

Layer = torch.nn.modules.batchnorm._BatchNorm


def batchwise(modules: Iterable[torch.nn.Module]) -> list[Layer]:
    """The layers that compute statistics over the batch."""
    return [m for m in submodules(modules) if isinstance(m, Layer) and (m.training or m.running_mean is None)]


class Batchwise(Refused):
    """Raised for a call that computes statistics over the batch."""

    code = "batchnorm"


def refuse_batchwise(modules: Iterable[torch.nn.Module]) -> None:
    """Raises :class:`Batchwise` if one of the modules computes statistics over the batch."""
    layers = batchwise(modules)
    if layers:
        raise Batchwise(f"{type(layers[0]).__name__} computes statistics over the batch")


def allowed() -> bool:
    """Whether the user has allowed layers to have statistics of their own in each piece."""
    return ALLOWANCE in os.environ.get("HEADROOM_ALLOW", "").split(",")


@contextmanager
def independent(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """A context for trials, in which layers that may be run in pieces normalise each row by itself. Rows then do
    not depend on each other, so everything else about a step can be proven. Running statistics cannot be used
    instead: before they have been learned, the values of a deep model grow without bound, and rounding errors
    with them."""
    layers = batchwise(modules) if allowed() else []
    if not layers:
        yield
        return
    training = [layer for layer in layers if layer.training]
    means, usual, thread = {id(layer.running_mean) for layer in training}, functional.batch_norm, get_ident()

    def by_row(
        input: Any,
        running_mean: Any,
        running_var: Any,
        weight: Any = None,
        bias: Any = None,
        training: bool = False,
        momentum: Any = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        if get_ident() != thread or not training and id(running_mean) not in means:
            return usual(input, running_mean, running_var, weight, bias, training, momentum, eps)
        return functional.group_norm(input, 1, weight, bias, eps)

    for layer in training:
        layer.training = False  # in training mode it would count the call
    functional.batch_norm = by_row
    try:
        yield
    finally:
        functional.batch_norm = usual
        for layer in training:
            layer.training = True


class Statistics:
    """A context for running calls in pieces, each of which changes the running statistics of
    ``layers``. When the context ends, the statistics of the layers in ``new`` are the mean of those
    that each piece alone would have left, weighted by the pieces' rows. The statistics of all other
    layers are what they were before. If an exception is raised, all statistics are what they were
    before."""

    def __init__(self, layers: Sequence[Layer], new: Sequence[Layer]) -> None:
        self._buffers = [b for layer in layers for b in layer.buffers(recurse=False)]
        self._before = [b.detach().clone() for b in self._buffers]
        self._new = {id(b) for layer in new for b in layer.buffers(recurse=False)}
        self._after: list[torch.Tensor] = []

    def put_back(self) -> None:
        """Restores the statistics to their values before the context was created. Must be called before each
        piece."""
        self._set(self._before)

    def add(self, share: float) -> None:
        """Includes in the mean the statistics that a piece has just produced. ``share`` is the piece's share of
        the rows."""
        found = [b.detach() * share if b.is_floating_point() else b.detach().clone() for b in self._buffers]
        old = self._after or [torch.zeros_like(b) for b in found]
        # Whole numbers count the calls.
        self._after = [a + b if b.is_floating_point() else b for a, b in zip(old, found)]

    def __enter__(self) -> Statistics:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        after = self._before if kind is not None or not self._after else self._after
        self._set([a if id(b) in self._new else old for a, b, old in zip(after, self._buffers, self._before)])

    def _set(self, values: Sequence[torch.Tensor]) -> None:
        for buffer, value in zip(self._buffers, values):
            # An earlier call's graph may have saved this buffer, so its version must stay the same.
            buffer.data.copy_(value)
