"""The one loop behind every pipeline on paper: each action as early as it can.

[Note: earliest start]
The order on each rank is fixed, so there is exactly one way to play a schedule in which nothing
waits without a reason. A rank goes on until its next action needs something that has not arrived;
then it leaves its number at that action, and whoever finishes it wakes the rank up. In which order
the ranks take their turns changes nothing. Ranks that never reach their end are in a deadlock.
"""


def earliest(first, needs, busy, travel, also=None):
    """Play rows that stand one after the other; `first` says where each rank's begins and ends.

    For each action: `needs` is the action whose result it waits for (-1: none), `busy` how long it
    occupies its rank, `travel` how long its result is on its way after that. `also` maps actions to
    a second need. All are lists; times are in any one unit. Returns the start of each action, and
    for each rank the place where it stopped: the end of its row, or the action it is stuck before.
    """
    ranks = len(first) - 1
    at, clock = list(first[:ranks]), [0.0] * ranks
    starts, arrives = [0.0] * len(needs), [None] * len(needs)
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
            if also and here in also:
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
    return starts, at
