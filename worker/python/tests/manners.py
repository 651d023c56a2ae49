"""Checks that everything that belongs to the user is left untouched: outputs, copies, exceptions,
handlers, hooks.

Each check runs in a child with headroom attached, and returns what is wrong, or an empty string.
"""

from __future__ import annotations

import collections
import copy
import gc
import inspect
import io
import os
import pickle
import resource
import sys
import traceback
import warnings
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

import torch
import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import trial
from compare import close
from inject import Fault, Injector, Whole
from loops_composed import mlp
from loops_stateful import Warming

CHECKS: list[Callable[[], str]] = []
SIGNATURE = inspect.signature(nn.Parameter)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp(10, 12, 5)
        self.broken: BaseException | None = None

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        if self.broken is not None:
            raise self.broken
        return self.body(x) * scale


class Training:
    """An ordinary loop that has completed three steps and has its next batch ready."""

    def __init__(self) -> None:
        trial.attach()
        torch.manual_seed(0)
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        for _ in range(3):
            self.batch()
            self.step()
        self.batch()

    def batch(self) -> None:
        self.x, self.y = torch.randn(7, 10), torch.randint(0, 5, (7,))

    def step(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(self.x), self.y)
        loss.backward()
        self.optimizer.step()
        return loss


def check(work: Callable[[Training], str]) -> Callable[[Training], str]:
    def run() -> str:
        return work(Training())

    run.__name__ = work.__name__
    CHECKS.append(run)
    return work


@check
def outputs_are_plain_after_backward(t: Training) -> str:
    out = t.net(t.x)
    loss = F.cross_entropy(out, t.y)
    loss.backward()
    wrong = [
        f"{name} is a {type(value)}"
        for name, value in (("out", out), ("loss", loss))
        if type(value) is not torch.Tensor
    ]
    return "; ".join(wrong)


@check
def backward_takes_what_pytorch_documents(t: Training) -> str:
    """All forms of backward give the same gradients as without the worker: lists of losses, gradients beside them, one
    tensor as ``inputs``."""
    half, two = torch.tensor(0.5), torch.tensor(2.0)
    forms: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
        "list": lambda a, b, weight: torch.autograd.backward([a, b]),
        "tuple": lambda a, b, weight: torch.autograd.backward((a, b), (None, half)),
        "named": lambda a, b, weight: torch.autograd.backward(tensors=[a, b], grad_tensors=[two, half]),
        "single": lambda a, b, weight: torch.autograd.backward(a, two),
        "named single": lambda a, b, weight: torch.autograd.backward(tensors=a),
        "inputs": lambda a, b, weight: a.backward(inputs=weight),
        "inputs, list": lambda a, b, weight: a.backward(inputs=[weight]),
        "method": lambda a, b, weight: a.backward(gradient=two),
    }
    wrong = []
    for name, form in forms.items():
        bare = copy.deepcopy(t.net)
        t.optimizer.zero_grad()
        found: list[list[Tensor | None]] = []
        for net, out in ((t.net, t.net(t.x)), (bare, bare.forward(t.x))):
            form(F.cross_entropy(out, t.y), out.pow(2).mean(), next(net.parameters()))
            found.append([None if p.grad is None else p.grad.clone() for p in net.parameters()])
        if any(
            (a is None) != (b is None) or a is not None and b is not None and not torch.equal(a, b)
            for a, b in zip(*found)
        ):
            wrong.append(name)
    return "; ".join(wrong)


@check
def compiled_functions_are_not_broken_up(t: Training) -> str:
    """A compiled function that calls a module after a graph break is compiled in the same parts as without the
    worker."""
    import torch._dynamo

    @torch.compiler.disable
    def eagerly(net: Any) -> Tensor:
        return net(t.x)

    captured = []
    for call in (lambda: eagerly(t.net.forward), lambda: eagerly(t.net)):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.compile(lambda call=call: F.cross_entropy(call() * 2, t.y), backend="eager")()
        captured.append(dict(torch._dynamo.utils.counters["stats"]))
    return "" if captured[0] == captured[1] and captured[0]["calls_captured"] > 1 else f"{captured}"


@check
def modules_are_looked_for_beside_a_compiler(t: Training) -> str:
    """A compiled function can call a module that has a hook while modules are looked for."""
    t.net.register_forward_hook(lambda m, i, o: None)
    t.net.eval()
    t.net.train()  # modules are looked for from an eval on

    @torch.compile(backend="eager")
    def loss() -> Tensor:
        return F.cross_entropy(t.net(t.x), t.y)

    loss().backward()
    other = mlp(10, 12, 5)
    t.optimizer.add_param_group({"params": other.parameters()})
    found = type(other(t.x)) is not Tensor  # by the search, which goes on
    return "" if found and all(p.grad is not None for p in t.net.parameters()) else f"found: {found}"


@check
def results_are_sent_as_pytorch_sends_them(t: Training) -> str:
    """Another process is sent a result by shared memory, and one with a graph not at all."""
    from multiprocessing.reduction import ForkingPickler

    out = t.net(t.x)
    try:
        ForkingPickler.dumps(out)
        return "a result with a graph was sent"
    except RuntimeError as e:
        if "Cowardly refusing" not in str(e):
            return f"{e}"
    detached = out.detach()
    ForkingPickler.dumps(detached)
    return (
        ""
        if type(detached) is not Tensor and detached.is_shared()
        else f"{type(detached)}, shared: {detached.is_shared()}"
    )


@check
def outputs_look_plain_before_backward(t: Training) -> str:
    out = t.net(t.x)
    plain = torch.Tensor._make_subclass(torch.Tensor, out.detach().clone())
    if not isinstance(out, torch.Tensor) or not out.requires_grad or out.is_leaf:
        return "no tensor with a graph"
    if repr(out.detach()) != repr(plain):
        return f"prints as {out.detach()!r:.80}"
    if "grad_fn=<MulBackward0>" not in repr(out):
        return f"prints as {repr(out)[-60:]}"
    return "" if out.detach().numpy().tobytes() == plain.numpy().tobytes() else "other values"


@check
def results_can_be_formatted(t: Training) -> str:
    """A loss is often printed with a format before backward, whatever its class is by then."""
    out = t.net(t.x)
    loss = F.cross_entropy(out, t.y)
    said = f"{loss:.4f} {out[0, 0]:8.2e} {loss} {out.sum()!r:.6}"
    with torch._C.DisableTorchFunctionSubclass():
        plain, first, total = (v.detach().as_subclass(torch.Tensor) for v in (loss, out[0, 0], out.sum()))
    wanted = f"{plain:.4f} {first:8.2e} {float(plain)} {total!r:.6}"
    return (
        ""
        if said.split()[:2] == wanted.split()[:2] and said.split()[3] == wanted.split()[3]
        else f"{said}, not {wanted}"
    )


def traces(whole: bytes) -> str:
    return "contains headroom" if b"headroom" in whole else ""


