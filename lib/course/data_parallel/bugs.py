"""Five small data-parallel programs, each with a bug that has occurred in real programs.

Each trains the same small model for ten steps, and the loss falls in all of them. Chapter 1 asks
which program has which bug, from measurements alone: the norms of gradients and the ledger.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist

from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict.shape import MLPShape
from lib.single import MLP, mean_squares

SHAPE, STEPS, ROWS = MLPShape((6, 24, 24, 24, 3)), 10, 8
LIMIT = 4096  # bytes of a bucket


class Evidence(NamedTuple):
    """Holds one rank's losses, and for the first step its gradient's norm before and after."""

    losses: list[float]
    own: float
    shared: float


def program_a(model, step):
    """Average the gradients of a random batch."""
    x, y = samples(step, seed=0)
    mean_squares(model(x), y).backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def program_b(model, step):
    """Average the gradients in buckets, each of which is sent once it is large enough."""
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
    """Run a backward on each rank."""
    x, y = samples(step, seed=dist.get_rank())
    mean_squares(model(x), y).backward()


def program_d(model, step):
    """Add up four microbatches, of which the last one should send the sum."""
    if not hasattr(model, "ddp"):
        object.__setattr__(model, "ddp", DistributedDataParallel(model))
    x, y = samples(step, seed=dist.get_rank())
    for n, (part, targets) in enumerate(zip(x.chunk(4), y.chunk(4))):
        loss = mean_squares(model.ddp(part), targets) / 4
        if n < 3:
            with model.ddp.no_sync():
                loss.backward()
        else:
            loss.backward()


def program_e(model, step):
    """Add up the gradients of a random batch over all ranks."""
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
    """Draw a batch: inputs x [8, 6] and targets y [8, 3]."""
    generator = torch.Generator("cpu").manual_seed(1000 * step + seed)
    x = torch.randn(ROWS, 6, generator=generator, dtype=torch.float64, device="cpu")
    x = x.to(torch.get_default_device())  # drawn on the CPU, for equal numbers on every device
    return x, torch.sin(x[:, :3]) + x[:, 3:]


def norm(gradients) -> float:
    """Return the norm of all gradients together."""
    return torch.stack([g.square().sum() for g in gradients]).sum().sqrt().item()


def plain() -> float:
    """Return the norm of the gradient of four ranks' first batches together, on one device."""
    model = MLP(SHAPE).double()
    x, y = (torch.cat(parts) for parts in zip(*(samples(0, seed) for seed in range(4))))
    return norm(torch.autograd.grad(mean_squares(model(x), y), list(model.parameters())))


def trained(letter: str) -> Evidence:
    """Train for ten steps with program `letter` on this rank."""
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
