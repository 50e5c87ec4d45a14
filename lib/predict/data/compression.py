"""Compressed gradients, predicted: the collectives of each method, their bytes and their time.

A bucket is described by the shapes of its gradients. Each method returns the collectives that every
rank calls for one bucket. Bytes are those of the full buffer, as in the ledger: for an all_gather,
that is the output. The memory that a method keeps from step to step is counted as well.

Sources: top-k with error feedback, Stich et al. 2018 (arXiv 1809.07599); quantising with
stochastic rounding, Alistarh et al. 2017 (QSGD, arXiv 1610.02132); sign with error feedback,
Karimireddy et al. 2019 (arXiv 1901.09847); PowerSGD, Vogels et al. 2019 (arXiv 1905.13727); local
SGD, Stich 2019 (arXiv 1805.09767).
"""

from collections.abc import Iterable, Sequence
from math import ceil, prod
from typing import NamedTuple

from lib.predict.collectives.formulas import collective, time_of


class Call(NamedTuple):
    """Describes one collective by its name and the bytes of its full buffer."""

    op: str
    bytes: int


def plain(shapes: Iterable[Sequence[int]], itemsize: int = 4) -> list[Call]:
    """Return the one all_reduce that sends all gradients uncompressed."""
    return [Call("all_reduce", _numel(shapes) * itemsize)]


def local_sgd(shapes: Iterable[Sequence[int]], steps: int, every: int, itemsize=4) -> list[Call]:
    """Return local SGD's all_reduces in `steps` steps: all weights, after each `every` steps."""
    return plain(shapes, itemsize) * (steps // every)


def kept_entries(numel: int, ratio: float) -> int:
    """Return how many of `numel` entries top-k sends: ratio × numel, rounded up, at least one."""
    return min(numel, max(1, ceil(ratio * numel - 1e-9)))  # 0.07 × 100 is 7.000000000000001


def top_k(shapes, ranks: int, ratio: float, itemsize: int = 4) -> list[Call]:
    """Return the all_gather of the `ratio` largest entries: a value and a 4-byte index for each."""
    payload = kept_entries(_numel(shapes), ratio) * (itemsize + 4)
    return [Call("all_gather", ranks * payload)]


def quantized(shapes, ranks: int, bits: int, block: int = 512, itemsize: int = 4) -> list[Call]:
    """Return the all_gather of `bits` for each entry and one scale for each `block` entries."""
    numel = _numel(shapes)
    payload = ceil(numel * bits / 8) + ceil(numel / block) * itemsize
    return [Call("all_gather", ranks * payload)]


def quantized_in_pieces(
    shapes, ranks: int, bits: int, block: int = 512, itemsize: int = 4
) -> list[Call]:
    """Return the all_to_all that gives each rank one piece to add up, and the gather of the sums.

    Both carry codes as `quantized` does. Numbers that fill no whole byte or block of each piece are
    not counted.
    """
    payload = quantized(shapes, 1, bits, block, itemsize)[0].bytes
    return [Call("all_to_all", payload), Call("all_gather", payload)]


def cast(shapes, ranks: int, itemsize: int = 2, *, widened: bool = False) -> list[Call]:
    """Return the all_reduce of all gradients in a format of `itemsize` bytes.

    With `widened` its two halves are an all_to_all of pieces, which each rank adds up in fp32, and
    an all_gather of the sums; the pieces are padded to be equal.
    """
    numel = _numel(shapes)
    if not widened:
        return [Call("all_reduce", numel * itemsize)]
    padded = -(-numel // ranks) * ranks * itemsize
    return [Call("all_to_all", padded), Call("all_gather", padded)]


def sign(shapes, ranks: int, itemsize: int = 4) -> list[Call]:
    """Return the all_gather of one bit for each entry and one scale for each tensor."""
    shapes = list(shapes)
    return [Call("all_gather", ranks * (ceil(_numel(shapes) / 8) + len(shapes) * itemsize))]


def low_rank(shape: Sequence[int], rank: int) -> tuple[int, int, int] | None:
    """Return (rows, columns, rank) of a gradient that PowerSGD factors; None if it is sent whole.

    All dims but the first count as columns. Factors are sent only where they are smaller.
    """
    if len(shape) < 2:
        return None
    rows, columns = shape[0], prod(shape[1:])
    rank = min(rank, rows, columns)
    return (rows, columns, rank) if rank * (rows + columns) < rows * columns else None


def power_sgd(shapes, ranks: int, rank: int, itemsize: int = 4) -> list[Call]:
    """Return PowerSGD's two all_reduces: factors P [rows, rank], then factors Q [columns, rank].

    Gradients that are sent whole travel with P, so a bucket without a factored one needs only the
    first all_reduce.
    """
    first = second = 0
    for shape in shapes:
        factored = low_rank(shape, rank)
        first += factored[0] * factored[2] if factored else prod(shape)
        second += factored[1] * factored[2] if factored else 0
    return [Call("all_reduce", n * itemsize) for n in (first, second) if n]


def sent(calls: Iterable[Call], ranks: int) -> float:
    """Return the bytes that each rank sends if rings carry out the calls."""
    return sum(collective(call.op, ranks, call.bytes).bytes for call in calls)


def seconds(calls: Iterable[Call], ranks: int, *, alpha: float, beta: float) -> float:
    """Return the time of the calls in turn: alpha s for each round, beta s for each byte sent."""
    return sum(time_of(c.op, ranks, c.bytes, alpha=alpha, beta=beta) for c in calls)


def break_even(payload: int, nbytes: int) -> float:
    """Return the number of ranks from which gathering payloads sends more than an all_reduce.

    Gathering sends (n-1)·payload, which grows with every rank; an all_reduce sends
    2(n-1)/n·nbytes, which hardly grows.
    """
    return 2 * nbytes / payload


def residual_bytes(shapes, itemsize: int = 4) -> int:
    """Return the memory of error feedback on each rank: one more copy of the gradients."""
    return _numel(shapes) * itemsize


def power_sgd_bytes(shapes, rank: int, itemsize: int = 4) -> int:
    """Return the memory of PowerSGD on each rank: the residual and Q of every factored matrix."""
    factored = filter(None, (low_rank(shape, rank) for shape in shapes))
    return sum(rows * columns + columns * rank for rows, columns, rank in factored) * itemsize


def _numel(shapes) -> int:
    return sum(prod(shape) for shape in shapes)
