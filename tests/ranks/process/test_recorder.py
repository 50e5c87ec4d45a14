"""What a recording makes of a rank's events: one thing at a time, on a processor or on a GPU."""

import threading
from types import SimpleNamespace

import pytest
import torch

from lib.ranks.memory import Memory
from lib.ranks.observed import observed_work
from lib.ranks.process import common_start, recorder
from lib.ranks.process.carried_call import CarriedCall, carry_out
from lib.ranks.shared.event import Event
from lib.ranks.slow_motion import SlowMotion
from lib.ranks.state import gpu_clock
from lib.ranks.state.this_rank import span, this_rank
from tests.every import every


def cut(*intervals):
    """Write intervals (op, start, end) as the recorder cuts them."""
    events = [Event("compute", op, start, end) for op, start, end in intervals]
    return [(e.op, e.start, e.end) for e in recorder.exclusive(events)]


def recorded(step, *args):
    """Call a function as a World does that records it: give its result and the columns."""
    return carry_out(CarriedCall(step, args, record=True))


def test_the_innermost_interval_has_the_moment():
    assert cut(("call", 0, 10), ("span", 2, 8), ("wait", 4, 5)) == [
        ("call", 0, 2), ("span", 2, 4), ("wait", 4, 5), ("span", 5, 8), ("call", 8, 10),
    ]  # fmt: skip


def test_intervals_side_by_side():
    assert cut(("a", 0, 3), ("b", 3, 5)) == [("a", 0, 3), ("b", 3, 5)]


def test_spans_that_were_over_at_once_stay_rows_in_their_order():
    """On a GPU's clock a span takes no time that gave it nothing to do, as stage 0's I in 0I0."""
    done = ("F", 0, 3), ("I", 3, 3), ("J", 3, 3), ("W", 3, 6)
    assert cut(*done, ("call", 0, 9)) == [*done, ("call", 6, 9)]
    assert cut(("compute", 4, 4)) == []  # a call that did nothing has no row


def test_a_wait_that_was_over_at_once_stays_a_row():
    """What was waited for is counted by its rows, also on a GPU whose clock has not moved."""
    wait = Event("wait", "recv", 4, 4)
    found = recorder.exclusive([Event("compute", "call", 0, 9), wait])
    assert [(e.op, e.start, e.end) for e in found] == [
        ("call", 0, 4), ("recv", 4, 4), ("call", 4, 9),
    ]  # fmt: skip


def test_of_two_equal_intervals_the_one_noted_first_is_inside():
    """On a GPU that is busy, what follows each other on the processor has one time."""
    assert cut(("wait", 2, 5), ("hook", 2, 5), ("call", 0, 9)) == [
        ("call", 0, 2), ("wait", 2, 5), ("call", 5, 9),
    ]  # fmt: skip


def test_nothing_is_lost_or_counted_twice():
    torch.manual_seed(0)
    edges = torch.randint(0, 1000, (50, 2)).sort(1).values.tolist()
    nested = [("call", 0, 1000)] + [("x", a, b) for a, b in edges]
    found = cut(*nested)
    assert sum(end - start for _, start, end in found) == 1000
    assert every(a[2] == b[1] for a, b in zip(found, found[1:], strict=False))


class Stream:
    """A pretended GPU 2: each piece of work takes a while, and marks are passed in order."""

    def __init__(self):
        self.milliseconds, self.marks, self.finished = 0.0, [], []

    def event(self, device, enable_timing):
        stream = self

        class Mark:
            def record(self, where):
                self.at = stream.milliseconds
                stream.marks.append((threading.current_thread().name, str(device), where))

            def elapsed_time(self, other):
                return other.at - self.at

        assert enable_timing
        return Mark()


@pytest.fixture
def stream(monkeypatch):
    pretended, device = Stream(), torch.device("cuda:2")
    monkeypatch.setattr(torch, "Event", pretended.event)
    monkeypatch.setattr(torch.accelerator, "synchronize", pretended.finished.append)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: f"stream of {device}")
    monkeypatch.setattr(gpu_clock, "own_device", lambda: device)
    return pretended


def test_rows_of_a_gpu_have_the_times_of_its_stream(stream):
    def step():
        with span("forward"):
            stream.milliseconds += 3.0  # launched at once, done 3 ms later
        stream.milliseconds += 1.0
        return "done"

    result, columns = recorded(step)
    lengths = [end - start for start, end in zip(columns["start"], columns["end"], strict=True)]
    assert result == "done"
    assert list(zip(columns["op"], lengths, strict=True)) == [
        ("forward", 3_000_000), ("compute", 1_000_000),
    ]  # fmt: skip


def test_marks_are_left_on_the_ranks_own_gpu_by_any_thread(stream):
    """Gloo's threads, and others that nobody told of the rank's GPU, have GPU 0 as their own."""

    def step():
        beside = threading.Thread(target=lambda: span("beside").__enter__(), name="beside")
        beside.start()
        beside.join()

    recorded(step)
    assert {where[1:] for where in stream.marks} == {("cuda:2", "stream of cuda:2")}
    assert {where[0] for where in stream.marks} >= {"MainThread", "beside"}


def test_memory_lies_on_the_axis_of_the_gpu(stream):
    """The rows of bytes and those of time have one clock, though the processor runs ahead."""
    model = torch.nn.Linear(4, 4)

    def step():
        with Memory(model):
            stream.milliseconds += 5.0
            kept = torch.ones(1000)
            with span("forward"):
                stream.milliseconds += 3.0
            kept += 1

    _, columns = recorded(step)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    forward = next(row for row in rows if row["op"] == "forward")
    ones = next(r for r in rows if r["lane"] == "memory" and r["note"].startswith("ones"))
    assert ones["start"] == forward["start"] == forward["end"] - 3_000_000
    first = min(row["start"] for row in rows if row["lane"] == "memory")
    assert ones["start"] - first == 5_000_000


def test_all_gpus_have_finished_before_a_call_begins(stream, monkeypatch):
    """The moments of arrival are the processor's: what a GPU still does would begin late."""
    order = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: order.append("finished"))
    board = SimpleNamespace(arrive=lambda *_: order.append("arrived"), arrived=lambda *_: 1)
    monkeypatch.setattr(this_rank, "board", board)
    start = common_start.Start(5, (0,))
    assert carry_out(CarriedCall(lambda: "done", start=start)) == "done"
    assert order == ["finished", "arrived"]


def test_a_processors_operation_ends_by_the_processors_clock(stream, monkeypatch):
    """Gloo is through while the GPU's stream is still busy, and tells so from its own thread."""
    monkeypatch.setattr(this_rank, "now", gpu_clock.GpuClock(torch.device("cuda:2")).now)
    inline, beside = Event("comm", "send", 0), Event("comm", "send", 0)
    observed_work.ended(inline, False)(None)
    thread = threading.Thread(target=observed_work.ended(beside, False), args=(None,))
    thread.start()
    thread.join()
    assert hasattr(inline.end, "elapsed_time") and isinstance(beside.end, int)


def test_the_clock_is_the_processors_again_after_an_error(stream):
    with pytest.raises(ValueError):
        recorded(int, "no number")
    assert this_rank.recording is None and isinstance(this_rank.now(), int)


def test_what_slow_motion_left_behind_is_not_told_of_the_next_run():
    slowly = CarriedCall(int, record=True, slow_motion=SlowMotion("H100", factor=1))
    _, columns = carry_out(slowly)
    assert columns["slipped"] >= 0
    _, columns = recorded(int)
    assert "slipped" not in columns and this_rank.slow is None
