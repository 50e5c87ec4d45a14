"""Captions: every picture says what its numbers are, on its still too."""

import pytest

from lib.draw import buckets, collective, curve, memory, partition, schedule, timeline, traffic
from lib.draw import versions as versions_picture
from lib.draw.parts import style
from lib.draw.parts.page import page
from lib.ledger import Ledger, Row
from lib.predict.collectives.plans import ring
from lib.predict.larger import Larger
from lib.predict.pipeline.cuts import equal
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import gpipe
from lib.predict.provenance import of_prediction, speeds_of
from lib.predict.shape import MLPShape
from lib.ranks.slow_motion import SlowMotion
from tests.every import every

ROWS = [Row(r, "compute", "forward", 0.0, 1.0 + r) for r in range(2)]
REAL = speeds_of(SlowMotion("H100", factor=1000.0))
INVENTED = speeds_of(SlowMotion("H100", factor=1e5, alpha=1e-7, bandwidth=1.3e12))
LARGE = SlowMotion(
    factor=20, stands_for=Larger(MLPShape((96, 96)), MLPShape((4096, 4096)), (64, 2048))
)
PAPER = play(gpipe(2, 2), Costs(1e-3, 1e-3, 1e-3, activation=1000)).ledger


def run(source="slow motion", **meta) -> Ledger:
    return Ledger(ROWS, source=source, meta=meta)


@pytest.mark.parametrize(
    ("ledger", "said"),
    [
        (run("measured", device="cpu"), "Measured: wall clock of 2 ranks on this machine (CPU)."),
        (run("measured"), "Measured: wall clock of 2 ranks on this machine."),
        (run("measured", devices=4), "Measured: wall clock of 4 virtual devices in one process."),
        (
            run(speeds=REAL),
            "Slow motion: order, waiting and bytes are real; durations are those of the H100 "
            "(bf16) and NVLink4 (latency 3.4 µs, 450 GB/s one way), played 1,000 times slower.",
        ),
        (
            run(speeds=INVENTED),
            "Slow motion: order, waiting and bytes are real; durations are those of the H100 "
            "(bf16) and an invented link (latency 100 ns, 1.3 TB/s one way; NVLink4 really has "
            "3.4 µs, 450 GB/s), played 100,000 times slower.",
        ),
        (
            run("predicted", speeds=speeds_of(SlowMotion(node=4, between="NDR"))),
            "Predicted from the rates of the H100 (bf16) and NVLink4 (latency 3.4 µs, 450 GB/s "
            "one way), and between nodes of 4 ranks of InfiniBand NDR (latency 14 µs, 50 GB/s one "
            "way).",
        ),
        (
            run(speeds=speeds_of(LARGE)),
            "Slow motion: order and waiting are real; durations and bytes are those of an MLP with "
            "width 4,096, batch 2,048 (run with width 96, batch 64) on the H100 (bf16) and NVLink4 "
            "(latency 3.4 µs, 450 GB/s one way), played 20 times slower.",
        ),
        (
            run("predicted", **of_prediction(LARGE)),
            "Predicted from the rates of the H100 (bf16) and NVLink4 (latency 3.4 µs, 450 GB/s "
            "one way).",
        ),
        (
            run("predicted", speeds=REAL),
            "Predicted from the rates of the H100 (bf16) and NVLink4 (latency 3.4 µs, 450 GB/s "
            "one way).",
        ),
        (run("predicted"), "Predicted by a formula; nothing was run."),
        (PAPER, "Predicted by simulating the schedule with the times given for its actions."),
    ],
)
def test_a_ledger_says_what_its_numbers_are(ledger, said):
    assert timeline(ledger).caption == said
    assert timeline(ledger, caption="Of a toy").caption == f"{said} Of a toy."


def test_a_picture_of_two_sources_names_both():
    both = timeline(run(speeds=REAL), over=run("predicted", speeds={**REAL, "factor": 1.0}))
    assert both.caption.startswith("The bars are slow motion: order, waiting and bytes are real;")
    assert both.caption.endswith("The dashed outlines are predicted for the same device and link.")
    other = timeline(run("measured"), over=PAPER).caption
    assert other.startswith("The bars are measured: wall clock of 2 ranks on this machine. The ")
    assert other.endswith("predicted by simulating the schedule with the times given for its "
                          "actions.")  # fmt: skip


