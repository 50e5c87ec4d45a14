"""The ledger has one row for each operation that a rank performed, or is predicted to perform.

Predicted, slow-motion and measured runs are of the same type, so every picture can draw one over
another. The ledger stores NumPy columns and behaves as a sequence of rows.
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from math import isnan, nan
from pathlib import Path

import numpy as np

from lib.ledger import assembly, trace_events
from lib.ledger.columns import Words, take
from lib.ledger.totals import Totals, totals

LANES = ("compute", "wait", "comm", "memory")
SOURCES = ("predicted", "slow motion", "measured")


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """Describes one operation of one rank: times in seconds on the ledger's clock, sizes in bytes.

    A comm row starts when this rank launched the operation and ends when it had finished on this
    rank. From start to `arrived` it waited for the last rank of the group; from `arrived` to end
    it moved data.
    """

    rank: int
    lane: str  # one of LANES
    op: str  # "forward", "mm", "all_reduce", "send"; in lane memory the kind, as "parameters"
    start: float
    end: float
    arrived: float = nan  # for comm: when the last rank of the group had launched it
    group: str = ""  # the name that the reader knows: "world", "dp"
    members: tuple[int, ...] = ()  # the group's ranks; for send and recv (source, destination)
    number: int = (
        -1
    )  # counts collectives of a group, or messages of a pair; for memory, the storage
    bytes: int = 0  # the full buffer, as in nccl-tests; for memory, those alive after the change
    peer: int = -1  # for send and recv the other end; with a root, the root (global rank)
    stage: int = -1
    microbatch: int = -1
    note: str = ""  # "slipped 12 ms", "ring"
    parts: tuple[int, ...] = ()  # of an uneven all_to_all: the bytes for each member, in order

    @property
    def seconds(self) -> float:
        """Return the seconds from start to end."""
        return self.end - self.start

    @property
    def waiting(self) -> float:
        """Return the seconds of a comm row until the last rank launched it; 0.0 if not known."""
        known = self.lane == "comm" and not isnan(self.arrived)
        return min(max(self.arrived, self.start), self.end) - self.start if known else 0.0

    @property
    def moving(self) -> float:
        """Return the seconds of a comm row after the last rank had launched it."""
        return self.seconds - self.waiting if self.lane == "comm" else 0.0

    def __eq__(self, other) -> bool:  # two unknown values of `arrived` (nan) count as equal
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
    """A sequence of Rows, stored in columns, that can be filtered, merged, added up and saved.

    `source` is one of SOURCES, `results` holds what each rank returned, and `meta` may hold any
    other facts about the run. `columns` maps each name of a Row to its values, one for each row:
    read-only arrays, or Words.
    """

    def __init__(self, rows: Iterable[Row] = (), *, source="measured", results=None, meta=None):
        values = zip(*map(operator.attrgetter(*NAMES), rows))
        columns = dict(zip(NAMES, map(list, values))) or dict.fromkeys(NAMES, [])
        self._set(_read(columns), source, results, meta)

    def _set(self, columns, source, results, meta) -> "Ledger":
        if source not in SOURCES:
            raise ValueError(f"A ledger's source is one of {', '.join(SOURCES)}, not {source!r}.")
        for column in columns.values():  # filters and slices share memory, so it is read-only
            (column.codes if isinstance(column, Words) else column).setflags(write=False)
        self.columns, self.source = columns, source
        self.results, self.meta = results, dict(meta or {})
        return self

    @classmethod
    def from_columns(cls, *, source="measured", results=None, meta=None, **columns) -> "Ledger":
        """Build a ledger from columns, by Row's names; a single value stands for every row."""
        return cls.__new__(cls)._set(_read(columns), source, results, meta)

    @classmethod
    def merge(cls, ledgers: Iterable["Ledger"], offsets: Sequence[float] | None = None) -> "Ledger":
        """Join ledgers on one clock that begins at 0, sorted by start.

        `offsets` are seconds added to each ledger's times, for hosts whose clocks differ. `arrived`
        is filled in wherever the rows of all members of a collective, or of both ends of a message,
        are present. Raises ValueError for ledgers of different sources.
        """
        ledgers = list(ledgers)
        if not ledgers:
            return cls()
        offsets = [0.0] * len(ledgers) if offsets is None else list(offsets)
        sources = sorted({ledger.source for ledger in ledgers})
        if len(offsets) != len(ledgers):
            raise ValueError(
                f"There are {len(ledgers)} ledgers and {len(offsets)} offsets. Give one offset for "
                "each ledger."
            )
        if len(sources) > 1:
            raise ValueError(
                f"These ledgers are {' and '.join(sources)}, but a merged ledger has one source. "
                "To compare two, draw one over the other."
            )
        columns = assembly.merge([ledger.columns for ledger in ledgers], offsets)
        results = [answer for ledger in ledgers for answer in ledger.results or ()]
        meta = {key: value for ledger in ledgers for key, value in ledger.meta.items()}
        return cls.__new__(cls)._set(columns, sources[0], results or None, meta)

    def __len__(self) -> int:
        return len(self.columns["rank"])

    def __iter__(self) -> Iterator[Row]:
        return map(Row, *(self.columns[name].tolist() for name in NAMES))

    def __getitem__(self, index):
        """Return one Row for a number, and a Ledger for a slice, a mask or positions."""
        if isinstance(index, (int, np.integer)):
            position = range(len(self))[index]
            return next(iter(self[position : position + 1]))
        columns = {name: take(column, index) for name, column in self.columns.items()}
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

    def where(self, **conditions) -> "Ledger":
        """Return the rows whose columns have these values, or one of those in a list or set."""
        keep = np.ones(len(self), bool)
        for name, value in conditions.items():
            _known(name)
            allowed = list(value) if isinstance(value, (set, frozenset, list, range)) else [value]
            column = self.columns[name]
            if isinstance(column, Words):
                keep &= column.mask(allowed.__contains__)
            else:
                keep &= np.isin(column, allowed)
        return self[keep]

    def column(self, name: str) -> np.ndarray:
        """Return one column as an array: a field of Row, or "seconds", "waiting" or "moving"."""
        if name in ("seconds", "waiting", "moving"):
            return assembly.durations(self.columns)[name]
        column = self.columns[_known(name)]
        if not isinstance(column, Words):
            return column
        words = np.empty(len(column.words), object)
        words[:] = column.words
        return words[column.codes] if len(words) else words

    def totals(self, by=("rank", "op", "group"), *, lanes=("compute", "comm")) -> Totals:
        """Add up count, bytes and seconds of the rows in `lanes`, one Total for each distinct `by`.

        Wait rows are left out by default, because each belongs to an operation that also has a comm
        row. Raises ValueError for memory rows.
        """
        if "memory" in lanes:
            raise ValueError(
                "Memory rows hold the bytes alive at a time, which cannot be added up over time."
            )
        by = (by,) if isinstance(by, str) else tuple(by)
        chosen = self if set(lanes) == set(LANES) else self.where(lane=set(lanes))
        columns = chosen.columns | assembly.durations(chosen.columns)
        return totals(by, [columns[_known(name)] for name in by], columns)

    @property
    def makespan(self) -> float:
        """Return the seconds from the first start to the last end; 0.0 for an empty ledger."""
        return float(self.column("end").max() - self.column("start").min()) if len(self) else 0.0

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that have a row, sorted."""
        return tuple(np.unique(self.columns["rank"]).tolist())

    def to_numpy(self) -> np.ndarray:
        """Return a structured array with Row's fields; words are text, members and parts tuples."""
        columns = {name: self.column(name) for name in NAMES}
        columns |= {name: columns[name].astype(str) for name in ("lane", "op", "group", "note")}
        return np.rec.fromarrays(list(columns.values()), names=list(NAMES))

    def to_json(self) -> str:
        """Return the ledger as JSON text, exactly, but without `results`."""
        return trace_events.to_json(self.columns, self.source, self.meta)

    def to_trace(self) -> str:
        """Return Chrome trace-event JSON, which Perfetto opens, with a process for each rank."""
        return trace_events.to_trace(self, NAMES, self.source, self.meta)

    @classmethod
    def from_json(cls, text: str) -> "Ledger":
        """Read the text that `to_json` wrote."""
        columns, rest = trace_events.from_json(text)
        return cls.from_columns(**columns, **rest)

    @classmethod
    def from_trace(cls, text: str) -> "Ledger":
        """Read the text that `to_trace` wrote."""
        rows, rest = trace_events.from_trace(text)
        return cls([Row(**row) for row in rows], **rest)

    def save(self, path) -> None:
        """Write the ledger to `path`, as a trace if it ends in .trace.json, else as JSON."""
        Path(path).write_text(self.to_trace() if _is_trace(path) else self.to_json())

    @classmethod
    def load(cls, path) -> "Ledger":
        """Read the file that `save` wrote."""
        text = Path(path).read_text()
        return cls.from_trace(text) if _is_trace(path) else cls.from_json(text)


def _read(values: dict) -> dict:
    columns = assembly.read({_known(name): values[name] for name in values}, _TYPES, _DEFAULTS)
    assembly.check(columns, LANES)
    return columns


def _known(name: str) -> str:
    if name not in NAMES:
        raise ValueError(f"A ledger has no column {name!r}. Its columns are {', '.join(NAMES)}.")
    return name


def _is_trace(path) -> bool:
    return str(path).endswith(".trace.json")
