"""A schedule that is zoomed: what moves along its time, and what moves a bar of it."""

import pytest

from lib.draw import schedule
from tests.browser.test_schedule_moves import bar, row
from tests.every import every

ZOOMED = "p => p.set({ from: 400, to: 700 })"
HOLD = 450  # ms, a little more than a finger has to stay
SWIPE_HINT = "Swipe to move along; press and hold a bar to move it."


def rows(seen) -> list[list[str]]:
    """The rows of all four ranks as they stand, in text."""
    return [row(seen, rank) for rank in range(4)]


def window(seen) -> tuple[float, float]:
    """The part of the time that is shown."""
    return seen.state["from"], seen.state["to"]


def in_the_middle(seen, letter: str = "B") -> dict:
    """A bar of rank 2 with that letter that lies about in the middle of what is shown."""
    clip = seen.ask("p => p.laid.clip")
    middle = clip["x"] + clip["w"] / 2
    bars = [m for m in seen.marks if (m["about"] or "").startswith(f"2{letter}")]
    return min(bars, key=lambda m: abs(m["x"] + m["w"] / 2 - middle))


def swiped(touch, x: float, y: float, dx: float, dy: float = 0.0) -> None:
    """A finger goes from there by dx and dy, in four steps, and is lifted."""
    touch("Start", (x, y))
    for part in (0.25, 0.5, 0.75, 1):
        touch("Move", (x + part * dx, y + part * dy))
    touch("End")


@pytest.fixture
def phone(fingers):
    """A zoomed schedule on a phone, and its fingers."""
    seen, touch = fingers(schedule("1f1b", 4, 8))
    seen.ask(ZOOMED)
    seen.settle()
    return seen, touch


@pytest.mark.parametrize("where", ["bar", "axis", "legend"])
def test_a_swipe_moves_along_and_no_bar(phone, where):
    seen, touch = phone
    before, at = rows(seen), seen.place(in_the_middle(seen))
    bottom = seen.ask("p => p.laid.place.bottom")
    y = {"bar": at["y"], "axis": bottom + 10, "legend": seen.ask("p => p.laid.height") - 12}[where]
    pixels = seen.ask("p => p.laid.clip.w")
    swiped(touch, at["x"], y, -60)
    begin, end = window(seen)
    assert begin == pytest.approx(400 + 300 * 60 / pixels, abs=1)
    assert end - begin == pytest.approx(300)
    assert rows(seen) == before and seen.state["picked"] is None and seen.state["now"] == 0
    swiped(touch, at["x"] - 60, y, 60)
    assert window(seen)[0] == pytest.approx(400, abs=1)


def test_a_finger_that_holds_a_bar_moves_it(phone):
    seen, touch = phone
    before, mark = rows(seen), in_the_middle(seen)
    at, action = seen.place(mark), mark["about"].split()[0]
    touch("Start", (at["x"], at["y"]))
    seen.page.wait_for_timeout(HOLD)
    seen.settle()
    (ring,) = [m for m in seen.ask("p => p.over") if m.get("thick") == 5]
    assert (ring["x"], ring["y"]) == (mark["x"], mark["y"])
    for dx in (15, 30, 45):
        touch("Move", (at["x"] + dx, at["y"]))
    touch("End")
    assert window(seen) == (400, 700)
    place = before[2].index(action)
    assert row(seen, 2).index(action) > place and rows(seen)[:2] == before[:2]
    assert seen.status.startswith(f"{action} now stands ")
    assert not [m for m in seen.ask("p => p.over") if m.get("thick") == 5], "it is put down"


def test_a_finger_that_moves_in_time_holds_nothing(phone):
    seen, touch = phone
    before, at = rows(seen), seen.place(in_the_middle(seen))
    touch("Start", (at["x"], at["y"]))
    touch("Move", (at["x"] - 20, at["y"]))
    seen.page.wait_for_timeout(HOLD)
    touch("Move", (at["x"] - 60, at["y"]))
    touch("End")
    assert window(seen)[0] > 430 and rows(seen) == before


