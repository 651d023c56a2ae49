"""Rules about evaluations."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from . import code
from .code import FUNCTION, LOOP, File, Finding, Program, dotted
from .flow import Flow, flow_of, flows
from .values import Evaluated

COMPREHENSION = (ast.ListComp, ast.GeneratorExp)


def with_gradients(program: Program) -> Iterator[Finding]:
    """A model is evaluated, and autograd keeps what a backward pass would need, which never comes."""
    if program.mentions(r"set_grad_enabled\(False\)|(no_grad|inference_mode)\(\)\.__enter__"):
        return
    for flow in flows(program):
        said: set[ast.AST] = set()
        for event in flow.evaluated:
            loop = next((n for n in reversed(event.loops) if isinstance(n, (*LOOP, *COMPREHENSION))), None)
            if loop is None or loop in said or not _is_over_data(event, loop):
                continue
            if not event.known and not _mode_of_callers(program, flow, event.model):
                continue
            if flow.trains(loop) or _computes_gradients(program, flow, loop) or _called_without(program, flow):
                continue
            said.add(loop)
            yield Finding(
                "evaluation-with-gradients",
                flow.file.path,
                event.node.lineno,
                f"{event.model} is evaluated with gradients: autograd keeps the activations of every layer "
                "for a backward pass that never comes",
                f"with torch.no_grad(): around the loop in line {getattr(loop, 'lineno', event.node.lineno)}",
            )


def _mode_of_callers(program: Program, flow: Flow, model: str) -> bool:
    """Whether all callers of a function put a model into evaluation mode before."""
    if not isinstance(flow.owner, FUNCTION) or "." in model:
        return False
    parameters = [argument.arg for argument in flow.owner.args.args]
    modes = []
    for file, call in program.callers(flow.owner):
        caller = flow_of(program, file, file.owner(call))
        given = model
        if model in parameters:
            at = parameters.index(model)
            value = call.args[at] if at < len(call.args) else code.keyword(call, model)
            given = dotted(value)
        modes.append(caller.modes_at.get(call, {}).get(given) if caller is not None else None)
    return bool(modes) and set(modes) == {"eval"}


def _is_over_data(event: Evaluated, loop: ast.AST) -> bool:
    """Whether the model is called with something that is another in each round."""
    if isinstance(loop, LOOP) and isinstance(loop.body[-1], (ast.Break, ast.Return)):
        return False  # there is one round
    changes = {dotted(t) for inner in ast.walk(loop) for t in code.targets(inner)}
    given = [*event.node.args, *(k.value for k in event.node.keywords)]
    return any(changes & code.names(argument) for argument in given)


def _computes_gradients(program: Program, flow: Flow, loop: ast.AST) -> bool:
    """Whether a loop needs gradients, as an attack does, or shows that there are none."""
    function = flow.owner if isinstance(flow.owner, FUNCTION) else loop
    for node in [function, *(f for _, f in program.called(loop))]:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute) and inner.attr in (
                "requires_grad",
                "requires_grad_",
                "grad",
                "enable_grad",
            ):
                return True
            if isinstance(inner, ast.keyword) and inner.arg == "requires_grad":
                return True
    for call in code.calls(loop):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "numpy" and "detach" not in ast.dump(call.func):
            return not _detached_before(loop, call)
    return False


def _detached_before(loop: ast.AST, call: ast.Call) -> bool:
    """Whether what is turned into an array is not a model's result, or was detached."""
    names = code.names(call.func)
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and {dotted(t) for t in code.targets(node)} & names:
            text = ast.dump(node.value)
            if any(f"attr='{word}'" in text for word in ("detach", "argmax", "max", "topk", "data")):
                return True
    return "argmax" in ast.dump(call.func) or "'max'" in ast.dump(call.func)


def _called_without(program: Program, flow: Flow) -> bool:
    """Whether a function is called where no gradients are computed."""
    if not isinstance(flow.owner, FUNCTION):
        return False
    if flow.owner.name == "forward":
        return True
    return any(_is_quiet(program, file, call, 0) for file, call in program.callers(flow.owner))


def _is_quiet(program: Program, file: File, node: ast.AST, depth: int) -> bool:
    for outer in file.around(node):
        if isinstance(outer, (ast.With, ast.AsyncWith)):
            if any(code.WITHOUT_GRADIENTS.search(ast.dump(item.context_expr)) for item in outer.items):
                return True
        elif code.without_gradients(outer):
            return True
    function = file.function(node)
    if function is None or depth > 3:
        return False
    return any(_is_quiet(program, where, call, depth + 1) for where, call in program.callers(function))


RULES = (with_gradients,)
