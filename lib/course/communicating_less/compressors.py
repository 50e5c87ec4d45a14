"""Experiments of chapter 2 that compare what was sent with what was predicted."""

from lib.course.communicating_less import costs, lessons
from lib.predict.data import compression, sparse


def trained_with(world, hooks: dict) -> tuple[dict, str]:
    """Train the small GPT with each hook from each seed; return the losses by name, and a table.

    A row of the table has the bytes that a rank sends in a step, and the spread of the losses.
    Raises AssertionError where the collectives of the last step are not the predicted ones.
    """
    losses, table = {}, ["              bytes  loss"]
    for name, hook in hooks.items():
        runs = [world.record(lessons.train_gpt, hook, seed) for seed in lessons.SEEDS]
        losses[name] = [run.results[0] for run in runs]
        calls = costs.calls_of(name, lessons.GPT_SHAPES, len(world))
        assert lessons.last_step(runs[0], len(calls)) == calls
        nbytes = compression.sent(calls, len(world))
        table.append(f"{name:<12}{nbytes:>7,.0f}  {lessons.spread(losses[name])}")
    return losses, "\n".join(table)


def sparse_and_dense(ledger, counts: list[int], rows: int) -> tuple[float, float]:
    """Return the bytes that a rank sends for a table of words as a sparse and as a dense gradient.

    `counts` are the rows that each rank used. Raises AssertionError where the last two gathers in
    `ledger` are not the predicted ones.
    """
    calls = sparse.gathered_rows(counts, lessons.D)
    gathers = list(ledger.where(rank=0, op="all_gather", lane="comm"))[-2:]
    assert [(row.op, row.bytes) for row in gathers] == calls
    dense = compression.plain([(rows, lessons.D)])
    return compression.sent(calls, len(counts)), compression.sent(dense, len(counts))
