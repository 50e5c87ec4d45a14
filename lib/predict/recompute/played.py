"""A plan of recomputation on one clock: when each block runs, runs again and goes backward.

    plan (0, (1, 2))     forward 0, 1, 2 · backward needs 1 and 2: recompute 1, 2 · backward 2, 1, 0

What a block keeps for backward is held from the moment at which the run begins that keeps it, until
its backward is over. The input of a checkpoint is held from the checkpoint's first forward; the rest
of its blocks is held from their second one. So the most that is held at once is the peak of plan.py.
"""  # noqa: E501

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from lib.ledger import Ledger, Row
from lib.predict.arguments import real
from lib.predict.recompute.plan import BlockCost, Plan, checked, leaves

_FORMULA = "by playing the plan with the bytes and seconds of each block"


class PlanBar(NamedTuple):
    """Says from when to when a block computes, in seconds; blocks count from 0."""

    kind: str  # "forward", "recompute" (forward once more) or "backward"
    block: int
    start: float
    end: float


@dataclass(frozen=True)
class PlayedPlan:
    """Holds the bars of a step, the bytes held over time, and the seconds computed again."""

    bars: tuple[PlanBar, ...]
    held: tuple[tuple[float, int], ...]  # from when on, and how many bytes
    again: float

    @property
    def end(self) -> float:
        """Return when the backward of the first block is over."""
        return self.bars[-1].end

    @property
    def peak(self) -> int:
        """Return the most bytes that are held at once."""
        return max(nbytes for _, nbytes in self.held)

    @property
    def ledger(self) -> Ledger:
        """Return the same as rows of rank 0: computation with its block as stage, and memory.

        A forward that is computed again is a row "forward" too, and its note is "again".
        """
        rows = [
            Row(0, "compute", "backward" if bar.kind == "backward" else "forward", bar.start,
                bar.end, stage=bar.block, note="again" if bar.kind == "recompute" else "")
            for bar in self.bars
        ]  # fmt: skip
        rows += [Row(0, "memory", "activations", at, at, bytes=size) for at, size in self.held]
        return Ledger(rows, source="predicted", meta={"formula": _FORMULA})


def play_plan(
    plan: Plan, costs: Sequence[BlockCost], backward: Sequence[float] | None = None
) -> PlayedPlan:
    """Predict one step of a chain with these costs, whose blocks forget what the plan says.

    `backward` are the seconds of each block's backward, by default twice those of its forward.
    Raises ValueError for a plan of another chain, and unless each block has a time of backward.
    """
    checked(plan, len(costs))
    step = _PlanStep(costs, backward_seconds(costs, backward))
    step.forward(plan, "forward")
    step.backward(plan)
    runs = [0] * len(costs)
    for bar in step.bars:
        runs[bar.block] += bar.kind != "backward"
    again = sum((n - 1) * cost.forward for n, cost in zip(runs, costs))
    return PlayedPlan(tuple(step.bars), tuple(step.held), again)


def backward_seconds(
    costs: Sequence[BlockCost], given: Sequence[float] | None = None
) -> list[float]:
    """Return the seconds of each block's backward: as given, or twice those of its forward.

    Raises ValueError unless each block has a time.
    """
    times = [2 * cost.forward for cost in costs] if given is None else list(given)
    if len(times) != len(costs):
        raise ValueError(
            f"There are {len(costs)} blocks and {len(times)} times of backward. Give one for each "
            "block, or none."
        )
    return [real(time, "A time of backward") for time in times]


class _PlanStep:
    """Runs blocks one after the other, and notes what is held."""

    def __init__(self, costs: Sequence[BlockCost], seconds: list[float]):
        self.costs, self.seconds = costs, seconds
        self.bars, self.held, self.clock = [], [(0.0, 0)], 0.0

    def forward(self, items: Plan, kind: str, held: int = 0) -> None:
        """Run these items; `held` of the first one's bytes are held already: a checkpoint's input.

        A block beside checkpoints holds all that it keeps, a checkpoint its input alone.
        """
        for item in items:
            if isinstance(item, tuple):
                first, *others = leaves(item)
                self._run(kind, first, self.costs[first].input - held)
                for block in others:
                    self._run(kind, block, 0)
            else:
                self._run(kind, item, self.costs[item].kept - held)
            held = 0

    def backward(self, items: Plan) -> None:
        """Go back through items that have run; before a checkpoint its own items run again."""
        for item in reversed(items):
            if isinstance(item, tuple):
                self.forward(item, "recompute", self.costs[next(leaves(item))].input)
                self.backward(item)
            else:
                self._compute("backward", item, self.seconds[item])
                self._hold(-self.costs[item].kept)

    def _run(self, kind: str, block: int, nbytes: int) -> None:
        self._hold(nbytes)
        self._compute(kind, block, self.costs[block].forward)

    def _compute(self, kind: str, block: int, seconds: float) -> None:
        start, self.clock = self.clock, self.clock + seconds
        self.bars.append(PlanBar(kind, block, start, self.clock))

    def _hold(self, nbytes: int) -> None:
        if nbytes:
            self.held.append((self.clock, self.held[-1][1] + nbytes))
