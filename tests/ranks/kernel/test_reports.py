"""What is told when something goes wrong is true, and what goes wrong in the telling hides nothing.

From top to bottom: a launch that gloo refuses · a report that fails · the reader's own exceptions ·
groups and tags · threads · descriptions that are long · what children of a rank write.
"""

import datetime
import os
import sys
import time

import pytest
import torch
import torch.distributed as dist

from lib import RankError, World
from lib.ranks.kernel import diagnosis
from lib.ranks.shared import failures
from tests.ranks.test_failures import failing, total


@pytest.fixture
def world(worlds):
    return worlds(2)


# A launch that gloo refuses.


def gathers_uneven_parts():
    dist.all_gather([torch.ones(2), torch.ones(3)], torch.ones(2 + dist.get_rank()))


def sums_int16():
    dist.all_reduce(torch.ones(3, dtype=torch.int16))


def waits_too_briefly():
    if dist.get_rank() == 0:
        limit = datetime.timedelta(seconds=0.1)
        dist.all_reduce(torch.ones(3), async_op=True).wait(limit)
    time.sleep(5)


REFUSED = {
    gathers_uneven_parts: "invalid tensor size",
    sums_int16: "Invalid scalar type",
    waits_too_briefly: "Operation timed out!",
}


def unevenly(step):
    time.sleep(0.5 * dist.get_rank())
    step()


@pytest.mark.parametrize("step", REFUSED, ids=lambda step: step.__name__)
def test_what_gloo_refuses_is_told_as_the_readers_error(world, step):
    """Case 25: ranks that come one after the other; the first is refused, the second stopped."""
    error = failing(world, unevenly, step)
    assert error.rank == 0
    assert "rank 0 raised RuntimeError: " in str(error) and REFUSED[step] in str(error)
    assert f", in {step.__name__}" in str(error) and "rank 1 was stopped" in str(error)


# A report that fails.


def one_raises():
    if dist.get_rank() == 0:
        raise ValueError("the cause")
    dist.barrier()


@pytest.mark.parametrize("broken", ["ranks_say", "list_of", "place"])
def test_a_report_that_fails_hides_nothing(world, broken, monkeypatch):
    """Case 25: whatever fails while a report is made, the cause is told, and that it failed."""
    from lib.ranks.kernel import reports

    def fails(*_):
        raise IndexError("of the report")

    monkeypatch.setattr(reports if broken == "ranks_say" else failures, broken, fails)
    error = failing(world, one_raises)
    assert error.rank == 0 and isinstance(error.__cause__, ValueError)
    assert "rank 0 raised ValueError: the cause" in str(error)
    assert "The full report could not be made: IndexError: of the report (test_reports" in str(
        error
    )


def test_a_look_at_the_board_that_fails_ends_the_call_in_words(world, monkeypatch):
    """Case 25: not only reports; whatever the kernel does in a call may fail."""

    def fails(*_):
        raise KeyError("of the look")

    monkeypatch.setattr(diagnosis, "stuck", fails)
    with pytest.raises(RankError, match="could not be made: KeyError: 'of the look'"):
        world.run(time.sleep, 1)
    monkeypatch.undo()
    assert world.run(total) == [2.0, 2.0]


# The reader's own exceptions.


class Own(Exception):
    """An exception with attributes that we use as well."""


def raises_with_attributes(where, waited):
    error = Own("mine")
    error.where, error.waited, error.lost = where, waited, True
    if dist.get_rank() == 0:
        raise error
    total()


@pytest.mark.parametrize("value", ["here", 3, (1, 2), (1, 2, (0, 1)), None])
def test_attributes_of_the_readers_exceptions_are_the_readers(world, value):
    """Case 26: `.where` and `.waited` of any kind."""
    error = failing(world, raises_with_attributes, value, value)
    assert error.rank == 0 and "rank 0 raised Own: mine" in str(error)
    assert "rank 1 was left waiting in all_reduce" in str(error)


class Mute(Exception):
    """An exception that cannot be written."""

    def __str__(self):
        raise ValueError("no words")

    __repr__ = __str__

    def __getattr__(self, name):
        raise ValueError(name)

    def __reduce__(self):
        raise ValueError("nor this")


def raises_mute(how):
    if how == "exit":
        sys.exit(Mute())
    if how == "plain":
        raise Mute
    raise ValueError(Mute())


