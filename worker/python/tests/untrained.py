"""Checks modules that are called without gradients and are not trained: teachers, reference models,
averages of the weights.

    python untrained.py
"""

from __future__ import annotations

import copy
import functools
import gc
import queue
import sys
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trial
from compare import close
from forked import status
from inject import Fault, Injector, Whole
from loops_composed import mlp
from manners import Failing

trial.attach()
from headroom_train import _torch  # noqa: E402
from headroom_train.tape.recorded_module import record_of  # noqa: E402
from headroom_train.tape.tape import Recorded  # noqa: E402
from headroom_train.tape.trained import Trained  # noqa: E402

ROWS = 7
STUDENT = nn.Linear(10, 5)


def step(student: nn.Module = STUDENT, optimizer: torch.optim.Optimizer | None = None) -> None:
    optimizer = optimizer or torch.optim.SGD(student.parameters(), lr=0.1)
    optimizer.zero_grad()
    F.cross_entropy(student(torch.randn(ROWS, 10)), torch.randint(0, 5, (ROWS,))).backward()
    optimizer.step()


def told() -> list[dict[str, Any]]:
    return _torch._recorder.report.told  # type: ignore[union-attr]


def failing(call: Callable[[], Any]) -> Any:
    """The result of a call whose second operation never fits with all rows."""
    with Injector(Fault("again", 1, ROWS)) as injector:
        injector.begin()
        result = call()
        injector.end()
    if not injector.raised:
        raise AssertionError("nothing failed")
    return result


def survived(module: nn.Module, x: Tensor) -> str:
    """What is wrong with a failing call without gradients; empty if it is survived with the right results."""
    with torch.no_grad():
        want = copy.deepcopy(module)(x)
        try:
            got = failing(lambda: module(x))
        except torch.OutOfMemoryError:
            return f"not survived {told()}"
    return "" if close(want, got) and type(got) is Tensor and not got.requires_grad else "other results"


def a_teacher_is_called_in_pieces() -> str:
    teacher, x = mlp(10, 12, 5).eval().requires_grad_(False), torch.randn(ROWS, 10)
    optimizer = torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    said = survived(teacher, x)  # in the first step, before the student
    step(STUDENT, optimizer)
    step(STUDENT, optimizer)
    with torch.no_grad():
        said = said or "" if close(failing(lambda: teacher(x)), copy.deepcopy(teacher)(x)) else "other results later"
    # the second batch goes in pieces straight away
    return said or ("" if [t["how"].split()[-1] for t in told()] == ["pieces"] else f"{told()}")


def it_is_not_recorded_with_gradients() -> str:
    """A network through which the student is compared (a perceptual loss) computes with gradients, too."""
    net, x = mlp(10, 12, 5).requires_grad_(False), torch.randn(ROWS, 10)
    torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    with torch.no_grad():
        net(x)
    out = net(x.requires_grad_())
    if type(out) is not Tensor or record_of(net) is None:
        return f"recorded: {type(out)}, {record_of(net)}"
    try:  # it never fits as a whole, and pieces would hold the same graph
        failing(lambda: net(x))
    except torch.OutOfMemoryError:
        return "" if told()[-1]["why"].endswith("and the call does not fit as a whole") else f"told {told()}"
    return "survived"


def one_that_computes_gradients_is_called_again() -> str:
    """The network of a perceptual loss, whose parameters nobody has frozen, on the pictures and on what the student makes
    of them: what does not fit is tried once more after cleaning up, with gradients. So is a target network."""
    return _called_again(False) or _called_again(True)


def one_that_is_trained_is_called_again_in_evaluation_mode() -> str:
    """An adversary's steps: the model that is trained is in evaluation mode, and gradients are those of the pictures."""
    torch.manual_seed(0)
    net, x, y = mlp(10, 12, 5).double(), torch.randn(ROWS, 10).double(), torch.randint(0, 5, (ROWS,))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    found = []
    for step in range(4):
        net.eval()
        worse = x.clone().requires_grad_()
        with Failing("aten.tanh.default", int(step > 1)):
            found.append(torch.autograd.grad(F.cross_entropy(net(worse), y), worse)[0])
        net.train()
        optimizer.zero_grad()
        F.cross_entropy(net(x + found[-1].sign()), y).backward()
        optimizer.step()
    if not all(torch.equal(f, found[0]) for f in found):
        return "other gradients"
    return "" if [t["how"] for t in told()] == ["the same call again"] * 2 else f"{told()}"


