"""The axis of a timeline ends where its rows do, or later."""

import pytest

from lib.draw import timeline
from lib.ledger import Ledger, Row
from tests.draw.marks import bar


def test_two_pictures_can_have_one_axis():
    """A bar of one second fills the width, or a quarter of it on an axis of four."""
    short = Ledger([Row(0, "compute", "forward", 0.0, 1.0)], source="measured")
    alone, longer = (bar(timeline(short, until=until), 0, "forward") for until in (0.0, 4.0))
    assert longer.x == alone.x and longer.w == pytest.approx(alone.w / 4, rel=0.02)
