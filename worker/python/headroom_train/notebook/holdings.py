"""What this process's memory is held for between two cells, and by which variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from .. import _torch
from ..account import graphs, inventory
from ..account.look import key_of, size_of
from ..memory import may_ask
from ..tape.graph import sequence, walk
from .picture import Variable

_MOST = 5  # variables that are named
_LEAST = 1 << 20  # bytes of the smallest of them
_DEPTH = 3  # of containers that are looked into


def memories() -> list[inventory.Memory]:
    """The account of each GPU that this process uses, or else of the host: no step is under way."""
    recorder, device = _torch._recorder, may_ask()
    pools = recorder.spill.ids() if recorder is not None else ()
    return inventory.memories(sequence(), None, not device, device, pools)


def variables(shell: Any) -> list[Variable]:
    """The user's variables, and the results in ``Out``, that hold most, the graphs of their tensors included."""
    space, hidden = shell.user_ns, shell.user_ns_hidden
    named = {name: value for name, value in space.items() if name not in hidden and not name.startswith("_")}
    named.update((f"Out[{number}]", value) for number, value in space.get("_oh", {}).items())
    with torch._C.DisableTorchFunction():
        sizes = [Variable(name, _size(_tensors(value))) for name, value in named.items()]
    return sorted((v for v in sizes if v.bytes >= _LEAST), key=lambda v: -v.bytes)[:_MOST]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.nn.Module):
        yield from (*value.parameters(), *value.buffers())
    elif isinstance(value, torch.optim.Optimizer):
        yield from inventory._inside(value.state, _DEPTH, False)
    else:
        yield from inventory._inside(value, _DEPTH, False)


def _size(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes behind tensors and in their graphs."""
    sizes = {}
    for t in tensors:
        saved = (s for node in walk([t.grad_fn]) for s in graphs.contents(node, True)) if t.grad_fn is not None else ()
        for one in (t, *saved):
            key = key_of(one)
            if key is not None:
                sizes[key] = size_of(one)
    return sum(sizes.values())
