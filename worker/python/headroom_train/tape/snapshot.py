"""Keeps track of what modules hold: their attributes, and the contents of the lists and dicts among
these. On request, it also keeps track of everything nested inside these lists and dicts and inside
objects of the script's own classes, and of whatever else the script's own modules and hooks can
reach: class attributes, globals and closures."""

from __future__ import annotations

import dis
import gc
import pickle
import random
import sys
import sysconfig
import weakref
from argparse import Namespace
from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from functools import cache, partial
from itertools import count, cycle, islice
from operator import is_, length_hint
from types import BuiltinMethodType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any, Callable, NamedTuple, NoReturn, Optional

import torch
from torch.nn.modules import module as _all_modules
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from .trees import base_of, elements, is_a, pairs, set_on, size, slots_of

MOST = 10000  # the most elements of a container that are compared, and the most containers of all modules
DEPTH = 4  # levels of nested objects
LARGEST = 1 << 20  # bytes of an array that is compared
FUNCTIONS = 200  # the most that are looked at for what a class names
WIDE = 64  # the most elements of a container whose elements are inspected for nested containers, too
FOLLOWED = 500  # the most functions outside the modules' classes and hooks that are looked at
# Attributes that no call changes: those that every module has, and the one by which the worker finds a module.
USUAL = set(vars(torch.nn.Module())) - {"_parameters", "_buffers", "training"} | {"_compiled_call_impl"}
PLAIN = (int, float, str, bool, bytes, type(None), torch.Size, torch.dtype, torch.device)
_FIRST = len(vars(torch.nn.Module()))  # the number of attributes that every module has before any of its own


def attributes(module: torch.nn.Module) -> list[tuple[str, Any]]:
    """A module's attributes except those in :data:`USUAL`."""
    own = vars(module)
    if next(iter(own)) == "training":
        rest = list(islice(own.items(), _FIRST, None))
        if "_compiled_call_impl" in own:
            rest = [(n, v) for n, v in rest if n != "_compiled_call_impl"]
        return [(n, own[n]) for n in ("training", "_parameters", "_buffers")] + rest
    return [(n, v) for n, v in own.items() if n not in USUAL]


def forward_hooks(module: torch.nn.Module) -> list[Any]:
    """The hooks that run before and after a module's own forward: its own, and those for all modules."""
    return [hook for hooks in (*_of_all(), *_of_one(module)) for hook in hooks.values()]


def hooks_of_all() -> list[int]:
    """The numbers of the hooks of every module there is."""
    return [number for hooks in (*_of_all(), hooks_backward_of_all()) for number in hooks]


def _of_all() -> tuple[dict, dict]:
    """By their numbers, the hooks that run before and after the forward of every module there is."""
    return _all_modules._global_forward_hooks, _all_modules._global_forward_pre_hooks


def hooks_backward_of_all() -> dict:
    """By their numbers, the hooks that see gradients of every module there is."""
    return {**_all_modules._global_backward_hooks, **_all_modules._global_backward_pre_hooks}


def _of_one(module: torch.nn.Module) -> tuple[dict, dict]:
    """By their numbers, the hooks that run before and after this module's own forward only."""
    return module._forward_hooks, module._forward_pre_hooks


class Hooks:
    """Tells the hooks of a module, and of its submodules, whose doings are known from those that are not."""

    def __init__(self) -> None:
        self._known = self._asked = -1  # hooks are numbered: those below this number

    def unknown(self, module: torch.nn.Module) -> list[torch.nn.Module]:
        """The modules with hooks that no call which succeeded has run."""
        self._asked = RemovableHandle.next_id
        if self._asked == self._known:
            return []
        modules = submodules([module])
        if self._new(_of_all()):
            return modules
        return [m for m in modules if (m._forward_hooks or m._forward_pre_hooks) and self._new(_of_one(m))]

    def _new(self, hooks: Iterable[dict]) -> bool:
        return any(max(numbers) >= self._known for numbers in hooks if numbers)

    def ran(self) -> None:
        """Called when the call has succeeded that came after :meth:`unknown`."""
        self._known = self._asked


def distinct(modules: Iterable[Any]) -> list[torch.nn.Module]:
    """The modules that still exist, each once. A module's class may have its own ``__eq__`` and ``__hash__``."""
    return [*{id(m): m for m in modules if m is not None}.values()]


def submodules(modules: Iterable[Any]) -> list[torch.nn.Module]:
    """The modules and all their submodules, each once, in the order of PyTorch's ``modules()``.
    That method takes several times as long as this function."""
    found: dict[int, torch.nn.Module] = {}
    todo: list[Any] = [*modules][::-1]
    while todo:
        m = todo.pop()
        if m is not None and id(m) not in found:
            found[id(m)] = m
            if m._modules:
                todo += reversed([*m._modules.values()])
    return [*found.values()]


def parameters(modules: Iterable[Any]) -> list[torch.nn.Parameter]:
    """The parameters of the modules and of all their submodules, each once, in the order of PyTorch's
    ``parameters()``."""
    return [*{id(p): p for m in submodules(modules) for p in m._parameters.values() if p is not None}.values()]


def buffers(modules: Iterable[Any]) -> list[torch.Tensor]:
    """The buffers of the modules and of all their submodules, each once, in the order of PyTorch's ``buffers()``."""
    return [*{id(b): b for m in submodules(modules) for b in m._buffers.values() if b is not None}.values()]


