"""Runs modules again without side effects: with the same random numbers and the same buffers."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from types import FrameType
from typing import Any, Callable, NoReturn, Optional

import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..failure import Elsewhere, Failed, Writes
from ..hooks.changes import changed
from ..hooks.genuine import asked, set_aside
from ..tape.functions import DRAWS, FILLS
from ..tape.graph import REENTRANT, leaves, sequence, walk
from ..tape.recorded_module import ANYWHERE, CALLED, NEVER
from ..tape.snapshot import Snapshot, submodules
from ..tape.tape import OwnMode, random_state, set_random_state

HALF = {torch.float16, torch.bfloat16}
MOST = 10000  # draws in one trial
STANCES = hasattr(torch.compiler, "set_stance")  # whether compiled code can be run as it was written: since PyTorch 2.6


class Watcher:
    """Is told of every operation that runs inside a :class:`Watched`."""

    def given(self, rows: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> None:
        """Called in a trial before a module's call, with the arguments that have rows: those that were cut for this
        call alone, and ``others``, which the trial keeps."""

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        """Called before an operation, with its arguments."""

    def after(self, func: Any, args: Any, kwargs: Any, result: Any) -> Any:
        """Called after the operation, with what it returned. What it returns, unless that is None, takes the place of
        the operation's result."""

    def returned(self, tensors: Sequence[torch.Tensor]) -> None:
        """Called in a trial with the tensors that a module's call returned, and that still have their graphs."""


class Watched(TorchDispatchMode):
    """A context in which watchers see every operation. All watchers share one mode, since each mode
    adds more time to an operation than a small kernel takes."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        super().__init__()
        self._watchers = watchers

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        with set_aside():
            for watcher in self._watchers:
                watcher.before(func, args, kwargs)
            result = self.run(func, args, kwargs)
            for watcher in self._watchers:
                other = watcher.after(func, args, kwargs, result)
                result = result if other is None else other
        return result

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operation, and returns its result."""
        return func(*args, **kwargs)


class NoRandomness:
    """A context that takes randomness out of the code that runs inside, so that two runs can be compared: dropout
    keeps everything, and every other random number is a constant. Records where random numbers would be drawn,
    and whether anything is computed in half precision, as under an autocast inside a module.

    ``where`` says where random numbers are known to be drawn. If it is below ``ANYWHERE``, half precision is
    not recorded and ``watchers`` see nothing, but code takes about as long as without the context. Otherwise a
    torch mode intercepts every operation. For each operation, and again for the computation of its gradients,
    this costs more time than a small kernel takes.

    If ``apart`` is true, draws in functions called from Python are told apart from all other draws. This is
    only for code that runs no backward pass. Before PyTorch 2.6 ``apart`` does nothing: in these versions
    trials also compile the modules that the script wants to have compiled, and compiling fails while a torch
    function mode is active."""

    def __init__(
        self, where: int = ANYWHERE, watchers: Sequence[Watcher] = (), apart: bool = False, level: float = 0.5
    ) -> None:
        """``level``, between 0 and 1, says which of the numbers that may be drawn the constants are: code may do
        something for some of them only."""
        self.half, self.level = False, level
        # For each operation that would have drawn random numbers: its name and numbers among its arguments.
        self.draws: list[tuple] = []
        self.where = NEVER  # where random numbers would have been drawn
        self._modes: list[Any] = [_Called(self)] if where == CALLED or apart and where and STANCES else []
        self._modes += [_Anywhere(self, watchers)] if where == ANYWHERE else []

    def __enter__(self) -> NoRandomness:
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*exception)

    def drawn(self, where: int, *draw: Any) -> None:
        """Records that random numbers would be drawn at ``where``. ``draw`` is the operation's
        name, followed by numbers among its arguments."""
        self.draws.append(draw)
        self.where = max(self.where, where)
        if len(self.draws) > MOST:  # a loop may draw until a number fits, which the same number never does
            raise Failed("a call draws random numbers until some fit")


class _Called(OwnMode):
    """Takes randomness out of dropout and attention, the functions in which most models draw random numbers. It
    sees only calls from Python code: neither calls made inside other functions of PyTorch nor calls that a
    checkpoint repeats during a backward pass."""

    def __init__(self, trial: NoRandomness) -> None:
        super().__init__()
        self._trial = trial

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = _CALLED.get(asked(func, sys._getframe(1)))
        if kind is None:
            return func(*args, **(kwargs or {}))
        return kind(self._trial, func, *args, **(kwargs or {}))


