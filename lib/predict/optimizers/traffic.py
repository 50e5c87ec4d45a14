"""What a step of an optimizer on shards sends: collectives, and the bytes of their buffers.

    part of a matrix [N, M]   Adafactor: sums            SM3: maxima
    rows      [N/g, M]        M of columns, and 2        M
    columns   [N, M/g]        N of rows, and 2           N
    flat                      N + M, and 2               N + M
    whole                     nothing                    nothing

The 2 are the sums of squares of weights and updates, of vectors too. The numbers travel in 4 bytes
at least. A first all_reduce, of one byte for each parameter that is sharded, says which have a
gradient on some rank.
"""

from collections.abc import Iterable, Sequence
from math import prod

from lib.predict.arguments import whole
from lib.predict.collectives.exchange import Exchange

Parts = Iterable[tuple[Sequence[int], int | str | None]]


def of_adafactor(
    parts: Parts, ranks: int, itemsize: int = 4, *, scale_parameter: bool = True
) -> list[Exchange]:
    """Return the collectives of a step of Adafactor, in the order in which they are launched.

    `parts` says of each parameter with a gradient its whole shape and how it is cut: the dim,
    "flat", or None where every rank has it whole. All have numbers of `itemsize` bytes.
    """
    sharded = [(tuple(shape), cut) for shape, cut in parts if cut is not None]
    factors = sum(_factors(shape, cut) for shape, cut in sharded)
    sums = factors + len(sharded) * bool(scale_parameter)
    return _exchanges(len(sharded), [sums, len(sharded)], ranks, itemsize)


def of_sm3(parts: Parts, ranks: int, itemsize: int = 4) -> list[Exchange]:
    """Return the collectives of a step of SM3, in order; `parts` are those of `of_adafactor`."""
    sharded = [(tuple(shape), cut) for shape, cut in parts if cut is not None]
    maxima = sum(_slices(shape, cut) for shape, cut in sharded)
    return _exchanges(len(sharded), [maxima], ranks, itemsize)


def _factors(shape: tuple[int, ...], cut: int | str) -> int:
    """Return how many sums of rows and columns are pending."""
    if len(shape) < 2:
        return 0
    *stack, n, m = shape
    if cut == "flat":
        return n + m
    stacked = prod(stack)
    return {len(shape) - 1: stacked * n, len(shape) - 2: stacked * m}.get(cut, 0)


def _slices(shape: tuple[int, ...], cut: int | str) -> int:
    """Return how many maxima of slices are pending: those of every dim but the cut one."""
    if len(shape) < 2:
        return 0
    return sum(shape) if cut == "flat" else sum(shape) - shape[cut]


def _exchanges(sharded: int, numbers: list[int], ranks: int, itemsize: int) -> list[Exchange]:
    """Return the flags, and each buffer that is not empty."""
    size = max(whole(itemsize, "itemsize"), 4)
    nbytes = [sharded, *(size * count for count in numbers)]
    return [Exchange("all_reduce", whole(ranks, "The number of ranks"), n) for n in nbytes if n]
