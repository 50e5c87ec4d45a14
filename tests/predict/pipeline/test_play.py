"""Simulated schedules: times by hand, closed forms, published zero-bubble times, memory."""

import numpy as np
import pytest

from lib.ledger import Row
from lib.predict.pipeline import clock
from lib.predict.pipeline import schedules as rules
from lib.predict.pipeline.actions import Schedule, ScheduleError
from lib.predict.pipeline.play import Costs, play

UNIT = Costs()
SINGLE = (rules.naive, rules.gpipe, rules.one_f_one_b, rules.zb_h1, rules.zb_h2)


def when(run, text):
    """(start, end) of an action."""
    rows = [r for r in run.ledger if f"{r.stage}{r.op}{r.microbatch}" == text]
    assert len(rows) == 1, text
    return rows[0].start, rows[0].end


# --- by hand


def test_a_run_without_messages_has_free_ones():
    costs = Costs([1, 2, 2, 1], send=0.5, link="pair", ahead=1)
    free = play(rules.gpipe(4, 8), costs).without_messages()
    assert free.makespan == play(rules.gpipe(4, 8), Costs([1, 2, 2, 1])).makespan
    blocked = Costs(send=0.5, sends_block=True).without_messages()
    assert blocked == Costs()


def test_two_stages_by_hand():
    run = play("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1", Costs(2, 3, 4, send=0.5))
    # rank 0: F0 0-2, F1 2-4; rank 1: F0 2.5-4.5, B0 4.5-11.5, F1 11.5-13.5, B1 13.5-20.5
    # back on rank 0: B0 12-19, B1 21-28
    assert when(run, "1F0") == (2.5, 4.5)
    assert when(run, "1B0") == (4.5, 11.5)
    assert when(run, "0B0") == (12.0, 19.0)
    assert when(run, "1B1") == (13.5, 20.5)
    assert when(run, "0B1") == (21.0, 28.0)
    assert run.makespan == 28.0
    assert run.bubble("share") == pytest.approx((56 - 36) / 56)
    assert run.bubble("overhead") == pytest.approx((56 - 36) / 36)
    assert run.bubble("span") == pytest.approx((28 - 18) / 28)


def test_the_gradient_leaves_when_the_backward_for_the_input_is_done():
    split = play("0F0,0I0,0W0\n1F0,1I0,1W0", Costs(1, 2, 4))
    assert when(split, "0I0") == (4.0, 6.0) and when(split, "1W0") == (4.0, 8.0)
    whole = play("0F0,0B0\n1F0,1B0", Costs(1, 2, 4))
    assert when(whole, "0B0") == (8.0, 14.0)


def test_times_by_stage():
    run = play(rules.gpipe(3, 1), Costs([1, 2, 3], [10, 20, 30], [0, 0, 5], send=[0.5, 0.25]))
    assert when(run, "2F0") == (3.75, 6.75)
    assert when(run, "2B0") == (6.75, 41.75)
    assert when(run, "0B0") == (62.5, 72.5)


def test_a_whole_backward_may_cost_something_else_than_its_halves():
    assert play(rules.gpipe(1, 2), Costs(1, 2, 3, backward=4)).makespan == 10.0
    assert play(rules.zb_h1(1, 2), Costs(1, 2, 3, backward=4)).makespan == 12.0


def test_an_overlapped_pair_runs_side_by_side():
    text = "0F0,1F0,(0F1;1B0)OVERLAP_F_B,(1F1;0B0)OVERLAP_F_B,1B1,0B1"
    one_by_one = play(text, Costs(1, 2, 3))
    assert one_by_one.makespan == 24 and when(one_by_one, "1B0") == (3, 8)
    assert when(one_by_one, "0F1") == (2, 3)
    run = play(text, Costs(1, 2, 3, overlap=[4.0, 5.0]))
    assert when(run, "0F1") == when(run, "1B0") == (2, 6)
    assert when(run, "1F1") == when(run, "0B0") == (6, 11)
    assert run.makespan == 21 and run.work.tolist() == [21] and run.bubble() == 0


