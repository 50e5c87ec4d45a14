"""Muon's products, owners and messages: formulas against products counted one by one."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lib.predict.flops import training_flop
from lib.predict.optimizers.muon import (
    equal_sizes,
    flop_by_rank,
    newton_schulz_flop,
    of_muon,
    owners,
    sent_numbers,
)
from lib.predict.shape import GPTShape
from lib.single.optimizers.muon import newton_schulz
from tests.every import every

LAYER = [(48, 16), (16, 16), (64, 16), (16, 64)]  # qkv, proj, up, down


@pytest.mark.parametrize("shape", [(6, 6), (12, 5), (5, 12), (1, 7)])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_flop_are_those_of_the_products(shape, steps):
    with FlopCounterMode(display=False) as counter:
        newton_schulz(torch.randn(shape), steps)
    assert counter.get_total_flops() == newton_schulz_flop(shape, steps)


def test_the_share_of_a_step_is_below_the_published_bound():
    """At most 5·m/B of the training; attention and vocabulary make the true share smaller."""
    width, tokens = 768, 2**19
    shape = GPTShape(vocabulary=50257, sequence=1024, width=width, heads=12, layers=12)
    matrices = [p.shape for p in shape.parameters if len(p.shape) == 2 and 0 < p.block < 13]
    flop = sum(map(newton_schulz_flop, matrices))
    share = flop / training_flop(shape, tokens)
    assert len(matrices) == 4 * 12
    assert 0.3 * 5 * width / tokens < share < 5 * width / tokens


def test_round_robin_gives_the_same_matrix_of_each_layer_to_the_same_rank():
    layers = LAYER * 3
    assert owners(layers, 4, "round robin") == [0, 1, 2, 3] * 3
    parts = [(shape, equal_sizes(shape, 4, 0)) for shape in layers]
    uneven = flop_by_rank(parts, 4, rule="round robin")
    even = flop_by_rank(parts, 4, rule="balanced")
    assert sum(uneven) == sum(even) == sum(map(newton_schulz_flop, layers))
    assert max(uneven) == 3 * newton_schulz_flop((64, 16)) > max(even)


def test_balanced_is_the_largest_first():
    assert owners([(4, 4), (8, 8), (4, 4), (6, 6)], 2) == [1, 0, 1, 1]
    assert owners([], 3) == []


def test_messages_by_hand():
    """Two ranks: rank 0 owns the larger matrix; flat pieces of 5 and 3 of the smaller one."""
    parts = [((2, 4), [5, 3]), ((4, 4), [8, 8]), ((3, 3), None)]
    found = [of_muon(parts, 2, rank, 2) for rank in range(2)]
    assert owners([(2, 4), (4, 4)], 2) == [1, 0]
    assert [(call.op, call.bytes) for call in found[0]] == [
        ("all_reduce", 2), ("all_to_all", 2 * (5 + 8)), ("all_to_all", 2 * 16)]  # fmt: skip
    assert [call.bytes for call in found[1]] == [2, 2 * (3 + 8), 2 * 8]
    assert [sent_numbers(parts, 2, rank) for rank in range(2)] == [5 + 8, 8 + 5]
    gathered = of_muon(parts, 2, 0, 2, method="gather")
    assert [call.bytes for call in gathered] == [2, 2 * 2 * 5, 2 * 2 * 8]
    assert [sent_numbers(parts, 2, rank, method="gather") for rank in (0, 1)] == [13, 13]
    assert of_muon(parts[2:], 2, 0) == []
    assert every(flop >= newton_schulz_flop((3, 3)) for flop in flop_by_rank(parts, 2))


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match="No rule is called 'fair'"):
        owners([(2, 2)], 2, "fair")
    for count in (lambda: of_muon([], 2, 0, method="ring"),
                  lambda: flop_by_rank([], 2, "ring"),
                  lambda: sent_numbers([], 2, 0, method="ring")):  # fmt: skip
        with pytest.raises(ValueError, match="Choose gather or distributed"):
            count()
    with pytest.raises(ValueError, match="Dim 1 has 5 entries; 2 ranks"):
        equal_sizes((4, 5), 2, 1)
