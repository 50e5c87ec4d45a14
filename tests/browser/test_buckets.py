"""Buckets in flight, alive: the browser computes as bucket_overlap.py does, and says so."""

import random
import re
import statistics

import pytest

from lib.draw import buckets
from lib.draw.parts import javascript
from lib.draw.parts.picture import Picture
from lib.ledger import Ledger, Row
from lib.predict.data.bucket_overlap import best, fly
from lib.predict.data.buckets import CAP, FIRST
from tests.browser.same import same
from tests.every import every

MIB = 2**20
LAYERS = [(3, 1, 4, 4)[n % 4] * MIB for n in range(48)]
NET = {"ranks": 8, "alpha": 1.4e-5, "bandwidth": 1.25e10}

FLOWN = """async ([text, cases]) => {
    const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
    const own = await import(url);
    return cases.map(({ nbytes, seconds, choices, network }) => ({
        found: own.best(nbytes, seconds, choices, network),
        runs: choices.map((limits) => own.fly(nbytes, seconds, limits, network)),
    }));
}"""


def some_case(draw) -> dict:
    """Sizes, times and a network, among them the extreme ones."""
    count = draw.choice([1, 2, 3, 10, 60])
    nbytes = [draw.choice([1, 1000, draw.randint(1, 10**8)]) for _ in range(count)]
    seconds = [draw.choice([0.0, 1e-3, draw.random()]) for _ in range(count)]
    choices = [(min(nbytes),), (sum(nbytes),), (FIRST, CAP), (draw.randint(1, sum(nbytes)),)]
    network = {
        "ranks": draw.choice([1, 2, 3, 8, 1024]),
        "alpha": draw.choice([0.0, 1e-5, draw.random()]),
        "bandwidth": 10 ** draw.uniform(3, 12),
    }
    return {"nbytes": nbytes, "seconds": seconds, "choices": choices, "network": network}


def test_the_browser_flies_500_random_cases_as_python_does_to_the_last_bit(page):
    cases = [some_case(random.Random(seed)) for seed in range(500)]
    told = page.evaluate(FLOWN, [javascript.module("buckets"), cases])
    for case, answer in zip(cases, told, strict=True):
        nbytes, seconds, network = case["nbytes"], case["seconds"], case["network"]
        for limits, run in zip(case["choices"], answer["runs"], strict=True):
            ours = fly(nbytes, seconds, limits, **network)
            assert run["ready"] == list(ours.ready)
            assert [(tuple(f["inside"]), f["bytes"], f["full"], f["start"], f["end"])
                    for f in run["flights"]] == [
                (f.inside, f.bytes, f.full, f.start, f.end) for f in ours.flights
            ]  # fmt: skip
            for name in ("backward", "end", "moving", "exposed"):
                assert run[name] == getattr(ours, name)
        assert answer["found"] == best(nbytes, seconds, case["choices"], **network)


def picture(**more):
    return buckets(LAYERS, 0.05, **NET, **more)


@pytest.mark.parametrize(
    "drawn",
    [
        picture(),
        picture(bucket_bytes=MIB),
        buckets([7], 1.0),
        buckets([10, 1, 10**9], [1.0, 0.0, 2.0], names=["a", "b", "c"], link="Ethernet 10"),
        buckets([4 * n for n in range(1, 200)], 0.01, ranks=1),
    ],
    ids=["usual", "one a bucket", "one gradient", "uneven", "one rank"],
)
def test_the_browser_says_what_python_says(bench_page, drawn):
    assert bench_page(drawn).ask("p => p.laid.summary") == drawn.summary


def texts(seen):
    return [mark["text"] for mark in seen.marks if mark["kind"] == "text"]


def test_every_slider_moves_the_picture_to_what_python_predicts(bench_page):
    drawn = picture()
    seen, data = bench_page(drawn), drawn.live[1]
    stop = next(n for n, limits in enumerate(data["stops"]) if limits[0] > 6 * MIB)
    seen.slide("Bucket size", stop)
    seen.slide("Ranks", data["ranks"].index(64))
    seen.slide("Bandwidth", data["bandwidths"].index(5e9))
    seen.slide("Latency", data["alphas"].index(1e-4))
    then = {"ranks": 64, "bandwidth": 5e9, "alpha": 1e-4}
    size = data["stops"][stop][0]
    new = buckets(LAYERS, 0.05, bucket_bytes=size, **then)
    same(seen, new)
    assert seen.ask("p => p.laid.summary") == new.summary
    seen.node.get_by_text("In words").click()
    seen.settle()
    assert seen.node.locator("details pre").text_content() == new.summary