@pytest.mark.parametrize("how", ["plain", "exit", "inside"])
def test_an_exception_that_cannot_be_written_costs_no_rank_its_life(world, how):
    """Case 26: a raising __str__, __repr__, __getattr__ or __reduce__."""
    alive = world.run(os.getpid)
    error = failing(world, raises_mute, how)
    assert "its words are lost: its" in str(error) and ", in raises_mute" in str(error)
    assert world.run(os.getpid) == alive


def raises_what_only_ranks_know(tmp_path):
    if dist.get_rank() == 0:
        return
    (tmp_path / f"known_{dist.get_rank()}.py").write_text("class Known(Exception): pass")
    sys.path.insert(0, str(tmp_path))
    try:
        raise __import__(f"known_{dist.get_rank()}").Known("only here")
    finally:
        del sys.path[0]


def test_an_exception_that_the_notebook_cannot_make_is_told_all_the_same(world, tmp_path):
    """Case 26: its class is in a module that only the rank can import."""
    error = failing(world, raises_what_only_ranks_know, tmp_path)
    assert str(error).startswith("rank 1 raised Known: only here") and error.__cause__ is None


def raises_from_a_broken_wait():
    if dist.get_rank() == 0:
        time.sleep(0.5)  # the others wait by then, however busy the machine
        raise Own("the cause")
    try:
        total()
    except RuntimeError as error:
        raise ValueError("the step failed") from error


def test_an_error_that_wraps_a_broken_wait_is_not_the_cause(worlds):
    """Case 26: nor is one that arose in its handler."""
    error = failing(worlds(4), raises_from_a_broken_wait)
    assert error.rank == 0 and "raised ValueError" not in str(error)
    assert "ranks 1, 2 and 3 were left waiting in all_reduce" in str(error)


def ends_by(number):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), number)
        time.sleep(1)
    total()


def test_a_signal_without_a_name(worlds):
    """Case 26: real-time signals are numbers only."""
    error = failing(worlds(2), ends_by, 40)
    assert "rank 1 died: its process was ended by signal 40 (a real-time signal)." in str(error)


def recurses(depth=0):
    return recurses(depth + 1)


def test_a_deep_recursion_is_cut_in_the_middle(world):
    """Case 28: thousands of frames; the first and the last are shown."""
    text = str(failing(world, recurses))
    assert "raised RecursionError" in text and " times …" in text and "… repeated 9" in text
    assert text.count("return recurses(depth + 1)") == 10


# Groups and tags.


def destroys(then=None):
    dist.destroy_process_group()
    return then() if then else "through"


def test_the_next_call_has_a_group_again(world):
    """Case 26: dist.destroy_process_group() at the end of a step, or before an error."""
    assert world.run(destroys) == ["through"] * 2
    assert world.run(total) == [2.0, 2.0]
    error = failing(world, destroys, total)
    assert "Default process group has not been initialized" in str(error)


def one_destroys():
    total()
    if dist.get_rank() == 0:
        dist.destroy_process_group()


def test_a_rank_that_left_after_the_last_collective_is_not_blamed(worlds):
    """Case 26: what it launched before it left counts."""
    assert worlds(2).run(one_destroys) == [None, None]
    assert worlds(2).run(total) == [2.0, 2.0]


def waits_for_rank_0(late=0.0):
    if dist.get_rank():
        time.sleep(late if dist.get_rank() == 3 else 0)
        dist.recv(torch.zeros(1), 0)


def test_who_comes_late_to_a_wait_for_ever_is_named_with_the_others(worlds):
    error = failing(worlds(4), waits_for_rank_0, 0.5)
    assert "ranks 1, 2 and 3 wait for ever: rank 0 has finished without it" in str(error)


def test_who_computes_for_long_is_not_waited_for(worlds):
    error = failing(worlds(4), waits_for_rank_0, 30.0)
    assert "ranks 1 and 2 wait for ever: rank 0 has finished without it" in str(error)


def many_tags(count):
    numbers = torch.zeros(1)
    for tag in range(count):
        if dist.get_rank() == 0:
            dist.send(torch.full((1,), float(tag)), 1, tag=tag)
        else:
            dist.recv(numbers, 0, tag=tag)
            assert numbers.item() == tag


def one_tag_too_many():
    many_tags(1100)
    if dist.get_rank() == 1:
        dist.recv(torch.zeros(1), 0, tag=5000)


