"""Checks what is read from scripts: for each rule, spellings that it is about, and near misses that it must not be about.

python reading.py
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from headroom_train import reading
from headroom_train.reading.local import script_of, sources

BEGIN = """
import torch
from torch import nn
import torch.nn.functional as F
model = nn.Linear(3, 3).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.MSELoss()
"""
STEP = """
optimizer.zero_grad()
out = model(x)
loss = criterion(out, y)
loss.backward()
optimizer.step()
"""


def indented(text: str, by: int) -> str:
    return textwrap.indent(text.strip("\n"), " " * by)


def loop(step: str = STEP, *, before: str = "", after: str = "") -> str:
    """A script with one loop. The step is followed by some lines, and the loop too."""
    return f"{BEGIN}{before}\nfor i, (x, y) in enumerate(loader):\n{indented(step, 4)}\n{after}\n"


def plus(*lines: str) -> str:
    return STEP + "\n".join(lines)


def epochs(step: str, *, before: str = "", each: str = "") -> str:
    return (
        f"{BEGIN}{before}\nfor epoch in range(9):\n    {each or 'pass'}\n"
        f"    for i, (x, y) in enumerate(loader):\n{indented(step, 8)}\n"
    )


def function(step: str, *, before: str = "", after: str = "") -> str:
    return (
        f"{BEGIN}\ndef train(model, loader, optimizer, criterion):\n{indented(before or 'pass', 4)}\n"
        f"    for x, y in loader:\n{indented(step, 8)}\n{indented(after or 'return', 4)}\n"
    )


METHODS = """
class Trainer:
    def __init__(self, model):
        self.model = model.cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.history = []
        self.total = 0.0

    def train(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = F.mse_loss(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            {line}
{more}
"""


def methods(line: str, more: str = "") -> str:
    return BEGIN + METHODS.format(line=line, more=indented(more, 4))


def evaluation(body: str, *, decorator: str = "", call: str = "evaluate(model, loader)", before: str = "") -> str:
    return f"{BEGIN}{before}\n{decorator}\ndef evaluate(model, loader):\n{indented(body, 4)}\n{call}\n"


EVALUATES = """
model.eval()
right = 0
for x, y in loader:
    out = model(x)
    right += (out.argmax(1) == y).sum().item()
return right
"""
ACCUMULATES = """
loss = criterion(model(x), y)
loss.backward()
if (i + 1) % 4 == 0:
    optimizer.step()
    optimizer.zero_grad()
"""


def dataset(item: str, base: str = "torch.utils.data.Dataset") -> str:
    return (
        f"{BEGIN}\ndevice = torch.device('cuda')\nclass Rows({base}):\n    def __init__(self, x):\n"
        f"        self.x = x.cuda()\n    def __getitem__(self, i):\n{indented(item, 8)}\n"
    )


LIGHTNING = """
import lightning as L
import torch
from torch import nn
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 3)
        self.seen = []
    def training_step(self, batch, i):
        x, y = batch
        loss = nn.functional.mse_loss(self.net(x), y)
        {line}
        return loss
{more}
"""

OF_A_MODEL = """
import torch
class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.seen = {{"out": []}}
    def step(self, x, y):
        self.optimizer.zero_grad()
        out = self.model(x)
        torch.nn.functional.mse_loss(out, y).backward()
        self.optimizer.step()
        {line}
trainer = Trainer(make())
for x, y in loader:
    trainer.step(x, y)
"""
HUGGING_FACE = """
from transformers import Trainer
class Keeps(Trainer):
    def __init__(self, *args):
        super().__init__(*args)
        self.seen = []
    def compute_loss(self, model, inputs, return_outputs=False, **more):
        outputs = model(**inputs)
        self.seen.append(outputs["logits"]{suffix})
        return (outputs["loss"], outputs) if return_outputs else outputs["loss"]
{more}
"""

# For each rule: scripts for which it speaks, and scripts for which no rule does.
CASES: dict[str, tuple[list[str], list[str]]] = {
    "kept-tensor": (
        [
            loop(plus("losses = losses + [loss]"), before="losses = []"),
            loop(plus("history.setdefault('loss', []).append(loss)"), before="history = {}"),
            BEGIN
            + METHODS.format(line="pass", more="").replace(
                "def train(self, loader):\n        for x, y in loader:\n    ",
                "def step(self, x, y):\n        if x:\n    ",
            )
            + "            self.history.append(loss)\nfor x, y in loader:\n    Trainer(model).step(x, y)\n",
            loop(plus("losses.append(loss)"), before="losses = []"),
            loop(plus("results[i] = out"), before="results = {}"),
            loop(plus("losses += [loss]"), before="losses = list()"),
            loop(plus("history['loss'].append(loss)"), before="history = {'loss': [], 'rate': []}"),
            loop(plus("seen.append((i, out, y))"), before="seen = []"),
            loop(plus("losses.append(loss / 2)"), before="losses = []"),
            loop(plus("losses.append(loss.mean())"), before="losses = []"),
            epochs(plus("losses.append(loss)"), each="losses = []"),
            function(plus("kept.append(out)"), before="kept = []", after="return kept"),
            methods("self.history.append(loss)"),
            loop(
                "losses.append(loss)\n".join(STEP.split("loss.backward()\n")).replace(
                    "losses", "loss.backward()\nlosses"
                ),
                before="losses = []",
            ),
            loop(
                "loss = step(x, y)\nlosses.append(loss)",
                before="losses = []\ndef step(x, y):\n    optimizer.zero_grad()\n    loss = criterion(model(x), y)\n    loss.backward()\n    optimizer.step()\n    return loss",
            ),
            LIGHTNING.format(line="self.seen.append(loss)", more=""),
            HUGGING_FACE.format(suffix="", more=""),
            methods("self.history.append(loss)").replace("model.cuda()", "model").replace("Adam(self.", "Adam("),
            OF_A_MODEL.format(line="self.seen['out'].append(out)"),
        ],
        [
            loop(plus("losses.append(loss.item())"), before="losses = []"),
            loop(plus("losses.append(float(loss))"), before="losses = []"),
            loop(plus("losses.append(loss.detach())"), before="losses = []"),
            loop(plus("loss = loss.item()", "losses.append(loss)"), before="losses = []"),
            loop(
                plus("losses.append(loss)", "if i % 9 == 0:\n    print(len(losses))\n    losses.clear()"),
                before="losses = []",
            ),
            loop(plus("losses.append(loss)", "if i % 9 == 0:\n    losses = []"), before="losses = []"),
            loop(plus("losses.append(loss)", "if i % 9 == 0:\n    losses[:] = []"), before="losses = []"),
            loop(plus("losses = []", "losses.append(loss)")),
            loop(plus("losses.append(loss)"), before="from collections import deque\nlosses = deque(maxlen=9)"),
            loop(plus("meter.append(loss)"), before="meter = Meter()"),
            loop(plus("last['loss'] = loss"), before="last = {}"),
            loop(plus("ring[i % 9] = loss"), before="ring = {}"),
            loop(
                "optimizer.zero_grad()\nparts = []\nfor t in range(9):\n    parts.append(criterion(model(x[t]), y[t]))\n"
                "sum(parts).backward()\noptimizer.step()"
            ),
            loop(
                "parts.append(criterion(model(x), y))\nif i % 4 == 3:\n    optimizer.zero_grad()\n"
                "    torch.stack(parts).mean().backward()\n    optimizer.step()\n    parts = []",
                before="parts = []",
            ),
            methods("self.history.append(loss)", "def end(self):\n    self.history.clear()"),
            methods("self.history.append(loss)")
            + "trainer = Trainer(model)\nfor epoch in range(9):\n    trainer.history = []\n",
            LIGHTNING.format(
                line="self.seen.append(loss)", more="    def on_train_epoch_end(self):\n        self.seen.clear()"
            ),
            LIGHTNING.format(line="self.seen.append(loss.detach())", more=""),
            HUGGING_FACE.format(suffix=".detach()", more=""),
            OF_A_MODEL.format(line="self.seen['out'] = out"),
            HUGGING_FACE.format(suffix="", more="    def log(self, logs):\n        self.seen.clear()"),
            HUGGING_FACE.format(suffix="", more="").replace("(Trainer)", "(Base)"),
        ],
    ),
    "summed-tensor": (
        [
            loop(plus("mean = 0.9 * mean + 0.1 * loss"), before="mean = 0.0"),
            epochs(STEP)
            + "    val = 0\n    for x, y in held_out:\n        val += criterion(model(x), y)\n    print(val)\n",
            loop(plus("total += loss"), before="total = 0"),
            loop(plus("total = total + loss"), before="total = 0.0"),
            loop(plus("total += loss * x.size(0)"), before="total = 0.0"),
            loop(plus("total += loss.mean()"), before="total = torch.zeros(1, device='cuda')"),
            epochs(plus("running += loss"), each="running = 0.0"),
            function(plus("total += loss"), before="total = 0", after="return total / len(loader)"),
            methods("self.total += loss"),
            loop(plus("sums['loss'] += loss"), before="sums = {'loss': 0, 'right': 0}"),
        ],
        [
            loop(plus("mean = 0.9 * mean + 0.1 * loss.item()"), before="mean = 0.0"),
            epochs(STEP)
            + "    val = 0\n    for x, y in held_out:\n        val += criterion(model(x), y)\n    val.backward()\n",
            function(STEP, after="val = 0\nfor x, y in held_out:\n    val += criterion(model(x), y)\nreturn val"),
            loop(plus("total += loss.item()"), before="total = 0"),
            loop(plus("total += loss.detach()"), before="total = 0"),
            loop(plus("total += float(loss) * x.size(0)"), before="total = 0"),
            loop(plus("with torch.no_grad():\n    total += loss"), before="total = torch.zeros(1)"),
            loop(
                "optimizer.zero_grad()\nloss = criterion(model(x), y)\nloss = loss + model.weight.sum()\nloss.backward()\noptimizer.step()"
            ),
            loop(
                "optimizer.zero_grad()\nloss = 0\nfor t in range(9):\n    loss += criterion(model(x[t]), y)\nloss.backward()\noptimizer.step()"
            ),
            loop(
                "total += criterion(model(x), y)\nif i % 4 == 3:\n    optimizer.zero_grad()\n    total.backward()\n    optimizer.step()\n    total = 0",
                before="total = 0",
            ),
            loop(plus("right += (out.argmax(1) == y).sum()"), before="right = 0"),
            loop(plus("count += len(x)", "total += loss.data"), before="count = total = 0"),
        ],
    ),
    "retained-graph": (
        [
            loop(STEP.replace("backward()", "backward(retain_graph=True)")),
            function(STEP.replace("backward()", "backward(retain_graph=True)")),
            loop(STEP.replace("backward()", "backward(create_graph=True)")),
            loop(plus("print(loss.item())").replace("backward()", "backward(retain_graph=True)")),
        ],
        [
            loop(STEP.replace("loss.backward()", "loss.backward(retain_graph=True)\nout.sum().backward()")),
            loop(
                "optimizer.zero_grad()\nout, hidden = model(x, hidden)\nloss = criterion(out, y)\nloss.backward(retain_graph=True)\noptimizer.step()",
                before="hidden = None",
            ),
            loop(
                "optimizer.zero_grad()\nout = model(x)\nfor j in range(3):\n    loss = criterion(out[:, j], y)\n    loss.backward(retain_graph=True)\noptimizer.step()"
            ),
            loop(
                STEP.replace(
                    "loss.backward()",
                    "g = torch.autograd.grad(loss, model.weight, create_graph=True)[0]\n(loss + g.norm()).backward()",
                )
            ),
            BEGIN + "out = model(torch.ones(3))\nout.sum().backward(retain_graph=True)\n",
        ],
    ),
    "no-zero-grad": (
        [
            loop(
                "step(x, y)",
                before="def step(x, y):\n    loss = criterion(model(x), y)\n    loss.backward()\n    optimizer.step()",
            ),
            loop("loss = criterion(model(x), y)\nloss.backward()\noptimizer.step()"),
            epochs("loss = criterion(model(x), y)\nloss.backward()\noptimizer.step()", before="optimizer.zero_grad()"),
            function("loss = criterion(model(x), y)\nloss.backward()\noptimizer.step()"),
            loop(
                "loss = criterion(model(x), y)\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()",
                before="scaler = torch.amp.GradScaler()",
            ),
        ],
        [
            loop(
                "optimizer.zero_grad()\nstep(x, y)",
                before="def step(x, y):\n    loss = criterion(model(x), y)\n    loss.backward()\n    optimizer.step()",
            ),
            loop("loss = criterion(model(x), y)\nloss.backward()\noptimizer.step()\nmodel.zero_grad()"),
            loop(
                "loss = criterion(model(x), y)\nloss.backward()\noptimizer.step()\nfor p in model.parameters():\n    p.grad = None"
            ),
            loop("loss = criterion(model(x), y)\nloss.backward()\nupdate(optimizer)\noptimizer.step()"),
            loop(
                "loss = criterion(model(x), y)\nloss.backward()\nfinish()",
                before="def finish():\n    optimizer.step()\n    optimizer.zero_grad()",
            ),
            loop(
                "def closure():\n    optimizer.zero_grad()\n    loss = criterion(model(x), y)\n    loss.backward()\n    return loss\noptimizer.step(closure)"
            ),
            loop("loss = engine(x, y)\nengine.backward(loss)\nengine.step()", before="engine = start()"),
            loop("x.requires_grad_()\nmodel(x).sum().backward()\nshow(x.grad)"),
        ],
    ),
    "undivided-loss": (
        [
            loop(
                "optimizer.zero_grad()\nfor micro in range(8):\n    loss = criterion(model(x), y)\n    loss.backward()\noptimizer.step()"
            ),
            loop(ACCUMULATES.replace("== 0:", "== 0 or i + 1 == len(loader):")),
            loop(ACCUMULATES.replace("(i + 1) % 4 == 0", "i % 4 == 4 - 1")),
            loop(ACCUMULATES.replace("% 4 == 0:", "% 4 == 0 :").replace("if (i + 1)", "if (i + 1)")),
            loop(ACCUMULATES.replace("4", "accumulate").replace("(i + 1)", "(i + 1)"), before="accumulate = 8"),
            function("n += 1\n" + ACCUMULATES.replace("(i + 1)", "n"), before="n = 0"),
        ],
        [
            loop(
                "optimizer.zero_grad()\nfor micro in range(8):\n    loss = criterion(model(x), y) / 8\n    loss.backward()\noptimizer.step()"
            ),
            loop(
                "optimizer.zero_grad()\nfor task in range(8):\n    loss = criterion(model(x), y)\n    loss.backward()\noptimizer.step()"
            ),
            loop(ACCUMULATES.replace("loss.backward()", "(loss / 4).backward()"), after="optimizer.step()"),
            loop(ACCUMULATES.replace("loss.backward()", "loss = loss / 4\nloss.backward()"), after="optimizer.step()"),
            loop(ACCUMULATES.replace("loss.backward()", "loss /= 4\nloss.backward()"), after="optimizer.step()"),
            loop(ACCUMULATES.replace("loss.backward()", "accelerator.backward(loss)"), after="optimizer.step()"),
            loop(
                ACCUMULATES.replace(
                    "    optimizer.step()",
                    "    for p in model.parameters():\n        p.grad /= 4\n    optimizer.step()",
                ),
                after="optimizer.step()",
            ),
            loop(STEP + "if (i + 1) % 4 == 0:\n    print(i)\n"),
        ],
    ),
    "short-window": (
        [
            loop(ACCUMULATES.replace("loss.backward()", "(loss / 4).backward()")).replace(
                "(loader)", "(tqdm(loader), start=1)"
            ),
            loop(ACCUMULATES.replace("loss.backward()", "(loss / 4).backward()")),
            epochs(ACCUMULATES.replace("4", "n").replace("loss.backward()", "(loss / n).backward()"), before="n = 4"),
        ],
        [
            loop(
                ACCUMULATES.replace("== 0:", "== 0 or i + 1 == len(loader):").replace(
                    "loss.backward()", "(loss / 4).backward()"
                )
            ),
            loop(
                ACCUMULATES.replace("loss.backward()", "(loss / 4).backward()"),
                after="optimizer.step()\noptimizer.zero_grad()",
            ),
            BEGIN
            + "step = 0\nfor x, y in loader:\n    step += 1\n    (criterion(model(x), y) / 4).backward()\n    if step % 4 == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n",
            loop(ACCUMULATES.replace("loss.backward()", "(loss / 4).backward()"), before="assert len(loader) % 4 == 0"),
        ],
    ),
    "evaluation-with-gradients": (
        [
            evaluation(EVALUATES.replace("model.eval()", "model.train(mode=False)")),
            BEGIN
            + "class Net(nn.Module):\n    def evaluate(self, loader):\n        self.eval()\n"
            + "        for x in loader:\n            print(self(x))\n",
            BEGIN + "model.eval()\nresults = [model(x) for x in loader]\n",
            BEGIN + "net = nn.Linear(3, 3).cuda().eval()\nfor x in loader:\n    print(net(x))\n",
            evaluation(EVALUATES.replace("model.eval()", "pass"), call="model.eval()\nevaluate(model, loader)"),
            evaluation(EVALUATES),
            BEGIN + "model.eval()\nfor x, y in loader:\n    print(criterion(model(x), y).item())\n",
            BEGIN
            + "for epoch in range(9):\n    model.train()\n    for x, y in loader:\n"
            + indented(STEP, 8)
            + "\n    model.eval()\n    for x, y in held_out:\n        print(model(x).argmax(1))\n",
            BEGIN
            + "class Trainer:\n    def __init__(self, model):\n        self.model = model\n    def validate(self, loader):\n        self.model.eval()\n"
            "        for x, y in loader:\n            print(F.mse_loss(self.model(x), y).item())\n",
            evaluation(EVALUATES.replace("model.eval()", "model.train(False)")),
        ],
        [
            BEGIN + "model.eval()\nwith torch.no_grad():\n    results = [model(x) for x in loader]\n",
            BEGIN + "model.eval()\nfor x in loader:\n    print(model(x))\n    break\n",
            evaluation(EVALUATES.replace("model.eval()", "pass"), call="evaluate(model, loader)"),
            evaluation(
                EVALUATES.replace("model.eval()", "pass"),
                call="model.eval()\nwith torch.no_grad():\n    evaluate(model, loader)",
            ),
            evaluation(EVALUATES, decorator="@torch.no_grad()"),
            evaluation(EVALUATES, decorator="@torch.inference_mode()"),
            evaluation("with torch.no_grad():\n" + indented(EVALUATES.replace("return right", "pass"), 4)),
            evaluation(EVALUATES, call="with torch.no_grad():\n    evaluate(model, loader)"),
            evaluation(EVALUATES, before="torch.set_grad_enabled(False)"),
            evaluation(EVALUATES, before="model.requires_grad_(False)"),
            BEGIN + "model.eval()\nfor x, y in loader:\n" + indented(STEP, 4),
            BEGIN + "model.eval()\nfor x, y in loader:\n    x.requires_grad_()\n    attack(model(x), x)\n",
            BEGIN + "model.eval()\nprint(model(torch.ones(3)))\n",
            BEGIN
            + "for phase in ('train', 'val'):\n    if phase == 'train':\n        model.train()\n    else:\n        model.eval()\n"
            + "    for x, y in loader[phase]:\n        with torch.set_grad_enabled(phase == 'train'):\n            loss = criterion(model(x), y)\n"
            + "        if phase == 'train':\n            optimizer.zero_grad()\n            loss.backward()\n            optimizer.step()\n",
        ],
    ),
    "gpu-in-loader": (
        [
            BEGIN
            + "class Base(Dataset):\n    pass\nclass Rows(Base):\n    def __getitem__(self, i):\n        return x[i].cuda()\n",
            BEGIN
            + "class Collate:\n    def __call__(self, rows):\n        return torch.stack(rows).cuda()\nDataLoader(rows, collate_fn=Collate())\n",
            dataset("for x in self.x:\n    yield x.cuda()", "IterableDataset").replace(
                "__getitem__(self, i)", "__iter__(self)"
            ),
            dataset("return self.x[i].cuda()"),
            dataset("return self.x[i].to(device)"),
            dataset("x = torch.as_tensor(self.x[i])\nreturn x.to('cuda:0')", "Dataset"),
            dataset("return torch.tensor(self.x[i], device=device)"),
            BEGIN
            + "def collate(rows):\n    return torch.stack(rows).cuda()\nDataLoader(rows, collate_fn=collate, num_workers=4)\n",
            BEGIN + "DataLoader(rows, collate_fn=lambda rows: torch.stack(rows).to('cuda'))\n",
        ],
        [
            BEGIN + "class Batches:\n    def __getitem__(self, i):\n        return x[i].cuda()\n",
            dataset("return self.x[i]"),
            dataset("return self.x[i].to(torch.float32)"),
            dataset("return self.x[i].to('cpu')"),
            BEGIN
            + "def batch(rows):\n    return torch.stack(rows).cuda()\nfor rows in DataLoader(data):\n    model(batch(rows))\n",
            "import torch\nclass Rows(Dataset):\n    def __getitem__(self, i):\n        return self.x[i].to(self.device)\n",
        ],
    ),
    "load-without-map-location": (
        [
            BEGIN + "def load_checkpoint(path):\n    return torch.load(path)\n",
            BEGIN + "model.load_state_dict(torch.load('model.pt'))\n",
            BEGIN
            + "state = torch.load(path)\nmodel.load_state_dict(state['model'])\noptimizer.load_state_dict(state['optimizer'])\n",
            BEGIN
            + "def resume(path):\n    state = torch.load(path, weights_only=True)['state_dict']\n    model.load_state_dict(state)\n",
        ],
        [
            BEGIN + "model.load_state_dict(torch.load('model.pt', map_location='cpu'))\n",
            BEGIN + "model.load_state_dict(torch.load('model.pt', device))\n",
            BEGIN + "rows = torch.load('rows.pt')\n",
            BEGIN + "model.load_state_dict(torch.load('model.pt', mmap=True))\n",
            BEGIN + "scaler.load_state_dict(torch.load('scaler.pt'))\n",
            BEGIN
            + "b = io.BytesIO()\ntorch.save(model.state_dict(), b)\nb.seek(0)\nmodel.load_state_dict(torch.load(b))\n",
            BEGIN.replace('"cuda"', '"cpu"') + "model.load_state_dict(torch.load('model.pt'))\n",
            BEGIN
            + "if gpu is None:\n    state = torch.load(path)\nelse:\n    state = torch.load(path, map_location=gpu)\nmodel.load_state_dict(state)\n",
        ],
    ),
    "gradients-not-released": (
        [
            loop(STEP.replace("zero_grad()", "zero_grad(set_to_none=False)")),
            loop(STEP.replace("optimizer.zero_grad()", "model.zero_grad(False)")),
        ],
        [
            loop(STEP.replace("zero_grad()", "zero_grad(set_to_none=True)")),
            loop(STEP.replace("zero_grad()", "zero_grad(set_to_none=False)"), before="graph = torch.cuda.CUDAGraph()"),
            loop(
                STEP.replace("zero_grad()", "zero_grad(set_to_none=False)"),
                before="for p in model.parameters():\n    p.grad = torch.zeros_like(p)",
            ),
            loop(STEP.replace("zero_grad()", "zero_grad(set_to_none=keeps)")),
        ],
    ),
    "many-workers": (
        [
            BEGIN + "DataLoader(rows, num_workers=64, pin_memory=True)\n",
            BEGIN + "torch.utils.data.DataLoader(rows, batch_size=8, pin_memory=True, num_workers=17)\n",
        ],
        [
            BEGIN + "DataLoader(rows, num_workers=16, pin_memory=True)\n",
            BEGIN + "DataLoader(rows, num_workers=64)\n",
            BEGIN + "DataLoader(rows, num_workers=workers, pin_memory=True)\n",
        ],
    ),
    "outlives-epoch": (
        [
            epochs("x = x.cuda()" + plus("seen.append(x)"), before="seen = []"),
            epochs(STEP, before="features = []")
            + "    with torch.no_grad():\n        for x in held_out:\n            features.append(model(x))\n",
            epochs(plus("results.append(out.detach())"), before="results = []"),
            epochs(plus("result = out.detach()", "results.append(result)"), before="results = []"),
        ],
        [
            epochs(plus("seen.append(x)"), before="seen = []"),
            epochs(plus("results.append(out.detach())"), each="results = []"),
            epochs(plus("results.append(out.detach().cpu())"), before="results = []"),
            epochs(plus("losses.append(loss.detach())"), before="losses = []"),
            epochs(plus("results.append(out.detach())", "results.clear()"), before="results = []"),
        ],
    ),
}


def rules_of(script: str) -> list[str]:
    return [finding.rule for finding in reading.findings({"script.py": script}, cpus=8)]


def cases() -> list[str]:
    wrong = []
    for rule, (fires, silent) in CASES.items():
        for script in fires:
            if rule not in rules_of(script):
                wrong.append(f"{rule} is not found, but {rules_of(script)}:\n{script}")
        for script in silent:
            if rules_of(script):
                wrong.append(f"a near miss of {rule} is said to be {rules_of(script)}:\n{script}")
        if len(fires) < 2 or len(silent) < 2:
            wrong.append(f"{rule} has too few cases")
    return wrong


def the_part_of_a_dict_is_emptied() -> list[str]:
    script = epochs(plus("results['out'].append(out.detach())"), before="results = {'out': [], 'loss': []}")
    instead = [f.instead for f in reading.findings({"script.py": script}, cpus=8)]
    right = [text.startswith("results['out'] = []") for text in instead] == [True]
    return [] if right else [f"a list in a dict is not what is emptied: {instead}"]


def what_to_write() -> list[str]:
    """A finding has the line, and what to write there."""
    wrong = []
    for line, instead in (
        ("losses.append(loss)", "losses.append(loss.item())"),
        ("losses.append(loss * 2)", "losses.append(loss.item() * 2)"),
        ("losses.append((i, out))", "losses.append((i, out.detach().cpu()))"),
        ("losses.append((out, loss))", "losses.append((out.detach().cpu(), loss.item()))"),
        ("losses.append({'ö': i, 'loss': loss})", "losses.append({'ö': i, 'loss': loss.item()})"),
        ("losses.append((loss if i else -loss))", "losses.append((loss if i else -loss).item())"),
        ("losses.append(out.cpu())", "losses.append(out.cpu().detach())"),
        ("losses += [loss]", "losses += [loss.item()]"),
        ("total += loss / len(loader)", "total += loss.item() / len(loader)"),
        ("total = total + loss", "total += loss.item()"),
        ("total += out.mean()", "total += out.mean().item()"),
        ("total = 0.9 * total + 0.1 * loss", "total = 0.9 * total + 0.1 * loss.item()"),
    ):
        script = loop(plus(line), before="losses, total = [], 0")
        found = reading.findings({"script.py": script})
        at = script.splitlines()[found[0].line - 1].strip() if found else ""
        if len(found) != 1 or at != line or found[0].instead != instead:
            wrong.append(f"{line}: {found}")
    return wrong + [f"{script}: {found}" for script, found in sizes_of_losses() if found]


def sizes_of_losses() -> Iterator[tuple[str, list]]:
    """Scripts in which what is kept is not known to be a single number, with what is wrong in what to write."""
    many = "loss = F.cross_entropy(out, y, reduction='none')"
    before = "import torch.nn.functional as F\nlosses, total = [], 0\ndef own(x):\n    return x * 2"
    for made, backward, line, instead in (
        (many, "loss.mean().backward()", "losses.append(loss)", "losses.append(loss.detach().cpu())"),
        (many, "loss.mean().backward()", "total += loss", "total += loss.detach()"),
        ("loss = own(out)", "loss.backward(y)", "losses.append(loss)", "losses.append(loss.detach().cpu())"),
        ("loss = own(out)", "loss.backward()", "losses.append(loss)", "losses.append(loss.item())"),
        ("loss = own(out)", "(loss / 2).backward()", "losses.append(loss)", "losses.append(loss.item())"),
        ("loss = own(out)", "scaler.scale(loss).backward()", "losses.append(loss)", "losses.append(loss.item())"),
        (
            "loss = own(out)",
            "loss.backward()",
            "total = 0.9 * total + 0.1 * out",
            "total = 0.9 * total + 0.1 * out.detach()",
        ),
    ):
        script = (
            f"import torch\n{before}\nmodel = torch.nn.Linear(2, 2)\nopt = torch.optim.SGD(model.parameters(), 0.1)\n"
            f"for x, y in loader:\n    out = model(x)\n    {made}\n    opt.zero_grad()\n    {backward}\n    opt.step()\n    {line}\n"
        )
        found = [f.instead for f in reading.findings({"script.py": script})]
        yield f"{made}; {backward}; {line}", [] if found == [instead] else found or ["nothing"]


def nothing_is_imported() -> list[str]:
    """Reading imports no torch, and executes nothing of the script."""
    program = (
        "import sys; from headroom_train import reading; from headroom_train.reading import evaluation, gradients, keeping, loading, local;"
        "reading.findings({'a.py': 'import os\\nos._exit(3)'}); print('torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return [] if said.stdout == "False\n" else [f"{said}"]


def local_modules(folder: Path) -> list[str]:
    """The script's own modules are read, those of site-packages and of Python are not."""
    for name, text in {
        "train.py": "import torch, os, helper\nfrom pkg import loops\nfrom pkg.more import x\nimport broken\n",
        "helper.py": "import train\n",
        "broken.py": "print 'of another Python'\n",
        "pkg/__init__.py": "",
        "pkg/loops.py": "from . import near\nfrom .. import helper\n",
        "pkg/near.py": "",
        "pkg/more/__init__.py": "",
        "pkg/more/x.py": "",
        "pkg/__main__.py": "import helper\n",
        "unused.py": "",
        "site-packages/torch.py": "",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    found = sources(str(folder / "train.py"), [str(folder), str(folder / "site-packages")])
    names = sorted(str(Path(path).relative_to(folder)) for path in found)
    want = [
        "helper.py",
        "pkg/__init__.py",
        "pkg/loops.py",
        "pkg/more/__init__.py",
        "pkg/more/x.py",
        "pkg/near.py",
        "train.py",
    ]
    return [] if names == want and script_of(["-m", "no.such"])[0] is None else [f"read {names}"]


def unusual_sources() -> list[str]:
    """No source is too unusual: nothing is raised."""
    for text in (
        "",
        "\0",
        "print 1",
        "x = " + "(" * 500 + ")" * 500,
        "f(*a, **b)\n[*c] = d\ndel e[0], f\nx: int\ng.add(h=i)\nasync def g():\n    await h\n",
    ):
        reading.findings({"script.py": text})
    branches = "\n".join(f"if {name}:\n    loss = loss + {name}" for name in map("a{}".format, range(200)))
    found = rules_of(
        loop(plus("total += loss").replace("loss.backward()", branches + "\nloss.backward()"), before="total = 0")
    )
    deep = rules_of(loop(plus(f"x = {'y + ' * 3000} y")))
    cases = "match i:\n    case 0:\n        losses.append(loss)\n    case _:\n        pass"
    matched = rules_of(loop(plus(cases), before="losses = []")) if sys.version_info >= (3, 10) else ["kept-tensor"]
    said = (found, deep, matched)
    return [] if said == (["summed-tensor"], [], ["kept-tensor"]) else [f"{said}"]


def own_loops() -> list[str]:
    """The loops of these tests are right, but for one that keeps its gradients."""
    found = [
        f for path in Path(__file__).parent.glob("loops_*.py") for f in reading.findings({path.name: path.read_text()})
    ]
    right = [(f.rule, f.file) for f in found] == [("gradients-not-released", "loops_outputs.py")]
    return [] if right else [str(found)]


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        wrong = [
            *cases(),
            *what_to_write(),
            *the_part_of_a_dict_is_emptied(),
            *nothing_is_imported(),
            *local_modules(Path(temporary)),
            *unusual_sources(),
            *own_loops(),
        ]
    count = sum(len(fires) + len(silent) for fires, silent in CASES.values())
    print("\n\n".join(wrong) + f"\n{len(CASES)} rules, {count} scripts, {len(wrong)} wrong")
    sys.exit(1 if wrong else 0)
