"""What a picture gives to other programs: a trace, a table, an SVG; and names for all it shows."""

import json
import xml.etree.ElementTree as ET

import pytest

from lib.draw import curve, schedule, timeline
from lib.ledger import Ledger, Row
from lib.predict.pipeline.play import Costs, play
from lib.predict.pipeline.schedules import gpipe, one_f_one_b, zb_h1
from lib.ranks.observed.overridden import _METHODS
from tests.draw.in_v8 import called
from tests.draw.marks import texts

PAPER = Costs(1e-3, 1e-3, 1e-3, send=1e-4, activation=50_000_000)
COLUMNS = ("name", "bytes", "stage", "microbatch", "number", "peer", "group")
OPERATIONS = [*_METHODS, "barrier", "to_host", "to_device"]


def both(op="all_reduce", late=3e-3):
    """Rank 1 comes later to what rank 0 waits for; inside its forward pass lies a product."""
    group = {"group": "dp", "members": (0, 1), "number": 0, "bytes": 8, "arrived": late}
    rows = [Row(0, "compute", "forward", 0.0, 1e-3, stage=0, microbatch=2)]
    rows += [Row(0, "compute", "mm", 2e-4, 7e-4), Row(1, "compute", "forward", 0.0, late)]
    rows += [Row(0, "comm", op, 1e-3, 4e-3, **group), Row(1, "comm", op, late, 4e-3, **group)]
    return Ledger(rows)


def data_of(picture):
    return {"summary": picture.summary} | picture.live[1]


def given(picture, what):
    """What an expression about `shape`, a kind's picture, gives in V8."""
    expression = f"((shape) => {what})(picture(given))"
    return called(picture.live[0], expression, data_of(picture))


# --- Perfetto


def slices(events):
    """Trace events that can be compared: in order, with whole nanoseconds, without columns."""
    found = []
    for event in events:
        times = [round(event.get(name, 0) * 1e3) for name in ("ts", "dur")]
        words = [event.get(name) for name in ("ph", "pid", "tid", "cat", "name")]
        args = event.get("args", {})
        known = {name: args[name] for name in COLUMNS if args.get(name) not in (-1, 0, "", None)}
        found.append(json.dumps([times, words, known], sort_keys=True))
    return sorted(found)


RUNS = {
    "waits": both,
    "1F1B": lambda: play(one_f_one_b(4, 8), PAPER).ledger,
    "zero bubble": lambda: play(zb_h1(2, 4), PAPER).ledger,
}


@pytest.mark.parametrize("run", RUNS)
def test_the_trace_of_a_picture_is_that_of_its_ledger(run):
    ledger = RUNS[run]().where(lane=["compute", "comm"])
    trace = json.loads(given(timeline(ledger), "shape.files[0][2]()"))
    ours = json.loads(ledger.to_trace())
    assert slices(trace["traceEvents"]) == slices(ours["traceEvents"])
    assert trace["displayTimeUnit"] == ours["displayTimeUnit"]
    assert trace["otherData"] == {"source": ledger.source}


def test_memory_is_a_counter_where_the_picture_shows_it():
    ledger = play(one_f_one_b(2, 3), PAPER).ledger
    trace = json.loads(given(timeline(ledger, memory=True), "shape.files[0][2]()"))
    ours = json.loads(ledger.to_trace())
    counters = [slices([e for e in one["traceEvents"] if e["ph"] == "C"]) for one in (trace, ours)]
    assert counters[0] == counters[1] and len(counters[0]) > 10


def test_a_second_run_has_processes_of_its_own():
    trace = json.loads(given(timeline(both(), over=both(late=2e-3)), "shape.files[0][2]()"))
    names = {
        e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }
    source = both().source
    assert names == {0: "rank 0", 1: "rank 1", 1000: f"rank 0, {source}", 1001: f"rank 1, {source}"}


# --- tables


def test_the_numbers_of_a_timeline_are_its_rows():
    header, *rows = given(timeline(both()), "shape.numbers()")
    assert header[1:4] == ["rank", "lane", "operation"] and len(rows) == 5
    row = dict(zip(header, rows[2]))
    assert row["operation"] == "all_reduce" and row["bytes"] == 8 and row["group"] == "dp"
    assert (row["start (s)"], row["end (s)"], row["waiting (s)"]) == (1e-3, 4e-3, 2e-3)
    assert row["stage"] == "" and dict(zip(header, rows[0]))["stage"] == 0


