"""The decorator headroom_train.step, for loops that recording cannot follow. The decorated function runs
the forward and backward pass of one batch.

If the function runs out of memory, it is called again for some rows at a time. The gradients of
these calls are weighted like those of a replay, by a rule that is first tried on a few real rows.
The results of these calls are joined. Where this cannot be exact, the step is refused, and the
exception is left to the user's code.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..failure import Mixed, Refused, Survival, clean, is_out_of_memory, release_frames, unframed
from ..hooks.changes import changed
from ..hooks.genuine import in_place
from ..hooks.updates import state_of
from ..proof.groups import residual, sketched
from ..proof.mixing import Operation, Operations, counts, divides
from ..proof.rerun import SOME, rehearsed
from ..proof.rows import Axis, Rows
from ..proof.rules import ROUNDS
from ..proof.weights import Rule, candidates, counts_rows, distinct, halves, others, settled, spread, typed, weight
from ..replay.pieces import by_pieces, in_two, pieces_of
from ..replay.sizes import Sizes
from ..sandbox.norms import refuse_batchwise
from ..sandbox.sandbox import NoRandomness, Sealed, Watched, rehearsal
from ..tape.recorded_module import Limits, RecordedModule, record_of
from ..tape.snapshot import Snapshot
from ..tape.tape import random_state, recorded, set_random_state, versions_of
from ..tape.trees import flatten, mapped, opened, tensors_in, unflatten
from .hooked import sees_gradients

IGNORED = [-100]  # the label that PyTorch's losses ignore by default


_CHANGES = "a call to the model changes its buffers or attributes"


def refuse_changes(records: Sequence[RecordedModule]) -> None:
    if any(r.changes_buffers() or r.moving for r in records):
        raise Refused(_CHANGES)


class Run(NamedTuple):
    """What the function computes for some rows."""

    sketches: list[tuple[float, float]]  # of each parameter's gradient
    leaves: list  # of the function's result
    tree: Any
    made: list[Operation]


class Explicit:
    """One decorated function. Only calls on the thread that is recorded are handled; on others the function is
    called unchanged."""

    def __init__(
        self,
        function: Callable,
        models: Sequence[torch.nn.Module],
        optimizer: Optional[torch.optim.Optimizer],
        recorder: Any,
    ) -> None:
        self._function, self._models, self._recorder = function, models, recorder
        self._optimizer = weakref.ref(optimizer) if optimizer is not None else lambda: None
        self._params = self._trained()
        self._limits, self._sizes = Limits(), Sizes()
        self._sizes.tell = recorder.report.failed

    def _trained(self) -> list[torch.Tensor]:
        optimizer = self._optimizer()
        groups = optimizer.param_groups if optimizer is not None else ()
        every = [*(p for m in self._models for p in m.parameters()), *(p for g in groups for p in g["params"])]
        return list({id(p): p for p in every if p.requires_grad}.values())

    def __call__(self, args: tuple, kwargs: dict) -> Any:
        try:
            return self._guarded(args, kwargs)
        except BaseException as e:
            unframed(e)
            raise

    def _guarded(self, args: tuple, kwargs: dict) -> Any:
        recorder, sizes = self._recorder, self._sizes
        if recorder.mine().busy or not recorder.here() or not torch._C.is_grad_enabled() or recorded(args, kwargs):
            return self._function(*args, **kwargs)
        known = [*map(record_of, self._models)]
        records = [r or RecordedModule(recorder, m) for r, m in zip(known, self._models)]
        if not all([recorder.claims(r, trains=True) for r in records]):
            return self._function(*args, **kwargs)
        if any([r.follow(m) for r, m in zip(records, self._models)]) or None in known:
            self._params = self._trained()
        for r in records:
            r.before(versions_of(r.params).count(-1))
        state, before = random_state(), [state_of(p) for p in self._params]
        preemptive = sizes.too_large(self._limits, args, kwargs)
        failed: Optional[BaseException] = sizes.failure if preemptive else None
        if not preemptive:
            try:
                result = self._called(args, kwargs)
            except BaseException as e:
                if not is_out_of_memory(e):
                    raise
                failed = e
            if failed is None:
                return self._succeeded(records, args, kwargs, result)
            sizes.failed(self._limits, args, kwargs, failed)
            release_frames(failed)
        set_random_state(state)

        def pieces(_: Optional[Refused]) -> Any:
            try:
                if not all([r.put_back() for r in records]):
                    raise Refused(_CHANGES)
                refuse_changes(records)
                clean(failed)
                result, count = recorder.guarded(lambda: self._in_pieces(args, kwargs, before))
            except Refused:
                sizes.refused()
                raise
            sizes.confirm(count)
            recorder.report.sizes = sizes
            if not preemptive:
                recorder.report.survived(failed, Survival.pieces(rows_of(args, kwargs), count))
            return result

        if not preemptive:
            return recorder.recover(failed, [pieces])
        try:
            return pieces(None)
        except Refused:
            pass
        return self._called(args, kwargs)  # nothing has failed yet

    def _succeeded(self, records: Sequence[RecordedModule], args: tuple, kwargs: dict, result: Any) -> Any:
        for r in records:
            r.after()
        check = self._recorder.check
        if check is not None:
            check.function(self._recorder, lambda: self.compared(records, args, kwargs), self._models)
        return result

    def _called(self, args: tuple, kwargs: dict) -> Any:
        with self._recorder.inside(()):
            return self._function(*args, **kwargs)

    def _in_pieces(self, args: tuple, kwargs: dict, before: list) -> tuple[Any, int]:
        batch = self._batch_of(args, kwargs)
        reached = [state_of(p) != b for p, b in zip(self._params, before)]
        with self._gradients_kept():
            trial = Trial(self, args, kwargs, batch)
            rule, joins, tree = trial.proven(pieces_of(batch, self._sizes.first(batch)))
            if trial.backwards > 1 and any(reached):
                raise Refused(
                    "the function calls backward more than once, and some gradients had already been computed"
                )
            sums, parts, count = self._summed(args, kwargs, batch, rule, self._sizes.next, reached)
            result = unflatten([join(column) for join, column in zip(joins, zip(*parts))], tree)
        for p, g in zip(self._params, sums):
            if g is not None:
                p.grad = g if p.grad is None else p.grad.add_(g)
        return result, count

    def _batch_of(self, args: tuple, kwargs: dict) -> int:
        """The number of rows of a call's batch. Raises :class:`Refused` if the batch must not be
        cut."""
        refuse_batchwise(self._models)
        if sees_gradients(self._params):
            raise Refused("a parameter has a hook, which would see the gradients of pieces")
        return rows_of(args, kwargs)

    @contextmanager
    def _gradients_kept(self) -> Iterator[None]:
        kept = [p.grad for p in self._params]
        try:
            yield
        finally:
            for p, g in zip(self._params, kept):
                p.grad = g

    def _summed(
        self, args: tuple, kwargs: dict, batch: int, rule: Rule, size: Callable[[int], int], reached: Sequence[bool]
    ) -> tuple[list, list, int]:
        """Calls the function for each piece. Returns three things: for each parameter, the weighted sum of its
        gradients over the pieces; for each piece, the leaves of its result, each paired with the piece's rows;
        and the number of pieces. A parameter that is marked in ``reached``, because the failed call had already
        computed its gradient, has no sum."""
        sums: list[Optional[torch.Tensor]] = [None] * len(self._params)
        parts: list[list] = []

        def take(rows: Optional[Rows], got: tuple[list, list]) -> None:
            assert rows is not None
            grads, leaves = got
            w = weight(rule, range(rows.start, rows.stop))
            for i, g in enumerate(grads):
                if g is not None and w and not reached[i]:
                    g = g if w == 1.0 else g.mul_(w)
                    sums[i] = g if sums[i] is None else sums[i].add_(g)  # type: ignore[union-attr]
            parts.append([(rows, leaf) for leaf in leaves])

        def work(rows: Optional[Rows]) -> tuple[list, list]:
            assert rows is not None
            return self.run(args, kwargs, batch, rows)

        return sums, parts, by_pieces(batch, size, work, take)

    def compared(
        self, records: Sequence[RecordedModule], args: tuple, kwargs: dict
    ) -> tuple[list, list, int, int, bool]:
        """Computes each parameter's gradient for the whole batch and in two pieces, for headroom
        check. Returns the gradients for the whole batch, the sums over the pieces, the number of
        rows, the number of pieces, and whether anything was computed in half precision."""
        refuse_changes(records)
        batch = self._batch_of(args, kwargs)
        with self._gradients_kept():
            rule, _, _ = Trial(self, args, kwargs, batch).proven(pieces_of(batch, in_two(batch)(0)))
            with rehearsal(self._models), NoRandomness() as trial:
                whole, _ = self.run(args, kwargs, batch, Rows(batch, 0, batch))
                parts, _, count = self._summed(args, kwargs, batch, rule, in_two(batch), [False] * len(self._params))
        return whole, parts, batch, count, trial.half

    def run(self, args: tuple, kwargs: dict, batch: int, rows: Rows) -> tuple[list, list]:
        """The gradients that the function computes for some rows, and the leaves of its result."""
        for p in self._params:
            p.grad = None
        with torch.enable_grad():
            found, self.tree = flatten(self.for_gradients(cut(args, batch, rows), cut(kwargs, batch, rows)))
        leaves = [t.detach() if isinstance(t, torch.Tensor) else t for t in found]
        grads = [p.grad for p in self._params]
        for p in self._params:
            p.grad = None
        return grads, leaves

    def for_gradients(self, args: tuple, kwargs: dict) -> Any:
        """Calls the function for its gradients alone: a step of an optimizer inside it is refused."""
        thread = self._recorder.mine()
        thread.stepping = True
        try:
            with in_place():
                return self._function(*args, **kwargs)
        finally:
            thread.stepping = False


class Trial:
    """Finds out, from a few rows of a batch, by which rule a function's gradients add up, and how
    its results are joined."""

    def __init__(self, explicit: Explicit, args: tuple, kwargs: dict, batch: int) -> None:
        self._explicit, self._args, self._kwargs, self._batch = explicit, args, kwargs, batch
        self._seen: dict[tuple, Run] = {}
        self._trial = NoRandomness()
        self.backwards = 0

    def proven(self, pieces: Sequence[Rows]) -> tuple[Rule, list[Callable], Any]:
        """Returns the rule for the gradients, a joining function for each leaf of the result, and
        the result's tree. A joining function takes a list of (rows, leaf), one for each piece, and
        returns the leaf for the whole batch."""
        of_rows = [
            t
            for t in tensors_in((self._args, self._kwargs))
            if t.dim() and t.shape[0] == self._batch and not t.requires_grad
        ]
        every = distinct([rule for _, rule in candidates(self._batch, of_rows, IGNORED)])

        def found(n: int, trial: NoRandomness) -> tuple[Rule, list[Callable], Any]:
            self._seen.clear()
            self._trial = trial
            return self._found(every, n, pieces)

        return rehearsed(self._explicit._models, min(self._batch, SOME), found)

    def _found(self, every: list[Rule], count: int, pieces: Sequence[Rows]) -> tuple[Rule, list[Callable], Any]:
        chosen, rules = spread(self._batch, count), list(every)
        self._looked(chosen)
        numbers = [list(every) for _ in self._run(chosen).leaves]
        for again in range(ROUNDS):
            whole, splits = self._run(chosen), self._splits(chosen, again)
            off = [max(self._residual(r, chosen, whole, s) for s in splits) for r in rules]
            rules = self._nearest(rules, off)
            numbers = [
                [r for r in left if all(self._sums(r, i, chosen, whole, s) for s in splits)]
                for i, left in enumerate(numbers)
            ]
            if not rules:
                raise Mixed("the gradients of a batch are not a weighted sum of the gradients of its rows")
            if settled(rules, pieces) and again > 0:
                made = [run.made for run in self._seen.values()]
                if counts_rows(rules, self._batch) and any(map(divides, made, made[1:])):
                    raise Mixed("the function divides by a number that depends on the rows")
                if any(map(counts, made)):
                    raise Mixed("the gradient of an operation depends on what else is in the batch")
                # The gradients' rule, if that is right for a leaf, too.
                own = [_shared(rules, left) or left for left in numbers]
                joins = [self._join(i, leaf, own[i], len(chosen)) for i, leaf in enumerate(whole.leaves)]
                return rules[0], joins, whole.tree
            chosen = others(rules, self._batch, count, again)
        raise Refused(
            "headroom cannot determine how much each piece's gradients contribute to those of the whole batch"
        )

    def _run(self, rows: Sequence[int]) -> Run:
        key = tuple(rows)
        if key not in self._seen:
            with Watched([operations := Operations()]):
                grads, leaves = self._explicit.run(
                    self._args, self._kwargs, self._batch, Rows(self._batch, 0, self._batch, list(rows))
                )
            self._seen[key] = Run(sketched(grads), leaves, self._explicit.tree, operations.made)
        return self._seen[key]

    def _splits(self, chosen: list[int], seed: int) -> list[tuple[list[int], list[int]]]:
        mixed = random.Random(seed).sample(chosen, len(chosen))
        return [halves(chosen), tuple(sorted(part) for part in halves(mixed))]  # type: ignore[list-item]

    def _residual(self, rule: Rule, chosen: list[int], whole: Run, split: tuple[list[int], list[int]]) -> float:
        """How far the sum of the gradients of two parts, weighted by ``rule``, is from the gradients of all chosen
        rows."""
        if rule is not None and not sum(rule[r] for r in chosen):
            return 0.0  # these rows say nothing about the rule
        weights = [(weight(rule, part, chosen), part) for part in split]
        return residual(
            whole.sketches, [[(w * v, w * norm) for v, norm in self._run(part).sketches] for w, part in weights if w]
        )

    def _tolerance(self) -> float:
        return 1e-2 if self._trial.half else 1e-3

    def _sums(self, rule: Rule, i: int, chosen: list[int], whole: Run, split: tuple[list[int], list[int]]) -> bool:
        """Whether number ``i`` of the result is the sum of the parts' numbers, weighted by ``rule``."""
        value = whole.leaves[i]
        if not number(value):
            return False
        if rule is not None and not sum(rule[r] for r in chosen):
            return True
        parts = [(weight(rule, part, chosen), self._run(part).leaves[i]) for part in split]
        made = sum(w * float(v) for w, v in parts if w)
        return abs(made - float(value)) <= self._tolerance() * max(abs(float(value)), 1e-12)

    def _nearest(self, rules: list[Rule], off: list[float]) -> list[Rule]:
        """The rules with which the gradients of pieces add up to those of the whole; ``off`` says how far they are."""
        return [r for r, o in zip(rules, off) if o <= self._tolerance() and o <= max(4 * min(off), 1e-5)]

    def _join(self, i: int, leaf: Any, rules: list[Rule], count: int) -> Callable:
        if (
            isinstance(leaf, torch.Tensor)
            and leaf.dim()
            and leaf.shape[0] == count
            and all(len(r.leaves[i]) == len(rows) for rows, r in self._seen.items())
        ):
            return lambda parts: torch.cat([v for _, v in parts])
        if plain(leaf) and all(plain(r.leaves[i]) and r.leaves[i] == leaf for r in self._seen.values()):
            return lambda parts: parts[0][1]
        if number(leaf) and rules:

            def total(parts: Sequence) -> Any:
                sums = [
                    sum(w * v for w, v in ((weight(rule, range(r.start, r.stop)), v) for r, v in parts) if w)
                    for rule in rules
                ]
                if any(abs(float(s) - float(sums[0])) > 1e-6 * abs(float(sums[0])) for s in sums):
                    raise Refused(
                        "headroom cannot determine how much the function's result for each piece "
                        "contributes to its result for the whole batch"
                    )
                return typed(sums[0], leaf)

            return total
        raise Refused("a result of the function can neither be joined row by row nor be computed as a weighted sum")

    def _looked(self, rows: list[int]) -> None:
        """Runs the function on the given rows to see what it does besides computing gradients.
        Raises :class:`Refused` if it changes buffers, attributes or gradients in a way that pieces
        cannot repeat."""
        params = self._explicit._params
        least = min(params, key=lambda p: p.numel())

        def counted(*args: Any, **kwargs: Any) -> None:
            self.backwards += 1
            return backward(*args, **kwargs)

        with in_place():
            backward = torch.autograd.backward
        self.backwards = 0
        modules = [m for model in self._explicit._models for m in model.modules()]
        snapshot, buffers = Snapshot(modules, deep=True), [b for m in modules for b in m.buffers(recurse=False)]
        versions = [b._version for b in buffers]
        writes = Written(params)
        with (
            in_place(),
            changed(torch.autograd, "backward", counted),
            writes,
            Watched([Sealed("the function", buffers, backward=False)]),
        ):
            self._run(rows)
        if versions != [b._version for b in buffers] or next(snapshot.changed(), None) is not None:
            raise Refused("a call to the model changes its buffers or attributes")
        if writes.found:
            raise Refused(
                "gradients are changed inside the function, for example by clipping: do that after calling it"
            )
        # Backward adds to an existing gradient, so NaNs in it stay unless the function clears gradients first.
        at = Rows(self._batch, 0, self._batch, rows[:2])
        given = cut(self._args, self._batch, at), cut(self._kwargs, self._batch, at)
        try:
            least.grad = torch.full_like(least, float("nan"))
            self._explicit.for_gradients(*given)
            if least.grad is None or not bool(least.grad.isnan().all()):
                raise Refused("gradients are set to zero inside the function: do that before calling it")
        finally:
            for p in params:
                p.grad = None


