"""A still as it is published: its heading above the marks, and its caption below them."""

import textwrap
from dataclasses import replace

from lib.draw.parts import style
from lib.draw.parts.marks import Mark, Still

EDGE, GAP = 8, 6  # px beside the texts, and between them and the marks
LEAST = 400  # px, the width of a page that has a text on it


def page(still: Still) -> Still:
    """Put a still's texts on its page, in lines that fit; the living picture has them as text."""
    if not (still.heading or still.caption):
        return still
    width = max(still.width, LEAST)
    above, top = _lines(still.heading, 0, width, style.INK)
    below, height = _lines(still.caption, top + still.height, width, style.FAINT)
    moved = [_lower(mark, top) for mark in still.marks] if top else still.marks
    return Still([*above, *moved, *below], width, height)


def _lines(text: str, y: int, width: int, fill: style.Shade) -> tuple[list[Mark], int]:
    """The marks of a text, and where the page goes on below it."""
    lines = textwrap.wrap(text, int((width - 2 * EDGE) / style.LETTER))
    middle = y + GAP + style.LINE / 2
    marks = [Mark("text", EDGE, middle + n * style.LINE, fill=fill, text=line)
             for n, line in enumerate(lines)]  # fmt: skip
    return marks, y + (len(lines) * style.LINE + 2 * GAP if lines else 0)


def _lower(mark: Mark, by: int) -> Mark:
    return replace(mark, y=mark.y + by, points=tuple((x, y + by) for x, y in mark.points))
