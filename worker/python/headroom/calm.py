"""Running modules again without consequences: the same random numbers, the same buffers."""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any, Iterable, Iterator

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .failure import Writes
from .held import Held, submodules
from .tape import random_state, set_random_state

_FILLS = {"bernoulli_", "normal_", "uniform_", "exponential_", "cauchy_", "log_normal_", "geometric_", "random_"}
HALF = {torch.float16, torch.bfloat16}
_DRAWS = {"rand", "randn", "rand_like", "randn_like", "bernoulli", "normal", "normal_functional", "randint", "randint_like", "multinomial", "poisson", "exponential"}


class Calm(TorchDispatchMode):
    """Takes randomness out of the code that runs inside, so that two runs can be compared: dropout
    keeps everything, and every other random number is a constant. Records whether anything is computed in
    half precision, as under an autocast inside a module, and which random numbers would be drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.half = False
        self.draws: list[tuple] = []  # random operations that would have drawn: names and numbers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _named(func)
        if not name:
            return self._seen(func(*args, **(kwargs or {})))
        kwargs = dict(kwargs or {})
        if "attention" not in name:
            self.draws.append((name, *(a for a in (*args, *kwargs.values()) if isinstance(a, (int, float)))))
        if name in _FILLS:
            return args[0].fill_(1 if name == "bernoulli_" else 0.5 if args[0].is_floating_point() else 0)
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if "attention" in name:
            for i, wanted in enumerate(func._schema.arguments):
                if wanted.name == "dropout_p":
                    share = args[i] if i < len(args) else kwargs.get("dropout_p", 0.0)
                    if share:
                        self.draws.append((name, share))
                    if i < len(args):
                        args = (*args[:i], 0.0, *args[i + 1 :])
                    elif "dropout_p" in kwargs:
                        kwargs["dropout_p"] = 0.0
        result = self._seen(func(*args, **kwargs))
        if name in _DRAWS and isinstance(result, torch.Tensor):
            result.fill_(0.5 if result.is_floating_point() else 0)
        return result

    def _seen(self, result: Any) -> Any:
        self.half = self.half or isinstance(result, torch.Tensor) and result.dtype in HALF
        return result


@lru_cache(maxsize=None)
def _named(func: Any) -> str:
    """The name of an operation that may draw random numbers, "" for any other."""
    name: str = func._schema.name.split("::")[-1]
    return name if name in _FILLS or name in _DRAWS or name == "native_dropout" or "attention" in name else ""


class Sealed(TorchDispatchMode):
    """Raises :class:`Writes` before anything is written to a tensor that existed before, such as an argument,
    a frozen parameter, or a tensor that a module keeps for itself, unless it is one of ``free``.
    Writes made by a ``backward`` can be exempted."""

    def __init__(self, name: str, free: Iterable[torch.Tensor], backward: bool = True) -> None:
        super().__init__()
        self._name, self._backward = name, backward
        self._free = {0, *map(_memory, free)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written, fresh = _effects(func)
        for i, name in written if self._backward or torch._C._current_graph_task_id() == -1 else ():
            given = args[i] if i < len(args) else kwargs.get(name)
            if not self._free.issuperset(map(_memory, tree_leaves(given))):
                raise Writes(f"{self._name} writes in place to a tensor that existed before the call")
        result = func(*args, **kwargs)
        if fresh:
            self._free.update(map(_memory, (result,) if isinstance(result, torch.Tensor) else tree_leaves(result)))
        return result


def _memory(value: Any) -> int:
    """A number that is the same for all tensors that share memory; 0 for a value without memory of its own."""
    try:
        return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else 0
    except NotImplementedError:  # a sparse tensor
        return 0


@lru_cache(maxsize=None)
def _effects(func: Any) -> tuple[list[tuple[int, str]], bool]:
    """Positions and names of the arguments to which an operation writes, and whether its results have
    memory of their own."""
    schema = func._schema
    written = [(i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write]
    return written, all(r.alias_info is None for r in schema.returns) or schema.name == "aten::lift_fresh"  # made by torch.tensor


def eager() -> Any:
    """A context in which compiled code runs as it was written, so that a few rows cost
    no compilation."""
    stance = getattr(torch.compiler, "set_stance", None)
    return stance("force_eager") if stance is not None and "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def ready_attention() -> Iterator[None]:
    """A context without cuDNN's attention, which compiles a kernel for every new number of
    rows, where another implementation can be used."""
    backends = torch.backends.cuda
    off = getattr(backends, "cudnn_sdp_enabled", bool)() and (backends.flash_sdp_enabled() or backends.mem_efficient_sdp_enabled() or backends.math_sdp_enabled())
    if off:
        backends.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        if off:
            backends.enable_cudnn_sdp(True)


@contextmanager
def unwarned() -> Iterator[None]:
    """A context in which no warning is shown: a trial with a few rows of one tensor and all rows of
    another may cause warnings about code that the user never wrote. The filters stay unchanged, since
    changing them would show every earlier warning again."""
    shown = warnings.showwarning
    warnings.showwarning = lambda *_args, **_kwargs: None
    try:
        yield
    finally:
        warnings.showwarning = shown


@contextmanager
def undone(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """A context after which generators, buffers and everything attached to the modules are as
    before, and parameters have the same memory as before."""
    state = random_state()
    found = submodules(modules)
    data = [(p, p.data) for m in found for p in m.parameters(recurse=False) if type(p) is torch.nn.Parameter]
    buffers = list({id(b): b for m in found for b in m.buffers(recurse=False)}.values())
    kept = [b.detach().clone() for b in buffers]
    versions = [b._version for b in buffers]
    held = Held(found, deep=True)
    try:
        yield
    finally:
        set_random_state(state)
        with torch.no_grad():
            for buffer, value, version in zip(buffers, kept, versions):
                # Batch normalisation writes its statistics without raising the version.
                if buffer._version != version or not torch.equal(buffer, value):
                    buffer.data.copy_(value)  # an earlier call's graph may have saved these values: keep the version
        held.put_back()
        for p, had in data:
            if p.data_ptr() != had.data_ptr():
                p.data = had


@contextmanager
def rehearsal(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """A context for running modules on a few rows: nothing of the run remains, and work that is specific
    to a number of rows, such as compiling, is avoided."""
    with undone(modules), eager(), ready_attention(), unwarned():
        yield
