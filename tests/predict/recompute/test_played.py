"""A plan on a clock: by hand, with the bytes and seconds of the plan, and as rows."""

import random

import pytest

from lib.predict.recompute import (
    BlockCost,
    best,
    binomial,
    every,
    none,
    play_plan,
    smallest_peak,
    square_root,
    use_of,
)
from lib.predict.recompute.costs import backward_of, costs_of
from lib.predict.recompute.played import PlanBar, backward_seconds
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape
from lib.predict.step import backward
from tests.every import every as all_of

THREE = [BlockCost(1, 9, 1.0), BlockCost(2, 8, 2.0), BlockCost(3, 5, 4.0)]


def test_a_checkpoint_beside_a_kept_block_by_hand():
    run = play_plan(((0, 1), 2), THREE, [1.0, 2.0, 3.0])
    assert run.bars == (
        PlanBar("forward", 0, 0.0, 1.0), PlanBar("forward", 1, 1.0, 3.0),
        PlanBar("forward", 2, 3.0, 7.0),
        PlanBar("backward", 2, 7.0, 10.0),
        PlanBar("recompute", 0, 10.0, 11.0), PlanBar("recompute", 1, 11.0, 13.0),
        PlanBar("backward", 1, 13.0, 15.0), PlanBar("backward", 0, 15.0, 16.0),
    )  # fmt: skip
    # The checkpoint's input; beside it block 2, which goes; what the checkpoint's blocks keep.
    assert run.held == (
        (0.0, 0), (0.0, 1), (3.0, 9), (10.0, 1), (10.0, 10), (11.0, 20), (15.0, 10), (16.0, 0),
    )  # fmt: skip
    assert (run.end, run.peak, run.again) == (16.0, 20, 3.0)


def test_everything_kept_runs_once():
    run = play_plan(none(3), THREE)
    assert [bar.kind for bar in run.bars] == ["forward"] * 3 + ["backward"] * 3
    assert [bar.block for bar in run.bars] == [0, 1, 2, 2, 1, 0]
    assert (run.end, run.peak, run.again) == (7 + 14, 28, 0.0)


def some_plan(draw, first: int, last: int, depth: int = 3):
    """A plan for some blocks, with checkpoints in checkpoints."""
    items = []
    while first < last:
        end = draw.randint(first + 1, last)
        if depth and draw.random() < 0.5:
            items.append(some_plan(draw, first, end, depth - 1))
            first = end
        else:
            items.append(first)
            first += 1
    return tuple(items)


def some_costs(draw, count: int) -> list[BlockCost]:
    """Costs of blocks, among them the extreme ones."""
    size = lambda: draw.choice([0, 1, draw.randint(1, 10**9)])
    return [
        BlockCost(size(), size(), draw.choice([0.0, 1e-3, draw.random()])) for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(100))
def test_the_peak_and_the_repeated_seconds_are_those_of_the_plan(seed):
    draw = random.Random(seed)
    costs = some_costs(draw, draw.choice([1, 2, 5, 12]))
    plan = some_plan(draw, 0, len(costs))
    run, use = play_plan(plan, costs), use_of(plan, costs)
    assert (run.peak, run.again) == (use.peak, use.again)
    runs = [sum(b.block == n and b.kind != "backward" for b in run.bars) for n in range(len(costs))]
    assert tuple(runs) == use.runs
    assert run.held[-1][1] == 0 and all_of(nbytes >= 0 for _, nbytes in run.held)
    once = sum(cost.forward for cost in costs)
    assert run.end == pytest.approx(3 * once + use.again)
    going_back = [bar.block for bar in run.bars if bar.kind == "backward"]
    assert going_back == list(range(len(costs)))[::-1]


def test_a_plan_played_in_another_way_is_not_the_same():
    """The peak tells plans apart: without the input of its checkpoint, or with all of it, it is not
    that of the plan."""
    for plan in (every(6, 2), square_root(6), binomial(6, 2)):
        use = use_of(plan, [BlockCost(1, 4, 1.0)] * 6)
        assert play_plan(plan, [BlockCost(1, 4, 1.0)] * 6).peak == use.peak
        assert play_plan(plan, [BlockCost(0, 4, 1.0)] * 6).peak < use.peak
        assert play_plan(none(6), [BlockCost(1, 4, 1.0)] * 6).peak > use.peak


def test_the_best_plan_stays_within_its_budget_at_every_moment():
    costs = costs_of(GPTShape(layers=6), 2, speeds("H100"))
    budget = 1.5 * smallest_peak(costs)
    run = play_plan(best(costs, budget), costs)
    assert all_of(nbytes <= budget for _, nbytes in run.held) and run.again > 0


def test_rows_are_those_of_one_rank():
    ledger = play_plan(((0, 1), 2), THREE).ledger
    assert (ledger.source, ledger.ranks) == ("predicted", (0,))
    forward = ledger.where(lane="compute", op="forward")
    assert [(row.stage, row.note) for row in forward] == [
        (0, ""), (1, ""), (2, ""), (0, "again"), (1, "again"),
    ]  # fmt: skip
    assert [row.stage for row in ledger.where(op="backward")] == [2, 1, 0]
    held = ledger.where(lane="memory", op="activations")
    assert max(row.bytes for row in held) == 20


def test_backward_of_blocks_is_the_backward_of_a_step():
    shape, device = GPTShape(layers=3), speeds("H100")
    found = backward_of(shape, 2, device)
    expected = sum(device.compute(one.flop, one.bytes) for one in backward(shape, 2))
    assert len(found) == 5 and sum(found) == pytest.approx(expected)
    assert found != backward_seconds(costs_of(shape, 2, device))  # which are twice forward


def test_bad_times_are_refused():
    with pytest.raises(ValueError, match="There are 3 blocks and 2 times of backward."):
        play_plan(none(3), THREE, [1.0, 2.0])
    with pytest.raises(ValueError, match="A time of backward must be finite and at least 0"):
        play_plan(none(3), THREE, [1.0, 2.0, -1.0])
    with pytest.raises(ValueError, match="A plan for 3 blocks"):
        play_plan(none(2), THREE)
