"""Sums in the order of each all-reduce: the bits of real ranks, and errors as predicted."""

import pytest
import torch
import torch.distributed as dist

from lib.predict.collectives import plans, rounding
from lib.ranks.algorithms import all_reduce
from lib.single.precision.summing_order import (
    ORDERS,
    all_reduced,
    error_of_sum,
    exponent,
    in_turn,
    ring,
    tree,
)
from tests.every import every

REAL = [name for name in ORDERS if name != "widened"]
DTYPES = [torch.bfloat16, torch.float16, torch.float32]
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def tensors(ranks, numel, dtype=torch.float32, seed=0):
    """The tensors of all ranks, [ranks, numel]."""
    noise = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(ranks, numel, generator=noise).to(dtype)


# Real ranks


def summed(ranks, numel, dtype):
    x = tensors(ranks, numel, dtype)
    return {name: all_reduce(x[dist.get_rank()].clone(), name) for name in REAL}


def scattered(ranks, numel, dtype):
    x = tensors(ranks, numel, dtype)
    piece = torch.empty(numel // ranks, dtype=dtype)
    dist.reduce_scatter_single(piece, x[dist.get_rank()].clone())
    return piece


@each_dtype
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_the_bits_are_those_of_real_ranks(worlds, ranks, dtype):
    numel = 301 * ranks
    x = tensors(ranks, numel, dtype)
    for found in worlds(ranks).run(summed, ranks, numel, dtype):
        for name, sums in found.items():
            assert sums.dtype == dtype and torch.equal(sums, all_reduced(x, name)), name


@each_dtype
def test_the_order_matters_and_so_does_the_format(dtype):
    """The bite: each order gives other bits than the others, and bf16 other than fp32."""
    x = tensors(6, 600, dtype)
    distinct = ["central", "ring", "tree", "halving_doubling", "two_level"]
    sums = [all_reduced(x, name) for name in distinct]
    for n, one in enumerate(sums):
        assert every(not torch.equal(one, other) for other in [*sums[:n], *sums[n + 1 :]])
    in_fp32 = all_reduced(x.float(), "ring").to(dtype)
    assert torch.equal(in_fp32, all_reduced(x, "ring")) == (dtype == torch.float32)


@each_dtype
@pytest.mark.parametrize("ranks", [3, 4])
def test_gloos_reduce_scatter_is_a_ring_that_runs_backwards(worlds, ranks, dtype):
    """Piece r comes from rank r - 1, passes r - 2, ..., and rank r itself is the last to add.

    So it is for pieces of an even length; where it is odd, gloo cuts elsewhere.
    """
    numel = 302 * ranks
    x = tensors(ranks, numel, dtype)
    for rank, piece in enumerate(worlds(ranks).run(scattered, ranks, numel, dtype)):
        order = [(rank - 1 - k) % ranks for k in range(ranks)]
        assert torch.equal(piece, in_turn(x.chunk(ranks, 1)[rank][order]))


# The plans, followed without ranks


def followed(plan, x):
    """Carry a plan out on the rows of x, as lib/ranks/algorithms.py does on ranks."""
    rows = [row.clone() for row in x]
    starts = [sum(plan.sizes(x.shape[1])[:p]) for p in range(plan.pieces + 1)]
    for moves in plan.rounds:
        taken = [(m, rows[m.source][starts[m.piece] : starts[m.piece + m.count]].clone())
                 for m in moves]  # fmt: skip
        for m, values in taken:
            part = rows[m.destination][starts[m.piece] : starts[m.piece + m.count]]
            part.copy_(part + values if m.add else values)
    return rows


@pytest.mark.parametrize("name", [name for name in REAL if name != "everyone"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 6, 7, 8, 12, 16, 31])
def test_the_bits_are_those_of_the_plan(name, ranks):
    x = tensors(ranks, 217, torch.bfloat16)
    expected = all_reduced(x, name)
    assert every(torch.equal(row, expected) for row in followed(plans.PLANS[name](ranks), x))


def test_another_node_is_another_order():
    x = tensors(12, 240, torch.bfloat16)
    for node in (2, 4, 6):
        rows = followed(plans.two_level(12, node), x)
        assert torch.equal(rows[0], all_reduced(x, "two_level", node=node))
    assert not torch.equal(rows[0], all_reduced(x, "two_level", node=4))


# Formats that PyTorch does not add in


def to_e4m3(x):
    return x.to(torch.float8_e4m3fn).float()


def test_a_smaller_format_is_rounded_after_every_sum():
    x = to_e4m3(tensors(8, 100))
    total = x[0]
    for row in x[1:]:
        total = to_e4m3(total + row)
    assert torch.equal(all_reduced(x, "central", to_e4m3), total)
    assert not torch.equal(all_reduced(x, "central"), total)
    rounded = all_reduced(x.to(torch.bfloat16), "ring")
    assert torch.equal(all_reduced(x, "ring", lambda s: s.bfloat16().float()), rounded.float())


# How errors grow

EPSILON = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("dtype", EPSILON, ids=str)
def test_errors_are_those_predicted(name, dtype, seed):
    """Of independent tensors with mean 0, within 15 %: powers of two lie all in the same place."""
    for ranks in (2, 4, 16, 64, 256, 1024):
        found = error_of_sum(tensors(ranks, 2000, seed=seed), name, dtype)
        predicted = rounding.error_of_sum(name, ranks, EPSILON[dtype])
        assert found == pytest.approx(predicted, rel=0.15), ranks


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["ring", "tree", "halving_doubling", "widened"])
def test_errors_of_what_ranks_have_in_common_are_those_predicted(name, seed):
    """A quarter of each tensor's square is the same on all ranks; up to 64 of them, in 20 %."""
    common = tensors(1, 2000, seed=seed + 100) / 2
    for ranks in (4, 16, 64):
        x = tensors(ranks, 2000, seed=seed) * 0.75**0.5 + common
        predicted = rounding.error_of_sum(name, ranks, 2.0**-7, correlation=0.25)
        assert error_of_sum(x, name, torch.bfloat16) == pytest.approx(predicted, rel=0.2), ranks


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_round_a_ring_errors_grow_with_the_root_of_the_ranks(seed):
    counts = [16, 64, 256, 1024]
    x = {n: tensors(n, 2000, seed=seed) for n in counts}
    powers = {"ring": 0.48, "tree": 0.09, "halving_doubling": 0.09, "widened": 0.0}
    for name, power in powers.items():
        growth = exponent(counts, [error_of_sum(x[n], name, torch.bfloat16) for n in counts])
        predicted = exponent(counts, [rounding.error_of_sum(name, n, 2.0**-7) for n in counts])
        assert growth == pytest.approx(predicted, abs=0.03)
        assert predicted == pytest.approx(power, abs=0.01)


