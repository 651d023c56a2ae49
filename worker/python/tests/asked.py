"""A number of rows that the user asks for is run at once at most, from the second step on, although everything fits: the
training ends with the weights that it ends with otherwise, also where a step cannot be made in pieces. Run without headroom."""

import torch
import torch.nn.functional as F
from torch import nn

import headroom_train
from headroom_train import _torch
from headroom_train.recover.backward import SPECIAL

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


class Model(nn.Module):
    """``net``, and what a kind of step needs beside it."""

    def __init__(self, kind, net):
        super().__init__()
        self.kind, self.net = kind, net
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x, y):
        if self.kind == "kept":
            self.loss = F.cross_entropy(self.net(x), y)
            return self.loss
        if self.kind == "a buffer":
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * self.net(x).mean(0))
        if self.kind == "written to":
            with torch.no_grad():
                self.net[-1].weight.div_(self.net[-1].weight.norm())
        return self.net(x)


def trained(kind):
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(16)] if kind == "norm" else []
    net = nn.Sequential(nn.Linear(8, 16), *norm, nn.Tanh(), nn.Linear(16, 4))
    model = Model(kind, net) if kind in ("kept", "a buffer", "written to") else None
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    center = torch.zeros(4)
    pieces = []
    for step in range(STEPS):
        x, y = torch.randn(ROWS, 8, requires_grad=kind in ("penalty", "now and then")), torch.randint(0, 4, (ROWS,))
        if kind == "replaced" and step == 4:
            net[0].weight = nn.Parameter(net[0].weight.detach().clone())
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        out = net(x) if model is None else model(x, y)
        loss = loss_of(kind, step, x, out - center, y) if kind != "kept" else model.loss
        if kind == "center":
            with torch.no_grad():
                center.mul_(0.9).add_(0.1 * out.mean(0))
        if kind == "hook":
            out.register_hook(lambda g: None)
        if kind == "a node's hook":
            loss.grad_fn.register_hook(lambda *_: None)
        if kind == "norms":
            torch.autograd.grad(loss, [*net.parameters()], retain_graph=True)
        if kind == "inner":
            grads = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
            faster = {n: p - 0.1 * g for (n, p), g in zip(net.named_parameters(), grads)}
            loss = F.cross_entropy(torch.func.functional_call(net, faster, (x,)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if _torch._recorder is not None:
            pieces.append(_torch._recorder.sizes.ran()[1])
    return torch.cat([p.detach().flatten() for p in net.parameters()]), pieces


# The pieces of each kind's steps; of those that are None, any number.
WANT = {
    "plain": [1] + [4] * (STEPS - 1),
    "accuracy": [1] + [4] * (STEPS - 1),
    "numpy": [1] + [4] * (STEPS - 1),
    "custom": [1] + [4] * (STEPS - 1),
    "contrast": None,
    "deviation": None,
    "sorted": None,
    "norm": [1] * STEPS,
    "penalty": None,
    "now and then": None,
    "replaced": [1] + [4] * (STEPS - 1),
    "kept": [1] * STEPS,
    "a buffer": [1] * STEPS,
    "written to": [1] * STEPS,
    "center": [1] * STEPS,
    "hook": [1] * STEPS,
    "a node's hook": [1] * STEPS,
    "norms": [1] * STEPS,
    "inner": [1] * STEPS,
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
    assert bool(whole) == (1 in pieces[1:]), (kind, pieces, remarks)
    assert kind != "norms" or whole == [r for r in whole if r.endswith(SPECIAL)], whole
print("asked: ok")
