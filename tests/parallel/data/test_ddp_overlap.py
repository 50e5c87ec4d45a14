"""How much of DDP's communication backward hides: in slow motion on eight ranks, as predicted."""

import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.data.ddp import DistributedDataParallel
from lib.predict.data.ddp_step import data_parallel_step, exposed, layers_per_bucket
from lib.predict.shape import MLPShape
from lib.ranks.slow_motion import SlowMotion
from lib.single import MLP
from tests.slow_steps import late, least_late

pytestmark = pytest.mark.quiet

WIDTHS, BATCH, LAYER = [256] * 9, 256, 4 * 256 * 256
# So slow that eight ranks on two cores do the real work in a fraction of the stretched time; the
# link is such that sending a layer takes about as long as its backward.
SPEEDS = SlowMotion("H100", link="NVLink4", factor=1e5, alpha=1e-8, bandwidth=1.3e12)


def build(bucket_bytes, relu_more=False):
    model = MLP(MLPShape(tuple(WIDTHS), bias=False))
    model = nn.Sequential(model, nn.ReLU()) if relu_more else model
    kept = sys.modules["__main__"].__dict__
    kept["ddp"] = DistributedDataParallel(model, bucket_bytes=bucket_bytes)
    kept["optimizer"] = torch.optim.SGD(model.parameters(), lr=1e-6)
    draw = torch.Generator().manual_seed(dist.get_rank())
    kept["batch"] = [torch.randn(BATCH, 256, generator=draw) for _ in range(2)]


def step():
    kept = sys.modules["__main__"].__dict__
    ddp, optimizer, (x, gradient) = kept["ddp"], kept["optimizer"], kept["batch"]
    optimizer.zero_grad()
    ddp(x).backward(gradient)
    optimizer.step()
    return len(ddp.buckets)


def recorded(world, bucket_bytes, relu_more=False):
    """Build, warm up, and record a step in slow motion."""
    world.run(build, bucket_bytes, relu_more)
    return least_late(world, SPEEDS, step)


@pytest.mark.parametrize("bucket_bytes", [1, 3 * LAYER, 10**9])
def test_exposed_communication_is_as_predicted(worlds, bucket_bytes):
    ledger = recorded(worlds(8, device="cpu"), bucket_bytes)
    buckets = layers_per_bucket(WIDTHS, bucket_bytes)
    together = data_parallel_step(WIDTHS, [BATCH] * 8, SPEEDS, buckets=buckets)
    after = data_parallel_step(WIDTHS, [BATCH] * 8, SPEEDS, buckets=buckets, overlap=False)
    assert ledger.results == [len(buckets)] * 8
    assert abs(ledger.makespan - together.makespan) <= 0.05 * together.makespan
    # Within 5 % of what there is to hide, beyond the lateness that the ledger tells of.
    assert (
        abs(exposed(ledger) - exposed(together))
        <= 0.05 * exposed(after) + late(ledger) * ledger.makespan
    )
    hidden = 1 - exposed(together) / exposed(after)
    assert (hidden > 0.8) == (bucket_bytes == 1) and (hidden == 0) == (len(buckets) == 1)
    assert hidden < 0.8 or exposed(ledger) < 0.2 * exposed(after)


@pytest.mark.parametrize("relu_more", [False, True])
def test_all_reduces_begin_when_they_are_predicted_to(worlds, relu_more):
    """A bite: a model with one ReLU more than the predicted one begins them later."""
    ledger = recorded(worlds(4, device="cpu"), 1, relu_more)
    predicted = data_parallel_step(WIDTHS, [BATCH] * 4, SPEEDS)
    began = [
        sorted(row.start + row.waiting for row in one.where(rank=0, op="all_reduce", lane="comm"))
        for one in (ledger, predicted)
    ]
    layer = SPEEDS.moving("all_reduce", 4, LAYER)
    off = [abs(mine - theirs) / layer for mine, theirs in zip(*began, strict=True)]
    late_by = late(ledger) * ledger.makespan / layer
    assert (max(off) < 0.1 + late_by) == (not relu_more)


def test_layers_are_put_into_buckets_as_ddp_puts_them():
    assert layers_per_bucket([256] * 9, LAYER) == [1] * 8
    assert layers_per_bucket([256] * 9, 3 * LAYER) == [3, 3, 2]
    assert layers_per_bucket([256] * 9, None) == [4, 4]
