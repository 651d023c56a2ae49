"""The script's backward pass. If it fails, this finds out which parameters already have their gradients, and computes
those of the others."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, NamedTuple, Optional

import torch

from ..failure import (
    Elsewhere,
    Refused,
    Survival,
    Unrepeatable,
    Writes,
    clean,
    interrupts,
    is_out_of_memory,
    passes,
    release_frames,
)
from ..hooks.genuine import apart, in_place
from ..hooks.updates import state_of
from ..proof.groups import NUMBER, Inputs, hooked
from ..proof.plan import Plan
from ..proof.proof import Proof, hooks_backward, proven
from ..proof.recheck import agree, confirm, note
from ..proof.rerun import half_in, modules_of, needed, records_of, refuse_acted_upon, run, unchanged
from ..proof.terms import Terms
from ..proof.weights import Rule
from ..ranks.ddp import reduces
from ..replay.deferred import HandBack
from ..replay.pieces import gradients, pieces_of
from ..replay.twopass import results, separated, two_pass
from ..sandbox.norms import refuse_batchwise
from ..sandbox.sandbox import HALF, rehearsal
from ..tape.graph import HOOKED, has_hooks, has_hooks_at_leaves, leaves_behind, unused, walk, within
from ..tape.recorded_module import RecordedModule, number_of, record_of
from ..tape.snapshot import Snapshot, submodules
from ..tape.tape import Entry, Tape, place_of, random_state, same_random_state, set_random_state
from .hooked import RAN, HookWatch, sees_gradients
from .recovery import Recovery, Way, note_backward

SPECIAL = "gradients are computed by autograd.grad, or by backward with special arguments"


def kind_of(tape: Tape) -> tuple:
    """The kind of a step: what is called, in which order."""
    return tuple((number_of(e.module), e.call_name()) for e in tape.entries)


def of_one(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments of ``torch.autograd.backward`` as those of ``Tensor.backward``, if there is one tensor."""
    found = {**dict(zip(("tensors", "grad_tensors", "retain_graph", "create_graph"), args)), **kwargs}
    loss, given = (
        v[0] if isinstance(v, (list, tuple)) and len(v) == 1 else v
        for v in (found.pop("tensors", None), found.pop("grad_tensors", None))
    )
    if not isinstance(loss, torch.Tensor) or not isinstance(given, (torch.Tensor, type(None))) or len(args) > 4:
        return args, kwargs
    return (loss,) if given is None else (loss, given), found


def bypass(tape: Tape, loss: torch.Tensor) -> Optional[str]:
    """A message if the graph of a loss enters a module of the tape other than through the module's
    recorded outputs; None otherwise."""
    for node, call in outside_modules(tape, loss):
        if call is not None and node._sequence_nr() not in call.exits:
            return f"the loss uses a tensor that {call.call_name()} computed but did not return"
    return None


def outside_modules(tape: Tape, loss: torch.Tensor) -> Iterator[tuple[Any, Optional[Entry]]]:
    """The nodes of a loss's graph that are not behind a module's results, and the module's call that has made a node,
    if one has."""
    calls = [e for e in tape.entries if e.module is not None]  # one after the other, and so are their nodes
    begins = [e.between[0] for e in calls]

    def made_by(node: Any) -> Optional[Entry]:
        at = bisect_right(begins, node._sequence_nr()) - 1
        return calls[at] if at >= 0 and within(node, [calls[at].between]) else None

    for node in walk([loss.grad_fn], enter=lambda n: made_by(n) is None, most=10000):
        yield node, made_by(node)


def hooks_nodes(tape: Tape, loss: torch.Tensor) -> bool:
    """Whether the script has registered a hook on a node of a loss's graph, of which a replay would know nothing. A
    module's own call registers its hooks anew, and parameters keep theirs."""
    own: dict[int, bool] = {}
    for node, call in outside_modules(tape, loss):
        if call is not None and call.module is not None and id(call) not in own:
            own[id(call)] = any(map(hooks_backward, submodules([call.module])))
        if not node.name().endswith("AccumulateGrad") and not own.get(id(call), False) and has_hooks(node):
            return True
    return False


