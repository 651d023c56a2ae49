import os

import torch
from torch.optim.optimizer import Optimizer

Optimizer().step()
children = []
for steps in (0, 1):
    pid = os.fork()
    if pid == 0:
        for _ in range(steps):
            # A hook runs once per process; a child has to start again.
            from headroom_train.wire.wire import Wire

            Wire.get().hello(torch="of a child")
        os._exit(0)
    children.append(pid)
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
print("trained", torch.__version__)
