"""The batch finders of Lightning, Accelerate and Transformers, for bench/gpu/find.py.

    find_peers.py METHOD CASE MOST

prints a line of JSON: the size found, and the sizes tried. Each trial has three steps. Lightning begins with 2 rows, its default;
those that go down begin with MOST.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpt2"))
from find_cases import CASES, DEVICE, SMOKE, Case, Rows, autocast, batch, trained
from lightning_size import found_by_lightning

STEPS = 3


class Search:
    def __init__(self, case: Case, most: int) -> None:
        self.case, self.most = case, most
        self.trials: list[tuple[int, bool]] = []  # rows, and whether they fitted

    def begins(self, rows: int) -> None:
        self.trials.append((rows, False))

    def fits(self) -> None:
        self.trials[-1] = (self.trials[-1][0], True)


def accelerate(search: Search) -> int:
    from accelerate.utils import find_executable_batch_size

    model = search.case.model().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    @find_executable_batch_size(starting_batch_size=search.most)
    def train(batch_size: int) -> int:
        search.begins(batch_size)
        for _ in range(STEPS):
            rows = batch(search.case, batch_size)
            with autocast(search.case):
                loss = model(**rows).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        search.fits()
        return batch_size

    return train()


def transformers(search: Search) -> int:
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            search.begins(state.train_batch_size)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            search.fits()

    trained(search.case, search.most, STEPS, True, [Watch()], STEPS * search.most)
    return search.trials[-1][0]


def lightning(search: Search, mode: str) -> int:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.batch_size = search.case.model(), 2

        def on_train_start(self) -> None:
            search.begins(self.batch_size)

        def on_train_end(self) -> None:
            search.fits()

        def training_step(self, rows: dict[str, torch.Tensor], _: int) -> torch.Tensor:
            return self.model(**rows).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.model.parameters(), lr=3e-4)

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Rows(search.case, STEPS * 65536), batch_size=self.batch_size)

    return found_by_lightning(Module(), mode, STEPS, SMOKE, search.case.bf16)


METHODS = {
    "lightning, power": lambda search: lightning(search, "power"),
    "lightning, binsearch": lambda search: lightning(search, "binsearch"),
    "accelerate": accelerate,
    "transformers": transformers,
}


def main() -> None:
    method, case, most = sys.argv[1], CASES[sys.argv[2]], int(sys.argv[3])
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = not case.bf16
    search, began = Search(case, most), time.perf_counter()
    found = METHODS[method](search)
    print(json.dumps({"found": found, "tried": search.trials, "searching": round(time.perf_counter() - began, 2)}))


if __name__ == "__main__":
    main()
