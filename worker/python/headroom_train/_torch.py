"""Changes torch, once it has been imported, so that it calls the worker."""

from __future__ import annotations

import os
import re
import sys
import threading
import weakref
from collections.abc import Iterable
from functools import wraps
from multiprocessing.reduction import ForkingPickler
from typing import Any, Callable, Optional

import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from .failure import interrupts
from .hooks import genuine, lost, moves, optimizers, swaps
from .hooks.changes import Change
from .ranks import ddp
from .ranks.collectives import watch_groups
from .recover.recorder import Recorder
from .tape.owner import APART, WITHIN, Thread
from .tape.recorded_module import CALLS, RecordedModule, is_closed, is_frozen, record_of
from .tape.snapshot import parameters, submodules
from .tape.tape import Recorded, Tape, as_plain_copy
from .tape.trained import Trained
from .wire.report import Report
from .world import neighbours, several

_recorder: Optional[Recorder] = None
_finder: Optional[Finder] = None
_around: Optional[Callable[[Callable], Callable]] = None  # what guards an optimizer's step
_undo: list[Callable[[], Any]] = []  # what takes the worker out, beside undoing its changes: see late.py
MANY = 10000  # calls of modules after which a script that has no optimizer, and records nothing, is taken not to train
FIRST, LAST = (2, 4), (2, 15)  # the oldest and the newest version of PyTorch with which the tests have passed


def only_watches(version: str = torch.__version__) -> Optional[str]:
    """The reason why this process only observes failures; None if it recovers from them."""
    if os.environ.get("HEADROOM_WORKER") == "observe":
        return "as requested"
    mode, world = os.environ.get("HEADROOM_WORKER"), os.environ.get("WORLD_SIZE", "1")
    if mode == "check" and world != "1":
        return "a check looks at one rank, and the others would wait for it"
    if mode == "find" and world not in ("1", str(neighbours())):
        return f"find asks every rank, and not all {world} are known to be on this machine"
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not FIRST <= (int(found[1]), int(found[2])) <= LAST:
        return (
            f"the worker has not been tested with PyTorch {version}, only with {FIRST[0]}.{FIRST[1]} to "
            f"{LAST[0]}.{LAST[1]}"
        )
    return None


def install() -> None:
    """Installs the worker in this process. A second call does nothing."""
    global _recorder, _finder
    if _recorder is not None:
        return
    why = only_watches()
    report, check, find = Report(why or ""), None, None
    _undo.append(report.leaves)
    if os.environ.get("HEADROOM_WORKER") == "check":
        from .recover.check import Check  # not needed for training

        check = Check(report)
    elif os.environ.get("HEADROOM_WORKER") == "find":
        from .find.find import Find  # not needed for training

        find = Find(report)
    if why:
        from _headroom_hook import leave  # not needed for training

        leave("watches", why)  # the process says hello only after a step, and may not live to see one
        if check is not None:
            _around_steps(check.instead)
        if find is not None:
            _around_steps(lambda step: find.instead(None, step, step, why))
        _after_steps(lambda _: report.step())
        return
    recorder = _recorder = Recorder(report)
    recorder.check = check or find
    recorder.sizes.tell = report.failed
    recorder.sizes.learned, recorder.sizes.asked, recorder.sizes.found = report.limit, report.asked, report.found
    report.sizes, report.last = recorder.sizes, recorder.spill.ends
    finder = _finder = Finder(recorder)
    report.trained = recorder.trained = finder.trained
    opened = recorder.spill.opened

    def around(step: Callable) -> Callable:
        guarded = optimizers.guard(step, report, recorder.step_begins, recorder.settle, opened)
        return find.instead(recorder, step, guarded) if find else guarded

    _around_steps(check.instead if check else around)
    moves.retry(opened, recorder.spill.keep_ballast)
    _intercept(recorder)
    _tell(finder)
    ddp.watch(lambda: watch_groups(recorder))
    genuine.remember()
    _after_steps(lambda _: finder.step())
    _after_steps(recorder.step_ends)
    _after_steps(lambda _: report.step())
    recorder.updates.ends = (recorder.updated, report.step)
    finder.look()  # for a script that never makes an optimizer


