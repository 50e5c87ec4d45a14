"""Two runs side by side: which rows are the same operation, and where they differ.

[Note: like with like]
Rows have one name where rank, lane and operation agree, and stage and microbatch where both runs
tell them. Where a name occurs equally often in both runs, its n-th row here is its n-th row there.
Else a span that waits have cut into pieces is one operation again, if the other run has it whole.
What a rank still did more often in one run than in the other has no like there: the eight products
of a forward pass are not the 23 of a whole step. It is named, and not compared.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lib.ledger import Ledger
from lib.ledger.columns import Words, join, keys

_LETTERS = {"F": "forward", "B": "backward", "I": "backward for input", "W": "backward for weights"}


class Uneven(NamedTuple):
    """An operation that a rank did `here` times in one run and `there` times in the other."""

    rank: int
    op: str
    here: int
    there: int


@dataclass(frozen=True)
class Difference:
    """How much longer (s) one run takes than another, and the operation that differs most.

    `pairs` holds, for each row of the other run, the row of this one that is the same operation,
    or -1. `worst` is (rank, op, microbatch or -1), and `seconds` how much longer it takes here, of
    which `waiting`, than the `length` that it has there; None and 0.0 where no operation of one run
    has its like in the other.
    """

    makespan: float
    worst: tuple[int, str, int] | None
    seconds: float
    waiting: float
    length: float
    pairs: np.ndarray
    missing: tuple[str, ...]  # operations that only the other run has, on ranks that both have
    added: tuple[str, ...]  # operations that only this run has
    uneven: tuple[Uneven, ...]  # operations that both have, in numbers that differ: not compared


class _Rows(NamedTuple):
    """What both runs computed and communicated, one after the other: the first `here` are ours."""

    here: int
    name: np.ndarray  # equal where the names are
    precise: bool  # names tell the microbatch
    rank: np.ndarray
    op: Words
    computed: np.ndarray
    start: np.ndarray
    seconds: np.ndarray
    waiting: np.ndarray

    def counts(self) -> np.ndarray:
        """[2, names]: how often each name occurs here and there."""
        size = int(self.name.max(initial=-1)) + 1
        return np.stack([np.bincount(part, minlength=size) for part in self.halves(self.name)])

    def halves(self, column) -> tuple:
        """Return a column of this run, and of the other."""
        return column[: self.here], column[self.here :]


def compare(ledger: Ledger, over: Ledger) -> Difference:
    """Compare what ranks computed and communicated in `ledger` with the rows of `over`."""
    shown = [np.flatnonzero(_shown(one)) for one in (ledger, over)]
    rows = _rows(ledger, over, shown)
    same, alone = _operations(rows)
    # 1. the row here for each row there
    count = int(same.max(initial=-1)) + 1
    first = np.full(count + 1, -1)  # the last one for those without their like
    first[rows.halves(same)[0][::-1]] = shown[0][::-1]
    first[-1] = -1
    pairs = np.full(len(over), -1)
    pairs[shown[1]] = np.where(rows.halves(alone)[1], first[rows.halves(same)[1]], -1)
    # 2. what differs most
    worst, most, waits, length = None, 0.0, 0.0, 0.0
    if count:
        sign = np.where(np.arange(len(same)) < rows.here, 1.0, -1.0)[same >= 0]
        longer, wait = (
            np.bincount(same[same >= 0], sign * column[same >= 0], count)
            for column in (rows.seconds, rows.waiting)
        )
        at = int(abs(longer).argmax())
        row = ledger[int(first[at])]
        by_microbatch = rows.precise or alone[np.flatnonzero(same == at)[0]]
        worst = (row.rank, row.op, row.microbatch if by_microbatch else -1)
        most, waits = float(longer[at]), float(wait[at])
        of_worst = (same == at) & (np.arange(len(same)) >= rows.here)
        length = float(rows.seconds[of_worst].sum())
    # 3. what has no like
    missing, added = (_only(rows, ours) for ours in (False, True))
    return Difference(ledger.makespan - over.makespan, worst, most, waits, length, pairs, missing,
                      added, _uneven(rows, same))  # fmt: skip


def _rows(ledger: Ledger, over: Ledger, shown: list[np.ndarray]) -> _Rows:
    parts = [one[rows].columns for one, rows in zip((ledger, over), shown)]
    names = ["rank", "lane", "op"]
    if all((part["microbatch"] >= 0).any() for part in parts):
        names += ["microbatch"]
        names += ["stage"] * all((part["stage"] >= 0).any() for part in parts)
    columns = [join([_plain(part["op"]) if name == "op" else part[name] for part in parts])
               for name in names]  # fmt: skip
    columns[2] = _merged(columns[2])
    name = np.unique(keys(columns), return_inverse=True)[1]
    numbers = [
        np.concatenate([one[rows].column(name) for one, rows in zip((ledger, over), shown)])
        for name in ("start", "seconds", "waiting")
    ]
    computed = columns[1].mask("compute".__eq__)
    return _Rows(len(shown[0]), name, len(names) > 3, columns[0], columns[2], computed, *numbers)


def _operations(rows: _Rows) -> tuple[np.ndarray, np.ndarray]:
    """Number the operations that both runs have; -1 for a row that has no like.

    The second array is True for rows that are compared one by one, not as pieces of a span.
    """
    counts = rows.counts()
    even = (counts[0] == counts[1])[rows.name]
    place = np.concatenate(
        [_nth(*part) for part in zip(*map(rows.halves, (rows.name, rows.start)))]
    )
    span = np.concatenate([_spans(*part) for part in zip(
        *map(rows.halves, (rows.name, rows.rank, rows.computed, rows.start)))])  # fmt: skip
    # Pieces are compared where both runs have as many spans, and one of the two has it whole.
    width = len(rows.name) + 1
    spans, which = np.unique(rows.name * width + span, return_inverse=True)
    pieces = np.stack([np.bincount(part, minlength=len(spans)) for part in rows.halves(which)])
    cut = np.ones(counts.shape[1], bool)
    cut[spans[pieces.min(0) != 1] // width] = False
    same = np.where(even, place, np.where(cut[rows.name], span, -1))
    found = np.where(same < 0, -1, rows.name * width + same)
    known, number = np.unique(found, return_inverse=True)
    return number - (known[:1] == -1).sum(), even


def _only(rows: _Rows, ours: bool) -> tuple[str, ...]:
    """Names that one run alone has, on ranks that the other one has too."""
    codes, ranks = rows.halves(rows.op.codes), rows.halves(rows.rank)
    this, other = (0, 1) if ours else (1, 0)
    there = codes[this][np.isin(ranks[this], ranks[other])]
    return tuple(sorted(rows.op.words[c] for c in set(there.tolist()) - set(codes[other].tolist())))


def _uneven(rows: _Rows, same: np.ndarray) -> tuple[Uneven, ...]:
    """Operations that both runs have and that were not compared; of ranks alike, the first."""
    counts, found = rows.counts(), {}
    for row in np.flatnonzero(same < 0).tolist():
        here, there = counts[:, rows.name[row]].tolist()
        if here and there:
            op = rows.op.words[rows.op.codes[row]]
            found.setdefault(op, Uneven(int(rows.rank[row]), op, here, there))
    return tuple(found.values())


def _shown(ledger: Ledger) -> np.ndarray:
    return ledger.columns["lane"].mask(("compute", "comm").__contains__)


def _plain(ops: Words) -> Words:
    return ops._replace(words=[_LETTERS.get(word, word) for word in ops.words])


def _merged(ops: Words) -> Words:
    """Words of which two may be equal, each once."""
    table = {word: i for i, word in enumerate(dict.fromkeys(ops.words))}
    codes = np.array([table[word] for word in ops.words], np.int32)
    return Words(list(table), codes[ops.codes])


def _nth(name: np.ndarray, start: np.ndarray) -> np.ndarray:
    """How many rows of the same name start before each one."""
    order = np.lexsort((start, name))
    fresh = np.flatnonzero(np.diff(name[order], prepend=-1))
    lengths = np.diff(np.append(fresh, len(name)))
    nth = np.empty(len(name), np.int64)
    nth[order] = np.arange(len(name)) - np.repeat(fresh, lengths)
    return nth


def _spans(name, rank, computed, start) -> np.ndarray:
    """How many spans of the same name lie before each row: pieces with nothing between are one.

    Only what is computed can be cut; each communication is a span of its own.
    """
    order = np.lexsort((start, computed, rank))
    fresh = np.ones(len(name), bool)
    fresh[1:] = np.diff(name[order]) != 0
    fresh[~computed[order]] = True
    opens = np.zeros(len(name), np.int64)
    opens[order] = fresh
    # The number of a span is how many of its name were opened up to here, less one.
    by_name = np.lexsort((start, name))
    total = np.cumsum(opens[by_name])
    before = np.r_[0, total][np.searchsorted(name[by_name], name[by_name])]
    number = np.empty(len(name), np.int64)
    number[by_name] = total - before - 1
    return number
