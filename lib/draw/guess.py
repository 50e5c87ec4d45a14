"""`guess`: a question, a place for the reader's guess, and the reveal with how far off it was.

The answer is covered until a guess is entered or the reader asks to be shown it. Guesses stay in
the reader's own browser, also over a reload; no kernel is asked.

[Note: where an answer is folded] A still cannot be opened, so it shows the covered answer. Beside
it a reveal gives HTML with the answer in a <details>: GitHub, nbviewer, an untrusted JupyterLab and
the book without scripts show that, folded. On paper the answer is printed below its question. The
text of the output, which the tests compare, has the answer.
"""

from html import escape
from math import isfinite

from lib.draw.parts import style
from lib.draw.parts.picture import Picture

_PLAIN = ("B", "s", "B/s", "FLOP", "FLOP/s")  # units that take a prefix: 12.3 ms


class Guess(Picture):
    """A question and where to answer it; `reveal(answer)` makes the picture of the answer."""

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
        data = {"question": self.question, "unit": unit, "choices": self.choices, "hint": hint}
        summary = f"{self.question}\n{hint}"
        super().__init__(summary, ("guess", data))

    def _hint(self) -> str:
        if self.choices:
            return f"Choose one before you read on: {', '.join(self.choices)}."
        what = f" ({self.unit})" if self.unit else ""
        return f"Enter your guess{what} before you read on."

    def reveal(self, answer, details: str = "") -> "Reveal":
        """Cover the answer until the reader enters a guess, and then say how far off that is.

        `details` are lines that give the answer away, such as a table of what was computed: they
        are covered with it, and shown in columns.
        """
        answer = answer.item() if hasattr(answer, "item") else answer
        if self.choices and str(answer) not in self.choices:
            raise ValueError(f"{answer!r} is none of the choices: {', '.join(self.choices)}.")
        if not self.choices and not (isinstance(answer, int | float) and isfinite(answer)):
            raise ValueError(f"The answer to a question for a number is a number, not {answer!r}.")
        if not self.choices and answer < 0:
            raise ValueError(f"The answer is {answer}, and guesses below zero are refused: ask for "
                             "how much less.")  # fmt: skip
        answer = str(answer) if self.choices else answer
        told = f"It is {answer if self.choices else in_units(answer, self.unit)}."
        data = {"question": self.question, "unit": self.unit, "choices": self.choices,
                "answer": answer, "told": told}  # fmt: skip
        lines = details.rstrip().split("\n") if details.strip() else []
        data |= {"details": lines} if lines else {}
        return Reveal("\n".join([self.question, told, *lines]), ("guess", data))


class Reveal(Picture):
    """The answer to a question, folded wherever it cannot be covered."""

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, metadata = super()._repr_mimebundle_(include, exclude)
        question, told, *lines = (escape(line) for line in self.summary.split("\n"))
        table = "<pre>{}</pre>".format("\n".join(lines)) if lines else ""
        fold = f"<details><summary>Show the answer</summary><p>{told}</p>{table}</details>"
        return {**data, "text/html": f"<p>{question}</p>\n{fold}"}, metadata


def guess(question: str, *, unit: str = "", choices=()) -> Guess:
    """Ask for a number in `unit`, or for one of `choices`: size = guess("How many?", unit="bytes").

    A cell that ends with it shows the question; a later `size.reveal(answer)` shows the answer.
    """
    return Guess(question, unit, choices)


def in_units(value: float, unit: str) -> str:
    """Write a number as it is said: "3,000,000 bytes", "1 byte", "12.3 ms", "1.5 × 10^20"."""
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
