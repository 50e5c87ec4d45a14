"""Pictures that need no more than hover: the marks of the still are the living picture too."""

from dataclasses import asdict

from lib.draw import style
from lib.draw.picture import Mark, Picture


def plain(marks: list[Mark], height: float, summary: str, title: str,
          width: float = style.WIDTH, left: float = 0.0) -> Picture:  # fmt: skip
    """A picture of `marks` that tells what each is when it is pointed at.

    On a narrow page it is squeezed right of `left` (px); a text in the middle of a box goes where
    the box is too narrow for it.
    """
    empty, told, box = Mark(""), [], None
    for mark in marks:
        kept = {k: v for k, v in asdict(mark).items() if k in _ALWAYS or v != getattr(empty, k)}
        if mark.kind == "box":
            box = mark
        elif mark.align == "middle" and box and 0 < mark.x - box.x < box.w and _level(mark, box):
            kept["room"] = box.w
        told.append(kept)
    data = {"title": title, "marks": told, "height": round(height), "width": round(width)}
    data["left"] = left
    return Picture(marks, height, summary, width, live=("marks", data))


_ALWAYS = ("kind", "x", "y", "w", "h")


def _level(text: Mark, box: Mark) -> bool:
    return box.y <= text.y <= box.y + box.h
