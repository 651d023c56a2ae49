"""Training loops of two ranks under DistributedDataParallel, each with another configuration."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import trial

LOOPS: dict[str, type[Loop]] = {}


class Loop:
    """A loop of the usual kind. Batches depend on the rank and the step."""

    rows = 7
    options: ClassVar[dict[str, Any]] = {}
    tolerance = 1e-6  # relative, of weights after the last step
    same = True  # both ranks end with the same weights, to the bit
    least = 0.85  # the least part of the failures that is survived
    left = False  # all failures are left to the script
    why = ""  # what the reason for that contains
    # Needs the whole batch at once somewhere. What never fits there is survived only with memory of the host, which the
    # CPU has not: half of the failures pass at a second try.
    whole = False
    dropout = 0.0
    gpu = False  # only on GPUs

    def __init_subclass__(cls, **options: Any) -> None:
        """Subclasses are given the options of DistributedDataParallel."""
        cls.options = options or cls.options
        name = "".join("_" + c.lower() if c.isupper() else c for c in cls.__name__).lstrip("_")
        LOOPS[name] = cls

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.device = torch.device("cuda", rank) if trial.DEVICE == "cuda" else torch.device("cpu")
        self.fails: Callable[[bool], Any] = lambda on: None  # operations may fail from here on, or not any more
        torch.manual_seed(0)
        self.build()

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(10, 12), nn.GELU(), nn.Dropout(self.dropout), nn.Linear(12, 5))

    def wrap(self, net: nn.Module) -> DistributedDataParallel:
        return DistributedDataParallel(net, **self.options)

    def build(self) -> None:
        self.model = self.wrap(self.net().to(self.device))
        self.optimizer = self.optimized(self.model)

    def optimized(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)

    def batch(self, i: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(100 * i + self.rank)
        x, y = torch.randn(self.rows, 10, generator=draw), torch.randint(0, 5, (self.rows,), generator=draw)
        return x.to(self.device), y.to(self.device)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    def step(self, i: int) -> float:
        self.optimizer.zero_grad()
        x, y = self.batch(i)
        self.fails(True)
        loss = self.loss(x, y)
        loss.backward()
        self.fails(False)
        self.optimizer.step()
        return loss.item()

    def tensors(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.model.buffers()]


class Plain(Loop):
    pass


class ManyParameters(Loop):
    """More than PyTorch names when it says which have no gradients yet."""

    tolerance = 1e-5  # of 60 norms

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(10, 12), *(nn.LayerNorm(12) for _ in range(60)), nn.Linear(12, 5))


class SmallBuckets(Loop, bucket_cap_mb=0.0002):
    pass


class FindUnused(Loop, find_unused_parameters=True):
    pass


class Heads(nn.Module):
    """Some of its heads are not used."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 12), nn.GELU())
        self.heads = nn.ModuleList(nn.Linear(12, 5) for _ in range(3))

    def forward(self, x: Tensor, head: int) -> Tensor:
        return self.heads[head](self.body(x))


class Unused(Loop, find_unused_parameters=True):
    """Each rank uses another head, and one is used by none."""

    least = 0.75  # not the reducer's own operations after the last gradient

    def net(self) -> nn.Module:
        return Heads()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x, self.rank), y)


class UnusedBuckets(Unused, find_unused_parameters=True, bucket_cap_mb=0.0002):
    pass


class UnusedViews(Unused, find_unused_parameters=True, gradient_as_bucket_view=True):
    pass


class StaticGraph(Loop, static_graph=True):
    pass


class StaticUnused(Loop, static_graph=True):
    def net(self) -> nn.Module:
        return Heads()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x, 0), y)


class StaticViews(Loop, static_graph=True, gradient_as_bucket_view=True, bucket_cap_mb=0.0002):
    pass


class BucketView(Loop, gradient_as_bucket_view=True):
    pass


class BucketViewKept(Loop, gradient_as_bucket_view=True):
    """Gradients stay where they are, and are set to zero."""

    def step(self, i: int) -> float:
        self.optimizer.zero_grad(set_to_none=False)
        x, y = self.batch(i)
        self.fails(True)
        loss = self.loss(x, y)
        loss.backward()
        self.fails(False)
        self.optimizer.step()
        return loss.item()


