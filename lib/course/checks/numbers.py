"""Exercises whose answers are numbers that the reader predicts."""

from dataclasses import dataclass, field

from lib.course.checks.read_number import NoNumber, as_written, is_missing, read_number
from lib.course.checks.slips import slip
from lib.course.checks.verdict import Hints, Verdict


@dataclass
class Numbers(Hints):
    """Compares the reader's numbers with numbers that the library computes.

    Where a wrong number has a well-known reason, `mistakes` says it: {name: {number: sentence}}.
    `kinds` says what an answer is, so that slips which all readers make are recognised too:
    {name: "sent MB"}, as `slips.slip` takes it. An answer without a kind is a count.
    """

    task: str = ""
    answers: dict = field(default_factory=dict)  # name -> number, or a function that returns it
    close: float = 0.01  # the largest relative error that counts as right
    exact: tuple[str, ...] = ()  # names of whole numbers, for which nothing else is right
    mistakes: dict = field(default_factory=dict)
    kinds: dict = field(default_factory=dict)
    ranks: int = 0  # that the answers are about, where all are about as many

    def check(self, **predicted) -> Verdict:
        """Compare the reader's numbers, by name, with the computed ones; None is not answered."""
        if unknown := self._unknown(predicted, self.answers):
            return self._not_yet(unknown)
        missing = [name for name in self.answers if is_missing(predicted.get(name))]
        if len(missing) == len(self.answers):
            return self._open("no number is there", self.task)
        lines, solved = [], not missing
        for name, answer in self.answers.items():
            if name in missing:
                lines.append(f"  {name}: not answered yet")
                continue
            right, said = self._judged(name, predicted[name], answer)
            solved = solved and right
            lines += said
        text = "\n".join(lines)
        return (
            Verdict(True, f"Solved.\n{text}") if solved else self._not_yet(f"Your numbers:\n{text}")
        )

    def _judged(self, name: str, value, answer) -> tuple[bool, list[str]]:
        """Return whether a value is right, and the lines that say so."""
        answer = answer() if callable(answer) else answer
        try:
            number = read_number(value)
        except NoNumber as refusal:
            return False, [f"  {name}: {refusal}"]
        if number == answer or name not in self.exact and self._near(number, answer):
            return True, [f"  {name}: right, {as_written(answer)}"]
        if name in self.exact and number != round(number):
            return False, [f"  {name}: a whole number is wanted, not {number:g}"]
        error = "too much" if number > answer else "too little"
        known = self.mistakes.get(name, {}).items()
        reasons = [why for mistaken, why in known if self._near(number, mistaken)]
        if not reasons and (why := slip(number, answer, self.kinds.get(name, ""), self.ranks)):
            reasons = [why]
        return False, [
            f"  {name}: {as_written(number)} is {error}",
            *(f"    {why}" for why in reasons),
        ]

    def _near(self, number: float, answer: float) -> bool:
        return abs(number - answer) <= self.close * abs(answer)
