"""The exercises that a picture solves, played by drags, by keys, and by copying the text."""

import pytest

from lib.course.pipeline.exercises import invent, shrink
from lib.draw.schedule import schedule
from lib.predict.pipeline import schedules
from lib.predict.pipeline.actions import Schedule
from tests.browser.test_schedule import number
from tests.browser.test_schedule_moves import bar, drag, row

GOALS = {"par": shrink.par, "limit": shrink.limit}


def split_1f1b() -> Schedule:
    """1F1B with each W directly behind its I: nothing is gained yet."""
    rows = [[str(action) for action in line] for line in schedules.one_f_one_b(4, 4)]
    halves = lambda name: [name.replace("B", "I"), name.replace("B", "W")]
    return Schedule([
        [part for name in line for part in (halves(name) if "B" in name else [name])]
        for line in rows
    ], "1F1B, split")  # fmt: skip


def text_of(seen) -> str:
    """The schedule's text, as the button copies it."""
    heard = "() => addEventListener('copy', ({ target }) => (window.copied = target.value))"
    seen.page.evaluate(heard)
    seen.control("Copy as text").click()
    seen.settle()
    assert "Copied:" in seen.status
    return seen.page.evaluate("() => window.copied")


def drag_before(seen, action: str, before: str | None, rank: int) -> None:
    """Drags a bar until it stands before another one, or at the end of its row."""
    mark = bar(seen, before) if before else bar(seen, row(seen, rank)[-1])
    drag(seen, action, mark["x"] + (1 if before else mark["w"]))


def arrange(seen, rank: int, wanted: list[str], move) -> None:
    """Moves bar after bar of a rank, from the last to the first, until its row is as wanted."""
    for place in range(len(wanted) - 1, -1, -1):
        if row(seen, rank)[place] != wanted[place]:
            after = wanted[place + 1] if place + 1 < len(wanted) else None
            move(seen, wanted[place], after, rank)
        assert row(seen, rank)[place] == wanted[place], (rank, place, row(seen, rank))


def push(seen, action: str, before: str | None, rank: int) -> None:
    """Moves a bar by keys: a click picks it, ] moves it on."""
    seen.canvas.click(position=seen.place(bar(seen, action)))
    seen.settle()
    while row(seen, rank)[-1:] + [before] != [action, None]:
        now = row(seen, rank)
        if before and now.index(action) + 1 == now.index(before):
            return
        seen.press("]")


def in_text(made) -> list[list[str]]:
    return [[str(action) for action in line] for line in made]


def test_shrink_is_solved_by_dragging_ws_and_by_nothing_that_lies_ready(bench_page):
    seen = bench_page(schedule(split_1f1b(), **GOALS))
    assert "The goal for the makespan is not met" in seen.status and number(seen, "makespan") == 18
    for rank, wanted in enumerate(in_text(schedules.zb_h1(4, 4))):
        arrange(seen, rank, wanted, drag_before)
    assert "Legal. Makespan 15 instead of 18" in seen.status
    assert "The goal for the makespan is met, the limit is kept." in seen.status
    assert shrink.check(text_of(seen)).solved
    seen.screenshot("exercise-shrink")


def test_shrink_is_solved_by_keys(bench_page):
    seen = bench_page(schedule(split_1f1b(), **GOALS))
    for rank, wanted in enumerate(in_text(schedules.zb_h1(4, 4))):
        arrange(seen, rank, wanted, push)
    assert shrink.check(text_of(seen)).solved


def test_invent_is_solved_by_dragging(bench_page):
    """Rank 0 gets one forward more before its first I, and every other W stands one later."""
    start = schedules.zb_h1(4, 8)
    seen = bench_page(schedule(start, costs=invent.costs, par=48, limit=6), 1000)
    assert "The goal for the makespan is not met" in seen.status
    for number_ in range(4, 8):  # F4 before I0, F5 before I1, and so on
        drag(seen, f"0F{number_}", bar(seen, f"0I{number_ - 4}")["x"] + 1)
    for rank in (1, 2, 3):
        for number_ in range(8):  # each W one I later, the last ones at the end
            now = row(seen, rank)
            later = [name for name in now[now.index(f"{rank}W{number_}") + 1 :] if "I" in name]
            if later:
                after = now[now.index(later[0]) + 1]
                drag(seen, f"{rank}W{number_}", bar(seen, after)["x"] + 1)
    assert "The goal for the makespan is met, the limit is kept." in seen.status, seen.status
    verdict = invent.check(text_of(seen))
    assert verdict.solved, verdict.text


def labels(seen) -> set[str]:
    """What can be chosen, turned or pressed."""
    shown = [node for node in seen.node.locator("button, input, select").all() if node.is_visible()]
    name = (
        "node => node.getAttribute('aria-label') || node.textContent || node.labels?.[0].innerText"
    )
    return {node.evaluate(name).split("\n")[0] for node in shown}


@pytest.mark.parametrize("kind", ["zb-h1", split_1f1b()], ids=["named", "given"])
def test_an_exercise_offers_bars_to_move_and_nothing_else(bench_page, kind):
    seen = bench_page(schedule(kind, 4, 4, par=15))
    assert not seen.node.locator("select").count()
    assert {"Undo", "Reset", "Copy as text"} < labels(seen)
    assert not any("Forward" in name or "Microbatches" in name for name in labels(seen))
    free = bench_page(schedule(kind, 4, 4))
    assert "Forward F" in labels(free) and free.node.locator("select").count()


def test_the_picture_shows_what_the_reader_wrote_and_leads_back_to_the_start(bench_page):
    own = str(schedules.zb_h1(4, 4))
    seen = bench_page(schedule(split_1f1b(), **GOALS, text=own))
    assert number(seen, "makespan") == 15 and "The goal for the makespan is met" in seen.status
    assert [",".join(row(seen, rank)) for rank in range(4)] == own.splitlines()
    drag(seen, "0W0", bar(seen, "0I3")["x"] + 1)
    seen.control("Reset").click()
    seen.settle()
    assert [",".join(row(seen, rank)) for rank in range(4)] == own.splitlines()
    seen.control("Begin anew").click()
    seen.settle()
    assert number(seen, "makespan") == 18
    seen.control("Your text").click()
    seen.settle()
    assert number(seen, "makespan") == 15
    fresh = bench_page(schedule(split_1f1b(), **GOALS))
    assert "Begin anew" not in labels(fresh)


def test_a_text_that_cannot_be_drawn_says_why(bench_page):
    seen = bench_page(schedule(split_1f1b(), **GOALS, text="0F0,0B0\n1B0,1F0"))
    assert seen.status.startswith(
        "Your text is not drawn. 1B0 comes before its forward, 1F0. "
        "The goal for the makespan is not met"
    )
    assert number(seen, "makespan") == 18
