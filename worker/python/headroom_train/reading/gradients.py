"""Rules about the gradients of a step: how they are computed, accumulated and set to zero."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple, Optional

from . import code
from .code import LOOP, File, Finding, Program, dotted
from .flow import Flow, flows
from .keeping import consumed
from .values import Backward, Value


def retained(program: Program) -> Iterator[Finding]:
    """The graph of a step is kept for a second use that there is not."""
    if any(_keeps_state(node) for node in program.classes.values()):
        return
    for flow in flows(program):
        for event in flow.backward:
            if event.own is None or not event.loops:
                continue
            for option in ("retain_graph", "create_graph"):
                if code.is_constant(code.keyword(event.own, option), True):
                    if option == "create_graph" and not _plain_optimizer(flow):
                        continue
                    if _used_once(flow, event, event.loops[-1]):
                        yield Finding(
                            "retained-graph",
                            flow.file.path,
                            event.own.lineno,
                            f"{option}=True keeps what autograd has saved in a step until the next one has its own, "
                            "and nothing uses it again",
                            f"{flow.file.source(event.own.func)}()",
                        )


def _keeps_state(node: ast.ClassDef) -> bool:
    """Whether a module keeps something from one call to the next."""
    for function in node.body:
        if isinstance(function, ast.FunctionDef) and function.name == "forward":
            for inner in ast.walk(function):
                if any(dotted(t).startswith("self.") for t in code.targets(inner)):
                    return True
    return False


def _plain_optimizer(flow: Flow) -> bool:
    """Whether nothing may ask for gradients of gradients, as some optimizers do."""
    return bool(flow.file.optimizers) and ".grad" not in re.sub(r"autograd|\.grad_|\.gradient", "", flow.file.text)


def _used_once(flow: Flow, event: Backward, loop: ast.AST) -> bool:
    """Whether a graph is made in each round of a loop, and gradients are computed with it just once."""
    if event.value is None or sum(loop in other.loops for other in flow.backward) != 1:
        return False
    if any(_differentiates(call) for _, function in flow.program.called(loop) for call in code.calls(function)):
        return False
    inside = list(event.value.slice())
    outputs = [value for value in inside if value.how == "output"]
    if not outputs or any(loop not in value.loops for value in outputs):
        return False
    return not (_carried(inside, loop) or _used_besides(flow, inside, loop))


def _differentiates(call: ast.Call) -> bool:
    """Whether gradients are computed in a call, as its name says."""
    name = dotted(call.func)
    return "backward" in name or name.endswith("grad")


def _carried(values: list[Value], loop: ast.AST) -> bool:
    """Whether one of some values is carried from one round of a loop to the next."""
    return any(loop not in v.loops and any(code.empties(loop, name) for name in v.names) for v in values)


def _used_besides(flow: Flow, values: list[Value], loop: ast.AST) -> bool:
    """Whether something else gets one of the values that a loss is computed from, and may compute gradients with it:
    a function that nothing is known of, or a container from whose elements another loss is computed."""
    used = {id(value) for value in values}
    for call in flow.escaped:
        if loop in call.loops and id(call.value) in used and id(call.result) not in used and call.value.gradients():
            return True
    names = consumed(flow.program).get(flow.file.path, set())
    return any(loop in k.loops and k.name in names and k.value.gradients() for k in flow.kept)


def unzeroed(program: Program) -> Iterator[Finding]:
    """Gradients are added to those of all steps before."""
    if program.mentions(r"register_post_accumulate_grad_hook|register_hook"):
        return
    for flow in flows(program):
        for event in flow.backward:
            loop = _loop_of_steps(flow, event)
            if loop is None or event.own is None or _zeroes(program, flow, loop):
                continue
            yield Finding(
                "no-zero-grad",
                flow.file.path,
                event.own.lineno,
                "no zero_grad in the loop: each step's gradients are added to those of all steps before it",
                f"{_optimizer_in(flow.file, loop)}.zero_grad() before {flow.file.source(event.own.func)}()",
            )


def _loop_of_steps(flow: Flow, event: Backward) -> Optional[ast.AST]:
    """The innermost loop around a backward pass in which an optimizer takes its step, too."""
    for loop in reversed(event.loops):
        if isinstance(loop, (*LOOP, *code.FUNCTION)) and _optimizer_in(flow.file, loop):
            return loop
    return None


def _optimizer_in(file: File, node: ast.AST) -> str:
    """The name of an optimizer that takes its step in a node, or ""."""
    for call in code.calls(node):
        name, _, does = dotted(call.func).rpartition(".")
        if does == "step":
            for of in (name, *(dotted(a) for a in call.args)):
                if of and code.is_optimizer(file, of):
                    return of
    return ""


_ZEROES = re.compile(r"zero_grad|grad\.zero_|grad\.data\.zero_|grad\.detach_|zero_out|clear_grad|reset_grad")


def _zeroes(program: Program, flow: Flow, loop: ast.AST) -> bool:
    """Whether gradients are, or may be, set to zero in a loop or around it."""
    within: list[ast.AST] = [loop, *(n for n in flow.file.around(loop) if isinstance(n, LOOP))]
    optimizer = _optimizer_in(flow.file, loop)
    if isinstance(flow.owner, code.FUNCTION):
        for file, call in program.callers(flow.owner):
            within += [*file.loops(call)[-1:], *filter(None, [file.function(call)])]
    within += [function for node in within for _, function in program.called(node)]
    return any(_may_zero(program, inner, optimizer) for node in within for inner in ast.walk(node))


def _may_zero(program: Program, node: ast.AST, optimizer: str) -> bool:
    """Whether a node sets gradients to zero, or may, as nothing is known of a function that gets the optimizer."""
    if isinstance(node, ast.Attribute) and _ZEROES.search(_chain(node)):
        return True
    if any(isinstance(t, ast.Attribute) and t.attr == "grad" for t in code.targets(node)):
        return True
    return isinstance(node, ast.Call) and _call_may_zero(program, node, optimizer)


def _chain(node: ast.Attribute) -> str:
    """The attributes at the end of an expression."""
    parts: list[str] = []
    at: ast.AST = node
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    return ".".join(reversed(parts))


def _call_may_zero(program: Program, call: ast.Call, optimizer: str) -> bool:
    name = dotted(call.func).rpartition(".")[2]
    given = {dotted(a) for a in [*call.args, *(k.value for k in call.keywords)]}
    known = (
        name in program.functions
        or name in ("step", "unscale_", "print", "len", "save", "prepare", "step_update")
        or "LR" in name
        or "sched" in name.lower()
    )
    return bool(re.search("zero|clear", name)) or optimizer in given and not known


def windows(program: Program) -> Iterator[Finding]:
    """Gradients are accumulated, and not averaged, or the last of them are not used."""
    for flow in flows(program):
        for event in flow.backward:
            for loop in event.loops[-1:]:
                if isinstance(loop, LOOP) and event.own is not None:
                    yield from _window(flow, event.own, event.value, loop)
                if isinstance(loop, ast.For) and event.own is not None and event.value is not None:
                    yield from _micro(flow, event.own, event.value, loop)


def _window(flow: Flow, backward: ast.Call, loss: Optional[Value], loop: ast.AST) -> Iterator[Finding]:
    for node in ast.walk(loop):
        if not isinstance(node, ast.If) or not _optimizer_in(flow.file, ast.Module(node.body, [])):
            continue
        if backward in ast.walk(node) or node.orelse:
            continue
        tests = _alternatives(node.test)
        size = next(filter(None, map(_every, tests)), None)
        if size is None or code.is_constant(size, 1):
            continue
        text = flow.file.source(size)
        if loss is not None and not _divided(flow, loss, size, loop):
            yield _undivided(flow.file, backward, text)
        last = "" if len(tests) > 1 else _last(flow, node, loop)
        if last:
            yield Finding(
                "short-window",
                flow.file.path,
                node.lineno,
                f"unless an epoch ends with a full window ({text}), its last batches take no step of their own: "
                "their gradients are lost, or are added to the next epoch's",
                f"if {flow.file.source(node.test)} or {last}:",
            )


def _micro(flow: Flow, backward: ast.Call, loss: Value, loop: ast.For) -> Iterator[Finding]:
    """The same for a loop over a number of micro-batches, as its names say."""
    if not isinstance(loop.iter, ast.Call) or dotted(loop.iter.func) != "range" or len(loop.iter.args) != 1:
        return
    names = " ".join(code.names(loop.target) | code.names(loop.iter))
    around = flow.file.loops(loop)
    if re.search("micro|accum", names) and around and not _optimizer_in(flow.file, loop):
        size = loop.iter.args[0]
        if _optimizer_in(flow.file, around[0]) and not _divided(flow, loss, size, loop):
            yield _undivided(flow.file, backward, flow.file.source(size))


def _undivided(file: File, backward: ast.Call, size: str) -> Finding:
    return Finding(
        "undivided-loss",
        file.path,
        backward.lineno,
        f"the gradients of {size} batches are added up, and the loss is not divided by {size}: "
        f"they are {size} times those of their mean",
        _divided_by(file, backward, size),
    )


def _divided_by(file: File, backward: ast.Call, size: str) -> str:
    """A call of backward on a loss that is divided."""
    assert isinstance(backward.func, ast.Attribute)
    on = backward.func.value
    if isinstance(on, ast.Call) and dotted(on.func).endswith(".scale") and len(on.args) == 1:
        return f"{file.source(on.func)}({file.source(on.args[0])} / {size}).backward()"
    return f"({file.source(on)} / {size}).backward()"


def _alternatives(test: ast.expr) -> list[ast.expr]:
    """The tests of which one has to be true."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]


