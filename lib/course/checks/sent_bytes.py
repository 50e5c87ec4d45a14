"""Counts of a recorded run: the bytes that each rank sent, and the rounds of its messages."""

from typing import NamedTuple

from lib.ledger import Ledger
from lib.predict.collectives.formulas import collective


def sent(ledger: Ledger) -> list[int]:
    """Return the bytes that each rank sent: its messages, and for collectives what a ring sends.

    An uneven all_to_all counts as recorded, without the part that stays.
    """
    ranks = ledger.meta.get("ranks") or max(ledger.ranks, default=-1) + 1
    amounts = [0] * ranks
    for row in ledger.where(lane="comm"):
        if row.op == "send":
            amounts[row.rank] += row.bytes
        elif row.parts:
            amounts[row.rank] += sum(row.parts) - row.parts[row.members.index(row.rank)]
        elif row.op != "recv":
            amounts[row.rank] += round(collective(row.op, len(row.members), row.bytes).bytes)
    return amounts


class Critical(NamedTuple):
    """Holds what determines a run's time where all links are alike: rounds and critical bytes."""

    rounds: int
    bytes: float  # the sum of the longest messages of all rounds


def critical(ledger: Ledger) -> Critical:
    """Count the rounds of a run and the longest message of each, as `formulas.all_reduce` does.

    A run of one of the library's plans has the plan's `rounds` and `critical_bytes`. Collectives
    add what a ring needs for them, on the rank where that is most.
    """
    longest: dict[int, int] = {}
    number_of = _numbered(ledger)
    for row in ledger.where(lane="comm", op="send"):
        number = number_of[row.members, row.number]
        longest[number] = max(row.bytes, longest.get(number, 0))
    rings: dict[int, list[float]] = {}
    for row in ledger.where(lane="comm"):
        if row.op not in ("send", "recv"):
            ring = collective(row.op, len(row.members), row.bytes)
            sums = rings.setdefault(row.rank, [0, 0.0])
            rings[row.rank] = [sums[0] + ring.rounds, sums[1] + ring.bytes]
    more, nbytes = max(rings.values(), default=(0, 0))
    return Critical(len(longest) + more, sum(longest.values()) + nbytes)


def rounds(ledger: Ledger) -> int:
    """Return the rounds of a ledger's messages; in a round, a rank sends and receives at most one.

    The times of the rows decide, so they must be recorded.
    """
    return max(_numbered(ledger).values(), default=0)


def _numbered(ledger: Ledger) -> dict[tuple, int]:
    """Return the round of each message, by (members, number), counted from 1.

    A message is one round later than the messages that its two ends had waited for before they
    launched it, and one round later than the message launched before it in its direction. The
    times of the rows decide, so they must be recorded.
    """
    launches, waited = {}, {}
    for row in ledger.where(op=["send", "recv"]):
        message = row.members, row.number
        if row.lane == "comm":
            launches.setdefault(row.rank, []).append((row.start, row.op, message))
        elif row.lane == "wait":
            done = waited.setdefault(row.rank, {})
            done[row.op, message] = max(row.end, done.get((row.op, message), 0.0))
    after = {}  # message -> the messages that are a round or more before it
    for rank, launched in launches.items():
        launched.sort()
        ends = waited.get(rank, {})
        for position, (start, op, message) in enumerate(launched):
            before = {
                other
                for _, kind, other in launched[:position]
                if kind == op or ends.get((kind, other), start + 1) <= start
            }
            after.setdefault(message, set()).update(before)
    round_of = dict.fromkeys(after, 1)
    for _ in range(len(round_of)):
        later = {m: 1 + max((round_of[b] for b in after[m]), default=0) for m in round_of}
        if later == round_of:
            break
        round_of = later
    return round_of
