"""Small trainings for holders.py: some that keep what they need no more, and some that only look as if they did.

Each begins with holders.START. The line that keeps ends with ``#kept``, the line that makes what is kept with ``#made``.
"""

from __future__ import annotations

from typing import NamedTuple


class Leak(NamedTuple):
    kind: str
    name: str
    cure: str  # a part of it
    text: str


LEAKS = {
    "inputs in a list": Leak(
        "collected",
        "seen",
        "empty `seen`",
        """
        seen = []
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            seen.append(x) #kept
    """,
    ),
    "inputs in an attribute": Leak(
        "collected",
        "self.history",
        "empty `self.history`",
        """
        class Trainer:
            def __init__(self):
                self.history = []
            def step(self, x):
                train(x)
                self.history.append((x, 1)) #kept
        def main():
            trainer = Trainer()
            for step in range(100):
                x = torch.randn(1024, 256) #made
                trainer.step(x)
        main()
    """,
    ),
    "results in a dict": Leak(
        "collected",
        "results",
        "empty `results`",
        """
        results = {}
        wide = nn.Linear(256, 256)
        def main():
            for step in range(100):
                x = batch()
                train(x)
                y = wide(x) #made
                results[f"step {step}"] = y.detach() #kept
        main()
    """,
    ),
    "results in a class attribute": Leak(
        "collected",
        "Trainer.losses",
        "empty `Trainer.losses`",
        """
        class Trainer:
            losses = []
        wide = nn.Linear(256, 256)
        def main():
            for step in range(100):
                x = batch()
                train(x)
                with torch.no_grad():
                    Trainer.losses.append(wide(x)) #kept #made
        main()
    """,
    ),
    "results in a dict of lists": Leak(
        "collected",
        "logs['out']",
        "empty `logs['out']`",
        """
        def main():
            logs = {"out": [], "step": []}
            for step in range(100):
                x = batch()
                train(x)
                out = x * 2 #made
                logs['out'].append(out) #kept
                logs['step'].append(step)
        main()
    """,
    ),
    "losses with graphs in a list": Leak(
        "collected",
        "losses",
        "write `losses.append(loss.item())`",
        """
        losses = []
        for step in range(100):
            x = batch()
            train(x)
            loss = net(x).sigmoid().mean() #made
            losses.append(loss) #kept
    """,
    ),
    "losses with graphs in a dict": Leak(
        "collected",
        "history",
        "write `history[step] = loss.item()`",
        """
        def main():
            history = {}
            for step in range(100):
                x = batch()
                train(x)
                loss = net(x).square().mean() #made
                history[step] = loss #kept
        main()
    """,
    ),
    "outputs with graphs": Leak(
        "collected",
        "outs",
        "write `outs.append(out.detach())`",
        """
        outs = []
        for step in range(100):
            x = batch()
            train(x)
            out = net(x) #made
            outs.append(out) #kept
    """,
    ),
    "a list that is made anew": Leak(
        "collected",
        "seen",
        "empty `seen`",
        """
        seen = []
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            seen = seen + [x] #kept
    """,
    ),
    "a default argument": Leak(
        "collected",
        "seen",
        "empty `seen`",
        """
        def remember(x, seen=[]):
            seen.append(x) #kept
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            remember(x)
    """,
    ),
    "a dict of lists that is made when needed": Leak(
        "collected",
        "logs['y']",
        "write `logs.setdefault('y', []).append(y.item())`",
        """
        def main():
            logs = {}
            for step in range(100):
                x = batch()
                train(x)
                y = net(x).sigmoid().mean() #made
                logs.setdefault("y", []).append(y) #kept
        main()
    """,
    ),
    "a list that a function is given": Leak(
        "collected",
        "seen",
        "empty `seen`",
        """
        def remember(into, x):
            into.append(x)
        def main():
            seen = []
            for step in range(100):
                x = torch.randn(1024, 256) #made
                train(x)
                remember(seen, x) #kept
        main()
    """,
    ),
    "a list that is set in fit": Leak(
        "collected",
        "self.seen",
        "empty `self.seen`",
        """
        class Trainer:
            def fit(self):
                self.seen = []
                for step in range(100):
                    x = torch.randn(1024, 256) #made
                    train(x)
                    self.seen.append(x) #kept
        Trainer().fit()
    """,
    ),
    "hooks that are never removed": Leak(
        "hook",
        "wide.register_forward_hook",
        "handle.remove()",
        """
        wide = nn.Linear(256, 256)
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            wide.register_forward_hook(lambda m, a, out, x=x: None) #kept
    """,
    ),
    "a queue": Leak(
        "collected",
        "q",
        "empty `q`",
        """
        import queue
        q = queue.Queue()
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            q.put(x) #kept
    """,
    ),
    "a tensor that grows": Leak(
        "collected",
        "everything",
        "empty `everything`",
        """
        everything = torch.zeros(0, 256)
        for step in range(100):
            x = torch.randn(1024, 256)
            train(x)
            everything = torch.cat([everything, x]) #kept
    """,
    ),
    "named tuples": Leak(
        "collected",
        "self.memory",
        "empty `",
        """
        T = collections.namedtuple("T", "s a")
        class Agent:
            def __init__(self): self.memory = []
            def remember(self, s, a): self.memory.append(T(s, a)) #kept
        agent = Agent()
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            agent.remember(x, step)
    """,
    ),
    "a set": Leak(
        "collected",
        "seen",
        "empty `",
        """
        seen = set()
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            seen.add(x) #kept
    """,
    ),
    "a list that is added to": Leak(
        "collected",
        "seen",
        "empty `",
        """
        seen = []
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            seen += [x] #kept
    """,
    ),
    "objects": Leak(
        "collected",
        "self.log",
        "empty `",
        """
        import dataclasses
        @dataclasses.dataclass
        class Rec:
            step: int
            x: torch.Tensor
        class R:
            log: list
            def __init__(self): self.log = []
            def add(self, step, x):
                self.log.append(Rec(step, x)) #kept
        r = R()
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            r.add(step, x)
    """,
    ),
    "what a model remembers": Leak(
        "collected",
        "self.features",
        "empty `",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.l = nn.Linear(256, 256)
                self.features = []
            def forward(self, x):
                h = self.l(x) #made
                self.features.append(h) #kept
                return h
        m = Net(); o = torch.optim.SGD(m.parameters(), 1e-3)
        for step in range(100):
            o.zero_grad()
            m(torch.randn(1024, 256)).square().mean().backward()
            o.step()
    """,
    ),
    "a defaultdict": Leak(
        "collected",
        "metrics['out']",
        "empty `",
        """
        metrics = collections.defaultdict(list)
        def main():
            for step in range(100):
                x = torch.randn(1024, 256) #made
                train(x)
                metrics['out'].append(x) #kept
        main()
    """,
    ),
    "a sum in a dict": Leak(
        "sum",
        "stats['loss']",
        ".item()",
        """
        stats = {"loss": 0.0}
        def main():
            for step in range(100):
                x = torch.randn(1024, 256)
                train(x)
                loss = net(x).square().mean() #made
                stats['loss'] += loss #kept
        main()
    """,
    ),
    "a hidden state of two in an attribute": Leak(
        "hidden-state",
        "self.hidden",
        "detach",
        """
        class M(nn.Module):
            def __init__(self):
                super().__init__()
                self.lstm = nn.LSTM(256, 64, batch_first=True)
                self.hidden = None
            def forward(self, x):
                out, self.hidden = self.lstm(x, self.hidden) #kept
                return out
        m = M()
        for step in range(100):
            train(torch.randn(64, 256))
            m(torch.randn(32, 8, 256))
    """,
    ),
    "weights by epoch": Leak(
        "models",
        "checkpoints",
        "torch.save",
        """
        checkpoints = {}
        big = nn.Linear(256, 512)
        for epoch in range(60):
            for step in range(2):
                train(torch.randn(64, 256))
            checkpoints[f"epoch{epoch}"] = {k: v.detach().cpu().clone() for k, v in big.state_dict().items()} #kept
    """,
    ),
    "a hook that is a lambda": Leak(
        "hook",
        "acts",
        "handle.remove()",
        """
        acts = []
        wide = nn.Linear(256, 256)
        wide.register_forward_hook(lambda m, i, o: acts.append(o.detach())) #kept
        for step in range(100):
            x = torch.randn(1024, 256)
            train(x); wide(x)
    """,
    ),
    "a hook that is a method": Leak(
        "hook",
        "self.store",
        "handle.remove()",
        """
        class Probe:
            def __init__(self, module):
                self.store = {}
                self.n = 0
                module.register_forward_hook(self.save)
            def save(self, m, i, o):
                self.n += 1
                self.store[self.n] = o.detach() #kept
        wide = nn.Linear(256, 256)
        probe = Probe(wide)
        for step in range(100):
            x = torch.randn(1024, 256)
            train(x); wide(x)
    """,
    ),
    "what sys.exc_info returns": Leak(
        "traceback",
        "infos",
        "str(",
        """
        import sys
        infos = []
        for step in range(100):
            def work():
                x = torch.randn(1024, 256)
                raise RuntimeError("boom")
            train(torch.randn(64, 256))
            try:
                work()
            except RuntimeError:
                infos.append(sys.exc_info()) #kept
    """,
    ),
    "functions with default arguments": Leak(
        "closure",
        "fns",
        "numbers",
        """
        fns = []
        def main():
            for step in range(100):
                x = torch.randn(1024, 256) #made
                train(x)
                def later(batch=x):
                    return batch.sum()
                fns.append(later) #kept
        main()
    """,
    ),
    "arrays in tuples": Leak(
        "numpy",
        "rows",
        "empty `",
        """
        rows = []
        wide = nn.Linear(256, 256)
        def main():
            for step in range(100):
                x = torch.randn(1024, 256)
                train(x)
                rows.append((step, wide(x).detach().cpu().numpy().copy())) #kept
        main()
    """,
    ),
    "a method with lru_cache": Leak(
        "cache",
        "feats",
        "maxsize=N",
        """
        class D:
            @functools.lru_cache(None) #kept
            def feats(self, k):
                return torch.randn(1024, 256) #made
        d = D()
        for step in range(200):
            train(d.feats(step))
    """,
    ),
    "losses of a deep model": Leak(
        "collected",
        "losses",
        "losses.append(loss.item())",
        """
        deep = nn.Sequential(*[m for _ in range(60) for m in (nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16))])
        o = torch.optim.SGD(deep.parameters(), 1e-3)
        losses = []
        for step in range(700):
            o.zero_grad()
            loss = deep(torch.randn(8, 16)).square().mean() #made
            loss.backward()
            o.step()
            losses.append(loss) #kept
    """,
    ),
    "a sum of losses of a deep model": Leak(
        "sum",
        "total",
        "total += loss.item()",
        """
        deep = nn.Sequential(*[m for _ in range(60) for m in (nn.Linear(16, 16), nn.Tanh(), nn.LayerNorm(16))])
        o = torch.optim.SGD(deep.parameters(), 1e-3)
        total = 0
        for step in range(700):
            o.zero_grad()
            loss = deep(torch.randn(8, 16)).square().mean() #made
            loss.backward()
            o.step()
            total += loss #kept
    """,
    ),
    "a list of another module": Leak(
        "collected",
        "store.items",
        "empty `",
        """
        import types, sys, tempfile, os
        d = tempfile.mkdtemp(); open(os.path.join(d, "storemod.py"), "w").write("items = []\\n"); os.utime(os.path.join(d, "storemod.py"), (0, 0))
        sys.path.insert(0, d)
        import storemod as store
        def main():
            for step in range(100):
                x = torch.randn(1024, 256) #made
                train(x)
                store.items.append(x) #kept
        main()
    """,
    ),
    "an attribute of a function": Leak(
        "collected",
        "track.history",
        "empty `track.history`",
        """
        def track(v):
            track.history.append(v) #kept
        track.history = []
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            track(x)
    """,
    ),
    "a default argument by name": Leak(
        "collected",
        "seen",
        "empty `seen`",
        """
        def remember(x, *, other=1, seen={}):
            seen[len(seen)] = x #kept
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            remember(x)
    """,
    ),
    "a deque without a limit": Leak(
        "collected",
        "buffer",
        "fixed number",
        """
        buffer = collections.deque()
        def main():
            for step in range(100):
                x = torch.randn(1024, 256) #made
                train(x)
                buffer.append({"x": x, "step": step}) #kept
        main()
    """,
    ),
    "slots": Leak(
        "collected",
        "self.items",
        "empty `self.items`",
        """
        class Meter:
            __slots__ = ("items",)
            def __init__(self):
                self.items = []
            def update(self, x):
                self.items.append(x) #kept
        meter = Meter()
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            meter.update(x)
    """,
    ),
    "a sum": Leak(
        "sum",
        "total",
        "write `total += loss.item()`",
        """
        total = 0.0
        for step in range(100):
            x = batch()
            train(x)
            loss = net(x).square().mean() #made
            total += loss #kept
    """,
    ),
    "a sum in an attribute": Leak(
        "sum",
        "self.total",
        "write `self.total = self.total + loss.item()`",
        """
        class Meter:
            def __init__(self):
                self.total = 0
            def update(self, loss):
                self.total = self.total + loss #kept
        def main():
            meter = Meter()
            for step in range(100):
                x = batch()
                train(x)
                meter.update(net(x).square().mean())
        main()
    """,
    ),
    "retain_graph": Leak(
        "retained-graph",
        "losses",
        "leave out `retain_graph=True`",
        """
        losses = []
        for step in range(100):
            opt.zero_grad()
            x = batch()
            loss = net(x).square().mean() #made
            loss.backward(retain_graph=True)
            opt.step()
            losses.append(loss) #kept
    """,
    ),
    "retain_graph of outputs": Leak(
        "retained-graph",
        "self.outs",
        "write `self.outs.append(out.detach())`",
        """
        class Trainer:
            outs: list
            def run(self):
                self.outs = []
                for step in range(100):
                    opt.zero_grad()
                    out = net(batch()) #made
                    out.square().mean().backward(retain_graph=True)
                    opt.step()
                    self.outs.append(out) #kept
        Trainer().run()
    """,
    ),
    "a hidden state": Leak(
        "hidden-state",
        "h",
        "write `h = h.detach()`",
        """
        cell = nn.RNNCell(256, 256)
        h = torch.zeros(512, 256)
        for step in range(100):
            x = batch(512)
            train(x)
            h = cell(x, h) #kept
    """,
    ),
    "a hidden state of two": Leak(
        "hidden-state",
        "state",
        "tuple(s.detach() for s in state)",
        """
        cell = nn.LSTMCell(256, 128)
        def main():
            state = (torch.zeros(256, 128), torch.zeros(256, 128))
            for step in range(100):
                x = batch(256)
                train(x)
                state = cell(x, state) #kept
        main()
    """,
    ),
    "a hidden state in an attribute": Leak(
        "hidden-state",
        "self.h",
        "write `self.h = self.h.detach()`",
        """
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.cell = nn.GRUCell(256, 256)
                self.h = torch.zeros(256, 256)
            def forward(self, x):
                self.h = self.cell(x, self.h) #kept
                return self.h
        model = Net()
        for step in range(100):
            x = batch(256)
            train(x)
            model(x)
    """,
    ),
    "an evaluation": Leak(
        "evaluation",
        "outs",
        "`with torch.no_grad():`",
        """
        outs = []
        def evaluate():
            net.eval()
            y = net(torch.randn(1024, 256)) #made
            outs.append(y) #kept
            net.train()
        for step in range(120):
            train(batch())
            if step % 2 == 0:
                evaluate()
    """,
    ),
    "an evaluation every few steps": Leak(
        "evaluation",
        "self.scores",
        "`with torch.no_grad():`",
        """
        class Trainer:
            def __init__(self):
                self.scores = {}
            def validate(self, step):
                score = net(batch(4096)).square().mean() #made
                self.scores[step] = score #kept
            def fit(self):
                for step in range(140):
                    train(batch())
                    if step % 5 == 0:
                        self.validate(step)
        Trainer().fit()
    """,
    ),
    "the first evaluation": Leak(
        "evaluation",
        "outs",
        "`with torch.no_grad():`",
        """
        def evaluate():
            net.eval()
            outs = []
            for i in range(60):
                y = net(torch.randn(1024, 256)) #made
                outs.append(y) #kept
            net.train()
            return torch.cat(outs)
        for step in range(2):
            train(batch())
        evaluate()
    """,
    ),
    "a list in an object, in an evaluation": Leak(
        "evaluation",
        "self.outs",
        "`with torch.no_grad():`",
        """
        class Results:
            def __init__(self):
                self.outs = []
            def add(self, out):
                self.outs.append(out) #kept
        class Evaluator:
            def __call__(self, model):
                model.eval()
                results = Results()
                for i in range(60):
                    results.add(predict(model))
                model.train()
                return torch.cat(results.outs)
        def predict(model):
            return model(batch()) #made
        evaluator = Evaluator()
        for epoch in range(2):
            train(batch())
            evaluator(net)
    """,
    ),
    "a sum in an object, in an evaluation": Leak(
        "evaluation",
        "self.sum",
        "`with torch.no_grad():`",
        """
        class Meter:
            def __init__(self):
                self.sum = 0.0
            def update(self, value, n=1):
                self.sum += value * n #kept
        class Evaluator:
            def __call__(self, model):
                model.eval()
                meter = Meter()
                for i in range(60):
                    meter.update(model(batch()).square().mean())
                model.train()
                return meter.sum
        evaluator = Evaluator()
        for epoch in range(2):
            train(batch())
            evaluator(net)
    """,
    ),
    "a list of each epoch": Leak(
        "moved",
        "self.store[epoch]",
        "write `self.store[epoch].append(out.detach().cpu())`",
        """
        class Store:
            def __init__(self):
                self.store = collections.defaultdict(list)
            def save(self, epoch, out):
                self.store[epoch].append(out.to("cpu")) #kept
        store = Store()
        for step in range(120):
            x = batch()
            train(x)
            out = net(x) #made
            store.save(step // 9, out)
    """,
    ),
    "a dict of each phase of each epoch": Leak(
        "collected",
        "stats[epoch][phase]",
        "empty `",
        """
        stats = collections.defaultdict(lambda: collections.defaultdict(dict))
        def run(epoch, phase):
            for b in range(3):
                x = batch()
                train(x)
                stats[epoch][phase][b] = {"x": x} #kept
        for epoch in range(20):
            for phase in ("train", "val"):
                run(epoch, phase)
    """,
    ),
    "states of the optimizer": Leak(
        "models",
        "states",
        "torch.save",
        """
        wide = nn.Linear(256, 256)
        adam = torch.optim.Adam(wide.parameters())
        states = {}
        for step in range(100):
            adam.zero_grad()
            wide(batch(64)).square().mean().backward()
            adam.step()
            states[f"step {step}"] = copy.deepcopy(adam.state_dict()) #kept
    """,
    ),
    "an object that is a hook": Leak(
        "hook",
        "self.outs",
        "handle.remove()",
        """
        class Recorder:
            def __init__(self, module):
                self.outs = []
                module.register_forward_hook(self)
            def __call__(self, module, args, out):
                self.outs.append(out.detach()) #kept
        wide = nn.Linear(256, 256)
        recorder = Recorder(wide)
        for step in range(100):
            x = batch()
            train(x)
            wide(x)
    """,
    ),
    "a variable of the file in the workers": Leak(
        "workers",
        "DECODED",
        "each worker has one of its own",
        """
        DECODED = {}
        def decode(i):
            DECODED[i] = torch.full((2048, 256), float(i)) #kept
            return DECODED[i]
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 600
            def __getitem__(self, i):
                return decode(i)[:8]
        for x in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2):
            train(x.flatten(0, 1))
    """,
    ),
    "copies with graphs": Leak(
        "moved",
        "outs",
        "write `outs.append(out.detach().clone())`",
        """
        outs = []
        for step in range(100):
            x = batch()
            train(x)
            out = net(x)
            outs.append(out.clone()) #kept #made
    """,
    ),
    "copies with graphs in a dict": Leak(
        "moved",
        "kept",
        "write `kept[step] = out.detach()",
        """
        def main():
            kept = dict()
            for step in range(100):
                x = batch()
                train(x)
                out = net(x)
                kept[step] = out.to(torch.float64) #kept #made
        main()
    """,
    ),
    "a cache": Leak(
        "cache",
        "cache",
        "`cache.clear()`",
        """
        cache = {}
        def features(key):
            if key not in cache:
                cache[key] = batch() #kept
            return cache[key]
        for step in range(200):
            train(features(step))
    """,
    ),
    "lru_cache": Leak(
        "cache",
        "features",
        "`@lru_cache(maxsize=N)`",
        """
        @functools.lru_cache(maxsize=None) #kept
        def features(key):
            return torch.randn(1024, 256) #made
        for step in range(200):
            train(features(step))
    """,
    ),
    "a data set that caches": Leak(
        "cache",
        "self.cache",
        "`self.cache.clear()`",
        """
        class Data(torch.utils.data.Dataset):
            def __init__(self):
                self.cache = {}
            def __len__(self):
                return 10000
            def __getitem__(self, i):
                x = self.cache.get(i)
                if x is None:
                    x = torch.randn(256, 256) #made
                    self.cache[i] = x #kept
                return x
        for step, x in enumerate(torch.utils.data.DataLoader(Data(), batch_size=4)):
            train(x.flatten(0, 1))
            if step == 200:
                break
    """,
    ),
    "models of folds": Leak(
        "models",
        "models",
        "torch.save",
        """
        models = []
        def main():
            for fold in range(40):
                model = nn.Linear(256, 1024)
                mine = torch.optim.Adam(model.parameters())
                for step in range(3):
                    mine.zero_grad()
                    model(batch(64)).square().mean().backward()
                    mine.step()
                models.append(model) #kept
        main()
    """,
    ),
    "optimizers of folds": Leak(
        "models",
        "self.folds",
        "torch.save",
        """
        class Search:
            def __init__(self):
                self.folds = {}
            def run(self):
                for fold in range(40):
                    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU())
                    mine = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
                    for step in range(3):
                        mine.zero_grad()
                        model(batch(64)).square().mean().backward()
                        mine.step()
                    self.folds[fold] = (model, mine) #kept
        Search().run()
    """,
    ),
    "copies of the weights": Leak(
        "models",
        "snapshots",
        "torch.save",
        """
        big = nn.Linear(256, 1024)
        snapshots = []
        for step in range(100):
            train(batch(64))
            snapshots.append({k: v.clone() for k, v in big.state_dict().items()}) #kept
    """,
    ),
    "deep copies of the weights": Leak(
        "models",
        "history",
        "torch.save",
        """
        big = nn.Linear(256, 1024)
        def main():
            history = {}
            for step in range(100):
                train(batch(64))
                history[step] = copy.deepcopy(big.state_dict()) #kept
        main()
    """,
    ),
    "a hook": Leak(
        "hook",
        "acts",
        "handle.remove()",
        """
        wide = nn.Linear(256, 256)
        acts = []
        def hook(module, args, out):
            acts.append(out.detach()) #kept
        wide.register_forward_hook(hook)
        for step in range(100):
            x = batch()
            train(x)
            wide(x)
    """,
    ),
    "a hook of a function": Leak(
        "hook",
        "acts[name]",
        "handle.remove()",
        """
        wide = nn.Linear(256, 256)
        acts = collections.defaultdict(list)
        def keep(name):
            def hook(module, args, out):
                acts[name].append(out) #kept
            return hook
        wide.register_forward_hook(keep("wide"))
        for step in range(100):
            x = batch()
            train(x)
            wide(x)
    """,
    ),
    "gradients with graphs": Leak(
        "gradients",
        "critic",
        "leave out `create_graph=True`",
        """
        critic = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
        second = torch.optim.SGD(critic.parameters(), lr=1e-4)
        for step in range(100):
            x = batch()
            train(x)
            critic(x).square().mean().backward(create_graph=True) #kept
    """,
    ),
    "gradients with graphs in a function": Leak(
        "gradients",
        "critic",
        "zero_grad()",
        """
        critic = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
        def regularise(x):
            penalty = critic(x).pow(3).mean()
            penalty.backward(create_graph=True) #kept
        def main():
            for step in range(100):
                x = batch()
                train(x)
                regularise(x)
        main()
    """,
    ),
    "exceptions": Leak(
        "traceback",
        "errors",
        "write `errors.append(str(e))`",
        """
        errors = []
        def work(x):
            y = torch.randn(1024, 256) #made
            raise ValueError("no")
        for step in range(100):
            train(batch(64))
            try:
                work(1)
            except ValueError as e:
                errors.append(e) #kept
    """,
    ),
    "exceptions in a dict": Leak(
        "traceback",
        "self.failed",
        "write `self.failed[step] = str(error)`",
        """
        class Trainer:
            def __init__(self):
                self.failed = {}
            def attempt(self, step):
                x = torch.randn(1024, 256) #made
                train(x)
                try:
                    raise RuntimeError("nan")
                except RuntimeError as error:
                    self.failed[step] = error #kept
        trainer = Trainer()
        for step in range(100):
            trainer.attempt(step)
    """,
    ),
    "generators": Leak(
        "generator",
        "streams",
        "`close()`",
        """
        streams = []
        def stream():
            x = torch.randn(1024, 256) #made
            for part in x.split(256):
                yield part
        for step in range(100):
            s = stream()
            train(next(s))
            streams.append(s) #kept
    """,
    ),
    "generators in an attribute": Leak(
        "generator",
        "self.open",
        "`close()`",
        """
        class Loader:
            def __init__(self):
                self.open = []
            def first(self):
                g = self.parts()
                self.open.append(g) #kept
                return next(g)
            def parts(self):
                x = torch.randn(1024, 256) #made
                yield x[:512]
                yield x[512:]
        def main():
            loader = Loader()
            for step in range(100):
                train(loader.first())
        main()
    """,
    ),
    "closures": Leak(
        "closure",
        "callbacks",
        "numbers",
        """
        callbacks = []
        def report(x):
            return lambda: float(x.mean())
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            callbacks.append(report(x)) #kept
    """,
    ),
    "partial functions": Leak(
        "closure",
        "self.later",
        "numbers",
        """
        class Trainer:
            def __init__(self):
                self.later = collections.deque()
            def step(self):
                x = torch.randn(1024, 256) #made
                train(x)
                self.later.append(functools.partial(torch.mean, x)) #kept
        trainer = Trainer()
        for step in range(100):
            trainer.step()
    """,
    ),
    "arrays": Leak(
        "numpy",
        "preds",
        "empty `preds`",
        """
        wide = nn.Linear(256, 256)
        preds = []
        for step in range(100):
            x = batch()
            train(x)
            preds.append(wide(x).detach().numpy()) #kept
    """,
    ),
    "arrays in a dict of an object": Leak(
        "numpy",
        "self.features",
        "empty `self.features`",
        """
        class Store:
            def __init__(self):
                self.features = {}
            def put(self, step, x):
                self.features[step] = np.array(x) #kept
        store = Store()
        for step in range(100):
            x = batch()
            train(x)
            store.put(step, x)
    """,
    ),
    "a nested dict of defaultdicts": Leak(
        "collected",
        "stats[phase]['logits']",
        "empty `",
        """
        def main():
            stats = collections.defaultdict(lambda: collections.defaultdict(list))
            wide = nn.Linear(256, 256)
            for step in range(100):
                phase = "even" if step % 2 == 0 else "odd"
                x = batch()
                train(x)
                y = wide(x).detach() #made
                stats[phase]["logits"].append(y) #kept
        main()
    """,
    ),
    "a data class": Leak(
        "collected",
        "state.seen",
        "empty `",
        """
        from dataclasses import dataclass, field
        @dataclass
        class State:
            seen: list = field(default_factory=list)
            step: int = 0
        state = State()
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            state.seen.append(x) #kept
            state.step += 1
    """,
    ),
    "a closure that appends": Leak(
        "collected",
        "outs",
        "empty `outs`",
        """
        def make():
            outs = []
            def log(y):
                outs.append(y) #kept
            return log
        log = make()
        wide = nn.Linear(256, 256)
        for step in range(100):
            x = batch()
            train(x)
            with torch.no_grad():
                y = wide(x) #made
            log(y)
    """,
    ),
    "log records": Leak(
        "collected",
        "self.records",
        "empty `",
        """
        import logging
        class Keep(logging.Handler):
            def __init__(self):
                super().__init__()
                self.records = []
            def emit(self, record):
                self.records.append(record) #kept
        log = logging.getLogger("train")
        log.setLevel(logging.INFO)
        log.propagate = False
        log.addHandler(Keep())
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            log.info("batch %s", x)
    """,
    ),
    "a queue in an object": Leak(
        "collected",
        "self.q",
        "empty `",
        """
        import queue
        class Worker:
            def __init__(self):
                self.q = queue.Queue()
            def push(self, item):
                self.q.put(item) #kept
        worker = Worker()
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            worker.push({"x": x, "step": step})
    """,
    ),
    "a generator that collects": Leak(
        "collected",
        "past",
        "empty `past`",
        """
        def batches():
            past = []
            while True:
                x = torch.randn(1024, 256) #made
                past.append(x) #kept
                yield x
        stream = batches()
        for step in range(100):
            train(next(stream))
    """,
    ),
    "what is logged by a module": Leak(
        "collected",
        "self.logged[name]",
        "",
        """
        class Module(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(256, 256)
                self.logged = {}
            def log_dict(self, values):
                for name, value in values.items():
                    self.logged.setdefault(name, []).append(value) #kept
            def training_step(self, x):
                y = self.net(x)
                self.log_dict({"out": y})
                return y.square().mean()
        module = Module()
        for step in range(100):
            opt.zero_grad()
            module.training_step(torch.randn(4096, 256)).backward()
            opt.step()
    """,
    ),
    "rows of a table": Leak(
        "numpy",
        "rows",
        "empty `rows`",
        """
        rows = []
        wide = nn.Linear(256, 256)
        for step in range(100):
            x = batch()
            train(x)
            out = wide(x).detach()
            rows.append({"step": step, "out": out.numpy()}) #kept
    """,
    ),
    "views of arrays": Leak(
        "numpy",
        "self.tops",
        "",
        """
        class Eval:
            def __init__(self):
                self.tops = {}
            def add(self, i, y):
                self.tops[i] = y.detach().cpu().numpy()[:3] #kept
        wide = nn.Linear(256, 256)
        ev = Eval()
        for step in range(100):
            x = batch()
            train(x)
            ev.add(step, wide(x))
    """,
    ),
    "one column of each": Leak(
        "collected",
        "firsts",
        "empty `firsts`",
        """
        firsts = []
        wide = nn.Linear(256, 256)
        for step in range(100):
            x = batch()
            train(x)
            y = wide(x).detach() #made
            firsts.append(y[:, 0]) #kept
    """,
    ),
    "weak keys that live": Leak(
        "collected",
        "table",
        "",
        """
        import weakref
        table = weakref.WeakKeyDictionary()
        class Sample:
            pass
        samples = []
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            s = Sample()
            samples.append(s)
            table[s] = x #kept
    """,
    ),
    "a context variable": Leak(
        "collected",
        "history",
        "",
        """
        import contextvars
        history = contextvars.ContextVar("history", default=())
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            history.set(history.get() + (x,)) #kept
    """,
    ),
    "a counter by tensor": Leak(
        "collected",
        "counts",
        "",
        """
        counts = collections.Counter()
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            counts[x] += 1 #kept
    """,
    ),
    "a linked list": Leak(
        "collected",
        "head",
        "",
        """
        class Node:
            def __init__(self, value, next):
                self.value, self.next = value, next
        head = None
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            head = Node(x, head) #kept
    """,
    ),
    "a thread's locals": Leak(
        "collected",
        "local.seen",
        "",
        """
        import threading
        local = threading.local()
        local.seen = []
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            local.seen.append(x) #kept
    """,
    ),
    "a module's list": Leak(
        "collected",
        "registry.outputs",
        "",
        """
        import sys, types
        registry = types.ModuleType("registry")
        registry.outputs = []
        sys.modules["registry"] = registry
        wide = nn.Linear(256, 256)
        for step in range(100):
            x = batch()
            train(x)
            registry.outputs += [wide(x).detach()] #kept #made
    """,
    ),
    "the script's own cache decorator": Leak(
        "cache",
        "memo",
        "",
        """
        def memoize(f):
            memo = {}
            @functools.wraps(f)
            def inner(i):
                if i not in memo:
                    memo[i] = f(i) #kept
                return memo[i]
            return inner
        @memoize
        def load(i):
            return torch.full((1024, 256), float(i)) #made
        for step in range(200):
            train(load(step))
    """,
    ),
    "attributes by number": Leak(
        "collected",
        "store",
        "",
        """
        class Store:
            def put(self, i, x):
                setattr(self, f"batch_{i}", x)
        store = Store()
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            store.put(step, x) #kept
    """,
    ),
    "buffers of a module": Leak(
        "collected",
        "self.bank",
        "empty `self.bank`",
        """
        class Remembers(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("bank", torch.zeros(0, 256))
            def forward(self, x):
                self.bank = torch.cat([self.bank, x]) #kept
                return x
        remembers = Remembers()
        for step in range(100):
            x = batch()
            train(remembers(x))
    """,
    ),
    "parameters in a list": Leak(
        "collected",
        "prompts",
        "",
        """
        prompts = nn.ParameterList()
        for step in range(100):
            train(batch())
            prompts.append(nn.Parameter(torch.randn(1024, 256), requires_grad=False)) #kept #made
    """,
    ),
    "futures": Leak(
        "collected",
        "futures",
        "",
        """
        from concurrent.futures import ThreadPoolExecutor
        pool = ThreadPoolExecutor(1)
        futures = []
        def work(x):
            return x * 2
        for step in range(100):
            x = batch()
            train(x)
            futures.append(pool.submit(work, x)) #kept
    """,
    ),
    "tracebacks in a list": Leak(
        "traceback",
        "tracebacks",
        "str",
        """
        tracebacks = []
        def fails(x):
            raise RuntimeError("no")
        for step in range(100):
            x = torch.randn(1024, 256)
            train(x)
            try:
                fails(x)
            except RuntimeError as e:
                tracebacks.append(e.__traceback__) #kept
    """,
    ),
    "hooks that store in the module": Leak(
        "hook",
        "m.acts",
        "handle.remove()",
        """
        def store(m, args, out):
            m.acts.append(out) #kept
        wide = nn.Linear(256, 256)
        wide.acts = []
        wide.register_forward_hook(store)
        for step in range(100):
            x = batch()
            train(x)
            wide(x)
    """,
    ),
    "tensor hooks": Leak(
        "hook",
        "grads",
        "handle.remove()",
        """
        grads = []
        wide = nn.Linear(256, 256)
        for step in range(100):
            x = batch()
            y = wide(x)
            y.register_hook(lambda g: grads.append(g)) #kept
            y.square().mean().backward()
            train(x)
    """,
    ),
    "gradients of a frozen model": Leak(
        "gradients",
        "teacher",
        "zero_grad()",
        """
        teacher = nn.Linear(256, 256)
        for step in range(60):
            x = batch()
            opt.zero_grad()
            loss = (teacher(x).mean() * net(x).mean()).square()
            loss.backward(create_graph=True) #kept
            opt.step()
    """,
    ),
    "gradients of each step": Leak(
        "collected",
        "history",
        "",
        """
        history = []
        wide = nn.Linear(512, 512)
        second = torch.optim.SGD(wide.parameters(), lr=0.1)
        for step in range(100):
            train(batch())
            second.zero_grad()
            wide(torch.randn(8, 512)).sum().backward()
            history.append([p.grad for p in wide.parameters()]) #kept
            second.step()
    """,
    ),
    "averages of the weights": Leak(
        "models",
        "averages",
        "torch.save",
        """
        averages = []
        wide = nn.Linear(512, 512)
        shadow = copy.deepcopy(wide)
        for step in range(100):
            train(batch())
            for a, b in zip(shadow.parameters(), wide.parameters()):
                a.data.lerp_(b.data, 0.1)
            averages.append(copy.deepcopy(shadow.state_dict())) #kept
    """,
    ),
    "averages of the weights by name": Leak(
        "collected",
        "shadow",
        "empty `shadow`",
        """
        shadow = {}
        wide = nn.Linear(512, 512)
        for step in range(100):
            train(batch())
            for name, p in wide.named_parameters():
                shadow[f"{step}.{name}"] = p.detach().clone() #kept
    """,
    ),
    "models of earlier folds in a dict": Leak(
        "models",
        "self.trained",
        "torch.save",
        """
        class Folds:
            def __init__(self):
                self.trained = {}
            def run(self, fold):
                model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1))
                own = torch.optim.Adam(model.parameters())
                for step in range(3):
                    own.zero_grad()
                    model(batch(64)).mean().backward()
                    own.step()
                self.trained[fold] = (model, own) #kept
        folds = Folds()
        for fold in range(50):
            folds.run(fold)
    """,
    ),
    "a data set that logs": Leak(
        "collected",
        "self.seen",
        "empty `self.seen`",
        """
        class Data(torch.utils.data.Dataset):
            def __init__(self):
                self.seen = []
            def __len__(self):
                return 100
            def __getitem__(self, i):
                x = torch.randn(1024, 256) #made
                self.seen.append(x) #kept
                return x
        for x in torch.utils.data.DataLoader(Data(), batch_size=None):
            train(x)
    """,
    ),
    "shared tensors": Leak(
        "collected",
        "shared",
        "empty `shared`",
        """
        shared = []
        for step in range(100):
            x = torch.randn(1024, 256)
            train(x)
            shared.append(x.share_memory_()) #kept
    """,
    ),
    "pinned batches": Leak(
        "collected",
        "pinned",
        "empty `pinned`",
        """
        pinned = {}
        def stage(step, x):
            pinned[step] = x.clone() #kept #made
            return pinned[step]
        for step in range(100):
            train(stage(step, batch()))
    """,
    ),
    "a cache in each loader worker": Leak(
        "workers",
        "self.cache",
        "each worker has one of its own",
        """
        class Data(torch.utils.data.Dataset):
            def __init__(self):
                self.cache = {}
            def __len__(self):
                return 10**6
            def load(self, i):
                self.cache[i] = torch.full((2048, 256), float(i)) #kept
            def __getitem__(self, i):
                self.load(i)
                return self.cache[i][:8]
        loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2)
        for step, x in zip(range(100), loader):
            train(x.flatten(0, 1))
    """,
    ),
    "a list in the workers of a subset": Leak(
        "workers",
        "self.seen",
        "each worker has one of its own",
        """
        class Data(torch.utils.data.Dataset):
            seen = []
            def __len__(self):
                return 600
            def __getitem__(self, i):
                x = torch.full((2048, 256), float(i))
                self.seen.append(x) #kept
                return x[:8]
        data = torch.utils.data.Subset(Data(), range(500))
        for x in torch.utils.data.DataLoader(data, batch_size=4, num_workers=1):
            train(x.flatten(0, 1))
    """,
    ),
    "a closure that is called in a loop": Leak(
        "collected",
        "outputs",
        "empty `outputs`",
        """
        def make_step():
            outputs = []
            def step(x):
                y = x * 2 #made
                train(x)
                outputs.append(y) #kept
                return len(outputs) % 10 == 0
            return step
        step = make_step()
        for i in range(100):
            tenth = step(batch())
    """,
    ),
    "a replay buffer without a limit that waits for a batch": Leak(
        "collected",
        "memory",
        "empty `memory`",
        """
        import random
        memory = []
        def learn():
            if len(memory) < 4:
                return
            train(random.sample(memory, 4)[0])
        for i in range(100):
            x = torch.randn(1024, 256) #made
            memory.append(x) #kept
            learn()
    """,
    ),
    "scalars of a writer that makes a list for each tag": Leak(
        "collected",
        "self.scalars[tag]",
        "`.item()`",
        """
        import time
        class Writer:
            def __init__(self):
                self.scalars = {}
            def add_scalar(self, tag, value, step):
                if tag not in self.scalars:
                    self.scalars[tag] = []
                self.scalars[tag].append((step, time.time(), value)) #kept
        writer = Writer()
        for step in range(100):
            x = batch()
            writer.add_scalar("loss", train(x).item(), step)
            y = net(x).sigmoid().mean() #made
            writer.add_scalar("y", y, step)
    """,
    ),
    "keyword arguments that are kept": Leak(
        "collected",
        "self.postfixes",
        "keep numbers, with `.item()`",
        """
        class Progress:
            def __init__(self): self.postfixes = []
            def set_postfix(self, **kw):
                self.postfixes.append(kw) #kept
        bar = Progress()
        for step in range(100):
            x = batch()
            train(x)
            y = net(x).sigmoid().mean() #made
            bar.set_postfix(step=step, y=y)
    """,
    ),
    "a list in argparse's namespace": Leak(
        "collected",
        "args.losses",
        "write `args.losses.append(y.item())`",
        """
        import argparse
        args = argparse.Namespace(lr=0.1, losses=[])
        for step in range(100):
            x = batch()
            train(x)
            y = net(x).sigmoid().mean() #made
            args.losses.append(y) #kept
    """,
    ),
    "gradients by name": Leak(
        "collected",
        "history",
        "empty `history`",
        """
        wide = nn.Sequential(nn.Linear(256, 512), nn.Linear(512, 256))
        o = torch.optim.SGD(wide.parameters(), lr=0.1)
        history = []
        for step in range(100):
            o.zero_grad()
            wide(torch.randn(64, 256)).square().mean().backward()
            history.append({n: p.grad.clone() for n, p in wide.named_parameters()}) #kept #made
            o.step()
    """,
    ),
    "a hidden state in a dict": Leak(
        "hidden-state",
        "state['h']",
        "write `state['h'] = state['h'].detach()`",
        """
        cell = nn.GRUCell(256, 128)
        state = {"h": torch.zeros(256, 128)}
        for step in range(100):
            x = torch.randn(256, 256)
            train(x)
            state["h"] = cell(x, state["h"]) #kept
    """,
    ),
    "results of asyncio's tasks": Leak(
        "collected",
        "tasks",
        "empty `tasks`",
        """
        import asyncio
        async def fetch():
            await asyncio.sleep(0)
            return torch.randn(1024, 256) #made
        async def main():
            tasks = []
            for step in range(100):
                task = asyncio.ensure_future(fetch())
                tasks.append(task) #kept
                train(await task)
        asyncio.run(main())
    """,
    ),
    "a class that is a list": Leak(
        "collected",
        "Loop.history",
        "empty `Loop.history`",
        """
        class History(list):
            def log(self, **kw):
                self.append(kw) #kept
        class Loop:
            def __init__(self): self.history = History()
            def run(self):
                for step in range(100):
                    x = torch.randn(1024, 256) #made
                    train(x)
                    self.history.log(step=step, x=x)
        Loop().run()
    """,
    ),
    "a class that is a dict": Leak(
        "collected",
        "registry",
        "empty `registry`",
        """
        class Registry(dict):
            def register(self, key, value):
                self[key] = value #kept
        registry = Registry()
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            registry.register(step, x)
    """,
    ),
    "one list of several in a dict": Leak(
        "collected",
        "self.stats['y']",
        "empty `self.stats['y']`",
        """
        class Loop:
            def __init__(self): self.stats = {"loss": [], "y": []}
            def run(self):
                for step in range(100):
                    x = batch()
                    y = x * 2 #made
                    loss = train(x)
                    for k, v in (("loss", loss.item()), ("lr", 0.1)):
                        self.stats.setdefault(k, []).append(v)
                    self.stats["y"].append(y) #kept
        Loop().run()
    """,
    ),
    "an append that has a name of its own": Leak(
        "collected",
        "seen",
        "empty `seen`",
        """
        seen = []
        push = seen.append
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            push(x) #kept
    """,
    ),
    "a list behind a property": Leak(
        "collected",
        "t.log",
        "empty `t.log`",
        """
        class T:
            def __init__(self): self._log = []
            @property
            def log(self): return self._log
        t = T()
        for step in range(100):
            x = torch.randn(1024, 256) #made
            train(x)
            t.log.append(x) #kept
    """,
    ),
    "an array that grows": Leak(
        "numpy",
        "everything",
        "empty `everything`",
        """
        mean, everything = np.zeros((4096, 1024)), np.zeros((0, 256), dtype=np.float32)
        for step in range(100):
            x = torch.randn(1024, 256)
            train(x)
            mean = 0.9 * mean + 0.1
            everything = np.concatenate([everything, x.numpy()]) #kept
    """,
    ),
    "an array that grows in an attribute": Leak(
        "numpy",
        "self.rows",
        "empty `self.rows`",
        """
        class Table:
            def __init__(self): self.rows = None
            def add(self, x):
                self.rows = x if self.rows is None else np.vstack((self.rows, x)) #kept
        table = Table()
        for step in range(100):
            x = torch.randn(1024, 256)
            train(x)
            table.add(x.numpy())
    """,
    ),
    "a list of each layer": Leak(
        "collected",
        "self.maps",
        "empty `self.maps`",
        """
        class Layer(nn.Module):
            def __init__(self):
                super().__init__()
                self.l = nn.Linear(256, 256)
                self.maps = []
            def forward(self, x):
                a = torch.softmax(self.l(x), -1) #made
                self.maps.append(a.detach()) #kept
                return a
        layers = nn.Sequential(*(Layer() for _ in range(4)))
        o = torch.optim.SGD(layers.parameters(), lr=0.1)
        for step in range(60):
            o.zero_grad()
            layers(torch.randn(512, 256)).square().mean().backward()
            o.step()
    """,
    ),
}

CLEAN = {
    "plain": """
        for step in range(100):
            train(batch())
    """,
    "adam": """
        opt = torch.optim.Adam(net.parameters())
        for step in range(100):
            train(batch())
    """,
    "losses as numbers": """
        losses = []
        for step in range(150):
            losses.append(train(batch()).item())
    """,
    "losses that were backpropagated": """
        losses = []
        for step in range(150):
            losses.append(train(batch()))
    """,
    "a bounded deque": """
        seen = collections.deque(maxlen=60)
        for step in range(150):
            x = batch()
            train(x)
            seen.append(x)
    """,
    "a bounded deque in an object": """
        class Buffer:
            def __init__(self):
                self.items = collections.deque(maxlen=80)
        buffer = Buffer()
        for step in range(150):
            x = batch()
            train(x)
            buffer.items.append((x, step))
    """,
    "a cache that fills": """
        cache = {}
        for step in range(200):
            key = step % 60
            if key not in cache:
                cache[key] = batch()
            train(cache[key])
    """,
    "a cache that fills at random": """
        import random
        random.seed(0)
        cache = {}
        def get(i):
            try:
                return cache[i]
            except KeyError:
                cache[i] = batch()
                return cache[i]
        for step in range(200):
            train(get(random.randrange(60)))
    """,
    "a bounded lru_cache": """
        @functools.lru_cache(maxsize=70)
        def features(i):
            return batch()
        for step in range(150):
            train(features(step))
    """,
    "a growing batch": """
        for step in range(150):
            train(batch(256 + 64 * step))
    """,
    "batches of any length": """
        import random
        random.seed(0)
        for step in range(150):
            train(batch(random.randrange(64, 4096)))
    """,
    "an evaluation with gradients that keeps values": """
        def evaluate():
            net.eval()
            outs = []
            for i in range(60):
                outs.append(net(batch()).detach().repeat(1, 64))
            net.train()
            return torch.cat(outs).mean().item()
        for step in range(3):
            train(batch())
            evaluate()
    """,
    "a rollout with fixed statistics that gradients flow through": """
        class Rollout:
            def __init__(self):
                self.values = []
            def add(self, value):
                self.values.append(value)
        def play(rollout, parts):
            for part in range(parts):
                rollout.add(net(batch()).square().mean())
        net.train(False)
        for step in range(4):
            opt.zero_grad()
            rollout = Rollout()
            play(rollout, 60 * (step + 1))
            sum(rollout.values).backward()
            opt.step()
    """,
    "a last evaluation that keeps values": """
        class Results:
            def __init__(self):
                self.outs = []
            def add(self, out):
                self.outs.append(out.detach().repeat(1, 64))
        def evaluate():
            net.eval()
            results = Results()
            for i in range(60):
                results.add(net(batch()))
            return torch.cat(results.outs).mean().item()
        for step in range(3):
            train(batch())
        evaluate()
    """,
    "gradients of inputs in an evaluation": """
        def saliency():
            net.eval()
            maps = []
            for i in range(60):
                x = batch().requires_grad_()
                maps.append(torch.autograd.grad(net(x).sum(), x)[0])
            net.train()
            return torch.stack(maps).mean().item()
        for step in range(3):
            train(batch())
            saliency()
    """,
    "one step of many parts with fixed statistics": """
        net.eval()
        for step in range(4):
            opt.zero_grad()
            losses = []
            for part in range(60):
                losses.append(net(batch()).square().mean())
            sum(losses).backward()
            opt.step()
    """,
    "evaluation every few steps": """
        def evaluate():
            net.eval()
            outs = []
            with torch.no_grad():
                for i in range(20):
                    outs.append(net(batch()).clone())
                    outs.append(batch())
            net.train()
            return torch.cat([o.flatten() for o in outs]).mean().item()
        for step in range(120):
            train(batch())
            if step % 10 == 9:
                evaluate()
    """,
    "an average of the weights": """
        ema = copy.deepcopy(net)
        for step in range(100):
            train(batch())
            with torch.no_grad():
                for a, b in zip(ema.parameters(), net.parameters()):
                    a.lerp_(b, 0.01)
    """,
    "a replay buffer of fixed size": """
        import random
        buffer = []
        for step in range(200):
            x = batch()
            if len(buffer) < 80:
                buffer.append(x)
            else:
                buffer[step % 80] = x
            train(random.choice(buffer))
    """,
    "a replay buffer that drops the oldest": """
        class Replay:
            def __init__(self, size):
                self.size, self.items = size, []
            def push(self, x):
                self.items.append(x)
                if len(self.items) > self.size:
                    self.items.pop(0)
        replay = Replay(90)
        for step in range(200):
            x = batch()
            replay.push(x)
            train(x)
    """,
    "a preallocated buffer": """
        buffer = torch.zeros(100, 1024, 256)
        for step in range(150):
            x = batch()
            buffer[step % 100] = x
            train(x)
    """,
    "lists of an epoch": """
        def epoch():
            outs = []
            for step in range(60):
                x = batch()
                train(x)
                outs.append(x)
            return torch.stack([o.mean() for o in outs]).mean().item()
        for i in range(3):
            epoch()
    """,
    "lists that are emptied": """
        class Trainer:
            def __init__(self):
                self.outs = []
            def step(self, x):
                train(x)
                self.outs.append(x)
            def epoch_ends(self):
                self.outs.clear()
        trainer = Trainer()
        for epoch in range(3):
            for step in range(60):
                trainer.step(batch())
            trainer.epoch_ends()
    """,
    "lists that are made in each epoch": """
        for epoch in range(3):
            outs = []
            for step in range(60):
                x = batch()
                train(x)
                outs.append(x)
    """,
    "accumulation": """
        for step in range(100):
            opt.zero_grad()
            for i in range(4):
                (net(batch()).square().mean() / 4).backward()
            opt.step()
    """,
    "a hidden state that is detached": """
        cell = nn.RNNCell(256, 256)
        h = torch.zeros(512, 256)
        for step in range(100):
            x = batch(512)
            h = cell(x, h.detach())
            train(x)
    """,
    "running statistics": """
        mean = torch.zeros(256)
        for step in range(100):
            x = batch()
            loss = train(x)
            mean = 0.9 * mean + 0.1 * x.mean(0)
    """,
    "a loader with workers": """
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 400
            def __getitem__(self, i):
                return torch.full((64, 256), float(i))
        for epoch in range(2):
            for x in torch.utils.data.DataLoader(Data(), batch_size=8, num_workers=1):
                train(x.flatten(0, 1))
    """,
    "the best weights": """
        best, low = None, float("inf")
        for step in range(100):
            loss = train(batch()).item()
            if loss < low:
                best, low = copy.deepcopy(net.state_dict()), loss
    """,
    "a generator of batches": """
        def batches():
            while True:
                big = batch(8192)
                yield from big.split(1024)
        stream = batches()
        for step in range(100):
            train(next(stream))
    """,
    "two optimizers": """
        critic = nn.Linear(256, 1)
        second = torch.optim.Adam(critic.parameters())
        for step in range(100):
            x = batch()
            train(x)
            second.zero_grad()
            critic(x).square().mean().backward()
            second.step()
    """,
    "gradient penalty": """
        for step in range(100):
            opt.zero_grad()
            x = batch().requires_grad_()
            g, = torch.autograd.grad(net(x).sum(), x, create_graph=True)
            g.square().mean().backward()
            opt.step()
    """,
    "the newest activations by a hook": """
        acts = {}
        net[0].register_forward_hook(lambda m, a, out: acts.__setitem__("first", out.detach()))
        for step in range(100):
            train(batch())
    """,
    "the first batches": """
        shown = []
        for step in range(120):
            x = batch()
            train(x)
            if step < 60:
                shown.append(x)
    """,
    "the thirty best": """
        best = []
        for step in range(120):
            x = batch()
            train(x)
            best.append((float(x.sum()), x))
            best = sorted(best, key=lambda one: one[0])[:30]
    """,
    "a bounded queue": """
        import queue, threading
        q = queue.Queue(maxsize=30)
        def feed():
            for step in range(120):
                q.put(batch())
        threading.Thread(target=feed, daemon=True).start()
        for step in range(120):
            train(q.get())
    """,
    "a data set that is read once": """
        class Data(torch.utils.data.Dataset):
            def __init__(self):
                self.items = [None] * 60
            def __len__(self):
                return 60
            def __getitem__(self, i):
                if self.items[i] is None:
                    self.items[i] = batch()
                return self.items[i]
        data = Data()
        for epoch in range(3):
            for x in torch.utils.data.DataLoader(data, batch_size=None, shuffle=True):
                train(x)
    """,
    "a meter that is reset": """
        class Meter:
            def __init__(self):
                self.reset()
            def reset(self):
                self.values = []
            def update(self, value):
                self.values.append(value)
        meter = Meter()
        for epoch in range(3):
            meter.reset()
            for step in range(60):
                x = batch()
                train(x)
                meter.update(x)
    """,
    "a compiled model": """
        compiled = torch.compile(net, backend="eager")
        for step in range(80):
            opt.zero_grad()
            compiled(batch(64 + step % 8)).square().mean().backward()
            opt.step()
    """,
    "layers that are trained one after another": """
        layers = nn.ModuleList([nn.Linear(512, 512) for _ in range(30)])
        for step in range(120):
            layer = layers[step // 4]
            own = torch.optim.Adam(layer.parameters())
            layer(torch.randn(64, 512)).mean().backward()
            own.step()
    """,
    "text": """
        log = []
        for step in range(120):
            train(batch())
            log.append(f"step {step} " * 20000)
    """,
    "a window of losses": """
        window = []
        for step in range(100):
            x = batch()
            window.append(x)
            window = window[-20:]
            train(x)
    """,
    "a memory bank": """
        bank, at = torch.zeros(4096, 256), 0
        key = copy.deepcopy(net)
        for step in range(120):
            x = batch(128)
            train(x)
            with torch.no_grad():
                for a, b in zip(key.parameters(), net.parameters()):
                    a.mul_(0.99).add_(b, alpha=0.01)
                bank[at : at + 128] = F.normalize(x, dim=1)
                at = (at + 128) % len(bank)
    """,
    "a memory bank in a list": """
        bank = []
        for step in range(200):
            x = batch(2048)
            train(x)
            bank.append(x.detach())
            if len(bank) > 70:
                del bank[0]
            negatives = torch.cat(bank[-4:])
    """,
    "a cache that drops the oldest": """
        class LRU:
            def __init__(self, size):
                self.size, self.items = size, collections.OrderedDict()
            def get(self, key):
                if key in self.items:
                    self.items.move_to_end(key)
                    return self.items[key]
                value = self.items[key] = batch(1024)
                while len(self.items) > self.size:
                    self.items.popitem(last=False)
                return value
        cache = LRU(60)
        for step in range(200):
            train(cache.get(step * 7 % 170))
    """,
    "weights averaged in place": """
        average = torch.optim.swa_utils.AveragedModel(net)
        for step in range(120):
            train(batch())
            if step > 20 and step % 4 == 0:
                average.update_parameters(net)
    """,
    "figures of each step": """
        history = {"loss": [], "accuracy": [], "lr": []}
        for step in range(200):
            x = batch()
            loss = train(x)
            history["loss"].append(loss.item())
            history["accuracy"].append((net(x).argmax(1) == 0).float().mean().item())
            history["lr"].append(opt.param_groups[0]["lr"])
    """,
    "a running mean of losses": """
        class Average:
            def __init__(self):
                self.total, self.count = 0.0, 0
            def update(self, value, n=1):
                self.total, self.count = self.total + value * n, self.count + n
        meter = Average()
        for step in range(150):
            meter.update(train(batch()).item(), 1024)
    """,
    "longer and longer sequences": """
        gru = nn.GRU(64, 64, batch_first=True)
        own = torch.optim.Adam(gru.parameters())
        for step in range(100):
            length = 16 + step // 5 * 8
            own.zero_grad()
            out, _ = gru(torch.randn(16, length, 64))
            out.square().mean().backward()
            own.step()
    """,
    "LBFGS": """
        wide = nn.Linear(512, 512)
        own = torch.optim.LBFGS(wide.parameters(), lr=0.01, history_size=20, max_iter=4)
        x, y = torch.randn(64, 512), torch.randn(64, 512)
        def closure():
            own.zero_grad()
            loss = F.mse_loss(wide(x), y)
            loss.backward()
            return loss
        for step in range(60):
            own.step(closure)
    """,
    "batches that are loaded ahead": """
        class Ahead:
            def __init__(self, source, size):
                self.source, self.waiting, self.size = iter(source), collections.deque(), size
            def __iter__(self):
                while True:
                    while len(self.waiting) < self.size:
                        self.waiting.append(next(self.source))
                    yield self.waiting.popleft()
        def source():
            while True:
                yield batch()
        for step, x in zip(range(120), Ahead(source(), 30)):
            train(x)
    """,
    "folds of which the models are deleted": """
        scores = []
        for fold in range(8):
            model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1))
            own = torch.optim.Adam(model.parameters())
            for step in range(15):
                own.zero_grad()
                loss = model(batch(128)).square().mean()
                loss.backward()
                own.step()
            scores.append(loss.item())
            del model, own
    """,
    "a data set that grows by a plan": """
        pool = [torch.randn(256, 256) for _ in range(20)]
        data = []
        for epoch in range(5):
            if len(data) < 60:
                data.extend(torch.randn(256, 256) for _ in range(20))
            for x in data:
                train(x)
    """,
    "active learning": """
        unlabelled = [torch.randn(256, 256) for _ in range(80)]
        labelled = []
        for cycle in range(12):
            labelled.extend(unlabelled.pop() for _ in range(5))
            for x in labelled[-10:]:
                train(x)
    """,
    "layers that are unfrozen one by one": """
        layers = nn.Sequential(*[nn.Linear(512, 512) for _ in range(12)])
        for p in layers.parameters():
            p.requires_grad_(False)
        x = torch.randn(64, 512)
        for step in range(120):
            if step % 10 == 0:
                for p in layers[-1 - step // 10].parameters():
                    p.requires_grad_(True)
                own = torch.optim.Adam(p for p in layers.parameters() if p.requires_grad)
            own.zero_grad()
            layers(x).square().mean().backward()
            own.step()
    """,
    "parameters that join the optimizer": """
        layers = nn.Sequential(*[nn.Linear(512, 512) for _ in range(12)])
        own = torch.optim.Adam(layers[-1].parameters())
        x = torch.randn(64, 512)
        for step in range(120):
            if step % 10 == 9 and step < 110:
                own.add_param_group({"params": [*layers[-2 - step // 10].parameters()]})
            own.zero_grad()
            layers(x).square().mean().backward()
            own.step()
    """,
    "a generator that grows by its plan": """
        blocks = nn.ModuleList([nn.Linear(256, 256)])
        own = torch.optim.Adam(blocks.parameters())
        def forward(x):
            for block in blocks:
                x = torch.relu(block(x))
            return x
        for step in range(120):
            if step % 15 == 14 and len(blocks) < 6:
                blocks.append(nn.Linear(256, 256))
                own = torch.optim.Adam(blocks.parameters())
            own.zero_grad()
            forward(torch.randn(64 * 2 ** (step // 30), 256)).square().mean().backward()
            own.step()
    """,
    "images for a log": """
        shown = []
        for step in range(150):
            x = torch.randn(8, 3, 64, 64)
            train(x.flatten(1)[:, :256])
            if step % 25 == 0:
                shown.append(x[:4].detach().cpu().clone())
    """,
    "the mean of the newest checkpoints": """
        newest = collections.deque(maxlen=5)
        wide = nn.Linear(512, 512)
        own = torch.optim.SGD(wide.parameters(), lr=0.01)
        for step in range(120):
            own.zero_grad()
            wide(torch.randn(64, 512)).square().mean().backward()
            own.step()
            if step % 5 == 0:
                newest.append({k: v.clone() for k, v in wide.state_dict().items()})
                mean = {k: sum(one[k] for one in newest) / len(newest) for k in newest[0]}
    """,
    "a teacher and a student": """
        teacher = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 4)).eval()
        for step in range(120):
            x = batch()
            with torch.no_grad():
                target = teacher(x).softmax(1)
            opt.zero_grad()
            F.kl_div(net(x).log_softmax(1), target, reduction="batchmean").backward()
            opt.step()
    """,
    "a beam search every few steps": """
        def search(length, width=8):
            beams = [(0.0, [torch.zeros(256)])]
            with torch.no_grad():
                for _ in range(length):
                    new = []
                    for score, path in beams:
                        y = net(path[-1])
                        for k in range(2):
                            new.append((score + y[k].item(), path + [torch.randn(256)]))
                    beams = sorted(new, key=lambda b: b[0], reverse=True)[:width]
            return beams[0][0]
        for step in range(100):
            train(batch())
            if step % 10 == 9:
                search(30)
    """,
    "rollouts of a fixed length": """
        policy = nn.Linear(256, 4)
        own = torch.optim.Adam(policy.parameters())
        for update in range(60):
            states, logs, rewards = [], [], []
            for t in range(16):
                s = torch.randn(64, 256)
                d = torch.distributions.Categorical(logits=policy(s))
                a = d.sample()
                states.append(s)
                logs.append(d.log_prob(a))
                rewards.append(torch.randn(64))
            own.zero_grad()
            (-torch.stack(logs) * torch.stack(rewards)).mean().backward()
            own.step()
    """,
    "rollouts in an object": """
        class Rollouts:
            def __init__(self):
                self.states, self.values = [], []
            def add(self, s, v):
                self.states.append(s)
                self.values.append(v)
            def after_update(self):
                self.states, self.values = self.states[-1:], self.values[-1:]
        rollouts = Rollouts()
        value = nn.Linear(256, 1)
        for update in range(8):
            for t in range(20):
                s = batch()
                rollouts.add(s, value(s).detach())
                train(s)
            rollouts.after_update()
    """,
    "losses by sample": """
        losses = {}
        for step in range(200):
            ids = torch.randint(0, 5000, (512,))
            x = torch.randn(512, 256)
            opt.zero_grad()
            each = net(x).square().mean(1)
            each.mean().backward()
            opt.step()
            for i, loss in zip(ids.tolist(), each.tolist()):
                losses[i] = loss
    """,
    "features by sample": """
        features = {}
        with torch.no_grad():
            pass
        for epoch in range(4):
            for i in range(50):
                if i not in features:
                    features[i] = torch.randn(1024, 256)
                train(features[i])
    """,
    "truncated backpropagation": """
        lstm = nn.LSTM(128, 128)
        own = torch.optim.SGD(lstm.parameters(), lr=0.1)
        state = None
        for step in range(120):
            own.zero_grad()
            out, state = lstm(torch.randn(16, 64, 128), state)
            out.square().mean().backward()
            own.step()
            state = tuple(s.detach() for s in state)
    """,
    "gradients accumulated over steps": """
        for step in range(200):
            x = batch()
            (net(x).square().mean() / 8).backward()
            opt.step() if step % 8 == 7 else None
            opt.zero_grad() if step % 8 == 7 else None
    """,
    "results of an evaluation that are joined": """
        def evaluate(n):
            outs, targets = [], []
            net.eval()
            with torch.no_grad():
                for i in range(n):
                    x = batch()
                    outs.append(net(x).cpu())
                    targets.append(x[:, :4].cpu())
            net.train()
            return F.mse_loss(torch.cat(outs), torch.cat(targets)).item()
        best = 1e9
        for epoch in range(4):
            for step in range(30):
                train(batch())
            best = min(best, evaluate(25))
    """,
    "confusion matrices": """
        matrix = torch.zeros(4, 4)
        for step in range(150):
            x = batch()
            train(x)
            with torch.no_grad():
                p = net(x).argmax(1)
            matrix += torch.bincount(p * 4 + torch.randint(0, 4, p.shape), minlength=16).view(4, 4)
    """,
    "hooks that are removed": """
        for step in range(120):
            acts = []
            handle = net[0].register_forward_hook(lambda m, a, out: acts.append(out.detach()))
            train(batch(2048))
            handle.remove()
    """,
    "an exception that is printed": """
        errors = []
        for step in range(120):
            x = batch()
            try:
                train(x)
                raise ValueError(f"step {step}")
            except ValueError as e:
                errors.append(str(e))
    """,
    "a pool of images of a GAN": """
        import random
        random.seed(0)
        class Pool:
            def __init__(self, size):
                self.size, self.images = size, []
            def query(self, image):
                if len(self.images) < self.size:
                    self.images.append(image)
                    return image
                if random.random() > 0.5:
                    i = random.randrange(self.size)
                    old, self.images[i] = self.images[i], image
                    return old
                return image
        pool = Pool(50)
        for step in range(160):
            train(pool.query(batch()))
    """,
    "prioritised replay": """
        import heapq
        heap, count = [], 0
        for step in range(200):
            x = batch()
            train(x)
            count += 1
            entry = (float(x[0, 0]), count, x)
            if len(heap) < 60:
                heapq.heappush(heap, entry)
            else:
                heapq.heappushpop(heap, entry)
    """,
    "a compiled model that sees more and more shapes": """
        compiled = torch.compile(net, backend="eager")
        for step in range(60):
            opt.zero_grad()
            compiled(batch(64 + 8 * step)).square().mean().backward()
            opt.step()
    """,
    "a scheduler, a scaler and clipping": """
        own = torch.optim.AdamW(net.parameters(), lr=1e-3)
        plan = torch.optim.lr_scheduler.CosineAnnealingLR(own, 100)
        norms = []
        for step in range(120):
            own.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = net(batch()).float().square().mean()
            loss.backward()
            norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0).item())
            own.step()
            plan.step()
    """,
    "predictions of an epoch in arrays": """
        for epoch in range(4):
            preds = []
            for step in range(40):
                x = batch()
                train(x)
                with torch.no_grad():
                    preds.append(nn.functional.pad(net(x), (0, 252)).numpy())
            np.concatenate(preds).mean()
    """,
    "loader workers that keep the newest samples": """
        class Data(torch.utils.data.Dataset):
            def __init__(self):
                self.newest = {}
            def __len__(self):
                return 500
            def __getitem__(self, i):
                self.newest[i % 20] = torch.full((2048, 256), float(i))
                return self.newest[i % 20][:8]
        for x in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2):
            train(x.flatten(0, 1))
    """,
    "loader workers with a cache of all samples": """
        class Data(torch.utils.data.Dataset):
            def __init__(self):
                self.cache = {}
            def __len__(self):
                return 240
            def __getitem__(self, i):
                if i not in self.cache:
                    self.cache[i] = torch.full((512, 256), float(i))
                return self.cache[i][:8]
        loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1, persistent_workers=True)
        for epoch in range(3):
            for x in loader:
                train(x.flatten(0, 1))
    """,
    "objects that loader workers only read": """
        class Data(torch.utils.data.Dataset):
            def __init__(self):
                self.names = [f"sample {i}" for i in range(500_000)]
            def __len__(self):
                return 500
            def __getitem__(self, i):
                total = sum(len(name) for name in self.names[i * 1000 : (i + 1) * 1000])
                return torch.full((64, 256), float(total))
        for x in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=1):
            train(x.flatten(0, 1))
    """,
    "queues with a limit": """
        import queue
        q, last, first = queue.Queue(maxsize=900), queue.LifoQueue(900), queue.PriorityQueue(900)
        for step in range(150):
            x = torch.randn(512, 256)
            train(x)
            if not q.full():
                q.put(x)
                last.put(x * 2)
                first.put((step, x * 3))
    """,
    "arrays that are joined for a window or an epoch": """
        window = np.zeros((0, 256), dtype=np.float32)
        def epoch():
            global window
            rows = np.zeros((0, 256), dtype=np.float32)
            for step in range(60):
                x = batch()
                train(x)
                rows = np.concatenate([rows, x.numpy()])
                window = np.concatenate([window, x.numpy()])[-60000:]
            return rows.mean()
        for e in range(3):
            epoch()
    """,
    "a list of a function that is called in a line": """
        def epoch():
            outs = []
            for step in range(60):
                x = batch()
                train(x)
                outs.append(x)
            return torch.cat(outs).mean()
        for e in range(3): epoch()
    """,
    "longer and longer sequences whose last state is ignored": """
        rnn = nn.GRU(64, 64, batch_first=True)
        o = torch.optim.Adam(rnn.parameters())
        for step in range(120):
            y, _ = rnn(torch.randn(64, 8 + 2 * step, 64))
            o.zero_grad()
            y.square().mean().backward()
            o.step()
    """,
    "the newest of each class": """
        newest, labels = {}, torch.randint(0, 60, (220,)).tolist()
        for step in range(220):
            x = batch()
            train(x)
            newest[labels[step]] = x
    """,
    "an ensemble that is built model by model": """
        ensemble = nn.ModuleList()
        for k in range(40):
            m = nn.Linear(256, 512)
            o = torch.optim.SGD(m.parameters(), lr=.1)
            for _ in range(3):
                o.zero_grad()
                m(torch.randn(64, 256)).square().mean().backward()
                o.step()
            ensemble.append(m)
    """,
    "a buffer whose length is asked before": """
        kept = []
        for step in range(150):
            x = batch()
            train(x)
            if len(kept) >= 70:
                continue
            kept.append(x)
    """,
    "a buffer that a method flushes": """
        class Sink:
            def __init__(self): self.buffer = []
            def add(self, x):
                self.buffer.append(x)
                if len(self.buffer) >= 55:
                    self.flush()
            def flush(self):
                torch.stack(self.buffer).mean()
                self.buffer = []
        sink = Sink()
        for step in range(150):
            x = batch()
            train(x)
            sink.add(x)
    """,
}
