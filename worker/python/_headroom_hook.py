"""Waits until torch has been imported, and then starts the worker.

In a Python process that never imports torch, this module is the only part of headroom that is loaded.
It is not part of the package, so that a process that never trains does not load the package.
"""

import os
import sys

TYPE_CHECKING = False  # importing typing for its TYPE_CHECKING costs more than everything here
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any, Optional

_here = os.path.dirname(os.path.abspath(__file__))
_started = False
held = 0  # bytes of data that this process had before the worker was imported, for headroom find; 0 if not known
why_not = ""  # why the worker could not be started
OLDEST = (3, 9)
PACKAGE = "headroom_train"


class _Package:
    """Finds our package, whose folder is not in sys.path, for the worker and for scripts that use
    it. A module of the user's that has the package's name comes first."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Optional[ModuleSpec]":
        if name != PACKAGE:
            return None
        from importlib.machinery import PathFinder

        theirs = PathFinder.find_spec(name)
        if (
            theirs is not None
            and theirs.origin
            and not os.path.exists(os.path.join(os.path.dirname(theirs.origin), "_torch.py"))
        ):
            return theirs
        return PathFinder.find_spec(name, [_here])


class _Finder:
    """Finds torch through the finders after this one in sys.meta_path. It hooks into torch's
    loader, so that the worker is started once torch has been executed."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Optional[ModuleSpec]":
        if name != "torch":
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: "Any") -> None:
        """Hook into the loader, so that it calls :func:`start` once it has executed torch. The hook
        never runs if torch is looked up but not imported."""

        def exec_module(module: "Any") -> None:
            del loader.exec_module
            loader.exec_module(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            start()

        # Python leaves frames of the import system out of tracebacks: the traceback of a torch that
        # cannot be imported looks as it would without us.
        try:
            exec_module.__code__ = exec_module.__code__.replace(co_filename="<frozen importlib._bootstrap>")
            loader.exec_module = exec_module
        except Exception:  # torch is imported without us
            leave(
                "failed", f"the loader {type(loader).__name__} does not let the worker see when torch has been imported"
            )


def watch() -> None:
    """Start the worker once torch has been imported, or now if it has been imported already. A
    second call does nothing."""
    leave("python")
    if sys.version_info < OLDEST:
        leave("failed", f"Python {sys.version.split()[0]} is too old for the worker")
        return
    if _here not in sys.path and not any(type(finder) is _Package for finder in sys.meta_path):
        sys.meta_path.insert(0, _Package())
    if any(type(finder) is _Finder for finder in sys.meta_path):
        return
    if "torch" in sys.modules:
        start()
        return
    sys.meta_path.insert(0, _Finder())


def started() -> bool:
    """Return whether the worker has been started in this process, or could not be."""
    return _started


def leaves() -> None:
    """Take the worker out of this process, or do not start it when torch is imported."""
    global _started, why_not
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder) is not _Finder]
    if _started and not why_not:
        from headroom_train.late import leave as take_out

        take_out()
    _started, why_not = False, ""


def start() -> None:
    """Start the worker in a process that has imported torch. A second call does nothing. Raises no
    exceptions."""
    global _started, held
    if _started:
        return
    _started = True
    if os.environ.get("HEADROOM_WORKER") == "find":
        held = _data()
    leave("torch")
    try:
        if not _ours():
            leave("failed", "another module is called " + PACKAGE)
            return
        from headroom_train import _torch

        _torch.install()
    except Exception as error:
        leave("failed", f"{type(error).__name__}: {error}")
        if os.environ.get("HEADROOM_DEBUG"):
            sys.excepthook(*sys.exc_info())


def _data() -> int:
    """How many bytes of data this process has; 0 if the system does not say."""
    try:
        with open("/proc/self/status") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmData"))
    except (OSError, ValueError, StopIteration):
        return 0


def _ours() -> bool:
    """Return whether importing the package would import ours. Does not import a module of the
    user's that has its name."""
    from importlib.util import find_spec

    module = sys.modules.get(PACKAGE)
    spec = find_spec(PACKAGE) if module is None else None
    origin = getattr(module, "__file__", None) if spec is None else spec.origin
    return origin is not None and os.path.dirname(os.path.dirname(os.path.abspath(origin))) == _here


def leave(name: str, text: str = "") -> None:
    """Leave a file called ``name`` beside the socket, with ``text`` in it. The file tells headroom
    how far this process got, even if the process never sends a message."""
    global why_not
    why_not = text if name == "failed" else why_not
    socket = os.environ.get("HEADROOM_SOCKET")
    if not socket:
        return
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(os.path.join(os.path.dirname(socket), name), flags, 0o600)
        try:
            if text:
                os.write(fd, text[:1000].encode("utf-8", "replace"))
        finally:
            os.close(fd)
    except OSError:
        pass
