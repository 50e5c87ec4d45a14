"""Five small data-parallel programs, each with a bug that people really shipped.

Each trains the same little model for ten steps, and the loss falls in all of them. Chapter 1 asks
which is which, from what can be measured: the norms of gradients and the ledger.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist

from lib.parallel.data import DistributedDataParallel
from lib.predict.shape import MLPShape
from lib.single import MLP, mean_squares

SHAPE, STEPS, ROWS = MLPShape((6, 24, 24, 24, 3)), 10, 8
LIMIT = 4096  # bytes of a bucket


class Evidence(NamedTuple):
    """What one rank saw: losses, and in the first step its own gradient's norm and the shared."""

    losses: list[float]
    own: float
    shared: float


def program_a(model, step):
    """A random batch, a backward, a mean."""
    x, y = samples(step, seed=0)
    mean_squares(model(x), y).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def program_b(model, step):
    """A mean in buckets: gradients gather until there are enough, then they are sent."""
    x, y = samples(step, seed=dist.get_rank())
    mean_squares(model(x), y).backward()
    bucket = []
    for p in reversed(list(model.parameters())):
        bucket.append(p.grad)
        if sum(grad.nbytes for grad in bucket) >= LIMIT:
            flat = torch.cat([grad.flatten() for grad in bucket])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for grad, part in zip(bucket, flat.split([grad.numel() for grad in bucket])):
                grad.copy_(part.view_as(grad))
            bucket = []


def program_c(model, step):
    """A backward on each rank."""
    x, y = samples(step, seed=dist.get_rank())
    mean_squares(model(x), y).backward()


def program_d(model, step):
    """Four microbatches, of which the last is to send the sum of all."""
    if not hasattr(model, "ddp"):
        object.__setattr__(model, "ddp", DistributedDataParallel(model))
    x, y = samples(step, seed=dist.get_rank())
    for n, (part, wanted) in enumerate(zip(x.chunk(4), y.chunk(4))):
        loss = mean_squares(model.ddp(part), wanted) / 4
        if n < 3:
            with model.ddp.no_sync():
                loss.backward()
        else:
            loss.backward()


def program_e(model, step):
    """A random batch, a backward, and everybody's gradients together."""
    x, y = samples(step, seed=dist.get_rank())
    mean_squares(model(x), y).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)


PROGRAMS = {
    "a": (program_a, "same batch"),
    "b": (program_b, "last bucket"),
    "c": (program_c, "nothing sent"),
    "d": (program_d, "no_sync late"),
    "e": (program_e, "sum"),
}


def samples(step: int, seed: int):
    """Draw a batch: x [8, 6] and what is wanted, y [8, 3]."""
    chance = torch.Generator("cpu").manual_seed(1000 * step + seed)
    x = torch.randn(ROWS, 6, generator=chance, dtype=torch.float64, device="cpu")
    return x, torch.sin(x[:, :3]) + x[:, 3:]


def norm(gradients) -> float:
    """The length of all gradients together."""
    return torch.stack([g.square().sum() for g in gradients]).sum().sqrt().item()


def plain() -> float:
    """The norm of the gradient of four ranks' first batches together, on one device."""
    model = MLP(SHAPE).double()
    x, y = (torch.cat(parts) for parts in zip(*(samples(0, seed) for seed in range(4))))
    return norm(torch.autograd.grad(mean_squares(model(x), y), list(model.parameters())))


def trained(letter: str) -> Evidence:
    """Train ten steps with program `letter` on this rank."""
    program, _ = PROGRAMS[letter]
    model = MLP(SHAPE).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.02)
    x, y = samples(0, 0 if letter == "a" else dist.get_rank())
    own = norm(torch.autograd.grad(mean_squares(model(x), y), list(model.parameters())))
    test, losses, shared = samples(999, 99), [], 0.0
    for step in range(STEPS):
        optimizer.zero_grad()
        program(model, step)
        shared = shared or norm(p.grad for p in model.parameters())
        with torch.no_grad():
            losses.append(mean_squares(model(test[0]), test[1]).item())
        optimizer.step()
    return Evidence(losses, own, shared)
