"""What is known about PyTorch's functions, by name: functions as a script calls them, and operations as PyTorch runs
them inside."""

from __future__ import annotations

from typing import Callable

import torch

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
_IN_PLACE = {
    "__setitem__",
    *(f"__i{n}__" for n in "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()),
}
# Functions that ask for values.
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
# Functions that are given a shape.
SHAPING = {"view", "reshape", "expand", "unflatten", "flatten", "repeat", "broadcast_to"}
JOINING = {"cat", "concat", "concatenate"}
# Functions in which a row depends on those before it.
RUNNING = {"cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "argsort"}
# Functions that are told by a tensor of numbers which elements to use.
INDEXING = {
    "__getitem__", "__setitem__", "gather", "index_select", "take_along_dim", "take", "embedding", "scatter",
    "scatter_",
}  # fmt: skip
# Functions that return some of the elements.
SELECTS = {"__getitem__", "select", "unbind", "__iter__", "split", "chunk"}
# Functions whose results' size depends on values.
SELECTING = {"masked_select", "nonzero", "argwhere", "unique", "unique_consecutive"}

# Operations that draw random numbers: into their first argument, and into a new tensor. So do those of dropout and
# attention.
FILLS = {"bernoulli_", "normal_", "uniform_", "exponential_", "cauchy_", "log_normal_", "geometric_", "random_"}
DRAWS = {
    "rand", "randn", "rand_like", "randn_like", "bernoulli", "normal", "normal_functional", "randint", "randint_like",
    "multinomial", "poisson", "exponential",
}  # fmt: skip
# Functions that draw from a distribution which a tensor describes, such as a policy's actions. A gradient flows through
# the results of those of PATHWISE only.
SAMPLES = {"multinomial", "bernoulli", "poisson", "normal", "binomial"}
PATHWISE = {"_standard_gamma", "_sample_dirichlet"}
# Functions that draw numbers for which they need only the shape of what they are given.
LIKE = {"rand_like", "randn_like", "randint_like"}
# Functions that draw, and through whose results a gradient flows.
NOISY = PATHWISE | {
    "gumbel_softmax", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout",
    "rrelu",
}  # fmt: skip
DRAWING = SAMPLES | NOISY | LIKE | {"scaled_dot_product_attention", "multi_head_attention_forward"}
# Operations that relate what is along the dimension ``dim``.
ALONG = {
    "cumsum", "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "argsort", "topk", "kthvalue", "_softmax",
    "_log_softmax", "softmax", "log_softmax",
}  # fmt: skip
# Operations that compare elements with each other, and the argument that has these, or where each one is added.
COMPARED = {
    "_unique": 0, "_unique2": 0, "unique_dim": 0, "unique_consecutive": 0, "unique_dim_consecutive": 0, "isin": 1,
    "histc": 0, "histogram": 0, "_sparse_coo_tensor_with_dims_and_tensors": 3, "_sparse_coo_tensor_unsafe": 0,
    "sparse_coo_tensor": 0,
}  # fmt: skip
# Operations that add up numbers at places that are given.
ADDS = {
    "index_add", "index_add_", "index_reduce", "index_reduce_", "scatter_add", "scatter_add_", "scatter_reduce",
    "scatter_reduce_", "segment_reduce",
}  # fmt: skip
# Operations that choose some of what they are given.
CHOOSES = {"nonzero", "nonzero_static", "argwhere", "masked_select", "index", "index_select", "gather", "take"}
# Operations that divide, and which of their arguments they divide by.
DIVISORS = {"div": 1, "div_": 1, "true_divide": 1, "reciprocal": 0}
# Operations that only arrange memory: which of them run may depend on strides.
LAYOUT = {
    "clone", "contiguous", "view", "_unsafe_view", "_reshape_alias", "reshape", "alias", "detach", "expand", "copy_",
    "as_strided",
}  # fmt: skip
# Operations that may count rows.
TOTALS = {"sum", "count_nonzero", "bincount", "index_add", "index_add_", "scatter_add", "scatter_add_"}
# Operations that compare what they are given with a number, or set it off against one.
BOUNDS = {"ge", "gt", "le", "lt", "eq", "ne", "floor_divide", "clamp", "clamp_min", "clamp_max", "sub", "rsub"}
# The operations behind INDEXING.
LOOKS_UP = {
    "index", "index_put", "index_put_", "_index_put_impl_", "gather", "embedding", "index_select", "take", "scatter",
    "scatter_",
}  # fmt: skip


def changes(name: str) -> bool:
    """Whether a function of this name changes its first argument in place."""
    return name.endswith("_") and not name.endswith("__") or name in _IN_PLACE


def shape_only(name: str) -> bool:
    """Whether an operation of this name takes no more than the shape and the type of its argument."""
    return name.endswith("_like") or name.startswith("new_")


def gives_tensor(func: Callable, args: tuple) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return isinstance(func(*args), torch.Tensor)
