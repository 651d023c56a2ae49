"""What autograd saves, moved to memory of the host, where a step uses that anyway.

Kernels can read memory of the host, but the operands of a matrix product are read many times over: that takes some
fifty times as long as a copy to the GPU before (measured on an H100). What is saved for the backward pass is not needed
until then: it is moved, all of it or the tensors that are saved first, and comes back when the backward pass asks for
it. What is computed meanwhile has room on the GPU.
"""

from __future__ import annotations

from math import inf
from typing import Any, Callable, Optional
from weakref import WeakValueDictionary

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .pool import Pool, unseen

EVERYTHING = 1 << 62
LEAST = 1 << 20  # bytes that are worth moving
WIDER = 4  # a tensor's memory is moved as a whole, unless it is so many times as large as the tensor
USED = 0.9  # of the pool's largest free block that may be taken
PART = 16  # of what is saved, no less than this part is tried
PATIENCE = 64  # steps until all is tried again, doubled each time, up to 16 times as many
BETTER = 0.95  # of the time that the fastest step took
GAPS = 64  # places in a step where PyTorch's cache is emptied
LEARNING = 3  # steps that may find such places before a step is judged


class Share:
    """How many bytes of what a step saves are moved to the host. It is told of each step, and decides by that alone:
    first everything is moved, which leaves room on the GPU for what libraries work with, and then half as much as long
    as that is faster."""

    def __init__(self) -> None:
        self.bytes = 0  # in the next step
        # After how many tensors that a step saves or asks back there was no room on the GPU, although PyTorch had as
        # much in its cache: its blocks had other sizes.
        self.gaps: set[int] = set()
        self._spilled = self._settled = 0
        self._patience = PATIENCE
        self._begin(inf)

    def _begin(self, seconds: float) -> None:
        """``seconds`` is what a step takes from which nothing is moved."""
        self._best, self._seconds = 0, seconds  # the bytes that were moved in the fastest step, and how long it took
        self._fresh = True  # the next step touches memory of the host for the first time
        self._known, self._learning = 0, 0  # places in gaps, steps that have added to them

    def everything(self) -> None:
        """Everything is moved in the next step: nothing else has helped."""
        self._begin(inf)
        self.bytes, self._settled = EVERYTHING, 0

    def step(self, seconds: float, refused: int, moved: int, saved: int) -> None:
        """Notes a step: for how many bytes there was no room on the GPU, how many were moved, and how many could have
        been."""
        if self._settled:
            self._settled -= 1
            if not self._settled:  # there may be more room by now
                self._spilled, self.bytes, self._patience = 0, 0, min(2 * self._patience, 16 * PATIENCE)
        elif not self.bytes:
            self._spilled += refused > 0
            if refused and self._spilled > 1:  # the first step may have failed, and touches memory for the first time
                self._begin(seconds)
                self.bytes = EVERYTHING
        elif self._fresh:
            self._fresh, self._known = False, len(self.gaps)
        elif len(self.gaps) > self._known and self._learning < LEARNING:
            self._known, self._learning = len(self.gaps), self._learning + 1
        elif seconds < BETTER * self._seconds and moved:
            self._best, self._seconds = moved, seconds
            self.bytes = moved // 2
            if moved // 2 <= saved // PART:
                self._settle()
        else:
            self._settle()

    def _settle(self) -> None:
        self.bytes, self._settled = self._best, self._patience


class _Kept:
    """Memory of the host with what a tensor's memory held on the GPU."""

    __slots__ = ("__weakref__", "_back", "_pool", "original", "storage")

    def __init__(self, pool: Pool, storage: torch.UntypedStorage, original: torch.UntypedStorage) -> None:
        self._pool, self.storage = pool, storage
        self.original = StorageWeakRef(original)  # so that its address is not used again meanwhile
        self._back: Optional[StorageWeakRef] = None

    def back(self) -> torch.UntypedStorage:
        """The same on the GPU, once for all that use it at the same time; memory of the host if there is no room."""
        known = torch.UntypedStorage._new_with_weak_ptr(self._back.cdata) if self._back is not None else None
        if known is not None:
            return known
        made = self._made()
        if self._pool.has(made.data_ptr()) and self._pool.cached() >= self.storage.nbytes():
            del made
            self._pool.empties()
            made = self._made()
        if self._pool.has(made.data_ptr()):
            return self.storage
        _copy(self.storage, made)
        self._back = StorageWeakRef(made)
        return made

    def _made(self) -> torch.UntypedStorage:
        return torch.UntypedStorage(self.storage.nbytes(), device=self.storage.device)


