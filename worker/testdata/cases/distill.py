"""Distillation: a wide frozen teacher under no_grad in the loop, a small student, KL at temperature 4 + CE. Memory runs
out in the TEACHER.
Source: "teacher model in eval() mode but still update gradients?", github.com/haitongli/knowledge-distillation-
pytorch/issues/25, 2020-02-06; "torch.no_grad() is impotant?", github.com/clovaai/overhaul-distillation/issues/34,
2021-07-15
Right outcome: the teacher's rows are independent, so its call can be made in pieces (as an evaluation is). Else the
reason must name the teacher.
"""

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(16)
teacher = nn.Sequential(nn.Linear(64, 3000), nn.ReLU(), nn.Linear(3000, 256), nn.ReLU(), nn.Linear(256, 50)).eval().requires_grad_(False)
student = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 50))
opt = torch.optim.SGD(student.parameters(), lr=0.5, momentum=0.9)
F, T = nn.functional, 4.0
limit()
for i in range(4):
    x, y = torch.randn(20000, 64), torch.randint(50, (20000,))
    with torch.no_grad():
        t = teacher(x)
    s = student(x)
    loss = F.kl_div((s / T).log_softmax(1), (t / T).softmax(1), reduction="batchmean") * T * T + 0.1 * F.cross_entropy(s, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(student)