def test_more_tags_than_the_board_has_room_for(world):
    """Case 26: pairs that both have done with make room; a hang after that is still seen."""
    assert world.run(many_tags, 2200) == [None, None]
    error = failing(world, one_tag_too_many)
    assert "rank 1 waits for ever: rank 0 has finished without it" in str(error)


def sends_past_the_end():
    dist.send(torch.ones(1), dist.get_rank() + 1)


def receives_before_the_start():
    dist.recv(torch.ones(1), dist.get_rank() - 1)


def broadcasts_from_nowhere():
    dist.broadcast(torch.ones(1), 7)


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (sends_past_the_end, "There is no rank 2 to send to: group world has ranks 0 and 1."),
        (receives_before_the_start, "There is no rank -1 to receive from: group world has"),
        (broadcasts_from_nowhere, "There is no rank 7 to be the root of a broadcast: group world"),
    ],
)
def test_a_partner_that_is_not_in_the_group(world, step, text):
    """Case 28: the ends of a chain."""
    assert f"raised ValueError: {text}" in str(failing(world, step, within=3.0))


def groups_overlap(order):
    for members in reversed(order) if dist.get_rank() == 1 else order:
        dist.new_group(members)


@pytest.mark.parametrize("order", [[[0, 1], [1, 2]], [[0, 1], [1, 2, 3]], [[0, 1, 2], [1, 2, 3]]])
def test_overlapping_groups_that_are_made_in_another_order(worlds, order):
    """Case 28: seen at the first call that differs, with both lines."""
    error = failing(worlds(4), groups_overlap, order, within=3.0)
    assert "call number 0 of new_group differs between ranks" in str(error)
    assert f"new_group {order[0]}" in error.table and f"new_group {order[1]}" in error.table
    assert error.rank in (1, None) and "Let every rank of the world call new_group" in str(error)


def only_members(members):
    if dist.get_rank() in members:
        dist.new_group(members)


def correctly(members):
    dist.new_group(members)
    return total()


def test_a_group_that_only_its_members_make(worlds):
    """Case 28: told where it happens; the next, correct one is not blamed."""
    error = failing(worlds(4), only_members, [0, 1])
    assert "not every rank launched the same" in str(error)
    assert "new_group [0, 1]" in error.table and "use_local_synchronization=True" in str(error)
    assert worlds(4).run(correctly, [0, 2]) == [4.0] * 4


def members_by_themselves():
    rank = dist.get_rank()
    group = dist.new_group([rank // 2 * 2, rank // 2 * 2 + 1], use_local_synchronization=True)
    numbers = torch.full((1,), float(rank))
    dist.all_reduce(numbers, group=group)
    return numbers.item()


def test_groups_that_members_make_by_themselves_are_no_failure():
    """Case 28: that is what use_local_synchronization is for."""
    with World(4, device="cpu") as world:
        assert world.run(members_by_themselves) == [1.0, 1.0, 5.0, 5.0]


def receives_from_anyone(senders):
    if dist.get_rank() == 0:
        for _ in range(senders + 1):
            dist.recv(torch.ones(1))
    elif dist.get_rank() <= senders:
        dist.send(torch.ones(1), 0)


@pytest.mark.parametrize("senders", [0, 1, 3])
def test_a_receive_from_any_source_that_nobody_serves(worlds, senders):
    """Case 28: seen, ended, and no rank is lost by it."""
    alive = worlds(4).run(os.getpid)
    error = failing(worlds(4), receives_from_anyone, senders, within=3.0)
    assert "rank 0 waits for ever: ranks 1, 2 and 3 have finished" in str(error)
    assert worlds(4).run(os.getpid) == alive


def one_has_another_kind(kind):
    numbers = torch.ones(4)
    if dist.get_rank() == 1:
        numbers = numbers.to_sparse() if kind == "sparse" else numbers.to("meta")
    dist.all_reduce(numbers)


@pytest.mark.parametrize(("kind", "text"), [("sparse", "sparse_coo float32"), ("meta", "meta fl")])
def test_a_sparse_or_meta_tensor_on_one_rank(world, kind, text):
    """Case 28: a mismatch, before the others wait."""
    error = failing(world, one_has_another_kind, kind, within=2.0)
    assert "the ranks do not agree" in str(error) and f"all_reduce {text}" in error.table
