"""What is told of ranks whose threads wait, of long descriptions, and of what children write."""

import os
import subprocess
import sys
import threading
import time

import pytest
import torch
import torch.distributed as dist

from lib import World
from lib.ranks.kernel import diagnosis
from lib.ranks.shared.notice_board import NoticeBoard, tag_of
from lib.ranks.shared.notice_slots import SLOTS, Kind, Launch
from tests import on_gpus
from tests.ranks.test_failures import failing


@pytest.fixture
def world(worlds):
    return worlds(2)


# Threads.


def make_two_groups():
    main = sys.modules["__main__"]
    main.groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]


def another_thread_serves(how):
    first, second = sys.modules["__main__"].groups
    if dist.get_rank() == 1:
        dist.all_reduce(torch.ones(1), group=second)
        dist.all_reduce(torch.ones(1), group=first)
        return
    if how == "thread":
        thread = threading.Thread(target=serve, args=(second, 0.6))
    else:
        thread = threading.Timer(0.6, dist.all_reduce, [torch.ones(1)], {"group": second})
    thread.start()
    if how != "never":
        dist.all_reduce(torch.ones(1), group=first)
    thread.join()


def serve(group, seconds):
    time.sleep(seconds)
    dist.all_reduce(torch.ones(1), group=group)


@pytest.mark.parametrize("how", ["thread", "timer"])
def test_a_thread_that_will_serve_the_other_group_is_no_deadlock(world, how):
    """Case 28: the main thread waits in one group, and is answered after the thread has acted."""
    world.run(make_two_groups)
    assert world.run(another_thread_serves, how) == [None, None]


def a_thread_ends_without_serving():
    first, second = sys.modules["__main__"].groups
    threading.Thread(target=time.sleep, args=(0.5,)).start()
    dist.all_reduce(torch.ones(1), group=(first, second)[dist.get_rank()])


def test_a_deadlock_beside_a_thread_is_seen_when_the_thread_has_ended(worlds):
    """Case 28: the hope lasts as long as the thread."""
    world = worlds(2, **on_gpus.PATIENCE)
    world.run(make_two_groups)
    error = failing(world, a_thread_ends_without_serving, within=4.0)
    assert "ranks 0 and 1 wait for ever: they wait for each other" in str(error)


def both_threads_wait():
    first, second = sys.modules["__main__"].groups
    if dist.get_rank() == 1:
        return
    thread = threading.Thread(target=serve, args=(second, 0))
    thread.start()
    dist.all_reduce(torch.ones(1), group=first)


def joins_a_thread_that_waits():
    first, _ = sys.modules["__main__"].groups
    if dist.get_rank() == 0:
        thread = threading.Thread(target=serve, args=(first, 0))
        thread.start()
        thread.join()


@pytest.mark.parametrize("step", [both_threads_wait, joins_a_thread_that_waits])
def test_a_rank_whose_threads_all_wait_is_stuck(world, step):
    """Case 28: a join of a thread that waits is a wait as well."""
    world.run(make_two_groups)
    error = failing(world, step, within=3.0)
    assert "rank 0 waits for ever: rank 1 has finished without it" in str(error)


def swallows(kind):
    numbers = torch.ones(3 + dist.get_rank())
    if kind == "refused":
        numbers = numbers.to(torch.int16) if dist.get_rank() else numbers[:3]
    time.sleep(0.2 * dist.get_rank())
    try:
        dist.all_reduce(numbers)
    except RuntimeError:
        time.sleep(100)


@pytest.mark.parametrize("kind", ["mismatch", "refused"])
def test_a_mismatch_that_is_caught_on_the_way(world, kind):
    """Case 28: the others wait for what was never launched."""
    error = failing(world, swallows, kind, within=4.0)
    assert "rank 0 waits for ever: what rank 1 called did not fit and was not launched" in str(
        error
    )


def swallows_and_goes_on():
    rank = dist.get_rank()
    time.sleep(0.2 * rank)
    try:
        dist.all_reduce(torch.ones(4, dtype=torch.int32 if rank else torch.float32))
    except RuntimeError:
        pass
    dist.all_reduce(torch.ones(4))  # gloo would take it for the other rank's first


def test_after_a_mismatch_nothing_more_is_sent_in_its_group(world):
    """Case 28: caught and ignored, it is raised again by the next collective."""
    error = failing(world, swallows_and_goes_on, within=4.0)
    assert "the ranks do not agree" in str(error) and "int32 [4] SUM" in error.table


# Descriptions that are long.


def coalesced(count, odd):
    many = [torch.ones(10, 11, 12) for _ in range(count)]
    if dist.get_rank() == 1 and odd is not None:
        many[odd] = torch.ones(10, 12, 11)
    options = dist.AllreduceCoalescedOptions()
    dist.group.WORLD.allreduce_coalesced(many, options).wait()
    return [numbers.sum().item() for numbers in many] == [2 * 1320.0] * count


@pytest.mark.parametrize("count", [16, 300])
def test_a_long_description_is_compared_as_a_whole(world, count):
    """Case 27: equal ones are launched; one that differs in its last words is refused."""
    assert world.run(coalesced, count, None) == [True, True]
    error = failing(world, coalesced, count, count - 1, within=3.0)
    assert "the ranks do not agree" in str(error)


