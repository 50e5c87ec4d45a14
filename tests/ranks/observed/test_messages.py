"""Messages between two ranks: as late as they come, and whoever holds what of them."""

import gc
import time

import pytest
import torch
import torch.distributed as dist

from lib import RankError, World
from lib.ranks.groups import gloo_connections
from lib.ranks.slow_motion import SlowMotion


def receives(seconds):
    x, rank = torch.zeros(3), dist.get_rank()
    if rank == 0:
        dist.recv(x, 1)
        dist.irecv(x, 1).wait()
    else:
        time.sleep(seconds)
        dist.send(x + 1, 0)
        dist.send(x + 2, 0)
    return x.tolist()


@pytest.mark.parametrize("slow_motion", [None, SlowMotion("H100", factor=1)])
def test_a_message_may_come_later_than_connecting_may_take(worlds, slow_motion):
    seconds = gloo_connections._LIMIT.total_seconds() + 0.5
    world = worlds(2, slow_motion=slow_motion) if slow_motion else worlds(2)
    assert world.run(receives, seconds)[0] == [2.0, 2.0, 2.0]


def sends_and_forgets():
    x, rank = torch.full((3,), float(dist.get_rank())), dist.get_rank()
    dist.isend(x, 1 - rank)
    gc.collect()
    time.sleep(0.1 * rank)
    y = torch.empty(3)
    dist.recv(y, 1 - rank)
    return y.tolist()


def test_a_message_arrives_though_nobody_kept_its_work(worlds):
    assert worlds(2).run(sends_and_forgets) == [[1.0] * 3, [0.0] * 3]


def receives_from_itself():
    dist.recv(torch.zeros(2), dist.get_rank())


def test_a_rank_that_receives_from_itself_is_told_so():
    with World(2, device="cpu") as world:
        with pytest.raises(
            RankError, match="Rank 0 receives from itself.* Name the rank that sends"
        ):
            world.run(receives_from_itself)
        assert world.run(dist.get_world_size) == [2, 2]
