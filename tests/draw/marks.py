"""What is on a still: its bars, its words, and the colours that it mixes."""

from lib.draw.parts import style


def boxes(picture, about: str) -> list:
    """The boxes whose first words, when they are pointed at, are these."""
    return [mark for mark in picture.marks if mark.kind == "box" and mark.about.startswith(about)]


def box(picture, about: str):
    """The one box whose first words are these."""
    (found,) = boxes(picture, about)
    return found


def bars(picture, rank: int, op: str) -> list:
    """The bars of an operation on a rank of a timeline, where they are filled: not its waiting."""
    return [mark for mark in boxes(picture, f"rank {rank}: {op}\n") if mark.fill]


def bar(picture, rank: int, op: str):
    """The one bar of an operation on a rank of a timeline."""
    (found,) = bars(picture, rank, op)
    return found


def swatch(picture, name: str):
    """The box before a name in the legend."""
    marks = picture.marks
    return next(a for a, b in zip(marks, marks[1:]) if (a.kind, b.text) == ("box", name))


def texts(picture) -> list[str]:
    """All that is written, in the order in which it is drawn."""
    return [mark.text for mark in picture.marks if mark.kind == "text"]


def tint(shade: style.Shade, share: float) -> style.Shade:
    """A shade mixed with paper: share 0 is paper, 1 the full colour."""
    mixed = []
    for colour, paper in zip(shade, style.PAPER):
        pairs = [(int(colour[i : i + 2], 16), int(paper[i : i + 2], 16)) for i in (1, 3, 5)]
        mixed.append("#" + "".join(f"{round(p + (c - p) * share):02x}" for c, p in pairs))
    return style.Shade(*mixed)
