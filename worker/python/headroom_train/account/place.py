"""The place at which the script fills what holds memory, and what it does with it besides."""

from __future__ import annotations

import ast
from collections import deque
from typing import Any, NamedTuple, Optional

from . import kinds
from .holding import LRU, Name
from .kinds import Text
from .look import is_a
from .source import Keeps, Source, source, stripped

SURE = 128  # steps before which a cache may still be filling
MANAGED = 1000  # steps before which a container that the script also empties may do so again, or one without a name
NEVER = 1 << 40


class Kept(NamedTuple):
    """A name of a holder, and the place at which the script fills it."""

    name: Name
    file: str
    keeps: Optional[Keeps]
    text: Optional[Source]
    passed: int = 0  # the line at which it is given to a function that may fill it

    @property
    def where(self) -> str:
        """The line, as file:line; empty if it is not known."""
        line = self.keeps.line if self.keeps is not None else self.passed
        return f"{self.file}:{line}" if line else ""


def place(names: list[Name], near: Optional[tuple[str, int]], root: bool = False) -> Optional[Kept]:
    """The name under which the script fills a holder; if it is filled at several places, the one nearest to the line
    ``near``. With ``root``, only a value that is made of the earlier one counts."""
    found: list[Kept] = []
    for name in names:
        for file in name.files:
            text = source(file)
            if text is None:
                continue
            every = text.keeps(name.last, name.attribute, name.within) or text.keeps(name.last, name.attribute)
            if not every and not name.attribute:
                every = [k for k in text.keeps(name.last, True) if not root]
            for k in every:
                found.append(Kept(name, file, k, text))
            if every:
                break
    if found:
        return min(found, key=lambda k: _distance(k, near))
    for name in names:
        for file in name.files:
            text = source(file)
            passed = text.passed(name.last, name.attribute, name.within) if text is not None else None
            if passed:
                return Kept(name, file, None, text, passed)
    if not names:
        return None
    return Kept(
        names[0],
        names[0].files[0] if names[0].files else "",
        None,
        source(names[0].files[0]) if names[0].files else None,
    )


def _distance(kept: Kept, near: Optional[tuple[str, int]]) -> tuple:
    assert kept.keeps is not None
    looped = bool(kept.text is not None and kept.text.in_loop(kept.keeps.line) or kept.keeps.functions)
    if near is None or kept.file != near[0]:
        return (1, not looped, 0)
    return (0, not looped, abs(kept.keeps.line - near[1]))


def statement(kept: Optional[Kept]) -> Text:
    """How the script fills a holder."""
    if kept is None:
        return Text("")
    k = kept.keeps
    if k is None or k.value is None:
        return Text(kept.name.text)
    value, base = k.value, stripped(k.value)
    if isinstance(value, ast.BinOp) and k.call.endswith(" = "):  # total = total + loss
        own = k.call[: -len(" = ")]
        for side, other in ((value.left, value.right), (value.right, value.left)):
            if ast.unparse(side) == own and isinstance(value.op, (ast.Add, ast.Sub)):
                return Text(k.name, f"{k.call}{own} + ", k.end, ast.unparse(other), _operand(stripped(other)))
        return Text(k.name)
    several = isinstance(base, (ast.Tuple, ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.GeneratorExp))
    return Text(k.name, k.call, k.end, ast.unparse(value), _operand(base), several)


def _operand(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) else f"({text})"


def made(kept: Optional[Kept]) -> str:
    if kept is None or kept.keeps is None or kept.text is None:
        return ""
    line = kept.text.made(kept.keeps.value, kept.keeps.line)
    return f"{kept.file}:{line}" if line else ""


def patience(kind: str, holder: Any, kept: Optional[Kept], graph: bool) -> int:
    """The step before which what grows may still be meant to: it may stop, or be emptied."""
    if is_a(holder, deque) and holder.maxlen is not None:
        return NEVER
    if is_a(holder, LRU):
        return NEVER if holder.cache_parameters()["maxsize"] is not None else SURE
    if graph and kind not in (kinds.CACHE, kinds.HOOK):
        return 0  # once the weights have changed, the graph is of no use any more
    if kept is not None and kept.text is not None:
        name = kept.name
        managed = (
            kept.text.takes(name.last, name.attribute, name.within)
            or name.within is not None
            and kept.text.takes(name.last, name.attribute)
        )
        if (
            managed
            or kept.keeps is not None
            and kept.keeps.limited
            or kept.text.bounded(name.last, name.attribute)
            or name.temporary
        ):
            return MANAGED
    return SURE if kind == kinds.CACHE else 0
