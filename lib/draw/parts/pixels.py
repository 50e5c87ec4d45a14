"""Marks to pixels, two for one: boxes on whole pixels, so that the still is sharp and small.

[Note: why not matplotlib]
It makes one object of each bar and needs 60 ms to 3 s for a timeline. A picture has boxes, lines,
areas and words only; Pillow draws them in a thirtieth of the time.
"""

from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from lib.draw.parts import style
from lib.draw.parts.marks import Still

CROWDED = 4_000  # marks: a picture of more is drawn with 1.5 pixels for one, to stay small
_FINE = 4  # what is oblique is drawn this much larger, and shrunk


def draw(still: Still, dark: bool) -> Image.Image:
    """Draw the still on light or dark paper, as an RGB image twice its size."""
    scale = 2 if len(still.marks) <= CROWDED else 1.5
    canvas = _Canvas(round(still.width * scale), round(still.height * scale), scale, dark)
    ways = {"text": canvas.text, "box": canvas.box, "area": canvas.area, "line": canvas.line}
    for mark in still.marks:
        ways[mark.kind](mark)
    return canvas.image


class _Canvas:
    """An image that marks are drawn on."""

    def __init__(self, width: int, height: int, scale: float, dark: bool):
        self.image = Image.new("RGB", (width, height), style.PAPER[dark])
        self.pen = ImageDraw.Draw(self.image)
        self.scale, self.dark = scale, dark
        self.thin = round(scale)  # pixels, an edge or an axis

    def text(self, mark) -> None:
        x, y = mark.x * self.scale, (mark.y + 0.36 * style.SIZE) * self.scale
        anchor = {"left": "ls", "middle": "ms", "right": "rs"}[mark.align]
        font = _font(round(style.SIZE * self.scale))
        self.pen.text((round(x), round(y)), mark.text, mark.fill[self.dark], font, anchor)

    def box(self, mark) -> None:
        x0, y0 = round(mark.x * self.scale), round(mark.y * self.scale)
        x1 = max(round((mark.x + mark.w) * self.scale), x0 + 1)
        y1 = max(round((mark.y + mark.h) * self.scale), y0 + 1)
        if mark.fill:
            self.pen.rectangle((x0, y0, x1 - 1, y1 - 1), mark.fill[self.dark])
        if mark.hatch:
            hatch = _hatch(self.image.size, round(5 * self.scale)).crop((x0, y0, x1, y1))
            self.image.paste(style.FAINT[self.dark], (x0, y0, x1, y1), hatch)
        if mark.edge:
            corners = ((x0, y0), (x1, y0), (x1, y1), (x0, y1), (x0, y0))
            for one, other in zip(corners, corners[1:]):
                self._straight(one, other, round(mark.thick * self.scale) or self.thin, mark)

    def line(self, mark) -> None:
        points = [(x * self.scale, y * self.scale) for x, y in mark.points]
        (x0, y0), (x1, y1) = points[0], points[-1]
        thick = round((mark.thick or 1.6) * self.scale)
        if len(points) == 2 and (abs(x0 - x1) < 0.1 or abs(y0 - y1) < 0.1):
            ends = [(round(x), round(y)) for x, y in points]
            thin = mark.edge == style.FAINT and not mark.thick
            return self._straight(*ends, self.thin if thin else thick, mark)
        left, top, right, low = _around(points, thick)
        mask = Image.new("L", ((right - left) * _FINE, (low - top) * _FINE))
        fine = [((x - left) * _FINE, (y - top) * _FINE) for x, y in points]
        brush, unit = ImageDraw.Draw(mask), self.scale * _FINE
        for part in _dashes(fine, 4 * unit, 3 * unit) if mark.dash else [fine]:
            brush.line(part, 255, thick * _FINE, "curve")
        self.image.paste(mark.edge[self.dark], (left, top, right, low), mask.reduce(_FINE))

    def area(self, mark) -> None:
        points, fill = [(x * self.scale, y * self.scale) for x, y in mark.points], mark.fill
        if mark.alpha == 1:
            self.pen.polygon([(round(x), round(y)) for x, y in points], fill[self.dark])
            return
        left, top, right, low = _around(points, 0)
        mask = Image.new("L", ((right - left) * 2, (low - top) * 2))
        fine = [((x - left) * 2, (y - top) * 2) for x, y in points]
        ImageDraw.Draw(mask).polygon(fine, round(255 * mark.alpha))
        self.image.paste(fill[self.dark], (left, top, right, low), mask.reduce(2))

    def _straight(self, one, other, thick: int, mark) -> None:
        """A level or upright line between two whole pixels."""
        (x0, y0), (x1, y1) = sorted((one, other))
        long, half = max(x1 - x0, y1 - y0), thick // 2
        step, on = round(7 * self.scale), round(4 * self.scale)
        if not mark.dash:
            step, on = long + 1, long + thick
        for at in range(0, max(long, 1), step):
            until = min(at + on, long + thick) - half - 1
            if x0 == x1:
                box = x0 - half, y0 + at - half, x0 - half + thick - 1, y0 + until
            else:
                box = x0 + at - half, y0 - half, x0 + until, y0 - half + thick - 1
            self.pen.rectangle(box, mark.edge[self.dark])


def _around(points, room: int) -> tuple[int, int, int, int]:
    left, top = (int(min(p[i] for p in points)) - room for i in (0, 1))
    right, low = (int(max(p[i] for p in points)) + room + 1 for i in (0, 1))
    return left, top, right, low


def _dashes(points, on: float, off: float) -> list:
    """A line of points cut into dashes."""
    parts, part, left, drawn = [], [points[0]], on, True
    for a, b in zip(points, points[1:]):
        long = ((b[0] - a[0]) ** 2 + (b[1] - a[1]) ** 2) ** 0.5
        gone = 0.0
        while long - gone > left:
            gone += left
            at = tuple(a[i] + (b[i] - a[i]) * gone / long for i in (0, 1))
            if drawn:
                parts.append([*part, at])
            drawn, part = not drawn, [at]
            left = on if drawn else off
        left -= long - gone
        part.append(b)
    return parts + ([part] if drawn and len(part) > 1 else [])


@cache
def _font(size: int):
    """The letters that come with matplotlib, found without importing it."""
    home = Path(find_spec("matplotlib").submodule_search_locations[0])
    path = home / "mpl-data" / "fonts" / "ttf" / f"{style.FONT.replace(' ', '')}.ttf"
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


@lru_cache(4)
def _hatch(size: tuple[int, int], period: int) -> Image.Image:
    """Thin lines at 45 degrees all over, so that neighbours' hatches meet."""
    long = period * _FINE
    tile = Image.new("L", (long, long))
    pen = ImageDraw.Draw(tile)
    for at in (-long, 0, long):
        pen.line(((at, long), (at + long, 0)), 255, int(0.16 * long))
    tile, whole = tile.reduce(_FINE), Image.new("L", size)
    for x in range(0, size[0], period):
        whole.paste(tile, (x, 0))
    row = whole.crop((0, 0, size[0], period))
    for y in range(period, size[1], period):
        whole.paste(row, (0, y))
    return whole
