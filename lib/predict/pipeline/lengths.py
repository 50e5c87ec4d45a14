"""Durations of a schedule's actions and of their messages, in the order of its rows."""

import numpy as np

from lib.predict.pipeline.grid import B, F, W


def actions(grid, costs) -> np.ndarray:
    """Return how long each action takes alone; of each stage a step's first B or W adds nothing."""
    own = costs.table(grid.stages)[grid.kind, grid.stage]
    added = costs.each("accumulate", grid.stages)
    if added.any():
        last = np.flatnonzero((grid.kind == B) | (grid.kind == W))
        steps = grid.cell[last] // grid.stages // costs.cleared if costs.cleared else 0
        home = (steps * len(grid.first) + grid.rank[last]) * grid.stages + grid.stage[last]
        first = last[np.unique(home, return_index=True)[1]]
        own[first] -= added[grid.stage[first]]
        if own.min() < 0:
            raise ValueError(
                "Costs: accumulate is a part of each B and W, so it cannot be longer than these."
            )
    return own


def messages(grid, costs) -> np.ndarray:
    """Return how long the message of each action takes; 0 where its result stays on its rank."""
    border = costs.each("send", grid.stages - 1)
    if not border.any():
        return np.zeros(len(grid.codes))
    forth, back = np.append(border, 0.0), np.append(0.0, border)
    sends = np.where(grid.kind == F, forth[grid.stage], back[grid.stage])
    return np.where(grid.receiver >= 0, sends, 0.0)


def after_sending(grid, busy, sends):
    """Return how long each action occupies a rank that waits for its sends, and when they arrive.

    Arrivals are counted from the end of the first. An overlapped pair is computed first; then the
    result of its forward is sent, then that of its backward.
    """
    first, busy = grid.overlapped, busy + sends
    busy[first + 1] += sends[first]
    busy[first] = 0.0
    arrivals = np.zeros_like(busy)
    arrivals[first] = -sends[first + 1]
    return busy, arrivals
