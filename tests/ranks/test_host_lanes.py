"""Offload on ranks: copies and the host's step are rows, and take the time of link and host."""

import sys

import pytest
import torch

from lib.predict.shape import MLPShape
from lib.predict.sharded.offload import STEP_BYTES, HostSpeeds, traffic
from lib.predict.sharded.offload_step import cached_step, offloaded_step
from lib.ranks.host_lanes import HostLanes
from lib.ranks.slow_motion import SlowMotion
from lib.single import MLP
from lib.single.host_memory import HostMemory
from lib.single.offload import OffloadedOptimizer
from lib.single.parameter_cache import ParameterCache
from tests.slow_steps import least_late, slowly

SHAPE, BATCH = MLPShape((256,) * 5, bias=False), 256
SPEEDS = SlowMotion("H100", factor=1e5)
# A host so fast that copies, its step and the device take about as long as one another.
HOST = HostSpeeds(1e-8, 6e11, 1.2e12)


def build(kind="sgd", delayed=False):
    kept = sys.modules["__main__"].__dict__
    kept["model"] = model = MLP(SHAPE)
    make = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[kind]
    more = {"fused": True} if kind == "adamw" else {}
    kept["optimizer"] = OffloadedOptimizer(
        model.parameters(), make, HostMemory(HostLanes(HOST)), chunk_bytes=1, delayed=delayed,
        lr=1e-6, **more,
    )  # fmt: skip
    kept["batch"] = torch.randn(BATCH, 256), torch.randn(BATCH, 256)


def steps(count):
    kept = sys.modules["__main__"].__dict__
    model, optimizer, (x, gradient) = kept["model"], kept["optimizer"], kept["batch"]
    for _ in range(count):
        model(x).backward(gradient)
        optimizer.step()


def recorded(world, kind, delayed, count):
    """Build, warm up by one step, and record `count` of them in slow motion."""
    world.run(build, kind, delayed)
    with slowly(world, SPEEDS):
        world.run(steps, 1)
    return least_late(world, SPEEDS, steps, count, warm=0)


@pytest.mark.quiet
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_a_step_takes_the_predicted_time(worlds, kind):
    ledger = recorded(worlds(1), kind, False, 2)
    predicted = offloaded_step(SHAPE, BATCH, SPEEDS, HOST, kind, chunk_bytes=1, steps=2)
    assert ledger.makespan == pytest.approx(predicted.makespan, rel=0.05)
    for op in ("to_host", "to_device", "step"):
        ours, theirs = ledger.where(lane="comm", op=op), predicted.where(lane="comm", op=op)
        assert len(ours) == len(theirs) == 2 * 4
        if op != "step":
            assert ours.column("bytes").tolist() == theirs.column("bytes").tolist()
    step_bytes = ledger.where(op="step", lane="comm").column("bytes").sum()
    assert step_bytes == pytest.approx(2 * STEP_BYTES[kind] * SHAPE.numel, rel=1e-3)


@pytest.mark.quiet
def test_a_delayed_update_is_hidden_as_predicted(worlds):
    """The host steps while the device computes: the step is shorter than the two one by one."""
    ours = [recorded(worlds(1), "adamw", True, count).makespan for count in (2, 4)]
    more = {"optimizer": "adamw", "chunk_bytes": 1}
    theirs = [offloaded_step(SHAPE, BATCH, SPEEDS, HOST, delayed=True, steps=n, **more).makespan
              for n in (3, 5)]  # fmt: skip
    taken = ours[1] - ours[0]  # two steps in the middle of a run
    assert taken == pytest.approx(theirs[1] - theirs[0], rel=0.05)
    prompt = offloaded_step(SHAPE, BATCH, SPEEDS, HOST, steps=2, **more).makespan
    assert taken < 0.9 * prompt


def test_the_bytes_of_a_step_are_those_of_the_prediction(worlds):
    """Without slow motion too: 2ψ down, 2ψ up with 16 bits, here 4ψ each."""
    worlds(2).run(build)
    ledger = worlds(2).record(steps, 1)
    down, up = traffic(SHAPE, 4)
    for rank in range(2):
        own = ledger.where(rank=rank, group="host")
        sums = {total["op"]: (total.count, total.bytes) for total in own.totals("op")}
        assert sums["to_host"] == (4, down) and sums["to_device"] == (4, up)
        assert sums["step"][0] == 4


def cached_steps(count):
    kept = sys.modules["__main__"].__dict__
    if "cache" not in kept:
        units = list(kept["model"].blocks.values())
        kept["cache"] = ParameterCache(kept["model"], units, kept["optimizer"], 2 * 4 * 256 * 256)
    steps(count)
    del kept["cache"]


def test_a_cache_that_holds_half_fetches_each_unit_twice_and_the_last_one_once(worlds):
    worlds(1).run(build)
    ledger = worlds(1).record(cached_steps, 1)
    fetched = ledger.where(op="to_device", lane="comm")
    assert len(fetched) == 4 + 3  # forward fetches four, backward all of these but the last
    assert set(fetched.column("bytes").tolist()) == {4 * 256 * 256}


def build_cached(prefetch):
    build()
    kept = sys.modules["__main__"].__dict__
    units = list(kept["model"].blocks.values())
    kept["held"] = ParameterCache(kept["model"], units, kept["optimizer"], ROOM, prefetch)


ROOM = 3 * 4 * 256 * 256  # of four units: one stays with prefetch 1, and two without


@pytest.mark.quiet
@pytest.mark.parametrize("prefetch", [0, 1])
def test_a_step_with_a_cache_takes_the_predicted_time(worlds, prefetch):
    worlds(1).run(build_cached, prefetch)
    ledger = least_late(worlds(1), SPEEDS, steps, 2)
    predicted = cached_step(
        SHAPE, BATCH, SPEEDS, HOST, ROOM, prefetch=prefetch, chunk_bytes=1, steps=2
    )
    assert ledger.makespan == pytest.approx(predicted.makespan, rel=0.05)
    for op in ("to_host", "to_device", "step"):
        ours, theirs = ledger.where(lane="comm", op=op), predicted.where(lane="comm", op=op)
        assert len(ours) == len(theirs) > 0


def test_fetching_ahead_shortens_the_predicted_step():
    taken = [cached_step(SHAPE, BATCH, SPEEDS, HOST, ROOM, prefetch=n).makespan for n in (0, 1)]
    everything = cached_step(SHAPE, BATCH, SPEEDS, HOST, 4 * ROOM).makespan
    assert everything == offloaded_step(SHAPE, BATCH, SPEEDS, HOST).makespan
    assert taken[1] < taken[0]
