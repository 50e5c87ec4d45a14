"""A played schedule as rows of the ledger: what is computed, what is sent, what memory holds."""

import numpy as np

from lib._columns import Words
from lib.ledger import Ledger
from lib.predict._grid import KINDS, B, F, I, W


def compute_rows(run) -> Ledger:
    """One row for each action."""
    grid = run.schedule.grid
    return _ledger(run, np.arange(len(grid.codes)), run.starts, run.ends, lane="compute")


def send_rows(run, times) -> Ledger:
    """One row on the sender for each message that takes time, under the name of what it carries."""
    grid = run.schedule.grid
    sent = np.flatnonzero(times > 0)
    source, to = grid.rank[sent], grid.receiver[sent]
    pair = source * len(run.schedule) + to
    start = run.ends.copy()
    start[grid.overlapped] = run.ends[grid.overlapped + 1]
    start = start[sent]
    order = np.lexsort((start, pair))
    number = np.empty(len(sent), int)  # which message of its pair
    fresh = np.flatnonzero(np.diff(pair[order], prepend=-1))
    lengths = np.diff(np.append(fresh, len(sent)))
    number[order] = np.arange(len(sent)) - np.repeat(fresh, lengths)
    pairs, codes = np.unique(pair, return_inverse=True)
    members = [divmod(int(p), len(run.schedule)) for p in pairs]
    return _ledger(
        run, sent, start, start + times[sent], lane="comm", op="send", arrived=start,
        members=Words(members, codes.astype(np.int32)), number=number, peer=to,
        note=Words(list(KINDS), grid.kind[sent].astype(np.int32)),
    )  # fmt: skip


def memory_rows(run) -> Ledger:
    """One row for each change of what a rank keeps: F adds, I frees a part, B and W the rest."""
    grid, change = run.schedule.grid, changes(run)
    at = np.flatnonzero(change)
    total = np.cumsum(change[at])
    first = np.searchsorted(at, grid.first[:-1])
    before = np.append(0, total)[first]  # what the ranks above kept at their end: always 0
    alive = total - np.repeat(before, np.diff(np.append(first, len(at))))
    time = np.where(grid.kind[at] == F, run.starts[at], run.ends[at])
    return _ledger(run, at, time, time, lane="memory", op="activations", bytes=alive)


def changes(run) -> np.ndarray:
    """Bytes by which each action changes what its rank keeps."""
    grid, costs = run.schedule.grid, run.costs
    whole = costs.each("activation", grid.stages).astype(np.int64)
    kept = whole if costs.kept is None else costs.each("kept", grid.stages).astype(np.int64)
    if (kept > whole).any():
        raise ValueError("Costs: what is kept from I to W is a part of activation, not more.")
    table = np.zeros((len(KINDS), grid.stages), np.int64)
    table[F], table[B], table[I], table[W] = whole, -whole, kept - whole, -kept
    return table[grid.kind, grid.stage]


def _ledger(run, at, start, end, **columns) -> Ledger:
    grid = run.schedule.grid
    columns.setdefault("op", Words(list(KINDS), grid.kind[at].astype(np.int32)))
    return Ledger.from_columns(
        source="predicted", rank=grid.rank[at], start=start, end=end, stage=grid.stage[at],
        microbatch=grid.cell[at] // grid.stages, **columns,
    )  # fmt: skip
