"""Verdicts and hints, which all exercises share."""

import difflib
import re
import textwrap
from dataclasses import dataclass, field
from functools import wraps

from lib.course import progress
from lib.course.checks.arguments import NotBegun, refusal
from lib.course.checks.watch import Watch

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
    """The base of all exercises: each call of `hint()` prints the next hint, and then the last.

    The `check` of every exercise returns a verdict, whatever it is called with, and a solved one is
    remembered where the reader works in a copy of the chapter.
    """

    name: str = ""  # the exercise's name in the notebook
    hints: tuple[str, ...] = ()
    shown: int = field(default=0, init=False)
    solved: bool = field(default=False, init=False)  # what the last verdict was

    def __init_subclass__(cls, **options):
        super().__init_subclass__(**options)
        if "check" in vars(cls):
            cls.check = _guarded(cls.check)

    def __getattr__(self, name: str):
        """Called for what is not there: say what is."""
        if name.startswith("_"):  # Python and Jupyter ask for much
            raise AttributeError(name, name=name, obj=self)
        (close,) = difflib.get_close_matches(name.lower(), ("check", "hint"), 1, 0.0)
        raise AttributeError(
            f"An exercise has .check(…) and .hint(), and no `{name}`. Perhaps you mean `{close}`.",
            name=name, obj=self,
        )  # fmt: skip

    def hint(self) -> None:
        """Print the next hint."""
        print(_wrapped(self.next_hint()))

    def next_hint(self) -> str:
        """Return the next hint with its number, and count it as shown."""
        if not self.hints:
            return "There is no hint for this exercise."
        self.shown = min(self.shown + 1, len(self.hints))
        return f"Hint {self.shown} of {len(self.hints)}: {self.hints[self.shown - 1]}"

    def _unknown(self, given: dict, known: dict) -> str:
        """Return a sentence where an answer was given to a question that is not asked."""
        extra = [name for name in given if name not in known]
        return f"Nothing here is called `{extra[0]}`: give {', '.join(known)}." if extra else ""

    def _open(self, why: str, task: str) -> Verdict:
        """Return the verdict on an exercise that the reader has not begun."""
        text = f"Not solved yet: {why}. {task}\nThen run this cell again. {self._offer()}"
        return Verdict(False, text.rstrip())

    def _not_yet(self, what: str) -> Verdict:
        """Return the verdict on an attempt that is not right."""
        return Verdict(False, f"Not yet. {what}\n{self._offer()}".rstrip())

    def _offer(self) -> str:
        return f"For a hint: {self.name}.hint()" if self.hints and self.name else ""


def _guarded(check):
    """Return a check that refuses in a sentence what it cannot take, and remembers what is solved.

    A check that calls the one of its base class counts once.
    """

    @wraps(check)
    def guarded(self, *args, **kwargs) -> Verdict:
        if type(self).check is not guarded:
            return check(self, *args, **kwargs)
        self.solved = False
        try:
            if why := refusal(check, self.name, args, kwargs):
                return self._not_yet(why)
        except NotBegun as missing:
            sentence = str(missing).removesuffix(".")
            return self._open(sentence[0].lower() + sentence[1:], getattr(self, "task", ""))
        with Watch():
            verdict = check(self, *args, **kwargs)
        self.solved = verdict.solved
        if verdict.solved and (chapter := progress.here(self.name)):
            progress.remember(chapter, self.name)
        return verdict

    return guarded


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