def tensors(module: torch.nn.Module) -> list[torch.Tensor]:
    """The tensors that are attributes of a module, or elements of an attribute that is a list, tuple or dict.
    Parameters, buffers and tensors that require a gradient are left out."""
    found: list[torch.Tensor] = []
    for name, value in attributes(module):
        if name not in ("_parameters", "_buffers"):
            inside = elements(value) if is_a(value, (dict, list, tuple)) else (value,)
            found += [t for t in islice(inside, MOST) if type(t) is torch.Tensor and not t.requires_grad]
    return found


def is_same(a: Any, b: Any) -> bool:
    """Whether two values are one object, or equal plain values."""
    return a is b or type(a) is type(b) and is_a(a, PLAIN) and a == b


def _plain(values: list) -> bool:
    """Whether the given values contain nothing but numbers, strings and other plain values."""
    return all(is_a(leaf, PLAIN) for leaf in tree_leaves(values))


class Contents:
    """A dict, list, deque or set, and its former contents. Of a container with more than
    :data:`MOST` elements, only the former length is kept."""

    def __init__(self, container: Any) -> None:
        self.container = container
        self.before: Any = size(container)
        if self.before <= MOST:
            copied = dict(pairs(container)) if is_a(container, dict) else elements(container)
            self.before = set(copied) if is_a(container, set) else copied

    def keys(self) -> list:
        """The keys or indices whose values have changed; for a set, the elements that were added or
        removed. If only the former length is known, these are the keys, indices or elements beyond
        that length."""
        held, before = self.container, self.before
        if is_a(before, int):
            if is_a(held, (dict, set)):
                return list(islice(base_of(held).__iter__(held), before, None))
            return list(range(before, size(held)))
        if is_a(held, set):
            return list({*elements(held)} ^ before)
        if is_a(held, dict):
            found = pairs(held)
            if len(found) == len(before) and all(
                k is n and is_same(v, w) for (k, v), (n, w) in zip(found, before.items())
            ):
                return []
            now = dict(found)
            return [k for k, v in now.items() if k not in before or not is_same(before[k], v)] + [
                k for k in before if k not in now
            ]
        held = elements(held)
        return [i for i, v in enumerate(held) if i >= len(before) or not is_same(before[i], v)] + list(
            range(len(held), len(before))
        )

    def plain(self, keys: Iterable) -> bool:
        """Whether the values at these keys were, and are, nothing but numbers, strings and other plain values."""
        every = [self.container] if is_a(self.before, int) else [self.container, self.before]
        return all(_plain(_at(c, keys)) for c in every)

    def put(self, key: Any, value: Any) -> None:
        """Puts a value at a key that once had a value."""
        now, base = self.container, base_of(self.container)
        if base is set:
            set.discard(now, key)
            set.add(now, value)
        elif issubclass(base, dict) or key < size(now):
            base.__setitem__(now, key, value)
        else:
            base.extend(now, [value] * (key + 1 - size(now)))

    def put_back(self) -> None:
        now, keys, base = self.container, self.keys(), base_of(self.container)
        if not keys:
            return
        if is_a(self.before, int):
            if base is set:
                set.difference_update(now, keys)
            else:
                for k in reversed(keys):
                    base.__delitem__(now, k)
            return
        base.clear(now)
        if issubclass(base, dict):
            for k, v in self.before.items():
                base.__setitem__(now, k, v)
        else:
            (base.update if base is set else base.extend)(now, self.before)


class Names(Contents):
    """The former values of some globals, or of some attributes of a class or of an object with
    slots."""

    def __init__(self, owner: Any, names: Iterable[str]) -> None:
        self._owner, self._names = owner, list(names)
        self.before = self.container

    @property
    def container(self) -> dict:
        """The present values of the names, by name."""
        if is_a(self._owner, dict):
            return {n: self._owner[n] for n in self._names if n in self._owner}
        read = type.__getattribute__ if is_a(self._owner, type) else object.__getattribute__
        found = {}
        for name in self._names:
            with suppress(AttributeError):  # getattr would ask an object for what it does not have
                found[name] = read(self._owner, name)
        return found

    def put(self, key: Any, value: Any) -> None:
        if is_a(self._owner, dict):
            self._owner[key] = value
        else:
            setattr(self._owner, key, value)

    def put_back(self) -> None:
        for key in self.keys():
            if key in self.before:
                self.put(key, self.before[key])
            elif is_a(self._owner, dict):
                del self._owner[key]
            else:
                delattr(self._owner, key)


class OnTensors(Names):
    """The former attributes of some tensors, by the tensor's name and the attribute's."""

    def __init__(self, *tensors: dict) -> None:
        self._tensors = tensors
        self.before = self.container

    @property
    def container(self) -> dict:
        every = ((n, t) for tensors in self._tensors for n, t in tensors.items() if t is not None)
        return {(n, name): value for n, t in every for name, value in set_on(t).items()}

    def put(self, key: Any, value: Any) -> None:
        for tensors in self._tensors:
            if key[0] in tensors:
                tensors[key[0]].__dict__[key[1]] = value

    def put_back(self) -> None:
        for key in self.keys():
            if key in self.before:
                self.put(key, self.before[key])
            else:
                for tensors in self._tensors:
                    if key[0] in tensors:
                        tensors[key[0]].__dict__.pop(key[1], None)


class Cell(Names):
    """The former value of a variable that a function shares with those inside it (``nonlocal``)."""

    @property
    def container(self) -> dict:
        try:
            return {self._names[0]: self._owner.cell_contents}
        except ValueError:  # it has no value yet
            return {}

    def put(self, key: Any, value: Any) -> None:
        self._owner.cell_contents = value

    def put_back(self) -> None:
        for key in self.keys():
            if key in self.before:
                self.put(key, self.before[key])
            else:
                del self._owner.cell_contents


