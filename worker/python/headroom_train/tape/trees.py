"""Trees of tensors: what modules return, and what they are given.

PyTorch's own functions for trees know lists, tuples, dicts and registered classes. To them, any other object is
a leaf, whatever is inside. The functions here also open objects with attributes: instances of dataclasses and
other plain classes, ``torch.distributions``, and subclasses of dict, list and tuple. Such an object is put
together again without its constructor, which might compute or check something.
"""

from __future__ import annotations

import enum
from collections import OrderedDict, deque
from collections.abc import Collection, Iterable
from contextlib import suppress
from functools import cache
from types import BuiltinFunctionType, FunctionType, SimpleNamespace
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch.utils._pytree import SUPPORTED_NODES, TreeSpec, _get_node_type, tree_leaves, tree_structure, tree_unflatten

DEPTH = 4  # levels of nested objects that are opened
# An object with more leaves is not opened, and neither are others like it: looking into them at every call would take
# too long.
WIDE = 1000
# Types of values that contain no tensor.
LEAVES = {
    int, float, bool, complex, str, bytes, type(None), type(...), slice, torch.dtype, torch.device, torch.layout,
    torch.memory_format, torch.Size,
}  # fmt: skip
# Values without parts that could change.
FIXED = (
    str, bool, type(None), torch.dtype, torch.device, torch.layout, enum.Enum, type, FunctionType, BuiltinFunctionType,
)  # fmt: skip
_CLOSED = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, enum.Enum, type, BaseException)
_BASES: tuple[type, ...] = (OrderedDict, dict, list, tuple, SimpleNamespace)
_EXACTLY = {*LEAVES, OrderedDict, dict, list, tuple, object}  # not opened here, although their subclasses may be
_wide: set[tuple] = set()  # the classes of objects that had more leaves, with the names of their attributes
_LEAF = tree_structure(None)
_WORD = tuple.__itemsize__
_WRITTEN = 1 << 9  # CPython's flag of classes that are made while the program runs


def is_a(o: Any, kinds: Any) -> bool:
    """``isinstance`` by an object's real class: a lazy object of the script's might run code if it was asked for its
    ``__class__``."""
    return issubclass(type(o), kinds)


@cache
def _base(kind: type) -> Any:
    return next((b for b in (OrderedDict, dict, list, tuple, deque, set, frozenset) if issubclass(kind, b)), None)


def base_of(container: Any) -> Any:
    """The built-in class that holds the elements of a container, whose methods are used: a class of the script's may
    have its own ones, which load, count or draw something."""
    return _base(type(container))  # type: ignore[arg-type]


def size(container: Any) -> int:
    """The number of elements of a container."""
    return int(base_of(container).__len__(container))


def elements(container: Any) -> list:
    """The elements of a container; of a dict, its values."""
    base = base_of(container)
    return [*(base.values if issubclass(base, dict) else base.__iter__)(container)]


def pairs(container: Any) -> Collection[tuple]:
    """The keys and values of a dict."""
    found: Collection[tuple] = base_of(container).items(container)
    return found


class Kind(NamedTuple):
    """How the instances of a class are opened."""

    base: type  # the built-in class that holds their elements: one of _BASES, or object if there are no elements
    slots: tuple[str, ...]
    constant: bool  # numbers among their attributes belong to shapes and settings, never to the contents of a batch


class Shell(NamedTuple):
    """An opened object without its contents."""

    cls: type
    constants: dict[str, Any]
    tree: Tree  # of its elements and its other attributes


class Tree(NamedTuple):
    """The structure of a tree: PyTorch's, and the objects among its leaves by their place."""

    spec: Any
    shells: dict[int, Shell]


def plain(elements: Collection) -> bool:
    """Whether none of the elements of a list or tuple is a tensor, or can contain one, by their types alone. A batch
    may be given together with thousands of numbers or texts."""
    return LEAVES.issuperset(map(type, elements))


def slots_of(classes: Iterable[type]) -> tuple[str, ...]:
    """The names of the slots that the classes define themselves."""
    named = [vars(c).get("__slots__", ()) for c in classes]
    return tuple(n for s in named for n in ((s,) if isinstance(s, str) else s) if n not in ("__dict__", "__weakref__"))


