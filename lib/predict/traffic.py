"""What communication moves, in how many rounds, and how long that takes.

[Note: three ways to count]
`all_reduce` counts the messages of six algorithms exactly: the whole numbers of bytes that each
rank sends, also where the ranks do not divide the tensor. `collective` is what a ring would put on
the wire, the count behind nccl-tests' bus bandwidth. `time_of` turns that into seconds: alpha for
each round, beta for each byte. Sizes are S, the full buffer: all_gather's output, reduce_scatter's
input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lib.predict._counts import COUNTS

ALGORITHMS = tuple(COUNTS)
_SOURCES = {
    "central": "counted: 2(n-1) messages of S, all through rank 0",
    "everyone": "counted: n(n-1) messages of S",
    "ring": "Patarasuk and Yuan 2009, J. Parallel Distrib. Comput. 69(2): 2(n-1) S/n a rank",
    "tree": "Thakur, Rabenseifner and Gropp 2005, Int. J. HPC Appl. 19(1): 2 binomial trees",
    "halving_doubling": "Rabenseifner 2004, ICCS, LNCS 3036: 2(n-1)/n S a rank in 2 log2 n rounds",
    "two_level": "Jia et al. 2018, arXiv 1807.11205: reduce in nodes, ring of leaders, broadcast",
}


@dataclass(frozen=True)
class Traffic:
    """What one all-reduce moves: bytes sent and received by each rank, in `rounds` rounds."""

    algorithm: str
    rounds: int
    sent: tuple[int, ...]
    received: tuple[int, ...]
    critical_bytes: int  # the largest message of each round, added up
    source: str

    @property
    def total(self) -> int:
        """Bytes sent by all ranks together."""
        return sum(self.sent)

    @property
    def busiest(self) -> int:
        """Bytes through the busiest rank in its busier direction."""
        return max(*self.sent, *self.received)


def all_reduce(
    algorithm: str, ranks: int, numel: int, itemsize: int = 4, *, node: int | None = None
) -> Traffic:
    """Count what an all-reduce of `numel` elements of `itemsize` bytes moves under `algorithm`.

    `node` is the number of ranks in a node, for two_level alone; by default the largest divisor
    of `ranks` that is at most its square root.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"No all-reduce is called {algorithm!r}: {', '.join(ALGORITHMS)}.")
    if ranks < 1 or numel < 0:
        raise ValueError(f"{ranks} ranks cannot reduce {numel} elements: at least 1 and 0.")
    if node is not None and algorithm != "two_level":
        raise ValueError(f"Only two_level knows nodes: leave node={node} out for {algorithm}.")
    count = COUNTS[algorithm]
    rounds, sent, received, critical = count(ranks, numel, *[node] * (node is not None))
    sent, received = (tuple(itemsize * n for n in counts) for counts in (sent, received))
    return Traffic(algorithm, rounds, sent, received, itemsize * critical, _SOURCES[algorithm])


def seconds(traffic: Traffic, alpha: float, beta: float) -> float:
    """Time of counted traffic: alpha s for each round, beta s for each byte of its longest message.

    Messages of one round are taken to move side by side, each on a link of its own.
    """
    return traffic.rounds * alpha + traffic.critical_bytes * beta


class Wire(NamedTuple):
    """What a ring moves for one collective: `factor` is bytes on the wire ÷ S."""

    rounds: int
    bytes: float  # sent by each rank
    factor: float  # bus bandwidth = factor · S ÷ time