def test_the_numbers_of_a_schedule_are_its_actions():
    made = gpipe(2, 2)
    picture = schedule("gpipe", 2, 2)
    header, *rows = given(picture, "shape.numbers(shape.state, shape.layout(shape.state, 640))")
    assert header == ["rank", "action", "stage", "microbatch", "start", "end"]
    first = [[0, "F", 0, 0], [0, "F", 0, 1], [0, "B", 0, 0], [0, "B", 0, 1]]
    assert [row[:4] for row in rows[:4]] == first
    costs = {name: data_of(picture)["values"][name] for name in ("forward", "backward_input")}
    weights = data_of(picture)["values"]["backward_weight"]
    run = play(made, Costs(costs["forward"], costs["backward_input"], weights))
    assert max(row[5] for row in rows) == pytest.approx(run.makespan)


def test_the_numbers_of_curves_are_what_was_measured_and_predicted():
    picture = curve({"a": ([1, 2], [3, 4])}, {"a": ([1, 2], [3, 5])})
    header, *rows = given(picture, "shape.numbers()")
    assert header[0] == "name" and rows == [["a", 1, 3, 3], ["a", 2, 4, 5]]


def test_any_other_picture_gives_what_its_marks_tell():
    marks = '[{ about: "a\\nb c" }, { about: () => "d" }, { about: "d" }, { about: "" }, {}]'
    rows = called("versions", f"rowsOfMarks({marks})")
    assert rows == [["what", "more 1"], ["a", "b c"], ["d"]]
    text = called("versions", 'tableText([["a", "b"], ["tab\\there", null], [0]])')
    assert text == "a\tb\ntab here\t\n0\n"


# --- SVG


def test_a_page_is_svg_with_all_its_texts():
    picture = timeline(both(), over=both(late=2e-3))
    code = """(() => {
        const shape = picture(given), { heading, caption } = given;
        const state = { ...shape.state, at: 9 }, words = ["a <title>", "& words"];
        const laid = shape.layout(state, 500), over = shape.overlay(state, 500, laid);
        const page = pageOf({ shape: { ...shape, heading, caption }, laid, over, width: 500 });
        return [laid, page, [true, false].map((dark) => svgOf(page, words, dark))];
    })()"""
    laid, page, (dark, light) = called("timeline", code, data_of(picture))
    tree = ET.fromstring(light)
    assert tree.findtext("title") == "a <title>" and tree.findtext("desc") == "& words"
    shown = [node.text for node in tree.iter("text")]
    words = [mark["text"] for mark in laid["marks"] if mark["kind"] == "text"]
    assert words and set(words) < set(shown)
    assert " ".join(shown).startswith(picture.live[1]["heading"][:60])
    assert " ".join(shown).endswith(picture.live[1]["caption"][-60:].split(" ", 1)[1])
    boxes = [mark for mark in laid["marks"] if mark["kind"] == "box"]
    hatched = sum(bool(mark.get("hatch")) for mark in boxes)
    rects = list(tree.iter("rect"))  # the window, the paper, and what is hatched twice
    assert hatched and len(rects) == 2 + len(boxes) + hatched
    assert 'fill="#ffffff"' in light and "#ffffff" not in dark.split("<g ")[0]
    height = sum(part["top"] > 0 for part in page["parts"])
    assert height == 3 and page["height"] > laid["height"] + 40
    assert len(list(tree.iter("polyline"))) == sum(
        mark["kind"] == "line" for part in page["parts"] for mark in part["marks"]
    )


# --- legends


def legend(ledger):
    """The names in the legend, without those of waiting and of stages."""
    keys = "keysOfTimeline(readTimeline(given), shape.state, false).map(([name]) => name)"
    return given(timeline(ledger), keys)


@pytest.mark.parametrize("op", OPERATIONS)
def test_the_legend_names_every_operation(op):
    assert op in legend(both(op))


def test_operations_of_one_colour_stand_together():
    ledger = Ledger([*both("gather"), *both("all_gather")])
    assert legend(ledger) == ["forward", "compute", "all_gather, gather"]
    run = play(one_f_one_b(2, 2), PAPER).ledger
    assert legend(run) == ["forward", "backward", "message"]
    assert "all_gather, gather" in texts(timeline(ledger))
