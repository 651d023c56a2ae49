"""MoCo: momentum encoder, queue and pointer as buffers, all updated inside forward(im_q, im_k).
Source: "enqueue fixed.", github.com/facebookresearch/moco/pull/100, 2021-07-03; "question about the momentum
encoder", github.com/facebookresearch/moco/issues/125, 2022-04-10
Right outcome: refused (buffers and the momentum encoder change in every call), never a queue filled twice.
"""

import copy

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(17)


class MoCo(nn.Module):
    def __init__(self, K=3000):
        super().__init__()
        self.q = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 64))
        self.k = copy.deepcopy(self.q).requires_grad_(False)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(K, 64)))
        self.register_buffer("ptr", torch.zeros(1, dtype=torch.long))

    def forward(self, a, b):
        q = nn.functional.normalize(self.q(a))
        with torch.no_grad():
            for pq, pk in zip(self.q.parameters(), self.k.parameters()):
                pk.mul_(0.99).add_(pq, alpha=0.01)
            k = nn.functional.normalize(self.k(b))
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().t()], 1) / 0.1
        with torch.no_grad():
            p = int(self.ptr)
            self.queue[p : p + len(k)] = k
            self.ptr[0] = (p + len(k)) % self.queue.size(0)
        return logits


model = MoCo()
opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.3, momentum=0.9)
limit()
for i in range(5):
    x = torch.randn(3000, 64)
    logits = model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
    loss = nn.functional.cross_entropy(logits, torch.zeros(3000, dtype=torch.long))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", f"queue {model.queue.sum().item():.7g} ptr {int(model.ptr)}", flush=True)
finish(model)
