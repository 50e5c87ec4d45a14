"""What a recording makes of a rank's events: one thing at a time, on a processor or on a GPU."""

import pytest
import torch

from lib.ranks import gpu_clock, recorder
from lib.ranks.desk import desk, span


def cut(*intervals):
    """Write intervals (op, start, end) as the recorder cuts them."""
    events = [{"op": op, "start": start, "end": end} for op, start, end in intervals]
    return [(e["op"], e["start"], e["end"]) for e in recorder.exclusive(events)]


def test_the_innermost_interval_has_the_moment():
    assert cut(("call", 0, 10), ("span", 2, 8), ("wait", 4, 5)) == [
        ("call", 0, 2), ("span", 2, 4), ("wait", 4, 5), ("span", 5, 8), ("call", 8, 10),
    ]  # fmt: skip


def test_intervals_side_by_side_and_empty_ones():
    assert cut(("a", 0, 3), ("b", 3, 5), ("c", 6, 6)) == [("a", 0, 3), ("b", 3, 5)]


def test_nothing_is_lost_or_counted_twice():
    torch.manual_seed(0)
    edges = torch.randint(0, 1000, (50, 2)).sort(1).values.tolist()
    nested = [("call", 0, 1000)] + [("x", a, b) for a, b in edges]
    found = cut(*nested)
    assert sum(end - start for _, start, end in found) == 1000
    assert all(a[2] == b[1] for a, b in zip(found, found[1:], strict=False))


class Stream:
    """A pretended GPU: each piece of work takes a while, and marks are passed in order."""

    def __init__(self):
        self.milliseconds = 0.0

    def event(self, enable_timing):
        stream = self

        class Mark:
            def record(self):
                self.at = stream.milliseconds

            def elapsed_time(self, other):
                return other.at - self.at

        assert enable_timing
        return Mark()


@pytest.fixture
def stream(monkeypatch):
    pretended = Stream()
    monkeypatch.setattr(torch.cuda, "Event", pretended.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(recorder, "clock_of_this_rank", gpu_clock.GpuClock)
    return pretended


def test_rows_of_a_gpu_have_the_times_of_its_stream(stream):
    def step():
        with span("forward"):
            stream.milliseconds += 3.0  # launched at once, done 3 ms later
        stream.milliseconds += 1.0
        return "done"

    result, columns = recorder.recorded(step)
    lengths = [end - start for start, end in zip(columns["start"], columns["end"], strict=True)]
    assert result == "done"
    assert list(zip(columns["op"], lengths, strict=True)) == [
        ("forward", 3_000_000), ("compute", 1_000_000),
    ]  # fmt: skip


def test_the_clock_is_the_processors_again_after_an_error(stream):
    with pytest.raises(ValueError):
        recorder.recorded(int, "no number")
    assert desk.events is None and isinstance(desk.now(), int)


def test_what_slow_motion_left_behind_is_not_told_of_the_next_run():
    desk.slipped = 5
    _, columns = recorder.recorded(int)
    assert "slipped" not in columns and desk.slipped is None
