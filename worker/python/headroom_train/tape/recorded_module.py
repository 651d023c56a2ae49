"""A module whose outermost calls are recorded, and what its calls change."""

from __future__ import annotations

import re
import sys
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from itertools import count
from types import FunctionType, MethodType
from typing import Any, Callable, Optional

import torch

from ..failure import arrive, interrupts, is_out_of_memory, unframed
from ..hooks.genuine import apart, hidden, is_inference, put_values, unseen_copy, version_of
from ..hooks.swaps import Weak
from .found import Around, Found, Held, Still
from .idle import Known
from .owner import APART, WITHIN
from .settings import Settings, settings
from .snapshot import (
    Change,
    Hooks,
    Snapshot,
    Taken,
    attributes,
    buffers,
    computed,
    distinct,
    forward_hooks,
    hooks_of_all,
    parameters,
    plain_reached,
    submodules,
    tensors,
)
from .trees import is_a, tensors_in

# Where code draws random numbers: nowhere, in functions called from Python, or in any operation.
NEVER, CALLED, ANYWHERE = range(3)
MANY = 1000  # the most containers that are inspected before every call
MANY_PARTS = 10000  # submodules of a module
SMALL = 4 << 10  # bytes of a buffer whose values are looked at
SILENT = 64 << 20  # bytes of the buffers that are looked at after a first call
OTHERS = 8  # the most calls in a row before each of which a module is taken for another one
_NUMBERS = count(1)
# In TorchScript's code: an attribute is set, or a list or dict among the attributes is used.
_STATE = re.compile(r"prim::SetAttr|: (?:\S+\[\]|Dict\([^=]*\)) = prim::GetAttr")
# Modules that keep running statistics, and write them without raising a version.
NORMS = torch.nn.modules.batchnorm._NormBase


# The functions that call a module's entry.
CALLS = {getattr(f, "__code__", None) for f in (torch.nn.Module.__call__, torch.nn.Module._wrapped_call_impl)}


def is_frozen(module: torch.nn.Module) -> bool:
    """Whether a module has parameters, none of them is to get gradients, and it is closed."""
    params = [*parameters([module])]
    with apart():
        return bool(params) and not any(p.requires_grad for p in params) and is_closed(module)


def is_closed(module: torch.nn.Module) -> bool:
    """Whether no hook, nor another ``forward``, may add something to a module that is trained."""
    return not any("forward" in vars(m) or any(map(_foreign, forward_hooks(m))) for m in submodules([module]))


def _foreign(hook: Any) -> bool:
    """Whether a hook is none of PyTorch's own, such as that of ``weight_norm``."""
    return not type(hook).__module__.startswith("torch.nn.utils.")


def _with_gradients(tree: Any) -> bool:
    """Whether a tensor in a tree has a gradient, or is to get one; or the tree cannot be read."""
    try:
        with apart():
            return any(t.requires_grad for t in tensors_in(tree))
    except Exception as e:
        if interrupts(e):
            raise
        return True


class Limits:
    """What is known about how large a call of a module may be. Sizes are kept as costs: see
    :mod:`headroom_train.replay.sizes`."""

    def __init__(self) -> None:
        self.limit: Optional[int] = None  # the smallest cost of a call that failed
        self.exempt = False  # its calls are made as a whole, although the user has asked for fewer rows at once
        self.untried = False  # whether they could be made in pieces is found out before any is: see recover.asked
        self.hosted: Optional[int] = None  # the smallest cost of a call that fits only with saved tensors on the host
        self.share: Any = None  # how much of what is saved goes to the host: see spill.saved.Share
        self.uncut = False  # a call that failed could not be run in pieces
        self.apart = False  # a call had to be computed twice, whatever else the step does
        self.twice = False  # results had to be computed twice, because of what the script made of them
        self.talks = False  # a call communicates with other ranks
        self.silent = False  # a backward pass through the module has been seen not to communicate with other ranks
        self.bends = False  # the backward pass of a step that calls it may not be linear: see graph.may_bend


