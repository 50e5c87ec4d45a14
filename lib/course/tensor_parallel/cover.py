"""The cover of chapter 4: a product split by columns above the same product split by rows."""

from lib.course.data_parallel.cover import stacked
from lib.draw import shards
from lib.draw.parts import layout, style
from lib.draw.parts.pixels import draw
from lib.draw.parts.png import png

IMAGE = "tensor-parallel.png"
WIDTH = 420  # px: letters stay legible where a phone shows the picture smaller
M, D, F = 2048, 25_600, 102_400  # tokens, width and hidden layer
LAST = {"column": 1, "row": 2}  # steps of each product


def drawn(kind: str):
    """Return the product on four ranks after its last step, without the caption."""
    sizes = {"column": (M, D, F), "row": (M, F, D)}[kind]
    name, data = shards(kind, *sizes, ranks=4, step=LAST[kind]).live
    return layout.still(name, data, WIDTH, words=False)


def write(path) -> None:
    """Write the picture."""
    still = stacked(
        [
            ("Split by columns: nothing is sent", drawn("column"), {}),
            ("Split by rows: an all_reduce adds the parts", drawn("row"), {}),
        ]
    )
    shades = {style.PAPER} | {s for mark in still.marks for s in (mark.fill, mark.edge) if s}
    path.write_bytes(png(draw(still, dark=False), [shade.light for shade in shades]))
