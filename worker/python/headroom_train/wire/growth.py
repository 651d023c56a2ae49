"""Finds out what grows in a training run whose memory use keeps growing: the kinds of tensors that
become more and more numerous, and what holds them. All tensors are counted twice, some steps apart,
and only when headroom asks."""

from __future__ import annotations

import gc
import math
import sys
from collections import deque
from types import FrameType, ModuleType
from typing import Any, NamedTuple, Optional

import torch

STEPS = 50  # between the two counts
LINES = 3  # the most kinds that are reported


class Kind(NamedTuple):
    dtype: torch.dtype
    shape: tuple
    graph: bool  # tensors of this kind hold the graph that made them

    def __str__(self) -> str:
        shape = " × ".join(map(str, self.shape)) or "a scalar"
        graph = ", with the graph that made it" if self.graph else ""
        return f"{str(self.dtype).replace('torch.', '')} ({shape}){graph}"


class Growth:
    """One search for what grows. Not safe for concurrent use."""

    def __init__(self, steps: int) -> None:
        self._until = steps + STEPS
        self._before = census()

    def said(self, steps: int) -> Optional[str]:
        """A sentence about what has grown by step ``steps``, or None if it is too early to tell."""
        if steps < self._until:
            return None
        after, taken = census(), steps - self._until + STEPS
        grown = {k: len(v) - len(self._before.get(k, ())) for k, v in after.items()}
        many = [k for k, n in grown.items() if n >= STEPS // 2]
        # A graph holds more than its tensor shows.
        largest = sorted(many, key=lambda k: (k.graph, grown[k] * size(k)), reverse=True)[:LINES]
        if not largest:
            return (
                f"in {taken} steps no kind of tensor visible to Python has grown in number: the growing "
                "memory is held elsewhere"
            )
        known = {i for ids in self._before.values() for i in ids}
        lines = []
        for kind in largest:
            newest = [i for i in after[kind] if i not in known]
            lines.append(f"{grown[kind]} more of {kind}{holder(newest[-1]) if newest else ''}")
        if any(k.graph for k in largest):
            lines.append("keep loss.item() or loss.detach() instead")
        return f"what grew in {taken} steps: " + "; ".join(lines)


def census() -> dict[Kind, list[int]]:
    """The ids of all tensors that Python knows of, by kind."""
    found: dict[Kind, list[int]] = {}
    for t in tensors():
        with torch._C.DisableTorchFunctionSubclass():
            found.setdefault(Kind(t.dtype, tuple(t.shape), t.grad_fn is not None), []).append(id(t))
    return found


def tensors() -> list[torch.Tensor]:
    return [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]


def size(kind: Kind) -> int:
    return math.prod(kind.shape) * kind.dtype.itemsize


def holder(number: int) -> str:
    """The variable or attribute that holds the tensor with this id; empty if it cannot be
    determined."""
    held: Any = [t for t in tensors() if id(t) == number]
    if not held:
        return ""
    held = held.pop()
    # For example from a list to the dict that contains it, and then to the object that owns the dict.
    for _ in range(3):
        name = variable(held) or attribute(held)
        if name:
            return f", in {name}"
        held = next((r for r in gc.get_referrers(held) if isinstance(r, (list, dict, tuple, set, deque))), None)
        if held is None:
            break
    return ""


def variable(value: Any) -> str:
    """The name and place of a variable that has this value: a local variable of a running function,
    or a global of that function's module. Empty if there is none."""
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if not frame.f_globals.get("__name__", "").startswith(("headroom_train.", "torch.")):
            for names in (frame.f_locals, frame.f_globals):
                name = next((n for n, v in names.items() if v is value and not n.startswith("__")), "")
                if name:
                    return f"{name} ({code.co_filename}:{frame.f_lineno})"
        frame = frame.f_back
    return ""


def attribute(value: Any) -> str:
    """The name of an attribute that has this value, with the class of the object to which it
    belongs; empty if there is none."""
    for owned in gc.get_referrers(value):
        if isinstance(owned, dict):
            name = next((n for n, v in owned.items() if v is value and isinstance(n, str)), "")
            owners = (o for o in gc.get_referrers(owned) if getattr(o, "__dict__", None) is owned)
            owner = next((o for o in owners if not isinstance(o, ModuleType)), None)
        else:
            owner, name = owned, next((n for n, v in getattr(owned, "__dict__", {}).items() if v is value), "")
        if name and owner is not None and not type(owner).__module__.startswith("headroom_train."):
            return f"{type(owner).__name__}.{name}"
    return ""
