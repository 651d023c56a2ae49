"""Fourier neural operator: complex weights, rfft2/irfft2, slices of modes written into a zero tensor; relative L2 loss
per sample.
Source: "CUDA out of memory with complex_matmul", github.com/fkodom/fft-conv-pytorch/issues/20, 2022-08-27;
"Functionality for complex-valued spatial data", github.com/neuraloperator/neuraloperator/pull/206, 2023-08-29
Right outcome: exact pieces by sample.
"""

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(27)


class Spectral(nn.Module):
    def __init__(self, c, m=8):
        super().__init__()
        self.m, self.w1, self.w2 = (
            m,
            nn.Parameter(torch.randn(c, c, m, m, dtype=torch.cfloat) / c),
            nn.Parameter(torch.randn(c, c, m, m, dtype=torch.cfloat) / c),
        )
        self.skip = nn.Conv2d(c, c, 1)

    def forward(self, x):
        f, m = torch.fft.rfft2(x), self.m
        out = torch.zeros(x.size(0), *f.shape[1:], dtype=torch.cfloat)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, :m, :m], self.w1)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, -m:, :m], self.w2)
        return nn.functional.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.skip(x))


class FNO(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.up, self.body, self.down = nn.Conv2d(3, c, 1), nn.Sequential(Spectral(c), Spectral(c), Spectral(c)), nn.Conv2d(c, 1, 1)

    def forward(self, a):
        s = torch.linspace(0, 1, a.size(-1))
        grid = torch.stack(torch.meshgrid(s, s, indexing="ij"))[None].repeat(a.size(0), 1, 1, 1)
        return self.down(self.body(self.up(torch.cat([a, grid], 1))))


model = FNO()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
limit()
for i in range(3):
    a = torch.nn.functional.interpolate(torch.randn(32, 1, 8, 8), 64, mode="bilinear")
    u = a.cumsum(2).cumsum(3) / 500
    d = (model(a) - u).flatten(1)
    loss = (d.norm(dim=1) / u.flatten(1).norm(dim=1)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(model)
