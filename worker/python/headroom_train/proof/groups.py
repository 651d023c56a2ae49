"""Results and gradients of groups of the batch's rows, and whether they depend on which rows are in a group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Optional

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..failure import Refused, passes
from ..hooks.genuine import backward, grad
from ..ranks.collectives import Silent
from ..ranks.ddp import reduces
from ..sandbox.sandbox import STANCES, Watched
from ..tape.graph import has_hooks_at_leaves, in_python, reentrant
from ..tape.recorded_module import record_of
from ..tape.snapshot import parameters, submodules
from ..tape.tape import Tape
from ..world import several
from .plan import Plan
from .rerun import SOME, modules_of, run
from .rows import Axis, Rows, as_real
from .weights import Rule, halves, weight

# Rounding errors of kernels for different numbers of rows on a GPU, where convolutions use TF32 unless a script says
# otherwise.
TF32 = 2e-3
NUMBER = "a number that a module computes belongs to the whole batch"
HOOKED = "a parameter has a hook, which would see the gradients of pieces"
Sketch = list[tuple[float, float]]  # two numbers for each gradient: see sketched


class Groups:
    """Runs entries of a tape on groups of rows."""

    def __init__(self, tape: Tape, plan: Plan) -> None:
        self.tape, self.plan = tape, plan
        # Before PyTorch 2.6, trials compile compiled modules, too, and that fails for a fourth number of rows.
        self.few = not STANCES and any("_orig_mod" in m._modules for m in submodules(modules_of(tape)))

    def run(self, entries: Sequence[int], rows: Sequence[int], env: Optional[dict] = None) -> dict:
        """The values of entries' results for the given rows, by slot."""
        return run(self.tape, self.plan, entries, Rows.chosen(self.plan.batch, rows), env)

    def outputs(self, first: Sequence[int], chosen: list[int], tolerance: float) -> dict[int, torch.Tensor]:
        """The modules' outputs for the chosen rows, checked to be the same when rows are run together and in parts."""
        found: dict[int, list] = {}
        step = max(2, SOME // 2)
        starts = list(range(0, len(chosen), step))
        if len(chosen) > step and len(chosen) - starts[-1] == 1:
            starts.pop()
        for start, stop in zip(starts, [*starts[1:], len(chosen)]):
            for s, v in self.run(first, chosen[start:stop]).items():
                found.setdefault(s, []).append(v)
        outputs = {}
        for s, parts in found.items():
            axis = self.plan.slots[s].axis
            outputs[s] = parts[0] if axis is None else axis.joined(parts)
        self.compare(first, chosen, tolerance, outputs if len(starts) == 1 else None)
        return outputs

    def compare(self, first: Sequence[int], chosen: list[int], tolerance: float, whole: Optional[dict] = None) -> None:
        """Raises :class:`Refused` if rows have different outputs when run together than when run in parts. ``whole``
        has the outputs of the chosen rows together, or is None if they have not been computed yet."""
        together = chosen[: max(2, min(len(chosen), SOME, self.plan.batch - 1))]
        if whole is None or len(together) < len(chosen):
            whole = self.run(first, together)
        parts = halves(together)
        split = [self.run(first, part) for part in parts]
        alone = []
        if len(together) > 2 and not self.few:
            alone = [self._alone(first, row) for row in together[: min(2, len(parts[1]))]]
        for s, v in whole.items():
            axis = self.plan.slots[s].axis
            if axis is None:
                continue  # a loss computed inside a module is judged by its rule
            # Other kernels may compute a single row, as a vector.
            most, rough = (max(tolerance, TF32), max(tolerance, 1e-2)) if v.is_cuda else (tolerance, tolerance)
            if same(v, axis.joined([part[s] for part in split]), most) and _same_alone(v, axis, s, alone, rough):
                continue
            again = self.run(first, together)[s]
            if not v.isfinite().all() or not same(v, again, most):
                raise Refused("a call returns different results for the same rows")
            raise self.plan.mixed("a row's result depends on the other rows of the batch")

    def _alone(self, first: Sequence[int], row: int) -> dict[int, torch.Tensor]:
        """The modules' outputs for a single row that is run alone, so that no module pads it to the
        length of another row. Empty if the modules do not accept a batch of one row."""
        try:
            return self.run(first, [row])
        except Exception as e:
            if passes(e):
                raise
            return {}

    def sketch(
        self, rules: dict[int, Rule], entries: Sequence[int], inputs: Inputs, rows: list[int], within: list[int]
    ) -> dict[int, Sketch]:
        """For each scalar, the gradient of each parameter for the given rows, represented by two numbers instead of
        a second set of gradients: its dot product with a fixed vector, and its norm."""
        at = Rows.chosen(self.plan.batch, rows)
        with torch.enable_grad():
            env = run(self.tape, self.plan, entries, at, leaves=inputs.leaves(at))
            totals = {s: env[s].sum() * weight(rule, rows, within) for s, rule in rules.items()}
        env.clear()
        found: dict[int, Sketch] = {}
        if len(rules) > 1 and any(map(in_python, totals.values())):  # no graph may be used twice
            totals.clear()
            for s, rule in rules.items():
                found.update(self.sketch({s: rule}, entries, inputs, rows, within))
            return found
        for left, (s, total) in zip(range(len(totals) - 1, -1, -1), totals.items()):
            grads = inputs.differentiated(total, [s], retain=left > 0) if total.requires_grad and inputs.own else []
            # Nothing here is random, and a mode would take longer for each of these many small kernels than the kernel
            # itself.
            with _disable_current_modes():
                found[s] = sketched(grads)
        return found

    def sketch_of_results(
        self, slots: Sequence[int], entries: Sequence[int], inputs: Inputs, rows: list[int]
    ) -> Sketch:
        """As :meth:`sketch`, for a sum of modules' results in which every number counts differently."""
        at = Rows.chosen(self.plan.batch, rows)
        with torch.enable_grad():
            env = run(self.tape, self.plan, entries, at, leaves=inputs.leaves(at))
            total: Any = sum(_counted(env[s], self.plan.slots[s].axis, rows) for s in slots)
        env.clear()
        grads = inputs.differentiated(total, slots)
        with _disable_current_modes():
            return sketched(grads)


def _counted(value: torch.Tensor, axis: Any, rows: Sequence[int]) -> torch.Tensor:
    """A sum of a result's numbers, each multiplied by another one. A row is multiplied by the same numbers in any
    group, and two rows by numbers that have nothing in common: if all rows had nearly the same gradient, what a group
    has of it on average would not show which rows are in the group."""
    by_row = as_real(axis.apart(value).movedim(axis.dim + 1, 0)).reshape(len(rows), -1).float()
    across = torch.arange(1, by_row.shape[1] + 1, dtype=torch.float32, device=value.device)
    number = torch.tensor([float(r) for r in rows], device=value.device)[:, None]
    return (by_row * (across * (1.618034 + 0.754878 * (number % 13)) + number).cos_()).sum()


def _same_alone(whole: torch.Tensor, axis: Axis, slot: int, alone: Sequence[dict], tolerance: float) -> bool:
    """Whether the first rows of an output are the same where they are run alone, unless they have another shape."""
    for i, outputs in enumerate(alone):
        row, other = axis.some(whole, i, 1), outputs.get(slot)
        if other is not None and other.shape == row.shape and not same(row, other, tolerance):
            return False
    return True


def same(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    if a.shape != b.shape:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return True  # an argmax may depend on a rounding error
    a, b = as_real(a).float(), as_real(b).float()
    size = float(a.abs().max()) if a.numel() else 0.0
    return bool(((a - b).abs() <= tolerance * max(size, 1e-12)).all()) if a.isfinite().all() else torch.equal(a, b)


class Inputs:
    """The tensors with respect to which a replayed scalar is differentiated: parameters of the modules
    on the tape, leaves from outside that the tape uses, and tensors from outside with a graph of their own."""

    def __init__(self, tape: Tape, plan: Optional[Plan], entries: Sequence[int]) -> None:
        found: dict[int, torch.Tensor] = {}
        self._called: list[torch.nn.Module] = []
        self.entering: dict[int, torch.Tensor] = {}  # tensors from outside that are cut or have a graph, by index
        self.cut: dict[int, Axis] = {}
        for i in entries:
            entry = tape.entries[i]
            if entry.module is not None:
                self._called.append(entry.module)
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
        if hooked(self.own):
            raise Refused(HOOKED)
        self.tensors = self.own + list(self.entering.values())
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
            if self.reentrant[key] and has_hooks_at_leaves(self.own):
                raise Refused(HOOKED)
        tensors = [*self.own, *leaves]
        if not self.reentrant[key]:
            return self._silently(lambda: grad(total, tensors, retain=retain))
        if reduces(tensors):
            raise Refused("a checkpoint with use_reentrant=True hands gradients to DistributedDataParallel itself")
        found, shared = accumulated(total, tensors, retain)
        self.shared |= shared
        return found

    def _silently(self, work: Callable[[], Any]) -> Any:
        """Computes gradients. Raises :class:`Refused` before a module's backward pass communicates with other ranks."""
        unsure = [r for r in map(record_of, self._called) if r is not None and not r.silent]
        if not unsure or not several():
            return work()
        with Watched([Silent()]):
            found = work()
        for record in unsure:
            record.silent = True
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


def hooked(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a hook of the script's sees the gradient of any of the tensors."""
    return any(t._backward_hooks for t in tensors)


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


def sketched(grads: Sequence[Optional[torch.Tensor]]) -> Sketch:
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


def residual(whole: Sketch, parts: Sequence[Sketch]) -> float:
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


def added(one: Sketch, other: Sketch) -> Sketch:
    """The sketch of the sum of two gradients, with an upper bound in place of the sum's norm."""
    return [(a + c, b + d) for (a, b), (c, d) in zip(one, other)]
