"""Exercises whose code runs on ranks; a check names the first rank whose result differs."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from lib.course.checks.arguments import name_of
from lib.course.checks.difference import difference
from lib.course.checks.sent_bytes import rounds, sent
from lib.course.checks.verdict import Hints, Verdict
from lib.ranks.shared.failures import RankError, list_of


class Par(NamedTuple):
    """Holds what a good solution needs: the bytes that its busiest rank sends, and its rounds."""

    bytes: int
    rounds: int


@dataclass
class Exercise(Hints):
    """Compares a function that runs on every rank with a reference on plain lists of tensors.

    `inputs(ranks, size)` returns the arguments of each rank as a tuple, and `reference(inputs)`
    what each rank must return. `par(ranks, size)` is what a good solution sends, and `model` is one
    such solution: an attempt that sends too much is shown its first message that differs. `names`
    are those of the tensors in a rank's result, where a checker runs more than the attempt.
    """

    task: str = ""
    inputs: Callable = None
    reference: Callable = None
    sizes: tuple[int, ...] = (8,)
    par: Callable | None = None
    model: Callable | None = None
    names: tuple[str, ...] = ()
    words: str = ""  # what a size is, such as "K = {} on each rank"; else a number of numbers
    at_par: bool = False  # True where too many bytes or rounds do not count as solved
    messages_only: bool = False  # True where collectives do not count as solved

    def check(self, attempt: Callable, world) -> Verdict:
        """Run `attempt` on every rank of `world`, for each size, and return the verdict."""
        name = name_of(attempt)
        for size in self.sizes:
            inputs = self.inputs(world.size, size)
            expected = self.reference(inputs)
            try:
                ledger = world.record(_on_rank, attempt, inputs)
            except RankError as error:
                return self._not_yet(f"With {self._said(size)}, it failed:\n\n{error}\n")
            if all(result is None or result is ... for result in ledger.results):
                return self._open(f"`{name}` returns nothing", self.task)
            called = _collective(ledger) if self.messages_only else ""
            if called:
                return self._not_yet(f"{called} Use send and receive only.")
            wrong = _wrong(ledger, expected, self._said(size), self.names)
            if wrong:
                return self._not_yet(wrong)
        return self._scored(ledger, world, inputs)

    def _said(self, size: int) -> str:
        return self.words.format(size) or f"{size:,} number{'s' * (size != 1)} a rank"

    def _scored(self, ledger, world, inputs) -> Verdict:
        """Return the verdict on a right attempt, with its traffic for the last size beside par."""
        sizes = [self.words.format(size) for size in self.sizes] if self.words else self.sizes
        tried = f"Right on {list_of(range(world.size))}, for {_list(sizes)}"
        tried += "." if self.words else " numbers a rank."
        if not self.par:
            return Verdict(True, f"Solved. {tried}")
        own = Par(max(sent(ledger)), rounds(ledger))
        par = self.par(world.size, self.sizes[-1])
        score = (
            f"  bytes sent by the busiest rank: {own.bytes:,}\n"
            f"    of a good solution: {par.bytes:,}\n"
            f"  rounds: {own.rounds}\n"
            f"    of a good solution: {par.rounds}"
        )
        if own.bytes <= par.bytes and own.rounds <= par.rounds:
            return Verdict(True, f"Solved, with no more traffic than needed. {tried}\n{score}")
        if own.bytes > par.bytes:
            score += (
                f"\nYours moves {own.bytes / par.bytes:.3g} times the bytes of a good solution."
            )
        if self.model:
            score += _first_message(ledger, world.record(_on_rank, self.model, inputs))
        if self.at_par:
            return self._not_yet(f"The sums are right, the traffic is not.\n{score}")
        return Verdict(True, f"Solved. {tried}\n{score}")


def _on_rank(function, inputs):
    """Call the function on this rank with its own arguments."""
    import torch.distributed as dist

    return function(*inputs[dist.get_rank()])


def _collective(ledger) -> str:
    """Return a sentence on the first rank that called a collective; it is empty where none did."""
    rows = [row for row in ledger.where(lane="comm") if row.op not in ("send", "recv")]
    first = min(rows, key=lambda row: (row.rank, row.start), default=None)
    return f"Rank {first.rank} called the collective {first.op}." if first else ""


def _wrong(ledger, expected: list, said: str, names: tuple[str, ...] = ()) -> str:
    """Return which rank first differs and how, which others differ, and what that rank launched.

    The text is empty where all ranks are right.
    """
    ranks = range(len(expected))
    texts = {rank: _named(ledger.results[rank], expected[rank], names) for rank in ranks}
    wrong = [rank for rank in ranks if texts[rank]]
    if not wrong:
        return ""
    first, *others = wrong
    text = f"With {said}, rank {first} differs first:\n  {texts[first]}."
    if others:
        text += f"\n{list_of(others).capitalize()} differ{'s' * (len(others) == 1)} too."
    right = [rank for rank in ranks if not texts[rank]]
    text += f" {list_of(right).capitalize()} {_is(right)} right." if right else ""
    return f"{text}\nRank {first} launched {_launched(ledger, first)}."


def _named(got, expected, names: tuple[str, ...]) -> str:
    """Return how a rank's result differs, by the names of its tensors where there are any."""
    pair = isinstance(got, tuple | list) and len(got) == len(names)
    if not names or not pair:
        return difference(got, expected)
    texts = (difference(*trio) for trio in zip(got, expected, names, strict=True))
    return next(filter(None, texts), "")


def _launched(ledger, rank: int) -> str:
    """Return a list of what a rank launched, in order; what it repeats at once with its number."""
    words = []
    for row in sorted(ledger.where(lane="comm", rank=rank), key=lambda row: row.start):
        end = {"send": f" to rank {row.peer}", "recv": f" from rank {row.peer}"}.get(row.op, "")
        words.append(f"{row.op}{end} ({row.bytes:,} bytes)")
    runs = [(word, len(list(same))) for word, same in groupby(words)]
    texts = [f"{count} times {word}" if count > 1 else word for word, count in runs[:8]]
    rest = sum(count for _, count in runs[8:])
    return ", ".join(texts) + f" and {rest} more" * bool(rest) or "no collective and no message"


def _first_message(own, model) -> str:
    """Describe the first message, rank by rank, in which a run differs from the model's."""
    for rank in range(model.meta["ranks"]):
        pair = [
            [(r.peer, r.bytes) for r in ledger.where(lane="comm", op="send", rank=rank)]
            for ledger in (own, model)
        ]
        for number, (message, at_par) in enumerate(zip(*pair)):
            if message != at_par:
                return (
                    f"\nThe first message that differs: message {number} of rank {rank} goes to "
                    f"rank {message[0]} with {message[1]:,} bytes; in a good solution it goes "
                    f"to rank {at_par[0]} with {at_par[1]:,} bytes."
                )
        if len(pair[0]) != len(pair[1]):
            return (
                f"\nRank {rank} sends {len(pair[0])} messages; in a good solution it sends "
                f"{len(pair[1])}."
            )
    return ""


def _is(ranks) -> str:
    return "is" if len(ranks) == 1 else "are"


def _list(sizes) -> str:
    words = [size if isinstance(size, str) else f"{size:,}" for size in sizes]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
