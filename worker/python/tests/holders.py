"""Checks that what holds growing memory is found in small trainings, and that nothing is said of trainings that only
look as if they kept something.

python holders.py [NAME…]

A script is a text. They are in holders_scripts.py.
"""

from __future__ import annotations

import os
import sys
import tempfile
import textwrap
from pathlib import Path

import torch

import trial
from forked import Died, forked
from holders_scripts import CLEAN, LEAKS

trial.attach()

from headroom_train import _torch  # noqa: E402
from headroom_train.account import trigger  # noqa: E402

trigger.SHARE = 0  # a figure in each step, however fast the machine is

START = """
import copy, collections, functools
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 4))
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
def batch(rows=1024):
    return torch.randn(rows, 256)
def train(x):
    opt.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    opt.step()
    return loss
"""


def ran(name: str) -> tuple[str, int, int]:
    """Runs a script in a child. Returns what was found."""
    leak = LEAKS.get(name)
    text = START + textwrap.dedent(leak.text if leak is not None else CLEAN[name])
    folder = Path(tempfile.mkdtemp())
    file = folder / "train.py"
    file.write_text(text)
    os.environ["HEADROOM_DEBUG"] = str(folder / "debug")
    said = ""
    try:
        exec(compile(text, str(file), "exec"), {"__name__": "__main__", "__file__": str(file)})
    except Exception as error:
        said = trial.described(error)
    report = _torch._recorder.report  # type: ignore[union-attr]
    if (folder / "debug").exists():
        said += (folder / "debug").read_text()
    left = torch._C._len_torch_function_stack()
    if left and report.account._search is None:
        said += f"{left} modes are left behind"
    found = report.account.told
    lines = text.splitlines()
    if leak is None:
        return said if found is None else f"{said} accused: {found}", report.steps, 0
    if found is None:
        return f"{said} nothing was said; candidate {report.account._candidate}", report.steps, 0
    wants = [f"{file}:{1 + i}" for i, line in enumerate(lines) if "#kept" in line]
    makes = [f"{file}:{1 + i}" for i, line in enumerate(lines) if "#made" in line]
    for what, got, want in (
        ("kind", found.kind, [leak.kind]),
        ("name", found.name, [leak.name]),
        ("kept", found.kept, wants),
        ("made", found.made, makes or [found.made]),
    ):
        if got not in want:
            said += f"\n  {what}: {got}, not {want}"
    if leak.cure not in found.cure:
        said += f"\n  cure: {found.cure}, not {leak.cure}"
    return (f"{said}\n  {found}" if said else ""), report.steps, 0


def main() -> int:
    names = sys.argv[1:] or [*LEAKS, *CLEAN]
    failed = 0
    torch.set_num_threads(1)
    for name, got in forked(ran, names, 2, seconds=180):
        said, steps, _ = (got.why, 0, 0) if isinstance(got, Died) else got
        failed += bool(said)
        print(f"{'FAILED' if said else 'ok':6} {name} ({steps} steps){': ' if said else ''}{said}", flush=True)
    print(f"{len(LEAKS)} leaks, {len(CLEAN)} clean loops, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
