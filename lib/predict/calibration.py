"""What `calibrate` has measured on this machine, as a device and a link for every prediction.

[Note: an operation]
An operation takes an overhead (Python, autograd, the dispatcher) and then the longer of two times,
that of its arithmetic and that of its memory traffic. Both are measured at several sizes, with
operands that are not in the cache, as in a training step; between two sizes the time is a straight
line. A processor pays the overhead first, so the two add up. A GPU is given its next operation
while it computes the last one, so there the longer of the two counts. All ranks are measured while
they compute at once, because they share caches, memory and cores.

[Note: a collective]
A collective of n ranks takes t = latency + bytes ÷ bandwidth, where the bytes are those of its
buffer. The line is fitted through the medians of several sweeps over all sizes (`formulas.fit`).
Each sweep is also fitted alone; the band of a latency or a bandwidth is the range of these fits.
`Fit.worst` is the largest relative distance of a median from the line.

[Note: overlap]
Predictions let communication and computation run side by side. Ranks on GPUs do that. On CPU ranks
the cores that compute also carry the messages, so `hidden` says which share of an all_reduce was
hidden behind matrix products of the same length, and `overlapped` reckons with it.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from lib.predict.arguments import real
from lib.predict.collectives.formulas import Fit, collective, fit, time_of

NAME = "this machine"


@dataclass(frozen=True)
class Curve:
    """Holds the seconds of an operation at several sizes; between two sizes it is straight."""

    sizes: tuple[float, ...]
    seconds: tuple[float, ...]

    def at(self, size: float) -> float:
        """Return the seconds at `size`; beyond the largest size, the rate is that of the last."""
        if size >= self.sizes[-1]:
            return self.seconds[-1] * size / self.sizes[-1]
        corners = [(0.0, 0.0), *zip(self.sizes, self.seconds)]
        (low, before), (high, after) = next(pair for pair in pairwise(corners) if size < pair[1][0])
        return before + (after - before) * (size - low) / (high - low)

    @property
    def best(self) -> float:
        """Return the largest rate, size ÷ seconds, of the three largest sizes."""
        return max(size / time for size, time in zip(self.sizes[-3:], self.seconds[-3:]) if time)


class Band(NamedTuple):
    """Holds a fitted value between the smallest and the largest of the repeated fits."""

    low: float
    value: float
    high: float


@dataclass(frozen=True)
class MeasuredSweep:
    """Holds the times of one collective over many sizes: `rounds[k][i]` is sweep k at size i."""

    op: str
    ranks: int
    bytes: tuple[int, ...]
    rounds: tuple[tuple[float, ...], ...]

    @property
    def seconds(self) -> tuple[float, ...]:
        """Return the median time at each size."""
        return tuple(map(median, zip(*self.rounds)))

    @cached_property
    def fit(self) -> Fit:
        """Return the line through the medians."""
        return fit(self.bytes, self.seconds)

    @property
    def latency(self) -> Band:
        """Return the seconds of the smallest message, with their band."""
        return self._band([line.alpha for line in self._lines], self.fit.alpha)

    @property
    def bandwidth(self) -> Band:
        """Return the buffer bytes in each second, with their band; infinite without a slope."""
        lines = [1 / line.beta if line.beta else float("inf") for line in (*self._lines, self.fit)]
        return self._band(lines[:-1], lines[-1])

    @cached_property
    def _lines(self) -> list[Fit]:
        return [fit(self.bytes, times) for times in self.rounds]

    def _band(self, values: list[float], value: float) -> Band:
        return Band(min(*values, value), value, max(*values, value))


@dataclass(frozen=True, repr=False)
class Calibration:
    """Describes this machine as it was measured; it is a device and a link for every prediction.

    `facts` are what the figures depend on: the machine, its GPUs, the number of ranks, their device
    and backend, the version of torch, the threads of each rank. `products` has a curve of seconds
    by FLOP for each number format, `traffic` one of seconds by bytes, both without the `overhead`.
    """

    facts: dict
    date: str
    took: float  # seconds
    memory_bytes: float
    overhead: float  # seconds of an operation of a training step beside its arithmetic
    products: dict[str, Curve]
    traffic: Curve
    hidden: float  # the share of communication that hides behind computation of the same length
    sweeps: tuple[MeasuredSweep, ...]

    @property
    def name(self) -> str:
        """Return the name by which `hardware.gpu`, `hardware.link` and SlowMotion find it."""
        return f"{NAME}, {counted(self.facts['ranks'])}"

    gpu = link = name  # what captions call the device and the link
    dtype = "fp32"  # of `compute`, unless it is told otherwise

    @property
    def alpha(self) -> float | None:
        """Return the latency of each round of a ring's all_reduce, in s; None for one rank."""
        return self.ring()[0] if self.sweeps else None

    @property
    def bandwidth(self) -> float | None:
        """Return the bytes that a rank sends in each second of it; None for one rank."""
        return self.ring()[1] if self.sweeps else None

    def compute(self, flop: float, nbytes: float, dtype: str = "fp32") -> float:
        """Return the seconds of one operation with so many FLOP that moves so many bytes."""
        if dtype not in self.products:
            known = ", ".join(self.products)
            raise ValueError(f"This machine was not measured in {dtype!r}, only in {known}.")
        flop, nbytes = real(flop, "flop"), real(nbytes, "bytes")
        if not flop and not nbytes:
            return 0.0
        longer = max(self.products[dtype].at(flop), self.traffic.at(nbytes))
        on_cpu = self.facts["device"] == "cpu"
        return self.overhead + longer if on_cpu else max(self.overhead, longer)

    def moving(self, op: str, ranks: int, nbytes: float) -> float:
        """Return the seconds of one collective or message among `ranks`.

        A number of ranks that was not measured is scaled from the nearest that was, by the rounds
        and the sent bytes of a ring. reduce, scatter and gather were not measured: they count as
        rings over the link of an all_reduce.
        """
        counts = collective(op, ranks, nbytes)
        if not counts.rounds:
            return 0.0
        if op == "barrier":
            op, nbytes = "all_reduce", 0
        elif op == "recv":
            op = "send"
        if not any(sweep.op == op for sweep in self.sweeps):
            alpha, bandwidth = self.ring("all_reduce", ranks)
            return time_of(op, ranks, nbytes, alpha=alpha, beta=1 / bandwidth)
        sweep = self.sweep(op, ranks)
        if sweep.ranks == ranks or op == "send":
            return sweep.fit.seconds(nbytes)
        alpha, bandwidth = self.ring(op, sweep.ranks)
        return time_of(op, ranks, nbytes, alpha=alpha, beta=1 / bandwidth)

    def overlapped(self, apart: float, together: float) -> float:
        """Return the seconds of a step between no overlap at all and full overlap.

        `apart` are the seconds of the step predicted without overlap, `together` those with it. On
        CPU ranks the same cores compute and communicate, so that little or nothing is hidden.
        """
        return apart - self.hidden * (apart - together)

    def sweep(self, op: str = "all_reduce", ranks: int | None = None) -> MeasuredSweep:
        """Return what was measured of `op`, for `ranks` or the nearest number that was measured."""
        ranks = self.facts["ranks"] if ranks is None else ranks
        of_this_op = [sweep for sweep in self.sweeps if sweep.op == op]
        if not of_this_op:
            known = ", ".join(dict.fromkeys(sweep.op for sweep in self.sweeps)) or "no collective"
            raise ValueError(f"This calibration has no {op!r}: it measured {known}.")
        return min(of_this_op, key=lambda sweep: (abs(sweep.ranks - ranks), sweep.ranks))

    def ring(self, op: str = "all_reduce", ranks: int | None = None) -> tuple[float, float]:
        """Return latency and bandwidth of a link on which a ring takes as long as was measured.

        The latency is that of one of the ring's rounds, in s; the bandwidth counts the bytes that a
        rank sends, in bytes/s. These are the parameters of `formulas.time_of`.
        """
        sweep = self.sweep(op, ranks)
        counts, line = collective(op, sweep.ranks, 1), sweep.fit
        rate = counts.factor / line.beta if line.beta else float("inf")
        return line.alpha / counts.rounds, rate

    def points(self, *ops: str) -> dict[str, tuple]:
        """Return the measured times for `lib.draw.curve`: {"all_reduce, 2 ranks": (bytes, s)}."""
        return {_title(s): (s.bytes, s.seconds) for s in self._of(ops)}

    def fits(self, *ops: str) -> dict[str, Fit]:
        """Return the fitted lines under the names of `points`."""
        return {_title(s): s.fit for s in self._of(ops)}

    def _of(self, ops) -> list[MeasuredSweep]:
        for op in ops:
            self.sweep(op)  # raises ValueError where it was not measured
        return [sweep for sweep in self.sweeps if not ops or sweep.op in ops]

    def __repr__(self) -> str:
        """Say what was measured, without any time: the same in every run on the same World."""
        ops = ", ".join(dict.fromkeys(sweep.op for sweep in self.sweeps))
        sizes = " and ".join(str(n) for n in sorted({sweep.ranks for sweep in self.sweeps}))
        collectives = f"{ops} of {sizes} ranks" if ops else "no collectives"
        place = "the CPU" if self.facts["device"] == "cpu" else self.facts["device"]
        return (
            f"Calibration of {self.name} on {place}, {self.facts['backend']}: matrix products in "
            f"{' and '.join(self.products)}, memory bandwidth, {collectives}."
        )

    def __str__(self) -> str:
        return "\n".join(_table(self))


