"""Results of modules in pieces, whatever the script makes of them.

A first pass computes the results of some rows at a time, and keeps nothing for a backward pass. The results are joined:
they are real, and the script's loss runs on them as it is written. In the backward pass each piece is computed a second
time, with the same random numbers, and gets its rows of the results' gradients. So nothing has to be known about the
loss; only the modules must treat each row by itself. The loss's own graph and the results must fit.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from typing import Any, Optional

import torch

from ..failure import Refused, bare, clean, is_out_of_memory
from ..hooks.genuine import set_aside
from ..proof.groups import NUMBER, Inputs
from ..proof.plan import Plan
from ..proof.proof import Proof, refuse_backward_hooks
from ..proof.rerun import half_in, modules_of, run, unchanged
from ..proof.rows import Rows, alike, rounding, sample, thinned
from ..ranks.collectives import replaying
from ..tape.found import replay
from ..tape.tape import RandomState, Tape, random_state, same_random_state, set_random_state
from .pieces import Gradients, by_pieces, room_for


class Pieces:
    """What the second pass needs of the first: ``slots`` are the results, ``made`` the pieces with the random states at
    their beginnings."""

    def __init__(self, tape: Tape, plan: Plan, entries: Sequence[int], slots: Sequence[int], sizes: Any) -> None:
        # The script may let go of the results, and with them of the tape, before its backward pass.
        self.tape = copy(tape)
        self.tape.deferred, self.tape.live, self.tape.scalars = None, [], {}
        self.plan, self.entries, self.slots, self._sizes = plan, entries, slots, sizes
        self.inputs = Inputs(tape, plan, entries)
        self.made: list[tuple[Rows, RandomState]] = []
        self._seen: dict[int, dict[int, torch.Tensor]] = {}  # values of the first row of each piece, by row and slot
        self._spilled = False  # memory of the host has been made available for a piece
        # Pieces whose graphs are others than those that were tried, with their outlines.
        self.strange: list[tuple[Rows, int]] = []
        self.drew = False  # random numbers were drawn, so a piece of the second pass has the rows of one of the first

    def first(self) -> dict[int, torch.Tensor]:
        """Computes the results, by slot. Graphs are built and let go, so that a piece which fits here fits in the
        second pass, too."""
        known = self.plan.slots
        whole = {s: room_for(known[s]) for s in self.slots if known[s].axis is not None}

        def work(rows: Optional[Rows]) -> tuple[RandomState, dict[int, torch.Tensor]]:
            state = random_state()
            try:
                with torch.enable_grad():
                    env = run(self.tape, self.plan, self.entries, rows, leaves=self.inputs.leaves(rows))
            except Exception:
                set_random_state(state)
                raise
            strange = self.plan.outlines.strange({s: env[s] for s in self.slots})
            if strange is not None and rows is not None:
                self.strange.append((rows, strange))
            return state, {s: env[s].detach() for s in self.slots}

        def take(rows: Optional[Rows], got: tuple[RandomState, dict[int, torch.Tensor]]) -> None:
            assert rows is not None
            self.made.append((rows, got[0]))
            self.drew = self.drew or not same_random_state(got[0], random_state())
            with torch.no_grad():
                for s, value in got[1].items():
                    axis = known[s].axis
                    if axis is not None:
                        axis.put(whole[s], rows.start, value)
                    elif not torch.equal(whole.setdefault(s, value.clone()), value):
                        raise Refused(NUMBER)
            self._seen[rows.start] = self._first_row(got[1])

        by_pieces(self.plan.batch, self._sizes.next, work, take)
        return whole

    def second(self, grads: Sequence[Optional[torch.Tensor]]) -> list[Optional[torch.Tensor]]:
        """The gradients of the inputs, given those of the results."""
        sums, after, seen = Gradients(self.inputs), random_state(), dict[int, dict[int, torch.Tensor]]()
        wanted = {s: g for s, g in zip(self.slots, grads) if g is not None}
        todo, failures = [*self.made], 0
        try:
            while todo:
                rows, state = todo.pop(0)
                set_random_state(state)
                failed: Optional[BaseException] = None
                try:
                    grads, leaves, seen[rows.start] = self._piece(rows, wanted)
                    sums.add(grads, leaves)
                    continue
                except Exception as e:
                    if not is_out_of_memory(e):
                        raise
                    failed = e
                failures += 1
                clean(failed, thorough=failures > 1)
                todo[:0] = [(part, state) for part in self._smaller(rows, failed)]
        finally:
            set_random_state(after)
        self._compare(seen)
        return sums.all()

    def _first_row(self, values: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Some values of the first row of a piece, by slot."""
        axes = {s: axis for s in self.slots if (axis := self.plan.slots[s].axis) is not None}
        with torch.no_grad():
            return {s: thinned(axis.some(values[s].detach(), 0, 1)).clone() for s, axis in axes.items()}

    def _compare(self, seen: dict[int, dict[int, torch.Tensor]]) -> None:
        """Raises :class:`Refused` if the second pass has not returned what the first has: if a script changes something
        for a call and then changes it back, the gradients are not those of the call."""
        most = rounding(self.tape, half_in(self.tape, modules_of(self.tape)))
        for row in seen.keys() & self._seen.keys():
            if not all(alike(sample(v), sample(seen[row][s]), most) for s, v in self._seen[row].items()):
                raise Refused("a call returns different results when it is repeated")

    def _piece(
        self, rows: Rows, wanted: dict[int, torch.Tensor]
    ) -> tuple[list, dict[int, torch.Tensor], dict[int, torch.Tensor]]:
        if self.tape.reducers is not None:
            self.tape.reducers.in_time()
        leaves = self.inputs.leaves(rows)
        with torch.enable_grad():
            env = run(self.tape, self.plan, self.entries, rows, leaves=leaves)
            total: Any = sum(_product(env[s], g) for s, g in self._parts(rows, wanted).items())
        seen = self._first_row(env)
        env.clear()
        if not isinstance(total, torch.Tensor):
            return [None] * len(self.inputs.tensors), leaves, seen
        return self.inputs.differentiated(total, [*wanted], list(leaves.values())), leaves, seen

    def _parts(self, rows: Rows, wanted: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
        """A piece's part of the results' gradients, by slot. What does not depend on the rows is computed by each
        piece, and counts for the first."""
        axes = {s: self.plan.slots[s].axis for s in wanted}
        cut = {s: rows.of(wanted[s], axis) for s, axis in axes.items() if axis is not None}
        fixed = [s for s, axis in axes.items() if axis is None and rows.start == 0]
        return {**cut, **{s: wanted[s] for s in fixed}}

    def _smaller(self, rows: Rows, failed: BaseException) -> list[Rows]:
        """What a piece that has failed is cut into: the same piece where memory of the host can help."""
        if rows.count > 1 and not self.drew and not self.inputs.cut:
            middle = rows.start + rows.count // 2
            return [Rows(rows.batch, rows.start, middle), Rows(rows.batch, middle, rows.stop)]
        if self._spilled or not self._sizes.may_spill():
            raise failed
        self._spilled = True
        return [rows]


def _product(value: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """A scalar whose gradient with respect to ``value`` is ``grad``."""
    if value.is_complex():
        return (torch.view_as_real(value) * torch.view_as_real(grad)).sum()
    return (value.float() * grad.float()).sum() if value.dtype != torch.float64 else (value * grad).sum()


class TwoPass(torch.autograd.Function):
    """Makes results of the first pass depend on the inputs, whose gradients are those of the second pass."""

    @staticmethod
    def forward(ctx: Any, pieces: Pieces, values: dict, *inputs: torch.Tensor) -> Any:
        ctx.pieces, ctx.failure = pieces, bare(pieces.tape.step.failure)
        found = [values[s] for s in pieces.slots]  # no views: the script may change them in place
        ctx.mark_non_differentiable(*(t for t, s in zip(found, pieces.slots) if not pieces.plan.slots[s].requires_grad))
        ctx.set_materialize_grads(False)
        return (*found,)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if torch._C.is_grad_enabled():  # a second derivative is wanted, for which nothing is known here
            raise ctx.failure
        try:
            with set_aside(), replaying(), replay():
                unchanged(ctx.pieces.tape, ctx.pieces.entries)
                found = ctx.pieces.second(grads)
                if ctx.pieces.tape.reducers is not None:
                    ctx.pieces.tape.reducers.refuse_missing(ctx.pieces.inputs.tensors, found)
                return (None, None, *found)
        except Refused:
            raise ctx.failure from None


def separated(tape: Tape, entries: Sequence[int]) -> Optional[tuple[list[int], list[int]]]:
    """Splits entries into the calls of modules, which can be made in pieces together, and the functions that the script
    has called on their results, which run on the whole batch: they may relate rows. None if a module needs what a
    function has made, or written to."""
    calls = [i for i in entries if tape.entries[i].module is not None]
    functions = [i for i in entries if tape.entries[i].module is None]
    made = {s for i in functions for s in tape.entries[i].slots}
    written = min((i for i in functions if tape.entries[i].inplace), default=len(tape.entries))
    needs = {i: tape.entries[i].references()[0] for i in calls}
    mixed = any(not made.isdisjoint(slots) or slots and i > written for i, slots in needs.items())
    return None if mixed else (calls, functions)


def results(
    tape: Tape, plan: Plan, calls: Sequence[int], functions: Sequence[int], held: Collection[int] = ()
) -> list[int]:
    """The slots of the modules' results that functions use or that are ``held`` by the script. A number of the batch
    that is only held is left out. Raises :class:`Refused` if a function uses one."""
    used = {s for i in functions for s in tape.entries[i].references()[0]}
    found = [s for i in calls for s in tape.entries[i].slots if s is not None and (s in used or s in held)]
    if any(plan.slots[s].whole and s in used for s in found):
        raise Refused(NUMBER)
    return [s for s in found if not plan.slots[s].whole]


def two_pass(
    tape: Tape, plan: Plan, entries: Sequence[int], slots: Sequence[int], sizes: Any
) -> tuple[dict[int, torch.Tensor], Pieces]:
    """The tensors of some slots, which have the rows of the batch, with graphs, by slot; and what has computed them.
    Raises :class:`Refused` if rows depend on each other, in values or in gradients."""
    refuse_backward_hooks(modules_of(tape))
    pieces = Pieces(tape, plan, entries, slots, sizes)
    proof = Proof(tape, plan, entries=entries)
    proof.alone(entries)
    proof.apart(entries, slots)
    values, tensors = pieces.first(), pieces.inputs.tensors
    for rows, outline in pieces.strange:
        Proof.forget()
        proof = Proof(tape, plan, among=rows, entries=entries)
        proof.alone(entries)
        proof.apart(entries, slots)
        plan.outlines.passed(outline)
    if tape.reducers is not None:
        tensors = tape.reducers.in_order(tensors)
    with torch.enable_grad():
        found = TwoPass.apply(pieces, values, *tensors)
    return dict(zip(slots, found)), pieces
