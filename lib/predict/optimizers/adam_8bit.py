"""What 8-bit Adam keeps and sends where each rank has a part of a parameter.

Numbers share one maximum in blocks of the whole parameter, laid end to end. A block that lies on
two ranks or more is cut: each of them keeps its maximum, which they find together in every step.

    kept by a rank   2 codes a number, 2 · 4 bytes for each block that it touches, a counter of 4
    sent             all_reduce (MAX) of 2 · 4 bytes for each cut block

Equal parts of a parameter of k blocks cut none where the number of ranks divides k, and at most one
block for each rank but the last otherwise.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from lib.predict.arguments import whole
from lib.predict.collectives.exchange import Exchange
from lib.predict.optimizers.states import COUNTER, MAXIMUM

Shape = Sequence[int]
# A whole shape, and how many of its numbers each rank has; None where every rank has all of them.
Part = tuple[Shape, Sequence[int] | None]


def cut_blocks(sizes: Sequence[int], block: int) -> list[int]:
    """Return which blocks lie on more than one rank, where ranks have so many numbers in order."""
    *ends, numel = accumulate(sizes)
    whole(block, "block")
    return sorted({end // block for end in ends if 0 < end < numel and end % block})


def kept_bytes(parts: Sequence[Part], rank: int, *, block: int = 256, smallest: int = 4096) -> int:
    """Return the bytes that 8-bit Adam keeps on a rank; the options are those of the optimizer.

    A parameter of fewer than `smallest` numbers, on all ranks together, keeps 8 bytes a number.
    """
    total = 0
    for shape, sizes in parts:
        numel = prod(shape)
        first = 0 if sizes is None else sum(sizes[:rank])
        own = numel if sizes is None else sizes[rank]
        if numel < smallest:
            total += 8 * own + COUNTER
        else:
            touched = (first + own - 1) // block - first // block + 1 if own else 0
            total += 2 * (own + MAXIMUM * touched) + COUNTER
    return total


def of_adam_8bit(
    parts: Sequence[Part], ranks: int, *, block: int = 256, smallest: int = 4096
) -> list[Exchange]:
    """Return the collectives of a step, in order; `parts` are the parameters with a gradient.

    A first all_reduce, of a byte for each split parameter, says which have a gradient on some rank.
    """
    split = [(prod(shape), sizes) for shape, sizes in parts if sizes is not None]
    cuts = sum(len(cut_blocks(sizes, block)) for numel, sizes in split if numel >= smallest)
    nbytes = [len(split), 2 * MAXIMUM * cuts]
    return [Exchange("all_reduce", whole(ranks, "The number of ranks"), n) for n in nbytes if n]
