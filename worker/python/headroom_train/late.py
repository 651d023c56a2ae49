"""A worker that is started when torch has been in use already, and one that is taken out again: in a notebook."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from functools import wraps
from types import FunctionType
from typing import Any, Callable

import torch

from . import _torch
from .failure import OURS
from .hooks import genuine
from .hooks.changes import Change, undo_all
from .tape.recorded_module import RecordedModule


def catch_up() -> None:
    """Called after the worker has been started in a process that may have optimizers already."""
    if _torch._finder is None or _torch._around is None:
        return  # it only watches
    for kind in _kinds(torch.optim.Optimizer):
        step = vars(kind).get("step")
        if getattr(step, "hooked", False):  # PyTorch has prepared it for the class's first optimizer, and does so once
            Change(kind, "step", _torch._around(step))
    for optimizer in _every(torch.optim.Optimizer):
        _guard(optimizer, _torch._around)
        _torch._finder.trains(p for group in optimizer.param_groups for p in group["params"])


def leave() -> None:
    """Takes the worker out: torch is as it was before. What a script has put in place of something of ours, and calls
    ours, stays and does nothing. Memory of the host that is in use stays in use, since tensors of the script's are in
    it. The worker may be started again."""
    recorder, finder = _torch._recorder, _torch._finder
    if recorder is not None and finder is not None:
        recorder.settle()  # what the script holds of a failed step gets its values
        recorder.observe = "the worker was taken out"
        recorder.updates.ends = ()
        finder.leaves()
    undo_all()
    while _torch._undo:
        _torch._undo.pop()()
    for owner in (*_kinds(torch.optim.Optimizer), *_every(torch.optim.Optimizer)):
        step = vars(owner).get("step")
        while isinstance(step, FunctionType) and step.__code__.co_filename.startswith(OURS):
            step = step.__wrapped__  # type: ignore[attr-defined]
        if step is not vars(owner).get("step"):
            owner.step = step
    for module in _every(torch.nn.Module):
        record = vars(module).get("_compiled_call_impl")
        if type(record) is RecordedModule:
            record._disowned(module)
    genuine.forget()
    _torch._recorder = _torch._finder = _torch._around = None


def _kinds(kind: type) -> Iterator[Any]:
    """A class and all that are derived from it."""
    yield kind
    for derived in type.__subclasses__(kind):
        yield from _kinds(derived)


def _every(kind: type) -> list[Any]:
    """All objects of a class."""
    return [o for o in gc.get_objects() if issubclass(type(o), kind)]


def _guard(optimizer: torch.optim.Optimizer, around: Callable[[Callable], Callable]) -> None:
    """Guards the step of an optimizer that has one of its own, in its attributes: what a scheduler has put there calls
    the step that the class had then."""
    own, optimizer_of = vars(optimizer).get("step"), weakref.ref(optimizer)
    if not isinstance(own, FunctionType):
        return

    @wraps(own)
    def step(_: Any, *args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    guarded = around(step)

    @wraps(own)
    def stepped(*args: Any, **kwargs: Any) -> Any:
        return guarded(optimizer_of(), *args, **kwargs)

    optimizer.step = stepped  # type: ignore[method-assign]
