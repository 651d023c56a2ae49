"""DistributedDataParallel: a rank that runs out of memory goes on alone, and reduces its gradients once.

What is recorded is the module inside. So what DistributedDataParallel does before that module's call (it broadcasts
buffers, and makes new buckets) and after it (it prepares its reducer) is done once, as always. Trials and pieces run
the module inside, through ``autograd.grad``, which fires none of the reducer's hooks. The gradients are handed back
through one node, whose backward pass fires each hook once. So this rank calls the collectives of an undisturbed step,
in the same number and order; the other ranks wait in theirs, and need not know.
"""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, Optional

import torch

from ..failure import Refused, Unrepeatable
from ..hooks.changes import Change
from ..sandbox.sandbox import unwarned
from ..tape.graph import leaves, walk
from ..tape.snapshot import submodules
from ..tape.trees import flatten, is_a, unflatten
from ..world import several, talked
from .collectives import handing_back
from .patience import Stamp, patient

Given = Sequence[Optional[torch.Tensor]]

# Of an error message of PyTorch 2.4 to 2.15: numbers of parameters, in the reducer's order.
# PyTorch names the first hundred, in order.
_WAITING = re.compile(r"Parameter indices which did not receive grad for rank \d+: (\d+(?: \d+)*)( \.\.\.)?")
_NOTHING_WAITS = "INTERNAL ASSERT FAILED"  # every hook has fired, and the end of the backward pass was not reached
_MANAGED = {"DistributedDataParallel", "DataParallel", "DeepSpeedEngine"}
_PART = 0.75  # of a process group's time limit: how long a rank may let the others wait

# The parameters of each DistributedDataParallel, in its reducer's order.
_parameters: weakref.WeakKeyDictionary[torch.nn.Module, list[torch.Tensor]] = weakref.WeakKeyDictionary()


def is_ddp(module: Any) -> bool:
    return torch.distributed.is_available() and is_a(module, torch.nn.parallel.DistributedDataParallel)


def around() -> Any:
    """The DistributedDataParallel within whose forward pass this is called; None outside of any."""
    return torch.nn.parallel.DistributedDataParallel._active_ddp_module if torch.distributed.is_available() else None


def has_ddp(module: torch.nn.Module) -> bool:
    """Whether a module has a DistributedDataParallel inside: what that calls is recorded, and not the module."""
    return any(map(is_ddp, submodules([module])))


def is_redirected(module: torch.nn.Module) -> bool:
    """Whether a call of a LightningModule is its ``training_step``, for as long as DistributedDataParallel is to see
    it as a forward pass: what that calls is recorded, as without DistributedDataParallel."""
    return "_ForwardRedirection" in getattr(vars(module).get("forward"), "__qualname__", "")


def is_sink(kind: Any) -> bool:
    """Whether an autograd function is the one through which DistributedDataParallel passes its results."""
    return kind.__name__ == "_DDPSink" and kind.__module__ == "torch.nn.parallel.distributed"


