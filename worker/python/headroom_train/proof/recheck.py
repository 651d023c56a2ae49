"""Checks whether calls that succeeded return the same results when they are repeated.

A script may change something for the duration of a call and then change it back, for example an attribute or a global.
A replay would then silently compute something else. So when a call fails, some values of the results that the script
holds at that moment are kept. Before pieces are run, the calls that returned these results are repeated on the whole
batch, with the same random numbers and in the same modes, but without saving tensors for a backward pass. Where there
is not enough memory for that, the calls are repeated on a few rows only; if they drew random numbers, the step is
refused instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch

from ..failure import Refused, Unrepeatable, patiently
from ..sandbox.sandbox import rehearsal, undone, unwarned
from ..tape.graph import signature
from ..tape.tape import Tape, place_of, random_state, same_random_state, unrecorded
from .plan import Plan
from .rerun import half_in, modules_of, needed, run, unchanged
from .rows import Rows, alike, rounding, sample, steps_of


class Sampled(NamedTuple):
    """Samples of those results of a tape that the script held when something failed."""

    values: dict[int, torch.Tensor]  # some values of each result, by slot
    steps: dict[int, tuple]  # the strides with which the values were sampled, by slot
    graphs: dict[int, int]  # signatures of the results' graphs, by slot
    known: frozenset[int]  # the ids of the leaves that were known when these were taken
    entries: int  # the number of entries on the tape at that moment
    drawn: bool  # random numbers were drawn


def note(tape: Tape) -> None:
    """Keeps samples of the results that the script holds, unless the tape has samples already.
    Raises :class:`Refused` if there is not enough memory for that."""

    def sampled() -> Sampled:
        values, steps, graphs = {}, {}, {}
        known = frozenset(id(t) for t in tape.leaves())
        with unrecorded():
            for tensor in (ref() for ref in tape.live):
                place = None if tensor is None else place_of(tensor)
                if tensor is None or place is None or place.deferred:
                    continue
                if tensor.is_floating_point() or tensor.is_complex():
                    steps[place.slot] = steps_of(tensor.shape)
                    values[place.slot] = sample(tensor, steps[place.slot])
                    graphs[place.slot] = signature([tensor], known)
        drawn = not same_random_state(tape.random, random_state())
        return Sampled(values, steps, graphs, known, len(tape.entries), drawn)

    if tape.step.sampled is None and tape.entries:
        tape.step.sampled = patiently(sampled, "there is not enough memory to inspect a call's results")


def confirm(tape: Tape, plan: Plan, entries: Sequence[int]) -> None:
    """Repeats those of the given entries whose results :func:`note` has sampled. Raises
    :class:`Refused` if a result is now different."""
    sampled: Optional[Sampled] = tape.step.sampled
    if sampled is None:
        return
    made = {s for i in entries for s in tape.entries[i].slots}
    slots = [s for s in sampled.values if s in made]
    if not slots:
        return
    again = [i for i in needed(tape, slots) if i < sampled.entries]
    keys = tuple(plan.keys[i] for i in again)
    if tape.step.preemptive and keys in Plan.same:  # nothing has failed: comparing one step of each kind is enough
        return
    unchanged(tape, again)
    if not _same(tape, plan, sampled, again, slots):
        Plan.forget()
        raise Unrepeatable("a call returns different results when it is repeated")
    Plan.same.add(keys)
    for s in slots:
        del sampled.values[s]


def _same(tape: Tape, plan: Plan, sampled: Sampled, again: Sequence[int], slots: Sequence[int]) -> bool:
    """Whether the entries ``again`` return what was sampled: for the whole batch if there is enough memory."""
    why = "there is not enough memory to repeat the step's calls"
    try:
        return patiently(lambda: _whole(tape, sampled, again, slots), why)
    except Refused:
        if sampled.drawn:
            raise
    return patiently(lambda: _rows(tape, plan, sampled, again, slots), why)


def _whole(tape: Tape, sampled: Sampled, again: Sequence[int], slots: Sequence[int]) -> bool:
    """Repeats the entries ``again`` for the whole batch. Returns whether the results are the same
    as those that were sampled."""
    modules = modules_of(tape)
    with undone(modules), unwarned(), unsaved(), torch.enable_grad():
        env: dict[int, torch.Tensor] = {}
        for i in again:
            run(tape, None, [i], None, env)
        half = half_in(tape, modules)
        most, total = rounding(tape, half), 5e-3 if half else 1e-3  # total is for a loss, which is a sum
        return all(
            sampled.graphs[s] == signature([env[s]], sampled.known)
            and alike(v, sample(env[s], sampled.steps[s]), min(most, total) if v.numel() == 1 else most)
            for s, v in sampled.values.items()
            if s in slots
        )


def _rows(tape: Tape, plan: Plan, sampled: Sampled, again: Sequence[int], slots: Sequence[int]) -> bool:
    """Repeats the entries ``again`` for the first two rows alone. Returns whether the results are the same as those
    that were sampled. The tolerance allows for the fact that different kernels may be used for so few rows."""
    modules, rows = modules_of(tape), Rows(plan.batch, 0, 2)
    with rehearsal(modules), torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
        env = run(tape, plan, again, rows)
        most = 1e-1 if half_in(tape, modules) else 1e-2
        for s in slots:
            known = plan.slots[s]
            if known.axis is not None and sampled.steps[s][known.axis.dim] == 1:
                value = known.axis.some(sampled.values[s], 0, rows.count)
                if not alike(value, sample(env[s], sampled.steps[s]), most):
                    return False
    return True


def agree(tape: Tape, env: dict[int, torch.Tensor]) -> bool:
    """Whether the values of slots are those that :func:`note` has sampled, of calls that draw no random numbers."""
    sampled: Optional[Sampled] = tape.step.sampled
    if sampled is None:
        return True
    most = rounding(tape, half_in(tape, modules_of(tape)))
    return not sampled.drawn and all(
        alike(v, sample(env[s], sampled.steps[s]), most) for s, v in sampled.values.items() if s in env
    )


def unsaved() -> Any:
    """A context in which autograd builds graphs, so that the same kernels run, but saves no tensors
    for them. Only tensors of special classes are saved, since a function that is compiled in this
    context is traced with such tensors."""

    def pack(tensor: torch.Tensor) -> Any:
        return None if type(tensor) in (torch.Tensor, torch.nn.Parameter) else tensor

    def unpack(kept: Any) -> torch.Tensor:
        if kept is None:
            raise RuntimeError("a graph that was made only for comparison has no values")
        return kept

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)
