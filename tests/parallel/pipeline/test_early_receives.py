"""On NCCL a receive is posted early only where its sender needs nothing of the present action."""

import pytest

from lib.parallel.pipeline.passing import Passing
from lib.predict.pipeline import schedules


class PipesDouble:
    """Notes which messages are asked for."""

    def __init__(self, one_at_a_time):
        self.one_at_a_time, self.asked = one_at_a_time, []

    def post(self, *message):
        self.asked.append(message)


def posted(schedule, rank, one_at_a_time=True):
    """The messages that this rank posts at each place of its row before their turn."""
    early = {}
    stages = {s for s in range(schedule.stages) if rank in schedule.ranks_of(s)}
    for place in range(len(schedule.actions(rank))):
        pipes = PipesDouble(one_at_a_time)
        passing = Passing(schedule, rank, pipes, stages)
        passing.ahead(place)
        now = passing.row[place]
        source = now.stage - 1 if now.kind == "F" else now.stage + 1
        early[str(now)] = [m for m in pipes.asked if m[1:] != (source, now.microbatch)]
    return early


def test_naive_stages_wait_for_each_other():
    """Stage 0 sends the next microbatch when the gradient of this one is back."""
    assert posted(schedules.naive(2, 2), 1)["1B0"] == []
    assert posted(schedules.naive(2, 2), 1, one_at_a_time=False)["1B0"] == [("F", 0, 1)]


def test_in_gpipe_gradients_come_back_after_the_last_forward():
    first = posted(schedules.gpipe(2, 3), 0)
    assert first["0F2"] == [] and first["0B0"] == [("B", 1, 1)]
    assert posted(schedules.gpipe(2, 3), 1)["1F0"] == [("F", 0, 1)]


def test_in_1f1b_the_next_receive_is_early():
    assert posted(schedules.one_f_one_b(2, 4), 0)["0F2"] == [("B", 1, 1)]
    assert posted(schedules.one_f_one_b(2, 4), 1)["1B0"] == [("F", 0, 1)]


@pytest.mark.parametrize("rank", range(4))
def test_what_is_not_early_has_its_turn(rank):
    """Every message is asked for at the latest in its own action."""
    schedule = schedules.one_f_one_b(4, 6)
    pipes = PipesDouble(one_at_a_time=True)
    passing = Passing(schedule, rank, pipes, {rank})
    for place in range(len(passing.row)):
        passing.ahead(place)
    needed = {("F", rank - 1, m) for m in range(6) if rank > 0}
    needed |= {("B", rank + 1, m) for m in range(6) if rank < 3}
    assert set(pipes.asked) == needed
