"""What is told of a call that failed, composed from the board and from what each rank said.

A report is composed before the board is cleared, and through `compose`: whatever fails while it is
made, the reader still sees the errors that there were, and one line about the report.
"""

import contextlib
import traceback
from dataclasses import dataclass

from lib.ranks.kernel import diagnosis
from lib.ranks.shared.failures import Failure, list_of, place, ranks_say, ranks_were
from lib.ranks.shared.notice_slots import Kind
from lib.ranks.transport import packing


@dataclass
class Report:
    """What went wrong, in words; the rank to blame, if one is; what each rank told; a table."""

    text: str
    rank: int | None = None
    failures: tuple = ()
    table: str = ""
    cause: BaseException | None = None
    regroup: bool = True  # waits were ended: new groups are needed


def compose(make, failures: list[Failure], *args) -> Report:
    """Call `make(failures, *args)`; if that fails, report the failures as plainly as can be."""
    try:
        return make(failures, *args)
    except Exception as broken:
        return plain(failures, broken)


def plain(failures: list[Failure], broken: Exception) -> Report:
    """Write what ranks told without looking at anything else, and that the report failed."""
    causes = [f for f in failures if f.kind != "stopped"]
    lines = [
        f"{list_of([f.rank])} {f.kind}{f' {f.type}: {f.text}' if f.type else ''}" for f in causes
    ]
    last = traceback.extract_tb(broken.__traceback__)[-1:]
    where = "".join(f" ({f.filename.rsplit('/', 1)[-1]}, line {f.lineno})" for f in last)
    lines.append(
        f"The full report could not be made: {type(broken).__name__}: {broken}{where}. What ranks "
        "told stands above."
    )
    first = causes[0].rank if causes else None
    return Report("\n\n".join(lines), first, tuple(failures), cause=exception_of(causes))


def failed(failures: list[Failure], board, waiting: dict[int, str]) -> Report:
    """Report ranks that raised, died or disagreed; `waiting` says in what others were left."""
    causes = [f for f in failures if f.kind != "stopped"]
    late = {f.rank for f in failures if f.kind == "stopped"}
    lost = [f for f in causes if f.lost]  # a partner was gone: gloo blames the living
    if len(lost) < len(causes):  # else the connections broke and nobody knows why
        causes = [f for f in causes if f not in lost]
        for f in lost:
            broken = diagnosis.waiting_in(board, f.rank, f.waited) if f.waited else ""
            line = f", at {place(*f.frames[-1][:2])}" if f.frames else ""
            waiting = {**waiting, f.rank: broken or f"its work{line}"}
    causes.sort(key=lambda f: f.when)
    mismatch = next((f for f in causes if f.where), None)
    rank, table = causes[0].rank, ""
    text = ranks_say([f for f in causes if not f.where])
    if mismatch:
        rank = diagnosis.odd_one(board, *mismatch.where)
        table = diagnosis.table(board, *mismatch.where)
        advice = _advice(diagnosis.kind_of(board, *mismatch.where))
        text = f"the ranks do not agree: {mismatch.text}\n\n{table}\n\n{advice}" + (
            f"\n\n{text}" if text else ""
        )
    else:  # beside a table, who happened to wait already says nothing
        text += _others(waiting, late - {f.rank for f in causes})
    uneven = diagnosis.left_over(board, set(range(board.size)))  # the next would meet the stale one
    regroup = bool(waiting or late or lost or mismatch or uneven)
    return Report(text, rank, tuple(causes), table, exception_of(causes), regroup)


def stuck(_, board, waits: dict[int, "diagnosis.Wait"], running: set[int], called) -> Report:
    """Report ranks that wait for ever; `called` are those of the call, `running` still in it."""
    # The wait to show is one that another rank has ended by refusing it, or by not coming at all.
    order = {rank: (not w.refused, w.late <= waits.keys(), rank) for rank, w in waits.items()}
    first = min(waits, key=order.get)
    tag, number, refused = waits[first].tag, waits[first].number, waits[first].refused
    members = board.counts(first)[tag].members
    table = diagnosis.table(board, tag, number, members)
    ended = sorted(set().union(*(wait.late for wait in waits.values())) - running)
    absent = [rank for rank in ended if rank not in called]
    if refused:
        why = (
            f"what {list_of(refused)} called did not fit and was not launched, and the error was\n"
        )
        why += "caught there"
    elif not ended:
        why = "they wait for each other"
    elif absent:
        why = f"{list_of(absent)} {'is' if len(absent) == 1 else 'are'} not in this call"
    else:
        why = f"{list_of(ended)} {'has' if len(ended) == 1 else 'have'} finished without it"
    verb = "waits" if len(waits) == 1 else "wait"
    text = f"{list_of(waits)} {verb} for ever: {why}.\n\n{table}\n"
    for rank in sorted(waits):
        waits_in = diagnosis.waiting_in(board, rank)
        text += f"\nrank {rank} waits in {waits_in}." if waits_in else ""
    late = waits[first].late & running  # they might have come yet: no reason to blame them
    odd = diagnosis.odd_one(board, tag, number, [m for m in members if m not in late])
    return Report(text, odd, (), table)


def left_over(_, board, tag, number, members) -> Report:
    """Report something that only some ranks launched in a call that all have finished."""
    table = diagnosis.table(board, tag, number, members)
    text = f"the call ended, but not every rank launched the same.\n\n{table}"
    kind = diagnosis.kind_of(board, tag, number, members)
    text += f"\n\n{_advice(kind)}" if kind == Kind.MAKE else ""
    return Report(text, diagnosis.odd_one(board, tag, number, members), (), table)


def stopped(failures: list[Failure], waiting: dict[int, str]) -> Report:
    """Report where each rank was when the reader pressed stop."""
    where = [f"rank {r} waited in {w}" for r, w in sorted(waiting.items())]
    for f in sorted(failures, key=lambda f: f.rank):
        if f.rank not in waiting and f.frames:
            where.append(f"rank {f.rank} was at {place(*f.frames[-1][:2])}")
    return Report("\n".join(["stopped.", *where]))


def exception_of(failures) -> BaseException | None:
    """Give the exception that all causes share, as it was raised, if it can travel."""
    if len({f.type for f in failures}) == 1 and failures[0].exception:
        with contextlib.suppress(Exception):
            return packing.unpack(failures[0].exception)
    return None


def _advice(kind: Kind) -> str:
    """Say what all ranks must do alike."""
    if kind == Kind.MAKE:
        return (
            "Let every rank of the world call new_group, in the same order, also those that are\n"
            "no members; or give it use_local_synchronization=True, then members alone call it."
        )
    if kind in (Kind.PAIR, Kind.ORDER):
        return "Nothing of it was sent. Let both ranks agree on every message between them."
    return (
        "Nothing of it was sent. Let every rank of the group call the same collectives,\n"
        "in the same order, with the same sizes and dtypes."
    )


def _others(waiting: dict[int, str], stopped: set[int]) -> str:
    """Say what the other ranks were doing when a call failed."""
    where: dict[str, list[int]] = {}
    for rank, text in waiting.items():
        where.setdefault(text, []).append(rank)
    text = "".join(
        f"\n\n{ranks_were(ranks)} left waiting in {what}." for what, ranks in where.items()
    )
    rest = stopped - set(waiting)
    return text + (f"\n\n{ranks_were(rest)} stopped." if rest else "")
