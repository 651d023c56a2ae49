"""Off-policy loop whose replay memory (a list of tensors on the device) grows until nothing is left; the batch never
changes.
Source: "Training falied with 16GB RAM", github.com/Kautenja/playing-mario-with-deep-reinforcement-learning/issues/36,
2018-09-11; "Update mario_rl_tutorial.py", github.com/pytorch/tutorials/pull/2381, 2023-06-01
Right outcome: pieces only postpone it; when memory is full headroom must not blame the batch. Ideal: it names the
growing list.
"""

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(29)
q = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 4))
opt = torch.optim.Adam(q.parameters(), lr=1e-3)
memory = []
limit()
for i in range(120):
    memory.append((torch.randn(2500, 4, 128), torch.randn(2500)))
    s, r = memory[int(torch.randint(len(memory), ()))]
    loss = nn.functional.smooth_l1_loss(q(s).mean(1).max(1)[0], r)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(q)
