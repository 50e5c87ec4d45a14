"""Predicted FLOP equal those that PyTorch counts on the built models, block by block."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lib.predict.flops import flops, flops_of_blocks, six_n
from lib.predict.shape import GPTShape, MLPShape, ModelShape
from lib.ranks.slow import roofline  # registers attention's CPU kernel with PyTorch's counter
from lib.single import GPT, MLP, mean_squares, next_token_loss

GPTS = [
    GPTShape(layers=2),
    GPTShape(vocabulary=50, sequence=12, width=24, heads=3, layers=3, hidden=40, tied=True),
    GPTShape(vocabulary=50, width=24, heads=6, kv_heads=2, layers=2, positions="rotary"),
    GPTShape(vocabulary=50, width=24, heads=6, kv_heads=1, layers=2, dropout=0.1),
]
MLPS = [MLPShape((6, 10, 4)), MLPShape((6, 10, 12, 4), bias=False)]


def counted(model, x, gradient):
    """(forward, backward) of one block, as PyTorch counts them."""
    assert roofline.flop_registry
    with FlopCounterMode(display=False) as forward:
        y = model(x)
    with FlopCounterMode(display=False) as backward:
        y.backward(gradient(y))
    return (forward.get_total_flops(), backward.get_total_flops()), y.detach()


@pytest.mark.parametrize("shape", GPTS + MLPS, ids=str)
def test_each_block(shape):
    gpt = isinstance(shape, GPTShape)
    model = (GPT if gpt else MLP)(shape)
    x = torch.randint(50, (3, 10)) if gpt else torch.randn(3, 6)
    for number, predicted in enumerate(flops_of_blocks(shape, 3, 10)):
        found, y = counted(model[number : number + 1], x, torch.ones_like)
        assert found == (predicted.forward, predicted.backward), f"block {number}"
        x = y.requires_grad_()


@pytest.mark.parametrize("shape", GPTS + MLPS, ids=str)
def test_the_whole_step(shape):
    gpt = isinstance(shape, GPTShape)
    model = (GPT if gpt else MLP)(shape)
    x = torch.randint(50, (3, shape.sequence)) if gpt else torch.randn(3, 6)
    target = x if gpt else torch.randn(3, 4)
    with FlopCounterMode(display=False) as found:
        (next_token_loss if gpt else mean_squares)(model(x), target).backward()
    predicted = flops(shape, 3)
    assert found.get_total_flops() == predicted.total == predicted.forward + predicted.backward


def test_the_rule_of_thumb_is_right_for_large_models():
    shape = GPTShape(51200, sequence=2048, width=12288, heads=96, layers=96)
    exact = flops(shape, 1).total
    # Narayanan et al. 2021 (arXiv 2104.04473), equation 2, without recomputation: 72·B·S·L·D² ·
    # (1 + S/6D + V/12LD); theirs counts four products of attention backward, ours five.
    s, layers, d, v = 2048, 96, 12288, 51200
    predicted = 72 * s * layers * d * d * (1 + s / (6 * d) + v / (12 * layers * d))
    assert exact == round(predicted) + layers * 2 * s * s * d
    assert 0.9 < six_n(shape.numel, s) / exact < 1


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match="65 tokens is too long"):
        flops(GPTShape(), 1, 65)
    with pytest.raises(ValueError, match="FLOP of a ModelShape"):
        flops(ModelShape(), 1)
