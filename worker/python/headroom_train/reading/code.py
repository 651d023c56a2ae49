"""What the sources say: names, calls, functions, classes, and which names are models, losses or optimizers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Optional, Union

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
Loop = Union[ast.For, ast.AsyncFor, ast.While]
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOP = (ast.For, ast.AsyncFor, ast.While)

WITHOUT_GRADIENTS = re.compile(r"no_grad|inference_mode|set_grad_enabled|grad_mode")
USES_CUDA = r"""\.cuda\(|["']cuda(:\d+)?["']"""
_IS_A_LOSS = re.compile(r"(^|\.|_)(criterion|criteria|loss_?fn|loss_?func|loss_?function)\d*$", re.I)


class Finding(NamedTuple):
    """Something in the source that takes more memory than it needs, or trains something else than it seems to."""

    rule: str
    file: str  # as it was given
    line: int
    why: str  # what happens there
    instead: str  # what to write
    name: str = ""  # the variable that keeps tensors; empty if the rule is about none


class File:
    """One source file."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.tree = ast.parse(text)
        self.lines = text.encode().splitlines()
        self.nodes = list(ast.walk(self.tree))
        self.calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.owners: list[ast.AST] = [
            node for node in self.nodes if isinstance(node, FUNCTION) and self.function(node) is None
        ]
        self.owners.insert(0, self.tree)  # what has statements of its own
        self.modules: set[str] = set()  # names of what is a torch.nn.Module
        self.frozen: set[str] = set()  # of those whose parameters need no gradients
        self.uses_cuda = False  # some file of the program does
        self.losses: set[str] = set()
        self.optimizers: set[str] = set()

    def source(self, node: ast.expr) -> str:
        """The text of an expression, in one line."""
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        rows = self.lines[first : last + 1]
        rows[-1] = rows[-1][: node.end_col_offset]
        rows[0] = rows[0][node.col_offset :]
        text = " ".join(row.decode().strip() for row in rows)
        return text if len(text) <= 60 else text[:57] + "..."

    def with_suffixes(self, node: ast.expr, suffixes: list[tuple[ast.expr, str]]) -> str:
        """The text of an expression with something after some of its parts, which are in order."""
        if node.lineno != node.end_lineno:
            return self.source(node)
        text, at = b"", node.col_offset
        row = self.lines[node.lineno - 1]
        for part, suffix in suffixes:
            simple = isinstance(part, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
            inner = row[part.col_offset : part.end_col_offset]
            text += row[at : part.col_offset] + (inner if simple else b"(" + inner + b")") + suffix.encode()
            at = part.end_col_offset or at
        return (text + row[at : node.end_col_offset]).decode()

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """What a node is in, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function(self, node: ast.AST) -> Optional[Function]:
        """The function that a node is in."""
        return next((outer for outer in self.around(node) if isinstance(outer, FUNCTION)), None)

    def owner(self, node: ast.AST) -> ast.AST:
        """The outermost function that a node is in, or the module."""
        return next((n for n in [*self.around(node)][::-1] if isinstance(n, FUNCTION)), self.tree)

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops of a node's function whose bodies it is in, innermost first."""
        found: list[Loop] = []
        for outer in self.around(node):
            if (
                isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                and self.function(outer) is None
            ):
                break
            if isinstance(outer, LOOP):
                found.append(outer)
        return found


class Program:
    """The files that are read, together."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files: list[File] = []
        self.flows: dict[ast.AST, Any] = {}  # by function or module: see flow.flow_of, which is above this file
        self._repeated: dict[str, bool] = {}  # by function's name
        self.consumed: dict[str, set[str]] = {}  # names of variables from which losses are computed, by file
        for path, text in files.items():
            try:
                self.files.append(File(path, text))
            except (
                SyntaxError,
                ValueError,
                RecursionError,
                MemoryError,
            ):  # another version of Python, or no Python at all
                continue
        self.functions: dict[str, list[tuple[File, Function]]] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.calls: dict[str, list[tuple[File, ast.Call]]] = {}  # by the last name of what is called
        for file in self.files:
            for node in file.nodes:
                if isinstance(node, ast.Call):
                    self.calls.setdefault(called_name(node), []).append((file, node))
                elif isinstance(node, FUNCTION):
                    self.functions.setdefault(node.name, []).append((file, node))
                elif isinstance(node, ast.ClassDef):
                    self.classes[node.name] = node
        is_module = r"nn\.Module$|(^|\.)(Module|LightningModule|PreTrainedModel)$"
        self.module_classes = {name for name, node in self.classes.items() if self.derives(node, is_module)}
        for file in self.files:
            file.uses_cuda = self.mentions(USES_CUDA)
            self._name(file)

    def _name(self, file: File) -> None:
        """Notes which names of a file are models, losses and optimizers."""
        for node in file.nodes:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Call):
                kind = self._kind(file, dotted(constructor(node.value).func))
                if kind is not None:
                    kind |= set(map(dotted, targets(node)))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                self._name_by_method(file, node.func, node.args[0] if node.args else None)
            elif isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
                of, _, does = dotted(node.iter.func).rpartition(".")
                if does in ("parameters", "named_parameters") and any(map(_freezes, ast.walk(node))):
                    file.frozen.add(of)
        for node in file.nodes:
            if isinstance(node, ast.Assign) and dotted(node.value) in file.modules - {""}:
                file.modules |= {dotted(t) for t in targets(node) if dotted(t).startswith("self.")}
            elif isinstance(node, ast.ClassDef):
                file.modules |= {a.arg for f in node.body if computes_loss(node, f) for a in f.args.args[1:2]}  # type: ignore[attr-defined]
        for kind in (file.modules, file.frozen, file.losses, file.optimizers):
            kind.discard("")

    def _name_by_method(self, file: File, method: ast.Attribute, first: Optional[ast.expr]) -> None:
        """Notes what a method that is called, by its first argument, says of its object: a model, or one without
        gradients."""
        of, does = dotted(method.value), method.attr
        trains = does == "train" and of != "self" and isinstance(first, (ast.Constant, type(None)))
        if trains or (does in ("eval", "parameters", "named_parameters") and first is None):
            file.modules.add(of)
        elif does == "requires_grad_" and is_constant(first, False):
            file.frozen.add(of)

    def _kind(self, file: File, constructor: str) -> Optional[set[str]]:
        """The names in a file of what has the given constructor, if that is known."""
        if re.search(r"(^|\.)optim\.\w+$|^(SGD|Adam|AdamW|RMSprop|Adagrad)$", constructor):
            return file.optimizers
        if re.search(r"(^|\.)nn\.\w+Loss$|^\w+Loss$", constructor):
            return file.losses
        known = constructor.rpartition(".")[2] in self.module_classes
        return file.modules if known or re.search(r"(^|\.)nn\.[A-Z]\w+$|DataParallel$", constructor) else None

    def called(self, node: ast.AST) -> Iterator[tuple[File, Function]]:
        """The functions of the program that calls inside a node may reach, directly or not. They are found by name,
        so there may be some that are not called."""
        seen: set[Function] = set()
        left = [node]
        while left:
            for call in calls(left.pop()):
                last = called_name(call)
                for name in (last, "__init__", "forward") if last in self.classes else (last,):
                    for file, function in self.functions.get(name, ()):
                        if function not in seen:
                            seen.add(function)
                            left.append(function)
                            yield file, function

    def derives(self, node: ast.ClassDef, pattern: str) -> bool:
        """Whether a class, or one that it derives from, has a base whose name matches."""
        left, seen = [node], {node.name}
        while left:
            for base in map(dotted, left.pop().bases):
                last = base.rpartition(".")[2]
                if last in self.classes and last not in seen:
                    seen.add(last)
                    left.append(self.classes[last])
                elif re.search(pattern, base):
                    return True
        return False

    def callers(self, function: Function) -> Iterator[tuple[File, ast.Call]]:
        """The calls of a function, found by its name."""
        return ((file, call) for file, call in self.calls.get(function.name, ()) if function not in file.around(call))

    def repeats(self, function: Function) -> bool:
        """Whether a function is called in a loop."""
        name = function.name
        if name not in self._repeated:
            self._repeated[name] = any(file.loops(call) for file, call in self.calls.get(name, ()))
        return self._repeated[name]

    def mentions(self, pattern: str) -> bool:
        return any(re.search(pattern, file.text) for file in self.files)


def _freezes(node: ast.AST) -> bool:
    """Whether a statement sets requires_grad to False."""
    if isinstance(node, ast.Assign):
        return is_constant(node.value, False) and dotted(node.targets[0]).endswith(".requires_grad")
    return isinstance(node, ast.Call) and dotted(node.func).endswith(".requires_grad_") and bool(node.args)


def computes_loss(around: ast.AST, node: ast.AST) -> bool:
    """Whether a method is the one of a Transformers ``Trainer`` whose result that calls backward on: it is given the
    model, and the batch."""
    if not isinstance(around, ast.ClassDef) or not isinstance(node, FUNCTION) or node.name != "compute_loss":
        return False
    return len(node.args.args) >= 3 and any(dotted(base).endswith("Trainer") for base in around.bases)


def parameters(function: Function) -> set[str]:
    """The names of a function's parameters."""
    a = function.args
    every = [*a.args, *a.kwonlyargs, *a.posonlyargs, a.vararg, a.kwarg]
    return {argument.arg for argument in every if argument is not None}


def dotted(node: Optional[ast.AST]) -> str:
    """A name such as self.model, or "" if the node is anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def called_name(call: ast.Call) -> str:
    """The last name of what is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)


def constructor(call: ast.Call) -> ast.Call:
    """The call of Net in Net().cuda().eval()."""
    while isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Call):
        call = call.func.value
    return call


