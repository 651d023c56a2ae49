"""Makes the step of Adam or RMSprop go tensor by tensor where there is not enough memory for all tensors at once.

A step over all tensors at once needs memory for one or two more copies of each tensor. It changes the
optimizer's state before it allocates the last of these, so running out of memory there would end the
training. A step that goes tensor by tensor needs memory only for copies of the largest tensor.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..failure import is_out_of_memory, release_frames
from ..memory import Memory, memories
from ..world import several
from .genuine import apart

KNOWN = (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop)
FIRST, EVERY = 4, 16  # a GPU's memory is checked in the first 4 steps, then in every 16th
# Steps that go tensor by tensor before one over all tensors is tried again; doubled each time, up to 16 times as many.
SINGLY = 64

Group = dict[str, Any]


class Crowd:
    """What is known about the memory that one optimizer's steps need."""

    def __init__(self) -> None:
        self.steps = self.singly = 0
        self.patience = SINGLY
        self.told = False

    def has_no_room(self, optimizer: torch.optim.Optimizer, groups: Sequence[Group]) -> bool:
        """Whether there is not enough memory for the next step of these groups over all tensors at
        once."""
        if self.singly:
            self.singly -= 1
            return True
        step, self.steps = self.steps, self.steps + 1
        if any(p.is_cuda for g in groups for p in g["params"][:1]):
            if step >= FIRST and step % EVERY:
                return False
            known = memories()
            if plenty(known, needed(optimizer, groups)) if known else step:
                return False
        if fits(optimizer, groups):
            return False
        self.singly, self.patience = self.patience, min(2 * self.patience, 16 * SINGLY)
        return True


def plenty(known: Sequence[Memory], need: int) -> bool:
    """Whether every GPU has more than twice ``need`` bytes free, so that an exact check is
    unnecessary."""
    return all(min(m.free, m.allowed - m.reserved) + m.reserved - m.allocated > 2 * need for m in known)


_crowds: weakref.WeakKeyDictionary[torch.optim.Optimizer, Crowd] = weakref.WeakKeyDictionary()


@contextmanager
def one_by_one(optimizer: torch.optim.Optimizer) -> Iterator[bool]:
    """A context in which the optimizer's step goes tensor by tensor if there is not enough memory
    for all tensors at once. Yields whether this is the optimizer's first step that goes tensor by
    tensor."""
    # Of several ranks, this one would round otherwise than those that have room.
    known = type(optimizer) in KNOWN and not several()
    with apart():
        groups = [g for g in optimizer.param_groups if at_once(g)] if known else []
    if groups:
        crowd = _crowds.setdefault(optimizer, Crowd())
        groups = groups if crowd.has_no_room(optimizer, groups) else []
    before = [g["foreach"] for g in groups]
    try:
        for g in groups:
            g["foreach"] = False
        yield bool(groups) and not crowd.told
        if groups:
            crowd.told = True
    finally:
        for g, value in zip(groups, before):
            g["foreach"] = value


def at_once(group: Group) -> bool:
    """Whether a group's step goes over all its tensors at once."""
    if group.get("fused") or group.get("differentiable") or isinstance(group.get("lr"), torch.Tensor):
        return False
    chosen = group.get("foreach")
    return all(p.is_cuda for p in group["params"]) if chosen is None else bool(chosen)


def _copies(optimizer: torch.optim.Optimizer, group: Group) -> tuple[int, int]:
    """How many tensors of its own size each parameter has in the optimizer's state, and how many temporary ones a step
    makes for it."""
    if isinstance(optimizer, torch.optim.RMSprop):
        own_gradient = bool(group["weight_decay"] or group.get("maximize"))
        return 1 + (group["momentum"] > 0) + bool(group["centered"]), 1 + own_gradient
    return 3 if group.get("amsgrad") else 2, 1


def _takes(optimizer: torch.optim.Optimizer, group: Group) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tensors of the sizes that a group's step will allocate: first those for its state, then those for its
    temporaries. In total, the temporaries are as large as the largest set, in bytes, of the group's parameters
    that share a device and a dtype, as often as a step copies each."""
    params = [p for p in group["params"] if p.grad is not None]
    kept, passing = _copies(optimizer, group)
    state = [p for p in params if not optimizer.state.get(p) for _ in range(kept)]
    parts: dict[tuple, list[torch.Tensor]] = {}
    for p in params:
        parts.setdefault((p.device, p.dtype), []).append(p)
    return state, max(parts.values(), key=_bytes, default=[]) * passing


def needed(optimizer: torch.optim.Optimizer, groups: Sequence[Group]) -> int:
    """The number of bytes that a step of these groups will allocate."""
    return sum(_bytes(state) + _bytes(more) for state, more in (_takes(optimizer, g) for g in groups))


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def fits(optimizer: torch.optim.Optimizer, groups: Sequence[Group]) -> bool:
    """Whether there is memory for everything that a step will allocate. To find out, this function
    allocates that memory and frees it again."""
    held: list[torch.Tensor] = []
    try:
        for group in groups:
            state, more = _takes(optimizer, group)
            held += [torch.empty_like(t) for t in state]
            [torch.empty_like(t) for t in more]
        return True
    except Exception as e:
        if not is_out_of_memory(e):
            raise
        release_frames(e)
        return False
