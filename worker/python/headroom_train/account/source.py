"""Reads the script's own source, once memory has been seen to grow: where something is put into a container, and
whether anything is ever taken out of it. Nothing is executed."""

from __future__ import annotations

import ast
import linecache
import os
import re
import tokenize
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Optional, Union

from .trigger import BEGAN

PUTS = {"append", "appendleft", "add", "extend", "insert", "update", "setdefault", "put", "push", "set", "__setitem__"}
TAKES = {"pop", "popleft", "popitem", "clear", "remove", "discard", "get_nowait"}
_HOOK = re.compile("register_.*hook")
_OPERATORS = {ast.Add: "+=", ast.Sub: "-=", ast.BitOr: "|="}
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
    limited: bool = False  # done only while something is less than something else


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
        nodes = [n for n in self._around if isinstance(n, ast.stmt) and _has(n, line)]
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
        whole = node
        while isinstance(whole, ast.Subscript) or _called(whole, {"setdefault", "get"}):
            whole = whole.value if isinstance(whole, ast.Subscript) else whole.func.value  # type: ignore[attr-defined]
        if isinstance(whole, ast.Attribute):
            return attribute and whole.attr == name
        return isinstance(whole, ast.Name) and whole.id == name and not attribute

    def _method(self, node: ast.AST, methods: set[str], name: str, attribute: bool) -> bool:
        """Whether an expression calls one of some methods of the container."""
        return _called(node, methods) and self._is(node.func.value, name, attribute)  # type: ignore[attr-defined]

    def _within(self, node: ast.AST, name: str, attribute: bool) -> bool:
        """Whether the container is used anywhere in an expression."""
        return any(isinstance(n, ast.expr) and self._is(n, name, attribute) for n in ast.walk(node))

    def _scope(self, within: Optional[tuple[int, str]]) -> list[ast.AST]:
        """The nodes of a function, given by its first line and name, or of the whole file."""
        if within is not None:
            for node in self._around:
                if isinstance(node, _FUNCTIONS):
                    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
                    if first == within[0] and getattr(node, "name", "<lambda>") == within[1]:
                        return [*ast.walk(node)]
        return [*self._around]

    def keeps(self, name: str, attribute: bool, within: Optional[tuple[int, str]] = None) -> list[Keeps]:
        """The places at which something is put into a container that a variable or an attribute names."""
        found = []
        for node in self._scope(within):
            found += [k._replace(limited=self._limited(node)) for k in self._put(node, name, attribute)]
        return sorted(found, key=lambda k: k.line)

    def _put(self, node: ast.AST, name: str, attribute: bool) -> Iterator[Keeps]:
        functions = self.functions(node)
        if isinstance(node, ast.Call) and node.args and self._method(node, PUTS, name, attribute):
            value = node.args[-1]
            if not (isinstance(value, (ast.List, ast.Dict)) and not ast.unparse(value)[1:-1]):  # setdefault(key, [])
                target = ast.unparse(node.func.value)  # type: ignore[attr-defined]
                front = "".join(f"{ast.unparse(a)}, " for a in node.args[:-1])
                call = f"{ast.unparse(node.func)}({front}"
                yield Keeps(node.lineno, target, call, ")", value, functions)
        elif isinstance(node, ast.AugAssign) and self._is(node.target, name, attribute):
            target, op = ast.unparse(node.target), _OPERATORS.get(type(node.op), "+=")
            if isinstance(node.target, ast.Subscript) and isinstance(
                node.value, ast.Constant
            ):  # it is the key that is kept
                yield Keeps(node.lineno, ast.unparse(node.target.value), "", "", node.target.slice, functions)
            else:
                yield Keeps(node.lineno, target, f"{target} {op} ", "", node.value, functions)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for one in _targets(node):
                if not self._is(one, name, attribute):
                    continue
                text = ast.unparse(one)
                if isinstance(one, ast.Subscript):
                    yield Keeps(node.lineno, ast.unparse(one.value), f"{text} = ", "", node.value, functions)
                elif self._within(node.value, name, attribute):
                    yield Keeps(node.lineno, text, f"{text} = ", "", node.value, functions)

    def added(self, name: str) -> Optional[tuple[str, Keeps]]:
        """The attribute to which a class adds something in a method that is not its first, and never takes anything
        out; None if there is none."""
        own = next((n for n in self._around if isinstance(n, ast.ClassDef) and n.name == name), None)
        for method in own.body if own is not None else ():
            if not isinstance(method, ast.FunctionDef) or method.name == "__init__":
                continue
            inside = [*ast.walk(method)]
            for attribute in dict.fromkeys(
                n.attr for n in inside if isinstance(n, ast.Attribute) and _name(n.value) == "self"
            ):
                for node in inside:
                    for keeps in self._put(node, attribute, True):
                        if (
                            keeps.value is not None
                            and not self.takes(attribute, True)
                            and not self.bounded(attribute, True)
                        ):
                            return attribute, keeps
        return None

    def passed(self, name: str, attribute: bool, within: Optional[tuple[int, str]] = None) -> Optional[int]:
        """The line of a loop at which the container is given to a function, if nothing puts anything in directly."""
        for node in self._scope(within):
            if not isinstance(node, ast.Call) or not self._looped(node) or _name(node.func) in _READS:
                continue
            if any(self._is(a, name, attribute) for a in node.args):
                return node.lineno
        return None

    def takes(self, name: str, attribute: bool, within: Optional[tuple[int, str]] = None) -> bool:
        """Whether anything is ever taken out of a container, or the container is made anew again and again."""
        for node in self._scope(within):
            if self._method(node, TAKES, name, attribute):
                return True
            if isinstance(node, ast.Delete) and any(self._is(t, name, attribute) for t in node.targets):
                return True
            if isinstance(node, ast.Assign) and any(
                self._is(t, name, attribute) and self._replaces(node, t, name, attribute) for t in _targets(node)
            ):
                return True
        return False

    def _replaces(self, node: ast.Assign, target: ast.expr, name: str, attribute: bool) -> bool:
        """Whether an assignment to a container, or to a part of it, drops what was there."""
        if isinstance(target, ast.Subscript):  # seen[i % 100] = x
            return any(isinstance(n, (ast.Mod, ast.Slice)) for n in ast.walk(target.slice))
        if self._within(node.value, name, attribute):  # seen = seen[-100:]
            return any(isinstance(n, ast.Slice) for n in ast.walk(node.value))
        return self._looped(node) or attribute and self._again(node)

    def bounded(self, name: str, attribute: bool) -> bool:
        """Whether the script ever compares the length of a container."""
        compared = [n for node in self._around if isinstance(node, ast.Compare) for n in ast.walk(node)]
        return any(
            isinstance(n, ast.Call) and _name(n.func) == "len" and n.args and self._is(n.args[0], name, attribute)
            for n in compared
        )

    def _limited(self, node: ast.AST) -> bool:
        """Whether a statement depends on a comparison, such as ``step < 50``."""
        inner = [n for n in self._around[node] if isinstance(n, (ast.If, *_FUNCTIONS))]
        for outer in reversed(inner):
            if not isinstance(outer, ast.If):
                return False
            compared = [op for n in ast.walk(outer.test) if isinstance(n, ast.Compare) for op in n.ops]
            if any(isinstance(op, (ast.Lt, ast.LtE)) for op in compared):
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
        """Whether a statement is in a function that is called in a loop, or by a framework."""
        functions = self.functions(node)
        called = getattr(functions[-1], "name", "") if functions else ""
        if called.startswith("on_") or any(word in called for word in ("epoch", "reset")):
            return True
        calls = (n for n in self._around if isinstance(n, ast.Call) and _name(n.func) == called)
        return bool(called) and called != "__init__" and any(self._looped(n) for n in calls)

    def looks_up(self, name: str, attribute: bool) -> bool:
        """Whether the script asks a container whether it has something already, as a cache is asked."""
        for node in self._around:
            if isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
                if any(self._is(c, name, attribute) for c in node.comparators):
                    return True
            elif isinstance(node, ast.Try) and any("KeyError" in ast.dump(h.type) for h in node.handlers if h.type):
                if any(isinstance(n, ast.Subscript) and self._is(n, name, attribute) for n in ast.walk(node)):
                    return True
            elif self._method(node, {"get"}, name, attribute) and node.args:  # type: ignore[attr-defined]
                return True
        return False

    def hooked(self, functions: tuple[Function, ...]) -> bool:
        """Whether one of some functions is registered as a hook."""
        names = {getattr(f, "name", "") for f in functions} - {""}
        for node in self._around:
            if isinstance(node, ast.Call) and _HOOK.match(_name(node.func)):
                inner = [n for a in node.args for n in ast.walk(a)]
                if any(n in functions or _name(n) in names for n in inner):
                    return True
        return False

    def registers(self) -> Optional[tuple[int, str]]:
        """The line of a loop or function that registers a hook, and the method that it calls; None if there is none."""
        for node in self._around:
            called = ast.unparse(node.func) if isinstance(node, ast.Call) and _HOOK.match(_name(node.func)) else ""
            if called and (self._looped(node) or self.functions(node)):
                return node.lineno, called  # type: ignore[attr-defined]
        return None

    def evaluates(self, line: int) -> bool:
        """Whether a line is in a part of the script that evaluates: after ``.eval()``, or in a function without
        ``backward()`` that calls ``.eval()`` or is named so."""
        for node in self._around:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _has(node, line):
                called = {_name(n.func) for n in ast.walk(node) if isinstance(n, ast.Call)}
                named = any(word in node.name.lower() for word in ("eval", "valid", "test"))
                if "backward" not in called and ("eval" in called or named):
                    return True
        newest = ""
        for node in sorted((n for n in self._around if isinstance(n, ast.Call)), key=lambda n: n.lineno):
            name = _name(node.func)
            if node.lineno <= line and (name in {"eval", "train"} and not node.args or name == "backward"):
                newest = name
        return newest == "eval"

    def passes(self, option: str) -> int:
        """The line of a call with an option that is true, such as ``retain_graph``; 0 if there is none."""
        for node in self._around:
            if isinstance(node, ast.keyword) and node.arg == option and ast.unparse(node.value) == "True":
                return node.value.lineno
        return 0

    def made(self, value: Optional[ast.expr], line: int) -> int:
        """The line before ``line`` at which what is put in was made; 0 if it cannot be told."""
        base = stripped(value) if value is not None else None
        if isinstance(base, (ast.Tuple, ast.List)) and base.elts:
            base = stripped(base.elts[0])
        if not isinstance(base, ast.Name):
            return line if isinstance(base, (ast.Call, ast.BinOp)) else 0
        inner = [f for f in self._around if isinstance(f, _FUNCTIONS) and _has(f, line)]
        scope = max(inner, key=lambda f: len(self._around[f]), default=self._tree)
        lines = [0]
        for node in ast.walk(scope):
            if not isinstance(node, ast.Assign) or node.lineno > line or base.id not in map(_name, _targets(node)):
                continue
            if ast.unparse(stripped(node.value)) != base.id:  # out = out.detach()
                lines.append(node.lineno)
        return max(lines)


def _name(node: ast.AST) -> str:
    """The name of a variable, or of an attribute or method whatever it belongs to; empty for anything else."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _called(node: ast.AST, methods: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in methods


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    """What a statement assigns to, those in a tuple one by one."""
    every = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [t for target in every for t in (target.elts if isinstance(target, ast.Tuple) else [target])]


def _has(node: ast.AST, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)  # type: ignore[attr-defined]


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
    """The parsed source of a file; None if there is none, if it is no Python, or if somebody has written to it since
    the process began."""
    try:
        if os.path.isfile(file):
            if os.path.getmtime(file) > BEGAN:
                return None
            with tokenize.open(file) as lines:
                text = lines.read()
        else:  # a cell of a notebook
            text = "".join(linecache.getlines(file))
        return Source(file, ast.parse(text)) if text and len(text) < 4 << 20 else None
    except (SyntaxError, ValueError, RecursionError, OSError):
        return None
