"""What a training script does to memory, read from its source. Nothing of the script is executed.

This part of the package is never imported in a training process: ``headroom explain`` and ``headroom
check`` run it by itself, in the interpreter that the command names. So it imports neither torch nor
anything else beyond the standard library, and works from Python 3.8 on.

A rule speaks only where the source shows plainly that it applies. What cannot be seen, such as a function
of another package, is taken to be right.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Optional

    from .code import Finding


def findings(files: Mapping[str, str], cpus: Optional[int] = None) -> list[Finding]:
    """What is found in Python files, which are given by path. The list is in the order of the files, and in each
    by line. ``cpus`` is the number of processors of the machine, if that is known. A file that cannot be
    parsed is left out."""
    from . import evaluation, gradients, keeping, loading
    from .code import Program

    program = Program(files)
    found: dict[tuple[str, str, int], Finding] = {}
    for rule in (*keeping.RULES, *gradients.RULES, *evaluation.RULES, *loading.rules(cpus)):
        try:
            for finding in rule(program):
                found.setdefault((finding.rule, finding.file, finding.line), finding)
        except RecursionError:  # an expression or a chain of statements that nobody has written by hand
            continue
    order = {path: i for i, path in enumerate(files)}
    return sorted(found.values(), key=lambda f: (order[f.file], f.line, f.rule))
