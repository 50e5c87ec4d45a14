"""Overlap of buckets with backward: when each all-reduce starts and ends, and how much is exposed.

Backward computes one gradient after the other. A bucket is launched when its last gradient is
ready, and the communication lane moves one bucket at a time. Communication that continues after
backward has ended is exposed, because the optimizer cannot step before it is over.

    t_start = max(t_full, t_end of the bucket before)    exposed = t_end of the last - t_backward

Source: Li et al. 2020, "PyTorch Distributed" (arXiv 2006.15704), section 3.2.3; its section 5.2
varies the bucket size on real GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lib.ledger import Ledger, Row
from lib.predict.collectives.formulas import time_of
from lib.predict.data.buckets import assign


@dataclass(frozen=True, slots=True)
class Flight:
    """Describes the all-reduce of one bucket: its gradients, its bytes and its times in seconds.

    `inside` are the positions of its gradients in the order in which they are ready.
    """

    inside: tuple[int, ...]
    bytes: int
    full: float  # when its last gradient is ready and it is launched
    start: float  # when the lane is free and it begins to move
    end: float

    @property
    def seconds(self) -> float:
        """Return how long the bucket moves."""
        return self.end - self.start


@dataclass(frozen=True)
class Flights:
    """Holds the all-reduces of one backward; `ready[i]` is when gradient i has been computed."""

    ready: tuple[float, ...]
    flights: tuple[Flight, ...]
    ranks: int

    @property
    def backward(self) -> float:
        """Return when backward ends."""
        return self.ready[-1]

    @property
    def end(self) -> float:
        """Return when backward has ended and every bucket has arrived."""
        return max(self.backward, self.flights[-1].end)

    @property
    def moving(self) -> float:
        """Return the seconds of communication, hidden or exposed."""
        return sum(flight.seconds for flight in self.flights)

    @property
    def exposed(self) -> float:
        """Return the seconds of communication after the end of backward."""
        return self.end - self.backward

    @property
    def ledger(self) -> Ledger:
        """Return the rows that each rank would record."""
        rows, everyone, zero = [], tuple(range(self.ranks)), (0.0, *self.ready)
        for rank in everyone:
            for start, end in zip(zero, self.ready):
                rows.append(Row(rank, "compute", "backward", start, end))
            clock = self.backward
            for n, flight in enumerate(self.flights):
                what = {"group": "world", "members": everyone, "number": n, "bytes": flight.bytes}
                times = flight.full, flight.end
                rows.append(Row(rank, "comm", "all_reduce", *times, arrived=flight.full, **what))
                if flight.end > clock:
                    rows.append(Row(rank, "wait", "all_reduce", clock, flight.end, **what))
                    clock = flight.end
        return Ledger(rows, source="predicted")


def fly(
    nbytes: Sequence[int], seconds: Sequence[float], limits: Sequence[int],
    *, ranks: int, alpha: float, bandwidth: float,
) -> Flights:  # fmt: skip
    """Predict a backward that computes gradients in this order, each in its `seconds`.

    `limits` are those of `assign`. A bucket moves for 2(n-1)·alpha + 2(n-1)/n·bytes ÷ bandwidth
    seconds: alpha is the latency of each round of the ring, in s, and bandwidth is in bytes/s, one
    way. Raises ValueError unless there is at least one gradient and a time for each.
    """
    if not nbytes or len(nbytes) != len(seconds):
        raise ValueError(
            f"There are {len(nbytes)} gradients and {len(seconds)} times. Give at least one "
            "gradient, and one time for each."
        )
    ready, clock = [], 0.0
    for time in seconds:
        clock += time
        ready.append(clock)
    flights, free = [], 0.0
    for inside in assign(nbytes, limits):
        size, full = sum(nbytes[n] for n in inside), ready[inside[-1]]
        start = max(free, full)
        free = start + time_of("all_reduce", ranks, size, alpha=alpha, beta=1 / bandwidth)
        flights.append(Flight(tuple(inside), size, full, start, free))
    return Flights(tuple(ready), tuple(flights), ranks)


def best(
    nbytes: Sequence[int], seconds: Sequence[float], choices: Sequence[Sequence[int]], **network
) -> int:
    """Return the index of the limits in `choices` that end first, with the fewest buckets of these.

    `network` is ranks, alpha and bandwidth, as for `fly`.
    """
    runs = [fly(nbytes, seconds, limits, **network) for limits in choices]
    good = min(run.end for run in runs) * (1 + 1e-9)  # a smaller difference is rounding
    equals = [(len(run.flights), n) for n, run in enumerate(runs) if run.end <= good]
    return min(equals)[1]
