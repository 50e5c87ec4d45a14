"""What a GPU's stream waits for: seen at the end of a call, ended by a failure, never met again.

These tests need GPUs, real or pretended ones: `make test-gpu` runs them.
"""

import os
import socket
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from lib import RankError, World
from lib.ranks.gpus import devices
from tests import on_gpus
from tests.conftest import DEVICE

gpus = pytest.mark.skipif(not on_gpus.WANTED, reason="RANKS_TEST_GPUS is not set")
LIMIT = 8.0  # seconds in which a failure must be told and mended


def total(amount=1.0):
    numbers = torch.full((4,), float(amount))
    dist.all_reduce(numbers)
    return numbers[0].item()


def failing(world, step, *args):
    """Run a step that must fail in time and leave all ranks alive and well; give the error."""
    alive = world.run(remember)
    began = time.monotonic()
    with pytest.raises(RankError) as caught:
        world.run(step, *args)
    assert time.monotonic() - began < LIMIT, "told too late"
    assert world.run(recall) == alive
    assert world.run(total) == [float(world.size)] * world.size
    on_gpus.tell_failure(caught.value)
    return caught.value


def remember():
    sys.modules["__main__"].kept = torch.full((2,), float(os.getpid()))
    return os.getpid()


def recall():
    assert sys.modules["__main__"].kept.tolist() == [float(os.getpid())] * 2
    return os.getpid()


# A rank that has gone on may be stuck in its stream all the same.


def one_leaves_out_what_nobody_reads():
    if dist.get_rank() != 1:
        dist.all_reduce(torch.ones(4))


def test_a_rank_that_returns_without_reading_is_seen_waiting(worlds):
    error = failing(worlds(4), one_leaves_out_what_nobody_reads)
    assert "rank 1 has finished without it" in str(error)
    assert "rank 0 waits in all_reduce (group world, number " in str(error)
    assert "nothing: it has not come" in error.table.splitlines()[3]


def one_raises_while_others_read():
    if dist.get_rank() == 1:
        time.sleep(0.5)
        raise ValueError("bad value")
    return total()


def one_raises_while_others_have_not_read():
    if dist.get_rank() == 1:
        time.sleep(0.5)
        raise ValueError("bad value")
    dist.all_reduce(torch.ones(4))


@pytest.mark.parametrize(
    "step", [one_raises_while_others_read, one_raises_while_others_have_not_read]
)
def test_ranks_whose_partner_raises_are_released(worlds, step):
    error = failing(worlds(4), step)
    assert error.rank == 1 and "rank 1 raised ValueError: bad value" in str(error)
    assert "ranks 0, 2 and 3 were left waiting in all_reduce (group world, number " in str(error)


def both_send_first():
    there = 1 - dist.get_rank()
    dist.send(torch.ones(4), there)
    dist.recv(torch.ones(4), there)


def test_two_ranks_that_both_send_first_are_told_at_once(worlds):
    began = time.monotonic()
    error = failing(worlds(2), both_send_first)
    assert time.monotonic() - began < LIMIT
    assert "wait for each other" in " ".join(str(error).split())
    assert "message" in error.table


def receive_before_the_sum():
    """Rank 0 sends behind a collective that rank 1 comes to after it has the message."""
    numbers, there = torch.ones(4), torch.zeros(4)
    if dist.get_rank() == 0:
        works = [dist.all_reduce(numbers, async_op=True), dist.isend(torch.full((4,), 7.0), 1)]
    else:
        works = [dist.irecv(there, 0), dist.all_reduce(numbers, async_op=True)]
    for work in works:
        work.wait()
    return numbers.tolist(), there.tolist()


def test_a_message_does_not_wait_for_what_its_group_does(worlds):
    answers = worlds(2).run(receive_before_the_sum)
    assert answers == [([2.0] * 4, [0.0] * 4), ([2.0] * 4, [7.0] * 4)]


def opposite_groups(read):
    mine, numbers = [dist.new_group([0, 1]), dist.new_group([0, 1])], torch.ones(1)
    for group in mine[:: 1 - 2 * dist.get_rank()]:
        dist.all_reduce(numbers, group=group)
        if read:
            numbers.item()


@gpus
@pytest.mark.parametrize("read", [False, True])
def test_streams_that_wait_for_each_other_in_two_groups_are_told(read, monkeypatch):
    monkeypatch.delenv("RANKS_DEVICE", raising=False)
    with World(2, device=DEVICE, patience=1.0) as world:
        error = failing(world, opposite_groups, read)
    assert "ranks 0 and 1 wait for ever: they wait for each other" in str(error)


