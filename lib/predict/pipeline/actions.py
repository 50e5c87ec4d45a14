"""A pipeline schedule as data: the order of each rank's actions.

[Note: a schedule is an order]
A schedule has one row of actions for each rank. A row fixes the order of the actions and no times:
each action starts as soon as its rank is free and its input has arrived. The same rows are
simulated (play.py), run on ranks, drawn and tested. The letters are PyTorch's:

    2F0   stage 2, forward, microbatch 0
    2B0   its whole backward, or in two parts:
    2I0   the backward for the input (called B in publications on zero-bubble schedules), and
    2W0   the backward for the weights

    (0F5;7B2)OVERLAP_F_B   a forward and a backward that run side by side on one rank (DualPipeV)
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from lib.predict.pipeline.grid import KINDS, Grid
from lib.predict.pipeline.legality import first_fault, picture

_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_OVERLAP = re.compile(r"\((\d+F\d+);(\d+B\d+)\)OVERLAP_F_B")


class Action(NamedTuple):
    """Describes one action on one stage and one microbatch; it prints as `2F0` and reads back."""

    stage: int
    kind: str  # one of F, B, I, W
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def read(cls, text: str) -> "Action":
        """Read an action from the text that it prints as."""
        match = _ACTION.fullmatch(text.strip())
        if not match:
            raise ValueError(
                f"{text!r} is not an action. Write the stage, one of F, B, I, W, and the "
                "microbatch, as in `2F0`."
            )
        return cls(int(match[1]), match[2], int(match[3]))


class Overlap(NamedTuple):
    """Describes a forward and a whole backward side by side on one rank; it prints as PyTorch's."""

    forward: Action
    backward: Action

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})OVERLAP_F_B"

    @classmethod
    def read(cls, text: str) -> "Overlap":
        """Read an overlapped pair from the text that it prints as."""
        match = _OVERLAP.fullmatch(text.strip())
        if not match:
            raise ValueError(
                f"{text!r} is not an overlapped pair. Write it as in `(0F5;7B2)OVERLAP_F_B`."
            )
        return cls(Action.read(match[1]), Action.read(match[2]))


class ScheduleError(ValueError):
    """Raised for a schedule that cannot be run: `sentence` says why, `cells` are (rank, step)."""

    def __init__(self, sentence: str, cells, rows):
        self.sentence, self.cells, self.rows = sentence, cells, rows
        super().__init__(sentence + ("\n\n" + picture(rows, cells) if rows else ""))

    def __reduce__(self):  # an exception from a rank keeps its attributes
        return type(self), (self.sentence, self.cells, self.rows)


