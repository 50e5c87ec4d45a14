"""Routing on a still: bars as long as the tokens, ribbons, capacity, drops, shares by step."""

import pytest

from lib.draw import routing
from lib.draw.parts import style
from lib.draw.routing import kept, limit
from tests.draw.marks import box, boxes, texts, tint
from tests.draw.recorded_routes import STEPS, runs
from tests.every import every

TABLE = [[3, 1, 0], [2, 0, 2], [5, 1, 1]]


def test_bars_are_as_long_as_the_tokens_and_have_the_colours_of_ranks():
    picture = routing(TABLE)
    unit = box(picture, "expert 0 keeps 3 tokens of rank 0").w / 3
    for expert in range(3):
        at = None
        for rank, row in enumerate(TABLE):
            if not row[expert]:
                continue
            words = f"expert {expert} keeps {row[expert]} token{'s' * (row[expert] > 1)} of rank"
            bar = box(picture, f"{words} {rank}")
            assert bar.fill == style.piece(rank)
            assert bar.w == pytest.approx(unit * row[expert], abs=0.01)
            assert at is None or bar.x == pytest.approx(at, abs=0.01)
            at = bar.x + bar.w
    assert not boxes(picture, "expert 0 drops") and "10" in texts(picture)


def test_ribbons_are_as_wide_as_the_tokens_at_both_ends():
    picture = routing(TABLE)
    units = set()
    for rank, row in enumerate(TABLE):
        for expert, count in enumerate(row):
            words = f"rank {rank} to expert {expert}: "
            found = [mark for mark in picture.marks if mark.about.startswith(words)]
            assert len(found) == (count > 0)
            for mark in found:
                (_, a), (_, b), (_, c), (_, d) = mark.points
                units.add((round((d - a) / count, 6), round((c - b) / count, 6)))
    assert len(units) == 1


def test_each_rank_is_as_tall_as_it_has_tokens():
    picture = routing(TABLE)
    tall = [box(picture, f"rank {rank}: {sum(row)} tokens").h for rank, row in enumerate(TABLE)]
    assert tall == [pytest.approx(sum(row) * tall[0] / 4, abs=0.01) for row in TABLE]


def test_a_capacity_drops_what_comes_last():
    assert limit(TABLE, 1.0) == 5 and limit(TABLE, 1.1) == 6 and limit(TABLE, None) is None
    assert kept(TABLE, 1.0) == [[3, 1, 0], [2, 0, 2], [0, 1, 1]]
    assert kept(TABLE, None) == TABLE
    picture = routing(TABLE, capacity=1.0)
    unit = box(picture, "expert 0 keeps 3 tokens of rank 0").w / 3
    lost = box(picture, "expert 0 drops 5 tokens")
    assert lost.hatch and not lost.fill and lost.w == pytest.approx(5 * unit, abs=0.01)
    line = next(mark for mark in picture.marks if mark.kind == "line")
    assert line.points[0][0] == pytest.approx(lost.x, abs=0.01)
    assert "capacity 5" in texts(picture) and "dropped" in texts(picture)
    assert str(picture).splitlines()[0] == ("routing: 15 tokens of 3 ranks, capacity 5: 5 dropped")
    assert str(picture).splitlines()[1] == "  expert 0: 10 (3 2 5), 5 dropped"
    assert picture.still().heading == (
        "Expert 0 has the most tokens, 66.7 %; an even share is 33.3 %. "
        "A capacity of 5 drops 33.3 %."
    )


def test_shares_are_darker_the_more_tokens_an_expert_has():
    picture = routing(runs(), run="no loss", seed=1, step=5)
    for step, table in runs()["no loss"][1].items():
        for expert in range(8):
            share = sum(row[expert] for row in table) / 256
            (cell,) = boxes(picture, f"step {step}, expert {expert}: ")
            assert cell.fill == tint(style.colour("forward"), 0.04 + 0.96 * share)
    cells = boxes(picture, "step 5, ")
    frame = next(m for m in picture.marks if m.kind == "box" and m.thick == 2)
    assert every(abs(cell.x - frame.x) < 0.01 for cell in cells)
    assert str(picture).startswith("routing: no loss, seed 1, step 5: 256 tokens of 4 ranks")


def test_columns_between_the_ends_are_labelled_where_there_are_many():
    """Recorded steps may be far closer together at one end, which two labels do not show."""
    steps = (0, 1, 2, 3, 5, 8, 12, 16, 20, 30, 50, 99)
    picture = routing({"a": {0: dict.fromkeys(steps, TABLE)}})
    for step in (0, 3, 12, 30, 99):
        (label,) = [m for m in picture.marks if m.kind == "text" and m.text.split()[-1] == str(step)
                    and m.y > boxes(picture, "step 0, expert 2: ")[0].y]  # fmt: skip
        (cell,) = boxes(picture, f"step {step}, expert 0: ")
        assert step in (0, 99) or label.x == pytest.approx(cell.x + cell.w / 2, abs=0.01)
    few = routing({"a": {0: dict.fromkeys(steps[:11], TABLE)}})
    assert "12" in texts(picture) and "12" not in texts(few)


def test_the_last_step_of_the_first_run_is_drawn_first():
    assert str(routing(runs())).startswith(f"routing: no loss, seed 0, step {STEPS[-1]}: ")


def test_the_caption_says_what_the_numbers_are():
    assert routing(TABLE).caption == "Measured: tokens counted in the layer's gate."
    words = routing(runs(), k=2, caption="A small model").caption
    assert "Each token counts 2 times" in words and "training dropped nothing" in words
    assert words.endswith("A small model.")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"runs": [[1, 2], [1]]}, "a count for each expert"),
        ({"runs": []}, "a row for each rank"),
        ({"runs": [[1] * 17]}, "1 ranks and 17 experts do not fit"),
        ({"runs": runs(), "run": "z loss"}, "No run is called 'z loss'"),
        ({"runs": runs(), "seed": 7}, "no seed 7"),
        ({"runs": runs(), "step": 3}, "Step 3 was not recorded"),
        ({"runs": TABLE, "capacity": 0}, "capacity factor"),
        ({"runs": {"a": {0: {0: TABLE, 1: [[1, 2]]}}}}, "same ranks and the same experts"),
    ],
)
def test_what_cannot_be_drawn_is_refused(wrong, words):
    with pytest.raises(ValueError, match=words):
        routing(**wrong)
