"""Checks the extension of IPython, in shells and in a real kernel, with memory that really runs out.

python notebook.py
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

os.environ["IPYTHONDIR"] = tempfile.mkdtemp(prefix="headroom-ipython-")
os.environ["HEADROOM_WORKER"] = "armed"

import nbformat
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from traitlets.config import Config

import trial  # noqa: F401  # the headroom of this repository
from forked import status
from kernel import PACKAGE, Kernel, Said, environment

MIB = 1 << 20
LEFT = 10  # MiB that a failed cell may leave behind
SURVIVED, REFUSED, LET_GO = (
    "out of memory, survived",
    "out of memory, and this step cannot be run in pieces",
    "let go of",
)

# What every notebook here begins with: a network that can be cut and one that cannot, and a loop over batches.
BEGIN = '''
import gc, resource, sys, torch
torch.set_num_threads(1)

class Net(torch.nn.Module):
    def __init__(self, cut=True):
        super().__init__()
        self.a, self.b = torch.nn.Linear(256, 256), torch.nn.Linear(256, 256)
        self.norm = torch.nn.Identity() if cut else torch.nn.BatchNorm1d(256)

    def forward(self, x):
        hidden = torch.relu(self.norm(self.a(x)))
        return self.b(hidden)

def make(cut=True):
    torch.manual_seed(0)
    net = Net(cut)
    return net, torch.optim.SGD(net.parameters(), lr=0.1)

def train(net, optimizer, rows, steps=2):
    for step in range(steps):
        x = torch.randn(rows, 256)
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        del x, loss
    return "trained"

def held():
    """MiB that this process may write to, as a limit on its data counts them."""
    gc.collect()
    return int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize() / 2**20

def tensors():
    """MiB of the tensors that something refers to."""
    gc.collect()
    known = [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in known}.values()) / 2**20

def limit(mib):
    resource.setrlimit(resource.RLIMIT_DATA, (int((held() + mib) * 2**20), resource.RLIM_INFINITY))

net, optimizer = make()
train(net, optimizer, 64)
'''
# Rows: of the first, three tensors are more than the limit allows, and each so large that C's library gives it back.
LARGE, SMALL = 35_000, 4_000
LIMIT = 90  # MiB
# Fails at the same place for another reason, after which what IPython keeps to show such tracebacks is there.
WARM = "net, optimizer = make(cut=False)\ntrain(net, optimizer, 1)"


def told(said: Said, begin: str) -> int:
    return sum(line.startswith(begin) for line in said.lines)


def three_cells(extension: bool) -> list[str]:
    """Each cell's outputs: one trains, one runs out of memory, a smaller one comes after it; and what is left then."""
    cells = [
        "%load_ext headroom_train" if extension else "",
        BEGIN + "limit(2000)\ntrain(net, optimizer, 64)",
        WARM,
        f"train(net, optimizer, {SMALL})\nbase = tensors()\nlimit({LIMIT})",
        f"train(net, optimizer, {LARGE})",
        "print(tensors() - base)",
        f"train(net, optimizer, {SMALL})",
    ]
    notebook = new_notebook(cells=[new_code_cell(c) for c in cells])
    client = NotebookClient(notebook, kernel_name="python3", timeout=100, allow_errors=True)
    client.execute(env=environment(PACKAGE))
    return ["".join(_words(o) for o in c.outputs) for c in notebook.cells]


def _words(output: nbformat.NotebookNode) -> str:
    return output.get("text") or output.get("ename") or output["data"]["text/plain"]


def a_failed_cell_leaves_nothing_behind() -> str:
    """With nbclient: what of a failed cell's tensors is left in the next cell, with and without the extension."""
    with_it, without = three_cells(True), three_cells(False)
    if "RuntimeError" not in without[4] or float(without[5]) < 2 * LEFT:
        return f"the failure without the extension proves nothing: {without}"
    number = re.search(r"-?[\d.]+$", with_it[5].strip())
    left = float(number[0]) if number else 1e9
    if "RuntimeError" not in with_it[4] or REFUSED not in with_it[4] or left > LEFT or "'trained'" not in with_it[6]:
        return f"{left} MiB are left: {with_it}"
    return ""


def a_real_kernel() -> str:
    """Everything below in one kernel, in the order in which a user may do it."""
    with Kernel(PACKAGE) as kernel:
        return _session(kernel)


