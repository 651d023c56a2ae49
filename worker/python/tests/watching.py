"""What tests watch: the rows that layers multiply, the functions that are called on a class of the script's, and what
becomes of memory of the host."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
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


class _Functions(TorchFunctionMode):
    def __init__(self, calls: collections.Counter[str]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        prop = getattr(getattr(func, "__self__", None), "__name__", "")  # of a tensor that is read
        self._calls[f"{getattr(func, '__name__', func)} {prop}"] += 1
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, calls: collections.Counter[str]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def counted() -> Iterator[collections.Counter[str]]:
    """A context in which modes of the script's count the functions that are called and the operations that are run, by
    their names."""
    calls: collections.Counter[str] = collections.Counter()
    with _Functions(calls), _Operations(calls):
        yield calls


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

    bytes, counts = 1 << 30, False

    def __init__(self) -> None:
        self.held: list[str] = []
        self.ballast: list[str] = []
        self.phase = ""

    @contextmanager
    def withheld(self) -> Iterator[bool]:
        self.held.append(self.phase)
        yield False

    def release_ballast(self) -> None:
        self.ballast.append("released")

    def keep_ballast(self) -> None:
        self.ballast.append("kept")

    def used(self) -> int:
        return 0

    def refused(self) -> int:
        return 0
