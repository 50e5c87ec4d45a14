"""What a collective does: before and after, or step by step."""

from lib.draw import labels, style
from lib.draw.picture import Mark, Picture
from lib.draw.steps import steps
from lib.predict.rounds import Plan

_ARROW, _TALL = 116.0, 26  # px: from one grid to the next, a rank
_LEAST = 18  # px, the narrowest piece before grids stand one below the other


def collective(*ops: str | Plan, ranks: int = 4, numel: int = 250_000, itemsize: int = 4,
               view: str | None = None) -> Picture:  # fmt: skip
    """Draw what each rank holds before and after a collective, or after each of several in a row.

    A0 is piece 0 of rank A = 0; Σ0 is the sum of everybody's piece 0; an empty row holds nothing.
    A Plan (lib.predict.rounds) is drawn step by step, on its own number of ranks, where each has
    `numel` elements of `itemsize` bytes; `view` lays the ranks out as a "ring" or in "rows".
    """
    if ops and isinstance(ops[0], Plan):
        if len(ops) > 1:
            raise ValueError(f"{len(ops)} plans do not fit one picture: give them one at a time.")
        if view not in (None, "ring", "rows"):
            raise ValueError(f'Ranks stand in a "ring" or in "rows", not in {view!r}.')
        return steps(ops[0], numel, itemsize, view)
    return _before_and_after(ops, ranks)


def _before_and_after(ops: tuple[str, ...], ranks: int) -> Picture:
    """What each rank holds before and after each: side by side, or one below the other."""
    grids = labels.grids(ops, ranks)
    widest = [max(1, *map(len, grid)) for grid in grids]
    cell = min(40.0, (style.WIDTH - 72 - _ARROW * len(ops)) / sum(widest))
    beside = cell >= _LEAST
    if not beside:
        cell = min(40.0, (style.WIDTH - 72) / max(widest))
    marks, x, y = [], 62.0, 8.0
    for step, grid in enumerate(grids):
        if step and beside:
            marks += _arrow(ops[step - 1], x + 10, y + ranks * _TALL / 2, x + _ARROW - 10)
            x += _ARROW
        elif step:
            marks += _arrow(ops[step - 1], x + cell / 2, y + 4, None)
            y += 34
        if not step or not beside:
            marks += [
                Mark("text", 54, y + (r + 0.5) * _TALL, fill=style.INK, text=f"rank {r}",
                     align="right")
                for r in range(ranks)
            ]  # fmt: skip
        marks += _grid(grid, widest[step], x, y, cell)
        x, y = (x + widest[step] * cell, y) if beside else (x, y + ranks * _TALL)
    right = x + 8 if beside else 70 + max(widest) * cell
    height = (y + ranks * _TALL if beside else y) + 8
    live = ("collective", {"ops": ops, "ranks": ranks})
    return Picture(marks, height, labels.story(ops, grids), right, live=live)


def _grid(grid: labels.Grid, across: int, x: float, y: float, cell: float) -> list[Mark]:
    """A row a rank, a box a piece."""
    marks = []
    for r, pieces in enumerate(grid):
        for i in range(across):
            label = pieces[i] if i < len(pieces) else ""
            fill = labels.shade(label) if label else None
            box = Mark("box", x + i * cell, y + r * _TALL + 2, cell - 2, _TALL - 4, fill=fill,
                       edge=None if label else style.GRID,
                       about=f"rank {r} {label}".strip())  # fmt: skip
            marks.append(box)
            if label and cell - 2 >= len(label) * style.LETTER:
                marks.append(Mark("text", box.x + box.w / 2, box.y + box.h / 2,
                                  fill=style.on(fill), text=label, align="middle"))  # fmt: skip
    return marks


def _arrow(op: str, x: float, y: float, right: float | None) -> list[Mark]:
    """An arrow with its operation above it; downwards, with its operation beside it."""
    shade = style.colour(op)
    if right is None:
        down = y + 24
        tip = ((x - 5, down - 7), (x, down), (x + 5, down - 7))
        return [Mark("line", edge=shade, points=((x, y), (x, down))),
                Mark("line", edge=shade, points=tip),
                Mark("text", x + 14, y + 12, fill=style.INK, text=op)]  # fmt: skip
    tip = ((right - 7, y - 5), (right, y), (right - 7, y + 5))
    return [Mark("line", edge=shade, points=((x, y), (right, y))),
            Mark("line", edge=shade, points=tip),
            Mark("text", (x + right) / 2, y - 13, fill=style.INK, text=op,
                 align="middle")]  # fmt: skip
