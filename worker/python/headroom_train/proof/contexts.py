"""Contexts in which a step is tried on a few rows: without randomness, side effects, and mixed precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Callable, Optional

import torch

from ..failure import Refused, clean, is_out_of_memory
from ..hooks.changes import changed
from ..sandbox.sandbox import ANYWHERE, NEVER, NoRandomness, rehearsal
from ..tape.recorded_module import draws_of, record_of
from ..tape.snapshot import parameters
from ..tape.tape import Tape
from .rerun import modules_of

SOME = 8  # the most rows of a trial that runs the modules several times


@contextmanager
def precisely(tape: Tape, entries: Sequence[int]) -> Iterator[bool]:
    """A context in which entries run without the rounding errors of mixed precision, if all
    parameters are in single precision. Yields whether they are. If so, autocast stays off on this
    thread, even where a module enables it."""
    if any(p.dtype != torch.float32 for p in parameters(modules_of(tape))):
        yield False
        return
    autocast, enter = {i: tape.entries[i].autocast for i in entries}, torch.autocast.__enter__
    thread = get_ident()

    def disabled(context: Any) -> Any:
        if get_ident() != thread:
            return enter(context)
        wanted, context._enabled = context._enabled, False
        for record in filter(None, map(record_of, modules_of(tape))):
            record.half = record.half or wanted
        try:
            return enter(context)
        finally:
            context._enabled = wanted

    try:
        for i in entries:
            tape.entries[i].autocast = None
        with changed(torch.autocast, "__enter__", disabled):
            yield True
    finally:
        for i, state in autocast.items():
            tape.entries[i].autocast = state


@contextmanager
def full_precision() -> Iterator[None]:
    """A context in which float32 products and convolutions do not round their factors to TF32. The
    context does nothing where a script uses PyTorch's newer settings, which cannot be mixed with
    those used here."""
    try:
        products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        yield
        return
    try:
        if products != "highest":
            torch.set_float32_matmul_precision("highest")
        if convolutions:
            torch.backends.cudnn.allow_tf32 = False
        yield
    finally:
        if products != "highest":
            torch.set_float32_matmul_precision(products)
        if convolutions:
            torch.backends.cudnn.allow_tf32 = True


def rehearsed(modules: Sequence[torch.nn.Module], count: int, work: Callable[[int, NoRandomness], Any]) -> Any:
    """Calls ``work`` on ``count`` rows, with randomness and side effects suppressed. Returns the result. If there
    is not enough memory, ``work`` is called again with fewer rows. Raises :class:`Refused` if not even two rows
    fit.

    The :class:`NoRandomness` around the call covers no more than the modules are known to need. If ``work`` then fails
    for a reason other than memory, it is called once more under a full :class:`NoRandomness`."""
    records = [f for f in map(record_of, modules) if f is not None]
    where = max(map(draws_of, modules), default=NEVER)
    while True:
        failed: Optional[BaseException] = None
        try:
            with rehearsal(modules), NoRandomness(where) as trial:
                result = work(count, trial)
            for record in records:
                record.remember(trial.half, trial.where)
            return result
        except Exception as e:
            if is_out_of_memory(e):
                failed = e
            elif where == ANYWHERE:
                raise
        if failed is None:
            where = ANYWHERE
            continue
        clean(failed)
        if count <= 2:
            raise Refused("there is not enough memory for a trial on two rows")
        count = max(2, min(count // 2, SOME))