class Evaluation(Limits):
    """What is known about a module's calls without gradients."""

    def __init__(self) -> None:
        super().__init__()
        # Places, among the results, of numbers whose weights are not known: calls are run in pieces without them.
        self.unweighed: set[int] = set()
        self.draws = False  # pieces draw random numbers of their own, since nothing else has helped
        self.calls = 0  # that have succeeded
        # What those modules hold whose attributes no call has changed; None until a call has succeeded.
        self.still: Optional[Snapshot] = None
        self.filled = False  # see fills
        # Modules whose attributes have changed, in a call or between two.
        self.moving: list[weakref.ref[torch.nn.Module]] = []
        self.deep = False  # calls change something inside the objects in their attributes, or something around
        self.hooks = Hooks()
        self.norms: Optional[list[weakref.ref[torch.nn.Module]]] = None  # layers with running statistics
        # Buffers that calls in training mode have changed; None until one has succeeded.
        self.changing: Optional[list[torch.Tensor]] = None
        self.spare: list[tuple[torch.Tensor, torch.Tensor]] = []  # buffers, and memory for their values


class RecordedModule(Limits):
    """A module whose outermost calls are recorded, or one that is not trained, whose calls without gradients are
    watched. This object is stored in the module's ``_compiled_call_impl``, which pickles and deep copies leave out. It
    refers to the module and to its submodules weakly, so that their memory is free as soon as the script drops them."""

    def __init__(self, recorder: Any, module: torch.nn.Module, trained: bool = True) -> None:
        super().__init__()
        self.untried = True
        self.trained = trained  # if not, calls that compute gradients are the script's own business
        self.recorder, self.module = recorder, weakref.ref(module)
        self.inner: Optional[Callable] = module.__dict__.get("_compiled_call_impl")
        self.calls = 0
        self._others = 0  # how often in a row the module has been another one than in the call before
        self._learn(module)
        module.__dict__["_compiled_call_impl"] = self

    def _learn(self, module: torch.nn.Module) -> None:
        """Begins to learn about the module, with the submodules that it has now."""
        self._parts = _parts(module)
        self.evaluation = Evaluation()
        # Whether calls that are given nothing with a gradient compute none, even where gradients are enabled.
        self.closed: Optional[bool] = None
        self.known = Known()  # shapes of arguments with which calls have succeeded
        self._own(module)
        self.buffers = buffers([module])
        self.changing: Optional[list[torch.Tensor]] = None  # buffers that a call may change; None if not known yet
        # Of the submodules whose running statistics are among those buffers.
        self._norms: list[weakref.ref[torch.nn.Module]] = []
        self._unchanged: Optional[list[tuple[dict, str]]] = None  # places of the other buffers; None if not known
        self.kept: list[torch.Tensor] = []  # values of the changing buffers before the newest call
        self._began: list[torch.Tensor] = []  # and before the step's first call, if there have been several
        self._spare: list[torch.Tensor] = []  # memory for such values
        # Values, before the first call, of other buffers, which it may change without raising their versions.
        self._silent: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._tape: Any = lambda: None  # a weak reference to the step's tape
        self.made = 0  # calls that have succeeded in this step
        self.why_not = scripted(module)  # why the module's calls are not recorded; empty if they are
        self.half = False  # a trial has seen half precision in the module
        self.draws: Optional[int] = None  # where trials have seen it draw random numbers: None before the first trial
        self.whole = False  # kept has the values of all changing buffers
        self.number = next(_NUMBERS)  # never reused, unlike an id
        # What those modules hold whose attributes no call has changed; None until a call has succeeded.
        self.still: Optional[Snapshot] = None
        self.filled = False  # see fills
        self._moving: list[weakref.ref[torch.nn.Module]] = []  # see moving
        self.now: Optional[Snapshot] = None  # what the moving modules held before the newest call
        self.found: Any = None  # what the newest call that has succeeded found in attributes: see found.Found
        self._around: Optional[Around] = None  # what the modules name; None until a call is made
        self._values: list = []  # its values before the newest call
        self._kept: Optional[Still] = None  # what still holds, as far as a replay can be given it again
        self.hooks = Hooks()
        self.learns = True  # the newest call has shown, or was to show, what calls change
        self.plain = False  # calls change only attributes that are numbers, strings or other plain values
        self.deep = False  # calls also change something inside the objects in their attributes
        self.frozen: list[torch.Tensor] = []  # parameters to which no call may write
        # Tensors among the attributes, to which no call may write either.
        self.tensors: list[Weak] = []
        self.marks: list[Optional[int]] = []  # versions of frozen and tensors before the newest call
        self.writes = False  # a call has written to one of frozen or tensors
        self.tried = False  # a trial has shown that calls do not write to frozen or tensors
        self.settings, self.figures = Settings(), Settings()  # of a step in pieces: see state_of
        self.trains_in_eval = False  # calls in evaluation mode are those of a training
        self.trainings = 0  # calls in training mode
        # How many optimizer steps, and such calls, there had been at the newest one in evaluation mode with gradients.
        self.evaluated: Optional[tuple[int, int]] = None
        # The script writes to an argument after a call, in the same step; None until a step has shown.
        self.rewritten: Optional[bool] = None
        self.ignored = set[int]()  # trials have seen targets of these numbers count for nothing
        self.divides = False  # a trial has seen a call divide by a number that depends on the rows
        self.unread: set[tuple[int, str]] = set()  # attributes that calls change but do not read, by module

    def around(self) -> list:
        """The plain values outside the module that its methods name, also in containers and objects."""
        return [] if self._around is None else self._around.values()

    @property
    def norms(self) -> list[torch.nn.Module]:
        """The submodules whose running statistics are among the buffers that a call may change."""
        return there(self._norms)

    @property
    def moving(self) -> list[torch.nn.Module]:
        """The modules whose attributes a call has changed."""
        return there(self._moving)

    def _disowned(self, module: Any) -> Callable:
        """What another module calls in whose attributes this entry has come: what would be there without headroom."""
        if module.__dict__.get("_compiled_call_impl") is self:
            del module.__dict__["_compiled_call_impl"]
            if self.inner is not None:
                module.__dict__["_compiled_call_impl"] = self.inner
        return self.inner or module._call_impl

    def unreadable(self, error: Exception) -> None:
        """Notes that the module's calls cannot be recorded, because of an exception in headroom's own code."""
        self.why_not = (
            f"a call of {type(self.module()).__name__} could not be recorded: {type(error).__name__}: {error}"
        ).splitlines()[0][:200]

    def remember(self, half: bool, draws: int) -> None:
        """Notes whether a trial has seen half precision, and where it has seen random numbers
        drawn."""
        self.half, self.draws = self.half or half, max(self.draws or NEVER, draws)

    def __reduce__(self) -> Any:  # a module that pickles its whole __dict__ gets None here
        return type(None), ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        asked = frame.f_locals.get("self") if frame.f_code in CALLS else None
        module = self.module()
        if asked is not None and asked is not module:  # a copy that the script has made with __dict__
            return self._disowned(asked)(*args, **kwargs)
        del frame, asked
        try:
            return self._call(args, kwargs)
        except BaseException as e:
            unframed(e)
            raise

    def _call(self, args: tuple, kwargs: dict) -> Any:
        arrive()
        module, recorder = self.module(), self.recorder
        call = self.inner or module._call_impl  # type: ignore[union-attr]
        thread = recorder.mine()
        if thread.busy or not recorder.here() or recorder.passes(module):
            return call(*args, **kwargs)
        if self.why_not:
            return recorder.unrecorded(self.why_not, call, args, kwargs)
        gradients = torch._C.is_grad_enabled() and (self.trained or not self._lacks_gradients(args, kwargs))
        if gradients and not (self.trained and (module.training or self._may_train())):  # type: ignore[union-attr]
            if is_closed(module) and recorder.claims(self, trains=False):  # type: ignore[arg-type]
                where = WITHIN if self.trained else APART
                return self._within(recorder.evaluate, self, module, call, args, kwargs, True, where=where)
            return self._within(lambda: call(*args, **kwargs)) if self.trained else call(*args, **kwargs)
        if not recorder.idle.now:
            self.follow(module)  # type: ignore[arg-type]
        if not recorder.claims(self, trains=gradients):
            return self._within(lambda: call(*args, **kwargs))
        if not gradients:
            return self._evaluated(call, args, kwargs)
        self.trainings += module.training  # type: ignore[union-attr]
        if thread.tape is None and self._rests(args, kwargs):
            result = self._within(recorder.unwatched, call, args, kwargs)
        else:
            result = recorder.call(self, module, call, args, kwargs)
        recorder.report.phases.forward_ends()
        recorder.spill.look()  # what the script makes of the result may be what does not fit
        return result

    def follow(self, module: torch.nn.Module) -> bool:
        """Forgets what is known of a module to which the script has added a layer since the last call, or from which it
        has taken one: it is another module, with other parameters. One whose calls do that themselves is let be.
        Returns whether it is another one."""
        if _parts(module) == self._parts:
            self._others = 0
            return False
        if self._others < OTHERS:
            self._others += 1
            Limits.__init__(self)
            self._learn(module)
        return True

    def _own(self, module: torch.nn.Module) -> None:
        """Notes the module's parameters, and where they are."""
        self.params: list[torch.Tensor] = [*parameters([module])]  # frozen ones too
        every = submodules([module])
        # Those of TorchScript are no dicts.
        owns = [m._parameters if is_a(m._parameters, dict) else dict(m._parameters.items()) for m in every]
        self._places = [(own, n, p) for own in owns for n, p in own.items() if p is not None]

    def renew(self) -> None:
        """Notes the module's parameters anew if the script has put others in the places of some. Not those that
        ``functional_call`` puts there for a call, if they have been computed."""
        if any(own.get(name) is not p for own, name, p in self._places):
            module: Any = self.module()
            if all(p.is_leaf for p in parameters([module])):
                self._own(module)
                self.frozen, self.closed = [p for p in self.params if not p.requires_grad], None

    def _may_train(self) -> bool:
        """Whether a call in evaluation mode, with gradients, is one of a training: an optimizer has made a step since
        the call before, and nothing else can have been trained in it."""
        if not self.trains_in_eval:
            if self.trainings:  # otherwise it may be trained like this
                self.recorder.report.evaluates()
            before, self.evaluated = self.evaluated, (self.recorder.report.steps, self.trainings)
            self.trains_in_eval = before is not None and before[0] < self.evaluated[0] and before[1] == self.trainings
        return self.trains_in_eval

    def _lacks_gradients(self, args: tuple, kwargs: dict) -> bool:
        """Whether a call, although gradients are enabled, computes none: a frozen teacher that is called without
        ``no_grad``."""
        module = self.module()
        if self.closed is None:
            self.closed = is_frozen(module)  # type: ignore[arg-type]
        return self.closed and not _with_gradients((self.params, args, kwargs))

    def _evaluated(self, call: Callable, args: tuple, kwargs: dict) -> Any:
        result = self._within(self.recorder.evaluate, self, self.module(), call, args, kwargs)
        if torch._C.is_grad_enabled() and self.closed and _with_gradients(result):
            self.closed = False  # it has used something that is trained elsewhere
        return result

    def _rests(self, args: tuple, kwargs: dict) -> bool:
        try:
            with apart():
                return self.recorder.idle.may(self.known, args, kwargs)
        except Exception as e:  # arguments whose shapes cannot be read
            if interrupts(e):
                raise
            return False

    def _within(self, run: Callable, *given: Any, where: int = WITHIN) -> Any:
        """Runs a call that is not recorded: the modules inside it are not to be found, unless it is made ``APART``."""
        thread = self.recorder.mine()
        was, thread.within = thread.within, max(thread.within, where)
        try:
            return run(*given)
        finally:
            thread.within = was

    def before(self, frozen: int, tape: Any = None) -> None:
        """Keeps whatever a call may change, so that it can be put back. ``frozen`` is the number of
        frozen parameters, ``tape`` that of the step; None if a call of this step is made once more."""
        if tape is not None and self._tape() is not tape:
            self._tape, self.made = weakref.ref(tape), 0
            self._spare, self._began = self._began or self._spare, []
        self._keep_buffers()
        module: Any = self.module()
        self._look_around()
        hooked = self.hooks.unknown(module)
        self.learns = self.still is None or bool(hooked)
        if self.still is None:  # no call has succeeded yet
            every = submodules([module])
            self.now = Snapshot(every, deep=True)
            self.tensors = [Weak(t) for m in every for t in tensors(m)]
        else:
            self.still.follow()  # what the script has changed since is not the call's doing
            moving = distinct((*self.moving, *hooked))
            self.now = Snapshot(moving, self.deep or self.learns) if moving else None
        if len(self.frozen) != frozen:
            self.frozen = [p for p in self.params if not p.requires_grad]
        self.marks = self._versions()
        self.versions = [b._version for b in self.buffers]
        self.calls += 1
        self.whole = True

    def _keep_buffers(self) -> None:
        """Keeps the values of the buffers that a call may change: at first, those that it changes without raising
        their versions."""
        if self.changing is None:
            module: Any = self.module()
            self._own(module)
            self._norms = [weakref.ref(m) for m in submodules([module]) if is_a(m, NORMS)]
            counting = {id(b) for m in self.norms for b in m.buffers(recurse=False)}
            self.changing = [b for b in self.buffers if id(b) in counting]
            self.kept, self._unchanged = copies(self.changing), None
            self._silent = silent([b for b in self.buffers if id(b) not in counting])
            return
        self._silent = silent([b for b, _ in self._silent])  # the script may write to them until a call succeeds
        if self.changing:
            if self.made and not self._began:
                spare = self._spare if len(self._spare) == len(self.changing) else copies(self.changing)
                self._began, self.kept, self._spare = self.kept, spare, []
            with torch.no_grad(), hidden():
                torch._foreach_copy_(self.kept, self.changing)

    def fixed(self, values: bool) -> dict[tuple[int, str], tuple[int, int, bytes]]:
        """What tells the buffers apart that no call has changed, by their places: their ids, their versions and, if
        ``values`` are asked for, what is in small ones, since what is written by ``.data`` raises no version."""
        if self._unchanged is None:
            changing = {*map(id, self.changing or ())}
            owns = [m._buffers for m in submodules([self.module()]) if is_a(m._buffers, dict)]
            self._unchanged = [(o, n) for o in owns for n, b in o.items() if b is not None and id(b) not in changing]
        found = {}
        for own, name in self._unchanged:
            b = own.get(name)
            if b is not None:
                small = values and b.layout == torch.strided and not b.is_meta and b.nbytes <= SMALL
                inside = bytes_of(b) if small else b""
                found[id(own), name] = id(b), version_of(b), inside
        return found

    def may_change(self) -> list[torch.Tensor]:
        """The buffers whose values are kept for :meth:`put_back`."""
        return [*(self.changing or ()), *(b for b, _ in self._silent)]

    def changes_buffers(self) -> bool:
        """Whether a call changes any buffers. Each submodule's current mode is taken into account: a layer with running
        statistics, such as BatchNorm, does not change them in evaluation mode."""
        fixed = {id(b) for m in self.norms if not m.training for b in m.buffers(recurse=False)}
        return any(id(b) not in fixed for b in self.changing or ())

    def repeatable(self) -> bool:
        """Whether, judging by the calls that have succeeded, a call may be made again after it has failed half way."""
        return self.still is not None and not (self.writes or self.moving or self.changes_buffers())

    def after(self) -> Optional[Snapshot]:
        """Determines what a successful call has changed. If calls change attributes, but only plain
        values such as numbers and strings, returns what the changed modules held before the call;
        otherwise returns None."""
        self.made += 1
        if self.learns:
            self._settle(self.now)  # type: ignore[arg-type]
            self.writes = self.writes or self._wrote()
        self.hooks.ran()
        if self.still is None:  # see fills
            self.found = Found(Still(Snapshot(())), self.now.unchanged(), self._near())  # type: ignore[union-attr]
        else:
            self.found = self._found([] if self.now is None or not self._moving else self.now.unchanged())
        snapshot = self.now.without_computed() if self.moving and self.plain and self.now is not None else None
        self.now = None  # otherwise a state, and its graph, would be kept longer than the script keeps it
        anew = self._changed_anew()
        anew += [b for b, k in self._silent if not same_values(b, k) and all(b is not a for a in anew)]
        self._silent = []
        for b in anew:
            self.changing.append(b)  # type: ignore[union-attr]
            self._unchanged = None
            with hidden():
                self.kept.append(torch.empty_like(b))
            self.whole = False
        return snapshot

    def finds(self) -> Found:
        """What a call finds in attributes that is about to be made in another way."""
        self._look_around()
        if self.still is None:
            return Found(Still(Snapshot(submodules([self.module()]))), [], self._near())
        self.still.follow()
        return self._found(Snapshot(self.moving).held())

    def _look_around(self) -> None:
        if self._around is None:
            self._around = Around(submodules([self.module()]))
        self._values = self._around.values()

    def _near(self) -> list:
        return self._around.called(self._values) if self._around is not None else []

    def _found(self, moving: Held) -> Found:
        self._kept = self._kept.now(self.still) if self._kept is not None else Still(self.still)  # type: ignore
        return Found(self._kept, moving, self._near())

    def _changed_anew(self) -> list[torch.Tensor]:
        """The buffers that the newest call has changed, although none before it had."""
        if [b._version for b in self.buffers] == self.versions:
            return []
        known = {id(b) for b in self.changing or ()}
        return [b for b, v in zip(self.buffers, self.versions) if b._version != v and id(b) not in known]

    def _versions(self) -> list[Optional[int]]:
        """The versions of the frozen parameters and of the tensors among the attributes. A
        different version means that the tensor has been written to. None stands for a tensor that
        no longer exists, or that has no version."""
        every = [*self.frozen, *(ref() for ref in self.tensors)]
        return [None if t is None or is_inference(t) else t._version for t in every]

    def _wrote(self) -> bool:
        """Whether the newest call has written to a frozen parameter or to a tensor among the attributes."""
        return any(a != b for a, b in zip(self.marks, self._versions()) if a is not None and b is not None)

    def put_back(self, step: bool = False) -> bool:
        """Undoes a failed call's changes to buffers and attributes, or those of all the step's calls to buffers, if
        ``step``. Returns whether all of them could be undone."""
        self.writes = self.writes or self._wrote()
        kept = self._began if step and self.made > 1 else self.kept
        if self.writes or not self.whole or self._changed_anew() or len(kept) != len(self.changing or ()):
            return False
        put_values((*zip(self.changing or (), kept), *self._silent))
        if self.now is not None:
            if self.learns:
                self._takes(self.now.iterators())
            self.now.put_back()
            if self.why_not or next(self.now.changed(), None) is not None:
                return False
        if self.still is None or next(self.still.changed(), None) is None:
            return True
        self._settle(self.still)
        return False

    def _takes(self, iterators: Sequence[str]) -> None:
        """Notes that calls may take something from iterators: trials and other calls would take more of it. The modules
        inside are recorded instead."""
        if iterators:
            module = type(self.module()).__name__
            self.why_not = f"a call to {module} may take the next item of {iterators[0]}, which cannot be put back"

    def _settle(self, snapshot: Snapshot) -> None:
        """Sorts the modules by whether their attributes are still the same as in ``snapshot``: those
        that have changed are added to ``moving``, and ``still`` covers the rest."""
        changes = list(snapshot.changed())
        if not changes and self.still is not None:
            return
        if fills(changes, self):
            return
        self._takes([c.name for c in changes if isinstance(c.inside, Taken)])
        self.deep = self.deep or any(c.inside is not None for c in changes)
        # Inspecting these before every call would take too long.
        self.writes = self.writes or self.deep and snapshot.size() > MANY
        first = self.still is None
        self.plain = (self.plain or first) and all(snapshot.plain(c) or _computed(c) for c in changes)
        moved = distinct((*self.moving, *(c.module() for c in changes)))
        self._moving, known = [*map(weakref.ref, moved)], {*map(id, moved)}
        self.still = Snapshot([m for m in submodules([self.module()]) if id(m) not in known])


