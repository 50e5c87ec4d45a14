"""What each block of a model keeps and takes, from its shape alone, and the best of its plans."""

from dataclasses import replace
from typing import NamedTuple

from lib.predict.memory import activations
from lib.predict.recompute.budget import best, smallest_peak
from lib.predict.recompute.plan import BlockCost, Plan, Use, none, use_of
from lib.predict.shape import GPTShape, MLPShape, ModelShape, length_of
from lib.predict.step import passes, seconds

INTEGER = 8  # bytes of a token's number, and of a position


class Choice(NamedTuple):
    """Holds a plan of a frontier and what it takes."""

    plan: Plan
    use: Use


def costs_of(
    shape: ModelShape, batch: int, speeds, sequence: int | None = None, itemsize: int = 4
) -> list[BlockCost]:
    """Return the costs of a model's blocks for `batch` samples, on a device with these speeds.

    The bytes are those of memory.py and the seconds those of operations.py, each operation by the
    roofline. The first block's input are the samples themselves.
    """
    if isinstance(shape, MLPShape):
        sizes = [(batch * width * itemsize, 0) for width in shape.widths[:-1]]
    else:
        sizes = _sizes(shape, batch, length_of(shape, sequence), itemsize)
    blocks = passes(shape, batch, sequence, itemsize)
    times = (seconds(block.forward, speeds) for block in blocks)
    return [BlockCost(*nbytes, taken) for nbytes, taken in zip(sizes, times, strict=True)]


def backward_of(
    shape: ModelShape, batch: int, speeds, sequence: int | None = None, itemsize: int = 4
) -> list[float]:
    """Return the seconds of each block's backward, first block first, by the same roofline."""
    return [seconds(one.backward, speeds) for one in passes(shape, batch, sequence, itemsize)]


def _sizes(shape: GPTShape, batch: int, s: int, itemsize: int) -> list[tuple[int, int]]:
    """Return the bytes of each block's input, and those that it keeps besides."""
    tokens = batch * s
    x = tokens * shape.width * itemsize
    kept = lambda layers: activations(replace(shape, layers=layers), batch, s, itemsize)
    block = (kept(1) - kept(0)) - x
    mask = x if shape.dropout else 0
    embedding = mask + (INTEGER * s if shape.positions == "learned" else 0)
    head = kept(0) - embedding - x
    return [(INTEGER * tokens, embedding), *[(x, block)] * shape.layers, (x, head)]


def frontier(costs: list[BlockCost], points: int = 30) -> list[Choice]:
    """Return the best plans for budgets from the least that is possible to everything kept.

    From one to the next the bytes at the peak grow and the seconds computed again fall.
    """
    least, most = smallest_peak(costs), use_of(none(len(costs)), costs).peak
    found: list[Choice] = []
    for n in range(points):
        budget = least + (most - least) * n // (points - 1)
        plan = none(len(costs)) if budget == most else best(costs, budget)
        use = use_of(plan, costs)
        while found and use.peak <= found[-1].use.peak and use.again <= found[-1].use.again:
            found.pop()
        if not found or (use.peak > found[-1].use.peak and use.again < found[-1].use.again):
            found.append(Choice(plan, use))
    return found
