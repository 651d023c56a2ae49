"""Training accuracy counted after optimizer.step() and read at the end of the epoch: the commonest loop of all
tutorials.
Right outcome: survives, same count and same sum of losses as with room.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F
from room import limit

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1000))
opt = torch.optim.SGD(net.parameters(), lr=0.5)
correct = 0
total = 0.0
limit()
for step in range(8):
    n = 2000 if step < 3 else 24000
    x, y = torch.randn(n, 64), torch.randint(0, 1000, (n,))
    scores = net(x)
    loss = F.cross_entropy(scores, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    correct += (scores.argmax(1) == y).sum()  # after the weights have changed, read at the end of the epoch
    total += loss.detach() * n
print("END", int(correct), f"{float(total):.9g}")
