"""Saved tensors that can be dropped while the graph that saved them is still held.

A user's variables (``out``, ``loss``) keep the graph of a failed try alive, and with
it every activation. While a step is recorded each saved tensor lies in a
:class:`Handle`, which the graph owns; emptying the handles frees the activations,
whoever still holds the graph.
"""

from __future__ import annotations

import weakref
from typing import Any, Optional

import torch

KEEP = 16  # elements; the graphs of scalars stay usable


class Handle:
    """One tensor that autograd saved. Owned by the graph alone."""

    __slots__ = ("tensor", "version", "failure", "__weakref__")

    def __init__(self, tensor: torch.Tensor) -> None:
        # A function's own result would keep the function's node alive, which keeps it.
        self.tensor: Optional[torch.Tensor] = tensor.detach()
        self.version = tensor._version


class Handles:
    """The handles of one tape. Not safe for concurrent use."""

    def __init__(self) -> None:
        self._refs: list[weakref.ref[Handle]] = []
        self.hooks = torch.autograd.graph.saved_tensors_hooks

    def pack(self, tensor: torch.Tensor) -> Any:
        handle = Handle(tensor)
        self._refs.append(weakref.ref(handle))
        return handle

    @staticmethod
    def unpack(handle: Handle) -> torch.Tensor:
        tensor = handle.tensor
        if tensor is None:
            raise handle.failure  # this graph is a try's that ran out of memory, and cannot go on
        if tensor._version != handle.version:
            # With hooks autograd leaves this check to them.
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
                f"expected version {handle.version} instead. Hint: enable anomaly detection to find the operation "
                "that failed to compute its gradient, with torch.autograd.set_detect_anomaly(True)."
            )
        return tensor

    def on(self) -> Any:
        """A context in which what autograd saves goes into handles."""
        return self.hooks(self.pack, self.unpack)

    def count(self) -> int:
        """How many there have been, by which the handles of a call are told from others."""
        return len(self._refs)

    def drop(self, failure: BaseException, spans: Optional[list] = None) -> int:
        """Lets go of every saved tensor but the smallest, and counts them; with ``spans``
        only those between two counts. Whoever uses the graph all the same gets ``failure``."""
        count = 0
        for start, stop in spans if spans is not None else [(0, len(self._refs))]:
            for ref in self._refs[start:stop]:
                handle = ref()
                if handle is not None and handle.tensor is not None and handle.tensor.numel() > KEEP:
                    handle.tensor, handle.failure = None, failure
                    count += 1
        return count
