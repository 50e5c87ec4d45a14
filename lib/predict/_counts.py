"""Six all-reduces counted in elements, by formula: no message is simulated.

Each count takes (ranks, elements) and gives rounds, elements sent by each rank, elements received
by each rank, and the longest messages of all rounds added up. They hold for the algorithms as
`lib/ranks/algorithms.py` writes them with send and recv. A piece with no element is not sent.
"""

import numpy as np


def pieces(numel: int, ranks: int) -> list[int]:
    """Share `numel` elements as np.array_split does: the first numel % ranks get one more."""
    return [numel // ranks + (i < numel % ranks) for i in range(ranks)]


def _central(n: int, numel: int):
    load = [(n - 1) * numel] + [numel] * (n - 1)
    return 2 * (n - 1), load, load, 2 * (n - 1) * numel


def _everyone(n: int, numel: int):
    load = [(n - 1) * numel] * n
    return n - 1, load, load, (n - 1) * numel


def _ring(n: int, numel: int):
    piece = pieces(numel, n)
    # All but one piece in each half: rank r never sends the piece it would get back at the end.
    sent = [2 * numel - piece[(r + 1) % n] - piece[(r + 2) % n] for r in range(n)]
    received = [2 * numel - piece[r] - piece[(r + 1) % n] for r in range(n)]
    return 2 * (n - 1), sent, received, 2 * (n - 1) * piece[0]


def _tree(n: int, numel: int):
    depth = (n - 1).bit_length()
    load = [0] * n
    for rank in range(1, n):
        for end in (rank, rank & (rank - 1)):  # the parent is the rank without its lowest bit
            load[end] += numel
    return 2 * depth, load, load, 2 * depth * numel


def _halving_doubling(n: int, numel: int):
    p = 1 << (n.bit_length() - 1)
    start = np.cumsum([0, *pieces(numel, p)]).tolist()
    distances = [p >> k for k in range(1, p.bit_length())]  # p/2, p/4, ... 1

    def kept(rank: int, distance: int) -> int:  # what a rank still holds after that round
        low = rank - rank % distance
        return start[low + distance] - start[low]

    load = [
        sum(kept(r, d) + kept(r ^ d, d) for d in distances) + numel * (r < n - p) for r in range(p)
    ] + [numel] * (n - p)
    critical = 2 * sum(kept(0, d) for d in distances) + 2 * numel * (n > p)
    return 2 * len(distances) + 2 * (n > p), load, load, critical


def _two_level(n: int, numel: int, node: int | None = None):
    node = (
        node if node is not None else max(d for d in range(1, n + 1) if n % d == 0 and d * d <= n)
    )
    if node < 1 or n % node:
        raise ValueError(f"{n} ranks do not fill nodes of {node}: choose a divisor of {n}.")
    rounds, ring_sent, ring_received, critical = _ring(n // node, numel)
    sent, received = [numel] * n, [numel] * n
    for leader in range(n // node):
        sent[leader * node] = (node - 1) * numel + ring_sent[leader]
        received[leader * node] = (node - 1) * numel + ring_received[leader]
    return rounds + 2 * (node - 1), sent, received, critical + 2 * (node - 1) * numel


COUNTS = {
    "central": _central,
    "everyone": _everyone,
    "ring": _ring,
    "tree": _tree,
    "halving_doubling": _halving_doubling,
    "two_level": _two_level,
}
