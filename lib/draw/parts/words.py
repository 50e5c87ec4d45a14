"""Words and numbers that several pictures write, and the sentences that refuse bad input."""

import math
from decimal import ROUND_HALF_UP, Context, Decimal

from lib.ledger import Ledger

_MOST_DIGITS = 15
_ROUNDED = Context(prec=_MOST_DIGITS, rounding=ROUND_HALF_UP)  # as JavaScript rounds


def in_words(ranks: list[int]) -> str:
    """[0, 1, 2] is "ranks 0 to 2", [1, 3] is "ranks 1, 3"."""
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def named(op: str, microbatch: int) -> str:
    """Name an operation with its microbatch: "F3", "forward 3", "step"."""
    return op if microbatch < 0 else f"{op}{' ' * (len(op) > 1)}{microbatch}"


def has_rows(ledger, what: str) -> None:
    """Refuse, in a sentence, what is no ledger or has nothing to draw."""
    if not isinstance(ledger, Ledger):
        kind = type(ledger).__name__
        raise TypeError(f"A {what} is drawn from a Ledger, not from {kind}: use world.record(...).")
    if not len(ledger.where(lane=["compute", "comm"])):
        raise ValueError(f"There is nothing to draw: this ledger has no rows for a {what}.")


def number_text(number: float) -> str:
    """Write a number with up to 15 digits, as number_text.js does: 65,504 or 2.98e-8."""
    if math.isnan(number):
        return "NaN"
    sign = "-" if math.copysign(1.0, number) < 0 else ""
    if math.isinf(number):
        return f"{sign}infinity"
    rounded = _ROUNDED.create_decimal(Decimal(abs(number)))
    digits = "".join(map(str, rounded.as_tuple().digits)).rstrip("0") or "0"
    power = rounded.adjusted() if rounded else 0
    if power < -4 or power >= _MOST_DIGITS:
        point = "." if digits[1:] else ""
        return f"{sign}{digits[0]}{point}{digits[1:]}e{power}"
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    whole, rest = digits[: power + 1].ljust(power + 1, "0"), digits[power + 1 :]
    return f"{sign}{int(whole):,}{'.' if rest else ''}{rest}"


def whole_share(part: float, all: float) -> str:
    """Write a share in whole per cent; what is neither nothing nor all is not written as if so."""
    hundredths = round((100 * part) / (all or 1))
    if part and not hundredths:
        return "under 1 %"
    if part < all and hundredths == 100:
        return "over 99 %"
    return f"{hundredths} %"
