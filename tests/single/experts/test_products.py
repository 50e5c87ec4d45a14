"""Grouped products equal one product after the other, forward and backward."""

import pytest
import torch

from lib.single.experts import products

COUNTS = {
    "even": (3, 3, 3),
    "none for one": (5, 0, 4),
    "all for one": (0, 9, 0),
    "no rows": (0, 0, 0),
}


def drawn(counts, dtype=torch.float64, inner=4, outer=5):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(sum(counts), inner, generator=generator).to(dtype).requires_grad_()
    weights = torch.randn(len(counts), inner, outer, generator=generator).to(dtype)
    gradient = torch.randn(sum(counts), outer, generator=generator).to(dtype)
    return x, weights.requires_grad_(), gradient


def one_after_the_other(x, weights, counts):
    return torch.cat([rows @ weight for rows, weight in zip(x.split(counts), weights)])


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
def test_the_rows_of_each_expert_meet_its_matrix(counts):
    x, weights, gradient = drawn(counts)
    y = products.grouped_product(x, weights, counts)
    found = torch.autograd.grad(y, (x, weights), gradient)
    expected_y = one_after_the_other(x, weights, counts)
    expected = torch.autograd.grad(expected_y, (x, weights), gradient)
    assert torch.equal(y, expected_y)
    for own, other in zip(found, expected):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-14)


def test_gradients_agree_with_finite_differences():
    x, weights, _ = drawn((2, 0, 3))
    assert torch.autograd.gradcheck(
        lambda x, w: products.grouped_product(x, w, (2, 0, 3)), (x, weights)
    )


def test_what_needs_no_gradient_gets_none():
    x, weights, gradient = drawn((2, 1))
    products.grouped_product(x.detach(), weights, (2, 1)).backward(gradient)
    assert x.grad is None and weights.grad is not None
    frozen = weights.detach()
    products.grouped_product(x, frozen, (2, 1)).backward(gradient)
    assert x.grad is not None and frozen.grad is None


def test_one_kernel_gives_the_same_as_the_loop(monkeypatch):
    """`grouped_mm` runs on the CPU too, so what GPUs take is compared here."""
    counts = (16, 0, 8)
    x, weights, gradient = drawn(counts, torch.bfloat16, 16, 32)
    results = {}
    for fused in (True, False):
        monkeypatch.setattr(products, "_one_kernel", lambda *_, fused=fused: fused)
        y = products.grouped_product(x, weights, counts)
        results[fused] = (y, *torch.autograd.grad(y, (x, weights), gradient))
    for one, loop in zip(results[True], results[False]):
        torch.testing.assert_close(one, loop, rtol=2e-2, atol=2e-2)


def test_one_kernel_is_for_gpus_and_aligned_rows():
    x, weights, _ = drawn((2, 1), torch.bfloat16, 16, 32)
    assert not products._one_kernel(x, weights)  # on the CPU the loop is used
