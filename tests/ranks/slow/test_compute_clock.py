"""Slow motion's end: the stop button, errors and loose ends, after which the next call works."""

import os
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lib import RankError
from lib.ranks.slow_motion import SlowMotion
from tests.stop import pressed_after

pytestmark = pytest.mark.quiet

SLOW = {"factor": 1e3, "peak": 1e12, "alpha": 1e-5, "bandwidth": 1e10, "memory_bandwidth": 1e9}
SPEEDS = SlowMotion("H100", **SLOW)


@pytest.fixture
def slow(worlds):
    world = worlds(4)
    world.slow_motion = SPEEDS
    yield world
    world.slow_motion = None


def kept():
    """What a rank keeps between two calls of a test."""
    return sys.modules["__main__"].__dict__


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
    with pytest.raises(KeyboardInterrupt), pressed_after(0.7):
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
