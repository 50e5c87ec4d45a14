"""Played schedules against closed forms, published tables, and the memory that they hold."""

import pytest

from lib.predict.pipeline import schedules as rules
from lib.predict.pipeline.play import Costs, play
from tests.every import every
from tests.predict.pipeline.test_play import SINGLE

# --- closed forms, exact where stages are equal and messages take no time


@pytest.mark.parametrize("p", [1, 2, 4, 8])
@pytest.mark.parametrize("m", [8, 11, 32])
def test_closed_forms(p, m):
    forward, inputs, weights = 1.0, 1.25, 0.75
    costs = Costs(forward, inputs, weights)
    # GPipe (arXiv 1811.06965) and Narayanan et al. (arXiv 2104.04473)
    for rule in (rules.gpipe, rules.one_f_one_b):
        run = play(rule(p, m), costs)
        assert run.bubble("share") == pytest.approx((p - 1) / (m + p - 1), abs=1e-12)
        assert run.bubble("overhead") == pytest.approx((p - 1) / m, abs=1e-12)
    assert play(rules.naive(p, m), costs).bubble("share") == pytest.approx(1 - 1 / p)
    for v in (2, 4):
        if m % p == 0:  # a chunk is a v-th of a stage
            run = play(rules.interleaved(p * v, m, v), Costs(forward / v, inputs / v, weights / v))
            assert run.bubble("overhead") == pytest.approx((p - 1) / m / v, abs=1e-12)


def exposed(run):
    """Idle time of the rank with the longest span, as Qi et al. count it."""
    span = run.bubble("span")
    return span / (1 - span) * run.work[0]


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("times", [(1, 1, 1), (1, 1.25, 0.75), (2, 2, 1), (1, 2, 1), (1, 1, 0.125)])
def test_zero_bubble_closed_forms(p, times):
    """(p-1)(TF + TB + TW), less TW or 2TW: exact where W is no longer than F and than I.

    Qi et al. 2023, arXiv 2401.10241, table 2. DeepSeek's (PP-1)(F + B - 2W) for ZB1P is ZB-H1's
    with B for the whole backward (arXiv 2412.19437, table 2).
    """
    forward, inputs, weights = times
    costs, m = Costs(*times), 3 * p
    assert exposed(play(rules.one_f_one_b(p, m), costs)) == pytest.approx((p - 1) * sum(times))
    h1 = (p - 1) * (forward + inputs - weights)
    assert exposed(play(rules.zb_h1(p, m), costs)) == pytest.approx(h1)
    assert h1 == (p - 1) * (forward + (inputs + weights) - 2 * weights)
    h2 = (p - 1) * (forward + inputs - 2 * weights)
    assert exposed(play(rules.zb_h2(p, m), costs)) == pytest.approx(h2, abs=1e-12)


def test_zero_bubble_closed_forms_promise_too_much_where_w_is_long():
    costs = Costs(1.0, 1.0, 1.5)
    assert exposed(play(rules.zb_h1(4, 16), costs)) == pytest.approx(3.0)  # the form: 1.5
    assert exposed(play(rules.zb_h2(4, 16), costs)) == pytest.approx(0.0)  # the form: -3


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("times", [(1, 1, 1, 3), (1, 1, 1, 2), (2, 2, 1, 4.5), (1, 1, 0.5, 2.5)])
@pytest.mark.parametrize("more", [0, 2, 20])
def test_dualpipe_v_has_deepseeks_bubble(ranks, times, more):
    """(PP/2 - 1)(F&B + B - 3W) with PP = 2·ranks (arXiv 2412.19437, table 2), in its domain.

    Exact where F = I, W <= F and B <= F&B <= F + B: test_closed_forms.py has the
    borders.
    It is the idle time of the rank that idles most; memory is that of PP + 1 microbatches a stage.
    """
    forward, inputs, weights, pair = times
    costs = Costs(forward, inputs, weights, overlap=pair, activation=1)
    run = play(rules.dualpipe_v(2 * ranks, 2 * ranks + more), costs)
    expected = (ranks - 1) * (pair + inputs + weights - 3 * weights)
    assert run.makespan - run.work.min() == pytest.approx(expected)
    assert run.peak_bytes == (2 * ranks + 1,) * ranks


