"""Everything that goes wrong on ranks, what the reader is told, and the next call, which works.

From top to bottom: a rank raises · leaves · disagrees · is stopped · returns or prints too much · a
world cannot be. What needs a notebook's kernel, a crowd, another user or a full disk stands in
test_notebook.py (names of cells, re-runs, the kernel killed) and test_world.py.
"""

import importlib
import multiprocessing.connection
import os
import re
import signal
import sys
import time

import pytest
import torch
import torch.distributed as dist

from lib import RankError
from tests import on_gpus


def total(amount=1.0):
    """The next call: an all_reduce whose result every test knows."""
    numbers = torch.full((4,), float(amount))
    dist.all_reduce(numbers)
    return numbers[0].item()


def failing(world, step, *args, within=6.0):
    """Run a step that must fail, in time; check that the next call works; give the error."""
    began = time.monotonic()
    with pytest.raises(RankError) as caught:
        world.run(step, *args)
    assert time.monotonic() - began < within, "told too late"
    assert world.run(total) == [float(world.size)] * world.size
    on_gpus.tell_failure(caught.value)
    return caught.value


@pytest.fixture
def world(worlds):
    return worlds(4)


@pytest.fixture
def kept(world):
    """Something made on the ranks before the failure, which must still be there after it."""
    world.run(remember)
    yield
    assert world.run(recall) == [0, 10, 20, 30]


def remember():
    sys.modules["__main__"].kept = 10 * dist.get_rank()


def recall():
    return sys.modules["__main__"].kept


# A rank raises.


def one_raises():
    if dist.get_rank() == 2:
        raise ValueError("bad value")
    total()


def one_raises_late():
    if dist.get_rank() == 2:
        time.sleep(0.5)
    one_raises()


def test_exception_on_one_rank_while_three_wait_in_all_reduce(world, kept):
    error = failing(world, one_raises_late)
    assert error.rank == 2
    assert "rank 2 raised ValueError: bad value" in str(error)
    assert "test_failures.py, line " in str(error) and ", in one_raises" in str(error)
    assert 'raise ValueError("bad value")' in str(error)
    assert "ranks 0, 1 and 3 were left waiting in all_reduce (group world, number " in str(error)
    assert "lib/ranks" not in str(error) and "site-packages" not in str(error)
    assert isinstance(error.__cause__, ValueError)


def all_raise():
    raise KeyError("nowhere")


def test_exception_on_all_ranks(world, kept):
    error = failing(world, all_raise)
    assert "ranks 0, 1, 2 and 3 raised KeyError: 'nowhere'" in str(error)
    assert "left waiting" not in str(error)


def test_groups_survive_an_exception_that_left_nobody_waiting(world):
    world.run(make_group)
    failing(world, all_raise)
    assert world.run(use_group) == [1.0, 1.0, 2.0, 2.0]


def make_group():
    sys.modules["__main__"].group = dist.new_group([2, 3])


def use_group():
    numbers = torch.ones(1)
    if dist.get_rank() > 1:
        dist.all_reduce(numbers, group=sys.modules["__main__"].group)
    return numbers.item()


def test_a_group_from_before_a_cut_says_that_it_is_closed(world):
    world.run(make_group)
    failing(world, one_raises)
    error = failing(world, use_group)
    assert "is closed: a call on these ranks failed" in str(error)
    assert "Build again what holds it" in str(error)


def different_errors():
    rank = dist.get_rank()
    raise (ValueError if rank % 2 else TypeError)(f"at {rank % 2}")


def test_each_story_is_told_once(world):
    text = str(failing(world, different_errors))
    assert "ranks 0 and 2 raised TypeError: at 0" in text
    assert "ranks 1 and 3 raised ValueError: at 1" in text


def test_many_failures_in_a_row_cost_no_rank_its_life(worlds):
    """Gloo, cut off in a certain moment, loses the end of a wait: about once in fifty failures."""
    world = worlds(4)
    alive = world.run(os.getpid)
    for _ in range(150):
        with pytest.raises(RankError, match="rank 2 raised ValueError"):
            world.run(one_raises)
    assert world.run(os.getpid) == alive


# A rank leaves.


