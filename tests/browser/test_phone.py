"""A schedule on a phone: its rows come soon, and what is rarely set is folded and named."""

import pytest

from lib.draw import schedule
from lib.predict.pipeline.schedules import one_f_one_b
from tests.every import every

PHONE, WIDE = 304, 640  # px of a picture: on 360 px, less what the page and the frame leave free
SCHEDULES = {
    "1f1b": lambda: schedule("1f1b", 4, 8),
    "interleaved": lambda: schedule("interleaved", 4, 8, 2),
    "given": lambda: schedule(one_f_one_b(4, 8)),
    "with goals": lambda: schedule("zb-h1", 4, 8, par=30, limit=4),
}
SHOWN = ".mrom-controls :is(button, input, select, summary)"


def shown(seen) -> list:
    """The controls that are seen, in the order of the keyboard."""
    return [node for node in seen.node.locator(SHOWN).all() if node.is_visible()]


def fold(seen):
    """What the rarely used controls are folded under."""
    return seen.node.locator(".mrom-fold > summary")


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES)
def test_the_first_row_is_seen_within_300_px(bench_page, make):
    seen = bench_page(make(), PHONE, touch=True)
    bars = [m for m in seen.marks if m["kind"] == "box" and "on rank 0: " in (m["about"] or "")]
    frame, canvas = seen.node.bounding_box(), seen.canvas.bounding_box()
    ends = [canvas["y"] - frame["y"] + bar["y"] + bar["h"] for bar in bars]
    assert ends and max(ends) <= 300
    seen.screenshot(f"phone-{len(bars)}")


@pytest.mark.parametrize("make", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("is_open", [False, True], ids=["folded", "open"])
def test_the_keyboard_goes_through_the_controls_as_they_are_seen(bench_page, make, is_open):
    seen = bench_page(make(), PHONE, touch=True)
    if is_open and fold(seen).count():
        fold(seen).click()
        seen.settle()
    nodes = shown(seen)
    boxes = [node.bounding_box() for node in nodes]
    for before, after in zip(boxes, boxes[1:]):
        is_below = after["y"] + after["height"] / 2 > before["y"] + before["height"]
        assert is_below or after["x"] >= before["x"] + before["width"] - 1
    assert every(box["height"] >= 28 and box["width"] >= 24 for box in boxes)
    buttons = [box for node, box in zip(nodes, boxes)
               if node.evaluate("node => node.localName !== 'input'")]  # fmt: skip
    assert every(box["height"] >= 36 for box in buttons)


def test_the_fold_says_what_it_holds_and_holds_what_it_says(bench_page):
    seen = bench_page(SCHEDULES["1f1b"](), PHONE, touch=True)
    assert fold(seen).inner_text() == "Times, zoom, copy"
    assert not seen.control("Backward W").is_visible()
    fold(seen).focus()
    seen.page.keyboard.press("Enter")
    for label in ("Forward F", "Backward I", "Backward W", "Send", "Zoom in", "Copy as text"):
        assert seen.control(label).is_visible(), label
    assert not seen.control("Stages a rank").is_visible()
    seen.slide("Forward F", 2)
    assert seen.state["forward"] == 2
    seen.node.get_by_role("combobox", name="Schedule").select_option("interleaved 1F1B")
    seen.settle()
    assert fold(seen).inner_text() == "Stages, times, zoom, copy"
    assert seen.control("Stages a rank").is_visible()


def test_all_stands_open_where_there_is_room_and_the_keyboard_stays(bench_page):
    seen = bench_page(SCHEDULES["1f1b"](), WIDE)
    before = [node.evaluate("node => node.ariaLabel ?? node.labels?.[0]?.textContent ?? ''")
              for node in shown(seen)]  # fmt: skip
    assert not fold(seen).count() and len(before) > 12
    seen.control(": play").focus()
    for width, many in ((PHONE, 1), (WIDE, 0)):
        seen.node.evaluate("(node, px) => (node.parentElement.style.width = `${px}px`)", width + 24)
        seen.page.wait_for_timeout(100)
        seen.settle()
        assert fold(seen).count() == many
        assert seen.control(": play").evaluate("node => node === document.activeElement")
    names = [node.evaluate("node => node.ariaLabel ?? node.labels?.[0]?.textContent ?? ''")
             for node in shown(seen)]  # fmt: skip
    assert names == before