class Drawn(Contents):
    """The former state of a random generator. It is never plain: numbers that each piece draws anew are others than
    those of the whole batch."""

    def __init__(self, generator: Any) -> None:
        self._generator, (self._get, self._set) = generator, _states(type(generator))  # type: ignore[arg-type, misc]
        self.before = self.container

    @property
    def container(self) -> dict:
        return {"state": pickle.dumps(self._get(self._generator))}

    def plain(self, keys: Iterable) -> bool:
        return False

    def put(self, key: Any, value: Any) -> None:
        self._set(self._generator, pickle.loads(value))

    def put_back(self) -> None:
        for key in self.keys():
            self.put(key, self.before[key])


class Array(Contents):
    """The former values of an array, of NumPy's or of Python's own. It is never plain: it may have a number for each
    row."""

    def __init__(self, array: Any) -> None:
        self.container, self.before = array, copy(array)

    def keys(self) -> list:
        return [] if _bytes(self.container) == _bytes(self.before) else ["values"]

    def plain(self, keys: Iterable) -> bool:
        return False

    def put(self, key: Any, value: Any) -> None:
        pass

    def put_back(self) -> None:
        if self.keys():
            self.container[slice(None) if type(self.container) in _ARRAYS else ...] = self.before


_ARRAYS = (bytearray, array)


def _bytes(value: Any) -> bytes:
    return bytes(value) if type(value) is bytearray else value.tobytes()


def _is_array(value: Any) -> bool:
    """Whether a value is an array that is small enough to be compared before and after each call."""
    kind = type(value)  # the worker does not import NumPy
    if kind in _ARRAYS:
        return len(value) <= LARGEST
    return kind.__name__ == "ndarray" and kind.__module__ == "numpy" and value.nbytes <= LARGEST


class Taken(Contents):
    """How far an iterator of Python's own has come. That cannot be put back, and it is never plain."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self.before = self.container

    @property
    def container(self) -> dict:
        return {"next": _progress(self._iterator)}

    def keys(self) -> list:
        return [] if self.before == self.container else ["next"]

    def over(self) -> bool:
        """Whether nothing more can be taken, as far as is known."""
        return _over(self._iterator)

    def plain(self, keys: Iterable) -> bool:
        return False

    def put(self, key: Any, value: Any) -> None:
        pass

    def put_back(self) -> None:
        pass


def _iterates(value: Any) -> bool:
    """Whether a value is an iterator of Python's own: one of a class has attributes, which are looked at."""
    return hasattr(type(value), "__next__") and type(value).__module__ in ("builtins", "itertools", "_collections")


def _progress(iterator: Any) -> Any:
    """Something that is equal as long as nothing has been taken from an iterator, if that can be known."""
    if is_a(iterator, GeneratorType):
        frame = iterator.gi_frame
        return frame and (frame.f_lasti, [id(v) for v in frame.f_locals.values()])
    if type(iterator) is cycle:
        return object()
    inner = [*map(_progress, _inside(iterator))]
    return repr(iterator) if type(iterator) is count else "", length_hint(iterator, -1), inner


def _inside(iterator: Any) -> list:
    """The iterators from which another one takes."""
    held = gc.get_referents(iterator)
    held += [r for t in held if type(t) is tuple for r in t]  # as a map has several
    return [r for r in held if _iterates(r)]


def _over(iterator: Any) -> bool:
    if is_a(iterator, GeneratorType):
        return iterator.gi_frame is None
    if type(iterator) in (map, filter, zip, enumerate):
        return any(map(_over, _inside(iterator)))
    return length_hint(iterator, 1) == 0


def _set_numpy(generator: Any, state: Any) -> None:
    generator.bit_generator.state = state


@cache
def _states(kind: type) -> Optional[tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]]:
    """How the state of a random generator is read and set; None for other classes, and for those of PyTorch, with which
    no call is repeated."""
    if kind is random.Random:
        return random.Random.getstate, random.Random.setstate
    if kind.__module__.startswith("numpy.random."):  # which the worker does not import
        if kind.__name__ == "Generator":
            return lambda generator: generator.bit_generator.state, _set_numpy
        if kind.__name__ == "RandomState":
            return kind.get_state, kind.set_state  # type: ignore[attr-defined]
    return None


def _at(container: Any, keys: Iterable) -> list:
    """The values at the given keys in a container. Keys that do not exist are left out."""
    if is_a(container, set):
        return list(keys)
    base = base_of(container)
    if not is_a(base, type):  # an array
        return []
    there = (k for k in keys if (base.__contains__(container, k) if issubclass(base, dict) else k < size(container)))
    return [base.__getitem__(container, k) for k in there]


class Unavailable:
    """Stands in for an object that a call would have returned or read, but that does not exist. An
    example is a cache of keys and values, which a few rows cannot fill. Any use of the stand-in
    calls ``used``, which raises the failure."""

    def __init__(self, used: Callable[[], NoReturn]) -> None:
        object.__setattr__(self, "_unavailable", used)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__") and name != "__dict__":
            return object.__getattribute__(self, name)
        return object.__getattribute__(self, "_unavailable")()

    def _used(self, *_: Any) -> Any:
        return object.__getattribute__(self, "_unavailable")()

    __getitem__ = __setitem__ = __iter__ = __len__ = __call__ = __bool__ = __contains__ = __float__ = __int__ = (
        __index__
    ) = _used
    __neg__ = __abs__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        __pow__
    ) = __matmul__ = _used
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __hash__ = _used
    __str__ = __format__ = __array__ = __reduce_ex__ = __copy__ = __deepcopy__ = _used


