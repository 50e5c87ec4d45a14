"""Tables that compare schedules, and the figures that chapter 6 says of them."""

from dataclasses import replace

import pytest

from lib.course.pipeline.bubbles import Score, idle_share, score, table, table_of_runs
from lib.predict.pipeline import schedules as rules
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import repeated
from tests.course.stored_chapter import stored_chapter, text_of


def test_thin_stages_do_the_work_of_a_thick_one():
    thick, thin = score(rules.one_f_one_b(4, 8)), score(rules.interleaved(8, 8, 2))
    assert thick == Score("1F1B", 33, 33, 3 / 11, 3 / 8, 3 / 11, (4, 3, 2, 1))
    assert thin.overhead == pytest.approx(3 / (2 * 8))  # (p-1)/(v m)
    assert thin.makespan == pytest.approx(24 * (1 + 3 / 16))
    assert score(rules.zb_v(8, 8)).alive == (4, 4, 4, 4)
    more = [two - one for one, two in zip(thick.alive, thin.alive)]
    assert more == [1.5] * 4  # interleaving keeps as much more on every rank


def test_costs_are_those_of_a_rank_and_messages_stay_whole():
    costs = Costs(2, 3, 1, send=0.25)
    assert score(rules.zb_h1(4, 8), costs).makespan == play(rules.zb_h1(4, 8), costs).makespan
    half = Costs(1, 1.5, 0.5, send=0.25)
    assert score(rules.zb_v(8, 8), costs).makespan == play(rules.zb_v(8, 8), half).makespan
    whole = Costs(2, 3, 1, backward=5, accumulate=0.5, send=8.0, link="pair", ahead=1)
    half = Costs(1, 1.5, 0.5, backward=2.5, accumulate=0.25, send=8.0, link="pair", ahead=1)
    looped = rules.interleaved(8, 8)
    assert score(looped, whole).makespan == play(looped, half).makespan
    steps = play(repeated(looped, 16), replace(half, cleared=8))
    assert score(looped, whole).in_a_run == steps.makespan / 16, "each step clears the gradients"
    assert steps.makespan < play(repeated(looped, 16), half).makespan


def test_a_table_has_a_line_for_each_schedule():
    lines = table(rules.gpipe(4, 8), rules.zb_h2(4, 8)).splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "bubbles in % step run share over span",
        "GPipe m=8 33 33.0 27.3 37.5 27.3",
        "ZB-H2 m=8 27 24.2 11.1 12.5 0.0",
        "microbatches kept, by rank",
        "GPipe m=8 8 8 8 8",
        "ZB-H2 m=8 7 7 7 7",
    ]
    lines = table(rules.gpipe(4, 8), in_a_run=False).splitlines()
    assert [" ".join(line.split()) for line in lines[:2]] == [
        "bubbles in % step share over span",
        "GPipe m=8 33 27.3 37.5 27.3",
    ]
    widest = table(rules.naive(4, 8), rules.gpipe(8, 32), rules.interleaved(8, 8)).splitlines()
    assert max(map(len, [*lines, *widest])) == 44  # what a phone shows


def test_a_table_of_runs_has_the_idle_share_that_no_order_avoids():
    runs = [play(rule(4, 8), Costs([1e-3, 2e-3, 2e-3, 1e-3], 1e-3, 1e-3))
            for rule in (rules.one_f_one_b, rules.zb_h1)]  # fmt: skip
    head, *lines = table_of_runs(*runs).splitlines()
    wide = table_of_runs(runs[0], play(rules.interleaved(8, 8, 2))).splitlines()
    assert len({*map(len, wide)}) == len({len(head), *map(len, lines)}) == 1 and len(wide[0]) == 47
    assert head.split() == ["bubbles", "in", "%", "step,", "ms", "share", "span", "uneven"]
    for line, run in zip(lines, runs):
        name, step, share, span, uneven = line.split()
        assert name == run.schedule.name and float(step) == round(1e3 * run.makespan, 2)
        assert (share, span) == (f"{100 * run.bubble():.1f}", f"{100 * run.bubble('span'):.1f}")
        assert uneven == "12.5"  # the work is 3, 4, 4, 3 ms a microbatch


def test_interleaving_keeps_what_the_card_says_where_m_is_a_multiple_of_p_and_at_least_2p():
    for p, m in ((2, 4), (3, 9), (4, 8), (4, 12), (8, 16)):
        kept = score(rules.interleaved(2 * p, m)).alive
        assert kept == tuple(p - r + (p - 1) / 2 for r in range(p))
    assert [score(rules.interleaved(8, m)).alive[0] for m in (4, 5, 6, 7, 10)] == [4, 5, 6, 7, 6]
    for p, m in ((4, 4), (4, 10), (8, 12)):
        assert score(rules.interleaved(2 * p, m)).makespan == 3 * m + 3 * (p - 1) / 2


def test_consecutive_steps_tile_only_without_a_flush():
    """ZB-H1 takes 27.0 in each of sixteen steps, ZB-H2 24.2 of which 0.8 % is idle."""
    h1, h2 = (repeated(rule(4, 8), 16) for rule in (rules.zb_h1, rules.zb_h2))
    assert play(h1).makespan / 16 == 27
    assert play(h2).makespan == 387 == 16 * 24 + 3
    rows = play(rules.zb_h1(4, 8)).ledger.where(lane="compute", rank=0)
    assert min(row.start for row in rows) == 0 and max(row.end for row in rows) == 27
    starts = [
        [row.start for row in play(repeated(rules.zb_h2(4, 8), 3)).ledger.where(op="F", rank=rank)]
        for rank in (0, 3)
    ]
    assert [of_rank[::8] for of_rank in starts] == [[0, 24, 48], [3, 27, 51]]
    assert play(h2).makespan / 16 == score(rules.zb_h2(4, 8)).in_a_run == 24.1875
    assert f"{play(h2).bubble():.1%}" == "0.8%"


