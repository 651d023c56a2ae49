"""Checks what a replay costs before it can begin, and the small rules that it follows.

python replays.py
"""

from __future__ import annotations

import copy
import functools
import gc
import io
import itertools
import json
import math
import os
import pickle
import random
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
import weakref
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
import torch.nn.utils.prune as prune
from torch import nn
from torch.distributions import Categorical, Independent, Normal
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

import loops_adapters
import loops_parts
import loops_stateful
import loops_sums
import trial
from compare import close
from forked import status
from inject import Fault, Injector, Whole
from manners import Failing
from watching import Bank, Multiplied

trial.attach()
import headroom_train  # noqa: E402
from headroom_train import _torch, failure, memory  # noqa: E402
from headroom_train.failure import Refused  # noqa: E402
from headroom_train.hooks import genuine  # noqa: E402
from headroom_train.hooks.changes import changed  # noqa: E402
from headroom_train.proof import branching, groups, proof, rerun, weights  # noqa: E402
from headroom_train.proof import recheck as again  # noqa: E402
from headroom_train.proof.adding import Adding  # noqa: E402
from headroom_train.proof.cutting import refuse_pointing  # noqa: E402
from headroom_train.proof.groups import (  # noqa: E402
    Groups,
    accumulated,
    residual,
    sketched,
)
from headroom_train.proof.mixing import Operations, mixing  # noqa: E402
from headroom_train.proof.rows import Axis, Cut, Rows, alike, sample  # noqa: E402
from headroom_train.proof.rules import Weighing  # noqa: E402
from headroom_train.proof.trials import Trials, sliced  # noqa: E402
from headroom_train.ranks import ddp  # noqa: E402
from headroom_train.recover import backward, check, deferred_functions, functions, hooked, recorder, recovery  # noqa: E402
from headroom_train.recover import evaluate as evaluation  # noqa: E402
from headroom_train.recover.left import Left  # noqa: E402
from headroom_train.replay import deferred as deferred  # noqa: E402
from headroom_train.replay import pieces as replay  # noqa: E402
from headroom_train.replay.pieces import pieces_of  # noqa: E402
from headroom_train.sandbox.kept import Kept  # noqa: E402
from headroom_train.sandbox.sandbox import ANYWHERE, CALLED, NEVER, NoRandomness, Sealed, Watched, rehearsal, unwarned  # noqa: E402
from headroom_train.spill import saved  # noqa: E402
from headroom_train.tape import (  # noqa: E402
    graph,
    idle,
    recorded_module,
    snapshot,
    trees,
)
from headroom_train.tape.recorded_module import RecordedModule, record_of, scripted  # noqa: E402
from headroom_train.tape.settings import OFTEN, Settings  # noqa: E402
from headroom_train.tape.snapshot import MOST, Hooks, Snapshot  # noqa: E402
from headroom_train.tape.tape import Entry, Outside, Ref, Tape, contents  # noqa: E402
from headroom_train.wire import report  # noqa: E402
from headroom_train.wire.report import Report  # noqa: E402
from headroom_train.wire.wire import Wire  # noqa: E402


def sketches() -> str:
    """A sketch has the right dot product and norm for every kind of gradient."""
    torch.manual_seed(0)
    gradients = [
        torch.randn(3, 4),
        None,
        torch.zeros(0),
        torch.randn(7, dtype=torch.float64),
        torch.randn(5).bfloat16(),
    ]
    gradients += [
        torch.randn(4, dtype=torch.complex64),
        torch.randn(4, dtype=torch.complex128).conj(),
        torch.eye(3).to_sparse(),
    ]
    for g, found in zip(gradients, sketched(gradients)):
        values = [] if g is None else g.to_dense().reshape(-1).tolist()
        values = [part for v in values for part in (v.real, v.imag)] if g is not None and g.is_complex() else values
        product = sum(v * math.sqrt(2) * math.cos(1.618034 * (i + 1)) for i, v in enumerate(values))
        if math.dist(found, (product, math.sqrt(sum(abs(v) ** 2 for v in values)))) > 1e-4:
            return f"{found} of {g}"
    return "" if sketched([]) == [] and sketched([None]) == [(0.0, 0.0)] else "sketches of nothing"


def sums() -> str:
    """Gradients of every kind are added up over pieces, and multiplied by the loss's incoming gradient."""
    torch.manual_seed(0)
    params = [torch.randn(3, 4), torch.randn(7).double(), torch.randn(5).bfloat16(), torch.randn(6, 2), torch.randn(2)]
    made = [[torch.randn_like(p) for p in params[:-1]] + [None if i == 1 else torch.randn(2)] for i in range(3)]
    for grads in made:
        grads[3] = grads[3].to_sparse()  # type: ignore[union-attr]
    want = [sum(g[i].to_dense() for g in made if g[i] is not None) for i in range(len(params))]  # type: ignore[union-attr]
    inputs: Any = SimpleNamespace(own=params, entering={}, cut={})
    total = replay.Gradients(inputs)
    for grads in made:
        total.add([None if g is None else g.clone() for g in grads], {})
    found = [g.to_dense() for g in total.all()]  # type: ignore[union-attr]
    if not all(torch.allclose(a, b, rtol=1e-2 if a.dtype is torch.bfloat16 else 1e-6) for a, b in zip(found, want)):
        return f"{found} in place of {want}"
    again = [g.clone() for g in total.all()]  # type: ignore[union-attr]
    deferred.scaled(again, torch.tensor(0.5))
    return (
        ""
        if all(torch.equal(a.to_dense(), b * 0.5) for a, b in zip(again, found))
        else f"{again} in place of the half of {found}"
    )


def counts() -> str:
    """The elements that count in each row are counted correctly for every kind of tensor. Among the
    tensors are labels of which none, a few, or some in every row are to be ignored. If only the
    rules with known names are computed, they are the same as when all rules are computed."""
    labels = torch.randint(0, 5, (7, 6))
    some, every = labels.clone(), labels.clone()
    some[1, 2] = some[6, 0] = -1
    every[:, 5], every[0] = -100, -100
    tensors = [
        labels,
        some,
        every,
        labels[:, 0].clone(),
        labels.view(7, 2, 3),
        torch.rand(7, 4) > 0.5,
        torch.rand(7, 3),
    ]
    found = weights.candidates(7, tensors, [-1])
    want: list[tuple[tuple, Any]] = [(("sum",), None), (("rows",), [1.0] * 7)]
    for i, tensor in enumerate(tensors):
        absent = [-100, -1, None] if tensor.dtype == torch.int64 else [None]
        ends = [slice(None), slice(1, None), slice(-1)] if tensor.dim() > 1 else [...]
        for n, (end, value) in enumerate((end, value) for end in ends for value in absent):
            rows = (
                [t[..., end].flatten().tolist() for t in tensor.double() if t.dim()]
                if tensor.dim() > 1
                else [[t.item()] for t in tensor]
            )
            rule = [float(sum(row) if value is None else sum(v != value for v in row)) for row in rows]
            if min(rule) >= 0 and sum(rule):
                want.append(((i, n), rule))
    differ = (a is not b and not close(torch.tensor(a), torch.tensor(b)) for (_, a), (_, b) in zip(found, want))
    if [n for n, _ in found] != [n for n, _ in want] or any(differ):
        return f"{found} in place of {want}"
    names = {("rows",), (1, 1), (2, 0), (2, 3), (5, 0)}
    known = weights.candidates(7, tensors, [-1], names)
    return "" if known == [f for f in found if f[0] in names] and len(known) == len(names) else f"{known}"


def indices() -> str:
    """Calls that index with numbers and slices alone are told apart from all others, in which an
    index that is out of range breaks the CUDA context."""
    calls: list[tuple[Any, tuple, bool]] = [
        (torch.Tensor.__getitem__, (Ref(0), (slice(None), slice(None, -1))), True),
        (torch.Tensor.__getitem__, (Ref(0), 3), True),
        (torch.Tensor.__getitem__, (Ref(0), (..., None, 0)), True),
        (torch.Tensor.__setitem__, (Ref(0), slice(1, 2), Outside(0)), True),
        (torch.Tensor.__getitem__, (Ref(0), [1, 2]), False),
        (torch.Tensor.__getitem__, (Ref(0), (slice(None), [1, 2])), False),
        (torch.Tensor.__getitem__, (Ref(0), range(3)), False),
        (torch.Tensor.__getitem__, (Ref(0), True), False),
        (torch.Tensor.__getitem__, (Ref(0), Outside(0)), False),
        (torch.Tensor.__getitem__, (Ref(0), (slice(None), Ref(1))), False),
        (torch.Tensor.gather, (Ref(0), 1, Outside(0)), False),
        (F.embedding, (Ref(0), Outside(0)), False),
    ]
    wrong = [
        f"{call.__name__} of {args}" for call, args, want in calls if sliced(Entry(call, None, args, {})) is not want
    ]
    return ", ".join(wrong)


def listing(names: list[str]) -> Any:
    """Returns a replacement for Trials.both that appends to ``names`` the name of each call that it tries."""
    both = Trials.both

    def counting(self: Trials, entry: Entry, *args: Any, **kwargs: Any) -> list:
        names.append(entry.call_name())
        return both(self, entry, *args, **kwargs)

    return counting


def tried_once() -> str:
    """Every call of a failed step is tried once, on two different numbers of rows, and is not tried
    again for the calls that follow it. A module's call is made once before, to see whether anything keeps what it
    computes, and is then repeated once, on one of these numbers of rows."""
    torch.manual_seed(0)
    net, x, y = nn.Linear(6, 5), torch.randn(8, 4, 6), torch.randint(0, 5, (8, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    tried: list[str] = []
    ran: list[int] = []
    one = Trials.one

    def counting(self: Trials, entry: Entry, cut: Any, which: int, *more: Any, **named: Any) -> Any:
        ran.append(which)
        return one(self, entry, cut, which, *more, **named)

    Trials.both, Trials.one = listing(tried), counting  # type: ignore[method-assign]
    with Injector(Fault("again", 0, 8)) as injector:
        injector.begin()
        F.cross_entropy(net(x)[:, :-1].flatten(0, 1).float(), y.flatten()).backward()
        injector.end()
    optimizer.step()
    # The module's call is tried for its shapes and results, and the loss's call with its targets whole and cut.
    want = ["Linear", "__getitem__", "flatten", "float", "cross_entropy", "cross_entropy"]
    return "" if injector.raised and tried == want and ran == [0, 0, 1, 1] else f"{tried}, {ran}"


class Leaving(nn.Module):
    """Leaves a loss on itself: as an attribute, in a list and in a dict. A loop may use that loss
    or ignore it."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 9), nn.Linear(9, 5)
        self.own: Any = None
        self.listed: list[Any] = [None]
        self.named: dict[str, Any] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.body(x).tanh()
        self.own = self.listed[0] = self.named["own"] = z.square().mean()
        return self.head(z)


def left_behind() -> str:
    """A tensor that a module leaves on itself either belongs to the whole batch or cannot be used,
    since pieces leave tensors of their own. It can be used if the script's own call of the module
    has succeeded. Training continues either way."""
    wrong = []
    for at in ("", "addmm", "_log_softmax", "_log_softmax_backward_data"):
        torch.manual_seed(0)
        net = Leaving()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(5):
            x, y = torch.randn(8, 6), torch.randint(0, 5, (8,))
            want = F.linear(x, net.body.weight, net.body.bias).tanh().square().mean().item()
            with Whole(f"aten.{at}.default", 8):
                z = net(x)
                if step % 2 == 0:
                    z.detach().argmax().item()  # asks for values, which pieces compute
                found = [net.own, net.listed[0], net.named["own"]]
                F.cross_entropy(z, y).backward()
            for what in (*found, net.own, net.listed[0], net.named["own"]):
                try:
                    value = what.detach().item()
                except torch.OutOfMemoryError:
                    value = want if at == "addmm" or step > 0 else math.nan  # later steps run in pieces straight away
                if not abs(value - want) <= 1e-5:
                    wrong.append(f"{at}, step {step}: {value} in place of {want}")
            optimizer.step()
            optimizer.zero_grad()
        if at == "":
            weights = [p.detach().clone() for p in net.parameters()]
        elif not all(close(p, w) for p, w in zip(net.parameters(), weights)):
            wrong.append(f"{at}: other weights")
    return "; ".join(wrong)


def logged_once() -> str:
    """What a model leaves for a log, and what it counts, is the same as without the failure,
    whether the script's own call of the model has succeeded or not. The step is not refused."""
    wrong = []
    for kind in (
        loops_stateful.LoggedInside,
        loops_stateful.MeteredCalls,
        loops_stateful.AttributesThatChange,
        loops_stateful.CountedCalls,
    ):
        for every in (False, True):
            for at in ("", "_log_softmax", "_log_softmax_backward_data"):
                loop, raised = kind(0), 0
                for i in range(4):
                    with Whole(f"aten.{at}.default", loop.rows) if every or i == 1 else nullcontext() as whole:
                        loop.printed.append(loop.step(i))
                    raised += whole.raised if whole is not None else 0
                if not at:
                    want = loop.printed
                elif not raised or not close(torch.tensor(loop.printed), torch.tensor(want)):
                    wrong.append(f"{kind.__name__}, {at}: {raised} failures, {loop.printed} instead of {want}")
    return "; ".join(wrong)


def a_log_is_tried_once() -> str:
    """A model that leaves a number for a log, but does not read it, is not tried again when the
    number has changed."""
    loop = loops_stateful.LoggedInside(0)
    tried: list[str] = []
    with Whole("aten._log_softmax.default", loop.rows):
        for i in range(5):
            if i == 3:  # the second step in pieces uses what the first has shown
                Trials.both = listing(tried)  # type: ignore[method-assign]
            loop.step(i)
    return f"{tried}" if tried else ""


def uninspected(**attributes: Any) -> Any:
    """An object whose attributes the worker does not look at."""
    made = threading.local()
    vars(made).update(attributes)
    return made


class Counting(nn.Module):
    """Counts its calls, in something that nothing inspects."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 40))
        self.calls = uninspected(number=itertools.count())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        next(self.calls.number)
        return self.body(x)


def added(terms: list, step: int) -> torch.Tensor:
    return sum(terms) / len(terms)


def added_in_place(terms: list, step: int) -> torch.Tensor:
    loss = torch.zeros(())
    for t in terms:
        loss += t
    return loss


def stacked(terms: list, step: int) -> torch.Tensor:
    return (torch.stack(terms) * torch.arange(1.0, len(terms) + 1)).mean()


def annealed_sum(terms: list, step: int) -> torch.Tensor:
    """Coefficients differ from step to step, and a constant is changed in place after it was added."""
    loss, constant = terms[0] * 0.1 * step, torch.ones(())
    for t in terms:
        loss = loss + t + constant
        constant += 1
    return loss


def added_and_read(terms: list, step: int) -> torch.Tensor:
    """The sum, and then each term, is read before backward."""
    loss = sum(terms)
    said = [loss.item(), *[float(t.detach()) for t in terms]]
    assert math.isclose(said[0], sum(said[1:]), rel_tol=1e-5)
    return loss


def read_and_added(terms: list, step: int) -> torch.Tensor:
    """Each term is read before there is a sum."""
    said = sum(t.item() for t in terms)
    loss = sum(terms)
    assert math.isclose(said, loss.item(), rel_tol=1e-5)
    return loss


def multiplied(terms: list, step: int) -> torch.Tensor:
    """How much a term counts depends on values that are known only after a replay."""
    return terms[0] * terms[-1] + sum(terms)


def seen_from_aside(terms: list, step: int) -> torch.Tensor:
    """A view of a sum is changed in place, and so is the sum."""
    loss = terms[0] + terms[-1]
    aside = loss.view(1)
    aside += terms[0]
    return loss


def one_replay() -> str:
    """However many terms a loss has, and however they are added, the model is run as often as for a single
    term: once for each piece, and once more without gradients where values are asked for before there is a
    sum. The weights are those of the undisturbed training."""
    wrong = []
    for how, replays in {
        added: 1, added_in_place: 1, stacked: 1, annealed_sum: 1, added_and_read: 1, read_and_added: 2, multiplied: 2, seen_from_aside: 2,
    }.items():  # fmt: skip
        # What is recorded with values and then changed in place is refused.
        for at in ("addmm",) if how in (annealed_sum, seen_from_aside) else ("addmm", "tanh_backward"):
            for count in (2, 7):
                made = []
                for failing in (False, True):
                    torch.manual_seed(0)
                    net = Counting()
                    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
                    calls = []
                    for step in range(1, 7):
                        x, begun = torch.randn(8, 6), next(net.calls.number)
                        with Whole(f"aten.{at}.default", 8) if failing else nullcontext():
                            out = net(x)
                            loss = how([(out[:, k] - x[:, k % 6]).square().mean() for k in range(count)], step)
                            loss.backward()
                        calls.append(next(net.calls.number) - begun - 1)
                        optimizer.step()
                        optimizer.zero_grad()
                    made.append([*(p.detach().clone() for p in net.parameters()), loss.detach()])
                if not all(close(a, b) for a, b in zip(*made)):
                    wrong.append(f"{how.__name__} of {count}, {at}: other weights")
                if min(calls) != 2 * replays:  # two pieces; in some steps there are trials as well
                    wrong.append(f"{how.__name__} of {count}, {at}: {calls} calls")
    return "; ".join(wrong)


def parameters_that_pytorch_does_not_name() -> str:
    """Of the parameters that wait for their gradients PyTorch names a hundred. What is behind them waits unless it has
    a new gradient; where that is not known, nothing is."""
    params = [torch.ones(1) for _ in range(130)]

    def found(named: Iterable[int], more: str, new: tuple[int, ...] = (), alike: tuple[int, ...] = ()) -> object:
        def raises() -> None:
            listed = " ".join(map(str, named))
            raise RuntimeError(f"Parameter indices which did not receive grad for rank 0: {listed}{more}\n In addition")

        made: Any = nn.Module()
        made.reducer = SimpleNamespace(_check_reducer_finalized=raises)
        ddp._parameters[made] = params
        try:
            left = ddp._waiting(made, [params[i] for i in new], [id(params[i]) for i in alike])
        except Refused:
            return "refused"
        number = {id(p): i for i, p in enumerate(params)}
        return [number[id(p)] for p in left or ()]

    cases = [
        (found((3, 5), "", (100,)), [3, 5]),
        (found(range(100), " ..."), [*range(130)]),
        (found(range(10, 110), " ...", (5, 120, 129)), [i for i in range(10, 129) if i != 120]),
        (found(range(100), " ...", (), (50,)), [*range(130)]),
        (found(range(100), " ...", (), (110,)), "refused"),
    ]
    return "; ".join(f"{got}, not {want}" for got, want in cases if got != want)


def learned_weights() -> str:
    """Weights of terms that are learned outside the module get their gradients, also if backward fails once it
    has reached them."""
    wrong = []
    for at in ("", "addmm", "_log_softmax", "tanh_backward", "threshold_backward"):
        loop = loops_sums.UncertaintyWeights(0)
        for i in range(4):
            with Whole(f"aten.{at}.default", loop.rows):
                loop.step(i)
        values = [p.detach().clone() for p in loop.parameters().values()]
        if not at:
            want = values
        elif not all(close(a, b) for a, b in zip(values, want)):
            wrong.append(f"{at}: other weights")
    return "; ".join(wrong)


def logs_are_plain() -> str:
    """What a script keeps of a loss for a log is right, plain after the step, and keeps no batch alive, whether
    it is a tensor of its own or added to another in place."""
    net, log, total, batches = nn.Linear(6, 5), [], torch.zeros(()), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scale = torch.ones(())
    want = []
    for _ in range(3):
        x, y = torch.randn(8, 6), torch.randint(0, 5, (8,))
        want.append(F.cross_entropy(F.linear(x, net.weight, net.bias), y).item())
        batches.append(weakref.ref(x))
        with Whole("aten.addmm.default", 8):
            out = net(x)
            loss = F.cross_entropy(out, y) + out.square().mean() * 0
            log.append(loss.detach() * scale)
            total += loss.detach()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scale += 1  # what the log has was computed before
    del x, out, loss
    gc.collect()
    found = [t.item() / n for t, n in zip(log, (1, 2, 3))]
    held = [i for i, b in enumerate(batches) if b() is not None]
    right = close(torch.tensor(found), torch.tensor(want)) and math.isclose(total.item(), sum(want), rel_tol=1e-5)
    return (
        ""
        if right and not held and all(type(t) is torch.Tensor for t in log)
        else f"{found}, {total}, {want}, {held}, {[type(t) for t in log]}"
    )


def no_trial_for_numbers() -> str:
    """What is computed from scalars alone is tried without running the model, although its coefficients differ
    in every step."""
    net, tried = nn.Linear(6, 5), list[str]()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    both = Trials.both
    with Whole("aten.addmm.default", 8):
        for i in range(4):
            if i == 3:
                Trials.both = listing(tried)  # type: ignore[method-assign]
            out = net(torch.randn(8, 6))
            (out.square().mean() * (0.1 * i) + out.abs().mean()).backward()
            optimizer.step()
    Trials.both = both  # type: ignore[method-assign]
    return f"{tried}" if "Linear" in tried or not tried else ""


class Rebuilt(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.bias = nn.Parameter(x.detach().mean(1)[: self.out_features])
        return super().forward(x)


def a_new_parameter() -> str:
    """A model that replaces its own parameter is refused: the script would find the gradient in the
    new parameter, but pieces would leave it elsewhere."""
    net, x = Rebuilt(6, 2), torch.randn(8, 6)
    torch.optim.SGD(net.parameters())
    raised = False
    with Whole("aten._log_softmax.default", 8):
        try:
            F.cross_entropy(net(x), torch.zeros(8, dtype=torch.long)).backward()
        except torch.OutOfMemoryError:
            raised = True
    told = _torch._recorder.report.told
    return "" if raised and told[-1]["why"] == "a call to Rebuilt replaces a parameter" else f"{raised}, {told}"


class Crowded(nn.Module):
    """Counts its calls and draws random numbers. The first ``fails`` of its calls with eight rows run out of
    memory. With ``keeps`` it leaves a tensor as well as the count."""

    def __init__(self, fails: int, keeps: bool) -> None:
        super().__init__()
        self.body, self.seen, self.keeps, self.kept = (
            nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.1)),
            0,
            keeps,
            torch.zeros(0),
        )
        self.fails = uninspected(left=iter([True] * fails + [False] * 99))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        if len(x) == 8 and next(self.fails.left):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (injected)")
        if self.keeps:
            self.kept = x.detach().mean(0)
        return self.body(x) * (1 + 0.1 * self.seen)


def counted_once() -> str:
    """A module that counts its calls counts each call of the script's once, however many times it
    failed. The step is refused if the attributes that the script's call found are unknown."""
    said = []
    x, y = torch.randn(8, 6), torch.randint(0, 5, (8,))

    def refused(_: Any) -> Any:
        raise failure.Refused("there is not enough memory for a single element")

    for fails in (0, 1, 2, 3):  # the script's call, and two repeats for what the call leaves behind
        net = Crowded(fails, False)
        torch.optim.SGD(net.parameters())
        F.cross_entropy(net(x), y).backward()
        said.append(net.seen)
    make, net = deferred.make, Crowded(1, False)
    torch.optim.SGD(net.parameters())
    recovery.make = refused  # would make the stand-in for the call's result
    F.cross_entropy(net(x), y).backward()
    recovery.make = make
    said.append(net.seen)
    net = Crowded(0, True)
    torch.optim.SGD(net.parameters())
    with Whole("aten._log_softmax.default", 8):
        try:
            F.cross_entropy(net(x), y).backward()
        except torch.OutOfMemoryError:
            said.append(net.seen)
    told = _torch._recorder.report.told
    return (
        ""
        if said == [1] * 6 and told[-1]["why"] == "a call to Crowded changes its attribute seen"
        else f"{said}, {told[-1]}"
    )


def after_a_refusal() -> str:
    """A script that continues after a failure that pieces cannot survive finds what its own call of
    the model left, and the random state that it had before."""
    wrong = []

    def refused(*args: Any, **kwargs: Any) -> Any:
        replay.gradients(*args, **kwargs)
        torch.rand(3)  # drawn by a piece that then fails
        raise failure.Refused("one row alone does not fit")

    for at in ("_log_softmax", "_log_softmax_backward_data"):
        torch.manual_seed(0)
        net, drop, x, y = Leaving(), nn.Dropout(0.5), torch.randn(8, 6), torch.randint(0, 5, (8,))
        net.head = nn.Sequential(drop, net.head)  # type: ignore[assignment]
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        deferred.gradients = backward.gradients = refused  # type: ignore[assignment]
        raised = False
        try:
            with Whole(f"aten.{at}.default", 8):
                z = net(x)
                left, state = net.own.item(), torch.default_generator.get_state()
                F.cross_entropy(z, y).backward()
        except torch.OutOfMemoryError:
            raised = True
        finally:
            deferred.gradients = backward.gradients = replay.gradients
        if not raised or net.own.item() != left or not torch.equal(torch.default_generator.get_state(), state):
            wrong.append(f"{at}: raised {raised}, {net.own} in place of {left}")
    return "; ".join(wrong)


def an_accuracy() -> str:
    """The accuracy in PyTorch's ImageNet example folds rows into another dimension. No gradient
    depends on it, so it is computed from values, and the step runs in pieces wherever it fails."""
    wrong = []
    for name in ("aten.addmm.default", "aten.native_layer_norm_backward.default"):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9), nn.Linear(9, 5))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x, y = torch.randn(8, 6), torch.randint(0, 5, (8,))
        found = []
        for fault in (nullcontext(), Whole(name, 8)):
            optimizer.zero_grad()
            with fault:
                out = net(x)
                loss = F.cross_entropy(out, y)
                with torch.no_grad():
                    best = out.topk(3, 1)[1].t()
                    right = best.eq(y.view(1, -1).expand_as(best))[:2].reshape(-1).float().sum()
                loss.backward()
            found.append((float(right), *(p.grad.clone() for p in net.parameters())))  # type: ignore[union-attr]
        same = found[0][0] == found[1][0] and all(close(a, b) for a, b in zip(found[0][1:], found[1][1:]))
        if not same or not told().startswith("8 rows in"):
            wrong.append(f"{name}: {told()}")
    return "; ".join(wrong)


class Numbering(nn.Module):
    """Returns numbers of the batch beside its loss, and puts the loss together with one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = self.body(x)
        right = out.argmax(1) == y
        named = {"rows": len(x), "largest": out.max().item(), "any": bool(right.any())}
        return F.cross_entropy(out, y), right.double().mean().item(), named


def numbers_returned() -> str:
    """Numbers that a module returns are those of the whole batch, and its step runs in pieces."""
    wrong = []
    for name in ("aten.addmm.default", "aten.gelu.default", "aten.gelu_backward.default"):
        found = []
        for fault in (nullcontext(), Failing(name, 1)):
            torch.manual_seed(3)
            net = Numbering()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
            said: list[Any] = []
            for i in range(4):
                x, y = torch.randn(8, 6), torch.randint(0, 5, (8,))
                optimizer.zero_grad()
                with fault if i == 1 else nullcontext():
                    loss, right, named = net(x, y)
                    (loss * 8 / named["rows"]).backward()
                optimizer.step()
                said += [right, named["rows"], named["largest"], named["any"]]
            found.append((said, [p.detach().clone() for p in net.parameters()]))
        (want, weights), (got, others) = found
        same = all(close(a, b, 1e-4) for a, b in zip(weights, others))
        if not same or any(abs(a - b) > 1e-5 or type(a) is not type(b) for a, b in zip(want, got)):
            wrong.append(f"{name}: {got} instead of {want}")
        if not told().startswith("8 rows in"):
            wrong.append(f"{name}: {told()}")
    return "; ".join(wrong)


def a_shared_graph() -> str:
    """A graph that the script has made before the calls is used up by one backward pass: the reason says so."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 5))
    parametrize.register_parametrization(net[0], "weight", Doubled())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with suppress(torch.OutOfMemoryError):
        for fault in (nullcontext(), Whole("aten.gelu.default", 8)):
            optimizer.zero_grad()
            with parametrize.cached(), fault:
                F.cross_entropy(net(torch.randn(8, 6)), torch.randint(0, 5, (8,))).backward()
    why = str(_torch._recorder.report.told[-1]["why"])  # type: ignore[union-attr]
    return "" if "the script has made before them" in why else why


class Detector(nn.Module):
    """Returns two losses, of which one may relate the rows to each other."""

    def __init__(self, relates: bool) -> None:
        super().__init__()
        self.body, self.relates = nn.Linear(6, 2), relates

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        box, sure = self.body(x).unbind(1)
        return {"sure": sure.square().mean(), "box": box.std() if self.relates else box.abs().mean()}


def said_once_it_is_over() -> str:
    """That a failure was survived is said once the step is over, and not at all if it is refused after all."""
    heard: list[str] = []

    class Listening:
        asked_to_look = asked_for_memory = False
        limit = asked = 0

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: heard.append(name)

    Report.wire = lambda self: Listening()  # type: ignore[method-assign, assignment, return-value]
    report, wrong = _torch._recorder.report, []  # type: ignore[union-attr]
    for relates in (False, True):
        torch.manual_seed(0)
        net = Detector(relates)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        heard.clear()
        report.told = []
        with Whole("aten.addmm.default", 8), suppress(torch.OutOfMemoryError):
            made = net(torch.randn(8, 6))
            loss = sum(made.values())
            loss.item()
            loss.backward()
            heard.append("given")
            optimizer.step()
        found = [name for name in heard if name in ("oom", "given", "survived", "refused")]
        ways = [*dict.fromkeys([*t][1] for t in report.told)]
        if (found, ways) != ((["oom", "refused"], ["why"]) if relates else (["oom", "given", "survived"], ["how"])):
            wrong.append(f"{relates}: {found}, {report.told}")
    return "; ".join(wrong)


def several_gradients() -> str:
    """Gradients that the script takes by ``autograd.grad``, of several losses of one batch (PCGrad), are those of the
    whole batch. A graph that was not kept cannot be used again, and the reason says so."""
    wrong, found = [], []
    for fault in (nullcontext(), Whole("aten.addmm.default", 8)):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 2))
        optimizer, numbers = torch.optim.SGD(net.parameters(), lr=0.1), []
        for i in range(3):
            with fault if i else nullcontext():
                out = net(torch.randn(8, 6))
                losses = out[:, 0].square().mean(), out[:, 1].abs().mean()
                taken = [
                    torch.autograd.grad(loss, [*net.parameters()], retain_graph=n == 0) for n, loss in enumerate(losses)
                ]
            for p, one, other in zip(net.parameters(), *taken):
                p.grad = one + other * torch.sign((one * other).sum())
            optimizer.step()
            numbers += [loss.detach() for loss in losses]
        found.append([*numbers, *net.parameters()])
    if not all(map(close, *found)) or not told().startswith("8 rows in"):
        wrong.append(f"{told()}: {found}")
    net = nn.Linear(6, 2)
    torch.optim.SGD(net.parameters())
    with Whole("aten.addmm.default", 8), suppress(torch.OutOfMemoryError):
        out = net(torch.randn(8, 6))
        for loss in (out[:, 0].square().mean(), out[:, 1].abs().mean()):
            torch.autograd.grad(loss, [*net.parameters()])
    why = _torch._recorder.report.told[-1]["why"]  # type: ignore[union-attr]
    if why != deferred_functions.SPENT:
        wrong.append(why)
    return "; ".join(wrong)


def what_nothing_follows() -> str:
    """The reason says of what a function is used that nothing follows: of a result, or of what is made of it."""
    uses: dict[str, Callable[[torch.Tensor], Any]] = {
        "requires_grad_ is used on what detach has made of a result": lambda out: out.detach().requires_grad_(),
        "register_hook is used on a result": lambda out: out.register_hook(lambda g: g),
        "register_hook is used on a tensor computed from a result": lambda out: out[:, 0].register_hook(lambda g: g),
    }
    wrong = []
    for want, use in uses.items():
        for at, where in (
            ("aten.addmm.default", " whose values are not in memory"),
            ("aten.abs.default", " of the model"),
        ):
            net = nn.Linear(6, 2)
            torch.optim.SGD(net.parameters())
            with Whole(at, 8), suppress(torch.OutOfMemoryError):
                out = net(torch.randn(8, 6))
                use(out)
                out.abs().mean().backward()
            why = _torch._recorder.report.told[-1].get("why")  # type: ignore[union-attr]
            if why != want + where:
                wrong.append(f"{want}: {why}")
    return "; ".join(wrong)


class Doubled(nn.Module):
    """A parametrization whose backward pass needs what it has saved."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.sin() * 2


class Carrying(nn.Module):
    """Returns a state with the rows in dimension 1 beside results with the rows in dimension 0."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out = nn.GRU(6, 5, 2, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> Any:
        out, state = self.layer(x)
        return self.out(out[:, -1]), state


def read_after_the_step() -> str:
    """Sums of results are read after the optimizer's step from the values that were kept, whichever dimension has the
    rows."""
    found = []
    for fault in (nullcontext(), Whole("aten.addmm.default", 10)):
        torch.manual_seed(0)
        net = Carrying()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        numbers = []
        for i in range(3):
            optimizer.zero_grad()
            x, y = torch.randn(10, 4, 6), torch.randint(0, 3, (10,))
            with fault if i else nullcontext():
                out, state = net(x)
                F.cross_entropy(out, y).backward()
                optimizer.step()
                numbers += [out.sum().item(), state.sum().item(), (state[0] * 2).mean().item()]
        found.append(numbers)
    if not told().startswith("10 rows in"):
        return told()
    return "" if all(abs(a - b) < 1e-5 for a, b in zip(*found)) else f"{found}"


