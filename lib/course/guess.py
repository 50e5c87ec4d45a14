"""`guess`: a place to commit an answer before it is revealed."""

from numbers import Number


class Guess:
    """A question and what the reader said; `reveal` tells the answer and how far off it is."""

    def __init__(self, question: str, mine, unit: str):
        self.question, self.mine, self.unit = question, mine, unit

    def __repr__(self) -> str:
        if self.mine is None:
            how = "Write your answer in place of None and run the cell, or read on without one."
            return f"{self.question}\n{how}"
        return f"{self.question}\nYou say {self._say(self.mine)}. It counts: read on."

    def reveal(self, answer) -> None:
        """Print what it is, and what was guessed."""
        said = f"{self.question}\nIt is {self._say(answer)}."
        if self.mine is not None:
            said += f" You said {self._say(self.mine)}: {self._far(answer)}."
        print(said)

    def _say(self, value) -> str:
        number = f"{value:,}" if isinstance(value, Number) else str(value)
        return f"{number} {self.unit}".strip()

    def _far(self, answer) -> str:
        numbers = isinstance(self.mine, Number) and isinstance(answer, Number)
        if self.mine == answer or (numbers and abs(self.mine - answer) <= 0.01 * abs(answer)):
            return "right"
        if not numbers or self.mine * answer <= 0:
            return "not this time"
        ratio = self.mine / answer
        return f"{ratio:.3g} times too much" if ratio > 1 else f"{1 / ratio:.3g} times too little"


def guess(question: str, mine=None, *, unit: str = "") -> Guess:
    """Ask `question`; `mine` is the answer, a number or a word, None until there is one."""
    return Guess(question, mine, unit)