@check
def saved_outputs_are_plain(t: Training) -> str:
    out = t.net(t.x)
    said = ""
    for late in (False, True):
        buffer = io.BytesIO()
        torch.save({"out": out, "detached": out.detach(), "guess": out.argmax(1)}, buffer)
        said = (
            said
            or traces(buffer.getvalue())
            or traces(pickle.dumps([out.detach(), out.detach().cpu(), out.softmax(1).detach()]))
        )
        if not late:
            F.cross_entropy(out, t.y).backward()
    return said


@check
def saved_model_is_plain(t: Training) -> str:
    buffer = io.BytesIO()
    torch.save(t.net, buffer)
    again = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    if not torch.equal(again.eval()(t.x), t.net.eval()(t.x)):
        return "another model"
    return traces(buffer.getvalue()) or traces(pickle.dumps(t.optimizer.state_dict()))


@check
def a_copy_is_a_model_of_its_own(t: Training) -> str:
    for mode in (True, False):
        again = copy.deepcopy(t.net).train(mode)
        for p in again.parameters():
            p.data.zero_()
        if again(t.x).abs().max().item() != 0:
            return "the copy computes with the original's weights"
        again.body = nn.Identity()
        if t.net(t.x).shape != (7, 5):
            return "the copy's layers are the original's"
    return ""


@check
def a_method_can_be_replaced(t: Training) -> str:
    t.net.forward = lambda x, scale=1.0: x[:, :5] * 0 + 3  # type: ignore[method-assign]
    if t.net(t.x).mean().item() != 3:
        return "forward was replaced, and the old one ran"
    del t.net.forward
    return "" if t.net(t.x).mean().item() != 3 else "forward cannot be put back"


@check
def signatures_are_the_users(t: Training) -> str:
    names = list(inspect.signature(t.net.forward).parameters)
    return "" if names == ["x", "scale"] else f"forward takes {names}"


@check
def exceptions_keep_type_and_traceback(t: Training) -> str:
    for error in (ValueError("mine"), KeyboardInterrupt(), SystemExit(3), StopIteration("x")):
        t.net.broken = error
        try:
            t.step()
            return f"{type(error).__name__} was hidden"
        except BaseException as seen:
            if seen is not error:
                return f"{seen!r} instead of {error!r}"
            last = traceback.extract_tb(seen.__traceback__)[-1]
            if last.name != "forward" or "manners" not in last.filename or seen.__context__ is not None:
                return f"{type(error).__name__} comes from {last.name}, while handling {seen.__context__!r}"
    t.net.broken = None
    try:
        F.cross_entropy(t.net(t.x), t.y[:3])
        return "a loss of wrong shapes was accepted"
    except ValueError as seen:
        return "" if "batch_size" in str(seen) else f"{seen}"


def frames(error: BaseException) -> list[str]:
    """The files and functions in an exception's traceback."""
    return [f"{frame.filename}:{frame.name}" for frame in traceback.extract_tb(error.__traceback__)]


@check
def tracebacks_are_the_users(t: Training) -> str:
    """A traceback has the frames that it would have without headroom: from Python 3.11 on none of
    ours, and before only those of our outermost functions."""
    most = 0 if sys.version_info >= (3, 11) else 2

    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> NoReturn:
            raise ValueError("mine")

    def together() -> None:  # relates the rows of the batch in a module, so that it is refused
        together_net.train()
        together_net(t.x).square().mean().backward()

    together_net = nn.Sequential(t.net, nn.BatchNorm1d(5))
    t.optimizer.add_param_group({"params": together_net[1].parameters()})

    def broken() -> None:
        t.net.broken = ValueError("mine")
        t.net(t.x)

    def closed() -> None:
        t.optimizer.step(lambda: F.cross_entropy(t.net(t.x), t.y[:3]))

    def seen(work: Callable[[], Any], fault: Fault) -> list[str]:
        t.net.broken = None
        t.optimizer.zero_grad()
        with Injector(fault) as injector:
            injector.begin()
            try:
                work()
            except Exception as error:
                return frames(error)
            finally:
                injector.end()
        return []

    never = Fault("once", 1000, 7)
    said, raised = [], 0
    for work, faults in (
        (together, [Fault("once", at, 7) for at in range(1, 30)]),
        (t.step, [Fault("limit", elements=n) for n in (3, 10, 40)]),
        (broken, [never]),
        (closed, [never]),
        (lambda: Failing.apply(t.x), [never]),
        (lambda: Failing.apply(t.net(t.x)), [never]),
        (lambda: F.cross_entropy(t.net(t.x), t.y[:3]), [never]),
    ):
        for fault in faults:
            found = seen(work, fault)
            raised += bool(found)
            if sum("headroom_train" in f for f in found) > most or fault is never and not found:
                said.append(f"{work.__name__} with {fault}: {found}")
    return "; ".join(said) if raised > 6 else f"only {raised} failures"


@check
def the_users_handler_gets_the_failure(t: Training) -> str:
    """A loss that relates rows of the batch cannot be split, so the user's own handler halves the
    batch, as it would without headroom."""

    kept: list[Tensor] = []

    def grads(x: Tensor, injector: Injector | None) -> list[Tensor]:
        t.optimizer.zero_grad()

        def loss(x: Tensor) -> Tensor:
            z = t.net(x)
            kept.append(z)  # the outputs of a failed step may still be alive in a handler
            return F.cross_entropy(z @ z.t(), torch.arange(len(z)))

        try:
            if injector is None:
                raise torch.OutOfMemoryError("injected")
            injector.begin()
            loss(x).backward()
            return []
        except torch.OutOfMemoryError as error:
            if "injected" not in str(error):
                return []
        t.optimizer.zero_grad()
        for half in (x[:4], x[4:]):
            loss(half).backward()
        return [p.grad.clone() for p in t.net.parameters() if p.grad is not None]

    injector = Injector(Fault("again", 9, 7))
    with injector:
        got = grads(t.x, injector)
    want = grads(t.x, None)
    if not injector.raised or len(got) != len(want):
        return "the handler never ran"
    return "" if all(torch.equal(a, b) for a, b in zip(want, got)) else "other gradients after the user's own handler"


