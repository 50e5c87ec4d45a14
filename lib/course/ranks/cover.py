"""The cover of chapter 0: what each rank holds before and after an all-reduce."""

from lib.draw import collective
from lib.draw.parts import layout, style
from lib.draw.parts.page import page
from lib.draw.parts.pixels import draw
from lib.draw.parts.png import png

IMAGE = "all-reduce.png"
WIDTH = 420  # px: letters stay legible where a phone shows the picture smaller


def write(path) -> None:
    """Write the picture."""
    picture = collective("all_reduce")
    kind, data = picture.live
    still = page(layout.still(kind, {"summary": picture.summary} | data, WIDTH, words=False))
    shades = {style.PAPER} | {s for mark in still.marks for s in (mark.fill, mark.edge) if s}
    path.write_bytes(png(draw(still, dark=False), [shade.light for shade in shades]))
