"""What a still is made of: marks on a page."""

from dataclasses import dataclass

from lib.draw.parts.style import Shade


@dataclass(frozen=True)
class Mark:
    """One thing in a picture: a "box", a "line" or an "area" of points, or a "text"; pixels.

    x, y is the upper left corner of a box, the anchor of a text (its middle line).
    """

    kind: str
    x: float = 0.0
    y: float = 0.0
    w: float = 0.0
    h: float = 0.0
    fill: Shade | None = None
    edge: Shade | None = None
    hatch: bool = False
    dash: bool = False
    text: str = ""
    align: str = "left"  # or "middle", "right"
    points: tuple[tuple[float, float], ...] = ()
    thick: float = 0.0  # px of a line or an edge; 0: the usual ones
    alpha: float = 0.3  # of an area: how much of its colour covers what lies under it
    about: str = ""  # what is told of it when somebody points at it


@dataclass(frozen=True)
class Still:
    """Marks, from the lowest to the highest, on a page of so many pixels."""

    marks: list[Mark]
    width: int
    height: int
    heading: str = ""  # a sentence above the marks
    caption: str = ""  # what the numbers are, below them
