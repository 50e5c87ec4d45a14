"""Cutting a model into stages: which layers go to which ranks, and how slow the slowest stage is.

[Note: what a partition costs]
A pipeline moves at the pace of its slowest part. The time of stage i on one rank is W_i = Σ C_l
over its layers. Several ranks may share a stage:

    3:6 x2    replicas: each of 2 ranks takes every other microbatch through layers 3, 4, 5, and
              their weights are averaged: max(W_i, 2(n-1)/n · weights ÷ bandwidth) ÷ n
    3:6 /2    channels: each of 2 ranks computes its share of the channels of every layer, and all
              get the whole output (its gradient on the way back):
              Σ C_l · ceil(channels ÷ n) ÷ channels + 2(n-1)/n · activation ÷ bandwidth

A message between two stages, activation ÷ bandwidth, runs beside the computing, so it counts only
where it is slower than every stage. Links move both ways at once.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

import numpy as np

from lib.predict._cuts import cuts, fastest, spans

_STAGE = re.compile(r"(\d+):(\d+)(?: ([x/])(\d+))?")


@dataclass(frozen=True)
class Layer:
    """One layer: seconds forward and back for a microbatch on one rank; sizes in bytes."""

    time: float
    activation: float = 0.0  # its output for one microbatch
    weights: float = 0.0
    channels: int = 1  # into how many parts it can be cut at most


class Stage(NamedTuple):
    """Layers first .. last-1 on `ranks` ranks; `share` is x for replicas and / for channels."""

    first: int
    last: int
    ranks: int = 1
    share: str = ""

    def __str__(self) -> str:
        return f"{self.first}:{self.last}" + (f" {self.share}{self.ranks}" if self.share else "")


@dataclass(frozen=True)
class Partition:
    """Stages from the first layer to the last; prints as `0:3 | 3:6 x2 | 6:8 /4` and reads back.

    `time` is that of the slowest part as its method counts it, seconds a microbatch.
    """

    stages: tuple[Stage, ...]
    time: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        return " | ".join(map(str, self.stages))

    @classmethod
    def read(cls, text: str) -> "Partition":
        """Read a partition back from what it prints as; every layer stands in one stage."""
        stages, at = [], 0
        for part in text.split("|"):
            found = _STAGE.fullmatch(part.strip())
            if not found:
                raise ValueError(
                    f"{part.strip()!r} is not a stage: write `0:3`, `0:3 x2`, `0:3 /2`."
                )
            stage = Stage(int(found[1]), int(found[2]), int(found[4] or 1), found[3] or "")
            if stage.first != at or stage.last <= at or stage.ranks < 1:
                raise ValueError(f"Stage {stage} cannot follow layer {at - 1}: {text!r}")
            stages.append(stage)
            at = stage.last
        return cls(tuple(stages))

    def loads(self, layers) -> list[float]:
        """W_i = Σ C_l of each stage, as if one rank did it."""
        layers = _layers(layers, len(self.stages))
        return [sum(layer.time for layer in layers[s.first : s.last]) for s in self.stages]

    def bottleneck(self, layers, bandwidth: float = np.inf) -> float:
        """Seconds a microbatch of the slowest stage or message; `bandwidth` in bytes a second."""
        layers = _layers(layers, len(self.stages))
        stages = [stage_time(layers, stage, bandwidth) for stage in self.stages]
        return max(stages + [layers[s.first - 1].activation / bandwidth for s in self.stages[1:]])


def stage_time(layers: Sequence[Layer], stage: Stage, bandwidth: float = np.inf) -> float:
    """Seconds a microbatch of one stage: alone, with replicas, or with its channels shared."""
    inside = layers[stage.first : stage.last]
    if stage.share == "/":
        return sum(_shared(layer, stage.ranks, bandwidth) for layer in inside)
    work, weights = (sum(getattr(layer, name) for layer in inside) for name in ("time", "weights"))
    return float(_replicated(work, weights, stage.ranks, bandwidth))


def _shared(layer: Layer, n: int, bandwidth: float) -> float:
    """A layer whose channels n ranks share; ranks beyond its channels do nothing."""
    largest = -(-layer.channels // n) / layer.channels
    return layer.time * largest + 2 * (n - 1) / n * layer.activation / bandwidth


def _replicated(work, weights, n: int, bandwidth: float):
    """`work` seconds on each of n ranks in turn, beside the averaging of their weights."""
    return np.maximum(work, 2 * (n - 1) / n * weights / bandwidth) / n


def equal(layers, stages: int) -> Partition:
    """As many layers for each stage; the first ones take one more where it does not divide."""
    layers = _layers(layers, stages)
    size, more = divmod(len(layers), stages)
    return _plain(layers, [k * size + min(k, more) for k in range(stages + 1)])


def greedy(layers, stages: int) -> Partition:
    """From the first layer on, close a stage as soon as that is nearer to a fair share.

    The fair share is what is left, over the stages that are left.
    """
    layers = _layers(layers, stages)
    left, ends = sum(layer.time for layer in layers), [0]
    for more in range(stages, 1, -1):
        fair, load, at = left / more, layers[ends[-1]].time, ends[-1] + 1
        while at < len(layers) - more + 1 and load + layers[at].time / 2 <= fair:
            load, at = load + layers[at].time, at + 1
        left -= load
        ends.append(at)
    return _plain(layers, [*ends, len(layers)])


def exact(layers, stages: int, bandwidth: float = np.inf) -> Partition:
    """The partition whose slowest part is fastest, by dynamic programming over the last cut."""
    layers = _layers(layers, stages)
    times = {1: spans([layer.time for layer in layers])}
    return _timed(cuts(times, _borders(layers, bandwidth), stages), layers, bandwidth)


def by_channel(layers, ranks: int, bandwidth: float = np.inf) -> Partition:
    """One stage: every rank has its share of the channels of every layer."""
    layers = _layers(layers, 1)
    return _timed([(0, len(layers), ranks)], layers, bandwidth)


def mixed(layers, ranks: int, bandwidth: float = np.inf) -> Partition:
    """By layer and by channel: stages whose ranks share channels where that is faster.

    The fastest of all such partitions on at most `ranks` ranks.
    """
    layers = _layers(layers, 1)
    times = {n: spans([_shared(x, n, bandwidth) for x in layers]) for n in range(1, ranks + 1)}
    return _timed(cuts(times, _borders(layers, bandwidth), ranks, True), layers, bandwidth)


def with_replicas(layers, levels) -> Partition:
    """PipeDream's partition: stages may be replicated, on machines inside machines.

    `levels` are (how many, bandwidth in bytes a second) from the inside out: [(4, 100e9), (2,
    10e9)] are 2 servers with 4 ranks each. A stage of a level is replicated over n of its units;
    inside, each unit cuts it again, in the best way of the level below. At most all ranks are used.
    Narayanan et al. 2019, "PipeDream", SOSP, section 3.1. The paper's program (github.com/
    msr-fiddle/pipedream) counts a link's two directions one after the other and adds the
    averaging to the computing; here they run side by side.
    """
    layers = _layers(layers, 1)
    count = len(layers)
    whole = spans([layer.time for layer in layers])  # [i, j]: layers i .. j-1 on one unit
    weights = np.where(np.isinf(whole), 0.0, spans([layer.weights for layer in layers]))
    solved = []
    for units, bandwidth in levels:
        times = {n: _replicated(whole, weights, n, bandwidth) for n in range(1, units + 1)}
        solved.append((times, _borders(layers, bandwidth), units))
        whole = np.full_like(whole, np.inf)
        # The outermost level is asked for the whole model alone, those inside for every span.
        outermost = len(solved) == len(levels)
        every = [(0, count)] if outermost else combinations(range(count + 1), 2)
        for i, j in every:
            whole[i, j] = fastest(*_inside(solved[-1], i, j), True)
    return Partition(tuple(_unfold(solved, 0, count, 1)), float(whole[0, count]))


def _inside(problem, i: int, j: int):
    """A level's tables for layers i .. j-1 alone."""
    times, borders, units = problem
    part = {n: table[i : j + 1, i : j + 1] for n, table in times.items()}
    return part, borders[i : j + 1], units


