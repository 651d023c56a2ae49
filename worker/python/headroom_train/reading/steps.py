"""Rules about the steps of a training: what outlives them, and what their gradients are."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Optional

from . import code
from .code import LOOP, File, Finding, Function, Program, dotted
from .flow import Backward, Flow, Kept, Summed, Value, flows


def kept(program: Program) -> Iterator[Finding]:
    """A loss or a result of a model is put into a container that outlives the loop of the steps."""
    consumed = _consumed(program)
    for flow in flows(program):
        for event in flow.kept:
            if event.name in consumed.get(flow.file.path, ()) or not _is_container(flow, event):
                continue
            for loop in reversed(event.loops):
                if _outlives(flow, event, loop, event.value):
                    made = _first_source(event.value)
                    yield Finding(
                        "kept-tensor",
                        flow.file.path,
                        event.node.lineno,
                        f"{event.name} keeps {made} of every step as a tensor, with what autograd holds of the step",
                        _without_graph(flow, event, made),
                    )
                    break


def outlives_epoch(program: Program) -> Iterator[Finding]:
    """Results of a model that have no gradients any more are kept on the device beyond the epoch."""
    for flow in flows(program):
        for event in flow.kept:
            value, loops = event.value, [loop for loop in event.loops if isinstance(loop, LOOP)]
            if value.how != "detached" or len(loops) < 2 or not _is_container(flow, event):
                continue
            if not any(part.how == "output" for part in value.parts) or not flow.trains(loops[0]):
                continue
            if event.is_list and isinstance(event.holds, Value) and not any(l in event.holds.loops for l in loops):
                if not any(_emptied(flow, event.name, loop) for loop in loops):
                    yield Finding(
                        "outlives-epoch",
                        flow.file.path,
                        event.node.lineno,
                        f"{event.name} is made before the first epoch and never emptied: it keeps the results of all epochs on the device",
                        f"{event.name} = [] at the start of each epoch, or .cpu() for what is kept",
                    )


def _consumed(program: Program) -> dict[str, set[str]]:
    """The names of variables from which something is computed whose gradients are computed, by file."""
    found: dict[str, set[str]] = {}
    for flow in flows(program):
        names = found.setdefault(flow.file.path, set())
        for event in flow.backward:
            if event.value is not None:
                for value in event.value.slice():
                    names |= value.names
                    names |= code.names(value.node) if isinstance(value.node, (ast.Call, ast.comprehension)) else set()
    return found


def _is_container(flow: Flow, event: Kept) -> bool:
    """Whether something plainly is a list or dictionary that is not bounded."""
    if event.holds is not None and event.holds.how != "unknown":
        holds = event.holds.how == "container" or event.holds.how == "several" and isinstance(event.holds.node, ast.Dict)
        return holds and "maxlen" not in ast.dump(event.holds.node)
    made = list(_assigned(flow.file, event.name, event.node))
    if not made or any("maxlen" in ast.dump(value) for value in made):
        return False
    return all(
        isinstance(value, (ast.List, ast.Dict, ast.ListComp)) or isinstance(value, ast.Call) and dotted(value.func) in ("list", "dict")
        for value in made
    )


def _assigned(file: File, name: str, place: ast.AST) -> Iterator[ast.expr]:
    """What is assigned to an attribute of the object that a method belongs to, or to a variable of the module."""
    if name.startswith("self."):
        around: Optional[ast.AST] = next((n for n in file.around(place) if isinstance(n, ast.ClassDef)), None)
    else:
        around = file.tree
        function = file.function(place)
        if function is not None and (name in _parameters(function) or "." in name):
            return
    if around is None:
        return
    for node in ast.walk(around):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            if name in map(dotted, code.targets(node)) and (name.startswith("self.") or file.function(node) is None):
                yield node.value


def _parameters(function: Function) -> set[str]:
    a = function.args
    every = [*a.args, *a.kwonlyargs, *getattr(a, "posonlyargs", []), a.vararg, a.kwarg]
    return {argument.arg for argument in every if argument is not None}


def _outlives(flow: Flow, event: Kept, loop: ast.AST, value: Value) -> bool:
    """Whether a value that is made anew in each round of a loop of steps is kept beyond the loop."""
    if not value.gradients() or not any(loop in source.loops for source in value.sources()):
        return False
    if not flow.trains(loop) or event.holds is not None and loop in event.holds.loops:
        return False
    if isinstance(loop, LOOP) and re.search("accum|micro", _head(flow.file, loop)):
        return False  # a few parts of one step
    if not event.is_list and not _varies(event, loop):
        return False
    return not _emptied(flow, event.name, loop)


def _head(file: File, loop: ast.AST) -> str:
    head = loop.test if isinstance(loop, ast.While) else loop.iter  # type: ignore[attr-defined]
    return file.source(head)


def _varies(event: Kept, loop: ast.AST) -> bool:
    """Whether the key of an element is another one in each round of a loop."""
    if not isinstance(event.expression, ast.Subscript):
        return False
    key = code.key_of(event.expression)
    if any(isinstance(node, ast.Mod) for node in ast.walk(key)):
        return False
    counted = {dotted(t) for t in code.targets(loop)}
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign):
            counted.add(dotted(node.target))
    return bool(counted & code.names(key))


def _emptied(flow: Flow, name: str, loop: ast.AST) -> bool:
    """Whether a container is emptied or replaced in a loop, or may be: by a function that gets it."""
    if code.empties(loop, name):
        return True
    around = next((n for n in flow.file.around(flow.owner) if isinstance(n, ast.ClassDef)), None)
    if name.startswith("self.") and around is not None:
        others = [n for n in around.body if getattr(n, "name", "__init__") != "__init__" and n is not flow.owner]
        if any(code.empties(other, name) for other in others) or code.empties(flow.owner, name):
            return True
    elif flow.owner is not flow.file.tree and "." in name:
        if code.empties(flow.file.tree, name):
            return True
    for call in code.calls(loop):
        if name in map(dotted, call.args) and not _only_reads(call):
            return True
    return False


def _only_reads(call: ast.Call) -> bool:
    name = dotted(call.func)
    return name in ("print", "len", "sum", "min", "max", "list", "tuple", "sorted", "enumerate", "zip", "str") or name.startswith(
        ("np.", "numpy.", "torch.", "plt.", "statistics.", "json.")
    )


def _first_source(value: Value) -> str:
    source = next(value.sources())
    return min(source.names, key=len) if source.names else "the result"


def _without_graph(flow: Flow, event: Kept, made: str) -> str:
    """What to write instead of a line that keeps a tensor."""
    source = next(event.value.sources())
    how = ".detach().cpu()" if source.how == "output" and not source.marked else ".item()"
    if event.is_list and isinstance(event.node, ast.Expr) and isinstance(event.node.value, ast.Call):
        call = event.node.value
        inside = _sanitised(flow, event.expression, event.value, how)
        before = [flow.file.source(a) + ", " for a in call.args[:-1]]
        return f"{flow.file.source(call.func)}({''.join(before)}{inside})"
    if isinstance(event.node, ast.Assign) and not event.is_list:
        right = _sanitised(flow, event.node.value, event.value, how)
        return f"{flow.file.source(event.expression)} = {right}"
    return f"{made}{how} in place of {made}"


def _sanitised(flow: Flow, node: ast.expr, value: Value, how: str) -> str:
    """The text of an expression, with values in place of its tensors."""
    text = flow.file.source(node)
    if isinstance(node, ast.BinOp) and len(value.parts) == 2:
        left, right = value.parts
        operator = text[len(flow.file.source(node.left)) : len(text) - len(flow.file.source(node.right))]
        sides = [
            _sanitised(flow, side, part, how) if part.gradients() else flow.file.source(side)
            for side, part in ((node.left, left), (node.right, right))
        ]
        return operator.join(sides) if "(" not in operator and ")" not in operator else f"({text}){how}"
    if isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) == len(value.parts):
        inner = ", ".join(
            _sanitised(flow, element, part, how) if part.gradients() else flow.file.source(element)
            for element, part in zip(node.elts, value.parts)
        )
        return f"({inner})" if isinstance(node, ast.Tuple) else f"[{inner}]"
    simple = isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
    return text + how if simple else f"({text}){how}"


def summed(program: Program) -> Iterator[Finding]:
    """The losses of steps are added up as tensors."""
    consumed = _consumed(program)
    for flow in flows(program):
        for event in flow.summed:
            on = event.target.value if isinstance(event.target, ast.Subscript) else event.target
            name = dotted(on)
            if name in consumed.get(flow.file.path, ()) or not _is_number(flow, event, name):
                continue
            if any(_sums(flow, event, name, loop) for loop in event.loops):
                text = flow.file.source(event.target)
                right = _sanitised(flow, event.expression, event.value, ".item()")
                yield Finding(
                    "summed-tensor",
                    flow.file.path,
                    event.node.lineno,
                    f"{text} is a sum of tensors: its graph grows with every step, and nothing calls backward on it",
                    f"{text} += {right}",
                )


def _is_number(flow: Flow, event: Summed, name: str) -> bool:
    """Whether a sum begins as a number or a tensor of zeros."""
    before = event.before
    while before is not None and before.how in ("keeps", "join") and before.parts and not before.gradients():
        before = before.parts[0]
    if before is not None and before.how != "unknown":
        return before.how == "number" or before.how in ("container", "several") and isinstance(before.node, ast.Dict)
    if before is not None and isinstance(before.node, ast.Call):
        return _zeros(before.node)
    made = list(_assigned(flow.file, name, event.node))
    return any(_zeros(value) for value in made)


def _zeros(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    return isinstance(node, ast.Call) and dotted(node.func).startswith(("torch.zeros", "torch.tensor"))


def _sums(flow: Flow, event: Summed, name: str, loop: ast.AST) -> bool:
    if not event.value.gradients() or not any(loop in source.loops for source in event.value.sources()):
        return False
    if not flow.trains(loop) or event.before is not None and event.before.how != "unknown" and loop in event.before.loops:
        return False
    return not _emptied(flow, name, loop)


def retained(program: Program) -> Iterator[Finding]:
    """The graph of a step is kept for a second use that there is not."""
    if any(_keeps_state(node) for node in program.classes.values()):
        return
    for flow in flows(program):
        for event in flow.backward:
            for option in ("retain_graph", "create_graph"):
                if event.plain and code.is_constant(code.keyword(event.node, option), True) and event.loops:
                    if option == "create_graph" and not _plain_optimizer(flow):
                        continue
                    if _used_once(flow, event, event.loops[-1]):
                        yield Finding(
                            "retained-graph",
                            flow.file.path,
                            event.node.lineno,
                            f"{option}=True keeps what autograd has saved in this step until the next one has its own, and nothing uses it again",
                            f"{flow.file.source(event.node.func)}()",
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
    return bool(flow.file.optimizers) and ".grad" not in re.sub(r"autograd|\.grad_|\.gradient", "", flow.file.text)


def _used_once(flow: Flow, event: Backward, loop: ast.AST) -> bool:
    if event.value is None or sum(loop in other.loops for other in flow.backward) != 1:
        return False
    if any("backward" in dotted(call.func) or "grad" in code.names(call.func) for _, f in program_calls(flow, loop) for call in code.calls(f)):
        return False
    inside = list(event.value.slice())
    if not any(value.how == "output" for value in inside):
        return False
    for value in inside:
        if value.how == "output" and loop not in value.loops:
            return False
        if loop not in value.loops and any(code.empties(loop, name) for name in value.names):
            return False  # carried from one round to the next
    used = {id(value) for value in inside}
    for call in flow.escaped:
        if loop in call.loops and id(call.value) in used and id(call.result) not in used and call.value.gradients():
            return False
    consumed = _consumed(flow.program).get(flow.file.path, set())
    for other in flow.kept:
        if loop in other.loops and other.name in consumed and other.value.gradients():
            return False
    return True


def program_calls(flow: Flow, node: ast.AST) -> Iterator[tuple[File, Function]]:
    """The program's own functions that a node may call."""
    return flow.program.called(node)


