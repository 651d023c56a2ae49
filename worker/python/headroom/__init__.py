"""Recovery from running out of GPU memory inside any PyTorch loop.

Nothing has to be imported by hand under ``headroom run --``. Elsewhere
:func:`attach`, called before models and optimizers are made, arms this process.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["attach"]


def attach() -> None:
    """Arms this process, or does nothing if that was done already."""
    from headroom import _torch

    _torch.install()
