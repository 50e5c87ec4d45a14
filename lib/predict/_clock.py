"""The one thing behind every pipeline on paper: each action as early as it can.

[Note: earliest start]
The order on each rank is fixed, so there is exactly one way to play a schedule in which nothing
waits without a reason, and in which order the ranks take their turns changes nothing. `_turns` lets
a rank go on until its next action needs something that has not arrived; then the rank leaves its
number at that action, and whoever finishes it wakes the rank up. `_rounds` lets all ranks that can
do so take one action at once, in NumPy: for hundreds of ranks. Ranks that never reach their end are
in a deadlock.
"""

import numpy as np

_MANY = 64  # ranks from which on a round in NumPy pays


def earliest(first, needs, busy, travel, also=None):
    """Play rows that stand one after the other; `first` says where each rank's begins and ends.

    For each action: `needs` is the action whose result it waits for (-1: none), `busy` how long it
    occupies its rank, `travel` how long its result is on its way after that; `also` is a second
    need. All are arrays; times are in any one unit. Returns the start of each action, and for each
    rank the place where it stopped: the end of its row, or the action that it is stuck before.
    """
    also = np.full(len(needs), -1) if also is None else also
    played = _rounds(first, needs, busy, travel, also) if len(first) > _MANY else None
    return played or _turns(*(array.tolist() for array in (first, needs, busy, travel, also)))


def _turns(first, needs, busy, travel, also):
    ranks = len(first) - 1
    at, clock = list(first[:ranks]), [0.0] * ranks
    starts, arrives = [0.0] * len(needs), [None] * len(needs)
    second = any(need >= 0 for need in also)
    waiting: dict[int, int] = {}  # action -> the rank that waits for it
    awake = list(range(ranks - 1, -1, -1))
    while awake:
        rank = awake.pop()
        here, last, free = at[rank], first[rank + 1], clock[rank]
        while here < last:
            need = needs[here]
            if need >= 0:
                arrival = arrives[need]
                if arrival is None:
                    waiting[need] = rank
                    break
                if arrival > free:
                    free = arrival
            if second and also[here] >= 0:
                arrival = arrives[also[here]]
                if arrival is None:
                    waiting[also[here]] = rank
                    break
                free = max(free, arrival)
            starts[here] = free
            free += busy[here]
            arrives[here] = free + travel[here]
            if here in waiting:
                awake.append(waiting.pop(here))
            here += 1
        at[rank], clock[rank] = here, free
    return np.array(starts), at


def _rounds(first, needs, busy, travel, also):
    """As `_turns`; None where so few ranks work at once that turns are faster."""
    last, at = first[1:], first[:-1].copy()
    clock, starts = np.zeros(len(at)), np.zeros(len(needs))
    arrives = np.full(len(needs) + 1, np.inf)
    arrives[-1] = 0.0  # whoever needs nothing, -1, reads this
    second = (also >= 0).any()
    for _ in range(4 * (int(np.diff(first).max()) + len(at))):
        able = np.flatnonzero(at < last)
        here = at[able]
        arrival = arrives[needs[here]]
        if second:
            arrival = np.maximum(arrival, arrives[also[here]])
        ready = arrival < np.inf
        able, here = able[ready], here[ready]
        if not len(able):
            return starts, at.tolist()
        start = np.maximum(clock[able], arrival[ready])
        starts[here] = start
        clock[able] = end = start + busy[here]
        arrives[here] = end + travel[here]
        at[able] += 1
    return None
