"""From tensors up to what holds them: the container that all of them are in, and what the script calls it.

References are followed from a few tensors, level by level, with one question to the garbage collector for a whole
level. The frames that are running are no referrers: their variables are read."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextvars import ContextVar
from functools import lru_cache
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    GeneratorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import Any, Callable, NamedTuple, Optional
from weakref import ReferenceType

import torch

from ..tape.trees import is_a
from .look import LONG, Variables, frames, function, key_of
from .source import source

LEVELS = 12  # from a tensor up to what holds it: a weight of a model in a list of models is eight below the list
NAMING = 6  # from a container up to what has a name
NEAR = 4  # levels between a tensor and what is chained together
WIDTH = 64  # the most objects that one question is about
MANY = 4096  # objects that are asked at once for what they hold
SECONDS = 4.0  # of this thread's own time, after which no further level is asked about
REACHED = 20_000  # the most objects that are counted below a container

LRU = type(lru_cache(lambda: None))


# Where a module has its hooks.
HOOKS = {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks"}


class Name(NamedTuple):
    """What a script calls something."""

    text: str  # as far as it can be told without the source
    last: str  # the variable or attribute
    attribute: bool
    files: tuple[str, ...]  # where to look for it
    within: Optional[tuple[int, str]] = None  # the function whose variable it is: its first line and name
    line: int = 0  # that is known without the source
    temporary: bool = False  # the variable of a function that is called in a loop
    tuple: bool = False  # it has a tuple, and what is looked for is in that
    key: Any = None  # it is a dict, and what is looked for is in it under this key
    library: bool = False  # the attribute of an object whose class is not the script's


class Held(NamedTuple):
    """A container, and what was seen on the way to it."""

    holder: Any
    path: tuple[Any, ...]  # the objects between one of the tensors and the holder


class Walk:
    """Follows references. ``hidden`` has what is not the script's: the lists of the look itself. ``tasks`` are those of
    asyncio: the collector knows what they have, but does not name them if it is asked who has it."""

    def __init__(self, hidden: list[Any], foreign: Callable[[str], bool], tasks: Sequence[Any] = ()) -> None:
        self._foreign, self._tasks = foreign, tasks
        self._hidden = {id(h) for h in hidden} | {id(self.__dict__), id(self)}
        self._until = time.thread_time() + SECONDS
        self._under: dict[int, Any] = {}  # id of a dict → under which key what is looked for is in what it has

    def hides(self, *ours: Any) -> None:
        """Leave out objects that are not the script's."""
        self._hidden |= {id(o) for o in ours}

    def _referrers(self, objects: list[Any]) -> list[Any]:
        if time.thread_time() > self._until or not objects:
            return []
        found = gc.get_referrers(*objects[:WIDTH])
        asked = {id(o) for o in objects[:WIDTH]}
        found += [t for t in self._tasks if any(id(o) in asked for o in _referents(t))]
        self._hidden.add(id(objects))
        left_out = self._hidden | {id(f) for f in frames()}
        return [r for r in found if id(r) not in left_out and not _ours(r)]

    def common(self, samples: list[Any], need: int, stays: Callable[[Any], bool] = lambda o: False) -> list[Held]:
        """The nearest objects from which at least ``need`` of the samples are reached, and that do not stay as they
        are."""
        reach = {id(s): {i} for i, s in enumerate(samples)}
        below: dict[int, Any] = {}  # id of an object → the object below it that led there
        every = [*samples]
        level = [*samples]
        mine = [reach, below, every, samples]
        self._hidden |= {id(m) for m in mine}
        for _ in range(LEVELS):
            self._hidden.add(id(level))
            at = {id(o): o for o in level}
            self._hidden.add(id(at))
            following: list[Any] = []
            changed = set()
            self._hidden.add(id(following))
            for r in self._referrers(level):
                if is_a(r, (ModuleType, CodeType, type)) or _namespace(r) and not _grows(r, at):
                    continue
                inside = [o for o in _referents(r) if id(o) in at]
                self._hidden.add(id(inside))
                known = reach.setdefault(id(r), set())
                before = len(known)
                for o in inside:
                    known |= reach[id(o)]
                    below.setdefault(id(r), o)
                if before == 0 and known:
                    following.append(r)
                    every.append(r)
                if len(known) > before:
                    changed.add(id(r))
            shared = [o for o in every if id(o) in changed and len(reach[id(o)]) >= need and not stays(o)]
            if shared:
                self._hidden.add(id(shared))
                return [Held(o, self._path(o, below)) for o in sorted(shared, key=_plain)]
            if not following:
                return []
            level = following[:WIDTH]
        return []

    def chained(self, samples: list[Any], need: int) -> list[Held]:
        """The ends of chains in which each object holds the one before it, and each its own sample: a linked list, or
        exceptions that name their causes."""
        level = samples
        for _ in range(NEAR):
            self._hidden.add(id(level))
            level = self._referrers(level)
            kinds = Counter(type(o) for o in level)
            self._hidden |= {id(level), id(kinds)}
            for kind, number in kinds.items():
                if number >= need and not issubclass(
                    kind, (list, dict, set, deque, FrameType, TracebackType, CellType)
                ):
                    ends = self._ends(kind)
                    if ends:
                        return [Held(o, ()) for o in ends]
        return []

    def end(self, held: Held) -> Held:
        """The end of the chain in which a holder is; itself if it is in none."""
        if is_a(held.holder, (list, dict, set, deque, FunctionType, GeneratorType)) or held.holder is None:
            return held
        ends = self._ends(type(held.holder))
        return Held(ends[0], held.path) if len(ends) == 1 and ends[0] is not held.holder else held

    def _ends(self, kind: type) -> list[Any]:
        """The objects of one type that hold another of it, and that no other holds; none if there are many."""
        every = [o for o in gc.get_objects() if type(o) is kind]
        holds: list[Any] = []
        inner: set[int] = set()
        self._hidden |= {id(every), id(holds)}
        for o in every:
            below = [r for r in _referents(o)]
            below += [x for r in below if type(r) in (dict, tuple) and r is not o for x in _referents(r)]
            found = {id(r) for r in below if type(r) is kind and r is not o}
            if found:
                holds.append(o)
            inner |= found
        ends = [o for o in holds if id(o) not in inner]
        self._hidden.add(id(ends))
        return ends if len(holds) >= LONG > len(ends) else []

    def _path(self, holder: Any, below: dict[int, Any]) -> tuple[Any, ...]:
        path: list[Any] = []
        o = holder
        while id(o) in below and len(path) <= LEVELS:
            o = below[id(o)]
            path.append(o)
        return tuple(path)

    def names(self, holder: Any) -> list[Name]:
        """What the script calls an object, or what the object is in; empty if nothing is found."""
        inner: list[Name] = []  # what libraries call it
        level: list[tuple[Any, Any]] = [(holder, None)]  # an object, and under which key what is looked for is in it
        for _ in range(NAMING):
            objects = [o for o, _ in level]
            found = self._variables(level)
            following: list[tuple[Any, Any]] = []
            referrers = self._referrers(objects)
            self._hidden |= {id(level), id(objects), id(referrers), id(following)}
            at = {id(o): (o, key) for o, key in level}
            self._hidden |= {id(at), *(id(v) for v in at.values()), *(id(v) for v in level)}
            for r in referrers:
                for o in _referents(r):
                    if id(o) in at:
                        self._up(r, *at[id(o)], found, following)
            inner += [n for n in found if self._library(n)]
            found = [n for n in found if not self._library(n)]
            if found:
                return found + self._attributes(inner)
            level = following[:WIDTH]
            if not level:
                break
        return inner

    def _attributes(self, inner: list[Name]) -> list[Name]:
        """Attributes of objects of libraries, such as ``argparse.Namespace``: the script may use them by name."""
        every = [n._replace(files=tuple(f for f in n.files if not self._foreign(f)), library=True) for n in inner]
        return [n for n in every if n.attribute and n.files]

    def _library(self, name: Name) -> bool:
        """Whether a name is in a file that is not the user's, such as that of ``queue.Queue``."""
        return bool(name.files) and self._foreign(name.files[0]) and name.last not in HOOKS

    def named(self, objects: list[Any]) -> list[Any]:
        """Those that are in a variable or in any object: the rest is held by C++ only."""
        asked = {id(o) for o in objects}
        found = {id(v) for f in frames() if not _is_ours(f) and function(f) for v in _local(f).values()}
        every = gc.get_objects()
        self.hides(objects, asked, found, every)
        left_out = self._hidden | {id(f) for f in frames()}
        for i in range(0, len(every), MANY):
            some = [o for o in every[i : i + MANY] if id(o) not in left_out]
            if not asked.isdisjoint(map(id, gc.get_referents(*some))):
                found.update(id(o) for r in some if not _ours(r) for o in _referents(r))
        return [o for o in objects if id(o) in found]

    def of_optimizer(self, holder: Any) -> bool:
        """Whether something is an optimizer, or the state that one keeps."""
        if is_a(holder, torch.optim.Optimizer):
            return True
        return is_a(holder, dict) and any(
            is_a(o, torch.optim.Optimizer) and vars(o).get("state") is holder for o in gc.get_objects()
        )

    def of_module(self, holder: Any) -> bool:
        """Whether something is a module, or the dict of its attributes, buffers, parameters or modules."""
        if is_a(holder, torch.nn.Module):
            return True
        modules = (o for o in gc.get_objects() if is_a(o, torch.nn.Module)) if type(holder) is dict else ()
        return any(holder is d for m in modules for d in (vars(m), *map(vars(m).get, _PARTS)))

    def limited(self, holder: Any, names: list[Name]) -> bool:
        """Whether a container is inside a queue that takes only so many."""
        if not any(n.library and n.last in _QUEUED for n in names):
            return False
        level = self._referrers([holder])
        for queue in (*level, *self._referrers([r for r in level if type(r) is dict])):
            if type(queue).__module__ in ("queue", "asyncio.queues", "multiprocessing.queues"):
                own = vars(queue)
                return any(type(most) is int and most > 0 for most in (own.get("maxsize"), own.get("_maxsize")))
        return False

    def cached(self, holder: Any) -> Any:
        """The function whose results ``functools.lru_cache`` has put into a dict; None if the dict is another."""
        return next((r for r in self._referrers([holder]) if is_a(r, LRU)), None)

    def registered(self) -> Optional[tuple[str, str]]:
        """The line in which the script registers a hook, again and again, and the method that it calls."""
        for file in self._files():
            text = source(file)
            found = text.registers() if text is not None else None
            if found is not None:
                return f"{file}:{found[0]}", found[1]
        return None

    def model_of(self, gradient: Any) -> tuple[str, tuple[str, ...]]:
        """What the script calls the model to which a gradient belongs, and the files whose functions are running."""
        files = self._files()
        for frame in frames():
            if self._foreign(frame.f_code.co_filename) or _is_ours(frame):
                continue
            values = {**frame.f_globals, **(_local(frame) if function(frame) else {})}
            for name, value in values.items():
                model = value if is_a(value, torch.nn.Module) else None
                if model is not None and any(p.grad is gradient for p in torch.nn.Module.parameters(model)):
                    return name, files
        return "", files

    def _variables(self, level: list[tuple[Any, Any]]) -> list[Name]:
        """The variables of running functions that have one of some values."""
        wanted = {id(o): key for o, key in level}
        found = []
        for frame in frames():
            code = frame.f_code
            if _is_ours(frame) or not function(frame):
                continue
            with Variables(frame) as local:
                for name, value in local.items():
                    if id(value) in wanted and not is_a(value, ModuleType):
                        own = name not in code.co_freevars  # otherwise it belongs to a function around it
                        found.append(
                            Name(
                                name + _suffix(wanted[id(value)]),
                                name,
                                False,
                                (code.co_filename,),
                                (code.co_firstlineno, code.co_name) if own else None,
                                temporary=own and self._temporary(frame),
                                tuple=wanted[id(value)] is _TUPLE,
                                key=_plain_key(wanted[id(value)]),
                            )
                        )
                local.clear()
        return sorted(found, key=lambda n: self._foreign(n.files[0]))

    def arrays(self) -> list[tuple[Any, Name]]:
        """The arrays that the variables of running functions of the script name, and attributes of what these name."""
        found = []
        for frame in frames():
            code = frame.f_code
            if self._foreign(code.co_filename) or _is_ours(frame):
                continue
            within = (code.co_firstlineno, code.co_name) if function(frame) else None
            again = within is not None and self._temporary(frame)
            for name, value in (_local(frame) if within is not None else {**frame.f_globals}).items():
                if is_array(value):
                    found.append((value, Name(name, name, False, (code.co_filename,), within, temporary=again)))
                    continue
                own: Any = _own(value)
                for attribute, inner in dict.items(own) if is_a(own, dict) and not is_a(value, ModuleType) else ():
                    if is_array(inner) and type(attribute) is str:
                        text, files = (
                            f"{type(value).__name__}.{attribute}",
                            (*class_file(type(value)), code.co_filename),
                        )
                        found.append((inner, Name(text, attribute, True, files)))
        return found

    def _temporary(self, frame: FrameType) -> bool:
        outer = frame.f_back
        while outer is not None and frame.f_code.co_name != "<module>":
            if not self._foreign(outer.f_code.co_filename):
                text = source(outer.f_code.co_filename)
                if text is not None and text.in_loop(outer.f_lineno):
                    return True
            frame, outer = outer, outer.f_back
        return False

    def _up(self, r: Any, o: Any, key: Any, found: list[Name], following: list[tuple[Any, Any]]) -> None:
        """Notes what ``r`` calls ``o``; or that something has to be known about ``r`` first."""
        kind = type(r)
        if kind is dict or issubclass(kind, dict):
            self._up_from_dict(r, o, key, found, following)
        elif kind.__name__.startswith("hamt"):
            following.append((_context_variable(r, o), None))
        elif is_a(r, tuple):
            following.append((r, o if is_a(o, CellType) else _TUPLE))
        elif is_a(r, (list, set, frozenset, deque, CellType, LRU)):
            following.append((r, None))
        elif is_a(r, FunctionType):
            found.extend(self._of_function(r, o, key))
        elif is_a(r, GeneratorType):
            found.extend(_of_generator(r, o))
        elif not is_a(r, (MethodType, BuiltinFunctionType, MappingProxyType, FrameType, TracebackType)):
            self._up_from_object(r, o, key, found, following)

    def _up_from_dict(self, r: dict, o: Any, key: Any, found: list[Name], following: list[tuple[Any, Any]]) -> None:
        names = [k for k, v in dict.items(r) if v is o]
        if not names:
            return
        file = _namespace(r)
        if file is not None:
            name = str(names[0])
            if not _is_foreign_namespace(r):
                files = (file, *self._files())
                found.append(Name(name + _suffix(key), name, False, files, tuple=key is _TUPLE, key=_plain_key(key)))
            return
        # What a thread's variables and a module's tensors are called stands in a dict of their own.
        apart = is_a(names[0], ReferenceType) or type(names[0]) is str and names[0] in _REGISTERED
        following.append((r, key if apart and type(key) is str else names[0]))
        self._under[id(r)] = key

    def _up_from_object(self, r: Any, o: Any, key: Any, found: list[Name], following: list[tuple[Any, Any]]) -> None:
        name = _attribute(r, o, key)
        if name in _REGISTERED and type(r).__module__.startswith("torch."):
            following.append((r, None))  # a ParameterList has the name of the script's variable only
        elif name:
            owner = r if is_a(r, type) else type(r)
            # the dict may be that of all attributes
            inner = self._under.get(id(o)) if type(key) is str and key == name else key
            files = (*class_file(owner), *self._files())
            if not is_a(r, (type, torch.nn.Module)) and self._foreign(files[0] if files else ""):
                following.append((r, None))
            found.append(
                Name(
                    f"{owner.__name__}.{name}{_suffix(inner)}",
                    name,
                    True,
                    files,
                    key=_plain_key(inner),
                    tuple=key is _TUPLE or type(o) is dict and is_a(o.get(name), tuple),
                )
            )
        elif not is_a(r, (ModuleType, CodeType, type)):
            following.append((r, None))

    def _of_function(self, r: FunctionType, o: Any, key: Any) -> list[Name]:
        code = r.__code__
        within = (code.co_firstlineno, code.co_name)
        for name, cell in zip(code.co_freevars, r.__closure__ or ()):
            if cell is key:
                return [Name(name, name, False, (code.co_filename,))]
        if vars(r) is o and type(key) is str:
            return [Name(f"{code.co_name}.{key}", key, True, (code.co_filename,))]
        if r.__kwdefaults__ is o and type(key) is str:
            return [Name(key, key, False, (code.co_filename,), within)]
        if r.__defaults__ is o:
            for name, value in zip(reversed(code.co_varnames[: code.co_argcount]), reversed(r.__defaults__ or ())):
                if is_a(value, (list, dict, set, deque)):
                    return [Name(name, name, False, (code.co_filename,), within)]
        return [Name(f"{code.co_name}.{n}", n, True, (code.co_filename,)) for n, v in vars(r).items() if v is o]

    def _files(self) -> tuple[str, ...]:
        """The user's files whose functions are running."""
        found = (f.f_code.co_filename for f in frames())
        return tuple(dict.fromkeys(f for f in found if not self._foreign(f)))


