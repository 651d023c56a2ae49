"""PyTorch's own functions, where a script has put functions of its own in their places.

A script may replace a function of PyTorch by one that calls it: to count, to log, to scale. That
must work as it does without headroom, which takes two things. A replacement that the script calls
on a recorded tensor runs once: :func:`asked` finds the function that PyTorch was asked for, which is
the one to record. And headroom's own work calls no replacement: it uses the functions below while
nothing has failed, and runs :func:`set_aside` afterwards.
"""

from __future__ import annotations

import gc
import os
import types
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType, FunctionType
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch.utils._python_dispatch import _disable_current_modes

_BASE = torch._C.TensorBase  # the methods of Tensor that are written in C++; a script cannot replace them here
_METHODS = vars(_BASE)
numel: Callable[[torch.Tensor], int] = _BASE.numel
element_size: Callable[[torch.Tensor], int] = _BASE.element_size
dim: Callable[[torch.Tensor], int] = _BASE.dim
detach: Callable[[torch.Tensor], torch.Tensor] = _BASE.detach
clone: Callable[[torch.Tensor], torch.Tensor] = _BASE.clone
is_inference: Callable[[torch.Tensor], bool] = _BASE.is_inference
data_ptr: Callable[[torch.Tensor], int] = _BASE.data_ptr
untyped_storage: Callable[[torch.Tensor], torch.UntypedStorage] = _BASE.untyped_storage


class _Spot(NamedTuple):
    """Where PyTorch looks a function of its own up when it hands that to a tensor's class."""

    owner: Any
    name: str
    genuine: Any

    def has(self, func: Any) -> bool:
        return getattr(self.owner, self.name, None) is func


_HANDLE = torch.overrides.handle_torch_function.__code__
_OWNERS = ("_VariableFunctions", "_nn", "_fft", "_linalg", "_special", "_nested", "_sparse")
# Functions written in C++, beside the methods.
_BUILTINS: dict[Any, _Spot] = {
    f: _Spot(owner, f.__name__, f)
    for owner in (vars(torch._C).get(n) for n in _OWNERS)
    if owner is not None
    for f in (getattr(owner, n) for n in dir(owner))
    if isinstance(f, types.BuiltinFunctionType)
}
_SPOTS = [*(_Spot(torch.Tensor, n, f) for n, f in _METHODS.items()), *_BUILTINS.values()]
_MODULES = (torch.nn.functional, torch.functional, torch.nn.init, torch.autograd, torch._tensor, torch._tensor_str)
_OF_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_C_METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
_ACCESS = {"__get__", "__set__", "__delete__"}


def apart() -> Any:
    """A context for headroom's own look at tensors: neither a class of the script's with ``__torch_function__`` nor a
    mode of the script's sees it. Operations are still seen by modes that intercept them, see :func:`hidden`."""
    return torch._C.DisableTorchFunction()


def hidden() -> Any:
    """A context for operations by which headroom keeps something while nothing has failed: no mode of the script's that
    intercepts operations sees them."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


def unseen_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor's values. No mode of the script's sees that it is made."""
    with hidden():
        return clone(detach(tensor))


def version_of(tensor: torch.Tensor) -> int:
    """The version of a tensor, which shows whether it has been written to; -1 if it has none."""
    return -1 if is_inference(tensor) else tensor._version


