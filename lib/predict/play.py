"""A pipeline schedule played on paper: when each action runs, what idles, what memory holds.

Each action starts as soon as its rank is free and what it needs has arrived (_clock.py). A send
takes time between ranks and none on them, unless `Costs` says that it does.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lib.ledger import Ledger
from lib.predict._clock import earliest
from lib.predict._grid import F
from lib.predict._played import compute_rows, memory_rows, send_rows
from lib.predict.actions import Schedule


@dataclass(frozen=True)
class Costs:
    """What each action takes: a number, or one for each stage; any unit of time, memory in bytes.

    `backward` is a whole B (default: input + weight). `overlap` is an overlapped pair, by the stage
    of its forward (default: one after the other); its results leave when both are done. `send` is
    the time of a message between neighbours on different ranks, a number or one for each of the
    stages - 1 borders. `activation` is what a microbatch keeps on a stage from its F to the end of
    its backward, `kept` what of it lives on from I to W (default: all).
    """

    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    send: float = 0.0
    backward: float | None = None
    overlap: float | None = None
    activation: int = 0
    kept: int | None = None
    sends_block: bool = False  # the sender computes nothing while its message is on its way

    def table(self, stages: int) -> np.ndarray:
        """Time of F, B, I, W (rows) on each stage (columns)."""
        forward, inputs, weights = (
            self.each(name, stages) for name in ("forward", "backward_input", "backward_weight")
        )
        whole = inputs + weights if self.backward is None else self.each("backward", stages)
        return np.array([forward, whole, inputs, weights])

    def each(self, name: str, count: int) -> np.ndarray:
        """One of the costs spelled out for each of `count` stages or borders."""
        given = np.asarray(getattr(self, name), float)
        if given.ndim > 1 or (given.ndim == 1 and len(given) != count):
            what = "borders between stages" if name == "send" else "stages"
            raise ValueError(
                f"Costs: {name} has {given.size} entries, and this schedule has {count} {what}: "
                "give one number, or one for each."
            )
        if not (np.isfinite(given) & (given >= 0)).all():
            raise ValueError(f"Costs: {name} is {given.tolist()}: no cost is below 0 or endless.")
        return np.broadcast_to(given, count)


def play(schedule, costs: Costs | None = None) -> "Run":
    """Play a Schedule, or rows or CSV text of one; raises ScheduleError where it is impossible.

    A message takes `costs.send` and waits for no other: links are as wide as they need to be.
    """
    if isinstance(schedule, str):
        schedule = Schedule.read(schedule)
    elif not isinstance(schedule, Schedule):
        schedule = Schedule(schedule)
    return Run(schedule, costs or Costs())


class Run:
    """A schedule with times: `starts` and `ends` of its actions, row after row."""

    def __init__(self, schedule: Schedule, costs: Costs):
        self.schedule, self.costs = schedule, costs
        grid = schedule.grid
        # 1. How long each action takes, and its message.
        self._own = costs.table(grid.stages)[grid.kind, grid.stage]
        self._send = np.zeros_like(self._own)
        border = costs.each("send", grid.stages - 1)
        if border.any():
            forth, back = np.append(border, 0.0), np.append(0.0, border)
            sends = np.where(grid.kind == F, forth[grid.stage], back[grid.stage])
            self._send = np.where(grid.receiver >= 0, sends, 0.0)
        # 2. How long it occupies its rank; the second of an overlapped pair stands for both.
        busy, first = self._own, grid.overlapped
        if len(first):
            both = busy[first] + busy[first + 1]
            if costs.overlap is not None:
                both = costs.each("overlap", grid.stages)[grid.stage[first]]
            busy = busy.copy()
            busy[first], busy[first + 1] = 0.0, both
        busy = busy + self._send if costs.sends_block else busy
        sent = np.zeros_like(busy) if costs.sends_block else self._send
        # 3. Play.
        late = np.append(sent, 0.0)[grid.needs]
        done = earliest(grid.first, grid.waits, late, busy)
        free = np.append(0.0, done[:-1])
        free[grid.first[:-1]] = 0.0
        self.starts = np.maximum(free, np.append(done, 0.0)[grid.waits] + late)
        if len(first):
            self.starts[first] = self.starts[first + 1]
            if costs.overlap is None:
                self.starts[first + 1] += self._own[first]
            else:
                self._own[first] = self._own[first + 1] = both
        self.ends = self.starts + self._own

    def __repr__(self) -> str:
        return f"<{self.schedule.name} played: {self.makespan:g} long, {self.bubble():.1%} idle>"

    @property
    def makespan(self) -> float:
        """From the first start to the last end."""
        return float(self.ends.max() - self.starts.min())

    @cached_property
    def work(self) -> np.ndarray:
        """The time in which each rank computes; an overlapped pair counts once."""
        own = self._own.copy()
        if self.costs.overlap is not None:
            own[self.schedule.grid.overlapped + 1] = 0.0
        return np.bincount(self.schedule.grid.rank, own)

    def bubble(self, definition: str = "share") -> float:
        """How much of the ranks' time is idle, by one of the three definitions in circulation.

        "share": idle ÷ (makespan · ranks), GPipe's (p-1)/(m+p-1). "overhead": idle ÷ work,
        Narayanan's (p-1)/m. "span": the zero-bubble paper's (cost - m·T) ÷ cost, where cost is
        the longest span of any one rank, from its own first start to its own last end, and m·T is
        that rank's work.
        """
        work, first = self.work, self.schedule.grid.first
        total = self.makespan * len(work)
        if definition == "share":
            return float((total - work.sum()) / total) if total else 0.0
        if definition == "overhead":
            return float((total - work.sum()) / work.sum()) if total else 0.0
        if definition == "span":
            spans = np.maximum.reduceat(self.ends, first[:-1]) - self.starts[first[:-1]]
            rank = int(np.argmax(spans))
            return float((spans[rank] - work[rank]) / spans[rank]) if spans[rank] else 0.0
        raise ValueError(f"A bubble is 'share', 'overhead' or 'span', not {definition!r}.")

    @cached_property
    def peak_microbatches(self) -> tuple[int, ...]:
        """The most microbatches alive at once on each stage: from F to the end of B or W."""
        grid = self.schedule.grid
        change = np.array([1, -1, 0, -1])[grid.kind]
        peaks = np.zeros(grid.stages, int)
        by_stage = np.argsort(grid.stage, kind="stable")  # a stage is on one rank, so in order
        ends = np.cumsum(np.bincount(grid.stage, minlength=grid.stages))
        for stage, part in enumerate(np.split(change[by_stage], ends[:-1])):
            peaks[stage] = np.cumsum(part).max()
        return tuple(peaks.tolist())

    @cached_property
    def peak_bytes(self) -> tuple[int, ...]:
        """The most bytes of activations alive at once on each rank."""
        peaks = np.zeros(len(self.schedule), int)
        np.maximum.at(peaks, self.memory.column("rank"), self.memory.column("bytes"))
        return tuple(peaks.tolist())

    @cached_property
    def memory(self) -> Ledger:
        """Activations alive on each rank over time, in bytes: a row at each change of a stage."""
        return memory_rows(self)

    @cached_property
    def ledger(self) -> Ledger:
        """All rows, as if measured: F, B, I, W, sends that take time, memory that was given."""
        parts = [compute_rows(self), send_rows(self, self._send), self.memory]
        return Ledger.merge([part for part in parts if len(part)])