def a_loss_is_printed() -> str:
    """After a survived step a loss prints its value, and that it has a graph."""
    net = nn.Linear(6, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for fault in (nullcontext(), Whole("aten.addmm.default", 8)):
        optimizer.zero_grad()
        with fault:
            loss = F.cross_entropy(net(torch.randn(8, 6)), torch.randint(0, 5, (8,)))
            loss.backward()
            optimizer.step()
    said = repr(loss)
    return "" if f"{loss.item():.4f}" in said and "grad_fn=<HandBackBackward>" in said else said


def told() -> str:
    """Returns how the newest failure was survived."""
    return str(_torch._recorder.report.told[-1]["how"])  # type: ignore[union-attr]


class Fail(torch.utils._python_dispatch.TorchDispatchMode):
    """Makes one operation fail, once."""

    def __init__(self, name: str = "aten.addmm.default") -> None:
        super().__init__()
        self.name, self.raised = name, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == self.name and not self.raised:
            self.raised = True
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (injected)")
        return func(*args, **(kwargs or {}))


def raised_anew() -> str:
    """A step that is run in pieces straight away and then refused keeps nothing alive once its
    exception is gone."""
    net, loss, said = nn.Linear(6, 5), torch._C._nn.cross_entropy_loss, []
    alive: list[weakref.ref[torch.Tensor]] = []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(most: int) -> None:
        def limited(given: torch.Tensor, *args: Any) -> torch.Tensor:
            if len(given) > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (injected)")
            return loss(given, *args)

        x, y = torch.randn(8, 6), torch.randint(0, 5, (8,))
        alive.append(weakref.ref(x))
        torch._C._nn.cross_entropy_loss = limited
        F.cross_entropy(net(x), y).backward()

    for most in (4, 0):
        try:
            step(most)
        except torch.OutOfMemoryError:
            said.append(_torch._recorder.report.told[-1]["why"])
        optimizer.step()
        optimizer.zero_grad()
    gc.collect()
    left = sum(ref() is not None for ref in alive)
    return "" if len(said) == 1 and not left else f"{said}, {left} batches are alive"


def a_single_row() -> str:
    """A model that cuts its batch to the longest row is not run in pieces, although every trial on
    several rows includes a long row."""
    torch.manual_seed(0)
    net = loops_parts.Trimmed()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    lengths = torch.tensor([10, 3] * 4)
    x, y = torch.randn(8, 10) * (torch.arange(10) < lengths[:, None]), torch.randint(0, 5, (8,))
    optimizer.zero_grad()
    with Fail():
        F.cross_entropy(net(x, lengths), y).backward()
    return "" if told() == "the whole batch again" else told()


def sizes_by_values() -> str:
    """The number of elements of a selection is never extrapolated from a few rows. It is that of
    the whole batch, or else the script gets the failure."""
    selections: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "mask": lambda out, keep: out[keep],
        "masked_select": lambda out, keep: out[:, 0].masked_select(keep),
        "nonzero": lambda out, keep: out[keep.nonzero()[:, 0]],
        "argwhere": lambda out, keep: out[torch.argwhere(keep)[:, 0]],
        "where": lambda out, keep: out[torch.where(keep)[0]],
        "unique": lambda out, keep: out[torch.unique(torch.arange(8) * keep)],
    }
    wrong = []
    for name, select in selections.items():
        sizes = []
        for fault in (nullcontext(), Fail()):
            torch.manual_seed(0)
            net = nn.Linear(6, 5)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            x = torch.randn(8, 6)
            x[3, 0] = -1e4  # neither among the first two rows nor among the last three
            net.weight.data[0, 0] = net.weight.data[1, 0] = 1.0
            optimizer.zero_grad()
            try:
                with fault:
                    out = net(x)
                    some = select(out, out[:, 1] > -100)
                    sizes.append(some.numel())
                    some.sum().backward()
            except torch.OutOfMemoryError:
                sizes.append(sizes[0])
        if sizes[0] != sizes[-1]:
            wrong.append(f"{name}: {sizes}")
    return "; ".join(wrong)


class Strict(nn.LSTM):
    """Raises an exception if it is not given eleven rows."""

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        if x.shape[1] != 11:
            raise ValueError("eleven rows are expected")
        return super().forward(x, state)


def time_first() -> str:
    """A batch in dimension 1 is found where time is in dimension 0. After a failed backward, the whole batch is run
    again even if the model raises an exception when it is given only a few rows."""
    wrong = []
    for kind, want in ((nn.LSTM, "11 rows in "), (Strict, "the whole batch again")):
        torch.manual_seed(0)
        net = kind(6, 5, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x, state = torch.randn(7, 11, 6), (torch.zeros(2, 11, 5), torch.zeros(2, 11, 5))
        found = []
        for fault in (nullcontext(), Fail("aten.div.Scalar")):
            optimizer.zero_grad()
            with fault:
                net(x, state)[0].square().mean().backward()
            found.append([p.grad.clone() for p in net.parameters()])  # type: ignore[union-attr]
        if not all(close(a, b) for a, b in zip(*found)) or not told().startswith(want):
            wrong.append(told())
    return "; ".join(wrong)


class Language(nn.Module):
    """A recurrent model that is given its state: the rows are in dimension 1 of the state, and in dimension 0 of all
    else. If it ``mixes``, each row is given something of the others' states."""

    def __init__(self, kind: type, mixes: bool) -> None:
        super().__init__()
        self.words, self.layer, self.out = nn.Embedding(7, 6), kind(6, 5, 2, batch_first=True), nn.Linear(5, 7)
        self.mixes = mixes

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        if self.mixes:
            state = tuple(t + 0.5 * t.mean(1, keepdim=True) for t in state)
        out, state = self.layer(self.words(x), state)
        return self.out(out), state


def states_beside_rows() -> str:
    """A state of layers with ``batch_first`` is cut in dimension 1, forward and backward, if its rows are separate."""
    wrong = []
    cases = [(nn.LSTM, False, "11 rows in "), (nn.GRU, False, "11 rows in "), (nn.LSTM, True, "")]
    for kind, mixes, want in cases:
        for name in ("aten._log_softmax.default", "aten._log_softmax_backward_data.default", "aten.embedding.default"):
            found = []
            for fault in (nullcontext(), Failing(name, 1)):
                torch.manual_seed(0)
                net = Language(kind, mixes)
                optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
                state: Any = torch.randn(2, 11, 5)
                state = (state, torch.randn(2, 11, 5)) if kind is nn.LSTM else state
                for i in range(4):
                    x, y = torch.randint(0, 7, (11, 4)), torch.randint(0, 7, (44,))
                    optimizer.zero_grad()
                    with fault if i == 1 else nullcontext():
                        out, state = net(x, state)
                        F.cross_entropy(out.reshape(-1, 7), y).backward()
                    optimizer.step()
                    state = tuple(t.detach() for t in state) if kind is nn.LSTM else state.detach()
                found.append([*net.parameters(), *(state if kind is nn.LSTM else [state])])
            same = all(close(a, b, 1e-4) for a, b in zip(*found))
            if not same or not told().startswith(want) or mixes and "pieces" in told():
                wrong.append(f"{kind.__name__}, {mixes}, {name}: {told()}, {same}")
    return "; ".join(wrong)


def crossing() -> str:
    """The two sums of calls that are compared cover the same rows, in calls of the same size. No call belongs to
    both sums, where it would cancel out. With four or more rows, the calls of one sum are those on the two
    halves of the rows."""
    for n in (2, 3, 4, 6, 8):
        rows = list(range(n))
        one, two, another, other = weights.crossing(rows)
        before, after = {(*one, *two), (*another, *other)}, {(*one, *another), (*two, *other)}
        sizes = {len(rows) for rows in before | after}
        if len(sizes) != 1 or before & after:
            return f"{n}: {before} and {after}"
        if n > 3 and (one + two, another + other) != (rows[: n // 2], rows[n // 2 :]):
            return f"{n}: {before} are not the halves"
        places = [{row: part.index(row) % 2 for part in parts for row in part} for parts in (before, after)]
        if n > 3 and places[0] == places[1]:
            return f"{n}: no row changes from an even to an odd place"
    return ""


def tried_again() -> str:
    """Rules are tried in uses 1, 2, 4, 8 and so on. If the duration of the last trial is known, they are also
    tried as soon as 100 times that duration has passed."""
    took, found = {3: 0.02, 6: 0.1}, []  # seconds that a trial took, by its number
    uses = proof.Uses()
    for second in range(200):
        if uses.due(float(second)):
            found.append(second)
            uses.took = took.get(len(found), math.inf)
    return "" if found == [0, 1, 3, 3 + 2, 7, 15, 15 + 10, 31, 63, 127] else f"{found}"


def tried_with_other_numbers() -> str:
    """Rules are also tried as soon as a number has another order of magnitude than in all trials so far. A number that
    changes in each use costs a trial for each order of magnitude, and one that comes back costs none."""
    wrong = []
    for name, number, most in (
        ("shrinks", lambda i: 0.99**i, 5),
        ("grows", lambda i: 1.01**i, 5),
        ("comes and goes", lambda i: (0.0, 1e-6, -3.0, math.nan, math.inf, 10**400)[i % 6], 1),
        ("is random", lambda i: float(torch.rand(1)), 5),
        ("stays", lambda i: 2, 0),
    ):
        torch.manual_seed(0)
        uses = proof.Uses()
        found = [i for i in range(1024) if uses.due(0.0, [5.0, number(i)])]
        more = [i for i in found if (i + 1) & i]  # not in uses 1, 2, 4 and so on
        if not most - 1 <= len(more) <= most and name != "is random" or len(more) > most:
            wrong.append(f"{name}: {more}")
    uses = proof.Uses()
    if [uses.due(0.0, [c]) for c in (1e-12,) * 4 + (9e-12, 1e-10, 1e-11, 1.0, 1.0, 0.2)] != [
        *(True, True, False, True),
        *(False, True, False, True, False, False),
    ]:
        wrong.append("not when it has grown")
    return "; ".join(wrong)


def each_by_itself() -> str:
    """What is known of one kind of step is tried again when it is due, and of other kinds only if a rule was wrong."""
    one, other = proof.Uses(), proof.Uses()
    proof.Proof.uses = {("one",): one, ("other",): other}

    def known() -> tuple[bool, ...]:
        found = tuple(bool(uses.rules) and uses.agreed for uses in (one, other))
        for uses in (one, other):
            uses.rules[()], uses.agreed = {}, True
        return found

    known()
    one.due(0.0)
    said = [known()]
    proof.Proof.forget()
    said.append(known())
    return "" if said == [(False, True), (False, False)] else f"{said}"


def timed() -> str:
    """The duration of a trial is noted only if the trial was in single precision. Only then is the trial also
    repeated as soon as 100 times its duration has passed."""
    for net, exact in ((nn.Linear(6, 7), True), (Rounding(3.0), False)):
        torch.optim.SGD(net.parameters(), lr=0.1)
        proof.Proof.uses.clear()
        with Fail("aten._log_softmax.default"):
            F.cross_entropy(net(torch.randn(8, 6)), torch.randint(0, 7, (8,))).backward()
        if [uses.took < math.inf for uses in proof.Proof.uses.values()] != [exact]:
            return f"{type(net).__name__}: {told()}, {[vars(uses) for uses in proof.Proof.uses.values()]}"
    return ""


def coupled_at_last() -> str:
    """A step that must not run in pieces is run whole, even if earlier steps ran in pieces. The
    user is told when pieces were last found to be right."""
    torch.manual_seed(0)
    report, remarks, proof.PAUSE = _torch._recorder.report, [], math.inf  # type: ignore[misc]
    report.remark = lambda text, level="info": remarks.append((level, text))  # type: ignore[method-assign]
    net = loops_parts.Coupled()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(8):  # the rules are tried in steps 0, 1, 3 and 7
        optimizer.zero_grad()
        with Fail() if i == 0 else nullcontext():
            net(torch.randn(8, 10), torch.randint(0, 5, (8,)), torch.tensor(0.5 if i == 7 else 1e-9)).backward()
    (level, text), *more = remarks
    begins, ends = (
        "this step is run whole, although those before it were run in pieces: ",
        "; the same trial last passed 4 steps ago",
    )
    return "" if level == "warning" and text.startswith(begins) and text.endswith(ends) and not more else f"{remarks}"


def warned_once() -> str:
    """A warning that is the same in many steps is shown only in the first of these steps. In the
    others it is only kept in the journal."""
    report, noted = Report(), []
    report.wire = lambda: SimpleNamespace(note=lambda text, level: noted.append(level))  # type: ignore[method-assign, assignment, return-value]
    for text, level in (
        ("whole: why; 4 steps ago", "warning"),
        ("whole: why; 9 steps ago", "warning"),
        ("whole: other", "warning"),
        ("whole: why", "info"),
    ):
        report.remark(text, level)
    return "" if noted == ["warning", "info", "warning", "info"] else f"{noted}"


class Centred(nn.Module):
    """Takes away a part of the mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 4))

    def forward(self, x: torch.Tensor, part: float) -> torch.Tensor:
        out = self.net(x)
        return out - part * out.mean(0)


def annealed_beside_any_loss() -> str:
    """A loss that relates the rows: only the results must be those of each row. Where a call computes them from a mean
    of the rows, they are not, however tiny the coefficient is."""
    net, raised = Centred().double(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, part in enumerate((1e-12, 1e-12, 1e-12, 1.0)):
        optimizer.zero_grad()
        try:
            with Whole("aten.tanh.default", 8):
                out = net(torch.randn(8, 6).double(), part)
                F.cross_entropy(out @ out.T, torch.arange(8)).backward()
        except torch.OutOfMemoryError:
            raised.append(step)
        optimizer.step()
    return "" if raised == [0, 1, 2, 3] else f"left to the script: {raised}"


class Annealed(loops_parts.Coupled):
    """The coefficient that says how much rows affect each other is an argument, an attribute, a
    number in an object whose name appears nowhere in the code, a buffer or a frozen parameter."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.factor, self.config = where, 0.0, SimpleNamespace(factor=0.0, steps=3)
        self.register_buffer("buffered", torch.zeros(()))
        self.frozen = nn.Parameter(torch.zeros(1), requires_grad=False)

    def anneal(self, factor: float) -> Any:
        """Sets the coefficient. Returns the argument."""
        if self.where == "attribute":
            self.factor = factor
        elif self.where == "object":
            self.config.factor = factor
        elif self.where in ("buffered", "frozen"):
            getattr(self, self.where).data.fill_(factor)
        return factor if self.where == "number" else torch.tensor(factor)

    def forward(self, x: torch.Tensor, y: torch.Tensor, factor: Any) -> torch.Tensor:
        given = {"argument": factor, "number": factor, "attribute": self.factor, "buffered": self.buffered}
        given.update(object=getattr(self.config, "fac" + "tor"), frozen=self.frozen[0])
        return super().forward(x, y, given[self.where])


def annealed() -> str:
    """The rules are tried again when a coefficient is no longer zero, or no longer tiny, wherever it is kept."""
    wrong, proof.PAUSE = [], math.inf  # type: ignore[misc]
    for where in ("argument", "number", "attribute", "object", "buffered", "frozen"):
        for first in (0.0, 1e-12):
            gradients: list[list[torch.Tensor]] = []
            for fault in (nullcontext(), Fail()):
                torch.manual_seed(0)
                net = Annealed(where)
                optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
                for i in range(3):  # the rules are tried in steps 0 and 1 anyway
                    given = net.anneal(0.5 if i == 2 else first)
                    optimizer.zero_grad()
                    with fault if i == 0 else nullcontext():
                        net(torch.randn(8, 10), torch.randint(0, 5, (8,)), given).backward()
                    optimizer.step()
                gradients.append([p.grad.clone() for p in net.parameters() if p.requires_grad])  # type: ignore[union-attr]
            if not all(close(a, b) for a, b in zip(*gradients)):
                wrong.append(f"{where} from {first}")
    return ", ".join(wrong)


class Paired(nn.Module):
    """Has a loss that pulls rows with the same label together."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(10, 12), nn.Linear(12, 40)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        seen = torch.tanh(self.body(x))
        apart = (seen[:, None] - seen).square().sum(-1) * (y[:, None] == y)
        return F.cross_entropy(self.head(seen), y) + 0.1 * apart.sum() / len(y)


class Expert(nn.Module):
    """Groups rows by the remainder of their labels divided by four, and uses only the first three rows of each
    group, in the order of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.expert = nn.Linear(10, 12), nn.Linear(12, 40)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        chosen = F.one_hot(y % 4, 4)
        place = (chosen.cumsum(0) * chosen).sum(1)
        return F.cross_entropy(self.expert(torch.tanh(self.body(x)) * (place <= 3)[:, None]), y)


def mixed_later() -> str:
    """Operations that relate rows to each other are found even in a batch in which they have no
    effect yet."""
    wrong, proof.PAUSE = [], math.inf  # type: ignore[misc]
    for model, labels, name in (
        (Paired, torch.zeros(8, dtype=torch.long), "sub"),
        (Expert, 4 * torch.arange(8), "cumsum"),
    ):
        gradients: list[list[torch.Tensor]] = []
        for fault in (nullcontext(), Fail()):
            torch.manual_seed(0)
            net = model()
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for i in range(3):  # the rules are tried in steps 0 and 1
                optimizer.zero_grad()
                with fault if i == 0 else nullcontext():
                    net(torch.randn(8, 10), torch.arange(8) if i < 2 else labels).backward()
                optimizer.step()
            gradients.append([p.grad.clone() for p in net.parameters()])  # type: ignore[union-attr]
        why = _torch._recorder.report.told[-1]["why"]
        same = all(close(a, b) for a, b in zip(*gradients))
        if not same or why != f"a call to {model.__name__} may mix rows of the batch with each other ({name})":
            wrong.append(f"{model.__name__}: {why}")
    return "; ".join(wrong)


class Related(nn.Module):
    """Subtracts from each row the mean of all, or runs an operation across the rows that has no effect."""

    def __init__(self, related: bool) -> None:
        super().__init__()
        self.body, self.related = nn.Linear(6, 5), related

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.body(x)
        return z - z.mean(0) if self.related else z + 0 * z.detach().cumsum(0)


class Sorted(nn.Module):
    """Returns its rows in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))[x[:, 0].argsort()]


class Lengthened(Sorted):
    """Pads what it returns to a length that the batch has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))[:, None].expand(-1, 2 + 3 * len(x), -1)


def seen_to_depend() -> str:
    """That a smaller batch would train something else is said only where a trial has shown that rows depend
    on each other, not where a call cannot be split, and not of a call without gradients. Where a failure
    happens makes no difference. A loss that relates the rows does not matter: the results are computed twice."""
    told: list[tuple[str, bool]] = []
    quiet: Any = lambda *_, **__: None  # noqa: E731
    wire = SimpleNamespace(
        refused=lambda why, mixed, **_: told.append((why.partition(";")[0], mixed)),
        survived=lambda way, why, **_: told.append((way, why.partition(";")[0])),
        oom=quiet,
        step=quiet,
        note=quiet,
        limit=0,
        asked=0,
        made=None,
        asked_to_look=False,
        asked_for_memory=False,
    )
    Report.wire = lambda self: wire  # type: ignore[method-assign, assignment, return-value]
    torch.manual_seed(0)
    y = torch.arange(8) % 5

    def contrastive(z: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(z @ z.T, torch.arange(8))

    def diagonal(z: torch.Tensor) -> torch.Tensor:
        return torch.diag(z[:, 0]).square().mean()

    def infinite(z: torch.Tensor) -> torch.Tensor:
        return (F.cross_entropy(z, y, reduction="none") / 0).mean()

    def weighted(z: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(z, y, weight=torch.tensor([0.1, 1.0, 3.0, 0.5, 7.0]))

    def usual(z: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(z, y)

    def total(z: torch.Tensor) -> torch.Tensor:
        return z.square().sum()

    wrong = []
    sums = "the loss of a batch is not a weighted sum of the losses of its rows"
    for loss, related, want in (
        (contrastive, None, ("matmul compares every row of the batch with every other", True)),
        (diagonal, None, ("diag returns a result that grows with the batch in two dimensions", False)),
        (infinite, None, (sums, False)),
        (weighted, None, (sums, True)),
        (usual, False, ("a call to Related may mix rows of the batch with each other (cumsum)", False)),
        (usual, True, ("a call to Related mixes rows of the batch with each other (mean)", True)),
        (total, Sorted, ("a call to Sorted may mix rows of the batch with each other (sort)", False)),
        (total, Lengthened, ("Lengthened returns a result that has another length for other rows", False)),
    ):
        for at in ("addmm", "mm"):
            told.clear()
            net = nn.Linear(6, 5) if related is None else Related(related)
            net = related() if loss is total else nn.Sequential(nn.Linear(6, 6), net)
            torch.optim.SGD(net.parameters(), lr=0.1)
            with Whole(f"aten.{at}.default", 8):
                try:
                    loss(net(torch.randn(8, 6))).backward()
                except torch.OutOfMemoryError:
                    pass
            found = [(why.replace("Sequential", "Related"), mixed) for why, mixed in told]
            # The product of all rows with all rows fails, too.
            twice = related is None and (loss is not contrastive or at == "addmm")
            if found != ([("two-pass", want[0])] if twice else [want]):
                wrong.append(f"{loss.__name__}, {at}: {found}")
    told.clear()
    net = Related(True)
    torch.optim.SGD(net.parameters(), lr=0.1)
    with Whole("aten.addmm.default", 8), torch.no_grad():
        try:
            net(torch.randn(8, 6))
        except torch.OutOfMemoryError:
            pass
    if told != [("a call to Related mixes rows of the batch with each other (mean)", False)]:
        wrong.append(f"evaluation: {told}")
    return "; ".join(wrong)


def anew(x: torch.Tensor) -> torch.Tensor:
    """What is added to the rows has the memory of a sum that is gone."""
    for _ in range(8):
        x.sum(0)
        x = x + torch.arange(3.0)
    return x


def sparse(x: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.arange(len(x)).expand(2, -1).contiguous(), x, (9, 9))


def chosen(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x).index_add(0, rows, x[rows] * 2)


def table(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """For each row, whether its group is in a table that chosen rows have filled."""
    groups = torch.arange(len(x)) % 2
    filled = torch.zeros(5)
    filled[groups[chosen]] = 1.0
    return filled[groups][:, None, None]


def packed(x: torch.Tensor) -> torch.Tensor:
    """What two or three sequences of several lengths end with."""
    lengths, steps = torch.tensor([3, 5, 8])[: len(x)], x[:, :1].expand(-1, 8, -1)
    data = nn.utils.rnn.pack_padded_sequence(steps, lengths, batch_first=True, enforce_sorted=False)
    return nn.LSTM(3, 4, batch_first=True)(data)[1][0][-1]


def mixing_operations() -> str:
    """An operation is found to relate rows to each other if its result grows with the rows in two
    dimensions, or if it sorts or accumulates along the rows. Operations that pack rows by their
    lengths do not count."""
    calls: list[tuple[str, Callable[[torch.Tensor], Any], Any]] = [
        ("each row alone", lambda x: torch.softmax(x @ x[0], -1).cumsum(1).sort(-1), None),
        ("pairs", lambda x: x.flatten(1) @ x.flatten(1).T, "mm"),
        ("pairs of lines", lambda x: (x[:, 0, 0] > 0)[:, None] & (x[:, 0, 0] > 0), "bitwise_and"),
        ("along the rows", lambda x: x.sum(-1).cumsum(0), "cumsum"),
        ("along the last dimension", lambda x: x.permute(1, 2, 0).softmax(-1), "_softmax"),
        ("along all lines", lambda x: x.flatten(0, 1).topk(2, dim=0), "topk"),
        ("whole numbers for each row", lambda x: (x > 0).sum((1, 2)).cumsum(0).sort(), None),
        ("two whole numbers for each row", lambda x: (x > 0).sum(1).cumsum(0), "cumsum"),
        ("a sum, as in a loss", lambda x: (x / 2).sum() / x.sum(), None),
        ("a share for each row", lambda x: (x / x.sum()).sum(), "sum"),
        ("beside the mean", lambda x: x - x.mean(0), "mean"),
        ("beside the mean of another", lambda x: x - torch.ones_like(x).mul(3).amax((0, 1)).neg(), "amax"),
        ("beside the mean of its own", lambda x: x - x.mean(1, keepdim=True), None),
        ("a sum for each user", lambda x: torch.zeros(7, 3, 3).index_add(0, torch.arange(len(x)), x), "index_add"),
        (
            "counted for each user",
            lambda x: torch.zeros(7).long().index_add(0, torch.arange(len(x)), x[:, 0, 0].long()),
            None,
        ),
        (
            "a matrix of pairs",
            lambda x: sparse(x[:, 0, 0]).to_dense().sum(),
            "_sparse_coo_tensor_with_dims_and_tensors",
        ),
        ("a place for each row", lambda x: torch.zeros_like(x).index_add(0, torch.arange(len(x)), x), None),
        ("as many places as classes", lambda x: torch.zeros(len(x), 9).scatter_add(1, x[:, 0].long(), x[:, 0]), None),
        (
            "one of many",
            lambda x: torch.zeros(7, 9).index_put((torch.arange(len(x)),), x.flatten(1), True),
            "index_put",
        ),
        ("counted by a product", lambda x: x @ (x[:, 0].T @ x[:, 1]), "mm"),
        ("different rows", lambda x: x.flatten(1).unique(return_counts=True)[1].sum(), "_unique2"),
        ("seen elsewhere", lambda x: torch.isin(x, x[:, :1].contiguous()).sum(), "isin"),
        ("the rows of an expert", lambda x: chosen(x, (torch.arange(len(x)) == 0).nonzero().squeeze(1)), None),
        ("a table filled at chosen rows", lambda x: x * table(x, torch.arange(len(x)) == 0), "index_put_"),
        ("a table filled at no row", lambda x: x * table(x, torch.arange(len(x)) < 0), "index_put_"),
        ("the sum of chosen rows", lambda x: x * x[torch.arange(len(x)) == 0].sum(), "sum"),
        ("something of chosen rows", lambda x: x * (x[torch.arange(len(x)) == 0] * 2).sum(), "sum"),
        ("something of the first row", lambda x: x * x.index_select(0, torch.tensor([0])).exp().sum(), "sum"),
        ("a table that holds no row", lambda x: x * table(torch.ones(4, 1, 1), torch.arange(4) == 0)[0], None),
        ("memory that is used again", anew, None),
        ("the shape of a sum", lambda x: x + torch.zeros_like(x.sum(0)), None),
        ("a size of its own", lambda x: torch.zeros(len(x), 4 if len(x) == 2 else 5), None),
        ("calls that differ", lambda x: x.cumsum(0) if len(x) == 2 else x.cumprod(0), None),
        ("a number for each row", lambda x: x[:, 0, 0].cumsum(0), "cumsum"),
        ("a stable order", lambda x: x.sort(stable=True, dim=0), "sort"),
        ("a single number", lambda x: torch.zeros(()).cumsum(0), None),
        ("the norm of each column", lambda x: torch.renorm(x.flatten(1), 2, 1, 5.0), "renorm"),
        ("the norm of each row", lambda x: torch.renorm(x.flatten(1), 2, 0, 5.0), None),
        ("sparse sums", lambda x: x + torch.sparse.sum(x[:, 0].to_sparse(), 0).to_dense(), "_sparse_sum"),
        ("packed rows", lambda x: packed(x), None),
        ("compressed sums", lambda x: x + x[:, 0].to_sparse_csr().sum(0, keepdim=True).to_dense(), "sum"),
        ("sparse rows", lambda x: x[:, 0] * x[:, 0].to_sparse().to_dense(), None),
        ("compressed", lambda x: x[:, 0] * x[:, 0].to_sparse_csr().to_dense(), None),
        ("rows of their own lengths", lambda x: torch.nested.nested_tensor(list(x)), None),
    ]
    wrong = []
    for what, call, want in calls:
        made = []
        for n in (2, 3):
            operations = Operations()
            with Watched([operations]), unwarned():
                call(torch.ones(n, 3, 3))
            made.append(operations.made)
        got = mixing(made[0], made[1], 2, 3)
        if got != want:
            wrong.append(f"{what}: {got}")
    return "; ".join(wrong)


def small_batches() -> str:
    """Batches of few rows also run in pieces, with the same gradients."""
    torch.manual_seed(0)
    wrong = []
    for rows in (2, 3, 4, 5):
        net = nn.Linear(6, 7)  # a new model, so that nothing is known about it yet
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x, y = torch.randn(rows, 6), torch.randint(0, 7, (rows,))
        gradients = []
        for fault in (None, Fault("again", 0, rows)):
            optimizer.zero_grad()
            with Injector(fault) as injector:
                injector.begin()
                try:
                    F.cross_entropy(net(x), y).backward()
                except torch.OutOfMemoryError:
                    return f"{rows} rows are not survived"
                injector.end()
            gradients.append([p.grad.clone() for p in net.parameters()])  # type: ignore[union-attr]
        how = _torch._recorder.report.told[-1]["how"]
        if not how.startswith(f"{rows} rows in "):
            return f"{rows} rows: {how}"
        if not all(close(a, b) for a, b in zip(*gradients)):
            wrong.append(rows)
    return f"other gradients of {wrong} rows" if wrong else ""


class Rounding(nn.Module):
    """Computes in half precision, under autocast or explicitly, and returns results in single
    precision. With a small ``scale`` the results are nearly the same for every row."""

    def __init__(self, scale: float, autocast: bool = False) -> None:
        super().__init__()
        self.inner, self.scale, self.autocast = nn.Linear(6, 7), scale, autocast

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.autocast:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = self.inner(x)
        else:
            h = F.linear(x.bfloat16(), self.inner.weight.bfloat16(), self.inner.bias.bfloat16())
        off = 2e-3 * (len(x) % 2) if h.dtype == torch.bfloat16 else 0.0  # imitates kernels for other numbers of rows
        # a tensor, so that the same operations run for any number of rows
        return h.float() * self.scale * torch.tensor(1 + off)


def equal_but_for_rounding() -> str:
    """The weights by which losses add up are found even if the losses hardly differ from row to row
    and the module rounds its results."""
    torch.manual_seed(0)
    net, x, y = Rounding(1e-3), torch.randn(8, 3, 6), torch.randint(0, 7, (8, 3))
    y[1, 1:] = y[6, 2:] = -100  # some rows with three labels that count, one with two and one with one
    return rounded(net, lambda: F.cross_entropy(net(x).flatten(0, 1), y.flatten()))


def half_behind() -> str:
    """If a loss rounds its own result to half precision, it is compared with a tolerance that
    allows for this."""
    torch.manual_seed(0)
    net, x, y = Rounding(3.0), torch.randn(8, 6), torch.randint(0, 7, (8,))
    return rounded(net, lambda: F.cross_entropy(net(x), y, reduction="none").half().mean().float())


def half_between() -> str:
    """Results that a model computes under its own autocast are compared with a tolerance that
    allows for half precision, although trials run without autocast."""
    torch.manual_seed(0)
    net, x, y = Rounding(3.0, True), torch.randn(6, 6), torch.randint(0, 7, (6,))  # in two pieces of three
    return rounded(net, lambda: F.cross_entropy(net(x), y), lambda: Whole("aten.nll_loss_backward.default", 6))


class Tossing(nn.Module):
    """Draws a random number that has no effect on the results."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * (0.0 if random.random() > 1.0 else 1.0)


def reasons() -> str:
    """A step is refused for reasons that neither the results nor the gradients of a few rows show:
    a function that changes its argument, and a module that draws random numbers outside PyTorch."""
    net, x, y = nn.Sequential(nn.Linear(6, 5), nn.Softplus()), torch.randn(8, 6), torch.randint(0, 5, (8,))
    steps: list[tuple[str, nn.Module, Callable[[Any], torch.Tensor]]] = [
        ("Doubled changes its argument", net, loops_parts.Doubled.apply),
        ("a call to Tossing draws random numbers from Python or NumPy", Tossing(), torch.square),
    ]
    wrong = []
    for why, model, function in steps:
        wrong.append(
            refused_otherwise(
                "aten.nll_loss_backward.default", why, model, lambda m: F.cross_entropy(function(m(x)), y).backward()
            )
        )
    return "; ".join(filter(None, wrong))


def refused_otherwise(operation: str, why: str, model: nn.Module, step: Callable[[nn.Module], Any]) -> str:
    """What is wrong if a step in which an operation on eight rows never fits is not refused for this reason."""
    torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        with Whole(operation, 8):
            step(model)
        return f"{why}: survived"
    except torch.OutOfMemoryError:
        told = _torch._recorder.report.told[-1]
        return "" if told["why"] == why else f"{why}: {told}"


class Tight(nn.Module):
    """Fits only a few rows at once, and none while more than ``most`` results are kept in whole."""

    def __init__(self, rows: int, most: int) -> None:
        super().__init__()
        self.body, self.rows, self.most = nn.Linear(6, 5), rows, most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.rows or sum(isinstance(o, deferred.Kept) for o in gc.get_objects()) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (injected)")
        return self.body(x)


def kept_values_give_way() -> str:
    """What is kept of a result for the script takes memory. If the pieces do not fit beside it, the step comes
    first."""
    net, x = Tight(8, 0), torch.randn(32, 6)
    torch.optim.SGD(net.parameters(), lr=0.1)
    out = net(x)
    F.cross_entropy(out, torch.arange(32) % 5).backward()
    return "" if told() == "32 rows in 16 pieces" else told()


def only_what_the_script_holds_is_kept() -> str:
    """Where a loss fails, the script's usual line holds no result of the model, and neither does the failure."""
    made: list[dict] = []
    kept = deferred.Deferred._kept
    deferred.Deferred._kept = lambda self: made.append(kept(self)) or made[-1]  # type: ignore[method-assign, func-returns-value]
    net, x = nn.Linear(6, 50), torch.randn(8, 6)
    torch.optim.SGD(net.parameters(), lr=0.1)
    for keeps in (False, True):
        with Whole("aten._log_softmax.default", 8):
            if keeps:
                out = net(x)
                F.cross_entropy(out, torch.arange(8)).backward()
            else:
                F.cross_entropy(net(x), torch.arange(8)).backward()
    return "" if [len(values) for values in made] == [0, 1] else f"{made}"


def generators_go_on() -> str:
    """A loss that fails may be computed in a generator, which waits while the step is run again."""
    net, x = nn.Linear(6, 50), torch.randn(8, 6)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def losses() -> Iterator[torch.Tensor]:
        for i in range(3):
            yield F.cross_entropy(net(x), torch.arange(8) + i)

    count = 0
    with Whole("aten._log_softmax.default", 8):
        for loss in losses():
            loss.backward()
            optimizer.step()
            count += 1
    return "" if count == 3 else f"ended after {count}"


def values_take_smaller_pieces() -> str:
    """If pieces of the size that fitted no longer fit when a result is asked for, they are cut again."""
    net, x = Tight(8, 99), torch.randn(32, 6)
    torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.no_grad():
        wanted = net.body(x)
    out = net(x)
    net.rows = 3
    return "" if torch.equal(torch.tensor(out.tolist()), wanted) else "other values"


def a_value_keeps_its_tape() -> str:
    """A result without a graph, whose values were released when the loss failed, can be asked for when nothing else of
    its step is left."""
    net, x = nn.Linear(6, 50), torch.randn(8, 6)
    torch.optim.SGD(net.parameters(), lr=0.1)
    wanted = F.linear(x, net.weight, net.bias).detach()
    out = net(x)
    value = out.detach()
    with Whole("aten._log_softmax.default", 8):
        F.cross_entropy(out, torch.arange(8))
    failure.release_frames(value._headroom.tape.step.failure)  # type: ignore[attr-defined]
    del out
    gc.collect()
    return "" if close(torch.tensor(value.tolist()), wanted) else "other values"


def written_before_a_trial() -> str:
    """What a first call has written to a tensor among a module's attributes is seen without a trial."""

    class Storing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.store, self.body = torch.zeros(1), nn.Linear(6, 5)

    net = Storing()
    found = RecordedModule(_torch._recorder, net)
    found.before(0)
    net.store.add_(1)
    return "" if found.put_back() is False and found.writes else "not seen"


class Listing(nn.Module):
    """Returns its results in an object that holds what it has returned before, too."""

    class Cache:
        def __init__(self, values: torch.Tensor) -> None:
            self.values = values

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> Any:
        return Listing.Cache(self.body(x))


class Parted(nn.Module):
    """Is given an object that holds nothing of which dimension 0 is the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 5)

    def forward(self, graph: Any) -> torch.Tensor:
        return self.body(graph.nodes).sum(0) + 0 * graph.edges.sum() + 0 * graph.labels.sum()


def objects() -> str:
    """Objects are taken apart and put together again without their constructors. What cannot be taken apart is
    named if the script needs it."""
    x, y = torch.randn(8, 6), torch.randint(0, 5, (8,))
    wrong = []

    class Named(tuple):
        pass

    class Slotted:
        __slots__ = ("a", "b")

        def __init__(self) -> None:
            raise AssertionError

    slotted, named, ordered, cyclic = (
        object.__new__(Slotted),
        Named((x, 2)),
        OrderedDict(b=x, a=y),
        SimpleNamespace(x=x),
    )
    slotted.a, named.note, cyclic.me = x, y, cyclic  # type: ignore[attr-defined]
    kept = [slotted, named, ordered, Categorical(logits=x), Independent(Normal(x, x.exp()), 1)]
    for value in kept:
        leaves, tree = trees.flatten((value, 3))
        new, _ = trees.unflatten([2 * t if isinstance(t, torch.Tensor) else t for t in leaves], tree)
        again, _ = trees.flatten((new, 3))
        if type(new) is not type(value) or not all(
            torch.equal(b, 2 * a) if isinstance(a, torch.Tensor) else a is b or a == b for a, b in zip(leaves, again)
        ):
            wrong.append(f"{type(value).__name__}: {again} of {leaves}")
        if trees.mapped(lambda leaf: leaf, [value])[0] is not value and not isinstance(value, OrderedDict):
            wrong.append(f"{type(value).__name__} is not the same object")
    if [type(t) for t in trees.flatten(cyclic)[0]] != [type(None), torch.Tensor, SimpleNamespace]:
        wrong.append("an object that holds itself")
    wide = type("Wide", (), {})()
    wide.log = SimpleNamespace(lists=[[0.0] * 600] * 2, x=x)
    if [type(t) for t in trees.flatten(wide)[0]] != [type(None), SimpleNamespace] or trees.opened(wide.log) is not None:
        wrong.append("too much is looked at")
    closed = [
        random.Random(),
        threading.local(),
        nn.Linear(2, 2),
        Listing,
        trees.flatten,
        Listing.Cache(x),
        3,
        object(),
        type("Whole", (int,), {})(3),
    ]
    wrong += [f"{value} is opened" for value in closed if trees.opened(value) is not None]
    given = SimpleNamespace(nodes=x, edges=torch.randn(3, 4), labels=torch.randn(5))
    steps: list[tuple[str, nn.Module, Callable[[Any], Any]]] = [
        (
            "the script uses a Cache object that a call to Listing returns, and such an object cannot be "
            "joined from pieces",
            Listing(),
            lambda m: m(x).values,
        ),
        (
            "the first module's arguments, in a SimpleNamespace object, disagree about the size of the batch",
            Parted(),
            lambda m: m(given),
        ),
    ]
    wrong += [refused_otherwise("aten.addmm.default", *step) for step in steps]
    return "; ".join(filter(None, wrong))


class Timed(nn.Module):
    """Time is dimension 0, and the batch dimension 1, in which rows depend on each other, too."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.LSTM(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)[0]
        return (y - y.mean(1, keepdim=True)).reshape(-1, 5)


class Stacked(nn.Linear):
    """Is given its batch as a list."""

    def forward(self, rows: list) -> torch.Tensor:
        return super().forward(torch.stack([row["x"] for row in rows]))


class Packing(nn.Linear):
    """Is given sequences one after the other, and where each of them ends."""

    def forward(self, x: torch.Tensor, at: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        y = super().forward(x + at.unsqueeze(-1))
        flat = y.reshape(-1, y.shape[-1])
        return torch.cat([flat[a:b] - flat[a:b].mean(0) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist())]).view(
            y.shape
        )


class Graph(nn.Linear):
    def forward(self, x: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        return 0 * graph.sum() + super().forward(x[edges[0]] + x[edges[1]])


class Large(torch.utils._python_dispatch.TorchDispatchMode):
    """Makes one operation fail on tensors with at least 60 elements."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == self.name and args[0].numel() >= 60:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (injected)")
        return func(*args, **(kwargs or {}))


def kinds_of_batches() -> str:
    """A batch of another kind than rows in dimension 0 is refused for a reason that names what was seen. What is no
    row does not show that rows depend on each other."""
    x, edges = torch.randn(8, 6), torch.tensor([[0, 3, 7, 2, 5, 1, 4, 6], [1, 4, 6, 5, 7, 2, 0, 3]])
    ends, at = torch.tensor([0, 3, 8]), torch.arange(8)
    steps: list[tuple[str, nn.Module, tuple]] = [
        (
            "a row's result depends on the other rows; dimension 0 of the arguments of Timed, of 8, may "
            "not be the batch, since its LSTM has batch_first=False",
            Timed(),
            (torch.randn(8, 2, 6),),
        ),
        (
            "the first module is given a list of 8 items, and only tensors are cut",
            Stacked(6, 9),
            ([{"x": row} for row in x],),
        ),
        ("a batch of one row cannot be split", Packing(6, 9), (x[None], at[None], ends)),
        (
            "a call to Packing mixes rows with each other (mean); dimension 0 of the arguments of Packing, of 8, "
            "may not be the batch, since 3 whole numbers are given "
            "with it, such as the ends of sequences",
            Packing(6, 9),
            (x, at, ends),
        ),
        (
            "a call to Graph fails if dimension 0 of its arguments is cut from 8 to 2 (IndexError: index "
            "3 is out of bounds for dimension 0 with size 2)",
            Graph(6, 9),
            (x, edges, at),
        ),
    ]
    wrong = []
    for why, model, given in steps:
        torch.optim.SGD(model.parameters(), lr=0.1)
        for where in ("aten.pow.Tensor_Scalar", "aten.mul.Tensor"):
            try:
                with Large(where):
                    model(*given).pow(2).mean().backward()
                wrong.append(f"{where} {why}: survived, {told()}")
            except torch.OutOfMemoryError:
                pass
            refused = _torch._recorder.report.told[-1]
            if refused["why"] != why or refused["code"] == failure.Mixed.code:
                wrong.append(f"{where} {why}: {refused}")
    trials: Any = SimpleNamespace(
        tape=SimpleNamespace(outside=[x, edges, edges[:, :1]]),
        batch=8,
        rows=[SimpleNamespace(count=2), SimpleNamespace(count=3)],
    )
    for at, points in ((1, True), (2, False), (0, False)):
        try:
            entry = Entry(Graph.forward, nn.Linear(1, 1), (Outside(0), Outside(at)), {})
            refuse_pointing(trials, entry, Cut({0: Axis(0)}))
            found = False
        except failure.Refused:
            found = True
        if found != points:
            wrong.append(f"numbers of rows: {found} for {at}")
    return "; ".join(wrong)


class Numbered(nn.Module):
    """A model that treats rows by their numbers, or a batch by its size."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.one, self.two, self.kind = nn.Linear(6, 16), nn.Linear(16, 5), nn.Linear(16, 5), kind
        self.table = nn.Embedding(33, 6, scale_grad_by_freq=kind == "counts")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind in ("counts", "does not count"):
            x = x + self.table((x[:, 0] * 100).round().long() // 2)  # rows beside each other use the same one
        h = self.body(x)
        kinds: dict[str, Callable[[], torch.Tensor]] = {
            "heads": lambda: torch.cat([self.one(h[:40]), self.two(h[40:])]),
            "split": lambda: torch.cat([self.one(h).split(40)[0], *(2 * p for p in self.one(h).split(40)[1:])]),
            "mask": lambda: self.one(h) * (1 + (torch.arange(len(h)) >= 40).float())[:, None],
            "written": lambda: written(self.one(h).clone(), 40),
            "detached": lambda: torch.cat([self.one(h[:40]), self.one(h[40:]).detach()]),
            "every second": lambda: halted(self.one(h).clone()),
            "size": lambda: self.one(h) * 2 if x.size(0) > 40 else self.one(h),
            "size, another number": lambda: self.one(h) * (2 if x.size(0) > 40 else 3),
            "spaced": lambda: self.one(h) * (1 + (torch.linspace(0, len(h) - 1, len(h)) >= 40).float())[:, None],
            "masked": lambda: capped(self.one(h), torch.arange(len(h)).masked_select(x[:, 0] > -9)),
            "indexed": lambda: capped(self.one(h), torch.arange(len(h))[x[:, 0] > -9]),
            "capacity": lambda: capped(self.one(h), (x[:, 0] > -9).nonzero().squeeze(1)),
            "enough": lambda: self.one(h) * 2 if (x[:, 0] > -9).sum() > 40 else self.one(h),
            "counted": lambda: torch.where((x[:, 0] > -9).sum() > 40, self.one(h) * 2, self.one(h)),
            "floor": lambda: self.one(h) * (x[:, :1] > -9).float().sum().clamp(min=40) / 40,
            "by class": lambda: (
                self.one(h)
                * (1 + (torch.zeros(5).index_add(0, (x[:, 0] < -9).long(), torch.ones(len(x))) > 40).float())
            ),
            "by bin": lambda: torch.where(torch.bincount((x[:, 0] < -9).long())[0] > 40, self.one(h) * 2, self.one(h)),
            "some": lambda: self.one(h) * 2 if (x[:, 0] > -9).sum() > 0 else self.one(h),
            "backward by number": lambda: Halting.apply(self.one(h), 40),
            "backward": lambda: Halting.apply(self.one(h), 0),
            "looked up": lambda: self.one(h)[torch.arange(len(h)), :].clamp(max=40.0),
            # not rows, although there are as many
            "as many": lambda: self.one(h) * (torch.arange(66) >= 40).float().mean(),
            "one by one": lambda: torch.stack([self.one(row) for row in h]),
            "divided": lambda: self.one(h) / 3,
        }
        return kinds.get(self.kind, lambda: self.one(h))()


class Halting(torch.autograd.Function):
    """The identity, whose gradient is zero for the rows from a number on, if that is not 0."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, number: int) -> torch.Tensor:
        ctx.number = number
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        grad = grad.clone()
        if ctx.number:
            grad[ctx.number :] = 0.0
        return grad, None


def capped(out: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return out.index_add(0, chosen[:40], torch.ones_like(out)[chosen[:40]])


def written(out: torch.Tensor, number: int) -> torch.Tensor:
    out[number:] *= 2
    return out


def halted(out: torch.Tensor) -> torch.Tensor:
    out[::2] = out[::2].detach()
    return out


def rows_by_number() -> str:
    """A model or a loss that treats rows by their numbers, or batches by their size, gives the same gradients as
    without the failure, or is refused. What does neither is run in pieces."""

    def zeroed(out: torch.Tensor) -> torch.Tensor:
        out[40:] = 0.0
        return out

    def columns(out: torch.Tensor) -> torch.Tensor:
        out[:, 4:] = 0.0
        return out

    def first(out: torch.Tensor) -> torch.Tensor:
        return out * (torch.ones_like(out).cumsum(0) <= 40)

    def along(out: torch.Tensor) -> torch.Tensor:
        return out * (torch.ones_like(out).cumsum(1) <= 3)

    wrong = []
    losses: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "rows of the loss": zeroed, "columns of the loss": columns, "counted rows": first, "counted columns": along,
    }  # fmt: skip
    refused = [
        "spaced", "masked", "indexed", "by bin",
        "counted", "floor", "by class", "counted rows", "capacity", "enough", "backward by number", "heads", "split", "mask", "written",
        "detached", "every second", "size", "size, another number", "counts", "rows of the loss",
    ]  # fmt: skip
    for kind in (
        *refused,
        "as many",
        "looked up",
        "one by one",
        "divided",
        "does not count",
        "columns of the loss",
        "counted columns",
        "some",
        "backward",
    ):
        grads: list[list] = []
        for failing in (False, True):
            torch.manual_seed(1)
            net = Numbered(kind)
            torch.optim.SGD(net.parameters(), lr=0.1)
            x, y = torch.randn(66, 6), torch.randint(0, 5, (66,))
            x[:, 0] = torch.arange(66) / 100
            survived = True
            with Whole("aten._log_softmax.default", 66) if failing else nullcontext():
                try:
                    out = net(x)
                    F.cross_entropy(losses.get(kind, lambda out: out)(out * 1), y).backward()
                except torch.OutOfMemoryError:
                    survived = False
            grads.append([p.grad for p in net.parameters() if p.grad is not None])
        same = survived and all(close(a, b, 1e-4) for a, b in zip(*grads))
        pieces = survived and told().endswith(" pieces")
        if survived and not same or pieces and kind in refused or not pieces and kind not in refused:
            wrong.append(f"{kind}: {survived}, {same}, {_torch._recorder.report.told[-1:]}")
    return "; ".join(wrong)


class Drawing(nn.Module):
    """Draws from a generator of its own, for all rows at once."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.generator = nn.Linear(6, 5), torch.Generator().manual_seed(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) + torch.rand(1, 5, generator=self.generator)


def generators_of_the_script() -> str:
    """A model that draws from a generator of the script's own is not called again, and its trial does not draw from
    it."""
    net = Drawing()
    torch.optim.SGD(net.parameters(), lr=0.1)
    before = net.generator.get_state()
    with Whole("aten.addmm.default", 66):
        try:
            F.cross_entropy(net(torch.randn(66, 6)), torch.randint(0, 5, (66,))).backward()
        except torch.OutOfMemoryError:
            same = torch.equal(before, net.generator.get_state())
            why = _torch._recorder.report.told[-1]["why"]
            return (
                ""
                if same and why == "a call draws random numbers from a generator of the script's own"
                else f"{same}, {why}"
            )
    return "survived"


class Arranged(nn.Module):
    """Its tensors are copied only where strides need it: not for a single row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous().t() * 2


def memory_is_arranged() -> str:
    """Whether an operation that only arranges memory runs may depend on the number of rows."""
    net = Arranged()

    def call(rows: int) -> Callable[[], Any]:
        x = torch.empty(rows, 3, device="meta")
        return lambda: net(x)

    said = branching.otherwise(net, {1: lambda: call(1), 2: lambda: call(2)})
    return "" if said is None else said


def strides_on_the_host() -> str:
    """Saved tensors that were kept on the host come back with their strides, which cuDNN's recurrent layers need."""
    if not torch.cuda.is_available():
        return ""
    torch.manual_seed(0)
    net, x, w = nn.GRU(10, 12, batch_first=True).cuda(), torch.randn(7, 9, 10).cuda(), torch.randn(7, 9, 12).cuda()
    grads = []
    for context in (nullcontext, saved.on_host):
        net.zero_grad()
        with context():
            out = net(x)[0]
        (out * w).sum().backward()
        grads.append([p.grad for p in net.parameters()])
    return "" if all(close(a, b, 1e-4) for a, b in zip(*grads)) else "other gradients"  # type: ignore[arg-type]


def hooks_of_modules() -> str:
    """A backward hook of a module is called as often as without the failure, with the gradients of the whole batch."""
    seen: list[list[float]] = []
    for failing in (False, True):
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 5))
        torch.optim.SGD(net.parameters(), lr=0.1)
        calls: list[float] = []
        net[2].register_full_backward_hook(lambda m, i, o, calls=calls: calls.append(o[0].norm().item()))  # type: ignore[misc]
        with Whole("aten._log_softmax.default", 8) if failing else nullcontext():
            try:
                F.cross_entropy(net(torch.randn(8, 6)), torch.randint(0, 5, (8,))).backward()
            except torch.OutOfMemoryError:
                calls.extend(seen[0])
        seen.append(calls)
    return "" if close(torch.tensor(seen[0]), torch.tensor(seen[1])) else f"{seen}"


class Clamp(torch.autograd.Function):
    """Clamps gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad.clamp(-0.004, 0.004)


class Clamping(nn.Module):
    """Clamps gradients on their way through it, in a way that depends on ``how``."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.first, self.tanh, self.last = how, nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)
        if how == "a hook of a module":
            self.tanh.register_full_backward_hook(lambda m, inner, outer: (inner[0].clamp(-0.004, 0.004),))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.first(x)
        if self.how == "a function":
            z = Clamp.apply(z)
        elif self.how == "a function in a checkpoint":
            z = checkpoint(Clamp.apply, z, use_reentrant=True)
        elif self.how == "a hook on a tensor" and z.requires_grad:
            z.register_hook(lambda g: g.clamp(-0.004, 0.004))
        elif self.how == "a hook on a node" and z.grad_fn is not None:
            z.grad_fn.register_prehook(lambda grads: (grads[0].clamp(-0.004, 0.004),))
        return self.last(self.tanh(z))


class Once(Whole):
    """Makes the operation fail once."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})) if self.raised else super().__torch_dispatch__(func, types, args, kwargs)


def gradients_that_are_not_linear() -> str:
    """A model that clamps gradients has those of the loss as the script scales it, whether the script has read the loss
    before or not, and wherever the step fails. What cannot be known in time is left to the script."""

    def joined(out: torch.Tensor, read: bool) -> torch.Tensor:
        one, other = out[:, 0].square().mean(), (out[:, 1] - 1).abs().mean()
        if read:
            one.item(), other.item()
        return (one + other) * 4

    def scaled(factor: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor, bool], torch.Tensor]:
        def loss(out: torch.Tensor, read: bool) -> torch.Tensor:
            loss = out.square().mean()
            if read:
                loss.item()
            return factor(loss)

        return loss

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    spellings: dict[str, tuple[Callable[[torch.Tensor, bool], torch.Tensor], float]] = {
        "divided": (scaled(lambda loss: loss / 3), 1.0),
        "scaled": (scaled(scaler.scale), 1.0),  # type: ignore[arg-type]
        "a gradient": (scaled(lambda loss: loss), 64.0),
        "two losses": (joined, 1.0),
    }
    hows = ["a function", "a function in a checkpoint", "a hook on a tensor", "a hook on a node", "a hook of a module"]
    cases = [(how, said, True, "tanh") for how in hows for said in spellings]
    cases += [("a function", said, read, "tanh_backward") for said in spellings for read in (False, True)]
    cases += [(how, said, False, "tanh") for how in ("a function", "a hook on a tensor") for said in spellings]
    wrong, known = [], dict[tuple, list]()

    def trained(how: str, said: str, read: bool, at: str) -> list[torch.Tensor]:
        torch.manual_seed(0)
        (loss, given), net = spellings[said], Clamping(how)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            # A module with such a hook is never run in pieces.
            fails = Whole(f"aten.{at}.default", 8) if how != "a hook of a module" else Once(f"aten.{at}.default", 8)
            with fails if at else nullcontext():
                loss(net(torch.randn(8, 6)), read).backward(torch.tensor(given))
            optimizer.step()
            optimizer.zero_grad()
        return [p.detach() for p in net.parameters()]

    for how, said, read, at in cases:
        if (how, said) not in known:
            known[how, said] = trained(how, said, False, "")
        try:
            found = trained(how, said, read, at)
        except torch.OutOfMemoryError:
            wrong.append(f"{how}, {said}, read: {read}, {at}: raised")
            continue
        if not all(map(close, known[how, said], found)):
            wrong.append(f"{how}, {said}, read: {read}, {at}: other weights")
    return "; ".join(wrong)


def same_draws() -> str:
    """Two numbers that a script reads from one call in pieces are computed with the same draws."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5))
    torch.optim.SGD(net.parameters(), lr=0.1)
    with Whole("aten.addmm.default", 8):
        out = net(torch.randn(8, 6))
        once, twice = out.sum(), (2 * out).sum()
    return "" if abs(2 * once.item() - twice.item()) < 1e-4 * abs(twice.item()) else f"{once.item()} and {twice.item()}"


def draws_of_a_function_that_fails() -> str:
    """A function of the script's that has drawn numbers before it fails draws the same ones when it is called again."""
    wrong = []
    noisy: dict[str, tuple[Callable, str]] = {
        "gumbel_softmax": (lambda t: F.gumbel_softmax(t), "_softmax"),
        "dropout": (lambda t: F.dropout(t), "mul"),
        "attention": (lambda t: F.scaled_dot_product_attention(t, t, t, dropout_p=0.5), "bmm"),
    }
    for name, (function, at) in noisy.items():
        found = []
        for fails in (False, True):
            torch.manual_seed(0)
            net = nn.Linear(6, 4)
            torch.optim.SGD(net.parameters(), lr=0.1)
            out = net(torch.randn(1, 6) if name != "attention" else torch.randn(1, 3, 6))
            with Failing(f"aten.{at}", 1) if fails else nullcontext():
                loss = function(out).square().sum()
            loss.backward()
            found.append([loss.detach(), *(p.grad for p in net.parameters())])
        if not all(map(close, *found)):
            wrong.append(f"{name}: {found}, {told()}")
    return "; ".join(wrong)


def draws_between() -> str:
    """A batch that is run whole again draws the same random numbers as the script did, whatever the
    script drew between calls."""
    net, head = (
        nn.Sequential(nn.Linear(6, 50), nn.Dropout(0.5)),
        nn.Sequential(nn.Linear(50, 5), nn.Dropout(0.5), nn.BatchNorm1d(5)),
    )
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
    x, gradients = torch.randn(8, 6), []
    for fault in (nullcontext(), Fail("aten.native_batch_norm_backward.default")):
        torch.manual_seed(1)
        optimizer.zero_grad()
        with fault:
            hidden = net(x)
            head(hidden + torch.randn(8, 50)).square().mean().backward()
        gradients.append([p.grad.clone() for p in (*net.parameters(), *head.parameters())])  # type: ignore[union-attr]
    return "" if all(torch.equal(a, b) for a, b in zip(*gradients)) and told() == "the whole batch again" else told()


class Sometimes(nn.Module):
    """Draws random numbers only for the given numbers of rows, and never if ``share`` is 0. The first trial has two and
    three rows. The numbers of trials change nothing."""

    def __init__(self, share: float, numbers: range = range(4, 8)) -> None:
        super().__init__()
        self.body, self.share, self.numbers = nn.Linear(6, 5), share, numbers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.body(x)
        if len(x) in self.numbers and self.share:
            drawn = torch.empty_like(out).uniform_(0, self.share)
            out = out * torch.where((100 * drawn - (100 * drawn).round()).abs() < 1e-3, 1, drawn)
        return out


class Attending(nn.Module):
    """Attention with dropout, computed in half precision whatever its arguments are."""

    def __init__(self, share: float, half: bool) -> None:
        super().__init__()
        self.body, self.share, self.dtype = nn.Linear(6, 5), share, torch.bfloat16 if half else torch.float32

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.body(x).view(-1, 1, 1, 5).to(self.dtype)
        return F.scaled_dot_product_attention(out, out, out, dropout_p=self.share).float().view(-1, 5)


def mode_only_for_draws() -> str:
    """Rules and gradients of a few rows are tried without a mode for operations, unless operations
    draw random numbers other than in functions called from Python. If such draws happen although
    the first trial has shown none, rules and gradients are tried once more, with the mode. Trials
    on all eight rows run out of memory here. So rules are tried twice, and gradients six times: on
    eight rows, on four, and four times on two."""
    tried: list[bool] = []
    rule, sketch, wrong = Weighing.settles, Groups.sketch, []

    def noting(work: Any) -> Any:
        def noted(*args: Any) -> Any:
            tried.append(torch._C._len_torch_dispatch_stack() > 1)  # one is Whole
            return work(*args)

        return noted

    Weighing.settles, Groups.sketch = noting(rule), noting(sketch)  # type: ignore[method-assign]
    plain, every = [False] * 8, [True] * 8
    # before PyTorch 2.6, the two are not told apart
    called, light = (CALLED, plain) if hasattr(torch.compiler, "set_stance") else (ANYWHERE, every)
    others = [True] * 12  # with other numbers in the places of those that are drawn
    cases = [
        (Sometimes(0.0), plain, False, NEVER),
        (Sometimes(0.5), [False, *every, *others], False, ANYWHERE),
        (Sometimes(0.5, range(2, 3)), [*every, *others], False, ANYWHERE),
    ]
    cases += [
        (Attending(0.0, False), plain, False, NEVER),
        (Attending(0.1, True), light, True, called),
        (Attending(0.0, True), plain, True, NEVER),
    ]
    cases += [
        (nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5, inplace=at)), light, False, called) for at in (False, True)
    ]
    cases += [
        (nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.AlphaDropout(0.5)), [*every, *others], False, ANYWHERE)
    ]
    for net, modes, half, drawn in cases:
        torch.manual_seed(0)  # how many calls it takes depends on the labels
        tried.clear()
        x, y = torch.randn(8, 6), torch.randint(0, 5, (8,))
        torch.optim.SGD(net.parameters(), lr=0.1)
        with Whole("aten._log_softmax.default", 8):
            F.cross_entropy(net(x), y).backward()
        found: Any = record_of(net)
        # nothing is drawn in this trial, and that must not change what is known
        rerun.rehearsed([net], 2, lambda *_: None)
        if told() != "8 rows in 2 pieces" or tried != modes or (found.half, found.draws) != (half, drawn):
            wrong.append(f"{type(net).__name__}: {told()}, {tried}, {found.half}, {found.draws}")
    Weighing.settles, Groups.sketch = rule, sketch  # type: ignore[method-assign]
    return "; ".join(wrong)


def equal_calls() -> str:
    """Gradients are compared on an even number of rows, so that the calls between which rows change
    places have the same size. No mode is active while gradients are reduced to a few numbers."""
    sizes: list[int] = []
    modes: list[int] = []
    sketch, reduced = Groups.sketch, groups.sketched

    def noting(self: Any, *args: Any) -> Any:
        sizes.append(len(args[3]))
        return sketch(self, *args)

    def bare(grads: Any) -> Any:
        modes.append(torch._C._len_torch_dispatch_stack())
        return reduced(grads)

    Groups.sketch, groups.sketched = noting, bare  # type: ignore[method-assign]
    net, x, y = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.1)), torch.randn(5, 6), torch.randint(0, 5, (5,))
    torch.optim.SGD(net.parameters(), lr=0.1)
    with Fail():
        F.cross_entropy(net(x), y).backward()
    Groups.sketch, groups.sketched = sketch, reduced  # type: ignore[method-assign]
    return "" if sizes == [4, 2, 2, 2, 2] and modes == [0] * 5 else f"{sizes}, {modes}"