def put_values(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Gives tensors the values that were kept of them. Their versions stay the same: the graph of an earlier call may
    have saved them."""
    for tensor, value in pairs:
        with set_aside():
            tensor.data.copy_(value)


def _functions(owner: Any) -> dict[str, Callable]:
    """PyTorch's own functions in Python, by the names under which they stand in a module or class."""
    return {
        n: f
        for n, f in vars(owner).items()
        if isinstance(f, FunctionType) and f.__code__.co_filename.startswith(_OF_TORCH)
    }


_known = {id(vars(m)): _functions(m) for m in _MODULES}  # by the module's namespace
_known_methods = _functions(torch.Tensor)
_codes: dict[Any, Callable] = {}  # functions that were replaced before the worker was started, by their code
_spots: dict[int, _Spot] = {}  # where replacements stand, by their ids


def asked(func: Any, frame: FrameType) -> Any:
    """The function that was called on a tensor whose class has ``__torch_function__``. ``func`` is what
    PyTorch passes to that method, and ``frame`` the frame that called it.

    PyTorch looks ``func`` up by name at that moment, so it is the script's replacement if there is
    one, although the call has come from within the function that was replaced."""
    kind = type(func)
    if kind in _C_METHODS:
        if getattr(torch.Tensor, func.__name__, None) is func:
            return func
    elif kind is types.BuiltinFunctionType:
        spot = _BUILTINS.get(func)
        if spot is None or spot.has(func):
            return func
    elif kind is types.MethodWrapperType and func.__name__ in _ACCESS:
        prop = func.__self__
        if getattr(torch.Tensor, getattr(prop, "__name__", ""), None) is prop:
            return func
        found = _replaced(prop, frame)
        return func if found is None else getattr(found, func.__name__)
    if frame.f_code is not _HANDLE:
        return _replaced(func, frame) or func
    body: Any = frame.f_back
    if kind is FunctionType and func.__code__ is body.f_code:
        return func
    return _meant(func, body) or func


def _meant(func: Any, frame: FrameType) -> Optional[Callable]:
    """The function of PyTorch's that ``frame``, which runs another one, has looked up by a name under which ``func``
    now stands. A public function may leave the look-up to a private one, as ``torch.unique`` does."""
    space = _known.get(id(frame.f_globals), {})
    for name in frame.f_code.co_names:
        if frame.f_globals.get(name) is func and name in space:
            return space[name]
        if getattr(torch.Tensor, name, None) is func and name in _known_methods:
            return _known_methods[name]
    return _of_code(frame)


def _of_code(frame: FrameType) -> Optional[Callable]:
    """The function that a frame runs; None if that cannot be told."""
    code = frame.f_code
    # The script had replaced it before the worker was started. A method that calls super() has its class in a cell.
    if code not in _codes and code.co_freevars in ((), ("__class__",)):
        found = [f for f in gc.get_referrers(code) if isinstance(f, FunctionType) and f.__code__ is code]
        cells = tuple(types.CellType(frame.f_locals[name]) for name in code.co_freevars)
        # Objects may be hidden from the collector.
        _codes[code] = found[0] if found else FunctionType(code, frame.f_globals, closure=cells)
    return _codes.get(code)


def _replaced(func: Any, frame: FrameType) -> Any:
    """The function or property written in C++ in whose place ``func`` stands; None if there is none."""
    known = _spots.get(id(func))
    if known is not None and known.has(func):
        return known.genuine
    found: dict[str, _Spot] = {}
    for spot in _SPOTS:
        if spot.genuine is not func and spot.has(func):
            found.setdefault(spot.name, spot)
    if len(found) > 1:
        return _likely([*found.values()], func, frame).genuine
    for spot in found.values():
        _spots[id(func)] = spot
        return spot.genuine
    return None


def _likely(spots: list[_Spot], func: Any, frame: FrameType) -> _Spot:
    """The one of several places of a replacement that is meant: the code that has called it tells, or its name."""
    code, known = frame.f_code, {**frame.f_globals, **frame.f_locals}
    called = {id(known.get(n)) for n in (*code.co_freevars, *code.co_varnames, *code.co_names)}
    named = getattr(func, "__name__", "")
    return [*(s for s in spots if id(s.genuine) in called), *(s for s in spots if s.name == named), *spots][0]


def grad(outputs: Any, inputs: Any, given: Any = None, retain: bool = False) -> Any:
    """Gradients of ``outputs`` with respect to ``inputs``, as :func:`torch.autograd.grad` returns them; None for an
    input that does not matter. The graph can be used again if ``retain`` is true. Code of the script may run meanwhile:
    custom functions, and what a checkpoint repeats."""
    with in_place():
        return _grad(outputs, inputs, given, retain_graph=retain, allow_unused=True)


def backward(output: torch.Tensor, retain: bool = False) -> None:
    """Adds the gradients of ``output`` to ``.grad`` of all leaves. The graph can be used again if ``retain`` is true.
    Code of the script may run meanwhile, as in :func:`grad`."""
    with in_place():
        _backward(output, retain_graph=retain)


def is_backward(func: Any) -> bool:
    """Whether a function is PyTorch's ``Tensor.backward`` or ``torch.autograd.grad``."""
    code = getattr(func, "__code__", None)
    return code is not None and code.co_filename in _BACKWARD


_grad = torch.autograd.grad
_backward = torch.autograd.backward
_BACKWARD = {torch._tensor.__file__, torch.autograd.__file__}


class _Originals:
    """What stood under each name of a module or class when the worker was started. ``inherited`` has the names under
    which a replacement hides what the class inherits."""

    def __init__(self, owner: Any, kinds: Any, inherited: Collection[str] = ()) -> None:
        self.owner = owner
        self._values = {n: f for n, f in vars(owner).items() if isinstance(f, kinds)}
        for n, f in self._values.items():  # the worker may have been started after the script has replaced it
            if isinstance(f, FunctionType) and not f.__code__.co_filename.startswith(_OF_TORCH):
                self._values[n] = (
                    _METHODS.get(n) if owner is torch.Tensor else getattr(torch._C._VariableFunctions, n, f)
                )
        self._hidden = set(inherited).difference(vars(owner))
        # All names and what stood under each, by identity, when nothing was replaced: looking at two thousand names
        # takes ten times as long as comparing this.
        self._clean: Optional[tuple[list[str], list[int]]] = None
        self._there: list[Any] = []  # the functions among these: no other may get the identity of one

    def replaced(self) -> list[tuple[str, Any]]:
        """The names under which something of the script's stands now, and what that is."""
        there = vars(self.owner)
        now = [*there], [*map(id, there.values())]
        if now == self._clean:
            return []
        found = [
            (n, f)
            for n, f in there.items()
            if n in self._hidden or n in self._values and not _only_wraps(f, self._values[n])
        ]
        if not found:
            self._clean, self._there = now, [*map(there.get, self._values)]
        return found

    def put(self, name: str) -> Any:
        """Puts the original back, and returns what now stands there."""
        if name in self._hidden:
            delattr(self.owner, name)
        else:
            setattr(self.owner, name, self._values[name])
        return getattr(self.owner, name)


def _only_wraps(f: Any, original: Any) -> bool:
    """Whether a function is the original, or what PyTorch itself has put around it, as it does with some."""
    while f is not original:
        code = getattr(f, "__code__", None)
        if code is None or not code.co_filename.startswith(_OF_TORCH) or not hasattr(f, "__wrapped__"):
            return False
        f = f.__wrapped__
    return True


_originals: list[_Originals] = []
# While replacements are set aside: where each stood, its name, the replacement, the original.
_aside: Optional[list[tuple[Any, str, Any, Any]]] = None


def remember() -> None:
    """Called once the worker has made its own changes to torch: whatever is replaced from now on is replaced by the
    script."""
    _originals[:] = [
        _Originals(torch.Tensor, (FunctionType, *_C_METHODS), _METHODS),
        _Originals(torch, (types.BuiltinFunctionType, FunctionType)),
        _Originals(torch.autograd, FunctionType),
    ]


def forget() -> None:
    """Called when the worker has been taken out."""
    _originals.clear()


def replaced() -> bool:
    """Whether the script has replaced any function."""
    return any(known.replaced() for known in _originals)


@contextmanager
def set_aside() -> Iterator[None]:
    """A context for headroom's own work after a failure: PyTorch's functions are in their places, for all threads. Not
    for code of the script, which :func:`in_place` surrounds."""
    global _aside
    if _aside is not None:
        yield
        return
    _aside = _take()
    try:
        yield
    finally:
        put, _aside = _aside, None
        _put(put)


@contextmanager
def in_place() -> Iterator[None]:
    """A context for code of the script within :func:`set_aside`: the script's replacements are in their places."""
    global _aside
    if not _aside:  # none is set aside
        yield
        return
    put, _aside = _aside, None
    _put(put)
    try:
        yield
    finally:
        _aside = _take()


def _take() -> list[tuple[Any, str, Any, Any]]:
    return [(known.owner, name, value, known.put(name)) for known in _originals for name, value in known.replaced()]


def _put(taken: list[tuple[Any, str, Any, Any]]) -> None:
    for owner, name, value, original in taken:
        if getattr(owner, name, None) is original:  # otherwise the script has put something else there
            setattr(owner, name, value)
