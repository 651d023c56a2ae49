"""headroom find makes trials of a step and leaves everything as it was: weights, buffers, the optimizer's state and the
states of all random generators, also where a trial does not fit. Run without headroom."""

import hashlib
import os
import random
import resource

os.environ["HEADROOM_WORKER"] = "find"

import numpy
import torch
import torch.nn.functional as F
from torch import nn

import headroom_train
from headroom_train.find import find, meter
from headroom_train.find import step as module
from headroom_train.find.copies import Copies, storages
from headroom_train.find.meter import data
from headroom_train.tape.tape import random_state

headroom_train.attach()
torch.manual_seed(0)


class Limited(nn.Module):
    """Fails for more than 40 rows, after it has changed a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        random.random()
        numpy.random.rand()
        if len(x) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return x


net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(), Limited(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(net.parameters(), lr=0.1)


def digest() -> str:
    found = hashlib.sha256()
    states = [v for s in optimizer.state.values() for v in s.values()]
    for tensor in [*net.state_dict().values(), *states]:
        found.update(repr(tensor.tolist()).encode())  # what NumPy has seen can no longer be resized
    state = random_state()
    found.update(repr((state.cpu.tolist(), state.python, state.numpy)).encode())
    return found.hexdigest()


ROWS = (8, 3, 40, 41, 200, 2)


class Done(Exception):
    pass


outcomes = []


there: list[bool] = []  # whether the states of the optimizer have memory when a pass begins


def answer(self, step):
    before, real = digest(), step._pass

    def passed(*args, **kwargs):
        there.append(all(t.untyped_storage().nbytes() for t in step._states.each()))
        return real(*args, **kwargs)

    step._pass = passed
    confined(step)
    slow(step)
    evaluation(step)
    assert digest() == before, "a trial that was confined has changed something"
    for gpu in (False, True):
        if gpu:
            for copies in (step._before, step._states):
                copies._anew = [(s, s.nbytes()) for s in storages(copies.each())]
        for rows in ROWS:
            there.clear()
            tried = step.tried(rows)
            outcomes.append((rows, tried.fits, tried.peak > 0))
            assert digest() == before, f"{rows} rows have changed something"
            # On a GPU they get it where a new process would: after the first pass.
            assert there == [not gpu, True][: len(there)] and len(there) == 1 + tried.fits, (gpu, rows, there)
    raise Done


def confined(step):
    """A trial that may hold only so much fails beyond that, and the next one may hold as much as ever."""
    limits, large = resource.getrlimit(resource.RLIMIT_DATA), 256 << 20
    taken = []

    def takes(*_):
        taken.append(None)
        torch.empty(large, dtype=torch.uint8)

    hook = net[0].register_forward_pre_hook(takes)
    most = data() + large // 2
    narrow, wide = step.tried(8, most), step.tried(8, most + large)
    assert (narrow.fits, wide.fits, len(taken) > 1) == (False, True, True), (narrow, wide)
    assert narrow.capacity <= most < wide.capacity <= most + large
    assert step.tried(8).fits and resource.getrlimit(resource.RLIMIT_DATA) == limits
    hook.remove()


def slow(step):
    """A step that takes long is made once, unless there is less room for the next one."""
    held, kept, module.SLOW = step._holds, step._kept, -1.0
    for results, gradients in ((False, False), (True, False), (False, True)):
        there.clear()
        step._holds = held if results else [h._replace(always=frozenset()) for h in held]
        step._kept = gradients
        tried = step.tried(8)
        assert len(there) == 1 + (results or gradients) and 0 < tried.first <= tried.peak, (results, gradients, there)
    step._holds, step._kept, module.SLOW = held, kept, 2.0


def evaluation(step):
    """Forward passes alone: in evaluation mode, without a graph, and with gradients in memory."""
    seen = []

    def sees(module, *_):
        grads = all(p.grad is not None for p in net.parameters())
        seen.append((net.training, module.training, torch.is_grad_enabled(), grads))

    before = digest()
    hook = net[2].register_forward_pre_hook(sees)
    there.clear()
    fits, fails = step.tried(40, evaluates=True), step.tried(41, evaluates=True)
    hook.remove()
    assert fits.fits and fits.peak > 0 and not fails.fits, (fits, fails)
    assert set(seen) == {(False, False, False, True)} and len(there) == 3, (seen, there)
    assert digest() == before and net.training and net[2].training and all(p.grad is None for p in net.parameters())


find.Find.answer = answer


def main() -> None:
    for _ in range(3):  # no more than the first step is made
        x, y = torch.randn(8, 8), torch.randint(0, 4, (8,))
        out = net(x)
        loss = F.cross_entropy(out, y) + F.mse_loss(out, x[:, :4])  # a target that is a view of the input
        loss = loss * x[0, 0]  # and a number that is one
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


ended = []
find.time.sleep = lambda seconds: ended.append(seconds)
try:
    main()
except SystemExit:
    pass
assert outcomes == 2 * [(rows, rows <= 40, rows <= 40) for rows in ROWS], outcomes
assert len(ended) == 1 and int(net[3].calls) >= 1

# What is given memory anew fills its storage: nothing else is lost with it.
whole, part, turned = torch.arange(6.0), torch.arange(8.0), torch.arange(6.0).view(2, 3).t()
tensors = [whole, whole.view(2, 3), part[:4], turned, torch.zeros(0)]
assert [s.data_ptr() for s in storages(tensors)] == [t.untyped_storage().data_ptr() for t in (whole, turned)]
want, copies = [t.clone() for t in tensors], Copies(tensors)
assert all(a is b for a, b in zip(copies.each(), tensors))
copies._anew = [(s, s.nbytes()) for s in storages(tensors)]  # as on a GPU
for t in tensors:
    t.add_(1)
assert copies.release() and [t.untyped_storage().nbytes() for t in tensors] == [0, 0, 32, 0, 0]
copies.put_back()
assert all(map(torch.equal, tensors, want)) and part[4:].tolist() == [4, 5, 6, 7]
# Memory that grows while it is read is not taken for room.
held = iter(range(100, 1000))
meter._status = lambda: {"VmData": next(held), "VmHWM": 0}
meter.left = lambda: 500 - next(held)
host = object.__new__(meter.Host)
host._held = host._pages = 0
assert host.read().capacity <= 500
print("finding: ok")
