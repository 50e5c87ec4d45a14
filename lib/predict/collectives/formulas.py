"""Formulas for communication: bytes, rounds and time.

[Note: three ways to count]
`all_reduce` counts the messages of six algorithms exactly: the whole number of bytes that each rank
sends, also where the ranks do not divide the tensor. `collective` counts the bytes that a ring
sends, as nccl-tests does for its bus bandwidth. `time_of` turns that count into seconds: alpha, the
latency, for each round, and beta, the inverse of the bandwidth, for each byte. A size S is that of
the full buffer: the output of an all_gather, the input of a reduce_scatter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lib.predict.arguments import real, whole
from lib.predict.collectives.counts import COUNTS
from lib.predict.flops import training_flop
from lib.predict.shape import GPTShape

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
    """Holds the bytes that each rank sends and receives in an all-reduce of `rounds` rounds."""

    algorithm: str
    rounds: int
    sent: tuple[int, ...]
    received: tuple[int, ...]
    critical_bytes: int  # the sum of the largest messages of all rounds
    source: str

    @property
    def total(self) -> int:
        """Return the bytes sent by all ranks together."""
        return sum(self.sent)

    @property
    def busiest(self) -> int:
        """Return the bytes that the busiest rank sends or receives, whichever is more."""
        return max(*self.sent, *self.received)


def all_reduce(
    algorithm: str, ranks: int, numel: int, itemsize: int = 4, *, node: int | None = None
) -> Traffic:
    """Count the bytes of an all-reduce of `numel` elements of `itemsize` bytes under `algorithm`.

    `node` is the number of ranks in a node, for two_level only; by default the largest divisor of
    `ranks` that is at most its square root.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"No all-reduce is called {algorithm!r}. Choose one of {', '.join(ALGORITHMS)}."
        )
    ranks, numel = whole(ranks, "The number of ranks"), whole(numel, "The number of elements", 0)
    itemsize = whole(itemsize, "itemsize")
    if node is not None and algorithm != "two_level":
        raise ValueError(f"Only two_level uses nodes. Leave out node={node} for {algorithm}.")
    count = COUNTS[algorithm]
    rounds, sent, received, critical = count(ranks, numel, *[node] if node is not None else [])
    sent, received = (tuple(itemsize * n for n in counts) for counts in (sent, received))
    return Traffic(algorithm, rounds, sent, received, itemsize * critical, _SOURCES[algorithm])


def seconds(traffic: Traffic, alpha: float, beta: float) -> float:
    """Return the time of counted traffic: alpha s a round, beta s a byte of its longest message.

    This assumes that the messages of a round move at the same time, each over a link of its own.
    """
    alpha, beta = real(alpha, "alpha"), real(beta, "beta")
    return traffic.rounds * alpha + traffic.critical_bytes * beta


class RingTraffic(NamedTuple):
    """Holds what a ring sends for one collective; `factor` is sent bytes ÷ S."""

    rounds: int
    bytes: float  # the most that a rank sends; in a scatter the root, in a gather to the root
    factor: float  # bus bandwidth = factor · S ÷ time


def collective(op: str, ranks: int, nbytes: int) -> RingTraffic:
    """Count the rounds, and the bytes each rank sends, when a ring does `op` on `nbytes`.

    The factors are those of nccl-tests: doc/PERFORMANCE.md, and src/scatter.cu and src/gather.cu
    for these two, where the root moves (n-1)/n of the buffer. A barrier counts as an all-reduce of
    0 bytes. Raises ValueError for an operation that is not known.
    """
    n, nbytes = whole(ranks, "The number of ranks"), real(nbytes, "The bytes of a buffer")
    if op in ("send", "recv"):
        rounds, factor = 1, 1.0
    elif op in ("all_reduce", "barrier"):
        rounds, factor = 2 * (n - 1), 2 * (n - 1) / n
    elif op in ("all_gather", "reduce_scatter", "all_to_all", "scatter", "gather"):
        rounds, factor = n - 1, (n - 1) / n
    elif op in ("broadcast", "reduce"):
        rounds, factor = n - 1, float(n > 1)
    else:
        raise ValueError(f"No collective is called {op!r}.")
    return RingTraffic(rounds, 0.0 if op == "barrier" else factor * nbytes, factor)


def mean_sent(op: str, ranks: int, nbytes: int) -> float:
    """Return the bytes that a rank sends on average when a ring does `op` on `nbytes`.

    In a broadcast all ranks but the last send the buffer once, and in a reduce all but the root.
    """
    share = (ranks - 1) / ranks if op in ("broadcast", "reduce") else 1.0
    return share * collective(op, ranks, nbytes).bytes


