"""Links that carry one message at a time: by hand, against a slow simulation, in every schedule."""

import numpy as np
import pytest

from lib.predict.pipeline import clock
from lib.predict.pipeline import schedules as rules
from lib.predict.pipeline.actions import Schedule
from lib.predict.pipeline.play import Costs, play

RULES = ("naive", "gpipe", "one_f_one_b", "interleaved", "breadth_first", "zb_h1", "zb_h2", "zb_v",
         "dualpipe_v")  # fmt: skip
ROWS = "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2"


def sends(run, rank):
    """(note, microbatch, sent, asked for, carried) of each message of a rank."""
    rows = run.ledger.where(lane="comm", rank=rank)
    return [(r.note, r.microbatch, r.start, r.arrived, r.end) for r in rows]


# --- by hand


def test_a_link_carries_one_message_at_a_time():
    """Case 14: messages of 3 between actions of 1 leave a link one after the other."""
    free, queued = (play(ROWS, Costs(1, 1, 1, send=3.0, link=link)) for link in (None, "pair"))
    assert [end for *_, end in sends(free, 0)] == [4, 5, 6]
    # forward at 1, 2, 3: 1-4, 4-7, 7-10; F2 of rank 1 10-11, backwards 11-13, 13-15, 15-17
    assert [(start, end) for *_, start, _, end in sends(queued, 0)] == [(1, 4), (2, 7), (3, 10)]
    # back at 13, 15, 17: 13-16, 16-19, 19-22; rank 0 ends with the last of them, 22-24
    assert [(start, end) for *_, start, _, end in sends(queued, 1)] == [
        (13, 16),
        (15, 19),
        (17, 22),
    ]
    assert (free.makespan, queued.makespan) == (18.0, 24.0)  # 7-13, 16-18 and so on, if they pass


def test_messages_there_and_back_do_not_wait_for_each_other():
    """Case 14: a link has two directions; nothing queues where each has one message."""
    costs = Costs(1, 1, 1, send=3.0)
    alone = Schedule("0F0,0B0\n1F0,1B0".splitlines())
    assert (
        play(alone, costs).makespan == play(alone, Costs(1, 1, 1, send=3.0, link="pair")).makespan
    )


def test_what_a_device_sends_to_two_others_queues_by_device_alone():
    """Case 14: the middle of three ranks sends B0 back and then F1 on; a device sends one first."""
    text, send = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n2F0,2B0,2F1,2B1", [9.0, 1.0]
    pair, device = (play(text, Costs(1, 1, 1, send=send, link=link)) for link in ("pair", "device"))
    # rank 1: F0 10-11, its gradient is back at 16: B0 16-18, sent until 27; F1 19-20
    assert sends(pair, 1)[1:3] == [("B", 0, 18, 18, 27), ("F", 1, 20, 20, 21)]
    assert sends(device, 1)[1:3] == [("B", 0, 18, 18, 27), ("F", 1, 20, 20, 28)]


def test_a_message_starts_once_its_receiver_asks():
    """Case 14: ahead=1 asks for what an action needs when its rank turns to the one before."""
    text = "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2"
    run = play(text, Costs(1, 5, 5, send=2.0, link="pair", ahead=1))
    # rank 1: F0 3-4, B0 4-14, F1 14-15. F1 is asked for at 4 (B0 begins), F2 at 15 (B1 begins).
    assert sends(run, 0) == [("F", 0, 1, 1, 3), ("F", 1, 2, 4, 6), ("F", 2, 3, 15, 17)]
    late = play(text, Costs(1, 5, 5, send=2.0, link="pair", ahead=0))
    assert sends(late, 0) == [("F", 0, 1, 1, 3), ("F", 1, 2, 14, 16), ("F", 2, 3, 27, 29)]
    far = play(text, Costs(1, 5, 5, send=2.0, link="pair", ahead=9))
    assert sends(far, 0) == [("F", 0, 1, 1, 3), ("F", 1, 2, 2, 5), ("F", 2, 3, 3, 7)]


def test_who_asks_for_a_message_asks_for_those_before_it():
    """Case 14: rank 1 takes the second message first, so the first travels with it."""
    text = "0F0,0F1,0B1,0B0\n1F1,1B1,1F0,1B0"
    run = play(text, Costs(1, 1, 1, send=2.0, link="pair", ahead=0))
    assert sends(run, 0) == [("F", 0, 1, 1, 3), ("F", 1, 2, 2, 5)]


