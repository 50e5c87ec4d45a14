"""The sum that an all-reduce gives, computed without ranks: its order, and each of its roundings.

    x [n, N], row r is the tensor of rank r  ->  [N], what every rank has afterwards

[Note: one rounding for each sum]
A rank that receives a partial sum adds its own tensor and passes the result on in the format in
which it arrived, so every sum is rounded once. It makes no difference that the addition itself is
exact, or in fp32: only two numbers are added at a time, and what leaves the rank is rounded. The
order decides how large the partial sums are at which this happens. Round a ring they grow by one
tensor at a time, and most roundings are those of large sums; in a tree, sums of equal size meet.

`widened` is the way out that costs no more bytes: every rank receives the pieces of all others as
they are (an all-to-all), adds them in fp32, and rounds once.

The orders are those of lib/ranks/algorithms.py, and tests compare the bits of both. NCCL rounds in
the same way: NVIDIA/nccl issue 1026, where its author names the ring the least stable algorithm.
"""

import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lib.predict.collectives.counts import node_size, pieces

Add = Callable[[Tensor, Tensor], Tensor]


def all_reduced(
    x: Tensor, algorithm: str = "ring", rounded: Callable[[Tensor], Tensor] | None = None,
    node: int | None = None,
) -> Tensor:  # fmt: skip
    """Return the sum of the rows of x [n, N] as the all-reduce of that name computes it: [N].

    Each sum of two numbers is rounded to x's dtype, and by `rounded(sum)` to a smaller format where
    one is given (x must hold values of that format). `node` is that of "two_level". Raises
    ValueError for an algorithm that is not known.
    """
    if algorithm not in ORDERS:
        raise ValueError(
            f"No all-reduce is called {algorithm!r}. Choose one of {', '.join(ORDERS)}."
        )
    if x.dim() != 2 or not len(x):
        raise ValueError(
            f"x must have a row for each rank and a column for each number, not the shape "
            f"{list(x.shape)}."
        )
    add = torch.add if rounded is None else lambda a, b: rounded(a + b)
    options = {} if node is None else {"node": node}
    return ORDERS[algorithm](x, add, **options)


def in_turn(x: Tensor, add: Add = torch.add) -> Tensor:
    """Add the rows one after the other, from the first on: [..., n, N] along dim -2 -> [..., N]."""
    return functools.reduce(add, x.unbind(-2))


def ring(x: Tensor, add: Add = torch.add) -> Tensor:
    """Add piece p in the order of ranks p, p + 1, ..., once round the ring."""
    n = len(x)
    sizes = torch.tensor(pieces(x.shape[1], n), device=x.device)
    first = torch.arange(n, device=x.device).repeat_interleave(sizes)  # the piece of each number
    columns = torch.arange(x.shape[1], device=x.device)
    steps = (x[(first + step) % n, columns] for step in range(n))
    return functools.reduce(add, steps)


def tree(x: Tensor, add: Add = torch.add) -> Tensor:
    """Add neighbours, then the sums of neighbours: rank r receives from r + 1, r + 2, r + 4, ..."""
    while len(x) > 1:
        senders = x[1::2]
        sums = add(x[::2][: len(senders)], senders)
        x = torch.cat([sums, x[2 * len(senders) :]])  # the last one may have no neighbour
    return x[0]


def halving_doubling(x: Tensor, add: Add = torch.add) -> Tensor:
    """Add ranks that are p/2 apart, then the sums that are p/4 apart, and so on.

    p is the largest power of two that is at most n; the ranks from p on are added to the first ones
    before. Both partners compute the same sum, because a + b is b + a to the bit.
    """
    p = 1 << (len(x).bit_length() - 1)
    extra = len(x) - p
    if extra:
        x = torch.cat([add(x[:extra], x[p:]), x[extra:p]])
    while len(x) > 1:
        x = add(*x.chunk(2))
    return x[0]


def two_level(x: Tensor, add: Add = torch.add, node: int | None = None) -> Tensor:
    """Add the ranks of each node in turn, then these sums by a ring of the nodes."""
    return ring(in_turn(x.unflatten(0, (-1, node_size(len(x), node))), add), add)


def widened(x: Tensor, add: Add = torch.add) -> Tensor:
    """Add the rows in turn in fp32, and round only the whole sum to x's dtype.

    Where `add` rounds to a smaller format, it rounds the whole sum only.
    """
    total = in_turn(x.to(torch.promote_types(x.dtype, torch.float32))).to(x.dtype)
    return add(total, torch.zeros_like(total))


# `everyone` sends all tensors to all ranks, each of which adds them as rank 0 of `central` does.
ORDERS = {
    "central": in_turn, "everyone": in_turn, "ring": ring, "tree": tree,
    "halving_doubling": halving_doubling, "two_level": two_level, "widened": widened,
}  # fmt: skip


def error_of_sum(
    x: Tensor, algorithm: str, dtype: torch.dtype, rounded: Callable | None = None,
    node: int | None = None,
) -> float:  # fmt: skip
    """Return by how much the sum of x [n, N] in `dtype` is off, as a share of the sum itself.

    The tensors are rounded to `dtype` before they are sent, and both errors count. The errors of
    all numbers are taken together: the root of their mean square, divided by that of the exact
    sums.
    """
    exact = x.double().sum(0)
    small = x.to(dtype)
    small = small if rounded is None else rounded(small)
    wrong = all_reduced(small, algorithm, rounded, node).double() - exact
    return (wrong.norm() / exact.norm()).item()


def exponent(counts: Sequence[float], errors: Sequence[float]) -> float:
    """Return the power with which errors grow: the slope of a line through their logarithms.

    0.5 means that four times as many ranks make the error twice as large.
    """
    if len(set(counts)) < 2 or len(counts) != len(errors):
        raise ValueError(
            f"A slope needs at least two counts and an error for each, not {len(counts)} counts "
            f"and {len(errors)} errors."
        )
    across, up = [math.log(n) for n in counts], [math.log(e) for e in errors]
    middle, level = sum(across) / len(across), sum(up) / len(up)
    rise = sum((a - middle) * (u - level) for a, u in zip(across, up))
    return rise / sum((a - middle) ** 2 for a in across)
