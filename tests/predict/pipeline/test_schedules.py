"""Schedules: the text reads back, the rules say what they promise, the impossible is refused."""

import pickle

import pytest

from lib.predict.pipeline import schedules as rules
from lib.predict.pipeline.actions import Action, Overlap, Schedule, ScheduleError
from lib.predict.pipeline.play import play

SINGLE = (rules.naive, rules.gpipe, rules.one_f_one_b, rules.zb_h1, rules.zb_h2)
SIZES = [(1, 1), (2, 1), (2, 5), (3, 2), (4, 8), (8, 3), (8, 16)]


def row(schedule, rank):
    """A row without the stages: "F0 F1 B0"."""
    return " ".join(f"{a.kind}{a.microbatch}" for a in schedule.actions(rank))


# --- text


@pytest.mark.parametrize("text", ["2F0", "0B11", "13I7", "2W0"])
def test_an_action_prints_as_its_notation_and_reads_back(text):
    assert str(Action.read(text)) == text
    assert Action.read("2W13") == Action(stage=2, kind="W", microbatch=13)


@pytest.mark.parametrize("text", ["", "F0", "2X0", "2F", "-1F0", "2SEND_F0", "2F0,3F0"])
def test_what_is_no_action_is_refused(text):
    with pytest.raises(ValueError, match="is not an action"):
        Action.read(text)


def test_an_overlapped_pair_reads_back():
    pair = Overlap(Action(0, "F", 5), Action(7, "B", 2))
    assert str(pair) == "(0F5;7B2)OVERLAP_F_B" and Overlap.read(str(pair)) == pair
    with pytest.raises(ValueError, match="is not an overlapped pair"):
        Overlap.read("(0F5;7W2)OVERLAP_F_B")


@pytest.mark.parametrize("rule", SINGLE)
@pytest.mark.parametrize(("stages", "microbatches"), SIZES)
def test_a_schedule_reads_back_and_is_found_possible(rule, stages, microbatches):
    schedule = rule(stages, microbatches)
    again = Schedule.read(str(schedule))  # reading checks every rule
    assert again == schedule
    assert (again.ranks, again.stages, again.microbatches) == (stages, stages, microbatches)
    assert schedule.placement == tuple(range(stages))


def test_idle_cells_are_read_over():
    assert Schedule.read("0F0,,,0B0\n,1F0,1B0,\n") == Schedule.read("0F0,0B0\n1F0,1B0")
    assert Schedule([["0F0", None, Action(0, "B", 0)]]) == rules.naive(1, 1)
    assert Schedule(["0F0 0F1 0B0 0B1", "1F0, 1F1, 1B0, 1B1"]) == rules.gpipe(2, 2)


def test_two_schedules_differ_where_their_cells_do():
    assert rules.gpipe(2, 2) != rules.one_f_one_b(2, 2)
    assert rules.gpipe(2, 1) == rules.one_f_one_b(2, 1)
    assert Schedule.read("0F0,0F1,0B0,0B1") != Schedule.read("0F0,1F0,1B0,0B0")


# --- the rules, by hand


def test_naive():
    assert row(rules.naive(3, 2), 1) == "F0 B0 F1 B1"


def test_gpipe():
    assert row(rules.gpipe(3, 3), 1) == "F0 F1 F2 B0 B1 B2"


def test_one_f_one_b():
    schedule = rules.one_f_one_b(3, 4)
    assert row(schedule, 0) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert row(schedule, 1) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert row(schedule, 2) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_zb_h1():
    schedule = rules.zb_h1(3, 4)
    assert row(schedule, 0) == "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3"
    assert row(schedule, 1) == "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3"
    assert row(schedule, 2) == "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3"


def test_zb_h2():
    schedule = rules.zb_h2(3, 4)
    assert row(schedule, 0) == "F0 F1 F2 F3 I0 W0 I1 W1 I2 W2 I3 W3"
    assert row(schedule, 2) == "F0 I0 F1 I1 F2 I2 F3 I3 W0 W1 W2 W3"


def test_interleaved():
    schedule = rules.interleaved(4, 4, chunks=2)
    assert schedule.placement == (0, 1, 0, 1)
    first = "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3"
    assert " ".join(map(str, schedule[0])) == first


@pytest.mark.parametrize(("stages", "microbatches", "chunks"), [(4, 2, 2), (8, 8, 2), (12, 9, 4)])
def test_interleaved_reads_back(stages, microbatches, chunks):
    schedule = rules.interleaved(stages, microbatches, chunks)
    assert Schedule.read(str(schedule)) == schedule
    assert schedule.ranks == stages // chunks


def test_breadth_first():
    first = "0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0"
    assert " ".join(map(str, rules.breadth_first(4, 2, chunks=2)[0])) == first


def test_v():
    """Down the V and up again: rank 0 has the first and the last stage."""
    for rule in (rules.zb_v, rules.dualpipe_v):
        schedule = rule(6, 9)
        assert schedule.placement == (0, 1, 2, 2, 1, 0)
        assert Schedule.read(str(schedule)) == schedule
    assert (
        " ".join(map(str, rules.zb_v(2, 2)[0])) == "0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 1I1 1W1 0I1 0W1"
    )
    pairs = [str(cell) for cell in rules.dualpipe_v(2, 3)[0] if isinstance(cell, Overlap)]
    assert pairs[0] == "(1F1;0B0)OVERLAP_F_B"


@pytest.mark.parametrize(("stages", "microbatches"), [(4, 1), (8, 3), (16, 15), (16, 40)])
def test_zb_v_with_few_microbatches_is_possible(stages, microbatches):
    schedule = rules.zb_v(stages, microbatches)
    assert Schedule.read(str(schedule)) == schedule


