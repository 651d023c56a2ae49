"""The weights by which the losses of pieces add up to the loss of the batch.

A rule is a list with a number for each row. The weight of a piece is the sum of its rows' numbers, divided by the sum
of all numbers. The rule of a sum is ``None``: every piece has weight 1. The possible rules are tried only on the
functions that come after the modules, so that the modules' outputs need to be computed only once. The rows and cuts of
each try are chosen to tell the rules apart. If several rules survive all tries but give the same weights to the pieces
that are really used, any of them will do. If they give different weights, the rule is not known.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from itertools import accumulate, product
from typing import Any, Callable, Optional

import torch

from .rows import Rows


class Counts(list):
    """A number for each row of the batch. Nothing is added or taken away once it has been asked for sums."""

    _sums: Optional[array] = None

    def between(self, start: int, stop: int) -> float:
        """The sum of the numbers of the rows from ``start`` to ``stop``, exclusive. Batches may have millions of rows,
        and many pieces."""
        if self._sums is None:
            self._sums = array("d", accumulate(self, initial=0.0))
        return self._sums[stop] - self._sums[start]


Rule = Optional[Counts]
Named = list[tuple[tuple, Rule]]  # rules with their names: see candidates

TRIES = 6
FEW = 8  # rows on which two rules are told apart
BITE = 1 << 14  # elements that are counted at once


def weight(rule: Rule, rows: Sequence[int], within: Optional[Sequence[int]] = None) -> float:
    """The weight of ``rows`` relative to the rows ``within``, or relative to all rows if ``within`` is None."""
    if rule is None:
        return 1.0
    whole = rule.between(0, len(rule)) if within is None else sum(rule[r] for r in within)
    part = rule.between(rows.start, rows.stop) if isinstance(rows, range) else sum(rule[r] for r in rows)
    return part / whole if whole else 0.0


def typed(value: Any, like: Any) -> Any:
    """Converts the weighted sum ``value`` to the type of the summed numbers, of which ``like`` is an example: a
    tensor of the same dtype, or a Python number. Integers are rounded, since weights are not exact."""
    if isinstance(like, torch.Tensor):
        value = torch.as_tensor(value, device=like.device)
        value = value if like.is_floating_point() or like.is_complex() else value.round()
        return value.to(like.dtype).reshape(like.shape)
    return type(like)(round(value) if isinstance(like, int) else value)


def candidates(
    batch: int, tensors: Sequence[torch.Tensor], ignored: Sequence[int], known: Optional[set] = None
) -> Named:
    """The rules worth trying, each with a name that holds for other batches of the same kind.

    These are a sum, a mean over rows, and means over whatever can be counted in each of the given tensors. A tensor may
    have targets, of which the valid ones are counted, or it may be a mask, whose elements are summed. In both cases,
    this is done for the whole tensor and for the tensor without its first or last column. If ``known`` is given, only
    the rules with these names are returned."""
    rules: Named = [(("sum",), None), (("rows",), Counts([1.0] * batch))]
    for i, tensor in enumerate(tensors):
        counts = counted(batch, tensor, ignored, None if known is None else {name[1] for name in known if name[0] == i})
        rules += [((i, n), Counts(rule)) for n, rule in counts.items() if all(v >= 0 for v in rule) and sum(rule) > 0]
    return [(name, rule) for name, rule in rules if known is None or name in known]


def counted(batch: int, tensor: torch.Tensor, ignored: Sequence[int], wanted: Optional[set] = None) -> dict[int, list]:
    """How many of a tensor's elements count in each row, for each way of counting them. The keys
    are the numbers of the ways. If ``wanted`` is given, only the ways with these numbers are used.
    Everything is computed on the CPU, a few rows at a time."""
    ways = _ways(tensor, ignored)
    if wanted is not None:
        ways = {n: ways[n] for n in ways if n in wanted}
    counts: dict[int, list] = {n: [] for n in ways}
    step = max(1, min(max(64, BITE * batch // max(1, tensor.numel())), batch // 2))
    with torch.no_grad():
        for start in range(0, batch, step) if ways else ():
            some = tensor[start : start + step].cpu()
            valid = {value: some if value is None else some != value for value in {value for _, value in ways.values()}}
            # Nearly always all are valid: all counts are the same.
            full = {value for value, mask in valid.items() if value is not None and bool(mask.all())}
            for n, (end, value) in ways.items():
                part = valid[value][..., end]
                if value in full:
                    counts[n] += [part.numel() / len(part)] * len(part)
                else:
                    kind = torch.float64 if part.is_floating_point() else None
                    counts[n] += part.reshape(len(part), -1).sum(1, dtype=kind).double().tolist()
    return counts


def _ways(tensor: torch.Tensor, ignored: Sequence[int]) -> dict[int, tuple[slice, Optional[int]]]:
    """The ways of counting a tensor's elements, by number: in which of its columns, and the value that does not count.
    That is None if the elements are summed, as for a mask; for targets a try refutes the rule of such a sum."""
    whole = slice(None)
    ends = [whole, slice(1, None), slice(-1)] if tensor.dim() > 1 and tensor.shape[-1] > 1 else [whole]
    mask = tensor.dtype == torch.bool or tensor.is_floating_point()
    absent: list = [None] if mask else [*dict.fromkeys((-100, *ignored)), None]
    return dict(enumerate(product(ends, absent)))


def same_rule(one: Rule, other: Rule) -> bool:
    """Whether two rules give every row the same share."""
    if one is None or other is None or one == other:
        return one is other or one == other
    a, b = one.between(0, len(one)), other.between(0, len(other))
    return all(abs(x / a - y / b) < 1e-9 for x, y in zip(one, other))


def counts_rows(rules: Sequence[Rule], batch: int) -> bool:
    """Whether one of the rules is that of a mean over the rows."""
    return any(same_rule(rule, Counts([1.0] * batch)) for rule in rules)


def distinct(rules: Sequence[Rule]) -> list[Rule]:
    """The rules without duplicates; of several that are the same, the first is kept."""
    kept: list[Rule] = []
    for rule in rules:
        if not any(same_rule(rule, k) for k in kept):
            kept.append(rule)
    return kept


def cuts(rules: Sequence[Rule], rows: Sequence[int], seed: int = 0) -> list[tuple[list[int], list[int]]]:
    """Ways to split the rows into two parts: random ones, and for each pair of rules those in which
    the rules' weights differ the most."""
    draw = random.Random(seed)
    found = []
    for _ in range(TRIES):
        mixed = draw.sample(list(rows), len(rows))
        at = draw.randrange(1, len(mixed))
        found.append((sorted(mixed[:at]), sorted(mixed[at:])))
    vectors = [r for r in rules if r is not None]
    for i, a in enumerate(vectors):
        for b in vectors[i + 1 :]:
            order = sorted(rows, key=lambda r: a[r] / (sum(a) or 1) - b[r] / (sum(b) or 1))
            for at in {1, len(order) // 2, len(order) - 1}:
                if 0 < at < len(order):
                    found.append((sorted(order[:at]), sorted(order[at:])))
    return found


def surviving(
    rules: Sequence[Rule], rows: Sequence[int], value: Callable[[Sequence[int]], float], tolerance: float
) -> list[Rule]:
    """The rules that no try refutes. ``value`` returns the loss of some rows, computed from
    outputs that do not change between calls."""
    found: dict[tuple[int, ...], float] = {}

    def once(some: Sequence[int]) -> float:
        if tuple(some) not in found:  # a few rows can be cut in only a few ways
            found[tuple(some)] = value(some)
        return found[tuple(some)]

    left, whole = list(rules), once(rows)
    for one, two in cuts(rules, rows):
        parts = once(one), once(two)
        left = [r for r in left if agrees(r, (one, two), parts, rows, whole, tolerance)]
        if not left:
            break
    return left


def agrees(rule: Rule, parts: tuple, values: tuple, rows: Sequence[int], whole: float, tolerance: float) -> bool:
    """Whether the parts' values, weighted by a rule, add up to the value of the whole."""
    if rule is not None and not sum(rule[r] for r in rows):
        return True  # these rows say nothing about the rule
    total, size = 0.0, abs(whole)
    for part, v in zip(parts, values):
        w = weight(rule, part, rows)
        if w:  # a piece without valid targets has no mean, and does not count
            total += w * v
            size = max(size, abs(w * v))
    return total == total and abs(total - whole) <= tolerance * max(size, 1e-12)


def settled(rules: Sequence[Rule], pieces: Sequence[Rows]) -> bool:
    """Whether the rules agree on the weights of the pieces that are really used."""
    for piece in pieces:
        said = [weight(r, range(piece.start, piece.stop)) for r in rules]
        if max(said) - min(said) > 1e-6 * max(said):
            return False
    return True


def telling(rules: Sequence[Rule], batch: int, count: int) -> list[int]:
    """The rows on which the first rule and the next different rule differ the most, half of
    ``count`` in each direction; those of one direction come first. In a few rows such a difference is a larger part
    of the whole than in many."""
    vectors = [r if r is not None else [1.0] * batch for r in rules]
    ones, others = vectors[0], next((v for v in vectors[1:] if v != vectors[0]), vectors[0])
    a, b = sum(ones) or 1, sum(others) or 1
    order = sorted(range(batch), key=lambda r: ones[r] / a - others[r] / b)
    half = max(1, count // 2)
    return [*dict.fromkeys([*order[:half], *order[-half:]])]


def others(rules: Sequence[Rule], batch: int, count: int, again: int) -> list[int]:
    """The rows for the next try: for the first try those that best tell the rules apart, for later tries random
    ones."""
    if again == 0 and len(rules) > 1:
        return sorted(telling(rules, batch, min(count, FEW)))
    return sorted(random.Random(again).sample(range(batch), count))


def halves(rows: list[int]) -> tuple[list[int], list[int]]:
    """The rows in two parts, of different sizes if there are more than two rows."""
    cut = len(rows) // 2 + (1 if len(rows) > 3 else 0)
    return rows[:cut], rows[cut:]


def crossing(rows: list[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    """Four parts of the rows, called a, b, c and d. They are for four calls: a + b, c + d,
    a + c and b + d. The calls have the same size if the number of rows is even or less
    than four. If there are at least four rows and their number is even, the first two calls are for the two
    halves of the rows. Parts have an odd number of rows, so that rows at even places of one call are at odd places of
    another: a module may treat them differently. With fewer than four rows, some rows are in more than one part."""
    if len(rows) < 4:
        return rows[:1], rows[1:2], rows[:1], rows[-1:]
    half, part = len(rows) // 2, len(rows) // 4 - 1 | 1
    return rows[:part], rows[part:half], rows[half:-part], rows[-part:]


def spread(batch: int, count: int) -> list[int]:
    """``count`` rows, spread evenly over the batch."""
    return sorted({batch * i // count for i in range(count)})
