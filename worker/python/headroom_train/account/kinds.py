"""Kinds of what holds memory, and the cure of each. Pure: evidence in, a sentence out."""

from __future__ import annotations

from typing import NamedTuple, Optional

COLLECTED = "collected"  # results, losses or inputs, put into a container
SUM = "sum"  # of losses that are tensors: the sum holds the graph of each
RETAINED = "retained-graph"  # results whose graphs a backward pass has left
HIDDEN = "hidden-state"  # a state that is carried from step to step with its graph
EVALUATION = "evaluation"  # results of an evaluation with gradients
MOVED = "moved"  # copies that still hold the graph of what they are copies of
CACHE = "cache"  # a cache or a data set that grows
MODELS = "models"  # models, optimizers or copies of weights
HOOK = "hook"  # what a hook stores, or hooks themselves
GRADIENTS = "gradients"  # gradients that are added up together with their graphs
TRACEBACK = "traceback"  # an exception that is kept holds the variables of all functions that it passed
GENERATOR = "generator"  # generators that were not used up
CLOSURE = "closure"  # functions that use a tensor of the step in which they were made
NUMPY = "numpy"  # arrays of NumPy, put into a container
WORKERS = "workers"  # what each worker of a loader keeps of the samples that it loads
ELSEWHERE = "elsewhere"  # nothing that can be seen
UNSEEN = "unseen"  # memory has run out before anything could be seen
KINDS = (
    COLLECTED,
    SUM,
    RETAINED,
    HIDDEN,
    EVALUATION,
    MOVED,
    CACHE,
    MODELS,
    HOOK,
    GRADIENTS,
    TRACEBACK,
    GENERATOR,
    CLOSURE,
    NUMPY,
    WORKERS,
    ELSEWHERE,
    UNSEEN,
)


class Evidence(NamedTuple):
    """What was seen of the tensors that are kept, and read in the lines that keep them."""

    scalar: bool = False
    graph: bool = False  # they hold graphs that no backward pass has freed
    copied: bool = False  # they are copies, with a graph
    arrays: bool = False  # no tensors, but arrays of NumPy
    root: str = ""  # what holds one graph that grows: SUM, HIDDEN or GRADIENTS
    through: frozenset[str] = frozenset()  # kinds of objects between tensors and holder: TRACEBACK, GENERATOR and so on
    hook: bool = False  # what keeps them is called as a hook
    looked_up: bool = False  # the container is asked whether it has something
    evaluation: bool = False
    retains: int = 0  # the line of a backward pass that keeps its graph; 0 if there is none
    creates: int = 0  # the line of a backward pass that makes a graph of its own


class Text(NamedTuple):
    """How the script keeps them."""

    name: str
    call: str = ""  # the beginning of the statement, such as ``losses.append(``; empty if it is not known
    end: str = ""
    value: str = ""  # what is put in
    base: str = ""  # and what that is made of: without copies, views and conversions
    several: bool = False  # what is put in is a tuple, a list or a dict
    direct: bool = True  # it is a tensor
    pair: bool = False  # the variable is a tuple of tensors
    lru: bool = False  # the container belongs to functools.lru_cache
    namespace: bool = False  # it has globals, or what belongs to a module: nobody wants to empty that


def kind(e: Evidence) -> str:
    """The kind that the evidence shows: the one that says most comes first."""
    if e.arrays:
        return NUMPY
    if e.root:
        return e.root
    through = e.through | {HOOK} if e.hook else e.through
    for one in (TRACEBACK, GENERATOR, HOOK, MODELS, CLOSURE, CACHE):
        if one in through:
            return one
    if e.looked_up:
        return CACHE
    if e.graph:
        for one, seen in ((EVALUATION, e.evaluation), (MOVED, e.copied), (RETAINED, e.retains)):
            if seen:
                return one
    return COLLECTED


def cure(kind: str, e: Evidence, text: Text) -> str:
    """What to write instead; empty if that is not known."""
    name = f"`{text.name}`" if text.name else "what holds them"
    if kind in _CURES:
        return _CURES[kind](e, text, name)
    return {
        EVALUATION: "evaluate inside `with torch.no_grad():`",
        HOOK: "remove the hook with `handle.remove()` when it has done its work, or let it keep only the newest value",
        MODELS: f"save each with `torch.save` and keep none of them in {name}, or keep only the best",
        GENERATOR: f"use each generator up or `close()` it, and keep none in {name}",
        CLOSURE: f"let the functions in {name} use numbers, not tensors of their step",
        WORKERS: f"let {name} hold at most a fixed number of samples: each worker has one of its own",
        NUMPY: f"empty {name} when its arrays have been used, or write them to a file",
    }.get(kind, "")


def _single(text: Text) -> bool:
    return bool(text.call and text.base) and not text.several


def _statement(text: Text, method: str) -> str:
    return f"write `{text.call}{text.base}{method}{text.end}`" if _single(text) and text.direct else ""


def _number_or_values(e: Evidence, text: Text) -> str:
    if e.scalar:
        return _statement(text, ".item()") or "keep numbers, with `.item()`"
    return _statement(text, ".detach()") or "keep values without their graphs, with `.detach()`"


