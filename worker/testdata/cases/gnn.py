"""Graph classification, PyG-style batch: x (nodes), edge_index (2, edges), batch (graph of every node), y (graphs).
Source: "Question about growing memory in pytorch", github.com/pyg-team/pytorch_geometric/issues/1113, 2020-04-10
Right outcome: a cut by nodes is wrong. Exact only by whole graphs (with edge_index renumbered). Else a refusal.
"""

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(5)


class Conv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.me, self.nb = nn.Linear(a, b), nn.Linear(a, b)

    def forward(self, x, e):
        m = torch.zeros_like(x).index_add_(0, e[1], x[e[0]])
        d = torch.zeros(x.size(0)).index_add_(0, e[1], torch.ones(e.size(1))).clamp(min=1)
        return torch.relu(self.me(x) + self.nb(m / d[:, None]))


class GNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2, self.c3, self.out = Conv(16, 128), Conv(128, 128), Conv(128, 128), nn.Linear(128, 3)

    def forward(self, x, e, batch, n):
        for c in (self.c1, self.c2, self.c3):
            x = c(x, e)
        pool = torch.zeros(n, 128).index_add_(0, batch, x)
        return self.out(pool / torch.bincount(batch, minlength=n)[:, None])


model = GNN()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
limit()
for i in range(6):
    G, sizes = 64, torch.randint(100, 800, (64,))
    batch = torch.repeat_interleave(torch.arange(G), sizes)
    N, start = batch.numel(), torch.cumsum(sizes, 0) - sizes
    src = torch.arange(N).repeat(4)
    e = torch.stack([src, start[batch[src]] + torch.randint(10**6, (4 * N,)) % sizes[batch[src]]])
    x, y = torch.randn(N, 16), torch.randint(3, (G,))
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(x, e, batch, G), y)
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(model)
