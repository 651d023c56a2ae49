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


@contextmanager
def registered(hooks: list[tuple[torch.Tensor, Any]], trial: bool = False) -> Iterator[None]:
    """A context in which hooks are noted that are registered on tensors, each with its tensor. In a trial, in which
    nothing is differentiated, those on leaves are only noted, as they would outlive the call, and so are those on
    tensors without a gradient: the script's own call computes gradients."""
    register = torch.Tensor.register_hook

    @wraps(register)
    def noted(tensor: torch.Tensor, hook: Any) -> Any:
        hooks.append((tensor, hook))
        return RemovableHandle(OrderedDict()) if trial and tensor.is_leaf else register(tensor, hook)

    with changed(torch.Tensor, "register_hook", noted):
        yield
