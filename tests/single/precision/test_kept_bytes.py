"""Bytes that training keeps for each parameter, counted from tensors, beside the prediction."""

import pytest
import torch

from lib.predict.shape import MLPShape
from lib.predict.sharded.states import convention, keeping
from lib.single import MLP, mean_squares
from lib.single.precision.master_weights import MasterWeights

SHAPE = MLPShape((16, 32, 8), bias=False)


def kept(dtype, copied):
    """Bytes for each parameter of weights, gradients, and what the optimizer has, after a step."""
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randn(8, n, generator=draw).to(dtype) for n in (16, 8))
    model = MLP(SHAPE).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters())
    if copied:
        optimizer = MasterWeights(optimizer)
    mean_squares(model(x), y).backward()
    gradients = [p.grad for p in model.parameters()]  # before the copies take them
    optimizer.step()
    keys, states = ("exp_avg", "exp_avg_sq"), optimizer.state.values()
    moments = [state[key] for state in states for key in keys]
    copies = list(optimizer.copies.values()) if copied else []
    kinds = list(model.parameters()), gradients, moments + copies
    return tuple(sum(t.nbytes for t in tensors) / SHAPE.numel for tensors in kinds)


@pytest.mark.parametrize(
    ("dtype", "copied", "precision"),
    [(torch.float32, False, "fp32"), (torch.bfloat16, True, "mixed"),
     (torch.bfloat16, False, "bf16")],
)  # fmt: skip
def test_bytes_are_those_predicted(dtype, copied, precision):
    predicted = keeping("adamw", precision)
    assert kept(dtype, copied) == (predicted.parameters, predicted.gradients, predicted.optimizer)


def test_mixed_precision_keeps_zeros_16_bytes():
    zero = convention("ZeRO")
    assert kept(torch.bfloat16, True) == (zero.parameters, zero.gradients, zero.optimizer)
    assert sum(kept(torch.bfloat16, True)) == zero.total == 16
