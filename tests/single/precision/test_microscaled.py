"""Layers in MX and NVFP4: every operand by hand, stochastic gradients, spread products."""

import copy

import pytest
import torch
from torch import nn

from lib.predict.shape import GPTShape
from lib.single import GPT
from lib.single.formats import MXFP4, MXFP8, MXFP8_E5M2, NVFP4
from lib.single.precision import MicroscaledLinear, microscaled
from lib.single.precision.hadamard import random_signs, spread
from tests.every import every

FORMATS = [MXFP8, MXFP4, NVFP4]


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer(form=MXFP8, i=64, o=32, **options):
    linear = nn.Linear(i, o)
    with torch.no_grad():  # rows and columns of different sizes
        linear.weight.copy_(random(o, i) * random(o, 1, seed=1).exp() * random(i, seed=2).exp() / i)
        linear.bias.copy_(random(o, seed=3))
    return microscaled(linear, form, **options)


def backward(module, x, dy):
    x = x.clone().requires_grad_()
    module.zero_grad()
    y = module(x)
    y.backward(dy)
    return y.detach(), x.grad, module.weight.grad.clone(), module.bias.grad.clone()


@pytest.mark.parametrize("form", FORMATS, ids=repr)
@pytest.mark.parametrize("gradients", [None, MXFP8_E5M2], ids=repr)
def test_each_operand_is_rounded_along_the_inner_dim(form, gradients):
    module, x, dy = layer(form, gradients=gradients), random(96, 64), random(96, 32, seed=1)
    weight, other = module.weight.detach(), gradients or form
    y, dx, dw, db = backward(module, x, dy)
    expected = (
        form.round(x) @ form.round(weight).T + module.bias.detach(),
        other.round(dy) @ form.round(weight.T.contiguous()).T,
        other.round(dy.T.contiguous()) @ form.round(x.T.contiguous()).T,
        dy.sum(0),
    )
    for found, one in zip((y, dx, dw, db), expected):
        torch.testing.assert_close(found, one, rtol=1e-5, atol=1e-5)
    wrong = other.round(dy) @ form.round(weight)  # a bite: blocks along the outer dim
    assert (wrong - dx).abs().max() > 1e-2


def test_sizes_that_are_no_whole_blocks_are_filled_with_zeros():
    module, x, dy = layer(MXFP8, 40, 24), random(10, 40), random(10, 24, seed=1)
    y, dx, dw, _ = backward(module, x, dy)
    filled = nn.functional.pad(x, (0, 24)), nn.functional.pad(module.weight.detach(), (0, 24))
    expected = MXFP8.round(filled[0]) @ MXFP8.round(filled[1]).T + module.bias.detach()
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert dx.shape == (10, 40) and dw.shape == (24, 40)


def errors(x, dy, **options):
    """Relative errors of y, dx and dW in NVFP4."""
    module = layer(NVFP4, **options)
    plain_module = nn.Linear(64, 32)
    plain_module.load_state_dict(module.state_dict())
    plain = backward(plain_module, x, dy)
    pairs = zip(backward(module, x, dy)[:3], plain)
    return [((one - other).norm() / other.norm()).item() for one, other in pairs]


