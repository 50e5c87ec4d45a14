"""Memory of a rank on a grid, from shapes alone: weights, activations, and buffers of a layer.

    matrices [I, O]      I·O / (ranks that share a weight): q² on squares, q³ on a cube
    vectors, positions   D / q: equal on all ranks that have the same columns
    activations          of B / rows samples and 1 / columns of the features: 1 / (all ranks)
    buffers              tiles that arrive, and sums that are under way, in a linear layer

A 2.5D grid has `depth` squares with all weights each, so weights take depth times as much as its
ranks would allow, and activations do not.
"""

from dataclasses import replace

from lib.predict import memory
from lib.predict.arguments import equal_share, whole
from lib.predict.memory import STATES, Held
from lib.predict.shape import GPTShape, length_of
from lib.predict.tensor.grids import RankGrid, check_model


def weights(shape: GPTShape, grid: RankGrid) -> int:
    """Return the number of a GPT's weights that each rank of a grid keeps, with their padding."""
    check_model(shape, grid)
    padded = replace(shape, vocabulary=grid.padded(shape.vocabulary))
    total = 0
    for parameter in padded.parameters:
        is_matrix = len(parameter.shape) > 1 and not parameter.name.endswith("positions.weight")
        total += parameter.numel // (grid.weight_ranks if is_matrix else grid.side)
    return total


def activations(
    shape: GPTShape, grid: RankGrid, batch: int, sequence: int | None = None, itemsize: int = 4
) -> int:
    """Return the bytes that autograd keeps on a rank after forward of `batch` samples of all ranks.

    A rank computes with B/rows samples, its heads, and its parts of the width and of the hidden
    layer, and keeps what a narrower GPT would keep; and for the embedding the place of each token
    of its square, and whether the token is in its tile. On squares, the tied head keeps the tile
    that came over the diagonal. On a cube this is without `keep_gathered`. The loss is apart.
    """
    check_model(shape, grid)
    share, length = _share(batch, grid), length_of(shape, sequence)
    q = grid.side
    narrow = replace(
        shape, width=shape.width // q, heads=shape.heads // q, hidden=shape.hidden // q,
        kv_heads=shape.kv_heads // q,
    )  # fmt: skip
    kept = memory.activations(narrow, share, sequence, itemsize)
    looked_up = 0 if shape.positions == "rotary" else 8 * length  # a slice needs no index
    own = whole(batch, "batch") // grid.depth * length
    table = grid.padded(shape.vocabulary) // q * shape.width // q
    swapped = itemsize * table if shape.tied and grid.kind != "3d" else 0
    return kept - looked_up + 9 * own + swapped


def loss(
    shape: GPTShape, grid: RankGrid, batch: int, sequence: int | None = None, itemsize: int = 4
) -> int:
    """Return the bytes that the loss keeps on a rank: probabilities, and places of the targets."""
    tokens = _share(batch, grid) * length_of(shape, sequence)
    wide = max(itemsize, 4)
    return tokens * (grid.padded(shape.vocabulary) // grid.side * wide + 8 + 1 + wide)


def held(
    shape: GPTShape, grid: RankGrid, batch: int, optimizer: str = "adamw",
    sequence: int | None = None, itemsize: int = 4,
) -> Held:  # fmt: skip
    """Return what each rank holds at the end of forward, in bytes by kind, with the loss."""
    numel = weights(shape, grid)
    counters = 4 * len(shape.parameters) if optimizer.startswith("adam") else 0
    kept = activations(shape, grid, batch, sequence, itemsize)
    kept += loss(shape, grid, batch, sequence, itemsize)
    states = STATES[optimizer] * numel * itemsize + counters
    return Held(numel * itemsize, numel * itemsize, states, kept)


def buffers(
    grid: RankGrid, rows: int, inputs: int, outputs: int, *, overlap: bool = True, itemsize: int = 4
) -> int:
    """Return the most bytes of tiles that have arrived on a rank, in forward of a linear layer.

    On squares these are the tiles of x and W of a step, and with `overlap` of the next one; a rank
    uses its own tile where it is. On a cube they are x and W, each gathered from q ranks.
    """
    q = grid.side
    x, w = rows // grid.row_ranks * inputs // q, inputs * outputs // grid.weight_ranks
    if grid.kind == "3d":
        return itemsize * q * (x + w)
    return itemsize * min(1 + overlap, q - 1) * (x + w)


def _share(batch: int, grid: RankGrid) -> int:
    advice = f"Choose a batch that {grid.row_ranks} divides."
    return equal_share(batch, grid.row_ranks, "The batch has {} samples", advice=advice)
