"""Which values of a function carry gradients, found by reading its statements once, in order.

A value is known to carry gradients if ``backward`` is called on it, if it is what a model returns where
gradients are computed, or if it is computed from such values by functions that keep the graph. Of anything else
nothing is known. Where branches meet, a value carries gradients if it does on every path.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Optional

from . import code
from .code import FUNCTION, WITHOUT_GRADIENTS, File, Function, Loop, Program, dotted
from .values import Backward, Escaped, Evaluated, Kept, Summed, Value

# Methods whose results are computed with gradients from what they are called on.
_KEEPS = set(
    """mean sum view reshape squeeze unsqueeze float half double bfloat16 cpu cuda to log exp softmax log_softmax
    sigmoid tanh relu permute transpose flatten contiguous clone norm pow sqrt abs square clamp mul div add
    sub expand type""".split()
)
# Functions of torch and torch.nn.functional whose results have none.
_NO_GRADIENT = set(
    """argmax argmin argsort tensor zeros ones zeros_like ones_like rand randn randint arange eq ne gt lt ge le isnan
    isinf isfinite no_grad one_hot topk sort max min device empty empty_like full full_like manual_seed save load sign
    round
    is_tensor numel sum_to_size allclose equal count_nonzero nonzero""".split()
)
_PARTS = {
    "loss",
    "logits",
    "last_hidden_state",
    "pooler_output",
    "sample",
    "prediction",
    "T",
    "mT",
}  # of a model's result
_ENGINE = re.compile(r"autograd|accelerator|fabric|engine|strategy|trainer|scaler|(^|\.)self$|amp|optim", re.I)
_PUTS = ("append", "add", "extend", "appendleft", "insert")
_HARMLESS = set("print len float int str bool repr round isinstance format type id hash".split())


class Flow:
    """What happens in a function, or in a module's own statements."""

    def __init__(self, program: Program, file: File, owner: ast.AST) -> None:
        self.program, self.file, self.owner = program, file, owner
        self.env: dict[str, Value] = {}  # by name
        self.modes: dict[str, str] = {}  # of models: eval or train
        self.loops: tuple[ast.AST, ...] = ()
        self.quiet = 0  # blocks around this place in which no gradients are computed
        self.backward: list[Backward] = []
        self.kept: list[Kept] = []
        self.summed: list[Summed] = []
        self.evaluated: list[Evaluated] = []
        self.escaped: list[Escaped] = []
        self.returned: list[Value] = []
        self.modes_at: dict[ast.AST, dict[str, str]] = {}  # by call of one of the program's functions
        self.steps_itself = False
        if code.without_gradients(owner):
            self.quiet = 1
        if isinstance(owner, FUNCTION):
            self.steps_itself = owner.name == "training_step" and self._lightning(owner)
            self.steps_itself |= code.computes_loss(next(file.around(owner), owner), owner)
            if self.steps_itself or program.repeats(owner):
                self.loops = (owner,)  # it is called again and again
        self._block(owner.body)  # type: ignore[attr-defined]
        if self.steps_itself:
            for value in self.returned:
                self._goes_backward(value)

    def _lightning(self, owner: ast.AST) -> bool:
        """Whether a method is called once in each step by a trainer that calls backward on its result."""
        around = next(self.file.around(owner), None)
        return isinstance(around, ast.ClassDef) and any("LightningModule" in dotted(base) for base in around.bases)

    def _goes_backward(self, value: Value) -> None:
        if value.how in ("several", "join") and not any(p.how in ("output", "keeps", "unknown") for p in value.parts):
            return
        self.backward.append(Backward(None, value, self.loops))
        if value.how != "several":
            value.mark()
            value.numbers()

    def trains(self, loop: ast.AST) -> bool:
        """Whether the gradients of steps are computed in a loop."""
        return any(loop in event.loops and not event.goes_on for event in self.backward)

    # Statements

    def _block(self, statements: list[ast.stmt]) -> bool:
        """Reads statements. Returns whether the end of them may be reached."""
        return all(self._statement(statement) for statement in statements)

    def _statement(self, node: ast.stmt) -> bool:
        method = getattr(self, "_" + type(node).__name__.lower(), None)
        if method is not None:
            return method(node) is not False
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return not isinstance(node, (ast.Continue, ast.Break, ast.Raise))

    def _return(self, node: ast.Return) -> bool:
        if node.value is not None:
            self.returned.append(self.value(node.value))
        return False

    def _assign(self, node: ast.Assign) -> None:
        before = {name: self.env.get(name) for name in map(dotted, node.targets) if name}
        value = self.value(node.value)
        for target in node.targets:
            name = dotted(target)
            added = _added_list(name, node.value)
            if added is not None and len(value.parts) == 2:
                self._keep(node, target, True, added, value.parts[1])
                self.env[name] = before[name] or value
                continue
            if name and not self.quiet:
                self._sum(node, target, before[name], value)
            self._bind(target, value, node)
            if name and isinstance(node.value, ast.Call) and getattr(node.value.func, "attr", "") == "eval":
                self.modes[name] = "eval"

    def _sum(self, node: ast.Assign, target: ast.expr, before: Optional[Value], value: Value) -> None:
        """Notes what is added to a variable, on either side of it: total = total + loss."""
        if isinstance(node.value, ast.BinOp) and isinstance(node.value.op, ast.Add):
            sides = (node.value.left, node.value.right)
            for other, added, part in zip(sides, sides[::-1], value.parts[::-1]):
                if isinstance(other, (ast.Name, ast.Attribute, ast.BinOp)) and dotted(target) in code.names(other):
                    self.summed.append(Summed(node, target, before, added, part, self.loops))

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._bind(node.target, self.value(node.value), node)

    def _augassign(self, node: ast.AugAssign) -> None:
        added = self.value(node.value)
        on = node.target.value if isinstance(node.target, ast.Subscript) else node.target
        name = dotted(on)
        if not name:
            return
        before = self._named(on, name)
        if isinstance(node.op, ast.Add):
            if isinstance(node.value, (ast.List, ast.Tuple)):
                self._keep(node, on, True, node.value, added)
                return
            if not self.quiet:
                self.summed.append(Summed(node, node.target, before, node.value, added, self.loops))
        if on is node.target:
            self._bind(on, Value("keeps", node, self.loops, (before, added)), node)

    def _bind(self, target: ast.expr, value: Value, statement: ast.stmt) -> None:
        name = dotted(target)
        if name:
            for other in [other for other in self.env if other.startswith(name + ".")]:
                del self.env[other]
            self.env[name] = value
            value.names.add(name)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for i, element in enumerate(target.elts):
                part = value.parts[i] if value.how == "several" and len(value.parts) == len(target.elts) else None
                self._bind(element, part or Value("unknown", target, self.loops, (value,)), statement)
        elif isinstance(target, ast.Subscript) and dotted(target.value):
            self._keep(statement, target.value, False, target, value)

    def _keep(self, node: ast.stmt, container: ast.expr, is_list: bool, expression: ast.expr, value: Value) -> None:
        on = container
        if isinstance(on, ast.Call) and isinstance(on.func, ast.Attribute) and on.func.attr == "setdefault":
            on = on.func.value
        name = dotted(on.value if isinstance(on, ast.Subscript) else on)
        holds = self.env.get(name)
        if name:
            self.kept.append(Kept(node, container, name, is_list, holds, expression, value, self.loops))
            if holds is not None and holds.how == "container":
                holds.parts.append(value)  # what is computed from the container is computed from its elements

    def _for(self, node: Loop) -> None:
        test = node.test if isinstance(node, ast.While) else node.iter
        self.value(test)
        before = dict(self.modes)
        self.loops += (node,)
        if not isinstance(node, ast.While):
            self._bind(node.target, Value("unknown", node.iter, self.loops), node)
        self._block(node.body)
        self.loops = self.loops[:-1]
        self.modes = {name: mode for name, mode in self.modes.items() if before.get(name) in (None, mode)}
        self._block(node.orelse)

    _asyncfor = _while = _for

    def _if(self, node: ast.If) -> bool:
        self.value(node.test)
        return self._paths([node.body, node.orelse])

    def _match(self, node: ast.Match) -> bool:
        self.value(node.subject)
        return self._paths([*(case.body for case in node.cases), []])

    def _paths(self, branches: list[list[ast.stmt]]) -> bool:
        """Reads statements of which one list or the other is executed."""
        env, modes, ends = dict(self.env), dict(self.modes), []
        for statements in branches:
            self.env, self.modes = dict(env), dict(modes)
            if self._block(statements):
                ends.append((self.env, self.modes))
        if not ends:
            self.env, self.modes = env, modes
            return False
        self.env, self.modes = ends[0]
        for other, other_modes in ends[1:]:
            for name in set(self.env) | set(other):
                mine, theirs = self.env.get(name), other.get(name)
                if mine is not theirs:
                    self.env[name] = self._join(mine, theirs)
            self.modes = {name: mode for name, mode in self.modes.items() if other_modes.get(name) == mode}
        return True

    def _join(self, one: Optional[Value], other: Optional[Value]) -> Value:
        some = one or other
        assert some is not None
        loops = max((v.loops for v in (one, other) if v is not None), key=len)
        if one is None or other is None:
            joined = Value("join", some.node, loops, (one or other, Value("unknown", some.node, loops)))
        else:
            joined = Value("join", some.node, loops, (one, other))
        joined.names = set.union(*(v.names for v in (one, other) if v is not None))
        return joined

    def _with(self, node: ast.With) -> bool:
        quiet = 0
        for item in node.items:
            self.value(item.context_expr)
            text = ast.dump(item.context_expr)
            if WITHOUT_GRADIENTS.search(text) and "Constant(value=True" not in text:
                quiet = 1
            if item.optional_vars is not None:
                self._bind(item.optional_vars, Value("unknown", node, self.loops), node)
        self.quiet += quiet
        reached = self._block(node.body)
        self.quiet -= quiet
        return reached

    _asyncwith = _with

    def _try(self, node: ast.Try) -> bool:
        reached = self._block(node.body) and self._block(node.orelse)
        for handler in node.handlers:
            self._paths([handler.body, []])
        return self._block(node.finalbody) and (reached or bool(node.handlers))

    _trystar = _try

    def _functiondef(self, node: Function) -> None:
        if self.owner is self.file.tree or isinstance(self.owner, ast.ClassDef):
            return
        env, modes, returned, quiet = (
            dict(self.env),
            dict(self.modes),
            self.returned,
            self.quiet,
        )  # such as the closure of LBFGS
        self.returned, self.quiet = [], quiet + code.without_gradients(node)
        for name in code.parameters(node):
            self.env.pop(name, None)
        self._block(node.body)
        self.env, self.modes, self.returned, self.quiet = env, modes, returned, quiet

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef) -> None:
        pass

    # Expressions

    def value(self, node: ast.expr) -> Value:
        """What an expression is. Each expression is asked for once: calls in it are noted."""
        name = dotted(node)
        if name:
            return self._named(node, name)
        method = getattr(self, "_value_" + type(node).__name__.lower(), None)
        if method is not None:
            return method(node)
        return self._made("unknown", node, *self._inside(node))

    def _made(self, how: str, node: ast.AST, *parts: Optional[Value]) -> Value:
        return Value("unknown" if self.quiet and how in ("keeps", "output") else how, node, self.loops, parts)

    def _inside(self, node: ast.AST) -> list[Value]:
        found = []
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                found.append(self.value(child))
            elif isinstance(child, (ast.comprehension, ast.keyword)):
                found += self._inside(child)
        return found

    def _named(self, node: ast.expr, name: str) -> Value:
        if name in self.env:
            return self.env[name]
        if isinstance(node, ast.Attribute) and dotted(node.value) in self.env:
            of = self.env[dotted(node.value)]
            if node.attr in _PARTS:
                return self._made("keeps", node, of)
            return self._made("number" if node.attr in ("shape", "dtype", "device") else "unknown", node, of)
        found = Value("unknown", node, ())  # it comes from outside
        found.names.add(name)
        self.env[name] = found
        return found

    def _value_constant(self, node: ast.Constant) -> Value:
        return self._made("number", node)

    def _value_lambda(self, node: ast.Lambda) -> Value:
        return self._made("unknown", node)

    def _value_compare(self, node: ast.Compare) -> Value:
        return self._made("number", node, *self._inside(node))

    _value_boolop = _value_joinedstr = _value_compare

    def _value_list(self, node: ast.List) -> Value:
        parts = self._inside(node)
        return Value("container", node, self.loops, tuple(parts)) if not parts else self._several(node, parts)

    _value_dict = _value_set = _value_list

    def _several(self, node: ast.AST, parts: list[Value]) -> Value:
        return Value("several", node, self.loops, tuple(parts))

    def _value_tuple(self, node: ast.Tuple) -> Value:
        return self._several(node, self._inside(node))

    def _value_listcomp(self, node: ast.ListComp) -> Value:
        self.loops += (node,)
        inside = self._inside(node)
        self.loops = self.loops[:-1]
        empty = isinstance(node.elt, (ast.List, ast.Dict))
        return self._made("container" if empty else "unknown", node, *inside)

    _value_generatorexp = _value_listcomp

    def _value_binop(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(node.left, ast.List):
            return self._made("container", node)
        if left.how == right.how == "number":
            return self._made("number", node, left, right)
        return self._made("keeps", node, left, right)

    def _value_unaryop(self, node: ast.UnaryOp) -> Value:
        operand = self.value(node.operand)
        return self._made(
            "number" if operand.how == "number" or isinstance(node.op, ast.Not) else "keeps", node, operand
        )

    def _value_ifexp(self, node: ast.IfExp) -> Value:
        self.value(node.test)
        return self._made("join", node, self.value(node.body), self.value(node.orelse))

    def _value_namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.value(node.value)
        self._bind(node.target, value, ast.Expr(node))
        return value

    def _value_starred(self, node: ast.Starred) -> Value:
        return self.value(node.value)

    def _value_await(self, node: ast.Await) -> Value:
        return self.value(node.value)

    def _value_attribute(self, node: ast.Attribute) -> Value:
        of = self.value(node.value)
        return self._made("keeps" if node.attr in _PARTS else "unknown", node, of)

    def _value_subscript(self, node: ast.Subscript) -> Value:
        of, key = self.value(node.value), code.key_of(node)
        if isinstance(key, ast.expr):
            self.value(key)
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value not in _PARTS:
            return self._made("unknown", node, of)
        return self._made("keeps" if of.how in ("output", "keeps") or of.marked else "unknown", node, of)

    # Calls

    def _value_call(self, node: ast.Call) -> Value:
        name = dotted(node.func)
        on = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        arguments = [self.value(a) for a in node.args] + [self.value(k.value) for k in node.keywords]
        does = node.func.attr if isinstance(node.func, ast.Attribute) else name
        if does in ("backward", "manual_backward"):
            return self._called_backward(node, on, arguments)
        if name.endswith("autograd.grad") or name == "grad":
            return self._differentiated(node, arguments)
        if isinstance(node.func, ast.Attribute) and does in _PUTS and node.args:
            statement = self.file.parents.get(node)
            if isinstance(statement, ast.Expr):
                self._keep(statement, node.func.value, True, node.args[-1], arguments[len(node.args) - 1])
                return self._made("number", node)
        self._switches(node, name, does, on)
        return self._result(node, name, does, on, arguments)

    def _switches(self, node: ast.Call, name: str, does: str, on: Optional[Value]) -> None:
        """Notes whether a call turns gradients on or off, or puts a model into another mode."""
        if does == "set_grad_enabled":
            self.quiet = 0 if node.args and code.is_constant(node.args[0], True) else 1
        if on is not None and does in ("eval", "train") and name.count("."):
            mode = node.args[0] if node.args else code.keyword(node, "mode")
            evaluates = does == "eval" or code.is_constant(mode, False)
            self.modes[name.rpartition(".")[0]] = "eval" if evaluates else "train"

    def _result(self, node: ast.Call, name: str, does: str, on: Optional[Value], arguments: list[Value]) -> Value:
        if name in self.file.modules and not code.is_loss(self.file, name):
            return self._of_model(node, name, arguments)
        if code.is_loss(self.file, name):
            return self._made("keeps", node, *arguments)
        if isinstance(node.func, ast.Call) and re.search(r"nn\.\w*Loss$", dotted(node.func.func)):
            return self._made("keeps", node, *arguments)
        known = self._known(node, name, does, arguments)
        if known is not None:
            return known
        called = self._of_program(node, name)
        if called is not None:
            called.parts.extend(a for a in arguments if called.how == "unknown")
            return called
        return self._unknown(node, does, on, arguments)

    def _known(self, node: ast.Call, name: str, does: str, arguments: list[Value]) -> Optional[Value]:
        """The result of a call of one of PyTorch's or Python's own functions."""
        if name.startswith(("F.", "torch.nn.functional.", "nn.functional.", "torch.")) and name.count(".") <= 3:
            keeps = does not in _NO_GRADIENT and not name.startswith(("torch.cuda", "torch.utils", "torch.distributed"))
            return self._made("keeps" if keeps else "number", node, *arguments)
        if does == "scale" and "scaler" in name and len(arguments) == 1:
            return arguments[0]
        if name in ("list", "dict", "set", "collections.OrderedDict", "OrderedDict") and not arguments:
            return self._made("container", node)
        if does in ("deque", "defaultdict") and code.keyword(node, "maxlen") is None and len(node.args) <= 1:
            return self._made("container", node)
        if name in _HARMLESS:
            return self._made("number", node, *arguments)
        return None

    def _unknown(self, node: ast.Call, does: str, on: Optional[Value], arguments: list[Value]) -> Value:
        if on is not None and does == "detach":
            return self._made("detached", node, on)
        if on is not None and does in _KEEPS:
            how = "keeps" if on.how != "detached" else "unknown" if does in ("cpu", "to") else "detached"
            return self._made(how, node, on, *arguments)
        result = self._made("unknown", node, on, *arguments)
        self.escaped += [Escaped(value, result, self.loops) for value in arguments]
        return result

    def _of_model(self, node: ast.Call, name: str, arguments: list[Value]) -> Value:
        if self.quiet or name in self.file.frozen:
            return self._made("detached", node, Value("output", node, self.loops), *arguments)
        if self.modes.get(name) != "train":
            self.evaluated.append(Evaluated(node, name, self.loops, name in self.modes))
        return self._made("output", node, *arguments)

    def _of_program(self, node: ast.Call, name: str) -> Optional[Value]:
        """The result of a call of one of the program's own functions, if there is only one of that name."""
        found = self.program.functions.get(name.rpartition(".")[2], ())
        if found:
            self.modes_at[node] = {} if self.quiet else dict(self.modes)
        if len(found) != 1 or name.count(".") > 1 or "." in name and not name.startswith("self."):
            return None
        file, function = found[0]
        flow = flow_of(self.program, file, function)
        if flow is None:
            return self._made("unknown", node)
        if flow.backward and not flow.steps_itself:
            self.backward.append(Backward(None, None, self.loops))
        return self._any_of(node, flow) if flow.returned else self._made("unknown", node)

    def _any_of(self, node: ast.Call, flow: Flow) -> Value:
        """What a call of a function returns, whichever of its return statements is reached."""
        if all(v.how == "several" for v in flow.returned):
            several = [list(v.parts) for v in flow.returned]
            if len({len(parts) for parts in several}) == 1:
                results = [self._made("join", node, *column) for column in zip(*several)]
                for result in results:
                    result.marked = bool(flow.backward) and result.gradients()
                return self._several(node, results)
        if flow.backward and all(v.gradients() for v in flow.returned):
            result = self._made("join", node, *flow.returned)
            result.marked = True  # it is made anew by each call
            return result
        return self._made("unknown", node)

    def _called_backward(self, node: ast.Call, on: Optional[Value], arguments: list[Value]) -> Value:
        receiver = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else ""
        value, plain = on, isinstance(node.func, ast.Attribute) and not node.args
        if node.args and (on is None or receiver in self.file.modules or _ENGINE.search(receiver)):
            value, plain = arguments[0], receiver == "torch.autograd"
        if value is not None:
            value.mark()
            if len(node.args) == (value is not on):  # no gradient of its own is given
                value.numbers()
        self.backward.append(Backward(node if plain else None, value, self.loops))
        return self._made("number", node)

    def _differentiated(self, node: ast.Call, arguments: list[Value]) -> Value:
        create = code.keyword(node, "create_graph")
        goes_on = create is not None and not code.is_constant(create, False)
        if arguments:
            arguments[0].mark()
            self.backward.append(Backward(None, arguments[0], self.loops, goes_on))
        return self._made("keeps" if goes_on else "unknown", node, *arguments)


def _added_list(name: str, value: ast.expr) -> Optional[ast.List]:
    """[x], if a value is name + [x]."""
    if not name or not isinstance(value, ast.BinOp) or dotted(value.left) != name:
        return None
    return value.right if isinstance(value.right, ast.List) else None


def flow_of(program: Program, file: File, owner: ast.AST) -> Optional[Flow]:
    """The flow of a function or of a module, read once; None while it is being read, as in a recursion."""
    if owner not in program.flows:
        program.flows[owner] = None
        program.flows[owner] = Flow(program, file, owner)
    return program.flows[owner]


def flows(program: Program) -> Iterator[Flow]:
    """The flows of all functions that are in no other function, and of the modules themselves."""
    for file in program.files:
        for owner in file.owners:
            flow = flow_of(program, file, owner)
            if flow is not None:
                yield flow
