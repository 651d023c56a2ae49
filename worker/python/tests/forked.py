"""Runs functions in forked children, a few at a time.

A child begins with everything imported, but with nothing left by another trial: no patch, no plan,
no random state. The parent must never call backward itself, since PyTorch then refuses to run
backward in a forked child.
"""

from __future__ import annotations

import gc
import os
import pickle
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Child:
    pid: int
    task: Any
    until: float
    said: bytearray = field(default_factory=bytearray)


class Died:
    """Why a child has no result: a signal, an exit, a time limit or an exception."""

    def __init__(self, why: str) -> None:
        self.why = why


def start(work: Callable[[Any], Any], task: Any, seconds: float) -> tuple[int, Child]:
    sys.stdout.flush()
    sys.stderr.flush()
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return read, Child(pid, task, time.monotonic() + seconds)
    os.close(read)
    try:
        said = pickle.dumps(work(task))
    except BaseException:
        said = pickle.dumps(Died(traceback.format_exc()))
    try:
        with os.fdopen(write, "wb") as f:
            f.write(said)
    finally:
        os._exit(0)  # so that the parent's exit handlers do not also run in the child, even if the parent is gone


def silenced() -> Callable[[], str]:
    """In a child: captures everything written to stdout and stderr from here on, and returns
    a function that reads it.
    """
    kept = os.memfd_create("said")
    os.dup2(kept, 1)
    os.dup2(kept, 2)

    def said() -> str:
        sys.stdout.flush()
        sys.stderr.flush()
        return os.pread(kept, 1 << 20, 0).decode(errors="replace")

    return said


def finish(child: Child, late: bool) -> Any:
    if late:
        os.kill(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    if late:
        return Died("not done in time")
    if not child.said:
        return Died(f"ended with {os.waitstatus_to_exitcode(status)} and no result")
    return pickle.loads(bytes(child.said))


def checked(checks: Iterable[Callable[[], str]], jobs: int) -> int:
    """Runs checks, each in a child. A check returns what is wrong, or an empty string. Prints the
    outcome of each check, and returns how many failed."""
    failed = 0
    for check, got in forked(lambda check: check(), checks, jobs):
        said = got.why if isinstance(got, Died) else got
        failed += bool(said)
        print(
            f"{'FAILED' if said else 'ok':6} {check.__name__.replace('_', ' ')}{': ' if said else ''}{said}", flush=True
        )
    return failed


def status(checks: Collection[Callable[[], str]]) -> int:
    """Runs the checks of a script, and returns the script's exit status."""
    failed = checked(checks, 2)
    print(f"{len(checks)} checks, {failed} failed")
    return 1 if failed else 0


def forked(
    work: Callable[[Any], Any], tasks: Iterable[Any], jobs: int, seconds: float = 300
) -> Iterator[tuple[Any, Any]]:
    """Yields each task as soon as it ends, together with what ``work`` returned for it in a child,
    or with a :class:`Died`."""
    gc.freeze()  # a garbage collection in a child then leaves alone the memory that it shares with the parent
    left, running = iter(tasks), selectors.DefaultSelector()
    more = True
    while True:
        while more and len(running.get_map()) < jobs:
            try:
                task = next(left)
            except StopIteration:
                more = False
                break
            read, child = start(work, task, seconds)
            running.register(read, selectors.EVENT_READ, child)
        if not running.get_map():
            return
        ready = {key.fd for key, _ in running.select(timeout=1)}
        for key in list(running.get_map().values()):
            child = key.data
            late = time.monotonic() > child.until
            if key.fd in ready:
                part = os.read(key.fd, 1 << 20)
                child.said += part
                if part:
                    continue
            elif not late:
                continue
            running.unregister(key.fd)
            os.close(key.fd)
            yield child.task, finish(child, late)
