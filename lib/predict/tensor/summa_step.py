"""The time of a linear layer on a square of ranks, with and without overlap, from its shape alone.

    x [M/row, I/column] · W [I/row, O/column] -> y;  dW = xᵀ·dy;  dx = dy·Wᵀ, as SUMMA

All ranks do the same at the same time, so one rank's clock says it all. Collectives run beside the
products. A GPU has one bandwidth in total, so the collectives of both axes travel in turn over one
link. With `own_links` each axis has a link of that bandwidth to itself, and only the collectives of
one axis take turns. Slow motion does this, because there each group has a lane of its own
(lib/ranks/slow/comm_lanes.py). Where each row of ranks is a host, x and dx travel inside of it, and
W and dW over the link `between` hosts. In each product a step's tiles are needed before it is
multiplied. With overlap they travel during the step before, and a product of q equal steps takes,
with m for the product of a step and b for its broadcasts, which is the sum of their times on one
link and the longer of them on two,

    without overlap  q·(b + m)            with overlap  b + (q - 1)·max(b, m) + m

Source of the method: van de Geijn and Watts 1997, Concurrency: Practice and Experience 9(4).
"""

from typing import NamedTuple

from lib.ledger import Ledger, Row
from lib.predict.arguments import equal_share, whole
from lib.predict.provenance import of_prediction


class Event(NamedTuple):
    """Describes what a rank does: lane, name, axis of a collective, start and end in s, bytes."""

    lane: str
    op: str
    axis: str
    start: float
    end: float
    bytes: int
    number: int = -1  # of this axis's collectives


class Summa:
    """The clock of a rank that computes a linear layer with SUMMA, and the events so far."""

    def __init__(
        self, rows, inputs, outputs, side, speeds, overlap=True, itemsize=4, own_links=False,
        depth=1, between=None,
    ):  # fmt: skip
        q = self.side = whole(side, "The side of a grid")
        self.ranks = {"row": q, "column": q, "depth": whole(depth, "The depth of a grid")}
        names = {"rows": rows, "inputs": inputs, "outputs": outputs}
        self.tile = [
            equal_share(count, q, f"The product has {{}} {name}") for name, count in names.items()
        ]
        self.speeds, self.overlap, self.itemsize = speeds, overlap, whole(itemsize, "itemsize")
        self.speeds_of = {"row": between or speeds}  # the other axes have the link of `speeds`
        self.clock, self.events = 0.0, []
        has_own = own_links or between is not None
        self.link_of = {axis: axis if has_own else "shared" for axis in self.ranks}
        self.free = dict.fromkeys(self.link_of.values(), 0.0)  # when each link is free, in s
        self.count = dict.fromkeys(self.link_of, 0)

    def forward(self, bias: bool = True) -> float:
        """Multiply x·W and add the bias; return the seconds so far."""
        m, k, n = self.tile
        self.product((m, k, n), sends=[("column", m * k), ("row", k * n)])
        if bias:
            self.compute("add_", 0, 2 * m * n + n)
        return self.clock

    def backward(self, bias: bool = True) -> float:
        """Sum the bias's gradient, multiply xᵀ·dy and dy·Wᵀ; return the seconds so far.

        Squares above one another sum dW over depth while dx is computed.
        """
        m, k, n = self.tile
        if bias:
            self.compute("sum", 0, m * n + n)
            sums = self.launch("all_reduce", "row", n)
        self.product((k, m, n), sends=[("column", m * k)], sums=("row", k * n))
        stacked = self.ranks["depth"] > 1 and self.launch("all_reduce", "depth", k * n)
        self.product((m, n, k), sends=[("row", k * n)], sums=("column", m * k))
        if stacked:
            self.wait(stacked)
        if bias:
            self.wait(sums)
        return self.clock

    def product(self, sizes, sends, sums=None) -> None:
        """Take the q steps of a product of tiles [m, k]·[k, n]: send, multiply, add or sum."""
        m, k, n = sizes
        start = lambda: [self.launch("broadcast", axis, numel) for axis, numel in sends]
        flights, pending = start(), []
        for step in range(self.side):
            for flight in flights:
                self.wait(flight)
            more = step + 1 < self.side
            flights = start() if self.overlap and more else []
            adds = bool(step) and sums is None  # to what the steps before have made
            numbers = m * k + k * n + (1 + adds) * m * n
            self.compute("addmm_" if adds else "mm", 2 * m * k * n, numbers)
            if sums is not None:
                for flight in pending:
                    self.wait(flight)
                pending = [self.launch("reduce", *sums)]
                if not self.overlap:
                    self.wait(pending.pop())
            if not self.overlap and more:
                flights = start()
        for flight in pending:
            self.wait(flight)

    def compute(self, name: str, flop: int, numbers: int) -> None:
        """Run an operation that reads and writes so many numbers."""
        nbytes, start = numbers * self.itemsize, self.clock
        self.clock += self.speeds.compute(flop, nbytes)
        self.events.append(Event("compute", name, "", start, self.clock, nbytes))

    def launch(self, op: str, axis: str, numel: int) -> Event:
        """Launch a collective along an axis; return what `wait` needs."""
        nbytes = numel * self.itemsize
        link = self.link_of[axis]
        start = max(self.clock, self.free[link])
        end = self.free[link] = start + self._moving(op, axis, nbytes)
        self.events.append(Event("comm", op, axis, self.clock, end, nbytes, self.count[axis]))
        self.count[axis] += 1
        return self.events[-1]

    def _moving(self, op: str, axis: str, nbytes: int) -> float:
        speeds = self.speeds_of.get(axis, self.speeds)
        return speeds.moving(op, self.ranks[axis], nbytes)

    def wait(self, flight: Event) -> None:
        """Wait until a collective has ended."""
        if flight.end > self.clock:
            self.events.append(flight._replace(lane="wait", start=self.clock))
            self.clock = flight.end


def summa_step(
    rows: int, inputs: int, outputs: int, side: int, speeds, *, overlap: bool = True,
    bias: bool = True, itemsize: int = 4, own_links: bool = False,
) -> Ledger:  # fmt: skip
    """Predict forward and backward of a linear layer on side × side ranks, as rows of a ledger.

    With `own_links` each axis has a link to itself, as in slow motion; without it both share one.
    Raises ValueError where a size does not divide by the side of the grid.
    """
    play = Summa(rows, inputs, outputs, side, speeds, overlap, itemsize, own_links)
    play.forward(bias)
    play.backward(bias)
    ledger_rows = []
    for rank in range(side * side):
        i, j = divmod(rank, side)
        members = {
            "row": tuple(range(j, side * side, side)),
            "column": tuple(range(i * side, (i + 1) * side)),
        }
        for event in play.events:
            lane, op, axis, start, end, nbytes, number = event
            more = {"arrived": start} if lane == "comm" else {}
            if axis:
                more |= {"group": axis, "members": members[axis], "number": number}
            ledger_rows.append(Row(rank, lane, op, start, end, bytes=nbytes, **more))
    return Ledger(ledger_rows, source="predicted", meta=of_prediction(speeds))
