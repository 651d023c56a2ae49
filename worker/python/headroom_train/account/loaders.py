"""What the workers of a loader keep: they hold more and more memory, and the data set's class says where it puts it.

Nothing is asked of the workers themselves."""

from __future__ import annotations

import gc
from typing import Any, Callable, Optional

import torch

from ..tape.trees import is_a
from . import kinds
from .kinds import Evidence, Holder, Text
from .place import SURE
from .source import source


def of_workers(step: int, grown: int, slope: int, foreign: Callable[[str], bool]) -> Optional[Holder]:
    """Where the workers of a data set of the script's keep what they load, an attribute or a variable of its file; None
    if its class plainly keeps nothing, or empties what it keeps. They have grown by ``grown`` bytes, ``slope`` in each
    step."""
    from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

    with torch._C.DisableTorchFunction():
        loading = [o for o in gc.get_objects() if is_a(o, _MultiProcessingDataLoaderIter)]
    for one in loading:
        workers = len(one._workers)
        found = _kept(one._dataset, foreign)
        if found is None or not workers:
            continue
        name, where, looked_up = found
        cure = kinds.cure(kinds.WORKERS, Evidence(), Text(name))
        whole = len(one._index_sampler) if looked_up and hasattr(one._index_sampler, "__len__") else 0
        patience = max(SURE, whole) if looked_up else 0  # a cache may be meant to hold all samples
        return Holder(
            kinds.WORKERS, name, where, "", workers, grown, 0.0, slope, cure, patience=patience, host=True, step=step
        )
    return None


def _kept(dataset: Any, foreign: Callable[[str], bool]) -> Optional[tuple[str, str, bool]]:
    """The attribute of a data set, or the variable of its file, to which something is added whenever a sample is
    loaded: its name, the line, and whether it is asked first whether it has the sample. Data sets inside others are
    asked, too."""
    for _ in range(4):
        code = getattr(getattr(type(dataset), "__getitem__", None), "__code__", None)
        file = "" if code is None else code.co_filename
        text = source(file) if file and not foreign(file) else None
        name = type(dataset).__name__
        for attribute in (True, False):
            found = (text.added(name) if attribute else text.added_outside(name)) if text is not None else None
            if text is not None and found is not None:
                holder, keeps = found
                return keeps.name, f"{file}:{keeps.line}", text.looks_up(holder, attribute)
        dataset = getattr(dataset, "dataset", None)  # of a Subset
        if dataset is None:
            return None
    return None
