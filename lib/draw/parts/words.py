"""Words that several pictures share, and the sentences that refuse bad input."""

from lib.ledger import Ledger


def in_words(ranks: list[int]) -> str:
    """[0, 1, 2] is "ranks 0 to 2", [1, 3] is "ranks 1, 3"."""
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def named(op: str, microbatch: int) -> str:
    """Name an operation with its microbatch: "F3", "forward 3", "step"."""
    return op if microbatch < 0 else f"{op}{' ' * (len(op) > 1)}{microbatch}"


def has_rows(ledger, what: str) -> None:
    """Refuse, in a sentence, what is no ledger or has nothing to draw."""
    if not isinstance(ledger, Ledger):
        kind = type(ledger).__name__
        raise TypeError(f"A {what} is drawn from a Ledger, not from {kind}: use world.record(...).")
    if not len(ledger.where(lane=["compute", "comm"])):
        raise ValueError(f"There is nothing to draw: this ledger has no rows for a {what}.")
