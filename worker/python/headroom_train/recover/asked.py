"""Finds out, in a step that was made whole, whether it could have been made in pieces, as the user has asked.

A step in pieces whose results turn out not to be computable is lost. Where memory has run out it would have been lost
anyway; where nothing fails (``--micro``), it must not be. So the first step of a module is made as it is without
headroom, and tried in pieces once its gradients are there.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from ..failure import Refused
from ..proof.rerun import modules_of, needed, records_of, unchanged
from ..replay.twopass import results, separated, two_pass
from ..sandbox.sandbox import rehearsal
from ..tape.graph import HOOKED
from ..tape.snapshot import submodules
from ..tape.tape import Tape, place_of
from .backward import cut, hooks_nodes
from .check import compared, refusing


def look(recorder: Any, tape: Tape, args: tuple, kwargs: dict, why: Optional[str]) -> None:
    """Tries a step that has computed gradients, while its tape still exists, if it is the first of its modules with
    more rows than the user has asked for. ``args`` and ``kwargs`` are those of the call to backward. ``why`` says that
    pieces are impossible, if that is known."""
    records = [r for r in records_of(tape) if r.untried]
    if not records:
        return
    given = args[1] if len(args) > 1 else kwargs.get("gradient")
    try:
        if why:
            raise Refused(why)
        recorder.guarded(lambda: _tried(recorder, tape, args[0], given))
    except Refused as refused:
        for record in records:
            record.exempt = True
        recorder.sizes.whole(recorder.report, refused)
    for record in records:
        record.untried = False


def _tried(recorder: Any, tape: Tape, loss: torch.Tensor, given: Any) -> None:
    """Raises :class:`Refused` if a step can be made in pieces neither once nor twice."""
    with torch._C.DisableTorchFunctionSubclass():
        if hooks_nodes(tape, loss):
            raise Refused(HOOKED)
    if any(map(_holds_results, submodules(modules_of(tape)))):
        raise Refused("a call leaves what it computes on a module")
    slot, sizes = place_of(loss).slot, recorder.sizes  # type: ignore[union-attr]
    try:
        compared(tape, slot, given, sizes)
        return
    except Refused as e:
        why = e
    entries = needed(tape, [slot])
    parts = separated(tape, entries)
    if parts is None:
        raise why
    unchanged(tape, entries)
    with refusing(), rehearsal(modules_of(tape)), torch._C.DisableTorchFunctionSubclass():
        plan = cut(tape, parts[0])
        two_pass(tape, plan, parts[0], results(tape, plan, *parts), sizes)


def _holds_results(module: torch.nn.Module) -> bool:
    """Whether an attribute is something that was computed, with its graph: the script may use it."""
    return any(isinstance(v, torch.Tensor) and v.grad_fn is not None for v in vars(module).values())
