"""A reader who has made only the browser's text larger sees pictures with larger words."""

import pytest

from lib.course.tools.chromium import chromium
from lib.draw import bits, guess, schedule, timeline
from tests.browser.bench import bench
from tests.browser.conftest import FLAGS
from tests.browser.test_stills import PICTURES
from tests.browser.test_timeline import box, late

TWICE = "--blink-settings=defaultFontSize=32"
PHONE = 304  # px of a picture: on 360 px, less what the page and the frame leave free
LETTERS = """node => {
    const ink = node.getContext("2d");
    return parseFloat(ink.font) * ink.getTransform().a / window.devicePixelRatio;
}"""
TABLE = ["bytes            100,000,000", "seconds per step      12.34"]
ASKED = guess("How many bytes does each rank send in an all-reduce of 4 MB?", unit="bytes")
WIDGETS = PICTURES | {
    "question": lambda: ASKED,
    "answer": lambda: ASKED.reveal(6_000_000, details="\n".join(TABLE)),
    "explorer": lambda: schedule("interleaved", 4, 8, 2),
}


def letters(seen) -> float:
    """The height of the letters on the canvas, in px of the page."""
    return seen.node.locator("canvas").first.evaluate(LETTERS)


@pytest.fixture(scope="module")
def phone(browser):
    """`phone(picture)`: on a phone of 360 px whose text is twice as large."""
    args = [*FLAGS.split(), TWICE]
    other = browser.browser_type.launch(executable_path=chromium(), args=args)
    page = other.new_context(viewport={"width": 360, "height": 780}, has_touch=True).new_page()
    yield lambda picture: bench(page, picture, PHONE)
    other.close()


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


# What is wider than the figure, but for what scrolls in a frame of its own.
WIDER = """figure => {
    const edge = figure.getBoundingClientRect().right + 0.5;
    const own = (node) => node.closest(".mrom-roll, pre, .mrom-announcement, [hidden]");
    return [...figure.querySelectorAll("*")]
        .filter((node) => !own(node) && node.checkVisibility())
        .filter((node) => node.getBoundingClientRect().right > edge)
        .map((node) => `${node.localName} ${node.className} ${node.textContent.slice(0, 40)}`);
}"""


@pytest.mark.parametrize("which", WIDGETS)
def test_words_grow_on_a_phone_and_nothing_is_wider_than_the_page(phone, which):
    """A picture that has no room scrolls in its frame; controls, fields and words are wrapped."""
    seen = phone(WIDGETS[which]())
    for label in ("Show me", "Tools"):
        for node in seen.node.get_by_text(label, exact=True).all():
            node.click()
    for handle in seen.node.locator(".mrom-fold > summary").all():
        handle.click()
    seen.settle()
    assert letters(seen) == pytest.approx(26)
    assert cut(seen) == [] and seen.node.evaluate(WIDER) == []
    assert seen.node.evaluate("node => node.scrollWidth <= node.clientWidth")
    assert seen.page.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
    wide, scale = seen.ask("p => [p.width, p.scale]")
    assert seen.node.locator(".mrom-roll").evaluate("n => n.scrollWidth") >= int(wide * scale)
    seen.screenshot(f"text-twice-phone-{which.replace(' ', '-')}")


def test_a_field_and_its_button_are_seen_whole(phone):
    seen = phone(ASKED)
    frame = seen.node.bounding_box()
    for node in (seen.node.locator("input"), seen.control("Enter")):
        place = node.bounding_box()
        assert place["x"] >= frame["x"] and place["width"] >= 60
        assert place["x"] + place["width"] <= frame["x"] + frame["width"]
    assert not seen.ask("p => p.nodes.stage.classList.contains('mrom-wider')"), "words are wrapped"


def test_the_keyboard_scrolls_a_picture_to_where_it_is(phone):
    seen = phone(schedule("1f1b", 4, 8))
    for key in ("Home", *["ArrowDown"] * 2, *["ArrowRight"] * 40):
        said = seen.press(key)
    assert "rank 0" in said
    left, right = seen.ask("""({ chosen, scale, nodes }) => {
        const at = chosen.x * scale - nodes.roll.scrollLeft;
        return [at, at + chosen.w * scale];
    }""")
    assert seen.ask("p => p.nodes.roll.scrollLeft") > 100
    assert left >= -1 and right <= PHONE + 1
    tip, frame = seen.node.locator(".mrom-tip").bounding_box(), seen.node.bounding_box()
    assert frame["x"] <= tip["x"] and tip["x"] + tip["width"] <= frame["x"] + frame["width"]


# A finger that moves across what lies there: whether the page may scroll with it.
SWIPE = """(node, { x, y, dx, dy }) => {
    const { left, top } = node.getBoundingClientRect();
    const place = { clientX: left + x, clientY: top + y };
    const more = { pointerId: 1, pointerType: "touch", bubbles: true };
    node.setPointerCapture = () => {};
    node.dispatchEvent(new PointerEvent("pointerdown", { ...place, ...more }));
    const moved = { clientX: place.clientX + dx, clientY: place.clientY + dy };
    node.dispatchEvent(new PointerEvent("pointermove", { ...moved, ...more }));
    const touch = new Touch({ identifier: 1, target: node, ...moved });
    const ways = { bubbles: true, cancelable: true };
    const event = new TouchEvent("touchmove", { touches: [touch], ...ways });
    node.dispatchEvent(event);
    node.dispatchEvent(new PointerEvent("pointercancel", { ...moved, ...more }));
    return !event.defaultPrevented;
}"""


def test_a_finger_scrolls_but_for_what_it_drags(phone):
    seen = phone(schedule("gpipe", 4, 4))
    bar = next(m for m in seen.marks if (m["about"] or "").startswith("3B0 on"))
    place = {axis: 2 * value for axis, value in seen.place(bar).items()}
    scrolls = lambda **by: seen.canvas.evaluate(SWIPE, {"dx": 0, "dy": 0} | by)
    assert not scrolls(**place, dx=30), "a bar is moved"
    assert scrolls(**place, dy=30), "up and down the page scrolls"
    assert scrolls(x=20, y=place["y"], dx=30), "there is nothing to be moved"
    seen = phone(timeline(late()))
    assert scrolls(x=300, y=40, dx=30), "all of its time is shown"
    seen.control("Zoom in").click()
    seen.settle()
    assert not scrolls(x=300, y=40, dx=30), "its window is moved"
    assert scrolls(x=300, y=40, dy=30)


def test_what_is_pointed_at_is_found_where_it_is_seen(other_bench):
    large = other_bench(timeline(late()), 640, flags=TWICE)
    mark = box(large, "rank 0: forward")
    place = large.place(mark)
    large.canvas.hover(position={axis: 2 * value for axis, value in place.items()})
    large.settle()
    assert large.tip.startswith("rank 0: forward")
