"""What memory is held for, as text and as a drawing. Pure: figures in, words and SVG out."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from ..account.inventory import Memory
from ..account.kinds import amount
from ..account.shares import ACTIVATIONS, BUFFERS, CACHE, GRADIENTS, KEPT, KINDS, OPTIMIZER, PIECES, WEIGHTS

_NAMES = {
    WEIGHTS: "weights",
    GRADIENTS: "gradients",
    OPTIMIZER: "optimizer's state",
    BUFFERS: "buffers",
    ACTIVATIONS: "activations",
    KEPT: "other tensors",
    CACHE: "kept by the allocator for later",
    PIECES: "free, but in pieces",
}
_OTHERS, _REST, _FREE = "other processes and CUDA itself", "Python, libraries and other data", "free"
_COLOURS = (
    "#4269d0",
    "#6cc5b0",
    "#efb118",
    "#a463f2",
    "#3ca951",
    "#ff725c",
    "#9498a0",
    "#97bbf5",
    "#c9c9c9",
    "#e9e9e9",
)
_WIDTH, _BAR, _LINE, _LEFT = 560, 18, 17, 150  # pixels
_CELLS = 24  # characters of the longest bar


class Share(NamedTuple):
    """A part of a memory, in bytes."""

    name: str
    bytes: int
    colour: str


class Variable(NamedTuple):
    """A variable of the user's, and the bytes of the tensors in it."""

    name: str
    bytes: int


def shares(memory: Memory) -> list[Share]:
    """The parts of a memory that are not empty, the same kinds in the same colours."""
    host = memory.device == "host"
    parts = {_NAMES[kind]: memory.kinds.get(kind, 0) for kind in KINDS}
    parts[_REST if host else _OTHERS] = (
        memory.total - sum(parts.values()) if host else memory.total - memory.free - memory.reserved
    )
    parts[_FREE] = 0 if host else memory.free
    return [Share(name, size, colour) for (name, size), colour in zip(parts.items(), _COLOURS) if size > 0]


def title(memory: Memory) -> str:
    if memory.device == "host":
        return f"host: this process has {amount(memory.total)}"
    return f"{memory.device}: {amount(memory.total - memory.free)} of {amount(memory.total)} are taken"


def text(memories: Sequence[Memory], variables: Sequence[Variable]) -> str:
    """The picture in characters."""
    lines = []
    for memory in memories:
        parts = shares(memory)
        most = max((part.bytes for part in parts), default=1)
        lines.append(title(memory))
        for part in parts:
            bar = "█" * max(1, round(_CELLS * part.bytes / most))
            lines.append(f"  {amount(part.bytes):>9}  {bar:<{_CELLS}}  {part.name}")
    if variables:
        lines.append("largest variables: " + ", ".join(f"{v.name} {amount(v.bytes)}" for v in variables))
    return "\n".join(lines)


def svg(memories: Sequence[Memory], variables: Sequence[Variable]) -> str:
    """The picture as SVG: of each memory one bar and its legend. It needs no script and no font of its own."""
    body, y = [], 0
    for memory in memories:
        y += _LINE
        body.append(_label(0, y, title(memory)))
        y += 6
        x, whole = 0.0, sum(part.bytes for part in shares(memory)) or 1
        for part in shares(memory):
            width = _WIDTH * part.bytes / whole
            body.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{part.colour}"/>')
            x += width
        y += _BAR
        for part in shares(memory):
            y += _LINE
            body.append(f'<rect x="0" y="{y - 10}" width="10" height="10" fill="{part.colour}"/>')
            body.append(_label(18, y, amount(part.bytes)))
            body.append(_label(_LEFT - 50, y, part.name))
        y += 8
    if variables:
        y += _LINE
        body.append(_label(0, y, "largest variables: " + ", ".join(f"{v.name} {amount(v.bytes)}" for v in variables)))
        y += 8
    drawn = "".join(body)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y}" viewBox="0 0 {_WIDTH} {y}" '
        f'font-family="sans-serif" font-size="12" fill="currentColor" role="img">{drawn}</svg>'
    )


def _label(x: int, y: int, words: str) -> str:
    return f'<text x="{x}" y="{y}">{escape(words)}</text>'
