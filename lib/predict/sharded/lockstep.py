"""A part of the predicted steps: ranks that all do the same, each on its own clock, as ledger rows.

Collectives of one group run in one lane, in the order in which they are launched. Each starts when
its last rank has launched it and the lane is free.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lib.ledger import Ledger, Row
from lib.predict.operations import Operation
from lib.predict.provenance import of_prediction


class UnderWay(NamedTuple):
    """Says when a collective that was launched ends, and the columns that its rows share."""

    op: str
    end: float
    what: dict


class Lockstep:
    """Collects the rows of ranks 0 to `ranks` - 1, with a clock for each, in seconds."""

    def __init__(self, ranks: int, speeds):
        self.speeds, self.rows = speeds, []
        self.clock = [0.0] * ranks
        self.free: dict[tuple, float] = {}  # when the lane of a group is free
        self.count: dict[tuple, int] = {}
        self.alive: list[dict[str, int]] = [{} for _ in range(ranks)]  # bytes by kind
        self.moves = 0

    def compute(self, operations: Sequence[Operation]) -> None:
        """Run one operation on each rank; the operations have one name and sizes of their own."""
        for rank, op in enumerate(operations):
            start = self.clock[rank]
            self.clock[rank] = start + self.speeds.compute(op.flop, op.bytes)
            end = self.clock[rank]
            self.rows.append(Row(rank, "compute", op.name, start, end, bytes=op.bytes))

    def launch(self, op: str, nbytes: int, groups: Sequence[tuple[int, ...]], name: str = "world"):
        """Launch a collective in each of `groups`; return what `wait` needs, by rank."""
        flights = {}
        for members in groups:
            lane = name, *members  # two groups of the same ranks have a lane each
            number = self.count[lane] = self.count.get(lane, -1) + 1
            arrived = max(self.clock[rank] for rank in members)
            start = max(self.free.get(lane, 0.0), arrived)
            end = self.free[lane] = start + self.speeds.moving(op, len(members), nbytes)
            what = {"group": name, "members": members, "number": number, "bytes": nbytes}
            for rank in members:
                launched = self.clock[rank]
                self.rows.append(Row(rank, "comm", op, launched, end, arrived=arrived, **what))
                flights[rank] = UnderWay(op, end, what)
        return flights

    def wait(self, flights: dict[int, UnderWay]) -> None:
        """Let each rank wait until its collective has ended."""
        for rank, (op, end, what) in flights.items():
            if end > self.clock[rank]:
                self.rows.append(Row(rank, "wait", op, self.clock[rank], end, **what))
                self.clock[rank] = end

    def holds(self, kind: str, nbytes: int) -> None:
        """Note how many bytes of a kind each rank holds from now on."""
        for rank, now in enumerate(self.clock):
            self.rows.append(Row(rank, "memory", kind, now, now, bytes=nbytes))

    def change(self, rank: int, kind: str, nbytes: int, note: str = "", number: int = -1) -> None:
        """Note that a rank holds so many bytes of a kind more from now on, or fewer."""
        if nbytes:
            alive, now = self.alive[rank], self.clock[rank]
            alive[kind] = alive.get(kind, 0) + nbytes
            held = {"bytes": alive[kind], "note": note, "number": number}
            self.rows.append(Row(rank, "memory", kind, now, now, **held))

    def move(self, rank: int, before: str, after: str, nbytes: int) -> None:
        """Note that bytes are of another kind from now on: two rows of one number, as recorded."""
        self.change(rank, before, -nbytes, number=self.moves)
        self.change(rank, after, nbytes, number=self.moves)
        self.moves += 1

    def ledger(self) -> Ledger:
        """Return the rows as a predicted ledger."""
        return Ledger(self.rows, source="predicted", meta=of_prediction(self.speeds))