def views_are_the_same() -> str:
    """A call is the same when it is repeated for a trial, although views have other nodes in a graph that is made under
    a mode. Nothing here has a mode of its own, unlike a sweep."""
    net, words, wrong = loops_adapters.Einsum(), torch.randint(0, loops_adapters.WORDS, (8, 5)), []
    whole = net.forward

    def limited(given: torch.Tensor) -> torch.Tensor:
        if len(given) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (injected)")
        return whole(given)

    net.forward = limited  # type: ignore[method-assign]
    torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        F.cross_entropy(net(words).flatten(0, 1), words.flatten()).backward()
        wrong.append(told())
    return "" if wrong[0] == "8 rows in 2 pieces" else f"{wrong}"


def cut_by_the_script() -> str:
    """If a script calls a module on parts of its batch and joins the results, that is the reason of the refusal, both
    where the parts differ in size and where the joined rows get another shape. Two results of one call are no such
    parts."""
    wrong = []
    x, said = (
        torch.randn(20, 9),
        "Linear is called {} rows, and the results are joined, so that their rows are not those of one call",
    )
    cases: list[tuple[Callable[[Any], torch.Tensor], str]] = [
        (lambda net: torch.cat([net(x[:8]), net(x[8:12])]), said.format("2 times, on 8 + 4")),
        (lambda net: torch.cat([net(x[:6]), net(x[6:12])]).reshape(4, 3, 5), said.format("2 times, on 6 + 6")),
        (
            lambda net: torch.cat([net(p) for p in x.split(4)]).reshape(10, 2, 5),
            said.format("5 times, on 4 + 4 + 4 + 4 + …"),
        ),
        (
            lambda net: net(x[:12]).reshape(5, 3, 4),
            "reshape cannot be run on fewer rows: shape '[5, 3, 4]' is invalid for input of size 10",
        ),
    ]
    for made, why in cases:
        net = nn.Linear(9, 5)
        torch.optim.SGD(net.parameters(), lr=0.1)
        least = 8 if "8 +" in why else 6 if "6 +" in why else 4 if "…" in why else 12
        try:
            with Whole("aten.addmm.default", least):
                made(net).square().mean().backward()
        except torch.OutOfMemoryError:
            pass
        told = _torch._recorder.report.told[-1]
        if told.get("why") != why:
            wrong.append(f"{why}: {told}")
    return "; ".join(wrong)


class Level(nn.Linear):
    """Returns a loss that is 1, whatever it is given, and whose gradients depend on that."""

    def __init__(self) -> None:
        super().__init__(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x)
        return (out - out.detach()).mean() + 1


class Losing(nn.Module):
    """Computes its own loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.body(x), y)


def a_loss_inside_is_tried_on_few_rows() -> str:
    """Where the loss is computed inside a module, the whole module runs for each try of a rule: on a few rows."""
    net, x, y = Losing(), torch.randn(600, 6), torch.arange(600) % 5
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for i in range(2):
        with Whole("aten.addmm.default", 600) if i else nullcontext(), Multiplied() as seen:
            net(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()
    tries = [rows for rows in seen.rows if rows not in (300, 600)]  # neither the batch nor its pieces
    return "" if tries and max(tries) <= 8 else f"{seen.rows}"


def a_library_that_finds_no_memory() -> str:
    """What cuDNN or cuBLAS says of any failure counts as out of memory only while a GPU has hardly any left."""
    error = RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR")
    found = [failure.is_out_of_memory(error)]
    for free in (10 << 20, 1 << 30):
        with (
            changed(torch.cuda, "is_initialized", lambda: True),
            changed(torch.cuda, "mem_get_info", lambda free=free: (free, 80 << 30)),
        ):
            found.append(failure.is_out_of_memory(error))
    return "" if found == [False, True, False] else f"{found}"


def what_is_read_of_computed_weights() -> str:
    """A weight that the script has computed has no gradient, and PyTorch warns whoever asks for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = backward.state_of(nn.Parameter(torch.ones(2)) * 2)
    return "" if found is None else f"{found}"


def no_memory_for_our_own() -> str:
    """Where Python itself finds no memory in our own code, the reason says so."""

    def work() -> None:
        raise MemoryError

    try:
        _torch._recorder.guarded(work)  # type: ignore[union-attr]
    except Refused as why:
        return "" if "not enough memory" in str(why) else f"{why}"
    return "nothing was refused"


def memory_of_the_host_is_not_the_gpus() -> str:
    """What PyTorch says is allocated on a GPU includes a pool on the host, which a failure's figures leave out."""
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is free. "
        "Of the allocated memory 30.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
    )
    found = []
    for pools in ({}, {0: 20 << 30}, {0: 40 << 30}):
        with changed(torch.cuda, "current_device", lambda: 0), changed(memory, "POOLS", pools):
            known = report.evidence(torch.OutOfMemoryError(text))
            found.append((known["allocated"] >> 30, known["reserved"] >> 30))
    return "" if found == [(30, 31), (10, 11), (30, 31)] else f"{found}"


def kept_out_of_reach(change: str = "") -> tuple[list[str], list[str]]:
    """Where the pool is kept out of reach in a step, and what is done with the memory for libraries where its backward
    pass fails as a library fails."""
    recorder: Any = _torch._recorder
    net, before = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5)), nn.Linear(6, 6)
    optimizer = torch.optim.SGD([*net.parameters(), *before.parameters()], lr=0.1)
    node: Any = net[0].weight.expand_as(net[0].weight).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    if change == "hook":
        net[0].weight.register_hook(lambda grad: grad.clamp(-1, 1))
    if change == "hook that comes after":
        net[0].weight.register_post_accumulate_grad_hook(lambda p: None)
    if change == "hook on the node":
        node.register_hook(lambda *_: None)
    bank, x, y, shift = Bank(), torch.randn(8, 6), torch.arange(8) % 5, torch.ones(8, 5)
    for i in range(4):
        with changed(recorder.spill, "_pools", {0: bank} if i == 3 else {}):
            bank.phase = "forward"
            out = net(x @ before.weight if change == "graph" else x)
            bank.phase = "function"
            loss = F.cross_entropy(out + shift, y)
            if change == "argument":
                shift.add_(1.0)  # which no gradient needs
            bank.phase = "in place"
            if change == "in place":
                out.mul_(1.0)
            bank.phase = "backward"
            with Failing("gelu_backward", 1) if i == 3 and change == "fails" else nullcontext():
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return bank.held, bank.ballast


