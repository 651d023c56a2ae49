"""Rules about what outlives a step: tensors that are put into a container, or added up."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Optional

from . import code
from .code import FUNCTION, LOOP, File, Finding, Program, dotted
from .flow import Flow, flows
from .values import Kept, Summed, Value


def kept(program: Program) -> Iterator[Finding]:
    """A loss or a result of a model is put into a container that outlives the loop of the steps."""
    used = consumed(program)
    for flow in flows(program):
        for event in flow.kept:
            if event.name in used.get(flow.file.path, ()) or not event.value.gradients():
                continue
            if not _is_container(flow, event):
                continue
            for loop in reversed(event.loops):
                if _outlives(flow, event, loop, event.value):
                    kept_value = event.expression if event.is_list else getattr(event.node, "value", event.expression)
                    made = flow.file.source(next(_tensors(kept_value, event.value))[0])
                    yield Finding(
                        "kept-tensor",
                        flow.file.path,
                        event.node.lineno,
                        f"{event.name} keeps {made} of every step as a tensor: its graph stays, and what that has "
                        "saved unless backward has run",
                        _without_graph(flow, event, made),
                        event.name,
                    )
                    break


def outlives_epoch(program: Program) -> Iterator[Finding]:
    """Inputs, or results of a model without gradients, are kept on the device beyond the epoch."""
    for flow in flows(program):
        for event in flow.kept:
            value, loops = event.value, [loop for loop in event.loops if isinstance(loop, LOOP)]
            if len(loops) < 2 or not flow.trains(loops[0]) or not _is_container(flow, event):
                continue
            if not _stays_on_device(flow.file, value, loops[-1]):
                continue
            if not event.is_list or event.holds is None or set(loops) & set(event.holds.loops):
                continue
            if not any(_emptied(flow, event.name, loop) for loop in loops):
                part = flow.file.source(event.container)
                yield Finding(
                    "outlives-epoch",
                    flow.file.path,
                    event.node.lineno,
                    f"{event.name} is made before the outer loop and never emptied: "
                    f"it keeps {_first_name(value)} of every step of all its rounds on the device",
                    f"{part} = [] in each round of the outer loop, or .cpu() for what is kept",
                    event.name,
                )


def _stays_on_device(file: File, value: Value, loop: ast.AST) -> bool:
    """Whether a value is a model's result, without its gradients, or is put on the device in each round of a loop."""
    made = value
    while made.how == "detached" and made.parts:
        made = made.parts[0]
    if made is not value and made.how == "output":
        return True
    return code.moves(file, value.node) and loop in value.loops


def consumed(program: Program) -> dict[str, set[str]]:
    """The names of variables from which something is computed whose gradients are computed, by file."""
    found = program.consumed
    for flow in flows(program) if not found else ():
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
        holds = (
            event.holds.how == "container" or event.holds.how == "several" and isinstance(event.holds.node, ast.Dict)
        )
        return holds and "maxlen" not in ast.dump(event.holds.node)
    made = list(_assigned(flow.file, event.name, event.node))
    if not made or any("maxlen" in ast.dump(value) for value in made):
        return False
    return all(
        isinstance(value, (ast.List, ast.Dict, ast.ListComp))
        or isinstance(value, ast.Call)
        and dotted(value.func) in ("list", "dict")
        for value in made
    )


def _assigned(file: File, name: str, place: ast.AST) -> Iterator[ast.expr]:
    """What is assigned to an attribute of the object that a method belongs to, or to a variable of the module."""
    if name.startswith("self."):
        around: Optional[ast.AST] = next((n for n in file.around(place) if isinstance(n, ast.ClassDef)), None)
    else:
        around = file.tree
        function = file.function(place)
        if function is not None and (name in code.parameters(function) or "." in name):
            return
    if around is None:
        return
    for node in ast.walk(around):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or name not in map(dotted, code.targets(node)):
            continue
        if node.value is not None and (name.startswith("self.") or file.function(node) is None):
            yield node.value


