"""Units on a still: bars where the prediction has them, what is held, and every prefetch limit."""

import re

import pytest

from lib.draw import units
from lib.draw.parts import style
from lib.predict.sharded.prefetch import play_units
from tests.draw.marks import boxes, swatch, texts
from tests.every import every

MB = 10**6
FOUR = [MB] * 4, [0.001] * 4  # backward takes 2 ms
NET = {"ranks": 2, "alpha": 0.0, "bandwidth": MB / 0.001}  # a unit moves for half a millisecond


def picture(**more):
    return units(*FOUR, **NET, **more)


def predicted(**more):
    return play_units(*FOUR, [0.002] * 4, **NET, **more)


LEFT, WIDE = 84, 640 - 84 - 14


@pytest.mark.parametrize(
    "more", [{}, {"prefetch": 0}, {"prefetch": 3}, {"resharded": False}], ids=str
)
def test_bars_lie_where_the_prediction_has_them(more):
    drawn, run = picture(**more), predicted(**more)
    for kind in ("forward", "backward", "all_gather", "reduce_scatter"):
        bars = [(b.start, b.end) for b in run.bars if b.kind == kind]
        marks = boxes(drawn, f"{kind} of ")
        assert len(marks) == len(bars) and {mark.fill for mark in marks} == {style.colour(kind)}
        for mark, (start, end) in zip(marks, bars):
            assert mark.x == pytest.approx(LEFT + start / run.end * WIDE)
            assert mark.w == pytest.approx((end - start) / run.end * WIDE)


def test_what_is_not_computed_is_hatched_and_adds_up_to_what_is_exposed():
    drawn, run = picture(), predicted()
    gaps = boxes(drawn, "exposed: ")
    assert len(gaps) == 3 and every(mark.hatch for mark in gaps)
    assert sum(mark.w for mark in gaps) == pytest.approx(run.exposed / run.end * WIDE)
    assert "prefetch 1: 13.5 ms, exposed 1.5 ms (11 %)" in texts(drawn)


def test_what_is_held_is_as_high_as_its_bytes():
    drawn, run = picture(prefetch=2), predicted(prefetch=2)
    total, whole = (m for m in drawn.marks if m.kind == "area")
    assert (total.fill, whole.fill) == (style.memory("gradients"), style.memory("parameters"))
    high = [max(y for _, y in m.points) - min(y for _, y in m.points) for m in (total, whole)]
    assert high[1] / high[0] == pytest.approx(3 * MB / run.peak)
    assert boxes(drawn, f"{run.peak:,} bytes") and f"at most {run.peak:,} bytes" in drawn.summary


def test_every_prefetch_limit_has_its_exposed_time_and_its_memory():
    drawn = picture()
    runs = [predicted(prefetch=limit) for limit in range(5)]
    for name, part in (("exposed", "exposed"), ("held", "peak")):
        bars = [boxes(drawn, f"prefetch {limit}: ") for limit in range(5)]
        bars = [next(m for m in both if m.about.endswith(name)) for both in bars]
        most = max(getattr(run, part) for run in runs)
        for mark, run in zip(bars, runs, strict=True):
            assert mark.h == pytest.approx(34 * getattr(run, part) / most)
        full = [mark.fill for mark in bars if mark.fill != bars[0].fill]
        assert len(full) == 1, "the chosen one alone is in full colour"


def test_the_words_are_in_order_and_hold_no_times():
    slow = units(FOUR[0], [9.0] * 4, **NET)
    assert slow.summary.splitlines()[1].startswith(
        "  in order: all_gather 0, all_gather 1, forward 0, all_gather 2, forward 1, "
    )
    assert not re.search(r"\d m?s\b", slow.summary)
    assert ", …" in slow.summary and "on 2 ranks, prefetch 1\n" in slow.summary


def test_seconds_are_shared_out_by_bytes_and_backward_takes_twice_as_long():
    data = units([100, 300], 4.0, names=["a", "b"]).live[1]
    assert data["forward"] == [1.0, 3.0] and data["backward"] == [2.0, 6.0]
    assert units([100, 300], 4.0, 1.0).live[1]["backward"] == [0.25, 0.75]
    assert "a" in texts(units([100, 300], 4.0, names=["a", "b"]))


def test_the_caption_says_what_the_numbers_are():
    assert "over an invented link" in picture(caption="Seconds are invented").caption
    assert picture(caption="Seconds are invented").caption.endswith("Seconds are invented.")
    assert "over NVLink4 (latency 3.4 µs, 450 GB/s one way)." in units(*FOUR).caption
    assert swatch(picture(), "exposed").hatch


@pytest.mark.parametrize("count", [1, 2, 40])
def test_everything_is_inside_whatever_the_number(count):
    drawn = units([MB] * count, [0.001] * count, prefetch=9)
    for mark in drawn.marks:
        for x, y in mark.points or [(mark.x, mark.y), (mark.x + mark.w, mark.y + mark.h)]:
            assert -0.1 <= x <= drawn.width + 4 and -0.1 <= y <= drawn.height + 0.1, mark
    assert len(drawn.png()) < 30_000


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: units([], 1.0), "There are 0 units and 0 names. Give the bytes of at least one"),
        (lambda: units([1, 2], 1.0, names=["a"]), "There are 2 units and 1 names."),
        (lambda: units([1, 2], [1.0]), "There are 2 units and 1 times of forward."),
        (lambda: units([1], 1.0, [1.0, 2.0]), "There are 1 units and 2 times of backward."),
        (lambda: units([1], 0.0), "A time of forward must be finite and above 0"),
        (lambda: units([0], 1.0), "The bytes of a unit must be a whole number of at least 1"),
        (lambda: units([1], 1.0, prefetch=-1), "prefetch must be a whole number of at least 0"),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call()
