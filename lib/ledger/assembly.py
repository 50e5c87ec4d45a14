"""Operations on all columns of a ledger together: reading, checking, merging and timing."""

import numpy as np

from lib.ledger.columns import TUPLES, Words, intern, join, keys, numbers, take


def read(values_by_name: dict, types: dict, defaults: dict) -> dict:
    """Build every column in `types` from lists, arrays, or one value for all rows.

    Raises ValueError where a needed column is missing or the lengths differ.
    """
    missing = [name for name in types if name not in values_by_name and name not in defaults]
    if values_by_name and missing:
        raise ValueError(f"Every row needs {', '.join(missing)}.")
    sizes = {name: _size(name, values) for name, values in values_by_name.items()}
    lengths = {name: size for name, size in sizes.items() if size is not None}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            f"The columns of a ledger must be equally long, but their lengths are {lengths}."
        )
    rows = max(lengths.values(), default=1 if values_by_name else 0)
    columns = {}
    for name, dtype in types.items():
        values = values_by_name.get(name, defaults.get(name))
        if sizes.get(name) is None:
            values = (
                Words([values], np.zeros(rows, np.int32)) if dtype is Words else [values] * rows
            )
        columns[name] = _words(name, values) if dtype is Words else numbers(name, values, dtype)
    return columns


def _size(name: str, values) -> int | None:
    """Return how many rows `values` has; None for one value that stands for every row."""
    one_group = isinstance(values, tuple) and all(isinstance(v, (int, np.integer)) for v in values)
    if isinstance(values, str) or not hasattr(values, "__len__") or (name in TUPLES and one_group):
        return None
    return len(values.codes if isinstance(values, Words) else values)


def _words(name: str, values) -> Words:
    if isinstance(values, Words):
        return values
    values = values.tolist() if isinstance(values, np.ndarray) else values
    return intern([tuple(each) for each in values] if name in TUPLES else values)


def check(columns: dict, lanes: tuple[str, ...]) -> None:
    """Raise ValueError for a row that cannot be true, in a sentence with the row and its rank."""

    def refuse(bad: np.ndarray, why: str) -> None:
        if bad.any():
            at = int(bad.argmax())
            row = {name: take(column, [at]).tolist()[0] for name, column in columns.items()}
            raise ValueError(f"Row {at} (rank {row['rank']}, {row['op']}) {why.format(**row)}")

    start, end = columns["start"], columns["end"]
    unknown = columns["lane"].mask(lambda lane: lane not in lanes)
    refuse(unknown, f"is in lane {{lane!r}}, but a lane is one of {', '.join(lanes)}.")
    refuse(columns["rank"] < 0, "has a rank below 0, but ranks count from 0.")
    refuse(
        ~np.isfinite(start), "starts at {start}, but a start must be a finite number of seconds."
    )
    refuse(~(end >= start), "ends at {end} s, before it starts at {start} s.")
    refuse(~np.isfinite(end), "ends at {end}, but an end must be a finite number of seconds.")
    refuse(columns["bytes"] < 0, "has {bytes} bytes, but a size must be at least 0.")


def merge(parts: list[dict], offsets: list[float]) -> dict:
    """Join columns on one clock that begins at 0, sorted by start, and fill in `arrived`."""
    columns = {name: join([part[name] for part in parts]) for name in parts[0]}
    shift = np.repeat(offsets, [len(part["rank"]) for part in parts])
    shift = shift - (columns["start"] + shift).min(initial=np.inf)
    for name in ("start", "end", "arrived"):
        columns[name] = columns[name] + shift
    order = np.lexsort((columns["rank"], columns["start"]))
    columns = {name: take(column, order) for name, column in columns.items()}
    return columns | {"arrived": _arrivals(columns)}


def _arrivals(columns: dict) -> np.ndarray:
    """Return when the last member had launched each comm row; rows must be sorted by start.

    A collective is identified by group, members, op and number, a message by its pair and number.
    If one rank has several rows with the same identity (a new group of the same ranks, another
    tag), its k-th row belongs to the k-th of the other ranks. The time is nan where a member's row
    is missing.
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
    """Return the columns "seconds", "waiting" and "moving", as Row defines them."""
    start, end, arrived = columns["start"], columns["end"], columns["arrived"]
    comm = columns["lane"].mask(lambda lane: lane == "comm")
    seconds = end - start
    waiting = np.where(comm & ~np.isnan(arrived), np.clip(arrived, start, end) - start, 0.0)
    moving = np.where(comm, seconds - waiting, 0.0)
    return {"seconds": seconds, "waiting": waiting, "moving": moving}
