"""Simulates a pipeline schedule: when each action runs, which ranks idle, what memory holds.

Each action starts as soon as its rank is free and its input has arrived (clock.py). A send takes
time on the link and none on the ranks, unless `Costs` says that it does. Messages do not delay one
another unless `Costs` says how they queue (links.py).
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from lib.ledger import Ledger
from lib.predict.arguments import whole
from lib.predict.pipeline.actions import Schedule
from lib.predict.pipeline.clock import earliest
from lib.predict.pipeline.lengths import actions, after_sending, messages
from lib.predict.pipeline.links import LINKS, queues
from lib.predict.pipeline.played_rows import compute_rows, memory_rows, send_rows


@dataclass(frozen=True)
class Costs:
    """Holds the cost of each action: a number, or one for each stage; times in any unit, bytes.

    `backward` is the time of a whole B (default: input + weight). `overlap` is the time of an
    overlapped pair, by the stage of its forward (default: one after the other); its results are
    sent when both are done. `send` is the time of a message between neighbouring stages on
    different ranks, a number or one for each of the stages - 1 borders. `activation` is what a
    microbatch keeps on a stage from its F to the end of its backward, and `kept` what it keeps from
    I to W instead (default: as much). `kept` is less where I frees some activations, and more where
    the gradients that W needs are counted.

    `link` says which messages wait for one another, in the order in which they are sent: with None,
    none do; with "pair", those from one rank to one other, as in slow motion
    (lib/ranks/slow/comm_lanes.py); with "device", all that one rank sends. With a pair's link,
    `ahead` says that a message starts only once its receiver asks for it, which happens when the
    receiver begins the action that many before the one that needs it (1 in `Pipeline`; by default a
    receiver need not ask). `accumulate` is the part of each B or W that adds to an existing
    gradient; a stage's first B or W takes that much less, and with `cleared` so does the first of
    every so many microbatches, after which a step has cleared the gradients. `in_turn` treats an
    overlapped pair as two actions, each with its own input and its own result, as `Pipeline` runs
    them.
    """

    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    send: float = 0.0
    backward: float | None = None
    overlap: float | None = None
    activation: int = 0
    kept: int | None = None
    sends_block: bool = False  # True where a sender waits until its message has arrived
    link: str | None = None
    ahead: int | None = None
    accumulate: float = 0.0
    cleared: int | None = None
    in_turn: bool = False

    def __post_init__(self):
        if self.link not in LINKS:
            raise ValueError(
                f"Costs: link is {self.link!r}. Give 'pair', 'device', or None where messages do "
                "not wait for one another."
            )
        if self.cleared is not None:
            whole(self.cleared, "Costs: cleared")
        if self.in_turn and self.overlap is not None:
            raise ValueError(
                "Costs: with in_turn, an overlapped pair takes as long as its two parts. Leave out "
                "overlap."
            )
        if self.ahead is None:
            return
        if not isinstance(self.ahead, int | np.integer) or self.ahead < 0:
            raise ValueError(f"Costs: ahead is {self.ahead!r}. Give a number of actions, or None.")
        if self.link != "pair" or self.sends_block:
            raise ValueError(
                "Costs: ahead says when a receiver asks for a message over a pair's link that does "
                "not block its sender. Give link='pair' without sends_block, or leave out ahead."
            )

    def table(self, stages: int) -> np.ndarray:
        """Return the times of F, B, I, W (rows) on each stage (columns)."""
        forward, inputs, weights = (
            self.each(name, stages) for name in ("forward", "backward_input", "backward_weight")
        )
        whole = inputs + weights if self.backward is None else self.each("backward", stages)
        return np.array([forward, whole, inputs, weights])

    def without_messages(self) -> "Costs":
        """Return the same costs with messages that take no time and wait for nothing."""
        return replace(self, send=0.0, sends_block=False, link=None, ahead=None)

    def each(self, name: str, count: int) -> np.ndarray:
        """Return one of the costs for each of `count` stages or borders."""
        values = np.asarray(getattr(self, name), float)
        if values.ndim > 1 or (values.ndim == 1 and len(values) != count):
            what = "borders between stages" if name == "send" else "stages"
            raise ValueError(
                f"Costs: {name} has {values.size} entries, but this schedule has {count} {what}. "
                "Give one number, or one for each."
            )
        if not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError(
                f"Costs: {name} is {values.tolist()}, but costs must be finite and at least 0."
            )
        return np.broadcast_to(values, count)


def play(schedule, costs: Costs | None = None) -> "Run":
    """Simulate a Schedule, or the rows or CSV text of one.

    Raises ScheduleError where it cannot be run. A message takes `costs.send`; it waits for other
    messages only where `costs.link` says so.
    """
    if isinstance(schedule, str):
        schedule = Schedule.read(schedule)
    elif not isinstance(schedule, Schedule):
        schedule = Schedule(schedule)
    costs = costs or Costs()
    return Run(schedule.in_turn() if costs.in_turn else schedule, costs)


class Run:
    """Holds a simulated schedule: `starts` and `ends` of its actions, row after row."""

    def __init__(self, schedule: Schedule, costs: Costs):
        self.schedule, self.costs, self.carried = schedule, costs, None
        grid, pairs = schedule.grid, schedule.grid.overlapped
        # 1. Find how long each action and its message take.
        self._own = actions(grid, costs)
        self.sends = messages(grid, costs)
        # 2. Find how long it occupies its rank; the second of an overlapped pair stands for both.
        busy, sent = self._own, self.sends
        if len(pairs):
            both = busy[pairs] + busy[pairs + 1]
            if costs.overlap is not None:
                both = costs.each("overlap", grid.stages)[grid.stage[pairs]]
            busy = busy.copy()
            busy[pairs], busy[pairs + 1] = 0.0, both
        if costs.sends_block:
            busy, sent = after_sending(grid, busy, sent)
        # 3. Simulate.
        queue = costs.link and not costs.sends_block and self.sends.any()
        start, done = self._queued(busy) if queue else self._free(busy, sent)
        free = np.append(0.0, done[:-1])
        free[grid.first[:-1]] = 0.0
        self.starts = np.maximum(free, start)
        if len(pairs):
            self.starts[pairs] = self.starts[pairs + 1]
            if costs.overlap is None:
                self.starts[pairs + 1] += self._own[pairs]
            else:
                self._own[pairs] = self._own[pairs + 1] = both
        self.ends = self.starts + self._own

    def _free(self, busy, sent):
        """Simulate without queues; return when each action's input arrives, and each one's end."""
        grid = self.schedule.grid
        late = np.append(sent, 0.0)[grid.needs]
        done = earliest(grid.first[:-1], grid.first[1:], grid.waits, late, busy)
        return np.append(done, 0.0)[grid.waits] + late, done

    def _queued(self, busy):
        """Simulate links that carry one message at a time; keep the times of the messages."""
        grid, costs = self.schedule.grid, self.costs
        rows = queues(grid, self.sends, costs.link, costs.ahead)
        busy = np.append(busy, rows.busy)
        done = earliest(rows.begin, rows.end, rows.needs, np.zeros_like(busy), busy)
        done = np.append(done, 0.0)
        self.carried = rows.sent, done[rows.asked], done[rows.carried]
        many = len(grid.codes)
        return done[rows.needs[:many]], done[:many]

    def __repr__(self) -> str:
        return f"<{self.schedule.name} played: {self.makespan:g} long, {self.bubble():.1%} idle>"

    def without_messages(self) -> "Run":
        """Simulate the same schedule with messages that take no time."""
        return play(self.schedule, self.costs.without_messages())

    @property
    def makespan(self) -> float:
        """Return the time from the first start to the last end."""
        return float(self.ends.max() - self.starts.min())

    @cached_property
    def work(self) -> np.ndarray:
        """Return the time for which each rank computes; an overlapped pair counts once."""
        own = self._own.copy()
        if self.costs.overlap is not None:
            own[self.schedule.grid.overlapped + 1] = 0.0
        return np.bincount(self.schedule.grid.rank, own)

    def bubble(self, definition: str = "share") -> float:
        """Return how much of the ranks' time is idle, by one of the three definitions in use.

        "share" is idle ÷ (makespan · ranks), and "overhead" is idle ÷ work. For GPipe and 1F1B with
        equal stages and messages that take no time, these are Huang's (p-1)/(m+p-1) and Narayanan's
        (p-1)/m. "span" is Qi's (cost - m·T) ÷ cost (zero-bubble schedules), where cost is the
        longest span of any one rank, from its own first start to its own last end, and m·T is that
        rank's work.
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
        raise ValueError(
            f"The definition of a bubble is 'share', 'overhead' or 'span', not {definition!r}."
        )

    @cached_property
    def peak_microbatches(self) -> tuple[int, ...]:
        """Return the most microbatches alive at once on each stage, from F to the end of B or W."""
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
        """Return the most bytes of activations alive at once on each rank."""
        peaks = np.zeros(len(self.schedule), int)
        np.maximum.at(peaks, self.memory.column("rank"), self.memory.column("bytes"))
        return tuple(peaks.tolist())

    @cached_property
    def memory(self) -> Ledger:
        """Return the bytes of activations alive on each rank, with a row at each change."""
        return memory_rows(self)

    @cached_property
    def ledger(self) -> Ledger:
        """Return all rows as if recorded: F, B, I, W, sends that take time, and memory."""
        parts = [compute_rows(self), send_rows(self), self.memory]
        return Ledger.merge([part for part in parts if len(part)])
