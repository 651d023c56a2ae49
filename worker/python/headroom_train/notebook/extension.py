"""The extension of IPython, in a terminal and in a notebook, which nothing else here knows about.

It may be loaded before torch is imported, so what needs torch is imported where it is used."""

from __future__ import annotations

import re
import sys
from typing import Any, Optional

from headroom_train.wire import beside
from headroom_train.wire.wire import notice

# A cell that looks at the last failure: its variables are still needed.
_LOOKS = re.compile(r"\s*%?(?:debug|tb|pdb|xmode)\b|.*\b(?:pm|post_mortem)\(", re.DOTALL)
_LEAST = 1 << 20  # bytes of which it is said that they have been let go
_loaded: Optional[Extension] = None


def load(shell: Any) -> None:
    """Loads the extension into a shell of IPython. A second call does nothing."""
    global _loaded
    if _loaded is None:
        _loaded = Extension(shell)


def unload() -> None:
    """Unloads the extension, if it is loaded."""
    global _loaded
    if _loaded is not None:
        _loaded.leaves()
    _loaded = None


class Extension:
    """What is done around each cell of a shell, and the magic ``%headroom``."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._lines = Lines(shell)
        self._failure: Optional[BaseException] = None  # the last one that was shown, while it keeps memory
        self._cell = 0  # the number of its cell
        self._said = False  # that the worker only watches
        beside.show = self._lines.show
        shell.events.register("pre_run_cell", self._begins)
        shell.events.register("post_run_cell", self._ends)
        shell.register_magic_function(self.headroom, "line", "headroom")
        self._watches()

    def leaves(self) -> None:
        beside.show = None
        self._shell.events.unregister("pre_run_cell", self._begins)
        self._shell.events.unregister("post_run_cell", self._ends)
        self._shell.magics_manager.magics["line"].pop("headroom", None)

    def headroom(self, line: str = "") -> None:
        """%headroom shows what this process's memory is held for."""
        if line.strip():
            from IPython.core.error import UsageError

            raise UsageError("%headroom takes no words after it")
        if "torch" not in sys.modules:
            print("headroom: torch has not been imported yet")
            return
        from IPython.display import display

        from .holdings import memories, variables
        from .picture import svg, text

        taken = memories(), variables(self._shell)
        drawn = {"text/plain": text(*taken)}
        if hasattr(self._shell, "kernel"):
            drawn["text/html"] = svg(*taken)
        display(drawn, raw=True)

    def _begins(self, info: Any) -> None:
        """Called before a cell is run: what a failed one keeps is let go, unless this one looks at it."""
        self._lines.begin()
        if self._failure is None or _LOOKS.match(info.raw_cell or ""):
            return
        from ..account.kinds import amount
        from .release import let_go

        error, self._failure = self._failure, None
        error._headroom_let_go = True  # type: ignore[attr-defined]
        size = let_go(self._shell, error, self._cell)
        if size >= _LEAST:
            self._lines.show(
                f"let go of {amount(size)} that the failed cell [{self._cell}] had kept: the variables of the functions"
                " in its traceback, which %debug can no longer show"
            )

    def _ends(self, result: Any) -> None:
        """Called after a cell has been run, and its exception, if any, has been shown."""
        self._lines.end()
        if "headroom_train.failure" not in sys.modules:
            return
        self._watches()
        from .release import last_failure

        shown = last_failure()
        if shown is not None and shown is not self._failure and not hasattr(shown, "_headroom_let_go"):
            self._failure, self._cell = shown, result.execution_count or 0

    def _watches(self) -> None:
        """Says, once, why nothing will be done about a lack of memory, if so."""
        import _headroom_hook

        worker = sys.modules.get("headroom_train._torch")
        why = _headroom_hook.why_not or (worker.only_watches() if worker is not None else None)
        if why and not self._said:
            self._said = True
            self._lines.show(f"failures of memory are not survived here: {why}")


class Lines:
    """The lines below a cell. Those that begin alike, up to a colon, share one: in a notebook the newest replaces the
    ones before, and in a terminal only the first is shown at once."""

    def __init__(self, shell: Any) -> None:
        self._notebook = hasattr(shell, "kernel")
        self._shown: dict[str, Any] = {}  # handles of IPython's, by how the lines begin
        self._count: dict[str, int] = {}
        self._newest: dict[str, str] = {}

    def begin(self) -> None:
        self._shown, self._count, self._newest = {}, {}, {}

    def show(self, text: str) -> None:
        """Shows a line. Raises no exceptions: it is called in the midst of a training."""
        begin = text.partition(":")[0]
        count = self._count[begin] = self._count.get(begin, 0) + 1
        self._newest[begin] = text
        try:
            if not self._notebook:
                if count == 1:
                    notice(text)
                return
            from IPython.display import display

            drawn = {"text/plain": f"headroom: {text}" + (f" ({count} such in this cell)" if count > 1 else "")}
            if count == 1:
                self._shown[begin] = display(drawn, raw=True, display_id=True)
            else:
                self._shown[begin].update(drawn, raw=True)
        except Exception:
            notice(text)

    def end(self) -> None:
        """Called when the cell has ended."""
        for begin, count in self._count.items():
            if count > 1 and not self._notebook:
                notice(f"{self._newest[begin]} ({count} such since the prompt)")
        self.begin()
