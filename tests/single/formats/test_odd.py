"""Rounding to odd: a second rounding changes nothing, where rounding to nearest twice does."""

import math
import random
from fractions import Fraction

import torch

from lib.predict.number_formats import FP16
from lib.single.formats.odd import add, to_float32


def test_to_float32_by_hand():
    step = 2.0**-23  # of fp32 between 1 and 2
    x = torch.tensor(
        [1.0, 1 + step / 8, 1 + step + step / 8, -1 - step / 8, 1 + 2 * step - step / 8],
        dtype=torch.float64,
    )
    odd = torch.tensor([1, 1 + step, 1 + step, -1 - step, 1 + step])
    assert torch.equal(to_float32(x), odd)


def test_the_ends_of_fp32():
    x = torch.tensor([1e-300, -1e-300, 1e300, math.inf, -math.inf, 0.0, -0.0], dtype=torch.float64)
    largest = torch.finfo(torch.float32).max
    expected = torch.tensor([2.0**-149, -(2.0**-149), largest, math.inf, -math.inf, 0.0, -0.0])
    assert torch.equal(to_float32(x).view(torch.int32), expected.view(torch.int32))
    assert to_float32(torch.tensor([math.nan], dtype=torch.float64)).isnan().all()


def test_rounding_twice_goes_wrong_only_to_nearest():
    """Just above the middle of 1 and the next fp16 number, nearer than fp32 can tell."""
    x = torch.tensor([1 + 2.0**-11 + 2.0**-40], dtype=torch.float64)
    assert FP16.code_of(x.item()) == FP16.code_of(1.0) + 1
    assert FP16.code_of(to_float32(x).item()) == FP16.code_of(1.0) + 1
    assert FP16.code_of(x.float().item()) == FP16.code_of(1.0)


def test_sums_are_odd_where_something_was_dropped():
    draw = random.Random(0)
    pairs = [
        (draw.uniform(-1, 1) * 2.0 ** draw.randint(-70, 0), draw.uniform(-1, 1))
        for _ in range(2000)
    ]
    a, b = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    totals = add(a, b)
    exact, inexact = 0, 0
    for x, y, total in zip(a.tolist(), b.tolist(), totals.tolist()):
        true = Fraction(x) + Fraction(y)
        if Fraction(total) == true:
            exact += 1
            continue
        inexact += 1
        assert int(math.frexp(total)[0] * 2**53) % 2 == 1
        assert abs(Fraction(total) - true) < math.ulp(total)
    assert exact > 100 and inexact > 1000
    assert not torch.equal(totals, a + b)  # a bite: fp64's own sums are not odd


def test_infinite_sums():
    inf = torch.tensor([math.inf, math.inf, 1.0], dtype=torch.float64)
    other = torch.tensor([1.0, -math.inf, 2.0], dtype=torch.float64)
    assert add(inf, other)[0] == math.inf and add(inf, other)[1].isnan() and add(inf, other)[2] == 3
