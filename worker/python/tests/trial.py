"""One run of a loop in which an operation fails, and what is recorded about it."""

from __future__ import annotations

import gc
import hashlib
import os
import sys
import traceback
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import torch
import torch._dynamo  # the first optimizer imports it; here it is imported once, and not in every child
import torch._subclasses.fake_tensor
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from inject import Fault, Injector, Operation, Phases
from loop import Loop, Shape

# the headroom of this repository, unless PYTHONPATH has another
sys.path.append(str(Path(__file__).resolve().parent.parent))

STEPS = 4  # steps of a reference run
DEVICE = os.environ.get("HEADROOM_TEST_DEVICE", "cpu")  # the device on which loops run
# allowed difference between two runs' losses: CUDA adds up some of them in varying order
ROUNDING = 0.0 if DEVICE == "cpu" else 1e-6

Tensors = dict[str, Optional[Tensor]]


def attach() -> None:
    os.environ["HEADROOM_WORKER"] = "armed"
    import headroom_train

    headroom_train.attach()
    if "headroom_train._torch" not in sys.modules:
        raise RuntimeError("headroom did not arm this process")  # otherwise the tests would prove nothing


def attach_for_many() -> None:
    """Calls attach in a process that survives many failures on one thread. Also excludes all existing objects from
    garbage collection: they are never freed, and the collector runs after each failure."""
    attach()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()


class Placed(TorchFunctionMode):
    """Puts the models, batches and counters that a loop makes on DEVICE. The tensors of a data
    loader stay where they are, and the loop moves them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if (
            func in MAKERS
            and isinstance(out, Tensor)
            and "/torch/utils/data/" not in sys._getframe(1).f_code.co_filename
        ):
            return out.to(DEVICE)
        return out


MAKERS = {*_device_constructors(), torch.from_numpy}


def placed() -> Any:
    """A context in which loops are on DEVICE and every run has the same results."""
    if DEVICE == "cpu":
        return nullcontext()
    deterministic()
    return Placed()


def deterministic() -> None:
    """Makes every run on a GPU have the same results."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.allow_tf32 = False


def copied(tensors: dict[str, Tensor]) -> Tensors:
    return {name: None if t is None else t.detach().to("cpu", copy=True) for name, t in tensors.items()}


def digest(tensors: Tensors) -> str:
    """A digest of names, types, shapes and bytes."""
    whole = hashlib.sha256()
    for name, t in sorted(tensors.items()):
        whole.update(f"{name} {None if t is None else (t.dtype, tuple(t.shape))}".encode())
        if t is not None:
            whole.update(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def chance() -> str:
    """A digest of the random generators' states."""
    return digest({"cpu": torch.get_rng_state(), **({"cuda": torch.cuda.get_rng_state()} if DEVICE == "cuda" else {})})


@dataclass
class State:
    """Digests of what a failed step must not have changed."""

    parameters: str
    gradients: str
    buffers: str
    random: str


def state(loop: Loop) -> State:
    parameters = loop.parameters()
    return State(
        digest(parameters), digest({name: p.grad for name, p in parameters.items()}), digest(loop.buffers()), chance()
    )


@dataclass
class Record:
    """What is recorded about a run."""

    gradients: list[list[Tensors]] = field(default_factory=list)  # for each step, and for each optimizer's step in it
    weights: list[Tensors] = field(default_factory=list)  # weights and buffers, before each step and at the end
    printed: list[list[float]] = field(default_factory=list)
    operations: list[list[Operation]] = field(default_factory=list)
    before: State | None = None  # at the beginning of the step that failed
    after: State | None = None  # when the exception reached the user
    error: BaseException | None = None
    failed: list[str] = field(default_factory=list)  # messages of the failures that were injected
    mine: bool = False  # whether error is the exception that was injected first, and not a copy of it
    step: int = -1  # the step in which the run ended
    at: int = -1  # the operation that failed first; -1 if none did
    names: list[str] = field(default_factory=list)  # operations of the failing step


def run(shape: Shape, seed: int, steps: int, at: int = -1, fault: Fault | None = None, trace: bool = False) -> Record:
    """Runs a new loop for the given number of steps. The operations that ``fault`` describes fail
    in step ``at``."""
    phases = Phases() if trace else None
    injector, record = Injector(fault, phases), Record()
    with placed():
        loop = shape.make(seed)
    here = -1

    def begin(i: int) -> None:
        nonlocal here
        injector.end()
        with injector.paused():
            close()
            here = i
            record.weights.append(copied({**loop.parameters(), **loop.buffers()}))
            record.gradients.append([])
            if i == at:
                record.before = state(loop)
        if phases is not None:
            phases.begin()
        if trace or i == at:
            injector.begin()

    def close() -> None:
        if phases is not None and here >= 0:
            record.operations.append(phases.operations)
        if here == at >= 0:
            record.names = injector.names

    def stepped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        with injector.paused():
            record.gradients[-1].append(copied({name: p.grad for name, p in loop.parameters().items()}))

    handle = register_optimizer_step_post_hook(stepped)
    try:
        with placed(), injector:
            loop.run(steps, begin)
    except Exception as error:
        record.error = error
    handle.remove()
    injector.end()
    close()
    record.weights.append(copied({**loop.parameters(), **loop.buffers()}))
    record.after, record.printed = state(loop), loop.printed
    record.failed, record.at = [str(e) for e in injector.raised], injector.first_at - 1
    record.step = here
    record.mine = bool(injector.raised) and record.error is injector.raised[0]
    return record


def described(error: BaseException) -> str:
    """The exception's type and message and the last frames of its traceback, in one line."""
    frames = " < ".join(
        f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in reversed(traceback.extract_tb(error.__traceback__)[-4:])
    )
    return f"{type(error).__name__}: {str(error)[:200]} ({frames})"
