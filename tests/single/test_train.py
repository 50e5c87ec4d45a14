"""The plain step: what it computes, and microbatches that add up to the batch."""

import math

import pytest
import torch

from lib.predict.shape import MLPShape
from lib.single import MLP, mean_squares, next_token_loss, train, train_step
from lib.single.experts import MoE, auxiliary_loss


def made(seed=0):
    model = MLP(MLPShape((3, 5, 2)), seed).double()
    generator = torch.Generator().manual_seed(2)
    x, y = (torch.randn(12, n, generator=generator, dtype=torch.float64) for n in (3, 2))
    return model, (x, y)


def test_a_step_goes_down_the_gradient_of_the_mean():
    model, (x, y) = made()
    before = [p.detach().clone() for p in model.parameters()]
    loss = ((model(x) - y) ** 2).mean()
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for p in model.parameters():
        p.grad = torch.ones_like(p)  # left over: the step must not add to it
    told = train_step(model, torch.optim.SGD(model.parameters(), 0.1), (x, y), mean_squares)
    assert torch.equal(told, loss.detach())
    for p, old, gradient in zip(model.parameters(), before, gradients):
        assert torch.allclose(p, old - 0.1 * gradient, rtol=1e-14)
        assert torch.equal(p.grad, gradient)


@pytest.mark.parametrize("microbatches", [2, 3, 12])
def test_microbatches_add_up_to_the_batch(microbatches):
    whole, batch = made()
    parts, _ = made()
    losses = [
        train_step(model, torch.optim.SGD(model.parameters(), 0.1), batch, mean_squares, count)
        for model, count in ((whole, 1), (parts, microbatches))
    ]
    assert torch.allclose(*losses, rtol=1e-14)
    for p, q in zip(whole.parameters(), parts.parameters()):
        assert torch.allclose(p.grad, q.grad, rtol=1e-13, atol=1e-16)
        assert torch.allclose(p, q, rtol=1e-13)
    with pytest.raises(ValueError, match="12 entries; 5 microbatches"):
        train_step(whole, torch.optim.SGD(whole.parameters()), batch, mean_squares, 5)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_losses_of_experts_are_trained_and_not_returned(microbatches):
    x = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    stepped, plain = (MoE(6, 8, 4, 1, losses={"balance": 1.0}).double() for _ in range(2))
    told, expected = 0.0, torch.zeros_like(plain.gate.weight)
    for part in x.chunk(microbatches):
        loss = mean_squares(plain(part), part) / microbatches
        total = loss + auxiliary_loss(plain) / microbatches
        expected += torch.autograd.grad(total, plain.gate.weight)[0]
        told += loss.detach()
    step = train_step(stepped, torch.optim.SGD(stepped.parameters(), 0.1), (x, x), mean_squares,
                      microbatches)  # fmt: skip
    assert torch.allclose(step, told) and torch.allclose(stepped.gate.weight.grad, expected)
    alone = torch.autograd.grad(mean_squares(plain(x), x), plain.gate.weight)[0]
    assert not torch.allclose(expected, alone)


def test_train_takes_the_batches_in_order():
    model, batch = made()
    twin, _ = made()
    other = tuple(-t for t in batch)
    losses = train(model, torch.optim.SGD(model.parameters(), 0.1), [batch, other], 2, mean_squares)
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    assert losses == [train_step(twin, optimizer, b, mean_squares).item() for b in (batch, other)]


def test_the_loss_of_knowing_nothing():
    logits, targets = torch.zeros(2, 7, 256), torch.randint(256, (2, 7))
    assert next_token_loss(logits, targets).item() == pytest.approx(math.log(256))
