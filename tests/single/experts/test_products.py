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


@pytest.mark.parametrize("counts", COUNTS.values(), ids=COUNTS)
@pytest.mark.parametrize("dtype, error", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_at_once_gives_the_same_as_the_loop(monkeypatch, dtype, error, counts):
    """`grouped_mm` runs half precision on the CPU too, so what GPUs take is compared here."""
    x, weights, gradient = drawn(counts, dtype, 16, 32)
    results = {}
    for fused in (True, False):
        taken = fused and sum(counts) > 0
        monkeypatch.setattr(products, "_at_once", lambda *_, taken=taken: taken)
        y = products.grouped_product(x, weights, counts)
        results[fused] = (y, *torch.autograd.grad(y, (x, weights), gradient))
    for one, loop in zip(results[True], results[False]):
        torch.testing.assert_close(one, loop, rtol=error, atol=error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_and_matrices_may_be_cut_out_of_wider_ones(dtype):
    x, weights, gradient = drawn((3, 2), dtype, 10, 9)
    part, matrices = x[:, :8], weights[:, :8, :8]
    y = products.grouped_product(part, matrices, (3, 2))
    found = torch.autograd.grad(y, (x, weights), gradient[:, :8])
    expected = one_after_the_other(part, matrices, (3, 2))
    torch.testing.assert_close(y, expected)
    for own, other in zip(found, torch.autograd.grad(expected, (x, weights), gradient[:, :8])):
        torch.testing.assert_close(own, other)


def test_a_gradient_that_is_one_number_seen_often_is_taken():
    x, weights, _ = drawn((3, 0, 2), torch.float32, 4, 8)
    products.grouped_product(x, weights, (3, 0, 2)).sum().backward()
    torch.testing.assert_close(weights.grad[0], x[:3].sum(0)[:, None].expand(4, 8))
    assert not weights.grad[1].any()


@pytest.mark.parametrize(
    "dtype, inner, taken",
    [
        (torch.float32, 16, True),
        (torch.float32, 6, False),  # 24 bytes
        (torch.float64, 16, False),
        (torch.bfloat16, 16, False),  # on the CPU; on GPUs it is taken
    ],
)
def test_at_once_is_for_what_the_kernel_takes(monkeypatch, dtype, inner, taken):
    called = []
    kernel = products.grouped_mm
    monkeypatch.setattr(products, "grouped_mm", lambda *a, **k: called.append(1) or kernel(*a, **k))
    x, weights, gradient = drawn((2, 1), dtype, inner, 32)
    products.grouped_product(x, weights, (2, 1)).backward(gradient)
    assert len(called) == (3 if taken else 0)