def test_an_overlapped_pair_waits_for_what_both_need():
    text = "0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n2F0,2B0,2F1,2B1"
    run = play(text, Costs(overlap=1.5, send=0.25))
    assert when(run, "2B0") == (3.5, 5.5)  # 1F1 alone could start at 2.25
    assert when(run, "1F1") == when(run, "1B0") == (5.75, 7.25)
    assert when(run, "2F1") == (7.5, 8.5) and when(run, "0B0") == (7.5, 9.5)
    # without a time of its own the pair is F, then B; what it sends leaves at its end
    run = play(text, Costs(send=0.25))
    assert when(run, "1F1") == (5.75, 6.75) and when(run, "1B0") == (6.75, 8.75)
    assert when(run, "2F1") == (9.0, 10.0) and when(run, "0B0") == (9.0, 11.0)
    sends = run.ledger.where(lane="comm", rank=1)
    assert [(r.note, r.microbatch, r.start) for r in sends][1:3] == [("F", 1, 8.75), ("B", 0, 8.75)]


def test_a_pair_that_waits_for_itself_is_refused():
    text = "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,1F1,1B0,1B1"
    with pytest.raises(ScheduleError) as caught:
        play(text)
    assert caught.value.sentence == (
        "Deadlock: rank 0 stands before 0B0 and waits for 1B0 of rank 1; "
        "rank 1 stands before 1F1 and waits for (0F1;0B0)OVERLAP_F_B of rank 0."
    )
    assert play(text.replace("(0F1;0B0)OVERLAP_F_B", "0F1,0B0")).makespan > 0


def test_a_message_stays_off_the_devices_unless_asked():
    free = play("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1", Costs(send=1.0))
    assert when(free, "0F1") == (1.0, 2.0) and when(free, "1F1") == (3.0, 4.0)
    held = play("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1", Costs(send=1.0, sends_block=True))
    assert when(held, "0F1") == (2.0, 3.0) and when(held, "1F1") == (4.0, 5.0)


def test_neighbours_on_one_rank_send_nothing():
    run = play("0F0,1F0,1B0,0B0", Costs(send=5.0))
    assert run.makespan == 6.0 and {row.lane for row in run.ledger} == {"compute"}


def test_costs_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="forward has 3 entries, but this schedule has 4 stages"):
        play(rules.gpipe(4, 2), Costs(forward=[1, 2, 3]))
    with pytest.raises(ValueError, match="send has 4 entries, .* has 3 borders"):
        play(rules.gpipe(4, 2), Costs(send=[1, 2, 3, 4]))
    with pytest.raises(ValueError, match="costs must be finite and at least 0"):
        play(rules.gpipe(4, 2), Costs(send=-1.0))
    with pytest.raises(ValueError, match="'share', 'overhead' or 'span', not 'size'"):
        play(rules.gpipe(4, 2)).bubble("size")


# --- any schedule


def shuffled(rng, stages, microbatches):
    """A random possible schedule: again and again, a rank does something that it can do."""
    ranks = int(rng.integers(1, stages + 1))
    home = [s % ranks for s in range(stages)]
    whole = rng.random((stages, microbatches)) < 0.5
    rows, done = [[] for _ in range(ranks)], set()
    while True:
        able = []
        for s in range(stages):
            for j in range(microbatches):
                if (s, "F", j) not in done:
                    if s == 0 or (s - 1, "F", j) in done:
                        able.append((s, "F", j))
                    continue
                kind = "B" if whole[s, j] else "I"
                if (s, kind, j) not in done:
                    if s == stages - 1 or {(s + 1, "B", j), (s + 1, "I", j)} & done:
                        able.append((s, kind, j))
                elif kind == "I" and (s, "W", j) not in done:
                    able.append((s, "W", j))
        if not able:
            return Schedule([[f"{s}{k}{j}" for s, k, j in row] for row in rows])
        action = able[rng.integers(len(able))]
        done.add(action)
        rows[home[action[0]]].append(action)


def slowly(schedule, costs):
    """Ends by the definition, over and over until nothing changes; for tests alone."""
    table, send = costs.table(schedule.stages), costs.each("send", schedule.stages - 1)
    ends: dict = {}
    for _ in range(10_000):
        before = dict(ends)
        for row in schedule:
            free = 0.0
            for action in row:
                s, kind, j = action
                start = free
                if kind == "F" and s > 0:
                    away = schedule.placement[s - 1] != schedule.placement[s]
                    start = max(start, ends.get((s - 1, "F", j), 0.0) + away * send[s - 1])
                if kind in "BI" and s < schedule.stages - 1:
                    away = schedule.placement[s + 1] != schedule.placement[s]
                    other = max(ends.get((s + 1, k, j), 0.0) for k in "BI")
                    start = max(start, other + away * send[s])
                free = ends[action] = start + table["FBIW".index(kind), s]
        if ends == before:
            return ends
    raise AssertionError("no end in sight")