def test_a_first_backward_has_nothing_to_add_to():
    """Case 14: `accumulate` is saved once on each stage, by its first B or W."""
    whole = play(rules.gpipe(1, 4), Costs(1, 2, 3, accumulate=0.5))
    assert whole.makespan == 4 * 6 - 0.5 and whole.work.tolist() == [23.5]
    apart = play(rules.zb_h1(2, 3), Costs(1, 2, 3, accumulate=[0.5, 1.0]))
    lengths = [(r.op, r.microbatch, r.seconds) for r in apart.ledger if r.rank and r.op == "W"]
    assert sorted(lengths) == [("W", 0, 2.0), ("W", 1, 3.0), ("W", 2, 3.0)]
    cleared = Costs(1, 2, 3, accumulate=0.5, cleared=4)
    steps = play(rules.repeated(rules.gpipe(1, 4), 3), cleared)
    assert steps.makespan == 3 * whole.makespan, "every step begins without gradients"
    for wrong in (0, -1, 2.5):
        with pytest.raises(ValueError, match="Costs: cleared"):
            Costs(accumulate=0.5, cleared=wrong)
    with pytest.raises(
        ValueError, match="accumulate is a part of each B and W, so it cannot be longer"
    ):
        play(rules.zb_h1(2, 3), Costs(1, 2, 3, accumulate=4.0))


def test_links_that_there_are_not_are_refused():
    """Case 14: bad words get a sentence."""
    with pytest.raises(ValueError, match="link is 'wire'. Give 'pair', 'device', or None"):
        Costs(link="wire")
    with pytest.raises(ValueError, match="ahead is -1. Give a number of actions"):
        Costs(link="pair", ahead=-1)
    for other in ({}, {"link": "device"}, {"link": "pair", "sends_block": True}):
        with pytest.raises(ValueError, match="Give link='pair' without sends_block"):
            Costs(ahead=1, **other)
    with pytest.raises(ValueError, match="Leave out overlap"):
        Costs(overlap=2.0, in_turn=True)


# --- any schedule


def slowly(schedule, costs):
    """The makespan by the definition, over and over until nothing changes; for tests alone."""
    table, send = costs.table(schedule.stages), costs.each("send", schedule.stages - 1)
    home, rows = schedule.placement, [schedule.actions(rank) for rank in range(schedule.ranks)]
    place = {action: (rank, i) for rank, row in enumerate(rows) for i, action in enumerate(row)}
    saved = costs.each("accumulate", schedule.stages)
    firsts = {}
    lanes: dict = {}
    for rank, row in enumerate(rows):
        for action in row:
            if action.kind in "BW":
                firsts.setdefault(action.stage, action)
            to = action.stage + (1 if action.kind == "F" else -1)
            if action.kind != "W" and 0 <= to < schedule.stages and home[to] != rank:
                kinds = "F" if action.kind == "F" else "BI"
                wants = [action._replace(stage=to, kind=kind) for kind in kinds]
                needer = next(place[want] for want in wants if want in place)
                key = (rank, home[to]) if costs.link == "pair" else rank
                lanes.setdefault(key, []).append((action, needer))
    ends, there = {}, {}
    for _ in range(10_000):
        before = dict(ends), dict(there)
        for lane in lanes.values():
            free = 0.0
            for number, (action, (rank, _)) in enumerate(lane):
                start = max(free, ends.get(action, 0.0))
                if costs.ahead is not None:  # every later message's receiver asks for this one too
                    turn = min(i for _, (_, i) in lane[number:]) - costs.ahead - 1
                    start = max(start, ends.get(rows[rank][turn], 0.0) if turn >= 0 else 0.0)
                border = action.stage - (action.kind != "F")
                there[action] = start + send[border]
                free = there[action] if costs.link else 0.0
        for row in rows:
            free = 0.0
            for action in row:
                stage, kind, _ = action
                back = kind in "BI"
                other = stage + 1 if back else stage - 1 if kind == "F" else -1
                came = (
                    ends if 0 <= other < schedule.stages and home[other] == home[stage] else there
                )
                if 0 <= other < schedule.stages:
                    made = [action._replace(stage=other, kind=k) for k in ("BI" if back else "F")]
                    free = max(free, *(came.get(one, 0.0) for one in made), 0.0)
                free += table["FBIW".index(kind), stage]
                free -= saved[stage] if firsts.get(stage) == action else 0.0
                ends[action] = free
        if (ends, there) == before:
            return max(ends.values())
    raise AssertionError("no end in sight")


def some_costs(rng, stages, **more):
    """Random times of every stage, in eighths, so that sums are exact; messages up to 16."""
    times = [rng.integers(1, 17, stages) / 8 for _ in range(3)]
    send = rng.integers(0, [2, 9, 129][rng.integers(3)], max(stages - 1, 0)) / 8
    return Costs(*times, send=send, accumulate=rng.integers(0, 2, stages) / 8, **more)


@pytest.mark.parametrize("name", RULES)
def test_every_schedule_queues_as_by_the_definition(name):
    """Case 14: 40 random sizes and times of each schedule, every link, to the last bit."""
    rng, each = np.random.default_rng(RULES.index(name)), 1 + (name in (*RULES[3:5], *RULES[7:]))
    for _ in range(40):
        ranks = int(rng.integers(1, 5))
        microbatches = int(rng.choice([ranks, 2 * ranks, 3 * ranks]))
        if name == "dualpipe_v":
            microbatches += ranks
        schedule = getattr(rules, name)(each * ranks, microbatches)
        link, ahead = [(None, None), ("pair", None), ("pair", 0), ("pair", 1), ("pair", 2),
                       ("device", None)][rng.integers(6)]  # fmt: skip
        costs = some_costs(rng, schedule.stages, link=link, ahead=ahead, in_turn=True)
        run = play(schedule, costs)
        assert run.makespan == slowly(schedule, costs), (schedule, costs)


