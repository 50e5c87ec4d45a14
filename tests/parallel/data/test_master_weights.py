"""Master weights behind data parallelism: the averaged gradients are 16-bit, the steps are fp32.

Inputs are small whole numbers, so that each average of gradients is exact in bf16 and fp16, and
spread equals whole bit for bit.
"""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.data.ddp import DistributedDataParallel, all_reduce_mean
from lib.single import share
from lib.single.precision import LossScaler, MasterWeights, RoundedWeights
from tests.every import every

ROWS, STEPS = 8, 6


def batch(step):
    generator = torch.Generator("cpu").manual_seed(step)
    x = torch.randint(-3, 4, (ROWS, 5), generator=generator, device="cpu")
    return x.to(torch.get_default_device())


def wrapped(kind, optimizer):
    return RoundedWeights(optimizer, kind) if kind != "master" else MasterWeights(optimizer)


def train(model, inner, dtype, kind, part):
    """Train by a loss whose gradient is the mean of the inputs; return weights and copies."""
    optimizer = wrapped(kind, torch.optim.Adam(inner.parameters(), 1e-3))
    scaler = LossScaler(4.0)
    for step in range(STEPS):
        x = part(batch(step)).to(dtype)
        optimizer.zero_grad()
        scaler.scale(model(x).float().sum(-1).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    optimizer_state = optimizer.state_dict()
    kept = optimizer_state.get("copies") or optimizer_state["errors"]
    return [t.detach().cpu() for t in (*inner.parameters(), *kept)]


def model_of(dtype):
    torch.manual_seed(0)
    return torch.nn.Linear(5, 3).to(dtype)


def spread(dtype, kind, hook=None):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    inner = model_of(dtype)
    ddp = DistributedDataParallel(inner, hook=hook)
    return train(ddp, inner, dtype, kind, lambda x: share(x, rank, ranks))


def whole(dtype, kind):
    inner = model_of(dtype)
    return train(inner, inner, dtype, kind, lambda x: x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["master", "compensated"])
def test_spread_equals_whole(world, dtype, kind):
    expected = whole(dtype, kind)
    assert expected[0].dtype == dtype and len(expected) == 4
    for part in world.run(spread, dtype, kind):
        assert every(map(torch.equal, part, expected))


class Done:
    def wait(self):
        pass


def unsent(bucket, group):
    return Done()


def test_without_the_average_ranks_diverge(worlds):
    parts = worlds(2).run(spread, torch.bfloat16, "master", unsent)
    assert not torch.equal(parts[0][2], parts[1][2])
    again = worlds(2).run(spread, torch.bfloat16, "master", all_reduce_mean)
    assert every(map(torch.equal, again[0], whole(torch.bfloat16, "master")))
