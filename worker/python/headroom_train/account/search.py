"""A search for what holds the memory that grows: three looks some steps apart. What is new at the second and still
there at the third is kept. Begun only once memory has been seen to grow."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, deque
from types import FrameType, FunctionType, GeneratorType, TracebackType
from typing import Any, Callable, NamedTuple, Optional

import torch

from ..tape.trees import is_a
from . import graphs, kinds
from .ends import left
from .holding import HOOKS, LRU, Content, Held, Name, Walk, content, is_array, unseen
from .kinds import Evidence, Holder, Text
from .look import Census, Key, Look, Sort, census, frames, key_of, look, size_of, sort_of
from .notes import Notes, compiles
from .place import MANAGED, Kept, direct, made, patience, place, statement
from .source import joins, source

APART = 12  # steps between two looks,
LEAST = 3  # as long as memory does not end sooner
QUICK = 5  # and between those of an evaluation: without gradients it would not grow at all
FURTHEST = 96  # and the most, if what is kept does not grow in each step
SAMPLES = 6  # tensors of one sort that are followed
SMALL = 1 << 20  # bytes of a single tensor that is not looked at
SORTS = 4  # of tensors that are followed
ROOTS = 12  # graphs in a container that are walked through: the others are taken to hold as much
SPARE = 16 << 20  # bytes of the machine's memory with which to look at the process once nothing else is left
LITTLE = 32 << 10  # bytes per step; what grows less is never named for growth that is much more


class Search:
    """One search. ``foreign`` says whether a file is not the user's. Not safe for concurrent use."""

    def __init__(self, step: int, foreign: Callable[[str], bool], apart: int = APART, evaluating: bool = False) -> None:
        self._foreign, self._apart, self._evaluating = foreign, apart, evaluating
        self._first = _now(step)
        self._second: Optional[Look] = None
        self._notes: Optional[Notes] = None
        self.lines: dict[Key, tuple[str, int]] = {}
        self.slope = 0  # bytes per step by which memory grows, as seen from outside
        self._spare = _spare()
        self._begin()

    def _begin(self) -> None:
        if not compiles():
            self._notes = Notes(self._foreign)
            self._notes.begin()

    def ends(self) -> None:
        """Take back everything that the search has put into the process."""
        if self._notes is not None:
            self._notes.end()
            self.lines, self._notes = self._notes.lines(), None

    def step(self, step: int, at_once: bool = False) -> Optional[list[Holder]]:
        """What holds memory, the largest first; None as long as it is too early to tell. ``at_once`` if memory has run
        out, so that there will be no further step."""
        self._spare = None if at_once else self._spare
        with torch._C.DisableTorchFunction():  # a class of tensors, the script's or ours, may intercept every question
            return self._step(step, at_once)

    def _step(self, step: int, at_once: bool) -> Optional[list[Holder]]:
        if self._second is None and (at_once or step >= self._first.step + self._apart):
            self.ends()
            self._second = _now(step)
            if not at_once:
                return None
        if self._second is not None and (at_once or step >= self._second.step + self._apart):
            return self._finds(step)
        return None

    def wider(self, step: int) -> Optional[Search]:
        """The search that follows one that has found nothing; None if there is none."""
        if self._apart >= FURTHEST:
            return None
        return Search(step, self._foreign, 2 * self._apart, self._evaluating)

    def _finds(self, step: int) -> list[Holder]:
        assert self._second is not None
        if self._evaluating and not evaluates(self._foreign):
            return []
        found = census()
        third = look(step, found)
        walk = Walk([found.tensors, found.containers, found, self._first, self._second], self._foreign, found.tasks)
        between = _Between(self._first, self._second, third, self.lines, self.slope, found.packs, self._evaluating)
        groups = _groups(found.tensors, between)
        walk.hides(groups, *groups, *(g.kept for g in groups), *(same for g in groups for same in g.kept))
        holders = [h for group in groups if (h := _of_group(group, between, walk)) is not None]
        # What explains little of the growth is not the reason for it, unless nothing else is found: on the host, memory
        # that is free lies between what is kept, and may be many times as much.
        some = [h for h in holders if h.per_step >= max(LITTLE, 0.1 * self.slope)]
        holders = [h for h in holders if h.per_step >= 0.2 * self.slope]
        explained = sum(h.per_step for h in holders)
        if explained < 0.3 * max(self.slope, 1):
            root = _of_graph(found.tensors, between, walk)
            if root is not None:
                holders.append(root)
        if not holders:
            holders += _of_one(found.tensors, between, walk)
        if sum(h.per_step for h in holders) < 0.3 * max(self.slope, 1):
            holders += _of_arrays(found, between, walk)
        source.cache_clear()
        if self._evaluating:  # to collect the results is what an evaluation is for
            holders, some = [h._replace(unit="model call") for h in holders if h.kind == kinds.EVALUATION], []
        return [h._replace(step=step) for h in sorted(holders or some, key=lambda h: h.per_step, reverse=True)]


