"""The programs of a timeline: one, or several as groups of rows that begin at the left edge."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lib.draw.parts import words
from lib.ledger import Ledger
from lib.ledger.columns import Words, join


@dataclass(frozen=True)
class Program:
    """One program of a timeline: its rank r is rank `first` + r of the picture."""

    name: str  # "" where a timeline shows one program
    ledger: Ledger
    first: int = 0
    rows: tuple[str, ...] = ()  # what its rows are called, where they are not "rank 0", "rank 1"

    @property
    def labels(self) -> list[str]:
        """Return what stands before its rows."""
        return list(self.rows) or [f"rank {rank}" for rank in self.ledger.ranks]

    def names(self) -> dict[int, str]:
        """Return what the picture's ranks are called away from their rows: "1F1B, rank 0"."""
        begin = f"{self.name}, " if self.name else ""
        ranks = (self.first + rank for rank in self.ledger.ranks)
        return {rank: begin + label for rank, label in zip(ranks, self.labels)}

    def in_words(self, ranks: list[int]) -> str:
        """Name those of the picture's `ranks` that are its own, as "1F1B, ranks 0 to 3"; or ""."""
        own = [rank for rank in self.ledger.ranks if self.first + rank in ranks]
        if not own:
            return ""
        label = dict(zip(self.ledger.ranks, self.rows))
        told = ", ".join(label[rank] for rank in own) if label else words.in_words(own)
        return f"{self.name}, {told}" if self.name else told


def programs_of(ledger, rows=()) -> list[Program]:
    """Return the programs of `ledger`, a Ledger or a dict of them by name, with names for all rows.

    Raises ValueError for a program without a name or without rows to draw, and for names that are
    too few or too many; TypeError for what is no ledger.
    """
    runs = dict(ledger) if isinstance(ledger, Mapping) else {"": ledger}
    if isinstance(ledger, Mapping) and not all(isinstance(name, str) and name for name in runs):
        raise ValueError('Each program needs a name, as in timeline({"GPipe": one, "1F1B": two}).')
    if not runs:
        raise ValueError("There is nothing to draw: give at least one program.")
    for one in runs.values():
        words.has_rows(one, "timeline")
    many = sum(len(one.ranks) for one in runs.values())
    if rows and len(rows) != many:
        raise ValueError(f"{len(rows)} names do not fit {many} rows: give one each.")
    programs, below = [], 0
    for name, one in runs.items():
        given, rows = rows[: len(one.ranks)], rows[len(one.ranks) :]
        first = below - min(one.ranks) if name else 0
        programs.append(Program(name, one, first, tuple(given)))
        below += max(one.ranks) - min(one.ranks) + 1
    return programs


def together(programs: list[Program]) -> Ledger:
    """Return all rows in one ledger: each program from 0 s on, and no two with the same rank."""
    if not programs[0].name:
        return programs[0].ledger
    moved = [_moved(one.ledger.columns, one.first) for one in programs]
    columns = {name: join([part[name] for part in moved]) for name in moved[0]}
    return Ledger.from_columns(source=programs[0].ledger.source, **columns)


def _moved(columns: dict, first: int) -> dict:
    """Columns on a clock that starts at 0, with `first` added to ranks and to members of groups."""
    zero, members = columns["start"].min(), columns["members"]
    groups = [tuple(rank + first for rank in group) for group in members.words]
    times = {name: columns[name] - zero for name in ("start", "end", "arrived")}
    ranks = {"rank": columns["rank"] + first, "members": Words(groups, np.array(members.codes))}
    return columns | times | ranks


def in_words(programs: list[Program], ranks: list[int]) -> str:
    """Name ranks of the picture: "ranks 0 to 3", or "GPipe, ranks 0 to 3, and 1F1B, rank 0"."""
    return ", and ".join(filter(None, (one.in_words(ranks) for one in programs)))
