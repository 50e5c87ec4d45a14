"""What 1D, 2D, 2.5D and 3D cost beside each other: the published table, recounted.

Colossal-AI's documentation compares them for one linear layer y = x·W, forward and backward, in
parts of what one rank alone would have (x, W and y are 1 each):

              compute   parameters  activations  bandwidth          latency
    1D (P)    1/P       1/P         1            2(P-1)/P           2(P-1)
    2D (q²)   1/q²      1/q²        1/q²         6(q-1)/q           6(q-1)
    2.5D(dq²) 1/(dq²)   1/q²        1/(dq²)      3(q-1)(d+1)/(dq)   6(q-1)
    3D (q³)   1/q³      1/q³        1/q³         6(q-1)/q³          6(q-1)

`recounted` derives the bandwidth from the collectives of `linear_moves`, and finds the same under
three conditions: a broadcast of a tile among q ranks counts q-1 tiles (a ring that passes it on in
pieces sends one from each rank); in 2.5D the all_reduce of dW over depth is left out; in 3D, x and
W stay gathered until backward, so activations take 1/q² and not 1/q³. The latency counts q-1 rounds
for each of six products and sums; in 2D and 2.5D each has q steps, so it is 6q(q-1) rounds.

Source: colossalai.org/docs/features, 1D, 2D, 2.5D and 3D tensor parallel, "Efficiency". These
pages say that the last three are no longer supported.
"""

from typing import NamedTuple

from lib.predict.arguments import whole
from lib.predict.tensor.grid_traffic import linear_moves
from lib.predict.tensor.grids import RankGrid


class GridCosts(NamedTuple):
    """Holds the costs of a linear layer, relative to one rank that does all; latency in rounds."""

    compute: float
    parameters: float
    activations: float
    bandwidth: float
    latency: int


def published_1d(ranks: int) -> GridCosts:
    """Return the published costs of 1D tensor parallelism on so many ranks."""
    p = whole(ranks, "The number of ranks")
    return GridCosts(1 / p, 1 / p, 1.0, 2 * (p - 1) / p, 2 * (p - 1))


def published(grid: RankGrid) -> GridCosts:
    """Return the published costs of a grid."""
    q, d, p = grid.side, grid.depth, grid.ranks
    bandwidth = {
        "2d": 6 * (q - 1) / q,
        "2.5d": 3 * (q - 1) * (d + 1) / (d * q),
        "3d": 6 * (q - 1) / q**3,
    }[grid.kind]
    return GridCosts(1 / p, 1 / grid.weight_ranks, 1 / p, bandwidth, 6 * (q - 1))


def recounted(
    grid: RankGrid, *, pieces: bool = False, depth: bool = False, keep_gathered: bool = True
) -> GridCosts:
    """Return the costs of a grid, counted from its collectives.

    As they stand, the arguments are what the published table means. With `pieces` a broadcast or a
    reduce is passed on in pieces, as the ledger counts it; with `depth` the all_reduce over depth
    counts; without `keep_gathered` a cube gathers x and W again in backward.
    """
    q, size = grid.side, grid.ranks * grid.side  # so that every tile has whole numbers
    moves = linear_moves(
        grid, size, size, size, bias=False, itemsize=1, keep_gathered=keep_gathered
    ).all
    sent, rounds = 0.0, 0
    for move in moves:
        if move.axis == "depth" and not depth:
            continue
        in_full = move.op in ("broadcast", "reduce") and not pieces
        sent += (q - 1) * move.bytes if in_full else move.sent
        rounds += move.rounds
    gathered = grid.kind == "3d" and keep_gathered
    kept = 1 / grid.side**2 if gathered else 1 / grid.ranks
    return GridCosts(1 / grid.ranks, 1 / grid.weight_ranks, kept, sent / size**2, rounds)
