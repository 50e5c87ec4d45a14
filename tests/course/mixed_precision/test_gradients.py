"""What fp16 makes of gradients: the shares are those that PyTorch's cast gives."""

import pytest
import torch

from lib.course.mixed_precision.gradients import gradients, powers, shares
from lib.course.mixed_precision.networks import NETWORKS
from lib.predict.number_formats import BF16, E4M3, FP16
from tests.every import every


@pytest.mark.parametrize("scale", [1.0, 2.0**8, 2.0**20])
@pytest.mark.parametrize("name", NETWORKS)
def test_shares_are_those_of_a_cast(name, scale):
    numbers = torch.cat([g.flatten() for g in gradients(NETWORKS[name]).all])
    numbers = numbers[numbers != 0].double() * scale
    cast = numbers.to(torch.float16)
    found = shares(numbers / scale, scale)
    part = lambda mask: mask.double().mean().item()
    assert found.zero == part(cast == 0)
    assert found.overflow == part(cast.isinf())
    assert found.subnormal == part((cast != 0) & (numbers.abs() < FP16.smallest_normal))
    assert found.zero + found.subnormal + found.normal + found.overflow == pytest.approx(1)


def test_shares_at_the_limits():
    """A tie rounds to even: half of the smallest number to 0, and 65,520 to infinity."""
    smallest, up = 2.0**-24, 1 + 2.0**-40
    numbers = [smallest / 2, smallest / 2 * up, 2.0**-14 / up, 2.0**-14, 65519.9, 65520.0, 0.0]
    found = shares(torch.tensor(numbers, dtype=torch.float64))
    assert (found.zero, found.subnormal, found.normal, found.overflow) == (
        1 / 6,
        2 / 6,
        2 / 6,
        1 / 6,
    )
    wide = shares(torch.tensor(numbers, dtype=torch.float64), number_format=BF16)
    assert wide.normal == 1
    small = shares(torch.tensor([2.0**-10, 2.0**-9, 448.0, 480.0]), number_format=E4M3)
    assert (small.zero, small.subnormal, small.normal, small.overflow) == (0.25,) * 4


def test_the_detector_loses_the_gradients_before_its_last_matrix_and_no_other():
    found = gradients(NETWORKS["detector"]).activations
    lost = {name: shares(gradient).zero for name, gradient in found.items()}
    assert lost["blocks.0.linear"] > 0.99 and lost["blocks.1.linear"] < 0.1
    scaled = {name: shares(gradient, 2.0**16) for name, gradient in found.items()}
    assert every(part.zero < 0.01 and part.overflow == 0 for part in scaled.values())


def test_gradients_are_those_of_the_step_after_some():
    network = NETWORKS["regression"]
    model = network.model(0)
    optimizer = network.optimizer(model.parameters())
    for step in range(4):
        inputs, targets = network.batch(0, step)
        optimizer.zero_grad()
        network.loss(model(inputs), targets).backward()
        if step < 3:
            optimizer.step()
    found = gradients(network, steps=3)
    assert every(torch.equal(found.weights[name], p.grad) for name, p in model.named_parameters())
    assert len(found.all) == len(found.weights) + len(found.activations)
    assert found.activations.keys() == {"blocks.0.linear", "blocks.1.linear"}


def test_powers_of_two_are_counted():
    counted = powers(torch.tensor([1.0, 1.5, -2.0, 0.0, 0.25, 0.49, -0.5]))
    assert counted == {"exponents": {-2: 2, -1: 1, 0: 2, 1: 1}, "zeros": 1}


def test_zeros_alone_are_refused():
    with pytest.raises(ValueError, match="All of these numbers are 0"):
        shares(torch.zeros(3))
