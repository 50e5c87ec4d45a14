"""A chain on a still: its boxes, its bars on their clock, what is held, and where plans lie."""

import re

import pytest

from lib.draw import keep
from lib.draw.parts import layout, style
from lib.predict.recompute import (
    BlockCost,
    best,
    every,
    none,
    play_plan,
    read_plan,
    smallest_peak,
    square_root,
    use_of,
)
from lib.predict.recompute.costs import backward_of, costs_of, frontier
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape, MLPShape
from tests.draw.marks import box, boxes, texts, tint

SIX = [BlockCost(1, 4, 1.0)] * 6
LEFT, WIDE, TALL = 84, 640 - 84 - 14, 72
ALL_AGAIN = 6 * 1.0 + 6 * 1.0 + 6 * 2.0  # the clock's axis ends where everything runs twice
PLANS = [none(6), every(6, 1), every(6, 4), ((0, 1), 2, (3,), 4, 5), (((0, 1), 2), (3, 4), 5)]


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_bars_lie_where_the_prediction_has_them(plan):
    drawn, run = keep(SIX, plan), play_plan(plan, SIX)
    end = max(ALL_AGAIN, run.end)
    rows = {}
    for kind, words in (
        ("forward", "forward of block"),
        ("recompute", "forward once more of block"),
        ("backward", "backward of block"),
    ):
        bars = [bar for bar in run.bars if bar.kind == kind]
        marks = boxes(drawn, words)
        assert len(marks) == len(bars)
        for mark, bar in zip(marks, bars):
            assert mark.about.startswith(f"{words} {bar.block}\n")
            assert mark.x == pytest.approx(LEFT + bar.start / end * WIDE)
            assert mark.w == pytest.approx((bar.end - bar.start) / end * WIDE)
        rows[kind] = {(mark.y, mark.fill) for mark in marks}
    ((top, blue),) = rows["forward"]
    ((below, pale),) = rows["backward"]
    assert (blue, pale) == (style.colour("forward"), style.colour("backward")) and top < below
    assert rows["recompute"] <= {(top, tint(style.colour("forward"), 0.28))}


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_what_is_held_is_as_high_as_its_bytes_and_its_peak_is_the_plans(plan):
    drawn, use = keep(SIX, plan), use_of(plan, SIX)
    (area,) = (mark for mark in drawn.marks if mark.kind == "area")
    assert area.fill == style.memory("activations")
    high = max(y for _, y in area.points) - min(y for _, y in area.points)
    assert high == pytest.approx(TALL * use.peak / 30)  # everything kept is 72 px high
    assert box(drawn, f"peak: {use.peak} bytes") and f"{use.peak} B" in texts(drawn)
    assert f"  held: {use.after_forward} bytes after forward, at most {use.peak} bytes" in (
        drawn.summary.splitlines()
    )


def test_a_box_is_as_full_as_what_its_block_holds_after_forward():
    drawn = keep(SIX, ((0, 1), 2, (3,), 4, 5))
    outlines = [box(drawn, f"block {n}: ") for n in range(6)]
    words = [mark.about.splitlines() for mark in outlines]
    assert [one[0].split(": ")[1] for one in words] == [
        "forgotten, runs again", "forgotten, runs again", "kept",
        "forgotten, runs again", "kept", "kept",
    ]  # fmt: skip
    assert [one[1] for one in words] == [
        f"holds {n} of 5 B after forward" for n in ("1 B", "0 B", "5 B", "1 B", "5 B", "5 B")
    ]
    at = {
        mark.x: mark.w for mark in drawn.marks if mark.kind == "box" and mark.y == 6 and mark.fill
    }
    full = [at[mark.x] / mark.w for mark in outlines]
    assert full == pytest.approx([0.2, 0, 1, 0.2, 1, 1])


def test_brackets_are_the_checkpoints_and_outer_ones_are_lower():
    drawn = keep(SIX, (((0, 1), 2), (3, 4), 5))
    step = WIDE / 6
    brackets = [m for m in drawn.marks if m.kind == "line" and len(m.points) == 4 and not m.about]
    spans = [
        (
            round((m.points[1][0] - LEFT) / step),
            round((m.points[2][0] - LEFT) / step),
            m.points[1][1],
        )
        for m in brackets
    ]
    assert [span[:2] for span in spans] == [(0, 3), (0, 2), (3, 5)]
    assert spans[0][2] == spans[2][2] > spans[1][2]


