"""Running modules once more without consequences: the same draws, the same buffers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Iterable, Iterator

import torch
from torch.overrides import TorchFunctionMode

from .tape import random_state, set_random_state

_DROPOUTS = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout",
    "dropout_", "alpha_dropout_", "feature_dropout_", "feature_alpha_dropout_", "native_dropout",
}  # fmt: skip
_DRAWS = {"rand", "randn", "rand_like", "randn_like", "bernoulli", "normal", "multinomial", "poisson"}
_FILLS = {"normal_", "uniform_", "bernoulli_", "exponential_", "cauchy_", "log_normal_", "geometric_"}


class Calm(TorchFunctionMode):
    """Takes chance out of what runs inside, so that two runs can be compared: dropout
    does nothing, and every other draw is a constant."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _DROPOUTS and args and isinstance(args[0], torch.Tensor):
            return (args[0], torch.ones_like(args[0], dtype=torch.bool)) if name == "native_dropout" else args[0]
        if name == "scaled_dot_product_attention":
            kwargs = {**kwargs, "dropout_p": 0.0}
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
        elif name in _FILLS:
            with torch.no_grad():
                return args[0].fill_(0.5)
        result = func(*args, **kwargs)
        if name in _DRAWS and isinstance(result, torch.Tensor):
            with torch.no_grad():
                result = result.fill_(0.5 if result.is_floating_point() else 0)
        return result


@contextmanager
def rehearsal(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """A context after which generators, buffers and what hangs on the modules are as before."""
    state = random_state()
    every = list({id(m): m for root in modules for m in root.modules()}.values())
    buffers = list({id(b): b for m in every for b in m.buffers(recurse=False)}.values())
    kept = [b.detach().clone() for b in buffers]
    versions = [b._version for b in buffers]
    hanging = [(m, dict(vars(m))) for m in every]
    try:
        yield
    finally:
        set_random_state(state)
        with torch.no_grad():
            for buffer, value, version in zip(buffers, kept, versions):
                if buffer._version != version:
                    buffer.copy_(value)
        for module, before in hanging:
            now = vars(module)
            for name in [n for n in now if n not in before]:
                del now[name]
            for name, value in before.items():
                if now.get(name) is not value:
                    now[name] = value
