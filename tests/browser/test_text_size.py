"""A reader who has made only the browser's text larger sees pictures with larger words."""

import pytest

from lib.draw import bits, guess, schedule, timeline
from tests.browser.same import crowded
from tests.browser.test_timeline import box, late

TWICE = "--blink-settings=defaultFontSize=32"
LETTERS = """node => {
    const ink = node.getContext("2d");
    return parseFloat(ink.font) * ink.getTransform().a / window.devicePixelRatio;
}"""


def letters(seen) -> float:
    """The height of the letters on the canvas, in px of the page."""
    return seen.node.locator("canvas").first.evaluate(LETTERS)


@pytest.mark.parametrize("make", [bits, schedule], ids=["bits", "schedule"])
def test_words_in_and_around_a_picture_are_twice_as_large(other_bench, bench_page, make):
    usual, large = bench_page(make(), 640), other_bench(make(), 640, flags=TWICE)
    size = "node => parseFloat(getComputedStyle(node).fontSize)"
    around = [seen.node.locator(".mrom-caption").evaluate(size) for seen in (usual, large)]
    assert around[1] == 2 * around[0] and letters(usual) == around[0]
    assert letters(large) == pytest.approx(2 * letters(usual))
    assert large.ask("p => p.width") == 320 and not large.ask("() => 0") and cut(large) == []
    large.screenshot(f"text-twice-{make.__name__}")


def cut(seen) -> list[str]:
    """What lies on one another, or over the edge of what was laid out."""
    wide = seen.ask("p => p.width")
    return [m["text"] for m in seen.marks if m["kind"] == "text" and not 0 <= m["x"] <= wide]


def test_a_phone_has_no_room_for_larger_pictures_but_for_larger_words_around(other_bench):
    large = other_bench(schedule(), 304, flags=TWICE)
    assert large.ask("p => [p.width, p.scale]") == [304, 1] and crowded(large) == []
    assert (
        large.node.locator(".mrom-caption").evaluate("n => getComputedStyle(n).fontSize") == "26px"
    )


def test_what_is_pointed_at_is_found_where_it_is_seen(other_bench):
    large = other_bench(timeline(late()), 640, flags=TWICE)
    mark = box(large, "rank 0: forward")
    place = large.place(mark)
    large.canvas.hover(position={axis: 2 * value for axis, value in place.items()})
    large.settle()
    assert large.tip.startswith("rank 0: forward")


@pytest.mark.parametrize(
    "picture",
    [
        lambda: guess("Four equal stages: what is idle?", unit="microseconds"),
        schedule,
        bits,
    ],
    ids=["guess", "schedule", "bits"],
)
def test_no_control_is_wider_than_a_phone(other_bench, picture):
    """What does not fit beside its words stands below them."""
    large = other_bench(picture(), 304, flags=TWICE)
    edges = """node => [...node.querySelectorAll("button, input, select, label, output, summary")]
        .filter((one) => one.checkVisibility()).map((one) => one.getBoundingClientRect().right)"""
    frame = large.node.bounding_box()
    found = large.node.evaluate(edges)
    assert len(found) > 2 and max(found) <= frame["x"] + frame["width"] + 1
    large.screenshot(f"text-twice-phone-{large.ask('p => p.shape.title')}")