def place_of(drawn, run) -> tuple[float, float]:
    """Where on the chart a plan lies, by two points that are known: none, and each forgotten."""
    known = [
        (use, box(drawn, name))
        for use, name in (
            (play_plan(none(6), SIX), "the best plan within 30 bytes: "),
            (play_plan(every(6, 1), SIX), "a checkpoint around every block: "),
        )
    ]
    (a, one), (b, other) = known
    share = lambda now, first, last, x, y: x + (now - first) / (last - first) * (y - x)
    return (
        share(run.peak, a.peak, b.peak, one.x + 3, other.x + 3),
        share(run.end, a.end, b.end, one.y + 3, other.y + 3),
    )


def test_plans_lie_at_their_bytes_and_their_time():
    drawn = keep(SIX, every(6, 4))
    plans = {"this plan": every(6, 4), "a checkpoint around every 3 blocks: ": every(6, 3)}
    for choice in frontier(SIX):
        plans[f"the best plan within {choice.use.peak} bytes: "] = choice.plan
    assert len(plans) > 5
    for name, plan in plans.items():
        mark = box(drawn, name)
        middle = mark.x + mark.w / 2, mark.y + mark.h / 2
        assert middle == pytest.approx(place_of(drawn, play_plan(plan, SIX))), name
    assert {"√6", "3"} <= set(texts(drawn))


def test_a_budget_is_a_line_and_its_plan_is_the_best():
    drawn = keep(SIX, "budget", budget=16)
    plan = best(SIX, 16)
    assert read_plan(drawn.summary.splitlines()[1].removeprefix("  plan: "), 6) == plan
    assert "the best plan within 16 bytes" in drawn.summary.splitlines()[0]
    lines = [mark for mark in drawn.marks if mark.about == "the budget: 16 bytes"]
    (held, chart) = sorted(lines, key=lambda mark: mark.points[0][1])
    base = max(y for m in drawn.marks if m.kind == "area" for _, y in m.points)
    assert base - held.points[0][1] == pytest.approx(TALL * 16 / 30)
    assert chart.points[0][0] == pytest.approx(place_of(drawn, use_and_end(16))[0])
    assert {"budget", "all kept"} <= set(texts(drawn))


def use_and_end(peak: int):
    """A step with this peak, whose time does not matter."""
    return type("Step", (), {"peak": peak, "end": 24.0})


def test_by_hand_nothing_tells_what_is_best():
    drawn = keep(SIX, "none", by_hand=True, budget=20, par=2)
    assert drawn.live[1]["budgets"] == [] and drawn.live[1]["start"]["policy"] == "hand"
    assert not boxes(drawn, "the best plan") and not boxes(drawn, "a checkpoint around")
    words = " ".join(texts(drawn))
    assert "With this plan, 30 B are held at the peak. That is 10 B more than the budget" in words
    assert "The goal is at most 2 s computed again: it is met." in words
    solved = keep(SIX, "none", by_hand=True, budget=20, par=2, text="((0, 1), 2, 3, 4, 5)")
    words = " ".join(texts(solved))
    assert "That is 1 B more than the budget of 20 B." in words
    words = " ".join(texts(keep(SIX, "all", by_hand=True, budget=20, par=2)))
    assert "That is within the budget of 20 B." in words and "it is not met." in words


def test_a_readers_text_is_drawn_and_one_that_is_no_plan_is_told():
    mine = "(0, 1, (2, 3), 4, (5,))"
    drawn = keep(SIX, "none", by_hand=True, text=f" {mine}\n")
    assert f"  plan: {mine}" in drawn.summary.splitlines()
    assert drawn.live[1]["begin"]["hand"] == none(6), "Reset leads back to where it began"
    other = keep(SIX, "none", by_hand=True, text="(0, 1)")
    assert "  plan: (0, 1, 2, 3, 4, 5)" in other.summary.splitlines()
    assert other.live[1]["unread"].startswith("Your plan is not drawn. A plan for 6 blocks has")


