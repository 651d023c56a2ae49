"""Differentially private SGD with torch.func: vmap(grad) gives one gradient per sample, clipped, summed, noised, written
into .grad.
Source: "Microbatch Support", github.com/meta-pytorch/opacus/issues/25, 2020-06-27; "Fix GradNormKL peak memory
scaling linearly with batch size", github.com/kkirchheim/pytorch-ood/pull/163, 2026-08-03
Right outcome: untouched; memory runs out outside any backward: refused with a reason (exact: chunk_size of vmap).
"""

import torch
import torch.nn as nn
from room import finish, limit
from torch.func import functional_call, grad, vmap

torch.manual_seed(21)
model = nn.Sequential(nn.Linear(32, 256), nn.ReLU(), nn.Linear(256, 10))
opt = torch.optim.SGD(model.parameters(), lr=0.5)


def one(params, x, y):
    return nn.functional.cross_entropy(functional_call(model, params, (x[None],)), y[None])


limit()
for i in range(4):
    x = torch.randn(5000, 32)
    y = x[:, :10].argmax(1)
    params = {k: p.detach() for k, p in model.named_parameters()}
    gs = vmap(grad(one), in_dims=(None, 0, 0))(params, x, y)
    norm = torch.stack([g.flatten(1).norm(dim=1) for g in gs.values()]).norm(dim=0)
    c = (1.0 / (norm + 1e-6)).clamp(max=1)
    for k, p in model.named_parameters():
        p.grad = (torch.einsum("n,n...->...", c, gs[k]) + 0.1 * torch.randn_like(p)) / len(x)
    opt.step()
    with torch.no_grad():
        loss = nn.functional.cross_entropy(model(x), y)
    print(i, f"{loss.item():.9g}", flush=True)
finish(model)
