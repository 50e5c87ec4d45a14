"""Buckets in flight: when each all-reduce of a backward starts and ends, and how much of it shows.

Backward makes one gradient after the other. A bucket is launched when its last gradient is there;
the communication lane moves one bucket at a time. What is still moving when backward is over is
exposed: nobody can step before it is there.

    t_start = max(t_full, t_end of the bucket before)    exposed = t_end of the last - t_backward

Source: Li et al. 2020, "PyTorch Distributed" (arXiv 2006.15704), section 3.2.3; its section
5.2 turns the bucket size on real GPUs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lib.ledger import Ledger, Row
from lib.predict.buckets import assign
from lib.predict.traffic import time_of


@dataclass(frozen=True, slots=True)
class Flight:
    """One bucket: which gradients (positions in the order they are ready), and when, in seconds."""

    inside: tuple[int, ...]
    bytes: int
    full: float  # its last gradient is there, and it is launched
    start: float  # the lane is free, and it moves
    end: float

    @property
    def seconds(self) -> float:
        """How long it moves."""
        return self.end - self.start


@dataclass(frozen=True)
class Flights:
    """The all-reduces of one backward: `ready[i]` is when gradient i is there."""

    ready: tuple[float, ...]
    flights: tuple[Flight, ...]
    ranks: int

    @property
    def backward(self) -> float:
        """When backward is over."""
        return self.ready[-1]

    @property
    def end(self) -> float:
        """When backward is over and every bucket has arrived."""
        return max(self.backward, self.flights[-1].end)

    @property
    def moving(self) -> float:
        """Seconds of communication, hidden or not."""
        return sum(flight.seconds for flight in self.flights)

    @property
    def exposed(self) -> float:
        """Seconds of communication after backward is over."""
        return self.end - self.backward

    @property
    def ledger(self) -> Ledger:
        """The same as the rows that each rank would record."""
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
    """Predict a backward whose gradients come in this order, each `seconds` after the one before.

    `limits` as for `assign`. A bucket moves for 2(n-1)·alpha + 2(n-1)/n·bytes ÷ bandwidth seconds:
    alpha s for each round of the ring, bandwidth in bytes/s, one way.
    """
    if not nbytes or len(nbytes) != len(seconds):
        raise ValueError(f"{len(nbytes)} gradients and {len(seconds)} times: give one for each.")
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
    """Find which of `choices` (limits) ends first; of equals that with the fewest buckets.

    `network` is ranks, alpha and bandwidth, as for `fly`.
    """
    runs = [fly(nbytes, seconds, limits, **network) for limits in choices]
    good = min(run.end for run in runs) * (1 + 1e-9)  # closer than that is equal
    equals = [(len(run.flights), n) for n, run in enumerate(runs) if run.end <= good]
    return min(equals)[1]
