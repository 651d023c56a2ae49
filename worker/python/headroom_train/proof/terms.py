"""Scalars that are computed from other scalars, such as a loss that is a sum.

A scalar that is computed from rows is a *term*. Whatever the script computes from terms alone belongs
to the batch as a whole, and is computed once. So the gradients of a loss take one replay for all of its
terms together: each term counts in it as much as the loss's derivative with respect to that term says.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from ..failure import Refused
from ..hooks.genuine import grad
from ..tape.tape import Tape
from .plan import Plan
from .rerun import SEVERAL, needed, run, unchanged


class Terms:
    """The terms of one scalar, and how the scalar is computed from them. Raises :class:`Refused` if it is not
    computed from terms alone."""

    def __init__(self, tape: Tape, plan: Plan, slot: int) -> None:
        self._tape, self.slot = tape, slot
        self.slots: list[int] = []  # of the terms
        # Slots of other numbers of the batch from which the scalar is computed, and which have no graph.
        self.given: list[int] = []
        self._tail: list[int] = []  # the entries that compute the scalar from the terms
        self._made: set[Optional[int]] = set()  # slots of the terms, and of what is computed from them
        for i in needed(tape, [slot]):
            self._add(plan, i)
        if slot not in self._made:
            if self.slots:
                raise Refused("a part of the loss is no sum over rows")
            raise Refused("the loss has no part that is a sum over rows")
        terms = [plan.slots[s] for s in self.slots]
        if any(term.dtype.is_complex or max(term.shape, default=1) > 1 for term in terms):
            raise Refused(SEVERAL)
        outside = {i: tape.outside[i] for e in self._tail for i in tape.entries[e].references()[1]}
        self._beside = {i: t for i, t in outside.items() if t.requires_grad}
        # Leaves and graphs of the script's that enter after the terms.
        self.beside = list({id(t): t for t in self._beside.values()}.values())

    def _add(self, plan: Plan, i: int) -> None:
        """Adds an entry that computes terms from rows, or computes something from terms alone; leaves others out."""
        entry = self._tape.entries[i]
        refs = entry.references()[0]
        scalars = [s for s in entry.slots if s is not None and plan.is_scalar(s)]
        if scalars and (entry.module is not None or any(plan.slots[r].dim is not None for r in refs)):
            self.slots += scalars
            self._made.update(scalars)
            return
        others = [r for r in refs if r not in self._made]
        if entry.module is not None or len(others) == len(refs):
            return
        if all(plan.slots[r].dim is None and not plan.slots[r].requires_grad for r in others):
            self._tail.append(i)
            self.given += others
            self._made.update(entry.slots)

    def value(self, values: dict[int, torch.Tensor]) -> torch.Tensor:
        """The scalar, computed from ``values``, which has those of the terms and of what else is given."""
        unchanged(self._tape, self._tail)
        return run(self._tape, None, self._tail, None, {s: values[s] for s in (*self.slots, *self.given)})[self.slot]

    def derivatives(
        self, values: dict[int, torch.Tensor], given: Optional[torch.Tensor] = None
    ) -> tuple[dict[int, Any], dict[torch.Tensor, torch.Tensor]]:
        """The scalar's derivative with respect to each term on which it depends, by slot, and its gradients with
        respect to the tensors in ``beside``, all multiplied by ``given``, which stands for 1 if it is None."""
        if self.slots == [self.slot]:
            return {self.slot: 1.0 if given is None else given}, {}
        unchanged(self._tape, self._tail)
        leaves = {s: values[s].detach().clone().requires_grad_() for s in self.slots}
        apart = {id(t): t.detach().requires_grad_() for t in self.beside}
        with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
            env = {**{s: values[s] for s in self.given}, **leaves}
            env = run(self._tape, None, self._tail, None, env, {i: apart[id(t)] for i, t in self._beside.items()})
            found = grad(env[self.slot], [*leaves.values(), *apart.values()], given)
        derivatives = {s: g for s, g in zip(self.slots, found) if g is not None}
        return derivatives, {t: g for t, g in zip(self.beside, found[len(self.slots) :]) if g is not None}