def _called_again(training: bool) -> str:
    torch.manual_seed(0)
    net, x = mlp(10, 12, 5).double().train(training), torch.randn(ROWS, 10).double()
    student = nn.Linear(10, 10).double()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    found = []
    for times in (0, 1):
        for at in range(2):
            net.zero_grad()
            student.zero_grad()
            fault = Failing("aten.tanh.default", times)
            with fault if at == 0 else nullcontext():
                want = net(x)
            with fault if at == 1 else nullcontext():
                loss = F.mse_loss(net(student(x)), want)
            loss.backward()
            found.append([p.grad.clone() for p in (*net.parameters(), *student.parameters())])
    optimizer.step()
    if not all(torch.allclose(a, b, atol=1e-12) for grads in found for a, b in zip(grads, found[0])):
        return "other gradients"
    return "" if [t["how"] for t in told()][:1] == ["the same call again"] else f"{told()}"


class Around(nn.Module):
    """Has weights of its own, in no optimizer, and calls a trained module that is not one of its submodules."""

    def __init__(self, trained: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(5))
        self.trained = [trained]

    def forward(self, x: Tensor) -> Tensor:
        return self.trained[0](x) * torch.ones(5).tanh() * self.scale


def one_that_calls_what_is_trained_is_not_called_again() -> str:
    net, x = Around(STUDENT), torch.randn(ROWS, 10)
    optimizer = torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    for first in (False, True):
        net(x).sum().backward()
        optimizer.step()
        out = STUDENT(x) if first else None
        try:
            with Failing("aten.tanh.default", 1):
                net(x)
            return f"called again {out}"
        except torch.OutOfMemoryError:
            if told()[-1]["why"] != "the call has called a module that is trained":
                return f"{told()}"
    return ""


def a_frozen_one_needs_no_no_grad() -> str:
    """DINO's teacher, and the network of a perceptual loss when it is given the pictures themselves: gradients are
    enabled, but nothing asks for one."""
    for training in (True, False):
        optimizer = torch.optim.SGD(STUDENT.parameters(), lr=0.1)  # modules are looked for from here on
        teacher, x = mlp(10, 12, 5).train(training), torch.randn(ROWS, 10)
        teacher.requires_grad_(False)
        for _ in range(2):
            try:
                got = failing(lambda teacher=teacher, x=x: teacher(x))  # type: ignore[misc]
            except torch.OutOfMemoryError:
                return f"not survived: {told()}"
            want = teacher(x)
            if not close(want, got) or type(got) is not Tensor or got.requires_grad:
                return "other results"
            step(STUDENT, optimizer)
        out = teacher(x.requires_grad_())
        if type(out) is not Tensor or not out.requires_grad:
            return "no gradients for what it is given"
    teacher = mlp(10, 12, 5)
    nn.utils.weight_norm(teacher[-1])  # DINO's head has it: a hook of PyTorch's own
    torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    teacher.requires_grad_(False)(x)
    return "" if record_of(teacher) is not None else "not found with a hook of PyTorch's own"


class Score(nn.Module):
    """The gradient of an energy in the places that it is given: all inside one call, with frozen weights."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(10, 12, 1).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.net(x).sum(), x)[0]


class Placed(Score):
    """Returns something with a gradient that it has made itself."""

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.detach().requires_grad_())


def a_frozen_one_may_use_gradients_inside() -> str:
    torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    x = torch.randn(ROWS, 10)
    score = Score()
    want = copy.deepcopy(score)(x)
    score(x)
    try:
        got = failing(lambda: score(x))
    except torch.OutOfMemoryError:
        got = want
    if not close(want, got):
        return "other results"
    placed = Placed()
    try:
        out = failing(lambda: placed(x))
    except torch.OutOfMemoryError:
        return ""
    return "" if out.requires_grad else "a gradient is lost"


class Adapter(nn.Module):
    """As sd-scripts' LoRA: it puts its own forward in the place of a frozen layer's, which is not one of its
    submodules."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.down = nn.Linear(layer.in_features, 2, bias=False)
        self.up = nn.Linear(2, layer.out_features, bias=False)
        self.whole, layer.forward = layer.forward, self.forward  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x) + self.up(self.down(x))


