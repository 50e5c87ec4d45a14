"""One row of the ledger, and what its columns say of each other."""

from dataclasses import dataclass, fields
from math import isnan, nan

import numpy as np

from lib._columns import Words, intern, join, keys, numbers, take

LANES = ("compute", "wait", "comm", "memory")


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """One thing that one rank did: times in seconds on the ledger's clock, sizes in bytes.

    A comm row starts when this rank launched the operation and ends when it had finished here;
    start to `arrived` is waiting for the last rank of the group, `arrived` to end is moving.
    """

    rank: int
    lane: str  # one of LANES
    op: str  # "forward", "mm", "all_reduce", "send"; in lane memory the kind: "parameters", ...
    start: float
    end: float
    arrived: float = nan  # comm: when the last rank of the group had launched it
    group: str = ""  # the name the reader knows: "world", "dp"
    members: tuple[int, ...] = ()  # the group's ranks; send and recv: (source, destination)
    number: int = -1  # which collective of that group; send and recv: which message of that pair
    bytes: int = 0  # the full buffer, as nccl-tests counts; memory: alive after the change
    peer: int = -1  # send and recv: the other end; rooted collectives: the root (global rank)
    stage: int = -1
    microbatch: int = -1
    note: str = ""  # "slipped 12 ms", "ring"

    @property
    def seconds(self) -> float:
        """From start to end."""
        return self.end - self.start

    @property
    def waiting(self) -> float:
        """Seconds of a comm row until the last rank came; 0.0 where that is not known."""
        known = self.lane == "comm" and not isnan(self.arrived)
        return min(max(self.arrived, self.start), self.end) - self.start if known else 0.0

    @property
    def moving(self) -> float:
        """Seconds of a comm row after the last rank had come."""
        return self.seconds - self.waiting if self.lane == "comm" else 0.0

    def __eq__(self, other) -> bool:  # two unknown `arrived` are equal, though nan != nan
        if not isinstance(other, Row):
            return NotImplemented
        pairs = ((getattr(self, name), getattr(other, name)) for name in NAMES)
        return all(a == b or (a != a and b != b) for a, b in pairs)

    def __hash__(self) -> int:
        return hash((self.rank, self.lane, self.op, self.start, self.end, self.number))


NAMES = tuple(field.name for field in fields(Row))
_TYPES = {f.name: {int: np.int64, float: np.float64}.get(f.type, Words) for f in fields(Row)}
_DEFAULTS = {field.name: field.default for field in fields(Row)[5:]}


def known(name: str, more: tuple[str, ...] = ()) -> str:
    """Give back the name of a column, or say which names there are."""
    if name not in NAMES and name not in more:
        raise ValueError(f"A ledger has no column {name!r}: it has {', '.join((*NAMES, *more))}.")
    return name


def read(given: dict) -> dict:
    """Make every column of the ledger from lists, arrays, or one value for all rows."""
    missing = [name for name in NAMES if name not in given and name not in _DEFAULTS]
    if given and missing:
        raise ValueError(f"Every row needs {', '.join(missing)}.")
    sizes = {known(name): _size(name, values) for name, values in given.items()}
    long = {name: size for name, size in sizes.items() if size is not None}
    if len(set(long.values())) > 1:
        raise ValueError(f"The columns of a ledger are equally long, and these are not: {long}.")
    rows = max(long.values(), default=1 if given else 0)
    columns = {}
    for name, dtype in _TYPES.items():
        values = given.get(name, _DEFAULTS.get(name))
        if sizes.get(name) is None:
            values = (
                Words([values], np.zeros(rows, np.int32)) if dtype is Words else [values] * rows
            )
        columns[name] = _words(name, values) if dtype is Words else numbers(name, values, dtype)
    _check(columns)
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


def _check(columns: dict) -> None:
    """Refuse rows that cannot be true, in a sentence that names the row and its rank."""

    def refuse(bad: np.ndarray, why: str) -> None:
        if bad.any():
            at = int(bad.argmax())
            row = {name: take(column, [at]).tolist()[0] for name, column in columns.items()}
            raise ValueError(f"Row {at} (rank {row['rank']}, {row['op']}) {why.format(**row)}")

    start, end = columns["start"], columns["end"]
    lanes = ", ".join(LANES)
    strange = columns["lane"].mask(lambda lane: lane not in LANES)
    refuse(strange, f"is in lane {{lane!r}}: a lane is one of {lanes}.")
    refuse(columns["rank"] < 0, "has a rank below 0: ranks count from 0.")
    refuse(~np.isfinite(start), "starts at {start}: a start is a number of seconds.")
    refuse(~(end >= start), "ends at {end} s, before it starts at {start} s.")
    refuse(~np.isfinite(end), "ends at {end}: an end is a number of seconds.")
    refuse(columns["bytes"] < 0, "has {bytes} bytes: a size is 0 or more.")


def arrivals(columns: dict) -> np.ndarray:
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
