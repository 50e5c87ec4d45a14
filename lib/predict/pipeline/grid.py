"""A schedule in arrays: all rows end to end, with the position and dependency of each action."""

from functools import cached_property

import numpy as np

KINDS = "FBIW"
F, B, I, W = range(4)


class Grid:
    """Holds the actions of all ranks in one array of codes, 4·(microbatch·stages + stage) + kind.

    A cell is the number of a (microbatch, stage), a place is an index into the arrays, and -1
    stands for none.
    """

    def __init__(self, codes, first, stages: int, microbatches: int, overlapped):
        self.codes, self.first = codes, first
        self.stages, self.microbatches = stages, microbatches
        self.overlapped = overlapped  # the place of the forward of each overlapped pair

    @cached_property
    def kind(self) -> np.ndarray:
        """Return the index in "FBIW" of each action's letter."""
        return (self.codes & 3).astype(np.int8)

    @cached_property
    def cell(self) -> np.ndarray:
        """Return microbatch · stages + stage of each action."""
        return self.codes >> 2

    @cached_property
    def stage(self) -> np.ndarray:
        """Return the stage of each action."""
        return self.cell % max(self.stages, 1)

    @cached_property
    def rank(self) -> np.ndarray:
        """Return the rank of each action."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    @cached_property
    def rank_of_stage(self) -> np.ndarray:
        """Return the rank of each stage; of a stage with replicas, that of the last one."""
        ranks = np.full(self.stages, -1)
        ranks[self.stage] = self.rank
        return ranks

    @cached_property
    def rank_of_cell(self) -> np.ndarray:
        """Return the rank that takes each microbatch through each stage."""
        ranks = np.full(self.stages * self.microbatches, -1)
        ranks[self.cell] = self.rank
        return ranks

    @cached_property
    def needs(self) -> np.ndarray:
        """Return the place that each action waits for: a neighbour stage's forward or backward.

        What its own stage must have done before stands earlier in the same row, so it needs no
        waiting.
        """
        needs = np.full(len(self.codes), -1)
        forward = self.kind == F
        inner = np.flatnonzero(forward & (self.stage > 0))
        needs[inner] = self._places(forward)[self.cell[inner] - 1]
        backward = (self.kind == B) | (self.kind == I)
        inner = np.flatnonzero(backward & (self.stage < self.stages - 1))
        needs[inner] = self._places(backward)[self.cell[inner] + 1]
        return needs

    @cached_property
    def waits(self) -> np.ndarray:
        """Return `needs`, except that a pair's results are ready only when both of it are done."""
        if not len(self.overlapped):
            return self.needs
        waits = self.needs.copy()
        waits[np.isin(waits, self.overlapped)] += 1
        return waits

    def _places(self, mask) -> np.ndarray:
        """Return, for each cell, the place of its action among those in the mask."""
        table = np.full(self.stages * self.microbatches, -1)
        places = np.flatnonzero(mask)
        table[self.cell[places]] = places
        return table

    @cached_property
    def receiver(self) -> np.ndarray:
        """Return the rank that each action's result is sent to; -1 where it stays on its rank."""
        forward = self.kind == F
        ends = np.where(forward, self.stage == self.stages - 1, self.stage == 0)
        neighbour = np.where(ends, self.cell, self.cell + np.where(forward, 1, -1))
        to = np.where(ends, -1, self.rank_of_cell[neighbour])
        return np.where((self.kind == W) | (to == self.rank), -1, to)
