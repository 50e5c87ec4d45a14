"""Stochastic rounding has the number itself as its mean: counted over all draws, and sampled."""

from fractions import Fraction

import pytest
import torch

from lib.single.formats import BF16, E2M1, E2M3, E4M3, E5M2, E8M0, FP16, FloatFormat

BITS = 24  # what is drawn for each number


def shown(value):
    return getattr(value, "name", None) or f"{value:g}"


def mean(form, number, draws):
    """The exact mean of the two numbers that `number` becomes over the given draws."""
    bits = torch.tensor([number]).view(torch.int32).expand(len(draws))
    codes = form._codes(bits, form.largest_code, draws)
    low, high = codes.min().item(), codes.max().item()
    ups = int((codes == high).sum())
    assert ups + int((codes == low).sum()) == len(draws) and low < high
    downs = len(draws) - ups
    return (Fraction(form.value(low)) * downs + Fraction(form.value(high)) * ups) / len(draws)


CASES = [
    (BF16, [1.0 + 2.0**-9, 3.1415927, -2.71828, 1e-30, 1.3 * 2.0**-130]),
    (FP16, [1.0 + 2.0**-13, 3.1415927, -2.71828, 1000.123]),
    (E4M3, [1.01, -3.3, 100.7]),
    (E2M1, [1.1, -2.7, 5.9]),
    (E8M0, [1.1, 3.0, 1.75 * 2.0**-127]),
]


@pytest.mark.parametrize(
    ("form", "number"), [(form, x) for form, xs in CASES for x in xs], ids=shown
)
def test_the_mean_of_all_draws_is_the_number_itself(form, number):
    """Among normal numbers the highest bits of a draw decide, as many as the format drops."""
    dropped = 23 - form.mantissa
    draws = torch.arange(2**dropped, dtype=torch.int32) << (BITS - dropped)
    average = mean(form, number, draws)
    exact = Fraction(torch.tensor([number]).item())
    assert average == exact
    one_off = mean(form, number, (draws + (1 << (BITS - dropped))).clamp(max=draws.max()))
    assert one_off != exact  # a bite: draws that are one too high


@pytest.mark.parametrize(
    ("form", "number"), [(FP16, 1.25 * 2.0**-24), (FP16, -5.3e-6), (E4M3, 0.003), (E2M3, 0.3)],
    ids=shown,
)  # fmt: skip
def test_the_mean_among_subnormal_numbers(form, number):
    """All 24 bits of a draw count; what is finer than 2^-24 of a step is cut off."""
    draws = torch.arange(2**BITS, dtype=torch.int32)
    average = mean(form, number, draws)
    exact = abs(Fraction(torch.tensor([number]).item()))
    step = Fraction(form.smallest)
    steps = Fraction(int(exact / step * 2**BITS), 2**BITS)
    assert abs(average) == steps * step


@pytest.mark.parametrize("form", [BF16, FP16, E5M2, E4M3, E2M1, FloatFormat(3, 3)],
                         ids=lambda form: form.name)  # fmt: skip
def test_the_mean_of_a_sample(form):
    noise = torch.Generator().manual_seed(5)
    for number in (form.smallest * 0.3, form.smallest_normal * 1.137, 1.0 + form.epsilon * 0.7):
        x = torch.full((400_000,), number)
        rounded = form.round(x, "stochastic", generator=noise).double()
        low, high = rounded.unique().tolist()
        error = (rounded.mean() - x[0].double()).abs() / (high - low)
        assert error < 4 * 0.5 / 400_000**0.5  # four deviations of the mean of a coin


def test_a_seed_gives_the_same_numbers_and_another_others():
    x = torch.randn(1000)
    codes = [BF16.encode(x, "stochastic", generator=torch.Generator().manual_seed(s))
             for s in (0, 0, 1)]  # fmt: skip
    assert torch.equal(codes[0], codes[1]) and not torch.equal(codes[0], codes[2])


def test_numbers_of_the_format_stay():
    for form in (FP16, E4M3, E2M1, E8M0):
        codes = torch.arange(form.largest_code + 1)
        assert torch.equal(form.encode(form.decode(codes), "stochastic").long(), codes)


def test_what_is_too_large_saturates_or_not():
    x = torch.full((1000,), 65519.0)  # 65,504 with 15 / 32 of the next step
    noise = torch.Generator().manual_seed(0)
    assert FP16.round(x, "stochastic").eq(65504).all()
    infinite = FP16.round(x, "stochastic", "infinity", noise).isinf().double().mean()
    assert abs(infinite - 15 / 32) < 0.05
