"""The module that headroom makes Python run at startup: it starts watching for torch, and then runs
the user's own sitecustomize.

Its folder comes before the user's own in PYTHONPATH. It must cost next to nothing, and its errors
must not show: Python starts as if the module were not there.
"""

import os
import sys

_here = os.path.dirname(__file__)


def _watch():
    try:
        import _headroom_hook

        _headroom_hook.watch()
    except Exception:  # the user's program comes first
        if os.environ.get("HEADROOM_DEBUG"):
            sys.excepthook(*sys.exc_info())


def _chain():
    """Import the sitecustomize that this one shadows, as Python would have done."""
    ours = sys.modules.pop(__name__)
    at = sys.path.index(_here) if _here in sys.path else None
    if at is not None:
        del sys.path[at]
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":  # on Python 2 the error has no name
            raise
    finally:
        if at is not None and _here not in sys.path:
            sys.path.insert(at, _here)
        sys.modules.setdefault(__name__, ours)  # the import system looks for it


_watch()
_chain()
