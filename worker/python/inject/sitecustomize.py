"""The module that headroom makes Python run at startup: it starts watching for torch, and then runs
the user's own sitecustomize.

Its folder comes before the user's own in PYTHONPATH, and leaves sys.path at once, so that the user's
imports do not see it. It must cost next to nothing, and its errors must not show: Python starts as if
the module were not there.
"""

import os
import sys

_here = os.path.dirname(__file__)


def _leave():
    """Take the folder out of the path."""
    while _here in sys.path:
        sys.path.remove(_here)
    sys.path_importer_cache.pop(_here, None)


def _watch():
    """Start watching for torch."""
    try:
        import _headroom_hook

        _leave()
        _headroom_hook.watch()
    except Exception:  # the user's program comes first
        _leave()
        if os.environ.get("HEADROOM_DEBUG"):
            sys.excepthook(*sys.exc_info())


def _chain():
    """Import the sitecustomize that this one shadows, as Python would have done. If there is none,
    the ImportError tells Python so, and nothing of this name is left in sys.modules."""
    ours = sys.modules.pop(__name__)
    import sitecustomize  # noqa: F401

    sys.modules.setdefault(__name__, ours)  # the import system looks for it


_watch()
_chain()
