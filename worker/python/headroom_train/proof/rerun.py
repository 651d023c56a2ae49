"""Repeats calls of a tape, tells whether they can be repeated, and tries them on a few rows: without randomness, side
effects, and mixed precision."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Callable, Optional

import torch

from ..failure import NoMemory, Refused, clean, interrupts, is_out_of_memory
from ..hooks.changes import changed
from ..sandbox.sandbox import ANYWHERE, HALF, NEVER, NoRandomness, rehearsal
from ..tape.functions import NOISY
from ..tape.recorded_module import RecordedModule, draws_of, record_of
from ..tape.snapshot import parameters
from ..tape.tape import UPDATED, Entry, Tape, set_random_state
from ..tape.trees import flatten
from .plan import Plan
from .rows import NOTHING, Rows, arguments, perform

SOME = 8  # the most rows of a trial that runs the modules several times
SEVERAL = "the batch is reduced to more than one number"


def _makers(tape: Tape) -> dict[Optional[int], int]:
    """By slot, the index of the entry that computes it."""
    maker: dict[Optional[int], int] = {}
    for i, e in enumerate(tape.entries):
        if not e.inplace:
            for s in e.slots:
                maker.setdefault(s, i)
    return maker


def needed(tape: Tape, slots: Sequence[int], known: Collection[int] = ()) -> list[int]:
    """The indices of the entries that compute the given slots from those that are ``known``, in order. If a function on
    the tape changes its arguments in place, these are the indices of all entries up to the last one needed."""
    maker = _makers(tape)
    want, todo = set(), [maker[s] for s in slots]
    while todo:
        i = todo.pop()
        if i not in want:
            want.add(i)
            todo += [maker[s] for s in tape.entries[i].references()[0] if s not in known]
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
    call: Callable[[Entry, Any, Any], Any] = perform,
) -> dict:
    """Repeats the calls of the given entries for the given rows, or for all rows if ``rows`` is
    None; ``call`` makes one. Returns the values by slot."""
    env = {} if env is None else env
    for i in entries:
        entry = tape.entries[i]
        cut = NOTHING if plan is None or rows is None else plan.cuts[i]
        args, kwargs = arguments(tape, entry, cut, env, rows, leaves=leaves)
        if entry.snapshot is not None:
            entry.snapshot.put_back()
        if plan is None and entry.random is not None:
            set_random_state(entry.random)
        result = call(entry, args, kwargs)
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
        why = tape.altered(tape.entries[i])
        if why is not None:
            raise Refused(why)
    known = [p for p in parameters(modules_of(tape, entries)) if id(p) in tape.weights]
    if known and _figures(known) != [tape.weights[id(p)] for p in known]:
        raise Refused(UPDATED)


def weigh(tape: Tape, modules: Sequence[torch.nn.Module]) -> None:
    """Notes what the parameters of modules are like, for :func:`unchanged`: a script that changes them by itself often
    does so through ``p.data``, and no version tells."""
    params = [p for p in parameters(modules) if p.requires_grad and id(p) not in tape.weights]
    tape.weights.update(zip(map(id, params), _figures(params)))


@torch.no_grad()
def _figures(params: Sequence[torch.Tensor]) -> list[list[float]]:
    """Two figures of each parameter, of which at least one is another after an update."""
    found: dict[int, torch.Tensor] = {}
    for device in dict.fromkeys(p.device for p in params):
        there = [(i, p.detach()) for i, p in enumerate(params) if p.device == device]
        figures = [torch.stack([t.sum(), torch.linalg.vector_norm(t)]).double() for _, t in there]
        found.update(zip((i for i, _ in there), torch.stack(figures).cpu()))  # all at once: each read waits for a GPU
    return [found[i].tolist() for i in range(len(params))]


def refuse_acted_upon(tape: Tape) -> None:
    """Raises :class:`Refused` if the script has read values that depend on random numbers which a call on the tape
    draws, such as a policy's actions: pieces would draw others. Each module has been tried on a few rows before."""
    made = tape.makers(tape.acted).values()
    if any(e.call_name() in NOISY if e.module is None else draws_of(e.module) != NEVER for e in made):
        raise Refused("a call draws other random numbers when it is repeated, and some have been used already")


