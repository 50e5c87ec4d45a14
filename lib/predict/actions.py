"""A pipeline schedule as data: what each rank does, in which order.

[Note: a schedule is an order]
A schedule is one row of actions for each rank. It says who does what and in which order, and no
times: each action starts as soon as its rank is free and what it needs has arrived. The same rows
are played on paper (play.py), run on ranks, drawn and tested. The letters are PyTorch's:

    2F0   stage 2, forward, microbatch 0
    2B0   its whole backward, or apart:
    2I0   the backward for the input (zero-bubble papers write B), and
    2W0   the backward for the weights

    (0F5;7B2)OVERLAP_F_B   a forward and a backward that run side by side on one rank (DualPipeV)
"""

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from lib.predict._grid import KINDS, Grid
from lib.predict._legal import first_fault, picture

_ACTION = re.compile(r"(\d+)([FBIW])(\d+)")
_OVERLAP = re.compile(r"\((\d+F\d+);(\d+B\d+)\)OVERLAP_F_B")


class Action(NamedTuple):
    """One thing a rank does for one stage and one microbatch; prints as `2F0` and reads back."""

    stage: int
    kind: str  # one of F, B, I, W
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"

    @classmethod
    def read(cls, text: str) -> "Action":
        """Read an action back from what it prints as."""
        found = _ACTION.fullmatch(text.strip())
        if not found:
            raise ValueError(
                f"{text!r} is not an action: write the stage, one of F, B, I, W, and the "
                "microbatch, as in `2F0`."
            )
        return cls(int(found[1]), found[2], int(found[3]))


class Overlap(NamedTuple):
    """A forward and a whole backward that run side by side on one rank; prints as PyTorch's."""

    forward: Action
    backward: Action

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})OVERLAP_F_B"

    @classmethod
    def read(cls, text: str) -> "Overlap":
        """Read an overlapped pair back from what it prints as."""
        found = _OVERLAP.fullmatch(text.strip())
        if not found:
            raise ValueError(f"{text!r} is not a pair: write `(0F5;7B2)OVERLAP_F_B`.")
        return cls(Action.read(found[1]), Action.read(found[2]))


class ScheduleError(ValueError):
    """A schedule that no ranks could carry out: `sentence` says why, `cells` are (rank, step)."""

    def __init__(self, sentence: str, cells, rows):
        self.sentence, self.cells, self.rows = sentence, cells, rows
        super().__init__(sentence + ("\n\n" + picture(rows, cells) if rows else ""))

    def __reduce__(self):  # so that it comes back whole from a rank
        return type(self), (self.sentence, self.cells, self.rows)


class Schedule(Sequence):
    """One row of actions for each rank; prints as PyTorch's pipeline CSV and reads back.

    `Schedule(["0F0 0B0", "1F0 1B0"])`: a row is text, or a list of text, Actions and Overlaps;
    empty cells and None are idle steps, which an order does not need. Raises ScheduleError, with
    the grid and an arrow at the bad cell, for rows that no ranks could carry out (_legal.py).
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
        """Take rows of numbers, 4·(microbatch·stages + stage) + place of the letter in FBIW.

        Nothing is checked: for generators whose rule is known to be good (schedule.py).
        `overlapped` numbers, row after row, the forwards that run beside the action that follows.
        """
        schedule = cls.__new__(cls)
        schedule._set(codes, stages, microbatches, name, overlapped)
        return schedule

    @classmethod
    def read(cls, text: str, name: str = "schedule") -> "Schedule":
        """Read PyTorch's pipeline CSV: one line for each rank, empty cells are idle steps."""
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
        """How many ranks have a row."""
        return len(self)

    @property
    def placement(self) -> tuple[int, ...]:
        """The rank of each stage."""
        return tuple(self.grid.rank_of_stage.tolist())

    def actions(self, rank: int) -> list[Action]:
        """The row of a rank with the two halves of each overlapped pair one after the other."""
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
