"""Completes a failed backward pass: finds out which parameters already have their gradients, and
computes the gradients of the others."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch

from ..failure import Elsewhere, Refused, Survival, Writes, clean, is_out_of_memory
from ..hooks.genuine import in_place
from ..proof.proof import Inputs, Proof, proven
from ..proof.recheck import confirm
from ..proof.rerun import half_in, modules_of, needed
from ..proof.rows import Plan
from ..proof.terms import Terms
from ..proof.weights import Rule
from ..replay.deferred import HandBack
from ..replay.pieces import Gradients, gradients, pieces_of, refuse_unless_approximable
from ..sandbox.norms import refuse_batchwise
from ..sandbox.sandbox import rehearsal
from ..tape.graph import leaves_behind, walk, within
from ..tape.recorded_module import record_of
from ..tape.snapshot import Snapshot, submodules
from ..tape.tape import Tape, place_of, random_state, same_random_state, set_random_state


def state_of(param: torch.Tensor) -> Any:
    """A value that is different once a backward pass has computed the parameter's gradient."""
    grad = param.grad
    return None if grad is None else (id(grad), grad._version)


def bypass(tape: Tape, loss: torch.Tensor) -> Optional[str]:
    """A message if the graph of a loss enters a module of the tape other than through the module's
    recorded outputs; None otherwise."""
    spans = [(e.between, e.exits, e.module) for e in tape.entries if e.module is not None]

    def made_by(node: Any) -> Any:
        return next((s for s in spans if within(node, [s[0]])), None)

    for node in walk([loss.grad_fn], enter=lambda n: made_by(n) is None, most=10000):
        span = made_by(node)
        if span is not None and node._sequence_nr() not in span[1]:
            return f"the loss uses a tensor that {type(span[2]).__name__} computed but did not return"
    return None


class Planned(NamedTuple):
    """How the gradients of a loss can be computed again. If ``plan`` is None, only the whole batch
    can be run again, not pieces of it; ``why`` is then the reason."""

    plan: Optional[Plan]
    # For each scalar that is a sum over the pieces, by slot: the loss's derivative with respect to it, and its rule.
    targets: dict[int, tuple[Any, Rule]]
    extra: dict[torch.Tensor, torch.Tensor]  # gradients of leaves that enter the loss after those scalars
    why: Optional[Refused] = None


def planned(tape: Tape, loss: int, given: Any, sizes: Any) -> Planned:
    """Plans the pieces, and proves that their gradients add up to those of the whole batch.
    ``loss`` is the slot of the loss. ``given`` is the gradient passed to backward; None means 1."""
    modules = modules_of(tape)
    try:
        if not tape.approximate:
            refuse_batchwise(modules)
            if any(f is not None and f.changes_buffers() for f in map(record_of, modules)):
                raise Refused("a module changes its buffers")
        with rehearsal(modules):
            plan, entries = Plan(tape, tape.entries[0]), needed(tape, [loss])
            plan.extend(entries)
            plan.confirm(entries)
        counts, extra = weighed(tape, Terms(tape, plan, loss), given)
        rules = proven(Proof(tape, plan), list(counts), pieces_of(plan.batch, sizes.first(plan.batch)))
        return Planned(plan, {s: (g, rules[s]) for s, g in counts.items()}, extra)
    except (Writes, Elsewhere):
        raise
    except Exception as why:  # for example one that a module raises when given only a few rows
        if is_out_of_memory(why):
            raise
        if isinstance(why, Refused):
            reason = why.more(str(why))
        else:
            reason = Refused(f"the step cannot be run on fewer rows: {type(why).__name__}: {why}".splitlines()[0])
        return Planned(None, {loss: (1.0 if given is None else given, None)}, {}, reason)


def refuse_unrepeatable(tape: Tape) -> None:
    """Raises :class:`Writes` or :class:`Elsewhere` if a trial on a few rows shows a reason why not even the
    whole batch may be run again."""
    if all(f is None or f.tried for f in map(record_of, modules_of(tape))):
        return
    try:
        with rehearsal(modules_of(tape)):
            Plan(tape, tape.entries[0]).extend()
    except (Writes, Elsewhere):
        raise
    except Exception:  # then the trial shows nothing
        pass


def summed(
    inputs: Inputs, sums: Gradients, extra: dict[torch.Tensor, torch.Tensor]
) -> dict[int, Optional[torch.Tensor]]:
    """The sums of all gradients, those in ``extra`` included, by the ids of the tensors to which
    they belong."""
    grads = {id(t): g for t, g in zip(inputs.tensors, sums.all())}
    for t, g in extra.items():
        had = grads.get(id(t))
        grads[id(t)] = g if had is None else had + g
    return grads