def _outlives(flow: Flow, event: Kept, loop: ast.AST, value: Value) -> bool:
    """Whether a value that is made anew in each round of a loop of steps is kept beyond the loop."""
    if not value.gradients() or not any(loop in source.loops for source in value.sources()):
        return False
    if not _of_no_use(flow, loop, event.name, value) or (event.holds is not None and loop in event.holds.loops):
        return False
    if isinstance(loop, LOOP) and re.search("accum|micro", _head(flow.file, loop)):
        return False  # a few parts of one step
    if not event.is_list and not _varies(event, loop):
        return False
    return not _emptied(flow, event.name, loop)


def _of_no_use(flow: Flow, loop: ast.AST, name: str, value: Value) -> bool:
    """Whether what is kept in a variable takes part in no backward pass that is still to come: its loop is that of the
    steps, or the function trains elsewhere, and neither returns it nor gives it to anybody."""
    if flow.trains(loop):
        return True
    if not flow.backward or isinstance(loop, FUNCTION) or any(source.how != "output" for source in value.sources()):
        return False
    if any(name in part.names for returned in flow.returned for part in returned.slice()):
        return False
    return not any(name in code.names(a) and not _only_reads(c) for c in code.calls(flow.owner) for a in c.args)


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
    if code.empties(loop, name) or _emptied_elsewhere(flow, name):
        return True
    return any(name in map(dotted, call.args) and not _only_reads(call) for call in code.calls(loop))


def _emptied_elsewhere(flow: Flow, name: str) -> bool:
    """Whether an attribute is emptied or replaced outside the loop that fills it, or may be."""
    around = next((n for n in flow.file.around(flow.owner) if isinstance(n, ast.ClassDef)), None)
    if name.startswith("self.") and around is not None:
        others = [n for n in around.body if getattr(n, "name", "__init__") != "__init__" and n is not flow.owner]
        if any(code.empties(other, name) for other in others) or code.empties(flow.owner, name):
            return True
        attribute = re.escape(name.rpartition(".")[2])
        # whoever has the object may empty it
        return flow.program.mentions(rf"(?<!self)\.{attribute}(\.clear\(|\s*=[^=])|del \w+\.{attribute}\b")
    return flow.owner is not flow.file.tree and "." in name and code.empties(flow.file.tree, name)


_READERS = set("print len sum min max list tuple sorted enumerate zip str".split())


def _only_reads(call: ast.Call) -> bool:
    """Whether a call leaves a container as it is."""
    name = dotted(call.func)
    return name in _READERS or name.startswith(("np.", "numpy.", "torch.", "plt.", "statistics.", "json."))


def _first_name(value: Value) -> str:
    return min(value.names, key=len) if value.names else "the result"


def _without_graph(flow: Flow, event: Kept, made: str) -> str:
    """What to write instead of a line that keeps a tensor."""
    made_by = next((part for _, part in _tensors(event.expression, event.value) if _of_own_function(part)), None)
    if made_by is not None:
        function: ast.expr = made_by.node.func  # type: ignore[attr-defined]
        return f"{flow.file.source(function)} returns tensors with their graphs: return them with .detach()"
    if event.is_list and isinstance(event.node, ast.Expr) and isinstance(event.node.value, ast.Call):
        call = event.node.value
        before = [flow.file.source(a) + ", " for a in call.args[:-1]]
        return f"{flow.file.source(call.func)}({''.join(before)}{_sanitised(flow, event.expression, event.value)})"
    if isinstance(event.node, ast.Assign) and not event.is_list:
        return f"{flow.file.source(event.expression)} = {_sanitised(flow, event.node.value, event.value)}"
    if isinstance(event.node, ast.AugAssign):
        return f"{flow.file.source(event.node.target)} += {_sanitised(flow, event.expression, event.value, True)}"
    return f"{made}.detach() in place of {made}"


