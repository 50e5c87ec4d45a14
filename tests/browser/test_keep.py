"""Keep or compute again: the browser plays as played.py does, and a hand makes any plan."""

import random

import pytest

from lib.draw import keep
from lib.draw.parts import javascript
from lib.predict.recompute import (
    BlockCost,
    every,
    none,
    play_plan,
    read_plan,
    square_root,
    use_of,
)
from lib.predict.recompute.costs import frontier
from tests.browser.same import crowded, same
from tests.predict.recompute.test_played import some_costs, some_plan

PLAYED = """async ([text, cases]) => {
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    const own = await import(url);
    return cases.map(({ costs, plan }) => own.playPlan(costs, plan));
}"""


def some_case(draw) -> dict:
    """Costs of a chain, times of backward, and a plan, with checkpoints in checkpoints."""
    costs = some_costs(draw, draw.choice([1, 2, 5, 20]))
    columns = dict(zip(("input", "inside", "forward"), map(list, zip(*costs))))
    backward = [draw.choice([0.0, draw.random()]) for _ in costs]
    return {"costs": columns | {"backward": backward}, "plan": some_plan(draw, 0, len(costs))}


def test_the_browser_plays_300_random_plans_as_python_does_to_the_last_bit(page):
    cases = [some_case(random.Random(seed)) for seed in range(300)]
    told = page.evaluate(PLAYED, [javascript.module("keep"), cases])
    for case, answer in zip(cases, told, strict=True):
        columns = case["costs"]
        costs = [BlockCost(*one) for one in zip(*(columns[n] for n in BlockCost._fields))]
        ours = play_plan(case["plan"], costs, columns["backward"])
        bars = [(b["kind"], b["block"], b["start"], b["end"]) for b in answer["bars"]]
        assert bars == [tuple(bar) for bar in ours.bars]
        assert [tuple(state) for state in answer["held"]] == list(ours.held)
        assert (answer["end"], answer["peak"]) == (ours.end, ours.peak)
        assert answer["again"] == pytest.approx(ours.again, rel=1e-12)
        use = use_of(case["plan"], costs)
        assert (answer["peak"], answer["runs"]) == (use.peak, list(use.runs))


COSTS = [BlockCost(10**6, 4 * 10**6, 0.001)] * 8


def plan_of(seen) -> tuple:
    """The plan as its words have it."""
    line = seen.ask("p => p.laid.summary").splitlines()[1]
    return read_plan(line.removeprefix("  plan: "), 8)


def block(seen, number: int) -> dict:
    """The box of a block."""
    return next(mark for mark in seen.marks if mark.get("id") == f"block {number}")


def click(seen, number: int) -> None:
    """Clicks a block."""
    seen.canvas.click(position=seen.place(block(seen, number)))
    seen.settle()


def drag(seen, start: int, end: int) -> None:
    """Drags from one block to another."""
    one, other = (seen.place(block(seen, number))["x"] for number in (start, end))
    seen.drag(block(seen, start), other - one)


def test_every_control_leads_to_what_python_draws(bench_page):
    drawn = keep(COSTS, "none")
    seen = bench_page(drawn)
    for label, policy in (("keep all", "none"), ("forget each block", "all"), ("√n", "sqrt")):
        seen.control("Policy").select_option(label)
        seen.settle()
        same(seen, keep(COSTS, policy))
    seen.control("Policy").select_option("every k")
    seen.slide("Blocks in a checkpoint, k", 3)
    same(seen, keep(COSTS, 3))
    assert seen.ask("p => p.laid.summary") == keep(COSTS, 3).summary
    seen.control("Policy").select_option("within a budget")
    choice = frontier(COSTS)[2]
    seen.slide("Budget in bytes", 2)
    new = keep(COSTS, "budget", budget=choice.use.peak)
    same(seen, new)
    assert seen.ask("p => p.laid.summary") == new.summary
    assert plan_of(seen) == choice.plan


def test_a_click_forgets_a_block_and_keeps_it_again(bench_page):
    seen = bench_page(keep(COSTS, "none"))
    click(seen, 3)
    assert plan_of(seen) == (0, 1, 2, (3,), 4, 5, 6, 7)
    assert seen.status == "Block 3 is forgotten, in a checkpoint of its own."
    assert seen.state["policy"] == "hand"
    same(seen, keep(COSTS, (0, 1, 2, (3,), 4, 5, 6, 7)))
    click(seen, 3)
    assert plan_of(seen) == none(8) and seen.status == "Block 3 is kept."
    seen.control("Policy").select_option("every k")
    seen.slide("Blocks in a checkpoint, k", 4)
    click(seen, 1)
    assert plan_of(seen) == ((0,), 1, (2, 3), (4, 5, 6, 7))
    seen.control("Undo").click()
    seen.settle()
    assert plan_of(seen) == every(8, 4) and seen.state["policy"] == "every"
    assert not seen.control("Undo").is_disabled()
    seen.control("Reset").click()
    seen.settle()
    assert plan_of(seen) == none(8) and seen.control("Undo").is_disabled()


