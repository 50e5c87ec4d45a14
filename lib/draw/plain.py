"""Pictures that need no more than hover: the marks of the still are the living picture too."""

from dataclasses import asdict

from lib.draw import style
from lib.draw.picture import Mark, Picture


def plain(marks: list[Mark], height: float, summary: str, title: str,
          width: float = style.WIDTH) -> Picture:  # fmt: skip
    """A picture of `marks` that tells what each is when it is pointed at."""
    empty = Mark("")
    told = [
        {k: v for k, v in asdict(mark).items() if k in _ALWAYS or v != getattr(empty, k)}
        for mark in marks
    ]
    data = {"title": title, "marks": told, "height": round(height), "width": round(width)}
    return Picture(marks, height, summary, width, live=("marks", data))


_ALWAYS = ("kind", "x", "y", "w", "h")
