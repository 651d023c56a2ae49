"""Copies of tensors in memory that no limit of the process and no GPU counts, so that a trial has as much room as a
training step has."""

from __future__ import annotations

import mmap
from collections.abc import Iterable

import torch


def apart(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a dense tensor on the host, in memory that is mapped as shared: ``ulimit -d`` does not count it."""
    count = tensor.numel() * tensor.element_size()
    if not count:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    flat = torch.frombuffer(mmap.mmap(-1, count), dtype=torch.uint8).view(tensor.dtype)  # the tensor owns the map
    return flat.view(tensor.shape).copy_(tensor.detach())


class Copies:
    """The values of some tensors, as they are when this is made. Tensors that are not dense are left out."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        each = {id(t): t for t in tensors if t.layout == torch.strided}
        self._pairs = [(t, apart(t)) for t in each.values()]
        self._anew = [(s, s.nbytes()) for s in storages(t for t in each.values() if t.is_cuda)]

    def each(self) -> list[torch.Tensor]:
        """The tensors."""
        return [t for t, _ in self._pairs]

    def release(self) -> bool:
        """Frees the memory on a GPU of what is copied. Returns whether there is any."""
        for storage, _ in self._anew:
            storage.resize_(0)
        return bool(self._anew)

    @torch.no_grad()
    def put_back(self) -> None:
        """Gives the tensors their values back, and their memory, if it was released."""
        for storage, size in self._anew:
            if storage.nbytes() != size:
                storage.resize_(size)
        for tensor, copy in self._pairs:
            tensor.data.copy_(copy)


def storages(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """The storages of those of some tensors that fill their storage: nothing else is lost with its memory."""
    filling = [t for t in tensors if t.numel() * t.element_size() == t.untyped_storage().nbytes()]
    found = {t.untyped_storage()._cdata: t.untyped_storage() for t in filling if t.numel()}
    return [s for s in found.values() if s.resizable()]
