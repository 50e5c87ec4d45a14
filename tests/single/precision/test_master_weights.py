"""Master weights: the same steps as in fp32, rounded only for the model; and what a state holds."""

import copy
from fractions import Fraction

import pytest
import torch

from lib.single.precision import LossScaler, MasterWeights
from tests.every import every

HALVES = [torch.float16, torch.bfloat16]
half = pytest.mark.parametrize("dtype", HALVES, ids=str)


def weights(dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(4, 3, generator=generator), torch.randn(3, generator=generator)]
    return [w.to(dtype).requires_grad_() for w in drawn]


def gradients(step, dtype):
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in ((4, 3), (3,))]


def optimizers():
    return {
        "sgd": lambda ps: torch.optim.SGD(ps, 1e-3, momentum=0.9, weight_decay=0.1),
        "adam": lambda ps: torch.optim.AdamW(ps, 1e-3),
    }


@half
@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_steps_are_those_of_fp32_rounded_for_the_model(dtype, name):
    model = weights(dtype)
    plain = [w.detach().float().requires_grad_() for w in model]
    masters = MasterWeights(optimizers()[name](model))
    reference = optimizers()[name](plain)
    for step in range(20):
        for w, p, g in zip(model, plain, gradients(step, dtype)):
            w.grad, p.grad = g, g.float()
        masters.step(), reference.step()
        masters.zero_grad()
        assert every(map(torch.equal, masters.parameters(), plain))
        assert every(torch.equal(w, p.to(dtype)) for w, p in zip(model, plain))
    assert every(value.dtype == torch.float32
                 for state in masters.state.values() for value in state.values()
                 if isinstance(value, torch.Tensor))  # fmt: skip
    changed = weights(dtype)
    assert not any(torch.equal(w, c) for w, c in zip(model, changed))


@half
def test_small_updates_add_up_only_in_the_copy(dtype):
    """Of 1000 updates that are each 1/20 of the distance to the next number, none is lost."""
    epsilon = torch.finfo(dtype).eps
    plain = torch.ones(1, dtype=dtype, requires_grad=True)
    weight = torch.ones(1, dtype=dtype, requires_grad=True)
    without = torch.optim.SGD([plain], epsilon / 20)
    masters = MasterWeights(torch.optim.SGD([weight], epsilon / 20))
    for _ in range(1000):
        for parameter, optimizer in ((plain, without), (weight, masters)):
            parameter.grad = -torch.ones_like(parameter)
            optimizer.step()
            optimizer.zero_grad()
    assert plain.item() == 1.0
    assert abs(Fraction(weight.item()) - (1 + 50 * Fraction(epsilon))) <= Fraction(epsilon) / 2


@half
def test_microbatches_add_up_in_fp32(dtype):
    weight = torch.ones(1, dtype=dtype, requires_grad=True)
    masters = MasterWeights(torch.optim.SGD([weight], 1.0))
    parts = [1.0] + [2.0**-12] * 16
    for part in parts:
        weight.grad = torch.full((1,), part, dtype=dtype)
        masters.collect()
        assert weight.grad is None
    (copy_of_weight,) = masters.parameters()
    assert copy_of_weight.grad.item() == sum(parts)
    total = torch.zeros(1, dtype=dtype)
    for part in parts:  # what PyTorch's own accumulation in the weight's type would give
        total += torch.full((1,), part, dtype=dtype)
    assert total.item() == 1.0


@half
def test_a_state_goes_on_where_it_was(dtype):
    def steps(model, masters, numbers):
        for step in numbers:
            for w, g in zip(model, gradients(step, dtype)):
                w.grad = g
            masters.step()
            masters.zero_grad()
        return [w.detach().clone() for w in (*model, *masters.parameters())]

    model = weights(dtype)
    masters = MasterWeights(optimizers()["adam"](model))
    steps(model, masters, range(5))
    state = copy.deepcopy(masters.state_dict())
    expected = steps(model, masters, range(5, 10))
    other = weights(dtype, seed=1)
    again = MasterWeights(optimizers()["adam"](other))
    again.load_state_dict(state)
    assert every(map(torch.equal, steps(other, again, range(5, 10)), expected))
    # From the rounded weights alone training does not go on as it was.
    third = [w.to(dtype).requires_grad_() for w in state["copies"]]
    rounded = MasterWeights(optimizers()["adam"](third))
    rounded.load_state_dict(state | {"copies": [w.detach().float() for w in third]})
    assert not every(map(torch.equal, steps(third, rounded, range(5, 10)), expected))


