"""What experts return is weighed and added as a product and an `index_add` do it."""

import torch

from lib.single.experts.combine import weighted_sum

TOKEN = torch.tensor([2, 0, 2, 3, 0])  # none for token 1


def drawn(rows=5, width=3):
    generator = torch.Generator().manual_seed(2)
    returned = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    weight = torch.rand(rows, generator=generator, dtype=torch.float64)
    return returned.requires_grad_(), weight.requires_grad_()


def test_it_is_a_product_and_an_index_add():
    returned, weight = drawn()
    y = weighted_sum(returned, weight, TOKEN, 4)
    expected = torch.zeros(4, 3).double().index_add(0, TOKEN, returned * weight[:, None])
    assert torch.equal(y, expected) and not y[1].any()
    gradient = torch.arange(12.0, dtype=torch.float64).view(4, 3)
    found = torch.autograd.grad(y, (returned, weight), gradient)
    for own, other in zip(found, torch.autograd.grad(expected, (returned, weight), gradient)):
        torch.testing.assert_close(own, other, rtol=0, atol=1e-14)


def test_its_gradients_agree_with_finite_differences():
    assert torch.autograd.gradcheck(lambda r, w: weighted_sum(r, w, TOKEN, 4), drawn())


def test_it_keeps_the_rows_and_not_what_is_weighed():
    returned, weight = drawn(1000 * 5)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        weighted_sum(returned, weight, TOKEN.repeat(1000), 4)
    assert sum(t.numel() for t in kept) == returned.numel() + 2 * len(weight)
