"""Checks of the numbers that functions take: counts, measures, and sizes that must divide."""

import math
from numbers import Integral, Real


def is_whole(value, least: int = 1) -> bool:
    """Return True for a whole number of at least `least`: 4, 4.0 or a NumPy integer, not True."""
    if type(value) is int:  # the usual case, first: one picture asks thousands of times
        return value >= least
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        return False
    return value >= least and (isinstance(value, Integral) or float(value).is_integer())


def whole(value, name: str, least: int = 1) -> int:
    """Return `value` as an int. Raises ValueError unless it is whole and at least `least`."""
    if not is_whole(value, least):
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


def real(value, name: str, *, zero: bool = True, infinite: bool = False) -> float:
    """Return `value` as a float. Raises ValueError unless it is a finite number of at least 0.

    With zero=False it must be above 0; with infinite=True it may be infinite.
    """
    if type(value) in (float, int) and 0 < value < math.inf:
        return float(value)
    number = isinstance(value, Real) and not isinstance(value, bool)
    large_enough = number and (value >= 0 if zero else value > 0)
    if not large_enough or (value == math.inf and not infinite):
        finite = "" if infinite else "finite and "
        raise ValueError(
            f"{name} must be {finite}{'at least' if zero else 'above'} 0, not {value!r}."
        )
    return float(value)


def equal_share(
    count: int, parts: int, what: str = "Dim 0 has {} entries", sharers: str = "{} ranks", *,
    advice: str = "",
) -> int:  # fmt: skip
    """Return count ÷ parts. Raises ValueError, in one sentence for all, where they do not divide.

    `what` and `sharers` are phrases into which the two numbers are put; `advice` is a sentence that
    says what to do: "Dim 0 has 7 entries; 2 ranks cannot share them equally."
    """
    if not is_whole(parts) or count % parts:
        refusal = f"{what.format(count)}; {sharers.format(parts)} cannot share them equally."
        raise ValueError(f"{refusal} {advice}".rstrip())
    return count // int(parts)
