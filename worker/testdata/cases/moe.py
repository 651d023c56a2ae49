"""Switch-style mixture of experts: top-1 routing, the balance loss (a batch statistic) is returned and added with 0.01.
Source: "the affects of cumulativing aux loss steps", github.com/IBM/ModuleFormer/issues/5, 2023-11-14; "Incorrect
implementation of auxiliary loss", github.com/huggingface/transformers/issues/28255
Right outcome: refused (the balance loss is a product of batch means). Silent pieces would be WRONG: each piece would
balance itself.
"""

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(9)


class MoE(nn.Module):
    def __init__(self, d=64, h=512, n=4):
        super().__init__()
        self.gate, self.out = nn.Linear(d, n), nn.Linear(d, 10)
        self.ex = nn.ModuleList(nn.Sequential(nn.Linear(d, h), nn.GELU(), nn.Linear(h, d)) for _ in range(n))

    def forward(self, x):
        p = self.gate(x).softmax(-1)
        top, who = p.max(-1)
        y = torch.zeros_like(x)
        for k, e in enumerate(self.ex):
            idx = (who == k).nonzero().squeeze(1)
            y = y.index_add(0, idx, top[idx, None] * e(x[idx]))
        share = nn.functional.one_hot(who, len(self.ex)).float().mean(0)
        return self.out(x + y), len(self.ex) * (share * p.mean(0)).sum()


model = MoE()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
limit()
for i in range(4):
    x = torch.randn(30000, 64) + torch.linspace(-1, 1, 30000)[:, None]
    y = x[:, :10].argmax(1)
    opt.zero_grad()
    out, aux = model(x)
    loss = nn.functional.cross_entropy(out, y) + 0.01 * aux
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", f"aux {aux.item():.6f}", flush=True)
finish(model)