def _of_own_function(value: Value) -> bool:
    """Whether a value is what one of the program's functions returns, which may be several."""
    return value.how in ("join", "several") and isinstance(value.node, ast.Call)


def _sanitised(flow: Flow, node: ast.expr, value: Value, added: bool = False) -> str:
    """The text of an expression, with numbers or copies in place of its tensors. What is ``added`` to something stays
    on its device."""
    suffixes = []
    for leaf, part in _tensors(node, value):
        stays = added or re.search(r"\.cpu\(\)$|\.to\([\"']cpu[\"']\)$", flow.file.source(leaf))
        number = _is_number_of(flow, part)
        suffixes.append((leaf, ".item()" if number else ".detach()" if stays else ".detach().cpu()"))
    return flow.file.with_suffixes(node, suffixes)


def _is_number_of(flow: Flow, value: Value, left: int = 8) -> bool:
    """Whether a value is certainly a single number: backward is called on it, it is the mean or the sum of all elements
    of a tensor, or what a loss of PyTorch's returns in a file that does not speak of another reduction. Looks into
    ``left`` operations of arithmetic."""
    node = value.node
    if value.single:
        return True
    if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.IfExp)) and value.parts and left:
        return all(part.how == "number" or _is_number_of(flow, part, left - 1) for part in value.parts)
    name = dotted(node.func) if isinstance(node, ast.Call) else ""
    is_loss = code.is_loss(flow.file, name) and name not in flow.program.functions
    if is_loss and "reduc" not in flow.file.text:
        return True
    reduces = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("mean", "sum")
    return reduces and dotted(node.func.value) != "torch" and not (node.args or node.keywords)  # type: ignore[attr-defined]


def _tensors(node: ast.expr, value: Value) -> Iterator[tuple[ast.expr, Value]]:
    """The parts of an expression that have gradients: elements, and sides of operators."""
    inner: list[ast.expr] = []
    if isinstance(node, ast.BinOp):
        inner = [node.left, node.right]
    elif isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        inner = node.elts
    elif isinstance(node, ast.Dict):
        inner = [*filter(None, node.keys), *node.values]
    if not inner or len(inner) != len(value.parts):
        yield node, value
        return
    for element, part in zip(inner, value.parts):
        if part.gradients():
            yield from _tensors(element, part)


def summed(program: Program) -> Iterator[Finding]:
    """The losses of steps are added up as tensors."""
    used = consumed(program)
    for flow in flows(program):
        for event in flow.summed:
            on = event.target.value if isinstance(event.target, ast.Subscript) else event.target
            name = dotted(on)
            if name in used.get(flow.file.path, ()) or not event.value.gradients():
                continue
            if not _is_number(flow, event, name):
                continue
            if any(_sums(flow, event, name, loop) for loop in event.loops):
                text = flow.file.source(event.target)
                instead = f"{text} += {_sanitised(flow, event.expression, event.value, True)}"
                whole = event.node.value if isinstance(event.node, ast.Assign) else None
                if isinstance(whole, ast.BinOp) and name not in (dotted(whole.left), dotted(whole.right)):
                    before = whole.right if event.expression is whole.left else whole.left  # 0.9 * mean + 0.1 * loss
                    instead = f"{text} = {flow.file.source(before)} +{instead.partition('+=')[2]}"
                yield Finding(
                    "summed-tensor",
                    flow.file.path,
                    event.node.lineno,
                    f"{text} is computed from the tensors of all steps: its graph grows with every step, "
                    "and nothing calls backward on it",
                    instead,
                    name,
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
    """Whether a value that is made anew in each round of a loop is added to a variable that goes on."""
    if not event.value.gradients() or not any(loop in source.loops for source in event.value.sources()):
        return False
    begins = event.before is not None and event.before.how != "unknown" and loop in event.before.loops
    return not begins and _of_no_use(flow, loop, name, event.value) and not _emptied(flow, name, loop)


RULES = (kept, outlives_epoch, summed)