class Backward:
    """Makes the script's backward passes."""

    def __init__(self, recorder: Any) -> None:
        self._recorder: Any = recorder
        # Kinds of tapes whose graphs were walked → why a loss bypasses the modules' outputs.
        self._kinds: dict[tuple, Optional[str]] = {}

    def __call__(self, tape: Tape, func: Callable, name: str, args: tuple, kwargs: dict, call: Callable) -> Any:
        """Calls a function that computes gradients of a recorded tensor."""
        recorder = self._recorder
        recorder.spill.look()
        recorder.spill.warms()
        special = kwargs.get("create_graph") or kwargs.get("retain_graph") or kwargs.get("inputs") is not None
        usual = name == "backward" and not special and 1 <= len(args) <= 2 and isinstance(args[0], torch.Tensor)
        if usual:
            self._walk(tape, args[0])
        elif not kwargs.get("retain_graph") or kwargs.get("create_graph"):
            tape.refuse(SPECIAL)
        params = trained(tape)
        before = [state_of(p) for p in params] if usual else []
        if tape.reducers is not None:
            tape.reducers.backward_begins()
        failed: Optional[BaseException] = None
        hooks = HookWatch(params if usual else ())
        try:
            with torch._C.DisableTorchFunctionSubclass(), self._withheld(tape, usual), hooks:
                result = call(func, args, kwargs)
        except BaseException as e:
            if not is_out_of_memory(e):
                raise
            failed = e
        if failed is None:
            if usual:
                with apart():
                    note_backward(tape)
                if recorder.check is not None:
                    recorder.check.backward(recorder, tape, args, kwargs)
                else:
                    _asked(recorder, tape, args, kwargs)
                tape.close()
                recorder.leave(tape)
                recorder.passed(tape, params)
            else:
                _asked(recorder, tape, args, kwargs, None if name == "backward" else SPECIAL)
            return result
        recorder.sizes.failed_after(failed)
        release_frames(failed)
        tape.step.fails(failed)
        if tape.reducers is not None:
            tape.reducers.backward_failed()
        recorder.leave(tape)
        failing = FailedBackward(recorder, tape, args, kwargs, failed, params, before, hooks, usual)
        return recorder.recover(failed, failing.ways())

    def _withheld(self, tape: Tape, usual: bool) -> Any:
        """As :meth:`Recovery.withheld`, for a backward pass. What would be refused in any way is not made to fail."""
        recorder, records = self._recorder, records_of(tape)
        if not recorder.spill.open or not usual or tape.why_not:
            return nullcontext()
        if any(t.requires_grad and not t.is_leaf for t in tape.outside):
            return nullcontext()
        if any(sees_gradients(r.params) for r in records):
            return nullcontext()
        if any(tape.altered(e) is not None for e in tape.entries):
            return nullcontext()
        return recorder.withheld(records)

    def _walk(self, tape: Tape, loss: torch.Tensor) -> None:
        """Checks, once per kind of tape, that the loss depends on every module only through the module's
        outputs: a replay would miss a tensor that a module left behind."""
        kind = kind_of(tape)
        if kind not in self._kinds:
            with torch._C.DisableTorchFunctionSubclass():
                self._kinds[kind] = bypass(tape, loss)
        why = self._kinds[kind]
        if why:
            tape.refuse(why)


def _asked(recorder: Any, tape: Tape, args: tuple, kwargs: dict, why: Optional[str] = None) -> None:
    """Called when gradients have been computed, while the tape still exists. ``why`` says why pieces cannot do so."""
    if recorder.sizes.asks_for_pieces():
        from .asked import look  # not needed otherwise

        look(recorder, tape, args, kwargs, why or tape.why_not)


def trained(tape: Tape) -> list[torch.Tensor]:
    """The leaves to which a backward pass of the step may give gradients."""
    found = [p for r in records_of(tape) for p in r.params if p.requires_grad]
    outside = [t for t in tape.outside if t.requires_grad]
    behind = leaves_behind([t for t in outside if not t.is_leaf]) or ()
    return [*{id(p): p for p in (*found, *(t for t in outside if t.is_leaf), *behind)}.values()]


class Planned(NamedTuple):
    """How the gradients of a loss can be computed in pieces."""

    plan: Plan
    targets: Targets
    extra: dict[torch.Tensor, torch.Tensor]  # gradients of leaves that enter the loss after those scalars


