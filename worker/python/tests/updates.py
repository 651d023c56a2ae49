"""Checks scripts that have no optimizer, and change their weights by themselves.

python updates.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trial
from compare import close
from forked import status
from inject import Whole

trial.attach()
from headroom_train import _torch  # noqa: E402
from headroom_train.tape.recorded_module import record_of  # noqa: E402
from headroom_train.tape.tape import Recorded  # noqa: E402

ROWS = 12
FAILS = ("aten.addmm.default", "aten.gelu_backward.default", "aten._log_softmax.default")


def through_data(net: nn.Module) -> None:
    for p in net.parameters():
        p.data.add_(p.grad, alpha=-0.5)  # type: ignore[arg-type]


def under_no_grad(net: nn.Module) -> None:
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.5 * p.grad  # type: ignore[operator]


def trained(update: Callable[[nn.Module], None], fails: str) -> tuple[list[Tensor], list[float]]:
    """The weights after some steps, in which an operation may fail on the whole batch, and what the script prints, some
    of it after the weights have changed."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 5))
    x, y, said = torch.randn(ROWS, 6), torch.arange(ROWS) % 5, list[float]()
    for _ in range(5):
        net.zero_grad()
        with Whole(fails, ROWS) if fails else nullcontext():
            out = net(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
        update(net)
        said += [loss.item(), float((out.argmax(1) == y).float().mean()), float(out.detach().sum())]
    return [p.detach() for p in net.parameters()], said


def told() -> list[dict[str, Any]]:
    return _torch._recorder.report.told  # type: ignore[union-attr]


def exact(update: Callable[[nn.Module], None]) -> str:
    weights, said = trained(update, "")
    for fails in FAILS:
        before = len(told())
        got, values = trained(update, fails)
        off = max(float((a - b).abs().max()) for a, b in zip(weights, got))
        apart = max(abs(a - b) for a, b in zip(said, values))
        if off > 1e-5 or apart > 1e-5 or {t.get("way") for t in told()[before:]} != {"pieces"}:
            return f"{fails}: weights {off:.1g}, printed {apart:.1g}, {told()[before:]}"
    return ""


def weights_change_through_data() -> str:
    return exact(through_data)


def weights_change_under_no_grad() -> str:
    return exact(under_no_grad)


def steps_are_counted() -> str:
    steps = lambda: _torch._recorder.report.steps  # type: ignore[union-attr]  # noqa: E731
    net, x = nn.Linear(6, 5), torch.randn(ROWS, 6)
    for _ in range(3):
        net.zero_grad()
        for part in x.chunk(2):  # accumulated gradients are one step
            net(part).sum().backward()
        under_no_grad(net)
    net(x)
    return "" if steps() == 3 else f"{steps()} steps"


def results_beside_the_loss_have_the_old_weights() -> str:
    """The script reads a result that is in no loss once the weights have changed."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5)), torch.randn(ROWS, 6)
    want = net(x.flip(1)).detach().clone()
    with Whole("aten.gelu.default", ROWS):
        out, beside = net(x), net(x.flip(1))
        out.square().mean().backward()
        through_data(net)
        try:
            return "" if close(beside.detach() + 0, want) else "other results"
        except torch.OutOfMemoryError:
            return f"{told()}"


def old_results_of_new_weights_are_refused() -> str:
    """A result that no backward pass has kept is not computed with other weights, although no version has changed."""
    net, x = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5)), torch.randn(ROWS, 6)
    with Whole("aten.gelu.default", ROWS):
        out = net(x)
        for p in net.parameters():
            p.data.add_(0.1)
        try:
            return f"{out.detach().sum()} with new weights"
        except torch.OutOfMemoryError:
            return "" if "parameters have been changed" in told()[-1]["why"] else f"{told()}"


def once_there_is_an_optimizer_it_says_what_is_trained() -> str:
    """A network that is called before the optimizer of another one is made is taken to be trained only until then."""
    net, teacher, x = nn.Linear(6, 5), nn.Linear(6, 5), torch.randn(ROWS, 6)
    before = type(teacher(x)) is Recorded and type(net(x)) is Recorded
    torch.optim.SGD(net.parameters(), lr=0.1)
    after = type(net(x)) is Recorded and type(teacher(x)) is Tensor and not record_of(teacher).trained
    return "" if before and after else f"{before} before, {after} after"


def what_is_not_trained_is_left_alone() -> str:
    """Without an optimizer: calls in evaluation mode, without gradients, and with frozen parameters."""
    net, frozen, x = nn.Linear(6, 5).eval(), nn.Linear(6, 5).requires_grad_(False), torch.randn(ROWS, 6)
    found = [type(net(x)) is Tensor, type(frozen(x)) is Tensor]
    with torch.no_grad():
        net.train()(x)
    return "" if all(found) and record_of(net) is record_of(frozen) is None else f"{found}"


def the_search_ends_if_nothing_is_trained() -> str:
    net, x = nn.Linear(6, 5).eval(), torch.randn(ROWS, 6)
    for _ in range(_torch.MANY):
        net(x)
    return "" if type(vars(nn.Module)["_compiled_call_impl"]) is not _torch.Looking else "modules are still looked for"


Taken = dict[Tensor, Tensor]  # by parameter, what its hook has added up


def adds(p: Tensor, taken: Taken, grad: Any) -> None:
    taken[p].add_(grad)
    p.grad = None  # nothing tells any more that there was one


def after_adding(p: Tensor, taken: Taken) -> Any:
    """As Megatron and Apex have it."""
    return p.register_post_accumulate_grad_hook(lambda q: adds(p, taken, q.grad))


def on_the_gradient(p: Tensor, taken: Taken) -> Any:
    return p.register_hook(lambda grad: adds(p, taken, grad))


def on_the_node(p: Tensor, taken: Taken) -> Any:
    node = p.expand_as(p).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    node.register_hook(lambda *_: adds(p, taken, p.grad))
    return node


def before_the_node(p: Tensor, taken: Taken) -> Any:
    node = p.expand_as(p).grad_fn.next_functions[0][0]  # type: ignore[union-attr]

    def hook(grads: tuple) -> None:
        taken[p].add_(grads[0])

    node.register_prehook(hook)
    return node


def on_several(p: Tensor, taken: Taken) -> Any:
    return torch.autograd.graph.register_multi_grad_hook([p], lambda grads: adds(p, taken, grads[0]))


SPELLINGS = (after_adding, on_the_gradient, on_the_node, before_the_node, on_several)


@contextmanager
def fails_once(name: str) -> Iterator[None]:
    """A context in which the operation of this name does not fit on the whole batch."""
    with Whole(name, ROWS) if name else nullcontext():
        yield


def taken_by(hook: Callable, fails: str, which: Callable[[list], list] = lambda params: params) -> tuple[list, str]:
    """What hooks on parameters have added up in a step in which an operation may fail, and why the step was refused."""
    torch.manual_seed(0)
    net, scale = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5)), nn.Parameter(torch.ones(()))
    x, y = torch.randn(ROWS, 6), torch.arange(ROWS) % 5
    params = [*net.parameters(), scale]
    taken = {p: torch.zeros_like(p) for p in params}
    kept = [hook(p, taken) for p in which(params)]
    hooks = [[*(p._backward_hooks or ()), *(p._post_accumulate_grad_hooks or ())] for p in params]
    why = ""
    try:
        with fails_once(fails):
            (F.cross_entropy(net(x), y) * scale).backward()
    except torch.OutOfMemoryError:
        why = str(told()[-1].get("why"))
    if [[*(p._backward_hooks or ()), *(p._post_accumulate_grad_hooks or ())] for p in params] != hooks:
        why = "other hooks than before"
    assert kept is not None
    return [t + (0 if p.grad is None else p.grad) for p, t in taken.items()], why


def none_twice(wanted: list, got: list) -> bool:
    """Whether each gradient is there once, or not at all."""
    return all(close(w, g) or not g.any() for w, g in zip(wanted, got))


def gradients_that_a_hook_has_taken_count_once() -> str:
    """Backward fails after some hooks have run, which may have taken gradients away or added them elsewhere."""
    for hook in SPELLINGS:
        wanted = taken_by(hook, "")[0]
        for fails in ("aten.gelu_backward.default", "aten._log_softmax_backward_data.default"):
            got, why = taken_by(hook, fails)
            if not none_twice(wanted, got) or "hook" not in why:
                return f"{hook.__name__}, {fails}: {[(w - g).abs().max().item() for w, g in zip(wanted, got)]}, {why}"
    return ""


def hooks_that_have_not_run_change_nothing() -> str:
    """Backward fails before it comes to the parameters with hooks: the step goes on, and each hook runs once."""
    first = lambda params: params[:2]  # noqa: E731
    for fails in ("", "aten._log_softmax_backward_data.default", "aten.gelu_backward.default", "aten.addmm.default"):
        wanted, (got, why) = taken_by(after_adding, "", first)[0], taken_by(after_adding, fails, first)
        if why or not all(map(close, wanted, got)):
            return f"{fails}: {[(w - g).abs().max().item() for w, g in zip(wanted, got)]}, {why}"
    return ""


def a_hook_that_fails_has_run() -> str:
    """A hook has added the gradient up, and then needs memory that is not there; or another one does, while the
    gradients of a step that has been made again are handed back."""

    def hook(p: Tensor, taken: Taken) -> Any:
        def work(q: Tensor) -> None:
            adds(q, taken, q.grad)
            if q.shape == (16, 6):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (injected)")

        return p.register_post_accumulate_grad_hook(work)

    wanted = taken_by(after_adding, "")[0]
    for which in (lambda params: params, lambda params: params[:2], lambda params: params[:1]):
        for fails in ("", "aten.gelu_backward.default"):
            got, why = taken_by(hook, fails, which)
            if not none_twice(wanted, got) or not why:
                return f"{fails}: {[(w - g).abs().max().item() for w, g in zip(wanted, got)]}, {why}"
    return ""


def a_step_within_backward_is_told_as_such() -> str:
    """An optimizer steps inside a backward pass that then fails: the step has ended there."""

    class Steps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
            optimizer.step()
            return grad

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(Steps.apply(F.gelu(self.first(x))))

    net, other = Net(), nn.Linear(6, 5)
    optimizer = torch.optim.SGD([*other.parameters(), *net.parameters()], lr=0.1)
    x, y = torch.randn(ROWS, 6), torch.arange(ROWS) % 5
    for fails in ("", "aten.gelu_backward.default"):
        try:
            with fails_once(fails):
                F.cross_entropy(net(x), y).backward()
        except torch.OutOfMemoryError:
            return "" if "a step of an optimizer was made" in told()[-1]["why"] else f"{told()[-1]}"
    return "nothing has failed"


def grown(at: int, layers: Callable[[], list[nn.Module]], fails: str) -> tuple[list[float], list[str]]:
    """The losses of some steps that may fail, before one of which the model has got more layers; and how steps went."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y, said, before = torch.randn(ROWS, 6), torch.arange(ROWS) % 5, list[float](), len(told())
    for i in range(5):
        if i == 3:
            for layer in reversed(layers()):
                net.insert(at, layer)
                if [*layer.parameters()]:
                    optimizer.add_param_group({"params": layer.parameters()})
        optimizer.zero_grad()
        try:
            with fails_once(fails if i else ""):
                loss = F.cross_entropy(net(x), y)
                loss.backward()
        except torch.OutOfMemoryError:
            break
        optimizer.step()
        said.append(loss.item())
    return said, [str(t.get("why")) for t in told()[before:]]


def a_model_may_grow_between_steps() -> str:
    """A layer is inserted, or appended, after a step that was survived: the next step is another model's."""
    more: dict[str, tuple[int, Callable[[], list[nn.Module]]]] = {
        "inserted": (2, lambda: [nn.Linear(16, 16), nn.GELU()]),
        "appended": (5, lambda: [nn.Linear(5, 5)]),
        "without parameters": (2, lambda: [nn.Tanh()]),
    }
    for name, (at, layers) in more.items():
        for fails in ("aten.gelu.default", *FAILS):
            wanted, (got, whys) = grown(at, layers, "")[0], grown(at, layers, fails)
            if len(got) < len(wanted) or max(abs(a - b) for a, b in zip(wanted, got)) > 1e-5:
                return f"{name}, {fails}: {wanted}, {got}, {whys}"
    return ""


def results_of_a_model_that_has_grown_since_are_refused() -> str:
    net, x = nn.Sequential(nn.Linear(6, 5)), torch.randn(ROWS, 6)
    with fails_once("aten.addmm.default"):
        out = net(x)
        net.append(nn.Linear(5, 5))
        try:
            return f"{out.detach().sum()} of another model"
        except torch.OutOfMemoryError:
            return "" if "has got other parameters" in told()[-1]["why"] else f"{told()[-1]}"


CHECKS = [
    weights_change_through_data, weights_change_under_no_grad, steps_are_counted,
    results_beside_the_loss_have_the_old_weights, old_results_of_new_weights_are_refused,
    once_there_is_an_optimizer_it_says_what_is_trained, what_is_not_trained_is_left_alone,
    the_search_ends_if_nothing_is_trained, gradients_that_a_hook_has_taken_count_once,
    hooks_that_have_not_run_change_nothing, a_hook_that_fails_has_run, a_step_within_backward_is_told_as_such,
    a_model_may_grow_between_steps, results_of_a_model_that_has_grown_since_are_refused,
]  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(status(CHECKS))
