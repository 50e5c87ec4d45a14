"""The ledger as text: columns in JSON, or trace events as Perfetto draws them."""

import json
from itertools import count
from math import isnan

from lib._columns import Words

FORMAT = "many-ranks-ledger-1"


def to_json(columns: dict, source: str, meta: dict) -> str:
    """Write columns as they are; a number that is not known is null, so that browsers read it."""
    text = {}
    for name, column in columns.items():
        if isinstance(column, Words):
            text[name] = {"words": column.words, "codes": column.codes.tolist()}
        else:
            text[name] = [None if value != value else value for value in column.tolist()]
    return json.dumps({"format": FORMAT, "source": source, "meta": meta, "columns": text})


def from_json(text: str) -> tuple[dict, dict]:
    """Read what `to_json` wrote: the columns, and source and meta."""
    whole = json.loads(text)
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise ValueError(f"This JSON is not a ledger: its format is not {FORMAT!r}.")
    columns = {}
    for name, column in whole["columns"].items():
        if isinstance(column, dict):
            words = [tuple(w) if isinstance(w, list) else w for w in column["words"]]
            column = [words[code] for code in column["codes"]]
        columns[name] = column
    return columns, {"source": whole["source"], "meta": whole["meta"]}


def to_trace(rows, names: tuple[str, ...], source: str, meta: dict) -> str:
    """Write a process for each rank and a thread for each lane (more where rows of a lane cross).

    Trace events count in microseconds and lose digits, so `args` also keeps start and end in
    seconds. Memory rows become counters, and the wait of a comm row a slice inside it.
    """
    rows = list(rows)
    events, lanes = [], _threads(rows)
    for row, tid in zip(rows, lanes):
        kept = {name: getattr(row, name) for name in names}
        kept["arrived"] = None if isnan(row.arrived) else row.arrived
        event = {"name": row.op, "cat": row.lane, "pid": row.rank, "ts": row.start * 1e6}
        if row.lane == "memory":
            events.append(event | {"ph": "C", "args": {"bytes": row.bytes}, "row": kept})
            continue
        event |= {"ph": "X", "tid": tid, "dur": row.seconds * 1e6}
        events.append(event | {"args": kept})
        if row.waiting:
            events.append(event | {"name": "waiting", "dur": row.waiting * 1e6, "args": {}})
    for rank, tid, lane in sorted({(r.rank, t, r.lane) for r, t in zip(rows, lanes) if t}):
        about = {"ph": "M", "pid": rank, "tid": tid}
        events.append(about | {"name": "process_name", "args": {"name": f"rank {rank}"}})
        events.append(about | {"name": "thread_name", "args": {"name": lane}})
    other = {"format": FORMAT, "source": source, "meta": meta}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": other})


def _threads(rows: list) -> list[int]:
    """For each row the first thread of its lane where it lies after, or inside, all before it.

    Comm rows lie after one another only: inside each one is its own wait.
    """
    open_until: dict = {}
    threads = [0] * len(rows)
    for at in sorted(range(len(rows)), key=lambda at: (rows[at].start, -rows[at].end)):
        row = rows[at]
        if row.lane == "memory":
            continue
        for tid in count(100 * ("compute", "wait", "comm").index(row.lane) + 1):
            ends = open_until.setdefault((row.rank, tid), [])
            while ends and ends[-1] <= row.start:
                ends.pop()
            if not ends or (row.lane != "comm" and row.end <= ends[-1]):
                ends.append(row.end)
                threads[at] = tid
                break
    return threads


def from_trace(text: str) -> tuple[list[dict], dict]:
    """Read what `to_trace` wrote: one dict for each row, and source and meta."""
    whole = json.loads(text)
    other = whole.get("otherData", {}) if isinstance(whole, dict) else {}
    if other.get("format") != FORMAT:
        raise ValueError(f"This trace was not written by a ledger: its format is not {FORMAT!r}.")
    rows = [event.get("row") or event.get("args", {}) for event in whole["traceEvents"]]
    rows = [row | {"members": tuple(row["members"])} for row in rows if "lane" in row]
    return rows, {"source": other["source"], "meta": other["meta"]}
