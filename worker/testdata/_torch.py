"""Where the worker begins: called once, after torch has been imported."""

from __future__ import annotations

from typing import Any

from headroom_train.wire.wire import Wire


def install() -> None:
    """Say hello at the first step of any optimizer."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def first(optimizer: Any, args: Any, kwargs: Any) -> None:
        handle.remove()
        wire = Wire.get()
        if wire is not None:
            wire.hello(torch=str(torch.__version__))

    handle = register_optimizer_step_post_hook(first)