# For each scalar that is a sum over the pieces, by slot: the loss's derivative with respect to it, and its rule.
Targets = dict[int, tuple[Any, Rule]]


def planned(tape: Tape, loss: int, given: Any, sizes: Any) -> Planned:
    """Plans the pieces, and proves that their gradients add up to those of the whole batch. ``loss`` is the slot of the
    loss. ``given`` is the gradient passed to backward; None means 1. Raises :class:`Refused` if pieces would be
    wrong."""
    plan = cut(tape, needed(tape, [loss]))
    with _on_fewer_rows():
        counts, extra = weighed(tape, Terms(tape, plan, loss), given)
        rules = proven(Proof(tape, plan, sizes.withheld), list(counts), pieces_of(plan.batch, sizes.first(plan.batch)))
        return Planned(plan, {s: (g, rules[s]) for s, g in counts.items()}, extra)


def cut(tape: Tape, entries: Sequence[int]) -> Plan:
    """How entries are run on fewer rows. Raises :class:`Refused` if a module needs the whole batch."""
    modules = modules_of(tape)
    refuse_batchwise(modules)
    if any(r.changes_buffers() for r in records_of(tape)):
        raise Refused("a module changes its buffers")
    with _on_fewer_rows(), rehearsal(modules):
        plan = Plan(tape, tape.entries[0])
        plan.extend(entries)
        plan.confirm(entries)
    refuse_acted_upon(tape)
    return plan


@contextmanager
def _on_fewer_rows() -> Iterator[None]:
    """A context in which any exception, for example one that a module raises when given only a few rows, becomes a
    refusal."""
    try:
        yield
    except Exception as why:
        if isinstance(why, Refused) or passes(why):
            raise
        said = f"the step cannot be run on fewer rows: {type(why).__name__}: {why}"
        raise Refused(said.splitlines()[0]) from None


def refuse_unrepeatable(tape: Tape) -> None:
    """Raises :class:`Writes` or :class:`Elsewhere` if a trial on a few rows shows a reason why not even the
    whole batch may be run again."""
    if all(r.tried for r in records_of(tape)):
        return
    try:
        with rehearsal(modules_of(tape)):
            Plan(tape, tape.entries[0]).extend()
    except (Writes, Elsewhere):
        raise
    except Exception as e:  # then the trial shows nothing
        if interrupts(e):
            raise


def summed(
    inputs: Inputs, sums: Sequence[Optional[torch.Tensor]], extra: dict[torch.Tensor, torch.Tensor]
) -> dict[int, Optional[torch.Tensor]]:
    """The sums of all gradients, those in ``extra`` included, by the ids of the tensors to which
    they belong."""
    grads = {id(t): g for t, g in zip(inputs.tensors, sums)}
    for t, g in extra.items():
        had = grads.get(id(t))
        grads[id(t)] = g if had is None else had + g
    return grads


