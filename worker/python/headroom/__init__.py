"""The part of headroom that works inside a PyTorch process.

``headroom run -- python train.py`` brings it along by itself. A program that is started in
another way imports it and calls :func:`attach`, or is started by ``python -m headroom``.
Without headroom around the process it does nothing. Importing it imports nothing else.
"""

from __future__ import annotations

from headroom._version import __version__

__all__ = ["__version__", "attach"]


def attach() -> bool:
    """Start the worker as soon as torch is imported, or now if it is there already.

    Returns whether headroom is around this process, or HEADROOM_WORKER says what to do without
    it; if not, nothing was done.
    """
    import os

    if not os.environ.get("HEADROOM_SOCKET") and not os.environ.get("HEADROOM_WORKER"):
        return False
    import _headroom_hook

    _headroom_hook.watch()
    return True
