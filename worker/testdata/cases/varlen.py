"""Packed pre-training: all documents in one row (1, tokens) with cu_seqlens; attention per document; mean loss over the
tokens.
Source: "Variable memory allocation with varlen kernels", github.com/Dao-AILab/flash-attention/issues/1011,
2024-06-26; clessig in github.com/Dao-AILab/flash-attention/issues/1311, 2025-02-19
Right outcome: there is one row: refused; exact would be a cut at a boundary of cu_seqlens. Cutting tokens anywhere
else is WRONG.
--flat: the token tensor is (tokens,), so that dim 0 looks like a batch.
"""

import sys

import torch
import torch.nn as nn
from room import finish, limit

torch.manual_seed(23)
FLAT = "--flat" in sys.argv


class Block(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.n1, self.n2, self.qkv, self.o = nn.LayerNorm(d), nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x, cu):
        qkv = self.qkv(self.n1(x)).view(-1, 3, 4, 32)
        out = [
            nn.functional.scaled_dot_product_attention(*(qkv[a:b, j].transpose(0, 1)[None] for j in range(3)), is_causal=True)[0].transpose(0, 1)
            for a, b in zip(cu[:-1].tolist(), cu[1:].tolist())
        ]
        x = x + self.o(torch.cat(out).reshape(x.shape))
        return x + self.mlp(self.n2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos, self.blocks, self.head = (
            nn.Embedding(2000, 128),
            nn.Embedding(400, 128),
            nn.ModuleList(Block() for _ in range(2)),
            nn.Linear(128, 2000),
        )

    def forward(self, tok, pos, cu):
        x = self.emb(tok) + self.pos(pos)
        for b in self.blocks:
            x = b(x, cu)
        return self.head(x)


model = GPT()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
limit()
for i in range(3):
    n = torch.randint(50, 400, (25,))
    cu = torch.cat([torch.zeros(1, dtype=torch.long), n.cumsum(0)])
    tok = torch.randint(2000, (int(cu[-1]) + 1,)) % 300
    pos = torch.arange(int(cu[-1])) - torch.repeat_interleave(cu[:-1], n)
    y = tok[1:].clone()
    y[cu[1:] - 1] = -100
    x = tok[:-1]
    if not FLAT:
        x, pos = x[None], pos[None]
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(x, pos, cu).view(-1, 2000), y)
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(model)
