"""Predicted gossip: its matrices, its eigenvalues against closed forms, and what it sends."""

import math

import numpy as np
import pytest

from lib.predict.data import gossip
from tests.every import every


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("kind", gossip.NEIGHBOURS)
def test_a_round_keeps_the_mean(kind, ranks):
    """Symmetric, and rows add up to 1: so the mean of all ranks never changes."""
    for number in range(5):
        matrix = gossip.mixing_matrix(gossip.neighbours(kind, ranks, number))
        assert np.array_equal(matrix, matrix.T)
        np.testing.assert_allclose(matrix.sum(1), 1)
    np.testing.assert_allclose(gossip.mean_matrix(kind, ranks).sum(1), 1)


def test_the_second_eigenvalue_of_a_ring_is_the_closed_form():
    for ranks in range(3, 40):
        # The eigenvalues of a circulant matrix; the one for k = 0 is 1.
        values = [(1 + 2 * math.cos(2 * math.pi * k / ranks)) / 3 for k in range(1, ranks)]
        largest = max(map(abs, values))
        assert gossip.shrinks_by("ring", ranks) == pytest.approx(largest, abs=1e-12)
        assert largest == pytest.approx(abs(values[0])) or ranks in (3, 4, 5)
    assert gossip.shrinks_by("ring", 2) == pytest.approx(0, abs=1e-12)
    assert gossip.shrinks_by("ring", 1) == gossip.shrinks_by("pairs", 1) == 0


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 9, 64])
def test_the_second_eigenvalue_of_random_pairs_is_the_closed_form(ranks):
    second = 0.5 if ranks % 2 else (ranks - 2) / (2 * (ranks - 1))
    assert gossip.shrinks_by("pairs", ranks) == pytest.approx(math.sqrt(second), abs=1e-7)


def test_the_mean_matrix_is_the_mean_of_the_pairings():
    for ranks in (4, 5):
        drawn = [gossip.mixing_matrix(gossip.pairs(ranks, n)) for n in range(4000)]
        np.testing.assert_allclose(np.mean(drawn, 0), gossip.mean_matrix("pairs", ranks), atol=0.02)


def disagreement(x):
    return float(np.linalg.norm(x - x.mean(0)))


def test_no_start_shrinks_slower_than_predicted_on_a_ring():
    draw, matrix = np.random.default_rng(0), gossip.mean_matrix("ring", 8)
    factor = gossip.shrinks_by("ring", 8)
    starts = [draw.normal(size=(8, 3)) for _ in range(20)]
    shrunk = [disagreement(matrix @ x) / disagreement(x) for x in starts]
    assert every(one <= factor + 1e-12 for one in shrunk)
    slowest = np.cos(2 * np.pi * np.arange(8) / 8)[:, None]  # the direction of the eigenvalue
    assert disagreement(matrix @ slowest) / disagreement(slowest) == pytest.approx(factor)


def test_random_pairs_shrink_the_mean_square_as_predicted():
    draw = np.random.default_rng(0)
    squares = []
    for number in range(4000):
        x = draw.normal(size=(8, 1))
        matrix = gossip.mixing_matrix(gossip.pairs(8, number))
        squares.append((disagreement(matrix @ x) / disagreement(x)) ** 2)
    assert np.mean(squares) == pytest.approx(gossip.shrinks_by("pairs", 8) ** 2, rel=0.02)


def test_rounds_until_they_agree():
    """A long ring needs about n² rounds, random pairs about as many on 1,024 ranks as on 16."""
    assert [gossip.rounds_until(0.01, "ring", n) for n in (2, 3, 4, 16, 64)] == [1, 1, 5, 89, 1433]
    assert [gossip.rounds_until(0.01, "pairs", n) for n in (2, 4, 16, 64)] == [1, 9, 13, 13]
    for left in (0.5, 0.01):
        rounds, factor = gossip.rounds_until(left, "ring", 16), gossip.shrinks_by("ring", 16)
        assert factor**rounds <= left < factor ** (rounds - 1)


def test_a_rank_sends_all_of_it_to_each_neighbour():
    assert [gossip.sent("ring", n, 100) for n in (1, 2, 3, 9)] == [0, 100, 200, 200]
    assert [gossip.sent("pairs", n, 100) for n in (1, 2, 3, 9)] == [0, 100, 100, 100]


def test_pairs_are_pairs_and_depend_on_the_seed():
    for ranks in (1, 2, 5, 8):
        for number in range(20):
            partners = gossip.pairs(ranks, number)
            assert partners == gossip.pairs(ranks, number)
            assert sum(not partner for partner in partners) == ranks % 2
            met = [(a, b) for a, partner in enumerate(partners) for b in partner]
            assert ranks == 1 or every(partners[b] == (a,) and a != b for a, b in met)
    drawn = [[gossip.pairs(8, number, seed) for number in range(5)] for seed in (0, 1)]
    assert drawn[0] != drawn[1] and drawn[0][0] != drawn[0][1]


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="no neighbours called 'star'. Choose 'ring' or 'pairs'."):
        gossip.neighbours("star", 4)
    with pytest.raises(ValueError, match="The number of ranks must be a whole number"):
        gossip.neighbours("ring", 0)
    with pytest.raises(ValueError, match="left, the share of the disagreement, must be below 1"):
        gossip.rounds_until(1, "ring", 4)
