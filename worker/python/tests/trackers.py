"""Checks which runs of trackers are seen, with modules that have what wandb and mlflow have.

python trackers.py
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

os.environ["HEADROOM_TRACKERS"] = "wandb,mlflow"

import trial

trial.attach()
from headroom_train.wire.trackers import Trackers  # noqa: E402


def run(id: str, **changed: Any) -> SimpleNamespace:
    settings = {"resume": None, "resume_from": None, "fork_from": None}
    settings.update({k: changed.pop(k) for k in list(changed) if k in settings})
    return SimpleNamespace(
        id=id,
        settings=SimpleNamespace(**settings),
        **{"offline": False, "disabled": False, "sweep_id": None, **changed},
    )


def check(name: str, got: Any, want: Any) -> None:
    assert got == want, f"{name}: {got}, not {want}"


def wandb(open: Any) -> list[dict[str, str]]:
    """What is reported where a script has a run open."""
    sys.modules["wandb"] = SimpleNamespace(run=open)  # type: ignore[assignment]
    return Trackers().news()


def seen(id: str) -> list[dict[str, str]]:
    return [{"tracker": "wandb", "run": id}]


def main() -> None:
    check("not imported", Trackers().news(), [])
    check("no run", wandb(None), [])
    check("a run", wandb(run("a")), seen("a"))
    check("as Lightning opens it", wandb(run("a", resume="allow")), seen("a"))
    for changed in (
        {"resume": "never"},
        {"resume": "must"},
        {"resume_from": "b?_step=1"},
        {"fork_from": "b?_step=1"},
        {"offline": True},
        {"disabled": True},
        {"sweep_id": "s"},
    ):
        check(str(changed), wandb(run("a", **changed)), seen(""))
    check("a version that is not known", wandb(SimpleNamespace(id="a")), [])

    trackers = Trackers()
    sys.modules["wandb"].run = run("a")
    check("first", trackers.news(), seen("a"))
    check("the same", trackers.news(), [])
    sys.modules["wandb"].run = run("b")
    check("the next", trackers.news(), seen("b"))

    os.environ.update(WANDB_RUN_ID="a", WANDB_RESUME="allow")
    wandb(run("a"))
    check("the user's own stay", os.environ.get("WANDB_RUN_ID"), "a")
    os.environ["HEADROOM_TRACKED"] = "wandb"
    wandb(None)
    check("ours stay until a run is open", os.environ.get("WANDB_RUN_ID"), "a")
    wandb(run("a"))
    check("a second run is not taken for the first", [k for k in os.environ if k.startswith("WANDB_R")], [])

    del sys.modules["wandb"]
    sys.modules["mlflow"] = SimpleNamespace(active_run=lambda: SimpleNamespace(info=SimpleNamespace(run_id="0f")))  # type: ignore[assignment]
    check("mlflow", Trackers().news(), [{"tracker": "mlflow", "run": "0f"}])
    print("trackers: all well")


main()
