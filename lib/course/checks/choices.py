"""Exercises whose answers are chosen from a few words."""

from dataclasses import dataclass, field

from lib.course.checks.verdict import Hints, Verdict


@dataclass
class Choices(Hints):
    """Compares the word that the reader chose for each name with the right one."""

    task: str = ""
    right: dict = field(default_factory=dict)  # name -> word

    def check(self, **chosen) -> Verdict:
        """Say for each name whether the word is right; None is not answered."""
        if all(chosen.get(name) in (None, ...) for name in self.right):
            return self._open("no word is there", self.task)
        text = "\n".join(
            f"  {name}: {_judged(chosen.get(name), word)}" for name, word in self.right.items()
        )
        if all(chosen.get(name) == word for name, word in self.right.items()):
            return Verdict(True, f"Solved.\n{text}")
        return self._not_yet(f"Your words:\n{text}")


def _judged(word, right: str) -> str:
    if word in (None, ...):
        return "not yet"
    return "right" if word == right else "not that one"
