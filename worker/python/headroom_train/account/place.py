"""The place at which the script fills what holds memory, and what it does with it besides."""

from __future__ import annotations

import ast
from collections import deque
from typing import Any, NamedTuple, Optional

import torch

from ..tape.trees import is_a
from . import kinds
from .holding import LRU, Name, class_file
from .kinds import Text
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


def place(names: list[Name], near: Optional[tuple[str, int]], root: bool = False, holder: Any = None) -> Optional[Kept]:
    """The name under which the script fills a holder; if it is filled at several places, the one nearest to the line
    ``near``. With ``root``, only a value that is made of the earlier one counts."""
    for some in ([n for n in names if not n.library], [n for n in names if n.library]):
        found = [kept for name in some for kept in _fills(name, root)]
        if found:
            return min(found, key=lambda k: _distance(k, near))
    return _of_itself(holder, names) or _passed(names) or (_unfilled(names[0]) if names else None)


def _passed(names: list[Name]) -> Optional[Kept]:
    """The place at which a holder is given to a function that may fill it."""
    for name in names:
        for file in name.files:
            text = source(file)
            passed = text.passed(name.last, name.attribute, name.within) if text is not None else None
            if passed:
                return Kept(name, file, None, text, passed)
    return None


def _unfilled(name: Name) -> Kept:
    """A name alone, as no place is seen."""
    file = name.files[0] if name.files else ""
    return Kept(name, file, None, source(file) if name.files else None)


def _fills(name: Name, root: bool) -> list[Kept]:
    """The places at which something is put into what has a name, in the first file that has any."""
    for file in name.files:
        text = source(file)
        if text is None:
            continue
        every = text.keeps(name.last, name.attribute, name.within) or text.keeps(name.last, name.attribute)
        if not every and not name.attribute:
            every = [k for k in text.keeps(name.last, True) if not root]
        if every:
            return [Kept(name, file, k, text) for k in every]
    return []


def _of_itself(holder: Any, names: list[Name]) -> Optional[Kept]:
    """The place at which a container of a class of the script's puts something into itself."""
    kind = type(holder)
    if not names or not is_a(holder, (list, dict, set, deque)) or kind.__module__ in ("builtins", "collections"):
        return None
    for file in dict.fromkeys((*class_file(kind), *(file for name in names for file in name.files))):
        text = source(file)
        keeps = text.of_itself(kind.__name__) if text is not None else None
        if keeps is not None:
            return Kept(names[0], file, keeps._replace(name=names[0].text, call=""), text)
    return None


def _distance(kept: Kept, near: Optional[tuple[str, int]]) -> tuple:
    assert kept.keeps is not None
    looped = bool(kept.text is not None and kept.text.in_loop(kept.keeps.line) or kept.keeps.functions)
    if near is None or kept.file != near[0]:
        return (_elsewhere(kept), 1, not looped, 0)
    return (_elsewhere(kept), 0, not looped, abs(kept.keeps.line - near[1]))


def _elsewhere(kept: Kept) -> int:
    """0 if something is put into just the part of a container that holds it, 1 if that cannot be told, 2 if not."""
    assert kept.keeps is not None
    if kept.name.key is None or not kept.keeps.part:
        return 1
    key = kept.keeps.part[0]
    return 1 if not isinstance(key, ast.Constant) else 0 if key.value == kept.name.key else 2


def direct(kept: Optional[Kept], path: tuple[Any, ...]) -> bool:
    """Whether the value that the script puts in is the tensor itself, and not something that has it. ``path`` has the
    objects between the tensor and the holder, and the tensor."""
    k = kept.keeps if kept is not None else None
    if kept is None or k is None or k.spread:
        return False
    return 0 < len(path) <= 1 + max(0, len(k.part) - (kept.name.key is not None))


def statement(kept: Optional[Kept], direct: bool = True) -> Text:
    """How the script fills a holder, ``direct`` if with tensors themselves."""
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
    return Text(k.name, k.call, k.end, ast.unparse(value), _operand(base), several, direct)


def _operand(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) else f"({text})"


def made(kept: Optional[Kept]) -> str:
    if kept is None or kept.keeps is None or kept.text is None:
        return ""
    line = kept.text.made(kept.keeps.value, kept.keeps.line)
    return f"{kept.file}:{line}" if line else ""


def patience(
    kind: str, holder: Any, kept: Optional[Kept], graph: bool, limited: bool = False, steady: bool = True
) -> int:
    """The step before which what grows may still be meant to: it may stop, or be emptied. ``limited`` if it is inside
    something that takes only so many, ``steady`` unless it is seen to grow more and more slowly."""
    if limited or _takes_only_so_many(holder):
        return NEVER
    if kind == kinds.MODELS and _list_of_modules(holder):
        return MANAGED  # a model that is built layer by layer
    if is_a(holder, LRU):
        return SURE
    if graph and kind not in (kinds.CACHE, kinds.HOOK):
        return 0  # once the weights have changed, the graph is of no use any more
    if kept is not None and kept.text is not None:
        if _managed(kept, kept.text):
            return MANAGED
        if is_a(holder, dict) and not steady and _under_some_keys(kept, kept.text):
            return SURE  # as many as there are different keys
    return SURE if kind == kinds.CACHE else 0


def _takes_only_so_many(holder: Any) -> bool:
    if is_a(holder, LRU):
        return holder.cache_parameters()["maxsize"] is not None
    return is_a(holder, deque) and holder.maxlen is not None


def _under_some_keys(kept: Kept, text: Source) -> bool:
    """Whether a value may take the place of an earlier one: its key need not be another one each time."""
    key = kept.keeps.key if kept.keeps is not None else None
    return key is not None and not text.counted(key)


def _managed(kept: Kept, text: Source) -> bool:
    """Whether the script itself may see to it that something does not grow for ever."""
    name = kept.name
    return (
        text.takes(name.last, name.attribute, name.within)
        or (name.within is not None and text.takes(name.last, name.attribute))
        or (kept.keeps is not None and kept.keeps.limited)
        or text.bounded(name.last, name.attribute)
        or name.temporary
    )


def _list_of_modules(holder: Any) -> bool:
    """Whether a dict is where a ``ModuleList`` has its modules."""
    return type(holder) is dict and all(
        type(key) is str and key == str(i) and is_a(module, torch.nn.Module)
        for i, (key, module) in enumerate(holder.items())
    )
