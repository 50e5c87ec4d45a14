"""Verdicts and hints, which all exercises share."""

import re
import textwrap
from dataclasses import dataclass, field

_GAP = re.compile(r" {2,}")  # between the columns of a table
WIDTH = 52  # characters in a line: about what a phone shows


@dataclass(frozen=True)
class Verdict:
    """Holds the result of a check; a cell shows its text."""

    solved: bool
    text: str

    def __repr__(self) -> str:
        return _wrapped(self.text)


@dataclass
class Hints:
    """The base of all exercises: each call of `hint()` prints the next hint, and then the last."""

    name: str = ""  # the exercise's name in the notebook
    hints: tuple[str, ...] = ()
    shown: int = field(default=0, init=False)

    def hint(self) -> None:
        """Print the next hint."""
        if not self.hints:
            print("There is no hint for this exercise.")
            return
        self.shown = min(self.shown + 1, len(self.hints))
        print(_wrapped(f"Hint {self.shown} of {len(self.hints)}: {self.hints[self.shown - 1]}"))

    def _open(self, why: str, task: str) -> Verdict:
        """Return the verdict on an exercise that the reader has not begun."""
        text = f"Not solved yet: {why}. {task}\nThen run this cell again. {self._offer()}"
        return Verdict(False, text.rstrip())

    def _not_yet(self, what: str) -> Verdict:
        """Return the verdict on an attempt that is not right."""
        return Verdict(False, f"Not yet. {what}\n{self._offer()}".rstrip())

    def _offer(self) -> str:
        return f"For a hint: {self.name}.hint()" if self.hints and self.name else ""


def _wrapped(text: str) -> str:
    """Return the text in lines that a phone shows whole; rows of a table are left as they are."""
    return "\n".join(map(_folded, text.splitlines()))


def _folded(line: str) -> str:
    """Fold a long line; what goes on of an indented one, which is an item, stands further in."""
    if len(line) <= WIDTH or _GAP.search(line.strip()):
        return line
    indent = line[: len(line) - len(line.lstrip())]
    more = indent + "  " * bool(indent)
    return textwrap.fill(line, WIDTH, subsequent_indent=more, break_long_words=False)
