"""Whether the tape may be cut, and with which weights the pieces count: found by trials on a few rows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from typing import Any, Callable, ClassVar, Optional

import torch

from ..failure import Failed, NoMemory, Refused, passes, patiently
from ..memory import room
from ..sandbox.norms import refuse_batchwise
from ..sandbox.sandbox import NoRandomness
from ..spill.saved import on_host
from ..tape.graph import outline
from ..tape.recorded_module import number_of, record_of
from ..tape.settings import OFTEN
from ..tape.snapshot import hooks_backward_of_all, submodules
from ..tape.tape import Entry, Outside, Tape
from ..tape.trees import is_a
from .groups import NUMBER, TF32, Groups, Inputs, Sketch, added, residual
from .plan import Plan
from .rerun import SEVERAL, SOME, full_precision, modules_of, needed, parted, precisely, rehearsed
from .rows import Axis, Rows, said
from .rules import Weighing
from .weights import Named, Rule, candidates, counts_rows, crossing, distinct, halves, settled, spread

SMALL = 1 << 22  # rules are tried on the whole batch if all its outputs have at most this many elements
ELEMENT = 64  # bytes of free memory required for each element of an output on which rules are tried
MOST = 256  # the most rows on which rules are tried
FEW = 4  # the most rows on which everything else is tried for large outputs, where each row takes time; else SOME
HUGE = 1e300  # what is larger is no coefficient
NEAR = 10  # a number that has changed by no more than this factor needs no new trial
COEFFICIENTS = 100  # the most numbers that a call may be given as coefficients: more of them are data
SINGLE = 1000  # the most buffers and frozen parameters of one number that are looked at in each use
LEVELS = (0.02, 0.98)  # which of the numbers that may be drawn take the places of those in other trials
MASKS = ("dropout", "attention")  # whose masks are taken out of trials
PAUSE = 100  # rules are tried again once this many times the duration of their last trial has passed
SPENT = "backward through the graph a second time"  # what autograd says of a graph that it has used up


class Magnitudes:
    """The least and the largest magnitudes of numbers, such as the coefficients of a loss's terms, with which trials
    have been made. Even a number that changes in each step is out of that range only a few times: as often as it
    reaches another order of magnitude."""

    def __init__(self) -> None:
        self._ranges: list[tuple[float, float]] = []

    def news(self, numbers: Sequence[float]) -> bool:
        """Whether one of the numbers is far from all that it has been, or is not zero for the first time. What it is
        now belongs to the range from now on."""
        new = False
        self._ranges += [(math.inf, 0.0)] * (len(numbers) - len(self._ranges))
        for i, (number, (least, most)) in enumerate(zip(map(abs, numbers), self._ranges)):
            if 0 < number < HUGE and not least / NEAR <= number <= most * NEAR:
                self._ranges[i] = min(least, number), max(most, number)
                new = True
        return new


class Outlines:
    """The outlines of the graphs of pieces for which trials have been made: see :func:`outline`. Code that runs from
    some step on, whatever has switched it on, shows in them."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._news = 0
        self.tried = False  # trials have been made for the next piece

    def strange(self, results: dict[int, torch.Tensor]) -> Optional[int]:
        """The outline of the graphs of a piece's results, given by slot, if trials have to be made because of it. They
        are asked for until :data:`~headroom_train.tape.settings.OFTEN` have passed: graphs may depend on what the rows
        contain."""
        tried, self.tried = self.tried, False
        if self._news >= OFTEN:
            return None
        seen = hash((*results, outline(results.values())))
        if tried:
            self._known.add(seen)
        return None if seen in self._known else seen

    def passed(self, seen: int) -> None:
        """Called when trials for an outline have passed."""
        self._news += seen not in self._known
        self._known.add(seen)


