"""Trains a model of which no more than 10 of 40 rows fit at once. In its first start it ends after four steps with a failure
of another kind, and whatever has started it starts it again. The first argument names a file that says whether it has."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 4)

    def forward(self, x):
        if self.training and len(x) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.body(x)


def train(started, rank, model):
    """Makes six steps, of which the first start, which makes the file ``started``, makes four."""
    first = not Path(started).exists()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        optimizer.zero_grad()
        x = torch.randn(40, 8, generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(x), torch.zeros(40, dtype=torch.long))
        loss.backward()
        optimizer.step()
        print("start", 1 if first else 2, "rank", rank, "step", step, f"{loss.item():.6f}", flush=True)
        if first and step == 3:
            if dist.is_initialized():
                dist.barrier()
            Path(started).touch()
            raise ValueError("something else")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    train(sys.argv[1], int(os.environ["RANK"]), DistributedDataParallel(Net()))
