"""The program that came with this package in one wheel, and whose the command ``headroom`` is.

The wheel has the program twice: as ``headroom``, and under the name of the distribution, which nobody else uses. If
another distribution has a command ``headroom``, the one that is installed last overwrites the other's file.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata

TYPE_CHECKING = False  # importing typing for its TYPE_CHECKING costs more than everything here
if TYPE_CHECKING:
    from typing import NoReturn, Optional

DISTRIBUTION = "headroom-train"
COMMAND = "headroom"


def become(words: list[str]) -> NoReturn:
    """Replaces this process by the program, with these arguments. Exits if there is no program."""
    path = _installed(DISTRIBUTION)
    if path is None or not os.path.exists(str(path.locate())):
        sys.exit(
            f"headroom: no program came with this copy of headroom_train; pip install {DISTRIBUTION} installs both"
        )
    if _overwritten():
        print(
            f"headroom: the command {COMMAND} of this environment is that of {_owner()}; {DISTRIBUTION} is this one",
            file=sys.stderr,
            flush=True,
        )
    program = str(path.locate())
    os.execv(program, [program, *words])


def _installed(name: str) -> Optional[metadata.PackagePath]:
    """The file of our distribution that has this name, as its record has it."""
    try:
        files = metadata.files(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:
        return None
    return next((file for file in files if file.name == name), None)


def _overwritten() -> bool:
    """Whether the command has another size than ours has: a script is small."""
    ours = _installed(COMMAND)
    try:
        return ours is not None and os.path.getsize(str(ours.locate())) != ours.size
    except OSError:  # there is no such command
        return False


def _owner() -> str:
    """The distribution, other than ours, that has a command of this name."""
    for distribution in metadata.distributions():
        if any(e.group == "console_scripts" and e.name == COMMAND for e in distribution.entry_points):
            return str(distribution.metadata["Name"])
    return "another distribution"
