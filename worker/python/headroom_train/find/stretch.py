"""How the calls of a recorded step are made on any number of rows, cut or repeated.

Only sizes matter here, and nothing of what is computed is used. So rows may depend on each other, as in BatchNorm or
where every row is compared with every other, which pieces of a batch never may.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch

from ..failure import Refused
from ..proof.cutting import tried
from ..proof.rerun import modules_of
from ..proof.rows import Axis, Cut, Rows, arguments, perform
from ..proof.trials import Trials, cut_off
from ..sandbox.sandbox import rehearsal
from ..tape.tape import Entry, Tape
from ..tape.trees import flatten, mapped
from .copies import apart


class Repeated(Rows):
    """``count`` rows: those of the batch, from the first, as often as needed. What is made of a tensor is kept as long
    as this object, as a script keeps its batch."""

    __slots__ = ("made", "seeds")

    def __init__(self, batch: int, count: int, seeds: Optional[dict[int, torch.Tensor]] = None) -> None:
        super().__init__(batch, 0, batch, [i % batch for i in range(count)])
        self.made: dict[tuple[int, Axis], torch.Tensor] = {}
        self.seeds = seeds or {}  # what to take the rows from, by the id of a tensor

    def of(self, tensor: torch.Tensor, axis: Axis) -> torch.Tensor:
        key = id(tensor), axis
        if key not in self.made:
            self.made[key] = super().of(self.seeds.get(id(tensor), tensor), axis).to(tensor.device)
        return self.made[key]


class Stretch(Trials):
    """A recorded step that can be made on any number of rows. ``cuts`` says for each call which of its arguments
    belong to rows. Raises :class:`Refused` if rows of the step cannot be cut or repeated."""

    def __init__(self, tape: Tape, targets: Sequence[int]) -> None:
        super().__init__(tape, tape.entries[0])
        if self._doubt:
            raise Refused(self._doubt)
        self.cuts: list[Cut] = []
        with rehearsal(modules_of(tape)), torch.enable_grad():
            for entry in tape.entries:
                self._add(entry)
        self.targets = [*targets] or self._ends()
        self.env[0].clear()
        self.env[1].clear()
        found = self.stretched()
        for i in {i for entry in tape.entries for i in entry.references()[1]} - found.keys():
            if self.batch > 1 and self.batch in tape.outside[i].shape:
                shape = "×".join(map(str, tape.outside[i].shape))
                raise Refused(f"a tensor of {shape} from outside the step may have the rows of its batch there")
        for i, axes in found.items():
            if tape.outside[i].requires_grad:
                raise Refused("the step computes gradients of its inputs")
            if len(axes) > 1:
                raise Refused("a tensor of the batch has its rows in two places")
        if any(t.requires_grad and t.grad_fn is not None for t in tape.outside):
            raise Refused("the step uses results of calls that are not recorded")

    def _few(self) -> tuple[Rows, Rows]:
        return Repeated(self.batch, 2), Repeated(self.batch, 3)

    def _add(self, entry: Entry) -> None:
        if entry.module is None:
            known = tried(self, entry, made=True)
            cut, results = known.cut, known.results
        else:
            cut = Cut(self.axes(entry.references()[1], {1}, entry.module))
            results = self.both(entry, cut)
        self.cuts.append(cut)
        small, large = (flatten(r)[0] for r in results)
        for slot, a, b in zip(entry.slots, small, large):
            if slot is not None:
                self.slots[slot] = self.slot(a, b, entry, cut)
        self.note(entry, results)
        self.note_made_up(entry)

    def both(self, entry: Entry, cut: Cut, rehearse: bool = False, sealed: Sequence = ()) -> list:
        if entry.module is None:
            return super().both(entry, cut, rehearse, sealed)
        results = []
        for env, rows in zip(self.env, self.rows):
            args, kwargs = arguments(self.tape, entry, cut, env, rows)
            if entry.snapshot is not None:
                entry.snapshot.put_back()
            try:
                results.append(mapped(cut_off, perform(entry, args, kwargs, trial=True)))
            except (ValueError, TypeError, IndexError, RuntimeError) as e:
                raise Refused(f"a call to {entry.call_name()} fails on {rows.count} rows: {e}".splitlines()[0]) from e
        return results

    def _extent(
        self, small: torch.Tensor, large: torch.Tensor, entry: Entry, cut: Cut
    ) -> tuple[tuple[int, ...], Optional[Axis]]:
        moved = [d for d in range(small.dim()) if small.dim() == large.dim() and small.shape[d] != large.shape[d]]
        if len(moved) == 2 and all(small.shape[d] == 2 and large.shape[d] == 3 for d in moved):
            # Every row beside every other: the rows are in both dimensions.
            return tuple(self.batch if d in moved else n for d, n in enumerate(small.shape)), Axis(moved[0])
        return super()._extent(small, large, entry, cut)

    def _ends(self) -> list[int]:
        """The scalars that require a gradient, and that no other call uses."""
        used = {s for e in self.tape.entries for s in e.references()[0]}
        made = {s for e in self.tape.entries for s in e.slots if s is not None}
        return [s for s in sorted(made - used) if self.slots[s].requires_grad and self.slots[s].axis is None]

    def stretched(self) -> dict[int, set[Axis]]:
        """The tensors from outside that have rows, by index, and where in them."""
        found: dict[int, set[Axis]] = {}
        for cut in self.cuts:
            for i, axis in cut.outside.items():
                found.setdefault(i, set()).add(axis)
        return found

    def released(self) -> dict[int, torch.Tensor]:
        """Releases the memory of the batch itself, which the script still holds, and returns copies of it that no limit
        counts, by the ids of the tensors. What shares its memory with something else, such as a whole data set, stays.
        The process can do nothing but trials from now on."""
        found = [self.tape.outside[i] for i in self.stretched()]
        seeds = {id(tensor): apart(tensor) for tensor in found}  # of all, before any is gone: they may share memory
        others = {
            t.untyped_storage()._cdata for t in self.tape.outside if id(t) not in seeds and t.layout == torch.strided
        }
        for tensor in found:
            if tensor.untyped_storage()._cdata not in others:
                release(tensor)
        return seeds


def release(tensor: torch.Tensor) -> None:
    """Frees a tensor's memory if the tensor is all that is in it."""
    memory = tensor.untyped_storage()
    if memory.resizable() and memory.nbytes() == tensor.numel() * tensor.element_size():
        memory.resize_(0)