_PARTS = ("_buffers", "_parameters", "_modules")  # dicts that a module has
_QUEUED = {"queue", "_queue", "_buffer"}  # the attributes in which queues have what is in them
_REGISTERED = ("_parameters", "_buffers", "_modules")  # the attributes of a module that it keeps in dicts
_TUPLE = object()  # stands for the place of something in a tuple


def _plain_key(key: Any) -> Any:
    return key if type(key) in (str, int) else None  # to compare any other may run code of the script's


def _suffix(key: Any) -> str:
    return f"[{key!r}]" if _plain_key(key) is not None else ""


def _local(frame: FrameType) -> dict[str, Any]:
    with Variables(frame) as local:
        return local


def _referents(o: Any) -> list[Any]:
    return gc.get_referents(o)


def _context_variable(values: Any, o: Any) -> Any:
    """The variable behind which a value of a context stands; what has all of the context's values if none is seen."""
    inside = _referents(values)
    at = next(i for i, one in enumerate(inside) if one is o)
    return next((v for v in inside[max(0, at - 1) : at + 2] if is_a(v, ContextVar)), values)


def _of_generator(generator: GeneratorType, o: Any) -> list[Name]:
    """The variable of a generator that has something, as long as that is not used up."""
    frame = generator.gi_frame
    name = next((n for n, v in _local(frame).items() if v is o), "") if frame is not None else ""
    if not name:
        return []
    code = frame.f_code
    return [Name(name, name, False, (code.co_filename,), (code.co_firstlineno, code.co_name))]


