"""The grids on which ranks share matrix products: their axes, and which axis splits which dim.

    2d    q×q    x [M/row, K/column]         · W [K/row, N/column] -> y [M/row, N/column]
    2.5d  d×q×q  x [M/(depth·row), K/column] · W [K/row, N/column] -> y [M/(depth·row), N/column]
    3d    q×q×q  x [M/(x·y), K/z]            · W [K/z, N/(y·x)]    -> y [M/(x·z), N/y]

M are the rows (the tokens of a batch), K the inputs and N the outputs of a linear layer. A dim that
two axes split is cut along the first of them, and each piece along the second. On a cube y and z
change places from one layer to the next, so a layer's outputs are split as the next one's inputs.

Sources: van de Geijn and Watts 1997, "SUMMA" (Concurrency: Practice and Experience 9(4)); Xu et al.
2021, "Optimus" (arXiv 2104.05343), 2D; Wang et al. 2021, "Tesseract" (arXiv 2105.14500), 2.5D; Bian
et al. 2021, "Maximizing Parallelism in Distributed Training for Huge Neural Networks" (arXiv
2105.14450), 3D.
"""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from lib.predict.arguments import equal_share, whole
from lib.predict.shape import GPTShape

KINDS = {"2d": ("row", "column"), "2.5d": ("depth", "row", "column"), "3d": ("x", "y", "z")}


class Side(NamedTuple):
    """Names the axes that split the rows of a matrix of activations, and the one of its columns."""

    rows: tuple[str, ...]
    columns: str


# Activations between the layers of a GPT, and inside attention and the MLP.
STREAM = {
    "2d": Side(("row",), "column"),
    "2.5d": Side(("depth", "row"), "column"),
    "3d": Side(("x", "y"), "z"),
}
INSIDE = STREAM | {"3d": Side(("x", "z"), "y")}
# The axes that split the rows of the embedding's table, whose columns are split as the stream's.
TABLE = {"2d": ("row",), "2.5d": ("row",), "3d": ("y", "x")}


@dataclass(frozen=True)
class RankGrid:
    """Describes a grid of a `kind`, "2d", "2.5d" or "3d", that is `side` ranks long and wide.

    `depth` is the number of layers of a 2.5D grid. Raises ValueError for another kind, or a depth
    where the kind has none.
    """

    kind: str
    side: int
    depth: int = 1

    def __post_init__(self):
        known(self.kind)
        whole(self.side, "The side of a grid")
        if whole(self.depth, "The depth of a grid") > 1 and self.kind != "2.5d":
            raise ValueError(f"Only a 2.5D grid has a depth. Leave out depth={self.depth}.")

    @property
    def axes(self) -> dict[str, int]:
        """Return the size of each axis; `mesh(**grid.axes)` arranges the ranks."""
        return {name: self.depth if name == "depth" else self.side for name in KINDS[self.kind]}

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return prod(self.axes.values())

    def size(self, names: str | tuple[str, ...]) -> int:
        """Return the number of ranks along some axes together."""
        return prod(self.axes[name] for name in ((names,) if isinstance(names, str) else names))

    @property
    def row_ranks(self) -> int:
        """Return into how many parts a batch is split: q, d·q or q²."""
        return self.size(STREAM[self.kind].rows)

    @property
    def weight_ranks(self) -> int:
        """Return into how many tiles a weight is cut: q², q² or q³."""
        return self.ranks // self.depth

    def padded(self, vocabulary: int) -> int:
        """Return the vocabulary, rounded up so that the table and the logits can be cut equally."""
        parts = self.size(TABLE[self.kind])
        return -(-vocabulary // parts) * parts

    def __str__(self) -> str:
        names = {"2d": "2D", "2.5d": "2.5D", "3d": "3D"}
        return f"{names[self.kind]}, {'×'.join(map(str, self.axes.values()))}"


def known(kind: str) -> str:
    """Return the kind of a grid; raise ValueError for one that is not known."""
    if kind not in KINDS:
        raise ValueError(f"No grid is called {kind!r}. Choose one of {', '.join(KINDS)}.")
    return kind


def check_model(shape: GPTShape, grid: RankGrid) -> None:
    """Raise ValueError, by name, where a GPT cannot be cut along the axes of a grid."""
    q, parts = grid.side, grid.weight_ranks // grid.side
    columns = f"the {{}} ranks along the axis {STREAM[grid.kind].columns}"
    for count, what in (
        (shape.heads, "The model has {} heads"),
        (shape.kv_heads, "The model has {} heads of keys and values"),
    ):
        equal_share(count, q, what, columns, advice="Choose a smaller grid, or more heads.")
    for count, what in (
        (shape.width, "The model has a width of {} entries"),
        (shape.hidden, "The hidden layers have {} entries"),
    ):
        equal_share(count, parts, what, "{} ranks", advice=f"Choose a multiple of {parts}.")
    if shape.dropout:
        raise ValueError(
            f"This model has a dropout of {shape.dropout}, which a grid does not carry out: each "
            "rank would have to draw other numbers for its tile. Build the model with dropout=0."
        )
