"""The part of headroom that works inside a PyTorch process.

``headroom run -- python train.py`` makes this package available automatically. A program that is
started in another way must import it and call :func:`attach`, or be started by ``python -m
headroom_train``. In a process that does not run under headroom, the package does nothing. Importing it
imports no other package.
"""

from __future__ import annotations

from headroom_train._version import __version__

__all__ = ["__version__", "attach", "step"]

TYPE_CHECKING = False  # importing typing for its TYPE_CHECKING costs more than everything here
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Callable, Optional, TypeVar

    import torch

    F = TypeVar("F", bound=Callable[..., Any])


def attach() -> bool:
    """Start the worker as soon as torch is imported, or now if it has been imported already.

    Returns True if this process runs under headroom, or if HEADROOM_WORKER is set. Otherwise,
    ``attach`` does nothing and returns False.
    """
    import os

    if not os.environ.get("HEADROOM_SOCKET") and not os.environ.get("HEADROOM_WORKER"):
        return False
    import _headroom_hook

    _headroom_hook.watch()
    return True


def step(
    model: torch.nn.Module | Sequence[torch.nn.Module], optimizer: Optional[torch.optim.Optimizer] = None
) -> Callable[[F], F]:
    """A decorator for the function that runs the forward and backward pass of one batch. It is for
    training loops that the worker cannot follow by itself::

        @headroom_train.step(model, optimizer)
        def train_step(x, y):
            loss = criterion(model(x), y)
            loss.backward()
            return loss

    If the function runs out of memory, it is called again, once for each piece of the batch. A
    piece contains some of the rows of every tensor argument that has as many rows as the first
    tensor argument. The gradients of all pieces add up to those of the whole batch. Anything else
    that the function does happens once for each piece, so zeroing gradients, clipping and the
    optimizer's step must be done outside the function. The function may return nothing, numbers, or
    tensors whose first dimension is the batch; the results of the pieces are joined.

    If this cannot be done exactly, the function's own out-of-memory exception is raised. In a
    process that does not run under headroom, the function is unchanged. ``model`` is the model that
    is trained, or a sequence of models. ``optimizer`` is needed only if it trains parameters that
    are outside the models.
    """
    from functools import wraps

    def decorated(function: F) -> F:
        runner: Any = None

        @wraps(function)
        def stepped(*args: Any, **kwargs: Any) -> Any:
            nonlocal runner
            if runner is None:
                import sys

                worker = sys.modules.get("headroom_train._torch")
                runner = (worker.explicit(function, model, optimizer) if worker is not None else None) or (
                    lambda args, kwargs: function(*args, **kwargs)
                )
            return runner(args, kwargs)

        return stepped  # type: ignore[return-value]

    return decorated
