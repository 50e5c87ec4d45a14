"""Layers whose partial sums are rounded: each of the four products against an exact reference."""

import copy
from fractions import Fraction

import pytest
import torch
from torch import nn

from lib.predict import number_formats
from lib.predict.shape import GPTShape
from lib.single import GPT
from lib.single.formats import BF16, E4M3, FP16, FP32, FloatFormat
from lib.single.precision import AccumulatingLinear, accumulated, matmul_in
from lib.single.precision.accumulating import DTYPES, product_in
from tests.every import every

FORMS = [FP16, BF16]


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def factors(form, m=5, k=300, n=7):
    return random(m, k).to(DTYPES[form]), random(k, n, seed=1).to(DTYPES[form])


def nearest(form, number):
    """The number of the format that is nearest to a fraction, of two the even one."""
    plain = getattr(number_formats, form.name)
    low = plain.code_of(abs(float(number)))
    around = [plain.value(code) for code in range(max(low - 1, 0), low + 2)]
    best = min(around, key=lambda x: (abs(Fraction(x) - abs(number)), plain.code_of(x) % 2))
    return Fraction(best) * (1 if number >= 0 else -1)


# --- one product


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("block", [None, 40])
def test_a_product_is_the_exact_reference(form, block):
    a, b = factors(form, 2, 90, 2)
    found = product_in(form, a, b, block)
    for i in range(2):
        for j in range(2):
            terms = [Fraction(x) * Fraction(y) for x, y in zip(a[i].tolist(), b[:, j].tolist())]
            sums = []
            for start in range(0, 90, block or 90):
                total = Fraction(0)
                for term in terms[start : start + (block or 90)]:
                    total = nearest(form, total + nearest(form, term))
                sums.append(float(total))
            total = torch.tensor(sums[0])
            for value in sums[1:]:
                total = total + value
            assert found[i, j] == total
    once = (a.double() @ b.double()).to(DTYPES[form]).float()
    assert not torch.equal(found, once)  # a bite: rounded once at the end


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
@pytest.mark.parametrize("block", [None, 1, 128, 500])
@pytest.mark.parametrize("at_once", [1, 100, 2**20])
def test_a_product_is_that_of_matmul_in(form, block, at_once, monkeypatch):
    monkeypatch.setattr("lib.single.precision.accumulating.AT_ONCE", at_once)
    a, b = factors(form)
    found = product_in(form, a, b, block)
    assert found.dtype == torch.float32
    assert torch.equal(found, matmul_in(form, a, b, block, products=form))
    if block != 1:
        assert not torch.equal(found, matmul_in(form, a, b, block))  # products that are exact


def test_subnormal_numbers_and_overflow():
    small = torch.full((1, 40), 2.0**-13, dtype=torch.float16)
    a, b = small * 1.5, small.T * torch.linspace(0.5, 2, 40).half().unsqueeze(1)
    found = product_in(FP16, a, b)
    assert torch.equal(found, matmul_in(FP16, a, b, products=FP16))
    assert 0 < found < FP16.smallest_normal
    large = torch.full((1, 3), 200.0, dtype=torch.float16)
    assert product_in(FP16, large, large.T).isinf() and product_in(FP32, large, large.T) == 120_000


def test_other_formats_and_wider_factors_are_left_to_matmul_in():
    fourteen, (a, b) = FloatFormat(8, 13), factors(FP16, k=30)
    assert torch.equal(
        product_in(fourteen, a, b, 8), matmul_in(fourteen, a, b, 8, products=fourteen)
    )
    a, b = random(3, 30), random(30, 4, seed=1)
    assert torch.equal(product_in(FP16, a, b), matmul_in(FP16, a, b, products=FP16))
    assert not torch.equal(product_in(FP16, a, b), product_in(FP16, a.half(), b.half()))


def test_in_fp32_products_stay_and_blocks_change_nothing():
    a, b = factors(FP16)
    exact = a.double() @ b.double()
    found = product_in(FP32, a, b)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)
    assert torch.equal(found, product_in(FP32, a, b, 128))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(found, product_in(FP32, a, b))
    assert (product_in(FP16, a, b) - exact).abs().max() > 1e-2