class Accumulation(Loop):
    """Three micro-batches, of which the last is reduced."""

    def step(self, i: int) -> float:
        self.optimizer.zero_grad()
        total = 0.0
        for n in range(3):
            x, y = self.batch(10 * i + n)
            self.fails(True)
            with nullcontext() if n == 2 else self.model.no_sync():
                loss = self.loss(x, y) / 3
                loss.backward()
            self.fails(False)
            total += loss.item()
        self.optimizer.step()
        return total


class AccumulationViews(Accumulation, gradient_as_bucket_view=True):
    pass


class AccumulationUnused(Accumulation, find_unused_parameters=True):
    def net(self) -> nn.Module:
        return Heads()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x, 0), y)


class Uneven(Loop):
    """One rank has one batch less in each round: the other goes on in a join."""

    least = 0.7

    def step(self, i: int) -> float:
        from torch.distributed.algorithms.join import Join

        total = 0.0
        with Join([self.model]):
            for n in range(2 + self.rank):
                self.optimizer.zero_grad()
                x, y = self.batch(10 * i + n)
                self.fails(True)
                loss = self.loss(x, y)
                loss.backward()
                self.fails(False)
                self.optimizer.step()
                total += loss.item()
        return total


class Scaled(nn.Module):
    """Has a buffer, which rank 0 broadcasts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, 12), nn.GELU(), nn.Linear(12, 5))
        self.register_buffer("scale", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * self.scale


class BroadcastBuffers(Loop):
    def net(self) -> nn.Module:
        return Scaled()

    def step(self, i: int) -> float:
        with torch.no_grad():
            self.model.module.scale.fill_(1.0 + 0.1 * i + self.rank)
        return super().step(i)


class Normalised(Loop):
    """Relates rows: the batch is run whole again."""

    least, whole = 0.5, True
    same = False  # running statistics

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(10, 12), nn.BatchNorm1d(12), nn.GELU(), nn.Linear(12, 5))


class Hooked(Loop, bucket_cap_mb=0.0002):
    """With a communication hook that allocates, written in Python."""

    tolerance = 1e-2  # gradients in half precision

    def wrap(self, net: nn.Module) -> DistributedDataParallel:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        model = super().wrap(net)
        model.register_comm_hook(None, fp16_compress_hook)
        return model


class Builtin(Hooked):
    """The same in C++."""

    least = 0.7

    def wrap(self, net: nn.Module) -> DistributedDataParallel:
        model = Loop.wrap(self, net)
        model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        return model


class Stateful(Hooked):
    """With a hook that has a state of its own, in which it keeps what rounding has lost."""

    def wrap(self, net: nn.Module) -> DistributedDataParallel:
        lost: dict[int, Tensor] = {}

        def hook(lost, bucket):
            whole = bucket.buffer() / 2
            if bucket.index() in lost and lost[bucket.index()].shape == whole.shape:
                whole += lost[bucket.index()]
            sent = whole.half()
            lost[bucket.index()] = whole - sent
            return dist.all_reduce(sent, async_op=True).get_future().then(lambda f: f.value()[0].float())

        model = Loop.wrap(self, net)
        model.register_comm_hook(lost, hook)
        return model


class CompiledInside(Loop):
    def net(self) -> nn.Module:
        return torch.compile(super().net(), backend="eager")  # type: ignore[return-value]


class CompiledAround(Loop):
    """Nothing is known of what is inside."""

    left = True

    def wrap(self, net: nn.Module) -> Any:
        return torch.compile(super().wrap(net), backend="eager")


class ZeroRedundancy(Loop):
    def optimized(self, model: nn.Module) -> torch.optim.Optimizer:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01, eps=1e-3)


class Adversarial(Loop):
    """Two models, of which one is trained through the other."""

    def build(self) -> None:
        self.model, self.critic = (
            self.wrap(self.net()),
            self.wrap(nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 1))),
        )
        self.optimizer = self.optimized(self.model)
        self.other = self.optimized(self.critic)

    def step(self, i: int) -> float:
        x, _ = self.batch(i)
        self.other.zero_grad()
        self.fails(True)
        made = self.model(x)
        loss = F.softplus(self.critic(made.detach())).mean() + F.softplus(-self.critic(x[:, :5])).mean()
        loss.backward()
        self.fails(False)
        self.other.step()
        self.optimizer.zero_grad()
        self.fails(True)
        second = F.softplus(-self.critic(self.model(x))).mean()
        second.backward()
        self.fails(False)
        self.optimizer.step()
        return loss.item() + second.item()

    def tensors(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.critic.parameters()]

    least = 0.5


class Together(Loop):
    """Two models in one step, and one loss."""

    least = 0.65  # not the first one's backward pass, if the other has reduced all of its gradients

    def build(self) -> None:
        self.model, self.head = (
            self.wrap(nn.Sequential(nn.Linear(10, 12), nn.GELU()).to(self.device)),
            self.wrap(nn.Linear(12, 5).to(self.device)),
        )
        self.optimizer = torch.optim.SGD([*self.model.parameters(), *self.head.parameters()], lr=0.1)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.model(x)), y)

    def tensors(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.head.parameters()]


class Inside(Loop):
    """DistributedDataParallel is a part of a module."""

    least = 0.6  # not what is before it

    def build(self) -> None:
        class Outer(nn.Module):
            def __init__(self, inner: nn.Module) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, x: Tensor, y: Tensor) -> Tensor:
                return F.cross_entropy(self.inner(x * 2), y)

        self.model = Outer(self.wrap(self.net()))  # type: ignore[assignment]
        self.optimizer = self.optimized(self.model)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model(x, y)


class Siamese(Loop):
    """Two calls in one step."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y) + self.model(x.flip(1)).square().mean()


