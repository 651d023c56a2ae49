"""Results and gradients of groups of the batch's rows, and whether they depend on which rows are in a group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..failure import Refused, is_out_of_memory
from ..sandbox.sandbox import STANCES
from ..tape.snapshot import submodules
from ..tape.tape import Tape
from .contexts import SOME
from .gradients import Inputs, sketched
from .plan import Plan
from .rerun import modules_of, run
from .rows import Axis, Rows, as_real
from .weights import Rule, halves, weight

# Rounding errors of kernels for different numbers of rows on a GPU, where convolutions use TF32 unless a script says
# otherwise.
TF32 = 2e-3


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
        """Raises :class:`Refused` if rows have different outputs when run together than when run in
        parts. ``whole`` has the outputs of the chosen rows together, or is None if they have not
        been computed yet."""
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
            if is_out_of_memory(e):
                raise
            return {}

    def sketch(
        self, rules: dict[int, Rule], entries: Sequence[int], inputs: Inputs, rows: list[int], within: list[int]
    ) -> dict[int, list[tuple[float, float]]]:
        """For each scalar, the gradient of each parameter for the given rows, represented by two numbers instead of
        a second set of gradients: its dot product with a fixed vector, and its norm."""
        at = Rows.chosen(self.plan.batch, rows)
        with torch.enable_grad():
            env = run(self.tape, self.plan, entries, at, leaves=inputs.leaves(at))
            totals = {s: env[s].sum() * weight(rule, rows, within) for s, rule in rules.items()}
        env.clear()
        found = {}
        for left, (s, total) in zip(range(len(totals) - 1, -1, -1), totals.items()):
            grads = inputs.differentiated(total, [s], retain=left > 0) if total.requires_grad and inputs.own else []
            # Nothing here is random, and a mode would take longer for each of these many small kernels than the kernel
            # itself.
            with _disable_current_modes():
                found[s] = sketched(grads)
        return found


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
