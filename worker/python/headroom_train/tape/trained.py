"""Knows which parameters are trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..hooks.swaps import Weak


class Trained:
    """The parameters that have been given to an optimizer. True once there are any, although the script may have
    dropped them since. Keeps none of them: one that is made later is not trained although it may have got the id of one
    that was."""

    def __init__(self) -> None:
        self._known: dict[int, Weak] = {}
        self._some = False

    def add(self, parameters: Iterable[torch.Tensor]) -> None:
        self._known.update((id(p), Weak(p)) for p in parameters)
        self._some = bool(self._known)

    def __contains__(self, parameter: Any) -> bool:
        known = self._known.get(id(parameter))
        return known is not None and known() is parameter

    def __bool__(self) -> bool:
        return self._some  # torch.compile may look into this, and cannot ask a dict
