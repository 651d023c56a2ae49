"""headroom check: tests what headroom would do if memory ran out in a training run's first step.

After each backward call of that step, the gradients are computed twice more, once for the whole
batch and once in pieces, and the two results are compared. No weights change: instead of taking its
first step, the optimizer reports the findings and waits until headroom ends the process.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Callable, Optional

import torch

from ..failure import Refused, is_out_of_memory
from ..proof.rerun import modules_of, precisely
from ..proof.rows import as_real
from ..replay.pieces import gradients, in_two
from ..sandbox.sandbox import NoRandomness, rehearsal
from ..tape.tape import Tape, place_of
from .backward import planned, summed

MOST = 16  # at most this many calls are checked
ENDING = 60.0  # seconds within which headroom must end this process


class Check:
    """Checks a run's first step and reports the findings."""

    def __init__(self, report: Any) -> None:
        self._report = report
        self._found: list[dict[str, Any]] = []

    def backward(self, recorder: Any, tape: Tape, args: tuple, kwargs: dict) -> None:
        """Checks a backward call that has succeeded, while its tape still exists."""
        given = args[1] if len(args) > 1 else kwargs.get("gradient")

        def look() -> dict[str, Any]:
            if tape.why_not:
                raise Refused(tape.why_not)
            return compared(tape, place_of(args[0]).slot, given, recorder.sizes)  # type: ignore[union-attr]

        self._look(recorder, modules_of(tape), look)

    def function(self, recorder: Any, gradients_of: Callable, models: Sequence[torch.nn.Module]) -> None:
        """Checks a successful call of a function decorated with headroom_train.step. ``gradients_of``
        calls :meth:`Explicit.compared` for that call."""

        def look() -> dict[str, Any]:
            with refusing():
                whole, parts, rows, pieces, half = gradients_of()
            precise = not half and all(p.dtype == torch.float32 for m in models for p in m.parameters())
            return judged(zip(whole, parts), rows, pieces, precise)

        self._look(recorder, models, look)

    def _look(self, recorder: Any, models: Sequence[torch.nn.Module], look: Callable[[], dict[str, Any]]) -> None:
        if len(self._found) >= MOST:
            return
        found: dict[str, Any] = {"modules": ", ".join(type(m).__name__ for m in models)}
        try:
            found.update(recorder.guarded(look))
        except Refused as why:
            found["why"] = str(why)
        self._found.append({**found, "where": self._report.here()})

    def instead(self, step: Callable) -> Callable:
        """Returns a replacement for an optimizer's step. The replacement reports the findings and
        changes no weights. It still calls the closure, if there is one, since some loops call
        backward there."""

        @wraps(step)
        def looked(
            optimizer: torch.optim.Optimizer, closure: Optional[Callable] = None, *args: Any, **kwargs: Any
        ) -> Any:
            if closure is not None:
                with torch.enable_grad():
                    closure()
            # Results that were computed twice went on in pieces, as they should.
            told = ({**t, "why": ""} if t.get("way") == "two-pass" else t for t in self._report.told)
            self._report.checked([*told, *self._found])
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)  # there is nothing to save
            time.sleep(ENDING)
            raise SystemExit(
                "headroom check: the first step has been checked; headroom did not end this process, so "
                "it is exiting by itself"
            )

        return looked


def compared(tape: Tape, loss: int, given: Any, sizes: Any) -> dict[str, Any]:
    """Reports how far the summed gradients of two pieces are from the gradients of the whole batch,
    relative to the largest element of each tensor. Neither run draws random numbers. Raises
    :class:`Refused` if pieces would be wrong, or if there is not enough memory."""
    with refusing():
        plan, targets, extra = planned(tape, loss, given, sizes)
    with (
        refusing(),
        precisely(tape, range(len(tape.entries))) as single,
        rehearsal(modules_of(tape)),
        NoRandomness() as trial,
        torch._C.DisableTorchFunctionSubclass(),
    ):
        _, inputs, sums, _ = gradients(tape, None, {loss: (1.0 if given is None else given, None)}, lambda failed: 0)
        whole = summed(inputs, sums.all(), {})
        _, inputs, sums, pieces = gradients(tape, plan, targets, in_two(plan.batch))
        parts = summed(inputs, sums.all(), extra)
    return judged([(g, parts.get(i)) for i, g in whole.items()], plan.batch, pieces, single and not trial.half)


@contextmanager
def refusing() -> Iterator[None]:
    """A context that raises :class:`Refused` if memory runs out: a check need not survive that,
    unlike a training step."""
    try:
        yield
    except Exception as e:
        if not is_out_of_memory(e):
            raise
        raise Refused("there is not enough memory to compute the batch twice") from None


def judged(
    gradients: Iterable[tuple[Optional[torch.Tensor], Optional[torch.Tensor]]], rows: int, pieces: int, precise: bool
) -> dict[str, Any]:
    """The report on pairs of gradients. The first of each pair was computed for the whole batch,
    the second in pieces. Raises :class:`Refused` if they differ by more than rounding errors."""
    off = distance([*gradients])
    if not off <= (1e-3 if precise else 2e-2):
        raise Refused(f"the gradients of {pieces} pieces differ by {off:.1g} from those of the whole batch")
    return {"rows": rows, "pieces": pieces, "error": off}


def distance(gradients: Sequence[tuple[Optional[torch.Tensor], Optional[torch.Tensor]]]) -> float:
    """The largest difference between the elements of two gradients of one tensor, relative to the largest element of
    the first; of all pairs, the largest. A thousandth of the largest element of all gradients is added to what a
    difference is compared with, so that rounding errors matter little where a gradient would otherwise be zero, as that
    of a key's bias in an attention. A gradient that is missing is zero, unless the first of a pair is: then nothing is
    compared."""
    pairs = [(_plain(a), _plain(b)) for a, b in gradients if a is not None and a.numel()]
    sizes = [float(a.abs().max()) for a, _ in pairs if a is not None]
    least = 1e-3 * max(sizes, default=0.0)
    off = 0.0
    for (a, b), size in zip(pairs, sizes):
        difference = float((a.float() - (0.0 if b is None else b.float())).abs().max())
        if difference != difference:
            return math.nan
        off = max(off, difference / (size + least) if size + least else float(difference > 0))
    return off


def _plain(t: Optional[torch.Tensor]) -> Any:
    return None if t is None else as_real(t if t.layout == torch.strided else t.to_dense())
