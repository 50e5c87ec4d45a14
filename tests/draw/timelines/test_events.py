"""Events of a timeline: who stands behind whom in a group, and which line is whose."""

import pytest

from lib.draw import timeline
from lib.draw.timelines.critical_path import critical_path
from lib.draw.timelines.events import read
from lib.ledger import Ledger, Row
from tests.draw.marks import bar, boxes

BOTH = {"group": "dp", "members": (0, 1)}


def test_what_stands_behind_its_own_group_waits_once():
    rows = [Row(0, "comm", "all_reduce", 0.0, 2.0, arrived=0.0, number=0, **BOTH),
            Row(0, "comm", "all_reduce", 1.0, 4.0, arrived=3.0, number=1, **BOTH)]  # fmt: skip
    events = read(Ledger(rows), [0], 0.0).events
    assert events.behind.tolist() == [0.0, 1.0] and events.wait.tolist() == [0.0, 1.0]
    assert events.track.tolist() == [0, 0]


def test_of_two_launched_at_once_the_one_that_ends_first_stands_in_front():
    """A gather hides no reduce_scatter that its group carries out before it."""
    rows = [Row(0, "compute", "backward", 0.0, 1.0)]
    for op, end, number in (("reduce_scatter", 2.0, 0), ("all_gather", 3.0, 1)):
        rows.append(Row(0, "comm", op, 1.0, end, arrived=1.0, number=number, **BOTH))
    picture = timeline(Ledger(rows), over=Ledger(rows, source="predicted"))
    first, second = (bar(picture, 0, op) for op in ("reduce_scatter", "all_gather"))
    assert first.y == second.y and first.x + first.w == pytest.approx(second.x)
    assert first.w == pytest.approx(second.w)
    outlines = [mark for mark in boxes(picture, "predicted: rank 0: ") if mark.y == first.y]
    places = sorted((mark.x, mark.w) for mark in outlines)
    assert places == [(first.x, first.w), (second.x, second.w)]
    steps = [(s.op, s.start, s.end) for s in critical_path(Ledger(rows)) if s.lane == "comm"]
    assert steps == [("reduce_scatter", 1.0, 2.0), ("all_gather", 2.0, 3.0)]
