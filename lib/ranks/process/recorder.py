"""Recording a call on one rank: what it launched, when it waited, and what it computed between."""

import math
import time
from dataclasses import replace

from lib.ranks.shared.event import COLUMNS, Event
from lib.ranks.state.gpu_clock import clock_of_this_rank
from lib.ranks.state.this_rank import this_rank


class Recording:
    """The events of one call on this rank; those inside the `with` are noted.

    `began` (ns) is when all ranks of the call began, None where they did not agree on that. Where
    the rank computes on a GPU all times are the GPU's.
    """

    def __init__(self, began: int | None = None):
        self.events: list[Event] = []
        self.gpu = clock_of_this_rank()
        self.now = self.gpu.now if self.gpu else time.monotonic_ns
        self.began = self.now() if self.gpu or began is None else began
        self.ended = 0

    def __enter__(self):
        this_rank.recording = self
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.ended = self.now()
        finally:
            this_rank.recording = None

    def note(self, lane: str, op: str, start: int, end: int = 0, **more) -> Event:
        """Keep one event; `more` are other fields of Event."""
        event = Event(lane, op, start, end, **more)
        self.events.append(event)
        return event

    def note_wait(self, event: Event, began: int, ended: int) -> None:
        """Keep that this rank waited for the operation of `event`."""
        self.events.append(replace(event, lane="wait", start=began, end=ended))

    def columns(self, clock=None) -> dict[str, list]:
        """Give what was recorded as columns of the Ledger, times in ns.

        `clock` is the ComputeClock if the call ran in slow motion: then it tells when the call
        ended, and the extra entry "slipped" tells how late (ns) the real work was at worst.
        """
        whole = Event("compute", "compute", self.began, clock.ended if clock else self.ended)
        if self.gpu:
            self.gpu.settle([whole, *self.events])
        for event in self.events:  # launched and never waited for, or not finished yet
            event.end = event.end or max(event.start, time.monotonic_ns())
        busy = [event for event in self.events if event.lane in ("compute", "wait")]
        rows = [event for event in self.events if event.lane not in ("compute", "wait")]
        spans = into_spans(busy)
        if not self.gpu:  # there a clock that stood still tells that nothing was computed
            spans = [e for e in spans if e.lane == "wait" or e.end > e.start]
        rows += exclusive([*spans, whole])
        columns = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
        columns["note"] = [whole_note(row) for row in rows]
        return columns | ({"slipped": clock.slipped} if clock else {})


def into_spans(events: list[Event]) -> list[Event]:
    """Add what slow motion counted inside a span to the span, so that its row stays one row.

    Events of slow motion have `flop`, the arithmetic they stand for; spans are the reader's own.
    """
    spans = [replace(e, flop=0, bytes=0, late=0) for e in events
             if e.lane == "compute" and e.flop is None]  # fmt: skip
    spans.sort(key=lambda e: e.end - e.start)
    kept = [e for e in events if e.lane != "compute"]
    for event in (e for e in events if e.flop is not None and e.lane == "compute"):
        inside = (s for s in spans if s.start <= event.start and event.end <= s.end)
        span = next(inside, None)
        if span is None:
            kept.append(event)
            continue
        span.flop += event.flop
        span.bytes += event.bytes
        span.late = max(span.late, event.late)
    return kept + spans


def whole_note(event: Event) -> str:
    """Write an event's note: the reader's own, the arithmetic, and how late the real work was."""
    parts = [event.note]
    if event.flop:
        parts.append(f"{quantity(event.flop)}FLOP")
    if event.late:
        parts.append(f"slipped {quantity(event.late / 1e9)}s")
    return ", ".join(part for part in parts if part)


def quantity(amount: float) -> str:
    """Write a number in three digits and a prefix: 1.05e9 is `1.05 G`, 0.002 is `2 m`."""
    power = min(max(int(math.floor(math.log10(amount) / 3)), -3), 4) if amount else 0
    return f"{amount / 1000**power:.3g} {['', 'k', 'M', 'G', 'T', 'n', 'µ', 'm'][power]}"


def exclusive(events: list[Event]) -> list[Event]:
    """Cut nested intervals so that each moment belongs to the innermost one alone.

    A rank does one thing at a time: a wait inside a span inside the call is a wait. A wait or a
    span that was over at once stays a row, so that each has one: on a GPU's clock those take no
    time that gave the stream nothing to do. Of two equal intervals the earlier of the list is
    inside: what is inside ends, and is noted, first.
    """
    pieces: list[Event] = []
    open_: list[Event] = []
    now = 0

    def until(moment):
        nonlocal now
        if open_ and moment > now:
            pieces.append(replace(open_[-1], start=now, end=moment))
            open_[-1] = replace(open_[-1], flop=0, bytes=0, late=0)  # told once, not per piece
        now = max(now, moment)

    at_once = [e for e in events if e.end <= e.start]  # in the order of their ends
    outer_first = [e for e in reversed(events) if e.end > e.start]
    for event in sorted(outer_first + at_once, key=lambda e: (e.start, -e.end)):
        while open_ and open_[-1].end <= event.start:
            until(open_[-1].end)
            open_.pop()
        until(event.start)
        now = event.start
        if event.end <= event.start:
            if event.op != "compute":  # that is what no span holds
                pieces.append(replace(event, end=event.start))
            continue
        open_.append(event)
    while open_:
        until(open_[-1].end)
        open_.pop()
    return pieces
