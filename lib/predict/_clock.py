"""The one thing behind every pipeline on paper: each action as early as it can.

[Note: earliest start]
The order on each rank is fixed, so there is exactly one way to play a schedule in which nothing
waits without a reason, and in which order the ranks take their turns changes nothing. `_turns` goes
through the ranks, first to last and back, and lets each go on until its next action needs something
that is not done; it ends when nobody has got on. `_rounds` lets all ranks that can do so take one
action at once, in NumPy: for hundreds of ranks. Ranks that never reach their end are in a deadlock.
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

    def walk(begin, end):
        free = 0.0
        row = (array[begin:end].tolist() for array in (needs, late, busy))
        for here, need, delay, takes in zip(range(begin, end), *row):
            while (start := ends[need]) is None:
                yield here
            start += delay
            if start > free:
                free = start
            ends[here] = free = free + takes

    stops = first[1:].tolist()
    walks = [walk(*pair) for pair in zip(first.tolist(), stops)]
    turns, before = [(walks, stops), (walks[::-1], stops[::-1])], None
    while True:  # the places where all stand, added up: a rank at its end yields that
        now = sum(sum(map(next, *pair)) for pair in turns)
        if now == before:
            return np.array(ends[:-1], float)
        before = now


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
