"""The one thing behind every pipeline on paper: each action as early as it can.

[Note: earliest start]
The order on each rank is fixed, so there is exactly one way to play a schedule in which nothing
waits without a reason, and in which order the ranks take their turns changes nothing. `_turns` lets
a rank go on until its next action needs something that is not done; then the rank leaves its number
at that action, and whoever does it wakes the rank up. `_rounds` lets all ranks that can do so take
one action at once, in NumPy: for hundreds of ranks. Ranks that never reach their end are in a
deadlock.
"""

import numpy as np

_MANY = 64  # ranks from which on a round in NumPy pays


def earliest(first, needs, late, busy) -> np.ndarray:
    """Play rows that stand one after the other; `first` says where each rank's begins and ends.

    For each action: `needs` is the action that it waits for (-1: none), `late` how long after the
    end of that it may start, `busy` how long it occupies its rank; times in any one unit. Returns
    the end of each action, nan for those that are never reached.
    """
    ends = _rounds(first, needs, late, busy) if len(first) > _MANY else None
    return _turns(first, needs, late, busy) if ends is None else ends


def _turns(first, needs, late, busy):
    ends = [None] * len(needs) + [0.0]  # whoever needs nothing, -1, reads the last one
    waiting: dict[int, list[int]] = {}  # action -> the ranks that wait for it
    awake = list(range(len(first) - 2, -1, -1))

    def walk(rank, here, last):
        free = 0.0
        row = (array[here:last].tolist() for array in (needs, late, busy))
        for here, need, delay, takes in zip(range(here, last), *row):  # noqa: B020
            end = ends[need]
            if end is None:
                waiting.setdefault(need, []).append(rank)
                yield
                end = ends[need]
            end += delay
            if end > free:
                free = end
            free += takes
            ends[here] = free
            if here in waiting:
                awake.extend(waiting.pop(here))

    walks = [walk(rank, *pair) for rank, pair in enumerate(zip(first.tolist(), first[1:].tolist()))]
    while awake:
        next(walks[awake.pop()], None)
    return np.array(ends[:-1], float)


def _rounds(first, needs, late, busy):
    """As `_turns`; None where so few ranks work at once that turns are faster."""
    last, at = first[1:], first[:-1].copy()
    clock, ends = np.zeros(len(at)), np.full(len(needs) + 1, np.inf)
    ends[-1] = 0.0
    for _ in range(4 * (int(np.diff(first).max()) + len(at))):
        able = np.flatnonzero(at < last)
        here = at[able]
        start = ends[needs[here]] + late[here]
        ready = start < np.inf
        able, here = able[ready], here[ready]
        if not len(able):
            return np.where(ends[:-1] < np.inf, ends[:-1], np.nan)
        clock[able] = ends[here] = np.maximum(clock[able], start[ready]) + busy[here]
        at[able] += 1
    return None