@cache
def is_own(module: str) -> bool:
    """Whether the Python module of this name is the script's own and not a library's. Objects of
    libraries are not inspected, since most of the training can be reached from them, including much
    that other threads change."""
    if module == "__main__":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    libraries = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return (
        file is not None
        and not file.startswith(libraries)
        and "-packages" not in file
        and not module.startswith(f"{__package__}.")
    )


# Classes of Python's own that do nothing but hold what is put into them.
_HOLDERS = {SimpleNamespace, Namespace, UserDict, UserList, ChainMap}


def _inner(value: Any) -> Any:
    """The value itself if it is a container; the ``__dict__`` of an object of the script's own
    classes; None for anything else."""
    kind = type(value)  # isinstance would ask an object for its __class__
    if issubclass(kind, (dict, list, set, deque)):
        return value
    closed = issubclass(kind, (torch.nn.Module, torch.Tensor, type, FunctionType))
    if closed or kind not in _HOLDERS and not is_own(kind.__module__):
        return None
    return object.__getattribute__(value, "__dict__") if kind.__dictoffset__ else None


@cache
def _slots(kind: type) -> tuple[str, ...]:
    """The names of a class's slots; empty if the class is not the script's own. A name that Python has changed is left
    out."""
    if not is_own(kind.__module__) or issubclass(kind, (torch.nn.Module, torch.Tensor, type)):
        return ()
    return tuple(n for n in slots_of(kind.__mro__) if not n.startswith("__"))


def _contents(value: Any, seen: set[int]) -> Optional[Contents]:
    """The contents of a container or of an object of the script's own classes, the state of a random generator, or how
    far an iterator has come; None for anything else, and for what is in ``seen`` already, by its id."""
    draws, takes = _states(type(value)) is not None, _iterates(value)  # type: ignore[arg-type]
    if _is_array(value) and id(value) not in seen:
        seen.add(id(value))
        return Array(value)
    inner = _inner(value)
    slots = _slots(type(value)) if inner is None else ()  # type: ignore[arg-type]
    owner = value if draws or takes or slots else inner
    if owner is None or id(owner) in seen:
        return None
    seen.add(id(owner))
    if draws or takes:
        return Drawn(value) if draws else Taken(value)
    return Names(value, slots) if slots else Contents(inner)


def within(value: Any, seen: set[int]) -> Iterator[Contents]:
    """Yields the contents of every container inside a value, including those of the value itself if
    it is a container. Leaves out containers whose ids are in ``seen``, and adds the ids of the
    others to it."""
    todo = [(value, 0)]
    while todo and len(seen) < MOST:
        value, depth = todo.pop()
        inside = value
        if not is_a(value, tuple):
            contents = None if type(value) in PLAIN else _contents(value, seen)
            if contents is None:
                continue
            yield contents
            if type(contents) is Array:
                continue
            inside = contents.before
        if depth < DEPTH and not is_a(inside, (int, set)) and size(inside) <= WIDE:
            todo += [(v, depth + 1) for v in elements(inside)]


@cache
def _names(code: CodeType) -> frozenset[str]:
    """The names of the globals and attributes that a function, and the functions inside it, may use."""
    return _assigned(code).union(code.co_names, *(_names(c) for c in code.co_consts if is_a(c, CodeType)))


@cache
def _assigned(code: CodeType) -> frozenset[str]:
    """The names among these that it may give new values. Those that it has as strings may be for ``setattr``."""
    strings = {c for c in code.co_consts if is_a(c, str) and c.isidentifier()}
    return _stored(code, _STORES).union(strings, *(_assigned(c) for c in code.co_consts if is_a(c, CodeType)))


@cache
def _shared(code: CodeType) -> frozenset[str]:
    """The variables of the functions around it that it may give new values."""
    inside = (_shared(c) for c in code.co_consts if is_a(c, CodeType))
    return _stored(code, _SHARED).union(*inside).intersection(code.co_freevars)


def _stored(code: CodeType, operations: frozenset[str]) -> frozenset[str]:
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opname in operations)


_STORES = frozenset({"STORE_ATTR", "STORE_GLOBAL", "DELETE_ATTR", "DELETE_GLOBAL"})
_SHARED = frozenset({"STORE_DEREF", "DELETE_DEREF"})


@cache
def _classes(kind: type) -> tuple[list[FunctionType], list[type]]:
    """Considers a class and its bases, but only those that are the script's own. Returns their methods, then the
    classes themselves."""
    classes = [c for c in kind.__mro__ if is_own(c.__module__)]
    return [*dict.fromkeys(f for c in classes for v in vars(c).values() for f in _functions(v))], classes


def _functions(value: Any) -> Iterator[FunctionType]:
    """The functions of the script's own that are run where a value is called, or read as an attribute: the value itself
    and, if a decorator has made it, what it decorates."""
    todo, found = [value], set[int]()
    while todo:
        value = todo.pop()
        if is_a(value, (staticmethod, classmethod, MethodType)):
            todo.append(value.__func__)
        elif is_a(value, property):
            todo += [value.fget, value.fset, value.fdel]
        elif is_a(value, FunctionType):
            if id(value) in found or len(found) > WIDE:
                continue
            found.add(id(value))
            if is_own(value.__module__):
                yield value
            todo += [v for _, v in _closure(value) if is_a(v, (FunctionType, MethodType))]
            todo.append(vars(value).get("__wrapped__"))
        elif type(value).__module__ == "functools":  # partial, cached_property, lru_cache and the like
            todo += [getattr(value, "func", None), getattr(value, "__wrapped__", None)]