def counted(ranks: int) -> str:
    """Return a number of ranks in words: "1 rank", "4 ranks"."""
    return f"{ranks} rank{'s' if ranks > 1 else ''}"


def _title(sweep: MeasuredSweep) -> str:
    return f"{sweep.op}, {counted(sweep.ranks)}"


def _table(this: Calibration) -> list[str]:
    """Return the lines of the table that `print` shows."""
    facts, slope = this.facts, this.traffic.sizes[-1] / this.traffic.seconds[-1]
    lines = [
        f"{facts['machine']}; {counted(facts['ranks'])} on {facts['device']}, {facts['backend']}, "
        f"threads for each: {facts['threads']}; torch {facts['torch']}",
        f"measured {this.date}, which took {this.took:.0f} s; all ranks computed at once",
        "",
        f"{'matrix products, GFLOP/s by FLOP':34}"
        + "".join(f"{flop:>9.1e}" for flop in next(iter(this.products.values())).sizes),
    ]
    for dtype, curve in this.products.items():
        rates = [f / s * 1e-9 if s else 0 for f, s in zip(curve.sizes, curve.seconds)]
        lines.append(f"  {dtype:32}" + "".join(f"{rate:>9.3g}" for rate in rates))
    lines += [
        f"memory bandwidth, {this.traffic.sizes[-1] / 1e6:,.0f} MB: {slope * 1e-9:.3g} GB/s",
        f"overhead of an operation in a training step: {this.overhead * 1e6:.3g} µs",
    ]
    if this.sweeps:
        lines.append(f"share of an all_reduce hidden behind computation: {this.hidden:.0%}")
        columns = "collective", "ranks", "latency", "bandwidth of the buffer", "line off by up to"
        lines += ["", "{:<16}{:<7}{:<26}{:<30}{}".format(*columns)]
    for sweep in this.sweeps:
        latency, rate = sweep.latency, sweep.bandwidth
        lines.append(
            f"{sweep.op:<16}{sweep.ranks:<7}"
            f"{_banded([v * 1e3 for v in latency], 'ms'):<26}"
            f"{_banded([v * 1e-9 for v in rate], 'GB/s'):<30}{sweep.fit.worst:.0%}"
        )
    return lines


def _banded(values, unit: str) -> str:
    low, value, high = (f"{v:.3g}" for v in values)
    return f"{value} {unit} ({low} to {high})"
