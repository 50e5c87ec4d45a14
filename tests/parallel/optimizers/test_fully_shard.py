"""The rows that PyTorch's `fully_shard` gives each rank, updated as on one device.

PyTorch's own Adafactor cannot be the oracle here: in 2.13 it refuses such parameters.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from lib.parallel.optimizers import ShardedAdafactor, ShardedSM3
from lib.parallel.optimizers.places import Cut
from lib.single import share
from lib.single.optimizers import SM3, Adafactor
from tests.parallel.optimizers.test_gpt import far

KINDS = {"adafactor": (Adafactor, ShardedAdafactor), "sm3": (SM3, ShardedSM3)}
STEPS = 3


def network():
    """Matrices of 8 and of 5 rows: 4 ranks have 2, 2, 1 and none of the latter."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5)).double()


def batch(step):
    draw = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=draw, dtype=torch.float64)


def plain(kind):
    model = network()
    optimizer = KINDS[kind][0](model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(step)).square().mean().backward()
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def sharded(kind, naive=False):
    model = fully_shard(network())
    rows = [nn.Parameter(p.to_local().detach()) for p in model.parameters()]  # the same memory
    shapes = [tuple(p.shape) for p in model.parameters()]
    places = {own: Cut(shape, 0) for own, shape in zip(rows, shapes)}
    optimizer = KINDS[kind][0](rows) if naive else KINDS[kind][1](rows, places)
    for step in range(STEPS):
        model.zero_grad()
        x = share(batch(step), dist.get_rank(), dist.get_world_size())
        model(x).square().mean().backward()
        for own, parameter in zip(rows, model.parameters()):
            own.grad = parameter.grad.to_local()
        optimizer.step()
    return {name: p.full_tensor().detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_fully_shard_are_updated_as_on_one_device(world, kind):
    for found in world.run(sharded, kind):
        assert far(found, plain(kind)) < 1e-11


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_optimizer_on_rows_is_another_step(worlds, kind):
    assert far(worlds(2).run(sharded, kind, naive=True)[0], plain(kind)) > 1e-4


def with_pytorchs(foreach):
    model = fully_shard(network())
    optimizer = torch.optim.Adafactor(model.parameters(), foreach=foreach)
    model(batch(0)).square().mean().backward()
    try:
        optimizer.step()
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("foreach", [False, True])
def test_pytorchs_adafactor_refuses_them(worlds, foreach):
    """Should a later PyTorch take them, it becomes the oracle of the first test."""
    assert "_NormPartial" in worlds(2, device="cpu").run(with_pytorchs, foreach)[0]
