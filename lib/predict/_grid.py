"""All rows of a schedule end to end, in numbers: where each action stands, what it waits for."""

from functools import cached_property

import numpy as np

KINDS = "FBIW"
F, B, I, W = range(4)


class Grid:
    """The actions of all ranks in one array of codes, 4·(microbatch·stages + stage) + kind.

    `cell` numbers (microbatch, stage); a place is an index into the arrays; -1 means none.
    """

    def __init__(self, codes, first, stages: int, microbatches: int, overlapped):
        self.codes, self.first = codes, first
        self.stages, self.microbatches = stages, microbatches
        self.overlapped = overlapped  # the place of the forward of each overlapped pair

    @cached_property
    def kind(self) -> np.ndarray:
        """The place in "FBIW" of each action's letter."""
        return (self.codes & 3).astype(np.int8)

    @cached_property
    def cell(self) -> np.ndarray:
        """microbatch · stages + stage of each action."""
        return self.codes >> 2

    @cached_property
    def stage(self) -> np.ndarray:
        """The stage of each action."""
        return self.cell % max(self.stages, 1)

    @cached_property
    def rank(self) -> np.ndarray:
        """The rank of each action."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    @cached_property
    def rank_of_stage(self) -> np.ndarray:
        """The rank of each stage."""
        ranks = np.full(self.stages, -1)
        ranks[self.stage] = self.rank
        return ranks

    @cached_property
    def needs(self) -> np.ndarray:
        """The place each action waits for: its neighbour's forward or backward.

        What its own rank must have done before stands earlier in the row, so nobody waits for it.
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
        """As `needs`, but the results of an overlapped pair are there when both are done."""
        if not len(self.overlapped):
            return self.needs
        waits = self.needs.copy()
        waits[np.isin(waits, self.overlapped)] += 1
        return waits

    def _places(self, wanted) -> np.ndarray:
        """For each cell, the place of its action among those wanted."""
        table = np.full(self.stages * self.microbatches, -1)
        wanted = np.flatnonzero(wanted)
        table[self.cell[wanted]] = wanted
        return table

    @cached_property
    def receiver(self) -> np.ndarray:
        """The rank each action's result is sent to; -1 where it stays on its rank."""
        ahead = np.append(self.rank_of_stage[1:], -1)
        back = np.append(-1, self.rank_of_stage[:-1])
        to = np.where(self.kind == F, ahead[self.stage], back[self.stage])
        return np.where((self.kind == W) | (to == self.rank), -1, to)
