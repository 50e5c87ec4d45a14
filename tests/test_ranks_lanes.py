"""Lanes of slow motion: who starts when, what runs beside what, and that nothing ever hangs."""

import os
import signal
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from lib import RankError
from lib.ranks.slow_motion import SlowMotion

# 10 ms for a round of a ring, 100 ms for a megabyte sent, 1 s to read or write a megabyte.
SLOW = {"factor": 1e3, "peak": 1e12, "alpha": 1e-5, "bandwidth": 1e10, "memory_bandwidth": 1e9}
SPEEDS = SlowMotion("H100", **SLOW)


@pytest.fixture
def slow(worlds):
    world = worlds(4)
    world.slow_motion = SPEEDS
    yield world
    world.slow_motion = None


def best(world, step, *args):
    """Record a step three times; give the recording that slipped least."""
    world.run(step, *args)
    return min((world.record(step, *args) for _ in range(3)), key=lambda x: max(x.meta["slipped"]))


def sums(count, numel):
    x = torch.empty(numel)
    for _ in range(count):
        dist.all_reduce(x)


def kept():
    return sys.modules["__main__"].__dict__


def close(measured, paper, share=0.05):
    return abs(measured - paper) <= share * paper


@pytest.mark.parametrize("numel", [1, 64, 25_000])
def test_small_messages_cost_rounds_large_ones_bytes(slow, numel):
    for count in (3, 6):
        paper = count * (6 * 1e-5 + 1.5 * 4 * numel / 1e10)
        assert close(best(slow, sums, count, numel).makespan, paper)


def two_groups(same):
    """Two sums: in one group one after the other, in two groups beside each other."""
    if "pair" not in kept():
        kept()["pair"] = [dist.new_group(range(4)) for _ in range(2)]
        kept()["x"] = [torch.ones(10_000) for _ in range(2)]
    groups = kept()["pair"]
    works = [
        dist.all_reduce(x, group=groups[0] if same else group, async_op=True)
        for x, group in zip(kept()["x"], groups)
    ]
    for work in works:
        work.wait()


def test_a_lane_for_each_group(slow):
    one = SPEEDS.moving("all_reduce", 4, 40_000)
    assert close(best(slow, two_groups, True).makespan, 2 * one)
    assert close(best(slow, two_groups, False).makespan, one)


def late_member(rounds):
    """Rank 1 computes before it joins; the others' sum starts when it does."""
    x = torch.empty(25)
    if dist.get_rank() == 1:
        torch.zeros(50_000)
    for _ in range(rounds):
        dist.all_reduce(x)


def test_a_sum_starts_when_the_last_member_comes(slow):
    ledger = best(slow, late_member, 1)
    work, one = SPEEDS.compute(0, 200_000), SPEEDS.moving("all_reduce", 4, 100)
    assert close(ledger.makespan, work + one)
    for row in ledger.where(lane="comm"):
        assert close(row.waiting, 0 if row.rank == 1 else work, 0.05) or row.waiting < 1e-5
        assert close(row.moving, one, 0.1)


def ring():
    """Every rank sends to the next and receives from the last: two lanes, at the same time."""
    rank, x, y = dist.get_rank(), torch.empty(25_000), torch.empty(25_000)
    x.fill_(rank)
    ops = [dist.P2POp(dist.isend, x, (rank + 1) % 4), dist.P2POp(dist.irecv, y, (rank - 1) % 4)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return y[0].item()


def test_send_and_receive_have_a_lane_for_each_direction(slow):
    ledger = best(slow, ring)
    paper = SPEEDS.compute(0, 100_000) + SPEEDS.moving("send", 2, 100_000)
    assert close(ledger.makespan, paper) and ledger.results == [3, 0, 1, 2]


def everything():
    """Every kind of collective gives what it gives without slow motion."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x, out = torch.full((size,), float(rank)), []
    dist.all_reduce(x)
    out.append(x.tolist())
    dist.broadcast(x := torch.full((2,), float(rank)), 2)
    gathered = torch.empty(2 * size)
    dist.all_gather_into_tensor(gathered, x + rank)
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, gathered)
    swapped = torch.empty(size)
    dist.all_to_all_single(swapped, torch.arange(size) + 10.0 * rank)
    dist.barrier()
    future = dist.all_reduce(y := torch.ones(1), async_op=True).get_future()
    then = future.then(lambda f: f.value()[0] * 2).wait()
    summed = functional.all_reduce(torch.ones(3) * rank, "sum", dist.group.WORLD) + 1
    return [*out, *(t.tolist() for t in (x, gathered, part, swapped, y, then, summed))]


def test_results_are_the_same(slow):
    stretched = slow.run(everything)
    slow.slow_motion = None
    assert stretched == slow.run(everything)


# Ends of a call.


def long_operation():
    torch.zeros(10_000_000)  # 40 s


def long_sum():
    dist.all_reduce(torch.empty(100_000_000 // 4))  # 15 s of lane


def long_ddp():
    ddp = kept().get("ddp") or DistributedDataParallel(nn.Linear(1, 1))
    for _ in range(0 if "ddp" in kept() else 2):  # DDP puts its buckets in order after the first
        ddp(torch.ones(1, 1)).sum().backward()
    kept()["ddp"] = ddp
    ddp(torch.ones(1, 1)).sum().backward()


def total():
    x = torch.full((2,), 1.0)
    dist.all_reduce(x)
    return x.tolist()


def works_again(world, before):
    assert world.run(total) == [[4.0, 4.0]] * 4
    assert world.run(process) == before
    assert world.run(lanes_alive) == [0] * 4


def process():
    return os.getpid()


def lanes_alive():
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline and any(t.name == "lanes" for t in threading.enumerate()):
        time.sleep(0.01)
    return sum(t.name == "lanes" for t in threading.enumerate())


@pytest.mark.parametrize("step", [long_operation, long_sum, long_ddp])
def test_the_stop_button(slow, step):
    before = slow.run(process)
    if step is long_ddp:
        slow.slow_motion = None
        slow.run(long_ddp)  # built without waiting
        slow.slow_motion = SlowMotion("H100", **SLOW | {"alpha": 10.0, "memory_bandwidth": 1e12})
    began = time.monotonic()
    threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        slow.run(step)
    assert time.monotonic() - began < 4, "stopped too late"
    slow.slow_motion = SPEEDS
    works_again(slow, before)


def one_raises(after):
    if dist.get_rank() == 2:
        time.sleep(after)
        raise ValueError("bad value")
    long_sum() if dist.get_rank() else long_operation()


def differing():
    dist.all_reduce(torch.empty(2 + (dist.get_rank() == 1)))


def launched_and_left():
    """Launch, do not wait, raise: the lane's thread must not stay behind."""
    dist.all_reduce(torch.empty(100_000_000 // 4), async_op=True)
    raise ValueError("bad value")


@pytest.mark.parametrize(
    "step, args, says",
    [(one_raises, (0.2,), "bad value"), (differing, (), "do not agree"),
     (launched_and_left, (), "bad value")],
)  # fmt: skip
def test_an_error_ends_the_call_and_the_next_one_works(slow, step, args, says):
    before, began = slow.run(process), time.monotonic()
    with pytest.raises(RankError, match=says):
        slow.run(step, *args)
    assert time.monotonic() - began < 4
    works_again(slow, before)


def leave_work():
    kept()["work"] = dist.all_reduce(torch.ones(2), async_op=True)


def take_work_up():
    return kept()["work"].wait()


def test_work_that_is_waited_for_in_the_next_call(slow):
    slow.run(leave_work)
    assert slow.run(take_work_up) == [True] * 4
