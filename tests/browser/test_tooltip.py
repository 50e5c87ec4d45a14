"""What a picture tells of what somebody points at: its bars, and the names in its legend."""

from lib.draw import schedule, timeline
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
