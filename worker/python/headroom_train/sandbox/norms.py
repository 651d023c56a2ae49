"""Batch normalisation, whose layers relate the rows of a batch to each other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..failure import Refused
from ..tape.snapshot import submodules
from ..tape.trees import is_a

Layer = torch.nn.modules.batchnorm._BatchNorm


def batchwise(modules: Iterable[torch.nn.Module]) -> list[Layer]:
    """The layers that compute statistics over the batch."""
    layers: list[Any] = [m for m in submodules(modules) if is_a(m, Layer)]
    return [m for m in layers if m.training or m.running_mean is None]


class Batchwise(Refused):
    """Raised for a call that computes statistics over the batch."""

    code = "batchnorm"


def refuse_batchwise(modules: Iterable[torch.nn.Module]) -> None:
    """Raises :class:`Batchwise` if one of the modules computes statistics over the batch."""
    layers = batchwise(modules)
    if layers:
        raise Batchwise(f"{type(layers[0]).__name__} computes statistics over the batch")