def _session(kernel: Kernel) -> str:
    kernel.run("%load_ext headroom_train")
    kernel.run(BEGIN)
    said = kernel.run(f"limit({LIMIT})\ntrain(net, optimizer, {LARGE})")
    if said.error or told(said, SURVIVED) != 1 or said.printed != "'trained'":
        return f"not survived: {said}"
    kernel.run("limit(2000)")
    kernel.run(WARM)
    kernel.run("%debug", "q")
    kernel.run(f"train(net, optimizer, {SMALL}); base = held(); limit(60)")
    failing = f"train(net, optimizer, {LARGE})"
    said = kernel.run(failing)
    if said.error != "RuntimeError" or told(said, REFUSED) != 1:
        return f"did not fail as it should: {said}"
    climb = ("u", "p 'rows', rows") * 9
    said = kernel.run("%debug", *climb, "q")
    if f"('rows', {LARGE})" not in said.printed or said.lines:
        return f"%debug does not see what failed: {said}"
    said = kernel.run("print(held() - base)")
    if told(said, LET_GO) != 1 or float(said.printed) > LEFT:
        return f"after %debug: {said}"
    said = kernel.run("%debug", *climb, "q")
    if "NameError" not in said.printed or "('rows'" in said.printed or "loss = net(x)" not in said.printed:
        return f"the second %debug: {said}"
    if "RuntimeError" not in kernel.run("%tb").printed and not kernel.run("%tb").error:
        return "%tb shows nothing"
    kernel.run("limit(2000)")
    interrupted = (
        "import time\nfor i in range(10**6):\n    train(net, optimizer, 64)\n    print('.', end='', flush=True)"
    )
    sent: list[int] = []

    def interrupt(said: Said) -> None:
        if said.printed and not sent:
            sent.append(1)
            kernel.manager.interrupt_kernel()

    said = kernel.run(interrupted, until=interrupt)
    if said.error != "KeyboardInterrupt" or said.lines:
        return f"an interrupt: {said}"
    said = kernel.run(f"net, optimizer = make()\nlimit({LIMIT})\ntrain(net, optimizer, {LARGE})")
    if said.error or told(said, SURVIVED) != 1:
        return f"after an interrupt: {said}"
    said = kernel.run("%headroom")
    drawn = [*said.shown.values()]
    if len(drawn) != 1 or "weights" not in drawn[0]["text/plain"] or not drawn[0]["text/html"].startswith("<svg"):
        return f"%headroom: {said}"
    kernel.restart()
    if kernel.run("print('headroom_train' in __import__('sys').modules)").printed != "False\n":
        return "the extension outlives a restart"
    # After torch and an optimizer, by name
    kernel.run(BEGIN)
    said = kernel.run(
        f"import headroom_train\nprint(headroom_train.attach())\nlimit({LIMIT})\ntrain(net, optimizer, {LARGE})"
    )
    return "" if said.printed == "True\n'trained'" and told(said, SURVIVED) == 1 else f"attach(): {said}"


# In shells of this process: no kernel, and nothing is imported again.


class Shell:
    """A shell of IPython with the extension, as in a terminal."""

    def __init__(self, load: bool = True) -> None:
        torch.set_num_threads(1)
        config = Config()
        config.HistoryManager.enabled = False
        config.TerminalInteractiveShell.simple_prompt = True
        self.shell = InteractiveShell.instance(config=config, colors="nocolor")
        self.err = ""
        if load:
            self.run("%load_ext headroom_train")

    def run(self, code: str, fails: str = "") -> str:
        """Runs a cell, and returns what it prints. It must fail with the exception ``fails``, if any."""
        with capture_output() as captured:
            result = self.shell.run_cell(code, store_history=True)
        self.err += captured.stderr
        error = result.error_before_exec or result.error_in_exec
        if type(error).__name__ != (fails or "NoneType"):
            raise AssertionError(f"{code}: {error!r} {captured.stdout}{captured.stderr}")
        return captured.stdout

    def begun(self) -> Shell:
        self.run(BEGIN)
        return self

    def said(self, begin: str) -> int:
        return self.err.count(f"headroom: {begin}")


TRAIN = f"train(*make(), {LARGE}, 1)"  # the network is made anew, so that nothing is known of sizes that do not fit
SHAPES = {
    "a cell": TRAIN,
    "run again": TRAIN,
    "%time": f"%time {TRAIN}",
    "%%capture": f"%%capture got\n{TRAIN}",
    "an async cell": f"import asyncio\nasync def go():\n    await asyncio.sleep(0)\n    return {TRAIN}\nawait go()",
    "a thread": f"import threading\nt = threading.Thread(target=lambda: {TRAIN}); t.start(); t.join()",
    "nested functions": f"def outer():\n    def inner(rows):\n        return train(*make(), rows, 1)\n    return inner({LARGE})\nouter()",
    "a class defined again": BEGIN.partition("def make")[0] + TRAIN,
    "%autoreload": f"%load_ext autoreload\n%autoreload 2\n{TRAIN}",
    "%timeit": f"%timeit -n1 -r1 {TRAIN}",
    "%prun": f"%prun -q {TRAIN}",
    "%run": f"import os, pathlib\nscript = pathlib.Path(os.environ['IPYTHONDIR'], 'script.py')\n"
    f"script.write_text({TRAIN!r})\n%run -i $script",
}


