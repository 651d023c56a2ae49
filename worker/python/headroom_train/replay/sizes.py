"""Decides how many rows a piece may have, and when a batch is cut before it fails.

Sizes are kept as costs. The cost of a call is the number of elements of its first tensor argument,
so that a batch whose rows are longer than ever before is cut into smaller pieces. Where no argument is a tensor, it is
the first tensor inside one.
"""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from typing import Any, Callable, Optional

import torch

from ..failure import OutOfMemoryError, bare
from ..hooks.genuine import dim, numel
from ..spill.saved import on_host
from ..spill.spill import Spill
from ..tape.trees import tensors_in

PATIENCE = 64  # batches that are cut straight away before a whole one is tried again
GROWS = 4  # batches whose pieces have all fitted before larger pieces are tried


class Sizes:
    """What this process has learned about the sizes that fit."""

    def __init__(self) -> None:
        self._failure: Optional[BaseException] = None  # the newest failure
        self.spill: Optional[Spill] = None  # memory of the host; None if there can be none
        # Returns how many rows at once an earlier attempt settled on; 0 if none did.
        self.learned: Optional[Callable[[], int]] = None
        # Returns how many rows at once the user has asked for at most, as long as those of the first batch; 0 for any
        # number.
        self.asked: Optional[Callable[[], int]] = None
        self.found: Callable[[], bool] = lambda: False  # whether that was found, in a trial of a step in such pieces
        self._cap: Optional[int] = None  # that many rows, as a cost
        self._sure = False  # a step can be made in such pieces
        # Is told of each failure, and of how many rows.
        self.tell: Callable[[int, BaseException], Any] = lambda rows, failure: None
        self._fits: Optional[int] = None  # cost of a piece that should fit
        self._tried = 0  # cost of a piece of this batch
        self._good = 0  # the largest cost of a piece that has succeeded
        self._bad: Optional[int] = None  # the smallest cost of a piece that is known to fail; None if there is none
        self._again = False  # a piece that seems to have failed by chance is being run once more
        # Batches without a failure, and how many of them it takes before pieces grow.
        self._calm, self._grows = 0, GROWS
        self._per_row = 1
        self._rows = 1
        self._pieces = 1  # the number of pieces in which the newest batch was run
        self._last: Any = lambda: None  # a weak reference to the module called last
        self._quiet, self._patience = 0, PATIENCE
        self._scaler: Any = None  # a weak reference to the user's GradScaler
        self._pending: Optional[tuple[Any, int]] = None  # a module and the cost at which it failed

    @property
    def failure(self) -> Optional[BaseException]:
        """The newest failure, to be raised if nothing helps; None if there is none. It is a new
        exception each time, since one that has been raised keeps its frames alive."""
        return bare(self._failure)

    def _see(self, record: Any, args: tuple, kwargs: dict) -> int:
        tensor = next((t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor) and dim(t) > 0), None)
        if tensor is None:
            tensor = next((t for t in tensors_in((args, kwargs)) if dim(t) > 0), None)
        if tensor is None:
            return 0
        self._rows, self._pieces = max(1, tensor.shape[0]), 1
        cost = numel(tensor)
        self._per_row = max(1, cost // self._rows)
        self._last = weakref.ref(record)
        return cost

    def too_large(self, record: Any, args: tuple, kwargs: dict) -> bool:
        """Whether a call is known to fail, and is therefore to be run in pieces straight away."""
        cost = self._see(record, args, kwargs)
        if self.asked is not None:
            self._capped(self.asked())
        if self.learned is not None:
            self._begin(record, cost, self.learned())
        if self._cap is not None and cost > self._cap and not record.exempt and (self._sure or not record.untried):
            self._failure = self._failure or OutOfMemoryError(
                f"CUDA out of memory. {self._cap // self._per_row} rows at once were asked for."
            )
            self._fits = min(self._fits or self._cap, self._cap)
            return True
        if record.limit is None or cost < record.limit:
            return False
        self._quiet += 1
        if self._quiet <= self._patience:
            return True
        self._quiet, self._patience = 0, min(2 * self._patience, 16 * PATIENCE)
        record.limit = None
        return False

    def _capped(self, rows: int) -> None:
        """Notes at the first call how many rows at once the user has asked for."""
        self.asked = None
        if rows > 0:
            self._cap, self._sure = rows * self._per_row, self.found()

    def asks_for_pieces(self) -> bool:
        """Whether the newest call had more rows than the user wants to be run at once, and it is to be found out
        whether that is possible."""
        return self._cap is not None and not self._sure and self.cost() > self._cap

    def _begin(self, record: Any, cost: int, rows: int) -> None:
        """Treats the first call with more rows than an earlier attempt could run at once as a failed
        call. What the earlier attempt learned no longer counts once something has failed here."""
        if rows <= 0 or self._failure is not None:
            self.learned = None
        elif self._rows > rows:
            self.learned = None
            self._failure = OutOfMemoryError(f"CUDA out of memory. An earlier attempt ran at most {rows} rows at once.")
            record.limit, self._fits = cost, rows * self._per_row

    def withheld(self) -> Any:
        """A context for pieces: they become smaller rather than use memory of the host."""
        return self.spill.withheld() if self.spill is not None else nullcontext()

    def may_spill(self) -> bool:
        """Whether memory of the host can be used for pieces that cannot become smaller. Makes that possible."""
        return self.spill is not None and self.spill.opened()

    def cost(self) -> int:
        """The cost of the newest call."""
        return self._per_row * self._rows

    def hosting(self, record: Any) -> Any:
        """Returns a context for a call that fits only with saved tensors on the host, and None for
        any other call. After many calls in the context, None is returned once, so that one call is
        tried without it."""
        if record.hosted is None or self.cost() < record.hosted:
            return None
        self._quiet += 1
        if self._quiet <= self._patience:
            return on_host()
        self._quiet, self._patience = 0, min(2 * self._patience, 16 * PATIENCE)
        record.hosted = None
        return None

    def failed(self, record: Any, args: tuple, kwargs: dict, failure: BaseException) -> None:
        """Notes that a call with the whole batch failed."""
        cost = self._see(record, args, kwargs)
        self._fail(record, cost, failure)

    def failed_after(self, failure: BaseException) -> None:
        """Notes that something after the last module's call failed."""
        self._fail(self._last(), self.cost(), failure)

    def _fail(self, record: Any, cost: int, failure: BaseException) -> None:
        self._failure = bare(failure)
        self._pending = record, cost
        self._quiet = 0
        self.tell(self._rows, failure)
        if self._fits is None or self._fits >= cost:
            self._fits = max(1, self._rows // 2) * self._per_row
        if self._cap is not None:
            self._fits = min(self._fits, max(self._cap, self._per_row))

    def first(self, batch: int) -> int:
        """The number of rows per piece that gives as few pieces as possible, all of nearly equal size."""
        if batch != self._rows:  # the rows are not in dimension 0 of the first argument
            self._rows, self._per_row = batch, max(1, self.cost() // batch)
        most = max(1, batch // 2) if self._fits is None else max(1, min(batch, self._fits // self._per_row))
        return -(-batch // -(-batch // most))

    def next(self, failed: int = 0) -> int:
        """Rows of the next piece. ``failed`` is the number of rows of a piece that has just failed;
        0 asks for the first piece of a batch. If a piece of this size has succeeded before, the
        size is tried once more. Otherwise the result is half of the size, or a size that has
        succeeded if that is larger. Returns 0 if there is no smaller size."""
        if not failed:
            rows = self.first(self._rows)
            self._tried = rows * self._per_row
            return rows
        self._calm = 0
        cost = failed * self._per_row
        if cost <= self._good and not self._again:
            self._again = True
            return failed
        if 0 < self._good < cost:
            self._grows = min(2 * self._grows, 64 * GROWS)
        self._again = False
        smaller = max(failed // 2, self._good // self._per_row if self._good < cost else 0)
        self._good = min(self._good, cost - 1)
        self._bad = cost if self._bad is None else min(self._bad, cost)
        self._fits = self._tried = max(1, smaller) * self._per_row
        return smaller

    def ran(self) -> tuple[int, int]:
        """The number of rows in the newest batch, and the number of pieces that it was run in. Returns (0, 1)
        until something has failed, since headroom changes nothing before then."""
        return (self._rows, self._pieces) if self._failure is not None else (0, 1)

    def limit(self) -> Optional[int]:
        """How many rows may run at once, for the next attempt of the same training; 0 if all of them may. None if
        that is not known, since nothing has failed here or no pieces have fitted yet."""
        if self._failure is None or not self._good:
            return None
        rows = max(1, self._good // self._per_row)
        return 0 if self._pieces == 1 and self._rows > rows else rows

    def confirm(self, pieces: int) -> None:
        """Notes that a batch has succeeded in this many pieces. From now on, batches like it are
        cut straight away. After many such batches, they are cut into fewer pieces."""
        self._pieces = pieces
        if self._pending is not None and self._pending[0] is not None:
            record, cost = self._pending
            record.limit = cost if record.limit is None else min(cost, record.limit)
        self._pending = None
        self._again = False
        self._good = max(self._good, self._tried)
        self._calm += 1
        if self._fits is not None and self._calm >= self._grows:
            self._grow(self._fits)

    def _grow(self, fits: int) -> None:
        """Increases the size of pieces: doubles it while no size is known to fail, later halves the
        distance to the size that failed."""
        count = -(-self._rows // self.first(self._rows))
        fewer = -(-self._rows // max(1, count - 1)) * self._per_row  # the cost of a piece if there were one piece fewer
        if self._bad is None or self._bad > fewer:
            halfway = 2 * fits if self._bad is None else (fits + self._bad) // 2
            self._fits = max(fits, min(max(halfway, fewer), self.cost() - 1))
            if self._cap is not None and self._fits > self._cap:
                self._fits = max(fits, self._cap)
            self._calm = 0
        elif self._calm >= 4 * self._grows:  # a size that failed long ago may fit by now
            self._bad = None

    def refused(self) -> None:
        """Notes that the newest call cannot be run in pieces. The module's next call is run whole
        again."""
        self._pending = None
        record = self._last()
        if record is not None:
            record.limit, record.exempt = None, True

    def whole(self, report: Any, why: Any) -> None:
        """Warns that a step is run whole although nothing has failed in it, and pieces were meant to be used."""
        meant = "those before it were run in pieces" if self._cap is None else "smaller pieces were asked for"
        report.remark(f"this step is run whole, although {meant}: {why}", "warning")

    def scale(self, tape: Any) -> float:
        """The factor by which losses are multiplied before they are differentiated, so that gradients in
        half precision do not vanish: the scale of the user's GradScaler, or 1."""
        if not any(e.autocast and any(d == torch.float16 and on for _, on, d in e.autocast[:-1]) for e in tape.entries):
            return 1.0
        scaler = self._scaler() if self._scaler is not None else None
        if scaler is None:
            scaler = next((t for t in gc.get_objects() if isinstance(t, torch.amp.GradScaler) and t.is_enabled()), None)
            self._scaler = None if scaler is None else weakref.ref(scaler)
        return 1.0 if scaler is None else float(scaler.get_scale())