def test_the_bubble_at_m_4p_cannot_be_neglected():
    shares = [f"{play(rules.gpipe(p, 4 * p)).bubble():.1%}" for p in (4, 8)]
    assert shares == ["15.8%", "17.9%"]
    assert play(rules.gpipe(64, 256)).bubble() == pytest.approx(1 / 5, abs=0.003)


def test_the_idle_share_of_rows_is_that_of_the_run():
    run = play(rules.one_f_one_b(4, 8), Costs([1, 2, 2, 1], send=0.25))
    assert idle_share(run.ledger.where(lane="compute")) == pytest.approx(run.bubble("share"))


def test_the_answers_to_the_questions_under_turn_it():
    each = Costs(0.5, 0.5, 0.5)
    for send, makespans in ((0, (33, 33, 28.5)), (1, (39, 49, 46))):
        costs = {"send": send}
        assert play(rules.gpipe(4, 8), Costs(**costs)).makespan == makespans[0]
        assert play(rules.one_f_one_b(4, 8), Costs(**costs)).makespan == makespans[1]
        assert play(rules.interleaved(8, 8), Costs(0.5, 0.5, 0.5, **costs)).makespan == makespans[2]
    assert [play(rules.zb_h2(4, 8), Costs(send=send)).makespan for send in (0, 1)] == [27, 30]
    assert play(rules.zb_v(8, 8), each).bubble("span") == 0
    assert f"{play(rules.zb_v(8, 8), Costs(0.75, 0.5, 0.5)).bubble('span'):.1%}" == "5.1%"
    for rule in (rules.one_f_one_b, rules.zb_h1, rules.zb_h2):
        assert play(rule(4, 8), Costs(1, 1, 0)).makespan == 22 == 8 * 2 + 3 + 3
    rows = [
        [[str(act).replace("I", "B") for act in row if "W" not in str(act)] for row in rule(4, 8)]
        for rule in (rules.one_f_one_b, rules.zb_h1, rules.zb_h2)
    ]
    assert rows[0] == rows[1] != rows[2]  # without Ws, ZB-H2 still starts its forwards earlier


def test_messages_of_a_v_cross_one_border_less():
    """Stages p - 1 and p are on one rank, so 2p - 2 of the 2p - 1 borders carry messages."""
    for rule, borders in ((rules.zb_v, 6), (rules.dualpipe_v, 6), (rules.interleaved, 7)):
        placement = rule(8, 8).placement
        assert sum(one != two for one, two in zip(placement, placement[1:])) == borders


def test_1f1b_on_two_ranks_is_at_most_1_78_times_as_fast_as_one_rank_at_a_time():
    """The chapter says that 1F1B is at most 1.78 times as fast as the naive schedule."""
    naive, order, h1 = (
        play(rule(2, 8)).makespan for rule in (rules.naive, rules.one_f_one_b, rules.zb_h1)
    )
    assert (naive, order, h1) == (48, 27, 25)
    assert round(naive / order, 2) == 1.78 == round(2 * 8 / (8 + 1), 2)
    told = "it could be 2·8/(8+1) = 1.78 times as fast."
    assert told in text_of(stored_chapter("06-pipeline-bubbles"))


def test_recomputation_takes_a_forward_more_for_each_backward():
    assert play(rules.gpipe(4, 8), Costs(forward=1, backward=3)).makespan == 44 == 4 / 3 * 33


def early_recomputation(p: int, m: int) -> float:
    """A rank recomputes as soon as it is free; only the rest of its backward waits for others."""
    free = [rank + m for rank in range(p)]  # when each rank ends its last forward
    for _ in range(m):
        arrives = 0.0
        for rank in reversed(range(p)):
            free[rank] = arrives = max(free[rank] + 1, arrives) + 2
    return free[0]


def test_recomputation_before_the_gradient_arrives_takes_41_as_the_chapter_says():
    """With m = 4p its ranks still idle for 12.3 % of the time."""
    text = text_of(stored_chapter("06-pipeline-bubbles"))
    assert "the makespan of GPipe grows from 33 to 44." in text
    assert "The makespan is 8 · 4 + 3 · 3 = 41." in text
    assert "16 · 4 + 3 · 3 = 73, of which 9/73 = 12.3\u00a0% are idle." in text
    for p, m, makespan in ((4, 8, 41), (4, 16, 73)):
        assert early_recomputation(p, m) == makespan == m * (1 + 1 + 2) + (p - 1) * (1 + 2)
    assert f"{1 - 16 * 4 / early_recomputation(4, 16):.1%}" == "12.3%"


def test_zb_h2_gains_in_a_single_step_where_w_is_short():
    """Both take 27 with equal times, and 23 against 24.5 with T_W = 1/2."""
    for weight, steps in ((1, (27, 27)), (0.5, (24.5, 23))):
        costs = Costs(forward=1, backward_input=1, backward_weight=weight)
        orders = rules.zb_h1(4, 8), rules.zb_h2(4, 8)
        assert tuple(play(order, costs).makespan for order in orders) == steps