def test_the_slope_of_a_power_is_its_exponent():
    assert exponent([2, 8, 32], [3 * n**1.5 for n in (2, 8, 32)]) == pytest.approx(1.5)
    with pytest.raises(ValueError, match="A slope needs at least two counts"):
        exponent([4, 4], [1.0, 2.0])


def test_a_ring_of_equal_numbers_stalls():
    """The mean of 1,024 equal gradients becomes a quarter of them; in fp16 from 2,048 on."""
    ones = torch.ones(1024, 8, dtype=torch.bfloat16)
    assert torch.equal(ring(ones), torch.full((8,), 256.0).bfloat16())
    assert rounding.most_equal_numbers(2.0**-7) == 256
    assert torch.equal(tree(ones), torch.full((8,), 1024.0).bfloat16())
    assert torch.equal(all_reduced(ones, "widened"), torch.full((8,), 1024.0).bfloat16())
    many = torch.ones(3000, 2, dtype=torch.float16)
    assert ring(many)[0] == rounding.most_equal_numbers(2.0**-10) == 2048


# Refusals


def test_what_cannot_be_summed_is_refused():
    with pytest.raises(ValueError, match="'butterfly'. Choose one of central, everyone, ring"):
        all_reduced(torch.ones(2, 2), "butterfly")
    with pytest.raises(ValueError, match="x must have a row for each rank"):
        all_reduced(torch.ones(3), "ring")