def _spare() -> Optional[bytearray]:
    """Memory that is never touched, so that only a limit counts it: at most an eighth of what is left. None if not even
    that can be had."""
    try:
        return bytearray(min(SPARE, (left() or 0) // 8))
    except MemoryError:
        return None


def evaluates(foreign: Callable[[str], bool]) -> bool:
    """Whether what the script is doing is an evaluation, as its source says."""
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        file = frame.f_code.co_filename
        text = source(file) if not foreign(file) else None
        if text is not None and text.evaluates(frame.f_lineno):
            return True
        frame = frame.f_back
    return False


def _now(step: int) -> Look:
    with torch._C.DisableTorchFunction():
        return look(step, census())


_LONG = (list, dict, set, deque)


class _Between(NamedTuple):
    """Three looks, and the lines that were noted between the first two."""

    first: Look
    second: Look
    third: Look
    lines: dict[Key, tuple[str, int]]
    slope: int
    packs: bool
    evaluating: bool = False

    @property
    def steps(self) -> int:
        return max(1, self.third.step - self.first.step)

    def longer(self, container: Any) -> bool:
        """Whether a container that was there at the first look has become longer since, and has not all but stopped."""
        now, first = len(container), self.first.lengths[id(container)]
        between = self.second.lengths.get(id(container), now)
        before, after = self.second.step - self.first.step, self.third.step - self.second.step
        slower = 2 * after >= before and 2 * (now - between) * before < (between - first) * after
        return now > first and not slower

    def net(self, container: Any, inside: Content) -> Content:
        """What is in a container, without counting as new what has only taken the place of something else."""
        first = self.first.lengths.get(id(container))
        if first is None:
            return inside
        grown = (len(container) - first) / len(container)
        new, size = min(inside.new, inside.tensors * grown), min(inside.new_bytes, inside.bytes * grown)
        return inside._replace(new=int(new + 0.5), new_bytes=int(size))

    def refills(self, container: Any, inside: Content) -> bool:
        """Whether a dict of tensors, such as the newest of each class, gets a quarter as many in the place of others as
        it gets under new keys: then it has a good part of all that it will ever have. Not if only those that were there
        at the first look are replaced, and none of those that came after it: what is added is kept then."""
        first = self.first.lengths.get(id(container))
        values = list(dict.values(container)) if is_a(container, dict) else []
        if first is None or not values or not all(is_a(v, torch.Tensor) for v in values):
            return False
        between = self.second.lengths.get(id(container), first)
        placed = [key_of(v) not in self.second.storages for v in values]  # a dict keeps the order of its keys
        old, young = placed[:first], placed[first:between]
        if sum(old) * len(young) >= 3 * len(old) and not any(young):
            return False
        return 4 * inside.new >= 5 * (len(values) - first)

    def stays(self, o: Any) -> bool:
        """Whether something is a container that came after the first look and is as it was at the second: what grows is
        around it, such as a dict with a list of each epoch."""
        if self.third.step == self.second.step or not is_a(o, _LONG) or id(o) in self.first.lengths:
            return False
        if id(o) in self.second.lengths:
            return self.second.lengths[id(o)] == len(o)
        return content(o, self.second.storages, True, {id(f) for f in frames()}).new == 0

    def steady(self, container: Any) -> bool:
        """Whether a container has become longer by the same number in each step, as far as is known."""
        first, between = (look.lengths.get(id(container)) for look in (self.first, self.second))
        if first is None or between is None:
            return True
        before, after = self.second.step - self.first.step, self.third.step - self.second.step
        return (len(container) - between) * before == (between - first) * after


class _Group(NamedTuple):
    """Tensors of one sort that are new since the first look and are kept."""

    sort: Sort
    kept: list[list[torch.Tensor]]  # those of the same memory together: a view, and what it is a view of
    bytes: int


def _groups(tensors: list[torch.Tensor], b: _Between) -> list[_Group]:
    """The sorts of which tensors are kept and become more, those with the most memory first."""
    kept: dict[Sort, dict[Key, list[torch.Tensor]]] = {}
    for t in tensors:
        key = key_of(t)
        if key is not None and key in b.second.storages and key not in b.first.storages:
            kept.setdefault(sort_of(t), {}).setdefault(key, []).append(t)
    found = []
    for sort, by_key in kept.items():
        some, grown = [*by_key.values()], b.third.sorts[sort] - b.first.sorts[sort]
        if grown >= max(2, len(some) // 2):
            size = sum(size_of(same[0]) for same in some)
            if sort.graph:
                size += len(some) * graphs.saved(some[0][0].grad_fn, b.first.storages, b.packs).bytes
            found.append(_Group(sort, some, size))
    return sorted(found, key=lambda g: g.bytes, reverse=True)[:SORTS]


def _of_group(group: _Group, b: _Between, walk: Walk) -> Optional[Holder]:
    some = [t for same in group.kept for t in same[:2]]
    walk.hides(some)
    named = [*{key_of(t): t for t in walk.named(some)}.values()]  # graphs and views may hold the others
    every = _spread(named, 4 * SAMPLES)
    samples = _spread(every, SAMPLES)
    walk.hides(named, every, samples)
    if len(samples) < 2:
        return None
    best: Optional[Holder] = None
    need = max(2, (2 * len(samples) + 2) // 3)
    for held in [walk.end(h) for h in walk.common(samples, need, b.stays)] or walk.chained(samples, need):
        if walk.of_optimizer(held.holder) and kinds.MODELS not in _through(held):
            continue
        holder = _holder(held, samples, every, group, b, walk)
        if holder is not None and (best is None or bool(holder.kept) > bool(best.kept)):
            best = holder
    if best is None or not best.kept:
        best = _of_several(every, samples, group, b, walk) or best
    return best


def _of_several(every: list[Any], samples: list[Any], group: _Group, b: _Between, walk: Walk) -> Optional[Holder]:
    """Containers that the script fills in one line, such as a list of each layer, together."""
    some = [h for h in walk.common(every, 2) if not walk.of_optimizer(h.holder)]
    alike = [h for h in some if type(h.holder) is type(some[0].holder)]
    if len(alike) < 2:
        return None
    one, other = (_holder(h, samples, every, group, b, walk) for h in alike[:2])
    if one is None or other is None or not one.kept or (one.kept, one.kind) != (other.kept, other.kind):
        return None
    running = {id(f) for f in frames()}
    inside = [content(h.holder, b.first.storages, one.kind == kinds.MODELS, running) for h in alike]
    number, more = sum(c.tensors for c in inside), sum(c.new for c in inside) / inside[0].new
    return one._replace(
        tensors=number, bytes=int(one.bytes * number / one.tensors), rate=one.rate * more,
        per_step=int(one.per_step * more), container=0,
    )  # fmt: skip


def _spread(every: list[Any], most: int) -> list[Any]:
    """Some of a list, from all parts of it, and not always from the same place in what repeats itself."""
    apart = -(-len(every) // most) or 1
    return [every[at] for i in range(most) if (at := i * apart + 7 * i % apart) < len(every)]


def _through(held: Held) -> frozenset[str]:
    """What kinds of objects are between the tensors and their holder."""
    found = set()
    for o in (*held.path, held.holder):
        if is_a(o, (TracebackType, FrameType, BaseException)):
            found.add(kinds.TRACEBACK)
        elif is_a(o, GeneratorType) or type(o).__name__ in ("coroutine", "async_generator"):
            found.add(kinds.GENERATOR)
        elif is_a(o, FunctionType) or type(o).__name__ == "partial":
            found.add(kinds.CLOSURE)
        elif is_a(o, (torch.nn.Module, torch.optim.Optimizer)) and o is not held.holder:
            found.add(kinds.MODELS)
        elif is_a(o, LRU):
            found.add(kinds.CACHE)
        elif _weights(o) and o is not held.holder:
            found.add(kinds.MODELS)
    return frozenset(found)


def _weights(o: Any) -> bool:
    """Whether a dict has the weights of a model, or an optimizer's state."""
    if type(o) not in (dict, OrderedDict) or not o:
        return False
    if o.keys() == {"state", "param_groups"}:  # of an optimizer
        return True
    return hasattr(o, "_metadata") or all(type(k) is str and k.rpartition(".")[2] in _WEIGHTS for k in o)


_WEIGHTS = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked", "in_proj_weight", "in_proj_bias"}


def _holder(
    held: Held, samples: list[Any], every: list[Any], group: _Group, b: _Between, walk: Walk
) -> Optional[Holder]:
    holder, through = held.holder, _through(held)
    noted = Counter(b.lines[key] for t in every if (key := key_of(t)) in b.lines and key is not None)
    near = noted.most_common(1)[0][0] if noted else None
    names = walk.names(holder)
    if any(n.last in HOOKS for n in names):
        through |= {kinds.HOOK}
    kept = place(names, near, holder=holder)
    inside = content(holder, b.first.storages, kinds.MODELS in through, {id(f) for f in frames()})
    if inside.new < 2 or id(holder) in b.first.lengths and not b.longer(holder):
        return None
    if b.refills(holder, inside):
        return None
    inside = b.net(holder, inside)
    roots = inside.roots[:ROOTS]
    saved = graphs.together(roots, b.first.storages | inside.storages, b.packs)
    graph, each = saved.alive, saved.bytes // max(1, len(roots))
    cached = holder if is_a(holder, LRU) else walk.cached(holder) if type(holder) is dict else None
    single = direct(kept, held.path)
    text = statement(kept, single)
    if kinds.MODELS in through and not any(map(_trained, (*held.path, holder))) and _of_gradients(near, kept):
        through -= {kinds.MODELS}
    limited = walk.limited(holder, names)
    if cached is not None:
        through |= {kinds.CACHE}
        text, kept = Text(_function_name(cached) or text.name, lru=True), None
    if type(holder) is dict and "__builtins__" in holder:
        text = text._replace(name="globals()", namespace=True)
    elif walk.of_module(holder):
        text = text._replace(namespace=True)
    e = _evidence(group, samples, through, graph, kept, near)
    e = e._replace(evaluation=e.evaluation or b.evaluating)
    kind = kinds.kind(e)
    registered = walk.registered() if any(n.last in HOOKS for n in names) else None
    where = kept.where if kept is not None else _defined(cached)
    if registered is not None:
        where, text = registered[0], text._replace(name=registered[1])
    maker = f"{near[0]}:{near[1]}" if near is not None else made(kept) if single or text.several else ""
    rate = inside.new / b.steps
    fills = kind == kinds.CACHE or is_a(holder, dict) and not b.steady(holder)
    if fills and rate < 0.5 * inside.tensors / b.third.step:
        return None  # it fills more and more slowly
    return Holder(
        kind,
        text.name,
        where,
        maker,
        inside.tensors,
        inside.bytes + each * inside.graphs,
        rate,
        int((inside.new_bytes + each * len(inside.roots)) / b.steps),
        kinds.cure(kind, e, text),
        graph,
        patience(kind, holder if cached is None else cached, kept, graph, limited, b.steady(holder))
        if text.name
        else MANAGED,
        group.sort.device == "cpu" and saved.host,
        container=id(holder),
    )


def _trained(o: Any) -> bool:
    return is_a(o, (torch.nn.Module, torch.optim.Optimizer))


def _of_gradients(near: Optional[tuple[str, int]], kept: Optional[Kept]) -> bool:
    """Whether what looks like the weights of a model is gradients, by the lines that make and keep it."""
    sources = [(source(file), line) for file, line in _lines(near, kept)]
    return any(text is not None and text.of_gradients(line) for text, line in sources)


def _lines(near: Optional[tuple[str, int]], kept: Optional[Kept]) -> list[tuple[str, int]]:
    """The lines that make and keep something, as far as they are known."""
    makes = [near] if near is not None else []
    return makes + ([(kept.file, kept.keeps.line)] if kept is not None and kept.keeps is not None else [])


def _function_name(holder: Any) -> str:
    return str(getattr(getattr(holder, "__wrapped__", None), "__name__", ""))


def _defined(holder: Any) -> str:
    code = getattr(getattr(holder, "__wrapped__", None), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _evidence(
    group: _Group,
    samples: list[Any],
    through: frozenset[str],
    graph: bool,
    kept: Optional[Kept],
    near: Optional[tuple[str, int]],
) -> Evidence:
    text = kept.text if kept is not None else None
    keeps = kept.keeps if kept is not None else None
    sources = [(source(file), line) for file, line in _lines(near, kept)]
    return Evidence(
        scalar=all(t.numel() == 1 for t in samples),
        graph=graph,
        copied=any(t.grad_fn is not None and graphs.copies(t.grad_fn) for t in samples)
        or text is not None
        and keeps is not None
        and text.moved(keeps.value, keeps.line),
        through=through,
        hook=text is not None and keeps is not None and text.hooked(keeps.functions),
        looked_up=kept is not None and _looked_up(kept),
        evaluation=any(at is not None and at.evaluates(line) for at, line in sources),
        retains=text.passes("retain_graph") if text is not None else 0,
    )


def _looked_up(kept: Kept) -> bool:
    """Whether the script asks the part of a container into which things are put whether it has something."""
    depth = len(kept.keeps.part) if kept.keeps is not None else 0
    return kept.text is not None and kept.text.looks_up(kept.name.last, kept.name.attribute, depth)


def _of_graph(tensors: list[torch.Tensor], b: _Between, walk: Walk) -> Optional[Holder]:
    """The variable that holds one graph that has grown in each step."""
    least = b.first.depth + max(2, b.steps // 2)
    grads = {id(g): g for t in tensors if (g := graphs.grad(t)) is not None and g.grad_fn is not None}
    roots = [*grads.values(), *(t for t in tensors if t.grad_fn is not None and id(t) not in grads)]
    walk.hides(grads, roots)
    deep = [
        (d, t) for d, t in zip(graphs.depths([t.grad_fn for t in roots]), roots) if d >= least and d >= b.second.depth
    ]
    walk.hides(deep, *deep)
    found: list[tuple[tuple, torch.Tensor, list[Name], Optional[Kept]]] = []
    of_gradient = next((t for _, t in deep if id(t) in grads), None)
    if of_gradient is not None:
        return _gradients(of_gradient, b, walk)
    named = walk.named([t for _, t in deep])
    walk.hides(named)
    known = {id(t) for t in named}
    for d, t in sorted((one for one in deep if id(one[1]) in known), key=lambda one: one[0])[:8]:
        names = walk.names(t)
        if not graphs.reaches(t.grad_fn, b.second.sequence):
            continue  # a longer step, not all steps
        kept = place([n for n in names if not n.text.endswith(".grad")], None, root=True)
        own = kept is not None and kept.keeps is not None
        walk.hides(found)
        found.append(((not own, not names, d), t, names, kept))
        walk.hides(found[-1])
    if not found:
        return None
    _, t, names, kept = min(found, key=lambda one: one[0])
    if not names or kept is None:
        return None
    weights = frozenset(key for w in tensors if w.is_leaf and w.requires_grad and (key := key_of(w)) is not None)
    held = graphs.saved(t.grad_fn, weights, b.packs, graphs.MOST)
    scalar = t.numel() == 1
    kind = kinds.SUM if scalar and graphs.sums(t.grad_fn) else kinds.HIDDEN
    kind = kinds.EVALUATION if b.evaluating else kind
    e = Evidence(scalar=scalar, graph=held.alive, root=kind)
    text = statement(kept)
    if kind != kinds.SUM and kept.keeps is not None and joins(kept.keeps.value) and _has_grown(t, b):
        return _joined(t, kept, held.bytes if held.alive else 0, b)
    if kind == kinds.HIDDEN:
        assigned = kept.keeps.call.removesuffix(" = ") if kept.keeps is not None else ""  # a part of a dict, perhaps
        text = Text(assigned or text.name, pair=kept.name.tuple)
    per_step = b.slope or int(graphs.saved(t.grad_fn, b.first.storages, b.packs, graphs.MOST).bytes / b.steps)
    maker = made(kept) if kind != kinds.HIDDEN else ""
    return Holder(
        kind, text.name, kept.where, maker, held.tensors, held.bytes, 1.0, per_step,
        kinds.cure(kind, e, text), held.alive, 0, held.host,
    )  # fmt: skip


def _gradients(t: torch.Tensor, b: _Between, walk: Walk) -> Holder:
    """Gradients to which each step has added its own, with the graph that made them."""
    held = graphs.saved(t.grad_fn, b.first.storages, b.packs, graphs.MOST)
    name, files = walk.model_of(t)
    lines = [(file, text.passes("create_graph")) for file in files if (text := source(file)) is not None]
    file, line = next(((f, n) for f, n in lines if n), ("", 0))
    e = Evidence(root=kinds.GRADIENTS, graph=held.alive, creates=line)
    return Holder(
        kinds.GRADIENTS, name, f"{file}:{line}" if line else "", "", held.tensors, held.bytes, 1.0,
        b.slope or int(held.bytes / b.steps), kinds.cure(kinds.GRADIENTS, e, Text(name)), held.alive, 0,
        held.host,
    )  # fmt: skip


def _has_grown(t: torch.Tensor, b: _Between) -> bool:
    """Whether a tensor is larger than all of its sort have been."""
    return key_of(t) is not None and size_of(t) > max(b.second.largest.get(sort_of(t), 0), SMALL)


def _joined(t: torch.Tensor, kept: Kept, graph: int, b: _Between) -> Holder:
    """A variable whose tensor is joined with another one in each step, and the bytes of its graph."""
    kind = kinds.EVALUATION if b.evaluating else kinds.COLLECTED
    per_step = b.slope or (size_of(t) + graph) // b.third.step
    return Holder(
        kind, statement(kept).name, kept.where, made(kept), 1, size_of(t) + graph, 0.0, per_step,
        kinds.cure(kind, Evidence(graph=graph > size_of(t)), statement(kept)), graph > 0, 0, t.device.type == "cpu",
    )  # fmt: skip


def _of_one(tensors: list[torch.Tensor], b: _Between, walk: Walk) -> list[Holder]:
    """A variable whose tensor is made anew in each step, larger than before."""
    grown = [t for t in tensors if _has_grown(t, b)]
    walk.hides(grown)
    for t in sorted(grown, key=size_of, reverse=True)[:SORTS]:
        more = size_of(t) - b.first.largest.get(sort_of(t), 0)
        kept = place(walk.names(t), None, root=True)
        if kept is None or kept.keeps is None or more < 0.2 * b.slope * b.steps:
            continue
        text = statement(kept)
        cure = kinds.cure(kinds.COLLECTED, Evidence(), text)
        return [
            Holder(
                kinds.COLLECTED, text.name, kept.where, "", 1, size_of(t), 0.0, more // b.steps, cure, False,
                patience(kinds.COLLECTED, t, kept, False), t.device.type == "cpu",
            )
        ]  # fmt: skip
    return []


def _of_arrays(found: Census, b: _Between, walk: Walk) -> list[Holder]:
    """Containers to which an array was added in each step."""
    longer: list[Any] = []
    walk.hides(longer)
    for c in found.containers:
        was, between = b.first.lengths.get(id(c), 0), b.second.lengths.get(id(c), 0)
        if len(c) - was >= 2 and between > was and len(c) > between and _has_arrays(c):
            longer.append(c)
    if not longer:
        longer += [c for c in unseen() if len(c) >= b.steps // 2 and _has_arrays(c)]
    holders = _of_one_array(b, walk)
    for c in longer[:SORTS]:
        inside = content(c, b.first.storages, False, {id(f) for f in frames()})
        if inside.array_bytes == 0:
            continue
        names = walk.names(c)
        kept = place(names, None)
        if kept is None:
            continue
        e, text = Evidence(arrays=True), statement(kept)
        # If its length was not known, it has grown all the time.
        more = len(c) - b.first.lengths[id(c)] if id(c) in b.first.lengths else len(c) * b.steps // b.third.step
        grown = more * inside.arrays / len(c)
        holders.append(
            Holder(
                kinds.NUMPY, text.name, kept.where, made(kept), inside.arrays, inside.array_bytes, grown / b.steps,
                int(grown * inside.array_bytes / inside.arrays / b.steps), kinds.cure(kinds.NUMPY, e, text), False,
                patience(kinds.NUMPY, c, kept, False), True, container=id(c),
            )
        )  # fmt: skip
    return holders


def _of_one_array(b: _Between, walk: Walk) -> list[Holder]:
    """A variable whose array is joined with another one in each step."""
    for array, name in walk.arrays():
        size = int(array.nbytes)
        kept = place([name], None, root=True) if size > SMALL and size > 0.2 * b.slope * b.third.step else None
        if kept is None or kept.keeps is None or not joins(kept.keeps.value):
            continue
        text, per_step = statement(kept), size // b.third.step
        return [
            Holder(
                kinds.NUMPY, text.name, kept.where, "", 1, size, 0.0, per_step,
                kinds.cure(kinds.NUMPY, Evidence(arrays=True), text), False,
                patience(kinds.NUMPY, array, kept, False), True,
            )
        ]  # fmt: skip
    return []


def _has_arrays(c: Any) -> bool:
    newest = [*(c.values() if is_a(c, dict) else c)][-1:]
    inner = [
        v
        for one in newest
        for v in (one if type(one) in (tuple, list) else one.values() if type(one) is dict else (one,))
    ]
    return any(map(is_array, inner))
