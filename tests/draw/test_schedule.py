"""The still of the schedule explorer: where every bar lies, what is written, what is refused."""

import numpy as np
import pytest

from lib.draw import schedule
from lib.draw.parts import style
from lib.draw.schedule import KINDS, MOST_ACTIONS, MOST_RANKS
from lib.predict.pipeline.actions import Schedule
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import dualpipe_v, gpipe, one_f_one_b, zb_h1
from tests.draw.marks import texts, tint
from tests.every import every

LEFT, RIGHT = 62, 499  # px, where the times begin and end
MEMORY = 517  # px, where the memory begins


def bars(picture, rank=None) -> dict:
    """The bars of actions, by their text."""
    found = {m.about.split(" on ")[0]: m for m in picture.marks if ", microbatch " in m.about}
    of_rank = f" on rank {rank}: "
    return {text: m for text, m in found.items() if rank is None or of_rank in m.about}


def value(picture, name: str) -> str:
    """What stands under one of the names above the rows."""
    words = texts(picture)
    return words[words.index(name) + 1]


def test_every_action_lies_where_play_says():
    costs = Costs([1, 2, 1], [1.5, 1, 1], [1, 0.5, 1], send=0.25)
    made = zb_h1(3, 5)
    run, picture = play(made, costs), schedule(made, costs=costs)
    found = bars(picture)
    every = [action for rank in range(3) for action in made.actions(rank)]
    assert len(found) == len(every) == 45
    pixels = (RIGHT - LEFT) / run.makespan
    tops = set()
    for rank in range(3):
        here = bars(picture, rank)
        assert list(here) == [str(action) for action in made.actions(rank)]
        assert len({bar.y for bar in here.values()}) == 1
        tops.add(here[f"{rank}F0"].y)
    assert sorted(tops) == [44, 67, 90]  # rank 0 on top
    for action, start, end in zip(every, run.starts, run.ends):
        bar = found[str(action)]
        assert bar.x == pytest.approx(LEFT + start * pixels)
        assert bar.w == pytest.approx((end - start) * pixels)
        assert bar.fill == style.colour(action.kind)
        assert bar.about.endswith(f"from {start:.4g} to {end:.4g}")


def test_idle_says_what_it_waits_for():
    idle = [m for m in schedule("1f1b", 2, 2).marks if " idle from " in m.about]
    assert [mark.about for mark in idle] == [
        "rank 0 idle from 2 to 4: waits for 1B0",
        "rank 0 idle from 6 to 7: waits for 1B1",
        "rank 1 idle from 0 to 1: waits for 0F0",
        "rank 1 idle from 7 to 9: has done all it has to do",
    ]
    assert not any(mark.fill or mark.edge for mark in idle)  # idle is paper


def test_microbatches_stand_in_the_bars_that_have_room():
    numbers = lambda picture: [m.text for m in picture.marks if m.align == "middle" and m.y < 60]
    wide, narrow = schedule("1f1b", 4, 8), schedule("1f1b", 4, 24)
    assert numbers(wide) == list("0123041526374567")
    assert numbers(narrow) == list("0123456789")  # backwards; forwards have 5 px each
    some = schedule("gpipe", 2, 12)
    widths = {m.x + m.w / 2: m.w for m in bars(some, 0).values()}
    fits = [m for m in some.marks if m.align == "middle" and m.x in widths and m.y < 60]
    assert {m.text for m in fits} == {str(i) for i in range(12)}
    assert every(widths[m.x] > len(m.text) * style.LETTER for m in fits)


def test_the_numbers_are_those_of_play_and_carry_their_formula():
    run, picture = play(one_f_one_b(4, 8)), schedule()
    assert value(picture, "makespan") == "33"
    assert (
        value(picture, "bubble share")
        == "27.3 %"
        == f"{run.bubble('share'):.1%}".replace("%", " %")
    )
    assert value(picture, "bubble overhead") == "37.5 %"
    assert value(picture, "bubble span") == "27.3 %"
    about = [mark.about for mark in picture.marks if mark.about.startswith("bubble, ")]
    assert "idle ÷ (ranks · makespan) = 36 ÷ 132; GPipe's (p−1)/(m+p−1)" in about[0]
    assert "idle ÷ work = 36 ÷ 96; Narayanan's (p−1)/m" in about[1]
    assert "here rank 0: (33 − 24) ÷ 33; the zero-bubble paper's" in about[2]


