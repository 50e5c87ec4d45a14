"""Which split of a transformer layer is the fastest, for a number of ranks, a width and a link.

The time of a layer is that of its four matrix products on tiles, forward and backward, and of the
collectives between them; all ranks are joined by equal links. Attention's own products and the
optimizer are left out, because every split divides them by the number of ranks. So are norms, which
1D computes whole on every rank, because they are short beside the products.

    1D    two layers that split outputs and then inputs, an all_reduce after the second forward, and
          backward one for the first, beside the product for its weight's gradient
    2D    SUMMA with overlap (summa_step.py); by default the collectives of its two axes share the
          one link of a rank, and with `own_links` each axis has a link to itself
    2.5D  SUMMA on each square with its share of the rows, then an all_reduce of dW over depth
    3D    gathers, product, reduce_scatter, as Linear3D does them: x and W are gathered again in
          backward, and dW's reduce_scatter runs beside the product for dx

1D needs a number of heads that the ranks divide, and a grid needs samples that its rows divide.
These splits let all ranks share every product. `replicated_seconds` predicts what most runs do
instead: groups of a few ranks under 1D, each with its own samples (data parallelism).
"""

from math import isqrt
from typing import NamedTuple

from lib.predict.arguments import whole
from lib.predict.tensor.grid_traffic import linear_moves
from lib.predict.tensor.grids import RankGrid
from lib.predict.tensor.summa_step import Summa

HEAD = 128  # the size of a head, as in GPT-3's largest model (Brown et al. 2020, table 2.1)


class Winner(NamedTuple):
    """Holds the fastest split, its seconds for a layer, and those of every split that is possible.

    `seconds_of` maps "1D", "2D, 4×4" and so on to seconds.
    """

    name: str
    seconds: float
    seconds_of: dict[str, float]


def where_each_wins(
    ranks: list[int], widths: list[int], speeds, *, batch: int = 64, sequence: int = 2048,
    head_size: int = HEAD, itemsize: int = 2, own_links: bool = False,
) -> dict[tuple[int, int], Winner]:  # fmt: skip
    """Return the fastest split for each pair (ranks, width) on the device and link of `speeds`.

    `batch` samples of `sequence` tokens are the batch of all ranks together. Pairs for which no
    split is possible are left out.
    """
    winners = {}
    for p in ranks:
        for width in widths:
            sizes = batch, sequence, head_size, itemsize
            seconds = layer_seconds(p, width, speeds, *sizes, own_links)
            if seconds:
                best = min(seconds, key=seconds.get)
                winners[p, width] = Winner(best, seconds[best], seconds)
    return winners


