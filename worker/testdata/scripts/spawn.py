import multiprocessing
import sys

import torch
from torch.optim.optimizer import Optimizer


def load(n):
    import torch  # noqa: F401

    return n * n


if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        assert pool.map(load, range(8)) == [n * n for n in range(8)]
    for _ in range(int(sys.argv[2])):
        Optimizer().step()
    print("trained", torch.__version__)