def test_dragging_across_blocks_makes_them_one_checkpoint(bench_page):
    seen = bench_page(keep(COSTS, "none"))
    drag(seen, 5, 2)
    assert plan_of(seen) == (0, 1, (2, 3, 4, 5), 6, 7)
    assert seen.status == "Block 5 is forgotten, in the checkpoint of blocks 2 to 5."
    drag(seen, 4, 7)  # what is left of another checkpoint stays one
    assert plan_of(seen) == (0, 1, (2, 3), (4, 5, 6, 7))
    assert len(seen.state["past"]) == 2, "one drag is one change"
    same(seen, keep(COSTS, (0, 1, (2, 3), (4, 5, 6, 7))))


def test_a_checkpoint_in_a_checkpoint_is_one_as_soon_as_a_hand_changes_it(bench_page):
    seen = bench_page(keep(COSTS, (((0, 1), 2, 3), 4, (5, 6), 7)))
    click(seen, 2)
    assert plan_of(seen) == ((0, 1), 2, (3,), 4, (5, 6), 7)


def test_the_keyboard_does_all_that_the_pointer_does(bench_page):
    seen = bench_page(keep(COSTS, "none"))
    said = seen.press("Home")
    assert said.startswith("block 0: kept holds 5 MB of 5 MB")
    assert seen.press("ArrowRight").startswith("block 1: kept")
    seen.press("Enter")
    assert plan_of(seen) == (0, (1,), 2, 3, 4, 5, 6, 7)
    assert seen.status == "Block 1 is forgotten, in a checkpoint of its own."
    seen.press("]")
    assert plan_of(seen) == (0, (1, 2), 3, 4, 5, 6, 7)
    seen.press("[")
    assert plan_of(seen) == ((0, 1, 2), 3, 4, 5, 6, 7)
    seen.press("]")  # parts them
    assert plan_of(seen) == ((0, 1), (2,), 3, 4, 5, 6, 7)
    seen.press(" ")
    assert plan_of(seen) == ((0,), 1, (2,), 3, 4, 5, 6, 7)
    seen.press("u")
    seen.press("u")
    assert plan_of(seen) == ((0, 1, 2), 3, 4, 5, 6, 7)
    seen.press("Home")
    seen.press("[")  # nothing is before the first block
    assert plan_of(seen) == ((0, 1, 2), 3, 4, 5, 6, 7)


def test_points_of_the_frontier_are_chosen_by_a_press(bench_page):
    seen = bench_page(keep(COSTS, "none"))
    point = next(mark for mark in seen.marks if mark.get("id") == "every 4")
    assert seen.hover(point).startswith("a checkpoint around every 4 blocks: ")
    seen.canvas.click(position=seen.place(point))
    seen.settle()
    assert plan_of(seen) == every(8, 4)
    assert (seen.state["policy"], seen.state["k"]) == ("every", 4)


def test_by_hand_a_plan_is_found_copied_and_read(bench_page):
    costs, par = COSTS[:6], 0.002
    seen = bench_page(keep(costs, "none", by_hand=True, budget=21 * 10**6, par=par))
    assert not seen.control("Policy").is_visible()
    words = lambda: " ".join(mark["text"] for mark in seen.marks if mark["kind"] == "text")
    assert "That is 9 MB more than the budget of 21 MB." in words()
    drag(seen, 0, 1)
    assert "That is within the budget of 21 MB." in words()
    assert "2 ms computed again: it is met." in words()
    seen.control("Copy the plan").click()
    seen.settle()
    assert seen.status == "Copied: ((0, 1), 2, 3, 4, 5)"
    text = seen.status.removeprefix("Copied: ")
    plan = read_plan(text, 6)
    use = use_of(plan, costs)
    assert use.peak <= 21 * 10**6 and use.again <= par
    same(seen, keep(costs, "none", by_hand=True, budget=21 * 10**6, par=par, text=text))


@pytest.mark.parametrize("width", [304, 640, 1144])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_any_width(bench_page, width, dark):
    seen = bench_page(keep(COSTS, "sqrt", budget=20 * 10**6), width, dark=dark)
    seen.screenshot(f"keep-{width}-{'dark' if dark else 'light'}")
    assert crowded(seen) == []
    seen.control("Policy").select_option("within a budget")
    for n in range(len(frontier(COSTS))):
        seen.slide("Budget in bytes", n)
        assert crowded(seen) == []


@pytest.mark.parametrize("host", ["running", "in_book"])
def test_it_is_changed_by_hand_where_readers_are(request, host):
    """In JupyterLab with a kernel, and in the book from a file."""
    seen = request.getfixturevalue(host)("keep")
    seen.control("Policy").select_option("√n")
    seen.settle()
    assert plan_of(seen) == square_root(8)
    click(seen, 0)
    assert plan_of(seen) == (0, (1,), (2, 3), (4, 5), (6, 7))
    seen.press("u")
    assert plan_of(seen) == square_root(8)