def _plain(o: Any) -> int:
    """Containers come before what is around them."""
    return 0 if is_a(o, (list, dict, set, deque, tuple)) else 1


def _ours(o: Any) -> bool:
    kind = type(o)
    if is_a(o, FrameType):
        return _is_ours(o)
    if kind is FunctionType:
        return str(o.__module__).startswith("headroom_train.")
    return str(getattr(kind, "__module__", "")).startswith("headroom_train.")


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("headroom_train.")


def _namespace(o: Any) -> Optional[str]:
    """The file whose global variables a dict has; None if it is another dict."""
    if type(o) is not dict or "__name__" not in o or "__builtins__" not in o:
        return None
    file = o.get("__file__")
    if is_a(file, str):
        return file
    here = (f.f_code.co_filename for f in frames() if f.f_globals is o)
    return next(here, str(o["__name__"]))


def _is_foreign_namespace(o: dict) -> bool:
    return str(o.get("__name__", "")).startswith(("headroom_train.", "torch."))


def _grows(namespace: Any, inside: dict[int, Any]) -> bool:
    """Whether a file's own variables are what becomes more."""
    return sum(id(v) in inside for v in namespace.values()) > 2


def class_file(owner: type) -> tuple[str, ...]:
    module = sys.modules.get(owner.__module__)
    file = getattr(module, "__file__", None)
    return (file,) if isinstance(file, str) and os.path.basename(os.path.dirname(file)) != "modules" else ()


