"""Deep supervision, or many heads: the loss is a Python sum of K means; the argument is K.
Right outcome: one replay for the sum; the time and the memory must not grow with K.
"""

import sys

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(0)
K = int(sys.argv[1])
body, heads = nn.Sequential(nn.Linear(32, 1024), nn.ReLU(), nn.Linear(1024, 64)), nn.Linear(64, 64)
opt = torch.optim.SGD([*body.parameters(), *heads.parameters()], lr=0.1)
limit()
for i in range(3):
    x = torch.randn(16000, 32)
    opt.zero_grad()
    out = heads(body(x))
    loss = 0
    for k in range(K):
        loss = loss + (out[:, k] - x[:, k % 32]).pow(2).mean()
    loss = loss / K
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(body, heads)
