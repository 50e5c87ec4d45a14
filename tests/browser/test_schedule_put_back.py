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