def exchange(per_pair, odd=None):
    """Each rank sends per_pair + its rank + the other's to each; one may expect less of another."""
    rank, n = dist.get_rank(), dist.get_world_size()
    into = [per_pair + rank + other for other in range(n)]
    out = list(into)
    if odd == rank:
        out[(rank + 1) % n] -= 1
    received = torch.empty(sum(out), dtype=torch.int8)
    dist.all_to_all_single(received, torch.full((sum(into),), rank, dtype=torch.int8), out, into)
    return [piece.unique().item() for piece in received.split(out)] == list(range(n))


def test_an_uneven_all_to_all_of_16_ranks():
    """Case 27: splits of seven digits; one that does not fit is refused."""
    with World(16, device="cpu") as world:
        assert world.run(exchange, 1_000_000) == [True] * 16
        error = failing(world, exchange, 100, 9, within=20.0)
        assert "the ranks do not agree: all_to_all" in str(error)


def equal_words():
    """Both ranks say the same, and what one sends is not what the other expects."""
    dist.all_to_all_single(torch.ones(2), torch.ones(2), [1, 1], [0, 2])


def test_equal_splits_that_do_not_fit_are_refused(world):
    """Case 27: gloo would end the process."""
    error = failing(world, equal_words, within=3.0)
    assert "the ranks do not agree" in str(error) and "splits 0,2>1,1" in error.table


def launch(op, what="", own=""):
    """A launch in a group."""
    return Launch(Kind.GROUP, op, what, own)


def test_splits_of_64_ranks_are_compared_pair_by_pair(tmp_path):
    """Case 27: whatever their size."""
    board, tag, huge = NoticeBoard(str(tmp_path / "board"), 64, create=True), tag_of("group"), 2**60
    splits = [list(range(huge + rank, huge + rank + 64)) for rank in range(64)]
    for rank in range(64):
        board.post(rank, tag, 3, launch("all_to_all"), "", 1, splits[rank] * 2)
    for rank in range(64):
        assert board.splits(rank, tag, 3, 64) == (tuple(splits[rank]), tuple(splits[rank]))
    assert board.splits(0, tag, 4, 64) is None and board.splits(0, tag, 3 + 64, 64) is None


@pytest.mark.parametrize("size", [10, 255, 256, 257, 4000])
def test_two_texts_that_differ_somewhere_differ_on_the_board(tmp_path, size):
    """Case 27: also behind the bytes that there is room for."""
    board, text = NoticeBoard(str(tmp_path / "board"), 2, create=True), "ü" * (size // 2)
    board.post(0, 5, 0, launch("send", text), "file:3", 1)
    assert not board.differs([0], 5, 0, launch("send", text))
    assert board.differs([0], 5, 0, launch("send", text + "a"))
    assert board.differs([0], 5, 0, launch("send", text[1:]))
    assert board.differs([0], 5, 0, launch("sen", text))
    assert board.entry(0, 5, 0).place == "file:3"


def test_groups_that_meet_in_the_same_slots_do_not_push_each_other_out(tmp_path):
    """Case 28: the last thousand launches of one group, and the last of every other."""
    board = NoticeBoard(str(tmp_path / "board"), 1, create=True)
    for tag in (1, 1 + SLOTS, 1 + 2 * SLOTS):  # one number for all: the same place
        board.post(0, tag, 7, launch(f"of {tag}"), "", tag)
    kept = [board.entry(0, tag, 7).launch for tag in (1, 1 + SLOTS)]
    assert kept == [launch("of 1"), launch(f"of {1 + SLOTS}")]
    for number in range(2 * SLOTS):
        board.post(0, 9, number, launch(f"number {number}"), "", 10_000 + number)
    kept = [number for number in range(2 * SLOTS) if board.entry(0, 9, number)]
    assert kept == list(range(SLOTS, 2 * SLOTS))


def test_a_launch_that_the_board_has_forgotten_is_not_called_missing(tmp_path):
    """Case 28: who has gone on is not said to have stayed away."""
    board = NoticeBoard(str(tmp_path / "board"), 2, create=True)
    for rank, launches in ((0, 1), (1, 3 * SLOTS)):
        for number in range(launches):
            board.post(rank, 9, number, launch("all_reduce"), "", 1 + number)
        board.count(rank, 9, launches, (0, 1), "world")
    table = diagnosis.table(board, 9, 0, (0, 1))
    assert "long ago" in table and "nothing" not in table


# What children of a rank write.


def children_write():
    code = f"echo to both {dist.get_rank()}; echo error {dist.get_rank()} >&2"
    subprocess.run(code, shell=True, check=True)
    os.write(2, b"[W1122 00:57:17.123 ProcessGroupGloo.cpp:545] a log line of C++\n")


def test_stderr_of_children_is_shown_with_its_rank(world, capsys):
    """Case 28: the log lines of PyTorch's C++ code are left out."""
    world.run(children_write)
    shown = capsys.readouterr().out.splitlines()
    assert sorted(shown) == sorted(
        f"rank {rank} │ {text} {rank}" for rank in (0, 1) for text in ("to both", "error")
    )


def writes_and_dies():
    if dist.get_rank() == 1:
        os.system("echo before the end >&2")
        os.abort()


def test_last_words_are_those_since_the_last_call(world):
    """Case 28: what was shown while the rank lived is not told again."""
    world.run(children_write)
    error = failing(world, writes_and_dies)
    assert "before the end" in str(error) and "error 1" not in str(error)
