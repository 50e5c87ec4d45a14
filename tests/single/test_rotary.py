"""Rotary positions: pairs turned as complex numbers, and products that see distances alone."""

import pytest
import torch

from lib.single.rotary import rotated, rotation


def turned(x):
    """Turn x [.., S, n, K] by its positions."""
    return rotated(x, *rotation(x.shape[-3], x.shape[-1], x))


def test_each_pair_is_turned_by_the_angle_of_its_position():
    x = torch.randn(2, 5, 3, 8, dtype=torch.float64)
    pairs = torch.complex(x[..., :4], x[..., 4:])
    rates = 10_000 ** (-2 * torch.arange(4, dtype=torch.float64) / 8)
    angles = torch.arange(5)[:, None, None] * rates
    expected = pairs * torch.polar(torch.ones_like(angles), angles)
    assert torch.allclose(turned(x), torch.cat((expected.real, expected.imag), -1), rtol=1e-12)
    assert torch.equal(turned(x)[:, 0], x[:, 0]), "position 0 is not turned"


def test_a_product_depends_on_the_distance_alone():
    q, k = torch.randn(2, 8, dtype=torch.float64).expand(9, 2, 8).unbind(1)
    scores = turned(q[:, None])[:, 0] @ turned(k[:, None])[:, 0].T  # [S, S]
    for distance in range(9):
        same = scores.diagonal(distance)
        assert torch.allclose(same, same[:1].expand(len(same)), rtol=1e-12)
    assert scores[0, 1:].sub(scores[0, 0]).abs().min() > 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_angles_are_as_exact_as_the_format_allows(dtype):
    """Position 3001 is no number in 2 bytes; with such an angle, cos would be off by up to 2."""
    found = rotation(3002, 8, torch.empty(0, dtype=dtype))
    exact = rotation(3002, 8, torch.empty(0, dtype=torch.float64))
    for one, other in zip(found, exact):
        assert one.dtype == dtype and one.shape == (3002, 1, 8)
        assert (one - other).abs().max() < max(torch.finfo(dtype).eps, 1e-3)
