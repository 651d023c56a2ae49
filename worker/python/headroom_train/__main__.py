"""``python -m headroom_train script.py …`` and ``python -m headroom_train -m module …``.

Runs a program just as ``python script.py`` and ``python -m module`` would, but with the worker in
it. If no headroom process is connected, the worker makes its own decisions.

``python -m headroom_train run -- …``, and any other word of headroom's that is no file, is ``headroom
run -- …``, where the command ``headroom`` is not this one.
"""

from __future__ import annotations

import os
import runpy
import sys

import _headroom_hook

USAGE = """usage: python -m headroom_train script.py [argument ...]
       python -m headroom_train -m module [argument ...]
       python -m headroom_train COMMAND [argument ...]     as headroom COMMAND, such as run -- python train.py"""


def main() -> None:
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help") or words == ["-m"]:
        sys.exit(USAGE)
    if words[0].isalpha() and not any(map(os.path.isfile, (words[0], os.path.join(words[0], "__main__.py")))):
        from headroom_train import program

        program.become(words)
    os.environ.setdefault("HEADROOM_WORKER", "armed")
    _headroom_hook.watch()
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = words
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(words[0]))  # python -m had put the working directory there
    runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
