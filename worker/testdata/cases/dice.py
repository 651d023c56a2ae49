"""Segmentation: cross entropy with ignore_index plus a Dice loss over the whole batch (a ratio of sums).
Source: "Chapter 6 - CUDA goes out of memory even with batch size 4", github.com/PacktPublishing/PyTorch-Computer-
Vision-Cookbook/issues/11, 2020-11-19 (dice_loss in the loop)
Right outcome: no weights make pieces add up (a ratio of sums) -> refused; exact would be: outputs of all pieces
first, loss on all outputs, then each piece backwards with its share of d(loss)/d(outputs).
"""

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(7)


class Net(nn.Module):
    def __init__(self):
        super().__init__()

        def block(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(4, b), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU())

        self.d1, self.d2, self.u1, self.out = block(3, 16), block(16, 32), block(48, 16), nn.Conv2d(16, 4, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(nn.functional.max_pool2d(a, 2))
        return self.out(self.u1(torch.cat([a, nn.functional.interpolate(b, scale_factor=2)], 1)))


def dice(logits, y):
    keep = (y != 255)[:, None]
    p, t = logits.softmax(1) * keep, nn.functional.one_hot(y.clamp(max=3), 4).permute(0, 3, 1, 2) * keep
    return 1 - (2 * (p * t).sum((0, 2, 3)) / ((p + t).sum((0, 2, 3)) + 1)).mean()


model = Net()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
limit()
for i in range(5):
    x, y = torch.rand(24, 3, 96, 96), torch.randint(4, (24, 96, 96))
    y[torch.rand(24, 96, 96) < torch.rand(24, 1, 1) * 0.5] = 255
    opt.zero_grad()
    out = model(x)
    loss = nn.functional.cross_entropy(out, y, ignore_index=255) + dice(out, y)
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(model)