def _stays_closed(cls: type) -> bool:
    """Whether instances of a class are not opened, whatever is inside: such as a module, or a cache.

    A cache of keys and values is there to be filled by later calls, and takes more memory than other results."""
    ours = cls.__module__.startswith(f"{__package__}.")
    return cls in _EXACTLY or issubclass(cls, _CLOSED) or cls.__name__.endswith("Cache") or ours


@cache
def _kind(cls: type) -> Optional[Kind]:
    """None if instances of the class are not opened: also if it is not written in Python."""
    if _stays_closed(cls):
        return None
    base = next((b for b in _BASES if issubclass(cls, b)), object)
    own = [c for c in cls.__mro__ if c not in base.__mro__]
    slots = slots_of(own)
    written = all(c.__flags__ & _WRITTEN for c in own)
    empty = base is object and not slots and not cls.__dictoffset__
    renamed = any(n.startswith("__") for n in slots)  # Python has changed such names
    hides = cls.__basicsize__ > base.__basicsize__ + _WORD * (len(slots) + 2)  # memory that Python code cannot reach
    if empty or renamed or hides or not written:
        return None
    return Kind(base, slots, cls.__module__.startswith("torch.distributions."))


def opened(leaf: Any, within: tuple[int, ...] = ()) -> Optional[tuple[Kind, Any, dict[str, Any]]]:
    """How an object is opened, its elements and its attributes; None if the object is not opened. ``within`` has the
    ids of the objects that it is inside."""
    kind = _kind(type(leaf))  # type: ignore[arg-type]
    if kind is None or len(within) >= DEPTH or id(leaf) in within:
        return None
    own = dict(object.__getattribute__(leaf, "__dict__")) if type(leaf).__dictoffset__ else {}
    for name in kind.slots:
        with suppress(AttributeError):  # a slot may be empty
            own[name] = object.__getattribute__(leaf, name)
    if _wide and (type(leaf), *own) in _wide:
        return None
    inside: Any = None
    if issubclass(kind.base, dict):
        inside = dict(kind.base.items(leaf))
    elif issubclass(kind.base, (list, tuple)):
        inside = list(kind.base.__iter__(leaf))
    if sum(size(v) for v in (own, inside, *own.values()) if is_a(v, (dict, list, tuple))) > WIDE:
        _wide.add((type(leaf), *own))
        return None
    return kind, inside, own


class Wide(Exception):
    """Raised inside an object that has too many leaves."""


def flatten(tree: Any) -> tuple[list, Tree]:
    """The leaves of a tree, and its structure."""
    return _flatten(tree, ())


def _sized(node: Any) -> bool:
    """Whether a node is the shape that an object keeps of its tensors, which some versions of PyTorch take for a tuple
    of numbers."""
    return type(node) is torch.Size


def _spec(node: Any, leaves: list, sized: bool) -> TreeSpec:
    """The structure of a tree, whose leaves are added to others. What PyTorch's ``tree_flatten`` leaves behind is only
    freed by the garbage collector, which a script may have turned off."""
    kind = _get_node_type(node)
    if kind not in SUPPORTED_NODES or sized and _sized(node):
        leaves.append(node)
        return _LEAF
    children, context = SUPPORTED_NODES[kind].flatten_fn(node)
    return TreeSpec(kind, context, [_spec(child, leaves, sized) for child in children])


def _flatten(tree: Any, within: tuple[int, ...]) -> tuple[list, Tree]:
    leaves: list = []
    spec = _spec(tree, leaves, bool(within))
    if within and len(leaves) > WIDE:
        raise Wide
    shells: dict[int, Shell] = {}
    if all(type(leaf) in LEAVES or is_a(leaf, torch.Tensor) for leaf in leaves):
        return leaves, Tree(spec, shells)
    found: list = []
    for i, leaf in enumerate(leaves):
        inside, shell = _emptied(leaf, within)
        found += inside
        if shell is not None:
            shells[i] = shell
            if within and len(found) > WIDE:
                raise Wide
    return found, Tree(spec, shells)


