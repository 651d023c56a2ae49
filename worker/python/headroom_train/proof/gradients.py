"""Gradients of replayed scalars: with respect to which tensors, and what is kept of them for a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Optional

import torch

from ..failure import Refused
from ..hooks.genuine import backward, grad
from ..tape.graph import reentrant
from ..tape.snapshot import parameters
from ..tape.tape import Tape
from .plan import Plan
from .rows import Axis, Rows, as_real

HOOKED = "a parameter has a hook, which would see the gradients of pieces"


class Inputs:
    """The tensors with respect to which a replayed scalar is differentiated: parameters of the modules
    on the tape, leaves from outside that the tape uses, and tensors from outside with a graph of their own."""

    def __init__(self, tape: Tape, plan: Optional[Plan], entries: Sequence[int]) -> None:
        found: dict[int, torch.Tensor] = {}
        self.entering: dict[int, torch.Tensor] = {}  # tensors from outside that are cut or have a graph, by index
        self.cut: dict[int, Axis] = {}
        for i in entries:
            entry = tape.entries[i]
            if entry.module is not None:
                found.update((id(p), p) for p in parameters([entry.module]) if p.requires_grad)
            for index in entry.references()[1] if entry.grad else ():
                tensor, axis = tape.outside[index], None if plan is None else plan.cuts[i].outside.get(index)
                if not tensor.requires_grad:
                    continue
                if self._enters(index, tensor, axis):
                    self.entering[index] = tensor
                else:
                    found[id(tensor)] = tensor
        for tensor in self.entering.values():
            found.pop(id(tensor), None)
        self.own = list(found.values())
        if any(t._backward_hooks for t in self.own):
            raise Refused(HOOKED)
        self.tensors = self.own + list(self.entering.values())
        self.graphs = any(not t.is_leaf for t in self.entering.values())
        # Whether a reentrant checkpoint is in the graph of the sum of some scalars, by their slots.
        self.reentrant: dict[tuple[int, ...], bool] = {}
        self.shared: set[int] = set()  # ids of tensors to whose gradients several such checkpoints add

    def _enters(self, index: int, tensor: torch.Tensor, axis: Optional[Axis]) -> bool:
        """Whether pieces get stand-ins for a tensor from outside, which they do not share."""
        if axis is not None and self.cut.setdefault(index, axis) != axis:
            raise Refused("a tensor with a graph would have to be split in two different ways")
        return axis is not None or not tensor.is_leaf

    def differentiated(
        self, total: torch.Tensor, slots: Iterable[int], leaves: Sequence[torch.Tensor] = (), retain: bool = False
    ) -> list[Optional[torch.Tensor]]:
        """The gradients of a replayed scalar, or of the sum of those in ``slots``, with respect to :attr:`own` and to
        the given leaves. The graph can be used again if ``retain`` is true."""
        key = tuple(slots)
        if key not in self.reentrant:
            self.reentrant[key] = reentrant(total)
        tensors = [*self.own, *leaves]
        if not self.reentrant[key]:
            return grad(total, tensors, retain=retain)
        found, shared = accumulated(total, tensors, retain)
        self.shared |= shared
        return found

    def leaves(self, rows: Optional[Rows]) -> dict[int, torch.Tensor]:
        """Stand-ins for the entering tensors, for one piece."""
        made = {}
        for index, tensor in self.entering.items():
            part = tensor.detach()
            if rows is not None and index in self.cut:
                part = rows.of(part, self.cut[index])
            made[index] = part.requires_grad_()
        return made


def accumulated(
    total: torch.Tensor, tensors: Sequence[torch.Tensor], retain: bool = False
) -> tuple[list[Optional[torch.Tensor]], set[int]]:
    """The gradients of ``total`` with respect to leaves, as backward leaves them in ``.grad``, which is set aside
    meanwhile. This is the only way through a reentrant checkpoint. The second result has the ids of the leaves whose
    gradients were added up in several steps."""
    if any(t._post_accumulate_grad_hooks for t in tensors):
        raise Refused(HOOKED)
    seen: set[int] = set()
    shared: set[int] = set()

    def count(tensor: torch.Tensor) -> None:
        (shared if id(tensor) in seen else seen).add(id(tensor))

    had = [t.grad for t in tensors]
    hooks = [t.register_post_accumulate_grad_hook(count) for t in tensors]
    try:
        for t in tensors:
            t.grad = None
        backward(total, retain)
        return [t.grad for t in tensors], shared
    finally:
        for t, before, hook in zip(tensors, had, hooks):
            hook.remove()
            t.grad = before


def sketched(grads: Sequence[Optional[torch.Tensor]]) -> list[tuple[float, float]]:
    """For each gradient, two numbers: its dot product with a fixed vector, and its norm. Both are 0
    if the gradient is None. Real and imaginary parts are elements of their own."""
    flat = {i: _flat(g) for i, g in enumerate(grads) if g is not None and g.numel()}
    longest: dict[torch.device, int] = {}
    for f in flat.values():
        longest[f.device] = max(longest.get(f.device, 0), f.numel())
    vectors = {
        d: torch.arange(1, n + 1, dtype=torch.float32, device=d).mul_(1.618034).cos_().mul_(math.sqrt(2))
        for d, n in longest.items()
    }
    products = [f.mul(vectors[f.device][: f.numel()]).sum() for f in flat.values()]
    norms = torch._foreach_norm(list(flat.values())) if flat else []
    device = next(iter(vectors), None)
    # All at once, since every read waits for the GPU.
    found = torch.stack([t.to(device, torch.float32) for t in (*products, *norms)]).tolist() if flat else []
    sketches = dict(zip(flat, zip(found, found[len(flat) :])))
    return [sketches.get(i, (0.0, 0.0)) for i in range(len(grads))]


def _flat(grad: torch.Tensor) -> torch.Tensor:
    flat = as_real(grad if grad.layout == torch.strided else grad.to_dense()).reshape(-1)
    return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()


def residual(whole: list[tuple[float, float]], parts: Sequence[list[tuple[float, float]]]) -> float:
    """How far the sum of the sketches ``parts`` is from the sketches ``whole``, relative to the norms. The parts
    are already weighted. A tenth of the largest norm is added to every norm, so that rounding errors matter
    little in a gradient that would otherwise be zero."""
    differences, sizes = [], []
    for i, (value, norm) in enumerate(whole):
        values, norms = zip(*[part[i] for part in parts])
        differences.append(abs(value - sum(values)))
        sizes.append(norm + sum(norms))
    least = 0.1 * max(sizes, default=0.0) or 1.0
    off = [difference / (size + least) for difference, size in zip(differences, sizes)]
    return math.inf if any(map(math.isnan, off)) else max(off, default=0.0)


def added(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The sketch of the sum of two gradients, with an upper bound in place of the sum's norm."""
    return [(a + c, b + d) for (a, b), (c, d) in zip(one, other)]