@check
def hooks_run_once(t: Training) -> str:
    counts = {"forward": 0, "pre": 0, "gradient": 0, "accumulated": 0, "full": 0}

    def count(name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            counts[name] += 1

        return hook

    t.net.register_forward_hook(count("forward"))
    t.net.register_forward_pre_hook(count("pre"))
    t.net.register_full_backward_hook(count("full"))
    p = next(t.net.parameters())
    p.register_hook(count("gradient"))
    p.register_post_accumulate_grad_hook(count("accumulated"))
    for _ in range(2):
        t.step()
    return "" if set(counts.values()) == {2} else f"in two steps: {counts}"


@check
def nothing_is_kept(t: Training) -> str:
    """Outputs and models are freed as soon as the user drops the last reference to them."""
    gc.disable()
    seen: list[weakref.ref] = []
    for _ in range(4):
        out = t.net(t.x)
        hidden = out * 2
        loss = F.cross_entropy(hidden, t.y)
        loss.backward()
        t.optimizer.step()
        t.optimizer.zero_grad()
        storage = out.untyped_storage()
        seen += [weakref.ref(out), weakref.ref(hidden), weakref.ref(loss), weakref.ref(storage)]
        del out, hidden, loss, storage
    alive = sum(ref() is not None for ref in seen)
    gc.enable()
    model = weakref.ref(t.net)
    t.net = t.optimizer = None  # type: ignore[assignment]
    gc.collect()
    if alive:
        return f"{alive} of {len(seen)} tensors are alive after their last name"
    return "the model is alive after its last name" if model() is not None else ""


@check
def outputs_without_backward_are_freed(t: Training) -> str:
    """Outputs of a forward pass in training mode are freed even if backward is never called."""
    gc.disable()
    seen = []
    for _ in range(5):
        out = t.net(t.x)
        seen.append(weakref.ref(out.exp()))
        seen.append(weakref.ref(out))
        del out
    alive = sum(ref() is not None for ref in seen)
    gc.enable()
    return f"{alive} of {len(seen)} tensors are alive after their last name" if alive > 2 else ""


@check
def evaluation_is_untouched(t: Training) -> str:
    t.net.eval()
    with torch.no_grad():
        out = t.net(t.x)
    if type(out) is not torch.Tensor:
        return f"an output in evaluation is a {type(out)}"
    t.net.train()
    with torch.no_grad():
        out = t.net(t.x)
    return "" if type(out) is torch.Tensor else f"an output under no_grad is a {type(out)}"


@check
def failures_leave_nothing(t: Training) -> str:
    """Each step has a failure somewhere before the optimizer's step. The memory allocated at the
    end of each training step is nevertheless the same as without failures."""

    def allocated() -> int:
        gc.collect()
        found = {
            x.untyped_storage().data_ptr(): x.untyped_storage().nbytes()
            for x in gc.get_objects()
            if type(x) in (Tensor, nn.Parameter)
        }
        return sum(found.values())

    t.step()
    t.optimizer.zero_grad()
    want = allocated()
    survived = 0
    for i in range(120):
        injector = Injector(Fault("again", i % 40, 7))
        with injector:
            t.optimizer.zero_grad()
            injector.begin()
            try:
                out = t.net(t.x)
                loss = F.cross_entropy(out, t.y)
                loss.backward()
            except torch.OutOfMemoryError:
                out = loss = None
            injector.end()
        t.optimizer.step()
        survived += bool(injector.raised)
        del out, loss, injector
        t.optimizer.zero_grad()
        if i >= 40 and allocated() != want:  # by then every operation has failed once
            return f"{allocated()} bytes after failure {i}, {want} without"
    return "" if survived > 50 else f"only {survived} of 120 were survived"


class Failing(TorchDispatchMode):
    """Makes operations of the given name fail the given number of times, whatever their size."""

    def __init__(self, name: str, times: int) -> None:
        super().__init__()
        self.name, self.left = name, times

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.left and self.name in str(func):
            self.left -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (injected)")
        return func(*args, **(kwargs or {}))


@check
def released_values_are_never_used(t: Training) -> str:
    """The loss function fails, and so do two trials on a few rows. By then the model's outputs have
    been released, so the failure must reach the user, or the loss must be finite."""
    out = t.net(t.x)
    try:
        with Failing("_log_softmax.default", 3):
            loss = F.cross_entropy(out, t.y)
    except torch.OutOfMemoryError:
        return ""
    return "" if loss.isfinite() else f"a loss of {loss.item()}"


@check
def scalars_are_only_called_again(t: Training) -> str:
    """After a failure in arithmetic on the loss, the model is not called again."""
    calls = []
    t.net.register_forward_hook(lambda *_: calls.append(1))
    loss = F.cross_entropy(t.net(t.x), t.y)
    with Failing("div.Tensor", 1) as failing:
        half = loss / 2
    half.backward()
    return (
        "" if len(calls) == 1 and not failing.left else f"{len(calls)} calls of the model, {failing.left} failures left"
    )


@check
def our_own_work_is_tried_twice(t: Training) -> str:
    """Once steps run in pieces straight away, all work in them is headroom's own. A single failure
    anywhere in such a step is survived, also where the terms of a loss are added up at its end."""
    weight = torch.tensor(0.3, requires_grad=True)

    def mean(out: Tensor) -> Tensor:
        return F.cross_entropy(out, t.y)

    def summed(out: Tensor) -> Tensor:
        return mean(out) * 0.5 + out.square().mean() * weight

    def stepped(loss: Callable[[Tensor], Tensor], fault: Fault | None) -> list[str]:
        """The operations of a step."""
        injector = Injector(fault)
        t.optimizer.zero_grad()
        with injector:
            injector.begin()
            loss(t.net(t.x)).backward()
            injector.end()
        return injector.names

    def survived(loss: Callable[[Tensor], Tensor], at: int) -> bool:
        try:
            stepped(loss, Fault("once", at, 7))
        except torch.OutOfMemoryError:
            return False
        return True

    # operations that take no memory
    free = ("aten.view.default", "aten.detach.default", "aten._local_scalar_dense.default")
    stepped(mean, Fault("again", 9, 7))
    for back in range(1, 20):
        names = stepped(summed, None)
        # counted from where the loss is handed back
        at = len(names) - 1 - names[::-1].index("aten.clone.default") - back
        if names[at] not in free and not survived(summed, at):
            return f"not survived: {names[at]}, {back} operations before the end"
    for at in range(0, 75, 2):
        if not survived(mean, at):
            return f"not survived: operation {at}"
    return ""


@check
def a_state_survives_failures_in_a_row(t: Training) -> str:
    """A module that counts its calls has the same count as without failures, even if its very first
    call fails."""
    net = Warming()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for k in (3, 3, 5, 3):
        injector = Injector(Fault("once", k, 7))
        with injector:
            injector.begin()
            F.cross_entropy(net(t.x), t.y).backward()
            injector.end()
        optimizer.step()
    return "" if (net.seen, len(net.scales)) == (4, 4) else f"{net.seen} calls, {len(net.scales)} scales after 4 steps"


class Picky(nn.Module):
    """Fails as oneDNN does, for the whole batch of seven rows."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == 7:
            raise RuntimeError("could not create a primitive")
        return self.net(x)


@check
def results_call_themselves_tensors(t: Training) -> str:
    """A script that prints the types of its own results sees the same as without headroom."""
    out = t.net(torch.randn(7, 10))
    said = f"{type(out).__name__} {type(out.sum()).__qualname__} {isinstance(out, Tensor)} {out.type()}"
    return "" if said == "Tensor Tensor True torch.FloatTensor" else said


@check
def onednn_counts_where_memory_is_limited(t: Training) -> str:
    """oneDNN's error does not say whether memory ran out. It counts as out of memory only where
    ulimit limits memory."""
    t.net.body = Picky(t.net.body)
    try:
        t.step()
        return "survived without a limit"
    except RuntimeError as e:
        if str(e) != "could not create a primitive":
            return f"without a limit: {e!r}"
    for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS):
        no_limit = resource.getrlimit(kind)
        resource.setrlimit(kind, (1 << 45, no_limit[1]))
        t.step()
        resource.setrlimit(kind, no_limit)
    return ""


@check
def only_watches_where_it_must(t: Training) -> str:
    from headroom_train._torch import only_watches
    from headroom_train.world import several

    armed = [
        v
        for v in ("2.3.1", "2.4.0", "2.11.0+cu130", "2.15.1", "2.16.0a0+git1234", "3.0", "unknown")
        if only_watches(v) is None
    ]
    if armed != ["2.4.0", "2.11.0+cu130", "2.15.1"]:
        return f"armed with {armed}"
    # without torch.distributed: the ranks may wait for each other through another library
    os.environ["WORLD_SIZE"] = "2"
    return "" if several() and not trained_is_recorded() else "armed as one of two ranks"


def trained_is_recorded() -> bool:
    """Whether the calls of a model that is made and trained now are recorded."""
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        net(torch.randn(3, 4)).sum().backward()
        optimizer.step()
    return "_headroom" in vars(net(torch.randn(3, 4)))


class Deaf:
    """A wire that keeps the messages it is given and sends nothing."""

    told: ClassVar[list[dict]] = []
    asked_to_look = asked_for_memory = False

    def ignored(self, *_: Any, **__: Any) -> None: ...

    def taken(self, *_: Any, **said: Any) -> None:
        self.told.append(said)

    def refused(self, why: str, **said: Any) -> None:
        self.told.append({**said, "why": why})

    hello, step, oom, survived, note = ignored, ignored, taken, taken, taken


@check
def evidence_has_numbers_without_a_text(t: Training) -> str:
    there = {
        "is_initialized": True,
        "is_current_stream_capturing": False,
        "mem_get_info": (5, 80),
        "memory_allocated": 60,
        "memory_reserved": 70,
    }
    for name, value in {**there, "max_memory_allocated": 65}.items():  # this check runs in a child of its own
        setattr(torch.cuda, name, lambda value=value: value)
    from headroom_train.wire.report import Report

    Report.wire = lambda self: Deaf()  # type: ignore[method-assign, assignment, return-value]

    def untold(device: Any = None) -> float:
        raise RuntimeError("this allocator does not tell")

    torch.cuda.get_per_process_memory_fraction = untold
    Report().failed(8, torch.OutOfMemoryError("CUDA error: out of memory"))
    Report().failed(
        8,
        torch.OutOfMemoryError(
            "Tried to allocate 20 bytes. GPU 0 has a total capacity of 90 bytes of which 10 bytes is free."
        ),
    )
    torch.cuda.get_per_process_memory_fraction = lambda device=None: 0.9  # the process may use less than the device has
    Report().failed(8, torch.OutOfMemoryError("CUDA error: out of memory"))
    found = [
        [said.get(name) for name in ("requested", "free", "capacity", "allocated", "peak", "phase")]
        for said in Deaf.told
    ]
    want = [[None, 5, 80, 60, 65, "forward"], [20, 10, 90, 60, 65, "forward"], [None, 2, 72, 60, 65, "forward"]]
    return "" if found == want else f"told {found}"


@check
def mixed_rows_are_reported(t: Training) -> str:
    """A refusal says whether the result depends on which rows are in a batch together, also if it is the
    second one for the same reason."""
    from headroom_train.wire.report import Report

    Report.wire = lambda self: Deaf()  # type: ignore[method-assign, assignment, return-value]

    class Related(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.mixes = nn.Linear(6, 5), True

        def forward(self, x: Tensor) -> Tensor:
            z = self.body(x)
            return z.softmax(0) if self.mixes else z[:6].cumsum(0)

    net = Related()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for mixes in (True, True, False):
        net.mixes = mixes
        Deaf.told.clear()
        with Whole("aten.addmm.default", 7):
            try:
                net(torch.randn(7, 6)).sum().backward()
            except torch.OutOfMemoryError:
                pass
        found += [
            (said["why"].partition(" (")[0].partition(":")[0], said["mixed"]) for said in Deaf.told if "mixed" in said
        ]
    del optimizer
    return "" if [m for _, m in found] == [True, True, False] else f"{found}"


@check
def want_of_memory_is_a_reason_of_its_own(t: Training) -> str:
    """A refusal because headroom's own work ran out of memory does not repeat PyTorch's message."""

    from headroom_train import _torch

    def work() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    try:
        _torch._recorder.guarded(work)
    except Exception as e:
        return "" if str(e) == "there is not enough memory for values that the step needs at once" else f"{e}"
    return "nothing was raised"


@check
def the_limit_is_reported(t: Training) -> str:
    """A step says how many rows fit, once something has failed."""
    from headroom_train.wire.report import Report

    told: list[dict] = []

    class Listening(Deaf):
        def step(self, **said: Any) -> None:
            told.append(said)

    Report.wire = lambda self: Listening()  # type: ignore[method-assign, assignment, return-value]
    with Injector(Fault("once", 1, 7)) as injector:
        injector.begin()
        loss = F.cross_entropy(t.net(t.x), t.y)
        injector.end()
    loss.backward()
    t.optimizer.step()
    limits = [said.get("limit", 0) for said in told]
    return "" if limits and 0 < limits[-1] < 7 else f"{limits}"


@check
def a_failure_is_reported_once(t: Training) -> str:
    """A loss that is computed from several scalars survives a failure once, not once for each scalar."""
    from headroom_train.wire.report import Report

    Report.wire = lambda self: Deaf()  # type: ignore[method-assign, assignment, return-value]
    with Injector(Fault("once", 1, 7)) as injector:
        injector.begin()
        out = t.net(t.x)
        (out.pow(2).mean() + out.mean() ** 2).backward()
        injector.end()
    t.optimizer.step()
    survived = [said for said in Deaf.told if "ago" in said]  # not those that report the failure itself
    return "" if len(survived) == 1 else f"{Deaf.told}"


@check
def evidence_tells_the_phase(t: Training) -> str:
    from headroom_train.wire.report import Report, _phase

    Report.wire = lambda self: Deaf()  # type: ignore[method-assign, assignment, return-value]

    def evaluated() -> None:
        with torch.no_grad():
            t.net.eval()(t.x)

    def generate(call: Any) -> str:  # the user's, unlike the library's below
        with torch.no_grad():
            return call()

    def phase() -> str:
        return _phase(torch.OutOfMemoryError("as the model that it calls raises it"))

    library: dict[str, Any] = {}
    exec(
        compile("def generate(call): return call()", "/lib/site-packages/transformers/generation/utils.py", "exec"),
        library,
    )

    def caught(step: Any) -> str:
        try:
            step()
        except torch.OutOfMemoryError as e:
            return _phase(e)
        return "nothing failed"

    def fail(*_: Any) -> NoReturn:
        raise torch.OutOfMemoryError("in the user's own code")

    class Own(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> NoReturn:
            raise torch.OutOfMemoryError("in an optimizer that the user has written")

    def trained() -> None:
        F.cross_entropy(t.net.train()(t.x), t.y).backward()

    with Injector(Fault("once", 20, 7)) as injector:
        injector.begin()
        trained()
        injector.end()
    for work, at in ((t.optimizer.step, 1), (evaluated, 1)):
        with Injector(Fault("once", at, 7)) as injector:
            injector.begin()
            work()
            injector.end()
    found = [
        *dict.fromkeys(said["phase"] for said in Deaf.told),
        generate(lambda: library["generate"](phase)),
        generate(phase),
    ]
    found += [
        caught(lambda: torch.optim.SGD(t.net.parameters()).step(fail)),
        caught(lambda: Own(t.net.parameters(), {}).step()),
    ]
    return "" if found == ["backward", "update", "eval", "generation", "eval", "forward", "update"] else f"{found}"


class Products(TorchDispatchMode):
    """Records the number of rows in each matrix product that may be differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == "aten.addmm.default" and torch.is_grad_enabled():
            self.rows.append(len(args[1]))
        return func(*args, **(kwargs or {}))


@check
def an_earlier_attempt_is_known(t: Training) -> str:
    """From the first step on, no more rows are run at once than an earlier attempt could run, and
    nothing has to fail first."""
    from headroom_train import _torch

    sizes = _torch._recorder.sizes
    rows, gradients = [], []
    for learned in (0, 3):
        sizes.learned = lambda learned=learned: learned
        t.net.zero_grad()
        with Products() as products:
            F.cross_entropy(t.net(t.x), t.y).backward()
        rows.append(products.rows)
        gradients.append([p.grad.clone() for p in t.net.parameters()])
    if not all(close(a, b) for a, b in zip(*gradients)):
        return "other gradients"
    once = len(rows[0])
    if (
        _torch._recorder.report.told
        or set(rows[0]) != {7}
        or sorted(rows[1][-3 * once :]) != [2] * 2 * once + [3] * once
    ):
        return f"told {_torch._recorder.report.told}, ran {rows}"
    try:
        t.net(t.x[:, :4])
    except RuntimeError as e:
        return "" if "shapes" in str(e) else f"{e}"
    return "a mistake of the user's went unseen"


@check
def a_crowded_step_goes_tensor_by_tensor(t: Training) -> str:
    """If there is not enough memory for a step over all tensors at once, that step and a number of steps after it
    update one tensor at a time. If there is still not enough memory after these, twice as many of the next
    steps do so. This is reported once, and the user's settings remain."""
    from headroom_train import _torch
    from headroom_train.hooks import crowded

    class Own(torch.optim.Adam):
        pass

    remarks: list[str] = []
    _torch._recorder.report.remark = remarks.append
    for kind, given, kept in (
        (torch.optim.Adam, {"foreach": True}, False),
        (torch.optim.RMSprop, {"foreach": True}, False),
        (torch.optim.AdamW, {}, True),  # on a CPU, the default is not over all tensors at once
        (torch.optim.SGD, {"foreach": True}, True),
        (Own, {"foreach": True}, True),
    ):
        probes, seen = [], []
        crowded.fits = lambda *_: probes.append(len(seen)) or len(probes) not in (3, 4)
        optimizer = kind(t.net.parameters(), lr=1e-4, **given)
        asked = optimizer.param_groups[0].get("foreach")
        optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0].get("foreach")))
        for _ in range(2 + 65 + 129 + 2):
            optimizer.step()
            if optimizer.param_groups[0].get("foreach") is not asked:
                return f"{kind.__name__}: foreach is {optimizer.param_groups[0].get('foreach')} afterwards"
        want = [asked] * len(seen) if kept else [True] * 2 + [False] * (65 + 129) + [True] * 2
        if seen != want or probes != ([] if kept else [0, 1, 2, 67, 196, 197]):
            return f"{kind.__name__}: probed at {probes}, {seen}"
    if len(remarks) != 2 or not all("tensor by tensor" in text for text in remarks):
        return f"said {remarks}"
    weight = torch.nn.Parameter(torch.ones(100))
    weight.grad = torch.ones(100)
    for kind, given, state, passing in (
        (torch.optim.Adam, {}, 2, 1),
        (torch.optim.AdamW, {"amsgrad": True}, 3, 1),
        (torch.optim.RMSprop, {}, 1, 1),
        (torch.optim.RMSprop, {"momentum": 0.9, "weight_decay": 0.1}, 2, 2),
        (torch.optim.RMSprop, {"centered": True, "maximize": True}, 2, 2),
    ):
        optimizer = kind([weight], lr=1e-4, foreach=True, **given)
        takes = [crowded.needed(optimizer, optimizer.param_groups)]
        optimizer.step()
        takes.append(crowded.needed(optimizer, optimizer.param_groups))
        if takes != [400 * (state + passing), 400 * passing]:
            return f"{kind.__name__} with {given}: takes {takes}"
    # 60 can still be allocated
    room = crowded.Memory(allowed=80, free=50, reserved=30, allocated=20, peak=30, failures=0)
    others = (
        room,
        room._replace(free=30),
        room._replace(allowed=60),
        room._replace(allocated=39),
        room._replace(allocated=40),
    )
    found = [crowded.plenty([room, m], 20) for m in others]
    return "" if found == [True, False, False, True, False] else f"plenty: {found}"


