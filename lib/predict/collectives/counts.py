"""Six all-reduces, counted in elements by formulas, without simulating any message.

Each count takes (ranks, elements) and returns the rounds, the elements that each rank sends, those
that each rank receives, and the sum of the longest messages of all rounds. The counts hold for the
algorithms as lib/ranks/algorithms.py writes them with send and recv, where an empty piece is not
sent.
"""

import numpy as np

from lib.predict.arguments import equal_share


def pieces(numel: int, ranks: int) -> list[int]:
    """Divide `numel` elements as np.array_split does: the first numel % ranks get one more."""
    return [numel // ranks + (i < numel % ranks) for i in range(ranks)]


def _central(n: int, numel: int):
    load = [(n - 1) * numel] + [numel] * (n - 1)
    return 2 * (n - 1), load, load, 2 * (n - 1) * numel


def _everyone(n: int, numel: int):
    load = [(n - 1) * numel] * n
    return n - 1, load, load, (n - 1) * numel


def _ring(n: int, numel: int):
    piece = pieces(numel, n)
    # Each half sends all but one piece: rank r never sends the piece that comes to it last.
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

    def kept(rank: int, distance: int) -> int:
        """Count the elements that a rank still holds after the round of this distance."""
        low = rank - rank % distance
        return start[low + distance] - start[low]

    load = [
        sum(kept(r, d) + kept(r ^ d, d) for d in distances) + numel * (r < n - p) for r in range(p)
    ] + [numel] * (n - p)
    critical = 2 * sum(kept(0, d) for d in distances) + 2 * numel * (n > p)
    return 2 * len(distances) + 2 * (n > p), load, load, critical


def node_size(ranks: int, node: float | None = None) -> int:
    """Return `node`, or by default the largest divisor of `ranks` that is at most its square root.

    Raises ValueError where nodes of this size do not hold all ranks.
    """
    if node is None:
        return max(d for d in range(1, ranks + 1) if ranks % d == 0 and d * d <= ranks)
    advice = f"Choose a divisor of {ranks}."
    return ranks // equal_share(ranks, node, "There are {} ranks", "nodes of {}", advice=advice)


def _two_level(n: int, numel: int, node: float | None = None):
    node = node_size(n, node)
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