def collective(op: str, ranks: int, nbytes: int) -> Wire:
    """Rounds and bytes that each rank sends when a ring does `op` on a buffer of `nbytes`.

    The factors are those of nccl-tests (doc/PERFORMANCE.md). scatter and gather are taken as
    pipelined through the ring like broadcast; a barrier is an all-reduce of nothing.
    """
    n = ranks
    if n < 1 or nbytes < 0:
        raise ValueError(f"{op} of {nbytes} bytes on {n} ranks: at least 0 bytes and 1 rank.")
    if op in ("send", "recv"):
        rounds, factor = 1, 1.0
    elif op in ("all_reduce", "barrier"):
        rounds, factor = 2 * (n - 1), 2 * (n - 1) / n
    elif op in ("all_gather", "reduce_scatter", "all_to_all"):
        rounds, factor = n - 1, (n - 1) / n
    elif op in ("broadcast", "reduce", "scatter", "gather"):
        rounds, factor = n - 1, float(n > 1)
    else:
        raise ValueError(f"No collective is called {op!r}.")
    return Wire(rounds, 0.0 if op == "barrier" else factor * nbytes, factor)


def time_of(op: str, ranks: int, nbytes: int, *, alpha: float, beta: float) -> float:
    """Seconds of `op` as a ring: alpha s for each round, beta s for each byte on the wire."""
    wire = collective(op, ranks, nbytes)
    return wire.rounds * alpha + wire.bytes * beta


def cost(model: str, ranks: int, nbytes: int, alpha: float, beta: float) -> float:
    """Seconds of an all-reduce in the three pictures people carry of it.

    linear: everything through rank 0, one message after the other, 2(n-1)(alpha + S·beta).
    logarithmic: a tree up and down, 2·ceil(log2 n)(alpha + S·beta).
    constant: a ring's bytes alone, 2(n-1)/n·S·beta; true for large S, blind to its 2(n-1) rounds.
    """
    if model == "constant":
        return time_of("all_reduce", ranks, nbytes, alpha=0.0, beta=beta)
    algorithms = {"linear": "central", "logarithmic": "tree"}
    if model not in algorithms:
        raise ValueError(f"No cost model is called {model!r}: linear, logarithmic, constant.")
    return seconds(all_reduce(algorithms[model], ranks, nbytes, 1), alpha, beta)


@dataclass(frozen=True)
class Fit:
    """A straight line through measured times, t = alpha + beta·S, and how far off it is."""

    alpha: float  # s, of the whole operation, not of one round
    beta: float  # s for each byte of S
    worst: float  # the largest |predicted - measured| ÷ measured of the sweep

    def seconds(self, nbytes: float) -> float:
        """Time the line gives to `nbytes`."""
        return self.alpha + self.beta * nbytes

    def __str__(self) -> str:
        rate = f"{1e-9 / self.beta:.4g} GB/s" if self.beta else "no measurable time a byte"
        return f"{self.alpha * 1e6:.3g} µs + bytes at {rate}, off by at most {self.worst:.0%}"


def fit(nbytes: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Fit t = alpha + beta·S so that the squared relative errors are least, neither below 0."""
    size, time = np.asarray(nbytes, float), np.asarray(seconds, float)
    if size.shape != time.shape or len(np.unique(size)) < 2 or not (time > 0).all():
        raise ValueError("A fit needs two or more sizes, and for each one a time above 0.")
    lines = []
    for columns in ([0, 1], [1], [0]):  # both; or through zero; or a constant
        design = np.stack([1 / time, size / time], axis=1)
        found = np.zeros(2)
        found[columns] = np.linalg.lstsq(design[:, columns], np.ones(len(time)), rcond=None)[0]
        if (found >= 0).all():
            error = design @ found - 1
            lines.append((float(error @ error), *found.tolist(), float(abs(error).max())))
    return Fit(*min(lines)[1:])


def training_days(
    parameters: float,
    tokens: float,
    gpus: int,
    flops_per_gpu: float,
    efficiency: float,
    factor: float = 6,
) -> float:
    """Days to train: data × work for each datum ÷ (device rate × devices × efficiency).

    Work is `factor` operations for each parameter and token: 6, or 8 where activations are
    computed twice (Narayanan et al. 2021, arXiv 2104.04473, equation 4). Rates in FLOP/s.
    """
    if not 0 < efficiency <= 1 or gpus < 1:
        raise ValueError(f"{gpus} GPUs at efficiency {efficiency}: 1 or more, above 0 up to 1.")
    return factor * parameters * tokens / (gpus * flops_per_gpu * efficiency) / 86400
