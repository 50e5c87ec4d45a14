"""Reading the board: which ranks wait for ever, and what each launched where they disagree."""

from collections import Counter
from typing import NamedTuple

from lib.ranks.shared.failures import place_of
from lib.ranks.shared.notice_board import HELPED, IDLE, WAITING, NoticeBoard
from lib.ranks.shared.notice_slots import Kind

# What all members launch; the receives of one rank, a joining and an order are not so.
_ALL_LAUNCH = (Kind.GROUP, Kind.PAIR, Kind.MAKE)


class Wait(NamedTuple):
    """One wait of one rank: `late` are the ranks it waits for; with `any`, one of them will do.

    `refused` are those that went on after their part had not been launched.
    """

    tag: int
    number: int
    late: frozenset
    any: bool = False
    refused: frozenset = frozenset()

    def has_hope(self, hopeful: set[int]) -> bool:
        """True if those who can still act are enough to end this wait."""
        if self.refused:
            return False
        return bool(self.late & hopeful) if self.any else self.late <= hopeful


def stuck(
    board: NoticeBoard, running: set[int], silent: bool = False, streamed: bool = False
) -> dict[int, Wait]:
    """Find the ranks that can never be answered, each with its wait.

    A rank that waits has hope if all it waits for are still running or have hope themselves; those
    left over wait for one that has finished, or for each other in a circle. A rank that waits in
    several threads goes on as soon as one of them does. With `silent`, a rank that launched
    something its partners have not counts as waiting even if it does not say so (C++ code waits
    without telling us), and so does one whose other threads have done nothing for as long.
    `streamed`: on NCCL whoever reads waits untold, for messages as well.
    """
    counts = {rank: board.counts(rank) for rank in range(board.size)}
    waits = {rank: _waits(board, counts, rank, running, silent, streamed) for rank in running}
    hopeful = {rank for rank, its_waits in waits.items() if not its_waits}
    while more := {
        rank for rank in running - hopeful if any(wait.has_hope(hopeful) for wait in waits[rank])
    }:
        hopeful |= more
    return {rank: waits[rank][0] for rank in running - hopeful}


def answered(board: NoticeBoard, running: set[int], streamed: bool = False) -> set[int]:
    """Find the ranks that say they wait for what all others have launched: they wake soon."""
    counts = {rank: board.counts(rank) for rank in range(board.size)}
    waiting = {rank for rank in running if board.waits(rank)}
    return {r for r in waiting if not _waits(board, counts, r, running, False, streamed)}


def _waits(board, counts, rank, running, silent, streamed) -> list[Wait]:
    """Give what a rank waits for; nothing if it runs, or if one of its waits is about to end."""
    state, _ = board.look(rank)
    if state == HELPED and not silent:
        return []
    waits = []
    for tag, number in board.waits(rank):
        own = counts[rank].get(tag)
        if own is None:  # of a group that has ended since
            continue
        if own.kind == Kind.ANY:
            sent = _sent(counts, rank, own)
            others = frozenset() if sent else frozenset(own.members) - {rank}
            wait = Wait(tag, number, others, any=True)
        else:
            others = set(own.members) - {rank}
            refused = frozenset(m for m in others if (tag, number) in board.refused(m))
            late = _late(counts, rank, tag, number, own.members)
            if silent and streamed and not late:
                late = _behind(board, tag, number, others)
            wait = Wait(tag, number, late, refused=refused)
        if not wait.late and not wait.refused:
            return []
        waits.append(wait)
    if waits or state == WAITING:
        return waits
    for wait in _untold(board, counts, rank, streamed):
        if silent or not wait.late | wait.refused <= running:
            return [wait]
    return []


def _late(counts, rank, tag, number, members) -> frozenset:
    """Give the other members that have not launched `number`."""
    counted = {m: counts[m].get(tag) for m in members if m != rank}
    return frozenset(m for m, c in counted.items() if c is None or c.launches <= number)


def _behind(board, tag, number, others) -> frozenset:
    """Give the others whose GPU waits for what they launched before this: this comes later."""

    def launched(member, wait):
        entry = board.entry(member, *wait)
        return entry.launched if entry else 0

    return frozenset(
        member
        for member in others
        for wait in board.waits(member)
        if launched(member, wait) < launched(member, (tag, number))
    )


