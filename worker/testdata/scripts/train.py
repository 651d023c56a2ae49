import sys

import torch
from torch.optim.optimizer import Optimizer

for _ in range(3):
    Optimizer().step()
print("trained", sys.argv[1:], torch.__version__, __name__)
