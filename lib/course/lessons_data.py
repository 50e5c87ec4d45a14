"""What chapter 1 runs again and again: a step on paper, a task, small trainings on ranks."""

import torch
import torch.distributed as dist
from torch import nn

from lib.course.bugs_data import SHAPE, samples
from lib.parallel.data import DistributedDataParallel
from lib.parallel.local import LocalSGD
from lib.predict.flops import flops
from lib.predict.hardware import gpu, link
from lib.predict.server import play
from lib.predict.shape import GPTShape, ModelShape
from lib.predict.traffic import time_of
from lib.single import GPT, MLP, Batches, mean_squares, next_token_loss, share

GPT2 = GPTShape(50257, sequence=1024, width=768, heads=12, layers=12, tied=True)


def step_seconds(shape: ModelShape, wire: str, batch: int, ranks: int) -> tuple:
    """Give compute, start-ups and bytes of one step on H100s, in seconds, nothing hidden.

    Compute: the arithmetic at the pace of the fastest matrix product measured; then one all-reduce
    of float32 gradients by ring over the link called `wire`.
    """
    found = link(wire)
    work = flops(shape, batch).total / ranks / gpu("H100").matmul
    network = {"alpha": found.alpha, "beta": found.beta}
    whole = time_of("all_reduce", ranks, shape.nbytes(), **network)
    starts = time_of("all_reduce", ranks, 0, **network)
    return work, starts, whole - starts


class Backwards(nn.Sequential):
    """Layers that are used in the reverse order of their definition."""

    def forward(self, x):
        for layer in list(self)[::-1]:
            x = layer(x)
        return x


def layers_in_buckets(steps: int) -> list[list[int]]:
    """Train `Backwards` for some steps on this rank; say which layers lie in which bucket."""
    layers = [nn.Linear(8, 8, bias=False) for _ in range(4)]
    ddp = DistributedDataParallel(Backwards(*layers), bucket_bytes=512)
    for _ in range(steps):
        ddp(torch.ones(2, 8)).sum().backward()
    number = {layer.weight: n for n, layer in enumerate(layers)}
    return [[number[p] for p in bucket.params] for bucket in ddp.buckets]


def network() -> MLP:
    """Make the network that learns the task below, the same on every rank."""
    return MLP(SHAPE).double()


def loss_of(model, worker: int, number: int):
    """Give the loss of a worker's batch of that number."""
    x, y = samples(number, seed=worker)
    return mean_squares(model(x), y)


def ending(dial, losses) -> str:
    """Say when a run under this dial ends, how stale its gradients are, and its test losses."""
    run = play(dial)
    stale = sum(update.staleness for update in run.updates) / len(run.updates)
    tests = " and ".join(f"{loss:.2f}" for loss in losses)
    return f"ends {run.times[-1]:g}, stale {stale:.1f}, test loss {tests}"


def tested(model) -> float:
    """Give the loss on 240 samples that nobody trains on."""
    x, y = (torch.cat(parts) for parts in zip(*(samples(n, seed=7) for n in range(900, 930))))
    with torch.no_grad():
        return mean_squares(model(x), y).item()


def local(every: int, steps: int = 64) -> float:
    """Train on this rank alone, averaging weights after each `every` steps; give the test loss."""
    model = network()
    sgd = LocalSGD(model, torch.optim.SGD(model.parameters(), 0.05), every)
    for number in range(steps):
        sgd.optimizer.zero_grad()
        loss_of(model, dist.get_rank(), number).backward()
        sgd.step()
    return tested(model)


def train_with(hook, steps: int = 30) -> float:
    """Train a small GPT on this rank with `hook` on DDP's bucket; the mean of its last losses."""
    shape = GPTShape(width=32, layers=2, heads=2, sequence=16)
    ddp = DistributedDataParallel(GPT(shape), hook=hook)
    optimizer = torch.optim.AdamW(ddp.parameters(), 3e-3)
    batches, losses = Batches(16, sequence=16), []
    for number in range(steps):
        tokens, targets = share(batches[number], dist.get_rank(), dist.get_world_size())
        optimizer.zero_grad()
        loss = next_token_loss(ddp(tokens), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    last = torch.stack(losses[-5:]).mean()
    dist.all_reduce(last)
    return last.item() / dist.get_world_size()