def test_a_recording_that_a_busy_machine_delayed_says_so():
    def late(note):
        row = Row(0, "compute", "forward", 0.0, 1e-3, note=note)
        return Ledger([row], source="slow motion", meta={"speeds": REAL})

    said = "Delays of up to 29.9 µs come from this machine, which was busy."
    prediction = run("predicted", speeds=REAL)
    delayed = late("2 GFLOP, slipped 29.9 µs")
    assert timeline(delayed, caption="Of a toy").caption.endswith(f" slower. {said} Of a toy.")
    assert timeline(delayed, over=prediction).caption.endswith(f"and link. {said}")
    assert "Delays of up to 900 µs come" in timeline(late("slipped 0.9 ms")).caption
    for note in ("slipped 19.9 µs", "slipped 550 ns", "2 GFLOP", ""):
        assert "busy" not in timeline(late(note)).caption, note


LAYERS = [3, 1, 2, 2]
PICTURES = {
    "memory": lambda: memory(PAPER),
    "traffic": lambda: traffic(Ledger([Row(0, "comm", "all_reduce", 0, 1, members=(0, 1))])),
    "plan": lambda: collective(ring(4)),
    "collective": lambda: collective("all_gather"),
    "curve": lambda: curve({"a": ([1, 2], [1, 2])}, {"a": ([1, 2], [1, 2])}),
    "partition": lambda: partition(LAYERS, ("equal", equal(LAYERS, 2)), unit=""),
    "schedule": lambda: schedule("gpipe", 2, 4),
    "buckets": lambda: buckets([10, 20], 1e-5),
    "versions": lambda: versions_picture([[(0, 0), (0, 1)]]),
}  # fmt: skip


@pytest.mark.parametrize("which", PICTURES)
def test_every_kind_says_what_its_numbers_are(which):
    said, first = PICTURES[which]().caption, ("Measured", "Predicted", "Points: measured.")
    assert said.startswith(("By definition",) if which == "collective" else first)
    assert said.endswith(".")


def test_bytes_of_a_recording_are_counted():
    rows = [Row(0, "memory", "parameters", 0.0, 0.0, bytes=5), Row(0, "compute", "step", 0.0, 1.0)]
    assert memory(Ledger(rows), caption="Of a toy").caption == (
        "Measured: wall clock of 1 rank on this machine. Bytes are counted as tensors come and go. "
        "Of a toy."
    )


def test_who_calls_may_know_more():
    given = curve({"a": ([1, 2], [1, 2])}, caption="Published: a table.")
    assert given.caption == "Published: a table."
    assert schedule("gpipe", 2, 4, caption="From a profile").caption.endswith(" From a profile.")
    assert partition(LAYERS, ("e", equal(LAYERS, 2)), bandwidth=1e9, caption="Given").caption == (
        "Predicted: the sum of the times given for a stage's layers, divided among its ranks, "
        "which exchange bytes at 1 GB/s. Given."
    )


def test_an_invented_link_of_buckets_is_called_so():
    assert "over NVLink4 (latency 3.4 µs, 450 GB/s one way)." in buckets([10, 20], 1e-5).caption
    assert "over an invented link (latency 0 s, " in buckets([10, 20], 1e-5, alpha=0.0).caption


def test_the_texts_stand_on_the_still_around_its_marks():
    picture = timeline(run(speeds=INVENTED), over=run("predicted"))
    still, whole = picture.still(), page(picture.still())
    written = [mark for mark in whole.marks if mark.kind == "text"]
    here = {mark.text for mark in still.marks}
    above = [mark for mark in written if mark.text not in here and mark.fill == style.INK]
    below = [mark for mark in written if mark.text not in here and mark.fill == style.FAINT]
    assert " ".join(mark.text for mark in above) == still.heading.strip()
    assert still.heading.startswith("Slow motion 2 s, predicted 2 s: equally long.")
    assert " ".join(mark.text for mark in below) == picture.caption
    top = min(m.y for m in whole.marks if m.kind == "box") - min(
        m.y for m in still.marks if m.kind == "box"
    )
    assert max(m.y for m in above) < top and min(m.y for m in below) > still.height
    assert max(m.y for m in below) < picture.height == whole.height
    assert every(len(m.text) * style.LETTER <= picture.width for m in [*above, *below])
    assert picture.caption.split(";")[0] in picture.svg()


def test_a_narrow_picture_gets_a_page_that_has_room_for_words():
    small = versions_picture([[(0, 0)]])
    assert small.still().width < small.width == 400
