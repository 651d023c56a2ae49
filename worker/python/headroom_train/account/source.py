"""Reads the script's own source, once memory has been seen to grow: where something is put into a container, and
whether anything is ever taken out of it. Nothing is executed."""

from __future__ import annotations

import ast
import linecache
import os
import tokenize
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Optional, Union

PUTS = {"append", "appendleft", "add", "extend", "insert", "update", "setdefault", "put", "push", "__setitem__"}
TAKES = {"pop", "popleft", "popitem", "clear", "remove", "discard", "get_nowait"}
LOOKS_UP = {"get", "setdefault"}
HOOKS = "register_"
_COPIES = {"detach", "clone", "cpu", "cuda", "to", "float", "double", "half", "contiguous", "numpy", "copy", "data"}
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
Function = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda]


class Keeps(NamedTuple):
    """A place at which a value is put into a container, or a variable is made from its own earlier value."""

    line: int
    name: str  # the container, as the script writes it
    call: str  # the statement's beginning, such as ``seen.append(``, and its end
    end: str
    value: Optional[ast.expr]  # what is put in
    functions: tuple[Function, ...]  # around it, outermost first


class Source:
    """A file of the user's, parsed."""

    def __init__(self, file: str, tree: ast.Module) -> None:
        self.file, self._tree = file, tree
        self._around: dict[ast.AST, tuple[ast.AST, ...]] = {}
        self._walk(tree, ())

    def _walk(self, node: ast.AST, around: tuple[ast.AST, ...]) -> None:
        todo: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(node, around)]
        while todo:
            at, outer = todo.pop()
            self._around[at] = outer
            todo += [(child, (*outer, at)) for child in ast.iter_child_nodes(at)]

    def functions(self, node: ast.AST) -> tuple[Function, ...]:
        return tuple(n for n in self._around[node] if isinstance(n, _FUNCTIONS))

    def in_loop(self, line: int) -> bool:
        """Whether a line is in a loop of its own function."""
        nodes = [n for n in self._around if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or n.lineno)]
        inner = max(nodes, key=lambda n: len(self._around[n]), default=None)
        if inner is None:
            return False
        for n in reversed((*self._around[inner], inner)):
            if isinstance(n, _FUNCTIONS):
                return False
            if isinstance(n, _LOOPS) and n.lineno != line:
                return True
        return False

    def _is(self, node: ast.AST, name: str, attribute: bool) -> bool:
        """Whether an expression is the container of that name, or a part of it."""
        while isinstance(node, ast.Subscript):
            node = node.value
        if isinstance(node, ast.Attribute):
            return attribute and node.attr == name
        return isinstance(node, ast.Name) and node.id == name and not attribute

    def _scope(self, within: Optional[tuple[int, str]]) -> list[ast.AST]:
        """The nodes of a function, given by its first line and name, or of the whole file."""
        if within is not None:
            for node in self._around:
                if isinstance(node, _FUNCTIONS):
                    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
                    if first == within[0] and getattr(node, "name", "<lambda>") == within[1]:
                        return [n for n in ast.walk(node)]
        return [*self._around]

    def keeps(self, name: str, attribute: bool, within: Optional[tuple[int, str]] = None) -> list[Keeps]:
        """The places at which something is put into a container that a variable or an attribute names."""
        found = []
        for node in self._scope(within):
            found += [*self._put(node, name, attribute)]
        return sorted(found, key=lambda k: k.line)

    def _put(self, node: ast.AST, name: str, attribute: bool) -> Iterator[Keeps]:
        functions = self.functions(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PUTS:
            if self._is(node.func.value, name, attribute) and node.args:
                target, front = ast.unparse(node.func.value), [ast.unparse(a) for a in node.args[:-1]]
                call = f"{target}.{node.func.attr}(" + "".join(f"{a}, " for a in front)
                yield Keeps(node.lineno, target, call, ")", node.args[-1], functions)
        elif isinstance(node, ast.AugAssign) and self._is(node.target, name, attribute):
            op = {ast.Add: "+=", ast.Sub: "-=", ast.BitOr: "|="}.get(type(node.op), "+=")
            yield Keeps(
                node.lineno, ast.unparse(node.target), f"{ast.unparse(node.target)} {op} ", "", node.value, functions
            )
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            flat = [t for target in targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
            for target in flat:
                if self._is(target, name, attribute):
                    own = any(self._is(n, name, attribute) for n in ast.walk(node.value) if isinstance(n, ast.expr))
                    if isinstance(target, ast.Subscript):
                        kept = ast.unparse(target.value)
                        yield Keeps(node.lineno, kept, f"{ast.unparse(target)} = ", "", node.value, functions)
                    elif own:
                        text = ast.unparse(target)
                        yield Keeps(node.lineno, text, f"{text} = ", "", node.value, functions)

    def assigned(self, name: str, attribute: bool, within: Optional[tuple[int, str]] = None) -> list[int]:
        """The lines of all assignments to a variable or attribute."""
        found = []
        for node in self._scope(within):
            if isinstance(node, ast.Assign):
                targets: list[ast.expr] = node.targets
            elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For)):
                targets = [node.target]
            else:
                continue
            flat = [t for target in targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
            if any(not isinstance(t, ast.Subscript) and self._is(t, name, attribute) for t in flat):
                found.append(node.lineno)
        return sorted(found)

    def passed(self, name: str, attribute: bool, within: Optional[tuple[int, str]] = None) -> Optional[int]:
        """The line of a loop at which the container is given to a function, if nothing puts anything in directly."""
        for node in self._scope(within):
            if isinstance(node, ast.Call) and any(self._is(a, name, attribute) for a in node.args):
                if self.in_loop(node.lineno) and not (isinstance(node.func, ast.Name) and node.func.id in _READS):
                    return node.lineno
        return None

    def takes(self, name: str, attribute: bool, within: Optional[tuple[int, str]] = None) -> bool:
        """Whether anything is ever taken out of a container, or the container is made anew in a loop."""
        for node in self._scope(within):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in TAKES:
                if self._is(node.func.value, name, attribute):
                    return True
            elif isinstance(node, ast.Delete) and any(self._is(t, name, attribute) for t in node.targets):
                return True
            elif isinstance(node, ast.Assign):
                own = any(self._is(n, name, attribute) for n in ast.walk(node.value) if isinstance(n, ast.expr))
                for target in node.targets:
                    if not self._is(target, name, attribute):
                        continue
                    if isinstance(target, ast.Subscript):
                        ring = any(isinstance(n, (ast.Mod, ast.Slice)) for n in ast.walk(target.slice))
                        if ring:
                            return True
                    elif own and any(isinstance(n, ast.Slice) for n in ast.walk(node.value)):
                        return True  # seen = seen[-100:]
                    elif not own and (self._looped(node) or attribute and self._again(node)):
                        return True
        return False

    def bounded(self, name: str, attribute: bool) -> bool:
        """Whether the script ever compares the length of a container."""
        for node in self._around:
            if isinstance(node, ast.Compare):
                for part in ast.walk(node):
                    if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "len":
                        if part.args and self._is(part.args[0], name, attribute):
                            return True
        return False

    def _looped(self, node: ast.AST) -> bool:
        for outer in reversed(self._around[node]):
            if isinstance(outer, _FUNCTIONS):
                return False
            if isinstance(outer, _LOOPS):
                return True
        return False

    def _again(self, node: ast.AST) -> bool:
        """Whether an attribute is set elsewhere than where its object is made."""
        functions = self.functions(node)
        return bool(functions) and getattr(functions[-1], "name", "") not in {"__init__", "__post_init__", "setup"}

    def looks_up(self, name: str, attribute: bool) -> bool:
        """Whether the script asks a container whether it has something already, as a cache is asked."""
        for node in self._around:
            if isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
                if any(self._is(c, name, attribute) for c in node.comparators):
                    return True
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS_UP:
                if self._is(node.func.value, name, attribute):
                    return True
            elif isinstance(node, ast.Try) and any("KeyError" in ast.dump(h.type) for h in node.handlers if h.type):
                if any(self._is(n, name, attribute) for n in ast.walk(node) if isinstance(n, ast.Subscript)):
                    return True
        return False

    def hooked(self, functions: tuple[Function, ...]) -> bool:
        """Whether one of some functions is registered as a hook."""
        names = {getattr(f, "name", "") for f in functions} - {""}
        for node in self._around:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr.startswith(HOOKS) and "hook" in node.func.attr:
                    inner = [n for a in node.args for n in ast.walk(a)]
                    if any(n in functions for n in inner):
                        return True
                    given = {n.id for n in inner if isinstance(n, ast.Name)}
                    given |= {n.attr for n in inner if isinstance(n, ast.Attribute)}
                    if given & names:
                        return True
        return False

    def evaluates(self, line: int) -> bool:
        """Whether a line is in a part of the script that evaluates: after ``.eval()`` in its function, without
        ``backward()``, or in a function that is named so."""
        for node in self._around:
            if isinstance(node, _FUNCTIONS) and not isinstance(node, ast.Lambda):
                if node.lineno <= line <= (node.end_lineno or node.lineno):
                    called = {
                        n.func.attr for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
                    }
                    named = any(word in node.name.lower() for word in ("eval", "valid", "test"))
                    if "backward" not in called and ("eval" in called or named):
                        return True
        return self._after_eval(line)

    def _after_eval(self, line: int) -> bool:
        newest = ""
        for node in sorted((n for n in self._around if isinstance(n, ast.Call)), key=lambda n: n.lineno):
            if node.lineno <= line and isinstance(node.func, ast.Attribute) and not node.keywords:
                if node.func.attr in {"eval", "train"} and not node.args or node.func.attr == "backward":
                    newest = node.func.attr
        return newest == "eval"

    def retains(self, name: str = "retain_graph") -> Optional[int]:
        """The line of a backward pass that keeps its graph."""
        for node in self._around:
            if isinstance(node, ast.Call):
                for k in node.keywords:
                    if k.arg == name and isinstance(k.value, ast.Constant) and k.value.value is True:
                        return node.lineno
        return None

    def made(self, value: Optional[ast.expr], line: int) -> int:
        """The line before ``line`` at which what is put in was made; 0 if it cannot be told."""
        base = stripped(value) if value is not None else None
        if isinstance(base, (ast.Tuple, ast.List)) and base.elts:
            base = stripped(base.elts[0])
        if not isinstance(base, ast.Name):
            return line if isinstance(base, (ast.Call, ast.BinOp)) else 0
        inner = [
            f
            for f in self._around
            if isinstance(f, _FUNCTIONS) and f.lineno <= line <= (f.end_lineno or f.lineno)
        ]
        scope = max(inner, key=lambda f: len(self._around[f]), default=self._tree)
        lines = []
        for node in ast.walk(scope):
            if isinstance(node, ast.Assign):
                flat = [t for target in node.targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
                if any(isinstance(t, ast.Name) and t.id == base.id for t in flat) and node.lineno <= line:
                    rebound = stripped(node.value)
                    if not (isinstance(rebound, ast.Name) and rebound.id == base.id):
                        lines.append(node.lineno)
        return max(lines, default=0)


_READS = {"len", "print", "sum", "max", "min", "enumerate", "zip", "list", "iter", "range", "str", "repr", "sorted"}


def stripped(value: ast.expr) -> ast.expr:
    """What a copy, a view or a conversion is made of: ``loss`` of ``loss.detach().cpu()``."""
    while True:
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in _COPIES:
            value = value.func.value
        elif isinstance(value, ast.Attribute) and value.attr in _COPIES:
            value = value.value
        else:
            return value


@lru_cache(maxsize=64)
def source(file: str) -> Optional[Source]:
    """The parsed source of a file; None if there is none, or if it is no Python."""
    try:
        if os.path.isfile(file):
            with tokenize.open(file) as lines:
                text = lines.read()
        else:  # a cell of a notebook
            text = "".join(linecache.getlines(file))
        return Source(file, ast.parse(text)) if text and len(text) < 4 << 20 else None
    except (SyntaxError, ValueError, RecursionError, OSError):
        return None
