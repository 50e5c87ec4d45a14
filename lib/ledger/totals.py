"""Totals of a ledger's rows, which print the same table on every machine."""

from dataclasses import dataclass

import numpy as np

from lib.ledger.columns import Words, keys, take


@dataclass(frozen=True, slots=True)
class Total:
    """Holds the sums over rows that agree in `of`; for comm rows, seconds = waiting + moving."""

    of: dict  # {"rank": 0, "op": "all_reduce", "group": "dp"}
    count: int
    bytes: int
    seconds: float
    waiting: float
    moving: float

    def __getitem__(self, name: str):
        """Return the value of one of the columns in `of`, as in `total["op"]`."""
        return self.of[name]


class Totals(list):
    """A list of Total, sorted by `of`, that prints as a table without times."""

    def table(self, times: bool = False) -> str:
        """Return the totals as an aligned table; `times` adds seconds, waiting and moving."""
        if not self:
            return "no rows"
        figures = ["count", "bytes"] + ["seconds", "waiting", "moving"] * times
        head = [*self[0].of, *figures]
        body = [[*t.of.values(), *(getattr(t, name) for name in figures)] for t in self]
        cells = [head] + [[_say(value) for value in line] for line in body]
        widths = [max(map(len, column)) for column in zip(*cells)]
        right = [isinstance(value, (int, float)) for value in body[0]]
        lines = (
            "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right))
            for line in cells
        )
        return "\n".join(line.rstrip() for line in lines)

    __str__ = __repr__ = table


def _say(value) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "-"
    return f"{value:.6f}" if isinstance(value, float) else str(value) or "-"


def totals(by: tuple[str, ...], columns: list, figures: dict) -> Totals:
    """Add up `figures` (columns by name) over the rows in which all `columns` are equal."""
    columns = [c.ordered() if isinstance(c, Words) else c for c in columns]
    key = np.broadcast_to(keys(columns), len(figures["rank"]))
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    size = np.zeros(len(first), np.int64)  # bytes are added as integers, so the sum is exact
    np.add.at(size, which, figures["bytes"])
    seconds, waiting, moving = (
        np.bincount(which, figures[name], len(first)).tolist()
        for name in ("seconds", "waiting", "moving")
    )
    counts = np.bincount(which, minlength=len(first)).tolist()
    values = zip(*(take(column, first).tolist() for column in columns)) if by else [()]
    of = [dict(zip(by, value)) for value in values]
    return Totals(map(Total, of, counts, size.tolist(), seconds, waiting, moving))
