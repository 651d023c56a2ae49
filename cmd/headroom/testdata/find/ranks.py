"""Ranks that train together: ranks.py KIND ROWS STEPS, with torchrun. The second rank has less room than the first."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

kind, rows, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo")
torch.manual_seed(0)


class Wide(nn.Module):
    def forward(self, x):
        return x.repeat(1, 512).tanh().sigmoid().exp().view(len(x), 512, -1).mean(1)


net = nn.Sequential(nn.Linear(64, 128), Wide(), nn.Linear(128, 10))
model = net if kind == "alone" else nn.parallel.DistributedDataParallel(net)
sharded = {"optimizer_class": torch.optim.AdamW} if kind == "zero" else {}
optimizer = (ZeroRedundancyOptimizer if sharded else torch.optim.AdamW)(model.parameters(), **sharded)
taken = torch.zeros((200 << 20) * dist.get_rank(), dtype=torch.uint8)


def step():
    x, y = torch.randn(rows, 64), torch.randint(0, 10, (rows,))
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for _ in range(steps):
    step()
