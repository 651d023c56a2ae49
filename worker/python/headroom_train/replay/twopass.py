"""Results of modules in pieces, whatever the script makes of them.

A first pass computes the results of some rows at a time, and keeps nothing for a backward pass. The results are joined:
they are real, and the script's loss runs on them as it is written. In the backward pass each piece is computed a second
time, with the same random numbers, and gets its rows of the results' gradients. So nothing has to be known about the
loss; only the modules must treat each row by itself. The loss's own graph and the results must fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Optional

import torch

from ..failure import Refused, bare, clean, is_out_of_memory, patiently
from ..hooks.genuine import set_aside
from ..proof.groups import TF32, Inputs, Sketch, added, residual, sketched
from ..proof.plan import Plan
from ..proof.proof import Proof
from ..proof.rerun import SOME, half_in, modules_of, rehearsed, run, unchanged
from ..proof.rows import Rows, Slot
from ..proof.weights import crossing, halves, spread
from ..tape.snapshot import submodules
from ..tape.tape import RandomState, Tape, random_state, same_random_state, set_random_state
from .pieces import Gradients, by_pieces


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
        self._spilled = False  # memory of the host has been made available for a piece
        self.drew = False  # random numbers were drawn, so a piece of the second pass has the rows of one of the first

    def first(self) -> tuple[dict[int, torch.Tensor], int]:
        """Computes the results, by slot. Returns the number of pieces as well. Graphs are built and let go, so that a
        piece which fits here fits in the second pass, too."""
        whole = {}
        for s in self.slots:
            known = self.plan.slots[s]
            crowded = "there is not enough memory for the results"
            whole[s] = patiently(
                lambda known=known: torch.empty(known.shape, dtype=known.dtype, device=known.device),  # type: ignore[misc]
                crowded,
            )

        def work(rows: Optional[Rows]) -> tuple[RandomState, dict[int, torch.Tensor]]:
            state = random_state()
            try:
                with torch.enable_grad():
                    env = run(self.tape, self.plan, self.entries, rows, leaves=self.inputs.leaves(rows))
            except Exception:
                set_random_state(state)
                raise
            return state, {s: env[s].detach() for s in self.slots}

        def take(rows: Optional[Rows], got: tuple[RandomState, dict[int, torch.Tensor]]) -> None:
            assert rows is not None
            self.made.append((rows, got[0]))
            self.drew = self.drew or not same_random_state(got[0], random_state())
            with torch.no_grad():
                for s, value in got[1].items():
                    axis = self.plan.slots[s].axis
                    axis.put(whole[s], rows.start, value)  # type: ignore[union-attr]

        return whole, by_pieces(self.plan.batch, self._sizes.next, work, take)

    def second(self, grads: Sequence[Optional[torch.Tensor]]) -> list[Optional[torch.Tensor]]:
        """The gradients of the inputs, given those of the results."""
        sums, after = Gradients(self.inputs), random_state()
        wanted = {s: g for s, g in zip(self.slots, grads) if g is not None}
        todo, failures = [*self.made], 0
        try:
            while todo:
                rows, state = todo.pop(0)
                set_random_state(state)
                failed: Optional[BaseException] = None
                try:
                    sums.add(*self._piece(rows, wanted))
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
        return sums.all()

    def _piece(self, rows: Rows, wanted: dict[int, torch.Tensor]) -> tuple[list, dict[int, torch.Tensor]]:
        leaves = self.inputs.leaves(rows)
        with torch.enable_grad():
            env = run(self.tape, self.plan, self.entries, rows, leaves=leaves)
            parts = {s: rows.of(g, self.plan.slots[s].axis) for s, g in wanted.items()}  # type: ignore[arg-type]
            total: Any = sum(_product(env[s], g) for s, g in parts.items())
        env.clear()
        return self.inputs.differentiated(total, [*wanted], list(leaves.values())), leaves

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
        found = [values[s].view_as(values[s]) for s in pieces.slots]
        ctx.mark_non_differentiable(*(t for t, s in zip(found, pieces.slots) if not pieces.plan.slots[s].requires_grad))
        ctx.set_materialize_grads(False)
        return (*found,)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():  # a second derivative is wanted, for which nothing is known here
            raise ctx.failure
        try:
            with set_aside():
                unchanged(ctx.pieces.tape, ctx.pieces.entries)
                return (None, None, *ctx.pieces.second(grads))
        except Refused:
            raise ctx.failure from None


def two_pass(tape: Tape, plan: Plan, entries: Sequence[int], slots: Sequence[int], sizes: Any) -> tuple[dict, int]:
    """The tensors of some slots, which have the rows of the batch, with graphs. Returns the number of pieces as well.
    Raises :class:`Refused` if rows depend on each other, in values or in gradients."""
    for m in submodules(modules_of(tape)):
        if m._backward_hooks or m._backward_pre_hooks:
            raise Refused(f"{type(m).__name__} has a backward hook, which would see the gradients of pieces")
    pieces = Pieces(tape, plan, entries, slots, sizes)
    proof = Proof(tape, plan)
    proof.alone(entries)
    apart(proof, pieces)
    values, count = pieces.first()
    with torch.enable_grad():
        found = TwoPass.apply(pieces, values, *pieces.inputs.tensors)
    return dict(zip(slots, found)), count


def apart(proof: Proof, pieces: Pieces) -> None:
    """Raises :class:`Refused` if the gradients of a row's results depend on the other rows. They are compared for a sum
    of the results in which every number counts differently, on the same rows in different company."""
    tape, plan, inputs = pieces.tape, pieces.plan, pieces.inputs
    slots = [s for s in pieces.slots if plan.slots[s].requires_grad]
    kind = ("apart", *slots, *proof._kind(pieces.entries, numbers=False))
    if kind in Proof.known or not inputs.own or plan.batch < 2 or not slots:
        return

    def tried(count: int, trial: Any) -> None:
        chosen = spread(plan.batch, count)
        made: dict[tuple[int, ...], Sketch] = {}

        def sketch(rows: list[int]) -> Sketch:
            if tuple(rows) not in made:
                at = Rows.chosen(plan.batch, rows)
                with torch.enable_grad(), torch._C.DisableTorchFunctionSubclass():
                    env = run(tape, plan, pieces.entries, at, leaves=inputs.leaves(at))
                    total = sum(_counted(env[s], plan.slots[s], rows) for s in slots)
                made[tuple(rows)] = sketched(inputs.differentiated(total, slots))  # type: ignore[arg-type]
            return made[tuple(rows)]

        cuda = any(t.is_cuda for t in inputs.tensors)
        most = 2e-2 if trial.half or half_in(tape, proof.modules) else TF32 if cuda else 1e-3
        if len(chosen) > 3:
            a, b, c, d = crossing(chosen)
            off = max(
                residual(sketch(chosen), [sketch(a + b), sketch(c + d)]),
                residual(added(sketch(a + b), sketch(c + d)), [sketch(a + c), sketch(b + d)]),
            )
        else:
            off = residual(sketch(chosen), [sketch(part) for part in halves(chosen)])
        if not off <= most:
            raise Refused("the gradients of pieces do not add up to those of the whole batch")

    rehearsed(proof.modules, min(plan.batch // 4 * 4 or plan.batch, SOME), tried)
    Proof.known[kind] = {}


def _counted(value: torch.Tensor, slot: Slot, rows: Sequence[int]) -> torch.Tensor:
    """A sum of a result's numbers, each multiplied by another one, which depends on the number of its row."""
    axis: Any = slot.axis
    by_row = axis.apart(value).movedim(axis.dim + 1, 0).reshape(len(rows), -1)
    by_row = torch.view_as_real(by_row).flatten(1) if by_row.is_complex() else by_row.float()
    across = torch.arange(1, by_row.shape[1] + 1, dtype=torch.float32, device=value.device).mul_(1.618034).cos_()
    down = torch.tensor([1.5 + 0.001 * (r % 997) for r in rows], device=value.device)
    return (by_row * across * down[:, None]).sum()
