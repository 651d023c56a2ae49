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
_KEYED = {"setdefault", "__setitem__"}
_SPREAD = {"extend", "update"}
_COUNTERS = re.compile(
    "i|it|iter(ation)?|n_?iter|(global_?|cur(rent)?_?)?step(_?idx)?|epoch|batch_?(idx|i)|t|n|episode|trial|fold|round"
)
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
    part: tuple[ast.expr, ...] = ()  # the keys of the container's part into which it is put, outermost first
    spread: bool = False  # not the value itself, but what is in it
    key: Optional[ast.expr] = None  # under which it is put there; None if nothing is ever replaced
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
            if isinstance(n, _LOOPS) and (n.lineno != line or n.body[0].lineno == line):
                return True
        return False

    def _is(self, node: ast.AST, name: str, attribute: bool) -> bool:
        """Whether an expression is the container of that name, or a part of it."""
        whole = _whole(node)[0]
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
        return sorted(found or self._called_otherwise(name, attribute), key=lambda k: k.line)

    def _called_otherwise(self, name: str, attribute: bool) -> list[Keeps]:
        """The places at which something is put in under another name: ``push = seen.append``, or a property."""
        found: list[Keeps] = []
        for node in self._around:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and node.value.attr in PUTS:
                if self._is(node.value.value, name, attribute):
                    found += self._called_as(set(map(_name, node.targets)) - {""}, node.value)
            elif attribute and isinstance(node, ast.FunctionDef) and node.name != name and self._returns(node, name):
                found += [k for n in self._around for k in self._put(n, node.name, True)]
        return found

    def _called_as(self, names: set[str], method: ast.Attribute) -> Iterator[Keeps]:
        """The calls of a method of a container by other names."""
        text, spread = ast.unparse(method.value), method.attr in _SPREAD
        for n in self._around:
            if isinstance(n, ast.Call) and n.args and _name(n.func) in names:
                call = f"{ast.unparse(n.func)}("
                yield Keeps(n.lineno, text, call, ")", n.args[-1], self.functions(n), (), spread)

    def _returns(self, function: ast.FunctionDef, name: str) -> bool:
        """Whether a function is a property that is an attribute."""
        last = function.body[-1]
        return (
            "property" in map(_name, function.decorator_list)
            and isinstance(last, ast.Return)
            and isinstance(last.value, ast.Attribute)
            and last.value.attr == name
        )

    def _put(self, node: ast.AST, name: str, attribute: bool) -> Iterator[Keeps]:
        functions = self.functions(node)
        if isinstance(node, ast.Call) and node.args and self._method(node, PUTS, name, attribute):
            yield from _put_by_method(node, functions)
        elif isinstance(node, ast.AugAssign) and self._is(node.target, name, attribute):
            target, op = ast.unparse(node.target), _OPERATORS.get(type(node.op), "+=")
            if isinstance(node.target, ast.Subscript) and isinstance(
                node.value, ast.Constant
            ):  # it is the key that is kept
                yield Keeps(node.lineno, ast.unparse(node.target.value), "", "", node.target.slice, functions)
            else:
                part = _whole(node.target)[1]
                yield Keeps(node.lineno, target, f"{target} {op} ", "", node.value, functions, part, True)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            for one in _targets(node):
                if not self._is(one, name, attribute):
                    continue
                text = ast.unparse(one)
                if isinstance(one, ast.Subscript):
                    target, part = ast.unparse(one.value), _whole(one.value)[1]
                    yield Keeps(node.lineno, target, f"{text} = ", "", node.value, functions, part, False, one.slice)
                elif self._within(node.value, name, attribute):
                    yield Keeps(node.lineno, text, f"{text} = ", "", node.value, functions)

    def of_itself(self, kind: str) -> Optional[Keeps]:
        """The place at which a class that is a list or a dict puts something into itself; None if there is none."""
        for node in self._around:
            if isinstance(node, ast.ClassDef) and node.name == kind:
                for inner in ast.walk(node):
                    for keeps in self._put(inner, "self", False):
                        return keeps._replace(limited=self._limited(inner))
        return None

    def added(self, name: str) -> Optional[tuple[str, Keeps]]:
        """The attribute to which a data set's class adds something when a sample is loaded, and from which it never
        takes anything out; None if there is none."""
        for method in self._loading(name):
            for attribute, keeps in self._puts_of(method):
                if not self.takes(attribute, True) and not self.bounded(attribute, True):
                    return attribute, keeps
        return None

    def _loading(self, name: str) -> list[ast.FunctionDef]:
        """The methods of a data set's class that run when a sample is loaded."""
        own = next((n for n in self._around if isinstance(n, ast.ClassDef) and n.name == name), None)
        methods = {n.name: n for n in own.body if isinstance(n, ast.FunctionDef)} if own is not None else {}
        found = [methods[n] for n in _LOADS if n in methods]
        for method in found:  # which becomes longer
            used = {n.attr for n in ast.walk(method) if isinstance(n, ast.Attribute) and _name(n.value) == "self"}
            found += [m for n, m in methods.items() if n in used and m not in found]
        return found

    def added_outside(self, name: str) -> Optional[tuple[str, Keeps]]:
        """The same for a variable of the file, to which such a method adds something, or a function of the file that
        one calls."""
        todo = self._loading(name)
        apart = {n.name: n for n in self._tree.body if isinstance(n, ast.FunctionDef)}
        assigns = [n for n in self._tree.body if isinstance(n, (ast.Assign, ast.AnnAssign))]
        variables = {_name(t) for n in assigns for t in _targets(n)} - {""}
        for function in todo:  # which becomes longer
            inside = [*ast.walk(function)]
            called = {_name(n.func) for n in inside if isinstance(n, ast.Call)}
            todo += [apart[n] for n in apart if n in called and apart[n] not in todo]
            used = dict.fromkeys(_name(n) for n in inside if isinstance(n, ast.Name))
            for variable in (n for n in used if n in variables):
                puts = (keeps for node in inside for keeps in self._put(node, variable, False))
                first = next((keeps for keeps in puts if keeps.value is not None), None)
                if first is not None and not self.takes(variable, False) and not self.bounded(variable, False):
                    return variable, first
        return None

    def _puts_of(self, method: ast.FunctionDef) -> Iterator[tuple[str, Keeps]]:
        """The attributes of its object to which a method adds something, each with the first place."""
        inside = [*ast.walk(method)]
        used = (n.attr for n in inside if isinstance(n, ast.Attribute) and _name(n.value) == "self")
        for attribute in dict.fromkeys(used):
            puts = (keeps for node in inside for keeps in self._put(node, attribute, True))
            first = next((keeps for keeps in puts if keeps.value is not None), None)
            if first is not None:
                yield attribute, first

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
        """Whether the length of a container may be what ends its growth: more is put in only as long as it is short, or
        something else is done once it is long."""
        return any(
            self._bounds(node, n, name, attribute)
            for node in self._around
            if isinstance(node, ast.Compare)
            for n in (node.left, *node.comparators)
            if isinstance(n, ast.Call) and _name(n.func) == "len" and n.args and self._is(n.args[0], name, attribute)
        )

    def _bounds(self, compare: ast.Compare, length: ast.expr, name: str, attribute: bool) -> bool:
        sides = [compare.left, *compare.comparators]
        outer = next(n for n in reversed(self._around[compare]) if isinstance(n, ast.stmt))
        if isinstance(outer, ast.Assert) or any(isinstance(s, ast.Constant) and s.value in (0, 1) for s in sides):
            return False
        if not isinstance(outer, (ast.If, ast.While)) or not any(n is compare for n in ast.walk(outer.test)):
            return True  # what becomes of the answer cannot be told
        at = sides.index(length)
        short, long = (outer.body, outer.orelse) if _while_small(compare, at) else (outer.orelse, outer.body)
        if any(True for n in _all_in(short) for _ in self._put(n, name, attribute)):
            return True
        return any(self._may_end(n, name, attribute) for n in _all_in(long))

    def _may_end(self, node: ast.AST, name: str, attribute: bool) -> bool:
        """Whether what is done once a container is long may end its growth."""
        if not isinstance(node, ast.Call):
            return isinstance(node, (ast.Return, ast.Break, ast.Continue, ast.Raise))
        if any(not isinstance(a, ast.Subscript) and self._is(a, name, attribute) for a in node.args):
            return _name(node.func) not in _READS
        if not isinstance(node.func, ast.Attribute) or _name(node.func.value) != "self":
            return False
        methods = [n for n in self._around if isinstance(n, ast.FunctionDef) and n.name == node.func.attr]
        return not methods or any(self._empties(n, name, attribute) for m in methods for n in ast.walk(m))

    def _empties(self, node: ast.AST, name: str, attribute: bool) -> bool:
        return self._method(node, TAKES, name, attribute) or (
            isinstance(node, (ast.Assign, ast.Delete)) and any(self._is(t, name, attribute) for t in _targets(node))
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

    def looks_up(self, name: str, attribute: bool, depth: int = 0) -> bool:
        """Whether the script asks a container whether it has something already, as a cache is asked. ``depth`` is that
        of the part into which things are put: a dict that is asked for a list of its own is no cache."""

        def asked(node: ast.AST) -> bool:
            return self._is(node, name, attribute) and len(_whole(node)[1]) == depth

        return any(asked(container) for node in self._around for container in _looked_into(node))

    def of_gradients(self, line: int) -> bool:
        """Whether a statement at a line has to do with gradients of parameters."""
        return any(
            isinstance(n, ast.Attribute) and n.attr == "grad" and n.lineno <= line <= (n.end_lineno or line)
            for n in self._around
        )

    def counted(self, key: ast.expr) -> bool:
        """Whether a key is another one each time: what a loop counts, or the script itself."""
        if any(isinstance(n, (ast.Mod, ast.Subscript)) for n in ast.walk(key)):
            return False
        names = {_name(n) for n in ast.walk(key)} - {""}
        if any(_COUNTERS.fullmatch(name) for name in names):
            return True
        for node in self._around:
            if isinstance(node, ast.AugAssign) and _name(node.target) in names:
                return True
            called = _name(node.iter.func) if isinstance(node, ast.For) and isinstance(node.iter, ast.Call) else ""
            if called in {"range", "trange", "count", "enumerate"}:
                target = node.target  # type: ignore[attr-defined]
                if _name(target.elts[0] if isinstance(target, ast.Tuple) else target) in names:
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
                if "__call__" in names and "self" in map(_name, node.args):  # an object that is a hook itself
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
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _has(node, line) and _evaluation(node):
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

    def moved(self, value: Optional[ast.expr], line: int) -> bool:
        """Whether what is put in at a line is copied to the host, there or where it was made."""
        base = stripped(value) if value is not None else None
        made = self.made(base, line) if isinstance(base, ast.Name) else 0
        assigned = [n.value for n in self._around if isinstance(n, ast.Assign) and n.lineno == made]
        return any(_to_host(n) for one in (value, *assigned) if one is not None for n in ast.walk(one))

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


def _to_host(node: ast.AST) -> bool:
    """Whether something is a call that copies a tensor to the host."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr == "cpu" or (
        node.func.attr == "to" and any(isinstance(a, ast.Constant) and a.value == "cpu" for a in node.args)
    )


def _all_in(statements: list[ast.stmt]) -> Iterator[ast.AST]:
    return (node for statement in statements for node in ast.walk(statement))


def _while_small(compare: ast.Compare, at: int) -> bool:
    """Whether a comparison is true as long as one of its sides, given by its place, is small."""
    if any(isinstance(op, (ast.Lt, ast.LtE, ast.NotEq)) for op in compare.ops[at:][:1]):
        return True
    return any(isinstance(op, (ast.Gt, ast.GtE, ast.NotEq)) for op in compare.ops[:at][-1:])


def _evaluation(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function does not train, and calls ``.eval()`` or is named so."""
    called = {_name(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)}
    named = any(word in function.name.lower() for word in ("eval", "valid", "test"))
    return "backward" not in called and ("eval" in called or named)


def _looked_into(node: ast.AST) -> list[ast.expr]:
    """What a node looks something up in, to do something else if it is not there."""
    if isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn)) for op in node.ops):
        return node.comparators
    if isinstance(node, ast.Try) and any("KeyError" in ast.dump(h.type) for h in node.handlers if h.type):
        return [n.value for n in ast.walk(node) if isinstance(n, ast.Subscript)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return [node.func.value] if len(node.args) in (1, 2) and all(map(_is_none, node.args[1:])) else []
    return []


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _put_by_method(node: ast.Call, functions: tuple[Function, ...]) -> Iterator[Keeps]:
    """What a call such as ``seen.append(x)`` puts in."""
    value = node.args[-1]
    if isinstance(value, (ast.List, ast.Dict)) and not ast.unparse(value)[1:-1]:
        return  # setdefault(key, [])
    assert isinstance(node.func, ast.Attribute)
    on, method = node.func.value, node.func.attr
    call = f"{ast.unparse(node.func)}({''.join(f'{ast.unparse(a)}, ' for a in node.args[:-1])}"
    key = node.args[0] if method in _KEYED else None
    yield Keeps(
        node.lineno, _part(on), call, ")", value, functions, _whole(on)[1], method in _SPREAD, key
    )  # fmt: skip


def joins(value: Optional[ast.expr]) -> bool:
    """Whether an expression joins arrays or tensors to a larger one."""
    names = {_name(n.func) for n in ast.walk(value) if isinstance(n, ast.Call)} if value is not None else set()
    return not names.isdisjoint(_JOINS)


_JOINS = {"cat", "concatenate", "concat", "append", "vstack", "hstack", "column_stack", "row_stack", "dstack"}


def _targets(node: ast.Assign | ast.AnnAssign | ast.Delete) -> list[ast.expr]:
    """What a statement assigns to, those in a tuple one by one."""
    every = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
    return [t for target in every for t in (target.elts if isinstance(target, ast.Tuple) else [target])]


def _has(node: ast.AST, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)  # type: ignore[attr-defined]


def _whole(node: ast.AST) -> tuple[ast.AST, tuple[ast.expr, ...]]:
    """The container of which an expression is a part, and the keys of that part, outermost first."""
    keys: list[ast.expr] = []
    while isinstance(node, ast.Subscript) or _called(node, {"setdefault", "get"}):
        if isinstance(node, ast.Subscript):
            keys, node = [node.slice, *keys], node.value
        else:
            keys, node = [*node.args[:1], *keys], node.func.value  # type: ignore[attr-defined]
    return node, tuple(keys)


def _part(node: ast.expr) -> str:
    """What a container, or a part of it, is called: ``seen[k]`` for ``seen.setdefault(k, [])``."""
    whole, keys = _whole(node)
    return ast.unparse(whole) + "".join(f"[{ast.unparse(key)}]" for key in keys)


_LOADS = ("__getitem__", "__getitems__", "__iter__", "__next__")  # methods of a data set that a loader calls
_READS = set(
    "len print sum max min enumerate zip list tuple set iter range str repr sorted reversed any all map filter sample "
    "choice choices mean median std stack cat array asarray concatenate vstack hstack plot save dump deepcopy".split()
)


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
