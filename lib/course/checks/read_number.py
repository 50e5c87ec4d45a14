"""Reads the number that a reader has written, or says in a sentence why it is none."""

import math
import re
from decimal import Decimal
from numbers import Real

_DIGITS = re.compile(r"[-+]?[\d.,_ ]*\d[\d.,_ ]*(e[-+]?\d+)?", re.I)


class NoNumber(ValueError):
    """Raised for what is no number; its text is a sentence for the reader."""


def is_missing(value) -> bool:
    """Return True where the reader has not answered yet: None or three dots."""
    return value is None or value is ...


def read_number(value) -> int | float:
    """Return a number as Python's own, also that of a tensor or an array of one element.

    Raises NoNumber for text, truth values, several numbers, and what is infinite or nan.
    """
    if callable(getattr(value, "item", None)):  # a tensor, an array, or a number of NumPy
        try:
            value = value.item()
        except (ValueError, RuntimeError):
            raise NoNumber("These are several numbers, or none. Write one.") from None
    if isinstance(value, bool):
        raise NoNumber(f"{value} is a truth value. Write a number.")
    if isinstance(value, str | bytes):
        raise NoNumber(_text(value))
    if isinstance(value, tuple | list):
        raise NoNumber(_several(value))
    if isinstance(value, complex):
        raise NoNumber("This number has an imaginary part. Write it without `j`.")
    if callable(value):
        raise NoNumber("This is a function. Call it, and write what it returns.")
    if not isinstance(value, Real | Decimal):
        raise NoNumber(f"This is of type {type(value).__name__}, and not a number.")
    try:
        number = float(value)
    except OverflowError:
        raise NoNumber("This number is too large.") from None
    except ValueError:  # a NaN of Decimal that signals
        number = math.nan
    if not math.isfinite(number):
        raise NoNumber(f"This is {number}. Write a number that is finite.")
    return value if isinstance(value, int) else number


def as_written(number: float) -> str:
    """Return a number as a reader would write it: a whole one in full, others to six digits."""
    if float(number).is_integer() and abs(number) < 2**53:
        return f"{int(number):,}"
    digits = float(f"{number:.6g}")
    return f"{int(digits):,}" if 1e5 < abs(digits) < 2**53 else f"{digits:,.6g}"


def _text(value: str | bytes) -> str:
    text = value.decode(errors="replace") if isinstance(value, bytes) else value
    if not _DIGITS.fullmatch(text.strip()):
        return f"{text[:20]!r} is text. Write a number, in digits and without quotes."
    if re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+", text.strip()):
        return f"{text!r} is text. Write {text.strip().replace(',', '_')} without quotes."
    if text.count(",") == 1:
        return f"{text!r} is text. Use a point, and no quotes: {text.strip().replace(',', '.')}."
    return f"{text!r} is text. Write the number without quotes."


def _several(value: tuple | list) -> str:
    if len(value) == 2 and all(type(part) is int for part in value):
        return f"In Python {value[0]},{value[1]} is two numbers. Use a point: {value[0]}.{value[1]}"
    return f"This is a {type(value).__name__} of {len(value)}. Write one number, without brackets."
