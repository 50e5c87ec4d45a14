"""What the time of a run is made of: how much is idle, and what the end had to wait for.

[Note: the critical path]
Walk back from the last end. What a rank does at a moment could start because something had ended
there: what it had computed before, or an operation it waited for. A collective could move once its
last rank had come, so from there the walk goes on at that rank; an operation that stood behind
another of its group goes on at that one. What nothing in the ledger explains is a step of lane
"idle". The steps touch: their seconds add up to the makespan.
"""

from dataclasses import dataclass

import numpy as np

from lib.draw.parts.words import has_rows
from lib.ledger import Ledger
from lib.ledger.columns import keys

_NOTHING = np.empty(0, np.int64), np.empty(0)
_MESSAGE = {"send": "message", "recv": "message"}


@dataclass(frozen=True)
class Bubble:
    """The part of a run in which ranks do not compute: of all, and of each rank."""

    share: float
    by_rank: dict[int, float]


@dataclass(frozen=True)
class Step:
    """A part of the critical path: what one rank did, in seconds from the ledger's first start."""

    rank: int
    lane: str  # "compute", "comm" (its moving part), or "idle"
    op: str
    start: float
    end: float


def bubble(ledger: Ledger) -> Bubble:
    """Return the share of makespan × ranks in which no compute row runs (GPipe's (p-1)/(m+p-1))."""
    has_rows(ledger, "bubble")
    shown = ledger.where(lane=["compute", "comm"])
    span = shown.makespan
    shares = {}
    for rank in ledger.ranks:
        start, end = _spans(shown.where(rank=rank, lane="compute"))
        until = np.maximum.accumulate(np.append(-np.inf, end))[:-1]
        busy = np.maximum(end - np.maximum(start, until), 0.0).sum()
        shares[rank] = 1.0 - float(busy) / span if span else 0.0
    return Bubble(sum(shares.values()) / len(shares), shares)


def _spans(ledger: Ledger) -> tuple[np.ndarray, np.ndarray]:
    order = np.argsort(ledger.column("start"), kind="stable")
    return ledger.column("start")[order], ledger.column("end")[order]


def critical_path(ledger: Ledger) -> list[Step]:
    """Return what the end of a run waited for since its first start. [Note: the critical path]"""
    has_rows(ledger, "critical path")
    first = float(ledger.column("start").min())
    walk = _Walk(ledger.where(lane=["compute", "comm", "wait"]), first)
    steps: list[Step] = []
    for step in reversed(walk.steps):  # neighbours that are one thing become one step
        last = steps[-1] if steps else None
        if last and (last.rank, last.lane, last.op) == (step.rank, step.lane, step.op):
            steps[-1] = Step(step.rank, step.lane, step.op, last.start, step.end)
        else:
            steps.append(step)
    return steps


