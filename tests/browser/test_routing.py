"""The living picture of routing: every choice is the still of it, and steps are played."""

import pytest

from lib.draw import routing
from tests.browser.same import crowded, same
from tests.draw.recorded_routes import STEPS, runs


def choose(seen, label: str, text: str) -> None:
    """Chooses an entry of a list by its words."""
    seen.control(label).select_option(text)
    seen.settle()


@pytest.mark.parametrize("width", [304, 640, 1176])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_any_width(bench_page, width, dark):
    seen = bench_page(routing(runs(), capacity=1.25), width, dark=dark)
    seen.screenshot(f"routing-{width}-{'dark' if dark else 'light'}")
    assert crowded(seen) == []


def test_every_choice_fits_a_phone_and_is_the_still_of_it(bench_page):
    seen = bench_page(routing(runs()), 304)
    for run, seeds in runs().items():
        choose(seen, "Gate", run)
        for seed in seeds:
            choose(seen, "Seed", str(seed))
            for factor, words in ((None, "none"), (1.0, "factor 1"), (2.0, "factor 2")):
                choose(seen, "Capacity", words)
                for at, step in enumerate(STEPS):
                    seen.ask("(p, at) => p.set({ at })", at)
                    seen.settle()
                    still = routing(runs(), run=run, seed=seed, step=step, capacity=factor)
                    assert seen.ask("p => p.laid.summary") == still.summary
                    assert crowded(seen) == [], (run, seed, factor, step)


def test_choosing_leads_to_the_still_of_that_run(bench_page):
    seen = bench_page(routing(runs(), capacity=1.0), 640)
    choose(seen, "Gate", "balance loss")
    same(seen, routing(runs(), run="balance loss", capacity=1.0))


def test_a_step_is_chosen_by_its_column(bench_page):
    seen = bench_page(routing(runs()), 640)
    assert seen.status == "Step 100: 0 of 8 experts have no token."
    cell = next(m for m in seen.marks if m.get("id") == {"frame": 1, "expert": 2})
    assert seen.hover(cell) == "step 1, expert 2: 9 % of the tokens"
    seen.canvas.click(position=seen.place(cell))
    seen.settle()
    same(seen, routing(runs(), step=STEPS[1]))


def test_one_table_has_no_steps_to_play(bench_page):
    seen = bench_page(routing([[4, 0], [2, 0]]), 640)
    assert not seen.control("Gate").is_visible() and not seen.control("Seed").is_visible()
    assert seen.status == "1 of 2 experts has no token."


def test_every_expert_has_its_number_on_a_phone(bench_page):
    """Beside its tokens and beside its shares; none is left out for want of room."""
    seen = bench_page(routing(runs()), 304)
    assert "of 8 experts" in seen.status
    ends = [(m["x"], m["text"]) for m in seen.marks if m.get("align") == "right"]
    columns = {x: [text for at, text in ends if at == x] for x, _ in ends}
    assert [list("01234567")] * 2 == [names for names in columns.values() if names[0] == "0"][:2]
