"""Super-resolution with a perceptual loss: features of a FROZEN network, collected by forward hooks into a list, on
output and target.
Source: "Any ports to Python?" (hooks), github.com/jcjohnson/neural-style/issues/450, 2018-03-22; "Question about
perceptual loss", github.com/XPixelGroup/BasicSR/issues/145, 2019-05-29
Right outcome: exact pieces by image (no batch statistics).
"""

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(25)
sr = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 12, 3, padding=1), nn.PixelShuffle(2))
vgg = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(24, 48, 3, padding=1), nn.ReLU()).eval().requires_grad_(False)
feats = []
for k in (1, 4):
    vgg[k].register_forward_hook(lambda m, a, out: feats.append(out))


def features(x):
    feats.clear()
    vgg(x)
    return list(feats)


opt = torch.optim.Adam(sr.parameters(), lr=1e-3)
limit()
for i in range(3):
    hi = torch.rand(16, 3, 96, 96)
    lo = nn.functional.avg_pool2d(hi, 2)
    with torch.no_grad():
        want = features(hi)
    out = sr(lo)
    got = features(out)
    loss = (out - hi).abs().mean() + sum(0.1 * (a - b).pow(2).mean() for a, b in zip(got, want))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(sr)
