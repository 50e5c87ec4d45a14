"""A million events made few enough to be drawn."""

from dataclasses import fields

import numpy as np


def thinned(events, most: int) -> tuple:
    """At most `most` events: those shorter than a slot of time become one for each operation.

    Their seconds (behind, waiting, busy) and bytes are added up and stay within their slot; what
    is longer is kept as it is. Gives the Events that are left, and the slot's length (s).
    """
    length = events.end - events.start
    span = float(events.end.max()) or 1e-9
    lines = events.place * 2 + events.lane
    many = int(events.op.max()) + 1

    def pieces(slot):
        short = np.flatnonzero(length < slot)
        cell = lines[short] * (int(span / slot) + 2) + (events.start[short] / slot).astype(int)
        return short, cell * many + events.op[short]

    def kept(slot):
        short, key = pieces(slot)
        return len(events) - len(short) + len(np.unique(key))

    low, high = 0.0, span * 1.0001
    for _ in range(12):
        middle = (max(low, span / 1e6) * high) ** 0.5
        low, high = (low, middle) if kept(middle) <= most else (middle, high)
        if high < low * 1.1:
            break
    short, key = pieces(high)
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    size = len(first)
    made = events.at(short[first])
    made.count = np.bincount(which, events.count[short], size).astype(np.int64)
    made.bytes = np.bincount(which, events.bytes[short], size).astype(np.int64)
    made.behind, made.wait = (
        np.bincount(which, c[short], size) for c in (events.behind, events.wait)
    )
    total, made.half = np.bincount(which, length[short], size), np.zeros(size, np.int64)
    same = lambda column: (
        np.bincount(which, column[short] != column[short[first]][which], size) == 0
    )
    for name in ("stage", "microbatch", "number", "peer"):
        column = getattr(events, name)
        setattr(made, name, np.where(same(column), column[short[first]], -1))
    # Within a slot the operations lie one after the other, from its first start.
    cell = key[first] // many
    fresh = np.flatnonzero(np.diff(cell, prepend=-1))
    sizes = np.diff(np.append(fresh, size))
    before = np.cumsum(total) - total
    begin = np.minimum.reduceat(made.start, fresh)
    made.start = np.repeat(begin - before[fresh], sizes) + before
    made.end = made.start + total
    long = np.flatnonzero(length >= high)
    both = {f.name: np.concatenate([getattr(events, f.name)[long], getattr(made, f.name)])
            for f in fields(events)}  # fmt: skip
    order = np.lexsort((-both["end"], both["start"], both["lane"], both["place"]))
    return type(events)(**{name: column[order] for name, column in both.items()}), float(high)
