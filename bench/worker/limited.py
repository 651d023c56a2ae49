"""Runs a training of a benchmark in a folder of its own, and within a limit."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def held() -> int:
    """The memory that counts for `ulimit -d`, in KiB."""
    return int(re.search(r"VmData:\s+(\d+)", Path("/proc/self/status").read_text()).group(1))  # type: ignore[union-attr]


def run(command: Sequence[str], limit: int | None) -> dict[str, Any]:
    """Runs a command on one core, with the name of a file as its last argument. Returns what it has written there, what it has said on stderr as "said",
    and as "pieces" in how many pieces headroom ran its newest step. ``limit`` is in KiB."""

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit * 1024, limit * 1024))

    # Large allocations go back to the system when they are freed, so that the limit means what is in use.
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEADROOM")}
    env.update(OMP_NUM_THREADS="1", MALLOC_ARENA_MAX="1", MALLOC_MMAP_THRESHOLD_="262144", MALLOC_TRIM_THRESHOLD_="262144")
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out.json")
        ended = subprocess.run([*command, out], cwd=folder, env=env, preexec_fn=limited, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(f"{' '.join(command)} with {limit} KiB: exit status {ended.returncode}\n{ended.stdout[-2000:]}{ended.stderr[-6000:]}")
        metrics = [*Path(folder).glob("headroom-runs/*/metrics.jsonl")]
        steps = metrics[0].read_text().splitlines() if metrics else []
        pieces = json.loads(steps[-1]).get("pieces", 1) if steps else 1
        return {**json.loads(Path(out).read_text()), "pieces": pieces, "said": ended.stderr}
