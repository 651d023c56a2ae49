"""Changes torch, once it has been imported, so that it calls the worker."""

from __future__ import annotations

import os
import re
from functools import wraps
from typing import Any, Callable, Optional

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import optimizers
from .found import Found
from .recorder import Recorder
from .report import Report
from .tape import Recorded

_recorder: Optional[Recorder] = None


FIRST, LAST = (2, 4), (2, 15)  # the oldest and the newest version of PyTorch with which the tests have passed


def only_watches(version: str = torch.__version__) -> Optional[str]:
    """The reason why this process only observes failures; None if it recovers from them."""
    if os.environ.get("HEADROOM_WORKER") == "observe":
        return "as requested"
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return "several ranks would have to agree on how to split the batch"
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not FIRST <= (int(found[1]), int(found[2])) <= LAST:
        return f"the worker has not been tested with PyTorch {version}, only with {FIRST[0]}.{FIRST[1]} to {LAST[0]}.{LAST[1]}"
    return None


def install() -> None:
    """Installs the worker in this process. A second call does nothing."""
    global _recorder
    if _recorder is not None:
        return
    why = only_watches()
    report = Report(why or "")
    check = None
    if os.environ.get("HEADROOM_WORKER") == "check":
        from .check import Check  # not needed for training

        check = Check(report)
    optimizer = torch.optim.Optimizer
    hook = optimizer.profile_hook_step
    if why:
        if check is not None:
            optimizer.profile_hook_step = staticmethod(lambda step: check.instead(hook(step)))  # type: ignore[method-assign, assignment]
        register_optimizer_step_post_hook(report.step)
        return
    recorder = _recorder = Recorder(report)
    recorder.sizes.ask = report.ask
    recorder.sizes.learned = report.limit
    report.ran = recorder.sizes.ran
    Recorded.intercept = staticmethod(recorder.function)
    Recorded.value_of = staticmethod(recorder.value_of)  # type: ignore[attr-defined]
    finder = Finder(recorder)
    around: Callable = lambda step: optimizers.guard(step, report, recorder.step_begins)  # noqa: E731
    if check is not None:
        recorder.check, around = check, check.instead
    optimizer.profile_hook_step = staticmethod(lambda step: around(hook(step)))  # type: ignore[method-assign, assignment]
    add = optimizer.add_param_group

    def add_param_group(self: torch.optim.Optimizer, group: Any) -> None:
        add(self, group)
        for p in self.param_groups[-1]["params"]:
            finder.trained.add(id(p))
        finder.look()

    compile_ = torch.compile

    @wraps(compile_)
    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compile(function, **options)
        made = compile_(model, **options)
        return made if isinstance(model, torch.nn.Module) or not callable(made) else recorder.opaque(made)

    torch.compile = compile
    recorder.watch_functions()
    optimizer.add_param_group = add_param_group  # type: ignore[method-assign, assignment]
    register_optimizer_step_post_hook(lambda *_: finder.step())
    register_optimizer_step_post_hook(lambda *_: recorder.step_ends())
    register_optimizer_step_post_hook(report.step)


def explicit(function: Callable, model: Any, optimizer: Optional[torch.optim.Optimizer]) -> Optional[Callable]:
    """Returns the runner for a function decorated with headroom_train.step; None if the function must be
    left unchanged."""
    from .explicit import Explicit

    models = [model] if isinstance(model, torch.nn.Module) else list(model)
    if _recorder is None or any(shared(m) for m in models):
        return None
    return Explicit(function, models, optimizer, _recorder)


def shared(module: torch.nn.Module) -> Optional[str]:
    """A message if a module's calls may be spread over several processes or devices; None
    otherwise."""
    if torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        return "several ranks would have to agree on how to split the batch"
    for m in module.modules():
        if type(m).__name__ in _SHARED:
            return f"the model is managed by {type(m).__name__}"
    return None


_SHARED = {"DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "DeepSpeedEngine"}


class Finder:
    """Finds the modules to record: the outermost modules that have trained parameters."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.trained: set[int] = set()  # ids of the parameters that belong to an optimizer
        self._call: Optional[Callable] = None  # torch's own Module.__call__, while ours is in its place
        self._new = 0
        self._inside = False

    def look(self) -> None:
        """Begins to inspect the calls of all modules."""
        if self._call is not None:
            return
        call = self._call = torch.nn.Module.__call__

        def looking(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self._inside or torch.is_grad_enabled() and not module.training:
                return call(module, *args, **kwargs)
            if self.recorder.busy or not self.recorder.here():
                return call(module, *args, **kwargs)
            if not isinstance(module.__dict__.get("_compiled_call_impl"), Found):
                if any(id(p) in self.trained for p in module.parameters()):
                    self.recorder.observe = shared(module)
                    if self.recorder.observe is not None:
                        return call(module, *args, **kwargs)
                    Found(self.recorder, module)
                    self._new += 1
                else:
                    return call(module, *args, **kwargs)
            self._inside = True
            try:
                return call(module, *args, **kwargs)
            finally:
                self._inside = False

        torch.nn.Module.__call__ = looking  # type: ignore[method-assign]

    def step(self) -> None:
        """Called after an optimizer's step. The inspection ends if no new module was found in that
        step."""
        if self._call is not None and self._new == 0 and not self._inside:
            torch.nn.Module.__call__ = self._call  # type: ignore[method-assign]
            self._call = None
        self._new = 0
