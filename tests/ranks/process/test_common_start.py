"""The start: ranks that are called one after the other begin at one moment."""

import time

import pytest
import torch
import torch.distributed as dist

from lib import RankError
from lib.ranks.slow_motion import SlowMotion

pytestmark = pytest.mark.quiet


class Heavy:
    """An argument that rank 1 takes long to unpack, or cannot unpack at all."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __reduce__(self):
        return unpacked, (self.seconds,)


def unpacked(seconds):
    if dist.get_rank() == 1:
        if seconds is None:
            raise ValueError("rank 1 cannot read this")
        time.sleep(seconds)
    return seconds


def step(_, numel=1):
    x = torch.ones(numel)
    dist.all_reduce(x)
    return x.sum().item()


def first_start(ledger, rank):
    return min(row.start for row in ledger.where(rank=rank))


def test_nobody_waits_for_who_was_called_late(worlds):
    ledger = worlds(4).record(step, Heavy(0.4))
    assert ledger.results == [4] * 4 and ledger.makespan < 0.3
    assert [first_start(ledger, rank) for rank in ledger.ranks] == [0] * 4


@pytest.mark.parametrize("slow", [None, SlowMotion("H100", factor=1e4, alpha=1e-5)])
def test_a_rank_that_never_begins_is_told_and_the_world_lives_on(worlds, slow, monkeypatch):
    world = worlds(4, device="cpu") if slow else worlds(4)
    monkeypatch.setattr(world, "slow_motion", slow)
    with pytest.raises(RankError, match="rank 1 cannot read this"):
        world.record(step, Heavy(None))
    assert world.record(step, Heavy(0)).results == [4] * 4


def test_some_ranks_of_a_world_begin_without_the_others(worlds, monkeypatch):
    world = worlds(4, device="cpu")
    monkeypatch.setattr(world, "slow_motion", SlowMotion("H100", factor=1))
    world.cell("print('here')", "<cell>", {"read": {}, "made": set()}, ranks=[1, 3])
    assert world.printed == ["", "here\n", "", "here\n"]


def test_in_slow_motion_what_the_host_does_takes_no_time(worlds, monkeypatch):
    """Launching costs real milliseconds: they are caught up, and are no row of the recording."""
    speeds = SlowMotion("H100", factor=3e4, alpha=1e-5, peak=1e12, memory_bandwidth=1e9)
    world = worlds(2, device="cpu")
    monkeypatch.setattr(world, "slow_motion", speeds)
    for _ in range(5):
        ledger = world.record(step, 0, 2500)
        if max(ledger.meta["slipped"]) < 1e-6:
            break
    for rank in ledger.ranks:
        (wait,) = ledger.where(rank=rank, lane="wait")
        (filled,) = ledger.where(rank=rank, op="fill") or ledger.where(rank=rank, op="ones")
        (comm,) = ledger.where(rank=rank, lane="comm")
        assert filled.end == wait.start == comm.start
        assert abs(filled.end - speeds.compute(0, 4 * 2500)) < 2e-6
