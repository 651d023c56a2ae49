"""What is known of PyTorch's functions by their names."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch.utils._pytree import tree_flatten

from .tape import Recorded

# Methods that ask for no values.
METADATA = {
    "size", "dim", "ndimension", "numel", "nelement", "__len__", "stride", "is_contiguous", "is_floating_point",
    "is_complex", "element_size", "get_device", "__hash__", "is_pinned", "is_signed", "is_inference", "is_shared",
    "is_conj", "is_neg", "has_names", "storage_offset", "is_set_to", "is_same_size", "is_tensor",
}  # fmt: skip
_IN_PLACE = {f"__i{n}__" for n in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()} | {"__setitem__"}
ASKS = {"item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__", "__repr__", "__format__", "__str__", "__complex__", "equal", "allclose"}
# What cannot be seen to leave a replay as it was.
OPAQUE = {"register_hook", "retain_grad", "set_", "resize_", "share_memory_", "requires_grad_", "register_post_accumulate_grad_hook", "__set__", "data_ptr", "untyped_storage", "storage", "__dlpack__"}


def recorded(args: tuple, kwargs: dict) -> list:
    """The recorded tensors among arguments."""
    found, deep = [], False
    for t in args:
        if type(t) is Recorded:
            found.append(t)
        elif not isinstance(t, _FLAT):
            deep = True
    for t in kwargs.values():
        if type(t) is Recorded:
            found.append(t)
        elif not isinstance(t, _FLAT):
            deep = True
    if deep:
        return [t for t in tree_flatten((args, kwargs))[0] if type(t) is Recorded]
    return found


_FLAT = (int, float, str, type(None), torch.Tensor, torch.dtype, torch.device, slice)


def changes(name: str) -> bool:
    """Whether a function changes its first argument, by its name."""
    return name.endswith("_") and not name.endswith("__") or name in _IN_PLACE


def gives_tensor(func: Callable, args: tuple) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return isinstance(func(*args), torch.Tensor)