class Uses:
    """What trials have found of one kind of step, how many times it has been used, and when it was tried."""

    def __init__(self) -> None:
        # For each scalar, by slot, names of the rules that no batch has refuted; by kind of tape.
        self.rules: dict[tuple, dict[int, set]] = {}
        self.agreed = False  # whether gradients have been found to add up
        self.outlines = Outlines()
        self.count = 0
        self.tried = Magnitudes()  # of the numbers that were given, or belong to the modules
        self.passed = 0  # the count when a trial last found them to be right; 0 if no trial has
        # In seconds: when the newest trial began, and how long it took; infinite until it has passed in single
        # precision.
        self.begun, self.took = 0.0, math.inf

    def due(self, now: float, numbers: Sequence[float] = ()) -> bool:
        """Counts one more use, with these numbers, and returns whether the rules have to be tried in it. Rules are
        tried in uses 1, 2, 4, 8 and so on, and when a number has another order of magnitude than in any trial. They
        are also tried again as soon as the time since the last trial began is 100 times that trial's duration, so that
        these trials take at most about a hundredth of the time. Rules are
        tried repeatedly because how rows affect each other may depend on their contents, and on numbers that
        change in the course of training."""
        self.count += 1
        if not self.tried.news(numbers) and self.count & (self.count - 1) and now - self.begun < PAUSE * self.took:
            return False
        self.begun, self.took = now, math.inf
        self.forget()
        return True

    def forget(self) -> None:
        """From now on nothing has been tried."""
        self.rules.clear()
        self.agreed = False


