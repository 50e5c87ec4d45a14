"""A number as its bits, the numbers of two formats, and what of counted numbers they can hold."""

import math
from collections.abc import Mapping
from dataclasses import asdict

from lib.draw.parts import captions
from lib.draw.parts.picture import Picture
from lib.draw.parts.words import number_text, whole_share
from lib.predict import number_formats
from lib.predict.arguments import is_whole, whole
from lib.predict.number_formats import NumberFormat

FORMATS = {one.name: one for one in vars(number_formats).values() if isinstance(one, NumberFormat)}
MOST_BITS = 32  # that are drawn
_MOST_SCALE = 24  # the power of two at which the slider of the loss scale ends
_FATES = ("zero", "subnormal", "normal", "overflow")
_DEFINED = "Values and ranges are computed from the definitions of the formats"
_COUNTED = (
    "Each bar counts the numbers of one power of two, which are taken to be lost or kept alike"
)


def bits(
    number: float = 0.1, format: str | NumberFormat = "fp16",
    other: str | NumberFormat | None = "bf16", *, exponents: Mapping[int, int] | None = None,
    zeros: int = 0, scale: float = 1, what: str = "numbers", caption: str = "",
) -> Picture:  # fmt: skip
    """Draw a number as its bits in one format and in another, and where both have numbers.

    The reader can flip each bit, type a number, and choose the formats. `exponents` counts numbers
    by their power of two, {-3: 7} being 7 numbers from 2^-3 up to 2^-2 in magnitude: they are drawn
    as bars over the same logarithmic axis, times a loss scale, `scale`, which the reader can turn.
    `what` names these numbers ("gradients"); `zeros` of them were 0, and are left out. `caption`
    says where they come from.

    Raises ValueError for a format that has no such name or more than 32 bits, and for a scale that
    is no power of two of at least 1.
    """
    own, beside = _format(format), None if other is None else _format(other)
    formats = FORMATS | {one.name: one for one in (own, beside) if one}
    counts, power, number = _counts(exponents), _power(scale), float(number)
    zeros = whole(zeros, "zeros", 0)
    data = {
        "names": list(formats),
        "formats": {name: asdict(one) for name, one in formats.items()},
        "counts": counts, "what": what, "most": max(_MOST_SCALE, power),
        "start": {
            "number": number if math.isfinite(number) else str(number),
            "format": own.name, "other": beside.name if beside else "", "scale": power,
        },
        "caption": captions.joined(_DEFINED, *_of_counts(counts, zeros, what), caption),
    }  # fmt: skip
    return Picture(_story(number, own, beside, counts, power, what), ("bits", data))


def code_shown(number: float, format: NumberFormat) -> int:
    """Return the code that the picture shows for a number: that of the nearest one.

    What is too large becomes infinity, NaN where the format has no infinity, and the largest number
    where it has neither.
    """
    return format.code_of(number, "saturate" if format.specials == "none" else "infinity")


def fates(counts: Mapping[int, int], format: NumberFormat, power: int = 0) -> dict[str, int]:
    """Count what becomes of numbers, counted by power of two, times 2^power, in a format.

    Returns how many of them are "zero" (less than half of the smallest number), "subnormal",
    "normal", and "overflow" (of a power of two above that of the largest number).
    """
    smallest, normal = (_below(x) for x in (format.smallest, format.smallest_normal))
    largest = _below(format.largest)
    result = dict.fromkeys(_FATES, 0)
    for exponent, count in counts.items():
        at = exponent + power
        lost = "zero" if at < smallest - 1 else "subnormal" if at < normal else ""
        result[lost or ("overflow" if at > largest else "normal")] += count
    return result


def _below(number: float) -> int:
    """The power of two of a number above 0."""
    return math.frexp(number)[1] - 1


def _format(name) -> NumberFormat:
    known = {one.lower(): format for one, format in FORMATS.items()}
    format = name if isinstance(name, NumberFormat) else known.get(str(name).lower())
    if format is None:
        raise ValueError(f"No format is called {name!r}. Choose one of {', '.join(FORMATS)}.")
    if format.bits > MOST_BITS:
        raise ValueError(
            f"{format.name} has {format.bits} bits, and at most {MOST_BITS} can be drawn."
        )
    return format


def _counts(exponents) -> list[list[int]]:
    """The counts as [power, count], without those of 0."""
    pairs = []
    for power, count in sorted((exponents or {}).items()):
        if not is_whole(power, -1200) or power > 1200:
            raise ValueError(f"A power of two is a whole number from -1200 to 1200: {power!r}.")
        pairs.append([int(power), whole(count, "A count", 0)])
    counts = [pair for pair in pairs if pair[1]]
    if exponents is not None and not counts:
        raise ValueError("There is nothing to count: `exponents` has no number other than 0.")
    return counts


def _power(scale) -> int:
    power = math.log2(scale) if isinstance(scale, int | float) and scale >= 1 else -1
    if power < 0 or not power.is_integer():
        raise ValueError(f"A loss scale is a power of two of at least 1, not {scale!r}.")
    return int(power)


def _of_counts(counts, zeros: int, what: str) -> list[str]:
    if not counts:
        return []
    left_out = f"Left out: {what} of 0 ({zeros:,})" if zeros else ""
    return [_COUNTED, left_out]


def _story(number: float, own: NumberFormat, beside, counts, power: int, what: str) -> str:
    """The same in words."""
    code = code_shown(number, own)
    value = own.value(code)
    lines = [
        f"bits: {number_text(number)} in {own.name} is {_bit_text(own, code)}",
        f"  value: {number_text(value)}",
    ]
    if math.isfinite(value):
        below, above = (_neighbour(own, code, by) for by in (-1, 1))
        gap = max(own.fields(code)[1], 1 if own.mantissa else 0) - own.bias - own.mantissa
        lines.append(f"  neighbours: {below} and {above}, the step away from 0 is 2^{gap}")
    if beside and beside.name != own.name:
        other = code_shown(number, beside)
        text = f"{_bit_text(beside, other)}, {number_text(beside.value(other))}"
        lines.append(f"  beside it in {beside.name}: {text}")
    if counts:
        found = fates(dict(counts), own, power)
        total = sum(found.values())
        words = {
            "zero": "become 0" if own.mantissa else "become the smallest number",
            "subnormal": "are subnormal", "normal": "are normal",
            "overflow": "saturate" if own.specials == "none" else "overflow",
        }  # fmt: skip
        shares = [f"{whole_share(found[fate], total)} {words[fate]}" for fate in _FATES]
        times = f" times 2^{power}" if power else ""
        lines.append(f"  of {total:,} {what}{times}: {', '.join(shares)}")
    return "\n".join(lines)


def _bit_text(format: NumberFormat, code: int) -> str:
    """A code as its bits, the fields apart: "0 01011 1001100110"."""
    text = f"{code:0{format.bits}b}"
    sign, end = int(format.signed), int(format.signed) + format.exponent
    return " ".join(part for part in (text[:sign], text[sign:end], text[end:]) if part)


def _neighbour(format: NumberFormat, code: int, by: int) -> str:
    """The next number below or above, written out; "none" where there is none."""
    magnitude = code % 2 ** (format.exponent + format.mantissa)
    order = (-magnitude if magnitude != code else magnitude) + by
    if abs(order) > format.largest_code or (order < 0 and not format.signed):
        return "none"
    return number_text(format.value(abs(order) + (format.sign_code if order < 0 else 0)))
