"""The calls of a step, from its first outermost module call to ``backward``.

The tape holds functions and their arguments, but no intermediate values. Among the arguments, a
:class:`Ref` represents a tensor that was made on the tape, and an :class:`Outside` a tensor that
came from elsewhere. Tensors made on the tape are the user's own objects, whose class is
:class:`Recorded` until the tape is closed. Their storage, graph and identity stay the same, so
nothing is computed twice and nothing is left behind.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any, Callable, ClassVar, NamedTuple, Optional
from zlib import crc32

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ..failure import bare, comes_later, interrupts, unframed
from ..hooks.genuine import (
    asked,
    data_ptr,
    element_size,
    hidden,
    is_inference,
    numel,
    unseen_copy,
    untyped_storage,
    version_of,
)
from ..hooks.swaps import Weak
from .functions import SELECTS
from .graph import drop
from .snapshot import parameters
from .step import Step
from .trees import LEAVES, Tree, described, flatten, is_a, plain, unflatten

SHORT = 4  # a tape with fewer entries is not shortened,
HEAVY = 16 << 20  # unless it has got so many bytes of tensors from elsewhere since
LONGEST = 4096  # the most entries: in a loop that never calls backward the tape must not grow forever
PART, PARTS = 4096, 16  # of a tensor with more bytes, so many parts of so many bytes are read for its checksum
UPDATED = "parameters have been changed since they were used"


# The keys that a script may exclude by itself: those of autocast.
_EXCLUDED = [*filter(torch._C._dispatch_tls_local_exclude_set().has, torch._C.DispatchKey.__members__.values())]


class Ref(NamedTuple):
    """A tensor that was made on the tape."""

    slot: int


class Outside(NamedTuple):
    """A tensor that came from elsewhere."""

    index: int  # type: ignore[assignment]


class Packed:
    """An argument, other than a tuple, list or dict, with tensors inside. ``leaves`` and ``tree`` are its contents,
    with a :class:`Ref` or an :class:`Outside` for each tensor."""

    __slots__ = ("original", "leaves", "tree")

    def __init__(self, original: Any, leaves: list, tree: Tree) -> None:
        self.original, self.leaves, self.tree = original, leaves, tree

    def __repr__(self) -> str:
        return f"{type(self.original).__name__}{described(self.leaves)}"

    def filled(self, put: Callable[[Any], Any]) -> Any:
        """The object with what ``put`` makes of its leaves: the original object if that is what it has already."""
        now = flatten(self.original)[0]
        wanted = [put(leaf) for leaf in self.leaves]
        return self.original if all(a is b for a, b in zip(now, wanted)) else unflatten(wanted, self.tree)


def is_place(node: Any) -> bool:
    """Whether a node of a tree stands for a tensor."""
    return type(node) in (Ref, Outside)


class Place:
    """The place of a recorded tensor: its tape and slot. A *deferred* tensor has no values: they
    were never computed, or they have been released. They can be computed from the tape."""

    __slots__ = ("tape", "slot", "deferred", "failure", "why")

    def __init__(self, tape: Tape, slot: int) -> None:
        self.tape, self.slot, self.deferred = tape, slot, False
        # Raised when a tensor that a module left behind is used, and what is said then.
        self.failure: Optional[BaseException] = None
        self.why = ""


class Entry:
    """One call. ``args`` and ``kwargs`` are trees with :class:`Ref` and :class:`Outside` leaves."""

    __slots__ = (
        "call", "module", "args", "kwargs", "grad", "autocast", "modes", "saving", "slots", "inplace", "versions",
        "between", "exits", "fresh", "labelled", "nth", "random", "state", "snapshot", "found", "seen", "fixed",
        "buffers", "values", "_leaves", "_references",
    )  # fmt: skip

    def __init__(self, call: Callable[..., Any], module: Optional[torch.nn.Module], args: Any, kwargs: Any) -> None:
        self.call, self.module, self.args, self.kwargs = call, module, args, kwargs
        self.grad = torch._C.is_grad_enabled()
        self.autocast = autocast_state()
        self.modes = function_modes()
        self.saving = _saving(True)  # the script's hooks for what autograd saves; None if there are none
        self.slots: list[Optional[int]] = []  # of the flattened outputs; None for an output that is not on the tape
        self.inplace = False
        self.nth = 0  # which of the module's calls this is
        self.random: Optional[RandomState] = None  # the random state before the call of a module
        # Of the module when its call was tried: see recorded_module.state_of.
        self.state: Optional[tuple[int, int, tuple]] = None
        self.snapshot: Any = None  # what the module held before its call, if the call reads what it changes
        self.found: Any = None  # what the call of a module found in attributes: see found.Found
        self.seen: Any = None  # what the call returned for a few rows when the script made it: see Plan.result
        self.versions: Optional[list[int]] = None  # of the module's parameters
        # What tells the buffers apart that the module's calls do not change, and what it said: see holds.
        self.fixed: Callable[[bool], dict] = lambda values: {}
        self.buffers: dict = {}
        self.values = False
        self.between = (0, 0)  # sequence numbers of the nodes that a module's call made
        self.fresh = False  # the call changed a scalar in place, and is replayed on a copy
        self.labelled = False  # a module's call has set attributes on a tensor that it has returned
        self.exits: set[int] = set()  # sequence numbers of the nodes that made its results
        self._leaves: Optional[list] = None
        self._references: Optional[tuple[list[int], list[int]]] = None

    def holds(self, fixed: Callable[[bool], dict], values: bool = False) -> None:
        """Notes what the module's buffers are, once the call has been made, or, with their ``values``, before it is
        made in another way. ``fixed`` is :meth:`RecordedModule.fixed`."""
        self.fixed, self.values = fixed, values
        self.buffers = fixed(values)

    def leaves(self) -> list:
        """The leaves of the call's arguments, with a :class:`Ref` or an :class:`Outside` for each tensor."""
        if self._leaves is None:
            self._leaves = [leaf for t in self._arguments() for leaf in (t.leaves if type(t) is Packed else (t,))]
        return self._leaves

    def _arguments(self) -> list:
        return tree_leaves((self.args, self.kwargs), is_leaf=is_place)

    def packed(self) -> list[str]:
        """The names of the classes of the objects among the call's arguments."""
        return [type(t.original).__name__ for t in self._arguments() if type(t) is Packed]

    def references(self) -> tuple[list[int], list[int]]:
        """The slots, and the indices of the outside tensors, among the call's arguments."""
        if self._references is None:
            slots = [leaf.slot for leaf in self.leaves() if type(leaf) is Ref]
            self._references = slots, list(dict.fromkeys(leaf.index for leaf in self.leaves() if type(leaf) is Outside))
        return self._references

    def call_name(self) -> str:
        """The function's name, or the module's class."""
        if self.module is not None:
            return type(self.module).__name__
        return getattr(self.call, "__name__", str(self.call))