def unzeroed(program: Program) -> Iterator[Finding]:
    """Gradients are added to those of all steps before."""
    if program.mentions(r"register_post_accumulate_grad_hook|register_hook"):
        return
    for flow in flows(program):
        for event in flow.backward:
            loop = _loop_of_steps(flow, event)
            if loop is None or not event.plain or _zeroes(program, flow, loop):
                continue
            yield Finding(
                "no-zero-grad",
                flow.file.path,
                event.node.lineno,
                "no zero_grad in the loop: each step's gradients are added to those of all steps before it",
                f"{_optimizer_in(flow.file, loop)}.zero_grad() before {flow.file.source(event.node.func)}()",
            )


def _loop_of_steps(flow: Flow, event: Backward) -> Optional[ast.AST]:
    """The innermost loop around a backward pass in which an optimizer takes its step, too."""
    for loop in reversed(event.loops):
        if isinstance(loop, LOOP) and _optimizer_in(flow.file, loop):
            return loop
    return None


def _optimizer_in(file: File, node: ast.AST) -> str:
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
    around: list[ast.AST] = [loop, *(n for n in flow.file.around(loop) if isinstance(n, LOOP))]
    optimizer = _optimizer_in(flow.file, loop)
    within = [*around, *(function for _, function in program.called(around[-1]))]
    if isinstance(flow.owner, code.FUNCTION):
        for file, call in program.callers(flow.owner):
            within += [*file.loops(call)[-1:], *filter(None, [file.function(call)])]
    for node in within:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and _ZEROES.search(inner.attr + "" if inner.attr == "zero_grad" else _chain(inner)):
                return True
            if any(isinstance(t, ast.Attribute) and t.attr == "grad" for t in code.targets(inner)):
                return True
            if isinstance(inner, ast.Call) and _may_zero(inner, optimizer):
                return True
    return False


