"""A report says where a rank waits for ever, not where it has just waited."""

import time

import pytest
import torch
import torch.distributed as dist

from lib.ranks.state.this_rank import this_rank
from tests.ranks.test_failures import failing


@pytest.fixture
def world(worlds):
    return worlds(2)


def wakes_late():
    """Rank 0 notices only after half a second that all have come to the barrier."""
    running = this_rank.running
    if dist.get_rank() == 0:
        this_rank.running = lambda: (time.sleep(0.5), running())
    try:
        dist.barrier()
    finally:
        this_rank.running = running
    if dist.get_rank() == 1:
        raise ValueError("after the barrier")
    dist.all_reduce(torch.ones(1))


def test_who_wakes_late_is_told_where_it_waits_then(world):
    """Not in the barrier, to which all have come, while another rank has failed already."""
    error = failing(world, wakes_late)
    assert "rank 1 raised ValueError: after the barrier" in str(error)
    assert "all_reduce" in str(error) and "in barrier" not in str(error)
