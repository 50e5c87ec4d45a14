"""Formats of few bits: the published tables, every code both ways, and ties by hand."""

import dataclasses
import itertools
import math
from fractions import Fraction

import pytest

from lib.predict.number_formats import (
    BF16,
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    E8M0,
    FP16,
    FP32,
    TF32,
    NumberFormat,
)
from tests.every import every

# Bits, largest, smallest normal, smallest, distance after 1. The eight-bit ones: Micikevicius 2022,
# table 1; E3M2, E2M3, E2M1 and E8M0: OCP MX v1.0, tables 4 to 7; FP16 and FP32: IEEE 754.
PUBLISHED = {
    FP32: (32, 2.0**128 - 2.0**104, 2.0**-126, 2.0**-149, 2.0**-23),
    TF32: (19, 2.0**128 - 2.0**117, 2.0**-126, 2.0**-136, 2.0**-10),
    BF16: (16, 2.0**128 - 2.0**120, 2.0**-126, 2.0**-133, 2.0**-7),
    FP16: (16, 65504.0, 2.0**-14, 2.0**-24, 2.0**-10),
    E5M2: (8, 57344.0, 2.0**-14, 2.0**-16, 0.25),
    E4M3: (8, 448.0, 2.0**-6, 2.0**-9, 0.125),
    E3M2: (6, 28.0, 0.25, 0.0625, 0.25),
    E2M3: (6, 7.5, 1.0, 0.125, 0.125),
    E2M1: (4, 6.0, 1.0, 0.5, 0.5),
    E8M0: (8, 2.0**127, 2.0**-127, 2.0**-127, 1.0),
}
ALL = pytest.mark.parametrize("form", PUBLISHED, ids=lambda form: form.name)
SMALL = pytest.mark.parametrize(
    "form", [f for f in PUBLISHED if f.bits <= 16], ids=lambda form: form.name
)


@ALL
def test_what_a_format_holds_is_what_is_published(form):
    held = form.bits, form.largest, form.smallest_normal, form.smallest, form.epsilon
    assert held == PUBLISHED[form]


def test_every_number_of_four_bits():
    """OCP MX v1.0, table 6."""
    numbers = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert [E2M1.value(code) for code in range(16)] == numbers + [-number for number in numbers]
    assert math.copysign(1, E2M1.value(8)) == -1


def test_specials():
    assert (E5M2.value(0x7C), E5M2.value(0xFC)) == (math.inf, -math.inf)
    assert every(math.isnan(E5M2.value(code)) for code in (0x7D, 0x7E, 0x7F, 0xFF))
    assert every(math.isnan(E4M3.value(code)) for code in (0x7F, 0xFF))
    assert (E4M3.value(0x7E), E4M3.value(0x78)) == (448, 256)  # the top exponent holds numbers too
    assert math.isnan(E8M0.value(255)) and E8M0.value(0) == 2.0**-127


@SMALL
def test_every_code_comes_back(form):
    for code in range(2**form.bits):
        number = form.value(code)
        if math.isnan(number):
            assert math.isnan(form.value(form.code_of(number)))
        elif math.isinf(number):
            assert form.code_of(number, "infinity") == code
        else:
            assert form.code_of(number) == code


def neighbours(form):
    """Pairs (code, number) of all numbers from the smallest to the largest, and the next."""
    return itertools.pairwise((code, form.value(code)) for code in range(form.largest_code + 1))


@SMALL
def test_between_two_numbers_the_nearest_is_taken_and_of_two_the_even(form):
    for (code, low), (above, high) in neighbours(form):
        middle = (low + high) / 2  # exact: a double has bits to spare
        even = above if not form.mantissa else code + code % 2  # without a mantissa, 2 is even
        assert form.code_of(middle) == even
        assert form.code_of(math.nextafter(middle, 0)) == code
        assert form.code_of(math.nextafter(middle, math.inf)) == above
        if form.signed:
            assert form.code_of(-middle) == form.sign_code | even
        assert Fraction(middle) - Fraction(low) == Fraction(high) - Fraction(middle)


def test_what_is_too_large():
    """The largest number takes in half of the step that would have followed."""
    assert FP16.code_of(65519.99, "infinity") == 0x7BFF
    assert FP16.code_of(65520, "infinity") == 0x7C00
    assert FP16.code_of(-1e9, "infinity") == 0xFC00
    assert FP16.code_of(-math.inf) == 0xFBFF  # saturated
    assert E4M3.code_of(464, "infinity") == 0x7E  # a tie, and 448 is even
    assert E4M3.code_of(464.01, "infinity") == 0x7F
    assert E4M3.code_of(1e9) == 0x7E
    assert E2M1.code_of(1e9) == 7 and E2M1.code_of(math.nan) == 7
    assert E8M0.code_of(2.0**128) == 254 and E8M0.code_of(2.0**128, "infinity") == 255


def test_zeros_and_signs():
    assert FP16.code_of(0.0) == 0 and FP16.code_of(-0.0) == 0x8000
    assert FP16.code_of(-(2.0**-25)) == 0x8000  # half of the smallest: a tie, and 0 is even
    assert FP16.code_of(2.0**-25 * 1.001) == 1
    assert E8M0.code_of(0.0) == 0 and E8M0.code_of(-4.0) == E8M0.code_of(4.0) == 129


def test_fields():
    assert E4M3.fields(0b1_0111_101) == (1, 7, 5)
    assert E4M3.value(0b1_0111_101) == -(1 + 5 / 8)
    assert E8M0.fields(255) == (0, 255, 0)
    with pytest.raises(ValueError, match="A code of E4M3 is between 0 and 255: 256."):
        E4M3.fields(256)


def test_what_is_refused():
    with pytest.raises(ValueError, match="E2M1 has neither infinity nor NaN.*6, its largest"):
        E2M1.code_of(1.0, "infinity")
    with pytest.raises(ValueError, match="not 'wrap'"):
        E4M3.code_of(1.0, "wrap")
    with pytest.raises(ValueError, match="`specials`.*not 'inf'"):
        dataclasses.replace(E4M3, specials="inf")
    with pytest.raises(ValueError, match="at least 1 bit of exponent"):
        NumberFormat("E0M3", 0, 3, 1, "none")
    with pytest.raises(ValueError, match="leave no room"):
        NumberFormat("E4M0", 4, 0, 7, "ieee")
