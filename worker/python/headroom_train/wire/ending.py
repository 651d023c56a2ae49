"""What is said about a failure that has ended the script, if none of the worker's code has seen it."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple, Optional

import torch

from ..replay.twopass import TwoPass
from ..tape.graph import walk
from ..tape.snapshot import parameters

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_LOADER = "in DataLoader worker process"
_LINE = re.compile(r'File "([^"]+)", line (\d+)')


class Ending(NamedTuple):
    """Why nothing could be done about a failure, and what the user can do: ``hint`` may be empty. ``apart`` if it was
    in no phase of a training step."""

    why: str
    hint: str = ""
    apart: bool = False


def frames(error: BaseException) -> Iterator[FrameType]:
    """The frames of an exception's traceback, outermost first."""
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def lines(error: BaseException) -> list[tuple[str, str]]:
    """The files and lines of the traceback that a loader's worker process has sent, outermost first; empty for any
    other exception."""
    return _LINE.findall(str(error)) if _LOADER in str(error) else []


def ending(error: BaseException, trained: Container[Any]) -> Ending:
    """Explains an exception for want of memory that the worker's code has not seen. ``trained`` has the parameters
    that optimizers train."""
    if lines(error):
        return _loaded(lines(error))
    every = [*frames(error)]
    names = [_file(f) for f in every]
    running = {f.f_code.co_name for f in every}
    if any(name.startswith("_functorch/_aot_autograd") for name in names):
        return Ending("it was inside a function that torch.compile has compiled, whose calls are not recorded")
    if any(name.startswith("_functorch") for name in names):
        hint = "vmap(…, chunk_size=N) computes N rows at a time" if "vmap_impl" in running else ""
        return Ending("it was inside torch.func, whose functions the worker does not record", hint)
    module = _of_module(every)
    if module is not None:
        return _called(module, trained)
    if "_engine_run_backward" in running:
        if _computed_twice(every):
            return Ending(
                "it was in the backward pass of a step whose results were computed in pieces, twice, and that pass is "
                "not made again"
            )
        return Ending("nothing in this backward pass came from a call that is recorded")
    if any(name.startswith("optim") for name in names):
        return Ending("it was in an optimizer's step that the worker does not run again")
    hint = "make or load less at once at that line, or keep less from earlier steps"
    return Ending("the script itself asked for it, outside the calls of its modules", hint, apart=True)


def _file(frame: FrameType) -> str:
    """The file of a frame's function, relative to PyTorch if it is one of PyTorch's."""
    return frame.f_code.co_filename.removeprefix(_TORCH)


def _of_module(every: Iterable[FrameType]) -> Optional[FrameType]:
    """The first of some frames in which PyTorch calls a module."""
    calls = (f for f in every if _file(f) == "nn/modules/module.py")
    return next((f for f in calls if isinstance(f.f_locals.get("self"), torch.nn.Module)), None)


def _loaded(sent: list[tuple[str, str]]) -> Ending:
    where, fewer = "it was in a worker process of a DataLoader, which ", "start fewer loader workers (num_workers)"
    if any(name.endswith("collate.py") for name, _ in sent):
        return Ending(f"{where}put a batch together", f"load smaller batches, or {fewer}", apart=True)
    why = f"{where}loaded one sample: the size of the batch does not change that"
    return Ending(why, f"let a sample need less memory at that line, or {fewer}", apart=True)


def _computed_twice(every: Iterable[FrameType]) -> bool:
    """Whether the backward pass that has failed reaches results of pieces that are computed twice."""
    passes = (f.f_locals.get("t_outputs", ()) for f in every if f.f_code.co_name == "_engine_run_backward")
    roots = [t.grad_fn for outputs in passes for t in outputs]
    return any(type(node).__name__ == f"{TwoPass.__name__}Backward" for node in walk(roots, most=10000))


def _called(frame: FrameType, trained: Container[Any]) -> Ending:
    module: Any = frame.f_locals["self"]
    name = type(module).__name__
    if any(p in trained for p in parameters([module])):
        return Ending(f"this call of {name} is not recorded")
    given = (*frame.f_locals.get("args", ()), *frame.f_locals.get("kwargs", {}).values())
    if any(isinstance(t, torch.Tensor) and t.requires_grad for t in given):
        why = (
            f"no optimizer trains a parameter of {name}, but something that it is given: only the calls of "
            "modules that are trained are recorded"
        )
        return Ending(why, f"give {name} fewer rows at once at that line")
    return Ending(f"no optimizer trained a parameter of {name} when it was called")


def line(error: BaseException, foreign: Any) -> Optional[str]:
    """The innermost line of the user's code in what a loader's worker process has sent; None for any other
    exception."""
    return next((f"{name}:{number}" for name, number in reversed(lines(error)) if not foreign(name)), None)
