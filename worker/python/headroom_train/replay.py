"""Runs the tape again, some rows at a time.

The script sees no effect until the last piece is done. Gradients are summed in accumulators of our
own, so a piece that fails is simply run again with fewer rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import combinations
from threading import get_ident
from typing import Any, Callable, ClassVar, Optional

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .calm import ANYWHERE, HALF, NEVER, STANCES, Calm, rehearsal
from .failure import Refused, clean, is_out_of_memory, patiently
from .found import draws_of, found_of, number_of
from .genuine import backward, grad
from .graph import reentrant
from .held import parameters, submodules
from .hooks import changed
from .norms import ALLOWANCE, HINT, Statistics, allowed, batchwise, independent, refuse_batchwise
from .rest import room
from .rows import NOTHING, Axis, Plan, Rows, arguments, as_real, perform, pick
from .tape import Entry, Tape, random_state, same_random_state, set_random_state
from .trees import flatten
from .weights import Rule, agrees, candidates, distinct, others, same_rule, settled, surviving, telling, weight

SMALL = 1 << 22  # rules are tried on the whole batch if all its outputs have at most this many elements
ROUNDS = 6  # at most this many tries, each on different rows, to tell the rules apart
ELEMENT = 64  # bytes of free memory required for each element of an output on which rules are tried
MOST = 256  # the most rows on which rules are tried
PAIRS = 4  # pairs of rows on which rules are tried if three rows do not fit: a pair can be cut in only one way, and a wrong rule may pass by chance
SOME = 8  # the most rows on which everything else is tried
FEW = 4  # the same for large outputs, where each row takes time
TF32 = 2e-3  # rounding errors of kernels for different numbers of rows on a GPU, where convolutions use TF32 unless a script says otherwise
HOOKED = "a parameter has a hook, which would see the gradients of pieces"
SEVERAL = "the batch is reduced to more than one number"
FINE = 16  # pieces that are finer than this part of a batch take longer than giving up what could be kept for later
PAUSE = 100  # rules are tried again once this many times the duration of their last trial has passed


def needed(tape: Tape, slots: Sequence[int]) -> list[int]:
    """The indices of the entries that compute the given slots, in order. If a function on the tape
    changes its arguments in place, these are the indices of all entries up to the last one
    needed."""
    maker: dict[int, int] = {}
    for i, e in enumerate(tape.entries):
        for s in e.slots:
            if s is not None and not e.inplace:
                maker.setdefault(s, i)
    want, todo = set(), [maker[s] for s in slots]
    while todo:
        i = todo.pop()
        if i not in want:
            want.add(i)
            todo += [maker[s] for s in tape.entries[i].references()[0]]
    last = max(want)
    if any(e.inplace for e in tape.entries):
        changed = {s for e in tape.entries if e.inplace for s in e.references()[0]}
        last = max([i for i, e in enumerate(tape.entries) if e.inplace and changed & set(e.references()[0]) and i > last and set(slots) & changed] + [last])
        return list(range(last + 1))
    return sorted(want)


def run(tape: Tape, plan: Optional[Plan], entries: Sequence[int], rows: Optional[Rows], env: Optional[dict] = None, leaves: Optional[dict] = None) -> dict:
    """Repeats the calls of the given entries for the given rows, or for all rows if ``rows`` is
    None. Returns the values by slot."""
    env = {} if env is None else env
    for i in entries:
        entry = tape.entries[i]
        cut = NOTHING if plan is None or rows is None else plan.cuts[i]
        args, kwargs = arguments(tape, entry, cut, env, rows, leaves=leaves)
        if entry.held is not None:
            entry.held.put_back()
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
    if entry.module is not None and entry.versions is not None and entry.versions != versions_of(parameters([entry.module])):
        return "parameters have been changed since they were used"
    return None


def versions_of(params: Iterable[torch.Tensor]) -> list[int]:
    """The version of each parameter, which shows whether a trained parameter has changed; -1 for a
    frozen one."""
    return [p._version if p.requires_grad else -1 for p in params]


class Inputs:
    """The tensors with respect to which a replayed scalar is differentiated: parameters of the modules
    on the tape, leaves from outside that the tape uses, and tensors from outside with a graph of their own."""

    def __init__(self, tape: Tape, plan: Optional[Plan], entries: Sequence[int]) -> None:
        found: dict[int, torch.Tensor] = {}
        self.entering: dict[int, torch.Tensor] = {}  # tensors from outside that are cut or have a graph, by index
        self.cut: dict[int, Axis] = {}
        for i in entries:
            entry = tape.entries[i]
            if entry.module is not None:
                for p in parameters([entry.module]):
                    if p.requires_grad:
                        found.setdefault(id(p), p)
            for index in entry.references()[1]:
                tensor = tape.outside[index]
                if not tensor.requires_grad or not entry.grad:
                    continue
                axis = None if plan is None else plan.cuts[i].outside.get(index)
                if axis is not None and self.cut.setdefault(index, axis) != axis:
                    raise Refused("a tensor with a graph would have to be split in two different ways")
                if axis is not None or not tensor.is_leaf:
                    self.entering[index] = tensor
                else:
                    found.setdefault(id(tensor), tensor)
        for index in self.entering:
            found.pop(id(tape.outside[index]), None)
        self.own = list(found.values())
        for t in self.own:
            if t._backward_hooks:
                raise Refused(HOOKED)
        self.tensors = self.own + list(self.entering.values())
        self.graphs = any(not t.is_leaf for t in self.entering.values())
        self.reentrant: dict[tuple[int, ...], bool] = {}  # whether a reentrant checkpoint is in the graph of the sum of some scalars, by their slots
        self.shared: set[int] = set()  # ids of tensors to whose gradients several such checkpoints add

    def differentiated(
        self, total: torch.Tensor, slots: Iterable[int], leaves: Sequence[torch.Tensor] = (), retain: bool = False
    ) -> list[Optional[torch.Tensor]]:
        """The gradients of a replayed scalar, or of the sum of those in ``slots``, with respect to :attr:`own` and to the given
        leaves. The graph can be used again if ``retain`` is true."""
        key = tuple(slots)
        if key not in self.reentrant:
            self.reentrant[key] = reentrant(total)
        tensors = [*self.own, *leaves]
        if not self.reentrant[key]:
            return grad(total, tensors, retain=retain)
        found, shared = accumulated(total, tensors, retain)
        self.shared |= shared
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


def accumulated(total: torch.Tensor, tensors: Sequence[torch.Tensor], retain: bool = False) -> tuple[list[Optional[torch.Tensor]], set[int]]:
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
                    if memory is not None and (memory.data_ptr() in taken or memory.nbytes() != g.numel() * g.element_size()):
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
            raise Refused("one row alone does not fit" if rows is not None else "the whole batch does not fit on a second try either")
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

    def work(rows: Optional[Rows]) -> Any:
        if norms is not None:
            norms.put_back()
        try:
            return _piece(tape, plan, entries, rows, targets, inputs, scale, offload, keep or {}, rules)
        except ValueError:
            if norms is not None and rows is not None and rows.count == 1:
                raise Refused("BatchNorm cannot compute statistics over a piece of one row") from None
            raise

    def add(rows: Optional[Rows], got: Any) -> None:
        if norms is not None:
            norms.add(1.0 if rows is None else rows.count / rows.batch)
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

    batch = None if plan is None else plan.batch
    norms = statistics(tape, entries) if tape.approximate else None
    with norms or nullcontext():
        try:
            return values, inputs, sums, by_pieces(batch, size, work, add, forget)
        except Refuted:
            Proof.known.clear()
        proof, pieces = Proof(tape, plan), pieces_of(batch, size(0))  # type: ignore[arg-type]
        rules.update(proven(proof, list(targets), pieces))
        targets = {s: (g, rules[s]) for s, (g, _) in targets.items()}
        return values, inputs, sums, by_pieces(batch, size, work, add, forget)


class Refuted(Refused):
    """Raised if a rule that held for earlier batches does not hold for this one."""


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
) -> Any:
    weights = {}
    for slot, (_, rule) in targets.items():
        weights[slot] = 1.0 if rows is None else weight(rule, range(rows.start, rows.stop))
    if not any(weights.values()) and not keep and not tape.approximate:
        return None  # none of these rows has a weight: the mean would be NaN
    leaves = inputs.leaves(rows)
    hooks = on_host() if offload else nullcontext()
    if not any(weights.values()):  # none of these rows has a weight, but their results are wanted
        with torch.no_grad():
            env = run(tape, plan, entries, rows)
        return {}, [None] * len(inputs.tensors), leaves, {s: env[s].clone() for s in keep if s in env}
    summed: list[int] = []  # slots of the scalars that are differentiated
    with torch.set_grad_enabled(any(factor is not None for factor, _ in targets.values())), hooks:
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
    holds = _holding(tape, plan, rules, rows, env) if rules else lambda: True  # type: ignore[arg-type]  # only a plan has rules
    kept = {s: env[s].detach().clone() for s in keep if s in env}
    env.clear()
    grads: list[Optional[torch.Tensor]] = [None] * len(inputs.tensors)
    if isinstance(total, torch.Tensor):  # otherwise none of the scalars that are differentiated has a weight here
        grads = inputs.differentiated(total * scale if scale != 1.0 else total, summed, list(leaves.values()))
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
    there = piece.count > 1 and not changing  # otherwise env has only one row, or values that a function has changed in place
    count = min(piece.count, max(2, min(SOME, SMALL * piece.count // max(1, sum(env[s].numel() for s in slots))))) if there else 2
    start = min(piece.start, plan.batch - count)
    rows = list(range(start, start + count))
    half = any(s is not None and plan.slots[s].dtype in HALF for i in entries for s in tape.entries[i].slots)
    device = plan.slots[next(iter(rules))].device

    def values(outputs: dict, some: list[int]) -> list[torch.Tensor]:
        def cut(s: int) -> torch.Tensor:
            known, output = plan.slots[s], outputs[s].clone() if changing else outputs[s]
            return output if known.axis is None else known.axis.some(output, some[0] - start, len(some))

        found = run(tape, plan, tail, Rows(plan.batch, some[0], some[-1] + 1), {s: cut(s) for s in slots})
        return [found[s].float().reshape(()).to(device) for s in rules]

    def losses() -> torch.Tensor:
        outputs = {s: env[s].detach() for s in slots} if there else run(tape, plan, first, Rows(plan.batch, start, start + count))
        return torch.stack([v for some in (rows, *parts) for v in values(outputs, some)])

    parts, state = halves(rows), random_state()
    with torch.no_grad(), independent(modules_of(tape)) if tape.approximate else nullcontext():
        found = losses()
        if not same_random_state(state, random_state()):
            set_random_state(state)
            with Calm():
                found = losses()
            set_random_state(state)

    here, copied = found.to("cpu", non_blocking=True), torch.cuda.Event() if found.is_cuda else None
    if copied is not None:
        copied.record(torch.cuda.current_stream(found.device))

    def holds() -> bool:
        if copied is not None:
            copied.synchronize()  # waiting for the stream would mean waiting for the whole of backward
        whole, *split = zip(*[iter(here.tolist())] * len(rules))  # for all rows and for each part, a value for each rule
        return all(
            not math.isfinite(all_rows) or agrees(rule, parts, some, rows, all_rows, 1e-2 if half else 1e-3)
            for rule, all_rows, some in zip(rules.values(), whole, zip(*split))
        )

    return holds


def parted(tape: Tape, plan: Plan, entries: Sequence[int]) -> tuple[list[int], list[int]]:
    """Splits the entries into the modules' calls and the functions called on their results. If a
    module's call needs a function's result, or if a loss is computed inside a module, returns all
    entries and no functions."""
    first = [i for i in entries if tape.entries[i].module is not None]
    tail = [i for i in entries if tape.entries[i].module is None]
    inside = any(plan.slots[s].dim is None and not plan.slots[s].fixed for i in first for s in tape.entries[i].slots if s is not None)
    if any(tape.entries[i].inplace for i in tail):
        needs = any(i > j for i in first for j in tail)
    else:
        made = {s for i in tail for s in tape.entries[i].slots}
        needs = any(s in made for i in first for s in tape.entries[i].references()[0])
    return (sorted(entries), []) if inside or needs else (first, tail)


def on_host() -> Any:
    """A context in which the tensors that autograd saves are kept in pinned host memory."""
    return torch.autograd.graph.save_on_cpu(pin_memory=True)


def modules_of(tape: Tape) -> list[torch.nn.Module]:
    return list({id(e.module): e.module for e in tape.entries if e.module is not None}.values())


def approximable(modules: Sequence[torch.nn.Module]) -> bool:
    """Whether, judging by the modules' buffers, statistics over the batch are the only reason why
    their calls cannot be run in pieces."""
    layers = batchwise(modules)
    return bool(layers) and not any(f is not None and f.changes_buffers(beside=layers) for f in map(found_of, modules))


def refuse_unless_approximable(modules: Sequence[torch.nn.Module], why: Refused) -> None:
    """Raises ``why`` unless the calls of these modules may be run in pieces that have statistics of
    their own."""
    if not approximable(modules):
        raise why.more(str(why))
    if not allowed():
        said = why.more(f"{why}; {HINT}")
        said.allowance = ALLOWANCE
        raise said


def statistics(tape: Tape, entries: Sequence[int]) -> Statistics:
    """The :class:`Statistics` of a tape's layers, for running these entries in pieces. The running
    statistics are updated only for calls that the script did not complete, and only once for each
    layer: the calls that the script did complete have already updated theirs with the whole
    batch."""
    modules = [tape.entries[i].module for i in entries if tape.entries[i].module is not None]
    late = [tape.entries[i].module for i in entries if tape.entries[i].module is not None and tape.entries[i].between == (0, 0)]
    made = batchwise([e.module for e in tape.entries if e.module is not None and e.between != (0, 0)])
    new = [layer for layer in batchwise(late) if layer not in tape.counted]  # type: ignore[arg-type]
    if any(layer in made for layer in new):
        raise Refused("a BatchNorm layer has been used both before the failure and after it")
    tape.counted.update(new)
    return Statistics(batchwise(modules), new)  # type: ignore[arg-type]


class Uses:
    """How many times the rules of one kind of step have been used, and when they were tried."""

    def __init__(self) -> None:
        self.count = 0
        self.passed = 0  # the count when a trial last found them to be right; 0 if no trial has
        self.begun, self.took = 0.0, math.inf  # in seconds: when the newest trial began, and how long it took; infinite until it has passed in single precision

    def due(self, now: float) -> bool:
        """Counts one more use, and returns whether the rules have to be tried in this use. Rules are tried in uses
        1, 2, 4, 8 and so on. They are also tried again as soon as the time since the last trial began is 100
        times that trial's duration, so that these trials take at most about a hundredth of the time. Rules are
        tried repeatedly because how rows affect each other may depend on their contents, and on numbers that
        change in the course of training."""
        self.count += 1
        if self.count & (self.count - 1) and now - self.begun < PAUSE * self.took:
            return False
        self.begun, self.took = now, math.inf
        return True


class Proof:
    """Tests, on real rows, whether a tape may be cut and by which rules. For each kind of tape this
    takes some forward and backward passes of a few rows, which are repeated when :meth:`Uses.due`
    says so. The tests leave no traces."""

    known: ClassVar[dict[tuple, dict[int, set]]] = {}  # for each scalar, by slot, names of the rules that no batch has refuted; by kind of tape
    uses: ClassVar[dict[tuple, Uses]] = {}  # by kind of tape

    def __init__(self, tape: Tape, plan: Plan) -> None:
        self.tape, self.plan = tape, plan
        self.modules = modules_of(tape)
        self.used = Uses()
        if not tape.approximate:
            refuse_batchwise(self.modules)
        # Before PyTorch 2.6, trials compile compiled modules, too, and that fails for a fourth number of rows.
        self.few = not STANCES and any("_orig_mod" in m._modules for m in submodules(self.modules))

    def rules(self, slots: Sequence[int], pieces: Sequence[Rows]) -> dict[int, list[Rule]]:
        """The rules of some scalars that no trial refutes, by slot. Raises :class:`Refused` if none is left for a
        scalar."""
        if not slots:
            return {}
        tape, plan = self.tape, self.plan
        if any(plan.slots[s].dtype.is_complex for s in slots):
            raise Refused(SEVERAL)
        entries = needed(tape, slots)
        kind = (*slots, *self._kind(entries))
        self.used = self.uses.setdefault((*slots, *self._kind(entries, numbers=False)), Uses())
        if self.used.due(time.monotonic()):
            Proof.known.clear()
        known = self.known.get(kind)
        targets, absent = self._targets(), ignored(tape)
        if known is not None:  # only the rules that earlier batches could not tell apart are left
            named = candidates(plan.batch, list(targets.values()), absent, set().union(*known.values()))
            found = {s: distinct([rule for name, rule in named if name in names]) for s, names in known.items()}
            if all(rules and settled(rules, pieces) for rules in found.values()):
                return found
        size = self._size(entries)
        fit = max(4 * SMALL, room() // ELEMENT) * plan.batch // max(1, size)
        count = plan.batch if size <= SMALL else min(plan.batch, FEW, max(2, fit))
        named = candidates(plan.batch, list(targets.values()), absent)
        places = {index: i for i, index in enumerate(targets)}
        near: dict[int, list[tuple[tuple, Rule]]] = {}  # what each scalar's own functions can count: the terms of a long sum have many targets
        within = not parted(tape, plan, entries)[1]
        for s in slots:
            own = [tape.entries[i] for i in needed(tape, [s])]
            counted = {places[o] for e in own if within or e.module is None for o in e.references()[1] if o in places}
            near[s] = [(name, rule) for name, rule in named if len(name) == 1 or name[0] in counted]
        return self._tried(entries, min(count, MOST), lambda n, tolerance: self._rules(entries, n, pieces, tolerance, near, named, kind))

    def alone(self, entries: Sequence[int]) -> None:
        """Raises :class:`Refused` if the modules' results for a row depend on the other rows."""
        kind = ("alone", *self._kind(entries))
        if kind not in self.known:
            self._tried(entries, min(self.plan.batch, SOME), lambda n, tolerance: self._compare(entries, spread(self.plan.batch, n), tolerance))
            self.known[kind] = {}

    def agree(self, rules: dict[int, Rule]) -> None:
        """Raises :class:`Refused` if a scalar's gradients of two groups of rows, weighted by its rule, do
        not add up to the gradients of all these rows together. Of all the trials this is the least
        likely to pass by chance: the sum must be right for every element of every parameter."""
        entries = needed(self.tape, list(rules))
        kind = ("gradients", *rules, *self._kind(entries, numbers=False))
        if kind in self.known:
            return
        counting = {s: [r for r in range(self.plan.batch) if rule is None or rule[r]] for s, rule in rules.items()}
        every = sorted(set.intersection(*map(set, counting.values())))  # the rows that count for all scalars, so that these can be tried together
        together = len(rules) == 1 or len(every) >= min(self.plan.batch, SOME)
        exact = True
        for group, rows in [(rules, every)] if together else [({s: rules[s]}, rows) for s, rows in counting.items()]:
            if len(rows) > 1:
                exact &= self._agrees(group, rows)
        self.known[kind] = {}
        self.used.passed = self.used.count
        if exact:
            self.used.took = time.monotonic() - self.used.begun

    def _agrees(self, rules: dict[int, Rule], rows: list[int]) -> bool:
        """Compares gradients for :meth:`agree`, of some of the given rows. Returns whether this was done in single precision."""
        entries = needed(self.tape, list(rules))
        inputs = Inputs(self.tape, self.plan, entries)
        most = SOME if self._size(entries) <= SMALL else FEW

        def tried(n: int, tolerance: float) -> bool:
            return self._agree(rules, entries, inputs, [rows[i] for i in spread(len(rows), n)], tolerance)

        return self._tried(entries, min(len(rows), most), tried)

    def _agree(self, rules: dict[int, Rule], entries: Sequence[int], inputs: Inputs, chosen: list[int], tolerance: float) -> bool:
        """Compares gradients for :meth:`agree`. Returns whether this was done in single precision."""
        made: dict[tuple[int, ...], dict[int, list[tuple[float, float]]]] = {}

        def sketch(slot: int, rows: list[int]) -> list[tuple[float, float]]:
            if tuple(rows) not in made:
                made[tuple(rows)] = self._sketch(rules, entries, inputs, rows, chosen)
            return made[tuple(rows)][slot]

        refused = Refused("the gradients of pieces do not add up to those of the whole batch")
        cuda = any(t.is_cuda for t in inputs.tensors)
        if len(chosen) > 3:
            chosen = chosen[: len(chosen) // 2 * 2]
        one, two, another, other = crossing(chosen)
        parts = (one + two, another + other) if len(chosen) > 3 else halves(chosen)
        for s in rules:
            if residual(sketch(s, chosen), [sketch(s, part) for part in parts]) > max(TF32 if cuda else 1e-3, 2 * tolerance):
                raise refused
        if self.few:
            return tolerance < 1e-3
        # These four calls have the same size, so the same kernels compute a row. Any difference is therefore an effect
        # of rows on each other, even if it is only a small part of the loss, such as the balance of a router's experts.
        least = (2e-5 if cuda else 1e-5) if tolerance < 1e-3 else 1e-2
        for s in rules:
            if residual(added(sketch(s, one + two), sketch(s, another + other)), [sketch(s, one + another), sketch(s, two + other)]) > least:
                raise refused
        return tolerance < 1e-3

    def _sketch(
        self, rules: dict[int, Rule], entries: Sequence[int], inputs: Inputs, rows: list[int], within: list[int]
    ) -> dict[int, list[tuple[float, float]]]:
        """For each scalar, the gradient of each parameter for the given rows, represented by two numbers instead of
        a second set of gradients: its dot product with a fixed vector, and its norm."""
        at = Rows(self.plan.batch, 0, self.plan.batch, rows)
        with torch.enable_grad():
            env = run(self.tape, self.plan, entries, at, leaves=inputs.leaves(at))
            totals = {s: env[s].sum() * weight(rule, rows, within) for s, rule in rules.items()}
        env.clear()
        found = {}
        for left, (s, total) in zip(range(len(totals) - 1, -1, -1), totals.items()):
            grads = inputs.differentiated(total, [s], retain=left > 0) if total.requires_grad and inputs.own else []
            with _disable_current_modes():  # nothing here is random, and a mode would take longer for each of these many small kernels than the kernel itself
                found[s] = sketched(grads)
        return found

    def _size(self, entries: Sequence[int]) -> int:
        """The total number of elements of all results of modules for the whole batch."""
        made = [s for i in entries if self.tape.entries[i].module is not None for s in self.tape.entries[i].slots if s is not None]
        return sum(math.prod(self.plan.slots[s].shape) for s in made)

    def _kind(self, entries: Sequence[int], numbers: bool = True) -> tuple:
        """A key that is the same for tapes of the same kind. The numbers among the modules'
        attributes are part of the key only if ``numbers`` is true. The values of coefficients among
        the arguments are not part of it, since many change in every step. But the key says which
        coefficients are zero, since a term matters as soon as its coefficient is not zero."""
        made = [self.tape.entries[i] for i in range(max(entries) + 1)]
        given = {i: self.tape.outside[i] for e in made for i in e.references()[1]}
        zero = tuple(bool(t.detach() == 0) for t in given.values() if t.numel() == 1 and not t.requires_grad and (t.is_floating_point() or t.is_complex()))
        return tuple((number_of(e.module), e.call_name(), e.grad, e.state and e.state[numbers], words(e)) for e in made) + zero

    def _tried(self, entries: Sequence[int], count: int, work: Callable[[int, float], Any]) -> Any:
        """Calls ``work`` with ``count``, a number of rows, and with a tolerance, without randomness
        or side effects. Returns the result. If there is not enough memory, ``work`` is called again
        with fewer rows."""

        def tried(n: int, tolerance: float) -> Any:
            try:
                return work(n, tolerance)
            except Refused as why:
                ago = self.used.count - self.used.passed
                raise why.more(f"{why}; the same trial last passed {ago} step{'s' * (ago != 1)} ago" if self.used.passed else str(why)) from None

        def calmly(n: int, calm: Calm) -> Any:
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                try:
                    with precisely(self.tape, entries) as single:
                        if single:
                            with full_precision():
                                return tried(n, 1e-4)
                except Exception as e:  # for example from a kernel that exists only for half precision
                    if is_out_of_memory(e) or isinstance(e, Refused) and not calm.half:
                        raise
                try:
                    return tried(n, 2e-2)
                except Exception as e:
                    if is_out_of_memory(e) or isinstance(e, Refused):
                        raise
                    said = (str(e).strip().splitlines() or [""])[0]
                    raise Refused(f"the step fails when it is run on {n} of its rows ({type(e).__name__}: {said})") from e

        return rehearsed(self.modules, count, calmly)

    def _targets(self) -> dict[int, torch.Tensor]:
        """The tensors, such as labels and masks, whose elements might have to be counted to find the weights of a
        batch's rows, by their indices on the tape. None of them requires a gradient."""
        tape = self.tape
        found = {i: (tape.outside[i], axis) for cut in self.plan.cuts for i, axis in cut.outside.items()}
        found = {i: (t, axis) for i, (t, axis) in found.items() if not (t.requires_grad or t.is_complex())}
        found = {i: (t, axis) for i, (t, axis) in found.items() if t.numel() <= (SMALL if not t.is_floating_point() else SMALL >> 4)}
        return {i: t if axis == Axis(0) else axis.apart(t).movedim(axis.dim + 1, 0) for i, (t, axis) in found.items()}

    def _rules(
        self,
        entries: Sequence[int],
        count: int,
        pieces: Sequence[Rows],
        tolerance: float,
        near: dict[int, list[tuple[tuple, Rule]]],
        named: list[tuple[tuple, Rule]],
        kind: tuple,
    ) -> dict[int, list[Rule]]:
        """Tries rules for :meth:`rules`: first those in ``near``, and all in ``named`` for a scalar for which none of them is right."""
        plan, tape, batch = self.plan, self.tape, self.plan.batch
        first, tail = parted(tape, plan, entries)
        within, near = not tail, dict(near)
        left = {s: distinct([rule for _, rule in some]) for s, some in near.items()}
        chosen = spread(batch, count)
        if within:  # there are no outputs to keep: everything is run each time
            self._compare(first, chosen, tolerance)
        least = PAIRS if count == 2 < batch else 1
        for again in range(ROUNDS):
            outputs = {} if within else self._outputs(first, chosen, tolerance)
            value = Values(self, list(left), first, tail, chosen, outputs)
            exact = tolerance
            if not within:  # this runs the tail alone, on the same outputs: it may be in single precision even if the outputs are not
                with Calm() as calm:
                    value(next(iter(left)), chosen)
                exact = tolerance / 10 if calm.half else 1e-5
            for s, rules in left.items():
                left[s] = surviving(rules, chosen, partial(value, s), exact)
                if not left[s] and len(near[s]) < len(named):
                    near[s] = named
                    left[s] = surviving(distinct([rule for _, rule in named]), chosen, partial(value, s), exact)
                if within and tolerance < 1e-3 and plan.slots[s].requires_grad and left[s] and not settled(left[s], pieces):
                    left[s] = self._told_apart(s, first, left[s])
                if not left[s]:
                    text = "the loss of a batch is not a weighted sum of the losses of its rows"
                    raise plan.mixed(text) if value.finite(s) else Refused(text)
            unsure = [s for s, rules in left.items() if not settled(rules, pieces)]
            if unsure and outputs:  # where all rows have nearly the same loss, rules that differ little cannot be told apart
                value = Values(self, unsure, first, tail, chosen, {s: stretched(v, plan.slots[s]) for s, v in outputs.items()})
                left.update({s: surviving(left[s], chosen, partial(value, s), exact) or left[s] for s in unsure})
                unsure = [s for s in unsure if not settled(left[s], pieces)]
            if not unsure and again + 1 >= least:
                self.known[kind] = {s: {name for name, rule in near[s] if any(same_rule(rule, r) for r in rules)} for s, rules in left.items()}
                break
            chosen = others(left[unsure[0] if unsure else next(iter(left))], batch, count, again)
        return left

    def _told_apart(self, slot: int, entries: Sequence[int], rules: Sequence[Rule]) -> list[Rule]:
        """The rules that gradients do not refute. Losses hardly show which of two similar rules is right if they are
        about the same in every row, as at the beginning of a training; the rows' gradients differ then, too. Each rule is
        used to add up the gradients of the same rows, cut in two ways into parts of one size."""
        inputs, left = Inputs(self.tape, self.plan, entries), list(rules)
        least = 2e-5 if any(t.is_cuda for t in inputs.tensors) else 1e-5
        for pair in combinations(rules, 2):
            rows = telling(pair, self.plan.batch, min(SOME, self.plan.batch // 4 * 4))
            if len(left) < 2 or len(rows) % 4 or any(r not in left for r in pair):
                continue
            half = len(rows) // 2
            parts = [rows[:half], rows[half:], rows[::2], rows[1::2]]
            sketches = [self._sketch({slot: None}, entries, inputs, part, rows)[slot] for part in parts]

            def added_up(rule: Rule, which: slice, rows: list = rows, parts: list = parts, sketches: list = sketches) -> list:
                weights = [weight(rule, part, rows) for part in parts[which]]
                return added(*([(w * value, w * norm) for value, norm in sketch] for w, sketch in zip(weights, sketches[which])))

            left = [r for r in left if residual(added_up(r, slice(2)), [added_up(r, slice(2, 4))]) <= least]
        return left

    def _outputs(self, first: Sequence[int], chosen: list[int], tolerance: float) -> dict[int, torch.Tensor]:
        """The modules' outputs for the chosen rows, checked to be the same when rows are run together and in parts."""
        plan, tape, batch = self.plan, self.tape, self.plan.batch
        found: dict[int, list] = {}
        step = max(2, SOME // 2)
        starts = list(range(0, len(chosen), step))
        if len(chosen) > step and len(chosen) - starts[-1] == 1:
            starts.pop()
        for at, start in enumerate(starts):
            stop = starts[at + 1] if at + 1 < len(starts) else len(chosen)
            env = run(tape, plan, first, Rows(batch, 0, batch, chosen[start:stop]))
            for s, v in env.items():
                found.setdefault(s, []).append(v)
        outputs = {}
        for s, parts in found.items():
            axis = plan.slots[s].axis
            outputs[s] = parts[0] if axis is None else axis.joined(parts)
        self._compare(first, chosen, tolerance, outputs if len(starts) == 1 else None)
        return outputs

    def _compare(self, first: Sequence[int], chosen: list[int], tolerance: float, whole: Optional[dict] = None) -> None:
        """Raises :class:`Refused` if rows have different outputs when run together than when run in
        parts. ``whole`` has the outputs of the chosen rows together, or is None if they have not
        been computed yet."""
        plan, tape, batch = self.plan, self.tape, self.plan.batch
        together = chosen[: max(2, min(len(chosen), SOME, batch - 1))]
        if whole is None or len(together) < len(chosen):
            whole = run(tape, plan, first, Rows(batch, 0, batch, together))
        parts = halves(together)
        split = [run(tape, plan, first, Rows(batch, 0, batch, p)) for p in parts]
        alone = [(i, self._alone(first, together[i])) for i in range(2 if len(parts[1]) > 1 else 1) if len(together) > 2 and not self.few]
        for s, v in whole.items():
            axis = plan.slots[s].axis
            if axis is None:
                continue  # a loss computed inside a module is judged by its rule
            most = max(tolerance, TF32) if v.is_cuda else tolerance
            rough = max(tolerance, 1e-2) if v.is_cuda else tolerance  # other kernels may compute a single row, as a vector
            rows = [(axis.some(v, i, 1), e[s]) for i, e in alone if s in e and e[s].shape == axis.some(v, 0, 1).shape]
            if not same(v, axis.joined([e[s] for e in split]), most) or not all(same(a, b, rough) for a, b in rows):
                again = run(tape, plan, first, Rows(batch, 0, batch, together))[s]
                if not v.isfinite().all() or not same(v, again, most):
                    raise Refused("a call returns different results for the same rows")
                raise plan.mixed("a row's result depends on the other rows of the batch")

    def _alone(self, first: Sequence[int], row: int) -> dict[int, torch.Tensor]:
        """The modules' outputs for a single row that is run alone, so that no module pads it to the
        length of another row. Empty if the modules do not accept a batch of one row."""
        try:
            return run(self.tape, self.plan, first, Rows(self.plan.batch, 0, self.plan.batch, [row]))
        except Exception as e:
            if is_out_of_memory(e):
                raise
            return {}


class Values:
    """Values of scalars for some of the rows in ``chosen``, for which ``outputs`` has the modules' results. If there are no
    functions in ``tail``, the modules are called for these rows."""

    def __init__(self, proof: Proof, slots: Sequence[int], first: Sequence[int], tail: Sequence[int], chosen: list[int], outputs: dict) -> None:
        self._proof, self._slots, self._outputs = proof, slots, outputs
        self._entries = tail or first
        self._place = {r: i for i, r in enumerate(chosen)}
        self._found: dict[tuple[int, ...], dict[int, float]] = {}

    def __call__(self, slot: int, rows: Sequence[int]) -> float:
        if tuple(rows) not in self._found:
            plan, where = self._proof.plan, [self._place[r] for r in rows]
            env = {s: pick(v, plan.slots[s], where) for s, v in self._outputs.items()}
            env = run(self._proof.tape, plan, self._entries, Rows(plan.batch, 0, plan.batch, list(rows)), env)
            self._found[tuple(rows)] = {s: float(env[s]) for s in self._slots}
        return self._found[tuple(rows)][slot]

    def finite(self, slot: int) -> bool:
        """Whether all values of a scalar have been finite."""
        return all(math.isfinite(values[slot]) for values in self._found.values())


def half_in(tape: Tape, modules: Sequence[torch.nn.Module]) -> bool:
    """Whether a step computes anything in half precision. Half precision inside a module is known
    only if a trial has seen it."""
    return any(e.autocast for e in tape.entries) or any(
        f.half or any(p.dtype in HALF for p in f.params) for f in map(found_of, modules) if f is not None
    )


@contextmanager
def precisely(tape: Tape, entries: Sequence[int]) -> Iterator[bool]:
    """A context in which entries run without the rounding errors of mixed precision, if all
    parameters are in single precision. Yields whether they are. If so, autocast stays off on this
    thread, even where a module enables it."""
    if any(p.dtype != torch.float32 for p in parameters(modules_of(tape))):
        yield False
        return
    autocast, enter = {i: tape.entries[i].autocast for i in entries}, torch.autocast.__enter__
    thread = get_ident()

    def disabled(context: Any) -> Any:
        if get_ident() != thread:
            return enter(context)
        wanted, context._enabled = context._enabled, False
        for found in filter(None, map(found_of, modules_of(tape))):
            found.half = found.half or wanted
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
    """A context in which float32 products and convolutions do not round their factors to TF32. The
    context does nothing where a script uses PyTorch's newer settings, which cannot be mixed with
    those used here."""
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


def rehearsed(modules: Sequence[torch.nn.Module], count: int, work: Callable[[int, Calm], Any]) -> Any:
    """Calls ``work`` on ``count`` rows, with randomness and side effects suppressed. Returns the result. If there
    is not enough memory, ``work`` is called again with fewer rows. Raises :class:`Refused` if not even two rows
    fit.

    The :class:`Calm` around the call covers no more than the modules are known to need. If ``work`` then fails
    for a reason other than memory, it is called once more under a full :class:`Calm`."""
    founds = [f for f in map(found_of, modules) if f is not None]
    where = max(map(draws_of, modules), default=NEVER)
    while True:
        failed: Optional[BaseException] = None
        try:
            with rehearsal(modules), Calm(where) as calm:
                result = work(count, calm)
            for found in founds:
                found.remember(calm)
            return result
        except Exception as e:
            if is_out_of_memory(e):
                failed = e
            elif where == ANYWHERE:
                raise
        if failed is None:
            where = ANYWHERE
            continue
        clean(failed)
        if count <= 2:
            raise Refused("there is not enough memory for a trial on two rows")
        count = max(2, min(count // 2, SOME))


def proven(proof: Proof, slots: Sequence[int], pieces: Sequence[Rows]) -> dict[int, Rule]:
    """The rules of scalars for these pieces, by slot, checked to be right for the scalars' gradients as
    well. Raises :class:`Refused` if no rule fits a scalar, or if two rules that fit give the pieces
    different weights."""
    for m in submodules(proof.modules):
        if m._backward_hooks or m._backward_pre_hooks:
            raise Refused(f"{type(m).__name__} has a backward hook, which would see the gradients of pieces")
    found = patiently(lambda: proof.rules(slots, pieces), "there is not enough memory to work out how much each piece contributes to the whole")
    if not all(settled(rules, pieces) for rules in found.values()):
        raise Refused("headroom cannot determine how much each piece's loss contributes to the loss of the whole batch")
    rules = {s: left[0] for s, left in found.items()}
    patiently(lambda: proof.agree(rules), "there is not enough memory to check the gradients on a few rows")
    return rules


def same(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> bool:
    if a.shape != b.shape:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return True  # an argmax may depend on a rounding error
    a, b = as_real(a).float(), as_real(b).float()
    size = float(a.abs().max()) if a.numel() else 0.0
    return bool(((a - b).abs() <= tolerance * max(size, 1e-12)).all()) if a.isfinite().all() else torch.equal(a, b)


def halves(rows: list[int]) -> tuple[list[int], list[int]]:
    """The rows in two parts, of different sizes if there are more than two rows."""
    cut = len(rows) // 2 + (1 if len(rows) > 3 else 0)
    return rows[:cut], rows[cut:]


def crossing(rows: list[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Four parts of the rows, called one, two, another and other. They are for four calls: one + two, another +
    other, one + another and two + other. The calls have the same size if the number of rows is even or less
    than four. If there are at least four rows and their number is even, the first two calls are for the two
    halves of the rows. Parts have an odd number of rows, so that rows at even places of one call are at odd places of
    another: a module may treat them differently. With fewer than four rows, some rows are in more than one part."""
    if len(rows) < 4:
        return rows[:1], rows[1:2], rows[:1], rows[-1:]
    half, part = len(rows) // 2, len(rows) // 4 - 1 | 1
    return rows[:part], rows[part:half], rows[half:-part], rows[-part:]


def added(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The sketch of the sum of two gradients, with an upper bound in place of the sum's norm."""
    return [(a + c, b + d) for (a, b), (c, d) in zip(one, other)]


def words(entry: Entry) -> tuple:
    """The strings and flags among a call's arguments, such as the name of a loss's reduction."""
    return tuple(v for v in entry.leaves() if isinstance(v, (str, bool)))


def sketched(grads: Sequence[Optional[torch.Tensor]]) -> list[tuple[float, float]]:
    """For each gradient, two numbers: its dot product with a fixed vector, and its norm. Both are 0
    if the gradient is None. Real and imaginary parts are elements of their own."""
    flat = {i: _flat(g) for i, g in enumerate(grads) if g is not None and g.numel()}
    longest: dict[torch.device, int] = {}
    for f in flat.values():
        longest[f.device] = max(longest.get(f.device, 0), f.numel())
    vectors = {d: torch.arange(1, n + 1, dtype=torch.float32, device=d).mul_(1.618034).cos_().mul_(math.sqrt(2)) for d, n in longest.items()}
    products = [f.mul(vectors[f.device][: f.numel()]).sum() for f in flat.values()]
    norms = torch._foreach_norm(list(flat.values())) if flat else []
    device = next(iter(vectors), None)
    found = torch.stack([t.to(device, torch.float32) for t in (*products, *norms)]).tolist() if flat else []  # all at once, since every read waits for the GPU
    sketches = dict(zip(flat, zip(found, found[len(flat) :])))
    return [sketches.get(i, (0.0, 0.0)) for i in range(len(grads))]


def _flat(grad: torch.Tensor) -> torch.Tensor:
    flat = as_real(grad if grad.layout == torch.strided else grad.to_dense()).reshape(-1)
    return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()


def residual(whole: list[tuple[float, float]], parts: Sequence[list[tuple[float, float]]]) -> float:
    """How far the sum of the sketches ``parts`` is from the sketches ``whole``, relative to the norms. The parts
    are already weighted. A tenth of the largest norm is added to every norm, so that rounding errors matter
    little in a gradient that would otherwise be zero."""
    sizes = [norm + sum(p[i][1] for p in parts) for i, (_, norm) in enumerate(whole)]
    least = 0.1 * max(sizes, default=0.0) or 1.0
    off = [abs(value - sum(p[i][0] for p in parts)) / (size + least) for i, ((value, _), size) in enumerate(zip(whole, sizes))]
    return max(off, default=0.0) if all(o == o for o in off) else math.inf


def spread(batch: int, count: int) -> list[int]:
    """``count`` rows, spread evenly over the batch."""
    return sorted({batch * i // count for i in range(count)})


def stretched(value: torch.Tensor, slot: Any) -> torch.Tensor:
    """Some rows of an output, each multiplied by another number."""
    if slot.axis is None or not value.is_floating_point():
        return value
    dim, parts = slot.axis.dim, slot.axis.apart(value)
    factors = torch.arange(parts.shape[dim + 1], dtype=value.dtype, device=value.device).mul(2.4).cos().mul(0.6).add(1.25)
    return (parts * factors.view(-1, *[1] * (parts.dim() - dim - 2))).flatten(dim, dim + 2)


def ignored(tape: Tape) -> list[int]:
    """The ``ignore_index`` of every function on the tape."""
    return [e.kwargs["ignore_index"] for e in tape.entries if isinstance(e.kwargs, dict) and isinstance(e.kwargs.get("ignore_index"), int)]