def test_dualpipe_v_is_off_deepseeks_formula_where_f_and_i_differ():
    run = play(rules.dualpipe_v(8, 20), Costs(1.0, 1.25, 0.75, overlap=2.5))
    assert run.makespan - run.work.min() == 6.0
    assert 3 * (2.5 + 2.0 - 3 * 0.75) == 6.75


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_zb_v_has_no_bubble_and_level_memory(ranks):
    """No rank idles inside its own span where F = I = W; each keeps 2p halves (section 6)."""
    for m in (2 * ranks, 5 * ranks):
        run = play(rules.zb_v(2 * ranks, m), Costs(activation=1))
        assert run.bubble("span") == pytest.approx(0, abs=1e-12)
        assert run.makespan == 6 * m + ranks - 1
        assert run.peak_bytes == (2 * ranks,) * ranks


@pytest.mark.parametrize("chunks", [2, 4])
def test_breadth_first_has_the_bubble_of_interleaving_and_gpipes_memory(chunks):
    costs = Costs(1 / chunks, 1 / chunks, 1 / chunks)
    run = play(rules.breadth_first(4 * chunks, 8, chunks), costs)
    assert run.bubble("overhead") == pytest.approx(3 / 8 / chunks)
    assert run.peak_microbatches == (8,) * (4 * chunks)


def test_interleaving_keeps_more_than_1f1b():
    """On the first stage 1 + (p-1)/(p·v) as much (Korthikanti et al. 2022, arXiv 2205.05198)."""
    for p, v in ((4, 2), (8, 3), (8, 4)):
        run = play(rules.interleaved(p * v, 4 * p, v), Costs(activation=1))
        assert run.peak_bytes[0] / (p * v) == pytest.approx(1 + (p - 1) / (p * v))


# Qi et al. 2023, arXiv 2401.10241: times in ms from table 9, bubble rates from table 5.
# p, m, TF, TB, TW, Tcomm -> 1F1B, ZB-H1, ZB-H2
PUBLISHED = [
    ((8, 24, 18.522, 18.086, 9.337, 0.601), (0.2431, 0.1585, 0.1083)),
    ((8, 32, 18.513, 18.086, 9.331, 0.626), (0.1985, 0.1242, 0.0837)),
    ((8, 64, 18.546, 18.097, 9.321, 0.762), (0.1240, 0.0674, 0.0444)),
    ((8, 24, 29.718, 29.444, 19.927, 0.527), (0.2347, 0.1323, 0.0698)),
    ((8, 32, 29.802, 29.428, 19.530, 0.577), (0.1898, 0.1045, 0.0559)),
    ((8, 64, 29.935, 29.621, 19.388, 0.535), (0.1091, 0.0554, 0.0294)),
    ((16, 48, 11.347, 11.248, 8.132, 0.377), (0.2552, 0.1397, 0.0672)),
    ((16, 64, 11.307, 11.254, 8.101, 0.379), (0.2082, 0.1088, 0.0516)),
    ((16, 128, 11.325, 11.308, 8.109, 0.378), (0.1251, 0.0576, 0.0266)),
]


@pytest.mark.parametrize(("given", "published"), PUBLISHED)
def test_zero_bubble_table_5_from_table_9(given, published):
    p, m, forward, inputs, weights, send = given
    costs = Costs(forward, inputs, weights, send)
    found = [
        round(play(rule(p, m), costs).bubble("span"), 4)
        for rule in (rules.one_f_one_b, rules.zb_h1, rules.zb_h2)
    ]
    assert found == list(published)