def test_a_stream_has_the_order_of_1f1b_and_no_flush():
    stream, step = rules.pipedream(4, 24), rules.one_f_one_b(4, 8)
    assert [stream.actions(r) for r in range(4)] == [
        rules.one_f_one_b(4, 24).actions(r) for r in range(4)
    ]
    steps = rules.repeated(step, 3)
    assert Schedule.read(str(steps)) == steps and steps.microbatches == 24
    # three flushes cost three bubbles, a stream fills and empties once
    assert play(steps).makespan == 3 * (8 + 3) * 3
    assert play(stream).makespan == (24 + 3) * 3


def test_a_repeated_step_is_the_step_with_later_microbatches():
    step = rules.dualpipe_v(4, 5)
    steps = rules.repeated(step, 2)
    assert Schedule.read(str(steps)) == steps  # every rule, and the pairs are where they were
    for rank in range(2):
        later = [a._replace(microbatch=a.microbatch + 5) for a in step.actions(rank)]
        assert steps.actions(rank) == step.actions(rank) + later
        assert len(steps[rank]) == 2 * len(step[rank]) < len(steps.actions(rank))


def test_sizes_that_do_not_divide_are_refused():
    with pytest.raises(
        ValueError,
        match="9 microbatches; 2 rounds cannot share them equally. Choose a multiple of 4, or",
    ):
        rules.interleaved(8, 9, chunks=2)
    with pytest.raises(ValueError, match="7 stages; ranks with 2 each cannot share them equally"):
        rules.interleaved(7, 8, chunks=2)
    with pytest.raises(
        ValueError, match="number of microbatches must be a whole number of at least 1, not 0"
    ):
        rules.gpipe(4, 0)
    with pytest.raises(ValueError, match="8 stages needs at least 8 microbatches, not 7"):
        rules.dualpipe_v(8, 7)
    with pytest.raises(ValueError, match="5 stages; ranks with 2 each cannot share them equally"):
        rules.zb_v(5, 8)


# --- the impossible

IMPOSSIBLE = [
    (
        "0F0,0B0,1F0\n1B0",
        "1B0 stands on rank 1, but stage 1 is on rank 0: all actions of a stage must stand on one "
        "rank.",
        (1, 0),
    ),
    ("0F0,0F0,0B0", "0F0 occurs twice.", (0, 1)),
    (
        "0F0,0B0,0I0",
        "0B0 and 0I0 both occur, but a backward is either whole (B) or split (I and W).",
        (0, 2),
    ),
    ("0F0,0F2,0B0,0B2", "0F1 is missing: every microbatch goes once through every stage.", (0, 4)),
    ("0F0,0B0\n2F0,2B0", "1F0 is missing: every microbatch goes once through every stage.", None),
    ("0F0\n1F0,1B0", "0F0 has no backward. Add 0B0, or 0I0 and 0W0.", (0, 1)),
    ("0F0,0I0", "0I0 has no 0W0: a split backward needs both.", (0, 2)),
    ("0F0,0W0", "0W0 has no 0I0: a split backward needs both.", (0, 2)),
    ("0F0,0B0\n1B0,1F0", "1B0 comes before its forward, 1F0.", (1, 0)),
    ("0F0,0W0,0I0", "0W0 comes before its backward for the input, 0I0.", (0, 1)),
    (
        "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
        "Deadlock: rank 0 stands before 0B0 and waits for 1B0 of rank 1; "
        "rank 1 stands before 1F1 and waits for 0F1 of rank 0.",
        (0, 1),
    ),
    (
        "1F0,0F0,1B0,0B0",
        "Deadlock: rank 0 stands before 1F0 and waits for 0F0 later in its row.",
        (0, 0),
    ),
]


@pytest.mark.parametrize(("text", "sentence", "cell"), IMPOSSIBLE)
def test_the_impossible_is_refused_with_the_reason(text, sentence, cell):
    with pytest.raises(ScheduleError) as caught:
        Schedule.read(text)
    assert caught.value.sentence == sentence
    assert caught.value.cells[:1] == ([cell] if cell else [])


def test_a_rank_without_work_is_refused():
    with pytest.raises(ScheduleError, match="Rank 1 has no actions"):
        Schedule([["0F0", "0B0"], []])
    with pytest.raises(ScheduleError, match="this one has no rows"):
        Schedule([])


def test_the_grid_points_at_the_bad_cells():
    with pytest.raises(ScheduleError) as caught:
        play("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1")
    grid = str(caught.value).split("\n\n")[1].splitlines()
    assert grid == [
        "rank 0  0F0 0B0 0F1 0B1",
        "            ↑",
        "rank 1  1F0 1F1 1B0 1B1",
        "            ↑",
    ]


def test_schedules_and_refusals_travel_to_ranks_and_back():
    schedule = rules.dualpipe_v(4, 5)
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    with pytest.raises(ScheduleError) as caught:
        Schedule.read("0F0,0F0,0B0")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.cells) == (str(caught.value), [(0, 1)])


def test_a_large_grid_is_cut_around_the_bad_cell():
    rows = [list(map(str, row)) for row in rules.one_f_one_b(32, 40)]
    at = rows[20].index("20F30")
    rows[20][at], rows[20][at + 1] = rows[20][at + 1], "20B30"
    with pytest.raises(ScheduleError, match="20B30 occurs twice") as caught:
        Schedule(rows)
    lines = str(caught.value).split("\n\n")[1].splitlines()
    arrow = next(n for n, line in enumerate(lines) if "↑" in line)
    where = lines[arrow].index("↑")
    assert lines[arrow - 1].startswith("rank 20  ...") and lines[arrow - 1][where:].startswith("20")
    assert len(lines) < 12 and max(map(len, lines)) < 100