def calls(node: ast.AST) -> Iterator[ast.Call]:
    return (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))


def names(node: ast.AST) -> set[str]:
    """The names and dotted names that a node reads or writes."""
    return {dotted(inner) for inner in ast.walk(node) if isinstance(inner, (ast.Name, ast.Attribute))} - {""}


def keyword(call: ast.Call, name: str) -> Optional[ast.expr]:
    return next((k.value for k in call.keywords if k.arg == name), None)


def unpacks(call: ast.Call) -> bool:
    """Whether a call has arguments that cannot be seen."""
    return any(k.arg is None for k in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)


def is_constant(node: Optional[ast.AST], value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def key_of(node: ast.Subscript) -> ast.AST:
    """What is between the brackets."""
    key: ast.AST = node.slice
    return key.value if type(key).__name__ == "Index" else key  # type: ignore[attr-defined]  # before Python 3.9


def targets(statement: ast.AST) -> Iterable[ast.expr]:
    """What a statement assigns to, with the elements of tuples."""
    if isinstance(statement, ast.Assign):
        left = list(statement.targets)
    elif isinstance(statement, (ast.comprehension, ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor, ast.NamedExpr)):
        left = [statement.target]
    elif isinstance(statement, ast.Delete):
        left = list(statement.targets)
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        left = [item.optional_vars for item in statement.items if item.optional_vars is not None]
    else:
        return
    while left:
        target = left.pop()
        if isinstance(target, (ast.Tuple, ast.List)):
            left.extend(target.elts)
        elif isinstance(target, ast.Starred):
            left.append(target.value)
        else:
            yield target


_TAKES = {"clear", "pop", "popleft", "popitem", "remove", "zero_", "fill_"}


def empties(node: ast.AST, name: str) -> bool:
    """Whether something inside a node assigns to a name, deletes it or its elements, or takes elements out of it."""
    for inner in ast.walk(node):
        for target in targets(inner):
            if dotted(target) == name and not _adds(inner, name):
                return True
            if isinstance(target, ast.Subscript) and dotted(target.value) == name and _removes(inner, target):
                return True
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _TAKES:
            on = inner.func.value
            while isinstance(on, ast.Subscript):
                on = on.value
            if dotted(on) == name:
                return True
    return False


def _removes(statement: ast.AST, elements: ast.Subscript) -> bool:
    """Whether a statement with elements of a container on its left deletes or replaces them."""
    return isinstance(statement, ast.Delete) or isinstance(key_of(elements), ast.Slice)


def _adds(statement: ast.AST, name: str) -> bool:
    """Whether a statement adds something to what is there already."""
    if isinstance(statement, ast.AugAssign):
        return isinstance(statement.op, ast.Add)
    value = getattr(statement, "value", None)
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add) and name in names(value)


