"""Checks what is said about failures that end a script, and that none of the worker's code has seen.

python endings.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils.data import DataLoader, Dataset

import trial
from forked import status

trial.attach()
from headroom_train.failure import is_out_of_memory  # noqa: E402
from headroom_train.replay.twopass import TwoPass  # noqa: E402
from headroom_train.tape.tape import Tape  # noqa: E402
from headroom_train.tape.trained import Trained  # noqa: E402
from headroom_train.wire.ending import ending, line  # noqa: E402

FULL = "DefaultCPUAllocator: not enough memory"


def full(*_: Any) -> Any:
    raise RuntimeError(FULL)


class Fails(nn.Module):
    """A linear layer; nothing fits into memory behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return full(self.inner(x))


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return full(g)


class Samples(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Tensor:
        return full() if i == 5 else torch.ones(2)


class Batches(Tensor):
    """Cannot be stacked."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return full() if func is torch.stack else super().__torch_function__(func, types, args, kwargs or {})


class Unstackable(Samples):
    def __getitem__(self, i: int) -> Tensor:
        return torch.ones(2).as_subclass(Batches)


def said(work: Callable[[], Any], trained: Any = ()) -> tuple[str, str, bool, str]:
    """What is said about the exception that ``work`` raises, and the line of a loader's worker process, if any."""
    known = Trained()
    known.add(trained)
    try:
        work()
    except RuntimeError as e:
        if not is_out_of_memory(e):
            raise
        return (
            *ending(e, known),
            (line(e, lambda name: "site-packages" in name) or "").rpartition("/")[2].partition(":")[0],
        )
    raise AssertionError("nothing was raised")


def each_has_its_reason() -> str:
    net, x = Fails(), torch.ones(2, 4)
    wanted = x.clone().requires_grad_()
    given = torch.nn.Parameter(torch.ones(2))
    backend = aot_autograd(fw_compiler=lambda *_: make_boxed_func(full))
    compiled = torch.compile(lambda x: x * 2, backend=backend)

    def twice() -> Tensor:
        pieces = SimpleNamespace(
            tape=Tape(), slots=[0], plan=SimpleNamespace(slots={0: SimpleNamespace(requires_grad=True)})
        )
        pieces.tape.step.fails(RuntimeError(FULL))
        return TwoPass.apply(pieces, {0: x.clone()}, wanted)[0]

    cases: list[tuple[str, Callable[[], Any], Any, str, str, bool, str]] = [
        ("the script", lambda: full(), (), "the script itself asked", "make or load less", True, ""),
        (("what is trained is "
            "given"), lambda: net(wanted), (given,), "no optimizer trains a parameter of Fails, "
                "but", "give Fails fewer rows", False, ""),
        ("nothing is trained", lambda: net(x), (given,), "no optimizer trained a parameter of Fails", "", False, ""),
        ("a trained module", lambda: net(x), net.parameters(), "this call of Fails is not recorded", "", False, ""),
        ("backward", lambda: Failing.apply(wanted).sum().backward(), (), ("nothing in this backward "
            "pass"), "", False, ""),
        ("backward of results in pieces", lambda: (Failing.apply(twice()) * 2).sum().backward(), (), "computed in pieces, twice", "", False, ""),
        ("a compiled function", lambda: compiled(wanted), (), "inside a function that torch.compile", "", False, ""),
        ("vmap", lambda: torch.func.vmap(full)(x), (), "inside torch.func", "chunk_size", False, ""),
        ("grad", lambda: torch.func.grad(full)(x[0]), (), "inside torch.func", "", False, ""),
        ("a sample", lambda: list(DataLoader(Samples(), 4, num_workers=1)), (), "loaded one sample", "a sample need less", True, "endings.py"),
        ("a batch", lambda: list(DataLoader(Unstackable(), 4, num_workers=1)), (), "put a batch together", "smaller batches", True, "endings.py"),
        ("no worker", lambda: list(DataLoader(Samples(), 4)), (), ("the script itself "
            "asked"), "make or load less", True, ""),
    ]  # fmt: skip
    wrong = []
    for name, work, trained, *want in cases:
        got = said(work, trained)
        if (
            want[0] not in got[0]
            or want[1] not in got[1]
            or bool(want[1]) is not bool(got[1])
            or want[2:] != list(got[2:])
        ):
            wrong.append(f"{name}: {got}")
    return "; ".join(wrong)


SCRIPT = """
import sys, torch
import torch.nn.functional as F
kind = sys.argv[1]
def full(*_):
    raise RuntimeError("DefaultCPUAllocator: not enough memory")
net = torch.nn.Linear(4, 2)
if kind == "shared":
    net = torch.nn.DataParallel(net)
    net.device_ids = [0, 1]
    net.forward = lambda x: net.module(x)  # there is no GPU to spread the rows over
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
loss = net(torch.ones(2, 4)).sum()
if kind == "caught":
    try:
        full()
    except RuntimeError:
        sys.exit(3)
if kind == "refused":
    net.weight.register_hook(full)
    loss.backward()
full()
"""


def it_is_said_once_when_the_process_ends() -> str:
    wrong = []
    package = str(Path(__file__).resolve().parent.parent)
    wants = {
        "plain": "the script itself",
        "shared": "managed by DataParallel",
        "caught": None,
        "refused": "a hook on a parameter's gradient had already run",
    }
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "script.py").write_text(SCRIPT)
        running = {}
        for kind in wants:
            env = {
                **os.environ,
                "HEADROOM_WORKER": "armed",
                "HEADROOM_QUIET": "1",
                "HEADROOM_LOG": str(Path(folder, kind)),
                "PYTHONPATH": package,
            }
            words = [sys.executable, "-m", "headroom_train", "script.py", kind]
            running[kind] = subprocess.Popen(
                words, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        for kind, want in wants.items():
            code = running[kind].wait()
            log = Path(folder, kind)
            told = log.read_text().splitlines() if log.exists() else []
            if (
                code != (3 if kind == "caught" else 1)
                or len(told) != (want is not None)
                or want is not None
                and want not in told[0]
            ):
                wrong.append(f"{kind}: {code}, {told}")
    return "; ".join(wrong)


CHECKS = [each_has_its_reason, it_is_said_once_when_the_process_ends]


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(status(CHECKS))
