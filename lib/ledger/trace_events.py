"""The ledger as text: columns in JSON, or trace events that Perfetto opens."""

import json
from itertools import count
from math import isnan

from lib.ledger.columns import TUPLES, Words

FORMAT = "many-ranks-ledger-1"


def to_json(columns: dict, source: str, meta: dict) -> str:
    """Return columns as JSON; nan becomes null, so that browsers can read it."""
    text = {}
    for name, column in columns.items():
        if isinstance(column, Words):
            text[name] = {"words": column.words, "codes": column.codes.tolist()}
        else:
            text[name] = [None if value != value else value for value in column.tolist()]
    return json.dumps({"format": FORMAT, "source": source, "meta": meta, "columns": text})


def from_json(text: str) -> tuple[dict, dict]:
    """Return the columns, and source and meta, from the text that `to_json` wrote."""
    document = json.loads(text)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f"This JSON is not a ledger, because its format is not {FORMAT!r}.")
    columns = {}
    for name, column in document["columns"].items():
        if isinstance(column, dict):
            words = [tuple(w) if isinstance(w, list) else w for w in column["words"]]
            column = [words[code] for code in column["codes"]]
        columns[name] = column
    return columns, {"source": document["source"], "meta": document["meta"]}


def to_trace(rows, names: tuple[str, ...], source: str, meta: dict) -> str:
    """Return trace events with a process for each rank and a thread for each lane.

    A lane has several threads where its rows overlap. Trace events count in microseconds and lose
    digits, so `args` also keeps start and end in seconds. Memory rows become counters, and the wait
    of a comm row becomes a slice inside it.
    """
    rows = list(rows)
    events, lanes = [], _threads(rows)
    for row, tid in zip(rows, lanes):
        columns = {name: getattr(row, name) for name in names}
        columns["arrived"] = None if isnan(row.arrived) else row.arrived
        event = {"name": row.op, "cat": row.lane, "pid": row.rank, "ts": row.start * 1e6}
        if row.lane == "memory":
            events.append(event | {"ph": "C", "args": {"bytes": row.bytes}, "row": columns})
            continue
        event |= {"ph": "X", "tid": tid, "dur": row.seconds * 1e6}
        events.append(event | {"args": columns})
        if row.waiting:
            events.append(event | {"name": "waiting", "dur": row.waiting * 1e6, "args": {}})
    for rank, tid, lane in sorted({(r.rank, t, r.lane) for r, t in zip(rows, lanes) if t}):
        about = {"ph": "M", "pid": rank, "tid": tid}
        events.append(about | {"name": "process_name", "args": {"name": f"rank {rank}"}})
        events.append(about | {"name": "thread_name", "args": {"name": lane}})
    other = {"format": FORMAT, "source": source, "meta": meta}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": other})


def _threads(rows: list) -> list[int]:
    """Return, for each row, the first thread of its lane where it lies after or inside the others.

    Comm rows are only put after one another, because each contains its own wait.
    """
    open_until: dict = {}
    threads = [0] * len(rows)
    for n in sorted(range(len(rows)), key=lambda n: (rows[n].start, -rows[n].end)):
        row = rows[n]
        if row.lane == "memory":
            continue
        for tid in count(100 * ("compute", "wait", "comm").index(row.lane) + 1):
            ends = open_until.setdefault((row.rank, tid), [])
            while ends and ends[-1] <= row.start:
                ends.pop()
            if not ends or (row.lane != "comm" and row.end <= ends[-1]):
                ends.append(row.end)
                threads[n] = tid
                break
    return threads


def from_trace(text: str) -> tuple[list[dict], dict]:
    """Return a dict for each row, and source and meta, from the text that `to_trace` wrote."""
    document = json.loads(text)
    other = document.get("otherData", {}) if isinstance(document, dict) else {}
    if other.get("format") != FORMAT:
        raise ValueError(
            f"This trace was not written by a ledger, because its format is not {FORMAT!r}."
        )
    rows = [event.get("row") or event.get("args", {}) for event in document["traceEvents"]]
    rows = [
        row | {name: tuple(row[name]) for name in TUPLES if name in row}
        for row in rows
        if "lane" in row
    ]
    return rows, {"source": other["source"], "meta": other["meta"]}
