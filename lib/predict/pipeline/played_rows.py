"""Rows of the ledger for a simulated schedule: computation, messages and memory."""

import numpy as np

from lib.ledger import Ledger
from lib.ledger.columns import Words
from lib.predict.pipeline.grid import KINDS, B, F, I, W

_FORMULA = "by simulating the schedule with the times given for its actions"


def compute_rows(run) -> Ledger:
    """Return one row for each action."""
    grid = run.schedule.grid
    return _ledger(run, np.arange(len(grid.codes)), run.starts, run.ends, lane="compute")


def send_rows(run) -> Ledger:
    """Return one row on the sender for each message that takes time; its note names the action.

    A row starts when the message is sent; `arrived` is when its receiver asks for it, if that is
    later. The time for which a message queues behind others counts as moving, as in a recording.
    """
    grid, pairs = run.schedule.grid, run.schedule.grid.overlapped
    start = run.ends.copy()
    start[pairs] = run.ends[pairs + 1]
    if run.costs.sends_block:  # the two messages of a pair are sent one after the other
        start[pairs + 1] += run.sends[pairs]
    arrived, end = start.copy(), start + run.sends
    if run.carried is not None:
        queued, asked, carried = run.carried
        arrived[queued], end[queued] = np.maximum(start[queued], asked), carried
    sent = np.flatnonzero(run.sends > 0)
    source, to = grid.rank[sent], grid.receiver[sent]
    pair = source * len(run.schedule) + to
    order = np.lexsort((start[sent], pair))
    number = np.empty(len(sent), int)  # counts the messages of a pair
    fresh = np.flatnonzero(np.diff(pair[order], prepend=-1))
    lengths = np.diff(np.append(fresh, len(sent)))
    number[order] = np.arange(len(sent)) - np.repeat(fresh, lengths)
    pairs_in_use, codes = np.unique(pair, return_inverse=True)
    members = [divmod(int(p), len(run.schedule)) for p in pairs_in_use]
    return _ledger(
        run, sent, start[sent], end[sent], lane="comm", op="send", arrived=arrived[sent],
        members=Words(members, codes.astype(np.int32)), number=number, peer=to,
        note=Words(list(KINDS), grid.kind[sent].astype(np.int32)),
    )  # fmt: skip


def memory_rows(run) -> Ledger:
    """Return one row for each change of memory: F adds, I frees or adds, B and W free the rest."""
    grid, change = run.schedule.grid, changes(run)
    at = np.flatnonzero(change)
    total = np.cumsum(change[at])
    first = np.searchsorted(at, grid.first[:-1])
    before = np.append(0, total)[first]  # what earlier ranks keep at their end, which is 0
    alive = total - np.repeat(before, np.diff(np.append(first, len(at))))
    time = np.where(grid.kind[at] == F, run.starts[at], run.ends[at])
    return _ledger(run, at, time, time, lane="memory", op="activations", bytes=alive)


def changes(run) -> np.ndarray:
    """Return the bytes by which each action changes the memory of its rank."""
    grid, costs = run.schedule.grid, run.costs
    whole = costs.each("activation", grid.stages).astype(np.int64)
    kept = whole if costs.kept is None else costs.each("kept", grid.stages).astype(np.int64)
    table = np.zeros((len(KINDS), grid.stages), np.int64)
    table[F], table[B], table[I], table[W] = whole, -whole, kept - whole, -kept
    return table[grid.kind, grid.stage]


def _ledger(run, at, start, end, **columns) -> Ledger:
    grid = run.schedule.grid
    columns.setdefault("op", Words(list(KINDS), grid.kind[at].astype(np.int32)))
    return Ledger.from_columns(
        source="predicted", rank=grid.rank[at], start=start, end=end, stage=grid.stage[at],
        microbatch=grid.cell[at] // grid.stages, meta={"formula": _FORMULA}, **columns,
    )  # fmt: skip
