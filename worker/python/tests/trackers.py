"""Checks which runs of trackers are seen, and what is logged there, with modules that have what wandb and mlflow have.

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
from headroom_train.wire.trackers import Scalars, Trackers  # noqa: E402


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


def scalars(asked: str, *steps: tuple[int, int], **variables: str) -> list[Any]:
    """What is logged of steps that were made in so many pieces and with so many bytes of the host, in runs that the
    script has open."""
    logged: list[Any] = []
    open = run("a")
    open.log = lambda values, **how: logged.append(("wandb", values, how))
    sys.modules["wandb"] = SimpleNamespace(run=open, patched={"tensorboard": []})  # type: ignore[assignment]
    sys.modules["mlflow"] = SimpleNamespace(  # type: ignore[assignment]
        active_run=lambda: SimpleNamespace(info=SimpleNamespace(run_id="0f")),
        log_metrics=lambda values, **how: logged.append(("mlflow", values, how)),
    )
    os.environ.update(HEADROOM_SCALARS=asked, **variables)
    try:
        made = Scalars()
        for number, (pieces, spilled) in enumerate(steps, 1):
            made.made(number, pieces, spilled)
    finally:
        for name in ("HEADROOM_SCALARS", *variables):
            del os.environ[name]
    return logged


def check_scalars() -> None:
    GIB = 1 << 30

    def said(pieces: int, gib: float) -> dict[str, float]:
        return {"headroom/pieces": pieces, "headroom/spill_gib": gib}

    joins = {"commit": False}  # W&B's counter of steps is the script's
    check("nobody has asked", scalars("", (1, 0), (4, GIB)), [])
    check("a tracker that is not known", scalars("other", (1, 0)), [])
    check(
        "what has changed",
        scalars("wandb", (1, 0), (1, 0), (4, 0), (4, 0), (4, 3 * GIB // 2)),
        [("wandb", said(*v), joins) for v in ((1, 0), (4, 0), (4, 1.5))],
    )
    check(
        "by steps of its own",
        scalars("mlflow", (1, 0), (1, 0), (2, 0)),
        [("mlflow", said(p, 0), {"step": s, "run_id": "0f", "synchronous": False}) for s, p in ((1, 1), (3, 2))],
    )
    check("both", [name for name, *_ in scalars("wandb, mlflow", (1, 0))], ["wandb", "mlflow"])
    check("a trial", scalars("wandb", (1, 0), HEADROOM_TRIAL="1"), [])

    os.environ["HEADROOM_SCALARS"] = "wandb,mlflow"
    made, called = Scalars(), []
    for open in (None, run("a", disabled=True)):
        sys.modules["wandb"] = SimpleNamespace(run=open, patched={"tensorboard": []})  # type: ignore[assignment]
        sys.modules["mlflow"] = SimpleNamespace(active_run=lambda: None)  # type: ignore[assignment]
        made.made(1, 1, 0)  # nothing to log to, and no exception
    open = run("a")
    open.log = lambda values, **how: called.append(values) or 1 / 0
    sys.modules["wandb"] = SimpleNamespace(run=open, patched={"tensorboard": ["patched"]})  # type: ignore[assignment]
    made.made(1, 1, 0)
    check("TensorBoard ends the rows", called, [])
    sys.modules["wandb"].patched = {"tensorboard": []}  # type: ignore[attr-defined]
    made.made(1, 1, 0)
    made.made(2, 2, 0)
    check("one that fails is left alone", called, [said(1, 0)])
    del os.environ["HEADROOM_SCALARS"], sys.modules["wandb"], sys.modules["mlflow"]


def main() -> None:
    check_scalars()
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
