"""A picture of Ulysses' all_to_all: tokens by heads, split by tokens before and by heads after.

A block is a quarter of the tokens of a quarter of the heads, in the colour of the rank that holds
it. An arrow on the left gives the rank that gets it, and one on the right the rank that sent it;
the blocks on the diagonal stay.
"""

from lib.course.narrow import WIDTH, save
from lib.draw.parts import style
from lib.draw.parts.marks import Mark, Still

IMAGE = "ulysses.png"
RANKS = 4
SIDE, HEIGHT, GAP = 43, 30, 2  # px of a block, and between two
LEFT, TOP = 8, 2.5 * style.LINE  # px of the first matrix's corner
BETWEEN = WIDTH - 2 * LEFT - 2 * RANKS * SIDE  # px between the matrices, with the arrow


def holder(side: str, tokens: int, heads: int) -> int:
    """Return the rank that holds a block "before" the all_to_all or "after" it."""
    return tokens if side == "before" else heads


def block(side: str, tokens: int, heads: int, x: float) -> list[Mark]:
    """Draw the block of these tokens and heads in the matrix whose left edge is at x."""
    here = holder(side, tokens, heads)
    other = holder("after" if side == "before" else "before", tokens, heads)
    words = "stays" if here == other else f"{'→' if side == 'before' else '←'} {other}"
    fill = style.piece(here)
    x, y = x + heads * SIDE, TOP + tokens * HEIGHT
    middle = x + (SIDE - GAP) / 2, y + (HEIGHT - GAP) / 2
    return [
        Mark("box", x, y, SIDE - GAP, HEIGHT - GAP, fill=fill),
        Mark("text", *middle, text=words, align="middle", fill=style.on(fill)),
    ]


def matrix(side: str, x: float) -> list[Mark]:
    """Draw all blocks of one side, with what its rows or columns are above them."""
    title = {"before": "before: one row a rank", "after": "after: one column a rank"}[side]
    marks = [
        Mark("text", x, style.LINE / 2, text=title, fill=style.INK),
        Mark("text", x, 1.5 * style.LINE, text="heads →", fill=style.FAINT),
    ]
    for tokens in range(RANKS):
        for heads in range(RANKS):
            marks += block(side, tokens, heads, x)
    return marks


def exchange() -> Still:
    """Draw both matrices, with an arrow from the first to the second and a legend of the ranks."""
    second = LEFT + RANKS * SIDE + BETWEEN
    bottom = TOP + RANKS * HEIGHT
    marks = matrix("before", LEFT) + matrix("after", second)
    middle = second - BETWEEN / 2, TOP + RANKS * HEIGHT / 2
    for words, y in (("all_", -1.5), ("to_all", -0.5), ("→", 0.7)):
        place = middle[0], middle[1] + y * style.LINE
        marks.append(Mark("text", *place, text=words, align="middle", fill=style.INK))
    marks.append(
        Mark("text", LEFT, bottom + style.LINE, text="tokens ↓     colours:", fill=style.FAINT)
    )
    for rank in range(RANKS):
        x = 170 + rank * 62
        marks.append(Mark("box", x, bottom + style.LINE - 6, 12, 12, fill=style.piece(rank)))
        words = f"rank {rank}"
        marks.append(Mark("text", x + 16, bottom + style.LINE, text=words, fill=style.INK))
    return Still(marks, WIDTH, round(bottom + 2 * style.LINE))


def write(path) -> None:
    """Write the picture."""
    save(exchange(), path)