def _assigned(file: File, name: str) -> Iterator[ast.expr]:
    """What is assigned to a name anywhere in a file."""
    return (n.value for n in file.nodes if isinstance(n, ast.Assign) and name in map(dotted, targets(n)))


def is_gpu(file: File, node: ast.expr) -> bool:
    """Whether an expression plainly is a GPU, or a device that may be one."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.startswith("cuda")
    if isinstance(node, ast.Call):
        return dotted(node.func).endswith("device") and bool(node.args) and is_gpu(file, node.args[0])
    if isinstance(node, ast.IfExp):
        return is_gpu(file, node.body) or is_gpu(file, node.orelse)
    name = dotted(node)
    if not name:
        return False
    made = [value for value in _assigned(file, name) if not dotted(value)]
    if made:
        return any(is_gpu(file, value) for value in made)
    return name.rpartition(".")[2] == "device" and file.uses_cuda


def moves(file: File, call: ast.AST) -> bool:
    """Whether something is a call that plainly puts a tensor on a GPU."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "cuda":
        return dotted(call.func) != "torch.cuda"
    if call.func.attr == "to" and call.args:
        return is_gpu(file, call.args[0])
    device = keyword(call, "device")
    return device is not None and is_gpu(file, device)


def is_loss(file: File, name: str) -> bool:
    """Whether a name is that of a function or module that computes a loss."""
    return bool(name) and (name in file.losses or bool(_IS_A_LOSS.search(name)))


def is_optimizer(file: File, name: str) -> bool:
    return name in file.optimizers or ("opt" in name.lower().rpartition(".")[2] and "sched" not in name.lower())


def without_gradients(function: ast.AST) -> bool:
    """Whether a function is decorated so that it computes no gradients."""
    return any(WITHOUT_GRADIENTS.search(ast.dump(decorator)) for decorator in getattr(function, "decorator_list", ()))