class Saved:
    """Moves what the recorded calls of a step save. ``pool`` returns the current GPU's pool; None if there is none."""

    def __init__(self, pool: Callable[[], Optional[Pool]]) -> None:
        self._pool = pool
        self._share: Optional[Share] = None  # that of this step
        self._room = self._moved = self._saved = 0
        self._passed = 0  # tensors that this step has saved, or asked back
        self._refused = 0  # what the GPU had refused by then
        self._own: set[int] = set()  # where weights and buffers are, which stay
        self._units: WeakValueDictionary[tuple[int, int], _Kept] = WeakValueDictionary()

    @property
    def moves(self) -> bool:
        """Whether something of this step was moved."""
        return self._moved > 0

    @staticmethod
    def share(record: Any) -> Share:
        """What has been decided for steps whose first call is one of this module."""
        record.share = record.share or Share()
        return record.share

    def around(self, record: Any) -> Any:
        """A context for a module's call whose step uses memory of the host; None if nothing is to be moved."""
        pool = self._pool()
        if pool is None or not pool.here() or not record.uncut or not torch._C.is_grad_enabled():
            return None
        if self._share is None:
            self._share = self.share(record)
            self._moved = self._saved = self._passed = 0
            self._refused = pool.refused()
            self._room = int(USED * pool.free()) if self._share.bytes else 0
            if self._share.bytes and 0 in self._share.gaps:
                pool.empties()
        if not self._share.bytes:
            return None
        module = record.module()
        tensors = [*module.parameters(), *module.buffers()]
        self._own.update(t.untyped_storage().data_ptr() for t in tensors if t.layout == torch.strided)
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def step(self, seconds: float, refused: int) -> int:
        """Called after each optimizer step, as :meth:`Share.step`. Returns how many bytes were moved."""
        share, moved = self._share, self._moved
        if share is None:
            return 0
        share.step(seconds, refused, moved, self._saved)
        self._share, self._moved = None, 0
        self._own.clear()
        return moved

    def _passes(self, pool: Pool, share: Share) -> None:
        """Called for each tensor that a step saves or asks back: makes room where the steps before lacked it."""
        refused = pool.refused() - self._refused
        if refused > 0:
            self._refused += refused
            if len(share.gaps) < GAPS and pool.cached() >= refused:
                share.gaps.add(self._passed)
        self._passed += 1
        if self._passed in share.gaps:
            pool.empties()

    def _pack(self, tensor: torch.Tensor) -> Any:
        pool = self._pool()
        if pool is None or self._share is None:
            return tensor
        self._passes(pool, self._share)
        if not _movable(tensor, pool.device):
            return tensor
        storage = tensor.untyped_storage()
        bytes, at = storage.nbytes(), storage.data_ptr()
        if bytes < LEAST or bytes > WIDER * tensor.numel() * tensor.element_size() or at in self._own:
            return tensor
        key = storage._cdata, tensor._version
        unit = self._units.get(key)
        if unit is None:
            if pool.has(at):  # there was no room for it on the GPU
                unit = _Kept(pool, storage, storage)
            else:
                self._saved += bytes
                if self._moved >= self._share.bytes or self._moved + bytes > self._room:
                    return tensor
                with unseen():
                    kept = pool.taken(bytes)
                    if kept is None:
                        self._room = 0
                        return tensor
                    _copy(storage, kept)
                self._moved += bytes
                unit = _Kept(pool, kept, storage)
            self._units[key] = unit
        return unit, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset()

    def _unpack(self, packed: Any) -> torch.Tensor:
        pool = self._pool()
        if pool is not None and self._share is not None:
            self._passes(pool, self._share)
        if isinstance(packed, torch.Tensor):
            return packed
        unit, dtype, *place = packed
        with unseen(), torch.no_grad():
            size, stride, offset = place
            storage = unit.back()
            return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, size, stride)


def _movable(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether a tensor is nothing but a view of plain memory of a GPU."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device == device
        and tensor.layout == torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized or tensor.is_nested)
    )


def _copy(of: torch.UntypedStorage, to: torch.UntypedStorage) -> None:
    """Copies memory, in the order of the current stream."""
    with torch.no_grad():
        source, target = (torch.empty(0, dtype=torch.uint8, device=s.device).set_(s) for s in (of, to))
        target.copy_(source)


def on_host() -> Any:
    """A context in which the tensors that autograd saves are kept in pinned host memory, and come back with the strides
    that they had. PyTorch's own context makes them contiguous; the backward pass of a recurrent layer in cuDNN with
    ``batch_first`` then takes one row's state for another's."""

    def pack(tensor: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
        if not tensor.is_cuda or tensor.layout != torch.strided:
            return tensor.device, tensor
        kept = torch.empty_like(tensor, device="cpu", pin_memory=True)  # keeps strides
        return tensor.device, kept.copy_(tensor)

    def unpack(packed: tuple[torch.device, torch.Tensor]) -> torch.Tensor:
        device, kept = packed
        return kept.to(device, non_blocking=True)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
