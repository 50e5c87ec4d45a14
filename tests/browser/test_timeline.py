"""The living timeline: hover, zoom, play, what differs, how fast."""

import re
import statistics
import sys

import numpy as np
import pytest

from lib.draw import timeline
from lib.draw.timelines.critical_path import bubble, critical_path
from lib.ledger import Ledger, Row
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import gpipe, one_f_one_b, zb_h1
from tests.browser.same import crowded

PAPER = Costs(1e-3, 1e-3, 1e-3, send=1e-4, activation=50_000_000)


def late():
    """Rank 1 computes 3 ms, rank 0 1 ms; then 8 bytes move for 1 ms; `group` is theirs."""
    group = {"group": "dp", "members": (0, 1), "number": 4, "bytes": 8, "arrived": 3e-3}
    return Ledger(
        [
            Row(0, "compute", "forward", 0.0, 1e-3, stage=2, microbatch=5),
            Row(1, "compute", "forward", 0.0, 3e-3),
            Row(0, "comm", "all_reduce", 1e-3, 4e-3, **group),
            Row(1, "comm", "all_reduce", 3e-3, 4e-3, **group),
        ]
    )


def crowd(ranks=16, each=500, seed=1):
    """As many events as the promises are about: half compute, half collectives with waiting."""
    random, columns, half = np.random.default_rng(seed), [], each // 2
    for rank in range(ranks):
        lengths = random.gamma(4, 2.5e-4, half)
        start = np.cumsum(lengths) - lengths
        waits, moves = random.random(half) * 3e-4, 2e-4 + random.random(half) * 3e-4
        begin = start + 1e-4
        for lane in ("compute", "comm"):
            comm = lane == "comm"
            ops = ("all_reduce", "all_gather") if comm else ("forward", "backward", "compute")
            columns.append(
                {
                    "rank": [rank] * half,
                    "lane": [lane] * half,
                    "op": [ops[i % len(ops)] for i in range(half)],
                    "start": begin if comm else start,
                    "end": begin + waits + moves if comm else start + lengths,
                    "arrived": begin + waits if comm else np.full(half, np.nan),
                    "bytes": np.arange(half) % 3 * 4096 * comm,
                    "number": np.arange(half) if comm else np.full(half, -1),
                    "microbatch": np.full(half, -1) if comm else np.arange(half) % 8,
                }
            )
    names = columns[0]
    return Ledger.from_columns(**{n: np.concatenate([c[n] for c in columns]) for n in names})


def box(seen, start):
    (found, *_) = [m for m in seen.marks
                   if m["kind"] == "box" and (m["about"] or "").startswith(start)]  # fmt: skip
    return found


def slide(seen, moment):
    """Moves the slider of the play head."""
    seen.node.locator(".mrom-player input").evaluate(
        "(input, to) => { input.value = to; input.dispatchEvent(new Event('input')); }", moment
    )
    seen.settle()


def test_a_thinned_timeline_says_so(bench_page, monkeypatch):
    monkeypatch.setattr(sys.modules["lib.draw.timeline"], "MOST", 300)
    picture = timeline(crowd(4, 200))
    seen = bench_page(picture)
    assert seen.status.startswith("Thinned: 800 rows are ")
    told = [m["about"] for m in seen.marks if "put together" in (m["about"] or "")]
    assert told and re.match(r"rank \d: \w+ × \d+\n", told[0])


def test_hover_tells_all_that_is_known(bench_page):
    seen = bench_page(timeline(late()))
    told = seen.hover(box(seen, "rank 0: forward"))
    assert told.splitlines() == ["rank 0: forward", "stage 2, microbatch 5", "from 0 s, takes 1 ms"]
    told = seen.hover(box(seen, "rank 0: all_reduce"))
    assert told.splitlines() == ["rank 0: all_reduce", "group dp, number 4", "8 bytes",
                                 "from 1 ms, takes 3 ms", "waiting 2 ms, moving 1 ms"]  # fmt: skip


def test_zoom_keeps_what_is_under_the_pointer_and_pans_with_it(bench_page):
    seen = bench_page(timeline(late()))
    seen.canvas.hover(position={"x": 62 + 564 / 2, "y": 20})
    seen.page.keyboard.down("Control")
    for _ in range(8):
        seen.page.mouse.wheel(0, -100)
        seen.settle()
    seen.page.keyboard.up("Control")
    span, state = seen.ask("p => p.shape.controls[0].max"), seen.state
    assert state["to"] - state["from"] < span / 4
    assert (state["from"] + state["to"]) / 2 == pytest.approx(span / 2, rel=0.01)
    clip = seen.ask("p => p.laid.clip")
    seen.drag({"x": 300, "y": 10, "w": 0, "h": 20}, 50)
    moved = seen.state["from"] - state["from"]
    assert moved == pytest.approx(-50 / clip["w"] * (state["to"] - state["from"]), rel=0.01)


