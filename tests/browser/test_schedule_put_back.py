"""A bar that is let go: put back by Escape, over another row, taken back and moved again."""

import re

import pytest

from lib.draw import keep, schedule
from tests.browser.test_keep import COSTS
from tests.browser.test_schedule_moves import bar, drag, row

STAYS = "Bars stay in the row of their rank."


def take(seen, action: str, dx: float, dy: float = 0.0) -> None:
    """Takes a bar and moves it by dx and dy, and goes on holding it."""
    box, at = seen.canvas.bounding_box(), seen.place(bar(seen, action))
    x, y = box["x"] + at["x"], box["y"] + at["y"]
    seen.page.mouse.move(x, y)
    seen.page.mouse.down()
    seen.page.mouse.move(x + dx / 2, y + dy / 2)
    seen.page.mouse.move(x + dx, y + dy)
    seen.settle()


def escape(seen) -> None:
    """Presses Escape, and lets go of the mouse."""
    seen.page.keyboard.press("Escape")
    seen.settle()
    seen.page.mouse.up()
    seen.settle()


def test_escape_puts_a_bar_back(bench_page):
    seen = bench_page(schedule("gpipe", 4, 4))
    drag(seen, "3B0", bar(seen, "3F1")["x"])
    before, said = row(seen, 2), seen.status
    take(seen, "2B0", -60)
    assert row(seen, 2) != before and seen.status != said
    seen.page.keyboard.press("Escape")
    seen.settle()
    assert row(seen, 2) == before and seen.status == said
    assert len(seen.state["edits"]) == 1
    seen.page.mouse.move(400, 300)
    seen.page.mouse.up()
    seen.settle()
    assert row(seen, 2) == before, "what is put back is not held any more"


def test_escape_means_what_it_meant_where_nothing_is_dragged(bench_page):
    seen = bench_page(schedule("gpipe", 4, 4))
    drag(seen, "3B0", bar(seen, "3F1")["x"])
    moved = row(seen, 3)
    assert seen.hover(bar(seen, "2B0"))
    seen.page.keyboard.press("Escape")
    seen.settle()
    assert not seen.tip and row(seen, 3) == moved


def test_escape_puts_back_what_was_kept(bench_page):
    seen = bench_page(keep(COSTS, "none"))
    blocks = [m for m in seen.marks if str(m.get("id")).startswith("block ")][1:4]
    before, box = seen.state["policy"], seen.canvas.bounding_box()
    for n, mark in enumerate((blocks[0], blocks[2])):
        at = seen.place(mark)
        seen.page.mouse.move(box["x"] + at["x"], box["y"] + at["y"])
        if not n:
            seen.page.mouse.down()
    seen.settle()
    assert seen.state["policy"] == "hand" != before
    escape(seen)
    assert seen.state["policy"] == before and seen.state["past"] == []


@pytest.mark.parametrize("dx", [0, -120], ids=["straight", "across"])
def test_a_bar_that_is_let_go_over_another_row_says_why_it_stays(bench_page, dx):
    seen = bench_page(schedule("gpipe", 4, 4))
    other = row(seen, 1)
    take(seen, "2B0", dx, -23)
    seen.page.mouse.up()
    seen.settle()
    assert row(seen, 1) == other
    moved = r"2B0 now stands before 2F\d on rank 2\. " if dx else ""
    assert re.match(moved + re.escape(STAYS), seen.status), seen.status


def test_a_bar_that_is_let_go_in_its_row_or_beside_all_rows_says_nothing(bench_page):
    seen = bench_page(schedule("gpipe", 4, 4))
    for dy in (5, 200):
        take(seen, "2B0", -30, dy)
        seen.page.mouse.up()
        seen.settle()
        assert STAYS not in seen.status


# --- taken back, and moved again


def focus(seen) -> str:
    """What has the keyboard: its text, or the name of its element."""
    script = "() => document.activeElement.textContent || document.activeElement.localName"
    return seen.page.evaluate(script)


def test_undo_and_redo_are_off_where_there_is_nothing_and_the_keyboard_stays(bench_page):
    seen = bench_page(schedule("gpipe", 4, 4))
    undo, redo = (seen.node.get_by_role("button", name=name) for name in ("Undo", "Redo"))
    before = row(seen, 3)
    drag(seen, "3B0", bar(seen, "3F1")["x"])
    moved = row(seen, 3)
    assert moved != before and undo.is_enabled() and redo.is_disabled()
    undo.focus()
    seen.page.keyboard.press("Enter")
    seen.settle()
    assert row(seen, 3) == before and undo.is_disabled() and redo.is_enabled()
    assert focus(seen) == "canvas"
    seen.page.keyboard.press("Control+Shift+Z")
    seen.settle()
    assert row(seen, 3) == moved and redo.is_disabled()
    undo.click()
    redo.click()
    seen.settle()
    assert row(seen, 3) == moved and focus(seen) == "canvas"
    assert seen.status.startswith("Made again.")


def test_the_keyboard_stays_at_a_button_that_can_be_pressed_again(bench_page):
    seen = bench_page(schedule("gpipe", 4, 4))
    for action in ("3B0", "2B0"):
        drag(seen, action, bar(seen, f"{action[0]}F1")["x"])
    seen.node.get_by_role("button", name="Undo").focus()
    seen.page.keyboard.press("Enter")
    seen.settle()
    assert focus(seen) == "Undo" and len(seen.state["edits"]) == 1


def test_a_change_to_what_is_kept_is_made_again(bench_page):
    seen = bench_page(keep(COSTS, "none"))
    redo = seen.node.get_by_role("button", name="Redo")
    assert redo.is_disabled()
    mark = next(m for m in seen.marks if m.get("id") == "block 3")
    seen.canvas.click(position=seen.place(mark))
    seen.settle()
    hand = seen.state["hand"]
    seen.node.get_by_role("button", name="Undo").click()
    assert seen.state["policy"] == "none"
    redo.click()
    seen.settle()
    assert seen.state["policy"] == "hand" and seen.state["hand"] == hand and redo.is_disabled()


@pytest.mark.parametrize("kind", ["1f1b", "interleaved"])
@pytest.mark.parametrize("width", [304, 320, 336])
def test_the_fold_and_its_neighbours_stand_on_one_line(bench_page, kind, width):
    seen = bench_page(schedule(kind, 4, 8), width, touch=True)
    nodes = [seen.node.locator(".mrom-fold > summary")]
    nodes += [seen.node.get_by_role("button", name=name) for name in ("Undo", "Redo", "Reset")]
    boxes = [node.bounding_box() for node in nodes]
    middles = [box["y"] + box["height"] / 2 for box in boxes]
    assert max(middles) - min(middles) <= 1
    lefts = [box["x"] for box in boxes]
    assert lefts == sorted(lefts)