@check
def what_grows_is_told_when_asked(t: Training) -> str:
    """If headroom asks what grows, the process finds out, although it has not seen its memory grow itself. What is
    kept is more than what the process itself takes and leaves."""
    from headroom_train.account.search import APART
    from headroom_train.wire import report as reports

    held: list[dict[str, Any]] = []

    class Asking(Deaf):
        asked_to_look, asked_for_memory = True, False

        def holds(self, **fields: Any) -> None:
            held.append(fields)

    wire = Asking()
    t.net.seen = []
    told = reports.Report()
    told.wire = lambda: wire  # type: ignore[method-assign, assignment, return-value]
    told._greeted = wire  # type: ignore[assignment]
    for i in range(1, 2 * APART + 2):
        if held:
            return f"told after {i - 1} steps"
        told.step()
        t.net.seen.append(torch.ones(512, 512) + i)
    told.step()
    if wire.asked_to_look or len(held) != 1 or held[0]["level"] != "warning":
        return f"{wire.asked_to_look}, {held}"
    found = held[0]
    lines, begin = inspect.getsourcelines(what_grows_is_told_when_asked)
    line = f"{__file__}:{begin + next(n for n, text in enumerate(lines) if 'ones(512, 512)' in text)}"
    return "" if (found["name"], found["kept"], found["made"]) == ("t.net.seen", line, line) else f"{found}"


