"""Checks that the sweep finds errors. It is run with recoveries that are broken on purpose, each in
a different way, and also with one that is right and with one that does nothing.

    python selfcheck.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import trial
from loop import load
from sweep import Found, Sweep


def patched(failed: Callable[[nn.Module, BaseException], None], after: Callable[[torch.Tensor], None]) -> None:
    """Replaces the calls of modules and of backward. If a module's call fails, ``failed`` is
    called, and then the module is called again. After the next backward the loss is passed to
    ``after``.
    """
    call, backward = nn.Module.__call__, torch.Tensor.backward
    pending: list[bool] = []

    def calling(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        except torch.OutOfMemoryError as error:
            first = error
        failed(self, first)
        try:
            out = call(self, *args, **kwargs)
        except torch.OutOfMemoryError:
            raise first from None
        pending.append(True)
        return out

    def running(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        backward(self, *args, **kwargs)
        if pending:
            pending.clear()
            after(self)

    nn.Module.__call__, torch.Tensor.backward = calling, running  # type: ignore[method-assign,assignment]


TRAINED: list[nn.Module] = []


def nothing(*_: Any) -> None:
    pass


def note(module: nn.Module, _: BaseException) -> None:
    TRAINED.append(module)


def scale(by: float, _: torch.Tensor) -> None:
    for p in TRAINED[-1].parameters():
        if p.grad is not None:
            p.grad.mul_(by)


def drop(_: torch.Tensor) -> None:
    for p in TRAINED[-1].parameters():
        p.grad = None


def nudge(module: nn.Module, error: BaseException) -> None:
    for p in module.parameters():
        p.data.add_(1e-6)
    raise error


def leave_gradient(module: nn.Module, error: BaseException) -> None:
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    raise error


def other(_: nn.Module, error: BaseException) -> None:
    raise RuntimeError("something else") from error


def own(_: nn.Module, error: BaseException) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory.")


BROKEN: dict[str, tuple[Callable[[], None], bool]] = {  # the patch, and whether the sweep must find something
    "does nothing": (nothing, False),
    "tries again": (partial(patched, nothing, nothing), False),
    "gradients doubled": (partial(patched, note, partial(scale, 2.0)), True),
    "gradients off by a ten thousandth": (partial(patched, note, partial(scale, 1.0001)), True),
    "gradients dropped": (partial(patched, note, drop), True),
    "weights moved, then raised": (partial(patched, nudge, nothing), True),
    "gradients left behind, then raised": (partial(patched, leave_gradient, nothing), True),
    "another exception": (partial(patched, other, nothing), True),
    "an exception of its own": (partial(patched, own, nothing), True),
}


def main() -> int:
    torch.set_num_threads(1)
    (shape,) = load(["cnn"])
    missed = 0
    for name, (attach, found) in BROKEN.items():
        trial.attach = attach
        got: Found = Sweep(shape, 0, 3, 2, True).run()
        good = bool(got.wrong) == found and got.raised > 0 and (got.survived > 0 or name != "tries again")
        missed += not good
        print(
            f"{'ok' if good else 'FAILED':6} {name}: survived {got.survived}, raised {got.raised}, wrong {got.wrong}",
            flush=True,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