def modules_of(tape: Tape, entries: Optional[Sequence[int]] = None) -> list[torch.nn.Module]:
    """The modules that are called on a tape, or by some of its entries."""
    some = tape.entries if entries is None else [tape.entries[i] for i in entries]
    return list({id(e.module): e.module for e in some if e.module is not None}.values())


def records_of(tape: Tape) -> list[RecordedModule]:
    return [r for r in map(record_of, modules_of(tape)) if r is not None]


def bends(tape: Tape) -> bool:
    """Whether the backward pass of a step is known to be one that may not be linear in the gradient that it is given:
    the gradients of a loss that the script will scale are then not those of the loss, scaled."""
    return tape.bends or any(r.bends for r in records_of(tape))


def note_bends(tape: Tape) -> None:
    """Notes that :func:`bends` is true of a tape, and of later ones of the same modules."""
    tape.bends = True
    for record in records_of(tape):
        record.bends = True


def half_in(tape: Tape, modules: Sequence[torch.nn.Module]) -> bool:
    """Whether a step computes anything in half precision. Half precision inside a module is known
    only if a trial has seen it."""
    return any(e.autocast for e in tape.entries) or any(
        f.half or any(p.dtype in HALF for p in f.params) for f in map(record_of, modules) if f is not None
    )


@contextmanager
def precisely(tape: Tape, entries: Sequence[int]) -> Iterator[bool]:
    """A context in which entries run without the rounding errors of mixed precision, if all parameters are in single
    or double precision. Yields whether they are. If so, autocast stays off on this thread, even where a module enables
    it."""
    if any(p.dtype not in (torch.float32, torch.float64) for p in parameters(modules_of(tape))):
        yield False
        return
    autocast, enter = {i: tape.entries[i].autocast for i in entries}, torch.autocast.__enter__
    thread = get_ident()

    def disabled(context: Any) -> Any:
        if get_ident() != thread:
            return enter(context)
        wanted, context._enabled = context._enabled, False
        for record in records_of(tape):
            record.half = record.half or wanted
        try:
            return enter(context)
        finally:
            context._enabled = wanted

    try:
        for i in entries:
            tape.entries[i].autocast = None
        with changed(torch.autocast, "__enter__", disabled):
            yield True
    finally:
        for i, state in autocast.items():
            tape.entries[i].autocast = state


@contextmanager
def full_precision() -> Iterator[None]:
    """A context in which float32 products and convolutions do not round their factors to TF32. The context does nothing
    where a script uses PyTorch's newer settings, which cannot be mixed with those used here."""
    try:
        products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        yield
        return
    try:
        if products != "highest":
            torch.set_float32_matmul_precision("highest")
        if convolutions:
            torch.backends.cudnn.allow_tf32 = False
        yield
    finally:
        if products != "highest":
            torch.set_float32_matmul_precision(products)
        if convolutions:
            torch.backends.cudnn.allow_tf32 = True


def rehearsed(
    modules: Sequence[torch.nn.Module], count: int, work: Callable[[int, NoRandomness], Any], level: float = 0.5
) -> Any:
    """Calls ``work`` on ``count`` rows, with randomness and side effects suppressed. Returns the result. If there is
    not enough memory, ``work`` is called again with fewer rows. Raises :class:`NoMemory` if not even two rows fit.
    The :class:`NoRandomness` around the call covers no more than the modules are known to need. If ``work`` then fails
    for a reason other than memory, it is called once more under a full :class:`NoRandomness`."""
    records = [f for f in map(record_of, modules) if f is not None]
    where = max(map(draws_of, modules), default=NEVER)
    while True:
        failed: Optional[BaseException] = None
        try:
            with rehearsal(modules), NoRandomness(where, level=level) as trial:
                result = work(count, trial)
            for record in records:
                record.remember(trial.half, trial.where)
            return result
        except Exception as e:
            if is_out_of_memory(e):
                failed = e
            elif where == ANYWHERE or interrupts(e):
                raise
        if failed is None:
            where = ANYWHERE
            continue
        clean(failed)
        if count <= 2:
            raise NoMemory("there is not enough memory for a trial on two rows")
        count = max(2, min(count // 2, SOME))
