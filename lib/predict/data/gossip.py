"""Gossip, predicted: who averages with whom in a round, and how fast all ranks agree.

    x_r [N] on rank r          x_r becomes Σ_s W[r, s] · x_s, where s are r and its neighbours

[Note: how fast ranks agree]
W is symmetric and its rows and columns add up to 1, so a round keeps the mean of all ranks. It
shrinks the disagreement, the distance √(Σ_r |x_r - mean|²), at least by the factor λ, the second
largest absolute value of W's eigenvalues; the largest is 1 and belongs to what all ranks share. On
a ring of n ranks, from 3 on, λ = |1 + 2·cos(2π/n)|/3, which is close to 1 on a long ring. With
random pairs W² = W, so the square of the disagreement shrinks on average by the second eigenvalue
of the mean of all pairings' matrices. For even n that is (n-2)/(2(n-1)): less than half, on any
number of ranks.

Sources: random pairs and the eigenvalue, Boyd et al. 2006 (IEEE Trans. Inf. Theory 52(6)); training
with it on a ring, Lian et al. 2017 (D-PSGD, arXiv 1705.09056).
"""

import math
import random
from itertools import combinations

import numpy as np

from lib.predict.arguments import real, whole

NEIGHBOURS = ("ring", "pairs")


def ring(ranks: int, number: int = 0, seed: int = 0) -> list[tuple[int, ...]]:
    """Return the neighbours of each rank on a ring: one on either side, the same in every round."""
    return [tuple(sorted({(r - 1) % ranks, (r + 1) % ranks} - {r})) for r in range(ranks)]


def pairs(ranks: int, number: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Return the neighbour of each rank in round `number`, where random pairs average.

    Every rank that draws with the same seed gets the same pairs. Of an odd number of ranks, one
    has no neighbour.
    """
    order = list(range(ranks))
    random.Random(seed * 1_000_003 + number).shuffle(order)
    partners: list[tuple[int, ...]] = [()] * ranks
    for a, b in zip(order[::2], order[1::2]):
        partners[a], partners[b] = (b,), (a,)
    return partners


def neighbours(kind: str, ranks: int, number: int = 0, seed: int = 0) -> list[tuple[int, ...]]:
    """Return each rank's neighbours in round `number`. Raises ValueError for an unknown kind."""
    if kind not in NEIGHBOURS:
        raise ValueError(f"Gossip has no neighbours called {kind!r}. Choose 'ring' or 'pairs'.")
    ranks = whole(ranks, "The number of ranks")
    return {"ring": ring, "pairs": pairs}[kind](ranks, whole(number, "A round", 0), seed)


def mixing_matrix(by_rank: list[tuple[int, ...]]) -> np.ndarray:
    """Return W [n, n]: each rank averages itself and its neighbours, all with equal weights."""
    matrix = np.zeros((len(by_rank), len(by_rank)))
    for rank, others in enumerate(by_rank):
        matrix[rank, [rank, *others]] = 1 / (1 + len(others))
    return matrix


def mean_matrix(kind: str, ranks: int) -> np.ndarray:
    """Return W [n, n] on a ring, and the mean over all pairings with random pairs."""
    if kind != "pairs":
        return mixing_matrix(neighbours(kind, ranks))
    ranks = whole(ranks, "The number of ranks")
    matrix = np.eye(ranks)
    for a, b in combinations(range(ranks), 2):
        met = 1 / (ranks - 1 + ranks % 2)  # the probability that a and b are a pair
        matrix[[a, b], [a, b]] -= met / 2
        matrix[[a, b], [b, a]] += met / 2
    return matrix


def second_eigenvalue(matrix: np.ndarray) -> float:
    """Return the second largest absolute value of a symmetric matrix's eigenvalues."""
    sizes = sorted(abs(np.linalg.eigvalsh(matrix)))
    return float(sizes[-2]) if len(sizes) > 1 else 0.0


def shrinks_by(kind: str, ranks: int) -> float:
    """Return the factor by which a round shrinks the disagreement.

    On a ring it is a bound that the slowest direction reaches; with random pairs it is the root of
    the mean square.
    """
    second = second_eigenvalue(mean_matrix(kind, ranks))
    return math.sqrt(max(second, 0.0)) if kind == "pairs" else second


def rounds_until(left: float, kind: str, ranks: int) -> int:
    """Return the rounds after which at most the share `left` of the disagreement is predicted."""
    factor = shrinks_by(kind, ranks)
    if not 0 < real(left, "left", zero=False) < 1:
        raise ValueError(f"left, the share of the disagreement, must be below 1, not {left}.")
    return 1 if factor < 1e-12 else math.ceil(math.log(left) / math.log(factor) - 1e-9)


def sent(kind: str, ranks: int, nbytes: int) -> int:
    """Return the bytes that a rank with all its neighbours sends in a round: S to each of them."""
    return max(map(len, neighbours(kind, ranks))) * whole(nbytes, "The bytes of a buffer", 0)