class _DDPSink(torch.autograd.Function):
    """Takes the place of DistributedDataParallel's function of this name in replays: an identity."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:
        ctx.set_materialize_grads(False)
        return tuple(t.clone() if isinstance(t, torch.Tensor) else t for t in given)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads


def sink(applied: Callable, kind: Any, ddp: Any, busy: Callable[[], bool]) -> Callable:
    """The call of DistributedDataParallel's sink that is recorded: only the script's own call tells the reducer."""

    def _DDPSink_of(*given: Any) -> Any:
        return applied(_DDPSink, *given) if busy() else applied(kind, ddp, *given)

    _DDPSink_of.apart = True  # type: ignore[attr-defined]  # each result is one of the arguments
    return _DDPSink_of


def watch(first: Callable[[], Any]) -> None:
    """Notes which parameters a DistributedDataParallel reduces, in which order, and makes its communication hooks, and
    what it calls before the module, more patient. ``first`` is called once, before the first one of several ranks is
    made."""
    if not torch.distributed.is_available():
        return
    kind, module = torch.nn.parallel.DistributedDataParallel, torch.nn.parallel.distributed
    init, register = kind._ddp_init_helper, module.dist._register_comm_hook

    @wraps(init)
    def made(self: Any, parameters: list, *args: Any, **kwargs: Any) -> Any:
        nonlocal first
        if several():
            call, first = first, lambda: None
            call()
        _parameters[self] = [*parameters]
        return init(self, parameters, *args, **kwargs)

    @wraps(register)
    def registered(reducer: Any, state: Any, hook: Any) -> Any:
        return register(reducer, state, patient(hook, _reached(hook)))

    Change(kind, "_ddp_init_helper", made)
    Change(module.dist, "_register_comm_hook", registered)
    # What is called around the module, and changes nothing before it has communicated.
    for name in ("_default_broadcast_coalesced", "_check_global_requires_backward_grad_sync"):
        Change(kind, name, patient(getattr(kind, name)))
    Change(module, "_to_kwargs", patient(module._to_kwargs))
    Change(module.Join, "notify_join_context", staticmethod(patient(module.Join.notify_join_context)))


def _reached(hook: Callable) -> Callable[[Any, Any], Optional[Stamp]]:
    """For the arguments of a communication hook: the stamp of what it may change."""
    return lambda state, bucket: Stamp.of(hook, state, bucket.buffer())


def why_not(ddp: Any) -> Optional[str]:
    """Why a DistributedDataParallel's module cannot be run again by one rank alone; None if it can."""
    name = "DistributedDataParallel"
    if type(ddp) is not torch.nn.parallel.DistributedDataParallel:
        return f"the model is managed by {type(ddp).__name__}"
    if ddp._use_python_reducer:
        return f"{name} reduces gradients in compiled code"
    if getattr(ddp, "mixed_precision", None) is not None:
        return f"{name} casts parameters (mixed_precision)"
    if ddp._delay_all_reduce_params or getattr(ddp, "skip_all_reduce_unused_params", False):
        return f"{name} does not reduce all gradients at once"
    params = _parameters.get(ddp)
    if params is None or any(hasattr(p, "_in_backward_optimizers") for p in params):
        return f"the optimizer's steps are made in {name}'s backward pass"
    if any(type(p) is not torch.nn.Parameter for p in params):
        return f"{name} has parameters of a class of their own"
    if any("hook_with_zero_step" in getattr(hook, "__qualname__", "") for hook, _ in ddp._comm_hooks):
        return f"the optimizer's steps are made in {name}'s backward pass"
    for m in submodules([ddp.module]):
        inside = type(m).__name__
        if getattr(m, "sparse", False):
            return f"{name} reduces sparse gradients"
        if inside in _MANAGED or inside.startswith(("FSDP", "FullyShardedDataParallel")):
            return f"a module inside {name} is managed by {inside}"
    return "it cannot be told how often this rank has communicated" if talked() < 0 else None