def test_the_memory_is_the_peak_of_each_rank_in_whole_microbatches():
    def kept(picture):
        found = [m for m in picture.marks if " keeps the activations of at most " in m.about]
        return found, [float(m.about.split("at most ")[1].split(" ")[0]) for m in found]

    found, amounts = kept(schedule())
    assert amounts == [4, 3, 2, 1] == list(play(one_f_one_b(4, 8)).peak_microbatches)
    np.testing.assert_allclose([m.w / found[3].w for m in found], amounts)
    assert {m.x for m in found} == {MEMORY}
    # Two stages a rank: a microbatch counts as one where both of them keep it.
    run, (found, amounts) = play(KINDS["zb-v"][1](8, 8)), kept(schedule("zb-v", 8, 8))
    assert amounts == [4, 4, 4, 4]
    assert found[1].about.endswith(
        f"stage 1: {run.peak_microbatches[1]}, stage 6: {run.peak_microbatches[6]}"
    )
    bytes_ = play(KINDS["interleaved"][1](8, 8, 2), Costs(activation=10)).peak_bytes
    assert kept(schedule("interleaved", 8, 8, 2))[1] == [kept_ / 20 for kept_ in bytes_]


def test_the_second_stage_of_a_rank_is_paler_and_has_an_edge():
    found = bars(schedule("interleaved", 4, 4, 2))
    first, second = found["0F0"], found["2F0"]
    assert second.y == first.y + 0.5  # inside its edge
    assert (first.fill, first.edge) == (style.colour("F"), style.PAPER)
    assert (second.fill, second.edge) == (tint(style.colour("F"), 0.5), style.colour("F"))
    assert "2nd stage of a rank" in texts(schedule("interleaved", 4, 4, 2))
    assert "2nd stage of a rank" not in texts(schedule())


def test_a_pair_that_runs_side_by_side_shares_its_row():
    made = dualpipe_v(4, 4)
    side, after = schedule(made, costs=Costs(overlap=2.0)), schedule(made)
    pair = next(cell for row in made for cell in row if "OVERLAP" in str(cell))
    above, below = (bars(side)[str(action)] for action in pair)
    assert above.x + above.w / 2 == pytest.approx(below.x + below.w / 2)
    assert below.y >= above.y + above.h  # one over the other
    above, below = (bars(after)[str(action)] for action in pair)
    assert above.y == pytest.approx(below.y, abs=0.5)
    assert below.x == pytest.approx(above.x + above.w, abs=1)


def test_par_and_limit_are_met_or_not():
    met = schedule("1f1b", 4, 8, par=33, limit=4)
    assert value(met, "makespan") == "33 · goal 33 ✓"
    assert "limit 4 ✓" in texts(met)
    missed = schedule("gpipe", 4, 8, par=32, limit=4)
    assert value(missed, "makespan") == "33 · goal 32 ✗"
    assert "limit 4 ✗" in texts(missed)
    line = next(mark for mark in missed.marks if mark.about == "the goal for the makespan: 32")
    assert line.points[0][0] == pytest.approx(LEFT + 32 / 33 * (RIGHT - LEFT))
    over = [m for m in missed.marks if m.kind == "box" and m.hatch and m.x > RIGHT]
    inside = [m for m in missed.marks if " keeps " in m.about]
    assert len(over) == len(inside) == 4
    assert [m.w for m in over] == [pytest.approx(m.w) for m in inside]  # 8 alive, 4 allowed
    far = schedule("1f1b", 4, 8, par=66)
    assert max(m.x + m.w for m in bars(far).values()) == pytest.approx((LEFT + RIGHT) / 2, abs=1)


def test_what_it_says_in_words():
    assert schedule().summary == (
        "1F1B: 4 stages on 4 ranks, 8 microbatches; F 1, I 1, W 1, send 0\n"
        "  makespan 33; bubble share 27.3 %, overhead 37.5 %, span 27.3 %\n"
        "  microbatches alive at most, by stage: 4, 3, 2, 1"
    )
    costs = Costs([0.001, 0.002], send=0.0005)
    one = schedule("gpipe", 2, 1, costs=costs, unit="s").summary
    assert one.startswith("GPipe: 2 stages on 2 ranks, 1 microbatch; F 1 ms to 2 ms, I 1 s, ")