@check
def what_a_hook_raises_in_a_second_try_is_the_users(t: Training) -> str:
    """An optimizer's step that ran out of memory succeeds when repeated; an exception that the
    user's hook then raises reaches the user."""
    optimizer = torch.optim.SGD(t.net.parameters(), lr=0.1)
    F.cross_entropy(t.net(t.x), t.y).backward()

    def broken(*_: Any) -> None:
        raise KeyError("mine")

    optimizer.register_step_post_hook(broken)
    with Injector(Fault("once", 1, 7)) as injector:
        injector.begin()
        try:
            optimizer.step()
        except KeyError as e:
            return "" if injector.raised and e.args == ("mine",) else f"{e!r}, {injector.raised}"
        except torch.OutOfMemoryError:
            return "the failure that was survived"
    return "nothing was raised"


@check
def a_check_takes_half_precision_inside_for_what_it_is(t: Training) -> str:
    """If a module itself rounds to half precision, ``headroom check`` allows for the rounding
    errors. A module that enables autocast, as under Accelerate, is run without autocast."""
    from headroom_train.recover import check
    from headroom_train.replay.sizes import Sizes
    from headroom_train.tape.tape import place_of

    forward, found = t.net.body.forward, []

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        torch.set_autocast_enabled("cpu", True)
        try:
            return forward(x).float()
        finally:
            torch.set_autocast_enabled("cpu", False)
            torch.clear_autocast_cache()

    for rounds in (by_hand, lambda x: torch.autocast("cpu", dtype=torch.bfloat16)(forward)(x).float()):
        t.net.body.forward = rounds  # type: ignore[method-assign]
        loss = F.cross_entropy(t.net(t.x), t.y)
        found.append(check.compared(place_of(loss).tape, place_of(loss).slot, None, Sizes())["error"])
        loss.backward()
    return "" if 1e-3 < found[0] <= 2e-2 and found[1] < 1e-6 else f"off by {found}"


