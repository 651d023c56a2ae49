"""Rules about what is loaded, from where and to where."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Optional

from . import code
from .code import FUNCTION, File, Finding, Program, dotted


def gpu_in_loader(program: Program) -> Iterator[Finding]:
    """Samples are moved to the GPU where they are loaded."""
    for file in program.files:
        for place, what in (*_samples(program, file), *_batches(file)):
            for call in code.calls(place):
                if code.moves(file, call):
                    text = file.source(call.func.value) if isinstance(call.func, ast.Attribute) else "the tensor"
                    yield Finding(
                        "gpu-in-loader",
                        file.path,
                        call.lineno,
                        f"{what} puts data on the GPU: each worker of a loader that does this needs "
                        "a CUDA context of its own, which takes hundreds of MiB",
                        f"{text} as it is; in the training loop: batch.to(device, non_blocking=True)",
                    )
                    break


def _samples(program: Program, file: File) -> Iterator[tuple[ast.AST, str]]:
    """The methods of a file that a loader calls for samples."""
    for node in file.nodes:
        if isinstance(node, ast.ClassDef) and program.derives(node, r"Dataset$|(^|\.)(DatasetFolder|ImageFolder)$"):
            for inner in node.body:
                if isinstance(inner, FUNCTION) and inner.name in ("__getitem__", "__getitems__", "__iter__"):
                    yield inner, f"{node.name}.{inner.name}"


def _batches(file: File) -> Iterator[tuple[ast.AST, str]]:
    """The functions of a file that a loader calls to put batches together."""
    given = [_collate(call) for call in file.calls if dotted(call.func).endswith("DataLoader")]
    names: set[str] = set()
    for function in given:
        if isinstance(function, ast.Lambda):
            yield function, "collate_fn"
        elif function is not None:
            names.add(dotted(function).rpartition(".")[2])
    for node in file.nodes:
        around = file.parents.get(node)
        name = around.name if isinstance(around, ast.ClassDef) and getattr(node, "name", "") == "__call__" else ""
        if isinstance(node, FUNCTION) and {node.name, name} & names:
            yield node, name or node.name


def _collate(loader: ast.Call) -> Optional[ast.expr]:
    """What a loader is given for its batches: the function, or the class of an object that is called."""
    given = code.keyword(loader, "collate_fn")
    if isinstance(given, ast.Call):  # partial(collate, …), or Collate(…)
        partial = dotted(given.func).endswith("partial") and given.args
        return given.args[0] if partial else given.func
    return given


def loaded_to_gpu(program: Program) -> Iterator[Finding]:
    """A checkpoint is loaded to the device from which it was saved."""
    for file in program.files:
        if not file.uses_cuda:
            return
        by_function: dict[Optional[ast.AST], list[ast.Call]] = {}
        for call in _unmapped(file):
            if _is_checkpoint(file, call) and not _in_memory(file, call):
                by_function.setdefault(file.function(call), []).append(call)
        for first, *more in by_function.values():
            lines = ", ".join(str(call.lineno) for call in more)
            yield Finding(
                "load-without-map-location",
                file.path,
                first.lineno,
                "each tensor of the checkpoint is loaded to the GPU that it was saved from, beside the model's; "
                "if there are several processes, all load to the same GPU"
                + (f" (also in line {lines})" if lines else ""),
                f'torch.load({file.source(first.args[0])}, map_location="cpu")',
            )


def _unmapped(file: File) -> list[ast.Call]:
    """The calls that load something without saying to which device, here or where else it is loaded."""
    loads = [call for call in file.calls if dotted(call.func) == "torch.load" and call.args and not code.unpacks(call)]
    mapped = [c for c in loads if len(c.args) > 1 or code.keyword(c, "map_location") or code.keyword(c, "mmap")]
    known = {file.source(call.args[0]) for call in mapped}
    return [call for call in loads if call not in mapped and file.source(call.args[0]) not in known]


def _in_memory(file: File, call: ast.Call) -> bool:
    """Whether what is loaded was written by the same function, to memory."""
    within, read = file.function(call) or file.tree, dotted(call.args[0])
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and dotted(node.value.func).endswith("BytesIO")
        and not node.value.args
        and read in map(dotted, code.targets(node))
        for node in ast.walk(within)
    )


def _is_checkpoint(file: File, call: ast.Call) -> bool:
    """Whether what is loaded goes into a model or an optimizer."""
    for outer in file.around(call):
        if isinstance(outer, ast.Call) and _loads_state(outer):
            return True
        if isinstance(outer, (ast.Assign, ast.AnnAssign)):
            loaded = {dotted(target) for target in code.targets(outer)} - {""}
            within = file.function(call) or file.tree
            return any(
                _loads_state(other) and any(loaded & code.names(argument) for argument in other.args)
                for other in code.calls(within)
            )
        if isinstance(outer, ast.Return):
            function = file.function(call)
            return function is not None and bool(re.search("checkpoint|ckpt|state_?dict|weights", function.name))
        if isinstance(outer, ast.stmt):
            return False
    return False


def _loads_state(call: ast.Call) -> bool:
    """Whether a call gives a model or an optimizer its state. That of a scaler or a schedule is a few numbers."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "load_state_dict":
        return False
    return not re.search("scaler|sched|sampler|loader|ema_decay", dotted(call.func), re.I)


def kept_gradients(program: Program) -> Iterator[Finding]:
    """Gradients are filled with zeros in place of being released."""
    if program.mentions(r"CUDAGraph|cuda\.graph\(|make_graphed_callables"):
        return
    for file in program.files:
        for call in file.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "zero_grad":
                continue
            given = code.keyword(call, "set_to_none") or (call.args[0] if call.args else None)
            if code.is_constant(given, False) and not any(map(_writes_gradients, file.nodes)):
                yield Finding(
                    "gradients-not-released",
                    file.path,
                    call.lineno,
                    "set_to_none=False keeps the memory of all gradients, filled with zeros, during the forward pass",
                    f"{file.source(call.func)}()",
                )


def _writes_gradients(node: ast.AST) -> bool:
    """Whether a statement gives a parameter a gradient, for which there has to be memory."""
    gives = not isinstance(node, ast.Delete) and not code.is_constant(getattr(node, "value", None), None)
    return gives and any(isinstance(t, ast.Attribute) and t.attr == "grad" for t in code.targets(node))


def rules(cpus: Optional[int]) -> list[Callable[[Program], Iterator[Finding]]]:
    """The rules of this file. ``cpus`` is the number of processors of the machine, if that is known."""

    def many_workers(program: Program) -> Iterator[Finding]:
        for file in program.files:
            for call in file.calls:
                workers = code.keyword(call, "num_workers")
                if not dotted(call.func).endswith("DataLoader") or not isinstance(workers, ast.Constant):
                    continue
                if not code.is_constant(code.keyword(call, "pin_memory"), True) or type(workers.value) is not int:
                    continue
                if cpus is not None and workers.value > 2 * cpus:
                    yield Finding(
                        "many-workers",
                        file.path,
                        call.lineno,
                        f"{workers.value} loader workers on {cpus} processors: each holds batches in "
                        "the host's shared memory, and pin_memory copies them into pages that cannot be swapped",
                        f"num_workers={cpus}",
                    )

    return [gpu_in_loader, loaded_to_gpu, kept_gradients, many_workers]