class Importing(nn.Module):
    """Finds no memory of the host in two of its calls of few rows: Python's own exception."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self.net, self.calls = nn.Linear(6, 5), uninspected(number=itertools.count())
        self.nth = nth

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) < 8 and next(self.calls.number) in (self.nth, self.nth + 1):
            raise MemoryError
        return self.net(x).tanh()


def memory_of_python_itself() -> str:
    """Where Python finds no memory, in whichever trial, that is the reason."""
    wrong = []
    for nth in range(20):
        net = Importing(nth)
        torch.optim.SGD(net.parameters(), lr=0.1)
        with suppress(torch.OutOfMemoryError), Whole("aten.tanh.default", 8):
            net(torch.randn(8, 6)).square().mean().backward()
        told = _torch._recorder.report.told[-1]  # type: ignore[union-attr]
        if told["why"] and "not enough memory" not in told["why"]:
            wrong.append(f"{nth}: {told}")
    return "; ".join(wrong)


def what_is_made_to_fail() -> str:
    """With memory of the host, a backward pass is made to fail only where it could be made again: not before a hook of
    the script's, nor behind a graph of its own, nor once an argument has been changed. Nor is a function that writes in place. What has been let go is kept for
    libraries in part, and given to one that fails."""
    with changed(functions, "LARGE", 0):
        hooks = ("hook", "hook that comes after", "hook on the node")
        found = {change: kept_out_of_reach(change) for change in ("", *hooks, "graph", "argument", "fails", "in place")}
    wrong = {c: held for c, (held, _) in found.items() if ("backward" in held) != (c in ("", "fails", "in place"))}
    wrong.update({c: held for c, (held, _) in found.items() if "in place" in held or "function" not in held})
    return "" if not wrong and "kept" in found["fails"][1] else f"{wrong}, {found['fails'][1]}"


def a_library_fails_in_our_own_code() -> str:
    """What is kept for libraries is given to one that fails where a step is made again."""

    def work() -> None:
        raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")

    recorder: Any = _torch._recorder
    bank = Bank()
    with changed(recorder.spill, "_pools", {0: bank}), suppress(Refused):
        recorder.guarded(work)
    return "" if bank.ballast == ["released"] else f"{bank.ballast}"


def numbers_that_do_not_add_up() -> str:
    """A root of a mean is the mean of its parts' roots as long as all parts are alike; then parts of the pieces that
    differ most show that it is not. Of numbers that do add up nothing is refused, and nothing is computed twice."""
    wrong, data = [], torch.cat([torch.ones(8), torch.full((8,), 3.0)]).double() + torch.arange(16).double() / 100
    numbers: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Any, bool]] = {
        "root": (lambda some: some.square().mean().sqrt(), weights.Counts([1.0] * 16), False),
        "exponential": (lambda some: some.mean().exp(), weights.Counts([1.0] * 16), False),
        "largest": (lambda some: some.max(), weights.Counts([1.0] * 16), False),
        "mean": (lambda some: some.mean(), weights.Counts([1.0] * 16), True),
        "sum": (lambda some: some.sum(), None, True),
    }
    for name, (work, rule, adds) in numbers.items():
        for size in (8, 5, 1):
            Adding.known.clear()
            calls: list[Rows] = []
            for _ in range(2):
                adding = Adding(16, {0: rule}, ())

                def again(rows: Rows, work: Any = work, calls: list[Rows] = calls) -> dict[int, torch.Tensor]:
                    calls.append(rows)
                    return {0: work(rows.of(data, Axis(0)))}

                for piece in pieces_of(16, size):
                    adding.note(piece, {0: work(data[piece.start : piece.stop])})
                try:
                    adding.confirm(again)
                    found = True
                except Refused:
                    found = False
                if found != adds:
                    wrong.append(f"{name} of pieces of {size}: {found}")
            if adds and len(calls) > 4 or size == 8 and any(rows.count != 8 for rows in calls):
                wrong.append(f"{name} of pieces of {size}: calls of {[rows.count for rows in calls]} rows")
    return "; ".join(wrong)


def a_level_loss() -> str:
    """A loss inside a module that is the same for all rows is refused for that reason, and not for being no scalar."""
    net, said, x = Level(), [], torch.randn(8, 6)
    torch.optim.SGD(net.parameters(), lr=0.1)
    try:
        with Whole("aten.addmm.default", 8):
            net(x).backward()
    except torch.OutOfMemoryError:
        said.append(_torch._recorder.report.told[-1]["why"])
    return (
        "" if said == ["the loss is the same for other rows, so it is not known how it depends on them"] else f"{said}"
    )


def _metrics(out: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """Numbers for a log, of tensors that functions have written to."""
    found = {}
    with torch.no_grad():
        top = out.topk(2, 1).indices
        found["scatter_"] = torch.zeros_like(out, dtype=torch.int32).scatter_(1, top, 1).sum()
        found["labels"] = torch.zeros_like(out).scatter_(1, y[:, None], 1).sum()
        named = torch.zeros_like(out)
        found["before"] = named.sum()
        named.add_(out)
        found["after"] = named.abs().sum()
        found["read"] = torch.tensor(named.max().item())
        named.mul_(2)
        found["read again"] = torch.tensor(named.max().item())
        found["twice"] = named.abs().sum()
        found["masked"] = torch.zeros_like(out).masked_fill_(out > 0, 1).sum()
        part = out.clone()
        part[:, 0] = 5.0
        found["part"] = part.sum(1).max()
        share = out.detach().softmax(1)
        share.view(-1).mul_(3)
        found["view"] = share.sum()
        most = out.detach().abs().max()
        found["a number"] = torch.tensor(most.item())
        most.mul_(2)
        found["a number again"] = torch.tensor(most.item())
    return found


def values_of_what_is_written_to() -> str:
    """What is logged of tensors that functions have written to is right, whenever it is read."""
    wrong = []
    for late in (False, True):
        said: list[dict[str, float]] = []
        for fails in (False, True):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
            optimizer, y = torch.optim.SGD(net.parameters(), lr=0.1), torch.arange(8) % 5
            for i in range(3):
                optimizer.zero_grad()
                with Whole("aten.addmm.default", 8) if fails and i else nullcontext():
                    out = net(torch.randn(8, 6))
                    loss, found = F.cross_entropy(out, y), _metrics(out, y)
                    del out
                    loss.backward()
                    numbers = {} if late else {k: v.item() for k, v in found.items()}
                    optimizer.step()
                    numbers = numbers or {k: v.item() for k, v in found.items()}
            said.append({**numbers, "loss": loss.item()})
        bare, got = said
        wrong += [f"{k}, late {late}: {got[k]}" for k, v in bare.items() if not math.isclose(v, got[k], rel_tol=1e-5)]
    return "; ".join(wrong)


def a_metric_of_a_closure() -> str:
    """What is logged in the closure of an optimizer's step can be read after the step, as Lightning does, even if the
    pieces have not kept what it is computed from."""
    wrong = []
    deferred.NEAR = 0  # type: ignore[attr-defined]
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        said = []
        for fails in (False, True):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
            optimizer, y, hits = kind(net.parameters(), lr=0.1), torch.arange(8) % 5, []

            def closure(
                net: nn.Module = net, optimizer: Any = optimizer, y: torch.Tensor = y, hits: list = hits
            ) -> Any:
                optimizer.zero_grad()
                out = net(torch.randn(8, 6))
                hits.append((out.argmax(1) == y).float().mean())
                loss = F.cross_entropy(out, y)
                del out
                loss.backward()
                return loss

            for i in range(3):
                with Whole("aten.addmm.default", 8) if fails and i else nullcontext():
                    optimizer.step(closure)
                    hits[-1] = hits[-1].item()
            said.append(hits)
        if said[0] != said[1]:
            wrong.append(f"{kind.__name__}: {said}")
    return "; ".join(wrong)


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(10, 1)

    def forward(self, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([one, two], 1))


def results_of_two_steps_in_one_call() -> str:
    """A module that is given results of two steps, neither of which has values, is not run on what they are made of."""
    torch.manual_seed(0)
    body, probe, both = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)), nn.Linear(5, 1), Both()
    params = [*body.parameters(), *both.parameters()]
    optimizer, other = torch.optim.SGD(params, lr=0.1), torch.optim.SGD(probe.parameters(), lr=0.1)
    for i in range(3):
        x = torch.randn(8, 6)
        optimizer.zero_grad()
        other.zero_grad()
        with Whole("aten.relu.default", 8) if i else nullcontext():
            try:
                older = body(x)
                probe(older.detach()).square().mean().backward()
                other.step()
                both(older, body(x + 1)).square().mean().backward()
            except torch.OutOfMemoryError:
                return "" if all(p.grad is None for p in params) else "some gradients"
        if any(p.grad is None or not p.grad.isfinite().all() for p in params):
            return "gradients are missing, or are no numbers"
        optimizer.step()
    return ""


class Own(torch.optim.Optimizer):
    """An optimizer of the script's own, which knows its closure."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})
        self.given: list[Any] = []

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.given.append(closure)
        return closure()


def a_closure_is_the_scripts() -> str:
    """An optimizer of the script's own is given the closure that the script has made."""
    net = nn.Linear(6, 5)
    optimizer, x = Own(net.parameters()), torch.randn(8, 6)

    def closure() -> torch.Tensor:
        loss = net(x).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    return "" if optimizer.given == [closure] else f"{optimizer.given}"


def the_phase_of_a_failure() -> str:
    """A failure of a training's call is one in forward, also where its values are asked for without gradients."""
    phases: list[str] = []
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
    optimizer, y = torch.optim.SGD(net.parameters(), lr=0.1), torch.arange(8) % 5
    report: Any = _torch._recorder.report  # type: ignore[union-attr]
    survived = report.survived

    def told(failure: Any, how: Any, over: bool) -> None:
        phases.append("forward" if torch.is_grad_enabled() else "eval")
        survived(failure, how, over)

    report.survived = told
    for i in range(2):
        optimizer.zero_grad()
        with Whole("aten.addmm.default", 8) if i else nullcontext():
            loss = F.cross_entropy(net(torch.randn(8, 6)), y)
            with torch.no_grad():
                loss.item()
            loss.backward()
        optimizer.step()
    return "" if phases == ["forward"] else f"{phases}"


def time_comes_first() -> str:
    """With the batch in dimension 1, a loss that views the result is run in pieces."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(11, 8), nn.Linear(8, 11)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.log_softmax(self.out(self.layer(self.words(x))), -1)

    found = []
    for fails in (False, True):
        torch.manual_seed(0)
        net = Model()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(3):
            optimizer.zero_grad()
            x, y = torch.randint(0, 11, (5, 24)), torch.randint(0, 11, (120,))
            with Failing("_log_softmax_backward_data.default", 1) if fails and i else nullcontext():
                loss = F.nll_loss(net(x).view(-1, 11), y)
                loss.backward()
            optimizer.step()
        found.append([p.detach().clone() for p in net.parameters()])
    how = [t.get("how", "refused") for t in _torch._recorder.report.told]  # type: ignore[union-attr]
    if any("pieces" not in h or "twice" in h for h in how):
        return f"{how}"
    return "" if all(close(a, b, 1e-4) for a, b in zip(*found)) else "other weights"


def a_part_of_a_step_is_made_whole() -> str:
    """One module can only be run in pieces, another only as a whole: the step has both gradients, or fails with none."""
    torch.manual_seed(0)
    one, two = (
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)),
        nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)),
    )
    params = [*one.parameters(), *two.parameters()]
    optimizer = torch.optim.SGD(params, lr=0.1)
    for i in range(3):
        optimizer.zero_grad()
        x, y = torch.randn(8, 6), torch.arange(8) % 5
        with Whole("aten.relu.default", 8) if i else nullcontext():
            try:
                F.cross_entropy(one(x) + two(x), y).backward()
            except torch.OutOfMemoryError:
                if any(p.grad is not None for p in params):
                    return "some gradients"
                continue
        if any(p.grad is None or not p.grad.isfinite().all() for p in params):
            return "gradients are missing"
        optimizer.step()
    return ""


def gradients_near_zero() -> str:
    """Rounding errors of a gradient that would otherwise be zero, such as that of a key's bias, are no difference, but
    what is missing from a small gradient is one, and so is a value that is no number."""
    large, small = torch.ones(4), torch.full((4,), 1e-9)
    pairs = {
        "rounding": [(large, large), (small, -small)],
        "missing": [(large, large), (1e4 * small, None)],
        "missing, all": [(large, None)],
        "no number": [(large, large), (small, small * torch.nan)],
    }
    found = {name: check.distance(some) <= 1e-3 for name, some in pairs.items()}
    wrong = [name for name, same in found.items() if same != (name == "rounding")]
    return f"{wrong}" if wrong else "" if check.distance([(None, large), (0 * large, None)]) == 0 else "nothing"


def complex_numbers() -> str:
    """Results and gradients that differ only in their imaginary parts are found to differ."""
    torch.manual_seed(0)
    a = torch.randn(3, 4, dtype=torch.complex64)
    b = torch.complex(a.real, a.imag + 0.5)
    far, near, turned = (check.distance([(a, other)]) for other in (b, a.conj().conj(), a.conj()))
    if not far > 0.1 or near or not turned > 0.1:
        return f"distances of {far}, {near} and {turned}"
    if groups.same(a, b, 1e-3) or not groups.same(a, a.clone(), 1e-3):
        return "results"
    if alike(sample(a), sample(b), 1e-3) or not alike(sample(a), sample(a.clone()), 1e-3):
        return "samples"
    return "" if residual(sketched([a]), [sketched([b])]) > 1e-2 else "sketches"


def gradients_set_aside() -> str:
    """The gradients that a reentrant checkpoint adds to ``.grad`` are the same as without the checkpoint. What was in
    ``.grad`` before is there afterwards, even if the backward pass fails, and leaves that two checkpoints add to are
    known. Hooks that would see the gradients of pieces are refused, and none is left."""
    torch.manual_seed(0)
    first, last, x = nn.Linear(4, 4), nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    tensors = [*first.parameters(), *last.parameters(), x]
    again = torch.utils.checkpoint.checkpoint

    def total(checkpointed: bool, twice: bool) -> torch.Tensor:
        out = again(first, x, use_reentrant=True) if checkpointed else first(x)
        out = again(first, out, use_reentrant=True) if checkpointed and twice else first(out) if twice else out
        return last(out.tanh()).square().sum()

    before = [torch.randn_like(t) for t in tensors]
    for t, g in zip(tensors, before):
        t.grad = g
    for twice in (False, True):
        want = torch.autograd.grad(total(False, twice), tensors)
        found, shared = accumulated(total(True, twice), tensors)
        if not all(close(a, b) for a, b in zip(found, want)):  # type: ignore[arg-type]
            return f"twice: {twice}: {found} in place of {want}"
        if shared != ({id(p) for p in first.parameters()} if twice else set()):
            return f"twice: {twice}: {shared} are shared"
    broken = total(True, False)
    with Whole("aten.tanh_backward.default", 3):
        try:
            accumulated(broken, tensors)
            return "nothing has failed"
        except torch.OutOfMemoryError:
            pass
    handle = first.weight.register_post_accumulate_grad_hook(lambda p: None)
    try:
        accumulated(total(True, False), tensors)
        return "a hook has seen the gradients of a piece"
    except failure.Refused:
        pass
    handle.remove()
    kept = all(t.grad is g for t, g in zip(tensors, before)) and not any(t._post_accumulate_grad_hooks for t in tensors)
    return "" if kept else "gradients or hooks are not as before"


def few_values() -> str:
    """The loss of the same rows is computed only once, however many cuts contain them: four rows
    have 15 non-empty subsets."""
    seen: list[tuple[int, ...]] = []
    losses = [1.0, 2.0, 4.0, 8.0]

    def value(rows: Any) -> float:
        seen.append(tuple(rows))
        return sum(losses[r] for r in rows) / len(rows)

    rules = [None, weights.Counts([1.0] * 4), weights.Counts([1.0, 2.0, 1.0, 2.0])]
    left = weights.surviving(rules, range(4), value, 1e-5)  # type: ignore[arg-type]
    return "" if left == [[1.0] * 4] and len(seen) == len(set(seen)) <= 15 else f"{left}, {seen}"


def without_autocast() -> str:
    """Autocast is off in a trial and only there: not on other threads, and not afterwards."""
    found = []

    def enabled() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(torch.is_autocast_enabled("cpu"))

    with rerun.precisely(SimpleNamespace(entries=[]), []):  # type: ignore[arg-type]
        enabled()
        thread = threading.Thread(target=enabled)
        thread.start()
        thread.join()
    enabled()
    return "" if found == [False, True, True] else f"{found}"


def rounded(
    net: nn.Module, loss: Callable[[], torch.Tensor], fault: Callable[[], Any] = lambda: Injector(Fault("again", 0, 8))
) -> str:
    """Runs a step twice, whole and in pieces. Returns what is wrong; empty if the gradients are the same except
    for rounding errors."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    gradients = []
    for failing in (False, True):
        optimizer.zero_grad()
        with fault() if failing else nullcontext() as injector:
            if isinstance(injector, Injector):
                injector.begin()
            loss().backward()
        gradients.append([p.grad.clone() for p in net.parameters()])  # type: ignore[union-attr]
    told = _torch._recorder.report.told[-1]
    same = all(close(a, b, 2e-2) for a, b in zip(*gradients))
    return "" if same and told["how"].endswith(" rows in 2 pieces") else f"{same}, {told}"


def attention() -> str:
    """cuDNN's attention is off in a trial and only there."""
    backends = torch.backends.cuda
    if not hasattr(backends, "cudnn_sdp_enabled"):
        return ""
    seen = []
    for before in (True, False):
        backends.enable_cudnn_sdp(before)
        with rehearsal([]):
            seen.append(backends.cudnn_sdp_enabled())
        seen.append(backends.cudnn_sdp_enabled())
    return "" if seen == [False, True, False, False] else f"{seen}"


def trials_are_gone() -> str:
    """Once the gradients of pieces are computed, nothing from earlier tries takes memory. No piece
    leaves anything for the next one, even without a search for reference cycles."""
    torch.manual_seed(0)
    net, x, y = (
        nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 5)),
        torch.randn(12, 4, 6),
        torch.randint(0, 5, (12, 4)),
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    left: list[int] = []
    piece = replay._piece

    def counting(*args: Any) -> Any:
        left.append(
            sum(
                1
                for t in gc.get_objects()
                if type(t) is torch.Tensor and t.dim() and t.shape[-1] in (9, 5) and t.grad_fn is not None
            )
        )
        return piece(*args)

    replay._piece = counting
    gc.collect()
    gc.disable()
    with Injector(Fault("again", 3, 12)) as injector:
        injector.begin()
        loss = F.cross_entropy(net(x).flatten(0, 1), y.flatten())
        gc_was, failure.gc.collect = failure.gc.collect, lambda *_: 0  # type: ignore[assignment]
        loss.backward()
        failure.gc.collect = gc_was
        injector.end()
    gc.enable()
    replay._piece = piece
    optimizer.step()
    return "" if len(left) > 1 and not any(left) else f"{left} tensors with graphs before each piece"


def failing(net: nn.Module, rows: int, fault: Fault | None) -> None:
    """Computes the gradients of a batch with the given number of rows while the given fault is injected."""
    torch.manual_seed(rows)
    x, y = torch.randn(rows, 6), torch.randint(0, 5, (rows,))
    with Injector(fault) as injector:
        injector.begin()
        F.cross_entropy(net(x), y).backward()
        injector.end()
    net.zero_grad()


def the_cache_is_emptied() -> str:
    """The allocator's cache is emptied before the first pieces of a batch that has failed, but not before a batch
    that is run in pieces straight away."""
    net = nn.Linear(6, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    called: list[str] = []
    emptied, pieces = deferred.clean, deferred.gradients
    deferred.clean = lambda *a, **k: (called.append("clean"), emptied(*a, **k))[1]
    deferred.gradients = lambda *a, **k: (called.append("pieces"), pieces(*a, **k))[1]
    for fault in (Fault("again", 0, 8), None):
        failing(net, 8, fault)
        optimizer.step()
    deferred.clean, deferred.gradients = emptied, pieces
    return "" if called == ["clean", "pieces", "pieces"] else f"{called}"


def large_outputs_take_few_rows() -> str:
    """For large outputs, rules and gradients are tried on four rows. Otherwise rules are tried on
    all rows, and gradients on eight."""
    found = []
    for small in (proof.SMALL, 1):
        net, seen = nn.Linear(6, 5), []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        tried = proof.Proof._tried

        def counting(self: Any, entries: Any, count: int, *work: Any, tried: Any = tried, seen: Any = seen) -> Any:
            seen.append(count)
            return tried(self, entries, count, *work)

        proof.SMALL, proof.Proof._tried = small, counting
        proof.room = lambda: 1 << 40
        failing(net, 40, Fault("again", 0, 40))
        optimizer.step()
        proof.Proof._tried = tried
        found.append(seen)
    return "" if found == [[40, 8], [4, 4]] else f"{found}"


def compiled() -> str:
    """A failure in the loss of a compiled model is survived, and the masks that dropout drew are used again.
    Nothing is compiled again for the whole batch."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 9), nn.Dropout(0.5), nn.Linear(9, 5))
    model = torch.compile(net, backend="aot_eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(8, 6), torch.randint(0, 5, (8,))
    loss = torch._C._nn.cross_entropy_loss
    F.cross_entropy(model(x), y).backward()
    whole, stats, made = again._whole, torch._dynamo.utils.counters["stats"], []

    def counting(*args: Any) -> bool:
        before = stats["unique_graphs"]
        same = whole(*args)
        made.append(stats["unique_graphs"] - before)
        return same

    def failing(given: torch.Tensor, *args: Any) -> torch.Tensor:
        if len(given) == 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (injected)")
        return loss(given, *args)

    again._whole, torch._C._nn.cross_entropy_loss = counting, failing
    F.cross_entropy(model(x), y).backward()
    again._whole, torch._C._nn.cross_entropy_loss = whole, loss
    optimizer.step()
    told = _torch._recorder.report.told
    most = 0 if hasattr(torch.compiler, "set_stance") else 1  # before 2.6 trials are compiled, too
    return (
        ""
        if len(made) == 1 and made[0] <= most and told[-1]["how"] == "8 rows in 2 pieces"
        else f"{made} graphs, {told}"
    )


def attributes_come_back() -> str:
    """After every call that fails, attributes are as they were before that call. This is so even if
    no call has succeeded yet, and also if the call succeeds when it is repeated."""
    seen = []
    for once_more in (False, True):
        net = nn.Linear(2, 2)
        net.count = 0  # type: ignore[assignment]
        found = RecordedModule(_torch._recorder, net)
        for _ in range(3):
            net.count += 10  # type: ignore[operator]
            found.before(0)
            net.count += 1  # type: ignore[operator]
            found.put_back()
            seen.append(net.count)
            if once_more:
                net.count += 1  # type: ignore[operator]
                found.after()
    return "" if seen == [10, 20, 30, 10, 21, 32] else f"{seen}"


def too_much_to_look_at() -> str:
    """If a call changes one of very many containers, they are not inspected before every call, and
    so the call is not repeated. If there are only a few containers, the change is put back."""
    for many in (False, True):
        net: Any = nn.Linear(2, 2)
        net.log = [[[0] for _ in range(20)] for _ in range(60 if many else 2)]
        found = RecordedModule(_torch._recorder, net)
        found.before(0)
        net.log[0][0].append(1)
        found.after()
        found.before(0)
        net.log[0][0].append(2)
        if found.put_back() is many or not many and net.log[0][0] != [0, 1]:
            return f"many: {many}, {net.log[0][0]}"
    return ""


def sealed() -> str:
    """A trial stops before a call writes, in any way, to a tensor that existed before the call. The
    call may do anything with tensors that it has made itself."""
    torch.manual_seed(0)
    x, own, weight, images = torch.randn(4, 6), torch.zeros(6), nn.Parameter(torch.randn(6, 6)), torch.randn(2, 3, 4, 4)
    indices, attention, recurrent = torch.tensor([0, 1]), nn.MultiheadAttention(6, 2), nn.LSTM(6, 3)
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
    harmless: list[Callable[[], Any]] = [
        lambda: torch.tensor([1.0, 2.0]).mul_(2),
        lambda: torch.as_tensor([1, 2]).add_(1),
        lambda: x.clone().t()[0].view(-1).zero_(),
        lambda: [part.add_(1) for part in (x * 2).chunk(2)],
        lambda: x.double().mul_(2),
        lambda: torch.add(x, 1, out=torch.empty(4, 6)),
        lambda: torch._foreach_add_([x * 1, x * 2], 1.0),
        lambda: F.dropout(x * 1, 0.5, inplace=True),
        lambda: recurrent(x.unsqueeze(0)),
        lambda: (
            torch.zeros(4)
            .index_add_(0, indices, torch.ones(2))
            .scatter_(0, indices, 1.0)
            .index_put_((indices,), torch.ones(2))
        ),
        lambda: F.scaled_dot_product_attention(*(torch.randn(2, 2, 4, 8) for _ in range(3))),
        lambda: torch.utils.checkpoint.checkpoint(lambda t: t.relu().mul_(2), weight, use_reentrant=False),
        lambda: (normed(x).relu_(), attention(x, x, x)),
        lambda: (torch.cat([x, x]).relu_(), x.repeat(2, 1).add_(1), torch.einsum("ij,jk->ik", x, weight).relu_()),
        lambda: F.conv2d(images, torch.randn(2, 3, 3, 3)).relu_(),
        lambda: torch.sparse.mm(torch.eye(4).to_sparse(), x).mul_(2),
    ]
    writing: list[Callable[[], Any]] = [
        lambda: x.mul_(2),
        lambda: x.contiguous().mul_(2),
        lambda: x.to(torch.float32).detach()[:2].add_(1),
        lambda: x.view(-1).__setitem__(0, 5.0),
        lambda: x.expand(2, 4, 6)[0].zero_(),
        lambda: own.data.add_(1),
        lambda: torch.add(own, 1, out=own),
        lambda: torch._foreach_add_([x * 1, own], 1.0),
        lambda: F.embedding(indices, weight, max_norm=0.1),
        lambda: F.dropout(x, 0.5, inplace=True),
        lambda: own.set_(torch.ones(6)),  # type: ignore[call-overload]
        lambda: own.copy_(x[0]),
        lambda: weight.data.lerp_(torch.ones(6, 6), 0.1),
    ]
    before = [t.clone() for t in (x, own, weight)]
    for n, call in enumerate(harmless + writing):
        for sealed in (Watched([Sealed("it", [])]), NoRandomness(watchers=[Sealed("it", [])])):
            stopped = False
            try:
                with sealed, torch.no_grad():
                    call()
            except failure.Writes:
                stopped = True
            if stopped != (n >= len(harmless)) or not all(torch.equal(a, b) for a, b in zip(before, (x, own, weight))):
                return f"{n}, stopped: {stopped}"
    with Watched([Sealed("it", [own])]):
        own.add_(1)  # this tensor may be written to
    return ""


def elsewhere() -> str:
    """A trial stops where a call uses a trained tensor that is not known, in a checkpoint, too. Known tensors, and any
    that the call makes, may be used."""
    net, x, other = nn.Linear(6, 5), torch.randn(4, 6), nn.Parameter(torch.randn(5))
    again, wrong = torch.utils.checkpoint.checkpoint, []
    calls: list[tuple[Callable[[], Any], bool]] = [
        (lambda: net(x) + 1, False),
        (lambda: net(x[:2].requires_grad_()).detach().requires_grad_().sum(), False),
        (lambda: nn.Parameter(torch.zeros(5)) * net(x), False),
        (lambda: net(x) * net.weight.detach()[:, 0].requires_grad_(), False),
        (lambda: net(x) * other.detach() * (other > 0) * other.sum().item(), False),
        (lambda: again(lambda t: net(t) * other.detach(), x.clone().requires_grad_(), use_reentrant=True), False),
        (lambda: net(x) * torch.no_grad()(lambda: other * 2)(), False),
        (lambda: net(x) * other, True),
        (lambda: again(lambda t: net(t) * other, x.clone().requires_grad_(), use_reentrant=True), True),
        (lambda: torch.cat([net(x), other[None]]), True),
        (lambda: other.sum() + net(x), True),
    ]
    for n, (call, stops) in enumerate(calls):
        stopped = False
        try:
            with Watched([sealed := Sealed("it", [], known=[*net.parameters(), x])]):
                sealed.returned([call()])
        except failure.Elsewhere:
            stopped = True
        if stopped != stops:
            wrong.append(f"{n}, stopped: {stopped}")
    return "; ".join(wrong)


class Storing(nn.Module):
    """Writes to a tensor that is not its own. With ``always`` it does so in every call; otherwise
    only if reading its count raises an exception."""

    def __init__(self, store: list[torch.Tensor], always: bool) -> None:
        super().__init__()
        self.body, self.count, self.store, self.always = nn.Linear(6, 5), 0, iter(store * 100), always

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.body(x)
        try:
            self.count = self.count + 1
            if self.always:
                next(self.store).add_(1)
        except failure.Refused:
            next(self.store).add_(1)
        return out


def trials_are_sealed() -> str:
    """No trial of a module's call writes to a tensor that existed before the call, not even a trial
    in which attributes are missing."""
    for always in (True, False):
        store = torch.zeros(1)
        net, x, y = Storing([store], always), torch.randn(8, 6), torch.randint(0, 5, (8,))
        torch.optim.SGD(net.parameters(), lr=0.1)
        try:
            with Whole("aten.addmm.default", 8):
                F.cross_entropy(net(x), y).backward()
        except torch.OutOfMemoryError:
            pass
        if store.item():
            return f"always: {always}, written {store.item():g} times, {_torch._recorder.report.told[-1]}"
    return ""


def untried() -> str:
    """A call that must not be run in pieces is not repeated as a whole, either, if there is not
    enough memory to find out what it writes to. With enough memory, this is found out in a later
    call."""
    net, loss = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)), nn.CrossEntropyLoss()
    x, y = torch.randn(8, 6), torch.randint(0, 5, (8,))
    torch.optim.SGD(net.parameters(), lr=0.1)
    linear, least, said = torch._C._nn.linear, 8, []
    # Of calls, by their rows. What so large an array holds is not put back.
    times = np.zeros(1 << 18, int)

    def limited(given: torch.Tensor, *args: Any) -> torch.Tensor:
        times[len(given)] += 1
        if len(given) > least and times.sum() < 9:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. (injected)")
        return linear(given, *args)

    net[0].forward = lambda given: limited(given, net[0].weight, net[0].bias)  # type: ignore[method-assign]
    loss(net(x), y).backward()
    times[:] = 0
    for least in (0, 4):  # noqa: B007  read by limited
        try:
            loss(net(x), y).backward()
        except torch.OutOfMemoryError:
            said.append(_torch._recorder.report.told[-1]["why"])
        found: Any = record_of(net)
        said += [int(times[8]), found.tried]
        times[:] = 0
    whys = (
        "there is not enough memory for a trial on a few rows",
        "BatchNorm1d computes statistics over the batch",
    )
    return "" if said == [whys[0], 1, False, whys[1], 2, True] else f"{said}"


def everything_comes_back() -> str:
    """Everything that a trial changes is put back: containers inside containers, objects of the script's
    own, and the memory of parameters."""
    net: Any = nn.Linear(2, 2)
    net.log, net.seen, net.last = {"a": [1]}, {1}, deque([1, 2], maxlen=2)
    net.long = {"list": list(range(MOST + 1)), "dict": dict.fromkeys(range(MOST + 1)), "deque": deque(range(MOST + 1))}
    net.own = (Slow.__new__(Slow), [0])
    net.own[0].written = [["a"]]
    weight, place = net.weight, net.weight.data_ptr()
    held = Snapshot([net], deep=True)
    with rehearsal([net]):
        net.log["a"].append(2)
        net.log["b"] = 0
        net.seen.add(2)
        net.last.append(3)
        net.long["list"].append(0)
        net.long["dict"][-1] = 0
        net.long["deque"].append(0)
        net.own[0].written[0].append("b")
        net.own[0].more = 1
        net.own[1][0] = 1
        net.weight.data = torch.zeros(2, 2)
        net.bias = nn.Parameter(torch.zeros(2))
        changed = {(c.name, c.inside is not None) for c in held.changed()}
    found = net.log, net.seen, list(net.last), vars(net.own[0]), net.own[1]
    want = {
        ("log", False),
        ("log", True),
        ("seen", True),
        ("last", True),
        ("long", True),
        ("own", True),
        ("_parameters", False),
    }
    if changed != want or list(held.changed()):
        return f"{changed}, {list(held.changed())}"
    if found != ({"a": [1]}, {1}, [1, 2], {"written": [["a"]]}, [0]):
        return f"{found}"
    if {len(v) for v in net.long.values()} != {MOST + 1}:
        return "something long is longer"
    return (
        "" if net.weight is weight and weight.data_ptr() == place and bool(net.bias.any()) else "a parameter is another"
    )


REACHED = {"list": [0]}
NUMBER = 0


class Reaching(nn.Linear):
    """Uses a global number, a dict, and an attribute of one of the script's own objects."""

    shared: ClassVar[list[int]] = []
    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global NUMBER
        NUMBER += 1
        REACHED["list"].append(NUMBER)
        self.shared.append(NUMBER)
        Reaching.calls += 1
        KEEPER.number += 1
        return super().forward(x)


def hooks_that_have_run_are_known() -> str:
    """Only hooks that are new cost another look at what they reach; hooks of others cost none."""
    net, other, hooks = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2), Hooks()
    found = []
    for registers in (None, net[0], None, net, other, None):
        if registers is not None:
            registers.register_forward_pre_hook(lambda module, given: None)
        found.append((hooks.unknown(net), hooks.unknown(net)))
        hooks.ran()
    return "" if found == [([], []), ([net[0]],) * 2, ([], []), ([net],) * 2, ([], []), ([], [])] else f"{found}"


