"""1F1B-RR: the rows of replicas, that they end, and how fast they are."""

import numpy as np
import pytest

from lib.predict.pipeline.clock import earliest
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import pipedream, repeated, round_robin
from lib.predict.pipeline.versions import updates_share, versions_kept, weight_versions
from tests.every import every

REPLICAS = [(2, 1), (1, 2), (3, 1), (1, 3), (1, 3, 1), (2, 3, 1), (1, 4, 1), (3, 2, 2, 1)]


@pytest.mark.parametrize("replicas", REPLICAS)
def test_each_microbatch_is_on_one_rank_of_each_stage_in_turn(replicas):
    schedule = round_robin(replicas, 24)
    first = 0
    for stage, count in enumerate(replicas):
        ranks = tuple(range(first, first + count))
        assert schedule.ranks_of(stage) == ranks
        assert [schedule.rank_of(stage, j) for j in range(24)] == [
            first + j % count for j in range(24)
        ]
        first += count


def test_by_hand():
    assert str(round_robin((2, 1), 4)) == "0F0,0F2,0B0,0B2\n0F1,0F3,0B1,0B3\n" + ",".join(
        f"1{kind}{j}" for j in range(4) for kind in "FB"
    )


@pytest.mark.parametrize("replicas", REPLICAS)
def test_no_rank_waits_for_ever_though_replicas_update_together(replicas):
    """Before an update each replica waits for the last backward of all others of the stage."""
    schedule, batch = round_robin(replicas, 48), 12
    grid = schedule.grid
    place = {(int(c), int(k)): i for i, (c, k) in enumerate(zip(grid.cell, grid.kind))}
    begin, end, needs = [], [], []
    moved = {}  # the place of an action in the rows with updates
    for rank in range(len(schedule)):
        begin.append(len(needs))
        actions, done = schedule.actions(rank), 0
        stage = actions[0].stage
        share, ranks = updates_share(schedule, stage, batch), schedule.ranks_of(stage)
        for number in range(grid.first[rank], grid.first[rank + 1]):
            moved[number] = len(needs)
            needs.append(int(grid.needs[number]))
            done += grid.kind[number] == 1
            if grid.kind[number] == 1 and done % share == 0:
                for other in range(len(ranks)):
                    j = (done - 1) * len(ranks) + other
                    needs.append(place[j * schedule.stages + stage, 1])
        end.append(len(needs))
    waits = np.array([moved[n] if n >= 0 else -1 for n in needs])
    zeros = np.zeros(len(needs))
    ends = earliest(np.array(begin), np.array(end), waits, zeros, zeros)
    assert len(ends) and not np.isnan(ends).any()


@pytest.mark.parametrize("replicas", REPLICAS)
def test_a_full_pipe_moves_at_the_pace_of_its_slowest_stage(replicas):
    """Stage s takes replicas[s] · 6, so every stage passes on a microbatch every 6."""
    each = [2.0 * n for n in replicas]
    costs = Costs(each, each, each)
    short, long = (play(round_robin(replicas, n), costs).makespan for n in (48, 96))
    assert (long - short) / 48 == pytest.approx(6.0)


@pytest.mark.parametrize("replicas", REPLICAS)
def test_versions_of_replicas(replicas):
    schedule = round_robin(replicas, 48)
    for rule in ("stashing", "vertical sync"):
        rows = weight_versions(schedule, rule, 12)
        assert every(seen.forward == seen.backward for row in rows for seen in row)
    assert versions_kept(schedule, "2BW", 12) == [2] * len(replicas)
    flushed = repeated(round_robin(replicas, 12), 4)
    seen = weight_versions(flushed, "flush", 12)
    assert [v.forward for v in seen[0]] == [j // 12 for j in range(48)]
    assert versions_kept(flushed, "flush", 12) == [1] * len(replicas)


def test_each_update_is_shared_equally_or_refused():
    assert updates_share(round_robin((3, 1), 6), 0, 6) == 2
    assert updates_share(pipedream(2, 6), 0, 1) == 1
    with pytest.raises(ValueError, match="every 4 backwards; the 3 replicas of stage 0 cannot"):
        updates_share(round_robin((3, 1), 6), 0, 4)
