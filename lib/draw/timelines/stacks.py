"""Bytes alive as they change: the memory rows of a ledger as one state after another."""

from dataclasses import dataclass

import numpy as np

from lib.draw.parts import style
from lib.draw.parts.packing import column, whole
from lib.draw.parts.words import named
from lib.ledger import Ledger

MOST = 3_000  # states that a picture keeps; more are thinned


@dataclass(frozen=True)
class Peak:
    """The most bytes alive at once on a rank: how many of each kind, when, and what made them."""

    bytes: int
    kinds: dict[str, int]  # only those alive, the largest first
    time: float  # s from the first start of the ledger
    made_by: str  # "mm in backward", "F3"; "" if the ledger does not tell


@dataclass
class Stack:
    """The states of one rank: `alive[i]` bytes of each kind from `time[i]` on (s)."""

    rank: int
    time: np.ndarray
    alive: np.ndarray  # [states, kinds]
    peak: Peak


def kinds_of(ledger: Ledger) -> list[str]:
    """Return the kinds of memory in a ledger, as they are stacked."""
    return ordered(set(ledger.where(lane="memory").column("op").tolist()))


def ordered(found: set[str]) -> list[str]:
    """Kinds of memory as they are stacked: the known ones first."""
    return [kind for kind in style.MEMORY if kind in found] + sorted(found - set(style.MEMORY))


def stacks(ledger: Ledger, ranks, zero: float, most: int = MOST, kinds=None) -> list[Stack]:
    """Return the memory of each of `ranks` that has rows; thinned so that every peak stays.

    `kinds` are those that are stacked, at least the ledger's own.
    """
    kinds, rows = kinds or kinds_of(ledger), ledger.where(lane="memory")
    code = {kind: at for at, kind in enumerate(kinds)}
    by_rank = []
    present = [rank for rank in ranks if (rows.columns["rank"] == rank).any()]
    for rank in present:
        own = rows.where(rank=rank)
        own = own[np.argsort(own.column("start"), kind="stable")]
        kind = np.array([code.get(op, -1) for op in own.columns["op"].words])
        kind = kind[own.columns["op"].codes]
        alive = np.zeros((len(own), len(kinds)), np.int64)
        for k in range(len(kinds)):  # of each kind what its last row said
            here = np.flatnonzero(kind == k)
            last = np.searchsorted(here, np.arange(len(own)), "right")
            alive[:, k] = np.append(0, own.column("bytes")[here])[last]
        time = own.column("start") - zero
        peak = _peak(ledger, own, kinds, time, alive)
        keep = _thinned(time, alive.sum(1), most // len(present))
        by_rank.append(Stack(rank, time[keep], alive[keep], peak))
    return by_rank


def _peak(ledger: Ledger, own: Ledger, kinds, time, alive) -> Peak:
    total = alive.sum(1)
    most = int(total.max())
    first = last = int(total.argmax())
    number = own.column("number")
    # A storage that becomes another kind has two rows: one without it, and one with it again.
    # Predicted rows name no storage: their number is -1.
    renamed = (total[2:] == most) & (number[2:] == number[1:-1]) & (number[2:] >= 0)
    while last < len(renamed) and renamed[last]:
        last += 2
    parts = sorted(zip(alive[last].tolist(), kinds), key=lambda part: -part[0])
    made_by = own[first].note or _running(ledger, own[first].rank, own[first].start)
    return Peak(most, {kind: size for size, kind in parts if size}, float(time[first]), made_by)


def _running(ledger: Ledger, rank: int, moment: float) -> str:
    """The innermost compute row of a rank at a moment, named as a bar is; "" if nothing tells."""
    spans = ledger.where(rank=rank, lane="compute")
    start, end = spans.column("start"), spans.column("end")
    at = np.flatnonzero((start <= moment) & (moment < end))
    row = spans[int(at[start[at].argmax()])] if len(at) else None
    if row is None or row.op == "compute":
        return ""
    return named(row.op, row.microbatch)


def _thinned(time: np.ndarray, total: np.ndarray, most: int) -> np.ndarray:
    """The states to keep: all, or of each slot of time the fullest and the last."""
    if len(time) <= most:
        return np.arange(len(time))
    slots = max(most // 2, 1)
    slot = ((time - time[0]) / ((time[-1] - time[0]) or 1.0) * slots).astype(int)
    fullest = np.lexsort((-np.arange(len(time)), total, slot))
    last = np.flatnonzero(np.diff(slot, append=-1))
    ends = np.flatnonzero(np.diff(slot[fullest], append=-1))
    return np.union1d(fullest[ends], last)


def packed(made: list[Stack], kinds: list[str], tick: float) -> dict:
    """Stacks as columns of whole numbers, as js/memory_stacks.js reads them."""
    parts = []
    for stack in made:
        steps = np.diff(stack.alive, axis=0, prepend=0)
        peak = stack.peak
        parts.append({
            "rank": stack.rank, "n": len(stack.time),
            "time": column(np.diff(whole(stack.time, tick), prepend=0)),
            "alive": [column(steps[:, k]) for k in range(len(kinds))],
            "peak": {"bytes": peak.bytes, "kinds": peak.kinds, "made": peak.made_by,
                     "time": round(peak.time / tick)},
        })  # fmt: skip
    top = max(stack.peak.bytes for stack in made) or 1
    return {"kinds": kinds, "stacks": parts, "top": top}


def in_words(made: list[Stack]) -> list[tuple[list[int], str]]:
    """Say what each rank's peak is made of, ranks of the same peak together."""
    told: dict[str, list[int]] = {}
    for stack in made:
        peak = stack.peak
        parts = ", ".join(f"{kind} {size:,}" for kind, size in peak.kinds.items())
        made_by = f", made by {peak.made_by}" if peak.made_by else ""
        told.setdefault(f"peak {peak.bytes:,} bytes ({parts}){made_by}", []).append(stack.rank)
    return [(ranks, text) for text, ranks in told.items()]