def test_zoom_by_keys_and_buttons(bench_page):
    seen = bench_page(timeline(late()))
    whole = seen.state["to"]
    seen.press("+")
    assert seen.state["to"] - seen.state["from"] == pytest.approx(whole / 1.6)
    seen.press("Shift+ArrowRight")
    assert seen.state["from"] == pytest.approx((whole - whole / 1.6) / 2 + whole / 1.6 / 4)
    seen.press("0")
    assert (seen.state["from"], seen.state["to"]) == (0, whole)
    seen.press("End")  # the last bar
    x = next(m["x"] + m["w"] / 2 for m in [seen.ask("p => p.chosen")])
    seen.press("+")
    now = seen.ask("p => p.chosen")
    assert now["x"] + now["w"] / 2 == pytest.approx(x, abs=0.5), "the bar stays where it was"
    seen.press("0")
    seen.press("Escape")
    seen.ask("(p, at) => p.set({ at })", whole / 10)
    seen.control("Zoom in").click()
    seen.settle()
    assert seen.state["from"] == pytest.approx(whole / 10 * (1 - 1 / 1.6)), "the head stays"
    seen.ask("p => p.set({ at: 0 })")
    seen.press("0")
    seen.control("Zoom in").click()
    seen.settle()
    assert seen.state["to"] - seen.state["from"] == pytest.approx(whole / 1.6)
    seen.ask("""async (p) => {
        for (let i = 0; i < 60; i++) p.set(p.shape.key("+", p.state));
    }""")
    seen.settle()
    assert seen.state["to"] - seen.state["from"] >= 20  # ticks: no closer
    assert seen.control("Zoom in").is_disabled()


def test_a_bare_wheel_scrolls_the_page(bench_page):
    seen = bench_page(timeline(late()))
    seen.canvas.hover(position={"x": 300, "y": 20})
    seen.page.mouse.wheel(0, -100)
    seen.settle()
    assert seen.state["from"] == 0


def test_the_play_head_says_what_every_rank_does(bench_page):
    seen = bench_page(timeline(late()))
    span = seen.ask("p => p.shape.controls[0].max")
    for share, words in ((0.1, "rank 0: forward 5; rank 1: forward"),
                         (0.5, "rank 0: all_reduce waiting; rank 1: forward"),
                         (0.9, "ranks 0, 1: all_reduce moving")):  # fmt: skip
        slide(seen, span * share)
        assert seen.status == words
        (head,) = seen.ask("p => p.over")
        assert head["points"][0][0] == pytest.approx(62 + share * 564)
    seen.canvas.click(position={"x": 62 + 564 / 4, "y": 20})  # a click takes it there
    seen.settle()
    assert seen.state["at"] == pytest.approx(span / 4, rel=0.01)


def test_play_runs_to_the_end(bench_page):
    seen = bench_page(timeline(late()))
    slide(seen, seen.ask("p => p.shape.controls[0].max * 0.95"))
    seen.control("Time: play").click()
    seen.page.wait_for_function(
        "() => { const p = document.querySelector('figure.mrom').picture;"
        "return p.state.at === p.shape.controls[0].max }", timeout=10_000)  # fmt: skip


def test_a_prediction_is_compared_with_what_was_measured(bench_page):
    paper = play(one_f_one_b(4, 8), Costs(1e-3, 1e-3, 1e-3)).ledger
    slow = play(one_f_one_b(4, 8), Costs([1e-3, 1.5e-3, 1e-3, 1e-3], 1e-3, 1e-3)).ledger
    slow = Ledger(list(slow), source="measured")
    seen = bench_page(timeline(slow, over=paper))
    by = slow.makespan - paper.makespan
    assert seen.heading.startswith(
        f"Measured {slow.makespan * 1e3:.3g} ms, predicted {paper.makespan * 1e3:.3g} ms: "
        f"{by * 1e3:.3g} ms ({by / paper.makespan:.0%}) longer."
    )
    assert "Largest difference: rank 1, F" in seen.heading
    assert "takes 500 µs longer than predicted" in seen.heading
    assert seen.caption.startswith("The bars are measured: wall clock of 4 ranks on this machine.")
    told = seen.hover(box(seen, "rank 1: F\nstage 1, microbatch 0"))
    assert told.endswith("measured against predicted: 500 µs longer")


def test_the_bubble_is_that_of_play(bench_page):
    run = play(gpipe(4, 8), Costs(1e-3, 1e-3, 1e-3))
    seen = bench_page(timeline(run.ledger))
    assert "Bubble" not in seen.status
    seen.control("Bubble").check()
    seen.settle()
    assert f"Bubble: {run.bubble():.1%} of all ranks' time" in seen.status
    clip, idle = seen.ask("p => p.laid.clip"), 0
    for mark in seen.marks:
        is_idle = "not computing" in (mark["about"] or "") and not mark.get("isKey")
        if mark["kind"] == "box" and is_idle:
            idle += mark["w"]
            assert mark.get("edge") and not mark.get("fill"), "not as grey as plain compute"
    assert idle / (4 * clip["w"]) == pytest.approx(bubble(run.ledger).share, abs=1e-4)


