"""One decision for all ranks: a step is skipped by all of them, or by none."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict.shape import MLPShape
from lib.ranks.agreement import on_any_rank
from lib.single import MLP, mean_squares, share
from lib.single.precision import LossScaler
from tests.every import every

SHAPE, ROWS, STEPS = MLPShape((5, 8, 3)), 8, 16
OVERFLOWS = {1: 0, 6: -1, 7: -1, 12: 0}  # step -> the rank whose own gradient overflows


def batch(step):
    generator = torch.Generator("cpu").manual_seed(step)
    draw = lambda n: torch.randn(ROWS, n, generator=generator, dtype=torch.float64, device="cpu")
    return tuple(draw(n).to(torch.get_default_device()) for n in (5, 3))


def training(rank, ranks, average, found_anywhere, scaler=None):
    """Train; each rank unscales its own gradients, and what is averaged is unscaled already."""
    model = MLP(SHAPE).double()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    scaler = scaler or LossScaler(2.0**10, interval=3, found_anywhere=found_anywhere)
    scales, done = [], []
    for step in range(STEPS):
        x, y = share(batch(step), rank, ranks)
        optimizer.zero_grad()
        scaler.scale(mean_squares(model(x), y)).backward()
        if step in OVERFLOWS and rank == OVERFLOWS[step] % ranks:
            next(model.parameters()).grad[0, 0] = float("inf")
        scaler.unscale_(optimizer)
        for parameter in model.parameters():
            average(parameter.grad)
        done.append(scaler.step(optimizer))
        scaler.update()
        scales.append(scaler.factor)
    return scales, done, [p.detach().cpu() for p in model.parameters()]


def spread(together):
    def average(gradient):
        dist.all_reduce(gradient)
        gradient.div_(dist.get_world_size())

    asked = on_any_rank if together else lambda flag: flag
    return training(dist.get_rank(), dist.get_world_size(), average, asked)


def whole():
    return training(0, 1, lambda gradient: None, None)


def test_spread_equals_whole(world):
    scales, done, weights = whole()
    assert [step for step, stepped in enumerate(done) if not stepped] == list(OVERFLOWS)
    for part in world.run(spread, True):
        assert part[:2] == (scales, done)
        for ours, plain in zip(part[2], weights, strict=True):
            torch.testing.assert_close(ours, plain.cpu(), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_skips_alone_diverges(worlds, ranks):
    """Rank 0 skips step 1; the others step with an infinite average, and keep the larger scale."""
    first, *others = worlds(ranks).run(spread, False)
    assert first[1][1] is False and every(other[1][1] is True for other in others)
    assert every(other[0][1] == 2 * first[0][1] for other in others)
    assert every(not other[2][0].isfinite().all() for other in others)


def recorded():
    flag = torch.tensor(float(dist.get_rank() == 1))
    return on_any_rank(flag).item(), flag.item()


def test_the_flag_travels_once_and_stays_what_it_was(worlds):
    world = worlds(2)
    ledger = world.record(recorded)
    assert ledger.results == [(1.0, 0.0), (1.0, 1.0)]
    for rank in (0, 1):
        rows = ledger.where(rank=rank, lane="comm")
        assert [(row.op, row.bytes) for row in rows] == [("all_reduce", 4)]


def a_rank_without_gradients():
    """A rank whose part of the model got no gradient takes part in the decision all the same."""
    weight = torch.ones(3, requires_grad=True)
    optimizer, rank = torch.optim.SGD([weight], 1.0), dist.get_rank()
    scaler = LossScaler(4.0, found_anywhere=on_any_rank)
    if rank == 0:
        scaler.scale(weight.sum() * torch.inf).backward()
    return scaler.step(optimizer), scaler.update(), scaler.factor


def test_a_rank_without_gradients_skips_with_the_others(worlds):
    assert worlds(2).run(a_rank_without_gradients) == [(False, None, 2.0)] * 2


def averaged_first(ours):
    """With DDP the average itself is infinite on every rank, so each finds it alone."""
    model = DistributedDataParallel(MLP(SHAPE).double())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    device = next(model.parameters()).device.type
    theirs = torch.amp.GradScaler(device, 2.0**10, growth_interval=3)
    scaler = LossScaler(2.0**10, interval=3) if ours else theirs
    scales = []
    for step in range(STEPS):
        x, y = share(batch(step), dist.get_rank(), dist.get_world_size())
        loss = mean_squares(model(x), y)
        if OVERFLOWS.get(step, 99) % dist.get_world_size() == dist.get_rank() and step in OVERFLOWS:
            loss = loss * torch.inf
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.factor if ours else scaler.get_scale())
    return scales, [p.detach().cpu() for p in model.parameters()]


def test_after_an_average_each_rank_finds_it_alone_as_with_pytorchs_scaler(worlds):
    world = worlds(2)
    ours, theirs = world.run(averaged_first, True), world.run(averaged_first, False)
    scales = whole()[0]
    for (a, weights), (b, expected) in zip(ours, theirs, strict=True):
        assert a == b == scales
        assert every(map(torch.equal, weights, expected))
