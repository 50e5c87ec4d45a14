"""Reading the board: which ranks wait for ever, and what each launched where they disagree."""

from lib.ranks.board import WAITING, Board
from lib.ranks.failures import place_of


def stuck(board: Board, running: set[int], silent: bool = False) -> dict[int, tuple]:
    """Find the ranks that can never be answered: {rank: (tag, number, ranks it waits for)}.

    A rank that waits has hope if all it waits for are still running or have hope themselves; those
    left over wait for one that has finished, or for each other in a circle. With `silent`, a rank
    that launched something its partners have not counts as waiting even if it does not say so
    (C++ code waits without telling us).
    """
    counts = {rank: board.counts(rank) for rank in range(board.size)}

    def missing(tag, number, members):
        return {m for m in members if (c := counts[m].get(tag)) is None or c.launches <= number}

    waits: dict[int, tuple] = {}
    for rank in running:
        state, _, tag, number = board.look(rank)
        own = counts[rank].get(tag)
        if state == WAITING and own:
            late = missing(tag, number, own.members) - {rank}
            if late and not own.name.startswith("any "):
                waits[rank] = (tag, number, late)
        else:
            for own in counts[rank].values():
                late = missing(own.tag, own.launches - 1, own.members) - {rank}
                if late and (silent or not late <= running) and ">" not in own.name:
                    waits[rank] = (own.tag, own.launches - 1, late)
    hopeful = set(running) - set(waits)
    while True:
        more = {r for r, (_, _, late) in waits.items() if r not in hopeful and late <= hopeful}
        if not more:
            break
        hopeful |= more
    return {rank: wait for rank, wait in waits.items() if rank not in hopeful}


def left_over(board: Board, ranks: set[int]) -> tuple | None:
    """Find something that only some of its members launched in a call that all have finished."""
    counts = {rank: board.counts(rank) for rank in ranks}
    for rank in sorted(ranks):
        for own in counts[rank].values():
            for member in own.members:
                if member in ranks and not own.name.startswith(("any ", "joining")):
                    theirs = counts[member].get(own.tag)
                    if (theirs.launches if theirs else 0) < own.launches:
                        return own.tag, own.launches - 1, own.members
    return None


def table(board: Board, tag: int, number: int, members) -> str:
    """Write rank × (collective, group, number, size, line) for one number of one group."""
    name = next((c.name for r in members for c in board.counts(r).values() if c.tag == tag), "")
    rows = [("rank", "launched", "group", "number", "at")]
    for rank in members:
        entry = board.entry(rank, tag, number)
        launched = entry.text if entry else "nothing: it has not come"
        rows.append(
            (str(rank), launched, name, str(number), place_of(entry.place) if entry else "")
        )
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join(
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def waiting_in(board: Board, rank: int, wait: tuple | None = None) -> str:
    """Say what a rank waits in: `wait` as (tag, number), else what it says on the board."""
    state, _, tag, number = board.look(rank)
    if wait:
        tag, number = wait
    entry = board.entry(rank, tag, number) if wait or state == WAITING else None
    if not entry:
        return ""
    count = board.counts(rank).get(tag)
    what = entry.text.split(" ")[0]
    return (
        f"{what} (group {count.name if count else '?'}, number {number}) at {place_of(entry.place)}"
    )
