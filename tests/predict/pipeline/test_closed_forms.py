"""Closed forms against play: exact in their domain, refused outside, on random costs."""

import numpy as np
import pytest

from lib.predict.pipeline import schedules as rules
from lib.predict.pipeline.closed_forms import FORMS, Times, alive, idle_time
from lib.predict.pipeline.play import Costs, play

EACH = {"interleaved": 2, "breadth_first": 2, "zb_v": 2, "dualpipe_v": 2}  # stages a rank


def counted(name, run) -> float:
    """The idle time that a closed form speaks of, as play counts it."""
    if name not in ("zb_h2", "zb_v"):
        return run.makespan - run.work.min()
    span = run.bubble("span")
    return span / (1 - span) * run.work[0]


def some_times(rng) -> dict:
    """F, I, W in quarters, often equal; a pair, or none."""
    forward, inputs, weights = rng.integers(1, 9, 3) / 4
    inputs = forward if rng.random() < 0.5 else inputs
    weights = rng.choice([forward, min(forward, inputs), weights])
    pair = rng.choice([0.5, 0.75, 1.0, 1.25]) * (forward + inputs + weights)
    times = {"forward": forward, "backward_input": inputs, "backward_weight": weights}
    return times | ({"overlap": pair} if rng.random() < 0.5 else {})


@pytest.mark.parametrize("name", FORMS)
def test_a_closed_form_is_what_play_counts_or_is_refused(name):
    """Case 16: 300 random p, m and times each: in its domain exact, refused outside of it."""
    rng, exact, refused, wrong = np.random.default_rng(5), 0, 0, 0
    for _ in range(300):
        p, times = int(rng.integers(1, 7)), some_times(rng)
        m, many = int(rng.integers(1, 20)), EACH.get(name, 1)
        try:
            run = play(getattr(rules, name)(many * p, m), Costs(**times))
        except ValueError:
            continue  # the rule itself does not take that number of microbatches
        found = counted(name, run)
        try:
            assert idle_time(name, p, m, Costs(**times)) == pytest.approx(found, abs=1e-9)
            exact += 1
        except ValueError as sentence:
            assert FORMS[name].domain in str(sentence) and "Use play()" in str(sentence)
            refused += 1
            forward, inputs, weights = list(times.values())[:3]
            pair = times.get("overlap", forward + inputs + weights)
            form = FORMS[name].idle(p, m, Times(forward, inputs + weights, inputs, weights, pair))
            wrong += abs(form - found) > 1e-9
    assert exact > 40
    if name in ("naive", "gpipe", "one_f_one_b"):
        assert not refused
    else:
        assert wrong > 0.6 * refused > 0  # a domain is not narrower than it must be


DUAL = [  # ranks, F, I, W, pair (None: F + B) -> whether DeepSeek's form holds
    *(((p, 1, 1, 1, None), True) for p in (2, 3, 4, 8)),
    *(((p, 1, 1, 0.5, None), True) for p in (2, 3, 4, 8)),  # W = F/2
    *(((p, 1, 1, 1, pair), True) for p in (2, 4) for pair in (2.0, 2.5, 3.0)),
    *(((p, 1, 2, 1, None), False) for p in (2, 3, 4, 8)),  # I = 2F
    *(((p, 2, 1, 1, None), False) for p in (2, 3, 4, 8)),
    *(((p, 1, 1, 2, None), False) for p in (2, 3, 4, 8)),  # W = 2F
    *(((p, 1, 1, 1, 1.5), False) for p in (2, 3, 4, 8)),  # a pair that is faster than its B
    *(((p, 1, 1, 1, 3.5), False) for p in (3, 4, 8)),  # a pair that is slower than its two parts
]


@pytest.mark.parametrize(("case", "holds"), DUAL, ids=str)
def test_where_deepseeks_closed_form_holds(case, holds):
    """Case 16: (PP/2 - 1)(F&B + B - 3W) is exact where F = I, W <= F and B <= F&B <= F + B."""
    p, forward, inputs, weights, pair = case
    costs = Costs(forward, inputs, weights, overlap=pair)
    both = forward + inputs + weights if pair is None else pair
    form = (p - 1) * (both + inputs + weights - 3 * weights)
    for m in (2 * p, 2 * p + 1, 4 * p):
        run = play(rules.dualpipe_v(2 * p, m), costs)
        assert (run.makespan - run.work.min() == pytest.approx(form)) == holds
        if holds:
            assert idle_time("dualpipe_v", p, m, costs) == pytest.approx(form)
        else:
            with pytest.raises(ValueError, match="holds where F = I and B = I"):
                idle_time("dualpipe_v", p, m, costs)


def test_what_no_closed_form_counts_is_refused():
    """Case 16: uneven stages, messages and an unknown name get a sentence."""
    for costs in (Costs([1, 2]), Costs(send=0.5), Costs(accumulate=0.5)):
        with pytest.raises(ValueError, match="equal stages, equal microbatches and messages"):
            idle_time("gpipe", 2, 4, costs)
    with pytest.raises(ValueError, match="closed form of dualpipe_v holds where"):
        idle_time("dualpipe_v", 2, 4, Costs(backward=2.5))
    assert idle_time("gpipe", 2, 4, Costs([1, 1], backward=[5.0, 5.0])) == 6.0
    with pytest.raises(ValueError, match="No closed form is called 'gpie'. Choose one of naive,"):
        idle_time("gpie", 2, 4)
    with pytest.raises(ValueError, match="No closed form is called 'gpie'"):
        alive("gpie", 0, 2, 4)
    with pytest.raises(
        ValueError, match="zb_v's memory holds for at least 7 microbatches, but there"
    ):
        alive("zb_v", 0, 4, 6)


@pytest.mark.parametrize("name", FORMS)
def test_memory_of_every_rank_has_a_closed_form(name):
    """Case 16: what each rank keeps at most, for 1 to 6 ranks, 1 to 20 microbatches, any times."""
    rng, there, each = np.random.default_rng(6), 0, EACH.get(name, 1)
    for ranks in range(1, 7):
        for m in range(1, 21):
            try:
                schedule = getattr(rules, name)(each * ranks, m)
                expected = tuple(alive(name, rank, ranks, m, each) for rank in range(ranks))
            except ValueError:
                continue
            times = some_times(rng) | {"send": rng.random(), "activation": 1}
            assert play(schedule, Costs(**times)).peak_bytes == expected
            there += 1
    assert there > 30
