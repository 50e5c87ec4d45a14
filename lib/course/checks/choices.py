"""Exercises whose answers are chosen from a few words."""

from dataclasses import dataclass, field

from lib.course.checks.read_number import is_missing
from lib.course.checks.verdict import Hints, Verdict


@dataclass
class Choices(Hints):
    """Compares the word that the reader chose for each name with the right one.

    Capitals and spaces around a word do not matter. `words` are those that can be chosen.
    """

    task: str = ""
    right: dict = field(default_factory=dict)  # name -> word
    words: tuple[str, ...] = ()

    def check(self, **chosen) -> Verdict:
        """Say for each name whether the word is right; None is not answered."""
        if unknown := self._unknown(chosen, self.right):
            return self._not_yet(unknown)
        if all(is_missing(chosen.get(name)) for name in self.right):
            return self._open("no word is there", self.task)
        said = {name: self._judged(chosen.get(name), word) for name, word in self.right.items()}
        text = "\n".join(f"  {name}: {judgement}" for name, judgement in said.items())
        if all(judgement == "right" for judgement in said.values()):
            return Verdict(True, f"Solved.\n{text}")
        return self._not_yet(f"Your words:\n{text}")

    def _judged(self, word, right: str) -> str:
        if is_missing(word):
            return "not yet"
        if not isinstance(word, str):
            return f"this is of type {type(word).__name__}; write a word in quotes"
        plain = " ".join(word.lower().split())
        if plain not in {*self.words, *self.right.values()}:
            return f"{word[:20]!r} is not one of the words"
        return "right" if plain == right else "not that one"
