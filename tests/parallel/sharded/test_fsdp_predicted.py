"""Recorded steps beside predicted ones: each collective, to the byte."""

import pytest
import torch
import torch.distributed as dist

from lib.parallel.data.ddp import DistributedDataParallel
from lib.parallel.sharded import FSDP, ShardedDataParallel, ZeroRedundancyOptimizer
from lib.predict.shape import GPTShape
from lib.predict.sharded.traffic import of_fsdp
from lib.predict.sharded.units import units_of
from lib.predict.sharded.zero_step import exchanges
from lib.single import GPT, Batches, next_token_loss, share

SHAPES = [
    GPTShape(width=32, layers=3),
    GPTShape(width=32, layers=3, tied=True, kv_heads=2, positions="rotary"),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=["untied", "tied"])


def steps(model, optimizer, shape, count):
    """Take steps; a barrier stands before the last one."""
    x, y = share(Batches(8, shape.sequence)[0], dist.get_rank(), dist.get_world_size())
    for n in range(count):
        if n == count - 1:
            dist.barrier()
        next_token_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


def with_fsdp(shape, ends, options):
    model = GPT(shape)
    layers = list(model.blocks.values())[1:-1]
    fsdp = FSDP(model, units=None if ends else layers, **options)
    steps(fsdp, torch.optim.SGD(fsdp.parameters(), 0.1), shape, 2)


def with_zero(shape, stage, bucket_bytes):
    model = GPT(shape)
    if stage == 1:
        wrapped = DistributedDataParallel(model, bucket_bytes=bucket_bytes)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    else:
        wrapped = ShardedDataParallel(model, bucket_bytes=bucket_bytes)
        optimizer = ZeroRedundancyOptimizer(wrapped, torch.optim.SGD, lr=0.1)
    steps(wrapped, optimizer, shape, 3)  # DDP orders its buckets anew after the first two


def last_step(ledger, rank):
    """The collectives behind the barrier, in the order in which they were launched."""
    rows = sorted(ledger.where(rank=rank, lane="comm"), key=lambda row: row.start)
    place = max(n for n, row in enumerate(rows) if row.op == "barrier")
    return [(row.op, row.bytes) for row in rows[place + 1 :]]


def sends_what_is_predicted(world, shape, ends, options):
    ledger = world.record(with_fsdp, shape, ends, options)
    more = {"prefetch": options.get("prefetch", 1)}
    more["resharded"] = options.get("reshard_after_forward", True)
    for kind in ("param", "reduce"):
        more[f"{kind}_bytes"] = options.get(f"{kind}_dtype", torch.float32).itemsize
    predicted = of_fsdp(units_of(shape, ends=ends), world.size, **more)
    for rank in range(world.size):
        assert last_step(ledger, rank) == [(e.op, e.bytes) for e in predicted]


@every_shape
@pytest.mark.parametrize("ends", [True, False], ids=["all blocks", "layers"])
def test_fsdp_sends_what_is_predicted(world, shape, ends):
    sends_what_is_predicted(world, shape, ends, {})


@pytest.mark.parametrize(
    "options",
    [{"prefetch": 0}, {"prefetch": 2}, {"reshard_after_forward": False},
     {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}],
    ids=str,
)  # fmt: skip
def test_its_options_send_what_is_predicted(world, options):
    sends_what_is_predicted(world, SHAPES[1], True, options)


@pytest.mark.parametrize("ranks", [2, 4])
def test_units_that_two_ranks_keep_are_gathered_by_these(worlds, ranks):
    sends_what_is_predicted(worlds(ranks), SHAPES[1], True, {"reshard_after_forward": 2})


@every_shape
@pytest.mark.parametrize("stage", [1, 2])
def test_zero_sends_what_is_predicted(world, shape, stage):
    ledger = world.record(with_zero, shape, stage, 20_000)
    predicted = exchanges(shape, world.size, stage, 20_000)
    for rank in range(world.size):
        assert last_step(ledger, rank) == [(e.op, e.bytes) for e in predicted]
