"""Bits on a still: boxes, the number lines, significant bits, and what of counted numbers fits."""

import json
import math
import re

import pytest

from lib.draw import bits
from lib.draw.bits import FORMATS, code_shown, fates
from lib.draw.parts import layout, style
from lib.predict.number_formats import NumberFormat
from tests.draw.in_v8 import called
from tests.draw.marks import box, boxes, texts
from tests.every import every

COUNTS = {-40: 5, -26: 10, -25: 20, -24: 30, -15: 40, -14: 50, 15: 60, 16: 3, 20: 2}
EACH = {"FP32": 1 / 3, "TF32": -1e-40, "BF16": 0.1, "FP16": 3e-7, "E5M2": 1e6, "E4M3": -500.0,
        "E3M2": 7.0, "E2M3": 0.3, "E2M1": 2.6, "E8M0": 0.0}  # fmt: skip


@pytest.mark.parametrize(("name", "number"), EACH.items())
def test_each_bit_is_a_box_in_the_colour_of_its_field(name, number):
    format, drawn = FORMATS[name], bits(number, name, None)
    code = code_shown(number, format)
    marks = boxes(drawn, f"{name}, a bit of the ")
    digits = [mark.about.splitlines()[0][-1] for mark in marks]
    assert "".join(digits) == f"{code:0{format.bits}b}"
    fields = [re.search("of the ([a-z]+):", mark.about)[1] for mark in marks]
    wanted = ["sign"] * format.signed + ["exponent"] * format.exponent
    assert fields == wanted + ["mantissa"] * format.mantissa
    shades = {
        "sign": style.COMM["message"],
        "exponent": style.COMM["all_gather"],
        "mantissa": style.COMPUTE["backward for weights"],
    }
    for mark, digit, field in zip(marks, digits, fields, strict=True):
        assert mark.fill == (shades[field] if digit == "1" else style.PAPER)
        assert mark.edge == shades[field]
    assert every(a.x < b.x or a.y < b.y for a, b in zip(marks, marks[1:]))


def test_what_a_bit_is_worth_is_told():
    drawn = bits(0.1)
    told = [mark.about.splitlines()[1] for mark in boxes(drawn, "FP16, a bit of the ")]
    assert told[:3] == ["1 is a minus", "1 is worth 16", "1 is worth 8"]
    assert told[6] == "1 is worth 1/2" and told[-1] == "1 is worth 1/1,024"


@pytest.mark.parametrize(
    ("number", "format", "words"),
    [
        (0.1, "fp16", "FP16: 2⁻⁴ × (1 + 614/1,024) = 0.0999755859375"),
        (-0.1, "fp16", "FP16: −2⁻⁴ × (1 + 614/1,024) = −0.0999755859375"),
        (3 * 2**-24, "fp16", "FP16: 2⁻¹⁴ × 3/1,024 ≈ 1.78813934326172e-7"),
        (6, "e2m1", "E2M1: 2² × (1 + 1/2) = 6"),
        (0.25, "e8m0", "E8M0: 2⁻² = 0.25"),
        (1e6, "fp16", "FP16: infinity"),
        (-1e6, "fp16", "FP16: −infinity"),
        (1e6, "e4m3", "E4M3: NaN"),
        (1e6, "e2m1", "E2M1: 2² × (1 + 1/2) = 6"),
    ],
)
def test_the_number_stands_above_its_bits_as_its_fields_give_it(number, format, words):
    assert texts(bits(number, format, None))[0].split(", off by")[0] == words


def test_subnormals_and_specials_are_named_in_the_legend():
    assert "exponent 0, read as 1: subnormal, 2⁻¹⁴" in texts(bits(3e-7))
    assert "exponent 0: zero" in texts(bits(1e-8)), "0 is not a subnormal number"
    assert {"exponent all ones", "mantissa 0: infinity"} <= set(texts(bits(1e9, "fp16", None)))
    assert "mantissa all ones: NaN" in texts(bits(500, "e4m3", None))
    assert "mantissa not 0: NaN" in texts(bits(math.nan, "fp16", None))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0.5, "0.5 is exact in FP16 and in BF16."),
        (0.1, "0.1 becomes 0.0999755859375 in FP16 and 0.10009765625 in BF16."),
        (1e6, "1,000,000 becomes infinity in FP16 and 999,424 in BF16."),
        (1e-9, "1e-9 becomes 0 in FP16 and 9.96806193143129e-10 in BF16."),
        (65504, "65,504 is exact in FP16 and becomes 65,536 in BF16."),
    ],
)
def test_what_the_number_becomes_is_said_in_a_sentence(number, words):
    given = {"summary": ""} | bits(number).live[1]
    result = "[given].map((d) => bitsResult(bitsOfState(d, picture(d).state)))[0]"
    assert called("bits", result, given) == words


