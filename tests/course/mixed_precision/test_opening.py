"""The opening: a GPT in fp16 with Adam fails in its second step, and why."""

import math

import pytest
import torch

from lib.course.mixed_precision.opening import opening
from tests.every import every


def test_the_second_loss_is_nan_in_fp16_and_in_no_other_format():
    failed = opening(torch.float16, steps=3)
    assert failed.failed_at == 1 and every(map(math.isnan, failed.losses[1:]))
    assert failed.finite[0] < 0.1 * failed.weights
    for other in (torch.float32, torch.bfloat16):
        run = opening(other, steps=10)
        assert run.failed_at is None and run.losses[-1] < run.losses[0] - 0.3
        assert set(run.finite) == {run.weights}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_fails_whatever_the_seed(seed):
    assert opening(steps=2, seed=seed).failed_at == 1


def test_epsilon_below_the_smallest_number_is_the_reason():
    """Adam's usual ε is 0 in fp16; a larger one keeps the weights finite in the same training."""
    assert torch.tensor(1e-8).half() == 0 and torch.tensor(1e-4).half() > 0
    assert torch.tensor(1e-8).bfloat16() > 0
    larger = opening(steps=10, epsilon=1e-4)
    assert larger.failed_at is None and larger.losses[-1] < larger.losses[0]


def test_a_gradient_of_zero_is_divided_by_zero():
    weight = torch.ones(2, dtype=torch.float16, requires_grad=True)
    weight.grad = torch.tensor([0.0, 1e-4]).half()
    torch.optim.Adam([weight], 1e-3, foreach=False).step()
    assert weight[0].isnan() and weight[1].isinf()
    wide = torch.ones(2, requires_grad=True)
    wide.grad = torch.tensor([0.0, 1e-4])
    torch.optim.Adam([wide], 1e-3, foreach=False).step()
    assert wide[0] == 1 and wide[1].item() == pytest.approx(0.999, abs=1e-6)