def one_exits():
    if dist.get_rank() == 1:
        sys.exit("enough")
    total()


def test_sys_exit(world, kept):
    error = failing(world, one_exits)
    assert "rank 1 called sys.exit('enough'), which would end the rank" in str(error)


def one_vanishes(how):
    if dist.get_rank() == 3:
        time.sleep(0.5)  # the others wait by then, however busy the machine
        os._exit(3) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)
    total()


@pytest.mark.parametrize(
    ("how", "told"),
    [("exit", "ended with exit code 3"), ("kill", "was ended by signal 9 (SIGKILL")],
)
def test_a_rank_that_dies(worlds, how, told):
    world = worlds(4)
    world.run(remember)
    error = failing(world, one_vanishes, how)
    assert f"rank 3 died: its process {told}" in str(error)
    assert "ranks 0, 1 and 2 were left waiting in all_reduce" in str(error)
    assert "rank 3 was started anew: what you had made there is lost" in str(error)
    assert "the other ranks keep theirs" in str(error)
    with pytest.raises(RankError, match="rank 3 raised AttributeError"):
        world.run(recall)
    world.run(remember)
    assert world.run(recall) == [0, 10, 20, 30]


def abort():
    if dist.get_rank() == 0:
        os.abort()
    total()


def test_a_crash_in_c_code_shows_its_last_words(world):
    error = failing(world, abort)
    assert "rank 0 died: its process was ended by signal 6 (SIGABRT)" in str(error)
    assert "Fatal Python error: Aborted" in str(error) and "in abort" in str(error)


def test_a_rank_that_died_between_two_calls(world):
    number = world.run(os.getpid)[1]
    os.kill(number, signal.SIGKILL)
    # The server of the ranks tells it, and on a busy machine that takes a moment.
    assert multiprocessing.connection.wait([world._processes.by_rank[1].sentinel], 20)
    error = failing(world, total)
    assert "since the last call rank 1 died" in str(error) and "Run the cell again" in str(error)


# Ranks that disagree.


def one_skips():
    if dist.get_rank() != 1:
        total()


def test_one_rank_skips_a_collective(world, kept):
    error = failing(world, one_skips, within=2.0)
    assert "rank 1 has finished without it" in str(error)
    rows = error.table.splitlines()
    number = int(re.fullmatch(r"  rank  launched as number (\d+) of group world", rows[0])[1])
    assert f"all_reduce (group world, number {number})" in str(error)
    line = rows[2].removeprefix("          test_failures.py, line ")
    launched = ["  0     all_reduce float32 [4] SUM", f"          test_failures.py, line {line}"]
    assert line.isdigit() and rows[1:3] == launched and rows[4] == launched[0].replace("0", "2", 1)
    assert rows[3] == "  1     nothing: it has not come"
    assert max(map(len, rows)) <= 49, "a phone shows no more beside one another"


def one_skips_and_nobody_waits():
    if dist.get_rank() != 1:
        dist.all_reduce(torch.ones(4), async_op=True)


def test_a_skipped_collective_that_nobody_waits_for(world):
    error = failing(world, one_skips_and_nobody_waits)
    assert "not every rank launched the same" in str(error)
    assert "nothing: it has not come" in error.table.splitlines()[3]


def different_order():
    first, second = torch.ones(4), torch.ones(4)
    if dist.get_rank() == 2:
        dist.broadcast(first, 0)
        dist.all_reduce(second)
    else:
        dist.all_reduce(second)
        dist.broadcast(first, 0)


def test_two_ranks_call_collectives_in_a_different_order(world, kept):
    error = failing(world, different_order, within=2.0)
    assert "the ranks do not agree" in str(error)
    rows = error.table.splitlines()
    assert "all_reduce float32 [4] SUM" in rows[1] and "broadcast float32 [4] root 0" in rows[5]
    assert len({row.split("line")[-1] for row in rows[2::2]}) == 2  # two lines of the reader's code


