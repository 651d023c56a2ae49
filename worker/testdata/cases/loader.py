"""Two loader workers; one sample in the middle is huge and the WORKER process runs out of memory while decoding it.
Source: "Give a better error when we run out of shared memory", github.com/pytorch/pytorch/issues/5040 (comment
2019-04-20); "insufficient shared memory (shm)", github.com/msr-fiddle/pipedream/issues/28, 2019-12-23
Right outcome: the command ends with the loader's error, and headroom does NOT call it a batch that is too large (a
smaller batch does not help): it names the loader's worker.
"""

import torch
import torch.nn as nn
from room import finish, limit
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(28)
torch.set_num_threads(1)


class Files(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, k):
        side = 12000 if k == 150 else 256
        raw = torch.ones(3, side, side)
        return nn.functional.adaptive_avg_pool2d(raw * (k % 7), 16).flatten(), k % 4


limit()
if __name__ == "__main__":
    model = nn.Linear(768, 4)
    opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    for i, (x, y) in enumerate(DataLoader(Files(), batch_size=32, num_workers=2)):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        opt.step()
        print(i, f"{loss.item():.9g}", flush=True)
    finish(model)
