"""The schedule explorer, continued: what is moved, by drag and by key."""

import statistics

import numpy as np
import pytest

from lib.draw.schedule import KINDS, schedule
from lib.predict.pipeline.actions import Schedule, ScheduleError
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import one_f_one_b
from tests.browser.test_schedule import number


def row(seen, rank: int) -> list[str]:
    """The row of a rank as it stands, in text."""
    text = seen.ask("p => p.shape.fullSummary(p.state, p.laid)").split("\n\n")[1]
    return text.splitlines()[rank].split(",")


def bar(seen, action: str) -> dict:
    """The bar of an action."""
    return next(m for m in seen.marks if (m["about"] or "").startswith(f"{action} on "))


def drag(seen, action: str, x: float) -> None:
    """Drags a bar to another place, x pixels from the left of the picture."""
    mark = bar(seen, action)
    seen.drag(mark, x - seen.place(mark)["x"], 3)


def test_a_bar_is_dragged_to_a_legal_place_and_the_picture_says_what_it_is_worth(bench_page):
    seen = bench_page(schedule("gpipe", 4, 4, limit=3))
    assert "The limit is not kept" in seen.status
    was = row(seen, 3)
    drag(seen, "3B0", bar(seen, "3F1")["x"])  # the last rank may go back at once
    now = ["3F0", "3B0", "3F1", "3F2", "3F3", "3B1", "3B2", "3B3"]
    assert was != row(seen, 3) == now
    rows = [*KINDS["gpipe"][1](4, 4)][:3] + [now]
    run = play([[str(action) for action in line] for line in rows])
    assert number(seen, "makespan") == pytest.approx(run.makespan)
    assert seen.ask("p => p.laid.run.peaks") == list(run.peak_microbatches)
    assert seen.status.startswith("3B0 now stands before 3F1 on rank 3. Legal. Makespan ")
    assert Schedule.read(seen.ask("p => p.shape.fullSummary(p.state, p.laid)").split("\n\n")[1])
    seen.control("Undo").click()
    seen.settle()
    assert row(seen, 3) == was


def test_an_illegal_place_is_shown_and_told_as_in_python(bench_page):
    seen = bench_page(schedule())
    # 1. A backward before its forward: the bar is ringed, what never runs is pale, nothing is lost.
    drag(seen, "2B1", bar(seen, "2F0")["x"] - 3)
    text = seen.ask("p => p.shape.fullSummary(p.state, p.laid)").split("\n\n")[1]
    with pytest.raises(ScheduleError) as refused:
        Schedule.read(text)
    assert refused.value.sentence == "2B1 comes before its forward, 2F1."
    assert seen.status.endswith(f"Not legal. {refused.value.sentence}")
    assert bar(seen, "2B1")["about"].endswith("never runs")
    ringed = [mark for mark in seen.marks if mark.get("thick") == 2.5]
    assert [mark["x"] for mark in ringed] == [pytest.approx(bar(seen, "2B1")["x"])]
    assert "refused: 2B1 comes before" in seen.canvas.get_attribute("aria-label")
    # 2. Legal again, through a second move; then a circle of two ranks that wait for each other.
    drag(seen, "2B1", bar(seen, "2B2")["x"])
    assert "now stands before 2B2 on rank 2. Legal. Makespan 36 instead of 33," in seen.status
    seen.control("Reset").click()
    seen.settle()
    drag(seen, "0F4", bar(seen, "0B0")["x"] + 3)
    drag(seen, "0B0", 560)
    text = seen.ask("p => p.shape.fullSummary(p.state, p.laid)").split("\n\n")[1]
    assert Schedule.read(text)  # late, and legal
    drag(seen, "0F7", 600)
    drag(seen, "0B7", bar(seen, "0F7")["x"] - 1)
    text = seen.ask("p => p.shape.fullSummary(p.state, p.laid)").split("\n\n")[1]
    with pytest.raises(ScheduleError) as refused:
        Schedule.read(text)
    assert refused.value.sentence in seen.status


