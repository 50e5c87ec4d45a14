"""What Muon computes and sends: products of Newton-Schulz, and whole matrices out of shards.

Newton-Schulz of a matrix with sides a <= b takes in each step two products with a·a·b
multiplications, X·Xᵀ and (..)·X, and one with a·a·a, A·A: 4a²b + 2a³ FLOP.

Where each rank has a part of each matrix, one of two methods makes them whole:

    gather        all_gather: every rank gets every matrix and computes all of them
    distributed   all_to_all: each matrix goes to its owner, which computes it alone; all_to_all
                  back: each rank gets its part of the result

With n ranks and N numbers in matrices that are split equally, a rank sends N·(n - 1)/n numbers in
the first and 2·N·(n - 1)/n² in the second: as much for n = 2, half of it for n = 4. It computes 1/n
of the products. The first needs no second message, and no rank waits for one with a larger share.

Source: counted; Jordan et al. 2024, "Muon" (kellerjordan.github.io/posts/muon), for the share of
the FLOP of a step, which for a square matrix of m rows and B tokens is at most 5·m/B: five steps of
6·m³ FLOP beside 6·m²·B of training. Liu et al. 2025 (arXiv 2502.16982), section 2.3, gathers.
"""

from collections.abc import Sequence
from math import prod

from lib.predict.arguments import equal_share, whole
from lib.predict.collectives.exchange import Exchange

METHODS = ("gather", "distributed")
Shape = Sequence[int]
# A whole shape, and how many of its numbers each rank has; None where every rank has all of them.
Part = tuple[Shape, Sequence[int] | None]


def newton_schulz_flop(shape: Shape, steps: int = 5) -> int:
    """Return the FLOP of the matrix products of Newton-Schulz for a matrix [m, n]."""
    small, large = sorted(shape)
    return whole(steps, "steps", 0) * (4 * small**2 * large + 2 * small**3)


def equal_sizes(shape: Shape, ranks: int, dim: int) -> list[int]:
    """Return how many numbers each rank has of a matrix that is split along `dim`."""
    equal_share(shape[dim], ranks, f"Dim {dim} has {{}} entries")
    return [prod(shape) // ranks] * ranks


def owners(shapes: Sequence[Shape], ranks: int, rule: str = "balanced") -> list[int]:
    """Return which rank computes each matrix.

    "round robin" gives matrix i to rank i mod n. "balanced" gives the costliest matrix that is left
    to the rank that has least to compute. Raises ValueError for another rule.
    """
    if rule == "round robin":
        return [number % ranks for number in range(len(shapes))]
    if rule != "balanced":
        raise ValueError(f"No rule is called {rule!r}. Choose balanced or round robin.")
    flop = [newton_schulz_flop(shape) for shape in shapes]
    owner, load = [0] * len(shapes), [0] * ranks
    for number in sorted(range(len(shapes)), key=lambda n: -flop[n]):
        owner[number] = load.index(min(load))
        load[owner[number]] += flop[number]
    return owner


def flop_by_rank(
    parts: Sequence[Part], ranks: int, method: str = "distributed", rule: str = "balanced",
    steps: int = 5,
) -> list[int]:  # fmt: skip
    """Return the FLOP of Newton-Schulz that each rank computes in a step of the optimizer."""
    _known(method)
    split = [shape for shape, sizes in parts if sizes is not None]
    flop = [newton_schulz_flop(shape, steps) for shape in split]
    every = sum(newton_schulz_flop(shape, steps) for shape, sizes in parts if sizes is None)
    if method == "gather":
        return [every + sum(flop)] * ranks
    owner = owners(split, ranks, rule)
    return [every + sum(f for f, o in zip(flop, owner) if o == rank) for rank in range(ranks)]


def of_muon(
    parts: Sequence[Part], ranks: int, rank: int, itemsize: int = 2, *,
    method: str = "distributed", rule: str = "balanced",
) -> list[Exchange]:  # fmt: skip
    """Return the collectives of a step as one rank launches them, with the bytes of its buffers.

    `parts` are the matrices with a gradient, and `itemsize` the bytes of a number of Newton-Schulz.
    A first all_reduce, of a byte for each split matrix, says which have a gradient on some rank.
    In an all_to_all, what a rank keeps for itself is in its buffer and is not sent.
    """
    _known(method)
    size = whole(itemsize, "itemsize")
    split = [(shape, sizes) for shape, sizes in parts if sizes is not None]
    if not split:
        return []
    flags = Exchange("all_reduce", ranks, len(split))
    if method == "gather":  # parts of other sizes are filled up to the largest
        filled = [ranks * max(sizes) * size for _, sizes in split]
        return [flags, *(Exchange("all_gather", ranks, nbytes) for nbytes in filled)]
    owner = owners([shape for shape, _ in split], ranks, rule)
    there = sum(sizes[rank] for _, sizes in split)
    back = sum(prod(shape) for (shape, _), own in zip(split, owner) if own == rank)
    return [flags, *(Exchange("all_to_all", ranks, size * numbers) for numbers in (there, back))]


def sent_numbers(
    parts: Sequence[Part], ranks: int, rank: int, *,
    method: str = "distributed", rule: str = "balanced",
) -> int:  # fmt: skip
    """Return how many numbers of matrices one rank sends to others in a step.

    In an all_gather it sends what it has, with what fills it up, to each of the others.
    """
    _known(method)
    split = [(shape, sizes) for shape, sizes in parts if sizes is not None]
    if method == "gather":
        return (ranks - 1) * sum(max(sizes) for _, sizes in split)
    owner = owners([shape for shape, _ in split], ranks, rule)
    there = sum(sizes[rank] for (_, sizes), own in zip(split, owner) if own != rank)
    back = sum(sum(sizes) - sizes[rank] for (_, sizes), own in zip(split, owner) if own == rank)
    return there + back


def _known(method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"No method is called {method!r}. Choose {' or '.join(METHODS)}.")