def test_spread_products_are_rounded_after_the_transform():
    x, dy = random(32, 64), random(32, 32, seed=1)
    signs = random_signs(0)
    module = layer(NVFP4, hadamard="all")
    y, dx, dw, _ = backward(module, x, dy)
    weight = module.weight.detach()

    def product(a, b):
        return NVFP4.round(spread(a, signs)) @ NVFP4.round(spread(b, signs)).T

    torch.testing.assert_close(y, product(x, weight) + module.bias.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dx, product(dy, weight.T), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(dw, product(dy.T, x.T), rtol=1e-5, atol=1e-5)
    alone = backward(layer(NVFP4, hadamard="weights"), x, dy)
    plain = backward(layer(NVFP4), x, dy)
    assert torch.equal(alone[2], dw)
    assert torch.equal(alone[0], plain[0]) and torch.equal(alone[1], plain[1])


def test_stochastic_gradients_are_right_in_the_mean():
    """The mean of 400 backwards comes near the unrounded gradient; to nearest it never does."""
    dy = 12 * torch.rand((16, 32), generator=torch.Generator().manual_seed(0)) - 6
    dy[:, 0] = 6  # each block's scale is 1, and nothing saturates
    results = {}
    for stochastic in (True, False):
        module = layer(MXFP4, 32, 32, stochastic=stochastic)
        with torch.no_grad():  # which rounding leaves as it is
            module.weight.copy_(torch.eye(32))
        runs = [backward(module, random(16, 32), dy)[1] for _ in range(400)]
        results[stochastic] = [((dx - dy).abs().mean()).item() for dx in (runs[0], sum(runs) / 400)]
    assert results[True][0] > 1.2 * results[False][0]  # one backward alone is worse
    assert results[True][1] < 0.1 * results[False][1]
    assert results[False][1] == pytest.approx(results[False][0], rel=1e-4)


def test_random_numbers_come_from_the_seed():
    x, dy = random(32, 64), random(32, 32, seed=1)
    runs = [backward(layer(MXFP4, stochastic=True, seed=seed), x, dy)[1] for seed in (0, 0, 1)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    module = layer(MXFP4, stochastic=True)
    first, second = (backward(module, x, dy) for _ in range(2))
    assert not torch.equal(first[1], second[1]) and torch.equal(first[0], second[0])
    model = microscaled(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), MXFP4, stochastic=True)
    assert model[0].seed != model[1].seed


def test_a_model_keeps_its_parameters_and_can_be_copied():
    shape = GPTShape(width=32, heads=2, layers=1, sequence=16)
    model = GPT(shape)
    before = list(model.parameters())
    copied = copy.deepcopy(microscaled(model, NVFP4, keep=["blocks.2"]))
    assert every(a is b for a, b in zip(model.parameters(), before))
    names = [n for n, module in copied.named_modules() if isinstance(module, MicroscaledLinear)]
    ends = ["attention.qkv", "attention.proj", "mlp.up", "mlp.down"]
    assert names == [f"blocks.1.{end}" for end in ends]


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="hadamard must be 'none', 'weights' or 'all', not True."):
        layer(hadamard=True)
    with pytest.raises(ValueError, match="The model has no module 'head' that could be kept."):
        layer(keep=["head"])
    module = layer()
    x = random(4, 64).requires_grad_()
    (dx,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dx.sum().backward()


def test_frozen_parts_get_no_gradient():
    module, x = layer(), random(4, 64)
    module.weight.requires_grad_(False)
    module(x).sum().backward()
    assert module.weight.grad is None and module.bias.grad is not None


def test_results_have_the_dtype_of_what_comes_in():
    x = random(4, 64).bfloat16().requires_grad_()
    module = layer()
    y = module(x)
    y.sum().backward()
    assert y.dtype == x.grad.dtype == torch.bfloat16 and module.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_transform_trades_the_small_entries_of_a_block_against_its_outlier(seed):
    """One large row of dy in each block of 16: dW is dominated by it, and so gets worse.

    Of the other rows' share, which rounding to nearest loses, the transform keeps some.
    """
    x, dy = random(32, 64, seed=seed), random(32, 32, seed=seed + 9)
    dy[::16] *= 30
    signs, others = random_signs(0), torch.ones(32, dtype=torch.bool)
    others[::16] = False
    plain, mixed = NVFP4.round(dy.T), NVFP4.round(spread(dy.T, signs))
    back = torch.linalg.solve(spread(torch.eye(32), signs), mixed.T)  # the transform undone
    assert plain.T[others].count_nonzero() < 0.5 * others.sum() * 32
    assert back[others].count_nonzero() > 0.9 * others.sum() * 32
    assert (plain.T - dy)[~others].norm() < (back - dy)[~others].norm()
    assert errors(x, dy)[2] < errors(x, dy, hadamard="weights")[2]
