"""Which blocks are worth to be offloaded, and where offload beats recomputation.

[Note: equal blocks]
In the middle of a chain of equal blocks, each of which keeps h bytes, computes F seconds forward
and B backward, a copy takes t = α + h/bandwidth and has a block's computation to hide under:

    exposed for each block     max(0, t - F) in forward  +  max(0, t - B) in backward
    recomputed instead         F

With B = r · F both are equal at t = F · min(2, 1 + r/2). So with B = 2 F a copy may take as long as
two forwards before recomputation is better, and up to one forward nothing at all is exposed.
Recomputation keeps the block's input on the device, which offload sends away too.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple

from lib.predict.arguments import real
from lib.predict.recompute.offload import OffloadUse, kept_blocks, offload_use
from lib.predict.recompute.plan import BlockCost
from lib.predict.sharded.offload import HostSpeeds


def exposed_for_each(nbytes: float, forward: float, backward: float, host: HostSpeeds) -> float:
    """Return the seconds that each of equal blocks adds to a step if it is offloaded.

    `nbytes` are those that a block keeps, `forward` and `backward` its seconds; see the note above.
    """
    taken = host.moving(nbytes)
    return max(0.0, taken - forward) + max(0.0, taken - backward)


def better_offloaded(cost: BlockCost, backward: float, host: HostSpeeds) -> bool:
    """Tell whether equal blocks cost a step less time offloaded than recomputed."""
    return exposed_for_each(cost.kept, cost.forward, backward, host) < cost.forward


def break_even_bandwidth(
    nbytes: float, flop: float, rate: float, backward: float = 2.0, alpha: float = 0.0
) -> float:
    """Return the bandwidth of the link, in bytes/s, above which offload beats recomputation.

        bandwidth = h / (min(2, 1 + r/2) · F - α),   F = FLOP / rate,   r = backward

    for equal blocks that keep h `nbytes` and compute `flop` in forward, on a device that reaches
    `rate` FLOP/s. `backward` is r, how many times as long backward takes, and `alpha` the latency
    of the link. Infinite where the latency alone takes too long.
    """
    forward = real(flop, "flop") / real(rate, "rate", zero=False)
    longest = min(2.0, 1 + real(backward, "backward") / 2) * forward
    moving = longest - real(alpha, "alpha")
    return real(nbytes, "nbytes") / moving if moving > 0 else inf


class _State(NamedTuple):
    """Holds what a choice for the first blocks means for the others.

    `free` is when the link to the host is free, `begin` when that from it must be.
    """

    free: float
    begin: float
    sent: int
    keep: tuple[int, ...]


def hidden_keep(
    costs: Sequence[BlockCost], backward: Sequence[float], host: HostSpeeds, ahead: int = 1
) -> set[int]:
    """Return which blocks to keep so that no copy is waited for and the device holds least.

    All others are offloaded, and the step takes no longer than without offload. It is the best of
    all choices: for each block both are tried, offloaded if each of its copies can run between its
    launch and its deadline (vDNN's question for a layer), and of choices for the blocks so far only
    those stay that no other one beats in both links and in bytes.
    """
    n, always = len(costs), kept_blocks(len(costs), 0, ahead)
    ends = list(accumulate(cost.forward for cost in costs))
    begins = [ends[-1] + sum(backward[m + 1 :]) for m in range(n)]  # of each backward
    states = [_State(0.0, inf, 0, ())]
    for m in range(n):
        found = [state._replace(keep=(*state.keep, m)) for state in states]
        if m not in always:
            taken = host.moving(costs[m].kept)
            for state in states:
                free = max(state.free, ends[m]) + taken
                begin = min(state.begin, begins[m]) - taken
                if free <= ends[m + ahead] and begin >= begins[m + ahead]:
                    sent = state.sent + costs[m].kept
                    found.append(_State(free, begin, sent, state.keep))
        states = _unbeaten(found, ends[min(m + 1, n - 1)], begins[min(m + 1, n - 1)])
    return set(max(states, key=lambda state: state.sent).keep)


def _unbeaten(states: list[_State], launched: float, deadline: float) -> list[_State]:
    """Return the states that no other beats; what is before the next launch is all the same."""
    states = [state._replace(free=max(state.free, launched), begin=min(state.begin, deadline))
              for state in states]  # fmt: skip
    found: list[_State] = []
    for state in sorted(states, key=lambda s: (-s.sent, s.free, -s.begin)):
        if not any(other.free <= state.free and other.begin >= state.begin for other in found):
            found.append(state)
    return found


def keep_within(
    costs: Sequence[BlockCost], backward: Sequence[float], host: HostSpeeds, budget: float,
    ahead: int = 1,
) -> set[int]:  # fmt: skip
    """Return which blocks to keep so that activations never hold more than `budget` bytes.

    It starts from what is hidden, offloads block after block, each time the one that costs least
    time for its bytes, and keeps again those that need not go. This is seldom the very best choice
    and rarely far from it. Raises ValueError for a budget that offload of all blocks exceeds.
    """
    always = kept_blocks(len(costs), 0, ahead)
    use = lambda keep: offload_use(costs, backward, host, keep, ahead)
    keep = hidden_keep(costs, backward, host, ahead)
    now = use(keep)
    while now.peak > real(budget, "The budget"):
        if not keep - always:
            raise ValueError(
                f"With all blocks offloaded, activations hold {now.peak:,} bytes at the peak, and "
                f"the budget is {budget:,.0f}. Choose a smaller `ahead`, a smaller batch, or "
                "checkpoints beside offload."
            )
        left = [(use(keep - {n}), n) for n in sorted(keep - always)]
        now, n = min(left, key=lambda pair: (pair[0].seconds - now.seconds) / costs[pair[1]].kept)
        keep = keep - {n}
    return _kept_again(keep, use, now, budget, len(costs))


def _kept_again(keep: set[int], use, now: OffloadUse, budget: float, blocks: int) -> set[int]:
    """Return the choice with each block kept whose offload costs time and is not needed."""
    for n in sorted(set(range(blocks)) - keep):
        other = use(keep | {n})
        if other.peak <= budget and other.seconds < now.seconds:
            keep, now = keep | {n}, other
    return keep
