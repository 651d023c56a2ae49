"""Training loops whose largest batch headroom find looks for: train.py KIND ROWS STEPS. Rows take much memory, and little
time."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

kind, rows, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
WORDS, LENGTH = 4000, 64


class Language(nn.Module):
    """Returns logits, the largest of all tensors."""

    def __init__(self):
        super().__init__()
        self.embed, self.mix = nn.Embedding(WORDS, 16), nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, WORDS)

    def forward(self, tokens):
        return self.head(self.mix(self.embed(tokens)))


class Wide(nn.Module):
    def forward(self, x):
        return x.repeat(1, 512).tanh().sigmoid().exp().view(len(x), 512, -1).mean(1)


if kind in ("function", "accumulated"):
    net = nn.Sequential(nn.Linear(64, 128), Wide(), nn.Dropout(), nn.Linear(128, 10))
elif kind in ("language", "lengths", "longest", "evaluated"):
    net = Language()
elif kind == "batchnorm":
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(784, 10))
elif kind in ("closure", "contrastive"):
    net = nn.Linear(64, 10)
optimizer = (torch.optim.LBFGS if kind == "closure" else torch.optim.AdamW)(net.parameters())


class Texts(torch.utils.data.Dataset):
    """The longest is in the eighth of each ten batches."""

    def __len__(self):
        return 10 * rows * steps

    def __getitem__(self, i):
        return torch.randint(0, WORDS, (LENGTH if kind == "longest" or i // rows % 10 == 7 else LENGTH // 8,))


if kind in ("lengths", "longest"):
    loader = iter(torch.utils.data.DataLoader(Texts(), rows))


def batch(rows=rows):
    if kind in ("lengths", "longest"):
        return (next(loader),) * 2
    if kind in ("language", "evaluated"):
        return (torch.randint(0, WORDS, (rows, LENGTH)),) * 2
    return torch.randn(rows, 3, 32, 32) if kind == "batchnorm" else torch.randn(rows, 64), torch.randint(0, 10, (rows,))


def loss_of(out, y):
    if kind == "contrastive":  # with vectors whose rows are in dimension 1
        return F.cross_entropy(out @ torch.randn(rows, 10).T, torch.arange(rows))
    if kind in ("language", "lengths", "longest", "evaluated"):
        return F.cross_entropy(out[:, :-1].reshape(-1, WORDS), y[:, 1:].reshape(-1))
    return F.cross_entropy(out, y)


def step(x, y):  # what it computes is gone when it returns
    out = net(x)
    loss = loss_of(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for i in range(steps):
    x, y = batch(6 if kind == "evaluated" else rows)
    if kind == "function":
        step(x, y)
    elif kind == "accumulated":
        for _ in range(2):
            loss = loss_of(net(x), y) / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    elif kind == "closure":
        optimizer.step(lambda x=x, y=y: loss_of(net(x), y).backward())
    else:
        out = net(x)
        loss = loss_of(out, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if kind == "evaluated":  # the gradients of the last step stay
        step(x, y)
        net.eval()
        with torch.no_grad():
            for _ in range(2):
                x, y = batch()
                out = net(x)
                loss = loss_of(out, y)
        net.train()
    with open("steps", "a") as f:
        f.write(f"{i}\n")
