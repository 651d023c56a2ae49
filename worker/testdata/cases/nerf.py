"""NeRF: random rays, coarse and fine samples, the network called by the script in chunks of points that are joined
again.
Source: "How much memory is required to replicate the paper result?", github.com/yenchenlin/nerf-pytorch/issues/23,
2021-01-31; "Why you need a loop for chunk ?", github.com/kwea123/nerf_pl/issues/25, 2020-07-09
Right outcome: exact by ray (every ray is independent), although the network's rows are points and the chunks do not
match the rays.
"""

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(19)


class Field(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(27, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))

    def forward(self, p):
        f = torch.cat([p] + [g(p * 2.0**k) for k in range(4) for g in (torch.sin, torch.cos)], -1)
        return self.net(f)


coarse, fine = Field(), Field()
opt = torch.optim.Adam(list(coarse.parameters()) + list(fine.parameters()), lr=5e-4)


def query(net, pts, chunk=30000):
    flat = pts.reshape(-1, 3)
    return torch.cat([net(flat[i : i + chunk]) for i in range(0, len(flat), chunk)]).reshape(*pts.shape[:-1], 4)


def render(raw, z):
    d = torch.cat([z[:, 1:] - z[:, :-1], torch.full_like(z[:, :1], 1e3)], 1)
    alpha = 1 - torch.exp(-torch.relu(raw[..., 3]) * d)
    w = alpha * torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
    return (w[..., None] * raw[..., :3].sigmoid()).sum(1), w


limit()
for i in range(4):
    R = 2000
    o, d = torch.randn(R, 3) * 0.1, nn.functional.normalize(torch.randn(R, 3), dim=1)
    target = 0.5 + 0.5 * torch.sin(3 * d)
    z = torch.linspace(0.5, 3, 24).expand(R, 24) + torch.rand(R, 24) * 0.1
    c1, w = render(query(coarse, o[:, None] + d[:, None] * z[..., None]), z)
    mid = z.gather(1, torch.multinomial(w.detach() + 1e-5, 24, replacement=True)) + 0.05 * torch.rand(R, 24)
    z2 = torch.cat([z, mid], 1).sort(1)[0]
    c2, _ = render(query(fine, o[:, None] + d[:, None] * z2[..., None]), z2)
    loss = ((c1 - target) ** 2).mean() + ((c2 - target) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(coarse, fine)
