"""A real kernel of Jupyter's, and what it answers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from jupyter_client.manager import KernelManager

JUPYTER = os.environ.get("HEADROOM_NOTEBOOK", "")  # the folder that make notebook fills
SECONDS = 100  # after which a kernel is given up
PACKAGE = str(Path(__file__).resolve().parent.parent)


def environment(*folders: str) -> dict[str, str]:
    """The environment of a kernel that can import what is in these folders."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (*folders, JUPYTER)))}


@dataclass
class Said:
    """What a cell has shown. Of displays that were replaced, only the newest is left."""

    printed: str = ""
    error: str = ""  # the exception's class
    shown: dict[str, dict[str, str]] = field(default_factory=dict)  # displays, by their ids or numbers
    stdin: int = 0  # how often it has asked for input

    @property
    def lines(self) -> list[str]:
        """What headroom has said."""
        texts = [d["text/plain"].removeprefix("headroom: ") for d in self.shown.values() if "text/plain" in d]
        return [t for t in texts if t]

    def note(self, kind: str, content: Any) -> None:
        if kind == "stream":
            self.printed += content["text"]
        elif kind == "error":
            self.error = content["ename"]
        elif kind in ("display_data", "update_display_data"):
            number = content.get("transient", {}).get("display_id") or str(len(self.shown))
            self.shown[number] = content["data"]
        elif kind == "execute_result":
            self.printed += content["data"]["text/plain"]


class Kernel:
    """A kernel that has been started, as a context: it is shut down at its end, as Jupyter does it. ``name`` is that of
    a kernelspec. It can import what is in ``folders``."""

    def __init__(self, *folders: str, name: str = "python3") -> None:
        self.manager = KernelManager(kernel_name=name)
        self.manager.start_kernel(env=environment(*folders))
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)

    def __enter__(self) -> Kernel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=kind is not None)

    def run(self, code: str, *answers: str, until: Callable[[Said], Any] = lambda _: None) -> Said:
        """Runs a cell. ``answers`` are given where it asks for input. ``until`` is called after each of its messages."""
        said, left = Said(), [*answers]

        def heard(message: Any) -> None:
            said.note(message["header"]["msg_type"], message["content"])
            until(said)

        def asked(_: Any) -> None:
            said.stdin += 1
            self.client.input(left.pop(0) if left else "q")

        self.client.execute_interactive(
            code, timeout=SECONDS, output_hook=heard, stdin_hook=asked, allow_stdin=True, stop_on_error=False
        )
        return said

    def restart(self) -> None:
        self.manager.restart_kernel()
        self.client.wait_for_ready(timeout=SECONDS)