def reduces(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a DistributedDataParallel reduces the gradient of any of the tensors."""
    ids = {id(t) for t in tensors}
    return any(id(p) in ids for params in _parameters.values() for p in params)


def _waiting(ddp: Any, new: Sequence[torch.Tensor] = (), alike: Container[int] = ()) -> Optional[list[torch.Tensor]]:
    """After a backward pass that has failed: the parameters whose gradients the reducer has not been told of; None if
    it has been told of none, or of all of them and is done. Of those that PyTorch does not name, it has been told of
    the ones with a ``new`` gradient. ``alike`` has the ids of parameters of which it is not known whether theirs is."""
    try:
        ddp.reducer._check_reducer_finalized()
    except RuntimeError as e:
        found, params = _WAITING.search(str(e)), _parameters[ddp]
        named = [int(i) for i in found[1].split()] if found is not None else []
        if found is not None and named[-1] < len(params):
            others = params[named[-1] + 1 :] if found[2] else []
            if any(id(p) in alike for p in others):
                raise Refused("it cannot be told which gradients are complete") from None
            told = {id(p) for p in new}
            return [*(params[i] for i in named), *(p for p in others if id(p) not in told)]
        if _NOTHING_WAITS in str(e):
            return []
        raise Refused("it cannot be told how far DistributedDataParallel has reduced the gradients") from None
    return None


class Reducers:
    """The DistributedDataParallels whose modules are on a tape, and what is to become of their reductions."""

    def __init__(self) -> None:
        self._known: list[weakref.ref[Any]] = []
        self._syncing: set[int] = set()  # ids of those that reduce the gradients of this step
        self._handed: list[weakref.ref[torch.Tensor]] = []  # what has been handed back
        self._first: list[Any] = []  # whose graphs are static, and in the first backward pass
        self._begun: set[int] = set()  # ids of those that had begun to reduce gradients when the pass failed
        self._since = time.monotonic()

    def note(self, ddp: Any) -> Optional[str]:
        """Called before the call of a DistributedDataParallel's module. Returns why the step cannot be run again."""
        if all(ref() is not ddp for ref in self._known):
            self._known.append(weakref.ref(ddp))
        if ddp.require_backward_grad_sync:
            self._syncing.add(id(ddp))
        elif _is_first(ddp):
            return "the first step of a static graph accumulates gradients"
        return None

    def _all(self) -> list[Any]:
        return [d for d in (ref() for ref in self._known) if d is not None]

    def _reducing(self) -> list[Any]:
        return [d for d in self._all() if id(d) in self._syncing]

    def in_time(self) -> None:
        """Raises :class:`Unrepeatable` if the other ranks have waited for so long that they might give up."""
        for ddp in self._reducing():
            limit = _limit(ddp)
            if limit is not None and time.monotonic() - self._since > _PART * limit:
                raise Unrepeatable(f"the other ranks would not wait any longer than {limit:.0f} s")

    # Handing gradients back.

    def complete(
        self, tensors: Sequence[torch.Tensor], grads: Given, ddps: Optional[Sequence[Any]] = None
    ) -> tuple[list[torch.Tensor], Given]:
        """The tensors and gradients that are handed back so that exactly those hooks of the given
        DistributedDataParallels, by default of all, fire that would have fired in an undisturbed backward pass. Raises
        :class:`Refused` if those are not known."""
        found = {id(t): (t, g) for t, g in zip(tensors, grads)}
        for ddp in self._all() if ddps is None else ddps:
            missing = [p for p in _parameters[ddp] if found.get(id(p), (p, None))[1] is None]
            if not missing:
                continue
            used = len(missing) < len(_parameters[ddp])  # otherwise nothing that is differentiated depends on it
            if id(ddp) not in self._syncing or ddp.static_graph or not used:
                for p in missing:
                    found.pop(id(p), None)
            elif not ddp.find_unused_parameters:
                raise Refused("a parameter has no gradient, for which DistributedDataParallel waits")
            elif any(p.grad is not None and bool(p.grad.any()) for p in missing):
                raise Refused("a parameter that is not used has a gradient from before")
            else:
                found.update((id(p), (p, None)) for p in missing)
        return self.in_order([t for t, _ in found.values()]), [g for _, g in found.values()]

    def in_order(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Views, so that a backward pass reaches the last tensor first. In that order rank 0 assigns parameters to
        buckets once and for all; in another, computation and communication would not overlap."""
        with torch.enable_grad():
            return [t.view_as(t) if t.is_leaf else t for t in tensors]

    def handed(self, results: Sequence[torch.Tensor]) -> None:
        """Called with what has been handed back: that is where a reducer looks for parameters that are not used, and
        not in the graph of the try that failed. No hook has fired yet, so that preparing again only resets."""
        self._handed += map(weakref.ref, results)
        there = [t for t in (ref() for ref in self._handed) if t is not None]
        looking = [d for d in self._reducing() if d.find_unused_parameters and not d.static_graph]
        used = {id(t) for t in leaves(walk([t.grad_fn for t in there]))} if looking else set()
        for ddp in looking:
            if id(ddp) not in self._begun and not used.isdisjoint(map(id, _parameters[ddp])):
                with unwarned():  # a model that has such parameters would be said to have none
                    ddp.reducer.prepare_for_backward(there)

    def passed(self) -> None:
        """Called when results without values are passed on by DistributedDataParallel, which has just looked for
        parameters in their graphs. A value that the script has asked for before has been handed back already."""
        if any(ref() is not None for ref in self._handed):
            self.handed([])

    def begins(self) -> None:
        """Called when the backward pass of what has been handed back reaches it. In the first step of a static graph
        DistributedDataParallel's sink sees to the reduction, in the graph of the try that has failed."""
        for ddp in self._reducing():
            if _is_first(ddp) or ddp in self._first:
                torch.autograd.Variable._execution_engine.queue_callback(ddp.reducer._delay_all_reduce)
                ddp._static_graph_delay_allreduce_enqueued = True
        self._first = []

    def through(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results of modules that have been run again, as DistributedDataParallel returns them."""
        tied = [t for t in results if t.requires_grad]
        if not tied or not any(d.find_unused_parameters or _is_first(d) for d in self._reducing()):
            return [*results]
        with torch.enable_grad():
            made = _Tied.apply(self, *tied)
        self.handed(made)
        found = iter(made)
        return [next(found) if t.requires_grad else t for t in results]

    def tied(self, call: Callable[[Any, Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
        """What makes a call of the tape again, as DistributedDataParallel does."""

        def made(entry: Any, args: Any, kwargs: Any) -> Any:
            result = call(entry, args, kwargs)
            if entry.module is None:
                return result
            parts, tree = flatten(result)
            places = [i for i, part in enumerate(parts) if isinstance(part, torch.Tensor)]
            for i, t in zip(places, self.through([parts[i] for i in places])):
                parts[i] = t
            return unflatten(parts, tree)

        return made

    def refuse_missing(self, tensors: Sequence[torch.Tensor], grads: Given) -> None:
        """Raises :class:`Refused` if a hook would fire that fires in no undisturbed backward pass: on other ranks
        DistributedDataParallel waits for it in vain."""
        found = {id(t) for t, g in zip(tensors, grads) if g is not None}
        for ddp in self._reducing():
            own = found.intersection(map(id, _parameters[ddp]))
            if own and len(own) < len(_parameters[ddp]) and not ddp.find_unused_parameters:
                raise Refused("a parameter has no gradient, for which DistributedDataParallel waits")

    def refuse_twice(self) -> None:
        """Raises :class:`Refused` where results that are computed twice would fire other hooks."""
        for ddp in self._reducing():
            if ddp.static_graph:
                raise Refused("DistributedDataParallel has a static graph")
            if ddp.find_unused_parameters and any(p.grad is not None and bool(p.grad.any()) for p in _parameters[ddp]):
                raise Refused("a parameter that is not used may have a gradient from before")

    # A backward pass that fails.

    def backward_begins(self) -> None:
        """Called before the script's backward pass."""
        self._first = [d for d in self._reducing() if _is_first(d)]

    def backward_failed(self) -> None:
        """Called after it has failed. A reduction that was to follow it is lost."""
        self._first = [d for d in self._first if d._static_graph_delay_allreduce_enqueued]

    def told(self, changed: dict[int, bool], had: dict[int, Any]) -> dict[int, bool]:
        """Of a backward pass that has failed: by the ids of parameters, whether they have their gradients, as far as
        reducers have been told. ``changed`` says of which parameters the gradients are others than before, and ``had``
        has what was there before. Raises :class:`Refused` if the reduction cannot be completed."""
        found: dict[int, bool] = {}
        for ddp in self._all():
            own = _parameters[ddp]
            if any(p._post_accumulate_grad_hooks for p in own):
                raise Refused("a parameter has a hook that sees its gradient")
            new = [p for p in own if changed.get(id(p), p.grad is not None)]
            # Parts of one bucket, which have one version.
            alike = {id(p) for p in new if ddp.gradient_as_bucket_view and had.get(id(p)) and _is_part(p.grad)}
            waiting = _waiting(ddp, new, alike)
            if id(ddp) not in self._syncing or ddp in self._first or _is_first(ddp):
                if waiting is not None or alike:
                    raise Refused("it cannot be told which gradients are complete")
                if ddp in self._first:
                    self._begun.add(id(ddp))
            elif waiting is None:
                if new:
                    raise Refused("DistributedDataParallel had reduced the gradients")
            else:
                left = {id(p) for p in waiting}
                if any(id(p) in left and id(p) not in alike for p in new):
                    raise Refused("a gradient is complete that DistributedDataParallel has not been told of")
                self._begun.add(id(ddp))
                found.update((id(p), id(p) not in left) for p in own)
        return found

    def rest(
        self, missing: Sequence[torch.Tensor], grads: dict[int, Optional[torch.Tensor]]
    ) -> tuple[list[torch.Tensor], Given]:
        """As :meth:`complete`, after a backward pass that has failed, for the tensors that have no gradients yet."""
        begun = [d for d in self._reducing() if id(d) in self._begun]
        ids, done = {id(t) for t in missing}, {id(p) for d in begun for p in _parameters[d]}
        unused: set[int] = set()
        for ddp in begun:
            own = [p for p in _parameters[ddp] if id(p) in ids]
            none = [p for p in own if grads[id(p)] is None]
            if none and ddp in self._first:  # that a parameter is used is known only from its gradient
                unused.update(map(id, none))
            elif none and not ddp.find_unused_parameters and not ddp.static_graph:
                raise Refused("a parameter has no gradient, for which DistributedDataParallel waits")
            if unused.issuperset(map(id, own)):
                raise Refused("all gradients had been handed to DistributedDataParallel")
        others = [t for t in missing if id(t) not in done]
        left = [d for d in self._all() if d not in begun]
        some, theirs = self.complete(others, [grads[id(t)] for t in others], left)
        own = [t for t in missing if id(t) in done and id(t) not in unused]
        return [*some, *self.in_order(own)], [*theirs, *(grads[id(t)] for t in own)]

    @contextmanager
    def completing(self, value: torch.Tensor) -> Iterator[None]:
        """A context for the backward pass of what :meth:`rest` returned."""
        self.handed([value])
        with handing_back():
            yield
        self.confirm()

    def confirm(self) -> None:
        """Raises :class:`Unrepeatable` unless all reductions have been completed."""
        for ddp in self._reducing():
            if _waiting(ddp) is not None:
                raise Unrepeatable("DistributedDataParallel could not complete the reduction of the gradients")


class _Tied(torch.autograd.Function):
    """Results of a module that has been run again: every parameter behind any of them has its hook fired."""

    @staticmethod
    def forward(ctx: Any, reducers: Reducers, *results: torch.Tensor) -> Any:
        ctx.reducers = reducers
        ctx.set_materialize_grads(False)
        return tuple(t.clone() for t in results)  # as DistributedDataParallel's own

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.reducers.begins()
        return (None, *grads)


def _is_first(ddp: Any) -> bool:
    """Whether a static graph's first backward pass is still to come."""
    return ddp.static_graph and not ddp._static_graph_delay_allreduce_enqueued


def _is_part(grad: Optional[torch.Tensor]) -> bool:
    return grad is not None and grad.untyped_storage().nbytes() > grad.numel() * grad.element_size()


def _limit(ddp: Any) -> Optional[float]:
    """For how many seconds other ranks wait for this one; None if that is not known."""
    if ddp.process_group.size() == 1:
        return None
    with suppress(AttributeError, RuntimeError):
        return ddp.process_group._get_backend(_parameters[ddp][0].device).options._timeout.total_seconds()
    return None
