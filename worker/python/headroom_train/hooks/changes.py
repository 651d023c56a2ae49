"""What the worker changes in torch, and how each change is undone: only if it is still there.

A script may replace the same things, before the worker, after it, or between two steps. What was
there before is called by what replaces it, and what came later is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_made: dict[int, Change] = {}  # those that stand, by their ids, in the order in which they were made


class Change:
    """One attribute of a class or module, replaced until :meth:`undo`. ``before`` is what the owner
    itself had under that name, a descriptor such as a staticmethod included. A ``lasting`` change stays when the
    worker is taken out."""

    def __init__(self, owner: Any, name: str, value: Any, lasting: bool = False) -> None:
        self._owner, self._name, self.before = owner, name, vars(owner)[name]
        setattr(owner, name, value)
        self._ours = vars(owner)[name]
        if not lasting:
            _made[id(self)] = self

    def undo(self) -> None:
        """Puts back what was there, unless something else has come in our place."""
        _made.pop(id(self), None)
        if vars(self._owner).get(self._name) is self._ours:
            setattr(self._owner, self._name, self.before)


def undo_all() -> None:
    """Undoes all changes, the newest first."""
    for change in reversed([*_made.values()]):
        change.undo()


@contextmanager
def changed(owner: Any, name: str, value: Any) -> Iterator[None]:
    """A context with one :class:`Change`."""
    change = Change(owner, name, value)
    try:
        yield
    finally:
        change.undo()