def test_it_starts_from_what_was_given():
    costs = Costs([1, 2, 1, 1.5], 1.0, 0.5, send=[0.25, 0.5, 0.25], backward=[3, 3, 3, 3])
    kind, data = schedule("interleaved", 4, 4, 2, costs).live
    assert kind == "schedule"
    assert (data["kind"], data["ranks"], data["microbatches"], data["chunks"]) == (
        "interleaved",
        2,
        4,
        2,
    )
    # A slider's time is that of all stages of a rank: so the same work can be cut anew.
    assert data["values"] == pytest.approx(
        {"forward": 2.75, "backward_input": 2, "backward_weight": 1, "send": 1 / 3}
    )
    assert data["shapes"] == {"forward": [1, 2, 1, 1.5], "send": [0.25, 0.5, 0.25]}
    assert data["ratios"] == {"backward": [2, 2, 2, 2]}
    for name, given in data["values"].items():
        assert data["scale"][name]["max"] >= 1.4 * given
    own = Schedule(gpipe(2, 70), "my own")
    _, data = schedule(own).live
    assert (data["kind"], data["name"], data["rows"]) == ("given", "my own", str(own))
    assert data["most"]["microbatches"] == 70


@pytest.mark.parametrize(
    "given, sentence",
    [
        (("2f2b",), "No schedule is called '2f2b': naive, gpipe, 1f1b, interleaved, "),
        (("1f1b", 0, 8), "stages is 0: a schedule has at least 1, a whole number."),
        (("1f1b", 4, 0), "microbatches is 0: a schedule has at least 1"),
        (("1f1b", 4, 2.5), "microbatches is 2.5: a schedule has at least 1, a whole number."),
        (
            ("interleaved", 8, 9, 2),
            "The batch has 9 microbatches; 2 rounds cannot share them equally. Choose",
        ),
        (("interleaved", 7, 8, 2), "The model has 7 stages; ranks with 2 each cannot"),
        (("1f1b", MOST_RANKS + 1, 4), "33 ranks with 264 actions are too many to draw: at most 32"),
        (
            ("gpipe", 32, 126),
            f"32 ranks with 8,064 actions are too many to draw: at most 32 ranks "
            f"and {MOST_ACTIONS:,} actions.",
        ),  # fmt: skip
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(given, sentence):
    with pytest.raises(ValueError) as refused:
        schedule(*given)
    assert str(refused.value).startswith(sentence)


def test_costs_and_goals_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="every action takes 0. Give F, I or W a time"):
        schedule(costs=Costs(0, 0, 0, send=1.0))
    with pytest.raises(ValueError, match="forward has 3 entries, but this schedule has 4 stages"):
        schedule(costs=Costs([1, 2, 3]))
    with pytest.raises(ValueError, match="but its parts take none"):
        schedule(costs=Costs(1, 0, 0, backward=2))
    with pytest.raises(ValueError, match="par is 0: give a number above 0"):
        schedule(par=0)
    with pytest.raises(ValueError, match="limit is -1: give a number above 0"):
        schedule(limit=-1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("  \n", ""),
        (str(gpipe(2, 2)), ""),
        ("0F0,0B0\n1B0,1F0", "Your text is not drawn. 1B0 comes before its forward, 1F0."),
        ("nonsense", "Your text is not drawn, because it is no schedule: 'nonsense' is not an "),
        (str(gpipe(2, 3)), "Your text is not drawn: it has 2 stages, 3 microbatches and 2 ranks"),
    ],
)
def test_a_readers_text_takes_the_place_of_the_start_where_it_can(text, said):
    start = one_f_one_b(2, 2)
    drawn = schedule(start, par=6, text=text)
    data = drawn.live[1]
    assert data["unread"].startswith(said) and bool(data["unread"]) == bool(said)
    own = text == str(gpipe(2, 2))
    assert data["rows"] == (text if own else str(start)) and data["start"] == str(start) * own
    assert drawn.summary.startswith("your schedule: " if own else "1F1B: ")


def test_goals_make_an_exercise():
    assert [schedule(**goal).live[1]["isExercise"] for goal in ({}, {"par": 9}, {"limit": 9})] == [
        False, True, True,
    ]  # fmt: skip