def time_of(op: str, ranks: int, nbytes: int, *, alpha: float, beta: float) -> float:
    """Return the seconds of `op` as a ring: alpha s for each round, beta s for each byte sent."""
    ring = collective(op, ranks, nbytes)
    return ring.rounds * real(alpha, "alpha") + ring.bytes * real(beta, "beta")


def cost(model: str, ranks: int, nbytes: int, alpha: float, beta: float) -> float:
    """Return the seconds of an all-reduce of `nbytes` under one of four cost models.

    central: all messages pass through rank 0, one after the other, 2(n-1)(alpha + S·beta).
    tree: whole buffers, up and down, 2·ceil(log2 n)(alpha + S·beta).
    bytes: only the bytes of a ring, 2(n-1)/n·S·beta; this is right for large S only, because it
    leaves out the latency of 2(n-1) rounds.
    ring: these bytes and the latency of the rounds, 2(n-1)·alpha + 2(n-1)/n·S·beta.
    """
    if model in ("bytes", "ring"):
        alpha = real(alpha, "alpha") if model == "ring" else 0.0
        return time_of("all_reduce", ranks, nbytes, alpha=alpha, beta=beta)
    if model not in ("central", "tree"):
        raise ValueError(f"No cost model is called {model!r}. Choose central, tree, bytes or ring.")
    return seconds(all_reduce(model, ranks, nbytes, 1), alpha, beta)


@dataclass(frozen=True)
class Fit:
    """Holds a straight line through measured times, t = alpha + beta·S, and its largest error."""

    alpha: float  # latency of the whole operation, not of one round, in s
    beta: float  # s for each byte of S
    worst: float  # the largest |predicted - measured| ÷ measured of the sweep

    def seconds(self, nbytes: float) -> float:
        """Return the time of `nbytes` on the line."""
        return self.alpha + self.beta * nbytes

    def __str__(self) -> str:
        rate = f"{1e-9 / self.beta:.4g} GB/s" if self.beta else "no measurable time a byte"
        return f"{self.alpha * 1e6:.3g} µs + bytes at {rate}, off by at most {self.worst:.0%}"


def fit(nbytes: Sequence[float], seconds: Sequence[float]) -> Fit:
    """Fit t = alpha + beta·S by least squares of the relative errors, with both at least 0."""
    size = np.array([real(value, "A size of a fit") for value in nbytes])
    time = np.array([real(value, "A time of a fit") for value in seconds])
    if size.shape != time.shape or len(np.unique(size)) < 2 or not (time > 0).all():
        raise ValueError("A fit needs at least two sizes, and for each size a time above 0.")
    lines = []
    for columns in ([0, 1], [1], [0]):  # both parameters, only beta, only alpha
        design = np.stack([1 / time, size / time], axis=1)
        line = np.zeros(2)
        line[columns] = np.linalg.lstsq(design[:, columns], np.ones(len(time)), rcond=None)[0]
        if (line >= 0).all():
            error = design @ line - 1
            lines.append((float(error @ error), *line.tolist(), float(abs(error).max())))
    return Fit(*min(lines)[1:])


def training_days(
    parameters: float,
    tokens: float,
    gpus: int,
    flops_per_gpu: float,
    efficiency: float,
    factor: float = 6,
) -> float:
    """Return the days to train: tokens × work for each ÷ (device rate × devices × efficiency).

    The work is `factor` operations for each parameter and token: 6, or 8 where activations are
    computed twice (Narayanan et al. 2021, arXiv 2104.04473, equation 4). Rates are in FLOP/s.
    """
    work = real(factor, "factor", zero=False) * real(parameters, "parameters", zero=False)
    return work * real(tokens, "tokens") / _rate(gpus, flops_per_gpu, efficiency) / 86400


def exact_days(
    shape: GPTShape,
    tokens: float,
    gpus: int,
    flops_per_gpu: float,
    efficiency: float,
    recompute: str = "full",
) -> float:
    """Return the days to train a GPT, counting attention and vocabulary (`flops.training_flop`).

    `training_days` leaves attention's products out: with 8 operations for each of GPT-3's
    parameters, its result is 2 % shorter.
    """
    work = training_flop(shape, real(tokens, "tokens"), recompute)
    return work / _rate(gpus, flops_per_gpu, efficiency) / 86400


def _rate(gpus: int, flops_per_gpu: float, efficiency: float) -> float:
    """Return the FLOP/s of all GPUs together."""
    gpus, share = whole(gpus, "The number of GPUs"), real(efficiency, "efficiency", zero=False)
    if share > 1:
        raise ValueError(f"efficiency must be above 0 and at most 1, not {efficiency}.")
    return gpus * real(flops_per_gpu, "flops_per_gpu", zero=False) * share
