"""Runs a training job with enough memory, then with a fraction of the memory that it took, both bare and under headroom.

case.py HEADROOM OUT PART SCRIPT TASK FRACTION…
case.py HEADROOM OUT peers FRACTION
case.py HEADROOM OUT leak SHARE

It prints a row of a Markdown table for each fraction. On a CPU, BENCH_LIMIT, in MiB of data, replaces the fraction.
For a leak, SHARE is a share of the whole device's memory. BENCH_FLAGS holds flags of headroom run.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Optional

from compare import HEADER, PEERS_HEADER, Ran, peer, row

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 400  # seconds that a training run may take


class Bench:
    def __init__(self, headroom: str, out: str) -> None:
        self.headroom, self.out = os.path.abspath(headroom), os.path.abspath(out)

    def run(self, name: str, script: str, task: str, fraction: Optional[float] = None, under: bool = False, around: Sequence[str] = ()) -> Ran:
        """Runs one training job in a process of its own, with the given fraction of the device's memory."""
        folder = os.path.join(self.out, name)
        os.makedirs(folder)
        command = [sys.executable, os.path.join(HERE, script), task, folder]
        if around:
            command = [*around, *command, "--batch_size", "40"]
        if under:
            command = [self.headroom, "run", "--name", name, *os.environ.get("BENCH_FLAGS", "").split(), "--", *command]
        env = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        if fraction:
            env["PYTORCH_ALLOC_CONF"] = env["PYTORCH_CUDA_ALLOC_CONF"] = f"per_process_memory_fraction:{fraction:.5f}"
        limit = limit_data if fraction is not None and "BENCH_LIMIT" in os.environ else None
        begun = time.monotonic()
        with open(os.path.join(folder, "output.log"), "w") as log:
            try:
                status = subprocess.run(
                    command, cwd=self.out, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=PATIENCE, preexec_fn=limit
                ).returncode
            except subprocess.TimeoutExpired:
                status = 124
        return Ran(folder, os.path.join(self.out, "runs", name) if under else None, status, time.monotonic() - begun)

    def reference(self, part: str, script: str, task: str) -> Ran:
        ran = self.run(f"{part}-reference", script, task)
        if ran.status != 0:
            sys.exit(f"{part}: the reference exited with status {ran.status}: see {ran.folder}/output.log")
        end, steady = ran.end, ran.median()
        print(
            f"\n{part}: peak {end['allocated'] / 2**30:.2f} GiB allocated, {end['reserved'] / 2**30:.2f} GiB reserved; "
            f"{len(ran.steps)} steps of {steady * 1e3:.1f} ms\n",
            flush=True,
        )
        return ran

    def cases(self, part: str, script: str, task: str, fractions: list[float]) -> None:
        reference = self.reference(part, script, task)
        print(HEADER, flush=True)
        for fraction in fractions:
            share = portion(reference.end, fraction)
            bare = self.run(f"{part}-{fraction}-bare", script, task, share)
            armed = self.run(f"{part}-{fraction}-headroom", script, task, share, under=True)
            print(row(part, fraction, reference, bare, armed), flush=True)
            for refused in armed.entries("refused"):
                print(f"\nrefused: {refused.get('text')}\n", flush=True)

    def leak(self, fraction: float) -> None:
        """Prints what headroom says about a training run that keeps more and more memory while it is limited to
        the given share of the device."""
        os.environ["STEPS"] = "10000"
        ran = self.run("leak", "raw.py", "leak", fraction, under=True)
        print(f"\nleak: {ran.ended()}; headroom said:\n")
        with open(os.path.join(ran.folder, "output.log")) as f:
            print("".join(text for text in f if text.startswith("headroom:")), flush=True)

    def peers(self, fraction: float) -> None:
        trainer = self.reference("peers", "trainers.py", "trainer")
        lightning = self.reference("peers-lightning", "trainers.py", "lightning")
        share = portion(trainer.end, fraction)
        print(PEERS_HEADER, flush=True)
        for name, task, under, reference in (
            ("bare Trainer", "trainer", False, trainer),
            ("auto_find_batch_size", "auto", False, trainer),
            ("find_executable_batch_size", "executable", False, None),
            ("bare Lightning", "lightning", False, lightning),
            ("Lightning BatchSizeFinder", "finder", False, lightning),
            ("headroom, Trainer", "trainer", True, trainer),
            ("headroom, Lightning", "lightning", True, lightning),
        ):
            ran = self.run(f"peers-{task}-{'headroom' if under else 'bare'}", "trainers.py", task, share, under)
            print(peer(name, reference, ran, trainer), flush=True)
        if importlib.util.find_spec("guardian"):
            ran = self.run("peers-watched", "trainers.py", "watched", share, around=watched(self.out))
            print(peer("guarftrain watch", None, ran, trainer), flush=True)


def portion(end: dict[str, Any], fraction: float) -> float:
    """Returns the given fraction of a run's peak of allocated memory, as a share of the device's memory; 0 without a GPU."""
    return fraction * end["allocated"] / end["total"] if end["total"] else 0.0


def watched(out: str) -> list[str]:
    """Returns the command line that puts guarftrain around a command, and writes the files that tell guarftrain
    how to set the batch size and how to resume."""
    contract = os.path.join(out, "contract.yaml")
    with open(contract, "w") as f:
        f.write("script_contract:\n  resumable: {entry: trainers.py, resume_flag: --resume, ckpt_flag: --checkpoint}\n")
        f.write("  cli_mappings: {dataloader.batch_size: --batch_size}\n  launcher: python\n")
    with open(os.path.join(out, "guardian.yaml"), "w") as f:
        f.write(f"contract: {{path: {contract}}}\nwatchdog: {{restart_delay: 1}}\n")
    with open(os.path.join(out, ".guardian-project.yaml"), "w") as project:
        project.write("project: {name: bench, ckpt_dir: checkpoints, log_dir: logs}\n")
    return [sys.executable, "-m", "guardian", "watch", "--config", f.name, "--contract", contract, "--no-monitor", "--"]


def limit_data() -> None:
    limit = int(os.environ["BENCH_LIMIT"]) << 20
    os.environ["MALLOC_ARENA_MAX"] = "1"
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


if __name__ == "__main__":
    bench = Bench(sys.argv[1], sys.argv[2])
    if sys.argv[3] == "peers":
        bench.peers(float(sys.argv[4]))
    elif sys.argv[3] == "leak":
        bench.leak(float(sys.argv[4]))
    else:
        bench.cases(sys.argv[3], sys.argv[4], sys.argv[5], [float(f) for f in sys.argv[6:]])
