"""Common slips in an answer that is a number: each is a factor, and a question that finds it."""

from collections.abc import Iterator

# What one of each unit is. Whoever answers in another unit of the same line is asked about it.
_UNITS = (
    {"bits": 1 / 8, "bytes": 1, "kB": 1e3, "KiB": 2**10, "MB": 1e6, "MiB": 2**20, "GB": 1e9,
     "GiB": 2**30, "Mbit": 1e6 / 8, "Gbit": 1e9 / 8},
    {"µs": 1e-6, "ms": 1e-3, "s": 1},
    {"%": 0.01, "fractions of 1": 1},
)  # fmt: skip
_CLOSE, _CLOSER = 0.005, 0.002  # relative; the second for factors that are near to 1
_SMALLEST = 6  # half or twice a smaller count may be a guess as well as a slip


def slip(number: float, answer: float, kind: str = "", ranks: int = 0) -> str:
    """Return the questions that fit a wrong number; the text is empty where none does.

    `kind` is the unit of the answer, with "sent" before it where it is what a rank sends: "ms",
    "MB" or "sent MB". A count has no unit. `ranks` is how many ranks the answer is about, if that
    is known.
    """
    if not number or not answer:
        return ""
    questions = (
        question
        for factor, question in _slips(answer, kind, ranks)
        if _fits(number, answer * factor, factor, is_count=not kind)
    )
    return " ".join(list(dict.fromkeys(questions))[:2])


def _fits(number: float, slipped: float, factor: float, is_count: bool) -> bool:
    close = 1e-9 if is_count else _CLOSER if 0.9 < factor < 1.1 else _CLOSE
    return abs(number - slipped) <= close * abs(slipped)


def _slips(answer: float, kind: str, ranks: int) -> Iterator[tuple[float, str]]:
    """Yield the factors that are plausible for such an answer, the likeliest first."""
    is_sent, unit = kind.startswith("sent "), kind.removeprefix("sent ")
    yield -1, "The sign is the wrong one."
    if unit == "%":
        yield 100 / answer - 1, "This and the answer add up to 100 %: is it the other part?"
    if unit != "value":
        yield from _multiples(answer, is_sent, unit)
        yield from _of_ranks(is_sent, ranks)
        yield from _units(unit)
        yield answer**-2, "This is 1 divided by the answer: is the fraction upside down?"


def _multiples(answer: float, is_sent: bool, unit: str) -> Iterator[tuple[float, str]]:
    if is_sent:
        yield 1 / 2, "This is half of what is sent: did you count both directions?"
        yield 2, "This is twice what is sent: did you count what is received as well?"
    elif unit or abs(answer) >= _SMALLEST:
        yield 1 / 2, "This is half of the answer: is something counted once that happens twice?"
        yield 2, "This is twice the answer: is something counted twice?"
    if unit in _UNITS[0]:
        yield 1 / 4, "This is a quarter of the answer: did you count numbers of 4 bytes each?"
        yield 4, "This is 4 times the answer: does each number have fewer bytes than you took?"


def _of_ranks(is_sent: bool, ranks: int) -> Iterator[tuple[float, str]]:
    if ranks < 3:  # 2 is among the multiples
        return
    one = "The answer is about one rank"
    yield ranks, f"This is {ranks} times the answer. {one}: did you count all {ranks} together?"
    yield 1 / ranks, f"This is 1/{ranks} of the answer: is it one of {ranks} pieces?"
    others = ranks - 1
    yield others, f"This is {others} times the answer. {one}: did you count the other {others}?"
    yield 1 / others, f"This is 1/{others} of the answer: is it one message of {others}?"
    if is_sent and ranks / others > 1.03:  # what is nearer may be rounded only
        own = "did you count the rank's own piece, which is not sent?"
        yield ranks / others, f"This is {ranks}/{others} of what is sent: {own}"


def _units(unit: str) -> Iterator[tuple[float, str]]:
    for units in _UNITS:
        for other, size in units.items():
            if unit in units and other != unit:
                factor = units[unit] / size
                yield factor, f"The answer is in {unit}: is this in {other}?"
