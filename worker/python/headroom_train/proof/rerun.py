"""Repeats calls of a tape, and tells whether they can be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Optional

import torch

from ..failure import Refused
from ..sandbox.sandbox import HALF
from ..tape.recorded_module import record_of
from ..tape.snapshot import parameters
from ..tape.tape import Entry, Tape, set_random_state
from ..tape.trees import flatten
from .plan import Plan
from .rows import NOTHING, Rows, arguments, perform

SEVERAL = "the batch is reduced to more than one number"


def needed(tape: Tape, slots: Sequence[int]) -> list[int]:
    """The indices of the entries that compute the given slots, in order. If a function on the tape
    changes its arguments in place, these are the indices of all entries up to the last one
    needed."""
    maker: dict[Optional[int], int] = {}
    for i, e in enumerate(tape.entries):
        if not e.inplace:
            for s in e.slots:
                maker.setdefault(s, i)
    want, todo = set(), [maker[s] for s in slots]
    while todo:
        i = todo.pop()
        if i not in want:
            want.add(i)
            todo += [maker[s] for s in tape.entries[i].references()[0]]
    changes = {i: e.references()[0] for i, e in enumerate(tape.entries) if e.inplace}
    if not changes:
        return sorted(want)
    if any(not set(slots).isdisjoint(refs) for refs in changes.values()):
        want.add(max(i for i, refs in changes.items() if refs))
    return list(range(max(want) + 1))


def parted(tape: Tape, plan: Plan, entries: Sequence[int]) -> tuple[list[int], list[int]]:
    """Splits the entries, which are in order, into the modules' calls and the functions called on their results. If a
    module's call needs a function's result, or if a loss is computed inside a module, returns all
    entries and no functions."""
    first: list[int] = []
    tail: list[int] = []
    made: set[Optional[int]] = set()  # slots of functions' results
    inside = needs = after = False  # a module computes a loss; it needs a function's result; it is called after one
    for i in entries:
        entry = tape.entries[i]
        if entry.module is None:
            tail.append(i)
            made.update(entry.slots)
            continue
        first.append(i)
        inside = inside or any(s is not None and plan.slots[s].whole for s in entry.slots)
        needs = needs or not made.isdisjoint(entry.references()[0])
        after = after or bool(tail)
    if any(tape.entries[i].inplace for i in tail):
        needs = after
    return (list(entries), []) if inside or needs else (first, tail)


def run(
    tape: Tape,
    plan: Optional[Plan],
    entries: Sequence[int],
    rows: Optional[Rows],
    env: Optional[dict] = None,
    leaves: Optional[dict] = None,
) -> dict:
    """Repeats the calls of the given entries for the given rows, or for all rows if ``rows`` is
    None. Returns the values by slot."""
    env = {} if env is None else env
    for i in entries:
        entry = tape.entries[i]
        cut = NOTHING if plan is None or rows is None else plan.cuts[i]
        args, kwargs = arguments(tape, entry, cut, env, rows, leaves=leaves)
        if entry.snapshot is not None:
            entry.snapshot.put_back()
        if plan is None and entry.random is not None:
            set_random_state(entry.random)
        result = perform(entry, args, kwargs)
        if isinstance(result, torch.Tensor):
            if entry.slots[0] is not None:
                env[entry.slots[0]] = result
            continue
        for slot, value in zip(entry.slots, flatten(result)[0]):
            if slot is not None:
                env[slot] = value
    return env


def unchanged(tape: Tape, entries: Sequence[int]) -> None:
    """Raises Refused if an argument of the given entries, or a parameter of their modules, has
    been written to since their calls."""
    for i in entries:
        why = altered(tape, tape.entries[i])
        if why is not None:
            raise Refused(why)


def altered(tape: Tape, entry: Entry) -> Optional[str]:
    """A message if an argument or a parameter of a call has been written to since the call was
    made; None otherwise."""
    for index in entry.references()[1]:
        if tape.versions[index] >= 0 and tape.outside[index]._version != tape.versions[index]:
            return "an argument has been changed since it was used"
    if (
        entry.module is not None
        and entry.versions is not None
        and entry.versions != versions_of(parameters([entry.module]))
    ):
        return "parameters have been changed since they were used"
    return None


def versions_of(params: Iterable[torch.Tensor]) -> list[int]:
    """The version of each parameter, which shows whether a trained parameter has changed; -1 for a
    frozen one."""
    return [p._version if p.requires_grad else -1 for p in params]


def modules_of(tape: Tape) -> list[torch.nn.Module]:
    return list({id(e.module): e.module for e in tape.entries if e.module is not None}.values())


def half_in(tape: Tape, modules: Sequence[torch.nn.Module]) -> bool:
    """Whether a step computes anything in half precision. Half precision inside a module is known
    only if a trial has seen it."""
    return any(e.autocast for e in tape.entries) or any(
        f.half or any(p.dtype in HALF for p in f.params) for f in map(record_of, modules) if f is not None
    )
