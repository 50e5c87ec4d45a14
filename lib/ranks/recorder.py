"""Recording a call on one rank: what it launched, when it waited, and what it computed between."""

import time

from lib.ranks.desk import desk

# The columns that every event has, with what they hold where an event says nothing.
EMPTY = {
    "lane": "", "op": "", "start": 0, "end": 0, "group": "", "members": (), "number": -1,
    "bytes": 0, "peer": -1, "stage": -1, "microbatch": -1, "note": "",
}  # fmt: skip


def recorded(step, *args, **kwargs):
    """Run `step` and give back (its result, the events of this rank as plain dicts, in ns)."""
    events = desk.events = []
    began = time.monotonic_ns()
    try:
        result = step(*args, **kwargs)
    finally:
        desk.events = None
    ended = time.monotonic_ns()
    for event in events:  # launched and never waited for, or not finished yet
        event["end"] = event["end"] or max(event["start"], time.monotonic_ns())
    busy = [e for e in events if e["lane"] in ("compute", "wait")]
    rest = [e for e in events if e["lane"] not in ("compute", "wait")]
    whole = {"lane": "compute", "op": "compute", "start": began, "end": ended}
    rows = [EMPTY | event for event in rest + exclusive([whole, *busy])]
    return result, {name: [row[name] for row in rows] for name in EMPTY}


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
