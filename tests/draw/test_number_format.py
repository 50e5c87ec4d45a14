"""Formats in JavaScript are those of lib/predict/number_formats.py, for all codes of each."""

import math
import random
from dataclasses import asdict

import pytest

from lib.draw.bits import FORMATS, code_shown
from lib.draw.parts.words import number_text, whole_share
from tests.draw.in_v8 import called, float_of, hex_of

VALUES = "given.codes.map((code) => hex(valueOf(given.format, code)))"
CODES = "given.numbers.map((h) => codeOf(given.format, float(h)))"
each_format = pytest.mark.parametrize("name", FORMATS)


def codes_of(format) -> list[int]:
    """Every code; of formats with more than 16 bits, those beside each power of two, and some."""
    if format.bits <= 16:
        return list(range(2**format.bits))
    draw = random.Random(0)
    step = 2**format.mantissa
    starts = range(0, 2**format.bits, step)
    near = [start + by for start in starts for by in (0, 1, 2, step // 2, step - 2, step - 1)]
    return near + [draw.randrange(2**format.bits) for _ in range(20_000)]


def same_number(ours: float, theirs: float) -> bool:
    """Equal bits, or NaN both."""
    return hex_of(ours) == hex_of(theirs) or (math.isnan(ours) and math.isnan(theirs))


def test_all_formats_are_shown():
    assert list(FORMATS) == [
        "FP32", "TF32", "BF16", "FP16", "E5M2", "E4M3", "E3M2", "E2M3", "E2M1", "E8M0",
    ]  # fmt: skip


@each_format
def test_every_code_has_its_number(name):
    format, codes = FORMATS[name], codes_of(FORMATS[name])
    told = called("bits", VALUES, {"format": asdict(format), "codes": codes})
    wrong = [
        (code, float_of(digits), format.value(code))
        for code, digits in zip(codes, told, strict=True)
        if not same_number(float_of(digits), format.value(code))
    ]
    assert not wrong, wrong[:5]


@each_format
def test_every_number_midpoint_and_what_is_beside_them_has_its_code(name):
    format, draw = FORMATS[name], random.Random(1)
    codes = codes_of(format)
    some = [code for code in draw.sample(codes, min(len(codes), 8000)) if code + 1 < max(codes)]
    values = [x for x in map(format.value, some) if math.isfinite(x)]
    pairs = [(format.value(code), format.value(code + 1)) for code in some]
    halves = [(one + next_) / 2 for one, next_ in pairs if math.isfinite(one + next_)]
    beside = [math.nextafter(x, to) for x in halves for to in (-math.inf, math.inf)]
    ends = [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 1.7e308, -2e-308, 65519.99, 65520.0]
    spread = [draw.choice([-1, 1]) * math.ldexp(1 + draw.random(), draw.randrange(-160, 135))
              for _ in range(5000)]  # fmt: skip
    numbers = [*values, *halves, *beside, *ends, *spread]
    numbers += [format.largest * factor for factor in (1, 1.03, 1.07, 2)]
    told = called(
        "bits", CODES, {"format": asdict(format), "numbers": [hex_of(x) for x in numbers]}
    )
    wrong = [
        (x, code, code_shown(x, format))
        for x, code in zip(numbers, told, strict=True)
        if code != code_shown(x, format) and not math.isnan(x)
    ]
    assert len(numbers) > 5000 and not wrong, wrong[:5]


def test_rounding_a_half_up_would_be_found():
    """A bite: what lies in the middle goes to the even neighbour, and not upwards."""
    format = FORMATS["FP16"]
    half = (format.value(0x3C00) + format.value(0x3C01)) / 2
    given = {"format": asdict(format), "numbers": [hex_of(half)]}
    up = ("roundHalfEven(magnitude", "Math.round(magnitude")
    assert called("bits", CODES, given) == [code_shown(half, format)] == [0x3C00]
    assert called("bits", CODES, given, other=up) == [0x3C01]


@each_format
def test_the_ends_and_the_significant_bits_of_a_format(name):
    format = FORMATS[name]
    told = called("bits", "exponentsOf(given)", asdict(format))
    assert 2.0 ** told["normal"] == format.smallest_normal
    assert 2.0 ** told["least"] == format.smallest
    assert 2.0 ** told["top"] <= format.largest < 2.0 ** (told["top"] + 1)
    powers = list(range(told["least"] - 2, told["top"] + 3))
    given = {"format": asdict(format), "powers": powers}
    bits = called("bits", "given.powers.map((p) => precisionAt(given.format, p))", given)
    for power, count in zip(powers, bits, strict=True):
        start = 2.0**power
        if not format.smallest <= start <= format.largest:
            assert count == 0
            continue
        code = format.code_of(start)
        assert format.value(code) == start
        if code < format.largest_code:
            assert format.value(code + 1) - start == start / 2 ** (count - 1)


NUMBERS = [0.0, -0.0, 0.1, 65504.0, -65504.0, 2.0**-24, 2.0**-14, 1e-4, 9.99e-5, 1e15, 1e14, 3.4e38]
NUMBERS += [1.0009765625, 1.000244140625, 1 + 2.0**-23, 2.0**-149, 123456.75, math.inf, -math.inf]
NUMBERS += [math.nan, 0.09991455078125, 999999999999999.5, 1e-320]


def test_numbers_are_written_as_in_javascript():
    draw = random.Random(2)
    numbers = NUMBERS + [math.ldexp(draw.randrange(2**24), draw.randrange(-170, 100))
                         for _ in range(20_000)]  # fmt: skip
    expression = "given.map((h) => numberText(float(h)))"
    told = called("bits", expression, [hex_of(x) for x in numbers])
    assert told == [number_text(x) for x in numbers]


def test_whole_shares_are_written_as_in_javascript():
    pairs = [(part, all_) for all_ in (1, 3, 200, 997) for part in range(all_ + 1)]
    told = called("bits", "given.map(([part, all]) => wholeShareText(part, all))", pairs)
    assert told == [whole_share(*pair) for pair in pairs]
    assert (told[0], told[-1]) == ("0 %", "100 %")
    assert {"under 1 %", "over 99 %"} <= set(told)
