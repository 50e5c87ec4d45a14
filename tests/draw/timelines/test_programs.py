"""Several programs in one timeline: named groups, each from its own start and with its own sums."""

import json
from dataclasses import replace

import pytest

from lib.draw import timeline
from lib.draw.timelines.critical_path import bubble, critical_path
from lib.ledger import Ledger, Row
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import gpipe, one_f_one_b
from tests.draw.in_v8 import called
from tests.draw.marks import boxes, texts
from tests.every import every

LONG = play(gpipe(2, 4), Costs(1.0, 2.0, 0.0)).ledger
SHORT = play(one_f_one_b(2, 2), Costs(1.0, 1.0, 1.0)).ledger
BOTH = {"GPipe": LONG, "1F1B": SHORT}


def late(ledger, seconds):
    """The same rows, later."""
    rows = [replace(r, start=r.start + seconds, end=r.end + seconds) for r in ledger]
    return Ledger(rows, source=ledger.source, meta=ledger.meta)


def test_each_program_stands_under_its_name_from_its_own_start():
    picture = timeline({"GPipe": LONG, "1F1B": late(SHORT, 7.0)})
    words = [t for t in texts(picture) if t in ("GPipe", "1F1B", "rank 0", "rank 1")]
    assert words[:4] == ["rank 0", "rank 1", "rank 0", "rank 1"]
    height = {text: [m.y for m in picture.marks if m.text == text] for text in set(words)}
    (one,), (other,) = height["GPipe"], height["1F1B"]
    assert one < height["rank 0"][0] < height["rank 1"][0] < other < height["rank 0"][1]
    starts = [min(m.x for m in boxes(picture, f"{name}, rank 0: ") if m.fill) for name in BOTH]
    assert starts[0] == pytest.approx(starts[1])
    assert str(picture) == str(timeline(BOTH))


def test_bubble_and_critical_path_are_those_of_each_program():
    said = timeline(BOTH).live[1]["said"]
    idle, path = said["bubble"].splitlines(), said["path"].splitlines()
    shares = [bubble(one).share for one in BOTH.values()]
    assert shares[0] != pytest.approx(shares[1], abs=0.02)
    for line, name, share in zip(idle, BOTH, shares, strict=True):
        assert line.startswith(f"Bubble of {name}: {share:.1%} of all ranks' time is idle")
    assert [line.split(",")[0] for line in path] == [f"Critical path of {name}" for name in BOTH]
    alone = [timeline(one).live[1]["said"]["path"].split(": ", 1)[1] for one in BOTH.values()]
    assert [line.split(": ", 1)[1] for line in path] == alone


def test_steps_of_a_path_stay_in_their_program():
    paths = timeline(BOTH).live[1]["paths"]
    assert [one["n"] for one in paths] == [len(critical_path(ledger)) for ledger in BOTH.values()]
    assert paths[1]["begin"] == 0 and "path" not in timeline(BOTH).live[1]
    assert "paths" not in timeline(LONG).live[1]


def test_groups_of_two_programs_are_not_one_group():
    """Rank 0 of one program would else wait for rank 1 of the other."""

    def program(arrives):
        rows = [
            Row(r, "comm", "all_reduce", float(r), 3.0, arrived=arrives, group="world",
                members=(0, 1), number=0, bytes=8) for r in (0, 1)
        ]  # fmt: skip
        return Ledger(rows)

    picture = timeline({"one": program(1.0), "two": program(2.0)})
    alone = timeline(program(2.0))
    waits = [m.w for m in boxes(picture, "two, rank 0: all_reduce") if m.hatch]
    assert waits == [pytest.approx(m.w, rel=0.05) for m in boxes(alone, "rank 0: all_r") if m.hatch]
    assert waits


def test_rows_of_programs_may_have_other_names():
    names = ["worker 0", "worker 1"] * 2
    picture = timeline(BOTH, rows=names)
    assert [t for t in texts(picture) if t.startswith("worker")] == names
    assert boxes(picture, "1F1B, worker 1: ")
    assert "GPipe, worker 0, worker 1, and 1F1B, worker 0, worker 1" in str(picture)
    with pytest.raises(ValueError, match="2 names do not fit 4 rows: give one each"):
        timeline(BOTH, rows=names[:2])


