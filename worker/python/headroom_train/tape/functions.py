"""What can be told about PyTorch's functions from their names."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .tape import Recorded
from .trees import LEAVES, flatten, plain

# Methods that read no values.
METADATA = {
    "size", "dim", "ndimension", "numel", "nelement", "__len__", "stride", "is_contiguous", "is_floating_point",
    "is_complex", "element_size", "get_device", "__hash__", "is_pinned", "is_signed", "is_inference", "is_shared",
    "is_conj", "is_neg", "has_names", "storage_offset", "is_set_to", "is_same_size", "is_tensor",
}  # fmt: skip
# Properties that read no values.
GETTERS = {
    getattr(torch.Tensor, n).__get__
    for n in (
        "shape", "dtype", "device", "requires_grad", "is_leaf", "ndim", "layout", "is_cuda", "is_cpu", "is_sparse",
        "is_quantized", "is_meta", "is_mps", "is_xpu", "is_nested", "names", "output_nr", "_version",
    )
    if hasattr(torch.Tensor, n)
}  # fmt: skip
_IN_PLACE = {f"__i{n}__" for n in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()} | {
    "__setitem__"
}
ASKS = {
    "item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__", "__repr__", "__format__",
    "__str__", "__complex__", "equal", "allclose",
}  # fmt: skip
PRINTS = {"__repr__", "__format__"}  # of those, the methods that ask for a tensor's class
# Functions after which a replay may no longer be exact.
OPAQUE = {
    "register_hook", "retain_grad", "set_", "resize_", "share_memory_", "requires_grad_",
    "register_post_accumulate_grad_hook", "__set__", "data_ptr", "untyped_storage", "storage", "__dlpack__",
}  # fmt: skip


def recorded(args: tuple, kwargs: dict) -> list:
    """The recorded tensors among the arguments."""
    found: list = []
    for t in args:
        _search(t, found)
    for t in kwargs.values():
        _search(t, found)
    return found


def _search(tree: Any, found: list) -> None:
    kind = type(tree)
    if kind is Recorded:
        found.append(tree)
    elif kind in LEAVES or kind is torch.Tensor or kind is torch.nn.Parameter:
        return
    elif kind is tuple or kind is list:
        if not plain(tree):
            for t in tree:
                _search(t, found)
    else:
        found += [t for t in flatten(tree)[0] if type(t) is Recorded]


def changes(name: str) -> bool:
    """Whether a function of this name changes its first argument in place."""
    return name.endswith("_") and not name.endswith("__") or name in _IN_PLACE


def gives_tensor(func: Callable, args: tuple) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return isinstance(func(*args), torch.Tensor)