@pytest.mark.parametrize(
    ("policy", "plan", "words"),
    [
        ("none", none(6), "everything kept"),
        ("all", every(6, 1), "each block forgotten, in a checkpoint of its own"),
        ("sqrt", square_root(6), "a checkpoint around every 2 blocks (√6)"),
        (4, every(6, 4), "a checkpoint around every 4 blocks"),
        ((0, 1, (2, 3, 4), 5), (0, 1, (2, 3, 4), 5), "a plan made by hand"),
    ],
)
def test_policies_are_the_plans_of_their_rules(policy, plan, words):
    drawn = keep(SIX, policy)
    assert drawn.summary.splitlines()[:2] == [f"keep: 6 blocks, {words}", f"  plan: {plan}"]
    assert len(boxes(drawn, "forward once more")) == sum(use_of(plan, SIX).runs) - 6


def test_the_words_hold_no_times():
    drawn = keep(GPTShape(layers=4), 2, batch=2)
    assert not re.search(r"\d [mµn]?s\b", drawn.summary)
    assert drawn.summary.splitlines()[-1] == "  computed again: 100 % of forward"
    assert "and the step takes" in " ".join(texts(drawn)), "times are drawn"


def test_a_shape_has_the_costs_of_its_blocks_on_its_device():
    shape, device = GPTShape(layers=3), speeds("A100")
    data = keep(shape, batch=2, speeds=device, itemsize=2).live[1]
    costs = costs_of(shape, 2, device, None, 2)
    assert data["input"] == [cost.input for cost in costs]
    assert data["forward"] == [cost.forward for cost in costs]
    assert data["backward"] == backward_of(shape, 2, device, None, 2)
    assert data["least"] == smallest_peak(costs)
    assert data["names"] == ["embed", "1", "2", "3", "head"]
    assert keep(MLPShape((8, 16, 4)), "none").live[1]["names"] == ["0", "1"]


def test_the_caption_says_what_the_numbers_are_and_what_is_left_out():
    of_shape = keep(GPTShape(layers=2), batch=4, caption="Small on purpose").caption
    assert of_shape.startswith("Predicted for 4 samples on the H100 (bf16): no block was run")
    assert (
        "Only what blocks hold for backward is counted: no weights, no gradients, no logits."
        in of_shape
    )
    assert "joined with others" in keep(SIX, by_hand=True).caption
    assert "joined with others" not in of_shape
    assert of_shape.endswith("Small on purpose.")
    assert "backward takes twice as long as forward." in keep(SIX).caption
    assert "twice" not in keep(SIX, backward=[1.0] * 6).caption


@pytest.mark.parametrize("width", [304, 640, 1144])
@pytest.mark.parametrize("count", [1, 2, 14, 96])
def test_everything_is_inside_whatever_the_number(count, width):
    costs = [BlockCost(10**6, 4 * 10**6, 0.001)] * count
    kind, data = keep(costs, "none", budget=5 * 10**6 * count).live
    still = layout.still(kind, {"summary": ""} | data, width, words=True)
    for mark in still.marks:
        wide = len(mark.text) * style.LETTER * {"left": 1, "middle": 0.5, "right": 0}[mark.align]
        ends = [(mark.x, mark.y), (mark.x + mark.w + (wide if mark.text else 0), mark.y + mark.h)]
        for x, y in mark.points or ends:
            assert -0.1 <= x <= width + 0.1 and -0.1 <= y <= still.height + 0.1, mark


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: keep([]), "A chain of 0 blocks cannot be drawn: give 1 to 96."),
        (lambda: keep(SIX * 20), "A chain of 120 blocks cannot be drawn"),
        (lambda: keep([BlockCost(0, 0, 1.0)]), "no block holds a byte"),
        (lambda: keep([BlockCost(1, 1, 0.0)]), "A time of forward must be finite and above 0"),
        (lambda: keep([BlockCost(-1, 1, 1.0)]), "The bytes of a block's input must be a whole"),
        (lambda: keep(SIX, names=["a"]), "There are 6 blocks and 1 names."),
        (lambda: keep(SIX, backward=[1.0]), "There are 6 blocks and 1 times of backward."),
        (lambda: keep(SIX, "most"), "No policy is called 'most'. Choose none, all, sqrt, budget"),
        (lambda: keep(SIX, "budget"), "No policy is called 'budget'"),
        (lambda: keep(SIX, "budget", budget=5), "No plan that runs each block at most once again"),
        (lambda: keep(SIX, (0, 1)), "A plan for 6 blocks has the numbers 0 to 5 once each"),
        (lambda: keep(SIX, par=0), "par must be finite and above 0"),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()
