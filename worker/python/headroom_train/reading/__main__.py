"""``python -m headroom_train.reading SCRIPT`` and ``… -m MODULE``: prints what is found as one JSON object."""

from __future__ import annotations

import ast
import json
import os
import sys

from . import findings
from .local import UNREADABLE, script_of, sources


def main(words: list[str]) -> None:
    if not hasattr(ast, "get_source_segment"):
        print(json.dumps({"why": "its interpreter is older than Python 3.8"}))
        return
    script, roots = script_of(words)
    if script is None:
        print(json.dumps({"why": f"{words[1]} is not a module in this folder"}))
        return
    try:
        files = sources(script, roots)
    except UNREADABLE as e:
        print(json.dumps({"why": f"{script}: {getattr(e, 'strerror', None) or getattr(e, 'msg', None) or e}"}))
        return
    found = [finding._asdict() for finding in findings(files, os.cpu_count())]
    print(json.dumps({"files": list(files), "findings": found}))


if __name__ == "__main__":
    main(sys.argv[1:])
