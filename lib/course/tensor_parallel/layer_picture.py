"""One layer of a GPT under tensor parallelism, drawn: what is whole, split or a part of a sum.

The forward pass goes from top to bottom. Each row is the result of one operation, drawn once for
each rank: plain where every rank has all of it, in the rank's colour where it has its own part, and
hatched where it has only its terms of a sum. A collective is a bar across all ranks.
"""

from lib.course.narrow import WIDTH, save
from lib.draw.parts import style
from lib.draw.parts.marks import Mark, Still

IMAGE = "split-layer.png"
RANKS = 4
LEFT, CELL, GAP = 8, 46, 4  # px: the edge, a rank's cell, and what lies between two cells
STEP, HEIGHT = 25, 18  # px from row to row, and of a cell
WORDS = LEFT + RANKS * (CELL + GAP) + 8  # px, where the words begin

# What each operation leaves on a rank, and what a row says of it.
ROWS = (
    ("whole", "x, the input"),
    ("whole", "norm"),
    ("backward", "Copy: all_reduce of dx"),
    ("split", "q, k, v: column layers"),
    ("split", "attention of own heads"),
    ("partial", "o: row layer"),
    ("forward", "Sum: all_reduce"),
    ("whole", "bias and residual added"),
    ("whole", "norm"),
    ("backward", "Copy: all_reduce of dx"),
    ("split", "up: column layer"),
    ("split", "GELU"),
    ("partial", "down: row layer"),
    ("forward", "Sum: all_reduce"),
    ("whole", "bias and residual added"),
)


def collectives(direction: str) -> int:
    """Return how many all_reduces the picture has in "forward" or in "backward"."""
    return sum(kind == direction for kind, _ in ROWS)


def cell(kind: str, rank: int, y: float) -> Mark:
    """Return what one rank has of a row."""
    fill = style.GRID if kind == "whole" else style.piece(rank)
    x = LEFT + rank * (CELL + GAP)
    return Mark("box", x, y, CELL, HEIGHT, fill=fill, hatch=kind == "partial")


def bar(direction: str, y: float) -> list[Mark]:
    """Return a collective across all ranks: full in forward, empty where only backward has it."""
    empty = direction == "backward"
    shape = LEFT, y + 2, RANKS * (CELL + GAP) - GAP, HEIGHT - 4
    fill, ink = (style.PAPER, style.INK)[:: 1 if empty else -1]
    middle = LEFT + shape[2] / 2, y + HEIGHT / 2
    box = Mark("box", *shape, fill=fill, edge=style.INK)
    return [box, Mark("text", *middle, text=direction, align="middle", fill=ink)]


def layer() -> Still:
    """Draw the rows below one another, with the ranks' names above."""
    marks = [
        Mark("text", LEFT + r * (CELL + GAP) + CELL / 2, STEP / 2, text=f"rank {r}",
             align="middle", fill=style.INK)
        for r in range(RANKS)
    ]  # fmt: skip
    for n, (kind, words) in enumerate(ROWS, start=1):
        y = n * STEP
        whole = kind in ("forward", "backward")
        marks += bar(kind, y) if whole else [cell(kind, r, y) for r in range(RANKS)]
        marks.append(Mark("text", WORDS, y + HEIGHT / 2, text=words, fill=style.INK))
    return Still(marks, WIDTH, (len(ROWS) + 1) * STEP)


def write(path) -> None:
    """Write the picture."""
    save(layer(), path)