@pytest.mark.parametrize(
    ("name", "odd", "even"),
    [
        ("shape", "float32 [3]", "float32 [4]"),
        ("dtype", "float64 [4]", "float32 [4]"),
        ("operation", "[4] MAX", "[4] SUM"),
    ],
)
def test_shapes_dtypes_or_operations_differ(world, kept, name, odd, even):
    error = failing(world, differing, name, within=2.0)
    rows = error.table.splitlines()
    assert odd in rows[3] and even in rows[1] and even in rows[5]


def differing(name):
    odd = dist.get_rank() == 1
    numbers = torch.ones(3 if odd and name == "shape" else 4)
    numbers = numbers.double() if odd and name == "dtype" else numbers
    most = odd and name == "operation"
    dist.all_reduce(numbers, op=dist.ReduceOp.MAX if most else dist.ReduceOp.SUM)


def message_of_another_size():
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), 1)
    if dist.get_rank() == 1:
        dist.recv(torch.ones(5), 0)


def test_a_message_of_another_size_than_expected(world):
    error = failing(world, message_of_another_size, within=2.0)
    assert "message 0 from rank 0 to rank 1 differs" in str(error)
    assert "message float32 [4]" in error.table and "message float32 [5]" in error.table


def splits_that_do_not_fit():
    rank = dist.get_rank()
    into = [1, 1, 1, 1] if rank else [2, 1, 1, 0]
    dist.all_to_all_single(torch.empty(4), torch.ones(4), [1, 1, 1, 1], into)


def test_splits_of_an_all_to_all_that_do_not_fit(world):
    error = failing(world, splits_that_do_not_fit, within=2.0)
    assert "splits 2,1,1,0>1,1,1,1" in error.table


def uneven_all_to_all():
    rank, n = dist.get_rank(), dist.get_world_size()
    into, out = [rank + 1] * n, [other + 1 for other in range(n)]
    received = torch.empty(sum(out))
    dist.all_to_all_single(received, torch.full((sum(into),), float(rank)), out, into)
    return received.tolist()


def test_splits_that_differ_and_fit_are_no_failure(world):
    assert world.run(uneven_all_to_all) == [[0, 1, 1, 2, 2, 2, 3, 3, 3, 3]] * 4


def ring_of_blocking_sends():
    rank, n = dist.get_rank(), dist.get_world_size()
    dist.send(torch.ones(4), (rank + 1) % n)
    dist.recv(torch.ones(4), (rank - 1) % n)


def test_a_ring_of_blocking_sends_is_a_circle_of_waits(world, kept):
    error = failing(world, ring_of_blocking_sends, within=2.0)
    assert "ranks 0, 1, 2 and 3 wait for ever: they wait for each other" in str(error)
    assert "rank 3 waits in message" in str(error)


def groups_in_a_different_order():
    mine = [dist.new_group([0, 1]), dist.new_group([0, 1])]
    if dist.get_rank() == 1:
        mine.reverse()
    if dist.get_rank() < 2:
        for group in mine:
            dist.all_reduce(torch.ones(1), group=group)


def test_groups_used_in_a_different_order(worlds):
    limit = 2.0 + on_gpus.PATIENCE.get("patience", 0)
    error = failing(worlds(4, **on_gpus.PATIENCE), groups_in_a_different_order, within=limit)
    assert "ranks 0 and 1 wait for ever: they wait for each other" in str(error)


def one_never_joins():
    if dist.get_rank() != 2:
        dist.new_group([0, 1, 2])


def test_a_rank_that_does_not_come_to_a_new_group(world, kept):
    error = failing(world, one_never_joins, within=3.0)
    assert "rank 2 has finished without it" in str(error)


def ddp_and_one_leaves():
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(torch.nn.Linear(3, 3))
    loss = model(torch.ones(2, 3)).sum()
    if dist.get_rank() != 3:
        loss.backward()


def test_a_backward_that_one_rank_leaves_out(world):
    world.run(importlib.import_module, "torch._dynamo")  # what a first DDP imports takes seconds
    error = failing(world, ddp_and_one_leaves, within=3.0)
    assert "rank 3 has finished without it" in str(error)


def test_a_slow_rank_is_no_failure(world):
    assert world.run(one_is_slow) == [4.0] * 4


def one_is_slow():
    if dist.get_rank() == 1:
        time.sleep(0.7)
    return total()