def _untold(board, counts, rank, streamed) -> list[Wait]:
    """Give as waits what a rank launched last and others have not, or were refused."""
    untold = []
    for own in counts[rank].values():
        last = (own.tag, own.launches - 1)
        late = _late(counts, rank, *last, own.members)
        refused = frozenset(m for m in own.members if m != rank and last in board.refused(m))
        if (late or refused) and (own.kind == Kind.GROUP or (streamed and own.kind == Kind.PAIR)):
            untold.append(Wait(*last, late, refused=refused))
    return untold


def _sent(counts, rank: int, own) -> bool:
    """True if a member has sent `rank` a message that nobody has received yet."""
    for member in own.members:
        for sent in counts[member].values():
            if (sent.kind, sent.scope, sent.source) != (Kind.PAIR, own.scope, member):
                continue
            received = counts[rank].get(sent.tag)
            if rank in sent.members and sent.launches > (received.launches if received else 0):
                return True
    return False


def left_over(board: NoticeBoard, ranks: set[int]) -> tuple | None:
    """Find something that only some of its members launched in a call that all have finished.

    Gives (tag, number, members).
    """
    if board.all_equal(ranks):
        return None
    counts = {rank: board.counts(rank) for rank in ranks}

    def launched(member, own):
        theirs = counts[member].get(own.tag)
        if theirs is None:  # it has left the group, or forgotten a pair that was done with
            forgotten = own.kind == Kind.PAIR and board.forgetful(member)
            return forgotten or board.entry(member, own.tag, own.launches - 1) is not None
        return theirs.launches >= own.launches

    for rank in sorted(ranks):
        for own in counts[rank].values():
            members = own.members if own.kind in _ALL_LAUNCH else ()
            if not all(launched(member, own) for member in members if member in ranks):
                return own.tag, own.launches - 1, own.members
    return None


def odd_one(board: NoticeBoard, tag: int, number: int, members) -> int | None:
    """Give the one rank that did something else than most others; None where nobody can tell."""
    entries = {rank: board.entry(rank, tag, number) for rank in members}
    launched = {rank: entry.launch if entry else None for rank, entry in entries.items()}
    if len(set(launched.values()) - {None}) > 1:  # who has not come says nothing about the others
        launched = {rank: launch for rank, launch in launched.items() if launch}
    common, times = Counter(launched.values()).most_common(1)[0]
    odd = [rank for rank, launch in launched.items() if launch != common]
    return odd[0] if len(odd) == 1 and times > 1 else None


def kind_of(board: NoticeBoard, tag: int, number: int, members) -> Kind | None:
    """Give what kind of launch `number` under `tag` is; None if the board has forgotten it."""
    entries = (board.entry(rank, tag, number) for rank in members)
    return next((entry.launch.kind for entry in entries if entry), None)


def table(board: NoticeBoard, tag: int, number: int, members) -> str:
    """Write what each rank launched as one number of one group, and below it from which line.

    The line of code stands below, so that the table also keeps its columns on a narrow page.
    """
    counts = {rank: board.counts(rank).get(tag) for rank in members}
    name = next((c.name for c in counts.values() if c), "")
    rows = [("rank", f"launched as number {number} of group {name}")]
    for rank in members:
        entry, count = board.entry(rank, tag, number), counts[rank]
        launched = str(entry.launch) if entry else "nothing: it has not come"
        if not entry and count and count.launches > number:
            launched = "the same number, long ago"  # the board has room for the last thousand
        rows.append((str(rank), launched))
        if entry:
            rows.append(("", f"  {place_of(entry.place)}"))
    return "\n".join(f"  {first:<4}  {second}" for first, second in rows)


def waiting_in(
    board: NoticeBoard, rank: int, wait: tuple | None = None, streamed: bool = False
) -> str:
    """Say what a rank waits in: `wait` as (tag, number), else what it says on the board.

    `streamed`: on NCCL its GPU waits in what it launched last, if others have not come to that.
    """
    tag, number = wait or next(iter(board.waits(rank)), (0, 0))
    if not tag and streamed and board.look(rank)[0] != IDLE:
        counts = {other: board.counts(other) for other in range(board.size)}
        for untold in _untold(board, counts, rank, streamed)[:1]:
            tag, number = untold.tag, untold.number
    entry = board.entry(rank, tag, number) if tag else None
    if not entry:
        return ""
    count = board.counts(rank).get(tag)
    group, line = count.name if count else "?", place_of(entry.place)
    return f"{entry.launch.op} (group {group}, number {number}) at {line}"