def test_a_circle_of_waits_is_named_and_drawn(bench_page):
    seen = bench_page(schedule("gpipe", 2, 2))
    drag(seen, "0B0", bar(seen, "0F1")["x"])
    text = seen.ask("p => p.shape.fullSummary(p.state, p.laid)").split("\n\n")[1]
    with pytest.raises(ScheduleError) as refused:
        Schedule.read(text)
    assert refused.value.sentence.startswith("Deadlock: rank 0 stands before 0B0 and waits for 1B0")
    assert seen.status == (
        f"0B0 now stands before 0F1 on rank 0. Not legal. {refused.value.sentence}"
    )
    lines = [mark for mark in seen.marks if mark.get("thick") == 1.6]
    assert len(lines) == 2  # each of the two waits for the other
    assert number_is_missing(seen)


def number_is_missing(seen) -> bool:
    """A refused order has no makespan."""
    texts = [mark["text"] for mark in seen.marks if mark["kind"] == "text"]
    return texts[texts.index("makespan") + 1] == "—"


def test_the_keyboard_does_all_that_the_pointer_does(bench_page):
    seen = bench_page(schedule("gpipe", 3, 3))
    press = lambda *keys: [seen.press(key) for key in keys][-1]
    said = press("Home")  # the numbers above come first
    for _ in range(30):
        if said.startswith("0B0 on rank 0"):
            break
        said = press("ArrowRight" if "rank 0" in said else "ArrowDown")
    assert said.startswith("0B0 on rank 0")
    press("[", "[")
    assert row(seen, 0) == ["0F0", "0B0", "0F1", "0F2", "0B1", "0B2"]
    assert seen.status.startswith("0B0 now stands before 0F1 on rank 0. Not legal. Deadlock:")
    press("Shift+ArrowLeft")
    assert "0B0 comes before its forward, 0F0." in seen.status
    press("[")  # the row ends here: nothing happens
    assert row(seen, 0)[0] == "0B0"
    press("u")
    assert row(seen, 0)[:2] == ["0F0", "0B0"]
    press("Shift+ArrowRight", "]", "]", "]")
    assert row(seen, 0)[-1] == "0B0"
    assert "now stands at the end on rank 0" in seen.status


def test_a_key_that_moves_nothing_says_what_is_there(bench_page):
    """To who is at an idle gap, at a number, or nowhere."""
    seen = bench_page(schedule("gpipe", 3, 3))
    rows, sentence = [row(seen, rank) for rank in range(3)], "Only bars move: go to one with"
    seen.press("]")
    assert seen.status.startswith(sentence)
    assert seen.press("Home").startswith("makespan")
    seen.press("[")
    assert seen.status.startswith("makespan: from the first start to the last end. Only bars move")
    (gap,) = [m for m in seen.marks if (m["about"] or "").startswith("rank 0 idle from 3 to")]
    for _ in range(20):
        if (said := seen.press("ArrowRight" if "rank 0" in seen.tip else "ArrowDown")) == gap[
            "about"
        ]:
            break
    assert said == gap["about"]
    seen.press("]")
    assert seen.status.startswith(f"{gap['about']}. {sentence} the arrow keys first.")
    assert "waits for 1B0" in gap["about"] and rows == [row(seen, rank) for rank in range(3)]
    assert seen.node.locator(".mrom-status").get_attribute("aria-live") == "polite"


def test_moves_belong_to_their_schedule(bench_page):
    seen = bench_page(schedule("gpipe", 3, 3))
    drag(seen, "2B0", bar(seen, "2F1")["x"])
    moved = row(seen, 2)
    seen.slide("Microbatches", 4)
    assert row(seen, 2) == [str(action) for action in KINDS["gpipe"][1](3, 4)[2]]
    assert seen.control("Undo").is_disabled()
    seen.slide("Microbatches", 3)
    assert row(seen, 2) == moved