def fills(changes: Sequence[Change], known: RecordedModule | Evaluation) -> bool:
    """Whether a first call has changed nothing but what is outside the modules, such as the caches of a library. Those
    that follow need not: the next one is looked at as if it was the first."""
    if known.still is not None or known.filled or not changes:
        return False
    if any(c.inside is None or isinstance(c.inside, Taken) or c.name in ("", *vars(c.module())) for c in changes):
        return False
    known.filled = True
    return True


def scripted(module: torch.nn.Module) -> str:
    """Why the calls of a module that is TorchScript, or has parts that are, are not recorded: they change what Python
    does not see. Empty if they are recorded."""
    inside: set[int] = set()
    for m in submodules([module]):
        if id(m) in inside or not is_a(m, torch.jit.ScriptModule):
            continue
        inside.update(map(id, submodules([m])))  # its code has theirs
        if _STATE.search(str(getattr(m, "inlined_graph", ""))):
            return f"a call of {type(module).__name__} may change attributes in TorchScript, which cannot be put back"
    return ""


def _computed(change: Change) -> bool:
    module = change.module()
    return change.inside is None and not change.keys and module is not None and change.name in computed(module)


def _parts(module: torch.nn.Module) -> list[int]:
    """The ids of a module and of its submodules, in an order of their own: this takes a fifth of the time that
    :func:`submodules` takes."""
    every: list[Any] = [module]
    for m in every:
        if m is not None and m._modules and len(every) < MANY_PARTS:
            every += m._modules.values()
    return [*map(id, every)]


