"""Style transfer on a batch of pictures: what is trained is the pictures themselves, the network is frozen.
Source: "l-bfgs and memory issues", github.com/jcjohnson/neural-style/issues/457, 2018-05-31; coder3101 in
github.com/p-e-w/heretic/pull/426, 2026-08-15
Right outcome: refused with a reason that fits (no trained module), training untouched. Exact by picture would be
possible.
"""

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(26)
vgg = (
    nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU()
    )
    .eval()
    .requires_grad_(False)
)
style = torch.rand(1, 3, 128, 128)


def gram(f):
    b, c, h, w = f.shape
    m = f.view(b, c, h * w)
    return m @ m.transpose(1, 2) / (c * h * w)


with torch.no_grad():
    g = gram(vgg(style))
img = nn.Parameter(torch.rand(12, 3, 128, 128))
opt = torch.optim.Adam([img], lr=0.02)
limit()
for i in range(3):
    opt.zero_grad()
    loss = (gram(vgg(img)) - g).pow(2).mean() * 1e4
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(nn.ParameterList([img]))
