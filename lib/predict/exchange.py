"""Exchanging gradients on paper: which collectives, of how many bytes, in how much time.

A bucket is the shapes of the gradients in it. Each method gives the calls that every rank makes for
one bucket, as the ledger counts them: the full buffer, so an all_gather is what all ranks give
together. What is left over for the next step, and what is kept, is counted too.

Sources: top-k with error feedback, Stich et al. 2018 (arXiv 1809.07599); quantising with
stochastic rounding, Alistarh et al. 2017 (QSGD, arXiv 1610.02132); sign with error feedback,
Karimireddy et al. 2019 (arXiv 1901.09847); PowerSGD, Vogels et al. 2019 (arXiv 1905.13727); local
SGD, Stich 2019 (arXiv 1805.09767).
"""

from collections.abc import Iterable, Sequence
from math import ceil, prod
from typing import NamedTuple

from lib.predict.traffic import collective, time_of


class Call(NamedTuple):
    """One collective, with the bytes of its full buffer."""

    op: str
    bytes: int


def plain(shapes: Iterable[Sequence[int]], itemsize: int = 4) -> list[Call]:
    """Everything, in one all_reduce."""
    return [Call("all_reduce", _numel(shapes) * itemsize)]


def local_sgd(shapes: Iterable[Sequence[int]], steps: int, every: int, itemsize=4) -> list[Call]:
    """The weights instead of the gradients, once after `every` steps, for `steps` steps."""
    return plain(shapes, itemsize) * (steps // every)


def kept_entries(numel: int, ratio: float) -> int:
    """How many of `numel` entries top-k sends: ratio × numel, rounded up, and at least one."""
    return max(1, min(numel, ceil(ratio * numel - 1e-9)))  # 0.07 × 100 is 7.000000000000001


def top_k(shapes, ranks: int, ratio: float, itemsize: int = 4) -> list[Call]:
    """The `ratio` largest entries of the bucket: a value and a place of 4 bytes for each."""
    payload = kept_entries(_numel(shapes), ratio) * (itemsize + 4)
    return [Call("all_gather", ranks * payload)]


def quantized(shapes, ranks: int, bits: int, block: int = 512, itemsize: int = 4) -> list[Call]:
    """`bits` for each entry, and one scale for each `block` entries of the bucket."""
    numel = _numel(shapes)
    payload = ceil(numel * bits / 8) + ceil(numel / block) * itemsize
    return [Call("all_gather", ranks * payload)]


def sign(shapes, ranks: int, itemsize: int = 4) -> list[Call]:
    """One bit for each entry, and one scale for each tensor."""
    shapes = list(shapes)
    return [Call("all_gather", ranks * (ceil(_numel(shapes) / 8) + len(shapes) * itemsize))]


def low_rank(shape: Sequence[int], rank: int) -> tuple[int, int, int] | None:
    """(rows, columns, rank) of a gradient that PowerSGD sends as two factors; None if it is whole.

    All dims but the first are columns. Factors are sent only where they are smaller.
    """
    if len(shape) < 2:
        return None
    rows, columns = shape[0], prod(shape[1:])
    rank = min(rank, rows, columns)
    return (rows, columns, rank) if rank * (rows + columns) < rows * columns else None


def power_sgd(shapes, ranks: int, rank: int, itemsize: int = 4) -> list[Call]:
    """Two all_reduces: the factors P [rows, rank] with whatever is not cut, then Q [columns, rank].

    A bucket without a matrix worth cutting needs the first alone.
    """
    first = second = 0
    for shape in shapes:
        cut = low_rank(shape, rank)
        first += cut[0] * cut[2] if cut else prod(shape)
        second += cut[1] * cut[2] if cut else 0
    return [Call("all_reduce", n * itemsize) for n in (first, second) if n]


def sent(calls: Iterable[Call], ranks: int) -> float:
    """Bytes that each rank puts on the wire, as rings do the calls."""
    return sum(collective(call.op, ranks, call.bytes).bytes for call in calls)


def seconds(calls: Iterable[Call], ranks: int, *, alpha: float, beta: float) -> float:
    """Time of the calls one after the other: alpha s a round, beta s a byte on the wire."""
    return sum(time_of(c.op, ranks, c.bytes, alpha=alpha, beta=beta) for c in calls)


def break_even(payload: int, nbytes: int) -> float:
    """The number of ranks from which gathering payloads sends more than the plain all_reduce.

    (n-1)·payload against 2(n-1)/n·nbytes: what is gathered grows with every rank, a sum does not.
    """
    return 2 * nbytes / payload


def residual_bytes(shapes, itemsize: int = 4) -> int:
    """Memory of error feedback on each rank: one more copy of the gradients."""
    return _numel(shapes) * itemsize


def power_sgd_bytes(shapes, rank: int, itemsize: int = 4) -> int:
    """Memory of PowerSGD on each rank: of every matrix that is cut, what is left over, and Q."""
    cuts = filter(None, (low_rank(shape, rank) for shape in shapes))
    return sum(rows * columns + columns * rank for rows, columns, rank in cuts) * itemsize


def _numel(shapes) -> int:
    return sum(prod(shape) for shape in shapes)