class Frozen(Loop):
    def net(self) -> nn.Module:
        net = super().net()
        net[0].requires_grad_(False)  # type: ignore[index]
        return net


class Tied(Loop):
    """One weight is used twice."""

    def net(self) -> nn.Module:
        net = nn.Sequential(nn.Linear(10, 10), nn.GELU(), nn.Linear(10, 10), nn.Linear(10, 5))
        net[2].weight = net[0].weight
        return net


class SparseEmbedding(Loop):
    """Left alone."""

    left = True

    def net(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(20, 6, sparse=True), nn.Flatten(), nn.Linear(24, 5))

    def optimized(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def batch(self, i: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(100 * i + self.rank)
        return torch.randint(0, 20, (self.rows, 4), generator=draw), torch.randint(0, 5, (self.rows,), generator=draw)


class TwoLosses(Loop):
    """One is returned by the module, in a dictionary."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(10, 12), nn.Linear(12, 5)

        def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
            h = torch.tanh(self.body(x))
            logits = self.head(h)
            return {"loss": F.cross_entropy(logits, y), "hidden": h, "logits": logits}

    def net(self) -> nn.Module:
        return self.Net()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        out = self.model(x, y)
        return out["loss"] + 0.1 * out["hidden"].square().mean()


class TwoLossesUnused(TwoLosses, find_unused_parameters=True):
    pass


class Gathered(Loop):
    """A contrastive loss over the results of both ranks."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = F.normalize(self.model(x), dim=1)
        both = [torch.empty_like(z) for _ in range(2)]
        dist.all_gather(both, z.detach())
        both[self.rank] = z
        return F.cross_entropy(
            z @ torch.cat(both).T / 0.5, torch.arange(self.rows, device=x.device) + self.rank * self.rows
        )

    least, whole = 0.5, True


class Metrics(Loop):
    """Numbers for a log are added up over the ranks, before and after backward."""

    def step(self, i: int) -> float:
        self.optimizer.zero_grad()
        x, y = self.batch(i)
        self.fails(True)
        out = self.model(x)
        loss = F.cross_entropy(out, y)
        right = (out.argmax(1) == y).float().mean()
        dist.all_reduce(right)
        loss.backward()
        self.fails(False)
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        self.optimizer.step()
        return float(shown) + float(right)

    least = 0.7


class Talks(nn.Module):
    """Communicates in its forward and its backward pass."""

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x = x.clone()
            dist.all_reduce(x)
            return x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            grad = grad.clone()
            dist.all_reduce(grad)
            return grad

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(10, 12), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        return self.head(h - self.Sum.apply(h.mean(0)) / 2)


class Communicates(Loop):
    """As SyncBatchNorm does: what has communicated is not run again."""

    left, why = True, "communicates with other ranks"

    def net(self) -> nn.Module:
        return Talks()


class Whispers(Loop):
    """Communicates only in its backward pass, through PyTorch's functional collectives."""

    left, why = True, "communicates with other ranks"

    class Net(nn.Module):
        class Copy(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, grad: Tensor) -> Tensor:
                made = torch.ops._c10d_functional.all_reduce(grad, "sum", dist.group.WORLD.group_name)  # type: ignore[union-attr]
                return torch.ops._c10d_functional.wait_tensor(made) / 2

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(10, 12), nn.Linear(12, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.Copy.apply(torch.tanh(self.body(x))))

    def net(self) -> nn.Module:
        return self.Net()


class Averaged(Loop):
    """Without DistributedDataParallel: left alone."""

    left = True

    def wrap(self, net: nn.Module) -> Any:
        return net

    def step(self, i: int) -> float:
        self.optimizer.zero_grad()
        x, y = self.batch(i)
        self.fails(True)
        loss = self.loss(x, y)
        loss.backward()
        self.fails(False)
        for p in self.model.parameters():
            dist.all_reduce(p.grad)
        self.optimizer.step()
        return loss.item()


class Sharded(Loop):
    """FSDP2: no rank can make a call again by itself."""

    left, same = True, False

    def wrap(self, net: nn.Module) -> Any:
        from torch.distributed.fsdp import fully_shard

        fully_shard(net[0])  # type: ignore[index]
        fully_shard(net)
        return net

    def tensors(self) -> list[Tensor]:
        return [p.to_local() for p in self.model.parameters()]  # type: ignore[attr-defined]


class ShardedBefore(Loop):
    """FSDP1."""

    left, same = True, False

    def wrap(self, net: nn.Module) -> Any:
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(net, device_id=self.device)


class Autocast(Loop):
    tolerance = 2e-2

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.cross_entropy(self.model(x), y)


class Clipped(Loop):
    def step(self, i: int) -> float:
        self.optimizer.zero_grad()
        x, y = self.batch(i)
        self.fails(True)
        loss = self.loss(x, y)
        loss.backward()
        self.fails(False)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        return loss.item()


class Checkpointed(Loop):
    reentrant = False

    class Net(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.reentrant = reentrant
            self.first, self.body, self.head = (
                nn.Linear(10, 12),
                nn.Sequential(nn.Linear(12, 12), nn.GELU()),
                nn.Linear(12, 5),
            )

        def forward(self, x: Tensor) -> Tensor:
            from torch.utils.checkpoint import checkpoint

            return self.head(checkpoint(self.body, self.first(x), use_reentrant=self.reentrant))

    def net(self) -> nn.Module:
        return self.Net(self.reentrant)


class Reentrant(Checkpointed):
    """Its checkpoints hand gradients to the reducer in backward passes of their own."""

    reentrant, left, why = True, True, "checkpoint with use_reentrant=True"


class Related(Loop):
    """The loss relates rows: results are computed twice, and the loss is computed whole."""

    least, whole = 0.5, True

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = F.normalize(self.model(x), dim=1)
        return F.cross_entropy(z @ z.T * 3, torch.arange(len(x), device=x.device).flip(0))


class RelatedUnused(Related, find_unused_parameters=True):
    def net(self) -> nn.Module:
        return Heads()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        z = F.normalize(self.model(x, self.rank), dim=1)
        return F.cross_entropy(z @ z.T * 3, torch.arange(len(x), device=x.device).flip(0))


class RelatedStatic(Related, static_graph=True):
    least = 0.4


class Group(Loop):
    """Reduces in a group of its own."""

    def wrap(self, net: nn.Module) -> DistributedDataParallel:
        return DistributedDataParallel(net, process_group=dist.new_group([0, 1]))


class SyncNorm(Loop):
    """Communicates in its forward and its backward pass."""

    left, gpu = True, True

    def net(self) -> nn.Module:
        return nn.SyncBatchNorm.convert_sync_batchnorm(
            nn.Sequential(nn.Linear(10, 12), nn.BatchNorm1d(12), nn.GELU(), nn.Linear(12, 5))
        )
