"""A loop that knows nothing about headroom. After startup it may use at most the given number of MiB in addition
to what it already uses; 0 means that there is no limit. The third argument may be "norm" (the model has a BatchNorm
layer) or "thread" (it is trained in a thread of its own)."""

import sys
import threading

import torch
from room import limit

torch.manual_seed(0)
torch.set_num_threads(1)
rows, room = int(sys.argv[1]), int(sys.argv[2])
norm = [torch.nn.BatchNorm1d(2000)] if sys.argv[3:] == ["norm"] else []
net = torch.nn.Sequential(torch.nn.Linear(100, 2000), *norm, torch.nn.ReLU(), torch.nn.Linear(2000, 20), torch.nn.ReLU(), torch.nn.Linear(20, 10))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
loss = torch.nn.functional.cross_entropy(net(torch.randn(8, 100)), torch.randint(0, 10, (8,)))
loss.backward()  # what a first call loads is no part of the room
opt.step()
limit(room)


def train():
    for step in range(6):
        x, y = torch.randn(rows, 100), torch.randint(0, 10, (rows,))
        loss = torch.nn.functional.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(step, loss.item(), flush=True)


if sys.argv[3:] == ["thread"]:
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
else:
    train()
