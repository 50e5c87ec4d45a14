"""What blocks keep follows from the shape, to the byte; the frontier has no plan too many."""

import pytest
import torch

from lib.predict.recompute import none, smallest_peak, square_root, use_of
from lib.predict.recompute.costs import costs_of, frontier
from lib.predict.recompute.published import (
    FIGURE_7,
    MODELS,
    OPERATIONS_ADDED,
    operations_added,
    shares,
)
from lib.predict.roofline import speeds
from lib.predict.shape import GPTShape, MLPShape
from lib.predict.step import forward
from lib.single import GPT, MLP
from lib.single.recompute import block_costs
from tests.every import every

SMALL = {"vocabulary": 40, "sequence": 16, "width": 32, "heads": 4, "layers": 3, "hidden": 64}
SHAPES = {
    "plain": GPTShape(**SMALL),
    "dropout": GPTShape(**SMALL, dropout=0.1),
    "rotary, two keys": GPTShape(**SMALL, kv_heads=2, positions="rotary"),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_bytes_of_blocks_are_those_of_the_shape(shape):
    x = torch.randint(40, (3, 16), generator=torch.Generator().manual_seed(0))
    model = GPT(shape)
    found = block_costs(model, x, [0.0] * len(model))
    expected = costs_of(shape, 3, speeds("H100"))
    assert [cost[:2] for cost in found] == [cost[:2] for cost in expected]


def test_bytes_of_an_mlp():
    shape = MLPShape((8, 16, 4))
    found = block_costs(MLP(shape), torch.ones(5, 8), [0.0, 0.0])
    assert [cost[:2] for cost in found] == [c[:2] for c in costs_of(shape, 5, speeds("H100"))]


def test_seconds_are_those_of_the_forward_of_a_step():
    shape, device = SHAPES["plain"], speeds("H100")
    found = sum(cost.forward for cost in costs_of(shape, 3, device))
    expected = sum(device.compute(one.flop, one.bytes) for one in forward(shape, 3))
    assert found == pytest.approx(expected) and found > 0


def test_the_frontier_goes_from_the_least_bytes_to_everything_kept():
    costs = costs_of(GPTShape(layers=12), 4, speeds("H100"))
    found = frontier(costs)
    assert found[0].use.peak <= 1.02 * smallest_peak(costs)
    assert found[-1].plan == none(14) and found[-1].use.again == 0
    pairs = [(choice.use.peak, choice.use.again) for choice in found]
    assert len(pairs) > 8
    assert every(a[0] < b[0] and a[1] > b[1] for a, b in zip(pairs, pairs[1:]))
    rule = use_of(square_root(14), costs)
    within = [choice.use for choice in found if choice.use.peak <= rule.peak]
    assert min(use.again for use in within) <= rule.again


@pytest.mark.parametrize("name", OPERATIONS_ADDED)
def test_the_operations_that_selective_adds_are_published_three_times_too_many(name):
    """Attention has three passes of two products, and one of them runs again."""
    model = MODELS[name]
    assert operations_added(model, 12) == pytest.approx(OPERATIONS_ADDED[name], abs=1e-3)
    assert 3 * operations_added(model) == pytest.approx(operations_added(model, 12))
    forward_of_attention = 4 * model.sequence**2 * model.width
    whole = 3 * (24 * model.sequence * model.width**2 + forward_of_attention)
    assert operations_added(model) == pytest.approx(forward_of_attention / whole)


@pytest.mark.parametrize("name", MODELS)
def test_the_shares_are_those_computed_by_hand_from_the_published_table(name):
    for found, printed in zip(shares(MODELS[name]), FIGURE_7[name], strict=True):
        assert 100 * found == pytest.approx(printed, abs=0.1)
