"""The runs that the script has open in Weights & Biases and MLflow, so that the next attempt can continue them; and
two scalars of headroom's in them, where the user asks for that. Nothing is imported for it."""

from __future__ import annotations

import os
import sys
import time
from typing import Any, Optional

from ..failure import debugged

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


class Scalars:
    """Puts how a step was made beside what the script logs in this process: in how many pieces, and how much memory of
    the host it used. HEADROOM_SCALARS names the trackers; without it nothing is logged. The script's own rows and steps
    stay as they are, and a tracker that raises an exception is left alone from then on."""

    EVERY = 10.0  # seconds between two values that are the same

    def __init__(self) -> None:
        trial = "HEADROOM_TRIAL" in os.environ or os.environ.get("HEADROOM_WORKER") in ("check", "find", "observe")
        asked = "" if trial else os.environ.get("HEADROOM_SCALARS", "")
        self._asked = [name for name in asked.replace(" ", "").split(",") if name in _LOG]
        self._process = os.getpid()
        self._next: dict[str, float] = {}
        self._newest: dict[str, dict[str, float]] = {}

    def made(self, step: int, pieces: int, spilled: int) -> None:
        """Log that this process's optimizer has made so many steps, the last of them in so many pieces and with so many
        bytes of the host's memory."""
        if not self._asked or os.getpid() != self._process:  # a fork's run is that of its parent
            return
        values = {"headroom/pieces": pieces, "headroom/spill_gib": round(spilled / 2**30, 3)}
        for name in [*self._asked]:
            module, now = sys.modules.get(name), time.monotonic()
            if module is None or values == self._newest.get(name) and now < self._next[name]:
                continue
            try:
                if _LOG[name](module, values, step):
                    self._next[name], self._newest[name] = now + self.EVERY, values
            except Exception:
                self._asked.remove(name)
                debugged()


def _log_wandb(module: Any, values: dict[str, float], _: int) -> bool:
    run = getattr(module, "run", None)
    # With sync_tensorboard, TensorBoard's writer decides when a row ends.
    if run is None or run.disabled or module.patched["tensorboard"]:
        return False
    # A part of the row that the script ends with its next log: W&B's counter of steps stays where it is.
    run.log(values, commit=False)
    return True


def _log_mlflow(module: Any, values: dict[str, float], step: int) -> bool:
    run = module.active_run()
    if run is None:
        return False
    # Each metric of MLflow has steps of its own. A thread of MLflow's talks to the server.
    module.log_metrics(values, step=step, run_id=run.info.run_id, synchronous=False)
    return True


_LOG = {"wandb": _log_wandb, "mlflow": _log_mlflow}
