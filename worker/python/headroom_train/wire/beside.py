"""Where the user reads what this process has to say, if that is neither its own standard error nor headroom's: in a
notebook, beside the cell. Imports no torch."""

from __future__ import annotations

from typing import Callable, Optional

show: Optional[Callable[[str], None]] = None  # shows a line