def hooks_that_come_later_have_run_once() -> str:
    """A hook is registered after some steps. In the first call with it, or in a later one, an operation fails after it
    has run, and the call is made again."""
    wrong = []
    for calls in (0, 1, 2):
        torch.manual_seed(0)
        net, x = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5)), torch.randn(8, 6)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        kept: list[torch.Tensor] = []
        counts = {"calls": 0}

        def hook(module: nn.Module, given: tuple, out: torch.Tensor, kept: list = kept, counts: dict = counts) -> None:
            kept.append(out.detach())
            counts["calls"] += 1

        for step in range(4 + calls):
            if step == 3:
                net[0].register_forward_hook(hook)
            kept.clear()
            opt.zero_grad()
            want = F.linear(x, net[0].weight, net[0].bias).detach()
            with Failing("aten.gelu.default", 1) if step == 3 + calls else nullcontext():
                out = net(x)
            if step >= 3 and [close(want, t) for t in kept] != [True]:
                wrong.append(f"{len(kept)} results after {calls} calls")
            out.square().mean().backward()
            opt.step()
        if counts["calls"] != calls + 1 or not _torch._recorder.report.told:  # type: ignore[union-attr]
            wrong.append(f"{counts} after {calls} calls")
        _torch._recorder.report.told.clear()  # type: ignore[union-attr]
    return ", ".join(wrong)


class Keeper:
    """An object whose hook uses two of its attributes by name. Other threads may change its other
    attributes."""

    def __init__(self) -> None:
        self.number, self.found, self.others = 0, [0], [0]

    def hook(self, *args: Any) -> None:
        self.number += 1
        self.found.append(self.number)


KEEPER = Keeper()


def reached() -> str:
    """Changes that a model and its hooks make outside the model's attributes are found and put
    back. Nothing else of the script's is touched."""
    net, keeper, closed = Reaching(2, 2), Keeper(), [0]
    net.register_forward_hook(keeper.hook)
    net.register_forward_pre_hook(lambda *args: closed.append(1))

    def values() -> tuple:
        return (
            NUMBER,
            list(REACHED["list"]),
            list(Reaching.shared),
            Reaching.calls,
            KEEPER.number,
            keeper.number,
            list(keeper.found),
            list(closed),
        )

    before, held = values(), Snapshot([net], deep=True)
    with rehearsal([net]):
        net(torch.zeros(1, 2))
        keeper.others.append(1)
        KEEPER.others = [1]
        if any(a == b for a, b in zip(before, values())):
            return f"{values()}"
        changed = sorted(c.name for c in held.changed())
    if values() != before or keeper.others != [0, 1] or KEEPER.others != [1]:
        return f"{values()} after {before}"
    return (
        ""
        if changed == ["NUMBER", "REACHED", "calls", "closed", "found", "number", "number", "shared"]
        else f"{changed}"
    )


class Meter:
    """What scripts keep averages with."""

    total = 0

    def __init__(self) -> None:
        self.sum, self.seen, self.inner = 0.0, deque([0.0], maxlen=2), [0]

    def update(self, value: float) -> None:
        self._add(value)
        self.seen.append(value)
        Meter.total += 1

    def _add(self, value: float) -> None:
        self.sum += value
        self.inner.append(1)

    @classmethod
    def count(cls, value: float) -> None:
        cls.total += 1

    def values(self) -> list:
        return [self.sum, *self.seen, len(self.inner), Meter.total]


class Slotted:
    __slots__ = ("number",)

    def __call__(self, value: float) -> None:
        self.number = getattr(self, "number", 0) + 1


METER, NOTED = Meter(), [0.0]


def noted(value: float) -> None:
    NOTED.append(value)


def noted_by_another(value: float) -> None:
    noted(value)


def counted_in_itself(value: float) -> None:
    counted_in_itself.calls += 1  # type: ignore[attr-defined]


def counting(function: Callable) -> Callable:
    @functools.wraps(function)
    def counted(*args: Any) -> Any:
        counted.calls = getattr(counted, "calls", 0) + 1  # type: ignore[attr-defined]
        return function(*args)

    return counted


def shared_by_functions() -> tuple[Callable, Callable]:
    calls, last = 0, None

    def count(value: float) -> None:
        nonlocal calls, last
        calls, last = calls + 1, value

    return count, lambda: [calls, last]


class Noting(torch.autograd.Function):
    number = 0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        Noting.number += 1
        noted_by_another(0.5)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return g


class Tidy(nn.Module):
    """A metric outside the model that is a module."""

    def __init__(self) -> None:
        super().__init__()
        self.n, self.inner = 0, nn.ModuleList()

    def forward(self, value: float) -> None:
        self.n += 1
        counted_in_itself(value)


def spellings() -> dict[str, tuple[Callable[[float], Any], Callable[[], Any]]]:
    """By name, ways to keep a number outside a module, each with what has been kept."""
    meters = {"loss": Meter()}
    methods = [METER.update]
    slotted, tidy, (shared, kept) = Slotted(), Tidy(), shared_by_functions()
    decorated = counting(noted)
    counted_in_itself.calls = 0  # type: ignore[attr-defined]

    def function(value: float) -> None:
        Noting.apply(torch.ones(1, requires_grad=True))

    return {
        "a method": (lambda value: METER.update(value), METER.values),
        "a method of one in a dict": (lambda value: meters["loss"].update(value), meters["loss"].values),
        "a method in a list": (lambda value: methods[0](value), METER.values),
        "a bound method": (METER.update, METER.values),
        "a method of a class": (lambda value: Meter.count(value), METER.values),
        "an object with slots": (slotted, lambda: getattr(slotted, "number", 0)),
        "a module": (lambda value: tidy(value), lambda: [tidy.n, counted_in_itself.calls]),  # type: ignore[attr-defined]
        "a function": (noted, lambda: list(NOTED)),
        "a function's function": (functools.partial(noted_by_another), lambda: list(NOTED)),
        "a function's attribute": (counted_in_itself, lambda: counted_in_itself.calls),  # type: ignore[attr-defined]
        "a decorator": (decorated, lambda: [*NOTED, vars(decorated).get("calls")]),
        "nonlocal": (shared, kept),
        "a custom function": (function, lambda: [Noting.number, *NOTED]),
    }


class Noted(nn.Module):
    """Keeps a number of its results."""

    def __init__(self, note: Callable) -> None:
        super().__init__()
        self.first, self.last, self.note = nn.Linear(6, 16), nn.Linear(16, 5), note

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        self.note(float(h.detach().sum()))
        return self.last(F.gelu(h))


class Twofold(Whole):
    """An operation that does not fit with all rows twice: in the script's own call, and where that is made again."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_dispatch__(func, types, args, kwargs) if self.raised < 2 else func(*args, **kwargs or {})


def kept_elsewhere(spelling: str, place: str, operation: str) -> list:
    """What a training of three steps has kept, in the second of which an operation never fits."""
    torch.manual_seed(0)
    METER.__init__()  # type: ignore[misc]
    Meter.total = Noting.number = 0
    NOTED[:] = [0.0]
    note, values = spellings()[spelling]

    def hook(module: nn.Module, given: tuple, out: torch.Tensor) -> None:
        if type(module) is nn.Linear:
            note(float(out.detach().sum()))

    net: Any = Noted(note) if place == "forward" else nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5))
    handle = None
    if place == "a hook":
        handle = net[0].register_forward_hook(hook)
    elif place == "a hook of all modules":
        handle = nn.modules.module.register_module_forward_hook(hook)
    opt, x = torch.optim.SGD(net.parameters(), lr=0.1), torch.randn(8, 6)
    try:
        for step in range(3):
            opt.zero_grad()
            with Twofold(operation, 8) if step == 1 and operation else nullcontext():
                net(x).square().mean().backward()
            opt.step()
    except torch.OutOfMemoryError:
        return [_torch._recorder.report.told[-1]["why"]]  # type: ignore[union-attr]
    finally:
        if handle is not None:
            handle.remove()
    found = values()
    found = found if isinstance(found, list) else [found]
    return [round(v, 3) if isinstance(v, float) else v for v in found]


def what_functions_keep_elsewhere() -> str:
    """What a forward and a hook keep by a method or a function that they call is kept once, as if nothing had
    failed."""
    wrong = []
    for place in ("forward", "a hook", "a hook of all modules"):
        for spelling in spellings() if place != "a hook of all modules" else ("a method", "a function", "nonlocal"):
            want = kept_elsewhere(spelling, place, "")
            for operation in ("aten.gelu.default", "aten.gelu_backward.default"):
                found = kept_elsewhere(spelling, place, operation)
                if str(found) != str(want):
                    wrong.append(f"{spelling}, {place}, {operation}: {str(found)[:150]}, not {want}")
    return "\n".join(wrong)


def backward_hooks_of_all_modules() -> str:
    """A hook that sees the gradients of all modules sees none of pieces: such a step is left to the script."""
    for register in ("register_module_full_backward_hook", "register_module_full_backward_pre_hook"):
        net, x = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5)), torch.ones(8, 6, requires_grad=True)
        torch.optim.SGD(net.parameters(), lr=0.1)
        handle = getattr(nn.modules.module, register)(lambda module, *grads: None)
        why = ""
        try:
            with Whole("aten.gelu.default", 8):
                net(x).square().mean().backward()
        except torch.OutOfMemoryError:
            why = _torch._recorder.report.told[-1]["why"]  # type: ignore[union-attr]
        finally:
            handle.remove()
        if why != "all modules have a backward hook, which would see the gradients of pieces":
            return f"{register}: {why}"
    return ""


class Slow:
    """A stand-in for headroom. It receives a refusal, records it slowly, and then acknowledges
    it."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.returned = threading.Event()  # the process has continued
        self.folder = tempfile.mkdtemp()
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(os.path.join(self.folder, "s"))
        self.socket.listen()
        threading.Thread(target=self.hear, daemon=True).start()

    def hear(self) -> None:
        peer, _ = self.socket.accept()
        said = json.loads(peer.makefile().readline())
        self.written.append(said["why"] if not self.returned.wait(0.2) else "too late")
        peer.sendall(json.dumps({"type": "heard", "id": said["id"]}).encode() + b"\n")


def a_refusal_is_heard() -> str:
    """The user's exception is printed only after the refusal has been recorded."""
    there = Slow()
    Wire(os.path.join(there.folder, "s")).refused("because")
    there.returned.set()
    written = list(there.written)
    shutil.rmtree(there.folder)
    return "" if written == ["because"] else f"{written}"


def full_precision() -> str:
    """Trials do not round to TF32. Afterwards every setting is as before, by whichever means the script has set
    it."""
    backends = torch.backends

    def settings() -> list[str]:
        found = [
            torch.get_float32_matmul_precision,
            lambda: backends.cudnn.allow_tf32,
            lambda: backends.cuda.matmul.allow_tf32,
        ]
        if hasattr(backends.cudnn, "conv"):
            kinds = backends, backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul
            found += [lambda: [kind.fp32_precision for kind in kinds]]
        return [either(f) for f in found]

    def either(f: Callable) -> str:
        try:
            return str(f())
        except RuntimeError:
            return "mixed"

    changes: list[Callable] = [
        lambda: None,
        lambda: torch.set_float32_matmul_precision("medium"),
        lambda: setattr(backends.cudnn, "allow_tf32", False),
    ]
    if hasattr(backends.cudnn, "conv"):
        changes += [lambda: setattr(backends, "fp32_precision", "tf32")]
    for i, change in enumerate(changes):
        change()
        before = settings()
        with rerun.full_precision():
            inside = settings()
        if settings() != before or i < 3 and inside[:2] != ["highest", "False"]:
            return f"{i}: {inside} inside, {settings()} in place of {before}"
    return ""


def arrays_are_filled_again() -> str:
    """What a script writes to the NumPy array behind a tensor of a step leaves that step to the script, and only if it
    was written between the forward and the backward pass."""
    wrong: list[str] = []
    for length, at, what in itertools.product((1, 20_000), (1, 2), ("nothing", "inputs", "targets", "copied")):
        found = []
        for fails in (False, True):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Conv1d(2, 4, 1), nn.Tanh())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            x, y = np.empty((8, 2, length), np.float32), np.empty((8, 4, length), np.float32)
            raised, report = 0, _torch._recorder.report  # type: ignore[union-attr]
            report.told = []
            for step in range(3):
                x[:], y[:] = torch.randn(8, 2, length).numpy(), torch.randn(8, 4, length).numpy()
                optimizer.zero_grad()
                target = torch.from_numpy(y)
                target = target.clone() if what == "copied" else target
                loss = F.mse_loss(net(torch.from_numpy(x)), target)
                target.numpy().sum()  # from now on an array shares the copy's memory, too
                if step == at and what != "nothing":
                    (x if what == "inputs" else y)[4:] = 0
                with Whole("aten.tanh_backward.default", 8) if fails and step else nullcontext():
                    try:
                        loss.backward()
                    except torch.OutOfMemoryError:
                        raised += 1
                optimizer.step()
            found.append([p.detach() for p in net.parameters()])
        left = what in ("inputs", "targets")  # the second failing step is made in pieces from the start
        if raised != left or left != ("an argument has been changed" in str(report.told)):
            wrong.append(f"{what}, {length}, {at}: {raised} raised, {report.told}")
        elif not left and not all(map(close, *found)):
            wrong.append(f"{what}, {length}, {at}: other weights")
    return "; ".join(wrong)


def arrays_of_results_are_written_to() -> str:
    """What a script writes to the array of a result, which has no values after a failure, leaves the step to the script;
    an array that is only read does not, and nor does what is written to a copy or after the backward pass."""
    wrong = []
    for what in ("read", "written", "a view", "a copy", "afterwards"):
        found = []
        for fails in (False, True):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            raised, report = 0, _torch._recorder.report  # type: ignore[union-attr]
            report.told = []
            for _ in range(2):
                optimizer.zero_grad()
                with Whole("aten.tanh.default", 8) if fails else nullcontext():
                    try:
                        out = net(torch.randn(8, 6))
                        array = (out[:, 1:] if what == "a view" else out).detach().numpy()
                        array = array.copy() if what == "a copy" else array
                        float(array.mean())
                        array[4:] = array[4:] if what in ("read", "afterwards") else 0
                        loss = out.abs().mean()
                        loss.backward()
                        array[4:] = 0 if what == "afterwards" else array[4:]
                        out.detach().sum().item()
                    except torch.OutOfMemoryError:
                        raised += 1
                optimizer.step()
            found.append([p.detach() for p in net.parameters()])
        left = 2 * (what in ("written", "a view"))
        if raised != left or bool(left) != ("array of a result" in str(report.told)):
            wrong.append(f"{what}: {raised} raised, {report.told}")
        elif not left and not all(map(close, *found)):
            wrong.append(f"{what}: other weights")
    return "; ".join(wrong)


class Divided(nn.Module):
    """Computes its loss itself, and divides it by what the targets add up to."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.net = how, nn.Sequential(nn.Linear(6, 5), nn.Tanh())
        self.register_buffer("weights", HEAVY)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = self.net(x)
        if self.how == "weights of pictures inside":
            return F.cross_entropy(out[:, :, None, None], y[:, None, None], self.weights)
        if self.how == "weights inside":
            return F.cross_entropy(out, y, self.weights)
        if self.how == "a mean inside":
            return F.cross_entropy(out, y)
        each, weights = F.cross_entropy(out, y, reduction="none"), self.weights[y]
        if self.how == "a reciprocal inside":
            return (each * weights).sum() * weights.sum().reciprocal()
        return (each * weights).sum() / weights.sum()


HEAVY = torch.tensor([1.0, 1.0, 0.2, 5.0, 0.01])


def means_of_weights_that_come_later() -> str:
    """A mean over weights that have been the same for all rows looks like a mean over the rows. Where pieces would be
    wrong as soon as other weights come, the step is made in another way, or left to the script."""
    proof.PAUSE = math.inf  # what a trial has shown is believed until the fourth step
    criterion = nn.CrossEntropyLoss(weight=HEAVY)
    inside = {"weights inside", "weights of pictures inside", "a quotient inside", "a reciprocal inside"}

    def summed(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (F.cross_entropy(out, y, reduction="none") * HEAVY[y]).sum() / HEAVY[y].sum()

    def quotient(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        each = F.cross_entropy(out, y, reduction="none")
        return (each * HEAVY[y]).sum() / (torch.ones_like(each) * HEAVY[y]).sum()

    outside: dict[str, Callable] = {
        "a mean": F.cross_entropy,
        "a quotient": quotient,
        "weights": criterion,
        "weights by position": lambda out, y: F.cross_entropy(out, y, HEAVY),
        "a sum of weights": summed,
    }
    wrong = []
    for how in (*outside, "explicit, a mean", "explicit, weights", "explicit, a quotient", "a mean inside", *inside):
        found, survives = [], not how.startswith("explicit") and how not in inside or how == "explicit, a mean"
        proof.Proof.uses.clear()
        for fails in (False, True):
            torch.manual_seed(0)
            net = Divided(how) if "inside" in how else nn.Sequential(nn.Linear(6, 5), nn.Tanh())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
            losses = {
                "explicit, a mean": F.cross_entropy,
                "explicit, weights": criterion,
                "explicit, a quotient": summed,
            }

            def step(x: torch.Tensor, y: torch.Tensor) -> None:
                (net(x, y) if "inside" in how else (losses | outside)[how](net(x), y)).backward()

            step = headroom_train.step(net)(step) if how in losses else step
            raised = 0
            for n in range(4):
                x, y = torch.randn(8, 6), torch.tensor([0, 1] * 4 if n < 2 else [0, 1, 0, 1, 3, 3, 3, 3])
                optimizer.zero_grad()
                try:
                    with Whole("aten.tanh.default", 8) if fails else nullcontext():
                        step(x, y)
                except torch.OutOfMemoryError:
                    raised += 1
                    optimizer.zero_grad()
                    step(x, y)
                optimizer.step()
            found.append([p.detach() for p in net.parameters()])
        if not all(map(close, *found)):
            wrong.append(f"{how}: other weights, {raised} raised")
        elif raised != (0 if survives else 4):
            wrong.append(f"{how}: {raised} raised")
    return "; ".join(wrong)


class OwnGenerators(nn.Module):
    """Draws from generators of its own: a number, or one for each row."""

    def __init__(self, rows: bool = False) -> None:
        super().__init__()
        self.rows = rows
        self.net, self.norm = nn.Linear(6, 5), nn.BatchNorm1d(5)
        self.drawn = random.Random(0), np.random.default_rng(0), np.random.RandomState(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two, three = self.drawn
        if self.rows:
            return self.net(x).tanh() * torch.from_numpy(two.uniform(size=(len(x), 1))).float()
        number = one.random() + two.uniform() + three.uniform()
        return self.norm(self.net(x)).tanh() * number


def generators_of_a_module_are_put_back() -> str:
    """A call that is made again draws the numbers of the call that failed, from a module's own generators, too. That
    is no attribute which pieces may be given anew."""
    net = OwnGenerators()
    snapshot = Snapshot([net], deep=True)
    net(torch.randn(8, 6))
    drawn = [change for change in snapshot.changed() if change.name == "drawn"]
    if len(drawn) != 3 or any(map(snapshot.plain, drawn)):
        return f"changes: {drawn}"
    found = []
    for fails in (False, True):
        torch.manual_seed(0)
        net, printed = OwnGenerators(), []
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(4):
            optimizer.zero_grad()
            with Failing("aten.tanh.default", 1) if fails and step else nullcontext():
                loss = net(torch.randn(8, 6)).square().mean()
            loss.backward()
            optimizer.step()
            printed.append(loss.detach())
        found.append(printed)
    return "" if all(map(close, *found)) else f"other losses: {found}"


def a_generator_that_draws_for_each_row_keeps_the_batch_whole() -> str:
    """Pieces would each begin with the numbers of the first rows."""
    net, raised = OwnGenerators(rows=True), 0
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        try:
            with Whole("aten.tanh.default", 8) if step else nullcontext():
                net(torch.randn(8, 6)).square().mean().backward()
        except torch.OutOfMemoryError:
            raised += 1
        optimizer.step()
    return "" if raised == 3 else f"{raised} of 3 failures were left to the script"


def a_loss_of_other_rows() -> str:
    """A loss that depends on none of the rows that are cut is refused for that reason."""
    net, said = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 2)), []
    torch.optim.SGD(net.parameters(), lr=0.1)
    try:
        with Whole("aten.tanh.default", 8):
            out, other = net(torch.randn(8, 6)), net(torch.randn(5, 6))
            out.square().mean().backward()
            other.square().mean().backward()
    except torch.OutOfMemoryError:
        said.append(_torch._recorder.report.told[-1]["why"])
    return "" if said == ["the loss depends on none of the rows that the step's first call was given"] else f"{said}"


EQUAL = torch.tensor([5, 5, 9, 1, 8, 2, 7, 3, 5, 5, 5])  # the rows of the trials are equal
RELATING: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "indices of a sort": lambda h, y: (torch.sort(h, descending=True)[0] * y[torch.sort(h, descending=True)[1]]).mean(),
    "of what is detached": lambda h, y: (h * y[h.detach().sort().indices]).mean(),
    "of whole numbers": lambda h, y: (h * y[(h * 100).long().sort()[1]]).mean(),
    "of equal ones": lambda h, y: h.mean() * ((h.detach() * 0 + EQUAL).long().msort() * EQUAL).sum().item(),
    "a triangle": lambda h, y: h.mean() * h.detach()[:, None].expand(-1, 4).tril().sum().item(),
    "a triangle in place": lambda h, y: h.mean() * h.detach()[:, None].repeat(1, 4).tril_().sum().item(),
    "numpy's": lambda h, y: (h * torch.from_numpy(h.detach().msort().numpy())).mean(),
    "a softmax's sum": lambda h, y: h.mean() * h.detach().softmax(0).sum().item(),
    "a softmax's largest": lambda h, y: h.mean() * h.detach().softmax(0).max().item(),
    "a mask by a softmax": lambda h, y: (h * (h.detach().softmax(0) > 1 / len(h))).mean(),
    "in another order": lambda h, y: (h * (h.detach().flip(0) > 0)).mean(),
    "rolled": lambda h, y: h.mean() * (h.detach().roll(1) * h.detach()).sum().item(),
    "normalized": lambda h, y: h.mean() * (F.layer_norm(h.detach(), h.shape) > 0.5).sum().item(),
    "smoothed": lambda h, y: h.mean() * F.avg_pool1d(h.detach()[None, None], 3, 1, 1).square().sum().item(),
    "attention": lambda h, y: h.mean() * attention_of(h.detach()[:, None].expand(-1, 4)).sum().item(),
    "a spectrum": lambda h, y: h.mean() * torch.fft.fft(h.detach()).abs().max().item(),
    "in one row": lambda h, y: (h * h.detach()[:, None].expand(-1, 3).softmax(1).sum(1)).mean(),
}


def attention_of(rows: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(rows[None], rows[None] * 3, rows[None].square())[0]


def functions_that_relate_rows() -> str:
    """What the script computes of the results' values relates rows to each other: it is computed of all rows, whether
    the step has failed or is expected to, or a user wants pieces."""
    wrong = []
    for name, loss in RELATING.items():
        found = []
        for fails in (False, True):
            torch.manual_seed(0)
            net, printed = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 1)).double(), []
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(3):
                x = torch.randn(11, 6).double()
                optimizer.zero_grad()
                with Whole("aten.tanh.default", 11) if fails else nullcontext():
                    value = loss(net(x)[:, 0], x[:, 0])
                    value.backward()
                optimizer.step()
                printed += [value.detach(), net[0].weight.grad.clone()]
            found.append(printed)
        if not all(map(close, *found)):
            wrong.append(f"{name}: {found[0][::2]} {found[1][::2]}")
    return "; ".join(wrong)


def numbers_of_the_script() -> str:
    """``new_tensor`` needs nothing of the tensor whose method it is but its type: what it makes is no value of the
    batch, with which rows could not be combined in pieces."""
    found, ways = [], []
    _torch._recorder.report.survived = lambda failure, survival, **_: ways.append(survival.way)  # type: ignore
    for fails in (False, True):
        torch.manual_seed(0)
        net, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)), torch.randn(8, 6)
        torch.optim.SGD(net.parameters(), lr=0.1)
        with Whole("aten.tanh.default", 8) if fails else nullcontext():
            out = net(x)
            (out.div(2) - out.new_tensor([0.4, 0.5, 0.6]).view(1, -1)).square().mean().backward()
        found.append([p.grad for p in net.parameters()])
    if not all(map(close, *found)) or ways != ["pieces"]:
        return f"{ways}"
    with Whole("aten.tanh.default", 8):
        out = net(x)
        copied, made = x.new_tensor(out), out.new_tensor(out)  # of values that are the step's
    return "" if close(net(x), copied) and close(net(x), made) else "other values"


class Perceptual(nn.Module):
    """Frozen layers through which results are compared. They write in place, as is said by a flag."""

    def __init__(self) -> None:
        super().__init__()
        some = nn.ReLU(inplace=True), nn.LeakyReLU(0.2, inplace=True), nn.Dropout(0.5, inplace=True)
        self.layers = nn.Sequential(*(layer for last in some for layer in (nn.Linear(6, 6), last)))
        self.requires_grad_(False).eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def in_place_by_a_flag() -> str:
    """A function with ``inplace=True`` changes its argument as one with an underscore does."""
    wrong, alive = [], []
    for at in ("tanh.default", "relu_.default", "leaky_relu_.default", "mse_loss.default", "tanh_backward.default"):
        found = []
        for fails in (False, True):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).double()
            compared, grads = Perceptual().double(), []
            alive += [net, compared]
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for _ in range(3):
                x = torch.randn(8, 6).double()
                optimizer.zero_grad()
                with Whole(f"aten.{at}", 8) if fails else nullcontext():
                    F.mse_loss(compared(net(x) - 0.5), compared(x)).backward()
                optimizer.step()
                grads += [p.grad.clone() for p in net.parameters()]
            found.append(grads)
        if not all(map(close, *found)):
            wrong.append(at)
    return ", ".join(wrong)


class Scheduled(nn.Module):
    """Reads attributes that the script, or the call itself, sets."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.0), nn.Tanh(), nn.Linear(6, 2))
        self.epoch, self.config, self.steps, self.own = 0, {"scale": 1.0}, [1.0, 1.0], -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.own == 0:
            self.epoch += 1
        self.own -= self.own >= 0
        out = self.net(x) * self.config["scale"] + self.epoch * self.steps[0]
        return out + torch.tanh(out) * len(self.config)


BETWEEN: dict[str, Callable[[Scheduled, int], Any]] = {
    "a number": lambda net, step: setattr(net, "epoch", step),
    "in a dict": lambda net, step: net.config.update(scale=0.9**step),
    "a new key": lambda net, step: net.config.update({str(step): 1}),
    "in a list": lambda net, step: net.steps.insert(0, 0.1 * step),
    "another dict": lambda net, step: setattr(net, "config", {"scale": 0.9**step}),
    "a new attribute": lambda net, step: setattr(net, f"of_{step}", step),
    "a layer's attribute": lambda net, step: setattr(net.net[1], "inplace", step % 2 == 1),
    "by the call itself": lambda net, step: setattr(net, "own", 0 if step == 3 else -1),
}


def numbers(first: float) -> Iterator[float]:
    while True:
        yield first
        first += 0.5


def begun_again(cycle: Iterator[float]) -> Iterator[float]:
    for _ in range(4):
        next(cycle)
    return cycle


NUMBERS: dict[str, Callable[[], Iterator[float]]] = {
    "a generator": lambda: numbers(1.0),
    "a count": lambda: itertools.count(1),
    "a list's": lambda: iter([*range(1, 100)]),
    "a cycle that has begun again": lambda: begun_again(itertools.cycle([1.0, 2.0, 3.0])),
    "a cycle": lambda: itertools.cycle([1.0, 2.0, 3.0]),
    "a map": lambda: map(float, [*range(1, 100)]),
    "numbers": lambda: (n for n, _ in enumerate(numbers(1.0), 1)),
    "not used": lambda: filter(None, []),
}


class Takes(nn.Module):
    """Takes a number from an iterator in each call, as long as that has any: before it fails, or afterwards."""

    def __init__(self, given: Iterator[float], early: bool, norm: nn.Module) -> None:
        super().__init__()
        self.net, self.norm, self.early = nn.Linear(6, 5), norm, early
        self.given = [given]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.early:
            return next(self.given[0], 1.0) * self.norm(self.net(x)).tanh()
        return self.norm(self.net(x)).tanh() * next(self.given[0], 1.0)


def iterators_of_a_module() -> str:
    """What a call has taken from an iterator cannot be put back: it is taken once, or the step is left to the script."""
    wrong = []
    places = (("tanh.default", 0), ("tanh.default", 2), ("tanh_backward.default", 0))
    norms = (nn.BatchNorm1d, nn.LayerNorm)  # only a call with the second may be made in pieces
    for (name, given), early, (at, first), norm in itertools.product(NUMBERS.items(), (True, False), places, norms):
        found, raised = [], 0
        for fails in (False, True):
            torch.manual_seed(0)
            net, losses = Takes(given(), early, norm(5)), []
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(4):
                optimizer.zero_grad()
                x = torch.randn(8, 6)
                try:
                    with Failing(f"aten.{at}", 1) if fails and step == first else nullcontext():
                        loss = net(x).square().mean()
                        loss.backward()
                except torch.OutOfMemoryError:
                    raised += 1
                    if not early and at == "tanh.default":
                        next(net.given[0], None)
                    loss = net.norm(net.net(x)).tanh().square().mean()  # what a script may do then
                optimizer.step()
                losses.append(loss.detach() if raised == 0 else torch.zeros(()))
            found.append([*losses, torch.tensor(float(next(net.given[0], 0)))])
        if found[0][-1] != found[1][-1] or not raised and not all(map(close, *found)):
            wrong.append(f"{name}, {early}, {at}, {first}: {found}, {raised} left to the script")
        if raised and (first or name == "not used"):
            wrong.append(f"{name}, {early}, {first}: left to the script")
    return "; ".join(wrong)


def iterators_of_a_module_that_is_evaluated() -> str:
    """As :func:`iterators_of_a_module`, for a module that is not trained."""
    wrong = []
    for (name, given), early, first in itertools.product(NUMBERS.items(), (True, False), (0, 2, 3)):
        found, raised = [], 0
        torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
        for fails in (False, True):
            torch.manual_seed(0)
            net = Takes(given(), early, nn.LayerNorm(5)).eval().requires_grad_(False)
            with torch.no_grad():
                for call in range(first + 1):
                    try:
                        with Failing("aten.tanh.default", 1) if fails and call == first else nullcontext():
                            net(torch.randn(8, 6))
                    except torch.OutOfMemoryError:
                        raised += 1
                        if not early:
                            next(net.given[0], None)
            found.append(next(net.given[0], 0))
        if found[0] != found[1] or raised != (name != "not used"):
            wrong.append(f"{name}, {early}, {first}: {found}, {raised} left to the script")
    return "; ".join(wrong)


class Counts(nn.Module):
    """Counts in arrays in each call, and how often each entry is the largest of a row; keeps something of each row. Uses
    none of it, or the number of calls, or what it has kept."""

    def __init__(self, uses: str) -> None:
        super().__init__()
        self.net, self.uses = nn.Linear(6, 5), uses
        self.usage, self.calls, self.rows = np.zeros(5), [np.zeros((), int)], np.zeros((8, 5), np.float32)
        self.bytes, self.numbers, self.space = bytearray(), array("i", [0]), SimpleNamespace(calls=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.net(x)
        np.add.at(self.usage, out.detach().argmax(1).numpy(), 1)
        self.calls[0] += 1
        self.bytes.append(1)
        self.numbers[0] += 1
        self.space.calls += 1
        before = torch.from_numpy(self.rows[: len(x)].copy())
        self.rows[: len(x)] = out.detach().numpy()
        if self.uses == "rows":
            out = out + before
        return (out * float(self.calls[0]) if self.uses == "calls" else out).tanh()


def arrays_of_a_module() -> str:
    """What calls count in arrays is as without the failure, in training and in evaluation, or the failure is the
    script's."""
    wrong = []
    places = ("tanh.default", "tanh_backward.default")
    for at, uses, first, trains in itertools.product(places, ("", "calls", "rows"), (0, 2), (True, False)):
        if at == "tanh_backward.default" and not trains:
            continue
        found, raised = [], False
        for fails in (False, True):
            torch.manual_seed(0)
            net, losses = Counts(uses).train(trains).requires_grad_(trains), []
            optimizer = torch.optim.SGD((net if trains else nn.Linear(2, 2)).parameters(), lr=0.1)
            for step in range(4):
                x = torch.randn(8, 6)
                optimizer.zero_grad()
                try:
                    with Failing(f"aten.{at}", 1) if fails and step == first else nullcontext():
                        with torch.set_grad_enabled(trains):
                            loss = net(x).square().mean()
                        if trains:
                            loss.backward()
                except torch.OutOfMemoryError:
                    raised = True
                    break
                optimizer.step()
                losses.append(loss.detach())
            counted = int(net.calls[0]), len(net.bytes), net.numbers[0], net.space.calls
            found.append((losses, net.usage.tolist(), counted, net.rows.round(4).tolist()))
        if not raised and (found[0][1:] != found[1][1:] or not all(map(close, found[0][0], found[1][0]))):
            wrong.append(f"{at}, {uses}, {first}, {trains}: {found}")
        if raised and at == "tanh.default":
            wrong.append(f"{at}, {uses}, {first}, {trains}: left to the script")
    return "\n".join(wrong)


def losses_of_joined_chunks() -> str:
    """A loss over chunks of the sequence, whose losses are joined: rows do not relate to each other there."""
    torch.manual_seed(0)
    net, y = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 5)), torch.randint(0, 5, (8, 4))
    x, grads = torch.randn(8, 4, 6), []
    torch.optim.SGD(net.parameters(), lr=0.1)
    for fails in (False, True):
        net.zero_grad()
        with Whole("aten.gelu.default", 8) if fails else nullcontext():
            chunks = net(x).split(2, 1)
            losses = [
                F.cross_entropy(c.reshape(-1, 5), t.reshape(-1), reduction="none")
                for c, t in zip(chunks, y.split(2, 1))
            ]
            (torch.cat(losses).sum() / (y >= 0).sum().maximum(torch.ones(()))).backward()
        grads.append([p.grad for p in net.parameters()])
    told = _torch._recorder.report.told  # type: ignore[union-attr]
    right = all(map(close, *grads)) and [t.get("way") for t in told] == ["pieces"]
    return "" if right else f"{told}"


AUXILIARY: list[torch.Tensor] = []


