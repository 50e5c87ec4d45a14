"""Axes and legends: from numbers to pixels."""

from math import ceil, floor, log10

from lib.draw import style
from lib.draw.picture import Mark
from lib.draw.style import Shade


def ticks(span: float, most: int = 6) -> list[float]:
    """Round numbers from 0 to at most `span`, 2 to `most` of them."""
    step = 10 ** floor(log10(span / most))
    step *= next(m for m in (1, 2, 5, 10, 20) if m * step * most >= span)
    return [step * i for i in range(int(span / step * (1 + 1e-9)) + 1)]


def axis(left: float, right: float, y: float, span: float, unit: str = "s") -> list[Mark]:
    """A time axis from 0 to `span`, with its unit at each tick; "" for plain numbers."""
    marks = [Mark("line", edge=style.FAINT, points=((left, y), (right, y)))]
    for tick in ticks(span, max(2, min(6, int((right - left) / 90)))):
        x = left + tick / span * (right - left)
        marks.append(Mark("line", edge=style.FAINT, points=((x, y), (x, y + 4))))
        text = style.amount(tick, unit) if tick else "0"
        side = "right" if x > right - 24 else "middle"
        x = right if side == "right" else x
        marks.append(Mark("text", x, y + 14, fill=style.INK, text=text, align=side))
    return marks


def decades(low: float, high: float) -> list[float]:
    """The powers of ten that enclose low to high."""
    first, last = floor(log10(low) + 1e-9), ceil(log10(high) - 1e-9)
    return [10.0**e for e in range(first, max(last, first + 1) + 1)]


def legend(keys: list[tuple[str, Shade | None, bool]], left: float, y: float):
    """Swatches with names, as many to a line as fit; gives (marks, y below them).

    A key is (name, colour, hatched); without a colour and unhatched it is a dashed outline.
    """
    marks, x = [], left
    for name, shade, hatch in keys:
        width = 22 + len(name) * style.LETTER + 12
        if x > left and x + width > style.WIDTH:
            x, y = left, y + style.LINE + 4
        edge = None if shade else style.FAINT if hatch else style.INK
        marks.append(Mark("box", x, y, 16, 12, fill=shade, edge=edge, hatch=hatch,
                          dash=not (shade or hatch), about=name))  # fmt: skip
        marks.append(Mark("text", x + 22, y + 6, fill=style.INK, text=name))
        x += width
    return marks, y + (style.LINE + 8 if keys else 0)
