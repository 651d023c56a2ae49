"""A number of rows that the user asks for is run at once at most, from the first step on, although everything fits: the
training ends with the weights that it ends with otherwise, also where a step cannot be made in pieces. Run without headroom."""

import torch
import torch.nn.functional as F
from torch import nn

import headroom_train
from headroom_train import _torch

torch.set_default_dtype(torch.float64)
ROWS, ASKED, STEPS = 32, 10, 8


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


def loss_of(kind, step, x, out, y):
    if kind == "accuracy":
        (out.argmax(1) == y).float().mean().item()
    if kind == "numpy":
        out.detach().numpy().sum()
    if kind == "custom":
        return Square.apply(out).mean()
    if kind == "contrast":
        return F.cross_entropy(out @ out.T, torch.arange(ROWS))
    if kind == "sorted":
        return F.mse_loss(out.sort(0)[0], torch.ones(ROWS, 4))
    if kind == "deviation":
        return out.std(0).mean() + F.cross_entropy(out, y)
    if kind == "penalty" or kind == "now and then" and step % 4 == 3:
        (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return F.cross_entropy(out, y) + g.pow(2).mean()
    return F.cross_entropy(out, y)


def trained(kind):
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(16)] if kind == "norm" else []
    net = nn.Sequential(nn.Linear(8, 16), *norm, nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    pieces = []
    for step in range(STEPS):
        x, y = torch.randn(ROWS, 8, requires_grad=kind in ("penalty", "now and then")), torch.randint(0, 4, (ROWS,))
        loss = loss_of(kind, step, x, net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if _torch._recorder is not None:
            pieces.append(_torch._recorder.sizes.ran()[1])
    return torch.cat([p.detach().flatten() for p in net.parameters()]), pieces


# The pieces of each kind's steps; of those that are None, any number.
WANT = {
    "plain": [4] * STEPS,
    "accuracy": [4] * STEPS,
    "numpy": [4] * STEPS,
    "custom": [4] * STEPS,
    "contrast": None,
    "deviation": None,
    "sorted": None,
    "norm": [1] * STEPS,
    "penalty": None,
    "now and then": None,
}
alone = {kind: trained(kind)[0] for kind in WANT}
headroom_train.attach()
_torch._recorder.sizes.asked = lambda: ASKED
remarks = []
_torch._recorder.report.remark = lambda text, *_: remarks.append(text)
for kind, want in WANT.items():
    remarks.clear()
    weights, pieces = trained(kind)
    assert torch.allclose(weights, alone[kind], atol=1e-9, rtol=0), (kind, (weights - alone[kind]).abs().max())
    assert want is None or pieces == want, (kind, pieces)
    assert not _torch._recorder.report.told, (kind, _torch._recorder.report.told)  # nothing has failed
    whole = [r for r in remarks if r.startswith("this step is run whole, although smaller pieces were asked for: ")]
    assert bool(whole) == (1 in pieces), (kind, pieces, remarks)
print("asked: ok")
