"""GPT-2 in plain PyTorch: pre-norm, GELU in its tanh form, tied embeddings, biases in all layers.

headroom stores the weights of linear layers as in×out, like GPT-2 in Transformers (Conv1D). nn.Linear
stores them as out×in. So load() transposes them, and gradients() transposes their gradients back.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    layers: int = 12
    width: int = 768
    heads: int = 12
    vocab: int = 50257
    positions: int = 1024


class Attention(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.heads = c.heads
        self.c_attn = nn.Linear(c.width, 3 * c.width)
        self.c_proj = nn.Linear(c.width, c.width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.c_attn(x).split(c, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(b, t, c))


class MLP(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c_fc = nn.Linear(c.width, 4 * c.width)
        self.c_proj = nn.Linear(4 * c.width, c.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(c.width, eps=1e-5)
        self.attn = Attention(c)
        self.ln_2 = nn.LayerNorm(c.width, eps=1e-5)
        self.mlp = MLP(c)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT2(nn.Module):
    """GPT-2. Its parameters have the same names as in Transformers, without the leading "transformer."."""

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.config = c
        self.wte = nn.Embedding(c.vocab, c.width)
        self.wpe = nn.Embedding(c.positions, c.width)
        self.h = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.ln_f = nn.LayerNorm(c.width, eps=1e-5)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                residual = math.sqrt(2 * c.layers) if name.endswith("c_proj.weight") else 1
                nn.init.normal_(p, std=0.02 / residual)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over all targets."""
        at = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.wte(tokens) + self.wpe(at)
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def transposed(name: str) -> bool:
    """Return whether headroom's file holds the transpose of this parameter."""
    return name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))


@torch.no_grad()
def load(model: GPT2, path: str) -> None:
    """Load the weights from a safetensors file that headroom wrote."""
    with safe_open(path, framework="pt", device="cpu") as file:
        for name, p in model.named_parameters():
            value = file.get_tensor(name)
            p.copy_(value.t() if transposed(name) else value)


def gradients(model: GPT2) -> dict[str, Tensor]:
    """Return all gradients, on the host and in headroom's layout."""
    found = {}
    for name, p in model.named_parameters():
        if p.grad is not None:
            found[name] = (p.grad.t() if transposed(name) else p.grad).contiguous().cpu()
    return found


def adamw(model: nn.Module, lr: float, decay: float) -> torch.optim.AdamW:
    """Return AdamW as headroom configures it: weight decay applies only to matrices, embeddings included."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8)