# What is left of a call that failed is never met.


def some_launch_and_one_raises():
    if dist.get_rank() == 1:
        time.sleep(0.3)
        raise ValueError("bad value")
    sys.modules["__main__"].stale = dist.all_reduce(torch.full((4,), 100.0), async_op=True)


def test_a_stale_all_reduce_never_meets_the_next_one(worlds):
    for _ in range(3):  # `failing` checks the sum of the next one
        failing(worlds(4), some_launch_and_one_raises)


def keep_group():
    sys.modules["__main__"].group = dist.group.WORLD


def use_group():
    dist.all_reduce(torch.ones(1), group=sys.modules["__main__"].group)


def test_after_a_cut_nothing_of_the_old_communicators_is_used(worlds):
    world = worlds(4)
    world.run(keep_group)
    failing(world, one_raises_while_others_read)
    assert "is closed: a call on these ranks failed" in str(failing(world, use_group))


def ends_its_groups():
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(4), async_op=True)
        dist.destroy_process_group()


def test_a_reader_who_ends_the_groups_too_soon_is_told(worlds):
    error = failing(worlds(2), ends_its_groups)
    assert "nothing: it has not come" in error.table


# Devices and sockets that are not the group's own.


def sum_on_the_cpu():
    numbers = torch.full((3,), dist.get_rank() + 1.0, device="cpu")
    dist.all_reduce(numbers)
    return str(numbers.device), numbers.tolist(), total()


def test_tensors_of_the_cpu_go_through_gloo(worlds):
    assert worlds(2).run(sum_on_the_cpu) == [("cpu", [3.0] * 3, 2.0)] * 2


def on_two_devices():
    dist.all_reduce(torch.ones(3, device="cpu" if dist.get_rank() else None))


@gpus
def test_ranks_that_take_different_devices_are_told(worlds):
    error = failing(worlds(2), on_two_devices)
    assert "the ranks do not agree" in str(error)
    assert "all_reduce cpu float32 [3] SUM" in error.table


def listen():
    keep = sys.modules["__main__"]
    keep.listener = socket.create_server(("127.0.0.1", 0))
    keep.caller = socket.create_connection(keep.listener.getsockname())
    keep.answerer, _ = keep.listener.accept()
    dist.new_group([0, 1])


def speak():
    keep = sys.modules["__main__"]
    keep.caller.sendall(b"before")
    another = socket.create_connection(keep.listener.getsockname(), timeout=3.0)
    keep.listener.accept()[0].sendall(b"now")
    return keep.answerer.recv(6), another.recv(3)


def test_listeners_of_others_survive_a_new_group_and_a_failure(worlds):
    world = worlds(2)
    world.run(listen)
    assert world.run(speak) == [(b"before", b"now")] * 2
    failing(world, one_raises_while_others_read_of_two)
    assert world.run(speak) == [(b"before", b"now")] * 2


def one_raises_while_others_read_of_two():
    return one_raises_while_others_read()


def made_in_a_thread():
    found = []

    def make():
        found.append(str(torch.ones(2).device))
        found.append(torch.accelerator.current_device_index())

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return found


@gpus
def test_a_readers_thread_is_on_the_gpu_of_its_rank(worlds):
    answers = worlds(4).run(made_in_a_thread)
    numbers = [rank // devices.shares() for rank in range(4)]
    assert answers == [[f"{DEVICE}:{number}", number] for number in numbers]


# What stands after a barrier is recorded after it.


def sums_around_a_barrier():
    numbers = torch.full((1 << 20,), 1.0)
    for _ in range(3):
        dist.all_reduce(numbers)
    dist.barrier()
    for _ in range(2):
        dist.all_reduce(numbers)
    work = dist.barrier(async_op=True)
    work.wait()


@gpus
def test_a_barrier_is_a_mark_in_the_stream(worlds):
    rows = worlds(4).record(sums_around_a_barrier).where(lane="comm")
    for rank in range(4):
        own = sorted((row for row in rows if row.rank == rank), key=lambda row: row.start)
        assert [row.op for row in own] == [
            *["all_reduce"] * 3, "barrier", *["all_reduce"] * 2, "barrier"
        ]  # fmt: skip
        first = own[3]
        assert all(row.end <= first.end for row in own[:3])
        assert all(first.end <= row.start for row in own[4:])