def _attribute(owner: Any, value: Any, key: Any) -> str:
    """The attribute of ``owner`` that has this value, or that is the entry ``key`` of this dict of attributes."""
    own: Any = vars(owner) if is_a(owner, type) else _own(owner)
    if is_a(key, str) and _are_attributes(value, owner, own, key):
        return key
    for name, v in dict.items(own) if is_a(own, dict) else ():
        if v is value:
            return str(name)
    return _slot(owner, value)


def _own(owner: Any) -> Optional[dict[str, Any]]:
    """The dict of an object's attributes; None if it has none."""
    try:
        return object.__getattribute__(owner, "__dict__")
    except Exception:
        return None


def _are_attributes(value: Any, owner: Any, own: Any, key: str) -> bool:
    """Whether a value is a dict of an object's attributes, or of some of them, one of which is called ``key``."""
    if is_a(owner, type) and is_a(value, dict) and key in own and own[key] is value.get(key):
        return True
    if own is value or type(owner).__name__ == "_local":
        return True
    return is_a(owner, torch.nn.Module) and any(own.get(n) is value for n in _REGISTERED)


def _slot(owner: Any, value: Any) -> str:
    """The attribute in a slot of its own that has a value."""
    for kind in type(owner).__mro__:
        for name, member in kind.__dict__.items():
            if is_a(member, MemberDescriptorType):
                try:
                    if member.__get__(owner) is value:
                        return str(name)
                except AttributeError:
                    pass
    return ""


