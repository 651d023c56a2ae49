"""What tests watch: the rows that layers multiply, the functions that are called on a class of the script's, and what
becomes of memory of the host."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Multiplied(TorchDispatchMode):
    """The numbers of rows that layers multiply."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "addmm" in str(func):
            self.rows.append(len(args[1]))
        return func(*args, **(kwargs or {}))


class Watched(Tensor):
    """A class of the script's that sees each function that is called on its tensors."""

    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Watched.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Bank:
    """Stands in for a pool of memory of the host: counts how often it is kept out of reach, and what is done with the
    memory for libraries."""

    bytes = 1 << 30

    def __init__(self) -> None:
        self.held: list[str] = []
        self.ballast: list[str] = []
        self.phase = ""

    def hold(self) -> None:
        self.held.append(self.phase)

    def release_ballast(self) -> None:
        self.ballast.append("released")

    def keep_ballast(self) -> None:
        self.ballast.append("kept")

    def used(self) -> int:
        return 0

    def refused(self) -> int:
        return 0
