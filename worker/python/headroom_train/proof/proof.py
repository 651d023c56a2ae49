"""Whether the tape may be cut, and with which weights the pieces count: found by trials on a few rows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from threading import get_ident
from typing import Any, Callable, ClassVar, Optional

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..failure import Refused, clean, is_out_of_memory, patiently
from ..hooks.changes import changed
from ..hooks.genuine import backward, grad
from ..memory import room
from ..sandbox.norms import refuse_batchwise
from ..sandbox.sandbox import ANYWHERE, NEVER, STANCES, NoRandomness, rehearsal
from ..tape.graph import reentrant
from ..tape.recorded_module import draws_of, number_of, record_of
from ..tape.snapshot import parameters, submodules
from ..tape.tape import Entry, Tape
from .plan import Plan
from .rerun import SEVERAL, modules_of, needed, run
from .rows import Axis, Rows, as_real
from .weights import Rule, candidates, distinct, others, same_rule, settled, surviving, telling, weight

SMALL = 1 << 22  # rules are tried on the whole batch if all its outputs have at most this many elements
ROUNDS = 6  # at most this many tries, each on different rows, to tell the rules apart
ELEMENT = 64  # bytes of free memory required for each element of an output on which rules are tried
MOST = 256  # the most rows on which rules are tried
# Pairs of rows on which rules are tried if three rows do not fit: a pair can be cut in only one way, and a wrong rule
# may pass by chance.
PAIRS = 4
SOME = 8  # the most rows on which everything else is tried
FEW = 4  # the same for large outputs, where each row takes time
# Rounding errors of kernels for different numbers of rows on a GPU, where convolutions use TF32 unless a script says
# otherwise.
TF32 = 2e-3
HOOKED = "a parameter has a hook, which would see the gradients of pieces"
PAUSE = 100  # rules are tried again once this many times the duration of their last trial has passed


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
        # Whether a reentrant checkpoint is in the graph of the sum of some scalars, by their slots.
        self.reentrant: dict[tuple[int, ...], bool] = {}
        self.shared: set[int] = set()  # ids of tensors to whose gradients several such checkpoints add

    def differentiated(
        self, total: torch.Tensor, slots: Iterable[int], leaves: Sequence[torch.Tensor] = (), retain: bool = False
    ) -> list[Optional[torch.Tensor]]:
        """The gradients of a replayed scalar, or of the sum of those in ``slots``, with respect to :attr:`own` and to
        the given leaves. The graph can be used again if ``retain`` is true."""
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


def accumulated(
    total: torch.Tensor, tensors: Sequence[torch.Tensor], retain: bool = False
) -> tuple[list[Optional[torch.Tensor]], set[int]]:
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


def parted(tape: Tape, plan: Plan, entries: Sequence[int]) -> tuple[list[int], list[int]]:
    """Splits the entries into the modules' calls and the functions called on their results. If a
    module's call needs a function's result, or if a loss is computed inside a module, returns all
    entries and no functions."""
    first = [i for i in entries if tape.entries[i].module is not None]
    tail = [i for i in entries if tape.entries[i].module is None]
    inside = any(
        plan.slots[s].dim is None and not plan.slots[s].fixed
        for i in first
        for s in tape.entries[i].slots
        if s is not None
    )
    if any(tape.entries[i].inplace for i in tail):
        needs = any(i > j for i in first for j in tail)
    else:
        made = {s for i in tail for s in tape.entries[i].slots}
        needs = any(s in made for i in first for s in tape.entries[i].references()[0])
    return (sorted(entries), []) if inside or needs else (first, tail)


class Uses:
    """How many times the rules of one kind of step have been used, and when they were tried."""

    def __init__(self) -> None:
        self.count = 0
        self.passed = 0  # the count when a trial last found them to be right; 0 if no trial has
        # In seconds: when the newest trial began, and how long it took; infinite until it has passed in single
        # precision.
        self.begun, self.took = 0.0, math.inf

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

    # For each scalar, by slot, names of the rules that no batch has refuted; by kind of tape.
    known: ClassVar[dict[tuple, dict[int, set]]] = {}
    uses: ClassVar[dict[tuple, Uses]] = {}  # by kind of tape

    def __init__(self, tape: Tape, plan: Plan) -> None:
        self.tape, self.plan = tape, plan
        self.modules = modules_of(tape)
        self.used = Uses()
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
        # What each scalar's own functions can count: the terms of a long sum have many targets.
        near: dict[int, list[tuple[tuple, Rule]]] = {}
        within = not parted(tape, plan, entries)[1]
        for s in slots:
            own = [tape.entries[i] for i in needed(tape, [s])]
            counted = {places[o] for e in own if within or e.module is None for o in e.references()[1] if o in places}
            near[s] = [(name, rule) for name, rule in named if len(name) == 1 or name[0] in counted]
        return self._tried(
            entries,
            min(count, MOST),
            lambda n, tolerance: self._rules(entries, n, pieces, tolerance, near, named, kind),
        )

    def alone(self, entries: Sequence[int]) -> None:
        """Raises :class:`Refused` if the modules' results for a row depend on the other rows."""
        kind = ("alone", *self._kind(entries))
        if kind not in self.known:
            self._tried(
                entries,
                min(self.plan.batch, SOME),
                lambda n, tolerance: self._compare(entries, spread(self.plan.batch, n), tolerance),
            )
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
        # The rows that count for all scalars, so that these can be tried together.
        every = sorted(set.intersection(*map(set, counting.values())))
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
        """Compares gradients for :meth:`agree`, of some of the given rows. Returns whether this was done in single
        precision."""
        entries = needed(self.tape, list(rules))
        inputs = Inputs(self.tape, self.plan, entries)
        most = SOME if self._size(entries) <= SMALL else FEW

        def tried(n: int, tolerance: float) -> bool:
            return self._agree(rules, entries, inputs, [rows[i] for i in spread(len(rows), n)], tolerance)

        return self._tried(entries, min(len(rows), most), tried)

    def _agree(
        self, rules: dict[int, Rule], entries: Sequence[int], inputs: Inputs, chosen: list[int], tolerance: float
    ) -> bool:
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
        a, b, c, d = crossing(chosen)
        parts = (a + b, c + d) if len(chosen) > 3 else halves(chosen)
        for s in rules:
            if residual(sketch(s, chosen), [sketch(s, part) for part in parts]) > max(
                TF32 if cuda else 1e-3, 2 * tolerance
            ):
                raise refused
        if self.few:
            return tolerance < 1e-3
        # These four calls have the same size, so the same kernels compute a row. Any difference is therefore an effect
        # of rows on each other, even if it is only a small part of the loss, such as the balance of a router's experts.
        least = (2e-5 if cuda else 1e-5) if tolerance < 1e-3 else 1e-2
        for s in rules:
            if residual(added(sketch(s, a + b), sketch(s, c + d)), [sketch(s, a + c), sketch(s, b + d)]) > least:
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
            # Nothing here is random, and a mode would take longer for each of these many small kernels than the kernel
            # itself.
            with _disable_current_modes():
                found[s] = sketched(grads)
        return found

    def _size(self, entries: Sequence[int]) -> int:
        """The total number of elements of all results of modules for the whole batch."""
        made = [
            s
            for i in entries
            if self.tape.entries[i].module is not None
            for s in self.tape.entries[i].slots
            if s is not None
        ]
        return sum(math.prod(self.plan.slots[s].shape) for s in made)

    def _kind(self, entries: Sequence[int], numbers: bool = True) -> tuple:
        """A key that is the same for tapes of the same kind. The numbers among the modules'
        attributes are part of the key only if ``numbers`` is true. The values of coefficients among
        the arguments are not part of it, since many change in every step. But the key says which
        coefficients are zero, since a term matters as soon as its coefficient is not zero."""
        made = [self.tape.entries[i] for i in range(max(entries) + 1)]
        given = {i: self.tape.outside[i] for e in made for i in e.references()[1]}
        zero = tuple(
            bool(t.detach() == 0)
            for t in given.values()
            if t.numel() == 1 and not t.requires_grad and (t.is_floating_point() or t.is_complex())
        )
        return (
            tuple((number_of(e.module), e.call_name(), e.grad, e.state and e.state[numbers], words(e)) for e in made)
            + zero
        )

    def _tried(self, entries: Sequence[int], count: int, work: Callable[[int, float], Any]) -> Any:
        """Calls ``work`` with ``count``, a number of rows, and with a tolerance, without randomness
        or side effects. Returns the result. If there is not enough memory, ``work`` is called again
        with fewer rows."""

        def tried(n: int, tolerance: float) -> Any:
            try:
                return work(n, tolerance)
            except Refused as why:
                ago = self.used.count - self.used.passed
                raise why.more(
                    f"{why}; the same trial last passed {ago} step{'s' * (ago != 1)} ago"
                    if self.used.passed
                    else str(why)
                ) from None

        def without_randomness(n: int, trial: NoRandomness) -> Any:
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                try:
                    with precisely(self.tape, entries) as single:
                        if single:
                            with full_precision():
                                return tried(n, 1e-4)
                except Exception as e:  # for example from a kernel that exists only for half precision
                    if is_out_of_memory(e) or isinstance(e, Refused) and not trial.half:
                        raise
                try:
                    return tried(n, 2e-2)
                except Exception as e:
                    if is_out_of_memory(e) or isinstance(e, Refused):
                        raise
                    said = (str(e).strip().splitlines() or [""])[0]
                    raise Refused(
                        f"the step fails when it is run on {n} of its rows ({type(e).__name__}: {said})"
                    ) from e

        return rehearsed(self.modules, count, without_randomness)

    def _targets(self) -> dict[int, torch.Tensor]:
        """The tensors, such as labels and masks, whose elements might have to be counted to find the weights of a
        batch's rows, by their indices on the tape. None of them requires a gradient."""
        tape = self.tape
        found = {i: (tape.outside[i], axis) for cut in self.plan.cuts for i, axis in cut.outside.items()}
        found = {i: (t, axis) for i, (t, axis) in found.items() if not (t.requires_grad or t.is_complex())}
        found = {
            i: (t, axis)
            for i, (t, axis) in found.items()
            if t.numel() <= (SMALL if not t.is_floating_point() else SMALL >> 4)
        }
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
        """Tries rules for :meth:`rules`: first those in ``near``, and all in ``named`` for a scalar for which none of
        them is right."""
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
            # This runs the tail alone, on the same outputs: it may be in single precision even if the outputs are not.
            if not within:
                with NoRandomness() as trial:
                    value(next(iter(left)), chosen)
                exact = tolerance / 10 if trial.half else 1e-5
            for s, rules in left.items():
                left[s] = surviving(rules, chosen, partial(value, s), exact)
                if not left[s] and len(near[s]) < len(named):
                    near[s] = named
                    left[s] = surviving(distinct([rule for _, rule in named]), chosen, partial(value, s), exact)
                if (
                    within
                    and tolerance < 1e-3
                    and plan.slots[s].requires_grad
                    and left[s]
                    and not settled(left[s], pieces)
                ):
                    left[s] = self._told_apart(s, first, left[s])
                if not left[s]:
                    text = "the loss of a batch is not a weighted sum of the losses of its rows"
                    raise plan.mixed(text) if value.finite(s) else Refused(text)
            unsure = [s for s, rules in left.items() if not settled(rules, pieces)]
            # Where all rows have nearly the same loss, rules that differ little cannot be told apart.
            if unsure and outputs:
                value = Values(
                    self, unsure, first, tail, chosen, {s: stretched(v, plan.slots[s]) for s, v in outputs.items()}
                )
                left.update({s: surviving(left[s], chosen, partial(value, s), exact) or left[s] for s in unsure})
                unsure = [s for s in unsure if not settled(left[s], pieces)]
            if not unsure and again + 1 >= least:
                self.known[kind] = {
                    s: {name for name, rule in near[s] if any(same_rule(rule, r) for r in rules)}
                    for s, rules in left.items()
                }
                break
            chosen = others(left[unsure[0] if unsure else next(iter(left))], batch, count, again)
        return left

    def _told_apart(self, slot: int, entries: Sequence[int], rules: Sequence[Rule]) -> list[Rule]:
        """The rules that gradients do not refute. Losses hardly show which of two similar rules is right if they are
        about the same in every row, as at the beginning of a training; the rows' gradients differ then, too. Each rule
        is used to add up the gradients of the same rows, cut in two ways into parts of one size."""
        inputs, left = Inputs(self.tape, self.plan, entries), list(rules)
        least = 2e-5 if any(t.is_cuda for t in inputs.tensors) else 1e-5
        for pair in combinations(rules, 2):
            rows = telling(pair, self.plan.batch, min(SOME, self.plan.batch // 4 * 4))
            if len(left) < 2 or len(rows) % 4 or any(r not in left for r in pair):
                continue
            half = len(rows) // 2
            parts = [rows[:half], rows[half:], rows[::2], rows[1::2]]
            sketches = [self._sketch({slot: None}, entries, inputs, part, rows)[slot] for part in parts]

            def added_up(
                rule: Rule, which: slice, rows: list = rows, parts: list = parts, sketches: list = sketches
            ) -> list:
                weights = [weight(rule, part, rows) for part in parts[which]]
                return added(
                    *([(w * value, w * norm) for value, norm in sketch] for w, sketch in zip(weights, sketches[which]))
                )

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
        alone = [
            (i, self._alone(first, together[i]))
            for i in range(2 if len(parts[1]) > 1 else 1)
            if len(together) > 2 and not self.few
        ]
        for s, v in whole.items():
            axis = plan.slots[s].axis
            if axis is None:
                continue  # a loss computed inside a module is judged by its rule
            most = max(tolerance, TF32) if v.is_cuda else tolerance
            # Other kernels may compute a single row, as a vector.
            rough = max(tolerance, 1e-2) if v.is_cuda else tolerance
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
    """Values of scalars for some of the rows in ``chosen``, for which ``outputs`` has the modules' results. If there
    are no functions in ``tail``, the modules are called for these rows."""

    def __init__(
        self,
        proof: Proof,
        slots: Sequence[int],
        first: Sequence[int],
        tail: Sequence[int],
        chosen: list[int],
        outputs: dict,
    ) -> None:
        self._proof, self._slots, self._outputs = proof, slots, outputs
        self._entries = tail or first
        self._place = {r: i for i, r in enumerate(chosen)}
        self._found: dict[tuple[int, ...], dict[int, float]] = {}

    def __call__(self, slot: int, rows: Sequence[int]) -> float:
        if tuple(rows) not in self._found:
            plan, where = self._proof.plan, [self._place[r] for r in rows]
            env = {s: plan.slots[s].pick(v, where) for s, v in self._outputs.items()}
            env = run(self._proof.tape, plan, self._entries, Rows(plan.batch, 0, plan.batch, list(rows)), env)
            self._found[tuple(rows)] = {s: float(env[s]) for s in self._slots}
        return self._found[tuple(rows)][slot]

    def finite(self, slot: int) -> bool:
        """Whether all values of a scalar have been finite."""
        return all(math.isfinite(values[slot]) for values in self._found.values())


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
        for record in filter(None, map(record_of, modules_of(tape))):
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


def rehearsed(modules: Sequence[torch.nn.Module], count: int, work: Callable[[int, NoRandomness], Any]) -> Any:
    """Calls ``work`` on ``count`` rows, with randomness and side effects suppressed. Returns the result. If there
    is not enough memory, ``work`` is called again with fewer rows. Raises :class:`Refused` if not even two rows
    fit.

    The :class:`NoRandomness` around the call covers no more than the modules are known to need. If ``work`` then fails
    for a reason other than memory, it is called once more under a full :class:`NoRandomness`."""
    records = [f for f in map(record_of, modules) if f is not None]
    where = max(map(draws_of, modules), default=NEVER)
    while True:
        failed: Optional[BaseException] = None
        try:
            with rehearsal(modules), NoRandomness(where) as trial:
                result = work(count, trial)
            for record in records:
                record.remember(trial.half, trial.where)
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
    found = patiently(
        lambda: proof.rules(slots, pieces),
        "there is not enough memory to work out how much each piece contributes to the whole",
    )
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
    """Four parts of the rows, called a, b, c and d. They are for four calls: a + b, c + d,
    a + c and b + d. The calls have the same size if the number of rows is even or less
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
    vectors = {
        d: torch.arange(1, n + 1, dtype=torch.float32, device=d).mul_(1.618034).cos_().mul_(math.sqrt(2))
        for d, n in longest.items()
    }
    products = [f.mul(vectors[f.device][: f.numel()]).sum() for f in flat.values()]
    norms = torch._foreach_norm(list(flat.values())) if flat else []
    device = next(iter(vectors), None)
    # All at once, since every read waits for the GPU.
    found = torch.stack([t.to(device, torch.float32) for t in (*products, *norms)]).tolist() if flat else []
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
    off = [
        abs(value - sum(p[i][0] for p in parts)) / (size + least)
        for i, ((value, _), size) in enumerate(zip(whole, sizes))
    ]
    return max(off, default=0.0) if all(o == o for o in off) else math.inf


def spread(batch: int, count: int) -> list[int]:
    """``count`` rows, spread evenly over the batch."""
    return sorted({batch * i // count for i in range(count)})


def stretched(value: torch.Tensor, slot: Any) -> torch.Tensor:
    """Some rows of an output, each multiplied by another number."""
    if slot.axis is None or not value.is_floating_point():
        return value
    dim, parts = slot.axis.dim, slot.axis.apart(value)
    factors = (
        torch.arange(parts.shape[dim + 1], dtype=value.dtype, device=value.device).mul(2.4).cos().mul(0.6).add(1.25)
    )
    return (parts * factors.view(-1, *[1] * (parts.dim() - dim - 2))).flatten(dim, dim + 2)


def ignored(tape: Tape) -> list[int]:
    """The ``ignore_index`` of every function on the tape."""
    return [
        e.kwargs["ignore_index"]
        for e in tape.entries
        if isinstance(e.kwargs, dict) and isinstance(e.kwargs.get("ignore_index"), int)
    ]
