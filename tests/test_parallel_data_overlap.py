"""How much of DDP's communication backward hides: in slow motion on eight ranks, against paper."""

import contextlib
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn

from lib.parallel.data import DistributedDataParallel
from lib.predict.overlap import data_parallel_step, exposed, layers_per_bucket
from lib.ranks.slow_motion import SlowMotion

WIDTHS, BATCH, LAYER = [256] * 9, 256, 4 * 256 * 256
# So slow that eight ranks on two cores do the real work in a fraction of the stretched time; the
# link is such that sending a layer takes about as long as its backward.
SPEEDS = SlowMotion("H100", link="NVLink4", factor=1e5, alpha=1e-8, bandwidth=1.3e12)


def build(bucket_bytes):
    torch.manual_seed(0)
    layers = [nn.Linear(i, o, bias=False) for i, o in zip(WIDTHS, WIDTHS[1:])]
    model = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))
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


def recorded(world, bucket_bytes):
    """Build, warm up, and record a step in slow motion; the one of five that slipped least."""
    world.run(build, bucket_bytes)
    with slowly(world):
        for _ in range(2):
            world.run(step)
        ledgers = []
        while len(ledgers) < 5 and (not ledgers or late(ledgers[-1]) > 0.01):
            ledgers.append(world.record(step))
    return min(ledgers, key=late)


@contextlib.contextmanager
def slowly(world):
    world.slow_motion = SPEEDS
    try:
        yield
    finally:
        world.slow_motion = None


def late(ledger):
    return max(ledger.meta["slipped"]) / ledger.makespan


@pytest.mark.parametrize("bucket_bytes", [1, 3 * LAYER, 10**9])
def test_exposed_communication_is_as_predicted(worlds, bucket_bytes):
    ledger = recorded(worlds(8), bucket_bytes)
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


def test_layers_are_put_into_buckets_as_ddp_puts_them():
    assert layers_per_bucket([256] * 9, LAYER) == [1] * 8
    assert layers_per_bucket([256] * 9, 3 * LAYER) == [3, 3, 2]
    assert layers_per_bucket([256] * 9, None) == [4, 4]