def _dropout(
    trial: NoRandomness, func: Any, input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Any:
    if not training or not 0 < p < 1:
        return func(input, p, training, inplace)
    trial.drawn(CALLED, "dropout", p)
    return input.mul_(1) if inplace else input.clone()


def _attention(
    trial: NoRandomness,
    func: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if dropout_p:
        trial.drawn(CALLED, "attention", dropout_p)
    return func(query, key, value, attn_mask, 0.0, *args, **kwargs)


_CALLED: dict[Any, Callable[..., Any]] = {
    functional.dropout: _dropout,
    functional.scaled_dot_product_attention: _attention,
}


class _Anywhere(Watched):
    """Takes randomness out of every operation."""

    def __init__(self, trial: NoRandomness, watchers: Sequence[Watcher]) -> None:
        super().__init__(watchers)
        self._trial = trial

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = _named(func)
        if not name:
            return self._seen(func(*args, **kwargs))
        if kwargs.get("generator") not in (None, torch.default_generator, *torch.cuda.default_generators):
            raise Writes("a call draws random numbers from a generator of the script's own")
        if "attention" in name:
            return self._attention(func, name, args, kwargs)
        self._trial.drawn(ANYWHERE, name, *(a for a in (*args, *kwargs.values()) if isinstance(a, (int, float))))
        level = self._trial.level
        if name == "bernoulli_":
            return args[0].fill_(level >= 0.5)
        if name in FILLS:
            return args[0].fill_(_constant(args[0], level, func, args, kwargs))
        if name == "native_dropout":
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        result = self._seen(func(*args, **kwargs))
        if name == "multinomial":
            several = args[2] if len(args) > 2 else kwargs.get("replacement", False)
            return _likeliest(args[0], result, bool(several))
        if name == "bernoulli":
            result.fill_(level >= 0.5)
            certain = args[0] if func._overloadname == "default" else result  # its probabilities, if it is given some
            return result.copy_(torch.where((certain == 0) | (certain == 1), certain, result))
        if isinstance(result, torch.Tensor):
            result.fill_(_constant(result, level, func, args, kwargs))
        return result

    def _attention(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        at = next((i for i, a in enumerate(func._schema.arguments) if a.name == "dropout_p"), len(args))
        share = args[at] if at < len(args) else kwargs.get("dropout_p", 0.0)
        if share:
            self._trial.drawn(ANYWHERE, name, share)
            if at < len(args):
                args = (*args[:at], 0.0, *args[at + 1 :])
            else:
                kwargs = {**kwargs, "dropout_p": 0.0}
        return self._seen(func(*args, **kwargs))

    def _seen(self, result: Any) -> Any:
        self._trial.half = self._trial.half or isinstance(result, torch.Tensor) and result.dtype in HALF
        return result


def _likeliest(weights: torch.Tensor, drawn: torch.Tensor, again: bool) -> torch.Tensor:
    """Puts what is drawn most often in the place of what was drawn; one and the same if it may be drawn ``again``. What
    has no weight is never drawn: a script may rule out what it has drawn before, and insist on that."""
    return drawn.copy_(weights.topk(1 if again else drawn.shape[-1], -1).indices)


def _constant(tensor: torch.Tensor, level: float, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> float:
    """What takes the place of the random numbers that an operation draws."""
    named = func._schema.arguments
    given = {a.name: a.default_value for a in named} | dict(zip((a.name for a in named), args)) | kwargs
    low, high = given.get("low", given.get("from")) or 0, given.get("high", given.get("to"))
    if high is None:
        return level if tensor.is_floating_point() else 0
    drawn: float = low + level * (high - low)
    return int(drawn) if isinstance(high, int) else drawn


@cache
def _named(func: Any) -> str:
    """The name of an operation that may draw random numbers; empty for any other operation."""
    name: str = func._schema.name.split("::")[-1]
    return name if name in FILLS or name in DRAWS or name == "native_dropout" or "attention" in name else ""


class Sealed(Watcher):
    """Raises :class:`Writes` before anything is written to a tensor that existed before the context was entered,
    such as an argument, a frozen parameter, or a tensor that a module keeps for itself. Tensors in ``free`` may
    be written to. What a backward pass writes is checked only if ``backward`` is true.

    If ``known`` is given, also finds the use of any other trained tensor that existed before: :meth:`returned` in the
    graph of what the code returns, and :meth:`before` where a reentrant checkpoint hides it from that graph."""

    def __init__(
        self,
        name: str,
        free: Iterable[torch.Tensor],
        backward: bool = True,
        known: Optional[Sequence[torch.Tensor]] = None,
    ) -> None:
        self._name, self._backward = name, backward
        self._free = {0, *map(memory_of, free)}
        self._known = None if known is None else {*map(memory_of, known)}
        # Where the graphs of arguments end: what is behind them is not the code's.
        self._borders, self._begin = {t.grad_fn for t in known or ()}, sequence()

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        if self._known is not None and not torch._C.is_grad_enabled() and func._schema.name != "aten::detach":
            given = [
                t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf
            ]
            if any(map(self._strange, given)) and _checkpointed():
                self._elsewhere()
        for i, name in _effects(func)[0] if self._backward or torch._C._current_graph_task_id() == -1 else ():
            given = args[i] if i < len(args) else kwargs.get(name)
            if not self._free.issuperset(map(memory_of, tree_leaves(given))):
                raise Writes(f"{self._name} writes in place to a tensor that existed before the call")

    def after(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        if _effects(func)[1]:
            self._free.update(map(memory_of, (result,) if isinstance(result, torch.Tensor) else tree_leaves(result)))

    def returned(self, tensors: Sequence[torch.Tensor]) -> None:
        if self._known is None:
            return
        made = [*walk([t.grad_fn for t in tensors], enter=lambda n: n._sequence_nr() >= self._begin)]
        kept = [n for n in made if n._sequence_nr() < self._begin and n not in self._borders]
        if any(map(self._strange, leaves([*made, *walk(kept)]))):
            self._elsewhere()

    def _strange(self, tensor: torch.Tensor) -> bool:
        return memory_of(tensor) not in self._free and memory_of(tensor) not in self._known  # type: ignore[operator]

    def _elsewhere(self) -> NoReturn:
        raise Elsewhere(f"{self._name} uses a trained tensor that is neither a parameter of the module nor an argument")


def _checkpointed() -> bool:
    """Whether this is called in the first pass of a reentrant checkpoint, in which gradients are off."""
    frame: Optional[FrameType] = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "forward" and type(frame.f_locals.get("ctx")).__name__ == REENTRANT:
            return True
        frame = frame.f_back
    return False


def memory_of(value: Any) -> int:
    """A number that is the same for all tensors that share memory; 0 for a value without memory of its own."""
    try:
        return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else 0
    except NotImplementedError:  # a sparse tensor
        return 0


@cache
def _effects(func: Any) -> tuple[list[tuple[int, str]], bool]:
    """Positions and names of the arguments to which an operation writes, and whether its results have
    memory of their own."""
    schema = func._schema
    written = [
        (i, a.name) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write
    ]
    # Torch.tensor calls this.
    return written, all(r.alias_info is None for r in schema.returns) or schema.name == "aten::lift_fresh"


def eager() -> Any:
    """A context in which compiled code runs as it was written, so that running it on a few rows does not cause a
    compilation."""
    return torch.compiler.set_stance("force_eager") if STANCES and "torch._dynamo" in sys.modules else nullcontext()


@contextmanager
def ready_attention() -> Iterator[None]:
    """A context in which cuDNN's attention is off if another implementation can be used, since
    cuDNN compiles a kernel for every new number of rows."""
    backends = torch.backends.cuda
    others = backends.flash_sdp_enabled, backends.mem_efficient_sdp_enabled, backends.math_sdp_enabled
    off = getattr(backends, "cudnn_sdp_enabled", bool)() and any(enabled() for enabled in others)
    if off:
        backends.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        if off:
            backends.enable_cudnn_sdp(True)


@contextmanager
def unbenchmarked() -> Iterator[None]:
    """A context in which cuDNN doesn't try out all its kernels for each new number of rows, which takes seconds."""
    backend = torch.backends.cudnn
    on = backend.benchmark
    if on:
        backend.benchmark = False
    try:
        yield
    finally:
        if on:
            backend.benchmark = True


@contextmanager
def unwarned() -> Iterator[None]:
    """A context in which no warning is shown: a trial with a few rows of one tensor and all rows of
    another may cause warnings about code that the user never wrote. The warning filters stay
    unchanged, since changing them would make Python show earlier warnings again."""
    with changed(warnings, "showwarning", lambda *_args, **_kwargs: None):
        yield


@contextmanager
def undone(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """A context that undoes side effects when it ends. Random number generators, buffers and
    everything attached to the modules are then as before. Parameters have the same memory as
    before, but what was written to this memory stays."""
    state = random_state()
    found = submodules(modules)
    data = [(p, p.data) for m in found for p in m.parameters(recurse=False) if type(p) is torch.nn.Parameter]
    buffers = list({id(b): b for m in found for b in m.buffers(recurse=False)}.values())
    kept = [b.detach().clone() for b in buffers]
    versions = [b._version for b in buffers]
    snapshot = Snapshot(found, deep=True)
    try:
        yield
    finally:
        set_random_state(state)
        with torch.no_grad():
            for buffer, value, version in zip(buffers, kept, versions):
                # Batch normalisation writes its statistics without raising the version.
                if buffer._version != version or buffer.layout == torch.strided and not torch.equal(buffer, value):
                    # An earlier call's graph may have saved this buffer, so its version must stay the same.
                    buffer.data.copy_(value)
        snapshot.put_back()
        for p, had in data:
            if p.data_ptr() != had.data_ptr():
                p.data = had


@contextmanager
def rehearsal(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """A context for running modules on a few rows: nothing of the run remains, and work that is specific
    to a number of rows, such as compiling, is avoided."""
    modules = list(modules)
    with undone(modules), eager(), ready_attention(), unbenchmarked(), unwarned():
        yield