def there(refs: list[weakref.ref[torch.nn.Module]]) -> list[torch.nn.Module]:
    """The modules that still exist."""
    return [m for m in (ref() for ref in refs) if m is not None]


def silent(buffers: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The buffers, with copies in host memory. None if they are large, as tables are that nothing changes."""
    if any(type(b) is not torch.Tensor or b.layout != torch.strided or b.is_meta for b in buffers):
        return []
    if sum(b.nbytes for b in buffers) > SILENT:
        return []
    with hidden():
        return [(b, b.detach().to("cpu", copy=True)) for b in buffers]


def bytes_of(buffer: torch.Tensor) -> bytes:
    """What is in a small buffer."""
    with hidden():
        return bytes(buffer.detach().cpu().reshape(-1).view(torch.uint8).tolist())


def same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors, which may be on different devices, are the same to the bit."""
    with hidden():
        return torch.equal(*(t.detach().cpu().reshape(-1).view(torch.uint8) for t in (one, other)))


def copies(buffers: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of the buffers. They are in host memory if a GPU has no room for them, since making
    copies must not make the script fail."""
    try:
        return [unseen_copy(b) for b in buffers]
    except Exception as e:
        if not is_out_of_memory(e):
            raise
    return [b.detach().to("cpu", copy=True) for b in buffers]


def record_of(module: Any) -> Optional[RecordedModule]:
    """The :class:`RecordedModule` of a module that is recorded; None for any other."""
    record = module.__dict__.get("_compiled_call_impl")
    return record if isinstance(record, RecordedModule) else None


def draws_of(module: Any) -> int:
    """Where trials have seen a module draw random numbers, as in :class:`headroom_train.sandbox.sandbox.NoRandomness`;
    ``ANYWHERE`` if there has been no trial."""
    record = record_of(module)
    return ANYWHERE if record is None or record.draws is None else record.draws


def number_of(module: Any) -> int:
    """A number that no other recorded module in this process has; 0 for None, and for a module that
    is not recorded."""
    record = None if module is None else record_of(module)
    return 0 if record is None else record.number


_NO_MEMBERS: dict = {}  # a module of TorchScript has some of its members elsewhere
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NUMERIC = {int, float}
_PLAIN = {bool, str, type(None), FunctionType, MethodType, *_NUMERIC}
_NO_OBJECTS = {dict, OrderedDict, list, tuple, set, torch.Tensor, torch.Size, torch.dtype, RecordedModule}


def state_of(module: torch.nn.Module) -> tuple[int, int, tuple]:
    """Two hashes that stay the same while a module is unchanged, and numbers. The first hash covers its submodules,
    parameters and hooks, and the flags and strings among its attributes, and the settings in objects and containers
    there; of the numbers, those that do not change by themselves. The second
    hash also covers the numbers among its attributes, and the plain values of the globals that its
    methods name. The numbers are those of its attributes and of the objects among them: as many, and in the same order,
    as long as the first hash is the same."""
    record = record_of(module)
    unread = record.unread if record is not None else ()
    names: list = hooks_of_all()
    own: list = []  # numbers among the attributes
    held: list = []
    numbers: list = []
    objects: dict[int, Any] = {}
    for m in submodules([module]):
        there = m.__dict__
        names += (value is None for value in there.get("_buffers", _NO_MEMBERS).values())
        held += settings(m, unread)
        names += (id(m), *map(id, there.get("_parameters", _NO_MEMBERS).values()))
        names += (h for hooks in _HOOKS for h in there.get(hooks, _NO_MEMBERS))
        for name, value in attributes(m):
            kind = type(value)
            if kind not in _PLAIN:
                objects[id(value)] = value
            elif (id(m), name) not in unread:
                (own if kind in _NUMERIC else names).append(value)
        numbers += plain_reached(m)
    numbers += own
    inside: list = []
    for value in objects.values():
        if type(value) not in _NO_OBJECTS:
            inside += [v for v in getattr(value, "__dict__", {}).values() if type(v) in _NUMERIC]
    names += [len(own), *(v == 0 for v in inside)]
    if record is not None:
        held += record.around()
        names += (record.settings.settled(held), record.figures.settled(own))
    first = hash(tuple(names))
    return first, hash((first, *numbers)), (*own, *inside)