def test_the_error_stands_behind_the_number():
    assert texts(bits(0.1))[0].endswith("= 0.0999755859375, off by 0.024 %")
    assert "off by" not in " ".join(texts(bits(0.5)))
    assert "off by" not in texts(bits(1e-9, "fp16", None))[0], "what becomes 0 is not off by 100 %"
    assert bits(0.1).still().heading == "0.1 in FP16 and, beside it, in BF16."
    assert bits(0.1, "fp16", None).still().heading == "0.1 in FP16."


def test_neighbours_and_their_distance_are_told():
    told = "Neighbours: 0.09991455078125 and 0.10003662109375, step 2⁻¹⁴."
    assert told in texts(bits(0.1))
    assert "Neighbours: 4 and none, step 2¹." in texts(bits(6, "e2m1", None))
    assert "Neighbours: none and 1.17549435082229e-38, step 2⁻¹²⁷." in texts(bits(0, "e8m0", None))
    assert "The largest number of FP16 is 65,504." in texts(bits(1e6))
    words = " ".join(texts(bits(1e6, "e4m3")))
    assert "is 448, and it has no infinity: a cast that does not saturate gives NaN." in words


def ticks(drawn, op: str, tall: int = 18) -> list[float]:
    """Where the upright lines of that height and of that operation's colour are."""
    lines = [mark for mark in drawn.marks if mark.kind == "line" and len(mark.points) == 2]
    return sorted({
        mark.points[0][0] for mark in lines
        if mark.edge == style.colour(op) and abs(mark.points[0][1] - mark.points[1][1]) == tall
    })  # fmt: skip


def test_the_line_near_a_number_has_the_numbers_of_both_formats_where_they_are():
    drawn = bits(0.1)
    own, other = (ticks(drawn, op) for op in ("forward", "all_reduce"))
    assert len(own) == 28 and len(other) == 3
    steps = [b - a for a, b in zip(own, own[1:])]
    assert steps == pytest.approx([steps[0]] * 27)
    assert other[1] - other[0] == pytest.approx(8 * steps[0])  # 3 bits fewer
    marker = box(drawn, "the number: 0.1")
    at = FORMATS["FP16"].value(code_shown(0.1, FORMATS["FP16"]))
    nearest = min(own, key=lambda x: abs(x - marker.x - 4))
    assert (marker.x + 4 - nearest) / steps[0] == pytest.approx((0.1 - at) / 2**-14, abs=1e-6)


def test_beyond_its_end_the_line_shows_the_end_of_the_format():
    drawn = bits(-1e6, "fp16", None)
    assert "at the end: FP16" in texts(drawn) and not boxes(drawn, "the number")
    assert len(ticks(drawn, "forward")) == 2  # -65,504 and the one before it
    assert "near it: FP16" in texts(bits(-65520, "fp16", None))
    assert {"near it: FP16", "NaN lies nowhere on it."} <= set(texts(bits(math.nan, "fp16", None)))


def test_where_numbers_lie_too_close_a_bar_stands_for_them():
    drawn = bits(1 / 3, "fp32", "fp16")
    bar = box(drawn, "FP32: about ")
    assert re.fullmatch(r"FP32: about 28,67\d numbers lie here", bar.about)  # 3.5 × 2^13
    assert bar.fill == style.colour("forward") and bar.w == pytest.approx(624, abs=0.1)


def test_significant_bits_are_as_high_as_they_are_many():
    drawn = bits(1.0, "fp16", "e5m2")
    (area,) = [m for m in drawn.marks if m.kind == "area"]
    base = area.points[0][1]
    heights = {x: base - y for x, y in area.points[1:-1]}
    assert max(heights.values()) == pytest.approx(64)
    stairs = sorted({round((base - y) / 64 * 11, 6) for _, y in area.points})
    assert stairs == list(range(12))
    (line,) = [m for m in drawn.marks if m.about.startswith("E5M2: 3 significant bits")]
    assert base - min(y for _, y in line.points) == pytest.approx(64 * 3 / 11)
    unit = (area.points[-1][0] - area.points[0][0]) / (math.log2(65504) + 24)
    assert line.points[0][0] - area.points[0][0] == pytest.approx(8 * unit)  # 2^-16, 2^-24


