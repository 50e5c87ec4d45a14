"""The heading of a timeline over another one that has a part of its operations."""

from lib.draw import timeline
from lib.ledger import Ledger, Row


def test_a_heading_says_that_only_what_is_in_both_was_compared():
    computed = [Row(0, "compute", op, t, t + 1.0) for t, op in enumerate(("forward", "backward"))]
    both = Ledger(computed)
    more = Ledger([*computed, Row(0, "compute", "clip", 2.0, 2.5)])
    heading = timeline(more, over=both).live[1]["heading"]
    words = "Not compared: only this run has clip. What is in both does not differ."
    assert heading.endswith(words)
    assert timeline(both, over=both).live[1]["heading"].endswith("long. No operation differs.")
