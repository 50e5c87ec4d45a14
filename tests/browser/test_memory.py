"""The living picture of memory: hover, zoom, play, the peak."""

import pytest

from lib.draw import memory, timeline
from lib.ledger import Ledger, Row
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import one_f_one_b
from tests.browser.same import crowded

MIB = 2**20


def two_ranks():
    """Parameters 4 MiB all the time; activations 6 MiB from 1 s (rank 1: from 2 s) to 3 s."""
    rows = []
    for rank in (0, 1):
        rows.append(Row(rank, "compute", "forward", 0.0, 4.0, microbatch=2))
        rows.append(Row(rank, "memory", "parameters", 0.0, 0.0, bytes=4 * MIB))
        at = 1.0 + rank
        rows.append(Row(rank, "memory", "activations", at, at, bytes=6 * MIB, note="mm in forward"))
        rows.append(Row(rank, "memory", "activations", 3.0, 3.0, bytes=0))
    return Ledger(rows)


def played():
    costs = Costs(1e-3, 1e-3, 1e-3, send=1e-4, activation=50_000_000)
    return play(one_f_one_b(4, 8), costs).ledger


def test_hover_tells_what_is_alive_at_that_moment(bench_page):
    seen = bench_page(memory(two_ranks()))
    clip = seen.ask("p => p.laid.clip")
    (base, *_) = [m["points"][0][1] for m in seen.marks if m["kind"] == "area"]
    for moment, wanted in (
        (0.5, ["4.19 MB", "parameters 4.19 MB"]),
        (2, ["10.5 MB", "activations 6.29 MB", "parameters 4.19 MB"]),
    ):
        at = {"x": clip["x"] + moment / 4 * clip["w"], "y": base - 10}
        seen.canvas.hover(position=at)
        seen.settle()
        first, *rest = seen.tip.splitlines()
        assert first.startswith("rank 0 at ") and [first.split(": ")[1], *rest] == wanted


def test_the_peak_is_named_with_what_made_it(bench_page):
    seen = bench_page(memory(two_ranks()))
    assert seen.status == (
        "Peak: 10.5 MB on rank 0 at 1 s (activations 6.29 MB, parameters 4.19 MB), "
        "made by mm in forward."
    )
    (peak, *_) = [m for m in seen.marks if m["kind"] == "box" and m["w"] == 6]
    assert seen.hover(peak).splitlines() == [
        "rank 0, peak: 10,485,760 bytes at 1 s", "activations 6,291,456", "parameters 4,194,304",
        "made by mm in forward"]  # fmt: skip


def test_the_play_head_says_what_every_rank_holds(bench_page):
    seen = bench_page(memory(two_ranks()))
    seen.ask("p => p.set({ at: p.shape.controls[0].max * 0.4 })")
    seen.settle()
    assert seen.status.splitlines()[-1] == (
        "rank 0: 10.5 MB (activations 6.29 MB, parameters 4.19 MB); "
        "rank 1: 4.19 MB (parameters 4.19 MB)"
    )


def test_two_recordings_are_told_apart(bench_page):
    seen = bench_page(memory({"GPipe": played(), "1F1B": played()}))
    areas = [m for m in seen.marks if m["kind"] == "area"]
    assert seen.hover({**areas[0], "x": 300, "w": 0, "y": areas[0]["points"][0][1] - 4, "h": 0})
    assert seen.tip.startswith("GPipe, rank 0 at ")
    assert seen.status.startswith("Peak: 200 MB on GPipe, rank 0 at ")
    seen.ask("p => p.set({ at: p.shape.controls[0].max * 0.5 })")
    seen.settle()
    assert "GPipe, rank 0 and 1F1B, rank 0: " in seen.status.splitlines()[-1]


def test_memory_and_timeline_are_zoomed_and_played_together(bench_page):
    seen = bench_page(timeline(played(), memory=True))
    span = seen.ask("p => p.shape.controls[0].max")
    seen.ask("(p, span) => p.set({ from: span / 4, to: span / 2, at: span * 0.3 })", span)
    seen.settle()
    scale = seen.ask("p => p.laid.clip.w") / (played().makespan / 4)
    bar = next(m for m in seen.marks if (m["about"] or "").startswith("rank 1: B\n"))
    area = [m for m in seen.marks if m["kind"] == "area"][1]  # its memory falls when B ends
    assert any(abs(x - bar["x"] - bar["w"]) < 0.1 for x, _ in area["points"])
    assert bar["w"] == pytest.approx(2e-3 * scale, abs=0.1)
    assert "rank 1: B0, 150 MB" in seen.status.splitlines()[-1]
    assert seen.status.startswith("Peak: 200 MB on rank 0")


def test_words_have_room_at_any_width(bench_page):
    for width in (360, 400, 900, 1200):
        assert not crowded(bench_page(memory(played()), width=width))
        assert not crowded(bench_page(memory({"one": played(), "other": played()}), width=width))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_screenshots(bench_page, dark):
    for width in (400, 900, 1200):
        seen = bench_page(timeline(played(), memory=True), width=width, dark=dark)
        assert len(seen.colours()) > 5
        seen.screenshot(f"memory-{width}-{'dark' if dark else 'light'}")
