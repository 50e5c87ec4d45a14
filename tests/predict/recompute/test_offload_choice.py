"""The choices of blocks against all choices that there are, and the formula against the step."""

import itertools
import random

import pytest

from lib.predict.recompute import BlockCost
from lib.predict.recompute.offload import offload_use
from lib.predict.recompute.offload_choice import (
    better_offloaded,
    break_even_bandwidth,
    exposed_for_each,
    hidden_keep,
    keep_within,
)
from lib.predict.sharded.offload import HostSpeeds

BLOCKS = 7


def chain(seed):
    draw = random.Random(seed)
    costs = [BlockCost(draw.randint(1, 9), draw.randint(0, 60), draw.uniform(0.5, 3.0))
             for _ in range(BLOCKS)]  # fmt: skip
    back = [cost.forward * draw.uniform(0.8, 2.5) for cost in costs]
    return costs, back, HostSpeeds(draw.choice([0.0, 0.3]), draw.uniform(8, 60), 1.0)


def all_uses(costs, back, host, ahead):
    """Every choice of blocks to keep, with what it takes."""
    for count in range(BLOCKS + 1):
        for keep in itertools.combinations(range(BLOCKS), count):
            yield offload_use(costs, back, host, keep, ahead)


@pytest.mark.parametrize("ahead", [0, 1, 2])
def test_what_is_hidden_is_the_most_that_can_be(ahead):
    found = []
    for seed in range(15):
        costs, back, host = chain(seed)
        use = offload_use(costs, back, host, hidden_keep(costs, back, host, ahead), ahead)
        free = [one for one in all_uses(costs, back, host, ahead) if one.exposed < 1e-9]
        assert use.exposed == pytest.approx(0, abs=1e-9)
        assert use.after_forward == min(one.after_forward for one in free)
        found.append(use.host)
    assert (max(found) > 0) is (ahead > 0)


def test_within_a_budget_the_choice_is_near_the_best():
    over = []
    for seed in range(15):
        costs, back, host = chain(seed)
        uses = list(all_uses(costs, back, host, 1))
        least, most = min(one.peak for one in uses), max(one.peak for one in uses)
        for part in (0.1, 0.4, 0.7):
            budget = least + part * (most - least)
            use = offload_use(costs, back, host, keep_within(costs, back, host, budget))
            best = min(one.seconds for one in uses if one.peak <= budget)
            assert use.peak <= budget and use.seconds >= best - 1e-9
            over.append(use.seconds / best)
    assert max(over) < 1.15 and sum(one < 1.0001 for one in over) > 0.6 * len(over)


def test_a_budget_that_cannot_be_met_is_refused():
    costs, back, host = chain(0)
    with pytest.raises(ValueError, match="With all blocks offloaded, activations hold"):
        keep_within(costs, back, host, 1)


@pytest.mark.parametrize("bandwidth", [4.0, 6.0, 8.0, 15.0])
def test_equal_blocks_expose_what_the_formula_says(bandwidth):
    """A long chain grows by the same seconds for each block that it has more."""
    host, cost = HostSpeeds(0.1, bandwidth, 1.0), BlockCost(2, 8, 1.0)
    taken = [offload_use([cost] * n, [2.0] * n, host).exposed for n in (40, 50)]
    expected = exposed_for_each(10, 1.0, 2.0, host)
    assert (taken[1] - taken[0]) / 10 == pytest.approx(expected)
    assert (expected > 0) is (bandwidth < 10)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0, 3.0])
def test_at_the_break_even_both_cost_the_same(ratio):
    bandwidth = break_even_bandwidth(10, 600.0, 300.0, ratio, alpha=0.25)
    host = HostSpeeds(0.25, bandwidth, 1.0)
    assert exposed_for_each(10, 2.0, 2.0 * ratio, host) == pytest.approx(2.0)
    cost = BlockCost(2, 8, 2.0)
    for factor, better in ((1.01, True), (0.99, False)):
        other = HostSpeeds(0.25, factor * bandwidth, 1.0)
        assert better_offloaded(cost, 2.0 * ratio, other) is better


def test_a_latency_longer_than_two_forwards_never_pays():
    assert break_even_bandwidth(10, 1.0, 1.0, alpha=2.0) == float("inf")
    assert break_even_bandwidth(10, 1.0, 1.0) == 5.0
