"""The heading of a timeline over another one that has a part of its operations."""

from lib.draw import timeline
from lib.ledger import Ledger, Row


def test_a_heading_says_that_only_what_is_in_both_was_compared():
    computed = [Row(0, "compute", op, t, t + 1.0) for t, op in enumerate(("forward", "backward"))]
    both = Ledger(computed)
    more = Ledger([*computed, Row(0, "compute", "clip", 2.0, 2.5)])
    heading = timeline(more, over=both).live[1]["heading"]
    words = "Not compared: only this run has clip. The other operations do not differ."
    assert heading.endswith(words)
    assert timeline(both, over=both).live[1]["heading"].endswith("long. No operation differs.")


def test_a_small_difference_is_not_told_as_none():
    one, other = (Ledger([Row(0, "compute", "forward", 0.0, end)]) for end in (1.002, 1.0))
    assert "2 ms (under 1%) longer" in timeline(one, over=other).live[1]["heading"]