def what_is_trained_from_outside_is_recorded() -> str:
    """A frozen model whose layers add what is trained: through another ``forward``, or through a hook."""
    for hooked in (False, True):
        torch.manual_seed(0)
        net, x, y = mlp(10, 12, 5).requires_grad_(False), torch.randn(ROWS, 10), torch.randint(0, 5, (ROWS,))
        layer = next(m for m in net.modules() if isinstance(m, nn.Linear))
        if hooked:
            adapter: nn.Module = nn.Linear(layer.in_features, layer.out_features)
            layer.register_forward_hook(lambda m, given, out, adapter=adapter: out + adapter(given[0]))
        else:
            adapter = Adapter(layer)
        optimizer = torch.optim.SGD(adapter.parameters(), lr=0.1)
        want = torch.autograd.grad(F.cross_entropy(net(x), y), [*adapter.parameters()])
        optimizer.zero_grad()
        with Whole("aten.tanh.default", ROWS) as whole:
            F.cross_entropy(net(x), y).backward()
        if not whole.raised:
            raise AssertionError("nothing failed")
        if not all(close(w, p.grad) for w, p in zip(want, adapter.parameters())):
            return f"other gradients, hooked: {hooked}"
        optimizer.step()
    return "" if record_of(net) is None else "the frozen model counts as one without gradients"


def it_may_be_trained_later() -> str:
    """A validation before the training, with the optimizer of another module already made."""
    net, x = mlp(10, 12, 5), torch.randn(ROWS, 10)
    optimizer = torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    with torch.no_grad():
        net(x)
    step(STUDENT, optimizer)
    step(STUDENT, optimizer)
    torch.optim.SGD(net.parameters(), lr=0.1)
    out = net(x)
    return (
        "" if type(out) is Recorded and record_of(net).calls == 1 else ("its calls are not recorded when it is trained")
    )  # type: ignore[union-attr]


def one_under_no_grad_stays_untrained() -> str:
    torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    net = nn.Sequential(mlp(10, 12, 5), nn.Softmax(1))
    free = nn.Softmax(1)
    with torch.no_grad():
        free(net(torch.randn(ROWS, 10)))
    found = [name for name, m in net.named_modules() if record_of(m) is not None]
    if found != [""] or record_of(free) is not None:
        return f"found: {found}, {record_of(free)}"
    return ""