def test_a_format_of_few_numbers_shows_each_of_them():
    drawn = bits(1.0, "e2m1", None)
    values = [FORMATS["E2M1"].value(code) for code in range(1, 8)]
    places = ticks(drawn, "forward", 9)
    unit = (places[-1] - places[0]) / (math.log2(6) + 1)
    assert places == pytest.approx([places[0] + unit * (math.log2(v) + 1) for v in values])


def test_fates_are_those_of_the_format_at_each_scale():
    of = lambda name, power: tuple(fates(COUNTS, FORMATS[name], power).values())
    assert of("FP16", 0) == (15, 90, 110, 5)
    assert of("FP16", 1) == (5, 60, 90, 65)
    assert of("FP16", 16) == (0, 5, 150, 65)
    assert of("BF16", 0) == (0, 0, 220, 0)
    assert of("E4M3", 0) == (155, 0, 0, 65)
    for number, fate in ((2.0**-26, 0), (1.5 * 2**-25, 1), (2.0**-15, 1), (2.0**-14, 2),
                         (65504.0, 2), (65536.0, 3)):  # fmt: skip
        counted = fates({math.frexp(number)[1] - 1: 1}, FORMATS["FP16"])
        kept = FORMATS["FP16"].value(code_shown(number, FORMATS["FP16"]))
        assert list(counted.values()).index(1) == fate
        assert (kept == 0) == (fate == 0) and math.isinf(kept) == (fate == 3)


@pytest.mark.parametrize("name", FORMATS)
def test_fates_are_counted_as_in_javascript(name):
    counts = [[power, abs(power) + 1] for power in range(-160, 140)]
    expression = "given.powers.map((p) => countFates(given.format, given.counts, p))"
    powers = [0, 1, 16, 24]
    given = {"format": bits(1.0).live[1]["formats"][name], "counts": counts, "powers": powers}
    for power, told in zip(powers, called("bits", expression, given), strict=True):
        ours = fates(dict(counts), FORMATS[name], power)
        assert told == ours | {"total": sum(ours.values())}


def test_bars_are_as_high_as_their_counts_in_the_colour_of_their_fate():
    drawn = bits(exponents=COUNTS, scale=2, what="gradients")
    shades = {
        "subnormal": style.colour("backward"),
        "normal": style.colour("forward"),
        "overflow": style.colour("all_to_all"),
    }
    unit = box(drawn, "2¹⁶ to 2¹⁷: 60 numbers").h / 60
    for power, count in COUNTS.items():
        (bar,) = [m for m in drawn.marks if m.about.startswith(f"{raised(power + 1)} to ")]
        (fate,) = [f for f, n in fates({power: 1}, FORMATS["FP16"], 1).items() if n]
        assert bar.h == pytest.approx(unit * count) and bar.fill == shades.get(fate)
        assert bar.hatch == (fate == "zero")
    assert "share of the gradients × 2¹" in texts(drawn)


def raised(power: int) -> str:
    return "2" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def test_a_bar_lies_where_its_power_of_two_is_on_the_axis():
    at = lambda drawn, power: box(drawn, f"{raised(power)} to ").x
    plain, scaled = bits(exponents=COUNTS), bits(exponents=COUNTS, scale=2**8)
    (area,) = [m for m in plain.marks if m.kind == "area"]
    assert at(plain, -24) == pytest.approx(area.points[0][0])  # the smallest number of FP16
    assert at(scaled, -24 + 8) - at(plain, -24) == pytest.approx(
        8 * (at(plain, -24) - at(plain, -25))
    )


def test_the_shares_are_said_in_per_cent_and_how_far_the_scale_may_go():
    words = " ".join(texts(bits(exponents={-30: 1, -20: 2, -3: 997}, what="gradients")))
    assert (
        "At a loss scale of 1, of 1,000 gradients, 0.1 % become 0, 0.2 % are subnormal, " in words
    )
    assert "99.7 % are normal and 0 % overflow in FP16." in words
    assert "Nothing is too large up to a loss scale of 2¹⁸." in words
    words = " ".join(texts(bits(exponents={16: 1, 0: 9999}, scale=4, what="gradients")))
    assert "At a loss scale of 2², of 10,000 gradients," in words
    assert "under 0.1 % overflow in FP16. Some are too large even without a scale." in words
    words = " ".join(texts(bits(1.0, "e2m1", exponents={9: 1, 0: 1})))
    assert "50 % saturate in E2M1" in words