def _every(test: ast.expr) -> Optional[ast.expr]:
    """n, if a test is true once in n rounds and at no other time."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        left, right = test.left, test.comparators[0]
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        left, right = test.operand, ast.Constant(0)
    else:
        return None
    if not isinstance(left, ast.BinOp) or not isinstance(left.op, ast.Mod):
        return None
    last = (
        isinstance(right, ast.BinOp) and isinstance(right.op, ast.Sub) and ast.dump(right.left) == ast.dump(left.right)
    )
    return left.right if last or isinstance(right, ast.Constant) else None


def _divided(flow: Flow, value: Value, size: ast.expr, loop: ast.AST) -> bool:
    """Whether a loss, its gradients or the learning rate are, or may be, divided by the size of a window."""
    parts = list(value.slice())
    if any(map(_scaled, parts)):
        return True
    hows = {part.how for part in parts}
    if "output" not in hows or "join" in hows:
        return True  # it comes from a function that may divide it
    by = dotted(size).rpartition(".")[2]
    if any(_may_divide(node, by) for node in flow.file.nodes):
        return True
    return any("accumulate" in dotted(call.func) for call in code.calls(loop))


def _scaled(value: Value) -> bool:
    """Whether a value is, or may be, another one divided or multiplied by something."""
    node = value.node
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, (ast.Div, ast.Mult))
    if isinstance(node, ast.AugAssign):
        return not isinstance(node.op, ast.Add)
    if not isinstance(node, ast.Call) or value.how != "unknown":
        return False
    return bool(re.search("div|scale|normal|mul", dotted(node.func)))


def _may_divide(node: ast.AST, by: str) -> bool:
    """Whether something in the source may divide gradients or the learning rate by what has a name, or tells a loss how
    it is reduced."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("grad", "reduction")
    if isinstance(node, ast.keyword):
        return node.arg == "reduction"
    if not by or not isinstance(node, (ast.BinOp, ast.AugAssign)) or not isinstance(node.op, (ast.Div, ast.Mult)):
        return False
    right = node.right if isinstance(node, ast.BinOp) else node.value
    # a number of steps, such as len(loader) / n, is no loss
    return by in {name.rpartition(".")[2] for name in code.names(right)} and "len" not in code.names(node)


