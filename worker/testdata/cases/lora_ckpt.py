"""Frozen transformer with low-rank adapters and gradient checkpointing, both kinds (--reentrant), input made to require
grad by a hook.
Source: "How to do Gradient Checkpoint + LoRA", github.com/huggingface/peft/issues/1142, 2023-11-17
Right outcome: exact pieces by row.
"""

import sys

import torch
import torch.nn as nn
from room import finish, limit
from torch.utils.checkpoint import checkpoint

torch.manual_seed(10)
REENTRANT = "--reentrant" in sys.argv


class Lora(nn.Module):
    def __init__(self, base, r=8):
        super().__init__()
        self.base, self.A, self.B = base, nn.Parameter(torch.randn(r, base.in_features) * 0.02), nn.Parameter(torch.zeros(base.out_features, r))

    def forward(self, x):
        return self.base(x) + 2.0 * (x @ self.A.t()) @ self.B.t()


class Block(nn.Module):
    def __init__(self, d=128):
        super().__init__()
        self.n1, self.n2, self.qkv, self.o = nn.LayerNorm(d), nn.LayerNorm(d), Lora(nn.Linear(d, 3 * d)), nn.Linear(d, d)
        self.up, self.down = Lora(nn.Linear(d, 4 * d)), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        x = x + self.o(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(nn.functional.gelu(self.up(self.n2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.blocks, self.head = nn.Embedding(2000, 128), nn.ModuleList(Block() for _ in range(3)), nn.Linear(128, 2000)

    def forward(self, tok):
        x = self.emb(tok)
        for b in self.blocks:
            x = checkpoint(b, x, use_reentrant=REENTRANT)
        return self.head(x)


model = GPT()
for n, p in model.named_parameters():
    p.requires_grad = n.endswith((".A", ".B"))
model.emb.register_forward_hook(lambda m, a, out: out.requires_grad_(True))
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
limit()
for i in range(4):
    tok = torch.randint(2000, (48, 129)) % 500
    opt.zero_grad()
    logits = model(tok[:, :-1])
    loss = nn.functional.cross_entropy(logits.reshape(-1, 2000), tok[:, 1:].reshape(-1))
    loss.backward()
    opt.step()
    print(i, f"{loss.item():.9g}", flush=True)
finish(model)
