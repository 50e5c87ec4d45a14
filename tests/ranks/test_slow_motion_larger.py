"""Small runs that stand for large models: recorded steps are as the large shape predicts."""

import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from lib import RankError
from lib.parallel.data.ddp import DistributedDataParallel
from lib.parallel.pipeline.pipes import cut
from lib.parallel.pipeline.runtime import Pipeline, stage_costs
from lib.predict import step
from lib.predict.data.ddp_step import data_parallel_step, gradients_per_bucket, same_buckets
from lib.predict.larger import Larger
from lib.predict.pipeline.play import play
from lib.predict.pipeline.schedules import one_f_one_b
from lib.predict.shape import GPTShape, MLPShape
from lib.ranks.slow_motion import SlowMotion
from lib.single import GPT, MLP
from tests.every import every
from tests.ranks.test_slow_motion import close, slowly, worst

pytestmark = pytest.mark.quiet

CHAIN = Larger(MLPShape((96,) * 7, bias=False), MLPShape((4096,) * 7, bias=False), (64, 4096))
SMALL = GPTShape(vocabulary=70, sequence=20, width=62, heads=2, layers=4)
LARGE = GPTShape(vocabulary=50257, sequence=1024, width=1600, heads=25, layers=4)


def kept():
    """What a rank keeps between two calls of a test."""
    return sys.modules["__main__"].__dict__


def steady(world, step, predicted, *args):
    """Record up to eight times, until little made a rank late."""
    ledgers = []
    while len(ledgers) < 8 and (not ledgers or worst(ledgers[-1]) > 0.01 * predicted):
        ledgers.append(world.record(step, *args))
    return min(ledgers, key=worst)


def build(bucket_bytes, torchs=False):
    if torchs:
        ddp = torch.nn.parallel.DistributedDataParallel(
            MLP(CHAIN.small), bucket_cap_mb=bucket_bytes / 2**20, gradient_as_bucket_view=True
        )
    else:
        ddp = DistributedDataParallel(MLP(CHAIN.small), bucket_bytes=bucket_bytes)
    kept()["ddp"], kept()["optimizer"] = ddp, torch.optim.SGD(ddp.parameters(), 1e-3)
    for _ in range(2):
        ddp_step()


def ddp_step():
    kept()["optimizer"].zero_grad()
    x = torch.empty(CHAIN.batch[0], 96)
    kept()["ddp"](x).backward(x)
    kept()["optimizer"].step()


@pytest.mark.parametrize("layers, torchs", [(1, False), (2, False), (6, False), (1, True)])
def test_a_small_ddp_step_takes_the_large_models_time_on_a_real_link(worlds, layers, torchs):
    limit, world = layers * 4096**2 * 4, worlds(4, device="cpu")
    speeds = SlowMotion("H100", link="NVLink4", factor=150, stands_for=CHAIN)
    counts = gradients_per_bucket(CHAIN.large, limit)
    predicted = data_parallel_step(CHAIN.large, [4096] * 4, speeds, buckets=counts)
    with slowly(world, replace(speeds, factor=10)):  # a model that is built is larger, too
        world.run(build, same_buckets(CHAIN.small, CHAIN.large, limit), torchs)
    with slowly(world, speeds):
        ledger = steady(world, ddp_step, predicted.makespan)
    assert close(ledger.makespan, predicted.makespan)
    rows = [
        sorted(one.where(rank=1, lane="comm", op="all_reduce"), key=lambda row: row.start)
        for one in (ledger, predicted)
    ]
    assert [row.bytes for row in rows[0]] == [row.bytes for row in rows[1]]
    for mine, theirs in zip(*rows, strict=True):
        assert abs(mine.start - theirs.start) < 0.03 * predicted.makespan + worst(ledger)
    for op in ("mm", "relu", "threshold_backward", "mul", "add"):
        sums = [sum(r.bytes for r in one.where(rank=0, op=op)) for one in (ledger, predicted)]
        assert sums[0] == sums[1] > 0
    assert ledger.meta["speeds"]["stands_for"] == str(CHAIN)


def test_what_stands_for_nothing_takes_its_own_time(worlds):
    """A bite: without a large model the same step moves the small one's bytes, in no time."""
    speeds, world = SlowMotion("H100", link="NVLink4", factor=150), worlds(4, device="cpu")
    world.run(build, 1)
    with slowly(world, speeds):
        ledger = world.record(ddp_step)
    found = {row.bytes for row in ledger.where(op="all_reduce", lane="comm")}
    assert found == {4 * 96**2} and "stands_for" not in ledger.meta["speeds"]


def flat_shards():
    """Gather each block's flat shard, and scatter the sums of its gradients, as FSDP does."""
    for numel in {p.numel for p in CHAIN.small.parameters}:
        shard = torch.ones(-(-numel // dist.get_world_size()))
        full = torch.empty(dist.get_world_size() * shard.numel())
        dist.all_gather_into_tensor(full, shard)
        dist.reduce_scatter_tensor(shard, full)


def test_flat_shards_move_the_large_models_bytes(worlds):
    larger = replace(CHAIN, shared_by=(4,))
    speeds = SlowMotion("H100", link="NVLink4", factor=150, stands_for=larger)
    with slowly(worlds(4, device="cpu"), speeds) as world:
        ledger = world.record(flat_shards)
    rows = ledger.where(lane="comm", rank=2)
    assert [row.op for row in rows] == ["all_gather", "reduce_scatter"]
    for row in rows:
        assert row.bytes == 4 * 4096**2
        assert close(row.seconds - row.waiting, speeds.moving(row.op, 4, row.bytes), 0.1)


def build_pipeline(schedule):
    kept()["pipeline"] = Pipeline(GPT(SMALL), schedule)


def pipeline_step(tokens):
    kept()["pipeline"].zero_grad()
    kept()["pipeline"].step(tokens, tokens)


def test_a_small_pipeline_takes_the_time_of_the_large_one(worlds):
    larger = Larger(SMALL, LARGE, batch=(44, 32), microbatches=4)
    speeds = SlowMotion("H100", link="NVLink4", factor=20, stands_for=larger)
    schedule, world = one_f_one_b(4, 4), worlds(4, device="cpu")
    tokens = torch.zeros(44, 20, dtype=torch.long)
    costs = stage_costs(GPT(SMALL), schedule, tokens, tokens, speeds)
    blocks = step.passes(LARGE, 8)
    for seconds, (first, last) in zip(costs.forward[:-1], cut(GPT(SMALL), 4, None)):
        operations = [op for block in blocks[first:last] for op in block.forward]
        assert seconds == pytest.approx(step.seconds(operations, speeds))
    predicted = play(schedule, costs).makespan
    world.run(build_pipeline, schedule)
    world.run(pipeline_step, tokens)
    with slowly(world, speeds):
        ledger = steady(world, pipeline_step, predicted, tokens)
    assert close(ledger.makespan, predicted)
    sent = ledger.where(rank=1, lane="comm", op="send")
    message = 8 * 1024 * 1600 * 4
    assert len(sent) == 8 and every(row.bytes == message for row in sent)


def unknown():
    return torch.ones(5, 97) + 1


def test_a_size_that_stands_for_nothing_is_refused_on_the_rank(worlds):
    speeds = SlowMotion("H100", link="NVLink4", factor=1, stands_for=CHAIN)
    with slowly(worlds(2, device="cpu"), speeds) as world:
        with pytest.raises(RankError, match="entries is no size of the small run"):
            world.run(unknown)
