"""The plan that runs equal blocks the fewest times, if so many inputs may be held: Griewank's revolve.

A checkpoint around the first m of n blocks holds one input while backward goes through the other n - m,
which may so hold one less. Then the m blocks run again, and hold as many as before:

    again(n, s) = min over m of  m + again(m, s) + again(n - m, s - 1)      again(1, s) = 0

Source: Griewank and Walther 2000, "Algorithm 799: revolve" (ACM TOMS 26), whose closed form is
r·n - C(s + r, s + 1) with the smallest r for which C(s + r, s) is at least n.
"""  # noqa: E501

import functools
from math import comb, inf

from lib.predict.arguments import whole
from lib.predict.recompute.plan import Plan


def binomial(blocks: int, slots: int) -> Plan:
    """Return the plan that computes least again for equal blocks, with at most `slots` inputs held.

    It is the best one if only one block at a time may hold all that its backward needs. Blocks that
    hold only their inputs can do better: a held input spares them the run before their backward.
    The block whose backward runs holds its own input besides. Blocks run more than twice where the
    slots are few.
    """
    blocks, slots = whole(blocks, "The number of blocks"), whole(slots, "slots", 0)
    if slots == 0 and blocks > 1:
        raise ValueError(f"{blocks} blocks need at least one slot for an input. Give slots=1.")
    return _plan(0, blocks, slots)


def repeated(blocks: int, slots: int) -> int:
    """Return how many forward runs of a block the best plan repeats, by the closed form."""
    if blocks == 1:
        return 0
    r = next(r for r in range(blocks) if comb(slots + r, slots) >= blocks)
    return r * blocks - comb(slots + r, slots + 1)


@functools.cache
def _split(blocks: int, slots: int) -> int:
    """Return m, how many blocks the first checkpoint has."""
    again = lambda n, s: inf if s == 0 and n > 1 else repeated(n, s)
    cost = lambda m: m + again(m, slots) + again(blocks - m, slots - 1)
    return min(range(1, blocks), key=cost)


def _plan(first: int, blocks: int, slots: int) -> Plan:
    if blocks == 1:
        return (first,)
    m = _split(blocks, slots)
    return (_plan(first, m, slots), *_plan(first + m, blocks - m, slots - 1))