def is_array(o: Any) -> bool:
    return type(o).__module__ == "numpy" and type(o).__name__ == "ndarray"


def unseen() -> list[dict]:
    """The dicts of which the garbage collector knows nothing, as nothing in them can hold anything else: dicts of
    arrays, for one. They are looked for in all objects, which takes as long as a look."""
    found: dict[int, dict] = {}
    for o in gc.get_objects():
        for r in gc.get_referents(o):
            if type(r) is dict and len(r) >= LONG and not gc.is_tracked(r):
                found[id(r)] = r
    return [*found.values()]


class Content(NamedTuple):
    """What is in a container, with all that is in it."""

    tensors: int
    bytes: int
    new: int  # of the tensors
    new_bytes: int
    graphs: int  # tensors with a graph
    roots: list[Any]  # graphs of the new tensors
    arrays: int
    array_bytes: int
    storages: frozenset = frozenset()  # the memory behind the tensors


def content(holder: Any, before: frozenset, models: bool, running: set[int]) -> Content:
    """Counts what is reached from a container. Models and optimizers are entered only if they are what is counted."""
    todo: list[Any] = [holder]
    seen, storages = {id(holder)}, set()
    tensors = held = new = new_bytes = graphs = arrays = array_bytes = 0
    roots = []
    while todo and len(seen) < REACHED:
        o = todo.pop()
        if is_a(o, torch.Tensor):
            key = key_of(o)
            if key is None or key in storages:
                continue
            storages.add(key)
            size = o.untyped_storage().nbytes()
            tensors, held, graphs = tensors + 1, held + size, graphs + (o.grad_fn is not None)
            if key not in before:
                new, new_bytes = new + 1, new_bytes + size
                if o.grad_fn is not None:
                    roots.append(o.grad_fn)
            if models and o.is_leaf and o.grad is not None:
                todo.append(o.grad)
            continue
        if is_array(o):
            arrays, array_bytes = arrays + 1, array_bytes + int(o.nbytes)
            continue
        for r in gc.get_referents(o):
            if id(r) not in seen and _entered(r, models, running):
                seen.add(id(r))
                todo.append(r)
    return Content(tensors, held, new, new_bytes, graphs, roots, arrays, array_bytes, frozenset(storages))


def _entered(r: Any, models: bool, running: set[int]) -> bool:
    """Whether what is reached through something counts as being in the container."""
    if is_a(r, (type, ModuleType, CodeType, str, int, float)) or _namespace(r) is not None:
        return False
    if id(r) in running or is_a(r, (torch.nn.Module, torch.optim.Optimizer)) and not models or _ours(r):
        return False
    return type(r) is not FunctionType or bool(r.__closure__ or r.__defaults__)
