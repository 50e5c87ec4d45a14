"""The plan that computes least again within a budget of bytes, for blocks that differ.

[Note: the family]
The plans have checkpoints beside one another and none inside another, so that each block runs again at
most once. Among these the best is found by a dynamic programme over the chain: what matters of the items
so far is only how many bytes they hold, and each next item, one kept block or a checkpoint around some,
must fit beside them with everything that its own backward holds.

[Note: what is remembered]
For each beginning of the chain the programme remembers its front: the plans of which no other one holds
at most as many bytes and computes at most as much again. With equal blocks a front has at most one plan
for each number of blocks that run again, and the result is the best plan to the byte. Where all blocks
differ, fronts can double with each block. A front of more than `steps` plans is thinned: of each of
`steps` equal parts of the budget it keeps the plan that computes least again, and of all plans the one
that holds least. For n blocks the result is then at least as good as the best plan for n of these parts
less; it never holds more than the budget.
"""  # noqa: E501

from collections.abc import Sequence
from math import inf

import numpy as np

from lib.predict.arguments import real, whole
from lib.predict.recompute.plan import BlockCost, Plan


def best(costs: Sequence[BlockCost], budget: float, steps: int = 300) -> Plan:
    """Return the plan with the least seconds computed again whose peak is at most `budget` bytes.

    It is the best one as long as no front has more than `steps` plans; see the notes above. Raises
    ValueError for a budget that no such plan meets, with the smallest that one does.
    """
    real(budget, "The budget")
    least = smallest_peak(costs)
    if budget < least:
        raise ValueError(
            f"No plan that runs each block at most once again holds {budget:,.0f} bytes or less. "
            f"The smallest budget that can be met is {least:,} bytes."
        )
    return _read(_fronts(costs, budget, whole(steps, "steps")))


def smallest_peak(costs: Sequence[BlockCost]) -> int:
    """Return the fewest bytes at the peak that a plan without nested checkpoints needs."""
    return _tightest(costs)[0]


# A front has a column for each plan, from the fewest bytes held to the least seconds, and these
# rows: bytes held after forward, seconds computed again, the block with which the last item begins,
# whether that is a kept block, and which plan of its own front the plan is without its last item.
_HELD, _AGAIN, _FIRST, _KEPT, _BEFORE = range(5)


def _fronts(costs, budget: float, steps: int) -> list[np.ndarray]:
    """Return the front of every beginning of the chain, of no block to all."""
    fronts = [np.zeros((5, 1))]
    for end in range(1, len(costs) + 1):
        peak, again, longer = 0, 0.0, []
        for first in range(end - 1, -1, -1):
            peak, again = peak + costs[first].kept, again + costs[first].forward
            if peak > budget:
                break
            # The item's backward needs its peak beside all that is held before it.
            fit = fronts[first][_HELD].searchsorted(budget - peak, side="right")
            longer.append(_with(fronts[first][:, :fit], (costs[first].input, again, first, False)))
            if first == end - 1:
                longer.append(_with(fronts[first][:, :fit], (peak, 0.0, first, True)))
        fronts.append(_front(np.hstack(longer), budget / steps, steps))
    return fronts


def _with(front: np.ndarray, item: tuple) -> np.ndarray:
    """Return the plans of a front with one more item: its bytes, seconds, first block and kind."""
    longer = np.empty_like(front)
    longer[:_FIRST] = front[:_FIRST] + np.array(item[:_FIRST])[:, None]
    longer[_FIRST:_BEFORE] = np.array(item[_FIRST:])[:, None]
    longer[_BEFORE] = np.arange(front.shape[1])
    return longer


def _front(plans: np.ndarray, part: float, most: int) -> np.ndarray:
    """Return the plans that no other one beats, and of more than `most` one in each part."""
    plans = plans[:, np.lexsort((plans[_AGAIN], plans[_HELD]))]
    # Sums of the same seconds in another order differ in their last bits: that is no gain.
    least = np.minimum.accumulate(plans[_AGAIN])
    plans = plans[:, np.append(True, plans[_AGAIN, 1:] < least[:-1] * (1 - 1e-12))]
    if plans.shape[1] > most:
        last = np.append(np.diff(plans[_HELD] // part) > 0, True)  # of each part
        last[0] = True
        plans = plans[:, last]
    return plans


def _read(fronts: list[np.ndarray]) -> Plan:
    """Return the last plan of the last front, which has the least seconds, read from its end."""
    items, end, place = [], len(fronts) - 1, -1
    while end:
        _, _, first, kept, before = fronts[end][:, place]
        items.append(int(first) if kept else tuple(range(int(first), end)))
        end, place = int(first), int(before)
    return tuple(reversed(items))


def _tightest(costs) -> tuple[int, Plan]:
    """Return the smallest peak, and a plan that has it.

    A checkpoint around single blocks or more holds least, so only checkpoints are looked at. Below
    a given peak the fewest bytes held before each block decide what is still possible.
    """
    low, high = max(cost.kept for cost in costs), sum(cost.kept for cost in costs)
    plan = (tuple(range(len(costs))),)
    while low < high:
        middle = (low + high) // 2
        found = _within(costs, middle)
        low, high, plan = (low, middle, found) if found else (middle + 1, high, plan)
    return high, plan


def _within(costs, budget: int) -> Plan | None:
    """Return the plan of checkpoints that hold least among those with this peak, or None."""
    held, came = [0] + [inf] * len(costs), [0] * (len(costs) + 1)
    for end in range(1, len(costs) + 1):
        peak = 0
        for first in range(end - 1, -1, -1):
            peak += costs[first].kept
            if peak > budget:
                break
            after = held[first] + costs[first].input
            if held[first] + peak <= budget and after < held[end]:
                held[end], came[end] = after, first
    if held[-1] == inf:
        return None
    items, end = [], len(costs)
    while end:
        items.append(tuple(range(came[end], end)))
        end = came[end]
    return tuple(reversed(items))