def _chain(node: ast.Attribute) -> str:
    """The attributes at the end of an expression."""
    parts: list[str] = []
    at: ast.AST = node
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    return ".".join(reversed(parts))


def _may_zero(call: ast.Call, optimizer: str) -> bool:
    """Whether a function that nothing is known of gets the optimizer."""
    name = dotted(call.func).rpartition(".")[2]
    given = {dotted(a) for a in [*call.args, *(k.value for k in call.keywords)]}
    known = name in ("step", "unscale_", "print", "len", "save", "prepare", "step_update") or "LR" in name or "sched" in name.lower()
    return bool(re.search("zero|clear", name)) or optimizer in given and not known


def windows(program: Program) -> Iterator[Finding]:
    """Gradients are accumulated, and not averaged, or the last of them are not used."""
    for flow in flows(program):
        for event in flow.backward:
            for loop in event.loops[-1:]:
                if isinstance(loop, LOOP) and event.plain:
                    yield from _window(flow, event, loop)


def _window(flow: Flow, event: Backward, loop: ast.AST) -> Iterator[Finding]:
    for node in ast.walk(loop):
        if not isinstance(node, ast.If) or not _optimizer_in(flow.file, ast.Module(node.body, [])):
            continue
        if event.node in ast.walk(node) or node.orelse:
            continue
        size = _every(node.test)
        if size is None or code.is_constant(size, 1):
            continue
        text = flow.file.source(size)
        if event.value is not None and not _divided(flow, event.value, size, loop):
            yield Finding(
                "undivided-loss",
                flow.file.path,
                event.node.lineno,
                f"the gradients of {text} batches are added up, and the loss is not divided by {text}: they are {text} times those of their mean",
                f"({flow.file.source(event.node.func.value)} / {text}).backward()",  # type: ignore[attr-defined]
            )
        if _is_short(flow, node, loop):
            index = dotted(loop.target.elts[0])  # type: ignore[attr-defined]
            batches = flow.file.source(loop.iter.args[0])  # type: ignore[attr-defined]
            yield Finding(
                "short-window",
                flow.file.path,
                node.lineno,
                f"unless the number of batches is a multiple of {text}, the last ones take no step of their own: their gradients are lost, or are added to the next epoch's",
                f"if {flow.file.source(node.test)} or {index} + 1 == len({batches}):",
            )


