"""Two heads, losses weighted by learned log-variances that are parameters OUTSIDE the module; regression masked by
validity.
Source: "Add Kendall uncertainty-weighted multi-task loss", github.com/autonomousvision/transfuser/pull/335,
2026-04-25; huangxGo in github.com/lukasliebel/MultiDepth/issues/2, 2019-12-26
Right outcome: exact pieces need a weight of its own for each term (rows for the class loss, valid rows for the depth
loss, share for the constant). Without the mask one weight is enough. Else a refusal.
--mask: the second loss is a mean over valid rows only.
"""

import sys

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(8)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
        self.a, self.b = nn.Linear(512, 20), nn.Linear(512, 1)

    def forward(self, x):
        h = self.body(x)
        return self.a(h), self.b(h).squeeze(1)


model, s = Two(), nn.Parameter(torch.zeros(2))
opt = torch.optim.Adam([{"params": model.parameters()}, {"params": [s], "lr": 1e-2}], lr=1e-3)
N = 30000
limit()
for i in range(4):
    x = torch.randn(N, 64)
    yc, yd = (x[:, :20] * 2).argmax(1), x[:, :8].sum(1)
    valid = torch.rand(N) < 0.2 + 0.7 * torch.arange(N) / N
    opt.zero_grad()
    c, d = model(x)
    l1 = nn.functional.cross_entropy(c, yc)
    l2 = ((d - yd).abs() * valid).sum() / valid.sum() if "--mask" in sys.argv else (d - yd).abs().mean()
    loss = torch.exp(-s[0]) * l1 + torch.exp(-s[1]) * l2 + 0.5 * s.sum()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", *(f"{v:.6f}" for v in s.tolist()), flush=True)
finish(model)