def test_what_is_held_is_moved_and_the_page_is_not(phone):
    """Up and down too, while a swipe up and down that holds nothing scrolls."""
    seen, touch = phone
    seen.page.evaluate("() => (document.body.style.paddingBottom = '900px')")
    at = seen.place(in_the_middle(seen))
    touch("Start", (at["x"], at["y"]))
    seen.page.wait_for_timeout(HOLD)
    for dy in (20, 40, 60):
        touch("Move", (at["x"] + 20, at["y"] - dy))
    assert seen.page.evaluate("scrollY") == 0 and seen.state["isLifted"]
    touch("End")
    swiped(touch, at["x"], at["y"], 0, -120)
    seen.page.wait_for_timeout(200)
    assert seen.page.evaluate("scrollY") > 50 and window(seen) == (400, 700)


def test_a_finger_moves_a_bar_at_once_where_all_of_the_time_is_shown(fingers):
    seen, touch = fingers(schedule("1f1b", 4, 8))
    before, at = rows(seen), seen.place(bar(seen, "2B1"))
    swiped(touch, at["x"], at["y"], 40)
    assert row(seen, 2) != before[2] and window(seen) == (0, 1000)


def test_the_hint_says_how_to_move_along_while_it_is_zoomed(phone, bench_page):
    seen, _ = phone
    assert seen.status.endswith(SWIPE_HINT) and "Drag it" not in seen.status
    seen.ask("p => p.set({ from: 0, to: 1000 })")
    seen.settle()
    assert "Swipe" not in seen.status and "Drag it to another place in its row." in seen.status
    wide = bench_page(schedule("1f1b", 4, 8), 640)
    assert "wheel" not in wide.status
    wide.ask(ZOOMED)
    wide.settle()
    assert "or turn the wheel with Shift, to move along." in wide.status
    wide.ask("p => p.set({ isTouch: true, to: 600 })")  # a tablet
    wide.settle()
    assert SWIPE_HINT in wide.status


# --- by mouse


@pytest.fixture
def desk(bench_page):
    """A zoomed schedule with gaps, 640 px wide."""
    seen = bench_page(schedule("1f1b", 4, 8), 640)
    seen.ask("p => p.set({ from: 100, to: 400 })")
    seen.settle()
    return seen


def test_a_drag_that_begins_on_no_bar_moves_along(desk):
    before, clip = rows(desk), desk.ask("p => p.laid.clip")
    gap = max((m for m in desk.marks if str(m.get("id")).startswith("idle ")), key=lambda m: m["w"])
    left = max(clip["x"], gap["x"])
    bottom, height = desk.ask("p => [p.laid.place.bottom, p.laid.height]")
    places = [(left + 20, gap["y"]), (300, bottom + 10), (300, height - 10), (300, clip["y"] + 5)]
    for x, y in places:
        desk.drag({"x": x, "y": y + 3, "w": 0, "h": 0}, -50)
        assert window(desk)[0] == pytest.approx(100 + 300 * 50 / clip["w"], abs=0.5), (x, y)
        desk.ask("p => p.set({ from: 100, to: 400 })")
        desk.settle()
    assert rows(desk) == before and desk.state["now"] == 0


def test_a_drag_that_begins_on_a_bar_moves_it(desk):
    mark = in_the_middle(desk)
    was = row(desk, 2)
    desk.drag(mark, 120)
    assert row(desk, 2) != was and window(desk) == (100, 400)


@pytest.mark.parametrize("shift", [False, True], ids=["sideways", "shift"])
def test_a_wheel_that_turns_sideways_moves_along(desk, shift):
    clip = desk.ask("p => p.laid.clip")
    desk.canvas.hover(position={"x": 300, "y": clip["y"] + 20})
    if shift:
        desk.page.keyboard.down("Shift")
    desk.page.mouse.wheel(*((0, 50) if shift else (50, 0)))
    if shift:
        desk.page.keyboard.up("Shift")
    desk.page.wait_for_timeout(100)
    desk.settle()
    assert window(desk)[0] == pytest.approx(100 + 300 * 50 / clip["w"], abs=0.5)
    assert every(m["inside"] for m in [in_the_middle(desk)])


def test_a_wheel_moves_nothing_where_all_is_shown_or_it_turns_down(desk):
    desk.canvas.hover(position={"x": 300, "y": 60})
    desk.page.mouse.wheel(0, 50)
    desk.page.wait_for_timeout(100)
    assert window(desk) == (100, 400)
    desk.ask("p => p.set({ from: 0, to: 1000 })")
    desk.page.mouse.wheel(50, 0)
    desk.page.wait_for_timeout(100)
    assert window(desk) == (0, 1000)
