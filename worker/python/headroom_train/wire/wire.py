"""The wire to headroom: JSON, one message per line, over the Unix socket that HEADROOM_SOCKET names.

Training never waits for headroom, except where memory has run out and nothing could be done about it.
Nothing here raises an exception. Incoming data is parsed as JSON and nothing else.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import platform
import select
import socket
import sys
import threading
import time
from typing import Any

from headroom_train._version import __version__

VERSION = 2
LINE = 1 << 20  # the most bytes in a line, in either direction
PENDING = 1 << 18  # the most bytes that may wait to be sent
GREETING = 2.0  # seconds to wait for the plan, once in a process
HEARING = 2.0  # seconds to wait until a refusal has been acknowledged
FLAGS = getattr(socket, "MSG_NOSIGNAL", 0) | getattr(socket, "MSG_DONTWAIT", 0)

Message = dict[str, Any]


class Wire:
    """One process's connection. Its methods may be called from any thread."""

    _of: Wire | None = None
    _tried = False
    _making = threading.Lock()

    def __init__(self, path: str) -> None:
        self._lock = threading.RLock()
        self._in = bytearray()
        self._out = b""
        self._asked = 0
        self._plan: Message = {}
        self.asked_to_look = False  # headroom has asked what grows
        self.asked_for_memory = False  # headroom has asked what all memory is held for
        self.made = (0, 0.0)  # optimizer steps of this process, reported or not, and when the newest one ended
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(GREETING)
        try:
            self._socket.connect(path)
            self._socket.setblocking(False)
        except OSError:
            self._lose()

    @classmethod
    def get(cls) -> Wire | None:
        """This process's wire, connected at the first call; None if there is no connection to headroom."""
        if not cls._tried:
            with cls._making:
                path = os.environ.get("HEADROOM_SOCKET")
                if path and not cls._tried:
                    cls._of = cls(path)
                    atexit.register(cls._of.bye)
                cls._tried = True
        wire = cls._of
        return wire if wire is not None and wire._socket is not None else None

    @classmethod
    def _forked(cls) -> None:
        """Drops the parent's connection in a forked child, which makes one of its own if it needs
        one."""
        wire, cls._of, cls._tried, cls._making = cls._of, None, False, threading.Lock()
        if wire is not None:
            wire._lose()
            atexit.unregister(wire.bye)

    @property
    def alive(self) -> bool:
        return self._socket is not None

    @property
    def armed(self) -> bool:
        """Whether the process is to recover from failures, rather than only observe them."""
        return bool(self._plan.get("mode", os.environ.get("HEADROOM_WORKER", "armed")) == "armed")

    @property
    def limit(self) -> int:
        """The number of rows to run at once from the start, as learned in an earlier attempt; 0 if nothing was
        learned."""
        return self._rows("limit")

    @property
    def asked(self) -> int:
        """The number of rows to run at once at most, as the user has asked; 0 for any number."""
        return self._rows("micro")

    @property
    def found(self) -> bool:
        """Whether that number was found: a step can be made in such pieces, and not as a whole."""
        return self._plan.get("found") is True

    def _rows(self, name: str) -> int:
        rows = self._plan.get(name)
        return rows if isinstance(rows, int) and rows > 0 else 0

    def hello(self, **f: Any) -> Message | None:
        """Introduce this process, and return headroom's plan; None if there is no answer. Called once per process."""
        fields = {
            "v": VERSION,
            "pid": os.getpid(),
            "rank": _number("RANK", 0),
            "world": _number("WORLD_SIZE", 1),
            "python": platform.python_version(),
            "headroom": __version__,
            "mode": os.environ.get("HEADROOM_WORKER", "armed"),
        }
        with self._lock:
            self._send("hello", {**fields, **f})
            until = time.monotonic() + GREETING
            while self._plan.get("v") is None:
                message = self._receive(until)
                if message is None:
                    return None
                self._take(message)
            return dict(self._plan)

    def step(self, **f: Any) -> None:
        """Report a finished optimizer step. Never waits: if the connection is busy, the step goes
        unreported."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._flush():
                self._send("step", f)
            message = self._receive(0)
            while message is not None:
                self._take(message)
                message = self._receive(0)
        finally:
            self._lock.release()

    def note(self, text: str, level: str = "info", **f: Any) -> None:
        """Add a sentence to the journal.

        With the level "warning" the sentence is also shown to the user.
        """
        with self._lock:
            self._send("note", {**f, "text": str(text)[:4000], "level": level})

    def holds(self, **f: Any) -> None:
        """Report what holds memory that grows."""
        with self._lock:
            self._send("holds", f)

    def refused(self, why: str, **f: Any) -> None:
        """Report that a failure is left to the user's code, and why, with what is known about the failure. Waits
        up to :data:`HEARING` seconds for headroom to acknowledge the report, so that headroom's message appears
        before the traceback."""
        with self._lock:
            self._asked += 1
            self._send("refused", {**f, "why": str(why)[:4000], "id": self._asked})
            self._wait_for(self._asked)

    def memory(self, **f: Any) -> None:
        """Report what the memory of a device, or of this process on the host, is held for. Waits up to
        :data:`HEARING` seconds for headroom, which asks the driver meanwhile: both see the same moment."""
        with self._lock:
            self._asked += 1
            self._send("memory", {**f, "id": self._asked})
            self._wait_for(self._asked)

    def _wait_for(self, asked: int) -> None:
        """Wait until headroom has acknowledged the message with an id."""
        until = time.monotonic() + HEARING
        message = self._receive(until)
        while message is not None and not (message.get("type") == "heard" and message.get("id") == asked):
            self._take(message)
            message = self._receive(until)

    def tracks(self, **f: Any) -> None:
        """Report a run that the script has open in a tracker."""
        with self._lock:
            self._send("tracks", f)

    def check(self, **f: Any) -> None:
        """Report what was found in the first step."""
        with self._lock:
            self._send("check", f)

    def trial(self, kind: str, **f: Any) -> Message | None:
        """Report the outcome of a trial, or that trials can begin, and return what headroom asks for next. Waits for
        it; None if headroom is gone."""
        with self._lock:
            self._send(kind, f)
            while True:
                message = self._receive(math.inf)
                if message is None or message.get("type") == "try":
                    return message
                self._take(message)

    def oom(self, **f: Any) -> None:
        """Report a failure. A later message says what became of it: survived or refused."""
        with self._lock:
            self._send("oom", f)

    def survived(self, **f: Any) -> None:
        """Report how the process has recovered from the failures that :meth:`oom` has reported since the last step."""
        with self._lock:
            self._send("survived", f)

    def bye(self) -> None:
        """Close the connection at the end of the process. First tell headroom how many steps the process has
        completed and how many seconds ago the last one ended, since not every step is reported."""
        steps, ended = self.made
        with self._lock:
            self._send("bye", {"step": steps, "seconds": time.monotonic() - ended} if steps else {})
            self._lose()

    def _take(self, message: Message) -> None:
        """Handle a message that headroom sends unasked."""
        if message.get("type") == "plan":
            if message.get("v") == VERSION:
                self._plan = message
            else:
                self._lose()  # headroom uses another version of the protocol
        elif message.get("type") == "look":
            self.asked_to_look = True
        elif message.get("type") == "account":
            self.asked_for_memory = True

    def _send(self, kind: str, fields: Message) -> None:
        """Append a message to those that are waiting, if there is room, and send what can be sent."""
        try:
            line = json.dumps({"type": kind, **fields}, allow_nan=False, default=str).encode() + b"\n"
        except (TypeError, ValueError, RecursionError):
            return
        if self._socket is not None and len(line) <= LINE and len(self._out) + len(line) <= max(PENDING, len(line)):
            self._out += line
            self._flush()

    def _flush(self) -> bool:
        """Send as much of the waiting data as the socket accepts now. Returns whether nothing is left to send;
        False if the connection is lost."""
        while self._out and self._socket is not None:
            try:
                self._out = self._out[self._socket.send(self._out, FLAGS) :]
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                self._lose()
        return self._socket is not None

    def _receive(self, until: float) -> Message | None:
        """The next message; None if none arrives before ``until``, a time on the monotonic clock. If ``until`` is
        0, this method does not wait."""
        while True:
            end = self._in.find(b"\n")
            if end >= 0:
                line = bytes(self._in[:end])
                del self._in[: end + 1]
                message = _parse(line)
                if message is not None:
                    return message
                continue
            if len(self._in) > LINE:
                self._lose()
            if self._socket is None or not self._wait(until):
                return None
            try:
                got = self._socket.recv(1 << 16, FLAGS)
            except (BlockingIOError, InterruptedError):
                if until == 0:
                    return None
                continue
            except OSError:
                got = b""
            if not got:
                self._lose()
            self._in += got

    def _wait(self, until: float) -> bool:
        """Wait until there is something to read, or until some of the waiting messages can be sent,
        and send those. Returns False if the time ``until`` has come or the connection is lost."""
        if until == 0 or self._socket is None:
            return True
        left = until - time.monotonic()
        if left <= 0:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._out else 0))
        try:
            events = poll.poll(None if left == math.inf else left * 1000)
        except (OSError, ValueError):
            self._lose()
            return False
        if events and events[0][1] & select.POLLOUT:
            self._flush()
        return bool(events) and self._socket is not None

    def _lose(self) -> None:
        """Close the connection: headroom is gone."""
        lost, self._socket, self._out = self._socket, None, b""
        if lost is not None:
            try:
                lost.close()
            except OSError:
                pass


def notice(text: str) -> None:
    """Write a line to standard error, for the user. Used when headroom is not there to show it."""
    try:
        sys.stderr.write(f"headroom: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


def _parse(line: bytes) -> Message | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _number(variable: str, otherwise: int) -> int:
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        return otherwise


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=Wire._forked)