def test_the_words():
    assert bits().summary.splitlines() == [
        "bits: 0.1 in FP16 is 0 01011 1001100110",
        "  value: 0.0999755859375",
        "  neighbours: 0.09991455078125 and 0.10003662109375, the step away from 0 is 2^-14",
        "  beside it in BF16: 0 01111011 1001101, 0.10009765625",
    ]
    assert bits(exponents=COUNTS, scale=2, what="gradients").summary.splitlines()[-1] == (
        "  of 220 gradients times 2^1: 2 % become 0, 27 % are subnormal, 41 % are normal, "
        "30 % overflow"
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("number", [0.0, -0.0, 0.3, -3e-7, 1e6, 448, math.inf, -math.inf, math.nan])
def test_the_words_are_those_of_javascript(name, number):
    for other, counts in ((None, None), ("e4m3", COUNTS), (name, None)):
        kind, data = bits(number, name, other, exponents=counts, scale=4).live
        (now,) = called(kind, "[given].map(picture).map((p) => p.layout(p.state, 640).summary)",
                        {"summary": ""} | data)  # fmt: skip
        assert now == bits(number, name, other, exponents=counts, scale=4).summary


def test_the_caption_says_what_the_numbers_are():
    plain, counted = bits(caption="Mine"), bits(exponents=COUNTS, zeros=7, what="gradients")
    assert plain.caption == (
        "Values and ranges are computed from the definitions of the formats. Mine."
    )
    assert counted.caption.startswith(plain.caption.removesuffix(" Mine."))
    assert "Each bar counts the numbers of one power of two, which are" in counted.caption
    assert counted.caption.endswith("Left out: gradients of 0 (7).")


def test_a_format_of_ones_own_is_among_the_choices():
    mine = NumberFormat("E6M5", 6, 5, 31, "ieee")
    drawn = bits(0.1, mine, "fp16")
    assert drawn.live[1]["names"] == [*FORMATS, "E6M5"]
    assert drawn.summary.startswith("bits: 0.1 in E6M5 is 0 011011 10011")


@pytest.mark.parametrize("width", [304, 640, 1144])
@pytest.mark.parametrize(("name", "number"), EACH.items())
def test_everything_is_inside_whatever_the_format(width, name, number):
    for other, counts in (("fp32", None), ("e2m1", {**COUNTS, -90: 1})):
        kind, data = bits(number, name, other, exponents=counts, what="gradients").live
        still = layout.still(kind, {"summary": ""} | data, width, words=True)
        for mark in still.marks:
            wide = (
                len(mark.text) * style.LETTER * {"left": 1, "middle": 0.5, "right": 0}[mark.align]
            )
            right = mark.x + mark.w + (wide if mark.text else 0)
            for x, y in mark.points or [(mark.x, mark.y), (right, mark.y + mark.h)]:
                assert -0.1 <= x <= width + 0.1 and -0.1 <= y <= still.height + 0.1, mark


def test_a_picture_with_counts_is_small():
    counts = {power: 10**6 + power for power in range(-150, 10)}
    drawn = bits(exponents=counts, what="gradients")
    assert len(json.dumps(drawn.live)) < 6000 and len(drawn.png()) < 60_000


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: bits(1, "fp12"), "No format is called 'fp12'. Choose one of FP32, TF32, BF16"),
        (lambda: bits(1, NumberFormat("F64", 11, 52, 1023, "ieee")), "F64 has 64 bits, and at"),
        (lambda: bits(exponents={}), "There is nothing to count: `exponents` has no number"),
        (lambda: bits(exponents={1: 0}), "There is nothing to count"),
        (lambda: bits(exponents={0.5: 1}), "A power of two is a whole number from -1200 to 1200"),
        (lambda: bits(exponents={1: -1}), "A count must be a whole number of at least 0"),
        (lambda: bits(scale=3), "A loss scale is a power of two of at least 1, not 3."),
        (lambda: bits(scale=0.5), "A loss scale is a power of two of at least 1, not 0.5."),
        (lambda: bits(scale=math.inf), "A loss scale is a power of two of at least 1, not inf."),
        (lambda: bits(zeros=-1), "zeros must be a whole number of at least 0"),
    ],
)
def test_bad_input_is_told_in_a_sentence(call, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


@pytest.mark.parametrize("width", [1, 40, 62, 70, 120])
def test_a_page_that_is_too_narrow_for_a_moment_is_laid_out_all_the_same(width):
    """JupyterLab lays a page out anew when its theme changes; the axis must end there too."""
    for drawn in (bits(0.3, "e4m3", "e5m2"), bits(0.1, "fp16", None, exponents=COUNTS)):
        kind, data = drawn.live
        laid = layout.still(kind, {"summary": ""} | data, width, words=False)
        assert laid.height > 0 and laid.marks