def test_a_schedule_changes_the_inner_optimizers_rate():
    model = weights(torch.bfloat16)
    masters = MasterWeights(torch.optim.SGD(model, 1.0))
    schedule = torch.optim.lr_scheduler.StepLR(masters, 1, 0.5)
    for w, g in zip(model, gradients(0, torch.bfloat16)):
        w.grad = g
    masters.step(), schedule.step()
    assert masters.inner.param_groups[0]["lr"] == 0.5
    masters.load_state_dict(masters.state_dict())
    schedule.step()
    assert masters.inner.param_groups[0]["lr"] == 0.25


def test_bytes_are_four_for_each_weight_of_16_bits():
    model = weights(torch.bfloat16)
    wide = torch.ones(7, requires_grad=True)
    masters = MasterWeights(torch.optim.SGD([*model, wide], 1.0))
    assert masters.kept_bytes == 4 * 15 and masters.parameters()[-1] is wide


@half
def test_the_scaler_unscales_the_copies_in_fp32(dtype):
    """A gradient near 2^-20 keeps its value, which fp16 rounds to a multiple of 2^-24."""
    weight = torch.ones(1, dtype=dtype, requires_grad=True)
    masters, scaler = MasterWeights(torch.optim.SGD([weight], 1.0)), LossScaler(2.0**16)
    exact = 2.0**-20 * (1 + 2.0**-7)
    scaler.scale((weight * 1.0).float().sum() * exact).backward()
    scaler.unscale_(masters)
    (copy_of_weight,) = masters.parameters()
    assert copy_of_weight.grad.item() == exact
    assert weight.grad is None
    if dtype == torch.float16:
        assert torch.tensor(exact).half().item() != exact
    assert scaler.step(masters)
    assert copy_of_weight.item() == (torch.ones(()) - exact).item()


def test_pytorchs_scaler_works_where_gradients_are_collected_first():
    weight = torch.ones(1, dtype=torch.float16, requires_grad=True)
    masters = MasterWeights(torch.optim.SGD([weight], 1.0))
    scaler = torch.amp.GradScaler("cpu", 1024.0)
    scaler.scale(weight.float().sum() / 4).backward()
    masters.collect()
    scaler.step(masters), scaler.update()
    assert weight.item() == 0.75


def test_weights_that_were_loaded_are_told():
    weight = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    masters = MasterWeights(torch.optim.SGD([weight], 1.0))
    weight.data.fill_(5.0)
    masters.refresh()
    weight.grad = torch.ones_like(weight)
    masters.step()
    assert weight.item() == 4.0


def test_misuse_is_refused_in_words():
    weight = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(ValueError, match="No weight of this optimizer is in fp16 or bf16"):
        MasterWeights(torch.optim.SGD([torch.ones(1, requires_grad=True)], 1.0))
    stepped = torch.optim.Adam([weight])
    weight.grad = torch.ones_like(weight)
    stepped.step()
    with pytest.raises(ValueError, match="has stepped already"):
        MasterWeights(stepped)
    masters = MasterWeights(torch.optim.SGD([weight], 1.0))
    with pytest.raises(ValueError, match="MasterWeights steps on weights of its own"):
        MasterWeights(masters)
    with pytest.raises(ValueError, match="without a closure"):
        masters.step(lambda: None)
    with pytest.raises(ValueError, match="copies of other weights"):
        masters.load_state_dict({"inner": masters.inner.state_dict(), "copies": []})