class Auxiliary(nn.Module):
    """Keeps a loss of its own where the script finds it."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.first, self.last, self.where = nn.Linear(6, 16), nn.Linear(16, 5), where
        self.held = {"losses": []}  # type: ignore[var-annotated]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.first(x)
        loss = z.square().mean()
        if self.where == "a global":
            AUXILIARY.append(loss)
        elif self.where == "a list":
            self.held["losses"].append(loss)
        elif self.where == "an attribute":
            self.loss = loss
        return self.last(z.tanh())

    def losses(self) -> list:
        return {"a global": AUXILIARY, "a list": self.held["losses"]}.get(self.where) or [self.loss]


def losses_that_a_model_keeps() -> str:
    """They are trained as without the failure, or the failure is the script's: none has a graph without values."""
    wrong = []
    for where, at in itertools.product(
        ("a global", "a list", "an attribute"), ("tanh.default", "tanh_backward.default")
    ):
        found, raised = [], False
        for fails in (False, True):
            torch.manual_seed(0)
            net, losses = Auxiliary(where), []
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(4):
                AUXILIARY.clear()
                net.held["losses"].clear()
                optimizer.zero_grad()
                try:
                    with Failing(f"aten.{at}", 1) if fails and step == 1 else nullcontext():
                        loss = net(torch.randn(8, 6)).square().mean() + 0.5 * sum(net.losses())
                        loss.backward()
                except torch.OutOfMemoryError:
                    raised = True
                    break
                optimizer.step()
                losses.append(loss.detach())
            found.append(losses)
        if not raised and not all(map(close, *found)):
            wrong.append(f"{where}, {at}: {found}")
        if raised and at == "tanh.default" and where != "an attribute":
            wrong.append(f"{where}, {at}: left to the script: {_torch._recorder.report.told[-1]}")  # type: ignore[union-attr]
    return "\n".join(wrong)


class Lazy:
    """Notes what it is asked for."""

    asked: ClassVar[list[str]] = []

    @property
    def __class__(self) -> Any:
        Lazy.asked.append("class")
        return Lazy

    def __getattr__(self, name: str) -> Any:
        Lazy.asked.append(name)
        raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        Lazy.asked.append("eq")
        return False

    def __len__(self) -> int:
        Lazy.asked.append("len")
        return 3

    __hash__ = object.__hash__


class LazyWithSlots:
    __slots__ = ("own",)
    __class__, __getattr__, __eq__, __len__ = Lazy.__class__, Lazy.__getattr__, Lazy.__eq__, Lazy.__len__
    __hash__ = object.__hash__


class Asked:
    """A class property."""

    def __get__(self, instance: Any, owner: Any) -> int:
        Lazy.asked.append("get")
        return 1


LAZY = Lazy(), LazyWithSlots()
LAZILY, SLOTTED = LAZY


class Lazily(nn.Module):
    shared, asked = Lazy(), Asked()

    def __init__(self) -> None:
        super().__init__()
        self.net, self.own, self.several = nn.Linear(6, 5), Lazy(), [Lazy(), LazyWithSlots()]

    def forward(self, x: torch.Tensor, given: Any, *, named: Any = None) -> torch.Tensor:
        return self.net(x).tanh()

    def unused(self) -> None:
        self.asked = self.shared = LAZY, LAZILY, SLOTTED  # type: ignore[assignment]


def objects_of_the_script_are_asked_for_nothing() -> str:
    """Nor is the class of one that says it is of another, in a step that goes well and in one that fails."""
    wrong = []
    for fails in (False, True):
        net, x = Lazily(), torch.randn(8, 6)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        Lazy.asked.clear()
        for step in range(3):
            optimizer.zero_grad()
            with Failing("aten.tanh.default", 1) if fails and step else nullcontext():
                out = net(x, [Lazy(), {"a": LazyWithSlots()}], named=Lazy())
            out.square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            net.eval()(x, (Lazy(), LazyWithSlots()))
        if Lazy.asked:
            wrong.append(f"{fails}: {Counter(Lazy.asked)}")
    return ", ".join(wrong)


class Ended(Exception):
    pass


def end(*_: Any) -> None:
    raise Ended


class Ending:
    """A handler that is an object."""

    __call__ = end


def handlers_of_signals_interrupt() -> str:
    """What a signal's handler raises ends the script's loop, wherever in the worker's code the signal comes: a limit of
    time, or Ctrl-C. It is neither lost in a callback nor taken for an error of the worker's."""
    places: list[tuple[Any, str]] = [
        (Tape, "closes"), (Tape, "shorten"), (Tape, "add"), (functions, "note_call"),
        (RecordedModule, "before"), (idle.Idle, "may"), (recorder.Recorder, "_usable"), (_torch.Finder, "found"),
    ]  # fmt: skip
    wrong, lost = [], []
    sys.unraisablehook = lambda raised: lost.append(raised)
    for (owner, name), handler in itertools.product(places, (end, Ending(), signal.default_int_handler)):
        torch.manual_seed(0)
        net, x = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), torch.randn(8, 6)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        signal.signal(signal.SIGALRM, handler)
        usual, armed = getattr(owner, name), []

        def instead(*args: Any, usual: Any = usual, armed: list = armed, **kwargs: Any) -> Any:
            if armed:
                armed.clear()
                signal.raise_signal(signal.SIGALRM)
            return usual(*args, **kwargs) if usual is not None else None

        with changed(owner, name, staticmethod(instead) if name == "closes" else instead):
            came = False
            try:
                for _ in range(4):
                    armed[:] = [True]
                    out = net(x)
                    if name != "closes":  # otherwise it is the script that ends the step, by letting go of its result
                        (out * 2).square().mean().backward()
                    del out
                    optimizer.step()
                    optimizer.zero_grad()
            except (Ended, KeyboardInterrupt):
                came = True
        if not came or lost:
            wrong.append(f"{name}, {handler}: {came}, {lost}")
            lost.clear()
        record = record_of(net)
        if record is not None and record.why_not:
            wrong.append(f"{name}, {handler}: {record.why_not}")
    return "; ".join(wrong)


def signals_where_a_callback_begins() -> str:
    """Python handles signals before the first line of a callback, too: what a handler raises there is not lost."""
    net, x = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), torch.randn(8, 6)
    torch.optim.SGD(net.parameters(), lr=0.1)
    signal.signal(signal.SIGALRM, end)
    came = 0
    for _ in range(4):
        try:
            given = x.clone()
            both = [net(given), torch.ones(1 << 25)]  # the second is freed first, which takes longer than the alarm
            kept, given = weakref.ref(given), None  # type: ignore[assignment]
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            both.clear()
            while signal.getitimer(signal.ITIMER_REAL)[0]:
                pass
            net(x)
        except Ended:
            both.clear()  # if the alarm has come before
            came += kept() is None  # nobody can use the step any more
    return "" if came == 4 else f"{came} of 4 came, and let go of their steps"


class Alarm(Whole):
    """Fails as :class:`Whole` does, and sends a signal at operation ``at`` of those after the first failure."""

    at = operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.raised:
            self.operations += 1
            if self.operations == self.at:
                signal.raise_signal(signal.SIGALRM)
        return super().__torch_dispatch__(func, types, args, kwargs)


def trials_that_signals_interrupt() -> str:
    """What a handler raises while the worker tries or runs a step again is taken for no failure of the trial."""
    signal.signal(signal.SIGALRM, end)
    wrong, at = [], 0
    while True:
        at += 7
        net, x = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), torch.randn(64, 6)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        came, alarm = False, Alarm("aten.tanh.default", 64)
        alarm.at = at
        try:
            (net(x) * 2).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            with alarm:
                (net(x) * 2).square().mean().backward()
        except Ended:
            came = True
        if alarm.operations < at:
            return f"not after {wrong} of {at - 7} operations" if wrong or at < 70 else ""
        if not came:
            wrong.append(at)


def graphs_that_are_used_up() -> str:
    """Whether a backward pass has used a graph up is seen by what its functions have saved. A function in Python may
    keep anything."""
    x, rows = torch.ones(4, 3, requires_grad=True), torch.tensor([0, 1])
    made: dict[str, Callable[[], torch.Tensor]] = {
        "saves nothing": lambda: x[:2], "saves its result": lambda: x.tanh(), "saves one operand": lambda: x @ torch.ones(3, 2),
        "saves a list": lambda: x[rows], "in Python": lambda: Clamp.apply(x),
    }  # fmt: skip
    want = {n: (n != "in Python", n != "in Python", n == "saves nothing") for n in made}
    found = {}
    for name, make in made.items():
        out = make()
        seen = [graph.unused([out])]
        for retain in (True, False):
            out.sum().backward(retain_graph=retain)
            seen.append(graph.unused([out]))
        found[name] = tuple(seen)
    return "" if found == want else f"{found}"


def what_tells_buffers_apart() -> str:
    """Another tensor in a buffer's place, and one that is written to, are seen; what is written by ``.data`` if values
    are asked for. A tensor that is read is the same."""
    ways: dict[str, Callable[[Any], Any]] = {
        "another": lambda net: setattr(net, "prior", net.prior.clone()), "written": lambda net: net.prior.add_(1),
        "by data": lambda net: net.prior.data.add_(1), "read": lambda net: net.prior.sum(),
    }  # fmt: skip
    found = {}
    for name, change in ways.items():
        net = Prior()
        record = RecordedModule(_torch._recorder, net)
        before = [record.fixed(values) for values in (False, True)]
        change(net)
        found[name] = [record.fixed(values) != was for values, was in zip((False, True), before)]
    want = {"another": [True, True], "written": [True, True], "by data": [False, True], "read": [False, False]}
    return "" if found == want else f"{found}"


class Prior(nn.Module):
    """Adds the logarithm of how often each class is expected, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
        self.register_buffer("prior", torch.full((5,), 0.2))

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x) + self.prior.log()


def buffers_that_the_script_changes() -> str:
    """The script writes to a buffer of the model between its call and the backward pass: the step is made with the
    values of the call, or left to the script."""
    wrong = []
    ways: dict[str, Callable[[Any, torch.Tensor], Any]] = {
        "copied": lambda net, v: net.prior.copy_(v),
        "by data": lambda net, v: net.prior.data.copy_(v),
        "another": lambda net, v: setattr(net, "prior", v.clone()),
    }
    reads = (None, lambda o: o.softmax(1).max(1)[0].mean(), lambda o: o)
    for read, late, (name, write) in itertools.product(reads, (False, True), ways.items()):
        found: list[Any] = []
        for failing in (False, True):
            torch.manual_seed(0)
            net, x, y = Prior(), torch.randn(64, 6), torch.arange(64) % 5
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            op = "aten.tanh_backward.default" if late else "aten.tanh.default"
            try:
                for step in range(4):
                    optimizer.zero_grad()
                    with Whole(op, 64) if failing and step else nullcontext():
                        out = net(x)
                        loss = F.cross_entropy(out, y)
                        if read is not None:
                            (read(out) * 1.0).tolist()
                        write(net, torch.arange(1, 6) / 15)
                        loss.backward()
                    found.append((step, failing, net.body[0].weight.grad.clone()))
                    optimizer.step()
                    write(net, torch.full((5,), 0.2))
            except torch.OutOfMemoryError:
                pass
        right = {step: g for step, failing, g in found if not failing}
        if not all(close(g, right[step]) for step, failing, g in found if failing):
            wrong.append(f"{name}, {read}, {late}: {found}")
    return ", ".join(wrong)


def graphs_that_a_failed_pass_has_not_reached() -> str:
    """A backward pass fails before it comes to the graph of what the script has given the model, or once it has gone
    through it: slices of the model's own weight, also of one that is used twice, and what another model has made."""
    wrong = []
    for kind in ("slices", "tied", "another"):
        found = []
        for failing in (False, True):
            torch.manual_seed(0)
            maker, table = nn.Linear(6, 6), nn.Embedding(20, 6)
            net, head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)), nn.Linear(6, 20)
            if kind == "tied":
                head.weight = table.weight
            every = [maker, table, net, head]
            optimizer = torch.optim.SGD({*itertools.chain(*(m.parameters() for m in every))}, lr=0.1)
            x, y = torch.arange(64) % 20, torch.arange(64) % 7
            for step in range(3):
                optimizer.zero_grad()
                given = table(x)
                if kind == "another":
                    given = maker(given.detach())
                    _torch._recorder._close()  # type: ignore[union-attr]  # as another model's step does
                with Whole("aten.tanh_backward.default", 64) if failing and step else nullcontext():
                    out = net(given)
                    F.cross_entropy(F.linear(out, head.weight[:7], head.bias[:7]), y).backward()
                optimizer.step()
            found.append([p.detach().clone() for m in every for p in m.parameters()])
        if not all(map(close, *found)):
            wrong.append(f"{kind}: {found}")
        elif "twice" in told():
            wrong.append(f"{kind}: {told()}")
    return ", ".join(wrong)


class Scripted(nn.Module):
    """A model that TorchScript can compile."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.calls = nn.Linear(6, 8), nn.Linear(8, 5), 0
        self.seen = torch.jit.Attribute([torch.zeros(1)], list[torch.Tensor])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


class Keeping(Scripted):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x[0])
        return self.last(torch.tanh(self.first(x)))


class Tallying(Scripted):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.last(torch.tanh(self.first(x)))


def torchscript() -> str:
    """Models that are compiled by TorchScript, or traced, or have such parts, are run in pieces like others, unless
    their calls change something that only TorchScript sees."""
    made: dict[str, Callable[[], nn.Module]] = {
        "scripted": lambda: torch.jit.script(Scripted()),
        "traced": lambda: torch.jit.trace(Scripted(), torch.randn(9, 6)),
        "a part": lambda: nn.Sequential(torch.jit.script(Scripted()), nn.Linear(5, 5)),
        "a list": lambda: torch.jit.script(Keeping()),
        "a number": lambda: torch.jit.script(Tallying()),
    }
    wrong = []
    for name, make in made.items():
        torch.manual_seed(0)
        net, x, y = make(), torch.randn(64, 6), torch.arange(64) % 5
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        found, survived = [], True
        for step in range(3):
            optimizer.zero_grad()
            try:
                with Whole("aten._log_softmax.default", 64) if step else nullcontext():
                    F.cross_entropy(net(x), y).backward()
            except torch.OutOfMemoryError:
                survived = False
                break
            optimizer.step()
            found.append([p.grad.clone() for p in net.parameters()])
        if {survived, not scripted(net)} != {name not in ("a list", "a number")}:
            wrong.append(f"{name}: {_torch._recorder.report.told}")  # type: ignore[union-attr]
        if not all(close(a, b) for grads in found for a, b in zip(found[0], grads)):
            wrong.append(f"{name}: {found}")
    return ", ".join(wrong)


def attributes_that_hooks_compute() -> str:
    """A model that needs its whole batch, with weights that a hook of PyTorch's sets before each call, is called again
    if its backward pass fails: no call reads what the one before has set."""
    wrong = []
    norms = (nn.utils.weight_norm, nn.utils.spectral_norm, lambda m: prune.l1_unstructured(m, "weight", 0.3))
    for norm in norms:
        found = []
        for failing in (False, True):
            torch.manual_seed(0)
            layer = norm(nn.Linear(8, 8))  # type: ignore[operator]
            net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), layer, nn.Linear(8, 5))
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            x, y = torch.randn(64, 6), torch.arange(64) % 5
            for step in range(4):
                with Once("aten.tanh_backward.default", 64) if failing and step > 1 else nullcontext():
                    F.cross_entropy(net(x), y).backward()
                optimizer.step()
                optimizer.zero_grad()
            found.append([t.detach().clone() for t in (*net.state_dict().values(), layer.weight)])
        if not all(map(close, *found)):
            wrong.append(f"{norm}: {found}")
    return ", ".join(wrong)


def a_module_that_cannot_be_looked_at() -> str:
    """An error of the worker's while it looks for modules is none of the script's: the call is made as it is."""

    def fails(*_: Any) -> None:
        raise ValueError("of the worker's")

    net = nn.Linear(6, 5)
    torch.optim.SGD(net.parameters(), lr=0.1)
    with changed(_torch.Finder, "found", fails):
        out = net(torch.randn(8, 6))
    return "" if type(out) is torch.Tensor and out.shape == (8, 5) else f"{type(out)}"


class Choosy:
    """The methods of a container of the script's own, which note that they are used."""

    used: ClassVar[list[str]] = []


def choosy(base: type) -> type:
    """A subclass of a built-in container whose own methods note that they are used."""

    def noting(name: str) -> Callable:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            Choosy.used.append(f"{base.__name__}.{name}")
            return getattr(base, name)(self, *args, **kwargs)

        return method

    names = (
        "__iter__", "__len__", "__getitem__", "__setitem__", "__contains__", "__eq__", "__bool__", "__reversed__", "__copy__",
        "items", "values", "keys", "get", "update", "clear", "extend", "add", "discard", "append", "copy", "count", "index",
    )  # fmt: skip
    own: dict[str, Any] = {n: noting(n) for n in names if hasattr(base, n)}
    return type(f"Choosy{base.__name__}", (base,), {**own, "__hash__": lambda self: id(self), "__module__": __name__})


CHOOSY = {base: choosy(base) for base in (list, dict, OrderedDict, tuple, deque, set)}


def containers() -> list:
    """One of each kind, each with a number inside."""
    return [CHOOSY[b]({"a": 1} if issubclass(b, dict) else [1]) for b in CHOOSY]


AROUND = containers()


class Choosing(nn.Module):
    """A model with such containers everywhere, and an ``__eq__`` of its own."""

    shared = containers()

    def __init__(self) -> None:
        super().__init__()
        self.net, self.own, self.inside, self.none = nn.Linear(6, 5), *containers()[:2], None
        self.rest, self.object = [containers(), {"b": containers()}], SimpleNamespace(held=containers())

    def __eq__(self, other: object) -> bool:
        Choosy.used.append("module.__eq__")
        return False

    def __len__(self) -> int:
        Choosy.used.append("module.__len__")
        return 0

    __hash__ = None  # type: ignore[assignment]

    def modules(self) -> Any:
        Choosy.used.append("modules")
        raise RuntimeError("the script's own")

    parameters = buffers = children = named_modules = modules  # type: ignore[assignment]

    def forward(self, x: torch.Tensor, *given: Any, **named: Any) -> Any:
        return self.net(x).tanh()

    def unused(self) -> None:
        self.shared, self.none = AROUND, AROUND  # type: ignore[assignment]


def containers_of_the_script_are_not_used() -> str:
    """Containers whose classes have methods of their own, which may load, draw or count, are read by those of Python's
    own; modules by their dicts, in a step that goes well and in one that fails."""
    wrong = []
    for fails in ("", "aten.tanh.default", "aten.tanh_backward.default"):
        net, x, given = Choosing(), torch.randn(8, 6), containers()
        optimizer = torch.optim.SGD(net.net.parameters(), lr=0.1)
        Choosy.used.clear()
        for step in range(4):
            with Failing(fails, 1) if fails and step == 2 else nullcontext():
                out = net(x, *given, named=given)
                out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            net.training = False
            net(x, given)
        if Choosy.used:
            wrong.append(f"{fails}: {Counter(Choosy.used)}")
        if fails and not told():
            wrong.append(f"{fails}: nothing survived")
    return ", ".join(wrong)


class Totals:
    """An object of the script's that a model is given."""

    def __init__(self) -> None:
        self.total, self.seen = 0.0, []  # type: ignore[var-annotated]

    def update(self, z: torch.Tensor) -> None:
        self.total += float(z.detach().mean())
        self.seen.append(len(z))


def halving(calls: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    def half(z: torch.Tensor) -> torch.Tensor:
        calls.append(len(z))
        return z / 2

    return half


def drops(given: random.Random, z: torch.Tensor) -> torch.Tensor:
    return z * (given.random() > 0.5)


def counted(tensor: torch.Tensor) -> None:
    """Counts the calls in an attribute of a tensor."""
    tensor.calls = tally(tensor) + 1  # type: ignore[attr-defined]


def tally(tensor: torch.Tensor) -> int:
    return getattr(tensor, "calls", 0)


# By name: what a model is given, and what its forward does with it. The last item says what is left of it.
ARGUMENTS: dict[str, tuple[Callable[[], Any], Callable[[Any, torch.Tensor], Any], Callable[[Any], Any]]] = {
    "a list of losses": (list, lambda g, z: g.append(z.pow(2).mean()), lambda g: [t.item() for t in g]),
    "a list of numbers": (list, lambda g, z: g.append(len(z)), list),
    "a dict": (dict, lambda g, z: g.update(z=float(z.detach().mean())), dict),
    "a dict in a list in a dict": (
        lambda: {"out": [{}]},
        lambda g, z: g["out"][0].update(n=g["out"][0].get("n", 0) + 1),
        str,
    ),
    "a deque": (lambda: deque(maxlen=2), lambda g, z: g.append(len(z)), list),
    "a set": (set, lambda g, z: g.add(len(g)), sorted),
    "an object": (Totals, lambda g, z: g.update(z), lambda g: (g.total, g.seen)),
    "a method": (lambda: Totals().update, lambda g, z: g(z), lambda g: (g.__self__.total, g.__self__.seen)),
    "a function": (lambda: halving([]), lambda g, z: g(z), lambda g: g.__closure__[0].cell_contents),
    "an array": (lambda: np.zeros(2), lambda g, z: g.__iadd__(1), list),
    "arrays in a dict": (lambda: {"n": np.zeros(2)}, lambda g, z: g["n"].__iadd__(1), str),
    "an iterator": (lambda: iter(range(100)), lambda g, z: next(g), lambda g: next(g)),
    "a generator of random numbers": (lambda: random.Random(1), drops, lambda g: g.random()),
    "a tensor": (lambda: torch.ones(2), lambda g, z: counted(g), tally),
    "a tensor in a list": (lambda: [(1, torch.ones(2))], lambda g, z: counted(g[0][1]), lambda g: tally(g[0][1])),
    "nothing that changes": (lambda: [1, {"a": 2}], lambda g, z: g[1]["a"], str),
}


class Changing(nn.Module):
    def __init__(self, does: Callable) -> None:
        super().__init__()
        self.first, self.last, self.does = nn.Linear(6, 16), nn.Linear(16, 1), does

    def forward(self, x: torch.Tensor, given: Any, *, named: Any = None) -> torch.Tensor:
        z = self.first(x)
        self.does(given if named is None else named, z)
        return self.last(z.tanh())


def what_a_call_changes_in_its_arguments() -> str:
    """It is as without the failure, in training and in evaluation, or the failure is the script's."""
    wrong = []
    places = (("aten.tanh.default", 0), ("aten.tanh.default", 2), ("aten.tanh_backward.default", 2), ("eval", 2))
    for (name, (make, does, left)), (at, first), named in itertools.product(ARGUMENTS.items(), places, (False, True)):
        found, raised = [], False
        for fails in (False, True):
            torch.manual_seed(0)
            net, given, losses = Changing(does), make(), []
            if at == "eval":
                net.eval().requires_grad_(False)
            other = nn.Linear(2, 2)
            optimizer = torch.optim.SGD((other if at == "eval" else net).parameters(), lr=0.1)
            for step in range(4):
                x, op = torch.randn(8, 6), "aten.tanh.default" if at == "eval" else at
                with Failing(op, 1) if fails and step == first else nullcontext():
                    try:
                        if at == "eval":
                            with torch.no_grad():
                                loss = net(x, 0, named=given) if named else net(x, given)
                                loss = loss.mean()
                        else:
                            optimizer.zero_grad()
                            loss = (net(x, 0, named=given) if named else net(x, given)).square().mean()
                            if name == "a list of losses":
                                loss = loss + given[-1]
                            loss.backward()
                    except torch.OutOfMemoryError:
                        raised = True
                        break
                optimizer.step()
                losses.append(loss.detach())
            found.append((losses, left(given)))
        if not raised and (found[0][1] != found[1][1] or not all(map(close, found[0][0], found[1][0]))):
            wrong.append(f"{name}, {at}, {first}, {named}: {found}")
        if name == "an iterator" and at == "eval":  # what it has given cannot be put back
            continue
        if raised and (at == "eval" or at == "aten.tanh.default" and first or name == "nothing that changes"):
            wrong.append(f"{name}, {at}, {first}, {named}: left to the script")
    return "\n".join(wrong)


def what_a_later_call_changes_in_its_arguments() -> str:
    """As above, for a call that is given results without values beside it."""
    wrong = []
    for name, (make, does, left) in ARGUMENTS.items():
        for together in (False, True):
            found, raised = [], False
            for fails in (False, True):
                torch.manual_seed(0)
                first, second = (
                    nn.Sequential(nn.Linear(6, 6), nn.GELU()),
                    Changing(lambda g, z, does=does: does(g[-1], z)),
                )
                optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
                given, x = make(), torch.randn(8, 6)
                try:
                    with Failing("aten.gelu.default", 1) if fails else nullcontext():
                        h = first(x)
                    out = second(h, [h, given] if together else [given])
                    out.square().mean().backward()
                except torch.OutOfMemoryError:
                    raised = True
                optimizer.step()
                found.append(left(given))
            if not raised and found[0] != found[1]:
                wrong.append(f"{name}, {together}: {found}")
    return "\n".join(wrong)


def stored(net: Any, gradient: torch.Tensor) -> None:
    net.sums[0] = gradient.norm()


KEEPS = "registers a hook on a tensor, which may keep something"
# By name: what forward does with a tensor inside, and why a failed step does not go on in pieces.
INSIDE: dict[str, tuple[Callable[[Any, torch.Tensor], Any], str]] = {
    "a hook that clamps": (lambda net, z: z.register_hook(lambda g: g.clamp(-1e-3, 1e-3)), ""),
    "a hook that reads": (lambda net, z: z.register_hook(lambda g: g * net.factor), ""),
    "a hook that appends": (lambda net, z: z.register_hook(lambda g: net.seen.append(len(g))), KEEPS),
    "a hook that adds to a set": (lambda net, z: z.register_hook(adding(net.known)), KEEPS),
    "a method of a list": (lambda net, z: z.register_hook(net.seen.append), KEEPS),
    "a method that sets an attribute": (lambda net, z: z.register_hook(net.keep), KEEPS),
    "a hook that writes": (lambda net, z: z.register_hook(lambda g: net.sums.add_(g.sum()) and None), KEEPS),
    "a hook that writes at an index": (lambda net, z: z.register_hook(functools.partial(stored, net)), KEEPS),
    "a hook on a parameter": (
        lambda net, z: net.last.weight.register_hook(lambda g: g.clamp(-1e-3, 1e-3)),
        "registers a hook on a parameter",
    ),
    "a gradient that is retained": (lambda net, z: net.take(z), "retains the gradient of a tensor that is no leaf"),
    "an attribute of a result": (lambda net, z: counted(net.out), "sets an attribute of a tensor that it returns"),
    "an attribute of a parameter": (lambda net, z: counted(net.last.weight), "changes weight.calls"),
}


def adding(known: set) -> Callable:
    return lambda g: known.add(g)


class Inside(nn.Module):
    def __init__(self, does: Callable) -> None:
        super().__init__()
        self.first, self.last, self.does, self.factor = nn.Linear(6, 16), nn.Linear(16, 1), does, 0.5
        self.act = nn.Tanh()
        self.seen, self.known = [], set()  # type: ignore[var-annotated]
        self.gradient, self.z, self.out, self.sums = None, None, None, torch.zeros(1)

    def keep(self, gradient: torch.Tensor) -> None:
        self.gradient = gradient.clone()

    def take(self, z: torch.Tensor) -> None:
        z.retain_grad()
        self.z = z

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.act(self.first(x))
        out = self.last(z)
        self.out = out if self.does is INSIDE["an attribute of a result"][0] else None
        self.does(self, z)
        self.out = None
        return out


def what_a_call_does_to_its_tensors() -> str:
    """Hooks on tensors inside a call, and attributes of its tensors, are as without the failure, or the failure is the
    script's."""
    wrong, register = [], torch.Tensor.register_hook
    places = (("aten.tanh.default", 0), ("aten.tanh.default", 2), ("aten.tanh_backward.default", 2))
    for (name, (does, why)), (at, first) in itertools.product(INSIDE.items(), places):
        found, raised = [], False
        for fails in (False, True):
            torch.manual_seed(0)
            net, numbers = Inside(does), []
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(4):
                x = torch.randn(8, 6)
                with Whole(at, 8) if fails and step == first else nullcontext():
                    try:
                        optimizer.zero_grad()
                        out = net(x)
                        loss = out.square().mean() * 100
                        loss.backward()
                    except torch.OutOfMemoryError:
                        raised = True
                        break
                optimizer.step()
                kept = net.gradient if net.z is None else net.z.grad
                numbers += [loss.detach(), net.sums.clone(), *([] if kept is None else [kept])]
                seen = [float(n.sum()) if isinstance(n, torch.Tensor) else n for n in net.seen]
                numbers += [torch.tensor([*seen, len(net.known), tally(out), tally(net.last.weight)])]
            found.append(numbers)
        if not raised and not (len(found[0]) == len(found[1]) and all(map(close, *found))):
            wrong.append(f"{name}, {at}, {first}: {found}")
        if torch.Tensor.register_hook is not register:
            return f"{name}, {at}, {first}: the worker's own function is left in torch.Tensor"
        said = _torch._recorder.report.told[-1]["why"] if raised else ""  # type: ignore[union-attr]
        later = name == "an attribute of a result" and first  # the modules inside are recorded instead
        if raised and (later or not why or why not in said and hooked.RAN not in said):
            wrong.append(f"{name}, {at}, {first}: {said}")
    return "\n".join(wrong)


def raised(z: torch.Tensor) -> torch.Tensor:
    if z.isnan().any():
        raise ValueError("not a number")
    return z


DEPENDS = "decides by the contents of its batch what it does, and does something else for few rows of it"
# By name: how forward decides by the contents of its batch, of which one row has large numbers and one has none, and
# why a step that fails does not go on in pieces.
DECIDING: dict[str, tuple[Callable[[Any, torch.Tensor, torch.Tensor], torch.Tensor], str]] = {
    "a term for some rows": (lambda net, x, z: z + z.square().mean() if (x > 5).any() else z, DEPENDS),
    "a term unless": (lambda net, x, z: z if not (x > 5).any() else z + 1, DEPENDS),
    "all rows": (lambda net, x, z: z if (x < 5).all() else z * 2, DEPENDS),
    "the largest": (lambda net, x, z: z / 3 if x.max() > 5 else z, DEPENDS),
    "the largest, as a number": (lambda net, x, z: z / 3 if x.max().item() > 5 else z, DEPENDS),
    "another key": (lambda net, x, z: {"z": z, "more": z * 2} if (x > 5).any() else {"z": z}, DEPENDS),  # type: ignore
    "equal": (lambda net, x, z: z if torch.equal(x, x.clamp(max=5)) else z * 2, DEPENDS),
    "the same either way": (lambda net, x, z: z * (x[:, :1] < 5) if (x > 5).any() else z * 1, ""),
    "nothing that is there": (lambda net, x, z: z * 2 if (x > 7).any() else z, ""),
    "an assertion": (lambda net, x, z: raised(z), ""),
    "a logged number": (lambda net, x, z: net.log(z), ""),
    "of a parameter": (lambda net, x, z: z * 2 if net.last.weight.abs().max() > 0 else z, ""),
    "of a flag of its own": (lambda net, x, z: z * 2 if net.flag else z, ""),
}


class Deciding(nn.Module):
    def __init__(self, decides: Callable, second: bool) -> None:
        super().__init__()
        self.before = nn.Linear(6, 6) if second else None
        self.first, self.last, self.decides = nn.Linear(6, 16), nn.Linear(16, 1), decides
        self.logged = 0.0
        self.register_buffer("flag", torch.tensor(True))

    def log(self, z: torch.Tensor) -> torch.Tensor:
        self.logged = float(z.detach().mean())
        return z

    def forward(self, x: torch.Tensor) -> Any:
        return self.decides(self, x, self.last(F.gelu(self.first(x))))


def what_a_call_decides() -> str:
    """A module that decides by the contents of its batch is run in pieces only where that makes no difference."""
    wrong = []
    forward, backward = "aten.gelu.default", "aten.gelu_backward.default"
    places = ((forward, Whole, True), (forward, Twofold, True), (backward, Whole, True), (forward, Whole, False))
    for (name, (decides, why)), (at, fault, trained) in itertools.product(DECIDING.items(), places):
        found, raised = [], ""
        for fails in (False, True):
            torch.manual_seed(0)
            net, losses = Deciding(decides, False), []
            other = nn.Linear(2, 2)
            optimizer = torch.optim.SGD((net if trained else other).parameters(), lr=0.01)
            for step in range(4):
                x = torch.randn(40, 6)
                x[20] = 6.0
                with fault(at, 40) if fails and step == 1 else nullcontext():
                    try:
                        with nullcontext() if trained else torch.no_grad():
                            out = net(x)
                        loss = sum(t.square().mean() for t in (out.values() if isinstance(out, dict) else [out]))
                        if trained:
                            optimizer.zero_grad()
                            loss.backward()  # type: ignore[union-attr]
                    except torch.OutOfMemoryError:
                        raised = _torch._recorder.report.told[-1]["why"]  # type: ignore[union-attr]
                        break
                optimizer.step()
                losses += [loss.detach(), torch.tensor(net.logged)]  # type: ignore[union-attr]
            found.append(losses)
        if not raised and not all(map(close, *found)):
            wrong.append(f"{name}, {at}, {fault.__name__}, {trained}: {found}")
        unknown = at == forward and fault is Whole  # there is no memory for the whole batch
        may = why or unknown and name in ("nothing that is there", "a logged number")
        if raised and (not may or why not in raised and not unknown):
            wrong.append(f"{name}, {at}, {fault.__name__}, {trained}: {raised}")
    return "\n".join(wrong)


def attributes_that_the_script_sets() -> str:
    """What the script has set since the newest call is not what a failed call has changed; what the call itself has
    changed is."""
    wrong = []
    for name, change in BETWEEN.items():
        found = []
        for fails in (False, True):
            torch.manual_seed(0)
            net, printed = Scheduled(), []
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for step in range(5):
                change(net, step)
                optimizer.zero_grad()
                try:
                    with Whole("aten.tanh.default", 8) if fails and step > 2 else nullcontext():
                        loss = net(torch.randn(8, 6)).square().mean()
                        loss.backward()
                        printed.append(loss.detach())
                except torch.OutOfMemoryError:
                    pass
                optimizer.step()
            found.append(printed)
        survived = all(map(close, *found)) and len(found[1]) == 5
        if survived == (name == "by the call itself"):
            wrong.append(f"{name}: {found}")
    return "; ".join(wrong)


def what_is_followed() -> str:
    """A snapshot that follows sees only what has changed since."""
    net = Scheduled()
    snapshot, wrong = Snapshot(net.modules()), []
    for name, change in [*BETWEEN.items()][:-1]:
        for step in (1, 2):
            change(net, step)
            if step == 2 and not [*snapshot.changed()]:
                wrong.append(f"{name}: not seen")
            snapshot.follow()
            if changes := [*snapshot.changed()]:
                wrong.append(f"{name}: {changes}")
    return "; ".join(wrong)


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: Any) -> torch.Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * -ctx.factor, None


