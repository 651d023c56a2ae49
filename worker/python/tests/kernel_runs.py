"""Checks a kernel that headroom has installed: it runs under headroom.

python kernel_runs.py HEADROOM FOLDER

HEADROOM is the program, and FOLDER a new one, in which the kernel is installed and runs. What the run has recorded there
is for whoever has started this script to look at.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from kernel import Kernel, Said, environment

ENDLESS = "import time\nwhile True:\n    print('.', flush=True)\n    time.sleep(0.05)"


def main(headroom: str, folder: str) -> str:
    os.environ.update(JUPYTER_DATA_DIR=os.path.join(folder, "jupyter"), HEADROOM_RUNS_DIR=os.path.join(folder, "runs"))
    words = [headroom, "kernel", "install", "--python", sys.executable]
    print(subprocess.run(words, check=True, env=environment(), capture_output=True, text=True).stdout, end="")
    with Kernel(name="headroom") as kernel:
        if (
            ".headroom"
            not in kernel.run("print(bool(__import__('os').environ['HEADROOM_SOCKET']), '.headroom')").printed
        ):
            return "it does not run under headroom"
        if "torch has not been imported yet" not in kernel.run("%headroom").printed:
            return "the extension is not loaded"
        group = os.getpgid(kernel.manager.provisioner.pid)  # type: ignore[union-attr, attr-defined]
        ways = [kernel.manager.interrupt_kernel, lambda: os.killpg(group, signal.SIGINT)]
        for way in ways:
            sent: list[int] = []

            def interrupt(said: Said, way: object = way, sent: list[int] = sent) -> None:
                if said.printed and not sent:
                    sent.append(1)
                    way()  # type: ignore[operator]

            if kernel.run(ENDLESS, until=interrupt).error != "KeyboardInterrupt":
                return "an interrupt does not reach the cell"
        kernel.run("mine = 1")
        kernel.restart()
        if kernel.run("mine").error != "NameError":
            return "a restart keeps what was there"
        kernel.run("import torch\ntorch.optim.SGD([torch.nn.Parameter(torch.ones(1))]).step()")
    return ""


if __name__ == "__main__":
    said = main(*sys.argv[1:])
    print(said)
    sys.exit(1 if said else 0)
