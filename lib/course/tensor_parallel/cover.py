"""The cover of chapter 4: a product split by columns above the same product split by rows."""

from lib.course.data_parallel.cover import stacked
from lib.course.narrow import narrow, save
from lib.draw import shards
from lib.draw.parts import style
from lib.draw.parts.marks import Still

IMAGE = "tensor-parallel.png"
M, D, F = 2048, 25_600, 102_400  # tokens, width and hidden layer
LAST = {"column": 1, "row": 2}  # steps of each product
NAMES = {"column": "x [S, D] · W₁ [D, F] -> y [S, F]", "row": "y [S, F] · W₂ [F, D] -> z [S, D]"}


def matrices(kind: str) -> Still:
    """Return the three matrices of a product on four ranks, without what each rank holds."""
    sizes = {"column": (M, D, F), "row": (M, F, D)}[kind]
    still = narrow(shards(kind, *sizes, ranks=4, step=LAST[kind], names=NAMES[kind]))
    (end,) = [mark.y for mark in still.marks if mark.text.startswith("rank 0 holds")]
    end -= style.LINE / 2
    kept = [m for m in still.marks if m.kind in ("box", "text") and m.y + m.h < end]
    return Still(kept, still.width, round(end))


def write(path) -> None:
    """Write the picture."""
    still = stacked(
        [
            ("Split by columns", matrices("column"), {}),
            ("Split by rows", matrices("row"), {}),
        ]
    )
    save(still, path)