def layer_seconds(
    ranks: int, width: int, speeds, batch: int = 64, sequence: int = 2048,
    head_size: int = HEAD, itemsize: int = 2, own_links: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Return the seconds of a layer's products and collectives for each split that is possible."""
    tokens, found = whole(batch, "batch") * whole(sequence, "sequence"), {}
    heads = whole(width, "width") // whole(head_size, "head_size")
    layers = _layers(width)
    if heads % ranks == 0:
        found["1D"] = sum(_in_one_dimension(ranks, tokens, layers, speeds, itemsize))
    for grid in grids_of(ranks):
        parts = grid.weight_ranks // grid.side
        if heads % grid.side or width % parts or batch % grid.row_ranks:
            continue
        if grid.kind == "3d":
            times = [_on_cube(grid, tokens, *io, speeds, itemsize, own_links) for io in layers]
        else:
            times = [_on_squares(grid, tokens, *io, speeds, itemsize, own_links) for io in layers]
        found[str(grid)] = sum(times)
    return found


class Replicated(NamedTuple):
    """Holds the seconds of a layer of 1D × data parallelism: forward, backward, all_reduce of dW.

    `exposed` waits for the whole all_reduce after backward; `overlapped` hides as much of it under
    backward as is possible at best.
    """

    forward: float
    backward: float
    sums: float

    @property
    def exposed(self) -> float:
        """Return the seconds of a layer whose all_reduce begins when backward has ended."""
        return self.forward + self.backward + self.sums

    @property
    def overlapped(self) -> float:
        """Return the seconds of a layer whose all_reduce begins with backward."""
        return self.forward + max(self.backward, self.sums)


def replicated_seconds(
    ranks: int, width: int, speeds, between=None, batch: int = 64, sequence: int = 2048,
    head_size: int = HEAD, itemsize: int = 2,
) -> dict[tuple[int, int], Replicated]:  # fmt: skip
    """Return the times of a layer for each pair (ranks of a 1D group, groups) of so many ranks.

    The samples of the batch are divided among the groups, and a rank's gradients are summed over
    them, across the link of `between` (by default that of `speeds`). A group of one rank is data
    parallelism alone. Memory is not considered.
    """
    p, heads, found = whole(ranks, "The number of ranks"), width // head_size, {}
    for size in (n for n in range(1, p + 1) if p % n == 0 and heads % n == 0):
        groups = p // size
        if batch % groups:
            continue
        tokens, layers = batch // groups * sequence, _layers(width)
        gradients = sum(i * o for i, o in layers) // size * itemsize
        sums = (between or speeds).moving("all_reduce", groups, gradients)
        passes = _in_one_dimension(size, tokens, layers, speeds, itemsize)
        found[size, groups] = Replicated(*passes, sums)
    return found


def grids_of(ranks: int) -> list[RankGrid]:
    """Return the grids of exactly so many ranks: squares, stacks no deeper than wide, and cubes."""
    p, grids = whole(ranks, "The number of ranks"), []
    for q in range(2, isqrt(p) + 1):
        depth = p // (q * q)
        if depth * q * q == p and depth <= q:
            grids.append(RankGrid("2.5d", q, depth) if depth > 1 else RankGrid("2d", q))
        if q**3 == p:
            grids.append(RankGrid("3d", q))
    return grids


def _products(m: int, k: int, n: int, speeds, itemsize: int) -> float:
    """Return the seconds of x [m, k] · W [k, n], xᵀ·dy and dy·Wᵀ, each as one product."""
    numbers = m * k + k * n + m * n
    return 3 * speeds.compute(2 * m * k * n, numbers * itemsize)


def _layers(width: int) -> list[tuple[int, int]]:
    """Return the inputs and outputs of a layer's four products: QKV, projection, up and down."""
    return [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]


def _in_one_dimension(ranks, tokens, layers, speeds, itemsize) -> tuple[float, float]:
    """Return the seconds of forward and of backward under 1D.

    Each pair of layers has an all_reduce either way; that of dx runs while dW is computed.
    """
    forward = backward = 0.0
    for number, (i, o) in enumerate(layers):
        splits_outputs = number % 2 == 0
        sizes = (i, o // ranks) if splits_outputs else (i // ranks, o)
        product = _products(tokens, *sizes, speeds, itemsize) / 3
        forward, backward = forward + product, backward + 2 * product
        whole_rows = tokens * (i if splits_outputs else o) * itemsize
        sums = speeds.moving("all_reduce", ranks, whole_rows)
        if splits_outputs:
            backward += max(0.0, sums - product)
        else:
            forward += sums
    return forward, backward


def square_over_hosts(
    side: int, width: int, inside, between, batch: int = 64, sequence: int = 2048,
    itemsize: int = 2,
) -> float:  # fmt: skip
    """Return the seconds of a layer on a square of which each row of ranks is a host.

    Tiles of activations, which are the larger ones, travel along a row over the link of `inside`,
    and tiles of weights and of their gradients along a column over that of `between`.
    """
    grid, tokens = RankGrid("2d", whole(side, "The side of a grid")), batch * sequence
    more = {"itemsize": itemsize, "own_links": True, "between": between}
    return sum(_on_squares(grid, tokens, *io, inside, **more) for io in _layers(width))


def _on_squares(
    grid: RankGrid, tokens, inputs, outputs, speeds, itemsize, own_links, between=None
) -> float:
    rows = tokens // grid.depth
    more = {"itemsize": itemsize, "own_links": own_links, "between": between}
    play = Summa(rows, inputs, outputs, grid.side, speeds, depth=grid.depth, **more)
    play.forward(bias=False)
    return play.backward(bias=False)


def _on_cube(grid: RankGrid, tokens, inputs, outputs, speeds, itemsize, own_links) -> float:
    """Return the seconds of a product on a cube, whose gathers are launched together.

    On one link they travel in turn, and dx's reduce_scatter after that of dW.
    """
    q, gathered = grid.side, max if own_links else sum
    moves = linear_moves(grid, tokens, inputs, outputs, bias=False, itemsize=itemsize)
    times = [speeds.moving(move.op, move.ranks, move.bytes) for move in moves.all]
    x, w, y, dy, x_again, w_again, dw, dx = times
    product = _products(tokens // q, inputs // q, outputs // q, speeds, itemsize) / 3
    forward = gathered([x, w]) + product + y
    sums = max(product + dx, dw) if own_links else max(product, dw) + dx
    return forward + gathered([dy, x_again, w_again]) + product + sums