def _unfold(solved, i: int, j: int, ranks: int) -> list[Stage]:
    """Stages of layers i .. j-1, cut from the outermost level inwards, `ranks` times over."""
    if not solved:
        return [Stage(i, j, ranks, "x" if ranks > 1 else "")]
    parts = cuts(*_inside(solved[-1], i, j), True)
    return [s for a, b, n in parts for s in _unfold(solved[:-1], i + a, i + b, ranks * n)]


def _layers(layers, stages: int) -> list[Layer]:
    """Layers from layers, or from their times alone; refused where they are fewer than stages."""
    layers = [x if isinstance(x, Layer) else Layer(float(x)) for x in layers]
    if stages < 1 or len(layers) < stages:
        raise ValueError(f"{len(layers)} layers do not fill {stages} stages with one each.")
    return layers


def _plain(layers, ends) -> Partition:
    return _timed([(i, j, 1) for i, j in zip(ends, ends[1:])], layers, np.inf)


def _timed(parts, layers, bandwidth: float) -> Partition:
    """A partition whose shared stages share channels, with its time."""
    stages = tuple(Stage(i, j, n, "/" if n > 1 else "") for i, j, n in parts)
    return Partition(stages, Partition(stages).bottleneck(layers, bandwidth))


def _borders(layers, bandwidth: float) -> np.ndarray:
    """[i]: the time of the message into layer i."""
    return np.array([0.0, *(layer.activation / bandwidth for layer in layers)])
