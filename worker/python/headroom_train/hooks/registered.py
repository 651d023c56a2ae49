"""Hooks that a call of the script's registers on tensors while it is repeated."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from .changes import changed

_listening: list[list[tuple[torch.Tensor, Any]]] = []


@contextmanager
def registered(hooks: list[tuple[torch.Tensor, Any]]) -> Iterator[None]:
    """A context in which the hooks are noted that calls which are repeated register on tensors, each with its
    tensor."""
    _listening.append(hooks)
    try:
        yield
    finally:
        _listening.pop()


@contextmanager
def noting(trial: bool) -> Iterator[None]:
    """A context for a call of the script's that is repeated, with the script's own replacements of PyTorch's functions
    in their places. In a trial, in which nothing is differentiated, hooks on leaves are only noted, as they would
    outlive the call, and so are those on tensors without a gradient: the script's own call computes gradients."""
    if not trial and not _listening:
        yield
        return
    register = torch.Tensor.register_hook

    @wraps(register)
    def noted(tensor: torch.Tensor, hook: Any) -> Any:
        for hooks in _listening:
            hooks.append((tensor, hook))
        return RemovableHandle(OrderedDict()) if trial and tensor.is_leaf else register(tensor, hook)

    with changed(torch.Tensor, "register_hook", noted):
        yield