class Tape:
    """The calls of one step. Used only on the thread that trains."""

    # Called with a tape before it is closed; set by headroom find, which runs its calls again afterwards.
    closes: ClassVar[Optional[Callable[[Tape], None]]] = None

    def __init__(self) -> None:
        self.step = Step()
        self.entries: list[Entry] = []
        self.outside: list[torch.Tensor] = []
        self.contents: list[tuple[int, int]] = []  # of the outside tensors when they were recorded
        self._known: dict[int, int] = {}  # id of an outside tensor → index
        # Arguments in whose places keep has put copies, with their versions then.
        self._copied: list[tuple[Entry, Weak, int]] = []
        self.live: list[Weak] = []
        self._held = 0  # how many of the live tensors the user still holds, of those that have a graph or no values
        # Values of results with one element that require a gradient, by slot.
        self.scalars: dict[int, torch.Tensor] = {}
        self.count = 0  # the number of slots
        # Slots whose values the script has read, and may have acted upon, and those from which they were computed.
        self.acted: set[int] = set()
        self.why_not: Optional[str] = None  # the reason why the tape cannot be replayed; None if it can
        self.random = random_state()
        # How many entries, or new bytes in outside, there may be before entries are looked for that can be forgotten.
        self._long, self._heavy = SHORT, HEAVY
        self._added = 0  # new bytes in outside
        # On which it is recorded: see owner.Thread; None once that has ended.
        self.thread: Callable[[], Any] = lambda: None
        # Sequence numbers of the graphs of tries and replays, which must not be used.
        self.spans: list[tuple[int, int]] = []
        self.deferred: Any = None  # what is known about its deferred tensors
        self.bends = False  # its backward pass may not be linear: see graph.may_bend
        # What the weights were like when something failed, by id, of a script without an optimizer: see rerun.weigh.
        self.weights: dict[int, list[float]] = {}
        # The DistributedDataParallels around its modules: see ranks.ddp.Reducers; None if there are none.
        self.reducers: Any = None

    # Recording.

    def encode(self, tree: Any) -> Any:
        """The tree of arguments, with references in place of tensors."""
        kind = type(tree)
        if kind is Recorded and tree._headroom.tape is self:
            return Ref(tree._headroom.slot)
        if is_a(tree, torch.Tensor):
            return self._outer(tree)
        if kind is tuple or kind is list:
            return kind(tree) if plain(tree) else kind(map(self.encode, tree))
        if kind is dict:
            return {k: self.encode(v) for k, v in tree.items()}
        if kind in LEAVES:
            return tree
        leaves, structure = flatten(tree)  # nothing of the script's is built anew: its constructor may count or check
        if not any(is_a(t, torch.Tensor) for t in leaves):
            return tree
        return Packed(tree, [self.encode(t) if is_a(t, torch.Tensor) else t for t in leaves], structure)

    def _outer(self, tensor: torch.Tensor) -> Outside:
        index = self._known.get(id(tensor))
        if index is None:
            index = self._known[id(tensor)] = len(self.outside)
            self.outside.append(tensor)
            self.contents.append(contents(tensor))
            self._added += numel(tensor) * element_size(tensor)
        return Outside(index)

    def altered(self, entry: Entry) -> Optional[str]:
        """A message if an argument or a parameter of a call has been written to since the call was made; None
        otherwise."""
        for i in entry.references()[1]:
            (version, checksum), now = self.contents[i], contents(self.outside[i])
            if now[0] != version or checksum and now[1] != checksum:  # no checksum: since then an array may share it
                return "an argument has been changed since it was used"
        if entry.module is None or entry.versions is None:
            return None
        versions = versions_of(parameters([entry.module]))
        if len(versions) != len(entry.versions):
            return f"{entry.call_name()} has got other parameters since it was called"
        fixed = entry.fixed(entry.values)
        if any(seen != fixed.get(place, seen) for place, seen in entry.buffers.items()):
            return f"a buffer of {entry.call_name()} has been changed since it was used"
        return None if versions == entry.versions else UPDATED

    def rewritten(self, entry: Entry) -> Optional[bool]:
        """Whether the script has written to an argument of a call since, which :meth:`keep` could have kept. None if
        that is not known: the argument is gone, and a copy in its place."""
        outside = [(self.outside[i], self.contents[i][0]) for i in entry.references()[1]]
        copied = [(ref(), version) for e, ref, version in self._copied if e is entry]
        there = [(t, version) for t, version in (*outside, *copied) if t is not None and not t.requires_grad]
        if any(version_of(t) != version for t, version in there):
            return True
        return None if any(t is None for t, _ in copied) else False

    def keep(self, entry: Entry, views: bool = True) -> None:
        """Puts copies in the places of a call's arguments, to which the script may write before the call is made
        again. Those that require a gradient stay what they are, and unless ``views``, parts of other tensors, such as
        the chunks of a loop."""
        for i in entry.references()[1]:
            tensor = self.outside[i]
            if type(tensor) is not torch.Tensor or tensor.requires_grad or not views and tensor._base is not None:
                continue
            if contents(tensor) == self.contents[i]:
                self._copied.append((entry, Weak(tensor), self.contents[i][0]))
                self.outside[i] = unseen_copy(tensor)
                self.contents[i] = contents(self.outside[i])
                self._known.pop(id(tensor), None)

    def may_begin(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the script's may become a result of the tape when something is added or written to it in
        place: one to which nothing else refers, such as the zero with which a sum begins, or a buffer for results."""
        return (
            type(tensor) is torch.Tensor
            and not tensor.requires_grad
            and tensor.layout == torch.strided
            and not is_inference(tensor)
            and id(tensor) not in self._known
            and alone(tensor)
        )

    def add(self, entry: Entry, result: Any, deferred: bool = False) -> None:
        """Appends a call that has succeeded, and puts its results on the tape. They are deferred if ``deferred`` is
        true. A function that has merely returned its argument is left out."""
        if (
            type(result) is Recorded
            and not (entry.inplace or entry.fresh)
            and entry.module is None
            and result._headroom.tape is self
        ):
            return
        self.entries.append(entry)
        if len(self.entries) > LONGEST:
            self.refuse("the step calls more functions than the worker records")
        outputs = [result] if is_a(result, torch.Tensor) else flatten(result)[0]
        entry.slots = [self._adopt(t, entry, deferred) if is_a(t, torch.Tensor) else None for t in outputs]
        if entry.inplace:  # numbers may share the memory
            for tensor, place in self._held_by_script() if self.scalars else ():
                if place.slot in self.scalars and not place.deferred:
                    self._value(tensor, place.slot)

    def _adopt(self, tensor: torch.Tensor, entry: Entry, deferred: bool) -> Optional[int]:
        place = place_of(tensor)
        if place is not None and place.tape is self:  # of an in-place function, or a module that returns its argument
            if entry.fresh:  # the same object with a new value
                place.slot = self.count
                self.count += 1
                with unrecorded():
                    self.without_values(tensor) if deferred else self._value(tensor, place.slot)
            return place.slot
        if type(tensor) is not torch.Tensor:
            return None  # a parameter, or another subclass of Tensor
        if id(tensor) in self._known:
            if tensor.requires_grad:
                self.refuse("a tensor from outside the step is changed in place and becomes part of the step's graph")
            return None
        slot = self.count
        self.count += 1
        entry.labelled = entry.labelled or entry.module is not None and bool(tensor.__dict__)
        if entry.module is not None and tensor.grad_fn is not None:
            entry.exits.add(tensor.grad_fn._sequence_nr())
        if not deferred:
            self._value(tensor, slot)
        tensor.__class__ = Recorded
        tensor._headroom = Place(self, slot)  # type: ignore[attr-defined]
        tensor._headroom.deferred = deferred  # type: ignore[attr-defined]
        if tensor.requires_grad or deferred:
            self._held += 1
            self.live.append(Weak(tensor, self._dropped))
        else:
            self.live.append(Weak(tensor))
        return slot

    def without_values(self, tensor: torch.Tensor) -> None:
        """Notes that a tensor which was made on the tape has no values any more, so that the tape is needed as long
        as the user holds it."""
        place: Any = place_of(tensor)
        if not place.deferred and not tensor.requires_grad:
            self._held += 1
            self.live.append(Weak(tensor, self._dropped))
        place.deferred = True

    def _value(self, tensor: torch.Tensor, slot: int) -> None:
        if tensor.requires_grad and numel(tensor) == 1:
            try:
                self.scalars[slot] = unseen_copy(tensor)
            except Exception as e:  # our own, not the script's; a scalar without a value here is refused later
                if interrupts(e):
                    raise

    def reads(self, tensor: torch.Tensor) -> None:
        """Notes that the script has read values, and from what they were computed: the calls in between may be
        forgotten. A loss, and numbers such as an accuracy, are left out: they are read for a log."""
        place = place_of(tensor)
        if place is None or place.tape is not self or tensor.requires_grad:
            return
        behind, left, single = {place.slot}, {place.slot}, numel(tensor) == 1
        for entry in reversed(self.entries):  # what is read has mostly been made just now
            if not left:
                break
            if left.isdisjoint(entry.slots):
                continue
            if single and entry.call_name() not in SELECTS:
                return
            single = False
            left = left.difference(entry.slots).union(entry.references()[0])
            behind |= left
        self.acted |= behind

    def leaves(self, module: Optional[torch.nn.Module] = None) -> list[torch.Tensor]:
        """The tensors from elsewhere that a replay knows of: the parameters of the modules that were called, and of
        ``module``, which is about to be called, and the outside tensors."""
        modules = [e.module for e in self.entries if e.module is not None]
        return [*parameters(modules if module is None else [*modules, module]), *self.outside]

    def drop(self, tensors: Iterable[torch.Tensor]) -> None:
        """Releases the tensors saved by those parts of the given tensors' graphs that belong to
        this tape."""
        with unrecorded():
            drop(
                [t.grad_fn for t in tensors],
                [t.grad_fn for t in self.outside if t.grad_fn is not None],
                bare(self.step.failure),
            )

    def refuse(self, why: str) -> None:
        """Notes that this tape cannot be replayed, and why; the first reason is kept."""
        if self.why_not is None:
            self.why_not = why

    # Closing.

    @contextmanager
    def used(self) -> Iterator[None]:
        """A context for a call whose arguments are on the tape, and which is not yet itself: the tape stays, although
        the call, or a search for cycles in it, may drop all that was made on it before."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def alive(self) -> bool:
        """Whether the user still holds any tensor that was made on the tape and has a graph or no values."""
        return self._held > 0

    def lacks_values(self) -> bool:
        """Whether the user still holds a deferred tensor of the tape."""
        return any(place.deferred for _, place in self._held_by_script())

    def values(self, slots: Iterable[int]) -> Optional[dict[int, torch.Tensor]]:
        """The values in these slots, without their graphs; None if the script does not hold some of them, or they do
        not exist yet."""
        with unrecorded():
            held = {p.slot: t.detach() for t, p in self._held_by_script() if not p.deferred}
        wanted = {*slots}
        return {s: held[s] for s in wanted} if wanted <= held.keys() else None

    def _dropped(self, _: Any) -> None:
        try:
            self._held -= 1
            if not self._held:  # nobody can use the tape any more
                self.close()
                self._release()
        except BaseException as e:
            if not interrupts(e):
                raise
            comes_later(e)
            if not self._held:
                self._release()

    def heavy(self) -> bool:
        """Whether the tape has got many bytes of tensors from elsewhere since it was shortened."""
        return self._added >= self._heavy

    def shorten(self, taped: Iterable[torch.Tensor]) -> None:
        """Forgets the calls that no tensor with a graph depends on any more, nor any of ``taped``, with their
        arguments. In a loop that never calls backward, the results of one call are often there until those of the next
        one are. Does nothing while the tape is short and has little of what comes from elsewhere, and where a call
        changes a tensor in place or something has failed."""
        if len(self.entries) < self._long and not self.heavy():
            return
        if self.deferred is None and not self.step.failed and not any(e.inplace or e.fresh for e in self.entries):
            self._forget({place_of(t).slot for t in taped if place_of(t).tape is self})  # type: ignore[union-attr]
        self._long, self._added = 2 * len(self.entries) + SHORT, 0
        self._heavy = max(HEAVY, sum(numel(t) * element_size(t) for t in self.outside))

    def _forget(self, kept: set[int]) -> None:
        held = self._held_by_script()
        with unrecorded():
            makers = self.makers([place.slot for t, place in held if place.slot in kept or t.requires_grad])
        self.let_go([t for t, place in held if place.slot not in makers])
        needed = {*makers.values()}
        self.entries = [e for e in self.entries if e in needed]
        self.scalars = {s: value for s, value in self.scalars.items() if s in makers}
        self._forget_outside()
        self.random = next((e.random for e in self.entries if e.random is not None), None) or random_state()

    def described(self, t: Any, result: str) -> str:
        """A tensor of the tape in words: ``result``, or what a function has made of that."""
        place = place_of(t) if is_a(t, torch.Tensor) else None
        entry = self.makers([place.slot]).get(place.slot) if place is not None and place.tape is self else None
        if entry is None or entry.module is not None:
            return result
        name = entry.call_name()
        return f"a tensor computed from {result}" if name.startswith("__") else f"what {name} has made of {result}"

    def makers(self, slots: Iterable[int]) -> dict[int, Entry]:
        """The calls on which some slots depend, by the slots that they make."""
        # The first that has a slot has made it: a function may return one of its arguments, as broadcast_tensors does.
        every = {s: e for e in reversed(self.entries) for s in e.slots if s is not None}
        todo, found = [*slots], dict[int, Entry]()
        while todo:
            slot = todo.pop()
            if slot in every and slot not in found:
                found[slot] = every[slot]
                todo += every[slot].references()[0]
        return found

    def _forget_outside(self) -> None:
        """Forgets the tensors from elsewhere that are no arguments of any call."""
        used = {i for e in self.entries for i in e.references()[1]}
        self._known = {key: i for key, i in self._known.items() if i in used}
        self.outside = [t if i in used else _NOTHING for i, t in enumerate(self.outside)]

    def _held_by_script(self) -> list[tuple[torch.Tensor, Place]]:
        """The tensors on the tape that still exist, with their places."""
        there = [(t, place_of(t)) for t in (ref() for ref in self.live) if t is not None]
        return [(t, place) for t, place in there if place is not None]

    def _release(self) -> None:
        self.step.closes()
        self.entries, self.outside, self.live, self.deferred = [], [], [], None
        self.scalars, self._known = {}, {}

    def close(self) -> None:
        """Makes the user's tensors plain again, except deferred ones, which keep the tape alive."""
        if self.step.closed:
            return
        if Tape.closes is not None:
            Tape.closes(self)
        held = self._held_by_script()
        kept = [(t, place) for t, place in held if not place.deferred]
        if self.deferred is not None:
            for tensor, place in kept:
                self.deferred.keep(place.slot, tensor)
        self.let_go([t for t, _ in kept])
        if len(kept) == len(held):
            self._release()

    def let_go(self, tensors: Iterable[torch.Tensor]) -> None:
        """Takes tensors that have values off the tape. They are plain from now on, and no longer keep it alive."""
        there = {id(t): t for t in tensors}
        for tensor in there.values():
            _plain(tensor)
        refs = [ref for ref in self.live if id(ref()) in there]
        self._held -= sum(ref.__callback__ is not None for ref in refs)
        self.live = [ref for ref in self.live if ref() is not None and id(ref()) not in there]
        if not self._held:
            self._release()


def _plain(tensor: Any) -> None:
    """Gives a recorded tensor its own class back."""
    tensor.__class__ = torch.Tensor
    del tensor._headroom


def versions_of(params: Iterable[torch.Tensor]) -> list[int]:
    """The version of each parameter, which shows whether a trained parameter has changed; -1 for a frozen one."""
    return [p._version if p.requires_grad else -1 for p in params]


def contents(tensor: torch.Tensor) -> tuple[int, int]:
    """What is different once a tensor has been written to: its version, and a checksum if others may write to its
    memory, as through a NumPy array, which no version counts; otherwise 0. Of a large tensor it is one of some parts,
    so that a step takes no longer: it shows a new batch in the same array, but not every single element of it."""
    version = version_of(tensor)
    if type(tensor) is not torch.Tensor or not tensor.is_cpu or tensor.layout != torch.strided or not numel(tensor):
        return version, 0
    try:
        memory, begin = untyped_storage(tensor), data_ptr(tensor)
    except RuntimeError:  # one inside a function of torch.func has no memory of its own
        return version, 0
    if memory.resizable() or memory.is_shared():  # PyTorch's own, or that of a loader's worker process
        return version, 0
    most = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride()))
    size = most * tensor.element_size()
    parts = [(0, size)]
    if size > PARTS * PART:
        parts = [(i * (size - PART) // (PARTS - 1), PART) for i in range(PARTS)]
    found = 0
    for at, length in parts:
        found = crc32((ctypes.c_char * length).from_address(begin + at), found)
    return version, found


_NOTHING = torch.empty(0)  # in place of a tensor from outside that is forgotten


def _users(tensor: torch.Tensor) -> int:
    """How many objects use a tensor's memory."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata) + (not tensor.untyped_storage().resizable())


@cache
def _only() -> int:
    """What :func:`_users` returns for a tensor whose memory no other object uses."""
    with hidden():
        return _users(torch.empty(1, device="cpu"))


def alone(tensor: torch.Tensor) -> bool:
    """Whether no other object uses a tensor's memory."""
    return _users(tensor) == _only()


class Recorded(torch.Tensor):
    """The class of a user's tensor while it is on a tape. See :class:`Tape`."""

    _headroom: Place
    intercept: Callable[..., Any]  # set by the recorder
    shared: Callable[..., Any]  # the same for functions that are also called on another class with a __torch_function__

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            frame = sys._getframe(1)
            ours = len(types) == 1 or all(t in _PLAIN for t in types)
            return (Recorded.intercept if ours else Recorded.shared)(asked(func, frame), args, kwargs or {}, frame)
        except BaseException as e:
            unframed(e)
            raise

    def __reduce_ex__(self, protocol: Any) -> Any:  # pickles contain nothing of ours
        return as_plain_copy(self).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: Any) -> Any:
        return as_plain_copy(self).__deepcopy__(memo)


_PLAIN = (Recorded, torch.Tensor, torch.nn.Parameter)  # classes that leave it to ours what a function does
# The type's name that a script sees for its own results. Libraries that must not import torch, such as wandb, go by it.
Recorded.__name__ = Recorded.__qualname__ = "Tensor"
Recorded.__module__ = "torch"


def place_of(tensor: torch.Tensor) -> Optional[Place]:
    """A tensor's place on its tape; None for a tensor that is not on a tape."""
    return tensor.__dict__.get("_headroom") if type(tensor) is Recorded else None


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


class plain_class:
    """A context in which recorded tensors have the class of plain ones: for code that checks
    the class, or runs faster with it."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors = tensors

    def __enter__(self) -> None:
        for t in self._tensors:
            t.__class__ = torch.Tensor

    def __exit__(self, *exc: Any) -> None:
        for t in self._tensors:
            t.__class__ = Recorded


class unrecorded:
    """A context in which recorded tensors behave as plain ones."""

    def __enter__(self) -> None:
        self._off = torch._C.DisableTorchFunctionSubclass()
        self._off.__enter__()

    def __exit__(self, *exc: Any) -> None:
        self._off.__exit__(*exc)


def as_plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor from which a pickle or a copy is made: it has values and the script's attributes, and nothing
    that headroom has added."""
    place, own = place_of(tensor), {k: v for k, v in tensor.__dict__.items() if k != "_headroom"}
    if place is not None and place.deferred:
        tensor = Recorded.value_of(tensor)  # type: ignore[attr-defined]
    with unrecorded():
        plain = tensor.as_subclass(torch.Tensor) if type(tensor) is Recorded else tensor
    if plain is not tensor:
        plain.__dict__.update(own)
    return plain


_saving = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore_is_tracing: None)