def _collected(e: Evidence, text: Text, name: str) -> str:
    if text.namespace:
        return "do not keep each under a name of its own, but all in a list that is emptied when they have been used"
    if e.scalar or e.graph:
        return _number_or_values(e, text)
    return f"empty {name} when its tensors have been used, or let it hold at most a fixed number of them"


def _retained(e: Evidence, text: Text, name: str) -> str:
    return f"leave out `retain_graph=True` in line {e.retains}, and {_number_or_values(e, text)}"


def _sum(e: Evidence, text: Text, name: str) -> str:
    return _statement(text, ".item()") or f"add only numbers to {name}, with `.item()`"


def _hidden(e: Evidence, text: Text, name: str) -> str:
    again = f"tuple(s.detach() for s in {text.name})" if text.pair else f"{text.name}.detach()"
    return f"write `{text.name} = {again}` before the next step"


def _moved(e: Evidence, text: Text, name: str) -> str:
    to = ".detach().cpu()" if ".cpu(" in text.value or ".to(" in text.value else ".detach().clone()"
    return _statement(text, to) or f"put only detached copies into {name}, with `.detach()`"


def _cache(e: Evidence, text: Text, name: str) -> str:
    if text.lru:
        return f"limit it: `@lru_cache(maxsize=N)` for {name}"
    return f"let {name} hold at most a fixed number of entries, or empty it in between with `{text.name}.clear()`"


def _gradients(e: Evidence, text: Text, name: str) -> str:
    where = f" in line {e.creates}" if e.creates else ""
    return f"call `zero_grad()` after each step, and leave out `create_graph=True`{where}"


def _traceback(e: Evidence, text: Text, name: str) -> str:
    return f"write `{text.call}str({text.base}){text.end}`" if _single(text) else "keep `str(error)`, not the exception"


# Where the cure depends on the line that keeps them.
_CURES = {
    COLLECTED: _collected,
    RETAINED: _retained,
    SUM: _sum,
    HIDDEN: _hidden,
    MOVED: _moved,
    CACHE: _cache,
    GRADIENTS: _gradients,
    TRACEBACK: _traceback,
}


class Holder(NamedTuple):
    """What holds memory that grows."""

    kind: str
    name: str  # as the script writes it; empty if it is not known
    kept: str  # the line that keeps them, file:line; empty if it is not known
    made: str  # the line that makes them
    tensors: int  # or arrays, or workers
    bytes: int
    rate: float  # tensors that are added per step
    per_step: int  # bytes by which memory grows per step
    cure: str
    graph: bool = False  # bytes are those of graphs, too
    patience: int = 0  # steps before which it may still be meant to be so
    host: bool = False  # the memory is the machine's, not a GPU's
    step: int = 0  # after which this was found
    ends: int = 0  # the step near which the machine's memory ends at this rate; 0 if that is not known
    seconds: float = 0.0  # until then
    unit: str = ""  # in place of a step: "model call", of an evaluation
    container: int = 0  # the id of what has been counted; 0 if that is no container

    def __str__(self) -> str:
        grows = f"memory grows by {amount(self.per_step)} per {self.unit or 'step'}: "
        if self.kind == ELSEWHERE:
            return grows + "what holds it was not found among what Python can see"
        if self.kind == UNSEEN:
            return grows + "it ran out before it could be seen what holds it" + f"; {self.cure}"
        name = f"`{self.name}`" if self.name else "a container without a name"
        holds = f"{name}{f' ({self.kept})' if self.kept else ''} holds {self.held()}"
        made = f", made at {self.made}" if self.made and self.made != self.kept else ""
        return grows + holds + made + (f"; {self.cure}" if self.cure else "")

    def held(self) -> str:
        if self.kind in (SUM, HIDDEN, GRADIENTS):
            graphs = "gradients with the graphs" if self.kind == GRADIENTS else "the graphs"
            return f"{graphs} of all steps, {amount(self.bytes)}"
        if self.kind == WORKERS:
            who = "a loader worker has" if self.tensors == 1 else f"{self.tensors} loader workers have"
            return f"what {who} loaded, {amount(self.bytes)}"
        what = "array" if self.kind == NUMPY else "tensor"
        number = f"{self.tensors} {what}{'' if self.tensors == 1 else 's'}"
        graph = " with the graphs that made them" if self.graph else ""
        return f"{number}{graph}, {amount(self.bytes)}, {often(self.rate, self.unit or 'step')}"


def often(rate: float, unit: str = "step") -> str:
    """How many are added, in words."""
    if rate >= 1.5:
        return f"{round(rate)} more every {unit}"
    if rate >= 0.7:
        return f"one more every {unit}"
    return f"one more every {round(1 / rate)} {unit}s" if rate > 0 else "more and more"


def amount(size: Optional[int]) -> str:
    """Bytes as people read them."""
    n = float(size or 0)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if n >= 100 or n == int(n) or unit == "bytes" else f"{n:.1f} {unit}"
        n /= 1024
    return ""