def _every(test: ast.expr) -> Optional[ast.expr]:
    """n, if a test is true once in n rounds and at no other time."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq):
        left = test.left
        if isinstance(test.comparators[0], ast.Constant) and isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod):
            return left.right
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and isinstance(test.operand, ast.BinOp):
        if isinstance(test.operand.op, ast.Mod):
            return test.operand.right
    return None


def _divided(flow: Flow, value: Value, size: ast.expr, loop: ast.AST) -> bool:
    """Whether a loss, its gradients or the learning rate are, or may be, divided by the size of a window."""
    last = (dotted(size) or "").rpartition(".")[2]
    for part in value.slice():
        node = part.node
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.Mult)):
            return True
        if isinstance(node, ast.AugAssign) and not isinstance(node.op, ast.Add):
            return True
        if isinstance(node, ast.Call) and part.how == "unknown" and re.search("div|scale|normal|mul", dotted(node.func)):
            return True
    if not any(v.how == "output" for v in value.slice()) or any(v.how == "join" for v in value.slice()):
        return True  # it comes from a function that may divide it
    for node in ast.walk(flow.file.tree):
        if isinstance(node, ast.Attribute) and node.attr in ("grad", "reduction"):
            return True
        if isinstance(node, ast.keyword) and node.arg == "reduction":
            return True
        if last and isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, (ast.Div, ast.Mult)):
            right = node.right if isinstance(node, ast.BinOp) else node.value
            if last in {name.rpartition(".")[2] for name in code.names(right)} and "len(" not in flow.file.source(right):
                if "len" not in code.names(node):
                    return True
    return any("accumulate" in dotted(call.func) for call in code.calls(loop))


def _is_short(flow: Flow, node: ast.If, loop: ast.AST) -> bool:
    """Whether batches after the last full window of an epoch take no step."""
    if not isinstance(loop, ast.For) or not isinstance(loop.iter, ast.Call) or dotted(loop.iter.func) != "enumerate":
        return False
    if len(loop.iter.args) != 1 or loop.iter.keywords or not isinstance(loop.target, ast.Tuple):
        return False
    batches = loop.iter.args[0]
    index = dotted(loop.target.elts[0])
    if not dotted(batches) or index not in code.names(node.test) or loop.orelse:
        return False
    if any(isinstance(call.func, (ast.Name, ast.Attribute)) and dotted(call.func).endswith("drop_last") for call in code.calls(loop)):
        return False
    around = flow.owner if flow.owner is not flow.file.tree else flow.file.tree
    after = [
        call
        for call in code.calls(around)
        if dotted(call.func).endswith(".step") and call not in ast.walk(node) and call.lineno > node.lineno
        and _optimizer_in(flow.file, call)
    ]
    inside = [call for call in code.calls(loop) if call not in ast.walk(node) and _optimizer_in(flow.file, call)]
    return not after and not inside


RULES = (kept, outlives_epoch, summed, retained, unzeroed, windows)
