"""Functions that chapter 0 uses in its cells: a stopwatch and a prediction."""

from statistics import median

import torch

from lib.course import stopwatch
from lib.ledger import Ledger, Row
from lib.predict.provenance import speeds_of


def seconds_of(step, nbytes: int, repeats: int = 15) -> float:
    """Return the median seconds that `step(x)` takes on this rank, by the wall clock.

    `x` is a float32 tensor of `nbytes` bytes. A barrier before each repetition lets all ranks start
    together, and one repetition that is not counted comes first.
    """
    x = torch.zeros(nbytes // 4)
    return median(stopwatch.seconds_of(lambda: step(x), repeats))


def predicted_overlap(speeds, ranks: int, width: int, numel: int) -> Ledger:
    """Predict a matrix product and an all-reduce that start at the same time on every rank.

    The product multiplies two [width, width] matrices, and the all-reduce adds `numel` elements by
    a ring; both are float32. `speeds` is the SlowMotion that says how fast GPU and link are.
    """
    nbytes = 4 * numel
    ends = [
        ("compute", "mm", speeds.compute(2 * width**3, 3 * 4 * width**2), 0),
        ("comm", "all_reduce", speeds.moving("all_reduce", ranks, nbytes), nbytes),
    ]
    rows = [
        Row(rank, lane, op, 0.0, end, bytes=size)
        for rank in range(ranks)
        for lane, op, end, size in ends
    ]
    return Ledger(rows, source="predicted", meta={"ranks": ranks, "speeds": speeds_of(speeds)})