def _around_steps(around: Callable[[Callable], Callable]) -> None:
    """Puts what ``around`` makes of an optimizer's step in its place, for all classes of optimizers."""
    global _around
    _around = around
    hook = torch.optim.Optimizer.profile_hook_step
    made = staticmethod(wraps(hook)(lambda step: around(hook(step))))
    Change(torch.optim.Optimizer, "profile_hook_step", made)


def _after_steps(work: Callable[[torch.optim.Optimizer], Any]) -> None:
    """Calls ``work`` with the optimizer after each step of one."""
    _undo.append(register_optimizer_step_post_hook(unless_compiled(work)).remove)


def _intercept(recorder: Recorder) -> None:
    """Makes torch call the recorder with functions of recorded tensors. Parameters and other processes get plain
    ones."""
    Recorded.intercept = staticmethod(recorder.functions.function)
    Recorded.shared = staticmethod(recorder.functions.shared)
    Recorded.value_of = staticmethod(recorder.value_of)  # type: ignore[attr-defined]
    recorder.functions.watch_functions()
    swaps.watch(recorder.functions.swaps)
    lost.keep(Tape._dropped)
    new = torch.nn.Parameter.__new__

    @wraps(new)
    def parameter(cls: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        return new(cls, as_plain_copy(data) if type(data) is Recorded else data, *args, **kwargs)

    Change(torch.nn.Parameter, "__new__", staticmethod(parameter))
    ForkingPickler.register(Recorded, lambda t: reduce_tensor(as_plain_copy(t)))


def _tell(finder: Finder) -> None:
    """Makes torch tell the finder what is trained, evaluated and compiled."""
    add, eval_, compile_ = torch.optim.Optimizer.add_param_group, torch.nn.Module.eval, torch.compile

    @wraps(add)
    def add_param_group(self: torch.optim.Optimizer, group: Any) -> None:
        add(self, group)
        finder.recorder.spill.look()
        finder.trains(self.param_groups[-1]["params"])

    @wraps(eval_)
    def eval(self: torch.nn.Module) -> Any:
        if not torch.compiler.is_compiling():
            finder.evaluates()
        return eval_(self)

    @wraps(compile_)
    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compile(function, **options)
        made = compile_(model, **options)
        finder.compiles()
        # Module.compile puts the result where our entry may be
        if isinstance(getattr(model, "__self__", None), torch.nn.Module):
            finder.look()
        opaque = finder.recorder.functions.opaque
        return made if isinstance(model, torch.nn.Module) or not callable(made) else opaque(made, compiled=True)

    Change(torch.optim.Optimizer, "add_param_group", add_param_group)
    Change(torch.nn.Module, "eval", eval)
    Change(torch, "compile", compile)
    # Torch.jit.script would try to compile a RecordedModule.
    ignored = getattr(torch.jit._recursive, "ignored_attributes", [])
    ignored.append("_compiled_call_impl")
    _undo.append(lambda: ignored.remove("_compiled_call_impl"))


def unless_compiled(work: Callable[[torch.optim.Optimizer], Any]) -> Callable:
    """A hook of optimizers that calls ``work``, and that leaves no trace in the graph of a step that is compiled."""

    def hook(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            work(optimizer)

    return hook


def explicit(function: Callable, model: Any, optimizer: Optional[torch.optim.Optimizer]) -> Optional[Callable]:
    """Returns the runner for a function decorated with headroom_train.step; None if the function must be
    left unchanged."""
    from .recover.explicit import Explicit

    models = [model] if isinstance(model, torch.nn.Module) else list(model)
    if _recorder is None or any(shared(m) for m in models):
        return None
    return Explicit(function, models, optimizer, _recorder)


def shared(module: torch.nn.Module) -> Optional[str]:
    """A message if a module's calls may be spread over several processes or devices; None
    otherwise."""
    if several() and ddp.around() is None:
        return f"several ranks train a {type(module).__name__} that is not inside DistributedDataParallel"
    for m in submodules([module]):
        if type(m).__name__ in _SHARED and not _single(m):
            return f"the model is managed by {type(m).__name__}"
    return None


def _single(module: torch.nn.Module) -> bool:
    """Whether a module is a DataParallel that has no more than one GPU: it only calls the module inside."""
    return type(module) is torch.nn.DataParallel and len(module.device_ids) <= 1


def alone(module: torch.nn.Module) -> bool:
    """Whether a module does nothing but call the module inside, which is then recorded: a DataParallel with one GPU."""
    return _single(module) and shared(module.module) is None  # type: ignore[arg-type]


def led(module: torch.nn.Module) -> Optional[str]:
    """Of a module that is, or has inside, a DistributedDataParallel, and leaves being recorded to what that calls: why
    even that must not be; empty if it may. None for any other module."""
    if ddp.is_ddp(module):
        return ddp.why_not(module) or ""
    if not ddp.has_ddp(module):
        return None
    return "a module is compiled that has DistributedDataParallel inside" if hasattr(module, "_orig_mod") else ""


_SHARED = {"DataParallel", "FullyShardedDataParallel", "DeepSpeedEngine"}


class Finder:
    """Finds the modules to record, the outermost ones that have trained parameters, and those that are only called
    without gradients, or have none: a teacher, a reference model, an average of the weights."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.trained = Trained()
        # Those found before there was an optimizer, whose parameters are taken to be trained, by the script itself.
        self._supposed: weakref.WeakSet[RecordedModule] = weakref.WeakSet()
        self._looked = 0  # calls that were inspected before there was an optimizer
        self._untrained: weakref.WeakSet[RecordedModule] = weakref.WeakSet()
        self._compiles = False  # the script compiles something
        self._looking: Optional[Change] = None  # while the calls of all modules are inspected
        # The thread whose step ends the search; None for any.
        self._until: Callable[[], Optional[Thread]] = lambda: None
        self._lock = threading.Lock()
        self._new = 0
        self._steps = self._pause = 0  # optimizer steps, and the step before which no evaluation begins a search

    def trains(self, parameters: Iterable[torch.Tensor]) -> None:
        """Called with parameters that an optimizer is given. Modules that were not trained before may be from now
        on."""
        self.trained.add(parameters)
        for record in [*self._supposed]:
            module = record.module()
            if module is not None and not self._is_trained(module):
                record.trained = False
                self._untrained.add(record)
        self._supposed.clear()
        for record in [*self._untrained]:
            module = record.module()
            if module is not None and self._is_trained(module):
                record.trained = True
                self._untrained.discard(record)
        self.look()

    def evaluates(self) -> None:
        """Called when a module is put into evaluation mode. What is called only in evaluations is found there; since a
        search slows the calls of all modules down a little, there are fewer and fewer of them."""
        if self.trained and self._steps >= self._pause and not self.recorder.mine().busy and self.recorder.here():
            self._pause = 2 * self._steps
            self.look()

    def look(self, thread: Optional[Thread] = None) -> None:
        """Begins to inspect the calls of all modules: until the next step in which no new one is found, of this
        thread if there is one."""
        self._until = weakref.ref(thread) if thread is not None else self._until
        if self._looking is None and not self.recorder.report.left:
            self._looking = Change(torch.nn.Module, "_compiled_call_impl", Looking(self))

    def leaves(self) -> None:
        """Called when the worker is taken out."""
        if self._looking is not None:
            self._looking.undo()
            self._looking = None

    def compiles(self) -> None:
        """Called when the script compiles something. While that is being compiled, no modules are looked for: the
        compiler would compile what looks for them."""
        if not self._compiles:
            self._compiles = True
            # After a graph break it would be compiled by itself.
            torch._dynamo.decorators.skip_code(Looking.__get__.__code__)
            torch._dynamo.callback.on_compile_start(self._pauses)
            torch._dynamo.callback.on_compile_end(self._goes_on)

    def _pauses(self, *_: Any) -> None:
        if self._looking is not None:
            self._looking.undo()

    def _goes_on(self, *_: Any) -> None:
        if self._looking is not None and type(vars(torch.nn.Module)["_compiled_call_impl"]) is not Looking:
            self._looking = Change(torch.nn.Module, "_compiled_call_impl", Looking(self))

    def _is_trained(self, module: torch.nn.Module) -> bool:
        """Whether an optimizer trains a parameter of a module. While there is none, the script may change weights by
        itself: whether a parameter may be trained."""
        if not self.trained:
            return any(p.requires_grad for p in parameters([module]))
        return any(p in self.trained for p in parameters([module]))

    def _is_apart(self, module: torch.nn.Module) -> bool:
        """Whether a module that is called with gradients is not trained: it is frozen, or in no optimizer."""
        return is_frozen(module) or not self._is_trained(module) and is_closed(module)

    def _in_vain(self) -> None:
        """Called for a call that is inspected before there is an optimizer. Ends the search after many such calls if
        none was recorded: the script does not train."""
        self._looked += 1
        if self._looked == MANY and not self._supposed and self._looking is not None:
            self._looking.undo()
            self._looking = None

    def found(self, module: torch.nn.Module) -> Optional[RecordedModule]:
        """What is to be called in place of a module that is called without having been found before; None for
        the module itself."""
        recorder, gradients, thread = self.recorder, torch._C.is_grad_enabled(), self.recorder.mine()
        if not self.trained:
            self._in_vain()
            if not gradients:
                return None
        if torch.compiler.is_compiling() or thread.within == WITHIN:
            return None
        if thread.within == APART and not self._is_trained(module):
            return None
        if gradients and self.trained and self._is_apart(module):
            gradients = False
        if gradients and not module.training and not self.trained or thread.busy or not recorder.here():
            return None
        if alone(module) or ddp.around() is not None and ddp.is_redirected(module):
            return None
        why = led(module)
        if why is not None:
            if why and gradients:
                recorder.only_observes(why)
            return None
        trained = self._is_trained(module)
        if not trained and (gradients or not parameters([module])):
            return None
        why = shared(module)
        if why is not None:
            if trained and (gradients or not several()):
                recorder.only_observes(why)
            return None
        with self._lock:  # otherwise two threads would both find it
            known = record_of(module)
            if known is not None:
                return known
            self._new += 1
            record = RecordedModule(recorder, module, trained)
            if not trained:
                self._untrained.add(record)
            elif not self.trained:
                self._supposed.add(record)
            return record

    def step(self) -> None:
        """Called after an optimizer's step. The inspection ends if no new module was found in that
        step. Each thread gets a whole step in which modules are looked for, as other threads' steps may have
        ended the search before it called any."""
        self._steps += 1
        thread, until = self.recorder.mine(), self._until()
        if self.recorder.short:
            self.look()  # memory is short: whatever the script calls from now on may need help
        elif not thread.searched:
            thread.searched = True
            self.look(thread)
        elif (
            self._looking is not None
            and self._new == 0
            and not thread.within
            and (until is None or until is thread or not until.alive())
        ):
            self._looking.undo()
            self._looking = None
        self._new = 0


class Looking:
    """Stands in the class of modules for the attribute that a module calls in place of itself, so that
    PyTorch's ``Module.__call__``, and whatever a script has put in its place, stays as it is. Everybody but
    that method reads None, as without headroom."""

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    def __get__(self, module: Optional[torch.nn.Module], kind: Any = None) -> Optional[Callable]:
        if module is None:
            return None
        own = module.__dict__.get("_compiled_call_impl")
        if torch.compiler.is_compiling() or type(own) is RecordedModule or sys._getframe(1).f_code not in CALLS:
            return own
        try:
            return self._finder.found(module) or own
        except Exception as e:  # such as one of a method of the script's
            if interrupts(e):
                raise
            self._finder.recorder.only_observes(
                f"a {type(module).__name__} could not be looked at: {type(e).__name__}: {e}"
            )
            return own

    def __set__(self, module: torch.nn.Module, value: Any) -> None:
        module.__dict__["_compiled_call_impl"] = value

    def __delete__(self, module: torch.nn.Module) -> None:
        if module.__dict__.pop("_compiled_call_impl", None) is None:
            raise AttributeError("_compiled_call_impl")