def finish(
    tape: Tape, args: tuple, kwargs: dict, params: list, before: list, failure: BaseException, sizes: Any, report: Any
) -> None:
    """Sets the gradients that a failed backward pass has not computed. ``args`` and ``kwargs`` are the arguments
    of the call to backward. ``before`` holds, for each parameter, what :func:`state_of` returned before that
    call."""
    loss = place_of(args[0]).slot  # type: ignore[union-attr]
    tape.drop(args[:1])
    clean(failure)
    given = args[1] if len(args) > 1 else kwargs.get("gradient")
    modules = modules_of(tape)
    records = [f for f in map(record_of, modules) if f is not None]
    changing = [f for f in records if f.changes_buffers() and not tape.approximate]
    plan, targets, extra, why = planned(tape, loss, given, sizes)
    if plan is not None:  # without a plan, the whole batch is run again and judged by its loss
        confirm(tape, plan, needed(tape, [loss]))
    elif any(f.writes for f in records) or any(
        e.snapshot is None and (record := record_of(e.module)) is not None and record.moving
        for e in tape.entries
        if e.module is not None
    ):
        raise Refused("a module's calls change its attributes or frozen parameters")
    else:
        refuse_unrepeatable(tape)
    offload = plan is None and any(t.is_cuda for t in params)
    written = [(b, b.detach().clone()) for f in changing for b in f.changing or ()]
    if any(
        record_of(e.module) in changing and e.nth != record_of(e.module).calls  # type: ignore[union-attr]
        for e in tape.entries
        if e.module is not None
    ):
        raise (why or Refused("")).more(f"{why}, and a module that changes its buffers has been called again since")
    if not all([f.put_back() for f in changing]):
        raise (why or Refused("")).more(f"{why}, and the earlier values of the buffers are not known")
    after = random_state()
    set_random_state(tape.random)
    snapshot = Snapshot(submodules(modules), plan is None or plan.deep)
    try:
        values, inputs, sums, count = gradients(tape, plan, targets, sizes.next, offload=offload)
    except BaseException as e:
        snapshot.put_back()
        with torch.no_grad():
            for b, value in written:
                b.copy_(value)
        if not isinstance(e, Refused):
            raise
        if why is not None and not tape.approximate:
            refuse_unless_approximable(modules, why)
            tape.approximate = True
            set_random_state(after)
            return finish(tape, args, kwargs, params, before, failure, sizes, report)
        raise (why or e).more(str(why or e)) from None
    finally:
        set_random_state(after)
    if plan is not None:  # after a run of the whole batch, keep what the user's own call would have left
        snapshot.put_back()
    # The whole batch may use other kernels where little memory is free.
    rounded = plan is None or half_in(tape, modules)
    if (plan is None or same_random_state(tape.random, after) and not tape.approximate) and not all(
        as_before(tape, s, v, rounded) for s, v in values.items()
    ):
        raise Refused("the loss is different when the step is repeated")
    reached = {id(p): state_of(p) != b for p, b in zip(params, before)}
    # Backward has used them up: what is behind them must have its gradient.
    graphs = [t for t in extra if not t.is_leaf]
    behind = leaves_behind(graphs)
    if inputs.graphs or behind is None or not all(reached.get(id(t)) for t in behind):
        raise Refused("the step depends on a graph that the script built outside it and may already have freed")
    grads = summed(inputs, sums, extra)
    tensors = {id(t): t for t in [*inputs.tensors, *extra] if all(t is not g for g in graphs)}
    if any(i not in reached or reached[i] and i in inputs.shared for i in tensors):
        raise Refused("it is not known whether a tensor has already received its gradient")
    rest = [t for i, t in tensors.items() if not reached[i]]
    if rest:
        with torch.enable_grad():
            value = HandBack.apply(torch.zeros(()), tape, [[grads[id(t)] for t in rest]], 1.0, *rest)
        with in_place():  # hooks of the script run, on parameters
            value.backward()
    if plan is not None:
        sizes.confirm(count)
    else:
        sizes.refused()
        for f in records if offload else ():
            f.hosted = sizes.cost()
    report.survived(
        failure, Survival("batch", why) if plan is None else Survival.pieces(plan.batch, count, tape.approximate)
    )
    tape.close()
    tape.failure = None  # its frames hold the tape


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


def reduced(params: Sequence[torch.Tensor]) -> bool:
    """Whether a DistributedDataParallel reduces the gradients of any of the parameters. Its reducer counts the
    gradients that a backward pass has computed, and would miss those that are supplied."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    known = {id(p) for p in params}
    every = (o for o in gc.get_objects() if isinstance(o, torch.nn.parallel.DistributedDataParallel))
    return any(id(p) in known for o in every for p in o.parameters())
