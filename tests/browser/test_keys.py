"""The keys of pictures: from rank to rank at one time, and moves taken back and made again."""

import pytest

from lib.draw import keep, schedule
from lib.predict.pipeline.schedules import dualpipe_v
from lib.predict.recompute import BlockCost
from tests.browser.test_schedule_moves import bar, drag, row
from tests.every import every

WIDTHS = {"wide": 640, "phone": 304}


def moments(seen) -> list[tuple[float, float]]:
    """When each bar and each idle time that was passed begins and ends."""
    chosen = seen.ask("p => [p.chosen.x, p.chosen.x + p.chosen.w]")
    place = seen.ask("p => [p.laid.place.zero, p.laid.place.pixels]")
    return [(x - place[0]) / place[1] for x in chosen]


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: schedule("1f1b", 4, 8),
        lambda: schedule("interleaved", 4, 8, 2),
        lambda: schedule(dualpipe_v(8, 10)),
    ],
    ids=["1f1b", "interleaved", "side by side"],
)
def test_up_and_down_stay_at_one_time_and_go_from_rank_to_rank(bench_page, make, width):
    """Never to the memory that stands beside the rows, nor along a row to a later time."""
    seen = bench_page(make(), width)
    seen.press("Home")
    said = seen.press("ArrowDown")
    while "rank 0" not in said:
        said = seen.press("ArrowDown")
    for _ in range(9):
        said = seen.press("ArrowRight")
    begin, end = moments(seen)
    middle, ranks = (begin + end) / 2, len(seen.ask("p => p.laid.schedule.rows"))
    for way, order in (("ArrowDown", range(1, ranks)), ("ArrowUp", range(ranks - 2, -1, -1))):
        for rank in order:
            passed = seen.press(way)
            assert f"rank {rank}" in passed and "keeps the activations" not in passed
            begin, end = moments(seen)
            assert begin - 0.1 <= middle <= end + 0.1, passed
    assert seen.press("ArrowLeft") != said
    assert seen.press("ArrowRight") == said, "up and down lead back to where they began"


def test_left_and_right_go_through_all_of_a_row(bench_page):
    """Bars of a rank's second stage too, which are drawn half a pixel further in."""
    seen = bench_page(schedule("interleaved", 4, 8, 2), 640)
    seen.press("Home")
    passed = [seen.press("ArrowDown")]
    while passed[0] != (said := seen.press("ArrowLeft")):
        passed[0] = said
    while passed[-1] != (said := seen.press("ArrowRight")):
        passed.append(said)
    bars = [text.removeprefix("Ranks over time: ").split(" on ")[0] for text in passed]
    assert [text for text in bars if "idle" not in text] == row(seen, 0)


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_below_the_last_rank_lies_the_memory_and_each_part_is_named(bench_page, width):
    seen = bench_page(schedule("1f1b", 4, 8), width)
    assert seen.press("Home").startswith("makespan")
    said = seen.press("ArrowDown")
    while "rank 0" not in said:
        said = seen.press("ArrowDown")
    assert said.startswith("Ranks over time: ")
    last = [seen.press("ArrowDown") for _ in range(3)][-1]
    kept = [seen.press("ArrowDown") for _ in range(4)]
    assert kept[0].startswith("Peak memory: rank 0 keeps the activations of at most 4")
    assert every(f"rank {rank} keeps" in text for rank, text in enumerate(kept))
    back = [seen.press("ArrowUp") for _ in range(4)]
    assert back[-1] == f"Ranks over time: {last}"
    keys = "Up and Down to what the next rank does at that time, and Down from the last rank to " \
        "the peak memory."  # fmt: skip
    assert keys in seen.canvas.get_attribute("aria-label")
    assert (keys in seen.status) == (width == WIDTHS["wide"]), "a phone's line is for fingers"


UNDO = ["Control+z", "Meta+z"]
REDO = ["Control+Shift+Z", "Control+y", "Meta+Shift+Z"]


@pytest.mark.parametrize("undo", UNDO)
@pytest.mark.parametrize("redo", REDO)
def test_moves_are_taken_back_and_made_again(bench_page, undo, redo):
    seen = bench_page(schedule("gpipe", 4, 4))
    rows = [row(seen, 3)]
    for action in ("3F1", "3F2"):
        drag(seen, "3B0", bar(seen, action)["x"])
        rows.append(row(seen, 3))
    assert len({*map(tuple, rows)}) == 3
    seen.canvas.focus()
    for n in (1, 0, 0):
        seen.press(undo)
        assert row(seen, 3) == rows[n]
    assert "Taken back." in seen.status
    for n in (1, 2, 2):
        seen.press(redo)
        assert row(seen, 3) == rows[n]
    assert "Made again." in seen.status
    seen.press(undo)
    drag(seen, "3B3", bar(seen, "3B2")["x"])
    moved = row(seen, 3)
    seen.press(redo)
    assert row(seen, 3) == moved, "after another move there is nothing to be made again"


def test_only_a_picture_that_has_the_keyboard_takes_moves_back(bench_page):
    seen = bench_page(schedule("gpipe", 4, 4))
    drag(seen, "3B0", bar(seen, "3F1")["x"])
    moved = row(seen, 3)
    seen.page.evaluate("() => document.body.append(document.createElement('textarea'))")
    seen.page.locator("body > textarea").press("Control+z")
    seen.settle()
    assert row(seen, 3) == moved
    field = """figure => {
        const field = document.createElement("input");
        figure.append(Object.assign(field, { type: "text", className: "own" }));
    }"""
    seen.node.evaluate(field)
    seen.node.locator("input.own").press("Control+z")
    seen.settle()
    assert row(seen, 3) == moved, "in a field these keys mean its text"
    seen.node.get_by_role("button", name="Copy as text").press("Control+z")
    seen.settle()
    assert row(seen, 3) != moved, "a button of the picture belongs to it"
    assert "Control+Z takes a move back, and Control+Shift+Z makes it again." in seen.status


def test_changes_of_a_plan_are_taken_back_and_made_again(bench_page):
    cost = [BlockCost(1, 4, 0.1)] * 6
    seen = bench_page(keep(cost, ((0, 1), 2, (3,), 4, 5), by_hand=True, budget=20, par=2, unit=""))
    plan = lambda: seen.ask("p => p.laid.plan")
    begun = plan()
    seen.canvas.focus()
    seen.ask("p => p.set(p.shape.key('Enter', p.state, p.laid, { id: 'block 2' }))")
    seen.settle()
    changed = plan()
    assert changed != begun
    seen.press("Control+z")
    assert plan() == begun and "Taken back." in seen.status
    seen.press("Control+Shift+Z")
    assert plan() == changed and "Made again." in seen.status
