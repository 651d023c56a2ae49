"""Checks trainings outside the main thread, and several threads that call modules.

python threads.py
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trial
from compare import close
from forked import status
from inject import Fault, Injector
from loops_composed import mlp

trial.attach()
from headroom_train import _torch  # noqa: E402
from headroom_train.tape.recorded_module import record_of  # noqa: E402
from headroom_train.tape.tape import Recorded  # noqa: E402

ROWS = 7
SECONDS = 30  # after which a thread that waits gives up


def recorder() -> Any:
    return _torch._recorder


def in_thread(work: Callable[[], Any]) -> Any:
    """Runs ``work`` in a thread that has ended when this returns."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result(SECONDS)


def wait(event: threading.Event) -> None:
    if not event.wait(SECONDS):
        raise TimeoutError


def remarks() -> list[tuple[str, str]]:
    said: list[tuple[str, str]] = []
    recorder().report.remark = lambda text, level="info": said.append((text, level))
    return said


class Training:
    """A loop with a model of its own; every instance computes the same."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = mlp(10, 12, 5)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.given = [(torch.randn(ROWS, 10), torch.randint(0, 5, (ROWS,))) for _ in range(5)]
        self.made = 0

    def loss(self) -> Tensor:
        x, y = self.given[self.made]
        self.made += 1
        self.out = self.net(x)
        return F.cross_entropy(self.out, y)

    def step(self, at: int = -1) -> None:
        """Makes a step. Operation ``at`` never fits with all rows."""
        self.optimizer.zero_grad()
        with Injector(Fault("again", at, ROWS) if at >= 0 else None) as injector:
            injector.begin()
            self.loss().backward()
            injector.end()
        self.optimizer.step()
        if at >= 0 and not injector.raised:
            raise AssertionError("nothing failed")

    def steps(self, n: int) -> Training:
        for _ in range(n):
            self.step()
        return self


def same(a: Training, b: Training) -> bool:
    return a.made == b.made and all(close(x, y) for x, y in zip(a.net.parameters(), b.net.parameters()))


WANT = Training().steps(4)  # on the main thread


def told() -> list[str]:
    return [t.get("how", t["why"]) for t in recorder().report.told]


def a_training_in_a_thread_goes_on() -> str:
    """After the main thread has trained, and has ended nothing."""
    for at in range(3, 40, 3):
        t = Training()

        def work(t: Training = t, at: int = at) -> None:
            t.steps(2)
            t.step(at)
            t.step()

        try:
            in_thread(work)
        except AssertionError:
            break
        if not same(t, WANT):
            return f"other weights after a failure of operation {at}"
    n = len(told())  # an operation may be our own, whose failure is not reported
    return "" if 8 < n >= at // 3 - 2 and all("pieces" in how for how in told()) else f"{n} of {at // 3}: {told()}"


def a_thread_follows_one_that_ended() -> str:
    """Ids of threads are used again, and an open tape of a thread that has ended stands in nobody's way."""
    left = []
    for _ in range(3):
        t = Training()

        def work(t: Training = t) -> int:
            t.steps(2)
            t.step(5)
            t.step()
            left.append(t.loss())  # a step that is never finished
            return threading.get_ident()

        in_thread(work)
        t.made -= 1
        if not same(t, WANT):
            return "other weights"
    return "" if len(told()) == 3 else f"{told()}"


def beside(first: Training, second: Callable[[], Any]) -> Any:
    """Calls ``second`` in another thread while ``first`` is between its loss and its backward on this one."""
    first.optimizer.zero_grad()
    loss = first.loss()
    result = in_thread(second)
    loss.backward()
    first.optimizer.step()
    return result


