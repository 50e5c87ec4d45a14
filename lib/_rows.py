"""What the ledger's columns say together: read, refused, merged on one clock, timed."""

import numpy as np

from lib._columns import Words, intern, join, keys, numbers, take


def read(given: dict, types: dict, defaults: dict) -> dict:
    """Make every column in `types` from lists, arrays, or one value for all rows."""
    missing = [name for name in types if name not in given and name not in defaults]
    if given and missing:
        raise ValueError(f"Every row needs {', '.join(missing)}.")
    sizes = {name: _size(name, values) for name, values in given.items()}
    long = {name: size for name, size in sizes.items() if size is not None}
    if len(set(long.values())) > 1:
        raise ValueError(f"The columns of a ledger are equally long, and these are not: {long}.")
    rows = max(long.values(), default=1 if given else 0)
    columns = {}
    for name, dtype in types.items():
        values = given.get(name, defaults.get(name))
        if sizes.get(name) is None:
            values = (
                Words([values], np.zeros(rows, np.int32)) if dtype is Words else [values] * rows
            )
        columns[name] = _words(name, values) if dtype is Words else numbers(name, values, dtype)
    return columns


def _size(name: str, values) -> int | None:
    """How many rows `values` holds; None for one value that stands for every row."""
    one_group = isinstance(values, tuple) and all(isinstance(v, (int, np.integer)) for v in values)
    if (
        isinstance(values, str)
        or not hasattr(values, "__len__")
        or (name == "members" and one_group)
    ):
        return None
    return len(values.codes if isinstance(values, Words) else values)


def _words(name: str, values) -> Words:
    if isinstance(values, Words):
        return values
    values = values.tolist() if isinstance(values, np.ndarray) else values
    return intern([tuple(ranks) for ranks in values] if name == "members" else values)


def check(columns: dict, lanes: tuple[str, ...]) -> None:
    """Refuse rows that cannot be true, in a sentence that names the row and its rank."""

    def refuse(bad: np.ndarray, why: str) -> None:
        if bad.any():
            at = int(bad.argmax())
            row = {name: take(column, [at]).tolist()[0] for name, column in columns.items()}
            raise ValueError(f"Row {at} (rank {row['rank']}, {row['op']}) {why.format(**row)}")

    start, end = columns["start"], columns["end"]
    strange = columns["lane"].mask(lambda lane: lane not in lanes)
    refuse(strange, f"is in lane {{lane!r}}: a lane is one of {', '.join(lanes)}.")
    refuse(columns["rank"] < 0, "has a rank below 0: ranks count from 0.")
    refuse(~np.isfinite(start), "starts at {start}: a start is a number of seconds.")
    refuse(~(end >= start), "ends at {end} s, before it starts at {start} s.")
    refuse(~np.isfinite(end), "ends at {end}: an end is a number of seconds.")
    refuse(columns["bytes"] < 0, "has {bytes} bytes: a size is 0 or more.")


def merge(parts: list[dict], offsets: list[float]) -> dict:
    """Put columns end to end on one clock that begins at 0, in order of start, with `arrived`."""
    columns = {name: join([part[name] for part in parts]) for name in parts[0]}
    shift = np.repeat(offsets, [len(part["rank"]) for part in parts])
    shift = shift - (columns["start"] + shift).min(initial=np.inf)
    for name in ("start", "end", "arrived"):
        columns[name] = columns[name] + shift
    order = np.lexsort((columns["rank"], columns["start"]))
    columns = {name: take(column, order) for name, column in columns.items()}
    return columns | {"arrived": _arrivals(columns)}


def _arrivals(columns: dict) -> np.ndarray:
    """When the last member had launched each comm row; the rows lie in order of start.

    A collective is known by group, members, op and number, a message by its pair and number. If
    one rank has several rows of the same name (a new group of the same ranks, another tag), its
    k-th belongs to the others' k-th. Stays nan where a member's row is missing.
    """
    arrived = columns["arrived"].copy()
    comm = np.flatnonzero(columns["lane"].mask(lambda lane: lane == "comm"))
    group, members, op, number, rank, start = (
        take(columns[name], comm) for name in ("group", "members", "op", "number", "rank", "start")
    )
    ends = {"send": "message", "recv": "message"}
    op = join([Words([ends.get(word, word) for word in op.words], op.codes)])
    each = keys([group, members, op, number, rank])
    order = np.argsort(each, kind="stable")
    first = np.diff(each[order], prepend=-1) != 0
    nth = np.empty(len(order), np.int64)
    nth[order] = np.arange(len(order)) - np.flatnonzero(first)[np.cumsum(first) - 1]
    operation = np.unique(keys([group, members, op, number, nth]), return_inverse=True)[1]
    present = np.bincount(operation)
    last = np.full(len(present), -np.inf)
    np.maximum.at(last, operation, start)
    expected = np.array([len(ranks) for ranks in members.words], np.int64)[members.codes]
    fill = (present[operation] == expected) & np.isnan(arrived[comm])
    arrived[comm[fill]] = last[operation[fill]]
    return arrived


def durations(columns: dict) -> dict[str, np.ndarray]:
    """The columns "seconds", "waiting" and "moving", as Row defines them."""
    start, end, arrived = columns["start"], columns["end"], columns["arrived"]
    comm = columns["lane"].mask(lambda lane: lane == "comm")
    seconds = end - start
    waiting = np.where(comm & ~np.isnan(arrived), np.clip(arrived, start, end) - start, 0.0)
    moving = np.where(comm, seconds - waiting, 0.0)
    return {"seconds": seconds, "waiting": waiting, "moving": moving}
