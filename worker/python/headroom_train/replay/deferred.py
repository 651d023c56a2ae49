"""Tensors without values, after a failure.

The tensors of a failed try that the user holds, and those that the rest of the step computes from
them, are *deferred*: they have a shape, a dtype and a device, but no values. The first use of a
scalar with a gradient runs the tape in pieces and hands back the real scalar; the first use of
other values computes them by a forward pass in pieces.
"""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import lru_cache
from typing import Any, Callable, Optional

import torch

from ..failure import Refused, Survival, bare, clean, is_out_of_memory, patiently, release_frames
from ..hooks.genuine import hidden, set_aside
from ..proof.groups import NUMBER
from ..proof.plan import Plan
from ..proof.proof import Proof, proven
from ..proof.recheck import confirm
from ..proof.rerun import bends, modules_of, needed, refuse_acted_upon, run, unchanged
from ..proof.rows import Rows, Slot, perform
from ..proof.terms import Terms
from ..sandbox.sandbox import HALF, rehearsal
from ..spill.saved import on_host
from ..tape.graph import KEEP, sequence, walk, within
from ..tape.recorded_module import number_of
from ..tape.snapshot import Snapshot, attributes, submodules
from ..tape.tape import (
    Entry,
    Place,
    RandomState,
    Recorded,
    Tape,
    contents,
    place_of,
    random_state,
    same_random_state,
    set_random_state,
    unrecorded,
)
from ..tape.trees import elements, is_a, pairs
from .pieces import by_pieces, gradients, pieces_of
from .twopass import results, separated, two_pass

NEAR = 1 << 20  # the most elements of a result whose values are kept on the GPU that has made them
LEFT = -1  # the slot of a tensor that a module left behind


def gone(tape: Tape, why: str = "the script uses a tensor that a module computed but did not return") -> torch.Tensor:
    """A stand-in for a tensor that a try or a replay has left on a module. Using the stand-in raises the failure, and
    ``why`` is reported. Using the tensor itself would give a gradient for only part of the batch."""
    empty = torch.full((), float("nan"))
    empty.__class__ = Recorded
    place = empty._headroom = Place(tape, LEFT)  # type: ignore[attr-defined]
    place.deferred, place.failure, place.why = True, bare(tape.step.failure), why
    return empty


def disown(tape: Tape, modules: Sequence[torch.nn.Module]) -> None:
    """Puts stand-ins, which :func:`gone` makes, in place of the tensors that tries and replays have
    left on modules, such as a loss that a module computes for itself. Those tensors come from one
    piece alone."""
    if not tape.spans:
        return

    def left(value: Any) -> bool:
        return is_a(value, torch.Tensor) and value.grad_fn is not None and within(value.grad_fn, tape.spans)

    # Inspecting a stand-in left by an earlier step must not count as using it.
    with torch._C.DisableTorchFunctionSubclass():
        for module in submodules(modules):
            for name, value in attributes(module):
                if left(value):
                    vars(module)[name] = gone(tape)
                elif is_a(value, list) and any(left(v) for v in elements(value)):
                    list.__setitem__(value, slice(None), [gone(tape) if left(v) else v for v in elements(value)])
                elif is_a(value, dict) and any(left(v) for v in elements(value)):
                    dict.update(value, {k: gone(tape) for k, v in pairs(value) if left(v)})


@contextmanager
def unseen(tape: Tape, plan: Plan) -> Iterator[None]:
    """A context for a replay. On exit, it undoes whatever the pieces left on modules, so that the script does not
    see it."""
    begin = sequence()
    snapshot = Snapshot(submodules(modules_of(tape)), plan.deep) if plan.leaves or tape.step.complete else None
    try:
        yield
    finally:
        tape.spans.append((begin, sequence()))
        if snapshot is not None:
            snapshot.put_back()


# Why gradients that are known for one incoming gradient are not handed back for another.
BENDS = (
    "backward computes something that may not be linear (a custom autograd function, or a hook on a tensor or module), "
    "and the loss is scaled, or joined with another, in a way that is only known once backward has begun"
)


class Bending:
    """For the results of a tape whose backward pass may not be linear: hands gradients back only for the incoming
    gradient for which they are known. ``refused`` reports why not. It must not hold the tape."""

    def __init__(self, refused: Callable[[BaseException, Refused], None]) -> None:
        self._refused = refused
        self._passes: list[tuple[int, set[int]]] = []  # of each backward pass, what it has used of the graph

    def confirm(self, failure: BaseException, slots: set[int], factor: torch.Tensor) -> None:
        """Raises ``failure`` if gradients are wrong where they have to be multiplied by ``factor``, or where the same
        backward pass has come through the same graph already."""
        task = torch._C._current_graph_task_id()
        met = any(task == known and slots & used for known, used in self._passes)
        self._passes.append((task, slots))
        if met or float(factor) != 1.0:
            self._refused(failure, Refused(BENDS))
            raise failure