def _closure(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables that a function shares with the functions around it, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with suppress(ValueError):  # the cell is still empty
            yield name, cell.cell_contents


class Methods(NamedTuple):
    """Methods of a class that are the script's own, and the names of what they use and of what they assign."""

    functions: list[FunctionType]
    names: frozenset[str]
    assigned: frozenset[str]


# Methods that Python calls without their names, when an object is made, shown, copied or freed.
_UNUSED = {"__new__", "__init__", "__del__", "__repr__", "__str__", "__format__", "__sizeof__", "__dir__", "__copy__"}
_UNUSED |= {"__deepcopy__", "__getstate__", "__setstate__", "__reduce__", "__reduce_ex__", "__init_subclass__"}
_IMPLIED = {torch.nn.Module: {"forward"}, torch.autograd.Function: {"forward", "backward", "setup_context", "jvp"}}


@cache
def _methods(kind: type, names: frozenset[str], made: bool) -> Methods:
    """What code with these names may call of an object, or, with ``made``, of a class, of which it may make objects:
    the methods with these names, those that Python calls without naming them, and those that the methods name."""
    every: dict[str, list[FunctionType]] = {}
    for c in _classes(kind)[1]:
        for name, value in vars(c).items():
            every.setdefault(name, []).extend(_functions(value))
    implied = [n for base, known in _IMPLIED.items() if issubclass(kind, base) for n in known]
    implied += [n for n in every if n[:2] == n[-2:] == "__" and (made or n not in _UNUSED)]
    todo, used, assigned = [*implied, *names.intersection(every)], names, frozenset[str]()
    found: dict[FunctionType, None] = {}
    while todo:
        for function in every.pop(todo.pop(), ()):
            found[function] = None
            assigned |= _assigned(function.__code__)
            used |= _names(function.__code__)
            todo += _names(function.__code__).intersection(every)
    return Methods([*found], used, assigned)


def _called(hook: Any) -> tuple[Any, list]:
    """The function that is run where a hook is called, and what it is given besides the hook's arguments."""
    given: list = []
    while is_a(hook, partial):
        given += [*hook.args, *hook.keywords.values()]
        hook = hook.func
    if not is_a(hook, (FunctionType, MethodType)):
        hook = hook.__call__
    if is_a(hook, MethodType):
        given.append(hook.__self__)
        hook = hook.__func__
    return hook, given


class Walk:
    """Finds what modules reach outside their attributes, by what their methods and hooks name, and by what the
    functions and methods name that those call. Looks at each function once. With ``follow`` false, only methods and
    hooks are looked at. Nothing of the script's is run."""

    def __init__(self, follow: bool = True) -> None:
        self._follow = follow
        self._left = FOLLOWED
        self._done: dict[Any, Any] = {}  # what has been looked at; that keeps it, and so its id
        self._todo: list[FunctionType] = []

    def _first(self, key: Any, value: Any = None) -> bool:
        if key in self._done:
            return False
        self._done[key] = value
        return True

    def reached(self, module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
        """Yields, by name, everything outside a module's attributes that its methods and hooks may
        change. Methods and hooks that are not the script's own are left out. Plain values, which have
        no identity, are represented by their :class:`Names`, as is whatever gets a new value."""
        kind, own = type(module), vars(module)
        functions, classes = _classes(kind)  # type: ignore[arg-type]
        if classes:
            methods = _methods(kind, names_of(kind), True)  # type: ignore[arg-type]
            if self._first(kind):
                for c in classes:
                    self._first((c, "whole"))
                    yield from _of_class(c, vars(c), methods.assigned)
                for function in functions:
                    yield from self._used_by(function)
            if self._follow:
                yield from self._called_by(
                    [(n, v) for n, v in own.items() if n not in USUAL and n[0] != "_"], methods.names
                )
        for function in [f for f in own.values() if is_a(f, FunctionType) and is_own(f.__module__)]:
            yield from self._used_by(function)
        for hook in forward_hooks(module):
            function, given = _called(hook)
            if is_a(function, FunctionType) and is_own(function.__module__):
                yield from self._used_by(function, given)
        yield from self._rest()

    def used(self, function: FunctionType, given: Sequence = ()) -> Iterator[tuple[str, Any]]:
        """Yields, by name, what a function of the script's own may change, which is also given something."""
        yield from self._used_by(function, given)
        yield from self._rest()

    def functions(self) -> list[FunctionType]:
        """The functions that have been looked at."""
        return [v for v in self._done.values() if is_a(v, FunctionType)]

    def _rest(self) -> Iterator[tuple[str, Any]]:
        while self._todo and self._left > 0:
            self._left -= 1
            yield from self._used_by(self._todo.pop())

    def _later(self, functions: Iterable[FunctionType]) -> None:
        if self._follow:
            self._todo += [f for f in functions if id(f) not in self._done]

    def _used_by(self, function: FunctionType, given: Sequence = ()) -> Iterator[tuple[str, Any]]:
        """Yields what a function can reach by its globals, its closure and its defaults, and by what it is given."""
        if not self._first(id(function), function) and not given:
            return
        code = function.__code__
        names, assigned = _names(code), _assigned(code)
        values = [("", v) for v in (*given, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())]
        values += _closure(function)
        if is_own(function.__globals__.get("__name__", "")):
            values += _named(function.__globals__, names, assigned)
        if self._follow:
            shared = _shared(code)
            for name, cell in zip(code.co_freevars, function.__closure__ or ()):
                if name in shared and self._first(id(cell), cell):
                    yield name, Cell(cell, [name])
            if vars(function):
                values += _named(vars(function), names, assigned)
                self._later(_functions(vars(function).get("__wrapped__")))
        for name, value in values:
            yield from self._used(name, value, names, assigned)

    def _used(
        self, name: str, value: Any, names: frozenset[str], assigned: frozenset[str]
    ) -> Iterator[tuple[str, Any]]:
        """Yields what a function can reach by a value that it uses."""
        if is_a(value, Names):
            yield name, value
            return
        if type(value) in PLAIN:
            return
        if type(value) in (FunctionType, ModuleType):
            yield from self._used_of(value, names, assigned)
            return
        if is_a(value, MethodType) and self._follow:
            self._later(_functions(value))
            names |= {value.__func__.__name__}
        if is_a(value, (MethodType, BuiltinMethodType)):  # as a list's append
            value = value.__self__
        kind: Any = value if is_a(value, type) else type(value)
        if is_own(kind.__module__):
            if self._follow:
                methods = _methods(kind, names, value is kind)
                self._later(methods.functions)
                names, assigned = methods.names, methods.assigned | assigned
            yield from self._of_classes(kind, names, assigned)
        inner = None if is_a(value, (dict, list, deque, set)) else _inner(value)
        if is_a(value, torch.nn.Module):
            inner = vars(value)
            yield from self._used_inside(value, names, assigned)
        if inner is None:
            yield name, value
            yield from self._called_by([(name, value)], names)
            return
        # The other attributes of an object outside the model may belong to other code, and to other threads.
        for found in _named(inner, names, assigned):
            yield found
            yield from self._called_by([found], names)

    def _used_of(self, value: Any, names: frozenset[str], assigned: frozenset[str]) -> Iterator[tuple[str, Any]]:
        """Yields what a function can reach by another function, or by a Python module."""
        if not self._follow:
            return
        if is_a(value, FunctionType):
            self._later(_functions(value))
            if is_own(value.__module__) and (vars(value) or value.__name__ in names):
                yield from _named(vars(value), names, assigned)
        elif is_own(value.__name__) and self._first((id(value), names), value):
            for name, found in _named(vars(value), names, assigned):
                if type(found) is not ModuleType:
                    yield from self._used(name, found, names, assigned)

    def _used_inside(
        self, module: torch.nn.Module, names: frozenset[str], assigned: frozenset[str]
    ) -> Iterator[tuple[str, Any]]:
        """Yields what a function can reach by the hooks of a module that it calls, and by the modules inside."""
        if not self._follow or not self._first((id(module), names), module):
            return
        self._later(f for hooks in _of_one(module) for hook in hooks.values() for f in _functions(hook))
        for name in names.intersection(module._modules):
            yield from self._used(name, module._modules[name], names, assigned)

    def _of_classes(self, kind: type, names: frozenset[str], assigned: frozenset[str]) -> Iterator[tuple[str, Any]]:
        for c in _classes(kind)[1] if self._follow else (kind,):
            if (c, "whole") not in self._done:
                yield from _of_class(c, names, assigned)

    def _called_by(self, values: Iterable[tuple[str, Any]], names: frozenset[str]) -> Iterator[tuple[str, Any]]:
        """Notes the functions that code with these names may call of values that are yielded as a whole, and of their
        elements. Yields what their classes keep."""
        if not self._follow:
            return
        todo = [v for _, v in values]
        for value in todo:
            if is_a(value, (dict, list, tuple, deque)):
                if size(value) <= WIDE and len(todo) <= WIDE:
                    todo += elements(value)
            elif is_a(value, partial):
                todo += [value.func, *value.args, *value.keywords.values()]
            elif is_a(value, MethodType) and not is_a(value.__self__, torch.nn.Module):
                yield from self._used("", value, names, frozenset())
            elif is_a(value, FunctionType):
                self._later(_functions(value))
            elif type(value) not in PLAIN and not is_a(value, (torch.nn.Module, torch.Tensor, Names)):
                kind: Any = value if is_a(value, type) else type(value)
                if is_own(kind.__module__):
                    methods = _methods(kind, names, value is kind)
                    self._later(methods.functions)
                    if self._first((kind, names)):
                        yield from self._of_classes(kind, methods.names, methods.assigned)


@cache
def names_of(kind: type) -> frozenset[str]:
    """The names that the methods of a class of the script's own use; none of a library's."""
    return frozenset[str]().union(*(_names(f.__code__) for f in _classes(kind)[0]))


def _of_class(kind: type, names: Iterable[str], assigned: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yields the values by which methods may change a class: those of the given names."""
    own = {n: v for n, v in vars(kind).items() if n in names and not n.startswith("__")}
    yield "", Names(kind, _unhidden(kind, assigned).union(n for n, v in own.items() if is_a(v, PLAIN)))
    yield from [(n, v) for n, v in own.items() if is_a(v, (dict, list, deque, set))]


@cache
def _unhidden(kind: type, names: frozenset[str]) -> frozenset[str]:
    """The names by which a class has no methods, properties, slots and the like."""
    classes = [vars(c) for c in kind.__mro__]
    found = {n: next((own[n] for own in classes if n in own), None) for n in names if n[:2] != "__"}
    return frozenset(n for n, value in found.items() if not hasattr(type(value), "__get__"))


def named_by(kind: type) -> list[tuple[dict, str]]:
    """The globals, each with its namespace, that the methods of a class of the script's own name, and its functions and
    the methods of its other classes that these name. Only plain values, lists, dicts and objects of its classes."""
    todo, seen, found = [*_classes(kind)[0]], set[CodeType](), dict[tuple[int, str], tuple[dict, str]]()
    while todo and len(seen) < FUNCTIONS:
        function = todo.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        space = function.__globals__
        for name in sorted(_names(function.__code__) & space.keys()):
            value = space[name]
            if is_a(value, FunctionType):
                todo += [value] if is_own(value.__module__) else []
                continue
            own = value if is_a(value, type) else type(value)
            if is_own(own.__module__) and not issubclass(own, (torch.nn.Module, torch.Tensor)):
                methods = (getattr(f, "__func__", f) for f in vars(own).values())
                todo += [f for f in methods if is_a(f, FunctionType)]
            elif not is_a(value, PLAIN) and own not in (dict, list):
                continue
            if own is not value:
                found[id(space), name] = space, name
    return [*found.values()]


def plain_reached(module: torch.nn.Module) -> list[tuple]:
    """The plain values among those that a module's methods and hooks name, as (name, value)."""
    if not _classes(type(module))[1]:  # type: ignore[arg-type]
        return []
    found = (item for _, v in Walk(follow=False).reached(module) if is_a(v, Names) for item in v.before.items())
    return [(name, value) for name, value in found if is_a(value, PLAIN)]


def may_keep(hook: Any) -> bool:
    """Whether something may be seen afterwards of what a hook does, by what it and what it calls can reach: a list to
    which it may append, an attribute that it assigns, a tensor that it may write to. Of a library's hooks, only those
    that are methods of a container count."""
    function, given = _called(hook)
    if not is_a(function, FunctionType) or not is_own(function.__module__):
        return is_a(hook, BuiltinMethodType) and _inner(hook.__self__) is not None
    if _computes(function, given):
        return False
    walk = Walk()
    reached = [v for _, v in walk.used(function, given)]
    codes = [f.__code__ for f in walk.functions()]
    if any(map(_assigned, codes)) or any(map(_shared, codes)) or any(map(_contents_kind, reached)):
        return True
    return any(is_a(v, torch.Tensor) for v in reached) and any(map(_writes, codes))


_OF_TENSORS = frozenset(dir(torch.Tensor)) | frozenset(dir(torch))
_OF_CONTAINERS = frozenset(n for kind in (list, dict, set, deque) for n in dir(kind))


def _computes(function: FunctionType, given: Sequence) -> bool:
    """Whether a function does nothing but compute something of tensors and of plain values, as far as the names tell
    that it uses."""
    code = function.__code__
    if _assigned(code) or _shared(code) or _writes(code):
        return False
    reached = [*given, *(v for _, v in _closure(function))]
    held = [vars(v) if is_a(v, torch.nn.Module) else _inner(v) for v in reached]
    places = [function.__globals__, *(h for h in held if is_a(h, dict))]
    for name in _names(code):
        values = [p[name] for p in places if name in p]
        if not all(is_a(v, PLAIN) or is_a(v, ModuleType) and not is_own(v.__name__) for v in values):
            return False
        if not values and (name not in _OF_TENSORS or name in _OF_CONTAINERS):
            return False
    return True


def _contents_kind(value: Any) -> bool:
    return not is_a(value, Names) and type(value) not in PLAIN and _contents(value, set()) is not None


def _writes(code: CodeType) -> bool:
    """Whether a function may write to a tensor: it assigns to an index, or uses a name of a method that does."""
    stores = any(i.opname == "STORE_SUBSCR" for i in dis.get_instructions(code))
    return stores or any(n[-1] == "_" and n[0] != "_" for n in _names(code))


def _named(values: dict, names: frozenset[str], assigned: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yields the values of the given names, each with its name. Names that do not exist are left
    out. All plain values, and those ``assigned``, which may not exist yet, are yielded together, as one
    :class:`Names` with an empty name."""
    found = [n for n in names if n in values]
    yield "", Names(values, assigned.union(n for n in found if is_a(values[n], PLAIN)))
    yield from ((n, values[n]) for n in found if not is_a(values[n], PLAIN))


class Change(NamedTuple):
    """An attribute that has changed. If its value is still the same container, ``keys`` are the
    keys whose values differ; otherwise ``keys`` is empty. If the change is in a nested container,
    or in one that the module reaches in other ways, ``inside`` is that container and ``keys`` are
    its keys."""

    module: weakref.ref
    name: str
    keys: tuple
    inside: Optional[Contents] = None

    def values(self) -> list:
        """The present values of the attribute at these keys."""
        value: Any = vars(self.module()).get(self.name)
        if not self.keys:
            return tree_leaves(value) or [None]
        if is_a(value, dict):
            return [dict.get(value, k) for k in self.keys]
        held = elements(value)
        return [held[k] if k < len(held) else None for k in self.keys]

    def replace(self, value: Any) -> None:
        """Puts ``value`` in place of what a call has left in the attribute."""
        module = self.module()
        if module is None:
            return
        now = vars(module).get(self.name)
        contents = self.inside or (Contents(now) if self.keys and is_a(now, (dict, list)) else None)
        if contents is None:
            vars(module)[self.name] = value
        else:
            for key in self.keys:
                contents.put(key, value)


def computed(module: torch.nn.Module) -> set[str]:
    """The names of the attributes that PyTorch's own hooks compute anew before each call, as those of ``weight_norm``,
    ``spectral_norm`` and pruning do. No call reads what it has left there."""
    hooks = [h for h in module._forward_pre_hooks.values() if type(h).__module__.startswith("torch.nn.utils.")]
    return {n for h in hooks for n in (vars(h).get("name"), vars(h).get("_tensor_name")) if isinstance(n, str)}


def _attributes_of(ref: weakref.ref) -> dict:
    """The attributes of a module, as its own dictionary; an empty one if the module no longer exists."""
    module = ref()
    return {} if module is None else vars(module)


def _said(key: Any) -> str:
    return ".".join(key) if is_a(key, tuple) else str(key)


class Reached(NamedTuple):
    """A container that was reached from a module, by the name of an attribute or a global."""

    module: weakref.ref[torch.nn.Module]
    name: str
    contents: Contents
    attribute: bool  # the container is the attribute's value

    def change(self) -> Optional[Change]:
        """What has changed in the container; None if that is nothing, or if the attribute has another value now."""
        keys = self.contents.keys()
        if not keys or self.attribute and _attributes_of(self.module).get(self.name) is not self.contents.container:
            return None
        return Change(self.module, self.name or _said(keys[0]), tuple(keys), None if self.attribute else self.contents)


class Snapshot:
    """What some modules held at one moment. If ``deep`` is true, this includes what was nested
    inside. Keeps references, and copies no tensors. It does not keep the modules: a module keeps what
    is known about it, and the memory of a model is free as soon as the script drops the model."""

    def __init__(self, modules: Iterable[torch.nn.Module], deep: bool = False) -> None:
        self._own: list[tuple[weakref.ref[torch.nn.Module], dict]] = []
        self._reached: list[Reached] = []
        self._same: Optional[list] = None  # what follow compares
        seen: set[int] = set()
        walk = Walk()
        for m in modules:
            own, ref = dict(attributes(m)), weakref.ref(m)
            self._own.append((ref, own))
            for name, value in own.items():
                attribute = is_a(value, (dict, list))
                if attribute:
                    self._reached.append(Reached(ref, name, Contents(value), True))
                if deep and type(value) not in PLAIN:
                    every = (c for c in within(value, seen) if not attribute or c.container is not value)
                    self._reached += [Reached(ref, name, c, False) for c in every]
            if deep and (m._parameters or m._buffers):
                self._reached.append(Reached(ref, "", OnTensors(m._parameters, m._buffers), False))
            for name, value in walk.reached(m) if deep else ():
                found = (value,) if is_a(value, Names) else within(value, seen)
                self._reached += [Reached(ref, name, c, False) for c in found]

    def iterators(self) -> list[str]:
        """By what names the modules reach iterators from which something may still be taken."""
        return [r.name for r in self._reached if isinstance(r.contents, Taken) and not r.contents.over()]

    def keeps_graph(self) -> Optional[str]:
        """The name of something, not an attribute itself, into which a tensor with a graph has been put; None if there
        is nothing."""
        for c in self.changed():
            if c.inside is not None and any(
                is_a(t, torch.Tensor) and t.requires_grad for t in tree_leaves(_at(c.inside.container, c.keys))
            ):
                return c.name
        return None

    def without_computed(self) -> Snapshot:
        """The snapshot itself. Attributes that PyTorch's own hooks compute anew before each call have their present
        values in it, so that it holds no others."""
        for ref, own in self._own:
            module = ref()
            if module is not None:
                own.update((n, vars(module)[n]) for n in computed(module) if n in own and n in vars(module))
        return self

    def size(self) -> int:
        """The number of containers that are compared."""
        return len(self._reached)

    def changed(self) -> Iterator[Change]:
        """Yields everything that has changed since that moment."""
        for ref, own in self._own:
            now = _attributes_of(ref)
            for name in [*own, *(n for n in now if n not in own and n not in USUAL)] if now else ():
                if name not in now or name not in own or not is_same(own[name], now[name]):
                    yield Change(ref, name, ())
        yield from filter(None, (reached.change() for reached in self._reached))

    def follow(self) -> None:
        """Takes what the modules hold now for what they held. As long as nothing has changed, which is seen by the
        identity of what they hold, this takes a third of the time that comparing takes. For snapshots that are not
        deep."""
        now = self._present()
        if self._same is not None and len(now) == len(self._same) and all(map(is_, now, self._same)):
            return
        changed = {id(c.module) for c in self.changed()}
        newer = Snapshot(m for m in (ref() for ref, _ in self._own if id(ref) in changed) if m is not None)
        self._own = [o for o in self._own if id(o[0]) not in changed] + newer._own
        self._reached = [r for r in self._reached if id(r.module) not in changed] + newer._reached
        self._same = self._present()

    def _present(self) -> list:
        """What the modules' attributes are now, and what is in the containers among these. Not the worker's own: it
        would hold itself."""
        now: list = []
        for own in map(_attributes_of, (ref for ref, _ in self._own)):
            now += own.values() if "_compiled_call_impl" not in own else (v for n, v in own.items() if n not in USUAL)
        for reached in self._reached:
            if not is_a(reached.contents.before, int):
                container = reached.contents.container
                kind = type(container)
                now += container.values() if kind is dict else container if kind is list else elements(container)
        return now

    def held(self) -> list[tuple[weakref.ref[torch.nn.Module], dict]]:
        """What the modules' attributes were: another list once :meth:`follow` has seen something change."""
        return self._own

    def unchanged(self) -> list[tuple[weakref.ref[torch.nn.Module], dict]]:
        """The attributes that are still the same, for each module."""
        found = []
        for ref, own in self._own:
            now = _attributes_of(ref)
            found.append((ref, {n: v for n, v in own.items() if n in now and is_same(now[n], v)}))
        return found

    def plain(self, change: Change) -> bool:
        """Whether the changed values were, and are, nothing but numbers, strings and other plain values."""
        if change.inside is not None:
            return change.inside.plain(change.keys)
        ref, name = change.module, change.name
        if change.keys:
            found = (r.contents for r in self._reached if r.attribute and r.module is ref and r.name == name)
            return next(found).plain(change.keys)
        return _plain([next(own for r, own in self._own if r is ref).get(name), _attributes_of(ref).get(name)])

    def put_back(self) -> None:
        """Puts everything back as it was."""
        for ref, own in self._own:
            now = _attributes_of(ref)
            for name in [n for n in now if n not in own and n not in USUAL]:
                del now[name]
            for name, value in own.items() if now else ():
                if now.get(name, self) is not value:
                    now[name] = value
        for reached in self._reached:
            reached.contents.put_back()