def test_the_best_size_and_the_default_are_a_press_away(bench_page):
    drawn = picture(bucket_bytes=sum(LAYERS))
    seen, data = bench_page(drawn), drawn.live[1]
    exposed = seen.ask("p => p.laid.run.exposed")
    seen.control("Least exposed").click()
    seen.settle()
    network = {"ranks": 8, "alpha": 1.4e-5, "bandwidth": 1.25e10}
    found = best(data["nbytes"], data["seconds"], data["stops"], **network)
    assert seen.state["stop"] == found and seen.ask("p => p.laid.run.exposed") < exposed / 4
    seen.control("PyTorch's default").click()
    seen.settle()
    assert "full at 1 MiB, later ones at 25 MiB" in " ".join(texts(seen))


def test_the_curve_can_be_dragged_to_a_size(bench_page):
    seen = bench_page(picture())
    chosen = next(mark for mark in seen.marks if mark.get("id") == "size")
    before = seen.state["stop"]
    seen.drag(chosen, -120, 0)
    seen.settle()
    moved = next(mark for mark in seen.marks if mark.get("id") == "size")
    assert seen.state["stop"] < before and moved["x"] == pytest.approx(chosen["x"] - 120, abs=4)


def test_the_play_head_tells_the_moment(bench_page):
    seen = bench_page(picture(bucket_bytes=12 * MIB))
    assert seen.status == ""
    run = seen.ask("p => p.laid.run")
    now = run["flights"][0]["start"] * 1.01
    seen.ask("(p, at) => p.set({ at })", now / run["end"])
    seen.settle()
    ready = sum(time <= now for time in run["ready"])
    assert f": {ready} of 48 gradients ready; bucket 0 is moving; 0 of" in seen.status
    veil, line = seen.ask("p => p.over")
    assert line["points"][0][0] == pytest.approx(84 + now / run["end"] * (640 - 98), abs=0.1)
    seen.control("Time: play").click()
    seen.page.wait_for_function(
        "at => document.querySelector('figure.mrom').picture.state.at > at", arg=now / run["end"]
    )
    seen.control("Time: pause").click()
    assert seen.state["at"] < 1


def test_pointing_at_a_bar_tells_what_it_is(bench_page):
    drawn = buckets([MIB, 2 * MIB], [0.5, 1.0], ranks=2, alpha=0.0, bandwidth=1e6, bucket_bytes=1)
    seen = bench_page(drawn)
    first, second = (next(m for m in seen.marks if m.get("id") == f"b{n}") for n in (0, 1))
    assert seen.hover(first).startswith("bucket 0: 1 gradient, 2,097,152 bytes\nfull at 1 s\n")
    assert "full at 1.5 s, waits 1.6 s for the lane" in seen.hover(second)
    gradient = next(m for m in seen.marks if m.get("id") == "g1")
    assert seen.hover(gradient) == "0: 1,048,576 bytes\nready at 1.5 s, into bucket 1"


def test_without_anybody_to_ask_there_is_no_button(bench_page):
    assert not bench_page(picture()).node.get_by_text("Run on real ranks").count()


def outlined(seen):
    boxes = [m for m in seen.marks if m["kind"] == "box" and m.get("edge")]
    return [m for m in boxes if not m.get("fill") and not m.get("hatch")]


def test_a_run_is_laid_over_the_prediction(bench_page):
    drawn = picture(ask=lambda size: Ledger(fly([5] * 4, [0.01] * 4, (10,), **NET).ledger))
    seen = bench_page(drawn)
    button = seen.control("Run on real ranks")
    assert button.is_disabled()  # nobody has answered the greeting
    needed = seen.node.get_by_text("This needs JupyterLab: open the chapter there.")
    assert needed.is_visible()
    seen.page.evaluate("answer({ manyRanks: '' })")
    seen.settle()
    assert not needed.is_visible()
    button.click()
    greeting, asked = seen.page.evaluate("sent")
    assert asked["ask"] == "run" and asked["state"]["stop"] == drawn.live[1]["start"]["stop"]
    before = len(seen.marks)
    seen.page.evaluate("renew", drawn.ask(asked["ask"], asked["state"]))
    seen.settle()
    seen.page.wait_for_function("() => document.querySelector('.mrom-status').textContent")
    outlines = outlined(seen)
    assert len(outlines) == 1 + 2 + 1 and len(seen.marks) == before + 3 + 2  # and in the legend
    assert not any(m.get("dash") for m in outlines), "dashed is what is predicted"
    assert outlines[0]["w"] == pytest.approx(0.04 / seen.ask("p => p.laid.run.end") * 542, abs=1)
    assert re.search(r"Measured on 8 ranks, 25 MiB, first 1 MiB: 2 all-reduces", seen.status)
    seen.page.evaluate("() => document.querySelector('figure.mrom').picture.set({ stop: 0 })")
    seen.settle()
    outlines = outlined(seen)
    assert not outlines and "Measured on 8 ranks" not in seen.status, "of another size"
    assert "outlines" not in seen.ask("p => p.laid.caption")


