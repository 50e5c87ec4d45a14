"""Every number of a format comes back, every other becomes the nearest, and bytes are packed."""

import math

import pytest
import torch

from lib.predict.recompute.encodings import FORMATS, reduced_bytes
from lib.single.encode.reduced import reduced
from tests.every import every

# Bits of exponent and mantissa, the bias, and the largest number.
DEFINED = {"fp16": (5, 10, 15, 65504.0), "fp10": (5, 4, 15, 63488.0), "fp8": (4, 3, 7, 448.0)}


def numbers(name):
    """Every finite number of a format from its definition, ascending, and its even last bits."""
    exponents, mantissas, bias, largest = DEFINED[name]
    found = []
    for exponent in range(2**exponents):
        for mantissa in range(2**mantissas):
            fraction = mantissa / 2**mantissas
            scale = 2.0 ** (max(exponent, 1) - bias)
            found.append(scale * (fraction + (exponent > 0)))
    found = torch.tensor([n for n in found if n <= largest])
    assert found.diff().min() > 0  # ascending, each once
    return found


def decoded(x, name):
    parts, decode = reduced(x, name)
    return decode(*parts)


def same_bits(a, b):
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("name", FORMATS)
def test_every_number_of_the_format_comes_back(name):
    every_one = numbers(name)
    expected = 2 ** (FORMATS[name] - 1) - {"fp16": 1024, "fp10": 16, "fp8": 1}[name]
    assert len(every_one) == expected and every_one[-1] == DEFINED[name][3]
    assert same_bits(decoded(every_one, name), every_one)
    assert same_bits(decoded(-every_one, name), -every_one)


@pytest.mark.parametrize("name", FORMATS)
def test_between_two_numbers_the_nearest_is_taken(name):
    """At the middle the one with the even last bit, and next to the middle the nearer one."""
    every_one = numbers(name)
    low, high = every_one[:-1], every_one[1:]
    middle = (low + high) / 2  # exact in float32
    even = torch.where(torch.arange(len(low)) % 2 == 0, low, high)
    assert torch.equal(decoded(middle, name), even)
    assert torch.equal(decoded(-middle, name), -even)
    below = torch.nextafter(middle, torch.zeros(()))
    above = torch.nextafter(middle, torch.full((), math.inf))
    assert torch.equal(decoded(below, name), low)
    assert torch.equal(decoded(above, name), high)
    assert not torch.equal(decoded(above, name), even)  # a bite: not every nearest one is even


@pytest.mark.parametrize("name", FORMATS)
def test_the_error_has_a_bound(name):
    """Half a step: 2^-(m+1) of a number, and below the least power half of the least step."""
    exponents, mantissas, bias, largest = DEFINED[name]
    x = torch.linspace(-12, 5, 50_001).exp()
    x = torch.cat([x, -x])
    error = (decoded(x, name) - x).abs()
    least = 2.0 ** (1 - bias)
    bound = 2.0 ** -(mantissas + 1) * x.abs().clamp(min=least)
    assert every((error <= bound).tolist()) and (error > bound / 1.1).any()


@pytest.mark.parametrize("name", FORMATS)
def test_too_large_becomes_the_largest_and_a_nan_stays(name):
    largest = DEFINED[name][3]
    x = torch.tensor([largest * 1.01, -largest * 8, math.inf, -math.inf, math.nan, 0.0, -0.0])
    found = decoded(x, name)
    assert found[:4].tolist() == [largest, -largest, largest, -largest]
    assert found[4].isnan() and same_bits(found[5:], x[5:])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("numel", [0, 1, 2, 3, 4, 5, 6, 1000])
def test_bytes_are_packed(name, numel):
    x = numbers(name)[torch.arange(numel) * 7 % 100]
    parts, decode = reduced(x, name)
    assert torch.equal(decode(*parts), x)
    assert sum(p.untyped_storage().nbytes() for p in parts) == reduced_bytes(numel, name)
    if numel == 6:
        assert parts[0].nbytes == {"fp16": 12, "fp10": 8, "fp8": 6}[name] < x.nbytes


def test_three_numbers_by_hand():
    """1.0, -2.0 and 0.5 in ten bits: sign, exponent + 15, four bits of mantissa."""
    parts, _ = reduced(torch.tensor([1.0, -2.0, 0.5]), "fp10")
    codes = [0b0_01111_0000, 0b1_10000_0000, 0b0_01110_0000]
    assert parts[0].tolist() == [codes[0] | codes[1] << 10 | codes[2] << 20]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32])
def test_other_numbers_stay(dtype):
    x = torch.arange(7).to(dtype)
    parts, decode = reduced(x, "fp8")
    assert parts[0] is x and decode(*parts) is x