# The same tables' 1F1B-I, of v chunks. How its messages were counted is not said there.
CHUNKS = [3, 3, 3, 4, 4, 4, 3, 3, 3]
INTERLEAVED = [0.1055, 0.0818, 0.0443, 0.0808, 0.0628, 0.0320, 0.1104, 0.0852, 0.0445]


@pytest.mark.parametrize(("row", "v", "published"), list(zip(PUBLISHED, CHUNKS, INTERLEAVED)))
def test_interleaved_of_table_5_does_not_recompute(row, v, published):
    """With every message counted ours is up to 0.0035 above the published, without any below it."""
    p, m, *times, send = row[0]
    cut = [time / v for time in times]
    whole, free = (
        play(rules.interleaved(p * v, m, v), Costs(*cut, send=each)).bubble("span")
        for each in (send, 0.0)
    )
    assert 0.0007 < whole - published < 0.0036 and free < published - 0.005


# --- memory


def test_microbatches_alive_by_stage():
    p, m = 4, 12
    peaks = lambda schedule: play(schedule).peak_microbatches
    assert peaks(rules.naive(p, m)) == (1, 1, 1, 1)
    assert peaks(rules.gpipe(p, m)) == (12, 12, 12, 12)
    assert peaks(rules.one_f_one_b(p, m)) == (4, 3, 2, 1)  # p - r: Narayanan et al. 2020
    assert peaks(rules.zb_h1(p, m)) == (4, 4, 4, 4)
    assert peaks(rules.zb_h2(p, m)) == (7, 7, 7, 7)  # 2p - 1: Qi et al. 2023, table 2
    assert peaks(rules.interleaved(4, 4, 2)) == (4, 3, 2, 1)


@pytest.mark.parametrize("p", [2, 4, 8])
def test_zero_bubble_memory_by_stage(p):
    """(p-i+1)·MB + (i-1)·MW for H1 and (2p-2i+1)·MB + (2i-2)·MW for H2, i from 1 (Qi et al. 2023).

    W lags by i-1 backwards in H1, so that many microbatches keep what their W needs.
    """
    whole, kept = 1000, 300
    costs = Costs(activation=whole, kept=kept)
    for rank, (h1, h2) in enumerate(
        zip(play(rules.zb_h1(p, 4 * p), costs).peak_bytes,
            play(rules.zb_h2(p, 4 * p), costs).peak_bytes)
    ):  # fmt: skip
        assert h1 == (p - rank) * whole + rank * kept
        assert h2 == (2 * p - 2 * rank - 1) * whole + 2 * rank * kept


def test_memory_grows_from_i_to_w_where_the_gradients_that_w_needs_are_counted():
    """Rank r waits for r Ws, and for one more between an I and the W that follows it."""
    run = play(rules.zb_h1(4, 8), Costs(activation=100, kept=169))
    assert run.peak_bytes == (3 * 100 + 169, 2 * 100 + 2 * 169, 100 + 3 * 169, 4 * 169)
    assert play(rules.one_f_one_b(4, 8), Costs(activation=100, kept=169)).peak_bytes[0] == 400


@pytest.mark.parametrize("kept", [[2, 2, 1, 0], [9, 6, 5, 3]])
@pytest.mark.parametrize("rule", SINGLE)
def test_memory_is_empty_at_the_end(rule, kept):
    run = play(rule(4, 6), Costs(activation=[8, 4, 2, 1], kept=kept))
    last = {row.rank: row.bytes for row in run.memory}
    assert last == dict.fromkeys(range(4), 0)
    assert every(row.bytes >= 0 for row in run.memory)
    counted = [max(r.bytes for r in run.memory if r.rank == rank) for rank in range(4)]
    assert run.peak_bytes == tuple(counted)
    assert run.peak_bytes[0] == 8 * run.peak_microbatches[0] or rule in (rules.zb_h1, rules.zb_h2)
