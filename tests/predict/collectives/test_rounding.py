"""The predicted error of a sum over ranks: its sums by hand, and how it grows."""

import pytest

from lib.predict.collectives import rounding
from lib.predict.collectives.rounding import error_of_sum, most_equal_numbers, sizes_of_sums


def test_partial_sums_by_hand():
    assert sizes_of_sums("central", 5) == sizes_of_sums("ring", 5) == [2, 3, 4, 5]
    assert sizes_of_sums("tree", 4) == sizes_of_sums("halving_doubling", 4) == [2, 2, 4]
    assert sizes_of_sums("tree", 5) == [2, 2, 4, 5]
    assert sizes_of_sums("tree", 7) == [2, 2, 2, 4, 3, 7]
    assert sizes_of_sums("halving_doubling", 5) == [2, 3, 2, 5]
    assert sizes_of_sums("two_level", 6, node=2) == [2, 2, 2, 4, 6]
    assert sizes_of_sums("two_level", 4) == [2, 2, 4]
    assert sizes_of_sums("widened", 9) == [9]
    assert sizes_of_sums("ring", 1) == sizes_of_sums("tree", 1) == []


@pytest.mark.parametrize("name", ["ring", "tree", "halving_doubling", "two_level", "central"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8, 12, 32])
def test_every_order_adds_as_often_and_ends_with_the_whole_sum(name, ranks):
    sums = sizes_of_sums(name, ranks)
    assert len(sums) == ranks - 1
    assert not sums or max(sums) == sums[-1] == ranks


def test_a_ring_grows_with_the_root_and_a_tree_with_the_logarithm():
    squares = lambda name, n: (error_of_sum(name, n, 1.0) / rounding.ROUNDING) ** 2
    for n in (2, 16, 1024):
        assert squares("ring", n) == pytest.approx(1 + (n + 1) / 2 - 1 / n)
        assert squares("tree", n) == pytest.approx(1 + n.bit_length() - 1)
        assert squares("widened", n) == pytest.approx(2)
    assert abs(rounding.ROUNDING - 0.2123) < 1e-4
    assert error_of_sum("ring", 1024, 2.0**-7) / error_of_sum("tree", 1024, 2.0**-7) > 6


def test_what_ranks_have_in_common_counts_in_every_sum():
    """Of equal tensors a sum of k has k² times the square: 2² + 2² + 4² in a tree of 4."""
    error = error_of_sum("tree", 4, 1.0, correlation=1.0) / rounding.ROUNDING
    assert error**2 == pytest.approx((4 + 4 + 4 + 16) / 16)
    grows = [error_of_sum("tree", n, 1.0, correlation=0.5) for n in (64, 1024)]
    assert grows[1] == pytest.approx(grows[0], rel=0.02), "a tree's error stops growing"
    grows = [error_of_sum("ring", n, 1.0, correlation=0.5) for n in (64, 1024)]
    assert grows[1] == pytest.approx(4 * grows[0], rel=0.02)


def test_equal_numbers():
    assert most_equal_numbers(2.0**-7) == 256 and most_equal_numbers(2.0**-10) == 2048


def test_an_unknown_algorithm_is_refused():
    with pytest.raises(ValueError, match="No all-reduce is called 'star'. Choose one of central"):
        sizes_of_sums("star", 4)