def autocast_state() -> Optional[tuple]:
    """The state of autocast, for :func:`autocast_as`; None if autocast is off."""
    if not torch._C._is_any_autocast_enabled():
        return None
    kinds = _kinds()
    states = ((k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds)
    return *states, torch.is_autocast_cache_enabled()


def autocast_as(state: Optional[tuple]) -> list:
    """Contexts that set autocast to a recorded state."""
    if state is None:
        return [torch.autocast(k, enabled=False) for k in _kinds()] if torch._C._is_any_autocast_enabled() else []
    return [torch.autocast(k, dtype=d, enabled=on, cache_enabled=state[-1]) for k, on, d in state[:-1]]


@contextmanager
def dispatched() -> Iterator[None]:
    """A context in which operations are dispatched as in lines of the script's own. While ``torch.tensor`` and others
    convert what they are given, no operation makes a graph, and no mode sees one."""
    now = torch._C._dispatch_tls_local_exclude_set()
    if not now.has(torch._C.DispatchKey.Python):
        yield
        return
    usual = torch._C.DispatchKeySet.from_raw_repr(0)
    for key in filter(now.has, _EXCLUDED):
        usual = usual.add(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), usual):
        yield


def function_modes() -> tuple:
    """The user's torch function modes, such as the one that ``torch.set_default_device`` makes. While
    a function of torch runs, the modes that have already handled it are not included."""
    return tuple(torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack()))


