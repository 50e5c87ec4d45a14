"""Partitions of a model into stages: which layers go to which ranks, and the slowest stage's time.

[Note: what a partition costs]
The slowest part limits the throughput of a pipeline. The time of stage i on one rank is T_i = Σ C_l
over its layers, where C_l is the time of layer l. Several ranks may share a stage:

    3:6 x2    replicas: each of 2 ranks takes every other microbatch through layers 3, 4, 5, and
              their weights are averaged: max(T_i, 2(n-1)/n · weights ÷ bandwidth) ÷ n
    3:6 /2    channels: each of 2 ranks computes its share of the channels of every layer, and all
              ranks receive the whole output (its gradient in the backward):
              Σ C_l · ceil(channels ÷ n) ÷ channels + 2(n-1)/n · activation ÷ bandwidth

A message between two stages takes activation ÷ bandwidth. It overlaps with computation, so it
counts only where it is slower than every stage. Links move data in both directions at once.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

import numpy as np

from lib.predict.arguments import is_whole, real, whole
from lib.predict.pipeline.cut_search import cuts, fastest, spans

_STAGE = re.compile(r"(\d+):(\d+)(?: ([x/])(\d+))?")


@dataclass(frozen=True)
class Layer:
    """Describes a layer: seconds of forward and backward of a microbatch on a rank, bytes."""

    time: float
    activation: float = 0.0  # its output for one microbatch
    weights: float = 0.0
    channels: int = 1  # the most parts that it can be divided into

    def __post_init__(self):
        for name in ("time", "activation", "weights"):
            real(getattr(self, name), f"The {name} of a layer")
        whole(self.channels, "The channels of a layer")


class Stage(NamedTuple):
    """Describes layers first .. last-1 on `ranks` ranks; `share` is x (replicas) or /."""

    first: int
    last: int
    ranks: int = 1
    share: str = ""

    def __str__(self) -> str:
        return f"{self.first}:{self.last}" + (f" {self.share}{self.ranks}" if self.share else "")


@dataclass(frozen=True)
class Partition:
    """Holds all stages in order; it prints as `0:3 | 3:6 x2 | 6:8 /4` and reads back.

    `time` is that of the slowest part, as the method that made the partition counts it, in seconds
    for each microbatch.
    """

    stages: tuple[Stage, ...]
    time: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        return " | ".join(map(str, self.stages))

    @classmethod
    def read(cls, text: str) -> "Partition":
        """Read a partition from the text that it prints as; every layer is in one stage."""
        stages, end = [], 0
        for part in text.split("|"):
            match = _STAGE.fullmatch(part.strip())
            if not match:
                raise ValueError(
                    f"{part.strip()!r} is not a stage. Write `0:3`, `0:3 x2` or `0:3 /2`."
                )
            stage = Stage(int(match[1]), int(match[2]), int(match[4] or 1), match[3] or "")
            if stage.first != end or stage.last <= end or stage.ranks < 1:
                raise ValueError(
                    f"Stage {stage} cannot stand here in {text!r}: it must begin at layer {end}, "
                    "and have at least one layer and one rank."
                )
            stages.append(stage)
            end = stage.last
        return cls(tuple(stages))

    @property
    def lengths(self) -> list[int]:
        """Return the number of layers of each stage, as `Pipeline` and `PipeDream` take it."""
        return [stage.last - stage.first for stage in self.stages]

    @property
    def replicas(self) -> list[int]:
        """Return the ranks of each stage, as `schedules.round_robin` takes them.

        Raises ValueError where ranks share the channels of a stage, which take no turns.
        """
        for stage in self.stages:
            if stage.share == "/":
                raise ValueError(
                    f"The ranks of stage {stage} share its channels, so they have no replicas of "
                    "it that could take microbatches in turn."
                )
        return [stage.ranks for stage in self.stages]

    def loads(self, layers) -> list[float]:
        """Return T_i = Σ C_l of each stage, its time on a single rank."""
        layers = _layers(layers, len(self.stages))
        return [sum(layer.time for layer in layers[s.first : s.last]) for s in self.stages]

    def bottleneck(self, layers, bandwidth: float = np.inf) -> float:
        """Return the seconds for each microbatch of the slowest stage or message.

        `bandwidth` is in bytes a second.
        """
        layers, bandwidth = _layers(layers, len(self.stages)), _bandwidth(bandwidth)
        stages = [stage_time(layers, stage, bandwidth) for stage in self.stages]
        return max(stages + [layers[s.first - 1].activation / bandwidth for s in self.stages[1:]])


def stage_time(layers: Sequence[Layer], stage: Stage, bandwidth: float = np.inf) -> float:
    """Return the seconds for each microbatch of a stage on one rank, on replicas or by channel."""
    layers, bandwidth = _layers(layers, 1), _bandwidth(bandwidth)
    whole(stage.ranks, "The ranks of a stage")
    inside = layers[stage.first : stage.last]
    if stage.share == "/":
        return sum(_shared(layer, stage.ranks, bandwidth) for layer in inside)
    work, weights = (sum(getattr(layer, name) for layer in inside) for name in ("time", "weights"))
    return float(_replicated(work, weights, stage.ranks, bandwidth))


def _shared(layer: Layer, n: int, bandwidth: float) -> float:
    """Return the time of a layer whose channels n ranks share; surplus ranks are idle."""
    largest = -(-layer.channels // n) / layer.channels
    return layer.time * largest + 2 * (n - 1) / n * layer.activation / bandwidth


def _replicated(work, weights, n: int, bandwidth: float):
    """Return the time of `work` on n ranks in turn, overlapped with the averaging of weights."""
    return np.maximum(work, 2 * (n - 1) / n * weights / bandwidth) / n


def equal(layers, stages: int) -> Partition:
    """Give each stage the same number of layers; the first ones get one more for a remainder."""
    layers = _layers(layers, stages)
    size, more = divmod(len(layers), stages)
    return _plain(layers, [k * size + min(k, more) for k in range(stages + 1)])


def greedy(layers, stages: int) -> Partition:
    """Add layers to a stage, from the first layer on, until its time is nearest to a fair share.

    The fair share is the time of the remaining layers ÷ the number of remaining stages.
    """
    layers = _layers(layers, stages)
    left, ends = sum(layer.time for layer in layers), [0]
    for more in range(stages, 1, -1):
        fair, load, end = left / more, layers[ends[-1]].time, ends[-1] + 1
        while end < len(layers) - more + 1 and load + layers[end].time / 2 <= fair:
            load, end = load + layers[end].time, end + 1
        left -= load
        ends.append(end)
    return _plain(layers, [*ends, len(layers)])


def exact(layers, stages: int, bandwidth: float = np.inf) -> Partition:
    """Return the partition whose slowest part is fastest, by dynamic programming."""
    layers, bandwidth = _layers(layers, stages), _bandwidth(bandwidth)
    times = {1: spans([layer.time for layer in layers])}
    return _timed(cuts(times, _borders(layers, bandwidth), stages), layers, bandwidth)


def by_channel(layers, ranks: int, bandwidth: float = np.inf) -> Partition:
    """Return one stage in which every rank has its share of the channels of every layer."""
    layers, ranks = _layers(layers, 1), whole(ranks, "ranks")
    return _timed([(0, len(layers), ranks)], layers, bandwidth)


def mixed(layers, ranks: int, bandwidth: float = np.inf) -> Partition:
    """Return the fastest partition on at most `ranks` ranks, by layer and by channel.

    The ranks of a stage share its channels where that is faster than another stage.
    """
    layers, ranks, bandwidth = _layers(layers, 1), whole(ranks, "ranks"), _bandwidth(bandwidth)
    times = {n: spans([_shared(x, n, bandwidth) for x in layers]) for n in range(1, ranks + 1)}
    return _timed(cuts(times, _borders(layers, bandwidth), ranks, True), layers, bandwidth)


def with_replicas(layers, levels) -> Partition:
    """Return PipeDream's partition: stages may be replicated, on several levels of machines.

    `levels` are (number of units, bandwidth in bytes a second) from the inside out: [(4, 100e9),
    (2, 10e9)] are 2 servers with 4 ranks each. A stage of a level is replicated over n of its
    units; each unit divides it again, in the best way of the level below. Not all ranks need be
    used. Source: Narayanan et al. 2019, "PipeDream", SOSP, section 3.1. The authors' program
    (github.com/msr-fiddle/pipedream) counts a link's two directions one after the other and adds
    the averaging to the computation; here they overlap.
    """
    layers = _layers(layers, 1)
    levels = [(whole(units, "The units of a level"), _bandwidth(b)) for units, b in levels]
    if not levels:
        raise ValueError(
            "A partition needs at least one level. Give (units, bandwidth) of each, from the "
            "inside out."
        )
    count = len(layers)
    unit = spans([layer.time for layer in layers])  # [i, j]: layers i .. j-1 on one unit
    weights = np.where(np.isinf(unit), 0.0, spans([layer.weights for layer in layers]))
    solved = []
    for units, bandwidth in levels:
        times = {n: _replicated(unit, weights, n, bandwidth) for n in range(1, units + 1)}
        solved.append((times, _borders(layers, bandwidth), units))
        unit = np.full_like(unit, np.inf)
        # The outermost level needs only the whole model; the levels inside need every span.
        outermost = len(solved) == len(levels)
        every = [(0, count)] if outermost else combinations(range(count + 1), 2)
        for i, j in every:
            unit[i, j] = fastest(*_inside(solved[-1], i, j), True)
    return Partition(tuple(_unfold(solved, 0, count, 1)), float(unit[0, count]))


def _inside(problem, i: int, j: int):
    """Return a level's tables for layers i .. j-1 only."""
    times, borders, units = problem
    part = {n: table[i : j + 1, i : j + 1] for n, table in times.items()}
    return part, borders[i : j + 1], units


