"""How much of FSDP's gathers prefetch hides: in slow motion on eight ranks, as predicted."""

import sys

import pytest
import torch
import torch.distributed as dist

from lib.parallel.sharded import FSDP
from lib.predict.larger import Larger
from lib.predict.shape import MLPShape
from lib.predict.sharded.fsdp_step import fsdp_step, hidden
from lib.ranks.slow_motion import SlowMotion
from lib.single import MLP
from tests.slow_steps import late, least_late

pytestmark = pytest.mark.quiet

SMALL, FEW = MLPShape((64,) * 13, bias=False), 32  # twelve equal units, which stand for
SHAPE, BATCH = MLPShape((4096,) * 13, bias=False), 4096  # these, of which 8 ranks hold the shards
STANDS = Larger(SMALL, SHAPE, (FEW, BATCH), shared_by=(8,))
SPEEDS = SlowMotion("H100", link="NVLink4", factor=300, stands_for=STANDS)


def build(prefetch):
    kept = sys.modules["__main__"].__dict__
    kept["fsdp"] = FSDP(MLP(SMALL), prefetch=prefetch)
    kept["optimizer"] = torch.optim.SGD(kept["fsdp"].parameters(), lr=1e-6)
    draw = torch.Generator().manual_seed(dist.get_rank())
    kept["batch"] = [torch.randn(FEW, 64, generator=draw) for _ in range(2)]


def step():
    kept = sys.modules["__main__"].__dict__
    fsdp, optimizer, (x, gradient) = kept["fsdp"], kept["optimizer"], kept["batch"]
    optimizer.zero_grad()
    fsdp(x).backward(gradient)
    optimizer.step()


def recorded(world, prefetch):
    """Build, warm up, and record a step in slow motion."""
    world.run(build, prefetch)
    return least_late(world, SPEEDS, step)


@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_step_with_and_without_prefetch_is_as_predicted(worlds, prefetch):
    ledger = recorded(worlds(8, device="cpu"), prefetch)
    predicted = fsdp_step(SHAPE, [BATCH] * 8, SPEEDS, prefetch=prefetch)
    assert abs(ledger.makespan / predicted.makespan - 1) <= 0.05 + late(ledger)
    shares = hidden(ledger, SPEEDS), hidden(predicted, SPEEDS)
    assert abs(shares[0] - shares[1]) <= 0.05
    assert (shares[1] > 0.85) == (prefetch == 1)