class _Counted(NamedTuple):
    """What ``for number, … in enumerate(batches, start)`` says."""

    number: str
    batches: str
    start: Optional[ast.expr]


def _counted(loop: ast.AST) -> Optional[_Counted]:
    """The batches that a loop counts; None if it plainly counts none, or does something after the last one."""
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call) or dotted(loop.iter.func) != "enumerate":
        return None
    first, *start = [*loop.iter.args, *(k.value for k in loop.iter.keywords)]
    if isinstance(first, ast.Call) and dotted(first.func).endswith(("tqdm", "trange", "track")) and first.args:
        first = first.args[0]
    if not dotted(first) or not isinstance(loop.target, ast.Tuple) or loop.orelse:
        return None
    return _Counted(dotted(loop.target.elts[0]), dotted(first), start[0] if start else None)


def _last(flow: Flow, node: ast.If, loop: ast.AST) -> str:
    """The test for the last batch of an epoch, if batches after the last full window take no step; else ""."""
    counted = _counted(loop)
    if counted is None or counted.number not in code.names(node.test):
        return ""
    if counted.start is not None and not code.is_constant(counted.start, 1):
        return ""
    if any(map(_left_over, flow.file.nodes)):
        return ""
    inside = set(ast.walk(node))
    others = [c for c in code.calls(flow.owner) if c not in inside and _optimizer_in(flow.file, c)]
    if any(call.lineno > node.lineno or loop in flow.file.around(call) for call in others):
        return ""
    now = counted.number if counted.start is not None else f"{counted.number} + 1"
    return f"{now} == len({counted.batches})"


def _left_over(node: ast.AST) -> bool:
    """Whether an expression is the number of batches after the last full window."""
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and "len" in code.names(node.left)


RULES = (retained, unzeroed, windows)