@check
def a_check_notices_gradients_that_differ(t: Training) -> str:
    from headroom_train.recover import check
    from headroom_train.replay.sizes import Sizes
    from headroom_train.tape.tape import place_of

    said = []
    right = check.planned
    for wrong in (False, True):
        if wrong:
            check.planned = lambda *given: (p := right(*given))._replace(
                targets={s: (2.0 * g, rule) for s, (g, rule) in p.targets.items()}
            )
        loss = F.cross_entropy(t.net(t.x), t.y)
        tape = place_of(loss).tape
        try:
            said.append("same" if check.compared(tape, place_of(loss).slot, None, Sizes())["error"] < 1e-5 else "other")
        except check.Refused as why:
            said.append(str(why))
        loss.backward()
    return "" if said == ["same", "the gradients of 2 pieces differ by 1 from those of the whole batch"] else f"{said}"


@check
def warnings_name_the_line_that_caused_them(t: Training) -> str:
    """Also the second line with the same warning: Python shows a warning once for each line."""
    from headroom_train import callsite

    callsite._MOST = 2  # then lines are forgotten
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        first = inspect.currentframe().f_lineno  # type: ignore[union-attr]
        out = t.net(t.x)
        loss = F.mse_loss(out[:, :1], torch.ones(7))
        again = F.mse_loss(out[:, :1], torch.ones(7))
        float(loss)
        out.grad  # noqa: B018
        (loss + again).backward(create_graph=True)
        nn.MSELoss()(t.net(t.x)[:, :1], torch.ones(7))
    places = [(os.path.basename(w.filename), w.lineno - first if w.filename == __file__ else 0) for w in seen]
    want = [("manners.py", 2), ("manners.py", 3), ("manners.py", 4), ("manners.py", 5), ("loss.py", 0)]
    # PyTorch before 2.9 lets a float pass
    return "" if [p for p in places if p[0] != "graph.py"] in (want, want[:2] + want[3:]) else f"{places}"


@check
def tracebacks_of_wrong_calls_are_the_users(t: Training) -> str:
    try:
        t.net(t.x).reshape(77)
    except RuntimeError as e:
        named = [f.f_code.co_name for f, _ in traceback.walk_tb(e.__traceback__)]
        return "" if named == ["tracebacks_of_wrong_calls_are_the_users"] else f"{named}"
    return "no error"


@check
def a_class_of_the_script_decides(t: Training) -> str:
    class Labels(Tensor):
        calls = 0

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Labels.calls += 1
            result = super().__torch_function__(func, types, args, kwargs or {})
            return result * 2 if func in (Tensor.sub, Tensor.__sub__) else result

    out, said = t.net(t.x), []
    with torch._C.DisableTorchFunctionSubclass():
        plain = out.detach().clone().as_subclass(Tensor).requires_grad_()
    for result in (out, plain):
        Labels.calls = 0
        loss = (result - torch.ones(7, 5).as_subclass(Labels)).pow(2).mean()
        loss.backward()
        said.append((type(loss).__name__, Labels.calls, round(float(loss.detach()), 5)))
    return "" if said[0] == said[1] and said[0][0] == "Labels" else f"{said}"


@check
def what_a_class_of_the_script_changes_is_not_replayed(t: Training) -> str:
    class Own(Tensor):
        pass

    from headroom_train.tape.tape import place_of

    out = t.net(t.x)
    out.add_(torch.ones(7, 5).as_subclass(Own))
    return (
        ""
        if place_of(out).tape.why_not == "add_ of another class changes a result of the model"
        else f"{place_of(out).tape.why_not}"
    )


@check
def a_class_of_the_script_gets_no_values_that_do_not_exist(t: Training) -> str:
    from headroom_train import _torch

    class Own(Tensor):
        pass

    try:
        with Whole("aten.tanh.default", 7):
            t.net(t.x) - torch.ones(7, 5).as_subclass(Own)
        return "it got some"
    except torch.OutOfMemoryError:
        why = _torch._recorder.report.told[-1]["why"]  # type: ignore[union-attr]
    return (
        "" if why == "Own decides what is computed of a result of the model, and its values are not in memory" else why
    )


@check
def our_own_want_of_memory_ends_nothing(t: Training) -> str:
    """What is kept of a module before its call may not fit, though the call does."""
    from headroom_train.tape.recorded_module import RecordedModule, record_of

    def full(*_: Any) -> NoReturn:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    RecordedModule.before = full  # type: ignore[method-assign]
    out = t.net(t.x)
    found = record_of(t.net)
    return (
        ""
        if type(out) is Tensor and found is not None and "could not be recorded: OutOfMemoryError" in found.why_not
        else f"{type(out)}, {found}"
    )


@check
def a_model_that_is_dropped_is_freed(t: Training) -> str:
    """At once, not when Python next looks for cycles: a script frees a GPU's memory this way."""

    class Counting(Net):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.log, self.norm = 0, [0], nn.BatchNorm1d(5)

        def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
            self.calls += 1
            self.log.append(self.calls)
            return self.norm(super().forward(x, scale))

    from headroom_train.tape.recorded_module import record_of

    gc.disable()
    kept = []
    for kind in (Counting, lambda: nn.BatchNorm1d(10), lambda: nn.Linear(10, 3)):
        t.net, optimizer = kind(), None
        optimizer = torch.optim.SGD(t.net.parameters(), lr=0.1)
        for _ in range(2):
            t.net(t.x).sum().backward()
            optimizer.step()
            with torch.no_grad():
                t.net.eval()(t.x)
            t.net.train()
        if record_of(t.net) is None:
            return "not recorded"
        kept += [weakref.ref(t.net), weakref.ref(next(t.net.parameters())), weakref.ref(record_of(t.net))]
        optimizer.zero_grad()
        del optimizer
        t.net = t.optimizer = None  # type: ignore[assignment]
    gc.enable()
    return "" if all(ref() is None for ref in kept) else f"{[ref() is not None for ref in kept]} are alive"