@pytest.mark.parametrize("seed", range(60))
def test_any_schedule_is_played_as_early_as_it_can(seed):
    rng = np.random.default_rng(seed)
    stages, microbatches = int(rng.integers(1, 6)), int(rng.integers(1, 6))
    schedule = shuffled(rng, stages, microbatches)
    times = [rng.integers(0, 9, stages) / 4 for _ in range(3)]
    costs = Costs(*times, send=rng.integers(0, 5, stages - 1) / 8)
    run = play(schedule, costs)
    rows = {(r.stage, r.op, r.microbatch): r.end for r in run.ledger if r.lane == "compute"}
    assert rows == slowly(schedule, costs)


@pytest.mark.parametrize("rule", [*SINGLE, rules.zb_v, rules.dualpipe_v, rules.interleaved])
def test_rounds_of_many_ranks_are_the_turns_of_few(rule, monkeypatch):
    """The same times from both ways to play; NumPy's rounds are for 64 ranks and more."""
    costs = Costs(1.0, 1.25, 0.5, send=0.125, overlap=1.75)
    schedule = rule(16, 32)
    turns = play(schedule, costs)
    monkeypatch.setattr(clock, "_MANY", 0)
    monkeypatch.setattr(clock, "_turns", lambda *_: 1 / 0)
    if rule is rules.naive:  # one rank at a time: rounds give up, and turns are asked
        with pytest.raises(ZeroDivisionError):
            play(schedule, costs)
        return
    rounds = play(schedule, costs)
    assert np.array_equal(rounds.starts, turns.starts) and np.array_equal(rounds.ends, turns.ends)


def test_many_ranks_find_a_deadlock_too():
    rows = [list(map(str, row)) for row in rules.one_f_one_b(80, 4)]
    rows[40] = ["40F0", "40F1", "40F2", "40F3", "40B0", "40B1", "40B2", "40B3"]
    assert play(rows).makespan > 0
    rows[39] = ["39F0", "39B0", "39F1", "39B1", "39F2", "39B2", "39F3", "39B3"]
    with pytest.raises(ScheduleError, match="Deadlock: rank 39 stands before 39B0 and waits for"):
        play(rows)


# --- the ledger


def test_the_ledger_has_the_rows_of_a_run():
    run = play("0F0,0B0\n1F0,1B0", Costs(1, 1, 1, send=0.5, activation=100))
    assert run.ledger.source == "predicted"
    compute = [r for r in run.ledger if r.lane == "compute"]
    assert compute[1] == Row(1, "compute", "F", 1.5, 2.5, stage=1, microbatch=0)
    sends = [r for r in run.ledger if r.lane == "comm"]
    there = {"arrived": 1.0, "members": (0, 1), "number": 0, "peer": 1, "note": "F"}
    assert sends[0] == Row(0, "comm", "send", 1.0, 1.5, stage=0, microbatch=0, **there)
    assert [(r.rank, r.peer, r.note, r.stage) for r in sends] == [(0, 1, "F", 0), (1, 0, "B", 1)]
    memory = [(r.rank, r.op, r.start, r.bytes) for r in run.ledger if r.lane == "memory"]
    assert memory == [
        (0, "activations", 0.0, 100), (1, "activations", 1.5, 100),
        (1, "activations", 4.5, 0), (0, "activations", 7.0, 0),
    ]  # fmt: skip


def test_no_rows_for_sends_and_memory_that_cost_nothing():
    run = play(rules.one_f_one_b(4, 4))
    assert {row.lane for row in run.ledger} == {"compute"} and len(run.ledger) == 32


def test_messages_of_a_pair_are_numbered_in_order():
    run = play(rules.one_f_one_b(3, 4), Costs(send=0.1))
    sends = run.ledger.where(lane="comm", members=[(1, 2)])
    assert [(r.microbatch, r.number) for r in sends] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert len(run.ledger.where(lane="comm")) == 2 * 2 * 4
