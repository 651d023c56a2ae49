"""Values of expressions, and what happens to them: all that rules ask about."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple, Optional


class Value:
    """What an expression was found to be."""

    def __init__(
        self, how: str, node: ast.AST, loops: tuple[ast.AST, ...], parts: tuple[Optional[Value], ...] = ()
    ) -> None:
        # output: of a model; keeps: has gradients if any part has; join: if every part has; detached: has none, but
        # is a tensor; container; number; unknown; several: a tuple of what its parts are
        self.how = how
        self.node = node
        self.loops = loops  # in which it is made, outermost first
        self.parts = [part for part in parts if part is not None]
        self.names: set[str] = set()  # of the variables that hold it
        self.marked = False  # backward is called on it
        self.single = False  # it is certainly a single number

    def gradients(self, known: Optional[dict[int, bool]] = None) -> bool:
        """Whether it certainly carries gradients. ``known`` has the answers that are known already: without them,
        each branch of a script would double the time."""
        known = {} if known is None else known
        if id(self) not in known:
            known[id(self)] = self.marked or self.how == "output"
            if not known[id(self)] and self.how in ("keeps", "several"):
                known[id(self)] = any(part.gradients(known) for part in self.parts)
            elif not known[id(self)] and self.how == "join" and self.parts:
                known[id(self)] = all(part.gradients(known) for part in self.parts)
        return known[id(self)]

    def mark(self) -> None:
        """Notes that backward is called on it."""
        if self.marked:
            return
        self.marked = True
        tensors = [part for part in self.parts if part.how != "number"]
        if self.how == "join" or (self.how == "keeps" and len(tensors) == 1):
            for part in tensors:
                part.mark()

    def numbers(self) -> None:
        """Notes that it is a single number, as what backward is called on is, and so is all that arithmetic has made
        it of."""
        left = [self]
        while left:
            value = left.pop()
            node = value.node
            scales = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "scale"
            if not value.single and (scales or isinstance(node, (ast.BinOp, ast.AugAssign))):
                left += value.parts
            value.single = True

    def slice(self) -> Iterator[Value]:
        """It, and all that it is computed from."""
        seen, left = set(), [self]
        while left:
            value = left.pop()
            if id(value) not in seen:
                seen.add(id(value))
                left.extend(value.parts)
                yield value

    def sources(self) -> list[Value]:
        """The values without which it would carry no gradients."""
        known: dict[int, bool] = {}
        found, seen, left = [], set(), [self]
        while left:
            value = left.pop(0)
            if id(value) in seen or not value.gradients(known):
                continue
            seen.add(id(value))
            if value.marked or value.how == "output":
                found.append(value)
            else:
                left.extend(value.parts)
        return found


class Backward(NamedTuple):
    """A place where gradients are computed."""

    own: Optional[ast.Call]  # of a tensor's own backward, if it is one
    value: Optional[Value]  # None in a function that is called
    loops: tuple[ast.AST, ...]
    goes_on: bool = False  # something is computed from the gradients, with gradients


class Kept(NamedTuple):
    """A value that is put into a container."""

    node: ast.stmt
    container: ast.expr
    name: str  # of the container
    is_list: bool  # it grows with every value
    holds: Optional[Value]  # the container
    expression: ast.expr
    value: Value
    loops: tuple[ast.AST, ...]


class Summed(NamedTuple):
    """A value that is added to a variable."""

    node: ast.stmt
    target: ast.expr
    before: Optional[Value]
    expression: ast.expr
    value: Value
    loops: tuple[ast.AST, ...]


class Evaluated(NamedTuple):
    """A call of a model that computes gradients, in evaluation mode or in one that is not known."""

    node: ast.Call
    model: str
    loops: tuple[ast.AST, ...]
    known: bool  # whether the function itself puts the model into this mode


class Escaped(NamedTuple):
    """A call that nothing is known of, with a value among its arguments."""

    value: Value
    result: Value
    loops: tuple[ast.AST, ...]