class _Given:
    shared = 1.0

    def __init__(self) -> None:
        self.factor = 1.0

    def get(self) -> float:
        return self.factor

    def get_shared(self) -> float:
        return self.shared


FACTOR, FACTORED, GIVEN = 1.0, {"factor": 1.0}, _Given()


def _factor_of_all() -> float:
    return FACTOR


class Factored(nn.Module):
    """Multiplies the gradient that comes back by a factor, which is no part of its values."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 2)
        self.kind, self.mode, self.calls, self.factor = kind, nn.Identity(), 0, 1.0
        self.config, self.steps, self.tensor, self.last = {"factor": 1.0}, [1.0], torch.tensor(1.0), torch.zeros(())

    def set(self, value: float) -> None:
        self.factor, self.config["factor"], self.steps[0] = value, value, value
        self.tensor = torch.tensor(value)
        self.mode.train(value == 1)
        globals()["FACTOR"] = FACTORED["factor"] = GIVEN.factor = value
        if value == 1:
            vars(GIVEN).pop("shared", None)
        else:
            GIVEN.shared = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z, k = self.body(x), self.factor
        if self.kind == "of a module that changes others":
            self.calls += 1
        elif self.kind == "beside a tensor that changes":
            self.last = z.detach().sum()
        elif self.kind == "in a dict":
            k = self.config["factor"]
        elif self.kind == "in a list":
            k = self.steps[0]
        elif self.kind == "in a dict elsewhere":
            k = FACTORED["factor"]
        elif self.kind == "in an object elsewhere":
            k = GIVEN.get()
        elif self.kind == "of an object's class":
            k = GIVEN.get_shared()
        elif self.kind == "a global":
            k = _factor_of_all()
        elif self.kind == "a tensor":
            k = self.tensor
        elif self.kind == "a mode":
            k = 1.0 if self.mode.training else 0.25
        z = z * k + (z * (1 - k)).detach() if self.kind == "detached" else _Reversed.apply(z, k)
        return self.head(z)


# Where the factor is: what the script does, and where the steps fail.
FACTORS = {
    "in a function": (("two calls", "one call", "evaluates"), ("first", "second", "backward")),
    "detached": (("two calls", "one call"), ("first", "second", "backward")),
    "in a dict": (("two calls",), ("first", "backward")),
    "in a list": (("two calls",), ("first", "backward")),
    "a tensor": (("two calls",), ("first", "backward")),
    "in a dict elsewhere": (("two calls",), ("first", "backward")),
    "in an object elsewhere": (("two calls",), ("first", "second", "backward")),
    "of an object's class": (("two calls", "one call"), ("first", "second", "backward")),
    "a global": (("two calls", "one call"), ("first", "second", "backward")),
    "a mode": (("two calls", "evaluates"), ("first", "second", "backward")),
    # The failed call would have to be made whole.
    "of a module that changes others": (("two calls", "one call"), ("backward",)),
    "beside a tensor that changes": (("two calls", "one call"), ("backward",)),
}


def _factored(kind: str, way: str, at: str) -> list[torch.Tensor]:
    """The gradients of some steps in which the script changes the factor; the last one fails at the given place."""
    torch.manual_seed(0)
    net, found = Factored(kind), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        torch.manual_seed(step)
        x, y = torch.randn(8, 6), torch.randn(8, 6)
        fails = at if step > 1 else ""
        optimizer.zero_grad()
        net.set(0.5 * step - 0.25)
        with Whole("aten.tanh.default", 8) if fails == "first" else nullcontext():
            loss = net(x).square().mean()
            net.set(1.0)
            with Whole("aten.tanh.default", 8) if fails == "second" else nullcontext():
                if way == "two calls":
                    loss = loss + net(y).abs().mean()
                if way == "evaluates":
                    net.eval()
                with Whole("aten.tanh_backward.default", 8) if fails == "backward" else nullcontext():
                    loss.backward()
        net.train()
        if net.factor != 1.0 or net.config != {"factor": 1.0} or net.steps != [1.0] or not net.mode.training:
            return [torch.tensor(float(step))]
        if {FACTOR, FACTORED["factor"], GIVEN.factor} != {1.0} or "shared" in vars(GIVEN):
            return [torch.tensor(float(step))]
        found += [p.grad.clone() for p in net.parameters()]  # type: ignore[union-attr]
        optimizer.step()
    return found


def gradients_by_attributes() -> str:
    """A replay of a call runs with the attributes that the call found, though the script has set others since, and
    leaves those that the script has set."""
    wrong = []
    for kind, (ways, places) in FACTORS.items():
        for way in ways:
            usual = _factored(kind, way, "")
            for at in places:
                if at == "second" and way != "two calls":
                    continue
                try:
                    survived = _factored(kind, way, at)
                except torch.OutOfMemoryError:
                    survived = []
                if len(survived) != len(usual) or not all(map(close, usual, survived)):
                    wrong.append(f"{kind}, {way}, in {at}{'' if survived else ': refused'}")
    return "; ".join(wrong)


def a_norm_in_another_mode() -> str:
    """A layer with running statistics whose mode the script has changed since its call is not replayed."""
    for changes in (False, True):
        net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))
        net[1].eval()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.randn(8, 6)).sum().backward()
        optimizer.step()
        refused = False
        try:
            loss = net(torch.randn(8, 6)).square().mean()
            net.train(changes)
            with Whole("aten.tanh_backward.default", 8):
                loss.backward()
        except torch.OutOfMemoryError:
            refused = True
        if refused is not changes:
            return f"changes: {changes}, refused: {refused}"
    return ""


def what_shows_a_write() -> str:
    """Which tensors have a checksum beside their version, and of which elements."""
    array = np.zeros((100, 300), np.float32)
    both = torch.from_numpy(array)
    with torch.inference_mode():
        inference = torch.ones(3)
    inside: list[tuple[int, int]] = []
    torch.func.vmap(lambda row: inside.append(contents(row)) or row)(both)
    loaded = torch.empty(0).set_(torch.UntypedStorage._new_shared(16))  # as a loader's worker process hands it over
    plain = [torch.ones(3), loaded, both[:, :0], both[:2].to_sparse(), nn.Parameter(both)]
    for i, found in enumerate([*map(contents, plain), contents(inference), *inside]):
        if found[1] or (found[0] == -1) != (i == len(plain)):
            return f"{i}: {found}"
    # A view of each size, and an element of its first part, of its last one, and before and behind it.
    for rows, columns in ((slice(10, 90), slice(None)), (slice(10, 20), slice(5, 90, 2)), (slice(10, 11), slice(7, 8))):
        view = both[rows, columns]
        inner, last = (rows.start, columns.start or 0), (rows.stop - 1, range(300)[columns][-1])
        outside = (rows.start - 1, 299), (rows.stop, 0)
        for place, seen in ((inner, True), (last, True), (outside[0], False), (outside[1], False)):
            before = contents(view)
            array[place] += 1
            if (contents(view) != before) != seen:
                return f"{tuple(view.shape)}, {place}: {seen} expected"
    view = both.clone().fill_(1)
    before = contents(view)
    if contents(view.add_(1)) == before:
        return "a write that PyTorch counts is not seen"
    # The values have been computed anew since: the array has their memory no more.
    anew = SimpleNamespace(_values={1: torch.ones(2)}, _shared={1: 5, 2: 6})
    return "refused" if deferred.Deferred.written_through_arrays(anew) else ""  # type: ignore[arg-type]


def what_a_failed_call_leaves() -> str:
    """If the script gets a failure after all, everything is as the failed call has left it: the script may go on with
    its next batch."""
    kinds = ("attribute", "list", "buffer", "argument", "random state")

    class Failing(nn.Module):
        def __init__(self, changes: Sequence[str]) -> None:
            super().__init__()
            self.inner, self.calls, self.seen = nn.Linear(4, 3), 0, [0]
            self.register_buffer("count", torch.zeros(()))
            self.changes = changes

        def forward(self, x: torch.Tensor, log: list) -> torch.Tensor:
            fails = self.calls == 2 if "attribute" in self.changes else bool((x == 9).any())
            if "attribute" in self.changes:
                self.calls += 1
            if "list" in self.changes:
                self.seen.append(len(x))
            if "buffer" in self.changes:
                self.count += 1
            if "argument" in self.changes:
                log.append(len(x))
            if "random state" in self.changes:
                x = x + torch.rand(4)
            if fails:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return self.inner(x)

    def left(changes: Sequence[str], trains: bool, recorded: bool) -> list:
        torch.manual_seed(1)
        net, log, found = Failing(changes), list[int](), list[Any]()
        call = net if recorded else net.forward  # which is no call of a module
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for i in range(5):
            # Once a call has changed its arguments, the modules inside it are recorded.
            x = torch.full((6, 4), 9.0) if i == (0 if changes == ("argument",) else 2) else torch.randn(6, 4)
            try:
                with torch.set_grad_enabled(trains):
                    loss = call(x, log).square().mean()
                if trains:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                found.append(loss.item())
            except torch.OutOfMemoryError:
                found.append("left out")
        return [*found, net.calls, net.seen, float(net.count), log, float(torch.rand(1))]

    for changes, trains in itertools.product((kinds, *((kind,) for kind in kinds)), (True, False)):
        want, got = left(changes, trains, False), left(changes, trains, True)
        if got != want:
            return f"{changes}, {'training' if trains else 'evaluation'}: {got} in place of {want}"
    return ""


def copies_have_what_the_script_has_added() -> str:
    """Copies of a recorded tensor, and pickles, have its attributes, and nothing of ours."""
    net = nn.Linear(4, 3)
    torch.optim.SGD(net.parameters(), lr=0.1)
    out = net(torch.randn(5, 4))
    out.name_of_it = "features"  # type: ignore[attr-defined]
    kept = io.BytesIO()
    torch.save(out, kept)
    kept.seek(0)
    for other in (copy.copy(out), pickle.loads(pickle.dumps(out)), torch.load(kept, weights_only=False)):
        if type(other) is not torch.Tensor or vars(other) != {"name_of_it": "features"}:
            return f"{type(other)} with {vars(other)}"
    return "" if type(out) is not torch.Tensor else "nothing is recorded"


def weights_that_a_call_returns_are_no_rows() -> str:
    """An operation that returns weights beside what it has computed, as cuDNN's recurrent layers do, keeps nothing of
    the rows; one that keeps its result does."""
    rows, weight, gone = torch.randn(5, 4), torch.randn(12), torch.randn(5)
    kept = Kept()
    kept.given([rows], [])
    kept.after(torch.ops.aten.mm.default, (rows, [weight[:4]]), {}, (gone, weight.view(-1)))
    result, others = torch.randn(5), torch.randn(5, 4)
    del gone, rows
    if kept.stays():
        return "weights are taken for rows"
    kept.given([others], [])
    rows = others
    kept.after(torch.ops.aten.mm.default, (rows, [weight[:4]]), {}, (result, weight.view(-1)))
    return "" if kept.stays() else "a result that is kept is not seen"


def compiled_for_all_calls() -> str:
    """A compiled function is compiled once for recorded and other tensors, and can be compiled again."""
    graphs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(len(inputs))
        return graph.forward

    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loss_of = torch.compile(lambda a, b: (a * 2 - b).square().mean(), backend=backend, fullgraph=True)
    leaf = torch.randn(6, 3, requires_grad=True)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(net(torch.randn(6, 4)), torch.randn(6, 3)).backward()
        optimizer.step()
        loss_of(leaf, torch.randn(6, 3)).backward()
    if len(graphs) != 1:
        return f"compiled {len(graphs)} times"
    explained = torch._dynamo.explain(loss_of)(leaf, torch.randn(6, 3))
    return "" if explained.graph_count == 1 else f"{explained.graph_count} graphs"


def hooks_of_the_script_for_what_is_saved() -> str:
    """Pieces use the hooks that the script has set for what autograd saves: another number is differentiated."""
    found = []
    for fails in (False, True):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            x = torch.randn(8, 6)
            optimizer.zero_grad()
            with Whole("aten.tanh.default", 8) if fails else nullcontext():
                with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float() * 2):
                    loss = net(x).square().mean()
                loss.backward()
            optimizer.step()
        found.append([p.detach() for p in net.parameters()])
    return "" if all(map(close, *found)) else f"{found[1]} in place of {found[0]}"


def asked_for_without_gradients() -> str:
    """What makes results real without gradients, such as a bank that is updated, leaves them their graphs."""
    found = []
    for fails in (False, True):
        torch.manual_seed(0)
        net, bank = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), torch.zeros(3, 5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            x, of = torch.randn(8, 6), torch.randint(0, 3, (8,))
            optimizer.zero_grad()
            with Whole("aten.tanh.default", 8) if fails else nullcontext():
                out = net(x)
                loss = (out - bank[of]).square().sum(1).mean() + (out.norm(dim=1) - 1).square().mean()
                with torch.no_grad():
                    bank.index_add_(0, of, out, alpha=0.1)
                loss.backward()
            optimizer.step()
        found.append([bank, *(p.detach() for p in net.parameters())])
    return "" if all(map(close, *found)) else f"{found[1]} in place of {found[0]}"


class Rare(nn.Module):
    """Adds a term for rare rows, divided by how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out, rare = self.net(x), (x[:, 5] > 3).float()
        return F.cross_entropy(out, y) + (out.square().sum(1) * rare).sum() / rare.sum().clamp(min=1)


def a_term_of_rare_rows() -> str:
    """A loss that divides by how many of the rows are rare is not taken for a mean over the rows because there are none
    among the first ones."""
    net = Rare()
    torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(640, 6).clamp(-2, 2), torch.randint(0, 5, (640,))
    x[300:304, 5] = 5
    with suppress(torch.OutOfMemoryError), Whole("aten.addmm.default", 640):
        net(x, y).backward()
        return "not refused"
    told = _torch._recorder.report.told[-1]  # type: ignore[union-attr]
    return "" if "divides by a number that depends on the rows" in told["why"] else f"{told}"


@dataclass
class Setting:
    """Something that a model looks up, and a way to change it."""

    made: Callable[[], Any]
    on: Callable[[Any], bool]
    switch: Callable[[Any], Any]


class Switched(nn.Module):
    """Relates rows to each other if a setting says so."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.net, self.held, self.on = nn.Linear(6, 6), setting.made(), setting.on

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.net(x)
        held = self.held  # with the names that say what is looked up inside
        _ = lambda: (held.flag, held.epoch, held.inner)  # noqa: E731
        return h - h.mean(0) if self.on(held) else h


def settings_that_are_switched() -> str:
    """A model that begins to relate rows because of a setting, wherever that is kept, is tried anew in the same step,
    and not only when trials are due."""
    kinds = {
        "an object": Setting(lambda: SimpleNamespace(flag=False), lambda s: s.flag, lambda s: setattr(s, "flag", True)),
        "a number": Setting(lambda: SimpleNamespace(epoch=3), lambda s: s.epoch > 3, lambda s: setattr(s, "epoch", 4)),
        "an object in a list": Setting(
            lambda: [SimpleNamespace(flag="a")], lambda s: s[0].flag == "b", lambda s: setattr(s[0], "flag", "b")
        ),
        "a dict": Setting(lambda: {"x": False}, lambda s: s["x"], lambda s: s.update(x=True)),
        "an object inside": Setting(
            lambda: SimpleNamespace(inner=SimpleNamespace(flag=1)),
            lambda s: s.inner.flag == 2,
            lambda s: setattr(s.inner, "flag", 2),
        ),
        "a set": Setting(lambda: {1}, lambda s: 2 in s, lambda s: s.add(2)),
        "a function": Setting(lambda: [len], lambda s: s[0] is sum, lambda s: s.__setitem__(0, sum)),
        "an array": Setting(lambda: np.zeros(2), lambda s: s[1] > 0, lambda s: s.__setitem__(1, 1)),
        "a small tensor": Setting(lambda: torch.zeros(2), lambda s: float(s[1]) > 0, lambda s: s.fill_(1)),
    }
    wrong = []
    for name, setting in kinds.items():
        net = Switched(setting)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        with Whole("aten.addmm.default", 8), suppress(torch.OutOfMemoryError):
            for step in range(7):
                if step == 6:
                    setting.switch(net.held)
                optimizer.zero_grad()
                net(torch.randn(8, 6)).square().mean().backward()
                optimizer.step()
            wrong.append(name)
        if step < 6:
            wrong.append(f"{name}: refused in step {step}")
    return ", ".join(wrong)


class Padded(nn.Module):
    """Its loss leaves out one kind of targets, which may become another."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.loss = nn.Linear(6, 5), nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.loss(self.net(x), y)


def targets_that_a_model_leaves_out() -> str:
    """Which targets count for nothing in a loss inside a model is seen in trials, also if it is another number later,
    and if the rows of the trial have none of them."""
    net = Padded().double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    x, y = torch.randn(640, 6).double(), torch.randint(0, 3, (640,))
    y[300:310] = 4
    wrong = []
    for step in range(7):
        net.loss.ignore_index = 4 if step > 4 else -100
        weight = net.net.weight.detach().clone().requires_grad_()
        bias = net.net.bias.detach()
        F.cross_entropy(F.linear(x, weight, bias), y, ignore_index=net.loss.ignore_index).backward()
        optimizer.zero_grad()
        with Whole("aten.addmm.default", 640):
            net(x, y).backward()
        if not close(net.net.weight.grad, weight.grad):
            wrong.append(f"step {step}: {net.net.weight.grad} in place of {weight.grad}")
        optimizer.step()
    return "; ".join(wrong)


class CentredGradients(torch.autograd.Function):
    """Relates the rows' gradients to each other, and not the rows."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return g - g.mean(0)


ELSEWHERE = {"on": False}
UNSEEN = threading.local()  # no search for settings looks into this


class Stepwise(nn.Module):
    """Relates rows by a global dict, or by what nobody looks at, or their gradients by a number."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.mode = nn.Linear(6, 6), 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.net(x)
        if ELSEWHERE["on"] or getattr(UNSEEN, "on", False):
            return h - h.mean(0)
        return CentredGradients.apply(h) if self.mode == 2 else h


def switched_elsewhere() -> str:
    """What is switched in a global container, a number with which only gradients relate rows, and what shows in the graphs
    of pieces, are seen at once, also where the loss relates rows."""
    wrong = []
    for what in ("a global dict", "a number", "unseen", "unseen, two passes"):
        net = Stepwise()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        with Whole("aten.addmm.default", 8), suppress(torch.OutOfMemoryError):
            for step in range(7):
                ELSEWHERE["on"] = what == "a global dict" and step == 6
                net.mode = 2 if what == "a number" and step == 6 else 1
                UNSEEN.on = what.startswith("unseen") and step == 6
                optimizer.zero_grad()
                out = net(torch.randn(8, 6))
                (out @ out.T if what.endswith("passes") else out).square().mean().backward()
                optimizer.step()
            wrong.append(what)
        ELSEWHERE["on"] = UNSEEN.on = False
        if step < 6:
            wrong.append(f"{what}: refused in step {step}")
    return ", ".join(wrong)


class Outlier(nn.Module):
    """Does something else once a row is large: with all rows, or with that row."""

    def __init__(self, all_rows: bool) -> None:
        super().__init__()
        self.net, self.all_rows = nn.Linear(6, 6), all_rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.net(x)
        for _ in range(int(x.max().item()) - 8):
            h = h * 0.5 if self.all_rows else torch.where(x > 8, h * 0.5, h)
        return h


def decided_by_a_row() -> str:
    """A piece whose graph is another one, since one of its rows is, is tried by itself, on all of its rows. Where the
    rows do not matter to each other, that happens a few times only."""
    wrong, tried = [], []
    forget = proof.Proof.forget
    for all_rows in (True, False):
        for passes in (1, 2):
            net = Outlier(all_rows)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
            failed, forgot, last = 0, list[int](), 0
            with changed(proof.Proof, "forget", lambda forgot=forgot: (forgot.append(1), forget())):
                for step in range(22):
                    x = torch.randn(64, 6)
                    x[44, step % 6] = 9.5 + step % 7 if step > 8 and (all_rows or step % 2) else 0.0
                    optimizer.zero_grad()
                    try:
                        with Whole("aten.addmm.default", 64):
                            out = net(x)
                            (out.square() if passes == 1 else out @ out.T).mean().backward()
                    except torch.OutOfMemoryError:
                        failed, last = failed + 1, step
                        break
                    optimizer.step()
            tried.append(len(forgot))
            if (failed, last) != ((1, 9) if all_rows else (0, 0)):
                wrong.append(f"{all_rows}, {passes} passes: {failed} failures, the last in step {last}")
    if tried[2:] != [OFTEN, OFTEN]:
        wrong.append(f"tried anew {tried} times")
    return "; ".join(wrong)


def a_parameter_that_the_script_replaces() -> str:
    """A script puts another parameter into its model, and makes another optimizer: its steps are made in pieces as
    before, from the first of them on."""
    net, x, y = (
        nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)).double(),
        torch.randn(64, 6).double(),
        torch.arange(64) % 3,
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    wrong = []
    for step in range(4):
        if step == 2:
            net[0].weight = nn.Parameter(2 * net[0].weight.detach())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        own = [p.detach().clone().requires_grad_() for p in net.parameters()]
        F.cross_entropy(F.linear(F.linear(x, *own[:2]), *own[2:]), y).backward()
        optimizer.zero_grad()
        with Whole("aten._log_softmax.default" if step % 2 else "aten._log_softmax_backward_data.default", 64):
            F.cross_entropy(net(x), y).backward()
        if not close(net[0].weight.grad, own[0].grad):
            wrong.append(f"step {step}: {net[0].weight.grad} in place of {own[0].grad}")
        optimizer.step()
    return "; ".join(wrong)


class Gated(nn.Module):
    """Relates its rows if a number that it draws says so, or by a number of places that it draws. Or draws when each row
    is to be looked at, or how many numbers it divides by, which nothing else shares."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.net = kind, nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.net(x)
        if self.kind == "often" and torch.rand(1).item() < 0.7 or self.kind == "seldom" and torch.rand(1) < 0.1:
            return h - h.mean(0)
        if self.kind == "a normal number" and torch.randn(()) > 0.9:
            return h / (1 + h.std(0))
        if (
            self.kind == "a flag"
            and torch.empty(()).bernoulli_(0.3) > 0
            or self.kind == "no flag"
            and not h.new_tensor(0.3).bernoulli()
        ):
            return h - h.mean(0)
        if self.kind == "places":
            return h + h.roll(int(torch.randint(1, 8, (1,))), 0)
        if self.kind == "times":
            return h / torch.randint(1, 50, (len(x), 1))
        if self.kind == "a share":
            return h * torch.rand(len(x), 1)
        if self.kind == "a layer" and torch.rand(()) < 0.5:
            return h + h.tanh()
        return h


def what_numbers_that_are_drawn_decide() -> str:
    """Trials with other numbers show that rows relate to each other only if a number that is drawn says so. What draws
    numbers for each row, or whether to leave out a layer, is made in pieces."""
    wrong = []
    for kind in ("often", "seldom", "a normal number", "a flag", "no flag", "places", "times", "a share", "a layer"):
        for passes in (1, 2):
            net = Gated(kind)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            refused = 0
            for _ in range(3):
                optimizer.zero_grad()
                try:
                    with Whole("aten.addmm.default", 64):
                        out = net(torch.randn(64, 6))
                        (out.square() if passes == 1 else out @ out.T).mean().backward()
                except torch.OutOfMemoryError:
                    refused += 1
                optimizer.step()
            if refused != (0 if kind in ("times", "a share", "a layer") else 3):
                wrong.append(f"{kind}, {passes} passes: refused {refused} times")
    likely, drawn = torch.tensor([0.0, 1.0, 0.3]), []
    for level in (0.02, 0.5):
        with NoRandomness(level=level):
            made = torch.bernoulli(likely), torch.bernoulli(7 * likely, 0.3), torch.randint(3, 103, (2,))
            more = torch.randint(50, (1,)), likely.clone().uniform_(-1, 1), likely.clone().random_(2, 4), torch.rand(1)
            drawn.append([t.tolist() for t in (*made, *more)])
    near = [[round(n, 5) for t in ts for n in t] for ts in drawn]
    want = [
        [0, 1, 0, 0, 0, 0, 5, 5, 1, -0.96, -0.96, -0.96, 2, 2, 2, 0.02],
        [0, 1, 1, 1, 1, 1, 53, 53, 25, 0, 0, 0, 3, 3, 3, 0.5],
    ]
    return "; ".join(wrong) or ("" if near == want else f"{near}")


class PackedCells(nn.Module):
    """Packs its rows by their lengths, and takes what each ends with."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cells, self.out = nn.Embedding(30, 10), nn.LSTM(10, 9, batch_first=True), nn.Linear(9, 5)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.words(x), lengths, batch_first=True, enforce_sorted=False)
        return self.out(self.cells(packed)[1][0][-1])


def packed_rows() -> str:
    """A model that packs its rows is run in pieces."""
    net, wrong = PackedCells().double(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for step in range(4):
        torch.manual_seed(step)
        x, lengths, y = torch.randint(30, (64, 8)), torch.randint(2, 9, (64,)), torch.arange(64) % 5
        found = []
        for fault in (nullcontext(), Whole("aten.addmm.default", 64)):
            optimizer.zero_grad()
            with fault:
                F.cross_entropy(net(x, lengths), y).backward()
            found.append([p.grad for p in net.parameters()])
            optimizer.step()
        if not all(map(close, *found)):
            wrong.append(f"step {step}")
        if told() != "64 rows in 2 pieces":
            return told()
    return ", ".join(wrong)


class Sparse(nn.Module):
    """Mixes the columns of its rows by a sparse buffer, or is given sparse rows."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.weight = nn.Linear(6, 5), nn.Parameter(torch.randn(6, 6))
        self.register_buffer("mixed", torch.eye(6).roll(1, 0).to_sparse())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.layout == torch.sparse_coo:
            return self.net(torch.sparse.mm(x, self.weight))
        return self.net(torch.sparse.mm(self.mixed, x.T).T @ self.weight)


def sparse_rows() -> str:
    """Sparse buffers are no reason, and sparse rows are cut."""
    net, wrong = Sparse().double(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    x, y = torch.randn(64, 6).relu().double(), torch.arange(64) % 5
    for given in (x, x.to_sparse()):
        want = None
        for step in range(4):
            optimizer.zero_grad()
            with Whole("aten.addmm.default", 64) if step else nullcontext():
                F.cross_entropy(net(given), y).backward()
            optimizer.step()
            got = [p.grad for p in net.parameters()]
            want = want or got
            if not all(map(close, want, got)):
                wrong.append(f"{given.layout}, step {step}")
        if told() != "64 rows in 2 pieces":
            wrong.append(f"{given.layout}: {told()}")
    return "; ".join(wrong)


class Tallied(nn.Module):
    """Returns Python's numbers beside its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = self.net(x)
        return F.cross_entropy(out, y), (out.argmax(1) == y).sum().item(), {"rows": len(x), "share": out.mean().item()}


def numbers_of_every_evaluation() -> str:
    """Python's numbers stay numbers in each evaluation in pieces, also in those that need no trial."""
    net, y = Tallied(), torch.arange(64) % 5
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(64, 6), y)[0].backward()
    optimizer.step()
    net.eval()
    for i in range(8):
        x = torch.randn(64, 6)
        out = F.linear(x, net.net.weight.detach(), net.net.bias.detach())
        with Whole("aten.addmm.default", 64), torch.no_grad():
            _, count, others = net(x, y)
        if type(count) is not int or count != int((out.argmax(1) == y).sum()):
            return f"call {i}: {count!r}"
        if (
            others["rows"] != 64
            or type(others["share"]) is not float
            or abs(others["share"] - float(out.mean())) > 1e-6
        ):
            return f"call {i}: {others}"
    return "" if told() == "64 rows in 2 pieces" else told()


def what_is_not_there_is_not_used() -> str:
    """Whatever a script does with something that a call in pieces has not returned raises the failure, where it would
    give another value otherwise."""
    used: list[int] = []

    def failure() -> Any:
        used.append(1)
        raise torch.OutOfMemoryError

    it: Any = snapshot.Unavailable(failure)
    uses: list[Callable[[], Any]] = [
        lambda: it == 0.5, lambda: it != 0.5, lambda: it in (0.5,), lambda: {it: 1}, lambda: str(it), lambda: f"{it}",
        lambda: np.array([it]), lambda: copy.deepcopy(it), lambda: copy.copy(it), lambda: pickle.dumps(it), lambda: it.item,
        lambda: it + 1, lambda: bool(it), lambda: [*it],
    ]  # fmt: skip
    for use in uses:
        with suppress(torch.OutOfMemoryError):
            use()
    return "" if len(used) == len(uses) else f"{len(used)} of {len(uses)}"


class Noisy(nn.Module):
    """Draws in evaluation, and returns rows or a number; or appends to a list of its own."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.net, self.kind, self.seen = nn.Linear(6, 5), kind, []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.net(x)
        if self.kind == "appends":
            self.seen.append(len(x))
        return out.mean() + torch.randn_like(x).mean() if self.kind == "a number" else out + torch.randn_like(out)


def draws_in_evaluation() -> str:
    """Rows for which numbers are drawn are made in pieces where nothing else helps. A number that depends on such
    numbers is not added up, and what is refused for another reason is not made in pieces a second time."""
    said, made = [], evaluation._evaluated
    for kind in ("rows", "a number", "appends"):
        net, calls = Noisy(kind), list[int]()
        torch.optim.SGD(net.parameters(), lr=0.1)
        net.train()(torch.randn(64, 6))

        def counted(*args: Any, calls: Any = calls) -> Any:
            calls.append(1)
            return made(*args)

        with changed(evaluation, "_evaluated", counted), torch.no_grad(), Whole("aten.addmm.default", 64):
            try:
                net.eval()(torch.randn(64, 6))
                said.append((kind, len(calls)))
            except torch.OutOfMemoryError:
                said.append(("refused", len(calls)))
            if kind == "rows":  # what is allowed for these is not for a number, even if it is not compared
                net.kind = "a number"
                with changed(evaluation.Adding, "confirm", lambda *_: None), suppress(torch.OutOfMemoryError):
                    said.append(("a number", net(torch.randn(64, 6)).item()))
    return "" if said == [("rows", 2), ("refused", 1), ("refused", 1)] else f"{said}"


def computed_parameters_are_no_replacement() -> str:
    """Parameters that are computed for one call (``functional_call``) are not taken for the module's own."""
    net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(8, 6)).mean().backward()
    optimizer.step()
    calls = record_of(net).calls  # type: ignore[union-attr]
    faster = {name: 0.5 * p for name, p in net.named_parameters()}
    torch.func.functional_call(net, faster, (torch.randn(8, 6),)).mean().backward()
    record: Any = record_of(net)
    if record.calls == calls:
        return "the call was not recorded"
    return "" if [*map(id, record.params)] == [*map(id, net.parameters())] else "others are"


def a_rule_is_determined_once_more() -> str:
    """A rule that a piece refutes is determined once more, and the step is refused if the next piece refutes it, too."""
    net = nn.Linear(6, 5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    determined: list[int] = []
    proven = replay.proven

    def counted(*args: Any) -> Any:
        determined.append(1)
        return proven(*args)

    refuted = changed(replay, "_holding", lambda *_: lambda: False), changed(replay, "proven", counted)
    with refuted[0], refuted[1], suppress(torch.OutOfMemoryError), Whole("aten.addmm.default", 64):
        F.cross_entropy(net(torch.randn(64, 6)), torch.arange(64) % 5).backward()
    optimizer.step()
    return "" if len(determined) == 1 else f"determined {len(determined)} times"


class Tour(nn.Module):
    """Visits three of seven places, and draws again if it has been there; or draws until a number fits."""

    def __init__(self, fits: float = 1.0) -> None:
        super().__init__()
        self.net, self.fits = nn.Linear(2, 6), fits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, been, total = self.net(x), torch.zeros(x.shape[:2], dtype=torch.bool), torch.zeros(len(x))
        while torch.rand(1) > self.fits:
            pass
        for _ in range(3):
            likely = h.sum(2).masked_fill(been, -math.inf).log_softmax(1)
            place = likely.exp().multinomial(1)
            while been.gather(1, place).any():
                place = likely.exp().multinomial(1)
            been = been.scatter(1, place, True)
            total = total + likely.gather(1, place)[:, 0]
        return total


def drawn_until_it_fits() -> str:
    """A call that rules out what it has drawn ends in a trial, where it draws what is most likely; one that draws until a
    number fits is refused there."""
    said = []
    for net in (Tour(), Tour(0.5), Tour(0.4)):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            with suppress(torch.OutOfMemoryError), Whole("aten.addmm.default", 168):
                net(torch.rand(24, 7, 2)).mean().backward()
            optimizer.step()
        said.append(str(_torch._recorder.report.told[-1]))  # type: ignore[union-attr]
    with NoRandomness() as trial:
        several, again = torch.tensor([[1.0, 0, 2], [0, 3, 1]]), {"replacement": True}
        drawn = [several.multinomial(2).tolist(), torch.multinomial(several, 2, **again).tolist()]
    if drawn != [[[2, 0], [1, 2]], [[2, 2], [1, 1]]] or len(trial.draws) != 2:
        return f"{drawn}"
    want = ("24 rows in 2 pieces", "24 rows in 2 pieces", "draws random numbers until some fit")
    return "" if all(part in text for part, text in zip(want, said)) else f"{said}"


def class_weights_that_come_later() -> str:
    """A loss inside a model is another one from the step on in which it gets class weights."""
    net = Padded()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    x, y = torch.randn(8, 6), torch.tensor([0, 0, 0, 0, 1, 1, 2, 3])
    with Whole("aten.addmm.default", 8), suppress(torch.OutOfMemoryError):
        for step in range(7):
            if step == 6:
                net.loss.weight = torch.linspace(0.1, 3, 5)
            optimizer.zero_grad()
            net(x, y).backward()
            optimizer.step()
        return "its weights were not noticed"
    return "" if step == 6 else f"refused in step {step}"


def settings_that_change_by_themselves() -> str:
    """A counter costs a few trials, and then no more; a flag beside it is still seen."""
    known, keys = Settings(), []
    for step in range(20):
        keys.append(known.settled([step, step > 15, None]))
    first = [step for step, key in enumerate(keys) if key not in keys[:step]]
    growing = Settings()
    lengths = [len(growing.settled([0] * n)) for n in range(1, 12)]
    return "" if first == [0, 1, 2, 3, 4, 5, 16] and lengths[-3:] == [0, 0, 0] else f"{first}, {lengths}"


def a_failure_is_the_scripts_own_without_memory_to_report_it() -> str:
    """Where not even a report fits into the host's memory, the script gets the failure of its call all the same."""
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5))
    torch.optim.SGD(net.parameters(), lr=0.1)

    def no_memory(*_: Any, **__: Any) -> None:
        raise MemoryError

    report = _torch._recorder.report  # type: ignore[union-attr]
    report.refused = no_memory  # type: ignore[method-assign]
    try:
        with Whole("aten.native_batch_norm.default", 8):
            net(torch.randn(8, 6))
    except torch.OutOfMemoryError:
        return ""
    except MemoryError:
        return "Python's own error"
    finally:
        del report.refused
    return "nothing has failed"


