"""The runs that the script has open in Weights & Biases and MLflow, so that the next attempt can continue them.
Nothing is imported for that, and nothing is asked of a server."""

from __future__ import annotations

import os
import sys
from typing import Any, Optional

_ASKED = [name for name in os.environ.get("HEADROOM_TRACKERS", "").split(",") if name]
# What headroom has set for this process's first run. A second run would be taken for the first one.
_GIVEN = {"wandb": ("WANDB_RUN_ID", "WANDB_RESUME"), "mlflow": ("MLFLOW_RUN_ID",)}


class Trackers:
    """Sees which runs are open in this process."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def news(self) -> list[dict[str, str]]:
        """The runs that have been opened since the last call, each once: the tracker, and the run's id, which is "" if
        another process cannot continue it."""
        found = []
        for name in _ASKED:
            try:
                run = _OPEN[name](sys.modules.get(name))
            except Exception:  # a version of the tracker that we do not know
                run = None
            if run is None or (name, run) in self._seen:
                continue
            self._seen.add((name, run))
            found.append({"tracker": name, "run": run})
            if name in os.environ.get("HEADROOM_TRACKED", "").split(","):
                for variable in _GIVEN[name]:
                    os.environ.pop(variable, None)
        return found


def _wandb(module: Any) -> Optional[str]:
    run = getattr(module, "run", None)
    if run is None:
        return None
    settings = run.settings
    # Offline, a second part would replace the first one when both are uploaded. The agent of a sweep opens other runs.
    theirs = settings.resume not in (None, "allow") or settings.resume_from or settings.fork_from
    return "" if theirs or run.offline or run.disabled or run.sweep_id else str(run.id)


def _mlflow(module: Any) -> Optional[str]:
    run = module.active_run() if module is not None else None
    return None if run is None else str(run.info.run_id)


_OPEN = {"wandb": _wandb, "mlflow": _mlflow}
