"""Lanes of slow motion: who starts when, what runs beside what, and the same results."""

import sys
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional

from lib.ranks.slow_motion import SlowMotion

pytestmark = pytest.mark.quiet

# 30 ms for a round of a ring, 300 ms for a megabyte sent, 3 s to read or write a megabyte.
SLOW = {"factor": 3e3, "peak": 1e12, "alpha": 1e-5, "bandwidth": 1e10, "memory_bandwidth": 1e9}
SPEEDS = SlowMotion("H100", **SLOW)


@pytest.fixture
def slow(worlds):
    world = worlds(4)
    world.slow_motion = SPEEDS
    yield world
    world.slow_motion = None


def best(world, step, *args):
    """Warm up, record a step up to six times; give the recording that slipped least."""
    world.slow_motion = None
    world.run(step, *args)
    world.slow_motion = SPEEDS
    ledgers = []
    while len(ledgers) < 6 and not any(slip(x) * SPEEDS.factor < 0.1 for x in ledgers):
        ledgers.append(world.record(step, *args))
    return min(ledgers, key=slip)


def slip(ledger):
    return max(ledger.meta["slipped"])


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


def sent():
    """Ask a message, a while after it was sent and then once more after the wait, if it is over."""
    x = torch.ones(4)
    if dist.get_rank() % 2:
        return dist.recv(x, dist.get_rank() - 1) is None
    work = dist.isend(x, dist.get_rank() + 1)
    time.sleep(0.3)
    early = work.is_completed()
    work.wait()
    return early, work.is_completed()


def test_a_message_is_not_over_before_gloo_says_so(slow):
    """The sender may free its tensor once it is over: the real bytes must have left by then."""
    stretched = slow.run(sent)
    slow.slow_motion = None
    assert [s[0] for s in stretched[::2]] == [s[0] for s in slow.run(sent)[::2]] == [False] * 2
    assert [s[1] for s in stretched[::2]] == [True] * 2


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


def sharded():
    """A step of PyTorch's own FSDP2, which takes DTensors apart and waits in C++."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    for part in (model[0], model[2], model):
        fully_shard(part)
    model(torch.ones(4, 8) * dist.get_rank()).sum().backward()
    return [p.grad.full_tensor().tolist() for p in model.parameters()]


def test_fsdp_runs_in_slow_motion(slow):
    ledger = slow.record(sharded)
    slow.slow_motion = None
    plain = slow.record(sharded)
    assert ledger.results == plain.results
    for op in ("all_gather", "reduce_scatter"):
        assert len(ledger.where(op=op, lane="comm")) == len(plain.where(op=op, lane="comm")) > 0


def copied_and_reduced():
    """Copy 1,000 numbers, then reduce as many for each of four ranks."""
    x, part = torch.ones(4000), torch.empty(1000)
    torch.empty(1000).copy_(x[:1000])
    dist.reduce_scatter_single(part, x)
    dist.reduce_scatter_single(part, x, async_op=True).wait()
    dist.barrier()
    return part.sum().item()


def test_what_a_backend_copies_while_it_is_waited_for_takes_no_time(slow):
    """Gloo copies the result of a reduce_scatter inside `wait`; the copy before is the rank's."""
    ledger = slow.record(copied_and_reduced)
    assert ledger.results == [4000.0] * 4
    for rank in range(4):
        rows = ledger.where(rank=rank, lane="compute")
        copies = [row for row in rows if row.op == "copy_" or row.op == "copy"]
        assert len(copies) == 1 and copies[0].bytes == 8000, list(rows)