@check
def models_can_be_traced_and_scripted(t: Training) -> str:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(10, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    net = Plain()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        net(t.x).sum().backward()
        optimizer.step()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        traced = torch.jit.trace(net, t.x)
    if any(w.category is torch.jit.TracerWarning for w in seen):  # what is looked up of tensors would be traced, too
        return "; ".join(str(w.message) for w in seen)
    want = net.eval()(t.x)
    for made in (traced, torch.jit.script(net)):
        saved = io.BytesIO()
        torch.jit.save(made, saved)
        saved.seek(0)
        if not torch.equal(torch.jit.load(saved)(t.x), want):
            return f"{type(made).__name__} computes something else"
    return "" if torch.jit.script(net).code == torch.jit.script(Plain()).code else "other code"


@check
def a_compiled_step_has_nothing_of_ours(t: Training) -> str:
    from torch._dynamo.utils import counters

    @torch.compile(backend="eager")
    def compiled() -> None:
        t.optimizer.step()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            t.optimizer.zero_grad()
            F.cross_entropy(t.net(t.x), t.y).backward()
            before = t.net.body[0].weight.detach().clone()
            compiled()
            if torch.equal(before, t.net.body[0].weight):
                return "the step has changed nothing"
    reasons = [*counters["graph_break"], *(str(w.message) for w in seen)]
    return "; ".join(reason for reason in reasons if "headroom" in reason or "monotonic" in reason)


class Taken(nn.Module):
    """Takes anything with a tensor in it."""

    def __init__(self, take: Callable[[Any], Tensor], give: Callable[[Tensor], Any] = lambda t: t) -> None:
        super().__init__()
        self.body, self.take, self.give = nn.Linear(10, 5), take, give

    def forward(self, given: Any) -> Any:
        return self.give(self.body(self.take(given)))


def trained(net: nn.Module, given: Callable[[], Any], of: Callable[[Any], Tensor] = lambda t: t) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        of(net(given())).sum().backward()
        optimizer.step()
        with torch.no_grad():
            net.eval()(given())
        net.train()


class Pair(collections.namedtuple("Pair", "x mask")):
    made = 0

    def __new__(cls, x: Any, mask: Any) -> Pair:
        cls.made += 1
        if x.shape[0] != mask.shape[0]:
            raise ValueError("a bad batch")
        return super().__new__(cls, x, mask)


class Registered:
    made = 0

    def __init__(self, x: Tensor, mask: Tensor) -> None:
        Registered.made += 1
        self.x, self.mask, self.rows = x, mask, x.shape[0]


pytree.register_pytree_node(Registered, lambda g: ([g.x, g.mask], None), lambda leaves, _: Registered(*leaves))


@check
def arguments_are_not_built_anew(t: Training) -> str:
    for kind in (Pair, Registered):
        trained(Taken(lambda g: g.x * g.mask), lambda kind=kind: kind(torch.randn(3, 10), torch.ones(3, 1)))  # type: ignore[misc]
        if kind.made != 6:
            return f"{kind.__name__} was made {kind.made} times instead of 6"
    return ""


@check
def any_argument_and_any_result_will_do(t: Training) -> str:
    from headroom_train.tape.recorded_module import record_of

    def cycle() -> dict:
        batch: dict = {"x": torch.randn(3, 10)}
        batch["batch"] = batch
        return batch

    def itself(result: Tensor) -> dict:
        results: dict = {"out": result}
        results["self"] = results
        return results

    trained(Taken(lambda batch: batch["x"]), cycle)
    t.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})  # begins a search for modules
    only = Taken(lambda batch: batch["x"]).eval()
    with torch.no_grad():
        only(cycle())
    found = record_of(only)
    if found is None or "RecursionError" not in found.why_not:
        return f"a module that is only called without gradients: {found}"
    trained(Taken(lambda x: x, itself), lambda: torch.randn(3, 10), lambda results: results["out"])
    trained(
        Taken(lambda x: x),
        lambda: torch.nested.nested_tensor([torch.randn(2, 10), torch.randn(3, 10)]),
        lambda out: out.to_padded_tensor(0.0),
    )
    packed: Callable = nn.utils.rnn.pack_padded_sequence
    trained(
        nn.LSTM(10, 5, batch_first=True),
        lambda: packed(torch.randn(3, 7, 10), [7, 5, 2], batch_first=True),
        lambda out: out[0].data,
    )
    return ""


@check
def what_cannot_be_recorded_is_named(t: Training) -> str:
    batch: dict = {"x": torch.randn(3, 10)}
    batch["batch"] = batch
    net: Any = Taken(lambda batch: batch["x"])
    net.body = net.body.weight  # a module inside would be recorded in its place
    net.forward = lambda batch: F.linear(net.take(batch), net.body)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    from headroom_train import _torch

    for failing in (False, True):  # the first call is the one that is found to be impossible to record
        net.take = (lambda batch: batch["none"]) if not failing else (lambda batch: batch["x"])
        try:
            net(batch)
        except KeyError as e:
            if e.__context__ is not None:
                return f"raised while {e.__context__!r} was handled"
    with Injector(Fault("once", 0)) as injector:
        injector.begin()
        try:
            net(batch)
            return "nothing failed"
        except torch.OutOfMemoryError:
            pass
    optimizer.step()
    told = _torch._recorder.report.told[-1]["why"]  # type: ignore[union-attr]
    return "" if told.startswith("a call of Taken could not be recorded: RecursionError") else told


@check
def a_copy_made_of_attributes_is_itself(t: Training) -> str:
    """As learn2learn's ``clone_module`` makes it, and DataParallel its replicas."""
    clone = Net.__new__(Net)
    clone.__dict__ = t.net.__dict__.copy()
    clone._modules = {"body": mlp(10, 12, 5)}
    if not torch.equal(clone(t.x), clone.body(t.x)):
        return "the copy calls the original"
    return "" if torch.equal(t.net(t.x), t.net.body(t.x)) else "the original calls something else"


@check
def what_is_not_needed_is_not_kept(t: Training) -> str:
    """Calls without backward, as in a validation without no_grad, whose results replace each other or are
    detached."""
    gc.disable()
    said = []
    for keeps in (False, True):
        inputs, history = [], []
        for _ in range(60):
            x = torch.randn(7, 10)
            inputs.append(weakref.ref(x))
            out = t.net(x).pow(2).mean()
            history += [out.detach(), out > 0] if keeps else []
        del x
        said.append(sum(ref() is not None for ref in inputs))
        if any(type(v) is not Tensor for v in history[:-2]):
            return f"a detached value stays a {type(history[0])}"
    del out
    x = torch.randn(7, 10)
    alone, value = weakref.ref(x), t.net(x).mean().detach()
    del x
    gc.enable()
    if type(value) is not Tensor or alone() is not None:
        return f"a detached value is a {type(value)}, and its input is {alone()}"
    return "" if max(said) <= 4 else f"{said} of 60 inputs are alive"