def survive(names: list[str]) -> str:
    """Cells of these shapes survive, each with one line below it."""
    shell, wrong = Shell().begun(), []
    for name in names:
        shell.run(f"limit({LIMIT})")
        before = shell.said(SURVIVED)
        try:
            shell.run(SHAPES[name])
        except AssertionError as e:
            wrong.append(f"{name}: {e}")
        captured = name == "%%capture" and SURVIVED in shell.shell.user_ns["got"].stderr
        if shell.said(SURVIVED) != before + 1 and not captured:
            wrong.append(f"{name}: nothing failed, or not one line was said")
    return "; ".join(wrong)


def shapes_of_use() -> str:
    return survive([*SHAPES][:5])


def more_shapes_of_use() -> str:
    return survive([*SHAPES][5:])


def failures_that_are_only_shown() -> str:
    """A cell may show an exception and end as if there had been none, as %time does in some versions; what it keeps is
    let go all the same. So is what async functions keep."""
    shell = Shell().begun()
    shell.run(f"net, optimizer = make(cut=False); train(net, optimizer, {SMALL}); limit({LIMIT})")
    shell.run(f"try: train(net, optimizer, {LARGE})\nexcept RuntimeError: get_ipython().showtraceback()")
    shell.run(f"train(net, optimizer, {SMALL})")
    if shell.said(LET_GO) != 1:
        return shell.err
    shell.run(
        f"import asyncio\nasync def go():\n    rows = {LARGE}\n    await asyncio.sleep(0)\n    train(net, optimizer, rows)\nawait go()",
        "RuntimeError",
    )
    shell.run(f"train(net, optimizer, {SMALL})")
    return "" if shell.said(LET_GO) == 2 else shell.err


def what_is_the_users_stays() -> str:
    """Variables of cells, results of other cells, and generators that have not ended. A result of the failed cell with a
    graph goes."""
    shell = Shell().begun()
    ns = shell.shell.user_ns
    shell.run("get_ipython().ast_node_interactivity = 'all'\nx = torch.ones(2, 256)")
    number = shell.shell.execution_count
    shell.run("net(x)")
    ended: list[int] = []
    ns["ended"] = ended
    shell.run("""
def batches(ended):
    try:
        kept = torch.ones(1000)
        try:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        except RuntimeError as e:
            failure = e
        yield failure
        yield kept.sum()
    finally:
        ended.append(1)

def function():
    big = torch.ones(1000)
    raise next(generator)

generator = batches(ended)
""")
    failed = shell.shell.execution_count
    shell.run("net(x)\ny = net(x)\nfunction()", "RuntimeError")
    shell.run("1")
    trace, names = sys.last_value.__traceback__, []
    while trace is not None:
        names.append((trace.tb_frame.f_code.co_name, "big" in trace.tb_frame.f_locals))
        trace = trace.tb_next
    if ("function", False) not in names or ended or float(next(ns["generator"])) != 1000:
        return f"{names}, {ended}"
    if ns["y"].grad_fn is None or ns["_oh"][number].grad_fn is None or f"_{number}" not in ns:
        return "something of the user's is gone"
    gone = failed not in ns["_oh"] and f"_{failed}" not in ns and not isinstance(ns["_"], torch.Tensor)
    return "" if gone else "the failed cell's result is still there"


def other_failures_keep_their_variables() -> str:
    shell = Shell().begun()
    shell.run("def function():\n    mine = 1\n    raise ValueError\nfunction()", "ValueError")
    shell.run("1")
    trace = sys.last_value.__traceback__
    while trace.tb_next is not None:  # type: ignore[union-attr]
        trace = trace.tb_next  # type: ignore[union-attr]
    return "" if trace.tb_frame.f_locals.get("mine") == 1 and not shell.said(LET_GO) else "gone"  # type: ignore[union-attr]


def lines_are_few() -> str:
    """In a terminal the first is shown at once, and one at the end of the cell says how many there were."""
    from headroom_train.wire import beside

    shell = Shell()
    show = beside.show
    shell.shell.user_ns["show"] = show
    shell.run("for i in range(5): show(f'alike: {i}')\nshow('other: 1')")
    lines = shell.err.splitlines()
    if lines != ["headroom: alike: 0", "headroom: other: 1", "headroom: alike: 4 (5 such since the prompt)"]:
        return f"{lines}"
    shell.run("%unload_ext headroom_train")
    return "" if beside.show is None and "headroom" not in shell.shell.magics_manager.magics["line"] else "not unloaded"


