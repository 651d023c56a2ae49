"""Runs the tape again, some rows at a time.

The script sees no effect until the last piece is done. Gradients are summed in accumulators of our
own, so a piece that fails is simply run again with fewer rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Optional

import torch

from ..failure import Refused, clean, debugged, is_out_of_memory, patiently
from ..hooks.registered import registered
from ..proof.groups import Inputs
from ..proof.plan import Plan
from ..proof.proof import SMALL, Proof, proven
from ..proof.rerun import SOME, bends, needed, note_bends, parted, run, unchanged
from ..proof.rows import Rows, Slot
from ..proof.weights import Rule, agrees, halves, weight
from ..sandbox.sandbox import HALF, NoRandomness
from ..spill.saved import on_host
from ..tape.graph import may_bend
from ..tape.tape import Tape, random_state, same_random_state, set_random_state

FINE = 16  # pieces that are finer than this part of a batch take longer than giving up what could be kept for later


class Gradients:
    """Sums of the gradients of pieces, in the order of :class:`Inputs`."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.own: list[Optional[torch.Tensor]] = [None] * len(inputs.own)
        self.entering: dict[int, Any] = {i: ([] if i in inputs.cut else None) for i in inputs.entering}

    def add(self, grads: Sequence[Optional[torch.Tensor]], leaves: dict[int, torch.Tensor]) -> None:
        taken: set[int] = set()
        sums, added = [], []
        for i, g in enumerate(grads[: len(self.own)]):
            if g is not None:
                old = self.own[i]
                if old is None:  # autograd may return one tensor for two inputs, or a view of it
                    memory = g.untyped_storage() if g.layout == torch.strided else None
                    if memory is not None and (
                        memory.data_ptr() in taken or memory.nbytes() != g.numel() * g.element_size()
                    ):
                        g = g.clone()
                    elif memory is not None:
                        taken.add(memory.data_ptr())
                elif old.layout == g.layout == torch.strided:
                    sums.append(old)
                    added.append(g)
                    continue
                self.own[i] = g if old is None else old + g
        if sums:
            torch._foreach_add_(sums, added)
        for (index, leaf), g in zip(leaves.items(), grads[len(self.own) :]):
            if index in self.inputs.cut:
                self.entering[index].append(torch.zeros_like(leaf) if g is None else g)
            elif g is not None:
                old = self.entering[index]
                self.entering[index] = g.clone() if old is None else old + g

    def all(self) -> list[Optional[torch.Tensor]]:
        out = list(self.own)
        for index, value in self.entering.items():
            out.append(self.inputs.cut[index].joined(value) if isinstance(value, list) else value)
        return out


