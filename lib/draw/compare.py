"""Two runs side by side: which rows are the same operation, and where they differ."""

from dataclasses import dataclass

import numpy as np

from lib._columns import Words, join, keys
from lib.ledger import Ledger

_LETTERS = {"F": "forward", "B": "backward", "I": "backward for input", "W": "backward for weights"}


@dataclass(frozen=True)
class Difference:
    """How much longer (s) one run takes than another, and the operation that differs most.

    `pairs` holds, for each row of the other run, the row of this one that is the same operation,
    or -1. `worst` is (rank, op, microbatch or -1), and `seconds` how much longer it takes here, of
    which `waiting`; None and 0.0 where no operation is in both.
    """

    makespan: float
    worst: tuple[int, str, int] | None
    seconds: float
    waiting: float
    pairs: np.ndarray
    missing: tuple[str, ...]  # operations that only the other run has


def compare(ledger: Ledger, over: Ledger) -> Difference:
    """Compare what ranks computed and communicated in `ledger` with the rows of `over`.

    Two rows are the same operation if rank, lane, name, and stage and microbatch where both tell
    them, agree, and as many came before. Where the runs have different numbers of them, their
    sums are compared: a span that was cut by waits is still one span.
    """
    shown = [np.flatnonzero(_shown(one)) for one in (ledger, over)]
    parts = [one[rows]._columns for one, rows in zip((ledger, over), shown)]
    here = len(shown[0])
    told = ["rank", "lane", "op"]
    if all((part["microbatch"] >= 0).any() for part in parts):
        told += ["microbatch"]
        told += ["stage"] * all((part["stage"] >= 0).any() for part in parts)
    columns = [join([_plain(part["op"]) if name == "op" else part[name] for part in parts])
               for name in told]  # fmt: skip
    columns[2] = _merged(columns[2])
    base = np.unique(keys(columns), return_inverse=True)[1]
    size = int(base.max(initial=-1)) + 1
    counts = [np.bincount(part, minlength=size) for part in (base[:here], base[here:])]
    start, seconds, waiting = (
        np.concatenate([one[rows].column(name) for one, rows in zip((ledger, over), shown)])
        for name in ("start", "seconds", "waiting")
    )
    nth = np.concatenate([_nth(base[:here], start[:here]), _nth(base[here:], start[here:])])
    # 1. the same operation, where both have as many
    even = counts[0] == counts[1]
    name = np.where(even[base], base * (len(base) + 1) + nth + 1, base * (len(base) + 1))
    known, which = np.unique(name, return_inverse=True)
    first = np.full(len(known), -1)
    first[which[:here]] = shown[0]
    single = even[base[here:]]
    pairs = np.full(len(over), -1)
    pairs[shown[1][single]] = first[which[here:]][single]
    # 2. what differs most
    sign = np.where(np.arange(len(base)) < here, 1.0, -1.0)
    longer, wait = (np.bincount(which, sign * column, len(known)) for column in (seconds, waiting))
    both = (counts[0] > 0) & (counts[1] > 0)
    inside = both[known // (len(base) + 1)]
    worst, most, waits = None, 0.0, 0.0
    if inside.any():
        at = int(np.where(inside, abs(longer), -1.0).argmax())
        row = ledger[int(first[at])]
        alone = known[at] % (len(base) + 1) > 0
        worst = (row.rank, row.op, row.microbatch if alone or len(told) > 3 else -1)
        most, waits = float(longer[at]), float(wait[at])
    ops = columns[2]
    there = ops.codes[here:][np.isin(over._columns["rank"][shown[1]], ledger.ranks)]
    only = set(there.tolist()) - set(ops.codes[:here].tolist())
    only = sorted(ops.words[code] for code in only)
    return Difference(ledger.makespan - over.makespan, worst, most, waits, pairs, tuple(only))


def _shown(ledger: Ledger) -> np.ndarray:
    return ledger._columns["lane"].mask(("compute", "comm").__contains__)


def _plain(ops: Words) -> Words:
    return ops._replace(words=[_LETTERS.get(word, word) for word in ops.words])


def _merged(ops: Words) -> Words:
    """Words of which two may be equal, each once."""
    table = {word: i for i, word in enumerate(dict.fromkeys(ops.words))}
    codes = np.array([table[word] for word in ops.words], np.int32)
    return Words(list(table), codes[ops.codes])


def _nth(base: np.ndarray, start: np.ndarray) -> np.ndarray:
    """How many rows of the same base start before each one."""
    order = np.lexsort((start, base))
    fresh = np.flatnonzero(np.diff(base[order], prepend=-1))
    lengths = np.diff(np.append(fresh, len(base)))
    nth = np.empty(len(base), np.int64)
    nth[order] = np.arange(len(base)) - np.repeat(fresh, lengths)
    return nth