class HandBack(torch.autograd.Function):
    """A scalar whose gradients are already known: backward passes them on, multiplied by the incoming
    gradient, of which they are a multiple unless there is a :class:`Bending`.

    The node must not hold its tape, which holds the scalar: Python could not detect that cycle."""

    @staticmethod
    def forward(
        ctx: Any,
        value: torch.Tensor,
        tape: Tape,
        slots: set[int],
        sums: list,
        scale: float,
        bending: Optional[Bending],
        *inputs: torch.Tensor,
    ) -> torch.Tensor:
        ctx.tape, ctx.slots, ctx.sums, ctx.scale, ctx.bending = weakref.ref(tape), slots, sums, scale, bending
        ctx.failure, ctx.reducers = bare(tape.step.failure), tape.reducers
        return value.detach().clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if not ctx.sums or torch._C.is_grad_enabled():
            # The sums have been freed already, or a second derivative is wanted, for which nothing is known here.
            raise ctx.failure
        with set_aside():
            factor = grad.reshape(()) if ctx.scale == 1.0 else grad.reshape(()) / ctx.scale
            if ctx.bending is not None:
                ctx.bending.confirm(ctx.failure, ctx.slots, factor)
        if ctx.reducers is not None:
            ctx.reducers.begins()
        tape = ctx.tape()
        retain = tape is not None and tape.step.retain
        if tape is not None:
            tape.step.handed_back(ctx.failure)
            if tape.deferred is not None:
                tape.deferred.spent |= ctx.slots
        with set_aside():
            return HandBack._scaled(ctx, retain, factor)

    @staticmethod
    def _scaled(ctx: Any, retain: bool, factor: torch.Tensor) -> Any:
        if retain:
            return (None,) * 6 + tuple(None if g is None else g * factor.to(g.device) for g in ctx.sums[0])
        sums = ctx.sums.pop()
        scaled([g for g in sums if g is not None], factor)
        return (None,) * 6 + tuple(sums)


def scaled(tensors: Sequence[torch.Tensor], factor: torch.Tensor) -> None:
    """Multiplies tensors by one factor, in place. Tensors with the factor's device and dtype are
    multiplied together, in a few kernels."""
    alike: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    for t in tensors:
        (
            alike if t.layout == torch.strided and t.device == factor.device and t.dtype == factor.dtype else others
        ).append(t)
    if alike:
        torch._foreach_mul_(alike, factor)
    for t in others:
        t.mul_(factor.to(t.device))


