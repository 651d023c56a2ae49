"""Which files are read: the script, and the modules beside it that it imports. Nothing of them is executed."""

from __future__ import annotations

import ast
import os
import tokenize
from collections.abc import Iterator
from typing import Optional

MOST_FILES = 500
MOST_BYTES = 1 << 20  # of a file; what is larger was not written by hand
UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
_NOT_LOCAL = {"site-packages", "dist-packages"}


def sources(script: str, roots: list[str]) -> dict[str, str]:
    """The texts of a script and of the local modules that it imports, by path. ``roots`` are the folders in which
    Python would look for them. Raises OSError or SyntaxError if the script itself cannot be read."""
    found: dict[str, str] = {}
    left = [script]
    while left and len(found) < MOST_FILES:
        path = left.pop(0)
        if path in found:
            continue
        try:
            text = _text(path)
            tree = ast.parse(text)
        except UNREADABLE:
            if path == script:
                raise
            continue
        found[path] = text
        for module in _imported(tree, path, roots):
            left += [module] if module not in found else []
    return found


def _text(path: str) -> str:
    if os.path.getsize(path) > MOST_BYTES:
        raise OSError("the file is too large")
    with tokenize.open(path) as file:
        return file.read()


def _imported(tree: ast.AST, path: str, roots: list[str]) -> Iterator[str]:
    """The files of the local modules that are imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from module_files(alias.name, roots)
        elif isinstance(node, ast.ImportFrom):
            within = roots
            if node.level:
                folder = os.path.dirname(path)
                for _ in range(node.level - 1):
                    folder = os.path.dirname(folder)
                within = [folder]
            base = node.module or ""
            yield from module_files(base, within)
            for alias in node.names:
                yield from module_files(base + "." + alias.name if base else alias.name, within)


def module_files(name: str, roots: list[str], main: bool = False) -> list[str]:
    """The files that importing a module would execute, the outermost package's first; empty if it is not local. With
    ``main`` just the one that ``python -m`` runs."""
    words = name.split(".")
    if not all(words):
        return []
    for root in roots:
        found = []
        for i in range(1, len(words) + 1):
            base = os.path.join(root, *words[:i])
            found += [path for path in (os.path.join(base, "__init__.py"), base + ".py") if _is_local(path)][:1]
        last = os.path.join(root, *words)
        if main and _is_local(os.path.join(last, "__main__.py")):
            return [os.path.join(last, "__main__.py")]
        if found and (found[-1].startswith(last)):
            return found[-1:] if main else found
    return []


def _is_local(path: str) -> bool:
    return os.path.isfile(path) and not _NOT_LOCAL & set(os.path.abspath(path).split(os.sep))


def script_of(words: list[str]) -> tuple[Optional[str], list[str]]:
    """The file that ``python SCRIPT`` or ``python -m MODULE`` runs, or None if it is not local, and the folders in
    which Python would look for modules."""
    path = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    if words[0] == "-m":
        roots = [os.getcwd(), *path]
        found = module_files(words[1], roots, main=True)
        return (found[0] if found else None), roots
    return words[0], [os.path.dirname(os.path.realpath(words[0])), *path]