def _shared(rules: list[Rule], others: list[Rule]) -> list[Rule]:
    """The rules that are among others, too."""
    return [rule for rule in rules if any(rule is other for other in others)]


class Written(TorchDispatchMode):
    """Records whether anything outside backward writes to a gradient."""

    def __init__(self, params: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._params, self.found = params, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._current_graph_task_id() == -1 and func._schema.is_mutable:
            mine = {p.grad.untyped_storage()._cdata for p in self._params if p.grad is not None}
            for given, wanted in zip(args, func._schema.arguments):
                if wanted.alias_info is not None and wanted.alias_info.is_write:
                    self.found |= any(
                        isinstance(t, torch.Tensor) and t.untyped_storage()._cdata in mine for t in flatten(given)[0]
                    )
        return func(*args, **(kwargs or {}))


def plain(value: Any) -> bool:
    return (
        isinstance(value, (int, float, str, bool, type(None))) or isinstance(value, torch.Tensor) and value.dim() == 0
    )


def number(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 0
        or isinstance(value, (int, float))
        and not isinstance(value, bool)
    )


def rows_of(args: tuple, kwargs: dict) -> int:
    """The number of rows of a batch: the size of dimension 0 of the first tensor that has any
    dimension. Raises :class:`Refused` if the batch cannot be cut."""
    found = [t.shape[0] for t in tensors_in((args, kwargs)) if t.dim()]
    if not found:
        raise Refused("the function is given no tensor with a batch dimension")
    if found[0] < 2:
        raise Refused("a batch of one row cannot be split")
    whole((args, kwargs), found[0])
    return found[0]


def whole(tree: Any, batch: int) -> None:
    """Raises :class:`Refused` if anything other than a tensor might hold the batch's rows, such as a list of
    strings or an array."""
    contents = opened(tree)
    if contents is not None:
        tree = [*contents[1:]]
    if isinstance(tree, Mapping):
        tree = list(tree.values())
    elif isinstance(tree, (list, tuple)):
        if len(tree) == batch and not any(isinstance(t, torch.Tensor) for t in tree):
            raise Refused("the function is given a list with as many items as the batch has rows")
    elif not isinstance(tree, torch.Tensor) and tuple(getattr(tree, "shape", ()))[:1] == (batch,):
        raise Refused(f"the function is given a {type(tree).__name__} with as many rows as the batch has")
    if isinstance(tree, (list, tuple)):
        for t in tree:
            whole(t, batch)


def cut(tree: Any, batch: int, rows: Rows) -> Any:
    """The tree with only the given rows of every tensor that has as many rows as the batch. Other
    tensors stay whole."""
    return mapped(
        lambda t: rows.of(t, Axis(0)) if isinstance(t, torch.Tensor) and t.dim() and t.shape[0] == batch else t, tree
    )