def test_a_slider_answers_within_a_frame(bench_page):
    seen = bench_page(picture(), width=1000)
    took = []
    for n in range(30):
        seen.slide("Bandwidth", n % 12)
        took.append(seen.ask("p => p.took.frame"))
    assert statistics.median(took) < 16, took


@pytest.mark.parametrize("width", [400, 900, 1200])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_any_width(bench_page, width, dark):
    seen = bench_page(picture(bucket_bytes=4 * MIB), width, dark=dark)
    seen.screenshot(f"buckets-{width}-{'dark' if dark else 'light'}")
    wide = [mark for mark in seen.marks if mark["kind"] == "box"]
    assert every(m["x"] >= -0.5 and m["x"] + m["w"] <= width + 0.5 for m in wide)
    overlaps(seen.marks)


def test_controls_of_a_line_stand_level_on_a_phone(bench_page):
    """Sliders in two columns, buttons in lines of their own; middles are as high as one another."""
    drawn = bench_page(picture(ask=lambda size: None), 304)
    parts = drawn.node.locator(".mrom-controls").locator("> button, > .mrom-slider").all()
    places = [part.bounding_box() for part in parts]
    lines = {}
    for part, place in zip(parts, places, strict=True):
        kind = part.evaluate("node => node.tagName")
        lines.setdefault(place["y"] + place["height"], []).append(
            (kind, place["x"], place["width"])
        )
    pairs = [sorted(line) for line in lines.values()]
    assert [[kind for kind, *_ in line] for line in pairs] == [["LABEL"] * 2] * 2 + [["BUTTON"] * 2]
    for (_, left, first), (_, right, second) in pairs[:2]:
        assert (left, right) == (pairs[0][0][1], pairs[0][1][1]) and abs(first - second) < 1


def test_a_slider_is_as_high_as_the_button_beside_it(bench_page):
    wide = bench_page(picture(), 1100).node
    slider, button = wide.get_by_label("Latency"), wide.get_by_role("button", name="Least exposed")
    one, other = slider.bounding_box(), button.bounding_box()
    middle = one["y"] + one["height"] / 2
    assert middle == pytest.approx(other["y"] + other["height"] / 2, abs=0.5)


def overlaps(marks):
    """No two texts lie over one another; 6 px a letter, as a browser writes them."""
    side = {"left": 0, "middle": 0.5, "right": 1}
    rows = [m for m in marks if m["kind"] == "text"]
    places = [(m["y"], m["x"] - side[m["align"]] * 6 * len(m["text"]), m) for m in rows]
    for n, (y, x, one) in enumerate(places):
        for below, right, other in places[:n]:
            apart = x + 6 * len(one["text"]) <= right or right + 6 * len(other["text"]) <= x
            assert abs(y - below) >= 12 or apart, (one["text"], other["text"])


def test_a_run_that_a_busy_machine_delayed_says_so_beside_the_prediction(bench_page):
    what = {"group": "world", "members": (0, 1), "bytes": 8, "number": 0, "arrived": 6.0}
    for note, end in (("slipped 400 ms", "was busy. Press again."), ("", "ms.")):
        rows = [Row(0, "compute", "backward", 5.0, 6.0, note=note)]
        rows += [Row(0, "comm", "all_reduce", 6.0, 9.0, **what)]
        drawn = picture(ask=lambda size, rows=rows: Ledger(rows, source="slow motion"))
        told = drawn.ask("run", {"stop": drawn.live[1]["start"]["stop"]})
        status = bench_page(Picture(drawn.summary, ("buckets", told))).status
        assert "Predicted here, on " in status and status.endswith(end), status


def test_it_lives_in_the_book_without_a_kernel(in_book):
    seen = in_book("buckets")
    seen.slide("Bucket size", 0)
    assert "16 buckets; full at 1 MiB" in texts(seen)
    assert seen.control("Run on real ranks").is_disabled()


def test_real_python_answers_in_jupyterlab(running):
    seen = running("buckets")
    seen.slide("Bucket size", seen.ask("p => p.shape.state.stop") - 30)
    seen.control("Run on real ranks").click()
    seen.page.wait_for_function(
        "figure => figure.querySelector('.mrom-status').textContent.startsWith('Measured on 2')",
        arg=seen.node.element_handle(),
    )
    seen.screenshot("buckets-measured")
