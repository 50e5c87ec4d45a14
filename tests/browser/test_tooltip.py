"""What a picture tells of what somebody points at: its bars, and the names in its legend."""

import pytest

from lib.draw import guess, schedule, timeline
from lib.predict.pipeline.play import Costs
from tests.browser.seen import SCREENSHOTS
from tests.browser.test_timeline import box, late


def test_a_legend_says_what_its_names_mean(bench_page):
    """To who points at the name, comes with the keyboard, or taps; it is no row of numbers."""
    seen = bench_page(timeline(late()))
    name = [m for m in seen.marks if m["kind"] == "text" and m["text"] == "forward"][-1]
    seen.canvas.hover(position={"x": name["x"] + 8, "y": name["y"]})
    assert seen.tip == "forward: outputs are computed from inputs"
    assert not seen.press("End").startswith("forward: outputs")
    seen.press("Home")
    heard = [seen.press(key) for key in 4 * ["ArrowDown"] + 4 * ["ArrowLeft"]]
    assert "forward: outputs are computed from inputs" in heard
    touched = bench_page(timeline(late()), 336, touch=True)
    name = [m for m in touched.marks if m["kind"] == "text" and m["text"] == "forward"][-1]
    touched.canvas.tap(position={"x": name["x"] + 8, "y": name["y"]})
    assert touched.tip == "forward: outputs are computed from inputs"
    touched.page.screenshot(path=SCREENSHOTS / "legend-touched.png")


def test_escape_closes_the_tooltip_and_then_leaves_the_mark(bench_page):
    seen = bench_page(timeline(late()))
    assert seen.hover(box(seen, "rank 0: forward"))
    seen.page.keyboard.press("Escape")  # the keyboard is nowhere
    assert not seen.tip
    seen.press("Home")
    assert seen.tip and seen.ask("p => p.chosen.about()").startswith("rank 0: forward")
    seen.press("Escape")
    assert not seen.tip and seen.ask("p => Boolean(p.chosen)")
    seen.press("Escape")
    assert not seen.ask("p => Boolean(p.chosen)")
    assert seen.press("ArrowRight") and seen.tip  # and it begins anew


def test_the_tooltip_follows_what_it_describes(bench_page):
    seen = bench_page(schedule("gpipe", 4, 8))
    (bar,) = [mark for mark in seen.marks if (mark["about"] or "").startswith("0F4 on rank 0")]
    assert "from 4 to 5" in seen.hover(bar)
    seen.slide("Forward F", 3)
    assert seen.tip.startswith("0F") and "from 4 to 5" not in seen.tip
    point = seen.place(bar)
    (below,) = [m for m in seen.marks if m["kind"] == "box" and (m["about"] or "").startswith("0F")
                and m["x"] <= point["x"] < m["x"] + m["w"]]  # fmt: skip
    assert seen.tip == below["about"]
    seen.slide("Stages", 1)  # nothing is below the pointer, or another bar
    (last,) = [m["about"] for m in seen.marks if m["kind"] == "box" and m["about"]
               and m["x"] <= point["x"] < m["x"] + m["w"] and m["y"] <= point["y"] < m["y"] + m["h"]
               ] or [""]  # fmt: skip
    assert seen.tip == last
    seen.press("Home")
    seen.press("ArrowRight")
    before = seen.tip
    seen.slide("Forward F", 4)
    assert before and seen.tip != before and seen.tip == seen.ask("p => p.chosen.about")


def covered(seen, mark) -> bool:
    """Whether the tooltip lies over the row of a mark."""
    tip, stage = (seen.node.locator(part).bounding_box() for part in (".mrom-tip", ".mrom-stage"))
    top = tip["y"] - stage["y"]
    return top < mark["y"] + mark["h"] and top + tip["height"] > mark["y"]


@pytest.mark.parametrize("row", range(4))
def test_the_tooltip_leaves_the_row_free_that_it_describes(bench_page, row):
    seen = bench_page(schedule("1f1b", 4, 8))
    bar = next(m for m in seen.marks if f"F2 on rank {row}" in (m["about"] or ""))
    for up in (-8, 0, 8):
        assert seen.hover({**bar, "y": bar["y"] + up}).startswith(f"{row}F2")
        assert not covered(seen, bar), up
    below = seen.node.locator(".mrom-tip").bounding_box()["y"]
    seen.press("Home")
    for _ in range(40):
        if seen.tip.startswith(f"{row}F2"):
            break
        seen.press("ArrowDown" if f"rank {row}" not in seen.tip else "ArrowRight")
    assert not covered(seen, bar) and seen.node.locator(".mrom-tip").bounding_box()["y"] == below


def test_a_tooltip_that_would_be_cut_off_below_stands_above(bench_page):
    seen = bench_page(schedule("1f1b", 4, 8))
    bar = next(m for m in seen.marks if "F2 on rank 3" in (m["about"] or ""))
    bottom = seen.canvas.bounding_box()["y"] + bar["y"] + bar["h"]
    size = seen.page.viewport_size
    try:
        seen.page.set_viewport_size({**size, "height": int(bottom) + 12})
        assert seen.hover(bar).startswith("3F2") and not covered(seen, bar)
        tip, stage = (seen.node.locator(p).bounding_box() for p in (".mrom-tip", ".mrom-stage"))
        assert tip["y"] + tip["height"] <= stage["y"] + bar["y"]
    finally:
        seen.page.set_viewport_size(size)


def test_the_tooltip_of_what_is_tall_stands_at_the_pointer(bench_page):
    seen = bench_page(guess("How many?").reveal(3))
    bar = next(m for m in seen.marks if m.get("id") == "all")
    assert bar["h"] > 48 and seen.hover(bar)
    tip, stage = (seen.node.locator(part).bounding_box() for part in (".mrom-tip", ".mrom-stage"))
    assert tip["y"] - stage["y"] == pytest.approx(bar["h"] / 2 + 16, abs=1)


def tip_at(seen, x: float, y: float) -> str:
    """What the tooltip says at a place, to a fraction of a pixel."""
    script = """(node, [x, y]) => {
        const box = node.getBoundingClientRect();
        const place = { clientX: box.left + x, clientY: box.top + y, bubbles: true };
        node.dispatchEvent(new PointerEvent("pointermove", place));
    }"""
    seen.canvas.evaluate(script, [x, y])
    seen.settle()
    return seen.tip


def test_a_thin_bar_is_hit_in_four_pixels(bench_page):
    seen = bench_page(schedule("gpipe", 8, 64, costs=Costs(1.0, 0.5, 0.0)), 400)
    bar = next(m for m in seen.marks if (m["about"] or "").startswith("0B63 on rank 0"))
    middle, y = bar["x"] + bar["w"] / 2, bar["y"] + 4
    assert bar["w"] < 2
    assert {tip_at(seen, middle + by, y) for by in (-1.9, 0, 1.8)} == {bar["about"]}
    assert tip_at(seen, middle - 2.2, y) != bar["about"]


def test_the_edge_of_a_bar_is_hit(bench_page):
    """A second stage is drawn half a pixel smaller on each side than it lasts."""
    seen = bench_page(schedule("interleaved", 4, 4, 2), 640)
    bar = next(m for m in seen.marks if (m["about"] or "").startswith("3B3 on") and m["w"] > 5)
    assert tip_at(seen, bar["x"] - 0.4, bar["y"] + 8)