def test_the_critical_path_is_drawn_where_python_finds_it(bench_page):
    ledger = play(one_f_one_b(4, 8), PAPER).ledger
    seen, path = bench_page(timeline(ledger)), critical_path(ledger)
    seen.control("Critical path").check()
    seen.settle()
    drawn = [m for m in seen.marks if m["kind"] == "box" and "critical path" in (m["about"] or "")]
    assert [int(re.search(r"rank (\d+)", m["about"])[1]) for m in drawn] == [s.rank for s in path]
    scale = seen.ask("p => p.laid.clip.w") / ledger.makespan
    for mark, step in zip(drawn, path):
        assert mark["x"] == pytest.approx(62 + step.start * scale, abs=0.1)
        assert mark["w"] == pytest.approx((step.end - step.start) * scale, abs=0.1)
    assert "that the end had to wait for: B " in seen.status


def test_arrow_keys_go_from_bar_to_bar(bench_page):
    seen = bench_page(timeline(late()))
    last = seen.press("End")  # with nothing chosen yet
    assert seen.press("Home").startswith("rank 0: forward")
    assert seen.press("ArrowDown").startswith("rank 0: all_reduce")
    assert seen.press("End") == last


def test_words_have_room_at_any_width(bench_page):
    for width in (360, 400, 900, 1200):
        for picture in (timeline(late(), over=late()), timeline(play(zb_h1(4, 8), PAPER).ledger,
                                                                memory=True)):  # fmt: skip
            seen = bench_page(picture, width=width)
            assert not crowded(seen)


def test_8000_events_are_drawn_in_20_ms_and_played_at_50_frames_a_second(bench_page):
    seen = bench_page(timeline(crowd()))
    took = seen.ask("""async (p) => {
        const took = [], frame = () => new Promise(requestAnimationFrame);
        for (let i = 0; i < 30; i++) {
            p.set({ from: (i % 2) * 1e-6 });
            await frame(), await frame();
            took.push(p.took.layout + p.took.paint);
        }
        return took;
    }""")
    assert statistics.median(took) < 20
    frames = seen.ask("""async (p) => {
        const end = p.shape.controls[0].max, took = [];
        p.set({ from: 0 });
        for (let i = 1; i <= 60; i++) {
            p.set({ at: (end * i) / 60 });
            await new Promise(requestAnimationFrame), await new Promise(requestAnimationFrame);
            took.push(p.took.frame);
        }
        return took;
    }""")
    assert statistics.median(frames) < 1000 / 50 / 2  # the other half is the browser's


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_screenshots(bench_page, dark):
    for width in (400, 900, 1200):
        slow = play(one_f_one_b(4, 8), Costs([1e-3, 1.5e-3, 1e-3, 1e-3], 1e-3, 1e-3)).ledger
        picture = timeline(slow, over=play(one_f_one_b(4, 8), PAPER).ledger)
        seen = bench_page(picture, width=width, dark=dark)
        assert len(seen.colours()) > 5
        seen.screenshot(f"timeline-{width}-{'dark' if dark else 'light'}")


TEXTURE = """(p, mark) => {
    const canvas = p.nodes.below, ink = canvas.getContext("2d"), scale = ink.getTransform().a;
    const wide = Math.min(mark.w - 4, 30); // the words stand in the middle
    const place = [mark.x + 2, mark.y + 2, wide, mark.h - 4].map((px) => px * scale);
    const { data } = ink.getImageData(...place), shades = [];
    for (let i = 0; i < data.length; i += 4) shades.push(data[i]);
    return Math.max(...shades) - Math.min(...shades);
}"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_idle_time_is_dotted_and_what_is_computed_is_not(bench_page, dark):
    """Compute without a colour of its own is grey too: grey alone would not tell them apart."""
    rows = [Row(0, "compute", "matmul", 0.0, 2e-3), Row(1, "compute", "matmul", 1e-3, 3e-3)]
    seen = bench_page(timeline(Ledger(rows, source="measured")), dark=dark)
    seen.control("Bubble").check()
    seen.settle()
    bars = [m for m in seen.marks if m["kind"] == "box" and m["w"] > 100 and not m.get("isKey")]
    idle = [m for m in bars if "not computing" in (m["about"] or "")]
    busy = [m for m in bars if "matmul" in (m["about"] or "")]
    words = {m["text"]: m for m in seen.marks if m["kind"] == "text"}
    swatches = [m for m in seen.marks if m["kind"] == "box" and (m["w"], m["h"]) == (16, 12)]
    key = {name: next(m for m in swatches if abs(m["y"] + 6 - words[name]["y"]) < 1
                      and m["x"] == words[name]["x"] - 22)
           for name in ("compute", "not computing")}  # fmt: skip
    assert len(idle) == len(busy) == 2
    for mark in [*idle, key["not computing"]]:
        assert seen.ask(TEXTURE, mark) > 60 and mark["edge"] and not mark.get("fill")
    for mark in [*busy, key["compute"]]:
        assert seen.ask(TEXTURE, mark) < 5
    seen.screenshot(f"timeline-idle-{'dark' if dark else 'light'}")