def test_the_summary_and_the_caption_name_the_programs():
    picture = timeline(BOTH, caption="Of a toy")
    assert str(picture).splitlines()[1] == "  GPipe, ranks 0, 1, and 1F1B, ranks 0, 1: computing"
    assert picture.caption.endswith("Of a toy.")
    same = timeline({"a": SHORT, "b": SHORT}).caption
    assert same == timeline(SHORT).caption, "what is true of both is said once"
    measured = Ledger([Row(0, "compute", "forward", 0.0, 1.0)], source="measured")
    mixed = timeline({"here": measured, "there": SHORT})
    assert "here: measured: wall clock of 1 rank" in mixed.caption
    assert "there: predicted by simulating" in mixed.caption
    assert str(mixed).startswith("timeline, measured, predicted: ")


LAID = """(() => {
    const shape = picture(given), laid = shape.layout({ ...shape.state, ...STATE }, 640);
    const told = laid.marks.map((m) => ({ ...m, about: m.about?.call ? m.about() : m.about }));
    const status = shape.status({ ...shape.state, at: AT }, laid);
    return { marks: told, status, clip: laid.clip };
})()"""


def laid(picture, at=0, **state):
    """The marks of a timeline in another state than its first, and what it says at a moment."""
    code = LAID.replace("STATE", json.dumps(state)).replace("AT", str(at))
    return called("timeline", code, picture.live[1] | {"summary": ""})


def test_idle_time_ends_with_its_own_program():
    found = laid(timeline(BOTH), bubble=True)
    dotted = [m for m in found["marks"] if m.get("dots") and m["about"]]
    ends = {}
    for mark in dotted:
        name = mark["about"].split(",")[0]
        ends[name] = max(ends.get(name, 0), mark["x"] + mark["w"])
    pixels = found["clip"]["w"] / LONG.makespan
    assert LONG.makespan > SHORT.makespan + 1
    for name, ledger in BOTH.items():  # the last to end is rank 0, so rank 1 idles until then
        assert ends[name] == pytest.approx(found["clip"]["x"] + ledger.makespan * pixels, abs=1)


def test_no_line_leads_from_one_critical_path_to_the_next():
    found = laid(timeline(BOTH), path=True)
    upright = [m for m in found["marks"] if m["kind"] == "line" and m.get("inside")]
    border = next(m["y"] for m in found["marks"] if m.get("text") == "1F1B")
    assert len(upright) >= 4
    assert every(max(m["points"], key=lambda p: p[1])[1] < border or
                 min(m["points"], key=lambda p: p[1])[1] > border for m in upright)  # fmt: skip


def test_what_is_done_at_a_moment_is_told_by_program():
    data = timeline(BOTH).live[1]
    moment = round(0.5 / data["tick"])
    said = laid(timeline(BOTH), at=moment)["status"]
    assert said == "GPipe, rank 0 and 1F1B, rank 0: F0; GPipe, rank 1 and 1F1B, rank 1: idle"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: timeline({}), "There is nothing to draw: give at least one program"),
        (lambda: timeline({"": SHORT}), "Each program needs a name"),
        (lambda: timeline(BOTH, over=SHORT), "No run lies over several programs"),
        (lambda: timeline({"a": Ledger()}), "this ledger has no rows"),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_memory_is_told_by_program():
    costs = Costs(1.0, 1.0, 1.0, activation=1000)
    both = {"GPipe": play(gpipe(2, 4), costs).ledger, "1F1B": play(one_f_one_b(2, 4), costs).ledger}
    picture = timeline(both, memory=True)
    assert "  GPipe, ranks 0, 1: peak 4,000 bytes" in str(picture)
    assert "  1F1B, rank 0: peak 2,000 bytes" in str(picture)
    peaks = [m.about for m in picture.marks if ", peak: " in m.about]
    assert [about.split(":")[0] for about in peaks] == [
        f"{name}, rank {rank}, peak" for name in both for rank in (0, 1)
    ]
    assert laid(picture)["status"].startswith("Peak: 4 kB on GPipe, rank 0 at ")
