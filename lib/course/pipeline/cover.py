"""The cover of chapter 6: GPipe's schedule with four stages and four microbatches."""

from lib.draw import schedule
from lib.draw.parts import layout, style
from lib.draw.parts.page import page
from lib.draw.parts.pixels import draw
from lib.draw.parts.png import png

IMAGE = "bubble.png"
WIDTH = 420  # px: letters stay legible where a phone shows the picture smaller


def write(path) -> None:
    """Write the picture."""
    picture = schedule("gpipe", stages=4, microbatches=4)
    kind, data = picture.live
    still = page(layout.still(kind, {"summary": picture.summary} | data, WIDTH, words=False))
    shades = {style.PAPER} | {s for mark in still.marks for s in (mark.fill, mark.edge) if s}
    path.write_bytes(png(draw(still, dark=False), [shade.light for shade in shades]))
