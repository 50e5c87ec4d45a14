"""Gather, compute and free of units on one clock: what is exposed, and what is held meanwhile.

A rank carries out the actions of lib/predict/sharded/units.py. Units compute for given seconds, and
collectives move in one lane, in the order in which they are launched:

    all_gather, reduce_scatter   (n - 1)·alpha + (n - 1)/n · bytes ÷ bandwidth

What computation does not cover is exposed: the time of the step less the seconds of all units. More
prefetch hides more gathers and holds more whole units at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lib.predict.collectives.formulas import time_of
from lib.predict.sharded.units import actions


class Bar(NamedTuple):
    """Says from when to when a unit computes or moves, in seconds; units count from 0."""

    kind: str  # "forward", "backward", "all_gather" or "reduce_scatter"
    unit: int
    start: float
    end: float


@dataclass(frozen=True)
class Played:
    """Holds the bars of a step, and (time, bytes of whole units, of whole gradients) over time."""

    bars: tuple[Bar, ...]
    held: tuple[tuple[float, int, int], ...]

    @property
    def end(self) -> float:
        """Return when the last reduce_scatter is over."""
        return max(bar.end for bar in self.bars)

    @property
    def computing(self) -> float:
        """Return the seconds of forward and backward."""
        return sum(bar.end - bar.start for bar in self.bars if "ward" in bar.kind)

    @property
    def exposed(self) -> float:
        """Return the seconds of the step in which nothing is computed."""
        return self.end - self.computing

    @property
    def peak(self) -> int:
        """Return the most bytes of whole units and gradients that are held at once."""
        return max(whole + gradients for _, whole, gradients in self.held)


def play_units(
    nbytes: Sequence[int], forward: Sequence[float], backward: Sequence[float], *,
    prefetch: int = 1, resharded: bool = True, ranks: int, alpha: float, bandwidth: float,
) -> Played:  # fmt: skip
    """Predict a step of units of `nbytes`, whole, which compute for these seconds each.

    `alpha` is the latency of each round of the ring, in s, and `bandwidth` is in bytes/s, one way.
    Raises ValueError unless each unit has two times.
    """
    if not nbytes or not len(nbytes) == len(forward) == len(backward):
        raise ValueError(
            f"There are {len(nbytes)} units, {len(forward)} times of forward and {len(backward)} "
            "of backward. Give at least one unit, and both times for each."
        )
    link = {"alpha": alpha, "beta": 1 / bandwidth}
    bars, held = [], [(0.0, 0, 0)]
    clock = free = 0.0
    ends = {}  # of the collective of each kind and unit

    def move(op: str, unit: int) -> None:
        nonlocal free
        start = max(free, clock)
        free = ends[op, unit] = start + time_of(op, ranks, nbytes[unit], **link)
        bars.append(Bar(op, unit, start, free))

    def hold(whole: int, gradients: int) -> None:
        _, before, others = held[-1]
        held.append((clock, before + whole, others + gradients))

    for kind, number in actions(len(nbytes), prefetch, resharded=resharded):
        unit = number - 1
        if unit < 0:  # no root
            continue
        if kind == "gather":
            move("all_gather", unit)
            hold(nbytes[unit], 0)
        elif kind == "wait":
            clock = max(clock, ends["all_gather", unit])
        elif kind == "reduce":
            move("reduce_scatter", unit)
        elif kind == "settle":
            clock = max(clock, ends["reduce_scatter", unit])
            hold(0, -nbytes[unit])
        elif kind == "free":
            hold(-nbytes[unit], 0)
        elif kind in ("forward", "backward"):
            if kind == "backward":
                hold(0, nbytes[unit])
            start, clock = clock, clock + (forward if kind == "forward" else backward)[unit]
            bars.append(Bar(kind, unit, start, clock))
    return Played(tuple(bars), tuple(held))
