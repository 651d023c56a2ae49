"""The account of this process's memory: waits until memory grows, then finds out what holds it, and says so once.

An evaluation takes no optimizer steps. If it computes gradients, it has an account of its own, whose steps are the
calls of the model, and which begins anew with each evaluation.

As long as memory does not grow, a step costs one cheap figure (:mod:`.trigger`), and nothing else of this package is
imported. Nothing here raises an exception."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Callable, Optional

from ..failure import debugged
from .trigger import Series, Trigger

if TYPE_CHECKING:
    from .kinds import Holder
    from .search import Search

_STANDARD = os.path.join(os.path.dirname(os.__file__), "")  # Python's own library
SEARCHES = 3  # that may find nothing before the process is left alone
MUCH = 256 << 20  # bytes of growth, and
LATER = 1.05  # times as many steps, after which what holds memory is measured once more
LONG = 500  # steps, after which it is said that nothing was found, although headroom has not asked


class Account:
    """``tell`` is called with what holds memory that grows: at most once. ``foreign`` says whether a file is not the
    user's. ``begins`` is called when memory is first seen to grow. Steps must be reported by one thread at a time;
    those of other threads are left out."""

    def __init__(
        self,
        tell: Callable[[Holder], None],
        foreign: Callable[[str], bool],
        begins: Callable[[], None] = lambda: None,
        evaluating: bool = False,
    ) -> None:
        self._evaluating = evaluating
        self._begins = begins
        self._tell, self._foreign = tell, lambda file: file.startswith(_STANDARD) or foreign(file)
        self._trigger: Optional[Trigger] = Trigger(evaluating)
        self._search: Optional[Search] = None
        self._candidate: Optional[Holder] = None  # what was found, but may still be meant to grow
        self._due = 0  # the step from which it is not any more
        self._loads = 0  # the step from which what loader workers hold counts
        self._thread = 0
        self._asked = False
        self._pace = 0.0  # seconds that a step took before a search began
        self._empty = 0  # searches that have found nothing
        self.told: Optional[Holder] = None
        self._measured = 0  # the step at which that was measured
        self._pid = os.getpid()  # in which the steps so far were made

    def step(self, steps: int, asked: bool = False) -> None:
        """Called after an optimizer's step. ``asked`` if headroom has seen memory grow."""
        if self._trigger is None or self._thread not in (0, threading.get_ident()):
            return
        try:
            if self._pid != os.getpid():
                self._forked(steps)
            self._step(self._trigger, steps, asked)
        except Exception:
            self._fails()

    def _searching(self, trigger: Trigger, steps: int) -> Search:
        """A search whose looks are so near each other that it ends before memory does."""
        from .search import APART, LEAST, QUICK, Search

        apart = QUICK if self._evaluating else max(LEAST, int(min(APART, trigger.left() / 4)))
        return Search(steps, self._foreign, apart, self._evaluating)

    def _step(self, trigger: Trigger, steps: int, asked: bool) -> None:
        grows = trigger.step(steps)
        self._asked = self._asked or asked
        if trigger.loads and self._search is None and steps >= self._loads and not self._evaluating:
            self._loaders(trigger, steps)
            return
        if self._search is None:
            if (grows and steps >= self._due or asked) and self._empty < SEARCHES:
                self._pace = trigger.pace(steps)
                begins, self._begins = self._begins, lambda: None
                begins()
                self._thread, self._search = threading.get_ident(), self._searching(trigger, steps)
            return
        self._search.slope = trigger.slope()
        found = self._search.step(steps)
        if found is None:
            return
        if not found:
            self._search = self._search.wider(steps)
            if self._search is None:
                self._nothing(trigger, steps)
            return
        self._search, self._thread = None, 0
        sure = [h for h in found if h.patience <= steps]
        self._candidate, self._measured = (sure or found)[0], steps
        if sure and sure[0].per_step >= found[0].per_step // 4:
            self.says(self._forecast(sure[0], trigger, steps))
        else:
            self._due = self._candidate.patience - 24
            trigger.rests(steps)

    def _loaders(self, trigger: Trigger, steps: int) -> None:
        """What follows when a loader's workers hold more and more."""
        from .loaders import of_workers

        held = trigger.workers.held
        found = of_workers(steps, held[-1] - held[0], trigger.workers.per_step(), self._foreign)
        trigger.workers, trigger.loads = Series(), False
        if found is None:
            self._loads = 2 * steps
            return
        self._candidate, self._measured, self._loads = found, steps, found.patience
        if found.patience <= steps:
            self.says(self._forecast(found, trigger, steps))

    def _forecast(self, holder: Holder, trigger: Trigger, steps: int) -> Holder:
        """Add when memory ends. headroom itself follows the memory of GPUs."""
        if not holder.host:
            return holder
        from .ends import forecast, left

        more, seconds = forecast(left(), max(holder.per_step, trigger.slope()), self._pace)
        return holder._replace(ends=steps + more if more else 0, seconds=seconds)

    def _nothing(self, trigger: Trigger, steps: int) -> None:
        """What follows a search that has found nothing."""
        self._empty, self._thread = self._empty + 1, 0
        long = steps >= LONG and trigger.slope() * trigger.steps() >= MUCH and not self._evaluating
        if self._asked or long:
            from .kinds import ELSEWHERE, Holder

            self.says(Holder(ELSEWHERE, "", "", "", 0, 0, 0.0, trigger.slope(), "", step=steps))
        trigger.rests(2 * steps)

    def failed(self, steps: int) -> Optional[Holder]:
        """Called when memory has run out. What holds memory that grows, even if it might be meant to, as it is now or
        was a few steps ago; None if nothing is known to grow."""
        unseen = self._unseen(steps)
        try:
            if self._search is not None and self._trigger is not None and self._thread == threading.get_ident():
                self._search.slope = self._trigger.slope()
                found = self._search.step(steps, at_once=True)
                self._search.ends()
                self._search, self._thread = None, 0
                self._candidate = found[0] if found else self._candidate
                self._measured = steps
            holder = self.told or self._candidate
            if holder is not None and steps >= LATER * self._measured:
                self._again(holder, steps)
        except Exception:
            self._fails()
        return self.told or self._candidate or unseen

    def _unseen(self, steps: int) -> Optional[Holder]:
        """That memory has grown until it ran out, if it has been seen to, or has by about as much in each step."""
        trigger = self._trigger
        grown = trigger.grown(self._search is not None) if trigger is not None else None
        if trigger is None or grown is None:
            return None
        from .kinds import UNSEEN, Holder

        cure = "something is kept from step to step: headroom explain -- COMMAND reads the script for it"
        size, per_step = grown.held[-1] - grown.held[0], grown.per_step()
        return Holder(UNSEEN, "", "", "", 0, size, 0.0, per_step, cure, step=steps, host=grown is trigger.host)

    def _again(self, holder: Holder, steps: int) -> None:
        """Measure once more what has been found."""
        from .measure import measured

        self._measured = steps
        now = measured(holder, steps)
        if now is not None and self.told is not None:
            self.told = now
        elif now is not None:
            self._candidate = now

    def _forked(self, steps: int) -> None:
        """Begin anew in a child: it has the parent's memory, and its own training."""
        if self._search is not None:
            self._search.ends()
        self._pid, self._search, self._candidate, self._trigger = os.getpid(), None, None, Trigger(self._evaluating)
        self._trigger.rests(steps)

    def anew(self) -> None:
        """Forget what was seen so far: an evaluation has ended."""
        search, self._search, self._thread, self._candidate = self._search, None, 0, None
        if self._trigger is not None:
            self._trigger, self._due = Trigger(self._evaluating), 0
        if search is not None:
            search.ends()

    def says(self, holder: Holder) -> None:
        self.told, self._trigger = holder, None
        self._tell(holder)

    def _fails(self) -> None:
        """Leave the process alone after an error of our own."""
        search, self._search, self._trigger = self._search, None, None
        debugged()
        try:
            if search is not None:
                search.ends()
        except Exception:
            pass
