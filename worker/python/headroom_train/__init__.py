"""The part of headroom that works inside a PyTorch process.

``headroom run -- python train.py`` makes this package available automatically. A program that is
started in another way must import it and call :func:`attach`, or be started by ``python -m
headroom_train``; in a notebook, ``%load_ext headroom_train`` does it. Otherwise the package does nothing.
Importing it imports no other package.
"""

from __future__ import annotations

from headroom_train._version import __version__

__all__ = ["__version__", "attach", "detach", "step"]

TYPE_CHECKING = False  # importing typing for its TYPE_CHECKING costs more than everything here
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, Callable, Optional, TypeVar

    import torch

    F = TypeVar("F", bound=Callable[..., Any])


def attach() -> bool:
    """Start the worker now, or as soon as torch is imported. If no headroom process is connected, the worker makes
    its own decisions. In IPython and Jupyter the extension is loaded as well, as by ``%load_ext headroom_train``.

    Returns whether the worker is there, or will be: not if HEADROOM_WORKER is "off", or if it could not be started. A
    second call does nothing.
    """
    import os
    import sys

    if os.environ.get("HEADROOM_WORKER") == "off":
        return False
    import _headroom_hook

    late = "torch" in sys.modules and not _headroom_hook.started()
    _headroom_hook.watch()
    if late and _headroom_hook.started():
        from headroom_train.late import catch_up

        catch_up()
    core = sys.modules.get("IPython.core.interactiveshell")
    if core is not None and core.InteractiveShell.initialized():
        from headroom_train.notebook.extension import load

        load(core.InteractiveShell.instance())
    return not _headroom_hook.why_not


def detach() -> None:
    """Take the worker out of this process: torch is as it was before :func:`attach`, which may be called again. Must
    not be called in the midst of a step. In IPython the extension is unloaded as well."""
    import sys

    extension = sys.modules.get("headroom_train.notebook.extension")
    if extension is not None:
        extension.unload()
    import _headroom_hook

    _headroom_hook.leaves()


def load_ipython_extension(shell: Any) -> None:
    """``%load_ext headroom_train`` calls this."""
    attach()


def unload_ipython_extension(shell: Any) -> None:
    """``%unload_ext headroom_train`` calls this."""
    detach()


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
    process without the worker, the function is unchanged. ``model`` is the model that
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
