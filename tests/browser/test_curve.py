"""Curves, alive: every value can be read, the measured beside the predicted."""

import re

import pytest

from lib.draw import curve
from lib.draw.parts import style
from lib.predict.collectives.formulas import cost, fit
from lib.predict.hardware import sweep, sweeps
from tests.browser.same import crowded

SWEEP = sweep(sweeps()[0])
RANKS = [2**k for k in range(1, 11)]


def measured():
    found = fit(SWEEP.nbytes, SWEEP.seconds)
    return curve({"all-reduce": (SWEEP.nbytes, SWEEP.seconds)}, {"all-reduce": found})


def models():
    lines = {m: (RANKS, [cost(m, n, 10**6, 5e-6, 2.5e-12) for n in RANKS])
             for m in ("central", "tree", "bytes")}  # fmt: skip
    return curve(None, lines, x=("ranks", ""))


def beside():
    return curve({"a": ([1000, 1e6], [1e-5, 2e-3])}, {"b, on paper": ([100, 1e7], [1e-6, 1e-2])})


@pytest.mark.parametrize("made", [measured, models, beside])
def test_a_phone_has_room_for_it(bench_page, made):
    assert crowded(bench_page(made(), 376)) == []


def test_every_measured_value_is_read_beside_its_prediction(bench_page):
    seen, found = bench_page(measured(), 640), fit(SWEEP.nbytes, SWEEP.seconds)
    assert seen.status == "" and not seen.ask("p => p.over")
    for place in (1, len(SWEEP.nbytes)):
        seen.slide("Read at size", place)
        size, time = SWEEP.nbytes[place - 1], SWEEP.seconds[place - 1]
        off = round((found.seconds(size) / time - 1) * 100)
        assert seen.status == (
            f"at {style.amount(size, 'B')}\nall-reduce: measured {style.amount(time, 's')}, "
            f"predicted {style.amount(found.seconds(size), 's')} "
            f"({abs(off)}% {'less' if off < 0 else 'more'})"
        )


def test_the_reading_line_stands_at_its_size(bench_page):
    seen = bench_page(measured(), 640)
    point = next(m for m in seen.marks if str(m.get("id", "")).endswith(f" {SWEEP.nbytes[4]}"))
    seen.slide("Read at size", 5)
    line, *dots = seen.ask("p => p.over")
    assert line["points"][0][0] == line["points"][1][0] == pytest.approx(point["x"] + 3, abs=0.01)
    middles = {(round(d["x"] + d["w"] / 2, 2), round(d["y"] + d["h"] / 2, 2)) for d in dots}
    assert (round(point["x"] + 3, 2), round(point["y"] + 3, 2)) in middles and len(middles) == 2


def test_a_dial_picks_one_line_out_and_says_what_it_is(bench_page):
    lines = {"a": ([1, 10], [1, 10]), "b": ([1, 10], [10, 1])}
    said = {"a": "it grows", "b": "it falls"}
    seen = bench_page(curve(None, lines, dial=("Slope", said)), 640)
    both = [m["edge"] for m in seen.marks if "predicted" in str(m.get("about", ""))]
    assert both == [list(style.piece(0)), list(style.piece(1))] and seen.status == ""
    for place, name in enumerate(said, 1):
        seen.slide("Slope", place)
        pale, bright = (m for m in seen.marks if "predicted" in str(m.get("about", "")))
        assert [bright["edge"], pale["edge"]] == [list(style.piece(place - 1)), list(style.GRID)]
        assert bright["about"].startswith(name) and seen.status == f"{name}: {said[name]}"


def test_lines_are_read_at_their_corners(bench_page):
    seen = bench_page(models(), 640)
    seen.slide("Read at ranks", 3)
    told = dict(re.findall(r"(\w+): predicted (.+)", seen.status))
    price = (8, 10**6, 5e-6, 2.5e-12)
    assert told == {name: style.amount(cost(name, *price), "s")
                    for name in ("central", "tree", "bytes")}  # fmt: skip
    assert seen.status.startswith("at 8 ranks\n")


def test_between_its_corners_a_line_is_straight_in_powers_of_ten(bench_page):
    seen = bench_page(beside(), 640)
    seen.slide("Read at size", 2)  # 1 kB, where only the other was measured
    middle = 1e-6 * (1e-2 / 1e-6) ** (1 / 5)
    assert f"b, on paper: predicted {style.amount(middle, 's')}" in seen.status
    assert "a: measured 10 µs" in seen.status


def test_hovering_a_point_and_dragging_the_line(bench_page):
    seen = bench_page(measured(), 640)
    points = [m for m in seen.marks if m.get("id")]
    assert len(points) == len(SWEEP.nbytes)
    tip = seen.hover(points[2])
    assert tip.startswith(f"size {style.amount(SWEEP.nbytes[2], 'B')}\nall-reduce: measured ")
    seen.drag(points[2], points[6]["x"] - points[2]["x"])
    assert seen.state["at"] == 7
