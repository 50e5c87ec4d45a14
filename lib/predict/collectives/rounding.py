"""The error of a sum over ranks in a small format, predicted from the order of its additions.

Every partial sum is rounded once (lib/single/precision/summing_order.py). A rounding to the nearest
number of a format, whose numbers lie epsilon apart at 1, is off by at most epsilon/2 of the value,
and in the root of the mean square by ROUNDING · epsilon. For tensors that are independent between
ranks and have the mean 0, the mean square of a sum of k of them is k times that of one. Roundings
are independent too, so that their squares add up:

    (error / sum)² = (ROUNDING · epsilon)² · (1 + Σ k / n)

where k runs over the numbers of tensors in all rounded sums, and the 1 is the rounding of the
tensors themselves before they are sent. A ring has k = 2, 3, ... n, and its error grows as √(n/2);
a tree has n/2 sums of 2, n/4 of 4, ... and grows as √(log2 n).

Gradients of one model have something in common, above all early in training. Where the correlation
of two ranks' tensors is r, the mean square of a sum of k is k + k(k - 1)r times that of one. Both
the errors and the whole sum become larger; of a tree, whose last sums are nearly the whole, the
error stops growing. A ring of equal numbers has another one that is no matter of chance: it stops
growing at 2/epsilon of them, because the next one is less than half the distance to the next number
of the format. The formula does not have this error, which begins to show before.
"""

from collections.abc import Iterator
from math import log, sqrt

from lib.predict.arguments import real, whole
from lib.predict.collectives.counts import node_size

# Spread a number's fraction m over [1, 2) as its logarithm is: the mean of 1/m² is 3/(8 ln 2). An
# error that is uniform over ± epsilon/2 has the mean square epsilon²/12.
ROUNDING = sqrt(3 / (8 * log(2)) / 12)


def sizes_of_sums(algorithm: str, ranks: int, node: int | None = None) -> list[int]:
    """Return how many ranks' tensors each rounded partial sum holds, for one number of the buffer.

    "widened" rounds only the whole sum. Raises ValueError for an algorithm that is not known.
    """
    n = whole(ranks, "The number of ranks")
    orders = {
        "central": _in_turn, "everyone": _in_turn, "ring": _in_turn, "tree": _neighbours,
        "halving_doubling": _halves,
        "two_level": lambda n: _two_level(n, node_size(n, node)),
        "widened": lambda n: iter([n]),
    }  # fmt: skip
    if algorithm not in orders:
        raise ValueError(
            f"No all-reduce is called {algorithm!r}. Choose one of {', '.join(orders)}."
        )
    return list(orders[algorithm](n))


def error_of_sum(
    algorithm: str, ranks: int, epsilon: float, node: int | None = None, *, correlation: float = 0.0
) -> float:
    """Return the predicted error of a sum over ranks in a format, as a share of the sum.

    `epsilon` is the distance of the format's numbers at 1: 2^-7 for bf16, 2^-10 for fp16, 2^-23 for
    fp32. `correlation` is that of the tensors of two ranks, 0 where they are independent and 1
    where they are equal.
    """
    common = real(correlation, "correlation")
    square = lambda k: k + k * (k - 1) * common
    sums = sum(map(square, sizes_of_sums(algorithm, ranks, node)))
    return ROUNDING * real(epsilon, "epsilon") * sqrt((ranks + sums) / square(ranks))


def most_equal_numbers(epsilon: float) -> int:
    """Return how many ones a sum in turn can hold: 256 in bf16, 2,048 in fp16.

    The next one lies half-way between two numbers of the format, and is rounded to the even one.
    """
    return round(2 / real(epsilon, "epsilon", zero=False))


def _in_turn(n: int) -> Iterator[int]:
    return iter(range(2, n + 1))


def _neighbours(n: int) -> Iterator[int]:
    held = [1] * n
    while len(held) > 1:
        sums = [a + b for a, b in zip(held[::2], held[1::2])]
        yield from sums
        held = sums + held[2 * len(sums) :]


def _halves(n: int) -> Iterator[int]:
    p = 1 << (n.bit_length() - 1)
    held = [2] * (n - p) + [1] * (2 * p - n)
    yield from held[: n - p]
    while len(held) > 1:
        half = len(held) // 2
        held = [a + b for a, b in zip(held[:half], held[half:])]
        yield from held


def _two_level(n: int, node: int) -> Iterator[int]:
    for _ in range(n // node):
        yield from _in_turn(node)
    yield from range(2 * node, n + 1, node)
