"""What plays the time: the window that follows it, its slider on a phone, and without motion."""

import pytest

from lib.draw import blocks, collective, memory, schedule, timeline
from lib.predict.allocator.replay import replay
from lib.predict.collectives.plans import ring
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import gpipe, one_f_one_b
from tests.browser.test_timeline import slide
from tests.every import every
from tests.predict.allocator.lives import checkpointed

COSTS = Costs(1e-3, 1e-3, 1e-3)
KEEPING = Costs(1e-3, 1e-3, 1e-3, activation=50_000_000)
ZOOMED = {
    "schedule": (lambda: schedule("1f1b", 4, 8, par=40), "now"),
    "timeline": (lambda: timeline(play(one_f_one_b(4, 8), COSTS).ledger), "at"),
    "memory": (lambda: memory(play(gpipe(2, 4), KEEPING).ledger), "at"),
    "blocks": (lambda: blocks({"best": replay(checkpointed())}), "at"),
}
WATCHED = """(p, [name, wait]) => new Promise((done) => {
    const seen = [], begin = performance.now();
    const look = (time) => {
        if (seen.at(-1) !== p.state[name]) seen.push(p.state[name]);
        if (time - begin < wait) requestAnimationFrame(look);
        else done(seen);
    };
    requestAnimationFrame(look);
})"""


def shows_its_head(seen) -> bool:
    """Whether the play head lies in the part of the picture that shows the window."""
    return seen.ask("""({ over, laid: { clip } }) => over.some(({ kind, points }) =>
        kind === "line" && points[0][0] >= clip.x - 1 && points[0][0] <= clip.x + clip.w + 1)""")


def zoom_in(seen, times=6) -> None:
    """Zooms into the middle with the picture's own button, as far as that goes."""
    for _ in range(times):
        if seen.control("Zoom in").is_enabled():
            seen.control("Zoom in").click()
            seen.settle()


@pytest.mark.parametrize("kind", ZOOMED)
def test_the_window_follows_the_time_that_plays(bench_page, kind):
    make, name = ZOOMED[kind]
    seen = bench_page(make())
    zoom_in(seen)
    begun = seen.state["from"]
    assert begun > 0 and not shows_its_head(seen)
    seen.node.get_by_role("button", name=": play").click()
    seen.page.wait_for_timeout(300)
    assert seen.state[name] > 0 and shows_its_head(seen)
    long = seen.state["to"] - seen.state["from"]
    seen.ask("(p, [name, at]) => p.set({ [name]: at })", [name, 0.8 * most(seen)])
    seen.page.wait_for_timeout(200)
    assert shows_its_head(seen) and seen.state["from"] > begun
    assert seen.state["to"] - seen.state["from"] == pytest.approx(long), "it is as long as before"
    seen.node.get_by_role("button", name=": pause").click()


def most(seen) -> float:
    """Where the player ends."""
    return float(seen.node.locator(".mrom-player input").get_attribute("max"))


def test_the_window_follows_the_slider_and_stays_where_it_shows_it(bench_page):
    seen = bench_page(ZOOMED["timeline"][0]())
    zoom_in(seen)
    window = [seen.state["from"], seen.state["to"]]
    slide(seen, sum(window) / 2)
    assert [seen.state["from"], seen.state["to"]] == window
    for moment in (most(seen), 0.01 * most(seen), 0.6 * most(seen)):
        slide(seen, moment)
        assert shows_its_head(seen), moment


def test_a_small_window_is_not_passed_before_it_is_seen(bench_page):
    """Eight seconds for the whole would be 40 ms for a window of a 200th."""
    seen = bench_page(ZOOMED["timeline"][0]())
    end = most(seen)
    seen.ask("(p, end) => p.set({ from: 0, to: end / 200 })", end)
    seen.node.get_by_role("button", name=": play").click()
    seen.page.wait_for_timeout(500)
    assert 0 < seen.state["at"] < end / 200 and seen.state["from"] == 0
    seen.node.get_by_role("button", name=": pause").click()
    at = seen.state["at"]
    seen.node.get_by_role("button", name=": ahead").click()
    seen.settle()
    assert seen.state["at"] - at == pytest.approx(end / 200 / 50, rel=0.01)


def test_what_the_window_passes_is_not_read_out(bench_page):
    seen = bench_page(ZOOMED["timeline"][0]())
    zoom_in(seen)
    window = seen.state["from"]
    seen.node.get_by_role("button", name=": play").click()
    seen.page.wait_for_timeout(100)
    assert seen.state["from"] != window
    assert seen.node.locator(".mrom-status").get_attribute("aria-live") == "off"
    seen.node.get_by_role("button", name=": pause").click()


PLAYED = {name: make for name, (make, _) in ZOOMED.items()}
PLAYED["collective"] = lambda: collective(ring(4))


@pytest.mark.parametrize("kind", PLAYED)
def test_a_phone_gives_the_slider_a_line_of_its_own(bench_page, kind):
    seen = bench_page(PLAYED[kind](), 304)
    slider, play_button = seen.node.locator(".mrom-player input"), seen.control(": play")
    box, button = slider.bounding_box(), play_button.bounding_box()
    assert box["width"] >= 300 and box["y"] >= button["y"] + button["height"]
    assert slider.evaluate("node => node.labels[0].textContent.trim().length") > 3
    wide = bench_page(PLAYED[kind](), 640)
    box, button = (part.bounding_box() for part in
                   (wide.node.locator(".mrom-player input"), wide.control(": play")))  # fmt: skip
    assert box["y"] < button["y"] + button["height"], "elsewhere it stands beside the buttons"


STILL = {"flags": "--force-prefers-reduced-motion", "reduced_motion": "null"}


@pytest.mark.parametrize("kind", ["schedule", "timeline"])
def test_without_motion_play_goes_from_event_to_event(other_bench, kind):
    """Emulated, the wish for no motion is not what a browser tells that has it from its system."""
    make, name = ZOOMED[kind]
    seen = other_bench(make(), 640, **STILL)
    seen.node.get_by_role("button", name=": play").click()
    passed = seen.ask(WATCHED, [name, 1800])
    assert 3 <= len(passed) <= 5, "a moment stands still for half a second"
    run = play(one_f_one_b(4, 8), COSTS if kind == "timeline" else Costs())
    times = sorted({row.start for row in run.ledger} | {row.end for row in run.ledger})
    at = [moment / most(seen) * run.makespan for moment in passed]
    assert every(min(abs(moment - time) for time in times) < 1e-3 * run.makespan for moment in at)


def test_without_motion_play_goes_from_round_to_round(other_bench):
    seen = other_bench(collective(ring(4)), 640, **STILL)
    slide(seen, 0)
    seen.node.get_by_role("button", name="Rounds: play").click()
    passed = seen.ask(WATCHED, ["at", 4500])
    assert passed[:3] == [0, 1, 2] and every(float(at).is_integer() for at in passed)
