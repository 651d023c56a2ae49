"""Which thread's calls are recorded.

A training may run in any thread, not only in the one that imported torch. What is under way is kept
for each thread by itself, since nothing keeps a second thread from calling modules meanwhile. But
what is known about modules, sizes and memory belongs to the process, so only one thread, the *owner*,
begins to record calls. Another thread that trains becomes the owner as soon as the owner is not in the
midst of a step, or has ended.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Callable, Optional

# Where a call is made: within a module that hides those inside, or one in no optimizer, which may call those that
# are trained.
OUTSIDE, APART, WITHIN = range(3)


class Thread:
    """What one thread is doing. Unlike a thread's id it is never used again. ``life`` is freed when the thread ends."""

    def __init__(self, life: Any) -> None:
        self._life = weakref.ref(life)
        self.busy = False  # inside a module, a replay, or a function of ours
        self.within = OUTSIDE  # of an outermost module that is called without being recorded
        self.stepping = False  # in a function of headroom_train.step that is run for its gradients alone
        self.searched = False  # a search for modules has lasted for one of its steps
        self.training: set[int] = set()  # numbers of the modules that it has called in this step
        self.tape: Any = None  # of the step that it is in; None between steps
        self.deferred: weakref.WeakSet[Any] = weakref.WeakSet()  # tapes with deferred tensors, until weights change

    def alive(self) -> bool:
        """Whether the thread has not ended."""
        return self._life() is not None

    def in_step(self) -> bool:
        """Whether somebody still needs what was recorded on this thread, or something is being recorded."""
        tape = self.tape
        return self.busy or len(self.deferred) > 0 or tape is not None and not tape.step.over and tape.alive()


class _Life:
    """Refers to nothing, and nothing but its thread refers to it."""


class _Each(threading.local):
    def __init__(self) -> None:
        self._life = _Life()
        self.thread = Thread(self._life)


class Owner:
    """The owner, and the threads beside it."""

    def __init__(self) -> None:
        self._each = _Each()
        self._lock = threading.Lock()
        self._owner: Callable[[], Optional[Thread]] = lambda: None
        self._callers: weakref.WeakSet[Thread] = weakref.WeakSet()

    def mine(self) -> Thread:
        """What the calling thread is doing."""
        return self._each.thread

    def now(self) -> Optional[Thread]:
        """The owner; None if no thread has recorded anything yet, or the owner has ended."""
        owner = self._owner()
        return owner if owner is not None and owner.alive() else None

    def claim(self, trains: bool) -> bool:
        """Called by a thread before it records a call, or, if not ``trains``, before it watches one without
        gradients. Returns whether it is the owner, if necessary from now on."""
        mine = self._each.thread
        if self._owner() is mine:
            return True
        with self._lock:
            self._callers.add(mine)
            owner = self.now()
            if owner is None or trains and not owner.in_step():
                self._owner = weakref.ref(mine)
            return self._owner() is mine

    def alone(self) -> bool:
        """Whether no more than one living thread has called modules."""
        return sum(thread.alive() for thread in self._callers) < 2
