"""Checks how the size of pieces changes over time. Batches and memories have random sizes, and
nothing is allocated.

    python sizes.py
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch

sys.path.append(str(Path(__file__).resolve().parent.parent))

from headroom_train.replay.pieces import FINE, by_pieces, in_two, pieces_of
from headroom_train.replay.sizes import GROWS, Sizes


@dataclass(eq=False)
class Module:
    limit: Optional[int] = None
    hosted: Optional[int] = None
    exempt: bool = False
    untried: bool = False


class Machine:
    """A memory that can hold a piece of at most a given number of elements, and a training run that uses it."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.sizes, self.module = capacity, Sizes(), Module()
        self.failures, self.pieces = 0, 0
        self.chance = 0  # the number of next pieces that fail, whatever their size

    def fits(self, cost: int) -> bool:
        if self.chance:
            self.chance -= 1
            return False
        return cost <= self.capacity

    def batch(self, rows: int, length: int = 1) -> bool:
        """Runs a batch of rows, whole or in pieces. Returns whether it succeeds."""
        tensor = torch.empty(rows, length, device="meta")
        given: tuple = ({"x": [tensor]},) if self.capacity % 2 else (tensor,)  # in a dict, as some models have it
        if not self.sizes.too_large(self.module, given, {}):
            if self.fits(rows * length):
                self.pieces = 1
                return True
            self.failures += 1
            self.sizes.failed(self.module, given, {}, torch.OutOfMemoryError("CUDA out of memory"))
        done = self.pieces = 0
        todo = pieces_of(rows, min(rows, self.sizes.next()))
        while todo:
            piece = todo[0]
            if self.fits(piece.count * length):
                done, todo = piece.stop, todo[1:]
                self.pieces += 1
                continue
            self.failures += 1
            size = self.sizes.next(piece.count)
            if not size:
                self.sizes.refused()
                return False
            if size < piece.count:
                todo = [type(piece)(rows, done + p.start, done + p.stop) for p in pieces_of(rows - done, size)]
        self.sizes.confirm(self.pieces)
        return self.sizes.ran() == (rows, self.pieces)