def hollow(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of one meaningless element, to be expanded to any shape."""
    return torch.full(
        (), float("nan") if dtype.is_floating_point or dtype.is_complex else 0, dtype=dtype, device=device
    )


def uniform(tensor: torch.Tensor) -> Optional[torch.Tensor]:
    """A tensor of the same equal numbers that needs no memory; None if the numbers are not equal."""
    if not tensor.numel() or tensor.is_complex():
        return None
    with hidden():
        least, most = torch.aminmax(tensor)
        return least.clone().expand(tensor.shape) if torch.equal(least, most) else None


def make(slot: Slot) -> torch.Tensor:
    """A deferred tensor of a slot's shape, not yet on the tape."""
    with torch.enable_grad():
        return hollow(slot.dtype, slot.device).requires_grad_(slot.requires_grad).expand(slot.shape)


def postpone(tape: Tape) -> None:
    """Releases the values of the tensors that were made on the tape and that the user still holds.
    These tensors become deferred. Small tensors without a gradient keep their values."""
    for ref in tape.live:
        tensor = ref()
        place = None if tensor is None else place_of(tensor)
        if tensor is None or place is None or place.deferred or not tensor.requires_grad and tensor.numel() <= KEEP:
            continue
        tape.without_values(tensor)
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            _release(tape, tensor)
            emptied(tensor)
    tape.drop([t for t in (ref() for ref in tape.live) if t is not None])


def emptied(tensor: torch.Tensor) -> None:
    """Releases the values of a tensor."""
    tensor.data = hollow(tensor.dtype, tensor.device).expand(tensor.shape)


def _release(tape: Tape, view: torch.Tensor) -> None:
    """Empties the base of a view, for example a linear layer's flat output, if a module of the
    tape has made the base and only the view refers to it."""
    base = view._base
    if base is None or base.grad_fn is None or type(base) is Recorded:
        return
    made = within(base.grad_fn, (e.between for e in tape.entries if e.module is not None))
    if made and sys.getrefcount(base) == _unnamed():
        emptied(base)


@lru_cache(maxsize=1)
def _unnamed() -> int:
    """The reference count of a view's base if only the view refers to it."""
    view = torch.zeros(2).view(2, 1)
    base = view._base
    return sys.getrefcount(base)


def foreign(tape: Tape, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether any of the tensors is not on the tape but has a graph made by a try or a replay of
    the tape, such as a loss that a module left behind or a feature that a hook captured. Results that
    have been made real are the script's own."""
    spans = tape.spans + [e.between for e in tape.entries if e.module is not None]
    exits = tape.deferred.exits if tape.deferred is not None else ()
    roots = [t.grad_fn for t in tensors if place_of(t) is None]
    nodes = walk(roots, enter=lambda n: n._sequence_nr() not in exits, most=1000)
    return any(within(node, spans) and node._sequence_nr() not in exits for node in nodes)


def strays(tape: Tape, tidy: set[tuple]) -> bool:
    """Whether Python holds a tensor that is not on the tape, but has a graph made by a call of the tape that has
    succeeded, such as a loss that a module has left somewhere. Only a local variable of a running function is not
    looked at. ``tidy`` has the kinds of steps for which the answer was no; it is not asked again of a step in which
    nothing has failed."""
    begun = min((e.between[0] for e in tape.entries if e.module is not None and e.between != (0, 0)), default=None)
    if begun is None:
        return False
    kind = tuple((number_of(e.module), e.call_name(), e.between != (0, 0)) for e in tape.entries)
    if tape.step.preemptive and kind in tidy:
        return False
    # Nothing is asked that a tensor of the script's own class could answer itself.
    with torch._C.DisableTorchFunctionSubclass():
        known = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
        later = [t for t in known if _number(t) >= begun]
        del known
        found = [t for t in later if foreign(tape, [t])]
        del later
    # What only a graph has saved is an object of Python's, too, but nothing refers to it.
    held = any(holder is not found for holder in gc.get_referrers(*found)) if found else False
    if not held:
        tidy.add(kind)
    return held


def _number(tensor: torch.Tensor) -> int:
    """The sequence number of the node that made a tensor; -1 if there is none."""
    try:
        return -1 if tensor.grad_fn is None else tensor.grad_fn._sequence_nr()
    except RuntimeError:  # a view whose base has been changed in place: nobody can use it
        return -1


class Kept:
    """Memory for the values of one result, which pieces fill in order. It is on the host if the result is large
    and was made by a GPU. ``value`` is None if there is no memory."""

    def __init__(self, known: Slot) -> None:
        self._axis: Any = known.axis
        self._filled = 0
        self.value: Optional[torch.Tensor] = None
        near = known.device if math.prod(known.shape) <= NEAR else torch.device("cpu")
        for device in dict.fromkeys((near, torch.device("cpu"))):
            try:
                self.value = torch.empty(known.shape, dtype=known.dtype, device=device)
                return
            except Exception as e:
                if not is_out_of_memory(e):
                    raise

    def append(self, rows: torch.Tensor) -> None:
        """Adds the values of the next rows."""
        self._filled += self._axis.put(self.value, self._filled, rows)

    def whole(self) -> Optional[torch.Tensor]:
        """The values, once those of all rows are there; None before."""
        rows = self.value.shape[self._axis.dim] // self._axis.each()  # type: ignore[union-attr]
        return self.value if self._filled == rows else None


class Sums:
    """Gradients, each with the tensor to which it belongs. They are those of the loss times ``scale``."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.tensors: list[torch.Tensor] = []
        self.sums: list[Optional[torch.Tensor]] = []
        self._places: dict[int, int] = {}

    def add(self, tensor: torch.Tensor, grad: Optional[torch.Tensor]) -> None:
        """Adds a gradient, or None for one that is zero."""
        at = self._places.setdefault(id(tensor), len(self.tensors))
        if at == len(self.tensors):
            self.tensors.append(tensor)
            self.sums.append(grad)
        elif grad is not None:
            had = self.sums[at]
            self.sums[at] = grad if had is None else had + grad


def same_numbers(some: dict[int, Any], others: dict[int, Any]) -> bool:
    """Whether two dictionaries of numbers are the same except for rounding errors."""
    return some.keys() == others.keys() and all(
        math.isclose(float(v), float(others[k]), rel_tol=1e-5) for k, v in some.items()
    )


def _counts(value: torch.Tensor) -> bool:
    """Whether a tensor has numbers that cannot be differentiated."""
    return not (value.is_floating_point() or value.is_complex())


def _same(known: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether two tensors differ by no more than rounding; what is not finite does not count."""
    if _counts(known):
        return torch.equal(known, value)
    difference, size = (t.float().nan_to_num(0, 0, 0).norm() for t in ((known - value).abs(), known.abs()))
    return bool(difference <= (3e-2 if known.dtype in HALF else 1e-3) * size)


def _joined_by(views: Sequence[Entry], slot: int) -> set[int]:
    """The slots that share memory with one, as some entries make views: that slot, and those that are joined with it by
    any number of entries."""
    group, grown = {slot}, True
    while grown:
        near = {
            s
            for e in views
            for s in (*e.slots, *e.references()[0])
            if group.intersection((*e.slots, *e.references()[0])) and s is not None
        }
        grown = not near <= group
        group |= near
    return group


class Deferred:
    """What is known about the deferred tensors of one tape."""

    def __init__(self, tape: Tape, plan: Plan, sizes: Any, report: Any) -> None:
        self.tape, self.plan, self.sizes, self.report = tape, plan, sizes, report
        self._scalars: dict[int, torch.Tensor] = {}
        self._makers: dict[int, Entry] = {}  # by slot
        self._read = 0  # how many of the tape's entries are among them
        # The random state before the first replay, so that every scalar is computed with the same draws.
        self._begun: Optional[RandomState] = None
        self._drew = False  # a replay has drawn random numbers
        self._values: dict[int, torch.Tensor] = {}
        self.exits: set[int] = set()  # sequence numbers of the nodes that made what make_real has given the script
        self._made: dict[int, torch.Tensor] = {}  # what modules have returned, where functions write in place
        # Slots in the graph of a scalar of which a backward pass has taken the gradients: the ``slots`` of a HandBack.
        self.spent: set[int] = set()
        self._shared: dict[int, int] = {}  # checksums of values whose memory an array of the script's shares, by slot
        self._bending = Bending(report.refused)
        self.nodes: list[Any] = []  # the nodes of results without values that the script has got hold of (grad_fn)

    def free(self) -> None:
        """Lets go of all values. The script must not ask for them any more."""
        for kept in (self._values, self._made, self._scalars, self.nodes):
            kept.clear()

    def _graph(self, slot: int) -> set[int]:
        """The slots of the tensors in the graph of a slot's tensor, itself included; empty if it has no graph."""
        found: set[int] = set()
        todo = [slot]
        while todo:
            s = todo.pop()
            if s not in found and s in self.plan.slots and self.plan.slots[s].requires_grad:
                found.add(s)
                todo += self.maker(s).references()[0]
        return found

    def differentiable(self, slot: int) -> bool:
        """Whether a slot's tensor has a graph that no backward pass has used up."""
        graph = self._graph(slot)
        return bool(graph) and (self.tape.step.retain or not graph & self.spent)

    def maker(self, slot: int) -> Entry:
        """The entry that has made a slot's tensor."""
        for entry in self.tape.entries[self._read :]:
            for s in entry.slots:
                if s is not None:
                    self._makers.setdefault(s, entry)
        self._read = len(self.tape.entries)
        return self._makers[slot]

    def whole(self, slot: int) -> Optional[torch.Tensor]:
        """The real tensor of a slot with the rows of the batch, if :meth:`make_real` has made it."""
        return self._scalars.get(slot) if slot in self.plan.slots and self.plan.slots[slot].axis is not None else None

    def real(self, slot: int) -> Optional[torch.Tensor]:
        """The real scalar, if it has been handed back."""
        return self._scalars.get(slot)

    def forgets(self, slots: Iterable[int]) -> None:
        """From now on, these scalars count as not handed back: they have the gradients of pieces, and not the graph of
        the results that are about to be made real."""
        for s in filter(self.plan.is_scalar, slots):
            self._scalars.pop(s, None)

    def make_real(self, way: str, call: Callable[[Entry, Any, Any], Any] = perform) -> int:
        """Gives the results that the script holds values and graphs: of pieces that are computed twice if ``way`` is
        "two-pass", otherwise of the whole batch, for "host" with saved tensors on the host; ``call`` makes one call.
        Returns the number of pieces, 0 if all results are real already. Raises :class:`Refused` if that is
        impossible."""
        release_frames(self.tape.step.failure)
        entries = self.missing()
        if not entries:
            return 0
        if not self.tape.step.preemptive:
            clean(thorough=False)
        return self._make_real(way, entries, call)

    def missing(self) -> list[int]:
        """The entries that have to be run again for what the script holds to become real."""
        real, held = self._there(), [s for s in self._held() if s not in self._scalars]
        if not held:
            return []
        entries = self._up_to_now(held, real)
        if not self._written():  # a call of which the script has read the loss, and wants the rows, is made again
            return entries
        return [i for i in entries if real.keys().isdisjoint(self.tape.entries[i].slots)]

    def _make_real(self, way: str, entries: list[int], call: Callable[[Entry, Any, Any], Any]) -> int:
        tape, count, real = self.tape, 1, self._there()
        held = [s for s in self._held() if s not in self._scalars]
        unchanged(tape, entries)
        if tape.reducers is not None:
            if way in ("two-pass", "each"):
                tape.reducers.refuse_twice()
            call = tape.reducers.tied(call)
        if way in ("two-pass", "each"):
            refuse_acted_upon(tape)
        parts = separated(tape, entries) if way == "two-pass" else (entries, [])
        if parts is None:
            raise Refused("a module uses the result of a function, and functions may relate rows")
        calls, functions = parts
        self._confirm(calls)
        confirm(tape, self.plan, calls)
        with self._drawing():
            if way == "two-pass":
                rows = results(tape, self.plan, calls, functions, held)
                if not rows:
                    raise Refused(NUMBER)
                with unseen(tape, self.plan), self.sizes.withheld():
                    made, pieces = two_pass(tape, self.plan, calls, rows, self.sizes)
                if tape.reducers is not None:
                    made = dict(zip(made, tape.reducers.through([*made.values()])))
                real.update(made)
                count = len(pieces.made)
            else:
                with unseen(tape, self.plan), torch.enable_grad(), on_host() if way == "host" else nullcontext():
                    run(tape, None, calls, None, real, call=call)
        with torch.enable_grad():  # the script may have turned it off for what asks for them
            run(tape, None, functions, None, real)
        self._same_draws(real)
        made = {s: real[s] for s in held if s in real}
        self._scalars.update(made)
        self.exits.update(map(_number, made.values()))
        if way == "two-pass":
            self.sizes.confirm(count)
        # The traceback of the original exception holds the script's frames, and with them the results.
        tape.step.fails(bare(tape.step.failure))
        return count

    def _there(self) -> dict[int, torch.Tensor]:
        """The results that have values and, if they require a gradient, graphs, by slot: what made them is not
        repeated. A module's call may have been made whole since something failed."""
        live = [(place_of(t), t) for t in (ref() for ref in self.tape.live) if t is not None]
        return {**{p.slot: t for p, t in live if p is not None and not p.deferred}, **self._scalars}

    def _up_to_now(self, slots: Sequence[int], known: Collection[int] = ()) -> list[int]:
        """The entries that give slots the values which they have now: where functions write in place, to a view of a
        slot's tensor perhaps, all of them."""
        entries = needed(self.tape, slots, known)
        written = [i for i, e in enumerate(self.tape.entries) if e.inplace]
        return [*range(max(*entries, *written) + 1)] if written else entries

    def unite(self, slot: int) -> None:
        """Makes real a number of the batch that is about to be changed in place, and all others that share memory with
        it."""
        tape, plan = self.tape, self.plan
        views = [
            e for e in tape.entries if any(s is not None and s in plan.slots and plan.slots[s].shared for s in e.slots)
        ]
        group = _joined_by(views, slot)
        if any(plan.slots[s].dim is not None for s in group):
            raise Refused("a part of a result whose values are not in memory is changed in place")
        for s in sorted(group):
            if s in self._scalars:
                continue
            entry = self.maker(s)
            if entry in views:
                self._scalars[s] = run(
                    tape, None, [tape.entries.index(entry)], None, {r: self._scalars[r] for r in entry.references()[0]}
                )[s]
            else:
                self._scalars[s] = self.scalar(s) if plan.is_scalar(s) else self.value(s).clone()

    def scalar(self, slot: int, incoming: Optional[torch.Tensor] = None) -> torch.Tensor:
        """The real scalar, with a graph. ``incoming`` is the gradient that it is about to be given, if that is not 1.
        Raises Refused if it cannot be computed exactly."""
        if slot not in self._scalars:
            found = self._handed(slot, incoming)
            assert found is not None
            self._scalars[slot] = found
        return self._scalars[slot]

    def _read_scalar(self, slot: int) -> None:
        """Makes the value of a scalar known, and its gradients for the backward pass that will follow; only the value
        if the gradients may depend on what the script makes of the scalar before."""
        found = self._handed(slot, None, read=True)
        if found is not None:
            self._scalars[slot] = found

    def _handed(self, slot: int, incoming: Optional[torch.Tensor], read: bool = False) -> Optional[torch.Tensor]:
        """Computes a scalar and its gradients, by one replay for all of its terms. How much a term counts may depend
        on values that are known only afterwards, as in a product. If it turns out to be another number than was
        assumed, there is a second replay. None if the scalar is only ``read`` and its gradients are not linear."""
        tape, known = self.tape, self.plan.slots[slot]
        terms = Terms(tape, self.plan, slot)
        given = {r: self.value(r) for r in terms.given}

        def single(work: Callable[[], Any]) -> Any:
            return patiently(work, "there is not enough memory for a single number")

        if math.prod(known.shape) != 1 or known.dtype.is_complex:
            return single(lambda: terms.value({**given, **{s: self.scalar(s) for s in terms.slots}}))

        def derivatives(values: dict[int, torch.Tensor]) -> Any:
            return single(lambda: terms.derivatives(values, incoming if bends(tape) else None))

        guessed = single(lambda: {s: self._guess(s) for s in terms.slots})
        counts, _ = derivatives({**given, **guessed})
        found = self._replayed({s: counts.get(s) for s in terms.slots})
        values = {**given, **{s: self._values[s] for s in terms.slots}}
        counted, extra = derivatives(values)
        bent = bends(tape)
        if not (bent and read) and (not same_numbers(counts, counted) or bent and found.scale != 1.0):
            found = self._replayed({s: counted.get(s) for s in terms.slots})
        for t, g in extra.items():
            single(lambda t=t, g=g: found.add(t, g * found.scale))  # type: ignore[misc]
        self._values[slot] = value = single(
            lambda: terms.value(values).detach().to(known.device, known.dtype).reshape(known.shape)
        )
        if not found.tensors:
            return value
        if bent and read:
            return None
        scale = found.scale if incoming is None or not bent else found.scale * float(incoming)
        tensors, sums = found.tensors, found.sums
        if tape.reducers is not None:
            tensors, sums = tape.reducers.complete(tensors, sums)
        bending = self._bending if bent else None
        with torch.enable_grad():
            scalar = single(lambda: HandBack.apply(value, tape, self._graph(slot), [sums], scale, bending, *tensors))
        if tape.reducers is not None:
            tape.reducers.handed([scalar])
        return scalar

    def _guess(self, slot: int) -> torch.Tensor:
        """A term's value if it is known; otherwise 1."""
        known = self.plan.slots[slot]
        found = self._values.get(slot, self.tape.scalars.get(slot))
        return torch.ones(known.shape, dtype=known.dtype, device=known.device) if found is None else found

    def _replayed(self, counts: dict[int, Any]) -> Sums:
        """Computes the values of some terms, and the sum of their gradients, each multiplied by the number given for
        it. For None only the value is computed. If pieces would be wrong for some of several terms, each is computed by
        itself."""
        plan, rules, why = self.plan, dict.fromkeys(counts), None
        entries = needed(self.tape, list(counts))
        self._confirm(entries)
        try:
            proof = Proof(self.tape, plan, self.sizes.withheld)
            rules = proven(proof, list(counts), pieces_of(plan.batch, self.sizes.first(plan.batch)))
            refuse_acted_upon(self.tape)
        except Refused as refused:  # then the whole batch is run again, with saved tensors on the host
            plan, why = None, bare(refused)  # type: ignore[assignment]
        scale = self._scale(counts)
        if plan is None and len(counts) > 1 and not bends(self.tape):
            found = Sums(scale)
            for s, count in counts.items():
                part = self._replayed({s: count})
                for t, g in zip(part.tensors, part.sums):
                    found.add(t, g if g is None or part.scale == scale else g * (scale / part.scale))
            if not bends(self.tape) or not any(g is not None for g in counts.values()):
                return found
            scale = 1.0
        confirm(self.tape, self.plan, entries)
        # The cached blocks have the sizes of the whole batch, and would make pieces fail that otherwise fit.
        if not self.tape.step.preemptive:
            clean(thorough=False)
        with self._drawing():
            done, kept = self._computed(plan, {s: (g, rules[s]) for s, g in counts.items()}, scale, why)
        again = {s: value for s, value in ((s, k.whole()) for s, k in kept.items()) if value is not None}
        self._same_draws(again)
        values, inputs, sums, count = done
        if plan is not None:
            self.sizes.confirm(count)
        else:
            self.sizes.refused()
        if not self.tape.step.preemptive:
            survival = Survival("batch", why) if plan is None else Survival.pieces(plan.batch, count)
            with torch.enable_grad():  # as where it failed, even if only a value is wanted now: this tells the phase
                self.report.survived(self.tape.step.failure, survival, over=False)
        elif plan is None:
            self.sizes.whole(self.report, why)
        self._values.update(again)
        for s in counts:
            known = self.plan.slots[s]
            self._values[s] = torch.as_tensor(values[s], device=known.device).to(known.dtype).reshape(known.shape)
        found = Sums(scale)
        for t, g in zip(inputs.tensors, sums.all()):
            found.add(t, g)
        return found

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """A context for a replay: it draws the random numbers that the first has drawn, if it has the same pieces."""
        after = random_state()
        begun, self._begun = self._begun, self._begun or (self.tape.random if self.tape.step.complete else after)
        set_random_state(self._begun)
        try:
            yield
        finally:
            self._drew = self._drew or not same_random_state(self._begun, random_state())
            # Otherwise the replay has drawn what the script's own calls would have drawn.
            if self.tape.step.complete or begun is not None:
                set_random_state(after)

    def _same_draws(self, found: dict[int, torch.Tensor]) -> None:
        """Raises :class:`Refused` if results are not those that have been used already, by the script, such as sampled
        actions, or for a number of the batch: other random numbers have been drawn."""
        if not self._drew or self._written():
            return
        for s, value in found.items():
            known = self._values.get(s)
            if known is not None and not _same(known, value.detach().to(known.device)):
                raise Refused("a call draws other random numbers when it is repeated, and some have been used already")

    def _computed(
        self, plan: Optional[Plan], targets: dict, scale: float, why: Optional[Refused]
    ) -> tuple[tuple, dict]:
        """What :func:`gradients` returns, and the values that have been kept on the way. Memory of the host is used
        only once nothing fits without it."""
        cuda = any(self.plan.slots[s].device.type == "cuda" for s in targets)
        for last in (False, True):
            set_random_state(self._begun)  # type: ignore[arg-type]
            kept = self._kept()
            try:
                with unseen(self.tape, self.plan), nullcontext() if last else self.sizes.withheld():
                    offload = plan is None and cuda and not last
                    return gradients(self.tape, plan, targets, self.sizes.next, scale, offload, kept), kept
            except Refused as refused:
                why = why or bare(refused)
            if last or not self.sizes.may_spill():
                break
        raise why or Refused("the step does not fit")

    def _scale(self, counts: dict[int, Any]) -> float:
        """The factor by which the sum of the terms is multiplied before it is differentiated, so that the largest of
        them is multiplied by what the script's GradScaler multiplies a loss by."""
        scale = 1.0 if bends(self.tape) else self.sizes.scale(self.tape)
        if scale == 1.0:
            return scale
        most = max((abs(float(g)) for g in counts.values() if g is not None), default=1.0)
        return scale / most if 0 < most < math.inf else scale

    def _find(self, terms: Terms) -> None:
        """Makes the values of terms known. If the script holds one scalar that all others lead to, that is the loss,
        whose gradients it will want next: they are computed as well. Otherwise the terms of all scalars that it holds
        are computed together, without gradients."""
        wanted = self._unknown(terms)
        if not wanted:
            return
        tops = self._tops()
        others = [self._unknown(top) for top in map(self._terms, tops) if top is not None]
        if (
            len(tops) == len(others) == 1
            and wanted <= others[0]
            and math.prod(self.plan.slots[tops[0]].shape) == 1
            and not self.tape.step.done
            and not bends(self.tape)
        ):
            with suppress(Refused):  # the values of the terms alone may still be known
                self._read_scalar(tops[0])
                return
        self._replayed(dict.fromkeys(sorted(wanted.union(*others))))

    def _terms(self, slot: int) -> Optional[Terms]:
        """The terms from which a slot's tensor is computed; None if it is computed from something else."""
        if self.plan.slots[slot].dim is not None:
            return None
        try:
            return Terms(self.tape, self.plan, slot)
        except Refused:
            return None

    def _unknown(self, terms: Terms) -> set[int]:
        """The slots of those terms whose values are not known."""
        return {s for s in terms.slots if s not in self._values and s not in self.tape.scalars}

    def _tops(self) -> list[int]:
        """The slots of the scalars that the script holds, that still have their graphs, and from which it has computed
        no other scalar that it holds."""
        held = sorted({s for s in self._held() if self.plan.is_scalar(s) and s not in self._scalars}, reverse=True)
        found: list[int] = []
        below: set[int] = set()
        for s in held:
            if s not in below:
                graph = self._graph(s)
                below |= graph
                if not graph & self.spent:
                    found.append(s)
        return found

    def _confirm(self, entries: Sequence[int]) -> None:
        def again() -> None:
            with rehearsal(modules_of(self.tape)), torch.no_grad():
                self.plan.confirm(entries)

        if any(self.tape.entries[i].seen is not None for i in entries):
            patiently(again, "there is not enough memory for a trial on a few rows")

    def _held(self) -> set[int]:
        """The slots of the deferred tensors that the script holds."""
        places = [place_of(t) for t in (ref() for ref in self.tape.live) if t is not None]
        return {p.slot for p in places if p is not None and p.deferred and p.slot in self.plan.slots}

    def held(self) -> list[int]:
        """The slots of the deferred results that the script holds, and whose values are not known. Of sums over the
        rows, only those whose terms are known, until the backward pass has been made: one of them may be the loss."""
        slots = [s for s in self._held() if s not in self._values and s not in self._scalars]
        numbers = self._numbers()
        return [
            s
            for s in slots
            if self.plan.slots[s].dim is not None
            or s in numbers
            or self.tape.step.done
            and self.plan.slots[s].fixed
            or (terms := self._terms(s)) is not None
            and (self.tape.step.done or not self._unknown(terms))
        ]

    def _numbers(self) -> set[int]:
        """The slots of those numbers of the batch as a whole that the script holds and that nothing is differentiated
        through, such as an accuracy. The script may read them once the weights have changed."""
        held = (s for s in self._held() if self.plan.slots[s].dim is None and not self.plan.slots[s].requires_grad)
        return {s for s in held if self._terms(s) is None}

    def _behind(self, slot: int) -> set[int]:
        """The slots from which a slot's tensor is computed."""
        found: set[int] = set()
        todo = [slot]
        while todo:
            for s in self.maker(todo.pop()).references()[0]:
                if s not in found:
                    found.add(s)
                    todo.append(s)
        return found

    def settle(self) -> None:
        """Makes numbers of the batch that have no graph plain, since the script may keep them for long, and they would
        keep the tape."""
        found = []
        for tensor in (ref() for ref in self.tape.live):
            place = None if tensor is None else place_of(tensor)
            if (
                place is None
                or not place.deferred
                or tensor.requires_grad  # type: ignore[union-attr]
                or self.plan.slots[place.slot].dim is not None
                or place.slot not in self._values
            ):
                continue
            with torch.no_grad(), unrecorded():
                tensor.data = self.value(place.slot).clone()  # type: ignore[union-attr]
            found.append(tensor)
        self.tape.let_go(found)  # type: ignore[arg-type]

    def _kept(self) -> dict[int, Kept]:
        """Memory, by slot, for the values of the results that the script holds. The pieces fill it, since the
        script may ask for these values once the weights have changed."""
        release_frames(self.tape.step.failure)
        if self._written():  # a piece has what the last function has made of a result, whoever wants what it was before
            return {}
        wanted = {s for s in self._held() if self.plan.slots[s].dim is not None}
        for s in self._numbers():
            made = {r for r in self._behind(s) if self.maker(r).module is not None}
            wanted |= {
                r for r in made if self.plan.slots[r].dim is not None and math.prod(self.plan.slots[r].shape) <= NEAR
            }
        # What is known already is compared, once anything has been drawn: see _same_draws.
        given = {
            s for s, v in self._values.items() if (_counts(v) or self._drew) and self.plan.slots[s].dim is not None
        }
        rows = sorted({s for s in wanted if s not in self._values} | given)
        return {s: kept for s, kept in ((s, Kept(self.plan.slots[s])) for s in rows) if kept.value is not None}

    def value(self, slot: int) -> torch.Tensor:
        """A slot's values for the whole batch, without a graph."""
        if slot in self._scalars:
            return self._scalars[slot].detach()
        if slot in self._values:
            return self._on_its_device(slot, self._values[slot])
        if slot in self.tape.scalars:
            return self.tape.scalars[slot]
        plan, tape = self.plan, self.tape
        entry, terms = self.maker(slot), self._terms(slot)
        # A later replay would compute with other weights.
        kept = tape.step.done and entry.module is None and self.has(slot)
        with torch.no_grad():
            if terms is not None and not kept:
                self._find(terms)
                found = self._values[slot] if slot in self._values else self._of_terms(terms)
            elif self._written():
                found = self._in_order(slot)
            elif plan.slots[slot].fixed:
                found = self._of_any_rows(slot)
            elif entry.module is None and (plan.slots[slot].dim is None or self.has(slot)):
                at = tape.entries.index(entry)
                unchanged(tape, [at])
                found = run(tape, None, [at], None, {r: self.value(r) for r in entry.references()[0]})[slot]
            elif plan.slots[slot].dim is None:
                found = self.scalar(slot).detach()
            else:
                found = self._by_rows(slot, needed(tape, [slot]))
        self._values[slot] = found
        return self._on_its_device(slot, found)

    def share(self, places: Sequence[Place]) -> None:
        """Notes that arrays of the script's share the memory of values that :meth:`value` has returned."""
        for slot in (place.slot for place in places if place.slot in self._values):
            self._shared[slot] = contents(self._values[slot])[1]

    def written_through_arrays(self) -> bool:
        """Whether the script has written to such an array, and so to what it takes for a result's own memory: a replay
        would not see that."""
        now = ((contents(self._values[s])[1], c) for s, c in self._shared.items() if s in self._values)
        return any(checksum not in (0, before) for checksum, before in now)  # 0 if the array's memory has been let go

    def _on_its_device(self, slot: int, found: torch.Tensor) -> torch.Tensor:
        """What a slot has, on the device on which the script expects it."""
        device = self.plan.slots[slot].device if slot in self.plan.slots else found.device
        return found if found.device == device else found.to(device)

    def _of_terms(self, terms: Terms) -> torch.Tensor:
        return terms.value({s: self.value(s) for s in (*terms.slots, *terms.given)})

    def _of_any_rows(self, slot: int) -> torch.Tensor:
        """The values of a slot that does not depend on the batch, such as a function of weights."""
        entries = needed(self.tape, [slot])
        unchanged(self.tape, entries)
        few = Rows(self.plan.batch, 0, min(2, self.plan.batch))
        with unseen(self.tape, self.plan), self._drawing():
            return run(self.tape, self.plan, entries, few)[slot]

    def _by_rows(self, slot: int, entries: Sequence[int]) -> torch.Tensor:
        """A slot's values, computed by entries for some rows at a time."""
        tape, plan = self.tape, self.plan
        unchanged(tape, entries)
        kept = Kept(plan.slots[slot])
        if kept.value is None:
            raise Refused("there is not enough memory for the values of a result")
        with unseen(tape, plan), self._drawing():
            by_pieces(
                plan.batch,
                lambda failed: failed // 2 if failed else self.sizes.first(plan.batch),
                lambda rows: run(tape, plan, entries, rows)[slot],
                lambda _, rows: kept.append(rows),
            )
        return kept.value

    def writes(self, target: int) -> None:
        """Called before a function that writes in place to the slot ``target`` is added to the tape: what is known of
        values that may change is forgotten, but for what modules have returned."""
        rows = {s: v for s, v in self._values.items() if self.plan.slots[s].dim is not None}
        if not self._written():
            self._made.update({s: v for s, v in rows.items() if self.maker(s).module is not None})
        gone = {target, *rows, *filter(self.plan.is_shared, self._values)}
        self._values = {s: v for s, v in self._values.items() if s not in gone}

    def _written(self) -> bool:
        """Whether a function on the tape writes to its argument: values then depend on the order of the functions."""
        return any(e.inplace for e in self.tape.entries)

    def _in_order(self, slot: int) -> torch.Tensor:
        """A slot's values where functions write in place: all functions are run in order, on the whole batch, beginning
        with what the modules have returned."""
        tape = self.tape
        functions = [i for i in self._up_to_now([slot]) if tape.entries[i].module is None]
        slots = {r for i in functions for r in tape.entries[i].references()[0]} | {slot}
        env = {s: self._returned(s).clone() for s in slots if self.maker(s).module is not None}
        unchanged(tape, functions)
        return run(tape, None, functions, None, env)[slot]

    def _returned(self, slot: int) -> torch.Tensor:
        """The values that a module's call has returned, before anything was written to them."""
        if slot not in self._made:
            made = self.tape.entries.index(self.maker(slot))
            known = self.plan.slots[slot]
            if known.dim is None:
                raise Refused(NUMBER)
            self._made[slot] = self._by_rows(slot, [i for i in needed(self.tape, [slot]) if i <= made])
        found = self._made[slot]
        return found.to(self.plan.slots[slot].device)

    def has(self, slot: int) -> bool:
        """Whether a slot's values are kept, or can be computed from values that are."""
        if slot in self._values:
            return True
        entry = self.maker(slot)
        return entry.module is None and not self._written() and all(self.has(r) for r in entry.references()[0])

    def keep(self, slot: int, tensor: torch.Tensor) -> None:
        """Keeps the values of a tensor that the user still holds, since deferred tensors may be
        computed from them. Does nothing if a function on the tape changes a tensor in place."""
        if not self._written():
            with unrecorded():
                self._values.setdefault(slot, tensor.detach())
