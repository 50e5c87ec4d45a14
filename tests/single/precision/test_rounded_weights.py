"""Weights without masters: nearest loses small updates, chance and kept errors do not."""

import copy
import math

import pytest
import torch

from lib.single.precision import MasterWeights, RoundedWeights
from lib.single.precision.rounded_weights import ROUNDINGS
from tests.every import every

half = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
STEPS, PART = 200, 16  # updates, each 1/16 of the distance to the next number


def after(dtype, rounding, weights=4096, generator=None):
    """Weights of 1 after `STEPS` updates of 1/16 of the distance to the next number above."""
    weight = torch.ones(weights, dtype=dtype, requires_grad=True)
    inner = torch.optim.SGD([weight], torch.finfo(dtype).eps / PART)
    optimizer = RoundedWeights(inner, rounding, generator)
    for _ in range(STEPS):
        weight.grad = -torch.ones_like(weight)
        optimizer.step()
        optimizer.zero_grad()
    return weight.detach(), optimizer


@half
def test_nearest_stands_still(dtype):
    weight, optimizer = after(dtype, "nearest")
    assert every((weight == 1).tolist())
    assert optimizer.kept_bytes == 0


@half
def test_kept_errors_lose_nothing(dtype):
    """200 updates of 1/16 are 12.5 distances, which the weight and its error hold exactly."""
    weight, optimizer = after(dtype, "compensated")
    (error,) = optimizer.errors.values()
    moved = (weight.double() + error.double() - 1) / torch.finfo(dtype).eps
    assert every((moved == STEPS / PART).tolist())
    assert optimizer.kept_bytes == 2 * weight.numel()


@half
def test_chance_is_right_on_average(dtype):
    generator = torch.Generator().manual_seed(0)
    weight, optimizer = after(dtype, "stochastic", generator=generator)
    moved = ((weight.double() - 1) / torch.finfo(dtype).eps).tolist()
    assert every(number == round(number) for number in moved) and len(set(moved)) > 5
    deviation = math.sqrt(STEPS * (1 / PART) * (1 - 1 / PART))  # of a binomial number
    mean = sum(moved) / len(moved)
    assert abs(mean - STEPS / PART) < 5 * deviation / math.sqrt(len(moved))
    assert optimizer.kept_bytes == 0


@half
def test_chance_depends_on_the_generator_alone(dtype):
    drawn = [
        after(dtype, "stochastic", 64, torch.Generator().manual_seed(seed))[0] for seed in (0, 0, 1)
    ]
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])


@half
def test_compensated_steps_are_near_those_of_masters(dtype):
    """The pair of 16-bit numbers holds 16 bits in bf16 and 22 in fp16; rounded alone 8 and 11."""

    def trained(wrap):
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(500, generator=generator).to(dtype).requires_grad_()
        optimizer = wrap(torch.optim.Adam([weight], 1e-4))
        for _ in range(100):
            weight.grad = torch.randn(500, generator=generator).to(dtype)
            optimizer.step()
            optimizer.zero_grad()
        return weight.detach().double()

    truth = trained(MasterWeights)
    distance = {
        how: (trained(lambda o, how=how: RoundedWeights(o, how)) - truth).norm().item()
        for how in ("nearest", "compensated")
    }
    assert distance["compensated"] < 0.25 * distance["nearest"]


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_between_steps_no_wide_weight_is_kept(rounding):
    weight, optimizer = after(torch.bfloat16, rounding, 8)
    assert every(c.untyped_storage().nbytes() == 0 for c in optimizer.copies.values())
    assert every(c.shape == (8,) for c in optimizer.copies.values())


def test_a_state_goes_on_where_it_was():
    def steps(weight, optimizer, numbers):
        for step in numbers:
            weight.grad = torch.randn(50, generator=torch.Generator().manual_seed(step)).bfloat16()
            optimizer.step()
            optimizer.zero_grad()
        return weight.detach().clone()

    def fresh(values):
        weight = values.clone().requires_grad_()
        return weight, RoundedWeights(torch.optim.Adam([weight], 1e-3), "compensated")

    weight, optimizer = fresh(torch.linspace(-2, 2, 50).bfloat16())
    steps(weight, optimizer, range(10))
    state, values = copy.deepcopy(optimizer.state_dict()), weight.detach().clone()
    expected = steps(weight, optimizer, range(10, 60))
    again = fresh(values)
    again[1].load_state_dict(state)
    assert torch.equal(steps(*again, range(10, 60)), expected)
    forgetful = fresh(values)
    zeros = [torch.zeros_like(e) for e in state["errors"]]
    forgetful[1].load_state_dict(state | {"errors": zeros})
    assert not torch.equal(steps(*forgetful, range(10, 60)), expected)


def test_a_refused_step_leaves_no_wide_weight():
    weight, optimizer = after(torch.bfloat16, "nearest", 8)
    with pytest.raises(ValueError, match="without a closure"):
        optimizer.step(lambda: None)
    assert every(c.untyped_storage().nbytes() == 0 for c in optimizer.copies.values())


def test_misuse_is_refused_in_words():
    weight = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(ValueError, match="nearest, stochastic, compensated, not 'up'"):
        RoundedWeights(torch.optim.SGD([weight], 1.0), "up")
    optimizer = RoundedWeights(torch.optim.SGD([weight], 1.0), "compensated")
    with pytest.raises(ValueError, match="errors of other weights"):
        optimizer.load_state_dict({"inner": optimizer.inner.state_dict(), "errors": []})
