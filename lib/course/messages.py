"""What a recorded run moved: bytes sent by each rank, and in how many rounds."""

from lib.ledger import Ledger
from lib.predict.traffic import collective


def sent(ledger: Ledger) -> list[int]:
    """Bytes sent by each rank, by rank: its messages, and its share of collectives as a ring's."""
    ranks = ledger.meta.get("ranks") or max(ledger.ranks, default=-1) + 1
    amounts = [0] * ranks
    for row in ledger.where(lane="comm"):
        if row.op == "send":
            amounts[row.rank] += row.bytes
        elif row.op != "recv":
            amounts[row.rank] += round(collective(row.op, len(row.members), row.bytes).bytes)
    return amounts


def rounds(ledger: Ledger) -> int:
    """Rounds of the messages in a ledger, where a rank sends one and receives one in each round.

    A message comes a round after what its two ends had waited for before they launched it, and a
    round after the one launched before it in its direction. Needs recorded rows: times decide.
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
    for rank, mine in launches.items():
        mine.sort()
        ends = waited.get(rank, {})
        for place, (start, op, message) in enumerate(mine):
            before = {
                other
                for _, kind, other in mine[:place]
                if kind == op or ends.get((kind, other), start + 1) <= start
            }
            after.setdefault(message, set()).update(before)
    found = dict.fromkeys(after, 1)
    for _ in range(len(found)):
        new = {m: 1 + max((found[b] for b in after[m]), default=0) for m in found}
        if new == found:
            break
        found = new
    return max(found.values(), default=0)
