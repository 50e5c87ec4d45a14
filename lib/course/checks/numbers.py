"""Exercises whose answers are numbers that the reader predicts."""

from dataclasses import dataclass, field

from lib.course.checks.verdict import Hints, Verdict


@dataclass
class Numbers(Hints):
    """Compares the reader's numbers with numbers that the library computes.

    Where a wrong number has a well-known reason, `mistakes` says it: {name: {number: sentence}}.
    """

    task: str = ""
    answers: dict = field(default_factory=dict)  # name -> number, or a function that returns it
    close: float = 0.01  # the largest relative error that counts as right
    mistakes: dict = field(default_factory=dict)

    def check(self, **predicted) -> Verdict:
        """Compare the reader's numbers, by name, with the computed ones; None is not answered."""
        missing = [name for name in self.answers if predicted.get(name) in (None, ...)]
        if len(missing) == len(self.answers):
            return self._open("no number is there", self.task)
        lines = []
        for name, answer in self.answers.items():
            answer = answer() if callable(answer) else answer
            if name in missing:
                lines.append((False, f"  {name}: not answered yet"))
            elif self._near(predicted[name], answer):
                lines.append((True, f"  {name}: right, {answer:,}"))
            else:
                error = "too much" if predicted[name] > answer else "too little"
                lines.append((False, f"  {name}: {predicted[name]:,} is {error}"))
                for number, why in self.mistakes.get(name, {}).items():
                    if self._near(predicted[name], number):
                        lines.append((False, f"    {why}"))
        text = "\n".join(line for _, line in lines)
        if all(right for right, _ in lines):
            return Verdict(True, f"Solved.\n{text}")
        return self._not_yet(f"Your numbers:\n{text}")

    def _near(self, number: float, answer: float) -> bool:
        return abs(number - answer) <= self.close * abs(answer)
