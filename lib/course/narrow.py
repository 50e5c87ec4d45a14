"""Covers of chapters: pictures laid out for a narrow page, whose letters a phone shows large."""

from pathlib import Path

from lib.draw.parts import layout, style
from lib.draw.parts.marks import Still
from lib.draw.parts.page import page
from lib.draw.parts.picture import Picture
from lib.draw.parts.pixels import draw
from lib.draw.parts.png import png

WIDTH = 420  # px: on 360 px, letters of 13 px are still 10 px high


def narrow(picture: Picture) -> Still:
    """Lay out a picture 420 px wide."""
    kind, data = picture.live
    return layout.still(kind, {"summary": picture.summary} | data, WIDTH, words=False)


def save(still: Still, path: Path) -> None:
    """Write a still as a PNG on light paper, with two pixels of the file for one."""
    laid = page(still)
    shades = {style.PAPER} | {s for mark in laid.marks for s in (mark.fill, mark.edge) if s}
    Path(path).write_bytes(png(draw(laid, dark=False), [shade.light for shade in shades]))
