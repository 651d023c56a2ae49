"""headroom find --look has a loader give the largest of its first batches first, and then all others; what it tells of their
shapes is what there is. Run without headroom."""

import copy

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from headroom_train.find.batches import Batches
from headroom_train.hooks.changes import undo_all

LENGTHS = [3, 5, 4, 9, 2, 7, 11]


class Rows(Dataset):
    """Row i is LENGTHS[i] long, and has i in it."""

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, i):
        return torch.full((LENGTHS[i],), i)


class Endless(IterableDataset):
    def __iter__(self):
        i = 0
        while True:
            yield torch.full((LENGTHS[i % len(LENGTHS)],), i)
            i += 1


class Broken(Rows):
    def __getitem__(self, i):
        if i > 4:
            raise ValueError("this row is broken")
        return super().__getitem__(i)


def padded(rows):
    x = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    return {"tokens": x, "mask": x >= 0, "labels": x[:, :1]}


def looked(most, loader, count=None):
    """Which rows the batches that a loader gives begin with, and what is told of them while it is iterated over."""
    batches = Batches(most)
    batches.watch()
    try:
        given, told = [], None
        for batch in loader:
            told = told or batches.told()
            given.append(int(batch["tokens"][0, 0]) if isinstance(batch, dict) else batch)
            if len(given) == count:
                break
        return given, told
    finally:
        undo_all()


def length(dim, least, most, first, **known):
    return {"tensor": "tokens", "dim": dim, "least": least, "most": most, "first": first, **known}


for workers in (0, 2):
    for kept in (False, True)[: 1 + bool(workers)]:
        loader = DataLoader(Rows(), 1, collate_fn=padded, num_workers=workers, persistent_workers=kept)
        for _ in range(2):
            assert looked(0, loader)[0] == [0, 1, 2, 3, 4, 5, 6]
            given, told = looked(4, loader)
            assert given == [3, 4, 5, 6, 0, 1, 2], given
            want = [length(1, 3, 9, 3, used=9, each=9)]
            assert told == {"look": 4, "read": 4, "tensors": True, "differ": False, "lengths": want}, told
            assert looked(2, loader, 3)[0] == [1, 2, 3]  # given up before its end
        assert looked(100, loader)[0] == [6, 0, 1, 2, 3, 4, 5]

# The last batch, which has fewer rows, is given last, and is none of those that are compared.
given, told = looked(100, DataLoader(Rows(), 2, collate_fn=padded))
assert given == [2, 0, 2, 4] and told["read"] == 3, (given, told)
assert told["lengths"] == [length(1, 5, 9, 5, used=9, each=9)], told

# As many tokens in every batch: the longest rows are few. The number of rows is no length.
groups = [[0, 1, 2], [3], [4, 5], [6]]
given, told = looked(3, DataLoader(Rows(), batch_sampler=groups, collate_fn=padded))
assert given == [3, 6, 0, 3] and told["lengths"] == [length(1, 5, 9, 5, used=9, each=9)], (given, told)

# Workers that are kept have read further than the script when it gave up: that is forgotten.
loader = DataLoader(Rows(), batch_sampler=groups, collate_fn=padded, num_workers=1, persistent_workers=True)
for _ in range(2):
    assert looked(3, loader, 2)[0] == [3, 6]

# A loader without an end is read no further than said.
given, told = looked(5, DataLoader(Endless(), 1, collate_fn=padded), 3)
assert given == [3, 5, 6] and told["read"] == 5, (given, told)

# A row that the script need not have come to.
assert looked(7, DataLoader(Broken(), 1, collate_fn=padded), 1)[0] == [3]

# Without looking, what the script itself has read is told, and not which of it is tried on.
batches = Batches(0)
batches.watch()
first, second = iter(DataLoader(Rows(), 1, collate_fn=padded)), iter(DataLoader(Rows(), 1, collate_fn=padded))
assert batches.told() == {"look": 0, "read": 0, "tensors": False, "differ": False, "lengths": []}
for _ in range(2):
    batch = next(first)
assert copy.copy(first).found is first.found
assert len(first) == 7 and first._dataset_kind == 0 and batches.told()["lengths"] == [length(1, 3, 5, 3)]
next(second)
assert batches.told()["read"] == 3
del first
assert batches.told()["read"] == 1  # of those that the script still has
del second
assert batches.told()["read"] == 1
undo_all()

# Tensors without names, and none at all; batches of which nobody knows how many rows they have.
_, told = looked(7, DataLoader(Rows(), 1, collate_fn=lambda rows: rows))
assert [t["tensor"] for t in told["lengths"]] == ["tensor 1"] and not told["differ"]
_, told = looked(7, DataLoader(Rows(), 2, collate_fn=lambda rows: rows[: len(rows[0]) // 2]))
assert told["differ"], told
_, told = looked(7, DataLoader(["a", "bc"], 1))
assert told == {"look": 7, "read": 2, "tensors": False, "differ": False, "lengths": []}, told
given, told = looked(7, DataLoader(Rows(), None))
assert len(given[0]) == 11 and told["lengths"] == [
    {"tensor": "tensor 1", "dim": 0, "least": 2, "most": 11, "first": 3, "used": 11}
]
print("looking: ok")
