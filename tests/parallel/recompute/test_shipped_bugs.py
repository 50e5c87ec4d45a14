"""Bugs that were shipped with recomputation: each is shown, and what avoids it."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as PyTorchs
from torch.utils.checkpoint import checkpoint as pytorchs

from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict.recompute import every, none, use_of
from lib.predict.shape import MLPShape
from lib.single import MLP
from lib.single.recompute import block_costs, checkpoint, kept_bytes, recompute
from tests.every import every as every_one


class Twice(nn.Module):
    """Runs one linear layer twice, each time in a checkpoint or outside."""

    def __init__(self, around=None):
        super().__init__()
        torch.manual_seed(0)
        self.block, self.around = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), around

    def forward(self, x):
        for _ in range(2):
            x = self.around(self.block, x) if self.around else self.block(x)
        return x


def reentrant(function, x):
    return pytorchs(function, x, use_reentrant=True)


def gradients(wrap, around):
    model = wrap(Twice(around))
    x = torch.ones(3, 4, requires_grad=True)
    model(x).sum().backward()
    return [p.grad for p in model.parameters()]


def ready_twice():
    """What DDP says: it does not find the block in the graph, and so takes it for unused."""
    try:
        gradients(partial(PyTorchs, find_unused_parameters=True), reentrant)
    except RuntimeError as error:
        return str(error)
    return ""


def test_ddp_refuses_a_block_that_is_ready_twice_in_the_reentrant_one(worlds):
    assert "mark a variable ready only once" in worlds(2, device="cpu").run(ready_twice)[0]


@pytest.mark.parametrize("wrap", [PyTorchs, DistributedDataParallel], ids=["PyTorch's", "ours"])
def test_our_checkpoint_lets_ddp_average_once(worlds, wrap):
    plain = gradients(lambda model: model, None)
    for found in worlds(2, device="cpu").run(gradients, wrap, checkpoint):
        assert every_one(torch.allclose(a, b) for a, b in zip(found, plain, strict=True))


def test_a_batch_norm_counts_a_batch_twice_unless_its_momentum_is_halved():
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    plain, twice = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    plain(x).square().sum().backward()
    checkpoint(twice, x).square().sum().backward()
    assert plain.num_batches_tracked == 1 and twice.num_batches_tracked == 2
    assert not torch.allclose(plain.running_mean, twice.running_mean)
    mended = nn.BatchNorm1d(4, momentum=1 - (1 - plain.momentum) ** 0.5)
    checkpoint(mended, x).square().sum().backward()
    assert torch.allclose(plain.running_mean, mended.running_mean)
    assert torch.allclose(plain.running_var, mended.running_var)


class Part(nn.Module):
    """Gives a checkpoint one of three parts of a tensor: a view of the whole, or a copy."""

    def __init__(self, copy):
        super().__init__()
        self.copy = copy

    def forward(self, x):
        part = (2 * x).chunk(3, -1)[0]
        return checkpoint(torch.sin, part.clone() if self.copy else part)


def test_a_view_keeps_the_whole_tensor_that_it_shows_a_part_of():
    x = torch.ones(5, 12, requires_grad=True)
    bytes_of = lambda module: kept_bytes(nn.Sequential(module), x)
    assert bytes_of(Part(copy=False)) == 3 * bytes_of(Part(copy=True)) == x.nbytes


def test_a_checkpoint_around_the_last_block_alone_saves_nothing():
    """Its backward comes first, while all that the others keep is there."""
    shape = MLPShape((64,) * 9)
    x = torch.ones(32, 64)
    costs = block_costs(MLP(shape), x, [1.0] * 8)
    heavy = [cost._replace(inside=8 * cost.input) for cost in costs]
    last, first = (*range(7), (7,)), ((0,), *range(1, 8))
    peak = lambda plan: use_of(plan, heavy).peak
    assert peak(last) == peak(none(8)) > peak(first) > peak(every(8, 1))
    assert use_of(last, heavy).again == use_of(first, heavy).again == 1
    counted = {plan: kept_bytes(recompute(MLP(shape), plan), x) for plan in (last, none(8))}
    assert len(set(counted.values())) == 1
