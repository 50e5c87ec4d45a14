"""How the load of a gate that prefers no expert spreads, and what a capacity drops of it.

Each of N tokens chooses k of E experts by chance, so an expert has X tokens with

    P(X = x) = C(N, x) p^x (1 - p)^(N - x),    p = k/E,    mean k·N/E,    variance N·p·(1 - p)

and a capacity of C drops the share E[max(X - C, 0)] / (k·N/E). The deviation divided by the mean is
√((E/k - 1)/N): with fewer tokens, or more experts, the same capacity factor drops more.
"""

from math import ceil, comb, sqrt

import numpy as np

from lib.predict.arguments import equal_share, real, whole


def probabilities(tokens: int, experts: int, k: int) -> np.ndarray:
    """Return the probability that an expert has 0, 1, .. N tokens: [N + 1]."""
    n, p = whole(tokens, "tokens"), _share(experts, k)
    if p == 1:
        return np.eye(n + 1)[n]
    x = np.arange(1, n + 1)
    steps = np.log(n + 1 - x) - np.log(x) + np.log(p) - np.log1p(-p)
    return np.exp(n * np.log1p(-p) + np.concatenate([[0.0], np.cumsum(steps)]))


def relative_spread(tokens: int, experts: int, k: int) -> float:
    """Return the standard deviation of an expert's load, divided by its mean."""
    return sqrt((1 / _share(experts, k) - 1) / whole(tokens, "tokens"))


def dropped(tokens: int, experts: int, k: int, factor: float) -> float:
    """Return the share of its assignments that an even gate loses to a capacity factor."""
    mean = whole(tokens, "tokens") * _share(experts, k)
    capacity = ceil(real(factor, "The capacity factor", zero=False) * mean)
    over = np.maximum(np.arange(tokens + 1) - capacity, 0)
    return float(over @ probabilities(tokens, experts, k) / mean)


def taken(tokens: int, experts: int, k: int, capacity: int) -> float:
    """Return the rows that an expert takes on average if it takes at most `capacity` of them.

    Of `tokens` tokens each chooses k experts by chance. Raises ValueError for k above E.
    """
    rows = np.minimum(np.arange(tokens + 1), whole(capacity, "The capacity"))
    return float(rows @ probabilities(tokens, experts, k))


def batch_of_an_expert(tokens: int, experts: int, k: int, ranks: int = 1) -> float:
    """Return the rows that an expert gets on average from P ranks of N tokens: P·k·N/E.

    Shazeer et al. 2017 (arXiv 1701.06538), section 3.1, call it the shrinking batch problem.
    """
    return whole(tokens, "tokens") * _share(experts, k) * whole(ranks, "The number of ranks")


def nodes_reached(experts: int, k: int, nodes: int) -> float:
    """Return on how many of `nodes` nodes the k experts of a token lie, on average.

    Every choice of k different experts is as likely. An exchange that sends a token once to each
    node, and there copies it for its experts, sends so many rows in place of k.
    """
    _share(experts, k)
    each = equal_share(experts, nodes, "There are {} experts", "{} nodes")
    return nodes * (1 - comb(experts - each, k) / comb(experts, k))


def _share(experts: int, k: int) -> float:
    if whole(k, "k") > whole(experts, "experts"):
        raise ValueError(f"Each token cannot choose {k} of {experts} experts.")
    return k / experts