def state_of_torch() -> dict[str, Any]:
    """What the worker changes, by name."""
    owners = [
        torch.optim.Optimizer,
        torch.optim.SGD,
        torch.optim.Adam,
        nn.Module,
        nn.Parameter,
        torch.autograd.Function,
    ]
    owners += [nn.parallel.DistributedDataParallel, nn.parallel.distributed, nn.parallel.distributed.Join, torch]
    return {
        f"{o.__name__}.{n}": v
        for o in owners
        for n, v in [*vars(o).items()]
        if not n.startswith("__") or n == "__new__"
    }


def taken_out_again() -> str:
    """Everything is as before, also for modules, optimizers and schedulers that were there before; and it can come
    again."""
    from torch.optim.optimizer import _global_optimizer_post_hooks

    import headroom_train

    torch.set_num_threads(1)
    net = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1), torch.optim.Adam(net.parameters())]
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 1) for o in optimizers]
    before, steps = state_of_torch(), [vars(o)["step"] for o in optimizers]

    def train() -> None:
        for optimizer, scheduler in zip(optimizers, schedulers):
            optimizer.zero_grad()
            net(torch.ones(4, 256)).sum().backward()
            optimizer.step()
            scheduler.step()

    for _ in range(2):
        if not headroom_train.attach():
            return "not attached"
        from headroom_train import _torch

        recorder: Any = _torch._recorder
        settled: list[int] = []  # what the guard of an optimizer's step calls first
        recorder.settle = lambda settled=settled: settled.append(1)
        if not all(p in recorder.trained for p in net.parameters()):
            return "it does not know what is trained"
        train()
        if type(vars(net).get("_compiled_call_impl")).__name__ != "RecordedModule":
            return "the model is not recorded"
        if len(settled) != 2 or recorder.report.steps != 2:
            return f"steps that were there before are not seen: {settled}, {recorder.report.steps}"
        headroom_train.detach()
        now = state_of_torch()
        other = [n for n in {*before, *now} if before.get(n) is not now.get(n)]
        if other or [vars(o)["step"] for o in optimizers] != steps or _global_optimizer_post_hooks:
            return f"left behind: {other}"
        if "_compiled_call_impl" in vars(net):
            return "the model is still recorded"
        train()
        if recorder.report.steps != 2:
            return "it still counts"
        headroom_train.detach()  # once more does nothing
    os.environ["HEADROOM_WORKER"] = "off"
    return "attached although it is off" if headroom_train.attach() or state_of_torch() != before else ""


def the_picture() -> str:
    from headroom_train.account.inventory import Memory
    from headroom_train.notebook.picture import Variable, svg, text

    gib = 1 << 30
    gpu = Memory("cuda:0", {"weights": 10 * gib, "kept": 30 * gib, "cache": gib}, 80 * gib, 30 * gib, 42 * gib)
    host = Memory("host", {"weights": gib, "cache": gib}, 3 * gib, base=gib // 2)
    shown = text([gpu, host], [Variable("<loss>", 30 * gib)])
    want = """cuda:0: 50 GiB of 80 GiB are taken
     10 GiB  ████████                  weights
     30 GiB  ████████████████████████  other tensors
      1 GiB  █                         kept by the allocator for later
      8 GiB  ██████                    other processes and CUDA itself
     30 GiB  ████████████████████████  free
host: this process has 3 GiB"""
    drawn = svg([gpu, host], [Variable("<loss>", 30 * gib)])
    if not shown.startswith(want) or not shown.endswith("largest variables: <loss> 30 GiB"):
        return shown
    from xml.etree import ElementTree

    bars = [float(e.get("width", 0)) for e in ElementTree.fromstring(drawn) if e.get("height") == "18"]
    return "" if len(bars) == 8 and abs(sum(bars[:5]) - 560) < 1 and "&lt;loss&gt;" in drawn else drawn


CHECKS: list[Callable[[], str]] = [
    shapes_of_use,
    more_shapes_of_use,
    failures_that_are_only_shown,
    what_is_the_users_stays,
    other_failures_keep_their_variables,
    lines_are_few,
    taken_out_again,
    the_picture,
]
WITH_KERNELS: list[Callable[[], str]] = [a_real_kernel, a_failed_cell_leaves_nothing_behind]


if __name__ == "__main__":
    code = status(CHECKS)
    for check in WITH_KERNELS if "--kernels" in sys.argv else ():
        said = check()
        print(
            f"{'FAILED' if said else 'ok':6} {check.__name__.replace('_', ' ')}{': ' if said else ''}{said}", flush=True
        )
        code = 1 if said else code
    shutil.rmtree(os.environ["IPYTHONDIR"], ignore_errors=True)
    sys.exit(code)
