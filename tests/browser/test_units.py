"""The living picture of units: the browser plays as prefetch.py does, whatever is turned."""

import random

import pytest

from lib.draw import units
from lib.draw.parts import javascript
from lib.predict.sharded.prefetch import play_units
from tests.browser.same import crowded, same

PLAYED = """async ([text, cases]) => {
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    const own = await import(url);
    return cases.map(({ times, prefetch, resharded, network }) =>
        own.playUnits(times, prefetch, resharded, network));
}"""


def some_case(draw) -> dict:
    """Sizes, times and a network, among them the extreme ones."""
    count = draw.choice([1, 2, 3, 12])
    seconds = lambda: [draw.choice([1e-3, draw.random()]) for _ in range(count)]
    sizes = [draw.choice([1, draw.randint(1, 10**9)]) for _ in range(count)]
    return {
        "times": {"nbytes": sizes, "forward": seconds(), "backward": seconds()},
        "prefetch": draw.choice([0, 1, 2, 20]),
        "resharded": draw.random() < 0.7,
        "network": {
            "ranks": draw.choice([1, 2, 8, 1024]),
            "alpha": draw.choice([0.0, 1e-5, draw.random()]),
            "bandwidth": 10 ** draw.uniform(6, 12),
        },
    }


def test_the_browser_plays_300_random_cases_as_python_does_to_the_last_bit(page):
    cases = [some_case(random.Random(seed)) for seed in range(300)]
    told = page.evaluate(PLAYED, [javascript.module("units"), cases])
    for case, answer in zip(cases, told, strict=True):
        more = {"prefetch": case["prefetch"], "resharded": case["resharded"]}
        ours = play_units(**case["times"], **more, **case["network"])
        bars = [(b["kind"], b["unit"], b["start"], b["end"]) for b in answer["bars"]]
        assert bars == [tuple(bar) for bar in ours.bars]
        assert [tuple(state) for state in answer["held"]] == list(ours.held)
        for name in ("end", "computing", "exposed", "peak"):
            assert answer[name] == getattr(ours, name), name


SIZES, FORWARD = [10**8, *[4 * 10**8] * 6], 0.02


def test_every_control_leads_to_what_python_draws(bench_page):
    drawn = units(SIZES, FORWARD)
    seen, data = bench_page(drawn), drawn.live[1]
    assert seen.ask("p => p.laid.summary") == drawn.summary
    seen.slide("Prefetch", 3)
    seen.control("Reshard after forward").click()
    seen.slide("Ranks", data["ranks"].index(64))
    seen.slide("Bandwidth", data["bandwidths"].index(5e9))
    seen.slide("Latency", data["alphas"].index(1e-4))
    seen.settle()
    wanted = {"prefetch": 3, "resharded": False, "ranks": 64, "bandwidth": 5e9, "alpha": 1e-4}
    new = units(SIZES, FORWARD, **wanted)
    same(seen, new)
    assert seen.ask("p => p.laid.summary") == new.summary


@pytest.mark.parametrize("width", [304, 640, 1100])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_any_width(bench_page, width, dark):
    seen = bench_page(units(SIZES, FORWARD), width, dark=dark)
    seen.screenshot(f"units-{width}-{'dark' if dark else 'light'}")
    assert crowded(seen) == []


def test_pointing_at_a_bar_tells_what_it_is(bench_page):
    net = {"ranks": 2, "alpha": 0.0, "bandwidth": 1e9}
    seen = bench_page(units([10**6] * 2, [0.001] * 2, names=["in", "out"], **net))
    bar = next(mark for mark in seen.marks if mark.get("id") == "all_gather 1")
    assert seen.hover(bar) == "all_gather of out: 1,000,000 bytes\n500 µs to 1 ms"


def test_it_lives_in_the_book_without_a_kernel(in_book):
    seen = in_book("units")
    seen.slide("Prefetch", 0)
    texts = [mark["text"] for mark in seen.marks if mark["kind"] == "text"]
    assert any(text.startswith("prefetch 0: ") for text in texts)
