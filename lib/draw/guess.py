"""`guess`: a question, a place to commit an answer, and later the reveal with how far off it was.

The answer stays in the reader's page: no kernel is asked, and nothing is kept once it is closed.
"""

from math import isfinite

from lib.draw import style
from lib.draw.picture import Mark, Picture
from lib.draw.style import Shade
from lib.draw.words import lines_of

_LEFT, _TOP, _TALL = 16, 14, 26  # px: text from here; a box around a choice is so tall
ASKED, TOLD = style.COMPUTE["forward"], style.COMPUTE["backward for weights"]
_PLAIN = ("B", "s", "B/s", "FLOP", "FLOP/s")  # units that take a prefix: 12.3 ms


class Guess(Picture):
    """A question and where to answer it; `reveal(answer)` makes the picture of what it is."""

    def __init__(self, question: str, unit: str = "", choices=()):
        self.question, self.unit = " ".join(question.split()), unit
        self.choices = [str(choice) for choice in choices]
        if not self.question:
            raise ValueError("A guess begins with a question.")
        if len(self.choices) == 1 or len(set(self.choices)) < len(self.choices):
            raise ValueError(f"{self.choices}: a reader chooses from two or more that differ.")
        if self.choices and unit:
            raise ValueError("A guess is a number with a unit or one of several choices, not both.")
        hint = self._hint()
        marks, y = _lines((self.question, style.INK), (hint, style.FAINT))
        data = {"question": self.question, "unit": unit, "choices": self.choices, "hint": hint}
        summary = f"{self.question}\n{hint}"
        super().__init__([_accent(y, ASKED), *marks], y, summary, live=("guess", data))

    def _hint(self) -> str:
        if self.choices:
            return f"Commit to one before you read on: {', '.join(self.choices)}."
        what = f" in {self.unit}" if self.unit else ""
        return f"Commit to a number{what} before you read on."

    def reveal(self, answer) -> Picture:
        """Show the answer, and to a reader who has committed one how far off it is."""
        answer = answer.item() if hasattr(answer, "item") else answer
        if self.choices and str(answer) not in self.choices:
            raise ValueError(f"{answer!r} is none of the choices: {', '.join(self.choices)}.")
        if not self.choices and not (isinstance(answer, int | float) and isfinite(answer)):
            raise ValueError(f"The answer to a question for a number is a number, not {answer!r}.")
        answer = str(answer) if self.choices else answer
        told = f"It is {answer if self.choices else in_units(answer, self.unit)}."
        marks, y = _lines((self.question, style.FAINT), (told, style.INK))
        if self.choices:
            more, y = _boxes(self.choices, answer, y + 4)
            marks += more
        data = {"question": self.question, "unit": self.unit, "choices": self.choices,
                "answer": answer, "told": told}  # fmt: skip
        summary = f"{self.question}\n{told}"
        return Picture([_accent(y, TOLD), *marks], y, summary, live=("guess", data))


def guess(question: str, *, unit: str = "", choices=()) -> Guess:
    """Ask for a number in `unit`, or for one of `choices`: size = guess("How many?", unit="bytes").

    A cell that ends with it shows the question; a later `size.reveal(answer)` shows the answer.
    """
    return Guess(question, unit, choices)


def in_units(value: float, unit: str) -> str:
    """A number as it is said: "3,000,000 bytes", "1 byte", "12.3 ms", "0.75", "1.5 × 10^20"."""
    whole = value == int(value)
    if unit in _PLAIN and not whole and 1e-9 <= abs(value) < 1e13:
        return style.amount(value, unit)
    if abs(value) < 1e15 and (whole or abs(value) >= 1000):
        number = f"{round(value):,}"
    elif 1e-4 <= abs(value) < 1000:
        number = f"{value:.4g}"
    else:
        digits, power = f"{value:.3e}".split("e")
        number = f"{float(digits):g} × 10^{int(power)}"
    one = unit[:-1] if number == "1" and len(unit) > 2 and unit.endswith("s") else unit
    return f"{number} {one}".strip()


def _lines(*texts: tuple[str, Shade]) -> tuple[list[Mark], float]:
    marks, y = [], _TOP
    for text, shade in texts:
        for line in lines_of(text, style.WIDTH - _LEFT - 8):
            marks.append(Mark("text", _LEFT, y, fill=shade, text=line))
            y += style.LINE
        y += 4
    return marks, y


def _accent(height: float, shade: Shade) -> Mark:
    return Mark("box", 0, 0, 4, height, fill=shade)


def _boxes(choices, answer, y) -> tuple[list[Mark], float]:
    """The choices, as many to a line as fit; the right one is filled."""
    marks, x = [], _LEFT
    for choice in choices:
        w, right = len(choice) * style.LETTER + 20, choice == answer
        if x > _LEFT and x + w > style.WIDTH - 8:
            x, y = _LEFT, y + _TALL + 24
        marks.append(Mark("box", x, y, w, _TALL, fill=TOLD if right else None,
                          edge=TOLD if right else style.FAINT, about=choice))  # fmt: skip
        marks.append(Mark("text", x + w / 2, y + _TALL / 2, text=choice, align="middle",
                          fill=style.on(TOLD) if right else style.INK))  # fmt: skip
        x += w + 10
    return marks, y + _TALL + 10
