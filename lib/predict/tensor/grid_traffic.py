"""Communication on a grid, from shapes alone: the collectives of a linear layer and of a GPT.

For x [M, K], W [K, N] and y [M, N], with x, w, y the bytes of a rank's tile and q ranks a side:

    2d     forward   q broadcasts of x along column, q of w along row
           backward  dW: q broadcasts of x, q reduces of w;  dx: q broadcasts of w, q reduces of x
    2.5d   the same on each square, and an all_reduce of dW (w) over depth
    3d     forward   all_gathers of x and W, reduce_scatter of y, each over q ranks
           backward  all_gather of dy, reduce_scatters of dx and dW; x and W are gathered again
                     unless they are kept

The bytes of a GridMove are those of the full buffer, as in the ledger. `sent` counts them as a ring
does. On a ring of n ranks that passes a broadcast on in small pieces, each rank but the last sends
the buffer once, whatever n is. Publications count (n - 1) times the buffer for the same broadcast.
"""

from collections.abc import Iterable
from typing import NamedTuple

from lib.predict.arguments import whole
from lib.predict.collectives.formulas import collective, mean_sent
from lib.predict.shape import GPTShape, length_of
from lib.predict.tensor.grids import INSIDE, KINDS, STREAM, TABLE, RankGrid, Side, check_model


class GridMove(NamedTuple):
    """Describes one collective of a rank: the axes of its group, its name, ranks, buffer bytes."""

    axis: str
    op: str
    ranks: int
    bytes: int

    @property
    def sent(self) -> float:
        """Return the most bytes that a rank sends when a ring does it."""
        return collective(self.op, self.ranks, self.bytes).bytes

    @property
    def mean_sent(self) -> float:
        """Return the bytes that a rank sends on average when a ring does it."""
        return mean_sent(self.op, self.ranks, self.bytes)

    @property
    def rounds(self) -> int:
        """Return the number of messages that follow one another when a ring does it."""
        return collective(self.op, self.ranks, self.bytes).rounds


class Moves(NamedTuple):
    """Holds the collectives of a part of a model, forward and backward, as they are launched."""

    forward: list[GridMove]
    backward: list[GridMove]

    @property
    def all(self) -> list[GridMove]:
        """Return the collectives of forward and backward."""
        return [*self.forward, *self.backward]


def sent_bytes(moves: Iterable[GridMove]) -> float:
    """Return the most bytes that one rank sends in all of these collectives."""
    return sum(move.sent for move in moves)


def latency_steps(moves: Iterable[GridMove]) -> int:
    """Return the messages that follow one another if no two collectives run at the same time."""
    return sum(move.rounds for move in moves)