def test_a_schedule_of_ones_own_is_played_and_its_text_is_copied(bench_page):
    own = Schedule([["0F0", "0F1", "0B1", "0B0"], ["1F0", "1F1", "1B1", "1B0"]], "mine")
    seen = bench_page(schedule(own))
    assert not seen.node.get_by_label("Stages", exact=True).is_visible()
    assert number(seen, "makespan") == play(own).makespan
    seen.page.context.grant_permissions(["clipboard-read"])
    seen.control("Copy as text").click()
    seen.settle()
    assert "Copied: Schedule.read(text) reads it in Python." in seen.status
    assert seen.ask("p => p.shape.fullSummary(p.state, p.laid)").endswith(str(own))


def test_a_schedule_of_ones_own_has_a_name_of_its_own(bench_page):
    """The choice lists it beside the rule that has its name."""
    options = lambda seen: (
        seen.node.get_by_role("combobox", name="Schedule").inner_text().split("\n")
    )
    names = options(bench_page(schedule(one_f_one_b(4, 8))))
    assert names[0] == "1F1B, as given" and "1F1B" in names and len(set(names)) == len(names)
    own = Schedule([["0F0", "0B0"], ["1F0", "1B0"]], "mine")
    assert options(bench_page(schedule(own)))[0] == "mine"


def test_the_play_head_shows_what_is_kept_at_that_moment(bench_page):
    seen = bench_page(schedule())
    seen.node.evaluate("figure => figure.picture.set({ now: 4.5 / 33 })")
    seen.settle()
    kept = [
        mark["w"] for mark in seen.ask("p => p.over") if mark["kind"] == "box" and mark["h"] > 6
    ]
    whole = [mark for mark in seen.marks if mark.get("id") == "memory 0"][0]["w"] / 4
    np.testing.assert_allclose(np.array(kept) / whole, [4, 3, 2, 1])
    box = seen.canvas.bounding_box()
    bottom = seen.ask("p => p.laid.place.bottom")
    seen.page.mouse.move(box["x"] + 62, box["y"] + bottom + 8)
    seen.page.mouse.down()
    seen.page.mouse.move(box["x"] + 62 + 439 / 2, box["y"] + bottom + 8)
    seen.page.mouse.up()
    seen.settle()
    assert seen.state["now"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("more", [{}, {"send": 2.0, "link": "pair", "ahead": 1}], ids=str)
def test_a_slider_moves_eight_by_sixty_four_within_a_frame(bench_page, more):
    seen = bench_page(schedule("zb-h1", 8, 64, costs=Costs(**more)), 900)
    took = seen.node.evaluate("""async ({ picture }) => {
        const frame = () => new Promise((go) => requestAnimationFrame(() => setTimeout(go)));
        const found = [];
        for (let i = 0; i < 60; i++) {
            picture.set({ forward: 1 + i / 50 });
            await frame();
            if (i >= 20) found.push(picture.took.frame);
        }
        return found;
    }""")
    assert statistics.median(took) < 16, took  # ms, of generating, playing, laying out, painting


@pytest.mark.parametrize("host", ["running", "in_book"])
def test_it_is_turned_and_edited_where_readers_are(request, host):
    """In JupyterLab with a kernel, and in the book from a file."""
    seen = request.getfixturevalue(host)("schedule")
    seen.slide("Microbatches", 6)
    made = one_f_one_b(4, 6)
    assert number(seen, "makespan") == play(made).makespan
    share = next(m for m in seen.marks if (m["about"] or "").startswith("bubble, share"))
    assert "GPipe's (p−1)/(m+p−1)" in seen.hover(share)
    assert number(seen, "bubble share") == pytest.approx(100 * play(made).bubble(), abs=0.06)
    drag(seen, "1B2", bar(seen, "1F1")["x"] - 2)
    rows = [[str(action) for action in line] for line in made]
    rows[1].insert(1, rows[1].pop(rows[1].index("1B2")))
    with pytest.raises(ScheduleError) as refused:
        Schedule(rows)
    assert row(seen, 1) == rows[1]
    assert seen.status.endswith(f"Not legal. {refused.value.sentence}")
    seen.press("u")
    assert row(seen, 1) == [str(action) for action in made[1]]
    seen.screenshot(f"schedule-{host}")