def two_threads_with_two_models() -> str:
    said = remarks()
    a, b = Training().steps(2), Training()
    in_thread(lambda: b.steps(2))  # one after the other
    if said:
        return f"said too early: {said}"
    a.step()
    outs: list[Any] = []

    def second() -> None:
        for _ in range(2):
            b.optimizer.zero_grad()
            loss = b.loss()
            outs.append((type(loss), type(b.out)))
            loss.backward()
            b.optimizer.step()

    beside(a, second)
    if not same(a, WANT) or not same(b, WANT):
        return "other weights"
    if outs != [(Tensor, Tensor)] * 2:
        return f"the second is recorded: {outs}"
    return (
        ""
        if [level for text, level in said if "two threads train at once" in text] == ["warning"] * len(said) and said
        else f"{said}"
    )


def the_first_of_two_threads_goes_on() -> str:
    a, b = Training().steps(2), Training().steps(2)
    loss: list[Any] = []
    a.optimizer.zero_grad()
    with Injector(Fault("again", 5, ROWS)) as injector:
        injector.begin()
        loss.append(a.loss())
        in_thread(lambda: b.step())
        loss.pop().backward()
        injector.end()
        a.optimizer.step()
    a.step()
    b.step()
    return (
        ""
        if injector.raised and same(a, WANT) and same(b, WANT) and len(told()) == 1
        else f"{told()}, {same(a, WANT)}, {same(b, WANT)}"
    )


def one_model_in_two_threads() -> str:
    said = remarks()
    a = Training().steps(3)
    other = Training()
    other.net, other.made = a.net, 3
    beside(a, lambda: other.loss().backward())
    if recorder().observe != "two threads train one Sequential at once":
        return f"{recorder().observe}, {said}"
    a.made = 0
    return "" if type(a.loss()) is Tensor else "still recorded"


def one_model_that_has_failed() -> str:
    """The reason is that of the process, if what has failed cannot be computed any more."""
    a = Training().steps(3)
    other = Training()
    other.net, other.made = a.net, 3
    with Injector(Fault("again", 5, ROWS)) as injector:
        injector.begin()
        loss = a.loss()
        injector.end()
    in_thread(lambda: other.loss().backward())
    try:
        loss.backward()
    except torch.OutOfMemoryError:
        return "" if "two threads" in told()[-1] else f"{told()}"
    return "nothing was raised"


def the_main_thread_evaluates_meanwhile() -> str:
    """The main thread has made a call first. While the other one is in a step, the main thread's calls pass through."""
    judged, t = mlp(10, 12, 5), Training()
    x = torch.randn(ROWS, 10)
    with torch.no_grad():
        want = judged(x)
    outs = []

    def work() -> None:
        t.steps(2)
        t.optimizer.zero_grad()
        with Injector(Fault("again", 5, ROWS)) as injector:
            injector.begin()
            loss = t.loss()
            outs.append(type(loss))
            begun.set()
            wait(evaluated)
            loss.backward()
            injector.end()
        t.optimizer.step()
        t.step()

    begun, evaluated = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        wait(begun)
        with torch.no_grad():
            got = judged(x)
        evaluated.set()
        done.result(SECONDS)
    if not torch.equal(want, got) or not same(t, WANT):
        return "other results"
    return "" if outs == [Recorded] and len(told()) == 1 else f"{outs}, {told()}"


def an_evaluation_makes_no_owner_of_another_thread() -> str:
    a = Training().steps(1)  # modules are still looked for

    def evaluated() -> None:
        with torch.no_grad():
            net(a.given[0][0])
        owners.append(recorder().owner.now())

    net, owners = mlp(10, 12, 5), []
    owner = recorder().owner.now()
    in_thread(evaluated)
    a.steps(3)
    return (
        ""
        if owner is not None and owners == [owner] and record_of(net) is not None and same(a, WANT)
        else "the thread that evaluates is the owner"
    )


def a_model_that_is_called_late_is_found() -> str:
    """The search has ended before another thread makes its first step, with an optimizer that was made before."""
    a, b = Training(), Training()
    a.steps(4)
    in_thread(lambda: b.steps(3))
    found = record_of(b.net)
    return "" if found is not None and found.calls and vars(nn.Module)["_compiled_call_impl"] is None else f"{found}"