def test_a_sum_of_nothing_is_zero():
    assert torch.equal(
        product_in(FP16, torch.ones(2, 0).half(), torch.ones(0, 3).half()), torch.zeros(2, 3)
    )


# --- a layer


@pytest.mark.parametrize("form", [*FORMS, FP32, E4M3], ids=lambda form: form.name)
@pytest.mark.parametrize("block", [None, 16])
def test_forward_and_backward_add_up_in_the_accumulator(form, block):
    dtype = DTYPES.get(form, torch.float16)
    linear = nn.Linear(40, 12).to(dtype)
    layer = accumulated(copy.deepcopy(linear), form, block)
    assert isinstance(layer, AccumulatingLinear)
    x, dy = random(2, 35, 40).to(dtype), (4 * random(2, 35, 12, seed=1)).to(dtype)
    x.requires_grad_()
    y = layer(x)
    y.backward(dy)
    weight, bias = linear.weight.detach(), linear.bias.detach()
    rows, columns = x.detach().flatten(0, 1), dy.flatten(0, 1)

    def expected(a, b, block=block):
        if form == FP32:
            return a.float() @ b.float()
        return matmul_in(form, a, b, block, products=form)

    found = y.flatten(0, 1), x.grad.flatten(0, 1), layer.weight.grad, layer.bias.grad
    ones = torch.ones(1, 70, dtype=dtype)
    right = (
        (expected(rows, weight.T) + bias.float()).to(dtype),
        expected(columns, weight).to(dtype),
        expected(columns.T, rows).to(dtype),
        expected(ones, columns)[0].to(dtype),
    )
    assert every(torch.equal(one, other) for one, other in zip(found, right, strict=True))
    if block and form != FP32:  # a bite: without blocks it is something else
        wrong = expected(columns.T, rows, None).to(dtype)
        assert not torch.equal(layer.weight.grad, wrong)


def test_a_weight_gradient_over_many_rows_stalls():
    """dW of equal rows of ones: 2,048 in fp16, as many as rows in fp32 or in blocks."""
    ends = {}
    for name, how in {"fp16": (FP16,), "blocks": (FP16, 128), "fp32": (FP32,)}.items():
        layer = accumulated(nn.Linear(3, 2).half(), *how)
        layer(torch.ones(5000, 3).half()).backward(torch.ones(5000, 2).half())
        gradients = layer.weight.grad, layer.bias.grad
        assert every(g.unique().numel() == 1 for g in gradients)
        ends[name] = [g.unique().item() for g in gradients]
    assert ends == {"fp16": [2048] * 2, "blocks": [5000] * 2, "fp32": [5000] * 2}


def test_what_needs_no_gradient_gets_none():
    layer = accumulated(nn.Linear(4, 3, bias=False), BF16)
    layer.weight.requires_grad_(False)
    x = torch.ones(2, 4, requires_grad=True)
    layer(x).sum().backward()
    assert layer.weight.grad is None and x.grad.shape == (2, 4)


def test_layers_keep_names_and_parameters():
    model = GPT(GPTShape(width=16, heads=2, layers=1, sequence=8))
    parameters = dict(model.named_parameters())
    kept = next(name for name, module in model.named_modules() if type(module) is nn.Linear)
    assert accumulated(model, FP16, 4, keep=(kept,)) is model
    after = dict(model.named_parameters())
    assert every(after[name] is parameter for name, parameter in parameters.items())
    assert after.keys() == parameters.keys()
    plain = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    assert plain == [kept]


def test_what_is_refused():
    with pytest.raises(ValueError, match="at least 1 term, not 0"):
        accumulated(nn.Linear(2, 2), FP16, 0)
    with pytest.raises(ValueError, match="no module 'head'"):
        accumulated(nn.Linear(2, 2), FP16, keep=("head",))


def test_on_an_accelerator():
    if not torch.accelerator.is_available():
        pytest.skip("there is no accelerator")
    device = torch.accelerator.current_accelerator()
    for form in FORMS:
        a, b = factors(form)
        found = product_in(form, a.to(device), b.to(device), 128)
        assert torch.equal(found.cpu(), product_in(form, a, b, 128))