@pytest.mark.parametrize("link", ["pair", "device"])
def test_queues_change_nothing_where_messages_are_short(link):
    """Case 14: no two messages meet on a link where each is no longer than the shortest action."""
    for rule in (rules.gpipe, rules.one_f_one_b, rules.zb_h1, rules.zb_h2):
        for send in (0.0, 0.25, 0.5):
            free, queued = (
                play(rule(4, 8), Costs(1, 1, 0.5, send=send, link=l)) for l in (None, link)
            )
            assert np.array_equal(free.starts, queued.starts) or link == "device"
            assert queued.makespan >= free.makespan


def test_rounds_of_many_ranks_queue_as_turns_of_few(monkeypatch):
    """Case 14: both ways to play (clock.py) give the same times with links among the rows."""
    costs = Costs(1.0, 1.25, 0.5, send=3.0, link="pair", ahead=1)
    for rule in (rules.gpipe, rules.zb_v, rules.dualpipe_v):
        schedule = rule(12, 24)
        monkeypatch.undo()
        turns = play(schedule, costs)
        monkeypatch.setattr(clock, "_MANY", 0)
        monkeypatch.setattr(clock, "_turns", lambda *_: 1 / 0)
        rounds = play(schedule, costs)
        assert np.array_equal(rounds.ends, turns.ends)


def test_a_link_is_never_used_twice_at_once():
    """Case 14: on each link every message begins where the one before has ended, or later."""
    costs = Costs(1.0, 1.25, 0.5, send=2.0, link="pair", ahead=1)
    for name in RULES:
        rows = play(getattr(rules, name)(8, 12), costs).ledger.where(lane="comm")
        assert len(rows)
        for pair in {row.members for row in rows}:
            ends = sorted(row.end for row in rows if row.members == pair)
            assert min(np.diff(ends), default=2.0) >= 2.0 - 1e-12


# --- messages that keep their sender, and pairs


def test_a_blocking_pair_is_computed_before_it_is_sent():
    """Case 16: with sends_block an overlapped pair computes, sends F's message, then B's."""
    text = "0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n2F0,2B0,2F1,2B1"
    run = play(text, Costs(overlap=1.5, send=0.25, sends_block=True))
    at = {
        (r.stage, r.op, r.microbatch): (r.start, r.end) for r in run.ledger if r.lane == "compute"
    }
    # 2B0 ends at 5.5, its message at 5.75: the pair runs at once, F1 is there at 7.5, B0 at 7.75
    assert at[2, "B", 0] == (3.5, 5.5)
    assert at[1, "F", 1] == at[1, "B", 0] == (5.75, 7.25)
    assert at[2, "F", 1] == (7.5, 8.5) and at[0, "B", 0] == (7.75, 9.75)
    assert [(s, e) for *_, s, _, e in sends(run, 1)][1:3] == [(7.25, 7.5), (7.5, 7.75)]
    apart = play(text, Costs(send=0.25, sends_block=True))
    at = {
        (r.stage, r.op, r.microbatch): (r.start, r.end) for r in apart.ledger if r.lane == "compute"
    }
    assert at[1, "F", 1] == (5.75, 6.75) and at[1, "B", 0] == (6.75, 8.75)
    assert at[2, "F", 1] == (9.0, 10.0) and at[0, "B", 0] == (9.25, 11.25)


@pytest.mark.parametrize("overlap", [None, 2.5])
def test_nothing_is_paid_before_it_is_computed(overlap):
    """Case 16: a pair of DualPipeV starts when its rank has sent and both its inputs are there."""
    schedule = rules.dualpipe_v(8, 10)
    run = play(schedule, Costs(send=0.5, sends_block=True, overlap=overlap))
    grid, first = schedule.grid, set(schedule.grid.overlapped.tolist())

    def left(at):
        """When the message of an action has left."""
        pair = at if at in first else at - 1
        if pair not in first:
            return run.ends[at] + run.sends[at]
        done = run.ends[pair + 1] + run.sends[pair]
        return done if at == pair else done + run.sends[at]

    for at in first:
        due = [left(at - 1)] + [left(need) for need in grid.needs[at : at + 2] if need >= 0]
        assert run.starts[at] == pytest.approx(max(due))


def test_pairs_in_turn_are_two_actions():
    """Case 14: in_turn plays the two of a pair as Pipeline carries them out."""
    text = "0F0,0F1,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n2F0,2B0,2F1,2B1"
    run = play(text, Costs(send=0.25, in_turn=True))
    plain = play(text.replace("(1F1;1B0)OVERLAP_F_B", "1F1,1B0"), Costs(send=0.25))
    assert np.array_equal(run.ends, plain.ends) and str(run.schedule) == str(plain.schedule)
    assert run.makespan < play(text, Costs(send=0.25)).makespan
