"""Loss scaling with sharded gradients: all ranks take a step, or none does."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.sharded import FSDP, ShardedDataParallel, ZeroRedundancyOptimizer
from lib.predict.shape import MLPShape
from lib.ranks import RankError
from lib.single import MLP, mean_squares, share
from lib.single.precision.loss_scaler import LossScaler
from tests.every import every

SHAPE = MLPShape((16, 32, 8), bias=False)
OVERFLOWS = {2, 3, 8}  # steps in which one gradient is infinite
STEPS = 12


def model_and_batch():
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    batch = tuple(torch.randn(8, n, generator=draw, dtype=torch.float64) for n in (16, 8))
    return MLP(SHAPE).double(), batch


def train(model, weight, parameters, scaler, batch, clip):
    """Twelve steps; returns the scale after each, and which steps were taken."""
    optimizer, scales, taken = torch.optim.AdamW(parameters, 1e-2), [], []
    (x, y), poison = batch, torch.zeros(32, 16, dtype=batch[0].dtype)
    poison[0, 0] = float("inf")
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = mean_squares(model(x), y)
        if step in OVERFLOWS:  # in the first number of the first weight, so in the first shard
            loss = loss + (weight() * poison).nansum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        clip(optimizer, 0.1)
        taken.append(scaler.step(optimizer))
        scaler.update()
        scales.append(scaler.factor)
    return scales, taken


def first_weight(model):
    name = next(name for name, _ in model.named_parameters())
    return lambda: model.get_parameter(name)


def plain():
    model, batch = model_and_batch()
    scaler = LossScaler(2.0**10, interval=3)

    def clip(optimizer, norm):
        torch.nn.utils.clip_grad_norm_(model.parameters(), norm)

    found = train(model, first_weight(model), model.parameters(), scaler, batch, clip)
    return *found, [p.detach() for p in model.parameters()]


def sharded(together=True):
    model, batch = model_and_batch()
    batch = share(batch, dist.get_rank(), dist.get_world_size())
    fsdp = FSDP(model, units=[])
    ask = fsdp.found_anywhere if together else lambda flag: flag
    scaler = LossScaler(2.0**10, interval=3, found_anywhere=ask)
    found = train(fsdp, first_weight(model), fsdp.parameters(), scaler, batch,
                  lambda _, norm: fsdp.clip_grad_norm_(norm))  # fmt: skip
    return *found, list(fsdp.full_state_dict().values())


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_scales_steps_and_weights_are_those_of_one_device(worlds, ranks):
    scales, taken, weights = plain()
    assert [n for n, was in enumerate(taken) if not was] == sorted(OVERFLOWS)
    for found in worlds(ranks).run(sharded):
        assert found[:2] == (scales, taken)
        for ours, expected in zip(found[2], weights, strict=True):
            assert (ours - expected.cpu()).norm() < 1e-12 * expected.norm()


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_decide_alone_diverge(worlds, ranks):
    """The bite: the rank with the infinity skips, and the others step with a scale of their own."""
    (scales, taken, weights), *others = worlds(ranks).run(sharded, False)
    expected = plain()
    assert (scales, taken) == expected[:2]
    assert every(all(other[1]) and other[0] != scales for other in others), "they have seen nothing"
    assert max((a - b.cpu()).abs().max() for a, b in zip(weights, expected[2])) > 1e-3


def zero_2():
    model, (x, y) = model_and_batch()
    spread = ShardedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(spread, torch.optim.AdamW)
    scaler = LossScaler(found_anywhere=lambda flag: flag)
    scaler.scale(mean_squares(spread(x), y)).backward()
    scaler.step(optimizer)


def test_gradients_that_a_scaler_does_not_see_are_refused(worlds):
    """Else they would be stepped with as they are, 65,536 times too large."""
    with pytest.raises(RankError, match="a loss scaler would find none to unscale. Use FSDP"):
        worlds(2).run(zero_2)
