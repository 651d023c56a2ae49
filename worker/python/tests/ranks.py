"""Checks runs of two ranks, one of which runs out of memory, started as people start them. Under
DistributedDataParallel both go on as if nothing had failed. Otherwise both must end as they do without headroom, with
the same exception. Neither rank may wait for the other.

    python ranks.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SECONDS = 120  # a run that takes longer counts as waiting forever

TRAIN = """
import os, sys, traceback
import torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 4)

    def forward(self, x, fail):
        if fail and len(x) == 6:  # in pieces it would go on
            raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB. (rank 1)')
        return self.body(x)

def train(rank, how, fails, address):
    if 'RANK' in os.environ:
        dist.init_process_group('gloo')
    else:
        dist.init_process_group('gloo', init_method='file://' + address, rank=rank, world_size=2)
    torch.manual_seed(0)
    net = Net()
    model = DistributedDataParallel(net) if how == 'ddp' else net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        x = torch.randn(6, 8)
        loss = F.cross_entropy(model(x, fails == 'fails' and step == 2 and rank == 1), torch.zeros(6, dtype=torch.long))
        loss.backward()
        if how != 'ddp':
            for p in net.parameters():
                dist.all_reduce(p.grad)
        optimizer.step()
        if rank == 0:
            print('step', step, '%.6f' % loss.item(), flush=True)
        dist.barrier()  # printed, before the other may fail and the launcher ends this one

def told(*given):
    try:
        train(*given)
    except BaseException:
        traceback.print_exc()  # here: a launcher shows the failure of one rank, not always the first
        raise

if __name__ == '__main__':
    how, fails, address = sys.argv[1:4]
    if 'RANK' in os.environ:
        told(int(os.environ['RANK']), how, fails, address)
    else:
        import torch.multiprocessing as mp
        mp.spawn(told, (how, fails, address), 2)
"""


LAUNCHERS = {
    "torchrun": "-m torch.distributed.run --nproc-per-node 2 --standalone --local-addr 127.0.0.1",
    "accelerate launch": "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 "
    "--main_process_port 0 --mixed_precision no --dynamo_backend no",  # with GPUs or without
    "spawn": "",
}


def ran(launcher: str, how: str, attached: bool, fails: str = "fails") -> tuple[bool, list[str], bool, str]:
    """Returns whether the run failed, its steps, whether the exception was seen, and the run's
    whole output."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(TRAIN)
        words = LAUNCHERS[launcher].split()
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), *([str(HERE.parent / "inject")] if attached else [])]),
        }
        env.pop("HEADROOM_WORKER", None)
        if attached:
            env["HEADROOM_WORKER"] = "armed"
        try:
            done = subprocess.run(
                [sys.executable, *words, str(script), how, fails, str(Path(folder) / "meet")],
                env=env,
                capture_output=True,
                text=True,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return False, [], False, f"not done after {SECONDS} s"
        said = done.stdout + done.stderr
        steps = [line for line in done.stdout.splitlines() if line.startswith("step")]
        return done.returncode != 0, steps, "Tried to allocate 2.00 GiB. (rank 1)" in said, said


def main() -> int:
    failed = 0
    for launcher in LAUNCHERS:
        # accelerate starts its ranks as torchrun does
        for how in ("ddp",) if launcher == "accelerate launch" else ("ddp", "by hand"):
            bare, ours = ran(launcher, how, False), ran(launcher, how, True)
            wrong = bare[:3] != (True, bare[1], True) or len(bare[1]) != 2
            if how == "ddp":
                calm = ran(launcher, how, False, "never fails")
                wrong = wrong or ours[:2] != calm[:2] or len(calm[1]) != 4 or "survived: 6 rows in" not in ours[3]
            else:
                wrong = wrong or bare[:3] != ours[:3] or "survived" in ours[3]
            failed += wrong
            print(
                f"{'FAILED' if wrong else 'ok':6} {launcher}, {how}: {ours[1]}{ours[3][-2000:] if wrong else ''}",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