@check
def a_shortened_tape_is_replayed(t: Training) -> str:
    """A sum over several calls, between which other calls have been forgotten."""

    def losses() -> Tensor:
        torch.manual_seed(1)
        total = torch.zeros(())
        for i in range(12):
            x = torch.randn(7, 10)
            out = t.net(x).pow(2).mean()
            if i % 4 == 0:
                total = total + out
        return total

    grads = []
    said = 0
    for at in (-1, 40, 100, 170):
        t.net.zero_grad()
        with Injector(Fault("once", at)) as injector:
            total = losses()
            injector.begin()
            total.backward()
        said += len(injector.raised)
        grads.append([p.grad.clone() for p in t.net.parameters() if p.grad is not None])
    if said == 0:
        return "nothing failed"
    return "" if all(close(a, b) for other in grads[1:] for a, b in zip(grads[0], other)) else "other gradients"


@check
def what_a_result_is_compared_with_is_let_go(t: Training) -> str:
    """A script compares a result with large tensors, for a log: few of them live until its backward pass."""
    import weakref

    wrong = []
    for large in (1 << 20, 1 << 10):
        out = t.net(torch.randn(large, 10))
        kept = []
        for _ in range(8):
            other = torch.randn(large, 5)
            kept.append(weakref.ref(other))
            with torch.no_grad():
                (out - other).abs().mean().item()
        del other
        there = sum(ref() is not None for ref in kept)
        if (there <= 2) != (large == 1 << 20):
            wrong.append(f"{there} of 8 with {large} rows are alive")
        t.net.zero_grad()
        out.mean().backward()
    return ", ".join(wrong)


@check
def a_module_that_compiles_itself_is_compiled(t: Training) -> str:
    from headroom_train.tape.recorded_module import record_of

    net = mlp(10, 12, 5)
    for late in (False, True):  # before modules are looked for, and once it has been found and the search is over
        net.compile(backend="eager", fullgraph=True)
        before = net._compiled_call_impl
        optimizer = optimizer if late else torch.optim.SGD(net.parameters(), lr=0.1)  # noqa: F821
        for _ in range(3):
            net(torch.randn(3, 10)).sum().backward()
            optimizer.step()
        found = record_of(net)
        if found is None or found.inner is not before:
            return f"{found}, {before}"
        copied = mlp(10, 12, 5)
        copied.__dict__ = {**net.__dict__, "_modules": copied._modules}
        if not torch.equal(copied(t.x), before(t.x)) or copied._compiled_call_impl is not before:  # as without headroom
            return "a copy of its attributes calls something else"
    return ""


@check
def a_parameter_made_of_a_result_is_a_parameter(t: Training) -> str:
    made = nn.Parameter(t.net(t.x).detach())
    plain = nn.Parameter(torch.ones(3))
    t.net.register_parameter("proto", made)
    if (
        type(made) is not nn.Parameter
        or repr(made)[:20] != repr(plain)[:20]
        or inspect.signature(nn.Parameter) != SIGNATURE
    ):
        return f"{type(made)} {made!r:.40} {inspect.signature(nn.Parameter)}"
    other = nn.Parameter(t.net(t.x), requires_grad=False)
    return "" if type(other) is nn.Parameter and not other.requires_grad else f"{type(other)}"


@check
def classes_and_modes_of_the_script_see_its_own_calls(t: Training) -> str:
    """Not what is looked up to record them."""
    from torch.overrides import TorchFunctionMode

    class Counting(Tensor):
        calls: ClassVar[list[str]] = []

        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            cls.calls.append(getattr(func, "__name__", "?"))
            return super().__torch_function__(func, types, args, kwargs or {})

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            functions.append(getattr(func, "__name__", "?"))
            read.append(getattr(getattr(func, "__self__", None), "__name__", "?"))
            return func(*args, **(kwargs or {}))

    class Operations(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operations.append(str(func))
            return func(*args, **(kwargs or {}))

    functions: list[str] = []
    read: list[str] = []  # properties
    operations: list[str] = []
    from headroom_train import _torch
    from headroom_train.tape.idle import shapes_of

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
            return g * 2

    recorder: Any = _torch._recorder
    recorder.idle.may = lambda known, args, kwargs: shapes_of(args, kwargs) == ()
    said = []
    for watched in (True, False):
        recorder.observe = None if watched else "as requested"
        x = torch.randn(7, 10).as_subclass(Counting)
        for kept in (Counting.calls, functions, operations):
            kept.clear()
        t.net(x).pow(2).mean().backward()
        with torch.no_grad():
            for _ in range(3):
                t.net(x)
        with Functions(), Operations():
            t.optimizer.zero_grad()
            F.cross_entropy(Twice.apply(t.net(t.x)), t.y).backward()
        read.clear()
        with Functions():
            t.optimizer.step()
        if "_version" in read:
            return f"the optimizer's step reads {collections.Counter(read)}"
        said.append((list(Counting.calls), sorted(functions), sorted(operations)))
    return (
        ""
        if said[0] == said[1]
        else "; ".join(f"{collections.Counter(a)} instead of {collections.Counter(b)}" for a, b in zip(*said) if a != b)
    )


@check
def a_teacher_gets_plain_tensors(t: Training) -> str:
    """PyTorch's encoder has a fast path, which rounds otherwise, for tensors whose class has no
    ``__torch_function__``."""
    seen = []

    class Teacher(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(5, 5)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(type(x) is Tensor)
            return self.body(x)

    teacher = Teacher().eval().requires_grad_(False)
    t.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})  # begins a search for modules
    for _ in range(2):
        t.batch()
        out = t.net(t.x)
        with torch.no_grad():
            wanted = teacher(out)
        F.mse_loss(out, wanted).backward()
        t.optimizer.step()
    return "" if seen == [True, True] else f"{seen}"


@check
def a_result_is_a_tensor_of_torch_by_name(t: Training) -> str:
    """Libraries that do not import torch, such as wandb, tensorboardX and opt_einsum, tell a tensor by the name and the
    module of its class."""
    kind = type(t.net(t.x))
    return "" if kind is not Tensor and (str(kind), kind.__module__) == (str(Tensor), "torch") else f"{kind}"


@check
def a_debugger_sees_each_line_once(t: Training) -> str:
    """A tracer, and a profiler, see no function that looks like one of the script's."""
    seen: list[str] = []

    def step() -> None:
        out = t.net(t.x)
        loss = out.square().mean() * 2
        loss.backward()
        t.optimizer.step()

    def tracer(frame: Any, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename == __file__ and frame.f_code.co_name == "step":
            seen.extend([event] if not event.startswith("c_") else [])
            return tracer
        return None

    for look in (sys.settrace, sys.setprofile):
        look(tracer)
        step()
        look(None)
    want = ["call", *["line"] * 4, "return", "call", "return"]
    return "" if seen == want else f"{seen}"
