"""The transform is orthogonal, leaves products as they are, and spreads what stands out."""

import pytest
import torch

from lib.single.precision.hadamard import hadamard, random_signs, spread
from tests.every import every


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("size", [1, 2, 4, 16, 128])
def test_rows_are_orthogonal(size):
    matrix = hadamard(size)
    assert torch.equal(matrix @ matrix, size * torch.eye(size)) and torch.equal(matrix, matrix.T)
    assert every((matrix.abs() == 1).flatten().tolist())


def test_four_rows_by_hand():
    rows = [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
    assert hadamard(4).tolist() == rows


def test_signs_come_from_the_seed_and_both_occur():
    assert torch.equal(random_signs(3), random_signs(3))
    assert not torch.equal(random_signs(3), random_signs(4))
    assert set(random_signs(0).tolist()) == {1.0, -1.0} and len(random_signs()) == 16


@pytest.mark.parametrize("inner", [16, 48, 40, 5])
def test_a_product_of_spread_matrices_is_the_product(inner):
    a, b, signs = random(6, inner), random(7, inner, seed=1), random_signs()
    one, other = spread(a, signs), spread(b, signs)
    assert one.shape == (6, -(-inner // 16) * 16)
    torch.testing.assert_close(one @ other.T, a @ b.T)
    torch.testing.assert_close(one.norm(dim=1), a.norm(dim=1))
    # A bite: one of them alone, or another vector of signs, gives something else.
    filled = torch.nn.functional.pad(b, (0, one.shape[1] - inner))
    for wrong in (filled, spread(b, random_signs(9))):
        assert (one @ wrong.T - a @ b.T).abs().max() > 0.1


def test_an_outlier_is_spread_over_its_block_alone():
    x = torch.zeros(32)
    x[5] = 8.0
    result = spread(x, random_signs())
    assert result[:16].abs().tolist() == [2.0] * 16 and not result[16:].any()


def test_signs_spread_a_block_of_equal_entries():
    """Without them it becomes one outlier of sqrt(16) times its size."""
    x = torch.ones(16)
    assert spread(x, torch.ones(16)).abs().max() == 4.0
    assert spread(x, random_signs()).abs().max() < 2.5


@pytest.mark.parametrize("size", [3, 0, 12])
def test_another_size_is_refused(size):
    with pytest.raises(ValueError, match=r"must be a (power of two here|whole number)"):
        hadamard(size)
