"""Which training this process is a rank of, how many ranks train together, and how often this one has communicated
with the others."""

from __future__ import annotations

import os
import sys
from typing import Any, Callable

import torch

_dist = torch.distributed
_unknown = 0  # how often it could not be told
_called = 0  # calls of process groups from Python: sending to one rank and receiving from it have no sequence numbers


def several() -> bool:
    """Whether this process is one of several ranks. Those of a launcher that do not use torch.distributed may wait for
    each other through another library."""
    if _dist.is_available() and _dist.is_initialized():
        return _dist.get_world_size() > 1
    return os.environ.get("WORLD_SIZE", "1") not in ("", "1")


def neighbours() -> int:
    """How many ranks are on this machine, this one included, as far as the launcher says so."""
    count = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(count)) if count.isdigit() else 1


def training() -> str:
    """What the launcher calls the training that this process is a part of: the same again in a process that it has
    started in place of one that failed, and something else in any other. Empty if that is not known."""
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    if run:
        return f"torchrun {os.getppid()} {run}"  # the id alone may be that of every torchrun: none
    # Ray's processes all begin alike, and only Ray knows what one of them trains. It is not asked by its public
    # functions: outside a training they warn, or raise.
    for module, name in _RAY.items():
        try:
            found = name(sys.modules[module])
        except Exception:  # Ray is not there, or does not train here
            continue
        if found:
            return f"ray {found}"
    return ""


_RAY: dict[str, Callable[[Any], Any]] = {
    "ray.train.v2._internal.execution.context": lambda m: m.get_train_context().train_run_context.run_id,
    "ray.train._internal.session": lambda m: m.get_session() and m.get_session().trial_id,  # Tune, and Train before v2
}


def calls() -> None:
    """Notes that a process group is called from Python."""
    global _called
    _called += 1


def talked() -> int:
    """A number that is different once this process has communicated with another rank, in whatever group, and each time
    negative and another one if that cannot be told. A call that has communicated must not be made again: the other
    ranks would not take part."""
    global _unknown
    if not several():
        return 0
    try:
        return _called + sum(map(_sequence, _dist.distributed_c10d._world.pg_map))
    except Exception:  # a backend that does not count
        _unknown -= 1
        return _unknown


def _sequence(group: Any) -> int:
    """The number of collectives of a group: each kind of device may have a backend of its own."""
    return sum(group._get_backend(device)._get_sequence_number_for_group() for device in group._device_types)
