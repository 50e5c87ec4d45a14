"""The plan that computes least again within a budget of bytes, for blocks that differ.

[Note: the family]
The plans have checkpoints beside one another and none inside another, so that each block runs again at
most once. Among these the best is found by a dynamic programme over the chain: what matters of the items
so far is only how many bytes they hold, and each next item, one kept block or a checkpoint around some,
must fit beside them with everything that its own backward holds. Bytes are counted in steps, rounded up:
with `steps` steps a plan may hold up to n steps less than the budget allows, and never more than it. Where
all sizes are multiples of so many bytes that fewer steps are enough, these are the steps, and nothing is
rounded.
"""  # noqa: E501

from collections.abc import Sequence
from math import ceil, gcd, inf

import numpy as np

from lib.predict.arguments import real, whole
from lib.predict.recompute.plan import BlockCost, Plan

_KEPT = -1


def best(costs: Sequence[BlockCost], budget: float, steps: int = 200) -> Plan:
    """Return the plan with the least seconds computed again whose peak is at most `budget` bytes.

    It is the least as far as bytes in `steps` steps tell; see the note above. Raises
    ValueError for a budget that no such plan meets, with the smallest that one does.
    """
    real(budget, "The budget")
    least, tightest = _tightest(costs)
    if budget < least:
        raise ValueError(
            f"No plan that runs each block at most once again holds {budget:,.0f} bytes or less. "
            f"The smallest budget that can be met is {least:,} bytes."
        )
    return _programme(costs, budget, whole(steps, "steps")) or tightest


def smallest_peak(costs: Sequence[BlockCost]) -> int:
    """Return the fewest bytes at the peak that a plan without nested checkpoints needs."""
    return _tightest(costs)[0]


def _programme(costs, budget: float, steps: int) -> Plan | None:
    """Return the best plan in whole steps of bytes, or None where rounding leaves none."""
    n, step = len(costs), max(budget, 1) / steps
    common = gcd(*(size for cost in costs for size in (cost.input, cost.inside)))
    if common and budget // common <= steps:
        step, steps = common, int(budget // common)
    up = lambda nbytes: ceil(nbytes / step - 1e-9)
    # seconds[i][h]: the least computed again by blocks before i if they hold h steps.
    seconds = np.full((n + 1, steps + 1), inf)
    came = np.zeros((n + 1, steps + 1), dtype=np.int64)  # where its last item begins, or _KEPT
    seconds[0, 0] = 0.0
    for end in range(1, n + 1):
        peak, again = 0, 0.0
        for first in range(end - 1, -1, -1):
            peak, again = peak + costs[first].kept, again + costs[first].forward
            if peak > budget:
                break
            choices = [(up(costs[first].input), again, first)]
            if first == end - 1:
                choices.append((up(costs[first].kept), 0.0, _KEPT))
            # With h steps held before it, the item's own backward needs h + peak.
            before = steps - up(peak) + 1
            for held, cost, name in choices:
                _better(seconds, came, end, held, seconds[first, :before] + cost, name)
    if not np.isfinite(seconds[n]).any():
        return None
    return _read(seconds, came, costs, up)


def _better(seconds, came, end: int, held: int, found, name: int) -> None:
    """Note an item that ends before block `end` and holds `held` steps, where it is better."""
    fits = found[: seconds.shape[1] - held]
    place = slice(held, held + len(fits))
    better = fits < seconds[end, place]
    seconds[end, place][better] = fits[better]
    came[end, place][better] = name


def _read(seconds, came, costs, up) -> Plan:
    """Return the plan that ends with the least seconds, read from its end."""
    end, items = len(costs), []
    held = int(np.argmin(seconds[end]))
    while end:
        name = came[end, held]
        if name == _KEPT:
            end -= 1
            held -= up(costs[end].kept)
            items.append(end)
        else:
            items.append(tuple(range(name, end)))
            end = int(name)
            held -= up(costs[end].input)
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
