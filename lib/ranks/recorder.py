"""Recording a call on one rank: what it launched, when it waited, and what it computed between."""

import math
import time

from lib.ranks.desk import desk
from lib.ranks.gpu_clock import clock_of_this_rank

# The columns that every event has, with what they hold where an event says nothing.
EMPTY = {
    "lane": "", "op": "", "start": 0, "end": 0, "group": "", "members": (), "number": -1,
    "bytes": 0, "peer": -1, "stage": -1, "microbatch": -1, "note": "",
}  # fmt: skip


def recorded(step, *args, **kwargs):
    """Run `step` and give back (its result, the events of this rank as plain dicts, in ns)."""
    events, desk.slipped, desk.ended = [], None, None
    desk.events = events
    gpu = clock_of_this_rank()
    desk.now = gpu.now if gpu else time.monotonic_ns
    began = desk.now() if gpu or desk.began is None else desk.began
    whole = {"lane": "compute", "op": "compute", "start": began, "end": 0}
    try:
        result = step(*args, **kwargs)
        whole["end"] = desk.now() if desk.ended is None else desk.ended
    finally:
        desk.events, desk.now = None, time.monotonic_ns
    if gpu:
        gpu.settle([whole, *events])
    for event in events:  # launched and never waited for, or not finished yet
        event["end"] = event["end"] or max(event["start"], time.monotonic_ns())
    busy = [e for e in events if e["lane"] in ("compute", "wait")]
    rest = [e for e in events if e["lane"] not in ("compute", "wait")]
    rows = rest + exclusive([whole, *into_spans(busy)])
    rows = [EMPTY | event | {"note": note(event)} for event in rows]
    columns = {name: [row[name] for row in rows] for name in EMPTY}
    if desk.slipped is not None:
        columns["slipped"], desk.slipped = desk.slipped, None
    return result, columns


def into_spans(events: list[dict]) -> list[dict]:
    """Add what slow motion counted inside a span to the span: its row stays one row.

    Rows of slow motion carry "flop", the arithmetic they stand for; spans are the reader's own.
    """
    spans = [e | {"flop": 0, "bytes": 0, "late": 0} for e in events
             if e["lane"] == "compute" and "flop" not in e]  # fmt: skip
    spans.sort(key=lambda e: e["end"] - e["start"])
    kept = [e for e in events if e["lane"] != "compute"]
    for event in (e for e in events if "flop" in e and e["lane"] == "compute"):
        inside = (s for s in spans if s["start"] <= event["start"] and event["end"] <= s["end"])
        span = next(inside, None)
        if span is None:
            kept.append(event)
            continue
        span["flop"] += event["flop"]
        span["bytes"] += event["bytes"]
        span["late"] = max(span["late"], event["late"])
    return kept + spans


def note(event: dict) -> str:
    """Write an event's note: the reader's own, the arithmetic, and how late the real work was."""
    parts = [event.get("note", "")]
    if event.get("flop"):
        parts.append(f"{quantity(event['flop'])}FLOP")
    if event.get("late"):
        parts.append(f"slipped {quantity(event['late'] / 1e9)}s")
    return ", ".join(part for part in parts if part)


def quantity(amount: float) -> str:
    """Write a number in three digits and a prefix: 1.05e9 is `1.05 G`, 0.002 is `2 m`."""
    power = min(max(int(math.floor(math.log10(amount) / 3)), -3), 4) if amount else 0
    return f"{amount / 1000**power:.3g} {['', 'k', 'M', 'G', 'T', 'n', 'µ', 'm'][power]}"


def exclusive(events: list[dict]) -> list[dict]:
    """Cut nested intervals so that each moment belongs to the innermost one alone.

    A rank does one thing at a time: a wait inside a span inside the call is a wait.
    """
    cut: list[dict] = []
    open_: list[dict] = []
    now = 0

    def until(moment):
        nonlocal now
        if open_ and moment > now:
            cut.append({**open_[-1], "start": now, "end": moment})
            open_[-1] = open_[-1] | {"flop": 0, "bytes": 0, "late": 0}  # told once, not per piece
        now = max(now, moment)

    for event in sorted(events, key=lambda e: (e["start"], -e["end"])):
        while open_ and open_[-1]["end"] <= event["start"]:
            until(open_[-1]["end"])
            open_.pop()
        until(event["start"])
        now = event["start"]
        open_.append(event)
    while open_:
        until(open_[-1]["end"])
        open_.pop()
    return cut