def linear_moves(
    grid: RankGrid, rows: int, inputs: int, outputs: int, *, bias: bool = True, itemsize: int = 4,
    back: bool = False, keep_gathered: bool = False,
) -> Moves:  # fmt: skip
    """Return the collectives of x [rows, inputs] · W [inputs, outputs] + bias on each rank.

    `back` leads from the inside of a part back to the stream, which on a cube swaps y and z.
    """
    sides = [STREAM[grid.kind], INSIDE[grid.kind]]
    make, sizes = _Maker(grid, itemsize), (rows, inputs, outputs)
    source, target = reversed(sides) if back else sides
    if grid.kind == "3d":
        found = _on_cube(make, sizes, source, target, keep_gathered)
    else:
        found = _on_square(make, sizes)
    if bias:
        sums = make(target.rows, "all_reduce", outputs // grid.size(target.columns))
        found.backward.insert(int(grid.kind == "3d"), sums)  # a cube gathers dy first
    return found


def _on_square(make: "_Maker", sizes) -> Moves:
    grid, (rows, inputs, outputs) = make.grid, sizes
    q = grid.side
    x, w = rows // grid.row_ranks * inputs // q, inputs // q * outputs // q
    send_x, send_w = make("column", "broadcast", x), make("row", "broadcast", w)
    weight = [send_x, make("row", "reduce", w)] * q
    if grid.kind == "2.5d":
        weight.append(make("depth", "all_reduce", w))
    return Moves(
        [send_x, send_w] * q,
        weight + [send_w, make("column", "reduce", x)] * q,
    )


def _on_cube(make: "_Maker", sizes, source: Side, target: Side, kept: bool) -> Moves:
    grid, (rows, inputs, outputs) = make.grid, sizes
    q = grid.side
    x, w, y = (a // q * b // q for a, b in ((rows, inputs), (inputs, outputs), (rows, outputs)))
    gather = [make(target.columns, "all_gather", x), make("x", "all_gather", w)]
    return Moves(
        [*gather, make(source.columns, "reduce_scatter", y)],
        [
            make(source.columns, "all_gather", y),
            *([] if kept else gather),
            make("x", "reduce_scatter", w),
            make(target.columns, "reduce_scatter", x),
        ],
    )


def gpt_moves(
    shape: GPTShape, grid: RankGrid, batch: int, sequence: int | None = None, *, itemsize: int = 4,
    keep_gathered: bool = False, diagonal: bool = False,
) -> Moves:  # fmt: skip
    """Return the collectives of a step of a GPT on a grid, with its loss, for `batch` samples.

    Those of one axis stand in the order in which they are launched. On squares, tied embeddings are
    sent to the rank at the mirrored place, and not by ranks on the `diagonal`. Raises ValueError
    where the model cannot be cut along the grid.
    """
    check_model(shape, grid)
    make, length = _Maker(grid, itemsize), length_of(shape, sequence)
    rows, d, f = whole(batch, "batch") * length, shape.width, shape.hidden
    qkv = shape.qkv_width
    linear = lambda i, o, back=False, bias=True: linear_moves(
        grid, rows, i, o, bias=bias, itemsize=itemsize, back=back, keep_gathered=keep_gathered
    )
    norm = _norm(make, rows, d)
    block = [norm, linear(d, qkv), linear(d, d, True), norm, linear(d, f), linear(f, d, True)]
    parts = [_embedding(make, shape, rows), *block * shape.layers, norm]
    if shape.tied and grid.kind != "3d" and not diagonal:
        parts.append(_swap(make, shape))
    parts += [linear(d, grid.padded(shape.vocabulary), bias=False), _loss(make, rows)]
    return Moves(
        [move for part in parts for move in part.forward],
        [move for part in reversed(parts) for move in part.backward],
    )


class _Maker:
    """Makes the GridMove of a collective on a grid, from the elements in its buffer."""

    def __init__(self, grid: RankGrid, itemsize: int):
        self.grid, self.itemsize = grid, whole(itemsize, "itemsize")

    def __call__(self, names, op: str, numel: int, *, wide: bool = False) -> GridMove:
        """With `wide` a number has at least four bytes."""
        names = (names,) if isinstance(names, str) else names
        ordered = [name for name in KINDS[self.grid.kind] if name in names]
        itemsize = max(self.itemsize, 4) if wide else self.itemsize
        return GridMove(",".join(ordered), op, self.grid.size(names), numel * itemsize)


def _norm(make: _Maker, rows: int, width: int) -> Moves:
    grid, side = make.grid, STREAM[make.grid.kind]
    own, ranks = rows // grid.row_ranks, grid.size(side.columns)
    return Moves(
        [make(side.columns, "all_gather", 2 * own * ranks, wide=True)],
        [
            make(side.columns, "all_reduce", 2 * own, wide=True),
            make(side.rows, "all_reduce", 2 * width // ranks, wide=True),
        ],
    )


def _embedding(make: _Maker, shape: GPTShape, rows: int) -> Moves:
    grid, side = make.grid, STREAM[make.grid.kind]
    width = shape.width // grid.size(side.columns)
    held, table = rows // grid.depth * width, TABLE[grid.kind]
    backward = [make(table, "all_gather", held)]
    if shape.positions == "learned":
        backward.insert(0, make(side.rows, "all_reduce", shape.sequence * width))
    if grid.kind == "2.5d":
        numel = grid.padded(shape.vocabulary) // grid.size(table) * width
        backward.append(make("depth", "all_reduce", numel))
    return Moves([make(table, "reduce_scatter", held)], backward)


def _swap(make: _Maker, shape: GPTShape) -> Moves:
    grid = make.grid
    numel = grid.padded(shape.vocabulary) // grid.side * shape.width // grid.side
    pair = [make(("row", "column"), op, numel)._replace(ranks=2) for op in ("send", "recv")]
    return Moves(pair, pair)


def _loss(make: _Maker, rows: int) -> Moves:
    side = INSIDE[make.grid.kind]
    own = rows // make.grid.row_ranks
    return Moves(
        [
            make(side.columns, "all_reduce", own, wide=True),
            make(side.columns, "all_reduce", 2 * own, wide=True),
            make(side.rows, "all_reduce", 1, wide=True),
        ],
        [],
    )