class OwnMode(TorchFunctionMode):
    """A mode of headroom's own."""


@contextmanager
def modes_as(modes: tuple) -> Iterator[None]:
    """A context in which the user's active modes are exactly those given. Our own modes stay active, above them.
    The user's modes are put back on the stack directly and not entered again: a default-device mode that is
    entered twice forgets the previous default, so that on exit it restores its own device instead."""
    now = function_modes()
    wanted = *modes, *(m for m in now if isinstance(m, OwnMode))
    _put_modes(now, wanted)
    try:
        yield
    finally:
        _put_modes(wanted, now)


def _put_modes(old: tuple, new: tuple) -> None:
    if old == new:
        return
    for _ in old:
        torch._C._pop_torch_function_stack()
    for mode in new:
        torch._C._push_on_torch_function_stack(mode)


@lru_cache(maxsize=1)
def _kinds() -> tuple:
    return ("cuda", "cpu") if torch.cuda.is_available() else ("cpu",)


class RandomState(NamedTuple):
    """The states of the generators from which a step may draw."""

    cpu: torch.Tensor
    cuda: Optional[torch.Tensor]
    python: tuple
    numpy: Optional[tuple]  # None if NumPy has not been imported


def random_state() -> RandomState:
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    return RandomState(torch.default_generator.get_state(), cuda, random.getstate(), _numpy_state())


