"""The cover of chapter 4: a product split by columns above the same product split by rows."""

from lib.course.data_parallel.cover import stacked
from lib.course.narrow import narrow, save
from lib.draw import shards
from lib.draw.parts import style
from lib.draw.parts.marks import Still

IMAGE = "tensor-parallel.png"
M, D, F = 2048, 25_600, 102_400  # tokens, width and hidden layer
LAST = {"column": 1, "row": 2}  # steps of each product
# The chapter's letters for the matrices of each product.
LETTERS = {
    "column": {
        "A [M, K]": "x [S, D]", "B [K, N/tp]": "W₁ [D, F/tp]", "C [M, N/tp]": "y [S, F/tp]",
    },
    "row": {"A [M, K/tp]": "y [S, F/tp]", "B [K/tp, N]": "W₂ [F/tp, D]", "C [M, N]": "z [S, D]"},
}  # fmt: skip


def matrices(kind: str) -> Still:
    """Return the three matrices of a product on four ranks, without what each rank holds."""
    sizes = {"column": (M, D, F), "row": (M, F, D)}[kind]
    still = narrow(shards(kind, *sizes, ranks=4, step=LAST[kind]))
    (end,) = [mark.y for mark in still.marks if mark.text.startswith("rank 0 holds")]
    end -= style.LINE / 2
    kept = [m for m in still.marks if m.kind in ("box", "text") and m.y + m.h < end]
    return Still(kept, still.width, round(end))


def write(path) -> None:
    """Write the picture."""
    still = stacked(
        [
            ("Split by columns", matrices("column"), LETTERS["column"]),
            ("Split by rows", matrices("row"), LETTERS["row"]),
        ]
    )
    save(still, path)