class _Walk:
    """The walk back from the last end, over the columns of a ledger."""

    def __init__(self, ledger: Ledger, first: float):
        columns, self.first = ledger.columns, first
        self.start, self.end, self.arrived = (columns[n] for n in ("start", "end", "arrived"))
        self.rank, self.op = columns["rank"], columns["op"].tolist()
        self.lane, self.members = columns["lane"].tolist(), columns["members"].tolist()
        comm = columns["lane"].mask("comm".__eq__)
        self.zero = float(self.start[~columns["lane"].mask("wait".__eq__)].min())
        self.microbatch = columns["microbatch"]
        self.by_end = np.flatnonzero(
            columns["lane"].mask("compute".__eq__) & (self.microbatch >= 0)
        )
        self.by_end = self.by_end[np.argsort(self.end[self.by_end], kind="stable")]
        self.slack = 1e-9 * (float(self.end.max()) - self.zero)
        self._operations(columns, comm)
        self._finishers(columns, comm)
        self.steps: list[Step] = []
        shown = np.flatnonzero(~columns["lane"].mask("wait".__eq__))
        self._run(int(shown[self.end[shown].argmax()]))

    def _operations(self, columns, comm) -> None:
        """Which rows are of one operation, and behind which row each comm row stands."""
        ops = columns["op"]
        names = ops._replace(words=[_MESSAGE.get(word, word) for word in ops.words])
        same = {word: i for i, word in enumerate(dict.fromkeys(names.words))}
        codes = np.array([same[word] for word in names.words], np.int64)[ops.codes]
        self.what = keys([columns["group"], columns["members"], codes, columns["number"]])
        self.at = np.flatnonzero(comm)
        self.at = self.at[np.argsort(self.what[self.at], kind="stable")]
        self.known = self.what[self.at]
        message = columns["op"].mask(_MESSAGE.__contains__).astype(np.int64)
        lane = keys([self.rank, columns["group"], columns["members"], message])
        order = np.flatnonzero(comm)
        order = order[np.lexsort((self.end[order], self.start[order], lane[order]))]
        self.before = np.full(len(self.start), -1)
        follows = lane[order][1:] == lane[order][:-1]
        self.before[order[1:][follows]] = order[:-1][follows]

    def _finishers(self, columns, comm) -> None:
        """For each rank the rows that let it go on, by end, and what it computes, by start."""
        self.ended, self.computed = {}, {}
        wait = columns["lane"].mask("wait".__eq__)
        heard = set(zip(self.rank[comm].tolist(), self.what[comm].tolist()))
        sent = [i for i in np.flatnonzero(comm & columns["op"].mask("send".__eq__)).tolist()
                if (self.members[i][-1], self.what[i]) not in heard]  # fmt: skip
        arrives = {}
        for i in sent:  # predicted: only the sender has a row
            arrives.setdefault(self.members[i][-1], []).append(i)
        for rank in np.unique(self.rank).tolist():
            own = self.rank == rank
            rows = np.append(np.flatnonzero(own), arrives.get(rank, [])).astype(np.int64)
            kind = np.where(wait[rows], 1, np.where(comm[rows], 0, 2))  # of one end: compute last
            rows = rows[np.lexsort((kind, self.end[rows]))]
            self.ended[rank] = rows, self.end[rows]
            rows = np.flatnonzero(own & ~comm & ~wait)
            rows = rows[np.argsort(self.start[rows], kind="stable")]
            self.computed[rank] = rows, self.start[rows]

    def _run(self, row: int) -> None:
        rank, now, met, after = int(self.rank[row]), float(self.end[row]), set(), -1
        while now > self.zero + self.slack:
            row = self._running(rank, now)
            if row < 0:
                row = self._before(rank, now, met)
            if row < 0 or self.end[row] < now - self.slack:
                row = max(
                    row, self._handed(after, now), key=lambda i: self.end[i] if i >= 0 else -1
                )
            if row < 0:
                self._add(rank, "idle", "", self.zero, now)
                return
            rank, after = int(self.rank[row]) if self.lane[row] == "compute" else rank, row
            if self.end[row] < now - self.slack:
                self._add(rank, "idle", "", float(self.end[row]), now)
                now = float(self.end[row])
            if self.lane[row] == "compute":
                self._add(rank, "compute", self.op[row], float(self.start[row]), now)
                now = float(self.start[row])
            else:
                rank, now = self._through(row, rank, now, met)

    def _add(self, rank, lane, op, start, end) -> None:
        if end > start:
            self.steps.append(Step(rank, lane, op, start - self.first, end - self.first))

    def _running(self, rank: int, now: float) -> int:
        """The innermost compute row of a rank that runs at a moment; -1: none."""
        rows, starts = self.computed.get(rank, _NOTHING)
        place = int(np.searchsorted(starts, now - self.slack))
        inside = (
            i for i in rows[max(place - 8, 0) : place][::-1] if self.end[i] >= now - self.slack
        )
        return int(next(inside, -1))

    def _before(self, rank: int, now: float, met: set) -> int:
        """What ended last on a rank before a moment; -1: nothing did."""
        rows, ends = self.ended.get(rank, _NOTHING)
        place = int(np.searchsorted(ends, now + self.slack, "right"))
        for row in map(int, rows[:place][::-1]):
            if row not in met and (self.lane[row] == "compute" or self._partner(row, rank) >= 0):
                met.add(row)
                return row
        return -1

    def _handed(self, row: int, now: float) -> int:
        """Who computed the same microbatch until this moment: a message that took no time."""
        if row < 0 or self.microbatch[row] < 0:
            return -1
        low, high = np.searchsorted(self.end[self.by_end], (now - self.slack, now + self.slack))
        near = self.by_end[low : high + 1]
        same = near[self.microbatch[near] == self.microbatch[row]]
        return int(next((i for i in same if abs(self.end[i] - now) <= self.slack), -1))

    def _partner(self, row: int, rank: int) -> int:
        """The comm row that a wait row waits for; a comm row itself."""
        if self.lane[row] == "comm":
            return row
        return next((i for i in self._same(row) if self.rank[i] == rank), -1)

    def _same(self, row: int) -> list[int]:
        """The comm rows, on all ranks, of the operation of a row."""
        low, high = (
            np.searchsorted(self.known, self.what[row], side) for side in ("left", "right")
        )
        return self.at[low:high].tolist()

    def _through(self, row: int, rank: int, now: float, met: set) -> tuple[int, float]:
        """Go through an operation to the rank that it waited for; gives that rank and when."""
        row = self._partner(row, rank)
        while True:
            met.add(row)
            came = self.arrived[row]
            came = float(self.start[row] if np.isnan(came) else came)
            before = int(self.before[row])
            behind = before >= 0 and self.end[before] > came and self.end[before] < now
            begin = min(float(self.end[before]) if behind else came, now)
            self._add(int(self.rank[row]), "comm", self.op[row], begin, now)
            now = begin
            if not behind:
                break
            row = before
        last = [i for i in self._same(row) if abs(self.start[i] - came) <= self.slack]
        here = int(self.rank[row])
        ranks = [int(self.rank[i]) for i in last]
        return (here if here in ranks or not ranks else ranks[0]), now