class Proof:
    """Tests, on real rows, whether a tape may be cut and by which rules. For each kind of tape this takes some forward
    and backward passes of a few rows, which are repeated when :meth:`Uses.due` says so. The tests leave no traces."""

    uses: ClassVar[dict[tuple, Uses]] = {}  # by kind of tape
    outlines: ClassVar[dict[tuple, Outlines]] = {}  # by kind of calls that are made in two passes
    # Kinds of calls of which no row has been found to depend on another, with the numbers that they had then.
    unrelated: ClassVar[dict[tuple, Magnitudes]] = {}

    def __init__(
        self,
        tape: Tape,
        plan: Plan,
        withheld: Callable[[], Any] = nullcontext,
        among: Optional[Rows] = None,
        entries: Optional[Sequence[int]] = None,
    ) -> None:
        """``entries`` are those that are cut, if not all of them are. ``withheld`` returns a context in which no memory
        of the host is used for what does not fit on a GPU. It yields whether there is any. Whether rows depend on each
        other is tried on all rows in ``among``, a piece of which that is in question, and otherwise on a few of the
        batch."""
        self.tape, self.plan, self._withheld = tape, plan, withheld
        self._among = among or Rows(plan.batch, 0, plan.batch)
        self._all = among is not None
        self.modules = modules_of(tape, entries)
        self.used = Uses()
        refuse_batchwise(self.modules)
        self._groups = Groups(tape, plan)

    @classmethod
    def forget(cls) -> None:
        """From now on nothing has been tried, of any kind of step."""
        cls.unrelated.clear()
        for used in cls.uses.values():
            used.forget()

    def rules(self, slots: Sequence[int], pieces: Sequence[Rows]) -> dict[int, list[Rule]]:
        """The rules of some scalars that no trial refutes, by slot. Raises :class:`Refused` if none is left for a
        scalar, or if a mean over the rows is left that may be a mean over something else."""
        if not slots:
            return {}
        found, why = self._left(slots, pieces), self._divided(slots)
        if why and any(counts_rows(left, self.plan.batch) for left in found.values()):
            raise self.plan.mixed(why)
        return found

    def _left(self, slots: Sequence[int], pieces: Sequence[Rows]) -> dict[int, list[Rule]]:
        plan = self.plan
        if any(plan.slots[s].dtype.is_complex for s in slots):
            raise Refused(SEVERAL)
        entries = needed(self.tape, slots)
        targets, ignored = self._targets(), self._ignored()
        kind = (*slots, *self._kind(entries), *ignored)
        self.used = self.uses.setdefault((*slots, *self._kind(entries, numbers=False)), Uses())
        if self.used.due(time.monotonic(), self._numbers(entries)):
            self.unrelated.clear()
        plan.outlines, self.used.outlines.tried = self.used.outlines, False
        known = self.used.rules.get(kind)
        if known is not None:  # only the rules that earlier batches could not tell apart are left
            named = candidates(plan.batch, [*targets.values()], ignored, set().union(*known.values()))
            found = {s: distinct([rule for name, rule in named if name in names]) for s, names in known.items()}
            if all(rules and settled(rules, pieces) for rules in found.values()):
                return found
        self.used.outlines.tried = True
        size = self._size(entries)
        fit = max(4 * SMALL, room() // ELEMENT) * plan.batch // max(1, size)
        count = plan.batch if size <= SMALL else min(plan.batch, FEW, max(2, fit))
        if not parted(self.tape, plan, entries)[1]:  # the modules themselves run for each try
            count = min(count, SOME)
        named = candidates(plan.batch, [*targets.values()], ignored)
        near = self._near(slots, entries, [*targets], named)

        def weighed(n: int, tolerance: float) -> dict[int, list[Rule]]:
            weighing = Weighing(self._groups, entries, pieces, near, named, tolerance)
            if weighing.settles(n):
                self.used.rules[kind] = weighing.names()
            return weighing.left

        return self._tried(entries, min(count, MOST), weighed)

    def _near(
        self, slots: Sequence[int], entries: Sequence[int], targets: Sequence[int], named: Named
    ) -> dict[int, Named]:
        """Those of the rules in ``named`` that count what each scalar's own functions are given: the terms of a long
        sum have many targets. Rules are named by places in ``targets``, indices of tensors on the tape."""
        tape, near = self.tape, {}
        within = not parted(tape, self.plan, entries)[1]
        for s in slots:
            own = [tape.entries[i] for i in needed(tape, [s])]
            given = {index for e in own if within or e.module is None for index in e.references()[1]}
            near[s] = [(name, rule) for name, rule in named if len(name) == 1 or targets[name[0]] in given]
        return near

    def alone(self, entries: Sequence[int]) -> None:
        """Raises :class:`Refused` if the modules' results for a row depend on the other rows."""
        kind = ("alone", *self._kind(entries))
        numbers = self._numbers(entries)
        known = self._are_unrelated(kind, numbers)
        self.plan.outlines = self.outlines.setdefault(kind, Outlines())
        self.plan.outlines.tried = not known
        if not known:
            compare = self._groups.compare
            self._tried(entries, self._most(), lambda n, tolerance: compare(entries, self._spread(n), tolerance), True)
            self._unrelated(kind, numbers)

    def _most(self, most: int = SOME) -> int:
        """On how many rows something is tried."""
        return self._among.count if self._all else min(self._among.count, most)

    def _spread(self, count: int) -> list[int]:
        return [self._among.start + i for i in spread(self._among.count, count)]

    def _are_unrelated(self, kind: tuple, numbers: Sequence[float]) -> bool:
        """Whether a trial has shown that with numbers like these."""
        known = self.unrelated.get(kind)
        if known is not None and known.news(numbers):
            known = None
            del self.unrelated[kind]
        return known is not None

    def _unrelated(self, kind: tuple, numbers: Sequence[float]) -> None:
        self.unrelated.setdefault(kind, Magnitudes()).news(numbers)

    def agree(self, rules: dict[int, Rule]) -> None:
        """Raises :class:`Refused` if a scalar's gradients of two groups of rows, weighted by its rule, do
        not add up to the gradients of all these rows together. Of all the trials this is the least
        likely to pass by chance: the sum must be right for every element of every parameter."""
        if self.used.agreed:
            return
        among = range(self._among.start, self._among.stop)
        counting = {s: [r for r in among if rule is None or rule[r]] for s, rule in rules.items()}
        # The rows that count for all scalars, so that these can be tried together.
        every = sorted(set.intersection(*map(set, counting.values())))
        together = len(rules) == 1 or len(every) >= self._most()
        exact = True
        for group, rows in [(rules, every)] if together else [({s: rules[s]}, rows) for s, rows in counting.items()]:
            if len(rows) > 1:
                exact &= self._agrees(group, rows)
        self.used.agreed = True
        self.used.passed = self.used.count
        if exact:
            self.used.took = time.monotonic() - self.used.begun

    def _agrees(self, rules: dict[int, Rule], rows: list[int]) -> bool:
        """Compares gradients for :meth:`agree`, of some of the given rows. Returns whether this was done in single
        precision."""
        entries = needed(self.tape, list(rules))
        inputs = Inputs(self.tape, self.plan, entries)
        most = self._most(SOME if self._size(entries) <= SMALL else FEW)

        def tried(n: int, tolerance: float) -> bool:
            return self._agree(rules, entries, inputs, [rows[i] for i in spread(len(rows), n)], tolerance)

        return self._tried(entries, min(len(rows), most), tried, True)

    def _agree(
        self, rules: dict[int, Rule], entries: Sequence[int], inputs: Inputs, chosen: list[int], tolerance: float
    ) -> bool:
        """Compares gradients for :meth:`agree`. Returns whether this was done in single precision."""
        chosen = chosen if len(chosen) < 4 else chosen[: len(chosen) // 2 * 2]
        sketches = cache(lambda rows: self._groups.sketch(rules, entries, inputs, [*rows], chosen))
        for s in rules:
            self._add_up(lambda rows, s=s: sketches(tuple(rows))[s], inputs, chosen, tolerance)  # type: ignore[misc]
        return tolerance < 1e-3

    def apart(self, entries: Sequence[int], slots: Sequence[int]) -> None:
        """Raises :class:`Refused` if the gradients of a row's results depend on the other rows, or if those of a number
        that has been the same for other rows depend on the rows. ``slots`` are the modules' results."""
        known = self.plan.slots
        trained = [s for s in slots if known[s].requires_grad]
        rows, fixed = ([s for s in trained if (known[s].axis is None) == whole] for whole in (False, True))
        kind, inputs = ("apart", *trained, *self._kind(entries, numbers=False)), Inputs(self.tape, self.plan, entries)
        if not trained or not inputs.own or self.plan.batch < 2:
            return
        numbers = self._numbers(entries)
        if self._are_unrelated(kind, numbers):
            return

        def tried(n: int, tolerance: float) -> None:
            chosen = self._spread(n)
            if rows:
                sketches = cache(lambda some: self._groups.sketch_of_results(rows, entries, inputs, [*some]))
                self._add_up(lambda some: sketches(tuple(some)), inputs, chosen, tolerance)
            a, b, c, d = crossing(chosen)
            for s in fixed:
                one, other = (self._groups.sketch({s: None}, entries, inputs, some, some)[s] for some in (a + b, c + d))
                if residual(one, [other]) > max(1e-3, tolerance):
                    raise Refused(NUMBER)

        most = self._most(SOME if self._size(entries) <= SMALL else FEW)
        self._tried(entries, most // 2 * 2 if most > 3 else most, tried, True)
        self._unrelated(kind, numbers)

    def _add_up(
        self, sketch: Callable[[list[int]], Sketch], inputs: Inputs, chosen: list[int], tolerance: float
    ) -> None:
        """Raises :class:`Refused` if the gradients of two groups of rows are not those of all these rows, or depend on
        which rows are in a group. More than three rows must be an even number of them."""
        refused = Refused("the gradients of pieces do not add up to those of the whole batch")
        cuda, single = any(t.is_cuda for t in inputs.tensors), tolerance < 1e-3
        a, b, c, d = crossing(chosen)
        parts = (a + b, c + d) if len(chosen) > 3 else halves(chosen)
        most = max(TF32 if cuda else 1e-3, 2 * tolerance)
        if residual(sketch(chosen), [sketch(part) for part in parts]) > most:
            raise refused
        if self._groups.few:
            return
        # These four calls have the same size, so the same kernels compute a row. Any difference is therefore an effect
        # of rows on each other, even if it is only a small part of the loss, such as the balance of a router's experts.
        least = (2e-5 if cuda else 1e-5) if single else 1e-2
        if residual(added(sketch(a + b), sketch(c + d)), [sketch(a + c), sketch(b + d)]) > least:
            raise refused

    def _size(self, entries: Sequence[int]) -> int:
        """The total number of elements of all results of modules for the whole batch."""
        calls = [self.tape.entries[i] for i in entries if self.tape.entries[i].module is not None]
        return sum(math.prod(self.plan.slots[s].shape) for e in calls for s in e.slots if s is not None)

    def _kind(self, entries: Sequence[int], numbers: bool = True) -> tuple:
        """A key that is the same for tapes of the same kind. The numbers among the modules'
        attributes are part of the key only if ``numbers`` is true. The values of coefficients among
        the arguments are not part of it, since many change in every step: see :meth:`_numbers`. But the key says which
        coefficients are zero, since a term matters as soon as its coefficient is not zero."""
        made = [self.tape.entries[i] for i in range(max(entries) + 1)]
        zero = tuple(bool(t.detach() == 0) for t in self._coefficients(made))
        calls = []
        for e in made:
            words = [v for v in e.leaves() if is_a(v, (str, bool))]  # such as the name of a loss's reduction
            calls.append((number_of(e.module), e.call_name(), e.grad, e.state and e.state[numbers], *words))
        return (*calls, *zero)

    def _coefficients(self, made: Sequence[Entry]) -> Iterator[torch.Tensor]:
        """The tensors with a single number that some calls are given and that nothing is trained through."""
        for i in dict.fromkeys(i for e in made for i in e.references()[1]):
            t = self.tape.outside[i]
            if t.numel() == 1 and not t.requires_grad and (t.is_floating_point() or t.is_complex()):
                yield t

    def _numbers(self, entries: Sequence[int]) -> list[float]:
        """The magnitudes of numbers that may say how much a term counts: among the arguments, among the modules'
        attributes and in the objects there, and those of buffers and frozen parameters that are a single number."""
        made = [self.tape.entries[i] for i in range(max(entries) + 1)]
        plain = [v for e in made if e.state for v in e.state[2]]
        for given in ([v for v in e.leaves() if type(v) in (int, float)] for e in made):
            plain += given if len(given) <= COEFFICIENTS else ()
        own = [
            t
            for r in map(record_of, modules_of(self.tape))
            for t in ((*r.buffers, *r.params) if r is not None else ())
            if t.numel() == 1 and not t.requires_grad and t.is_floating_point()
        ]
        found: dict[torch.device, list[torch.Tensor]] = {}
        for t in (*self._coefficients(made), *own[:SINGLE]):
            found.setdefault(t.device, []).append(t.detach().reshape(()).abs().float())
        # One transfer for each device. What comes last may be more or fewer numbers in another step.
        return [*(v for ts in found.values() for v in torch.stack(ts).tolist()), *plain]

    def _tried(
        self, entries: Sequence[int], count: int, work: Callable[[int, float], Any], varied: bool = False
    ) -> Any:
        """Calls ``work`` with ``count``, a number of rows, and with a tolerance, without randomness or side effects.
        Returns the result. If there is not enough memory, ``work`` is called again with fewer rows, and with memory of
        the host only if not even two rows fit: first for what autograd saves, then for all that does not fit, which
        takes many times as long. If ``varied``, and numbers would have been drawn, ``work`` is also called with others
        in their places: where nothing can be computed with these, they show nothing."""

        def tried(n: int, tolerance: float) -> Any:
            try:
                return work(n, tolerance)
            except Refused as why:
                ago = self.used.count - self.used.passed
                since = f"; the same trial last passed {ago} step{'s' * (ago != 1)} ago" if self.used.passed else ""
                raise why.more(f"{why}{since}") from None

        drawn: list[tuple] = []

        def without_randomness(n: int, trial: NoRandomness) -> Any:
            result = compared(n, trial)
            drawn[:] = [d for d in trial.draws if not any(name in d[0] for name in MASKS)]
            return result

        def compared(n: int, trial: NoRandomness) -> Any:
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                try:
                    with precisely(self.tape, entries) as single:
                        if single:
                            with full_precision():
                                return tried(n, 1e-4)
                except Exception as e:  # for example from a kernel that exists only for half precision
                    if passes(e) or isinstance(e, Refused) and not trial.half:
                        raise
                try:
                    return tried(n, 2e-2)
                except Exception as e:
                    if passes(e) or isinstance(e, Refused):
                        raise
                    if SPENT in str(e):
                        raise Refused(
                            "calls share a graph that the script has made before them, such as weights in "
                            "parametrize.cached(), and the first backward pass of a piece would use it up"
                        ) from e
                    raise Failed(f"the step fails when it is run on fewer of its rows ({said(e)})") from e

        try:
            with self._withheld() as spare:
                result = rehearsed(self.modules, count, without_randomness)
            for level in LEVELS if varied and drawn else ():
                with suppress(NoMemory, Failed), self._withheld():
                    rehearsed(self.modules, count, without_randomness, level)
            return result
        except NoMemory:
            if not spare and not any(t.is_cuda for t in self.tape.outside):
                raise
        few = min(count, FEW)
        try:
            with self._withheld(), on_host():
                return rehearsed(self.modules, few, without_randomness)
        except NoMemory:
            if not spare:
                raise
        return rehearsed(self.modules, few, without_randomness)

    def _targets(self) -> dict[int, torch.Tensor]:
        """The tensors, such as labels and masks, whose elements might have to be counted to find the weights of a
        batch's rows, by their indices on the tape. None of them requires a gradient."""
        found = {}
        for cut in self.plan.cuts:
            for i, axis in cut.outside.items():
                t = self.tape.outside[i]
                most = SMALL >> 4 if t.is_floating_point() else SMALL
                if not t.requires_grad and t.layout == torch.strided and not t.is_complex() and t.numel() <= most:
                    found[i] = t if axis == Axis(0) else axis.apart(t).movedim(axis.dim + 1, 0)
        return found

    def _divided(self, slots: Sequence[int]) -> str:
        """What the rows' losses may be divided by that depends on the rows; empty if nothing is known. As long as all
        rows are alike, that looks like a mean over the rows."""
        for entry in (self.tape.entries[i] for i in needed(self.tape, slots)):
            record = record_of(entry.module) if entry.module is not None else None
            if record is not None and record.divides:
                return f"{entry.call_name()} divides by a number that depends on the rows"
            if entry.module is None and _by_weights(self.tape, entry):
                return "the loss is divided by the sum of its targets' class weights"
        return ""

    def _ignored(self) -> list[int]:
        """The ``ignore_index`` of every function on the tape, and of those that the modules call."""
        given = [e.kwargs.get("ignore_index") for e in self.tape.entries if isinstance(e.kwargs, dict)]
        inside = sorted({n for r in map(record_of, self.modules) if r is not None for n in r.ignored})
        return [*dict.fromkeys((*(number for number in given if isinstance(number, int)), *inside))]


def _by_weights(tape: Tape, entry: Entry) -> bool:
    """Whether a function of PyTorch's returns a mean with class weights that are not all the same."""
    if entry.call_name() not in ("cross_entropy", "nll_loss") or not isinstance(entry.kwargs, dict):
        return False
    weights = entry.kwargs.get("weight")
    if weights is None or entry.kwargs.get("reduction", "mean") != "mean":
        return False
    known = tape.outside[weights.index] if type(weights) is Outside else None
    return known is None or not bool((known == known[0]).all())


def hooks_backward(module: torch.nn.Module) -> bool:
    """Whether a module, not one inside it, has a hook that sees gradients."""
    return bool(module._backward_hooks or module._backward_pre_hooks)


def refuse_backward_hooks(modules: Sequence[torch.nn.Module]) -> None:
    """Raises :class:`Refused` if a module, or all modules, have a hook that would see the gradients of pieces."""
    if hooks_backward_of_all():
        raise Refused("all modules have a backward hook, which would see the gradients of pieces")
    for m in submodules(modules):
        if hooks_backward(m):
            raise Refused(f"{type(m).__name__} has a backward hook, which would see the gradients of pieces")


def proven(proof: Proof, slots: Sequence[int], pieces: Sequence[Rows]) -> dict[int, Rule]:
    """The rules of scalars for these pieces, by slot, checked to be right for the scalars' gradients as well. Raises
    :class:`Refused` if no rule fits a scalar, or if two rules that fit give the pieces different weights."""
    refuse_backward_hooks(proof.modules)
    why = "there is not enough memory to work out how much each piece contributes to the whole"
    found = patiently(lambda: proof.rules(slots, pieces), why)
    if not all(settled(rules, pieces) for rules in found.values()):
        raise Refused("headroom cannot determine how much each piece's loss contributes to the loss of the whole batch")
    rules = {s: left[0] for s, left in found.items()}
    patiently(lambda: proof.agree(rules), "there is not enough memory to check the gradients on a few rows")
    return rules
