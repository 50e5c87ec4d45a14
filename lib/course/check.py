"""Exercises: the reader's code is run on ranks and told which rank first differs, and where."""

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from lib.course.compare import difference
from lib.course.messages import rounds, sent
from lib.ranks.failures import RankError, list_of


@dataclass(frozen=True)
class Verdict:
    """What a checker says of an attempt; its text is what the cell shows."""

    solved: bool
    text: str

    def __repr__(self) -> str:
        return "\n".join(_wrapped(line) for line in self.text.splitlines())


class Par(NamedTuple):
    """What a good solution needs: bytes sent by its busiest rank, and rounds."""

    bytes: int
    rounds: int


@dataclass
class Hints:
    """Hints by degrees: each call of `hint()` tells the next one, the last of them again."""

    name: str = ""  # the name it has in the notebook
    hints: tuple[str, ...] = ()
    told: int = field(default=0, init=False)

    def hint(self) -> None:
        """Print the next hint."""
        if not self.hints:
            print("There is no hint for this one.")
            return
        self.told = min(self.told + 1, len(self.hints))
        print(f"Hint {self.told} of {len(self.hints)}: {self.hints[self.told - 1]}")

    def _open(self, why: str, task: str) -> Verdict:
        said = f"Not solved yet: {why}. {task}\nThen run this cell again. {self._offer()}"
        return Verdict(False, said.rstrip())

    def _not_yet(self, what: str) -> Verdict:
        return Verdict(False, f"Not yet. {what}\n{self._offer()}".rstrip())

    def _offer(self) -> str:
        return f"For a hint: {self.name}.hint()" if self.hints and self.name else ""


@dataclass
class Exercise(Hints):
    """A function to write, checked on ranks against a reference on plain lists of tensors.

    `inputs(ranks, size)` gives each rank's arguments as a tuple, `reference(all of them)` what each
    rank must return. `par(ranks, size)` is what a good solution moves, `model` one such solution:
    an attempt that moves too much is shown the first message in which it differs from it.
    """

    task: str = ""
    inputs: Callable = None
    reference: Callable = None
    sizes: tuple[int, ...] = (8,)
    par: Callable | None = None
    model: Callable | None = None
    at_par: bool = False  # too many bytes or rounds is not solved

    def check(self, attempt: Callable, world) -> Verdict:
        """Run `attempt` on every rank of `world`, for each size, and say how it went."""
        name = getattr(attempt, "__name__", "your function")
        for size in self.sizes:
            given = self.inputs(world.size, size)
            wanted = self.reference(given)
            try:
                ledger = world.record(_on_rank, attempt, given)
            except RankError as error:
                return self._not_yet(f"With {size:,} numbers a rank, it failed:\n\n{error}\n")
            if all(answer is None or answer is ... for answer in ledger.results):
                return self._open(f"`{name}` returns nothing", self.task)
            wrong = _wrong(ledger, wanted, size)
            if wrong:
                return self._not_yet(wrong)
        return self._scored(ledger, world, given)

    def _scored(self, ledger, world, given) -> Verdict:
        """Say what a right attempt moved, beside par, for the largest size."""
        tried = f"Right on {list_of(range(world.size))}, for {_list(self.sizes)} numbers a rank."
        if not self.par:
            return Verdict(True, f"Solved. {tried}")
        mine = Par(max(sent(ledger)), rounds(ledger))
        par = self.par(world.size, self.sizes[-1])
        score = (
            f"  bytes sent by the busiest rank: {mine.bytes:,}, par {par.bytes:,}\n"
            f"  rounds: {mine.rounds}, par {par.rounds}"
        )
        if mine.bytes <= par.bytes and mine.rounds <= par.rounds:
            return Verdict(True, f"Solved, at par. {tried}\n{score}")
        if mine.bytes > par.bytes:
            score += f"\nIt moves {mine.bytes / par.bytes:.3g} times the bytes of par."
        if self.model:
            score += _first_message(ledger, world.record(_on_rank, self.model, given))
        if self.at_par:
            return self._not_yet(f"The sums are right, the traffic is not.\n{score}")
        return Verdict(True, f"Solved. {tried}\n{score}")