def replacements_stay_for_other_threads() -> str:
    """While headroom computes after a failure, functions that a script has replaced would be PyTorch's own for every
    thread."""
    other = Training()
    in_thread(lambda: other.steps(1))
    ready, done = threading.Event(), threading.Event()
    exp, seed = torch.exp, torch.manual_seed
    torch.manual_seed = torch._compile._disable_dynamo(seed)  # as PyTorch does itself

    def lasting() -> None:
        other.step()
        ready.set()
        wait(done)

    a = Training().steps(2)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lasting)
        wait(ready)
        a.step(5)
        torch.exp = lambda *given: exp(*given)  # type: ignore[assignment]
        try:
            a.step(5)
        except torch.OutOfMemoryError:
            pass
        done.set()
    torch.exp = exp
    return "" if len(told()) > 1 and "pieces" in told()[0] and "replaced" in told()[-1] else f"{told()}"


def optimizers_in_two_threads() -> str:
    """A step that fails is made again although another thread is in a step of its own."""
    a, b = Training().steps(2), Training().steps(2)
    within, over = threading.Event(), threading.Event()

    def hook(*_: Any) -> None:
        within.set()
        wait(over)

    a.optimizer.register_step_pre_hook(hook)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(a.step)
        wait(within)
        b.optimizer.zero_grad()
        b.loss().backward()
        with Injector(Fault("once", 0, ROWS)) as injector:
            injector.begin()
            b.optimizer.step()
            injector.end()
        over.set()
        first.result(SECONDS)
    a.optimizer._optimizer_step_pre_hooks.clear()
    a.step()
    b.step()
    return "" if injector.raised and same(a, WANT) and same(b, WANT) else "other weights"


def backward_in_another_thread() -> str:
    """The model is called in a pool, and what it returns is used here: only one thread's calls are on a tape."""
    t = Training()
    with ThreadPoolExecutor(1) as pool:
        loss = pool.submit(t.loss).result(SECONDS)
        if (type(loss), type(loss * 2)) != (Recorded, Tensor):
            return f"{type(loss)}, and {type(loss * 2)} made of it"
        del loss
        t.made = 0
        for _ in range(4):
            t.optimizer.zero_grad()
            pool.submit(t.loss).result(SECONDS).backward()
            t.optimizer.step()
    return "" if same(t, WANT) else "other weights"


def values_are_not_computed_for_another_thread() -> str:
    t, raised = Training().steps(2), []

    def work() -> Tensor:
        with Injector(Fault("again", 5, ROWS)) as injector:
            injector.begin()
            loss = t.loss()
            injector.end()
        raised.extend(injector.raised)
        until.append(loss)
        return loss

    until: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        loss = pool.submit(work).result(SECONDS)
        try:
            loss.backward()
        except torch.OutOfMemoryError as e:
            return "" if e.args == raised[0].args and "in another thread" in told()[-1] else f"{e}, {told()}"
    return "nothing was raised"


def a_thread_is_freed() -> str:
    seen = in_thread(lambda: [Training().steps(2), weakref.ref(recorder().mine())])[1]
    gc.collect()
    return (
        "" if seen() is None and recorder().owner.now() is None else "what a thread was doing is kept when it has ended"
    )


CHECKS = [
    a_training_in_a_thread_goes_on, a_thread_follows_one_that_ended, two_threads_with_two_models, the_first_of_two_threads_goes_on,
    one_model_in_two_threads, one_model_that_has_failed, the_main_thread_evaluates_meanwhile,
    an_evaluation_makes_no_owner_of_another_thread, a_model_that_is_called_late_is_found,
    replacements_stay_for_other_threads, optimizers_in_two_threads, backward_in_another_thread, values_are_not_computed_for_another_thread, a_thread_is_freed,
]  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(status(CHECKS))
