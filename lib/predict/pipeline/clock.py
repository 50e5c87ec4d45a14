"""The simulation of every pipeline: each action starts as early as it can.

[Note: earliest start]
The order on each rank is fixed, so there is exactly one set of earliest start times, whatever order
they are computed in. `_turns` goes through the ranks, from first to last and back, and advances
each rank until its next action needs a result that is not ready; it ends when no rank advances any
more. `_rounds` advances all ranks that can by one action at once, in NumPy, which is faster for
hundreds of ranks. Ranks that never reach the end of their rows are in a deadlock.
"""

import numpy as np

_MANY = 64  # the number of ranks from which `_rounds` is faster


def earliest(begin, end, needs, late, busy) -> np.ndarray:
    """Return the end of each action; nan for those that are never reached.

    Row k has the actions from `begin[k]` up to, without, `end[k]`. Each action waits for the action
    `needs` (-1 for none), may start `late` after that one's end, and occupies its rank for `busy`;
    all times are in one unit of any kind.
    """
    many = len(begin) >= _MANY
    ends = _rounds(begin, end, needs, late, busy) if many else None
    return _turns(begin, end, needs, late, busy) if ends is None else ends


def _turns(begin, end, needs, late, busy):
    ends = [None] * len(needs) + [0.0]  # the last entry is read by actions that need nothing (-1)

    def walk(first, stop):
        """Advance one rank; yield the index of the action that has to wait."""
        free = 0.0
        row = (array[first:stop].tolist() for array in (needs, late, busy))
        for index, need, delay, duration in zip(range(first, stop), *row):
            while (start := ends[need]) is None:
                yield index
            start += delay
            if start > free:
                free = start
            ends[index] = free = free + duration

    stops = end.tolist()
    walks = [walk(*pair) for pair in zip(begin.tolist(), stops)]
    turns, before = [(walks, stops), (walks[::-1], stops[::-1])], None
    while True:  # the sum of all ranks' positions, where a rank at its end counts its stop
        now = sum(sum(map(next, *pair)) for pair in turns)
        if now == before:
            return np.array(ends[:-1], float)
        before = now


def _rounds(begin, last, needs, late, busy):
    """Compute the same as `_turns`; return None where too few ranks advance at once to be fast."""
    position = begin.copy()
    clock, ends = np.zeros(len(position)), np.full(len(needs) + 1, np.inf)
    ends[-1] = 0.0
    for _ in range(4 * (int((last - begin).max()) + len(position))):
        rows = np.flatnonzero(position < last)
        actions = position[rows]
        start = ends[needs[actions]] + late[actions]
        ready = start < np.inf
        rows, actions = rows[ready], actions[ready]
        if not len(rows):
            return np.where(ends[:-1] < np.inf, ends[:-1], np.nan)
        clock[rows] = ends[actions] = np.maximum(clock[rows], start[ready]) + busy[actions]
        position[rows] += 1
    return None