def pieces_of(batch: int, size: int) -> list[Rows]:
    """The batch in as few pieces of at most ``size`` rows as possible, of nearly equal size."""
    count = -(-batch // size)
    edges = [batch * i // count for i in range(count + 1)]
    return [Rows(batch, a, b) for a, b in zip(edges, edges[1:])]


def in_two(batch: int) -> Callable[[int], int]:
    """Returns a ``size`` for :func:`by_pieces` that halves the batch, and halves any piece that fails."""
    return lambda failed: -(-batch // 2) if not failed else failed // 2


def by_pieces(
    batch: Optional[int],
    size: Callable[[int], int],
    work: Callable[[Optional[Rows]], Any],
    take: Callable[[Optional[Rows], Any], None],
    release: Callable[[], bool] = lambda: False,
) -> int:
    """Calls ``work`` for each piece of a batch of ``batch`` rows, one after the other, and passes the results of
    ``work`` to ``take``. If ``batch`` is None, the whole batch is one piece, for which ``work`` and ``take``
    receive None. Returns the number of pieces.

    ``size(failed)`` returns how many rows a piece may have after a piece of ``failed`` rows has failed.
    ``failed`` is 0 before any failure. ``size`` returns 0 to stop. ``release`` gives back memory that the pieces
    can do without, and returns whether there was any; it is asked once pieces of one :data:`FINE`-th of the batch do
    not fit, and the piece that has failed is then tried again. Raises what
    ``work`` raises, except if memory runs out; then raises :class:`Refused` if no smaller piece is left to try."""
    todo: list[Optional[Rows]] = [None] if batch is None else [*pieces_of(batch, max(1, min(batch, size(0))))]
    done, failures = 0, 0
    while todo:
        rows = todo[0]
        failed: Optional[BaseException] = None
        try:
            got = work(rows)
        except Exception as e:
            if not is_out_of_memory(e):
                raise
            debugged()
            failed = e
        if failed is None:
            take(rows, got)
            got = None  # free it before the next piece
            done += 1
            todo.pop(0)
            continue
        failures += 1
        released = (rows is None or batch is None or rows.count == 1 or rows.count * FINE <= batch) and release()
        clean(failed, thorough=failures > 1)
        if released:
            continue
        fits = 0 if rows is None else size(rows.count)
        if fits < 1 or rows is None or batch is None:
            raise Refused(
                "one row alone does not fit"
                if rows is not None
                else "the whole batch does not fit on a second try either"
            )
        if fits < rows.count:
            left = pieces_of(batch - rows.start, fits)
            todo = [Rows(batch, rows.start + p.start, rows.start + p.stop) for p in left]
    return done


def gradients(
    tape: Tape,
    plan: Optional[Plan],
    targets: dict[int, tuple[Any, Rule]],
    size: Callable[[int], int],
    scale: float = 1.0,
    offload: bool = False,
    keep: Optional[dict[int, Any]] = None,
) -> tuple[dict[int, torch.Tensor], Inputs, Gradients, int]:
    """Computes the scalars in ``targets`` and the sum of their gradients, in pieces if there is a plan, otherwise
    for the whole batch. ``targets`` maps the slot of each scalar to (G, rule); its gradient is multiplied by G
    before it is added to the sum. If G is None, only the scalar's value is wanted.

    ``keep`` maps slots to what collects their values from the pieces; it is emptied if a piece runs out of memory.
    ``size`` is as in :func:`by_pieces`. If the first piece refutes a rule, all rules are determined once more.
    Returns the values by slot, the inputs, the inputs' gradients and the number of pieces. Passes on the
    exceptions of the replay, and raises :class:`Refused` if one row does not fit."""
    entries = needed(tape, list(targets))
    unchanged(tape, entries)
    inputs = Inputs(tape, plan, entries)
    sums = Gradients(inputs)
    values: dict[int, Any] = dict.fromkeys(targets, 0.0)
    rules = {} if plan is None else {s: rule for s, (_, rule) in targets.items()}  # rules that are still to be checked
    straight = Straight(tape)

    def work(rows: Optional[Rows]) -> Any:
        return _piece(tape, plan, entries, rows, targets, inputs, scale, offload, keep or {}, rules, straight)

    def add(rows: Optional[Rows], got: Any) -> None:
        if got is not None:
            rules.clear()
            piece_values, grads, leaves, kept = got
            for slot, v in kept.items():
                keep[slot].append(v)  # type: ignore[index]
            sums.add(grads, leaves)
            for slot, v in piece_values.items():
                values[slot] = values[slot] + v
        elif inputs.cut:
            sums.add([None] * len(inputs.tensors), inputs.leaves(rows))

    def forget() -> bool:
        kept = bool(keep)
        if keep is not None:
            keep.clear()
        return kept

    batch, determined = None if plan is None else plan.batch, False
    while True:  # what makes trials for an outline necessary is known after them
        try:
            return values, inputs, sums, by_pieces(batch, size, work, add, forget)
        except Refuted as e:
            if determined and e.outline is None:
                raise
            refuted, determined = e, True
        Proof.forget()
        proof, pieces = Proof(tape, plan, among=refuted.rows), pieces_of(batch, size(0))  # type: ignore[arg-type]
        rules.update(proven(proof, list(targets), pieces))
        if refuted.outline is not None:
            plan.outlines.passed(refuted.outline)  # type: ignore[union-attr]
        targets = {s: (g, rules[s]) for s, (g, _) in targets.items()}
        sums, values = Gradients(inputs), dict.fromkeys(targets, 0.0)
        forget()


class Straight:
    """Looks, in the first piece that is differentiated, whether a tape's backward pass may not be linear, and notes
    that."""

    def __init__(self, tape: Tape) -> None:
        self._tape, self._looked = tape, bends(tape)

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """A context for a piece's forward pass, in which a hook on a tensor is noted: its graph will not show it."""
        hooks: list[tuple[torch.Tensor, Any]] = []
        with nullcontext() if bends(self._tape) else registered(hooks):
            yield
        if hooks:
            note_bends(self._tape)

    def look(self, total: torch.Tensor) -> None:
        """Looks at the graph of a piece."""
        if not self._looked:
            self._looked = True
            if may_bend(total):
                note_bends(self._tape)


class Refuted(Refused):
    """Raised if what was found in trials on earlier batches may not hold for this one."""

    # The rows of the piece that has shown it, if others may not, and the outline of its graphs.
    rows: Optional[Rows] = None
    outline: Optional[int] = None

    def within(self, rows: Optional[Rows], outline: int) -> Refuted:
        self.rows, self.outline = rows, outline
        return self


def _piece(
    tape: Tape,
    plan: Optional[Plan],
    entries: Sequence[int],
    rows: Optional[Rows],
    targets: dict[int, tuple[Any, Rule]],
    inputs: Inputs,
    scale: float,
    offload: bool,
    keep: dict[int, Any],
    rules: dict[int, Rule],
    straight: Straight,
) -> Any:
    if tape.reducers is not None:
        tape.reducers.in_time()
    weights = {}
    for slot, (_, rule) in targets.items():
        weights[slot] = 1.0 if rows is None else weight(rule, range(rows.start, rows.stop))
    if not any(weights.values()) and not keep:
        return None  # none of these rows has a weight: the mean would be NaN
    leaves = inputs.leaves(rows)
    hooks = on_host() if offload else nullcontext()
    if not any(weights.values()):  # none of these rows has a weight, but their results are wanted
        with torch.no_grad():
            env = run(tape, plan, entries, rows)
        return {}, [None] * len(inputs.tensors), leaves, {s: env[s].clone() for s in keep if s in env}
    summed: list[int] = []  # slots of the scalars that are differentiated
    with torch.set_grad_enabled(any(factor is not None for factor, _ in targets.values())), hooks:
        with straight.hooks():
            env = run(tape, plan, entries, rows, leaves=leaves)
        total: Any = 0.0
        values = {}
        for slot, (factor, _) in targets.items():
            if weights[slot]:
                value = env[slot]
                values[slot] = value.detach() * weights[slot]
                if factor is not None:
                    summed.append(slot)
                    total = total + (value.float() if value.dtype in HALF else value).sum() * weights[slot] * factor
        total = total * scale if scale != 1.0 else total
    if plan is not None and summed and plan.outlines is not None:
        strange = plan.outlines.strange({s: env[s] for s in summed})
        if strange is not None:
            raise Refuted("the calls of a piece have other graphs than those that were tried").within(rows, strange)
    # Only a plan has rules.
    holds = _holding(tape, plan, rules, rows, env) if rules else lambda: True  # type: ignore[arg-type]
    kept = {s: env[s].detach().clone() for s in keep if s in env}
    env.clear()
    grads: list[Optional[torch.Tensor]] = [None] * len(inputs.tensors)
    if isinstance(total, torch.Tensor):  # otherwise none of the scalars that are differentiated has a weight here
        straight.look(total)
        grads = inputs.differentiated(total, summed, list(leaves.values()))
    if not holds():
        raise Refuted("the loss of a batch is not a weighted sum of the losses of its rows")
    return values, grads, leaves, kept


def _holding(tape: Tape, plan: Plan, rules: dict[int, Rule], piece: Rows, env: dict) -> Callable[[], bool]:
    """Returns a function that checks rules on a few rows of a piece, and returns whether they hold.
    ``env`` has the piece's results. The check is needed because the rules were tried on an earlier
    batch, and the labels of this batch, for example, may have other weights. The function waits
    until the GPU has computed the losses of these rows, so it is best called once backward has been
    started."""
    entries = needed(tape, list(rules))
    first, tail = parted(tape, plan, entries)
    if not tail:
        return lambda: True
    slots = {s for i in first for s in tape.entries[i].slots if s is not None and s in env}
    changing = any(tape.entries[i].inplace for i in tail)
    # Otherwise env has only one row, or values that a function has changed in place.
    there = piece.count > 1 and not changing
    count = (
        min(piece.count, max(2, min(SOME, SMALL * piece.count // max(1, sum(env[s].numel() for s in slots)))))
        if there
        else 2
    )
    start = min(piece.start, plan.batch - count)
    rows = list(range(start, start + count))
    half = any(s is not None and plan.slots[s].dtype in HALF for i in entries for s in tape.entries[i].slots)
    device = plan.slots[next(iter(rules))].device

    def values(outputs: dict, some: list[int]) -> list[torch.Tensor]:
        def cut(s: int) -> torch.Tensor:
            known, output = plan.slots[s], outputs[s].clone() if changing else outputs[s]
            if known.axis is None:
                return output
            part = known.axis.some(output, some[0] - start, len(some))
            # A module returns contiguous rows, whichever dimension they are in; some functions need them to be.
            return part.contiguous() if output.is_contiguous() else part

        found = run(tape, plan, tail, Rows(plan.batch, some[0], some[-1] + 1), {s: cut(s) for s in slots})
        return [found[s].float().reshape(()).to(device) for s in rules]

    def losses() -> torch.Tensor:
        outputs = (
            {s: env[s].detach() for s in slots}
            if there
            else run(tape, plan, first, Rows(plan.batch, start, start + count))
        )
        return torch.stack([v for some in (rows, *parts) for v in values(outputs, some)])

    parts, state = halves(rows), random_state()
    with torch.no_grad():
        found = losses()
        if not same_random_state(state, random_state()):
            set_random_state(state)
            with NoRandomness():
                found = losses()
            set_random_state(state)

    here, copied = found.to("cpu", non_blocking=True), torch.cuda.Event() if found.is_cuda else None
    if copied is not None:
        copied.record(torch.cuda.current_stream(found.device))

    def holds() -> bool:
        if copied is not None:
            copied.synchronize()  # waiting for the stream would mean waiting for the whole of backward
        # For all rows and for each part, a value for each rule.
        whole, *split = zip(*[iter(here.tolist())] * len(rules))
        return all(
            not math.isfinite(all_rows) or agrees(rule, parts, some, rows, all_rows, 1e-2 if half else 1e-3)
            for rule, all_rows, some in zip(rules.values(), whole, zip(*split))
        )

    return holds


def room_for(known: Slot) -> torch.Tensor:
    """Memory for a result of the whole batch, to be filled by pieces."""
    return patiently(
        lambda: torch.empty(known.shape, dtype=known.dtype, device=known.device),
        "there is not enough memory for the results",
    )
