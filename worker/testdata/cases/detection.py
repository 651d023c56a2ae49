"""Detector that takes a list of images and a list of dicts with a varying number of boxes, and returns a dict of losses.
Source: "Faster R-CNN training OOM at ops/boxes.py _box_inter_union", github.com/pytorch/vision/issues/7959 (undated
in the copy; 2023)
Right outcome: exact by image only if each loss is weighted by its own normaliser (here: positives of the whole
batch). Else a refusal.
"""

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(6)


class Det(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1), nn.ReLU())
        self.cls, self.box = nn.Conv2d(64, 4, 1), nn.Conv2d(64, 4, 1)
        c = torch.arange(2, 160, 4).float()
        self.register_buffer("centers", torch.stack(torch.meshgrid(c, c, indexing="ij"), -1).view(-1, 2))

    def forward(self, images, targets):
        f = self.body(torch.stack(images))
        cls, box = self.cls(f).flatten(2).transpose(1, 2), self.box(f).flatten(2).transpose(1, 2)
        lc, lb, pos = 0, 0, 0
        for k, t in enumerate(targets):
            b, lab = t["boxes"], torch.zeros(cls.size(1), dtype=torch.long)
            inside = ((self.centers[:, None] > b[None, :, :2]) & (self.centers[:, None] < b[None, :, 2:])).all(-1)
            hit, which = inside.any(1), inside.float().argmax(1)
            lab[hit] = t["labels"][which[hit]]
            lc = lc + nn.functional.cross_entropy(cls[k], lab, reduction="sum")
            lb = lb + (box[k][hit] - b[which[hit]] / 160).abs().sum()
            pos += int(hit.sum())
        return {"cls": lc / max(pos, 1), "box": lb / max(pos, 1)}


model = Det()
opt = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
limit()
for i in range(6):
    images, targets = [torch.rand(3, 160, 160) for _ in range(64)], []
    for _ in images:
        n = int(torch.randint(1, 9, ()))
        tl = torch.rand(n, 2) * 100
        targets.append({"boxes": torch.cat([tl, tl + 20 + torch.rand(n, 2) * 40], 1), "labels": torch.randint(1, 4, (n,))})
    losses = model(images, targets)
    loss = sum(losses.values())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", {k: round(v.item(), 4) for k, v in losses.items()}, flush=True)
finish(model)
