"""Delayed scales on ranks: one all-reduce of maxima, and every rank rounds the weight alike."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.single.precision import fp8, update_scales


def trained(part, parts, add_up, reduce):
    """Three steps on one of `parts` shares of the rows, which differ in size: scales, weight."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 8, generator=generator) * torch.arange(1, 9)[:, None]
    layer = nn.Linear(8, 8)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    layer = fp8(layer, "delayed", history=4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.001)
    own = x.chunk(parts)[part].to(layer.weight.device)
    for _ in range(3):
        optimizer.zero_grad()
        layer(own).square().sum().backward()
        for parameter in layer.parameters():
            add_up(parameter.grad)
        optimizer.step()
        update_scales(layer, reduce)
    return [scaling.scale.item() for scaling in layer.scalings.values()], layer.weight.tolist()


def on_a_rank(shared):
    def largest(maxima):
        assert maxima.shape == (3,)
        dist.all_reduce(maxima, dist.ReduceOp.MAX)

    reduce = largest if shared else None
    return trained(dist.get_rank(), dist.get_world_size(), dist.all_reduce, reduce)


def test_all_ranks_have_the_scales_of_the_whole(world):
    scales, weight = trained(0, 1, lambda gradient: None, None)
    for own_scales, own_weight in world.run(on_a_rank, True):
        assert own_scales == pytest.approx(scales, rel=1e-5)
        torch.testing.assert_close(torch.tensor(own_weight), torch.tensor(weight))


def test_alone_each_rank_has_scales_of_its_own(worlds):
    """A bite: without the all-reduce of maxima the ranks' scales and weights differ."""
    results = worlds(4).run(on_a_rank, False)
    assert len({own_scales[0] for own_scales, _ in results}) == 4
    weight = torch.tensor(trained(0, 1, lambda gradient: None, None)[1])
    far = [(torch.tensor(own) - weight).abs().max().item() for _, own in results]
    assert max(far) > 1e-4
