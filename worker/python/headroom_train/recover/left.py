"""What a call that has run out of memory leaves behind."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..failure import is_out_of_memory
from ..hooks.genuine import apart, put_values, unseen_copy
from ..tape.given import Given
from ..tape.snapshot import PLAIN, Snapshot, attributes, submodules
from ..tape.tape import random_state, set_random_state
from ..tape.trees import is_a, tensors_in


class Left:
    """What a failed call has left in its module, its arguments and the random state. To go on, that is undone; it is
    put back if the script gets the failure after all, since the script may go on by itself, with its next batch for
    example. Of a module that holds results with their graph, only plain values are: the graph would take the memory
    that is needed to go on."""

    def __init__(self, buffers: Sequence[torch.Tensor], module: torch.nn.Module, args: tuple, kwargs: dict) -> None:
        self._random = random_state()
        self._given = Given(args, kwargs)
        every = submodules([module])
        with apart():
            graphs = any(t.grad_fn is not None for m in every for t in tensors_in(dict(attributes(m))))
        self._snapshot = Snapshot(() if graphs else every, deep=True)
        self._plain = [(vars(m), {n: v for n, v in attributes(m) if is_a(v, PLAIN)}) for m in every if graphs]
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        try:
            self._buffers += [(b, unseen_copy(b)) for b in buffers]
        except Exception as e:
            if not is_out_of_memory(e):
                raise

    def put_back(self) -> None:
        self._given.put_back()
        self._snapshot.put_back()
        for own, values in self._plain:
            own.update(values)
        put_values(self._buffers)
        set_random_state(self._random)
