"""A training script whose first step is examined by headroom check."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

kind = sys.argv[1]
torch.manual_seed(0)


class Tight(nn.Module):
    """Raises an out-of-memory error for more than 40 rows at once, if kind says "tight"."""

    def forward(self, x):
        if "tight" in kind and len(x) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return x


net = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32) if kind == "batchnorm" else nn.Dropout(), nn.GELU(), Tight(), nn.Linear(32, 10))
optimizer = torch.optim.AdamW(net.parameters())


def stepped(*_):
    """Is called before any other hook."""
    with open("stepped", "w") as f:
        f.write("an optimizer has made a step")


optimizer.register_step_post_hook(stepped)
print("begun", flush=True)
if kind == "ends":
    sys.exit(3)
for _ in range(1000):
    for _ in range(2):
        x, y = torch.randn(64, 16), torch.randint(0, 10, (64,))
        y[::5] = -100
        z = net(x)
        loss = F.cross_entropy(z, y) / 2
        if "contrastive" in kind:
            loss = loss + (z @ z.t()).mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