def an_average_is_found_when_it_is_evaluated() -> str:
    """The copy is made of a module that is recorded, and first called when no module is looked for any more."""
    net, x = mlp(10, 12, 5), torch.randn(ROWS, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        step(net, optimizer)
    averages = [copy.deepcopy(net), torch.optim.swa_utils.AveragedModel(net)]
    if any("_compiled_call_impl" in vars(m) for a in averages for m in a.modules()):
        return "a copy has the original's"
    for a in averages:
        step(net, optimizer)
        said = survived(a.eval(), x)
        if said:
            return said
        for _ in range(3):
            step(net, optimizer)
    return ""


def searches_become_rare() -> str:
    """Evaluations in every step begin fewer and fewer searches."""
    optimizer = torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    begun = []
    for i in range(40):
        step(STUDENT, optimizer)
        before = vars(nn.Module)["_compiled_call_impl"]
        STUDENT.eval()
        if before is None and vars(nn.Module)["_compiled_call_impl"] is not None:
            begun.append(i + 1)
        STUDENT.train()
    return "" if begun == [2, 4, 8, 16, 32] else f"begun after steps {begun}"


def it_is_freed_at_once() -> str:
    teacher = mlp(10, 12, 5).requires_grad_(False)
    torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    gc.collect()
    gc.disable()
    with torch.no_grad():
        for _ in range(3):
            teacher(torch.randn(ROWS, 10))
    if record_of(teacher) is None:
        return "not found"
    there = [weakref.ref(teacher), *(weakref.ref(p) for p in teacher.parameters())]
    del teacher
    return "" if all(ref() is None for ref in there) else "a teacher outlives its last name"


class Holder(nn.Module):
    """Its part is called by itself, without gradients, and only then found."""

    def __init__(self) -> None:
        super().__init__()
        self.part = mlp(10, 12, 10).requires_grad_(False)
        self.head = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x = self.part(x)
        return self.head(x)


def a_part_that_is_found_is_no_change() -> str:
    net = Holder()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step(net, optimizer)
    with torch.no_grad():
        net.part(torch.randn(ROWS, 10))
    if record_of(net.part) is None:
        return "not found"
    loss = F.cross_entropy(failing(lambda: net(torch.randn(ROWS, 10))), torch.randint(0, 5, (ROWS,)))
    loss.backward()
    optimizer.step()
    return "" if told() and "pieces" in told()[-1].get("how", "") else f"{told()}"


def attributes_that_the_script_sets_are_no_changes() -> str:
    """What a script sets between two calls is noticed in the next look, and is not taken for the call's own doing
    then."""
    teacher, x = mlp(10, 12, 5).requires_grad_(False), torch.randn(ROWS, 10)
    torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    with torch.no_grad():
        for epoch in range(4):
            teacher.epoch = epoch
            teacher(x)
    teacher.epoch = 4
    return survived(teacher, x)


class Model(nn.Module):
    """Returns rows, and a loss whose weights do not show: other counts than those of the labels are nearly as good."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
        with torch.no_grad():
            self.body[-1].weight.mul_(0.1)
            self.body[-1].bias.zero_()

    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> dict[str, Tensor]:
        z = self.body(x * mask[..., None])
        loss = F.cross_entropy(z.transpose(1, 2), y, ignore_index=-100)
        return {"loss": loss, "logits": z, "count": (y != -100).sum()}


def a_loss_that_nobody_uses_is_in_nobodys_way() -> str:
    """A reference model whose loss is not used. If it is used, that is refused."""
    torch.manual_seed(0)
    teacher, where = Model().requires_grad_(False), torch.arange(90)[None]
    torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    begins = 3 * torch.arange(12)[:, None]
    x, y = 0.3 * torch.randn(12, 90, 6), torch.randint(0, 5, (12, 90)).where(where >= begins, -100)
    with torch.no_grad():
        want = teacher(x, y, where >= begins - 1)
        for _ in range(3):
            with Whole("aten.gelu.default", 12):
                got = teacher(x, y, where >= begins - 1)
            if not close(want["logits"], got["logits"]) or got["count"] != want["count"]:
                return "other results"
        try:
            return f"the loss is {float(got['loss'])}"
        except torch.OutOfMemoryError:
            return "" if "how much each piece" in told()[-1]["why"] else f"{told()}"


def what_does_not_fit_in_pieces_any_more_is_recovered_as_any_other_call() -> str:
    """The trial of pieces from the start does not hold: then the call is made whole, and if it fails, once more."""
    net, x = mlp(10, 12, 5).requires_grad_(False), torch.randn(ROWS, 10)
    torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    sizes = _torch._recorder.evaluation  # type: ignore[union-attr]
    with torch.no_grad():
        want = net(x)
        for _ in range(2):
            with Whole("aten.addmm.default", ROWS):
                got = net(x)
            sizes.first = failing_once(type(sizes).first.__get__(sizes))
    return "" if close(want, got) else "other results"


def failing_once(work: Callable) -> Callable:
    calls = []

    def failing(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return work(*given)

    return failing


class Features:
    """As fast.ai's ``SaveFeatures``: keeps what a layer computes, in many ways."""

    at: Any = None

    def method(self, module: nn.Module, given: tuple, out: Tensor) -> None:
        self.f = out

    def there(self, module: nn.Module, given: tuple, out: Tensor) -> None:
        """An attribute that had a value before."""
        self.had = out

    had: Any = None

    def of_class(self, module: nn.Module, given: tuple, out: Tensor) -> None:
        type(self).at = out

    def __call__(self, module: nn.Module, given: tuple, out: Tensor) -> None:
        self.f = out

    def given(self, module: nn.Module, given: tuple, out: Tensor) -> None:
        self.f = given[0]

    def mean(self, module: nn.Module, given: tuple, out: Tensor) -> None:
        self.f = out.mean(0)

    def array(self, module: nn.Module, given: tuple, out: Tensor) -> None:
        self.f = out.data.numpy()


class Slotted:
    __slots__ = ("f",)

    def hook(self, module: nn.Module, given: tuple, out: Tensor) -> None:
        self.f = out


KEPT: Any = None


def keep_globally(module: nn.Module, given: tuple, out: Tensor) -> None:
    global KEPT
    KEPT = out


def keep_by_name(name: str, module: nn.Module, given: tuple, out: Tensor) -> None:
    globals()[name] = out


def keep_in(held: Any, key: Any, module: nn.Module, given: tuple, out: Tensor) -> None:
    held[key] = out


def closure(held: dict) -> Callable:
    def hook(module: nn.Module, given: tuple, out: Tensor) -> None:
        held["f"] = out

    return hook


def added(add: Callable) -> Callable:
    return lambda module, given, out: add(out)


def weakly(module: nn.Module, given: tuple, out: Tensor) -> None:
    WEAK[module] = out


WEAK: Any = weakref.WeakKeyDictionary()


def spellings(layer: nn.Module) -> dict[str, tuple[Callable, Callable[[], Any]]]:
    """By name: hooks that keep what a layer computes, and what they have kept."""
    objects = {n: Features() for n in ("method", "there", "given", "mean", "array", "callable", "setattr", "partial")}
    slotted, held, dicts, lists, queued = Slotted(), Features(), [{}, {}, {}], [[], []], queue.Queue()  # type: ignore[var-annotated]
    return {
        **{n: (getattr(objects[n], n), lambda n=n: objects[n].f) for n in ("method", "given", "mean", "array")},
        "an attribute with a value": (objects["there"].there, lambda: objects["there"].had),
        "a callable object": (objects["callable"], lambda: objects["callable"].f),
        "setattr": (lambda m, i, o, s=objects["setattr"]: setattr(s, "f", o), lambda: objects["setattr"].f),
        "slots": (slotted.hook, lambda: slotted.f),
        "a class": (held.of_class, lambda: Features.at),
        "a partial": (functools.partial(keep_in, dicts[0], "f"), lambda: dicts[0]["f"]),
        "a partial method": (functools.partial(objects["partial"].method), lambda: objects["partial"].f),
        "a default": (lambda m, i, o, d=dicts[1]: d.__setitem__("f", o), lambda: dicts[1]["f"]),
        "a closure": (closure(dicts[2]), lambda: dicts[2]["f"]),
        "a global": (keep_globally, lambda: KEPT),
        "a global by its name": (functools.partial(keep_by_name, "KEPT"), lambda: KEPT),
        "a list": (added(lists[0].append), lambda: one(emptied(lists[0]))),
        "a deque": (added(deque_of(lists[1]).append), lambda: one(emptied(DEQUES[-1]))),
        "a weak dict": (weakly, lambda: WEAK[layer]),
        "a queue": (added(queued.put), lambda: one([queued.get() for _ in range(queued.qsize())])),
    }


DEQUES: list = []
# What only a trial shows.
UNSEEN = {
    **dict.fromkeys(
        ("a weak dict", "a global by its name"),
        "a call to Sequential leaves what it computes of the rows somewhere outside the module",
    ),
    "a queue": "something gathers what calls to Sequential compute, so that none may be repeated",
}


def deque_of(values: list) -> deque:
    DEQUES.append(deque(values))
    return DEQUES[-1]


def emptied(values: Any) -> list:
    return [values.pop() for _ in range(len(values))]


def one(values: Any) -> Any:
    if len(values) != 1:
        raise AssertionError(f"{len(values)} features are kept")
    return values[0]


def what_hooks_keep_is_that_of_the_whole_batch() -> str:
    """Or the failure is the script's: pieces would leave those of the last piece."""
    wrong, x = [], torch.randn(ROWS, 10)
    for name in spellings(nn.Identity()):
        for at in (0, 2):
            for frozen in (False, True):
                torch.manual_seed(0)
                teacher = mlp(10, 12, 5).eval().requires_grad_(False)
                hook, kept = spellings(teacher[at])[name]
                torch.optim.SGD(STUDENT.parameters(), lr=0.1)
                with torch.set_grad_enabled(frozen):
                    teacher(x)  # found as one that is not trained
                    want = teacher[: at + 1](x)
                    want = x if name == "given" and not at else teacher[:at](x) if name == "given" else want
                    teacher[at].register_forward_hook(hook)
                    try:
                        failing(lambda teacher=teacher: teacher(x))
                    except torch.OutOfMemoryError:
                        if told()[-1]["why"] != UNSEEN.get(name, "a call changes an attribute"):
                            wrong.append(f"{name}: {told()[-1]}")
                        continue
                    got = torch.as_tensor(kept())
                if not close(want.mean(0) if name == "mean" else want, got):
                    wrong.append(f"{name} at {at}, frozen: {frozen}")
    return f"other features or reasons: {wrong}" if wrong else ""


def hooks_of_a_call_that_is_made_again_have_run_once() -> str:
    """A call that fails after a hook has run: in its first call, in the first with the hook, or in a later one."""
    wrong, x = [], torch.randn(ROWS, 10)
    for name in spellings(nn.Identity()):
        for when in ("at first", "with a new hook", "later"):
            torch.manual_seed(0)
            net = mlp(10, 12, 5).eval().requires_grad_(False)
            hook, kept = spellings(net[0])[name]
            torch.optim.SGD(STUDENT.parameters(), lr=0.1)
            with torch.no_grad():
                out = net[0](x)
                for _ in range(0 if when == "at first" else 4):
                    net(x)
                net[0].register_forward_hook(hook)
                for _ in range(3 if when == "later" else 0):
                    net(x)
                    kept()
                try:
                    with Failing("aten.tanh.default", 1):
                        net(x)
                except torch.OutOfMemoryError:
                    if name not in UNSEEN:
                        wrong.append(f"{name}, {when}: {told()[-1]}")
                    continue
                try:
                    got = torch.as_tensor(kept())
                except AssertionError as e:
                    wrong.append(f"{name}, {when}: {e}")
                    continue
            if not close(x if name == "given" else out.mean(0) if name == "mean" else out, got):
                wrong.append(f"{name}, {when}")
    return "\n".join(wrong)


def what_an_optimizer_had_may_be_gone() -> str:
    """A parameter that is made later may get the id of one that was trained."""
    trained = Trained()
    if trained:
        return "something is trained"
    kept, dropped = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    trained.add([kept, dropped])
    known = id(dropped)
    del dropped
    later = [torch.ones(2) for _ in range(100)]
    same = [p for p in later if id(p) == known]
    if not same:
        return "no tensor has got the id"
    return "" if trained and kept in trained and same[0] not in trained else "other parameters are trained"


def what_gathers_may_come_later() -> str:
    """A hook that gathers what nobody can see, on a model whose calls have been run in pieces: a trial has put something
    into it, so that such a call is not made in another way either."""
    teacher, x, seen = mlp(10, 12, 5).eval().requires_grad_(False), torch.randn(ROWS, 10), queue.SimpleQueue[Tensor]()
    torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    with torch.no_grad():
        failing(lambda: teacher(x))
        teacher[0].register_forward_hook(added(seen.put))
        try:
            teacher(x)
        except torch.OutOfMemoryError:
            return "" if told()[-1]["why"] == UNSEEN["a queue"] else f"{told()[-1]}"
    return f"{seen.qsize()} results of 1 call"


def one_that_was_large_without_gradients_is_made_whole_with_them() -> str:
    """Calls without gradients have been run in pieces. With gradients they are not: pieces would hold the same graph."""
    net, x = mlp(10, 12, 5).eval(), torch.randn(ROWS, 10)
    torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    with torch.no_grad():
        failing(lambda: net(x))
    try:
        failing(lambda: net(x))
    except torch.OutOfMemoryError:
        return ""
    return "made in pieces"


def one_with_hooks_is_not_called_again() -> str:
    """With gradients nothing tells what its hooks have done by then."""
    net, x, seen = mlp(10, 12, 5).eval(), torch.randn(ROWS, 10), queue.SimpleQueue[Tensor]()
    torch.optim.SGD(STUDENT.parameters(), lr=0.1)
    net(x)  # found without hooks
    net[0].register_forward_hook(added(seen.put))
    try:
        with Failing("aten.tanh.default", 1):
            net(x)
    except torch.OutOfMemoryError:
        pass
    return "" if seen.qsize() == 1 else f"{seen.qsize()} results of 1 call"


CHECKS = [
    a_teacher_is_called_in_pieces, it_is_not_recorded_with_gradients, one_that_computes_gradients_is_called_again,
    one_that_calls_what_is_trained_is_not_called_again, one_that_is_trained_is_called_again_in_evaluation_mode,
    one_that_was_large_without_gradients_is_made_whole_with_them, what_an_optimizer_had_may_be_gone, what_gathers_may_come_later, one_with_hooks_is_not_called_again, a_frozen_one_needs_no_no_grad, a_frozen_one_may_use_gradients_inside,
    what_is_trained_from_outside_is_recorded,
    it_may_be_trained_later, one_under_no_grad_stays_untrained,
    an_average_is_found_when_it_is_evaluated, searches_become_rare, it_is_freed_at_once, a_part_that_is_found_is_no_change,
    attributes_that_the_script_sets_are_no_changes, a_loss_that_nobody_uses_is_in_nobodys_way,
    hooks_of_a_call_that_is_made_again_have_run_once,
    what_does_not_fit_in_pieces_any_more_is_recovered_as_any_other_call, what_hooks_keep_is_that_of_the_whole_batch,
]  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(status(CHECKS))