def _emptied(leaf: Any, within: tuple[int, ...]) -> tuple[list, Optional[Shell]]:
    """The leaves inside an object, and the object without them; the object itself and None if it is not opened."""
    contents = opened(leaf, within)
    if contents is None:
        return [leaf], None
    kind, elements, own = contents
    constants = {n: v for n, v in own.items() if kind.constant and _constant(n, v)}
    others = {n: v for n, v in own.items() if n not in constants}
    try:
        inside, tree = _flatten((elements, others), (*within, id(leaf)))
    except Wide:
        _wide.add((type(leaf), *own))
        return [leaf], None
    return inside, Shell(type(leaf), constants, tree)


def _constant(name: str, value: Any) -> bool:
    """Whether an attribute of a distribution is a setting, such as ``_validate_args``, ``_num_events`` or
    ``reinterpreted_batch_ndims``."""
    return is_a(value, FIXED) or type(value) is int and (name.startswith("_") or name.endswith(("dim", "dims")))


def unflatten(leaves: list, tree: Tree) -> Any:
    """The tree of which :func:`flatten` has returned the structure, with other leaves."""
    if not tree.shells:
        return tree_unflatten(leaves, tree.spec)
    outer: list = []
    rest = list(leaves)[::-1]
    for i in range(tree.spec.num_leaves):
        shell = tree.shells.get(i)
        outer.append(rest.pop() if shell is None else _closed(shell, [rest.pop() for _ in range(count(shell.tree))]))
    return tree_unflatten(outer, tree.spec)


def count(tree: Tree) -> int:
    """How many leaves a tree has."""
    return tree.spec.num_leaves - len(tree.shells) + sum(count(shell.tree) for shell in tree.shells.values())


def _closed(shell: Shell, leaves: list) -> Any:
    elements, own = unflatten(leaves, shell.tree)
    return _made(shell.cls, elements, {**own, **shell.constants})


def _made(cls: type, elements: Any, own: dict[str, Any]) -> Any:
    """A new instance of a class that can be opened, made without its constructor."""
    kind: Any = _kind(cls)
    new = kind.base.__new__(cls, elements) if kind.base is tuple else kind.base.__new__(cls)
    if issubclass(kind.base, dict):
        for key, value in elements.items():
            kind.base.__setitem__(new, key, value)
    elif kind.base is list:
        list.extend(new, elements)
    for name, value in own.items():
        if name in kind.slots:
            object.__setattr__(new, name, value)
        else:
            new.__dict__[name] = value
    return new


def mapped(work: Callable[[Any], Any], tree: Any) -> Any:
    """The tree with ``work`` applied to its leaves. An object in which no leaf has changed stays the same object."""
    return _mapped(work, tree, ())


def _mapped(work: Callable[[Any], Any], tree: Any, within: tuple[int, ...]) -> Any:
    def one(leaf: Any) -> Any:
        contents = opened(leaf, within)
        if contents is None:
            return work(leaf)
        before = contents[1:]
        after = _mapped(work, before, (*within, id(leaf)))
        now = tree_leaves(after, is_leaf=_sized)
        same = all(a is b for a, b in zip(tree_leaves(before, is_leaf=_sized), now))
        return leaf if same else _made(type(leaf), *after)

    leaves: list = []
    spec = _spec(tree, leaves, bool(within))
    return tree_unflatten([*map(one, leaves)], spec)


def described(tree: Any, within: tuple[int, ...] = ()) -> str:
    """A text by which the arguments of a call are recognised: equal trees have equal ones. Of objects, this is what is
    inside, as their own ``__repr__`` may do anything."""
    kind = type(tree)
    if kind in (tuple, list, dict):
        inside = [f"{k!r}: {described(v, within)}" for k, v in tree.items()] if kind is dict else []
        return f"{kind.__name__}({', '.join(inside or [described(v, within) for v in tree])})"
    if kind in LEAVES or not kind.__flags__ & _WRITTEN or kind.__module__.startswith(f"{__package__}."):
        return repr(tree)
    contents = opened(tree, within)
    if contents is None:
        return f"{kind.__qualname__} {id(tree)}"
    return f"{kind.__qualname__}({described(contents[1:], (*within, id(tree)))})"


def set_on(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes that the script has set on a tensor."""
    own = object.__getattribute__(tensor, "__dict__")
    return {n: v for n, v in own.items() if n != "_headroom"} if own else own


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """The tensors among the leaves of a tree."""
    return [t for t in flatten(tree)[0] if is_a(t, torch.Tensor)]
