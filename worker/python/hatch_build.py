"""Builds the wheel: the package, and the program for one platform, if the environment names one.

HEADROOM_PROGRAMS is a folder with nothing but the program, under each name that it is to have as a command.
HEADROOM_PLATFORM is the platform tag of the wheel. HEADROOM_VERSION is the program's version.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
VERSION_FILE = "headroom_train/_version.py"


def version() -> str:
    """Return the program's version as Python writes it. Without a program it is that of the source."""
    described = os.environ.get("HEADROOM_VERSION")
    if described is None:
        found = re.search('__version__ = "(.*)"', (HERE / VERSION_FILE).read_text())
        assert found
        return found[1]
    release = re.fullmatch(r"(\d[\d.]*(?:rc\d+)?)(?:-(\d+)-(g[0-9a-f]+))?(-dirty)?", described)
    if not release:  # there is no tag
        return "0.1.dev0+" + re.sub("[^a-z0-9]+", ".", described)
    number, commits, commit, dirty = release.groups()
    local = ".".join(word for word in (commit, dirty and "dirty") if word)
    return number + (f".post{commits}" if commits else "") + (f"+{local}" if local else "")


class CustomBuildHook(BuildHookInterface[Any]):
    def initialize(self, _: str, build_data: dict[str, Any]) -> None:
        programs = os.environ.get("HEADROOM_PROGRAMS")
        if not programs:
            return
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + os.environ["HEADROOM_PLATFORM"]
        build_data["shared_scripts"] = {str(path): path.name for path in Path(programs).iterdir()}
        text = (HERE / VERSION_FILE).read_text()
        self.made = Path(self.directory) / "_version.py"
        self.made.write_text(re.sub('__version__ = ".*"', f'__version__ = "{version()}"', text))
        build_data["force_include"][str(self.made)] = VERSION_FILE

    def finalize(self, _: str, build_data: dict[str, Any], artifact: str) -> None:
        if hasattr(self, "made"):
            self.made.unlink()
