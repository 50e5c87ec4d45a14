"""The ledger: one row for everything that happened (or is predicted to happen) on a rank.

Predicted, slow-motion and measured runs are the same type, so every picture can lay one over
another. Inside, the ledger is columns of NumPy; outside, it is a sequence of rows.
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from math import isnan, nan
from pathlib import Path

import numpy as np

from lib import _rows, _trace
from lib._columns import Words, take
from lib._totals import Totals, totals

LANES = ("compute", "wait", "comm", "memory")
SOURCES = ("predicted", "slow motion", "measured")


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


class Ledger(Sequence):
    """Rows in columns: iterates and indexes as `Row`s, filters, merges, adds up, travels as text.

    `source` is one of SOURCES, `results` what each rank returned, `meta` anything worth keeping.
    """

    def __init__(self, rows: Iterable[Row] = (), *, source="measured", results=None, meta=None):
        values = zip(*map(operator.attrgetter(*NAMES), rows))
        columns = dict(zip(NAMES, map(list, values))) or dict.fromkeys(NAMES, [])
        self._set(_read(columns), source, results, meta)

    def _set(self, columns, source, results, meta) -> "Ledger":
        if source not in SOURCES:
            raise ValueError(f"A ledger's source is one of {', '.join(SOURCES)}, not {source!r}.")
        for column in columns.values():  # filters and slices share memory, so nobody writes
            (column.codes if isinstance(column, Words) else column).setflags(write=False)
        self._columns, self.source = columns, source
        self.results, self.meta = results, dict(meta or {})
        return self

    @classmethod
    def from_columns(cls, *, source="measured", results=None, meta=None, **columns) -> "Ledger":
        """Build a ledger from whole columns, by Row's names; one value stands for every row."""
        return cls.__new__(cls)._set(_read(columns), source, results, meta)

    @classmethod
    def merge(cls, ledgers: Iterable["Ledger"], offsets: Sequence[float] | None = None) -> "Ledger":
        """One ledger on one clock, in order of start, that begins at 0.

        `offsets` are seconds added to each ledger's times (hosts whose clocks differ). `arrived` is
        filled in wherever every member of a collective, or both ends of a message, are there.
        """
        ledgers = list(ledgers)
        if not ledgers:
            return cls()
        offsets = [0.0] * len(ledgers) if offsets is None else list(offsets)
        sources = sorted({ledger.source for ledger in ledgers})
        if len(offsets) != len(ledgers):
            raise ValueError(f"{len(ledgers)} ledgers need as many offsets, not {len(offsets)}.")
        if len(sources) > 1:
            raise ValueError(
                f"These ledgers are {' and '.join(sources)}: a merged ledger has one source. "
                "To compare two, draw one over the other."
            )
        columns = _rows.merge([ledger._columns for ledger in ledgers], offsets)
        results = [answer for ledger in ledgers for answer in ledger.results or ()]
        meta = {key: value for ledger in ledgers for key, value in ledger.meta.items()}
        return cls.__new__(cls)._set(columns, sources[0], results or None, meta)

    def __len__(self) -> int:
        return len(self._columns["rank"])

    def __iter__(self) -> Iterator[Row]:
        return map(Row, *(self._columns[name].tolist() for name in NAMES))

    def __getitem__(self, index):
        """Give one Row for a number, a Ledger for a slice, a mask or positions."""
        if isinstance(index, (int, np.integer)):
            place = range(len(self))[index]
            return next(iter(self[place : place + 1]))
        columns = {name: take(column, index) for name, column in self._columns.items()}
        return Ledger.__new__(Ledger)._set(columns, self.source, self.results, self.meta)

    def __eq__(self, other) -> bool:
        if not isinstance(other, Ledger):
            return NotImplemented
        same = (len(self), self.source, self.meta) == (len(other), other.source, other.meta)
        return same and all(a == b for a, b in zip(self, other))

    __hash__ = None

    def __repr__(self) -> str:
        rows, ranks = len(self), len(self.ranks)
        size = f"{rows} row{'s' * (rows != 1)} of {ranks} rank{'s' * (ranks != 1)}"
        return f"<Ledger: {size}, {self.source}>"

    def where(self, **wanted) -> "Ledger":
        """Keep the rows whose columns have these values; a list or a set allows each of its own."""
        keep = np.ones(len(self), bool)
        for name, value in wanted.items():
            _known(name)
            allowed = list(value) if isinstance(value, (set, frozenset, list, range)) else [value]
            column = self._columns[name]
            if isinstance(column, Words):
                keep &= column.mask(allowed.__contains__)
            else:
                keep &= np.isin(column, allowed)
        return self[keep]

    def column(self, name: str) -> np.ndarray:
        """One column as an array: a field of Row, or "seconds", "waiting", "moving"."""
        if name in ("seconds", "waiting", "moving"):
            return _rows.durations(self._columns)[name]
        column = self._columns[_known(name)]
        if not isinstance(column, Words):
            return column
        words = np.empty(len(column.words), object)
        words[:] = column.words
        return words[column.codes] if len(words) else words

    def totals(self, by=("rank", "op", "group"), *, lanes=("compute", "comm")) -> Totals:
        """Count, bytes and seconds of the rows in `lanes`, one Total for each different `by`.

        A wait row tells of an operation that a comm row tells of too: it is left out unless asked.
        """
        if "memory" in lanes:
            raise ValueError("Memory rows hold bytes alive, which do not add up over time.")
        by = (by,) if isinstance(by, str) else tuple(by)
        chosen = self if set(lanes) == set(LANES) else self.where(lane=set(lanes))
        columns = chosen._columns | _rows.durations(chosen._columns)
        return totals(by, [columns[_known(name)] for name in by], columns)

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end; 0.0 for an empty ledger."""
        return float(self.column("end").max() - self.column("start").min()) if len(self) else 0.0

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that have a row, in order."""
        return tuple(np.unique(self._columns["rank"]).tolist())

    def to_numpy(self) -> np.ndarray:
        """A structured array with Row's fields; words are text, members are tuples."""
        columns = {name: self.column(name) for name in NAMES}
        columns |= {name: columns[name].astype(str) for name in ("lane", "op", "group", "note")}
        return np.rec.fromarrays(list(columns.values()), names=list(NAMES))

    def to_json(self) -> str:
        """The ledger as JSON text, exact; `results` stay behind."""
        return _trace.to_json(self._columns, self.source, self.meta)

    def to_trace(self) -> str:
        """The ledger as Chrome trace-event JSON, which Perfetto opens: a process for each rank."""
        return _trace.to_trace(self, NAMES, self.source, self.meta)

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """Read what `to_json` wrote."""
        columns, rest = _trace.from_json(text)
        return cls.from_columns(**columns, **rest)

    @classmethod
    def from_trace(cls, text: str) -> "Ledger":
        """Read what `to_trace` wrote."""
        rows, rest = _trace.from_trace(text)
        return cls([Row(**row) for row in rows], **rest)

    def save(self, path) -> None:
        """Write to `path`: as a trace if it ends in .trace.json, else as JSON (.json)."""
        Path(path).write_text(self.to_trace() if _is_trace(path) else self.to_json())

    @classmethod
    def load(cls, path) -> "Ledger":
        """Read what `save` wrote."""
        text = Path(path).read_text()
        return cls.from_trace(text) if _is_trace(path) else cls.from_json(text)


def _read(given: dict) -> dict:
    columns = _rows.read({_known(name): given[name] for name in given}, _TYPES, _DEFAULTS)
    _rows.check(columns, LANES)
    return columns


def _known(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"A ledger has no column {name!r}: it has {', '.join(NAMES)}.")
    return name


def _is_trace(path) -> bool:
    return str(path).endswith(".trace.json")