@dataclass
class Numbers(Hints):
    """Numbers to predict: each answer is compared with one that is computed, not retyped."""

    task: str = ""
    answers: dict = field(default_factory=dict)  # name -> number, or a function that gives it
    close: float = 0.01  # how far off, as a share, still counts as right

    def check(self, **said) -> Verdict:
        """Compare the reader's numbers, by name, with the computed ones; None is not yet said."""
        open_ = [name for name in self.answers if said.get(name) in (None, ...)]
        if len(open_) == len(self.answers):
            return self._open("no number is there", self.task)
        lines = []
        for name, answer in self.answers.items():
            answer = answer() if callable(answer) else answer
            if name in open_:
                lines.append((False, f"  {name}: not answered yet"))
            elif abs(said[name] - answer) <= self.close * abs(answer):
                lines.append((True, f"  {name}: right, {answer:,}"))
            else:
                far = "too much" if said[name] > answer else "too little"
                lines.append((False, f"  {name}: {said[name]:,} is {far}"))
        told = "\n".join(text for _, text in lines)
        if all(right for right, _ in lines):
            return Verdict(True, f"Solved.\n{told}")
        return self._not_yet(f"Your numbers:\n{told}")


def _on_rank(function, given):
    import torch.distributed as dist

    return function(*given[dist.get_rank()])


def _wrong(ledger, wanted: list, size: int) -> str:
    """Say which rank first differs, and in what; which others do; what that rank launched."""
    answers = ledger.results
    found = {r: said for r in range(len(wanted)) if (said := difference(answers[r], wanted[r]))}
    if not found:
        return ""
    first, others = min(found), sorted(found)[1:]
    text = f"With {size:,} numbers a rank, rank {first} differs first:\n  {found[first]}."
    if others:
        text += f"\n{list_of(others).capitalize()} differ{'s' * (len(others) == 1)} too."
    right = [r for r in range(len(wanted)) if r not in found]
    text += f" {list_of(right).capitalize()} {_is(right)} right." if right else ""
    return f"{text}\nRank {first} launched {_launched(ledger, first)}."


def _launched(ledger, rank: int) -> str:
    """List what a rank launched, in order: the reader finds the one that is missing or odd."""
    words = []
    for row in sorted(ledger.where(lane="comm", rank=rank), key=lambda row: row.start):
        end = {"send": f" to rank {row.peer}", "recv": f" from rank {row.peer}"}.get(row.op, "")
        words.append(f"{row.op}{end} ({row.bytes:,} bytes)")
    more = f" and {len(words) - 8} more" if len(words) > 8 else ""
    return ", ".join(words[:8]) + more if words else "no collective and no message"


def _first_message(mine, model) -> str:
    """Name the first message, rank by rank, that is not as the model sends it."""
    for rank in range(model.meta["ranks"]):
        pair = [
            [(r.peer, r.bytes) for r in ledger.where(lane="comm", op="send", rank=rank)]
            for ledger in (mine, model)
        ]
        for number, (own, par) in enumerate(zip(*pair)):
            if own != par:
                return (
                    f"\nThe first message that differs: message {number} of rank {rank} goes to "
                    f"rank {own[0]} with {own[1]:,} bytes; at par it goes to rank {par[0]} with "
                    f"{par[1]:,} bytes."
                )
        if len(pair[0]) != len(pair[1]):
            return f"\nRank {rank} sends {len(pair[0])} messages; at par it sends {len(pair[1])}."
    return ""


def _wrapped(line: str) -> str:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.fill(line, 88, subsequent_indent=indent) if len(line) > 88 else line


def _is(ranks) -> str:
    return "is" if len(ranks) == 1 else "are"


def _list(sizes) -> str:
    words = [f"{size:,}" for size in sizes]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