class FailedBackward:
    """A backward pass that has failed. ``args`` and ``kwargs`` are the arguments of the call to backward, ``usual``
    whether these are of the usual kind. ``before`` holds, for each of ``params``, what :func:`state_of` returned before
    that call. ``hooks`` has watched those of the script on these parameters."""

    def __init__(
        self,
        recovery: Recovery,
        tape: Tape,
        args: tuple,
        kwargs: dict,
        failure: BaseException,
        params: list,
        before: list,
        hooks: HookWatch,
        usual: bool,
    ) -> None:
        self._recovery, self._tape, self._args, self._failure = recovery, tape, args, failure
        self._params, self._before, self._hooks, self._usual = params, before, hooks, usual
        self._given = args[1] if len(args) > 1 else kwargs.get("gradient")
        self._modules = modules_of(tape)
        self._records = records_of(tape)

        self._cleaned = False

    def ways(self) -> Sequence[Way]:
        on_gpu = [self.spilled] if any(t.is_cuda for t in self._params) else []
        return [self.pieces, self.twice, self.whole, *on_gpu]

    def _ready(self) -> None:
        """Raises :class:`Unrepeatable` if nothing may be run again. Otherwise lets go of the failed pass."""
        if self._hooks.ran:
            raise Unrepeatable(RAN)
        if self._cleaned:
            return
        tape = self._tape
        if tape.why_not:
            raise Unrepeatable(tape.why_not)
        if not self._usual:
            raise Unrepeatable("the graph is kept to be used again (retain_graph)")
        if place_of(self._args[0]) is None:
            raise Unrepeatable("a step of an optimizer was made within the backward pass that failed")
        if tape.reducers is None and reduces(self._params):
            raise Unrepeatable("the script has called a module that belongs to a DistributedDataParallel")
        with torch._C.DisableTorchFunctionSubclass():
            if hooks_nodes(tape, self._args[0]) or has_hooks_at_leaves(self._params):
                raise Unrepeatable(HOOKED)
        self._reached()
        note(tape)
        tape.drop(self._args[:1])
        clean(self._failure)
        self._recovery.spill.keep_ballast()
        self._cleaned = True

    def _reached(self) -> dict[int, bool]:
        """By the ids of parameters: whether the failed pass has computed their gradients."""
        reached = {id(p): state_of(p) != b for p, b in zip(self._params, self._before)}
        if self._tape.reducers is not None:
            had = {id(p): b for p, b in zip(self._params, self._before)}
            reached.update(self._tape.reducers.told(reached, had))
        return reached

    def pieces(self, _: Optional[Refused]) -> None:
        """Runs the step in pieces."""

        def work() -> None:
            self._ready()
            tape, loss, sizes = self._tape, self._loss(), self._recovery.sizes
            plan, targets, extra = planned(tape, loss, self._given, sizes)
            confirm(tape, plan, needed(tape, [loss]))
            with sizes.withheld():
                done = self._run(plan, targets, False)
            if same_random_state(tape.random, random_state()):
                self._compare(done.values, half_in(tape, self._modules))
            self._give(done, extra)
            sizes.confirm(done.pieces)
            self._recovery.report.survived(self._failure, Survival.pieces(plan.batch, done.pieces))

        try:
            self._recovery.guarded(work)
        except Refused:
            for r in self._records:
                r.uncut = True
            raise
        self._end()

    def twice(self, why: Optional[Refused]) -> None:
        """Computes the modules' results in pieces, twice, and the rest of the step as a whole."""

        def work() -> None:
            self._ready()
            tape, sizes, extra = self._tape, self._recovery.sizes, dict[torch.Tensor, torch.Tensor]()
            entries = needed(tape, [self._loss()])
            unchanged(tape, entries)
            parts = separated(tape, entries)
            if parts is None:
                done, rows = self._computed_one_by_one(entries)
            else:
                plan = cut(tape, parts[0])
                confirm(tape, plan, parts[0])
                with sizes.withheld(), self._once_more(plan):
                    done, extra = self._computed_twice(plan, *parts)
                rows = plan.batch
            if same_random_state(tape.random, random_state()):
                self._compare(done.values, half_in(tape, self._modules))
            self._give(done, extra)
            sizes.refused()  # what the script does before backward may need the whole batch
            sizes.confirm(done.pieces)
            self._recovery.report.survived(self._failure, Survival("two-pass", why, rows, done.pieces))

        self._recovery.guarded(work)
        self._end()

    def _computed_one_by_one(self, entries: Sequence[int]) -> tuple[Done, int]:
        """The loss and all gradients, where functions stand between modules' calls: each of these is computed twice by
        itself. Returns the number of rows as well."""
        tape, loss = self._tape, self._loss()
        inputs = Inputs(tape, None, entries)
        leaves, given = inputs.leaves(None), 1.0 if self._given is None else self._given
        call, counts = self._recovery.one_by_one(tape)
        with self._once_more(None), torch.enable_grad():
            env = run(tape, None, entries, None, leaves=leaves, call=call)
            if not counts or not agree(tape, env):
                raise Refused("a call returns different results when it is repeated")
            value = env[loss]
            total = (value.float() if value.dtype in HALF else value).sum() * given
            env.clear()
            found = inputs.differentiated(total, [loss], [*leaves.values()])
        return Done({loss: value.detach()}, inputs, found, max(n for _, n in counts)), max(r for r, _ in counts)

    def _computed_twice(
        self, plan: Plan, calls: Sequence[int], functions: Sequence[int]
    ) -> tuple[Done, dict[torch.Tensor, torch.Tensor]]:
        """The loss and the gradients of what the modules use; then those of what only the functions use."""
        tape, loss = self._tape, self._loss()
        if loss not in {s for i in functions for s in tape.entries[i].slots}:
            raise Refused(NUMBER)
        slots = results(tape, plan, calls, functions)
        inputs = Inputs(tape, None, functions)
        env, pieces = two_pass(tape, plan, calls, slots, self._recovery.sizes)
        leaves, given = inputs.leaves(None), 1.0 if self._given is None else self._given
        with torch.enable_grad():
            value = run(tape, None, functions, None, env, leaves)[loss]
            total = (value.float() if value.dtype in HALF else value).sum() * given
        own = {id(t) for t in inputs.own}
        behind = [t for t in pieces.inputs.tensors if id(t) not in own]
        found = inputs.differentiated(total, [loss], [*leaves.values(), *behind])
        grads = {id(t): g for t, g in zip(behind, found[len(inputs.tensors) :])}
        extra = {t: g for t, g in zip(inputs.tensors, found) if g is not None}
        sums = [grads.get(id(t)) for t in pieces.inputs.tensors]
        return Done({loss: value.detach()}, pieces.inputs, sums, len(pieces.made)), extra

    def whole(self, why: Optional[Refused]) -> None:
        """Runs the whole step again, on a GPU with the tensors that autograd saves on the host."""
        self._as_a_whole(why, "batch", any(t.is_cuda for t in self._params))

    def spilled(self, why: Optional[Refused]) -> None:
        """Runs the whole step again, with memory of the host for what does not fit."""
        self._recovery.open_spill()
        self._as_a_whole(why, "spill", False)

    def _as_a_whole(self, why: Optional[Refused], way: str, offload: bool) -> None:
        """Runs the whole step again. It is judged by its loss."""

        def work() -> None:
            self._ready()
            tape, sizes = self._tape, self._recovery.sizes
            if isinstance(why, Elsewhere) or any(r.writes for r in self._records) or self._moves():
                raise Refused("a module's calls change its attributes or frozen parameters")
            refuse_unrepeatable(tape)
            written = self._buffers_put_back()
            try:
                done = self._run(None, {self._loss(): (1.0 if self._given is None else self._given, None)}, offload)
            except BaseException:
                with torch.no_grad():
                    for b, value in written:
                        b.copy_(value)
                raise
            self._compare(done.values, True)  # other kernels may be used where little memory is free
            self._give(done, {})
            sizes.refused()
            for r in self._records if offload else ():
                self._recovery.hosts(r)
            self._recovery.report.survived(self._failure, Survival(way, why))

        self._recovery.guarded(work)
        self._end()

    def _end(self) -> None:
        note_backward(self._tape)
        self._tape.close()
        self._tape.step.finished()
        self._recovery.passed(self._tape, self._params)

    def _loss(self) -> int:
        return place_of(self._args[0]).slot  # type: ignore[union-attr]

    def _called(self) -> list[tuple[Entry, RecordedModule]]:
        found = ((e, record_of(e.module)) for e in self._tape.entries if e.module is not None)
        return [(e, r) for e, r in found if r is not None]

    def _moves(self) -> bool:
        """Whether calls change attributes in ways that are not known well enough to be undone."""
        return any(e.snapshot is None and r.moving for e, r in self._called())

    def _buffers_put_back(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Gives buffers that calls change the values from before the step. Returns them with the values that they
        had."""
        changing = [r for r in self._records if r.changes_buffers()]
        written = [(b, b.detach().clone()) for r in changing for b in r.changing or ()]
        needs = {id(self._tape.entries[i]) for i in needed(self._tape, [self._loss()])}
        for record in changing:
            calls = [e for e, r in self._called() if r is record]
            if calls[-1].nth != record.calls or len(calls) != record.made:
                raise Refused("a module that changes its buffers has been called again since")
            if any(id(e) not in needs for e in calls):
                raise Refused("a module that changes its buffers has been called for something else in between")
        if not all([r.put_back(step=True) for r in changing]):
            raise Refused("the earlier values of the buffers are not known")
        return written

    def _run(self, plan: Optional[Plan], targets: Targets, offload: bool) -> Done:
        """Runs the step again, in pieces if there is a plan. Leaves random state as it is, and what modules hold as it
        is unless the whole batch has succeeded: the script's own call would have left the same."""
        with self._once_more(plan):
            values, inputs, sums, pieces = gradients(
                self._tape, plan, targets, self._recovery.sizes.next, offload=offload
            )
            return Done(values, inputs, sums.all(), pieces)

    @contextmanager
    def _once_more(self, plan: Optional[Plan]) -> Iterator[None]:
        """A context for a replay, which begins with the random state of the script's own calls. It leaves random state
        as it is, and what modules hold as it is unless the whole batch has succeeded."""
        after = random_state()
        snapshot, succeeded = Snapshot(submodules(self._modules), plan is None or plan.deep), False
        set_random_state(self._tape.random)
        try:
            yield
            succeeded = True
        finally:
            if plan is not None or not succeeded:
                snapshot.put_back()
            set_random_state(after)

    def _compare(self, values: dict[int, Any], rounded: bool) -> None:
        if not all(as_before(self._tape, s, v, rounded) for s, v in values.items()):
            raise Refused("the loss is different when the step is repeated")

    def _give(self, done: Done, extra: dict[torch.Tensor, torch.Tensor]) -> None:
        """Gives the gradients to the parameters that the failed pass had not reached."""
        inputs = done.inputs
        reached = self._reached()
        # Backward has used these graphs up: what is behind them must have its gradient.
        graphs = [t for t in extra if not t.is_leaf]
        behind = leaves_behind(graphs)
        entering = [t for t in inputs.entering.values() if not t.is_leaf]
        through = {id(t): _through(t, reached) for t in entering}
        if behind is None or not all(reached.get(id(t)) for t in behind) or None in through.values():
            raise Refused("the step depends on a graph that the script built outside it and may already have freed")
        reached.update(through)  # type: ignore[arg-type]
        grads = summed(inputs, done.sums, extra)
        tensors = {id(t): t for t in [*inputs.tensors, *extra] if all(t is not g for g in graphs)}
        if any(i not in reached or reached[i] and i in inputs.shared for i in tensors):
            raise Refused("it is not known whether a tensor has already received its gradient")
        missing = [t for i, t in tensors.items() if not reached[i]]
        sums, reducers = [grads[id(t)] for t in missing], self._tape.reducers
        if reducers is not None:
            missing, sums = reducers.rest(missing, grads)
        if missing:
            with torch.enable_grad():
                value = HandBack.apply(torch.zeros(()), self._tape, set(), [sums], 1.0, None, *missing)
            # Hooks of the script run, on parameters.
            with self._hooks, in_place(), reducers.completing(value) if reducers is not None else nullcontext():
                value.backward()


def _through(tensor: torch.Tensor, reached: dict[int, bool]) -> Optional[bool]:
    """Whether a failed pass has gone through the graph of a tensor from outside; None if that is not known, or it may
    have done so in part."""
    behind = leaves_behind([tensor])
    if not behind or hooked([tensor]) or tensor.retains_grad:
        return None
    every = {reached.get(id(t)) for t in behind}
    if every == {True}:
        return True
    return False if every == {False} and unused([tensor]) else None


class Done(NamedTuple):
    """What a replay has computed: the values of scalars, by slot, the inputs and their gradients, the number of
    pieces."""

    values: dict[int, Any]
    inputs: Inputs
    sums: list[Optional[torch.Tensor]]
    pieces: int


def as_before(tape: Tape, slot: int, value: Any, rounded: bool) -> bool:
    """Whether a scalar has the same value as in the script; True if the script's value is not known."""
    had = tape.scalars.get(slot)
    if had is None:
        return True
    tolerance = 5e-3 if rounded else 1e-3 if had.is_cuda else 1e-4
    a, b = (float(torch.as_tensor(v).detach().double().reshape(())) for v in (had, value))
    # A sum that cancels out is near zero, and rounding errors are large relative to it.
    return not abs(a - b) > tolerance * max(abs(a), 0.1)


def weighed(tape: Tape, terms: Terms, given: Any) -> tuple[dict[int, Any], dict[torch.Tensor, torch.Tensor]]:
    """The derivatives of a loss as :meth:`Terms.derivatives` returns them, for the values that the script's own calls
    returned."""
    if terms.given or any(s not in tape.scalars for s in terms.slots):
        raise Refused("the loss depends on a value of the whole batch that has not been kept")
    return terms.derivatives(tape.scalars, given)
