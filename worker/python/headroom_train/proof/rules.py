"""Finds out, by trials on a few rows, by which rules the losses of pieces add up to the loss of the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import combinations

import torch

from ..failure import Refused
from ..sandbox.sandbox import NoRandomness
from .groups import Groups, Inputs, added, residual
from .rerun import SOME, parted
from .rows import Rows, Slot
from .weights import Named, Rule, distinct, others, same_rule, settled, spread, surviving, telling, weight

ROUNDS = 6  # at most this many tries, each on different rows, to tell the rules apart
# Pairs of rows on which rules are tried if three rows do not fit: a pair can be cut in only one way, and a wrong rule
# may pass by chance.
PAIRS = 4


class Weighing:
    """A search for the rules of some scalars, by slot: first those in ``near``, and all in ``named`` for a scalar for
    which none of these is right. :attr:`left` has the rules that no try has refuted. Raises :class:`Refused` if none is
    left for a scalar."""

    def __init__(
        self,
        groups: Groups,
        entries: Sequence[int],
        pieces: Sequence[Rows],
        near: dict[int, Named],
        named: Named,
        tolerance: float,
    ) -> None:
        self._groups, self._pieces, self._tolerance = groups, pieces, tolerance
        self._near, self._named = dict(near), named
        # The modules' calls, and the functions that are called on their outputs: these alone are run for each try.
        self._entries = entries
        self._first, self._tail = parted(groups.tape, groups.plan, entries)
        self.left = {s: distinct([rule for _, rule in some]) for s, some in near.items()}

    def settles(self, count: int) -> bool:
        """Tries the rules on ``count`` rows, and then on others, until those that are left give the same weights to the
        pieces. Returns whether they do at last."""
        batch = self._groups.plan.batch
        chosen = spread(batch, count)
        if not self._tail:  # there are no outputs to keep: everything is run each time
            self._groups.compare(self._first, chosen, self._tolerance)
        least = PAIRS if count == 2 < batch else 1
        for again in range(ROUNDS):
            unsure = self._tried(chosen)
            if not unsure and again + 1 >= least:
                return True
            chosen = others(self.left[unsure[0] if unsure else next(iter(self.left))], batch, count, again)
        return False

    def names(self) -> dict[int, set]:
        """The names of the rules that are left, by slot."""
        return {
            s: {name for name, rule in self._near[s] if any(same_rule(rule, r) for r in rules)}
            for s, rules in self.left.items()
        }

    def _tried(self, chosen: list[int]) -> list[int]:
        """Tries the rules on these rows. Returns the scalars whose rules still disagree about the pieces."""
        outputs = self._groups.outputs(self._first, chosen, self._tolerance) if self._tail else {}
        value = Values(self._groups, list(self.left), self._tail or self._first, chosen, outputs)
        exact = self._tolerance
        # This runs the tail alone, on the same outputs: it may be in single precision even if the outputs are not.
        if self._tail:
            with NoRandomness() as trial:
                value(next(iter(self.left)), chosen)
            exact = self._tolerance / 10 if trial.half else 1e-5
        for s in self.left:
            self._refute(s, value, chosen, exact)
        unsure = [s for s, rules in self.left.items() if not settled(rules, self._pieces)]
        # Where all rows have nearly the same loss, rules that differ little cannot be told apart.
        if unsure and outputs:
            outputs = {s: stretched(v, self._groups.plan.slots[s]) for s, v in outputs.items()}
            value = Values(self._groups, unsure, self._tail, chosen, outputs)
            for s in unsure:
                self.left[s] = surviving(self.left[s], chosen, partial(value, s), exact) or self.left[s]
            unsure = [s for s in unsure if not settled(self.left[s], self._pieces)]
            for s in unsure:
                self.left[s] = self._told_apart(s, self.left[s]) or self.left[s]
            unsure = [s for s in unsure if not settled(self.left[s], self._pieces)]
        return unsure

    def _refute(self, slot: int, value: Values, chosen: list[int], exact: float) -> None:
        """Takes out the rules of a scalar that its values, or else its gradients, refute."""
        plan = self._groups.plan
        left = surviving(self.left[slot], chosen, partial(value, slot), exact)
        if not left and len(self._near[slot]) < len(self._named):
            self._near[slot] = self._named
            left = surviving(distinct([rule for _, rule in self._named]), chosen, partial(value, slot), exact)
        if left and not self._tail and not settled(left, self._pieces):
            left = self._told_apart(slot, left)
        if not left:
            text = "the loss of a batch is not a weighted sum of the losses of its rows"
            raise plan.mixed(text) if value.finite(slot) else Refused(text)
        self.left[slot] = left

    def _told_apart(self, slot: int, rules: Sequence[Rule]) -> list[Rule]:
        """The rules that gradients do not refute. Losses hardly show which of two similar rules is right if they are
        about the same in every row, as at the beginning of a training; the rows' gradients differ then, too. Each rule
        is used to add up the gradients of the same rows, cut in two ways into parts of one size."""
        groups, batch, left = self._groups, self._groups.plan.batch, list(rules)
        if not groups.plan.slots[slot].requires_grad or self._tolerance >= 1e-3:
            return left
        inputs = Inputs(groups.tape, groups.plan, self._entries)
        least = 2e-5 if any(t.is_cuda for t in inputs.tensors) else 1e-5
        for pair in combinations(rules, 2):
            rows = telling(pair, batch, min(SOME, batch // 4 * 4))
            if len(left) < 2 or len(rows) % 4 or any(r not in left for r in pair):
                continue
            half = len(rows) // 2
            parts = [rows[:half], rows[half:], rows[::2], rows[1::2]]
            sketches = [groups.sketch({slot: None}, self._entries, inputs, part, rows)[slot] for part in parts]
            left = [r for r in left if _disagreement(r, rows, parts, sketches) <= least]
        return left


def _disagreement(rule: Rule, rows: list[int], parts: Sequence[list[int]], sketches: Sequence[list]) -> float:
    """How far the gradients of the first two parts, weighted by a rule, are from those of the last two, when added
    up."""
    weighted = []
    for part, sketch in zip(parts, sketches):
        share = weight(rule, part, rows)
        weighted.append([(share * value, share * norm) for value, norm in sketch])
    return residual(added(*weighted[:2]), [added(*weighted[2:])])


class Values:
    """Values of scalars for some of the rows in ``chosen``, computed by ``entries`` from the modules' ``outputs`` for
    the chosen rows. If there are no outputs, the entries are the modules' calls."""

    def __init__(
        self, groups: Groups, slots: Sequence[int], entries: Sequence[int], chosen: list[int], outputs: dict
    ) -> None:
        self._groups, self._slots, self._entries, self._outputs = groups, slots, entries, outputs
        self._place = {r: i for i, r in enumerate(chosen)}
        self._found: dict[tuple[int, ...], dict[int, float]] = {}

    def __call__(self, slot: int, rows: Sequence[int]) -> float:
        if tuple(rows) not in self._found:
            known, where = self._groups.plan.slots, [self._place[r] for r in rows]
            env = self._groups.run(self._entries, rows, {s: known[s].pick(v, where) for s, v in self._outputs.items()})
            self._found[tuple(rows)] = {s: float(env[s]) for s in self._slots}
        return self._found[tuple(rows)][slot]

    def finite(self, slot: int) -> bool:
        """Whether all values of a scalar have been finite."""
        return all(math.isfinite(values[slot]) for values in self._found.values())


def stretched(value: torch.Tensor, slot: Slot) -> torch.Tensor:
    """Some rows of an output, each multiplied by another number."""
    if slot.axis is None or not value.is_floating_point():
        return value
    dim, parts = slot.axis.dim, slot.axis.apart(value)
    numbers = torch.arange(parts.shape[dim + 1], dtype=value.dtype, device=value.device)
    factors = numbers.mul(2.4).cos().mul(0.6).add(1.25)
    return (parts * factors.view(-1, *[1] * (parts.dim() - dim - 2))).flatten(dim, dim + 2)