def sizes_that_are_multiples_of_the_batchs() -> str:
    """Of the sizes that a view is given only the batch's is that of a piece, although others are its multiples, such as
    the number of channels in the Gram matrices of a style loss."""
    net = nn.Conv2d(3, 8, 3).double()
    torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(4, 3, 6, 6).double(), torch.randn(4, 8, 8).double()

    def gram(out: torch.Tensor) -> torch.Tensor:
        rows = out.view(4, 8, 16)
        return rows.bmm(rows.transpose(1, 2)) + out.reshape(4 * 8, 16).sum(1).unflatten(0, (4, 8, 1))

    found = []
    for whole in (nullcontext(), Whole("aten.convolution.default", 4)):
        net.zero_grad()
        with whole:
            F.mse_loss(gram(net(x)), y).backward()
        found.append(net.weight.grad)
    if not told().endswith(" pieces"):
        return told()
    return "" if close(*found) else f"{found[1]} in place of {found[0]}"


def a_batch_is_written_to_after_the_call() -> str:
    """A loop normalises its batch in place once the model has used it. The model's calls get a copy when they are made
    in pieces, also in its first step, until a step has shown that nothing is written to."""
    same = nn.Sequential(nn.Hardtanh(), nn.Linear(6, 6)).double()
    batch, found, known = torch.randn(64, 6).double(), list[Any](), list[Any]()
    for first, writes in (1, True), (0, True), (0, False):
        net = copy.deepcopy(same)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        for step in range(3):
            optimizer.zero_grad()
            x = batch * 1.0
            with Whole("aten.addmm.default", 64) if step >= first else nullcontext():
                F.mse_loss(net(x), x.div_(5) if writes else x / 5).backward()
            optimizer.step()
            found.append(net[1].weight.grad)
        known.append(record_of(net).rewritten)
    if known != [True, True, False]:
        return f"{known}"
    return "" if all(close(found[0], f) for f in found) else f"{found[1:]} in place of {found[0]}"


def a_batch_is_written_to_between_two_passes() -> str:
    """As :func:`a_batch_is_written_to_after_the_call`, where the model's call is made in pieces twice straight away."""
    net = nn.Sequential(nn.Hardtanh(), nn.Linear(6, 6)).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    batch, found = torch.randn(64, 6).double(), list[Any]()
    for step in range(3):
        optimizer.zero_grad()
        x = batch * 1.0
        with Whole("aten.addmm.default", 64) if step else nullcontext():
            F.mse_loss(net(x), x.div_(5)).backward()
        optimizer.step()
        record_of(net).apart = True  # type: ignore[union-attr]
        found.append(net[1].weight.grad)
    if "computed twice" not in told():
        return told()
    return "" if all(close(found[0], f) for f in found) else f"{found[1:]} in place of {found[0]}"


def whether_a_batch_was_written_to() -> str:
    """That is not known of an argument which is gone, and of which a copy was made. A part of a tensor is copied only
    if it is known to be written to."""
    found = []
    for change in (lambda x: None, lambda x: x.div_(5), lambda x: x.clear()):
        tape, given = Tape(), [torch.ones(3)]
        entry = Entry(F.relu, None, tape.encode((given[0],)), {})
        tape.keep(entry)
        change(given if len(found) == 2 else given[0])
        found.append(tape.rewritten(entry))
    net, whole = nn.Linear(6, 6), torch.randn(128, 6)
    torch.optim.SGD(net.parameters(), lr=0.1)
    for given, own in (whole[:64], True), (whole[:64].clone(), False):
        with Whole("aten.addmm.default", 64):
            tape = net(given)._headroom.tape  # type: ignore[attr-defined]
            if any(t is given for t in tape.outside) is not own:
                return f"{own}"
    part, copied = torch.ones(6)[:3], []
    for views in (False, True):
        tape = Tape()
        entry = Entry(F.relu, None, tape.encode((part,)), {})
        tape.keep(entry, views)
        copied.append(tape.outside[0] is not part)
    return "" if (found, copied) == ([False, True, None], [False, True]) else f"{found}, {copied}"


class Through(torch.autograd.Function):
    """What a DataParallel with one GPU does to its arguments: they are views with a graph."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def a_leaf_that_the_loss_uses_later() -> str:
    """The images of a GAN require gradients since its critic's penalty. Its generator is given a view of them, and its
    loss the images: that they are known by then does not make another graph of the generator's calls."""
    net, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).double(), torch.randn(8, 6).double()
    torch.optim.SGD(net.parameters(), lr=0.1)
    x.requires_grad_()
    found = []
    for calls in (0, 1, 2):
        net.zero_grad()
        with Whole("aten.tanh.default", 8) if calls == 2 else nullcontext():
            fake: Any = net(Through.apply(x))
        with Whole("aten.tanh.default", 8) if calls else nullcontext():
            (net(Through.apply(fake)) - x).abs().mean().backward()
        found.append(net[0].weight.grad)
    if told() != "8 rows in 2 pieces":
        return told()
    return "" if close(*found[:2]) and close(found[0], found[2]) else f"{found[1:]} in place of {found[0]}"


def nothing_is_cleaned_where_nothing_fails() -> str:
    """Once calls are made in pieces straight away, no garbage is collected for them: that takes longer than most
    steps."""
    net, teacher = (nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    collected, step = list[int](), 0
    collect, x = gc.collect, torch.randn(64, 6)
    with Whole("aten.addmm.default", 64), changed(gc, "collect", lambda *a: (collected.append(step), collect(*a))[1]):
        for step in range(4):  # noqa: B007
            with torch.no_grad():
                y = teacher(x)
            F.mse_loss(net(x), y).backward()
            optimizer.step()
    return "" if {*collected} == {0} else f"in steps {collected}"


class Benchmarked(Whole):
    """Notes for how many rows cuDNN would try out all its kernels."""

    def __init__(self, name: str, rows: int) -> None:
        super().__init__(name, rows)
        self.seen = set[tuple[int, bool]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == self.name:
            self.seen.add((len(args[1]), torch.backends.cudnn.benchmark))
        return super().__torch_dispatch__(func, types, args, kwargs)


def weights_of_parts() -> str:
    """The weight of a part is the sum of its rows' numbers, of those of all rows or of some."""
    rule = weights.Counts([1.0, 2.0, 3.0, 4.0])
    found = [
        *(weights.weight(rule, range(*ends)) for ends in ((0, 1), (1, 3), (3, 4), (0, 4))),
        weights.weight(rule, [1, 2]),
        weights.weight(rule, [1], [1, 2]),
        weights.weight(None, range(1, 3)),
    ]
    return "" if found == [0.1, 0.5, 0.4, 1.0, 0.5, 0.4, 1.0] else f"{found}"


def kernels_are_not_tried_out_for_a_trial() -> str:
    """A script lets cuDNN try out its kernels: that is left out in trials on a few rows, and not in pieces."""
    net = nn.Linear(6, 6)
    torch.optim.SGD(net.parameters(), lr=0.1)
    with torch.backends.cudnn.flags(benchmark=True), Benchmarked("aten.addmm.default", 64) as noted:
        net(torch.randn(64, 6)).square().mean().backward()
        if not torch.backends.cudnn.benchmark:
            return "off for good"
    few, pieces = {on for rows, on in noted.seen if rows < 16}, {on for rows, on in noted.seen if rows == 32}
    return "" if (few, pieces) == ({False}, {True}) else f"{noted.seen}"


def a_training_in_evaluation_mode() -> str:
    """A script trains its model in evaluation mode (it was loaded so, or an epoch's evaluation has left it so): its
    calls are recorded. Those of an evaluation with gradients are not."""
    net, x, y = (
        nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 5)),
        torch.randn(64, 6),
        torch.arange(64) % 5,
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.eval()
    found, kinds = [], []
    for step in range(4):
        net.zero_grad()
        with Whole("aten.addmm.default", 64) if step > 1 else nullcontext():
            F.cross_entropy(net(x), y).backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        optimizer.step()
        found.append(net[0].weight.grad)
    record: Any = record_of(net)
    for trains in (True, False):
        record.trains_in_eval = trains
        net.train()
        net(x)
        optimizer.step()
        net.eval()
        kinds.append([type(net(x)) is _torch.Recorded for _ in range(3)])
    if told() != "64 rows in 2 pieces":
        return told()
    if kinds != [[True] * 3, [False] * 3]:
        return f"{kinds}"
    return "" if all(close(found[0], f) for f in found) else f"{found[1:]} in place of {found[0]}"


_BACKENDS: dict[str, Any] = {}  # as those that einops loads when it is called for the first time


class Rearranged(nn.Module):
    """Its first call fills what is outside of it, as those of a model that uses einops do. It holds so many objects that
    they are not looked at before every call."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always
        self.many = [SimpleNamespace(inside=[i]) for i in range(20)]
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _BACKENDS["torch"] = _BACKENDS.get("torch", 0) + 1 if self.always else 1
        return self.net(x)


def what_only_a_first_call_fills() -> str:
    """A call that fills a library's caches does not change anything from the second one on: it is survived."""
    recorded_module.MANY, outcomes = 20, []
    for always in (False, True):
        for evaluating in (False, True):
            _BACKENDS.clear()
            net, x = Rearranged(always), torch.randn(64, 6)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
            for _ in range(3):
                net(x).square().sum().backward()
                optimizer.step()
                with torch.no_grad():
                    net(x)
            want = net.net[0].weight.grad.clone()
            net.zero_grad()
            try:
                with Whole("aten.tanh.default", 64), torch.set_grad_enabled(not evaluating):
                    out = net(x)
                    if not evaluating:
                        out.square().sum().backward()
                        if not close(net.net[0].weight.grad * 3, want):
                            return "other gradients"
                outcomes.append(record_of(net).evaluation.deep if evaluating else True)  # type: ignore[union-attr]
            except torch.OutOfMemoryError:
                outcomes.append(None)
    return "" if outcomes == [True, False, None, None] else f"{outcomes}"


class Codes(nn.Module):
    """A codebook that follows what it is given, by ``.data``, which raises no version. What follows may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codes", torch.randn(6, 8))
        self.net = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes: Any = self.codes
        nearest = torch.cdist(x, codes.T).argmin(1)
        codes.data.mul_(0.9).add_(0.1 / len(x) * x.T @ F.one_hot(nearest, 8).type(x.dtype))
        return self.net(x + (codes.T[nearest] - x).detach())


def buffers_that_change_unseen() -> str:
    """Buffers to which a call writes by ``.data`` are put back, in the first call already."""
    found = []
    for failing in ((), (0,), (2,), (0, 1, 2)):
        torch.manual_seed(0)
        net = Codes()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            x = torch.randn(64, 6)
            optimizer.zero_grad()
            with Failing("aten.addmm.default", 1) if step in failing else nullcontext():
                net(x).square().mean().backward()
            optimizer.step()
        found.append((net.codes.clone(), net.net.weight.detach().clone()))
    wrong = [f for f in found if not all(torch.equal(a, b) for a, b in zip(f, found[0]))]
    if wrong:
        return f"{wrong} in place of {found[0]}"
    net, x = Codes(), torch.randn(64, 6)
    torch.optim.SGD(net.parameters(), lr=0.1)
    for value in (1.0, 2.0):  # no call succeeds: the script gets what the newest has left, and what it has set before
        net.codes.data.fill_(value)  # type: ignore[operator, union-attr]
        want = copy.deepcopy(net)
        for called in (lambda want=want: Codes.forward(want, x), lambda: net(x)):
            try:
                with Failing("aten.addmm.default", 99):
                    called()
                return "not refused"
            except torch.OutOfMemoryError:
                pass
        if not torch.equal(net.codes, want.codes):  # type: ignore[arg-type]
            return f"{net.codes} in place of {want.codes}"
    net.codes.data.fill_(3.0)  # type: ignore[operator, union-attr]
    want = copy.deepcopy(net)
    want.forward(x)
    with Failing("aten.addmm.default", 1):
        net(x)
    return "" if torch.equal(net.codes, want.codes) else f"{net.codes} in place of {want.codes}"  # type: ignore[arg-type]


def results_without_values_are_given_to_a_norm() -> str:
    """A generator is run in pieces, and what it makes is judged by a critic whose BatchNorm needs all of it at once."""
    found = []
    for failing in (False, True):
        torch.manual_seed(0)
        maker = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
        critic = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (maker, critic)]
        for step in range(4):
            x = torch.randn(64, 6)
            for o in optimizers:
                o.zero_grad()
            with Whole("aten.tanh.default", 64) if failing and step > 0 else nullcontext():
                fake = maker(x)
                (critic(x) - critic(fake)).square().mean().backward()
            for o in optimizers:
                o.step()
        found.append([p.detach().clone() for m in (maker, critic) for p in (*m.parameters(), *m.buffers())])
    return "" if all(map(close, *found)) else f"{found}"


def what_is_left_holds_no_graph() -> str:
    """While a failed call is made in another way, nothing keeps the graph of what it has left in its module."""
    net: Any = nn.Linear(6, 5)
    net(torch.randn(4, 6))
    record, held = RecordedModule(_torch._recorder, net), []
    for graphs in (True, False):
        net.count, net.states = 1, [nn.functional.linear(torch.randn(4, 6), net.weight)] if graphs else []
        kept = Left(record.may_change(), net, (), {})
        states = [*map(weakref.ref, net.states)]
        net.count, net.states = 2, None
        held.append([ref() for ref in states])
        kept.put_back()
        held.append(net.count)
    return "" if held == [[None], 1, [], 1] else f"{held}"


def what_converts_results() -> str:
    """A script puts results into a new tensor for a log: PyTorch asks for their values where nothing makes a graph."""
    wrong = []
    kinds = (torch.tensor, torch.as_tensor, torch.FloatTensor, torch.ones(1).new_tensor)
    for convert, every in itertools.product(kinds, (1, 2)):
        net, head = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)), nn.Linear(5, 1)
        optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.0)
        x, found = torch.randn(64, 6), []
        for step in range(4):
            optimizer.zero_grad()
            with Whole("aten.tanh.default", 64) if step > 0 else nullcontext():
                out = net(x)
                loss = out.square().mean() + head(out).square().mean()
                logged = convert([loss, out.max(), 1.0]) if step % every == 0 else found[0][0]
                loss.backward()
            optimizer.step()
            found.append((logged, net[0].weight.grad.clone()))
        if not all(close(a, b) for both in found for a, b in zip(found[0], both)):
            wrong.append(f"{convert}: {found}")
    return ", ".join(wrong)


def gradients_with_respect_to_a_result() -> str:
    """A script asks for the gradients of a loss with respect to what the model returns, in every step or in some, and
    weighs the loss by them: it gets those of the whole batch, whatever has been made of the loss by then, or the
    failure."""
    wrong = []
    losses = (F.cross_entropy, lambda o, y: F.cross_entropy(o, y) * 2)
    for unused, made, read in itertools.product((False, True), losses, (False, True)):
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        x, y = torch.randn(64, 6), torch.arange(64) % 5
        found = []
        for step in range(4):
            optimizer.zero_grad()
            with Whole("aten.tanh.default", 64) if step > 0 else nullcontext():
                out = net(x)
                loss = made(out, y)  # type: ignore[operator]
                if read:
                    loss.item()
                if step != 1:
                    [g] = torch.autograd.grad(loss, out, retain_graph=True, allow_unused=unused)
                    loss = loss * (1 + g.norm())
                loss.backward()
            optimizer.step()
            found.append(net[0].weight.grad.clone())
        if not all(close(found[0], f) for f in found[2:]):
            wrong.append(f"{unused}, {read}: {found}")
    deferred.Deferred.forgets = lambda self, slots: None  # type: ignore[method-assign]
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    for step in range(2):
        try:
            with Whole("aten.tanh.default", 64) if step else nullcontext():
                out = net(x)
                loss = F.cross_entropy(out, y)
                loss.item()
                [g] = torch.autograd.grad(loss, out, retain_graph=True, allow_unused=True)
            if g is None:
                wrong.append("no gradients")
            optimizer.step()
        except torch.OutOfMemoryError:
            pass
    return ", ".join(wrong)


def what_is_called_once_memory_is_short() -> str:
    """After a failure modules are still looked for: a script samples by a method of its model (`model.decode(z)`), which
    calls the layers inside by themselves."""
    net = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 6))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, z = torch.randn(64, 6), torch.randn(64, 3)
    with Whole("aten.addmm.default", 64):
        for _ in range(4):
            optimizer.zero_grad()
            F.mse_loss(net(x), x).backward()
            optimizer.step()
        with torch.no_grad():
            got = net[1](z)
    return "" if close(got, net[1](z)) else "other results"


def a_norm_that_is_called_twice() -> str:
    """A critic with BatchNorm sees real and made rows before one backward pass, which fails: both calls are made again,
    and its statistics are then what they would have been. Not if one of them is not for that loss."""
    same = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Linear(8, 1)).double()
    real, fake = torch.randn(12, 6).double(), torch.randn(12, 6).double()
    found = []
    for fails in (False, True):
        net = copy.deepcopy(same)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            loss = net(real).square().mean() + (net(fake) - 1).square().mean()
            with Failing("gelu_backward", 1) if fails and step else nullcontext():
                loss.backward()
            optimizer.step()
        found.append([*net.state_dict().values(), net[0].weight.grad])
    if "the whole batch again" not in told():
        return told()
    if not all(map(close, *found)):
        return f"{found[1]} in place of {found[0]}"
    with suppress(torch.OutOfMemoryError), Failing("gelu_backward", 1):
        loss, _other = net(real).square().mean(), net(fake)
        loss.backward()
        return "a call that is not for the loss"
    if int(net[1].num_batches_tracked) != 8:
        return f"{net[1].num_batches_tracked}"
    with suppress(torch.OutOfMemoryError), Failing("gelu_backward", 1):
        other, loss = net(fake), net(real).square().mean()
        del other  # and its call is not on the tape any more
        loss._headroom.tape._forget({loss._headroom.slot})  # type: ignore[attr-defined]
        loss.backward()
        return "a call that was forgotten"
    return "" if int(net[1].num_batches_tracked) == 10 else f"{net[1].num_batches_tracked}"


class Late(nn.Module):
    """Begins to change a second buffer in the middle of a step."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.BatchNorm1d(6), nn.Linear(6, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            self.seen.add_(1)
        return F.gelu(self.out(self.norm(x)))


def buffers_that_change_late() -> str:
    """What a buffer held before the step's first call is not known if a later call was the first to change it."""
    net, x = Late(), torch.rand(12, 6)
    torch.optim.SGD(net.parameters(), lr=0.1)
    with suppress(torch.OutOfMemoryError), Failing("gelu_backward", 1):
        sum(net(given).mean() for given in (-x, x, x)).backward()  # type: ignore[union-attr]
    return "" if (int(net.seen), int(net.norm.num_batches_tracked)) == (2, 3) else f"{net.seen}"


class Turns(nn.Module):
    """Turns its arguments, whose rows are in dimension 0, for layers that expect time there."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.out = nn.RNN(4, 8), nn.Linear(8, 4)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.rnn(x.transpose(0, 1), state)[0][-1])


class Crops(nn.Module):
    """Joins what it computes for several views of the rows."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.mixes, self.body, self.head = mixes, nn.Sequential(nn.Linear(6, 8), nn.Tanh()), nn.Linear(8, 5)

    def forward(self, views: Sequence[torch.Tensor]) -> torch.Tensor:
        joined = torch.cat([self.body(x) for x in views])
        return self.head(joined - joined.mean(0) if self.mixes else joined)


def views_of_the_rows() -> str:
    """A list of tensors with the same rows is cut as a tuple is. What a model joins for them has the rows once for each
    of them, one after the other, which only the values show. A list of images is refused."""
    wrong = []
    for kind, mixes, later in itertools.product((list, tuple), (False, True), (False, True)):
        net, x, y = Crops(mixes), kind(torch.randn(64, 6) for _ in range(3)), torch.arange(64) % 5
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        found, survived = [], True
        for step in range(3):
            optimizer.zero_grad()
            try:
                with Whole("aten.tanh.default", 64) if step else nullcontext():
                    out = net(x)
                    parts = (out * 2).chunk(3)
                    loss = sum(F.cross_entropy(o, y) * (i + 1) for i, o in enumerate(parts))
                    loss.backward()  # type: ignore[union-attr]
                optimizer.step()
            except torch.OutOfMemoryError:
                survived = False
                break
            found.append((net.body[0].weight.grad.clone(), *((out, *parts) if later else ())))
        if survived == mixes or not all(close(a, b) for both in found for a, b in zip(found[0], both)):
            wrong.append(f"{kind.__name__}, {mixes}, {later}: {found}")
    images = Crops(False)
    torch.optim.SGD(images.parameters(), lr=0.0)
    try:
        with Whole("aten.tanh.default", 3):
            images([torch.randn(3, 4, 6) for _ in range(2)]).sum().backward()
    except torch.OutOfMemoryError:
        pass
    said = str(_torch._recorder.report.told[-1])  # type: ignore[union-attr]
    if "a list of 2 items" not in said:
        wrong.append(said)
    return ", ".join(wrong)


class Spent(torch.autograd.Function):
    """A checkpoint whose backward pass frees what it needs."""

    @staticmethod
    def forward(ctx: Any, run: Any, x: torch.Tensor, *params: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.run, ctx.given = run, [x, *params]
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        x, *params = ctx.given
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.run(x)
        found = torch.autograd.grad(out, [x, *params], grad)
        del ctx.given
        return (None, *found)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.body = nn.Linear(6, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 5))

    def forward(self, x: torch.Tensor) -> Any:
        return Spent.apply(self.body, self.first(x), *self.body.parameters())


def a_backward_pass_that_can_be_run_once() -> str:
    """Several losses of a model whose backward pass frees what it needs are read: none of its graphs is used twice."""
    net, x, y = Checkpointed(), torch.randn(64, 6), torch.arange(64) % 5
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    found = []
    for step in range(4):
        optimizer.zero_grad()
        with Whole("aten.tanh_backward.default", 64) if step else nullcontext():
            out = net(x)
            one, other = F.cross_entropy(out, y, reduction="none"), out.square().mean(1)
            both = one + other
            loss = both.mean()
            logged = [t.mean().item() for t in (both, one, other)]
            loss.backward()
        optimizer.step()
        found.append((net.first.weight.grad.clone(), torch.tensor(logged)))
    if not all(close(a, b) for both in found for a, b in zip(found[0], both)):
        return f"{found}"
    failures = _torch._recorder.report.told  # type: ignore[union-attr]
    return "" if len(failures) == 1 and told().startswith("64 rows in ") else f"{failures}"


def states_beside_rows_that_are_turned() -> str:
    """A state of layers without ``batch_first`` is cut in dimension 1 where the rows of what is given beside it are in
    dimension 0."""
    net, x, y = Turns().double(), torch.randn(7, 3, 4).double(), torch.arange(7) % 4
    torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for whole in (nullcontext(), Whole("aten.tanh.default", 7)):
        net.zero_grad()
        with whole:
            F.cross_entropy(net(torch.zeros(1, 7, 8).double(), x), y).backward()
        found.append(net.rnn.weight_hh_l0.grad)
    if not told().startswith("7 rows in "):
        return told()
    return "" if close(*found) else f"{found[1]} in place of {found[0]}"


def what_pytorch_wraps_is_no_replacement() -> str:
    """PyTorch itself puts functions around some of its own. That they are those is looked at once, as it takes
    milliseconds; what a script puts there afterwards is seen at once."""
    torch.manual_seed = torch._dynamo.disable(torch.manual_seed)  # as the first step of an optimizer does
    unknown = [known.owner for known in genuine._originals if known.replaced() or known._clean is None]
    if unknown or not genuine._originals:
        return f"{unknown}"
    seen = []
    for owner, name in (torch, "add"), (torch.Tensor, "mul"), (torch.Tensor, "add"), (torch.autograd, "grad"):
        had = vars(owner).get(name)
        setattr(owner, name, lambda *a, **k: None)
        seen.append(genuine.replaced())
        if had is None:
            delattr(owner, name)
        else:
            setattr(owner, name, had)
    return "" if seen == [True] * 4 and not genuine.replaced() else f"{seen}"


def weights_that_only_gradients_tell_apart() -> str:
    """Where all rows have nearly the same loss, whatever the model has computed, the gradients show that a piece counts
    by its rows, and not by what its targets add up to, which is nearly the same."""
    torch.manual_seed(0)
    net = nn.Linear(6, 5).double()
    torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(8, 6).double(), 1 + 4e-3 * torch.rand(8, 5).double()
    found = []
    for whole in (nullcontext(), Whole("aten.addmm.default", 8)):
        net.zero_grad()
        with whole:
            F.mse_loss(net(x) * 1e-4 + 3, y).backward()
        found.append(net.weight.grad)
    if told() != "8 rows in 2 pieces":
        return told()
    return "" if close(*found) else f"{found[1]} in place of {found[0]}"


def tensors_are_swapped() -> str:
    """``torch.utils.swap_tensors``, and modules whose parameters are exchanged by it, count no weak reference of the
    worker's, but those of the script. A step in which tensors were exchanged is not run again."""
    net = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x, other = torch.randn(8, 6), torch.randn(8, 3)
    for _ in range(2):
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    out = net(x)
    values = out.detach().clone()
    torch.utils.swap_tensors(out, other)
    if not torch.equal(other, values) or type(other) is not torch.Tensor or out.requires_grad:
        return "a result has not been swapped"
    with Failing("sum.default", 1), suppress(torch.OutOfMemoryError):
        other.sum()
        return "a result that was swapped is recorded"
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        net.load_state_dict({"weight": torch.ones(3, 6), "bias": torch.zeros(3)})
        net.double()
        ref = weakref.ref(net.weight)
        with suppress(RuntimeError):
            net.float()
            return "weak references of the script are not counted"
        del ref
        out = net(x.double())
        net.float()
        with Whole("aten.mul.Tensor", 8), suppress(torch.OutOfMemoryError, RuntimeError):
            (out * 2).sum().backward()
            return "a step whose weights were swapped is run again"
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    return "" if torch.equal(net.weight, torch.ones(3, 6)) else "other weights"


def what_a_call_drops() -> str:
    """A call may drop the last that the script holds of those before it, and the search for cycles after a failure may:
    it is survived wherever it fails, with the gradients of its own argument."""
    net, held = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), list[torch.Tensor]()
    net.register_forward_pre_hook(lambda *_: held.clear())
    torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = torch.randn(8, 6), torch.randn(8, 6)
    F.mse_loss(net(x), y).backward()
    weight: Any = net[0].weight
    wanted = weight.grad
    for at in range(8):
        net.zero_grad()
        held.append(net(torch.randn(8, 6)))
        with Injector(Fault("once", at, 8)) as injector:
            injector.begin()
            F.mse_loss(net(x), y).backward()
            injector.end()
        if not close(weight.grad, wanted):
            return f"other gradients if operation {at} fails"
    return ""


def elements_of_an_array() -> str:
    """What is in an array of NumPy's is no element of a container."""
    found = [snapshot._at(kind, [0]) for kind in (np.zeros(3), [5.0], {0: 6.0}, {7.0})]
    return "" if found == [[], [5.0], [6.0], [0]] else f"{found}"


CHECKS = [
    switched_elsewhere, decided_by_a_row, drawn_until_it_fits, a_parameter_that_the_script_replaces, numbers_of_every_evaluation, what_is_not_there_is_not_used, sparse_rows, packed_rows, draws_in_evaluation, computed_parameters_are_no_replacement, a_rule_is_determined_once_more, what_numbers_that_are_drawn_decide, class_weights_that_come_later,
    a_failure_is_the_scripts_own_without_memory_to_report_it, targets_that_a_model_leaves_out, settings_that_are_switched, settings_that_change_by_themselves,
    weights_that_only_gradients_tell_apart, sizes_that_are_multiples_of_the_batchs, a_batch_is_written_to_after_the_call, whether_a_batch_was_written_to, a_batch_is_written_to_between_two_passes, a_leaf_that_the_loss_uses_later, nothing_is_cleaned_where_nothing_fails, kernels_are_not_tried_out_for_a_trial, a_training_in_evaluation_mode, a_norm_that_is_called_twice, buffers_that_change_late, weights_of_parts, states_beside_rows_that_are_turned, views_of_the_rows, a_backward_pass_that_can_be_run_once, what_pytorch_wraps_is_no_replacement, what_is_called_once_memory_is_short, gradients_with_respect_to_a_result, what_converts_results, what_only_a_first_call_fills,
    buffers_that_change_unseen, what_is_left_holds_no_graph, results_without_values_are_given_to_a_norm, tensors_are_swapped, what_a_call_drops, elements_of_an_array, hooks_of_the_script_for_what_is_saved, asked_for_without_gradients, a_term_of_rare_rows,
    what_a_failed_call_leaves, copies_have_what_the_script_has_added, weights_that_a_call_returns_are_no_rows, compiled_for_all_calls,
    arrays_are_filled_again, arrays_of_results_are_written_to, what_shows_a_write, means_of_weights_that_come_later,
    annealed_beside_any_loss, in_place_by_a_flag, numbers_of_the_script, functions_that_relate_rows, iterators_of_a_module, iterators_of_a_module_that_is_evaluated, what_a_call_changes_in_its_arguments, what_a_later_call_changes_in_its_arguments,
    what_a_call_does_to_its_tensors, what_a_call_decides, objects_of_the_script_are_asked_for_nothing, containers_of_the_script_are_not_used, handlers_of_signals_interrupt, signals_where_a_callback_begins, trials_that_signals_interrupt, buffers_that_the_script_changes, what_tells_buffers_apart, graphs_that_are_used_up, graphs_that_a_failed_pass_has_not_reached, torchscript, attributes_that_hooks_compute, a_module_that_cannot_be_looked_at, arrays_of_a_module, losses_that_a_model_keeps, losses_of_joined_chunks, a_loss_of_other_rows, attributes_that_the_script_sets, what_is_followed, gradients_by_attributes, a_norm_in_another_mode,
    generators_of_a_module_are_put_back, a_generator_that_draws_for_each_row_keeps_the_batch_whole,
    compiled, full_precision, attributes_come_back, too_much_to_look_at, sealed, trials_are_sealed, untried, everything_comes_back,
    reached, what_functions_keep_elsewhere, backward_hooks_of_all_modules, the_cache_is_emptied, large_outputs_take_few_rows, a_refusal_is_heard, trials_are_gone, sketches, sums,
    counts, indices, tried_once, left_behind, logged_once, a_log_is_tried_once, one_replay, learned_weights,
    parameters_that_pytorch_does_not_name,
    logs_are_plain, no_trial_for_numbers, a_new_parameter, counted_once,
    after_a_refusal, an_accuracy, numbers_returned, a_shared_graph, said_once_it_is_over, several_gradients, what_nothing_follows, read_after_the_step, a_loss_is_printed, raised_anew, a_single_row, sizes_by_values, time_first, states_beside_rows, crossing, tried_again, tried_with_other_numbers, each_by_itself, timed,
    objects, kinds_of_batches, coupled_at_last, warned_once, annealed, mixed_later, seen_to_depend, mixing_operations, small_batches,
    equal_but_for_rounding, half_behind,
    half_between, reasons, same_draws, draws_of_a_function_that_fails, draws_between, mode_only_for_draws, equal_calls, few_values, without_autocast,
    attention, only_what_the_script_holds_is_kept, generators_go_on, kept_values_give_way, values_take_smaller_pieces,
    a_value_keeps_its_tape, written_before_a_trial, views_are_the_same, cut_by_the_script, a_level_loss, numbers_that_do_not_add_up, what_is_read_of_computed_weights, no_memory_for_our_own, memory_of_the_host_is_not_the_gpus, memory_of_python_itself, what_is_made_to_fail, a_library_fails_in_our_own_code, a_loss_inside_is_tried_on_few_rows, a_library_that_finds_no_memory, values_of_what_is_written_to, a_metric_of_a_closure, results_of_two_steps_in_one_call, a_closure_is_the_scripts, the_phase_of_a_failure, time_comes_first, a_part_of_a_step_is_made_whole, gradients_near_zero, complex_numbers, gradients_set_aside, elsewhere,
    rows_by_number, hooks_of_modules, gradients_that_are_not_linear, hooks_that_come_later_have_run_once, hooks_that_have_run_are_known, generators_of_the_script, memory_is_arranged, strides_on_the_host,
]  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(status(CHECKS))