class Schedule(Sequence):
    """Holds one row of actions for each rank; it prints as PyTorch's pipeline CSV and reads back.

    In `Schedule(["0F0 0B0", "1F0 1B0"])` a row is text, or a list of text, Actions and Overlaps.
    Empty cells and None stand for idle steps and are ignored. Raises ScheduleError, with the grid
    and an arrow at the bad cell, for rows that no ranks could carry out (legality.py).
    """

    def __init__(self, rows: Sequence, name: str = "schedule"):
        rows = [re.split(r"[,\s]+", row) if isinstance(row, str) else row for row in rows]
        rows = [[cell for cell in map(_read, row) if cell] for row in rows]
        flat = [[action for cell in row for action in _actions(cell)] for row in rows]
        every = [action for row in flat for action in row]
        stages = 1 + max((action.stage for action in every), default=-1)
        codes = [[4 * (a.microbatch * stages + a.stage) + KINDS.index(a.kind) for a in row]
                 for row in flat]  # fmt: skip
        pairs = np.flatnonzero([at for row in rows for cell in row for at in _marks(cell)])
        self._set(codes, stages, 1 + max((a.microbatch for a in every), default=-1), name, pairs)
        if fault := first_fault(flat, self.grid):
            raise ScheduleError(*fault, flat)

    def _set(self, codes, stages: int, microbatches: int, name: str, overlapped) -> None:
        self.stages, self.microbatches, self.name = stages, microbatches, name
        self._first = [0, *accumulate(map(len, codes))]
        flat = np.concatenate([np.asarray(row, np.int64) for row in codes] or [np.empty(0, int)])
        pairs = np.array(overlapped, int)
        self.grid = Grid(flat, np.array(self._first), stages, microbatches, pairs)

    @classmethod
    def from_codes(
        cls, codes, stages: int, microbatches: int, name: str, overlapped=()
    ) -> "Schedule":
        """Build a schedule from codes, 4·(microbatch·stages + stage) + index of the letter in FBIW.

        Nothing is checked, because the generators in schedules.py only make legal rows.
        `overlapped` numbers, row after row, the forwards that run beside the action after them.
        """
        schedule = cls.__new__(cls)
        schedule._set(codes, stages, microbatches, name, overlapped)
        return schedule

    @classmethod
    def read(cls, text: str, name: str = "schedule") -> "Schedule":
        """Read PyTorch's pipeline CSV, with a line for each rank; empty cells are idle steps."""
        return cls([line for line in text.splitlines() if line.strip()], name)

    def __len__(self) -> int:
        return len(self._first) - 1

    def __getitem__(self, rank: int) -> list[Action | Overlap]:
        rank = range(len(self))[rank]
        first, last = self._first[rank], self._first[rank + 1]
        codes, stages = self.grid.codes[first:last].tolist(), self.stages
        row = [Action(c // 4 % stages, KINDS[c % 4], c // 4 // stages) for c in codes]
        pairs = self.grid.overlapped
        for at in reversed((pairs[(pairs >= first) & (pairs < last)] - first).tolist()):
            row[at : at + 2] = [Overlap(row[at], row[at + 1])]
        return row

    def __iter__(self) -> Iterator[list[Action | Overlap]]:
        return (self[rank] for rank in range(len(self)))

    def __str__(self) -> str:
        return "\n".join(",".join(map(str, row)) for row in self)

    def __repr__(self) -> str:
        return (
            f"<{self.name}: {self.stages} stages on {len(self)} ranks, "
            f"{self.microbatches} microbatches>"
        )

    def __eq__(self, other) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return (
            (self._first, self.stages) == (other._first, other.stages)
            and np.array_equal(self.grid.codes, other.grid.codes)
            and np.array_equal(self.grid.overlapped, other.grid.overlapped)
        )

    __hash__ = None

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return len(self)

    @property
    def placement(self) -> tuple[int, ...]:
        """Return the rank of each stage; of a stage with replicas, that of the last one."""
        return tuple(self.grid.rank_of_stage.tolist())

    def rank_of(self, stage: int, microbatch: int) -> int:
        """Return the rank that takes this microbatch through this stage."""
        return int(self.grid.rank_of_cell[microbatch * self.stages + stage])

    def ranks_of(self, stage: int) -> tuple[int, ...]:
        """Return all ranks of a stage: several where it has replicas (`schedules.round_robin`)."""
        return tuple(np.unique(self.grid.rank[self.grid.stage == stage]).tolist())

    def in_turn(self) -> "Schedule":
        """Return the same schedule with each overlapped pair as two actions in turn."""
        if not len(self.grid.overlapped):
            return self
        rows = np.split(self.grid.codes, self.grid.first[1:-1])
        return Schedule.from_codes(rows, self.stages, self.microbatches, self.name)

    def actions(self, rank: int) -> list[Action]:
        """Return the row of a rank with each overlapped pair as two actions."""
        return [action for cell in self[rank] for action in _actions(cell)]


def _read(cell) -> Action | Overlap | None:
    if cell is None or isinstance(cell, (Action, Overlap)):
        return cell
    text = str(cell).strip()
    if not text:
        return None
    return Overlap.read(text) if text.startswith("(") else Action.read(text)


def _actions(cell: Action | Overlap) -> tuple[Action, ...]:
    return tuple(cell) if isinstance(cell, Overlap) else (cell,)


def _marks(cell: Action | Overlap) -> tuple[bool, ...]:
    return (True, False) if isinstance(cell, Overlap) else (False,)
