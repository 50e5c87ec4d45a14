"""The plan of the dynamic programme is the best of all plans, found by trying every one."""

import random
import time

import pytest

from lib.predict.recompute import BlockCost, best, smallest_peak, square_root, use_of
from tests.every import every


def all_plans(first, end):
    """Every plan without a checkpoint inside another, for blocks first to end - 1."""
    if first == end:
        yield ()
        return
    for rest in all_plans(first + 1, end):
        yield (first, *rest)
    for stop in range(first + 1, end + 1):
        for rest in all_plans(stop, end):
            yield (tuple(range(first, stop)), *rest)


def drawn(seed, blocks=7):
    draw = random.Random(seed)
    one = lambda: BlockCost(draw.randint(1, 6), draw.randint(0, 20), draw.randint(1, 9) / 4)
    return [one() for _ in range(blocks)]


@pytest.mark.parametrize("seed", range(6))
def test_it_is_the_best_of_all_plans(seed):
    costs = drawn(seed)
    uses = [use_of(plan, costs) for plan in all_plans(0, len(costs))]
    assert smallest_peak(costs) == min(use.peak for use in uses)
    for budget in range(smallest_peak(costs), sum(c.kept for c in costs) + 1, 3):
        found = use_of(best(costs, budget), costs)
        assert found.peak <= budget
        assert found.again == min(use.again for use in uses if use.peak <= budget)


@pytest.mark.parametrize("seed", range(4))
def test_sizes_are_not_rounded(seed):
    """Plans fill each budget to the byte, whatever the sizes are."""
    draw = random.Random(seed)
    size = lambda: draw.randint(10**6, 10**9)
    costs = [BlockCost(size(), 4 * size(), draw.random()) for _ in range(7)]
    uses = [use_of(plan, costs) for plan in all_plans(0, 7)]
    for budget in sorted({use.peak for use in uses if use.peak <= sum(c.kept for c in costs)})[::9]:
        found = use_of(best(costs, budget), costs)
        least = min(use.again for use in uses if use.peak <= budget)
        assert found.peak <= budget and found.again == pytest.approx(least, rel=1e-9)


def test_equal_blocks_need_no_finer_steps():
    """A front has at most one plan for each number of blocks that run again."""
    costs = [BlockCost(1_000_003, 7_000_019, 0.1)] * 60
    for budget in range(smallest_peak(costs), 500_000_000, 40_000_000):
        assert use_of(best(costs, budget, 61), costs) == use_of(best(costs, budget, 10**5), costs)


def test_thinned_fronts_miss_the_best_plan_by_less_than_a_step_for_each_block():
    costs = drawn(5, blocks=20)
    for budget in range(2 * smallest_peak(costs), 4 * smallest_peak(costs), 7):
        least = lambda nbytes: use_of(best(costs, nbytes, 10**5), costs).again
        few = [use_of(best(costs, budget, steps), costs) for steps in (40, 80)]
        for use, steps in zip(few, (40, 80)):
            assert use.peak <= budget
            less = budget - 20 * budget / steps
            assert least(budget) <= use.again
            assert less < smallest_peak(costs) or use.again <= least(less)


def test_all_fits_where_the_budget_is_large():
    costs = drawn(0)
    everything = sum(cost.kept for cost in costs)
    assert best(costs, everything) == tuple(range(7))
    assert best(costs, everything + 1, steps=1) == tuple(range(7))


def test_a_budget_that_cannot_be_met_is_refused_with_one_that_can():
    costs = drawn(1)
    least = smallest_peak(costs)
    with pytest.raises(ValueError, match=f"The smallest budget that can be met is {least:,} bytes"):
        best(costs, least - 1)
    assert use_of(best(costs, least, steps=3), costs).peak == least


def test_in_few_steps_it_never_exceeds_the_budget():
    costs = [BlockCost(1_000_003, 7_000_019 + 13 * n, 1.0) for n in range(30)]
    budgets = [use_of(square_root(30), costs).peak, 100_000_000, 150_000_000]
    for budget in budgets:
        assert use_of(best(costs, budget), costs).peak <= budget
    coarse, fine = (use_of(best(costs, 150_000_000, n), costs).again for n in (20, 2000))
    assert fine <= coarse


def test_a_hundred_blocks_are_planned_in_two_seconds():
    costs = drawn(3, blocks=100)
    begin = time.perf_counter()
    plan = best(costs, 2 * smallest_peak(costs))
    assert time.perf_counter() - begin < 2
    assert use_of(plan, costs).peak <= 2 * smallest_peak(costs)


def test_more_bytes_never_cost_more_time():
    costs = drawn(4, blocks=20)
    budgets = [smallest_peak(costs) + 5 * n for n in range(40)]
    times = [use_of(best(costs, budget), costs).again for budget in budgets]
    assert every(b <= a for a, b in zip(times, times[1:])) and times[-1] < times[0]