def settles(draw: random.Random) -> str:
    """If one row fits, every batch is completed, with few failures, in pieces at least half as
    large as what fits."""
    rows, length = draw.randint(2, 300), draw.randint(1, 50)
    capacity = draw.randint(length, rows * length)
    m = Machine(capacity)
    for i in range(400):
        if not m.batch(rows, length):
            return f"batch {i} of {rows} × {length} in {capacity} was given up"
    if m.failures > 40:
        return f"{m.failures} failures in 400 batches of {rows} × {length} in {capacity}"
    fewest = -(-rows // (capacity // length))
    return (
        ""
        if m.pieces <= 2 * fewest + 1
        else f"{m.pieces} pieces of {rows} × {length} in {capacity}, where {fewest} would do"
    )


def one_row_is_too_large(draw: random.Random) -> str:
    m = Machine(draw.randint(1, 9))
    return "a batch of rows that do not fit went well" if m.batch(draw.randint(2, 99), 10) else ""


def chance_costs_nothing(draw: random.Random) -> str:
    """If a piece fails although its size has always fitted before, it is run again unchanged."""
    rows = draw.randint(8, 200)
    m = Machine(rows // 2)
    for _ in range(3):
        m.batch(rows)
    before, m.chance = m.pieces, 1
    m.batch(rows)
    return "" if m.pieces == before else f"{m.pieces} pieces after a failure by chance, {before} before"


def grows_back(draw: random.Random) -> str:
    """When memory that another process took is free again, the size grows back."""
    rows = draw.randint(16, 256)
    m = Machine(rows // 16)
    m.batch(rows)
    worst = m.pieces
    m.capacity = rows // 2
    for _ in range(20 * GROWS):
        m.batch(rows)
    return "" if m.pieces <= 3 and worst >= 16 else f"{m.pieces} pieces of {rows} when half of them fit, {worst} before"


def longer_is_cut_finer(draw: random.Random) -> str:
    """Sizes that fit are known as rows × length, so a batch twice as long is cut before it
    fails."""
    rows = 2 * draw.randint(4, 64)
    m = Machine(rows * 10)
    m.batch(rows, 10)
    m.batch(rows, 15)  # fails, and is cut
    before = m.failures
    if before != 1 or not m.batch(rows, 30) or not m.batch(rows, 60):
        return f"{before} failures at first"
    return "" if m.failures == before else f"{m.failures - before} failures of longer batches"


def begins_where_an_earlier_attempt_was(draw: random.Random) -> str:
    """The first larger batch uses the size that an earlier attempt learned, before anything
    fails."""
    rows, learned = draw.randint(2, 200), draw.randint(1, 250)
    m = Machine(learned)
    m.sizes.learned = lambda: learned
    said = [m.sizes.ran()]
    for n in (min(rows, learned), rows, rows):
        m.batch(n)
        said.append(m.sizes.ran())
    fewest = -(-rows // learned)
    want = [(0, 1), (0, 1), (rows, fewest), (rows, fewest)] if rows > learned else [(0, 1)] * 4
    if m.failures or said != want:
        return f"{rows} rows, of which {learned} fit: {m.failures} failures, {said}"
    m.batch(min(rows, learned))
    if rows > learned and m.sizes.ran() != (min(rows, learned), 1):
        return f"a whole batch after those in pieces: {m.sizes.ran()}"
    failed = Machine(learned)  # a failure in this process overrides what was learned
    failed.batch(rows)
    before = failed.sizes.ran()
    failed.sizes.learned = lambda: 1
    failed.batch(rows)
    if 1 < before[1] < rows == failed.sizes.ran()[1]:
        return f"cut in {failed.sizes.ran()} by what was learned, and in {before} by what had failed"
    late = Machine(10**6)
    late.sizes.learned = lambda: 0
    late.batch(rows)
    return "" if late.sizes.ran() == (0, 1) and late.sizes.learned is None else "cut although nothing had been learned"


def as_many_as_asked(draw: random.Random) -> str:
    """Where a number of rows at once was asked for, no piece has more from the first batch on, however much fits, and
    a longer batch is cut finer. What cannot be cut is made whole from then on."""
    rows, asked, length = draw.randint(2, 200), draw.randint(1, 100), draw.randint(1, 9)
    m = Machine(10**9)
    m.sizes.asked = lambda: asked
    fewest = -(-rows // asked)
    for i in range(30 * GROWS):
        if not m.batch(rows, length) or m.pieces != fewest:
            return f"batch {i} of {rows} rows in {m.pieces} pieces, with at most {asked} at once"
    m.batch(rows, 2 * length)
    if m.pieces < -(-2 * rows // (2 * asked)) or rows >= asked >= 2 and m.pieces < -(-rows // (asked // 2)):
        return f"a batch twice as long in {m.pieces} pieces, one of {rows} rows in {fewest} before"
    small = Machine(max(1, asked // 3))
    small.sizes.asked = lambda: asked
    if not small.batch(rows) or not small.batch(rows):
        return "a batch of pieces that are too large was given up"
    if m.failures:
        return f"{m.failures} failures where everything fits"
    uncut = Machine(10**9)
    uncut.sizes.asked = lambda: 1
    given = (torch.empty(rows, 1, device="meta"),)
    first = uncut.sizes.too_large(uncut.module, given, {})
    uncut.sizes._last = lambda: uncut.module
    uncut.sizes.refused()
    return "" if first and not uncut.sizes.too_large(uncut.module, given, {}) else "what cannot be cut is cut once more"


def first_made_whole(draw: random.Random) -> str:
    """Where a number of rows at once was asked for, a module of which it is not known whether its calls can be cut is
    called as a whole, unless that number was found. If that fails, no piece has more rows than were asked for."""
    rows = draw.randint(4, 200)
    asked = draw.randint(1, rows - 1)
    cut = []
    for found in (False, True):
        m = Machine(10**9)
        m.sizes.asked, m.sizes.found, m.module.untried = lambda: asked, lambda found=found: found, True
        m.batch(rows)
        cut.append((m.pieces > 1, m.sizes.asks_for_pieces()))
    if cut != [(False, True), (True, False)]:
        return f"cut {cut}"
    short = Machine(rows - 1)
    short.sizes.asked, short.module.untried = lambda: asked, True
    if not short.batch(rows) or short.failures != 1 or short.pieces < -(-rows // asked):
        return f"{rows} rows in {short.pieces} pieces after {short.failures} failures, with at most {asked} at once"
    return ""


def the_limit_is_what_fits(draw: random.Random) -> str:
    """The limit for the next attempt is a number of rows that nearly fits, and is at least half of the largest that
    does. It is not known before something has failed, and is lifted when a whole batch fits again."""
    rows = draw.randint(8, 300)
    m = Machine(draw.randint(1, rows - 1))
    if m.sizes.limit() is not None or not m.batch(1) or m.sizes.limit() is not None:
        return "a limit before anything has failed"
    for _ in range(20):
        if not m.batch(rows):
            return "a batch was given up"
    limit = m.sizes.limit()
    if limit is None or not m.capacity // 2 <= limit <= 1.2 * m.capacity:
        return f"limit {limit} of {rows} rows, of which {m.capacity} fit"
    if not m.batch(limit) or m.sizes.limit() != limit:
        return f"limit {m.sizes.limit()} after a smaller batch, {limit} before"
    m.capacity = rows
    for _ in range(2000):
        m.batch(rows)
        if m.sizes.limit() == 0:
            return ""
    return "the limit is never lifted"


def the_host_is_left_again(draw: random.Random) -> str:
    """A batch that fits only with saved tensors on the host is tried now and then with all tensors on the GPU, at
    increasing intervals."""
    m = Machine(10)
    given = (torch.empty(8, 1, device="meta"),)
    tried = []
    for i in range(1000):
        m.sizes.too_large(m.module, given, {})
        if m.module.hosted is None:
            m.module.hosted = 8
        if m.sizes.hosting(m.module) is None:
            tried.append(i)
    gaps = [b - a for a, b in zip(tried, tried[1:])]
    return "" if len(tried) in range(3, 6) and gaps == sorted(gaps) else f"tried without at {tried}"


def what_can_be_given_back_is(draw: random.Random) -> str:
    """When even a sixteenth of the batch, or one row, does not fit, what the pieces can do without is given back before
    pieces become smaller."""
    rows, kept = draw.randint(2, 500), [True]
    tried: list[int] = []

    def work(piece: Any) -> None:
        tried.append(piece.count)
        if kept:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def release() -> bool:
        had = bool(kept)
        kept.clear()
        return had

    by_pieces(rows, in_two(rows), work, lambda *_: None, release)
    falling = [t for t, following in zip(tried, tried[1:]) if following <= t]
    last = next(i for i, t in enumerate(tried) if t == 1 or t * FINE <= rows)
    wrong = tried[last] != tried[last + 1] or any(t * FINE <= rows or t == 1 for t in tried[:last]) or not falling
    return f"{rows} rows: pieces of {tried}" if wrong else ""


RULES = [
    what_can_be_given_back_is,
    as_many_as_asked, first_made_whole, begins_where_an_earlier_attempt_was, the_host_is_left_again, the_limit_is_what_fits, settles, one_row_is_too_large, chance_costs_nothing,
    grows_back, longer_is_cut_finer,
]  # fmt: skip


def main() -> int:
    failed = 0
    for rule in RULES:
        said = [s for s in (rule(random.Random(seed)) for seed in range(300)) if s]
        failed += bool(said)
        print(
            f"{'FAILED' if said else 'ok':6} "
            f"{rule.__name__.replace('_', ' ')}{': ' if said else ''}{said[0] if said else ''} "
            f"{len(said)} of 300 differ"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