_newest: tuple = (b"", None)  # the memory of NumPy's generator when its state was read last, and that state


def _numpy_state() -> Optional[tuple]:
    """The state of NumPy's global generator. Reading it takes longer than reading all the others, so it is read
    again only if the generator's memory has changed."""
    global _newest
    numpy = sys.modules.get("numpy.random")
    if numpy is None:
        return None
    try:
        generator = numpy.mtrand._rand._bit_generator
        memory = (
            ctypes.string_at(generator.ctypes.state_address, 625 * 4) if type(generator).__name__ == "MT19937" else b""
        )
    except Exception:  # a NumPy that is organised differently
        memory = b""
    if not memory or memory != _newest[0]:
        _newest = memory, numpy.get_state()
    return _newest[1]


def same_random_state(a: RandomState, b: RandomState) -> bool:
    """Whether nothing was drawn between two random states."""
    cuda = a.cuda is b.cuda or a.cuda is not None and b.cuda is not None and torch.equal(a.cuda, b.cuda)
    return cuda and torch.equal(a.cpu, b.cpu) and same_outside_torch(a, b)


def same_outside_torch(a: RandomState, b: RandomState) -> bool:
    """Whether nothing was drawn from Python's and NumPy's generators between two random states."""
    numpy = (
        a.numpy is b.numpy
        or a.numpy is None
        or b.numpy is None
        or a.numpy[2:] == b.numpy[2:]
        and bool((a.numpy[1] == b.numpy[1]).all())
    )
    return numpy and a.python == b.python


def set_random_state(state: RandomState) -> None:
    torch.default_generator.set_state(state.cpu)
    if state.cuda is not None:
        torch.cuda.set_rng_state(state.cuda)
    random.setstate(state.python)
    if state.numpy is not None:
        sys.modules["numpy.random"].set_state(state.numpy)