def _unfold(solved, i: int, j: int, ranks: int) -> list[Stage]:
    """Return the stages of layers i .. j-1, cut from the outermost level inwards, on `ranks`."""
    if not solved:
        return [Stage(i, j, ranks, "x" if ranks > 1 else "")]
    parts = cuts(*_inside(solved[-1], i, j), True)
    return [s for a, b, n in parts for s in _unfold(solved[:-1], i + a, i + b, ranks * n)]


def _layers(layers, stages: int) -> list[Layer]:
    """Return Layers from layers or times; raise ValueError where there are fewer than stages."""
    layers = [x if isinstance(x, Layer) else Layer(x) for x in layers]
    if not is_whole(stages) or len(layers) < stages:
        raise ValueError(
            f"{len(layers)} layers cannot fill {stages} stages: each stage needs at least one "
            "layer."
        )
    return layers


def _bandwidth(value) -> float:
    return real(value, "A bandwidth", zero=False, infinite=True)


def _plain(layers, ends) -> Partition:
    return _timed([(i, j, 1) for i, j in zip(ends, ends[1:])], layers, np.inf)


def _timed(parts, layers, bandwidth: float) -> Partition:
    """Return a partition with its time; stages on several ranks share channels."""
    stages = tuple(Stage(i, j, n, "/" if n > 1 else "") for i, j, n in parts)
    return Partition(stages, Partition(stages).bottleneck(layers, bandwidth))


def _borders(layers, bandwidth: float) -> np.ndarray:
    """Return the time of the message into each layer."""
    return np.array([0.0, *(layer.activation / bandwidth for layer in layers)])
