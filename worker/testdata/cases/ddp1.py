"""DistributedDataParallel with ONE process (gloo), as scripts written for many GPUs run on a laptop.
Source: "Inconsistent recovery from CUDA OOMs", github.com/pytorch/pytorch/issues/18853, 2019-04-04
Right outcome (as documented): watched only; the reason says so. An exact split exists (one rank: no other rank
waits).
"""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from room import finish, limit

os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + os.getpid() % 20000), RANK="0", WORLD_SIZE="1")
dist.init_process_group("gloo")
torch.manual_seed(33)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
limit()
for i in range(3):
    x = torch.randn(30000, 64)
    y = x[:, :10].argmax(1)
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
dist.destroy_process_group()
finish(model)
