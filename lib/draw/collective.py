"""What a collective does: before and after, or step by step."""

from lib.draw import labels, style
from lib.draw.picture import Mark, Picture
from lib.draw.steps import steps
from lib.predict.rounds import Plan


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
    grids = labels.grids(ops, ranks)
    widest = [max(1, *map(len, grid)) for grid in grids]
    arrow, tall, top = 116.0, 26, 8
    room = style.WIDTH - 62 - arrow * len(ops) - 10
    cell = min(40.0, room / sum(widest))
    marks = [
        Mark("text", 54, top + r * tall + tall / 2, fill=style.INK, text=f"rank {r}", align="right")
        for r in range(ranks)
    ]
    x = 62.0
    for step, grid in enumerate(grids):
        if step:
            y, shade = top + ranks * tall / 2, style.colour(ops[step - 1])
            marks.append(Mark("line", edge=shade, points=((x + 10, y), (x + arrow - 10, y))))
            tip = ((x + arrow - 17, y - 5), (x + arrow - 10, y), (x + arrow - 17, y + 5))
            marks.append(Mark("line", edge=shade, points=tip))
            marks.append(Mark("text", x + arrow / 2, y - 13, fill=style.INK, text=ops[step - 1],
                              align="middle"))  # fmt: skip
            x += arrow
        for r, pieces in enumerate(grid):
            for i in range(widest[step]):
                label = pieces[i] if i < len(pieces) else ""
                fill = labels.shade(label) if label else None
                edge = None if label else style.GRID
                box = Mark("box", x + i * cell, top + r * tall + 2, cell - 2, tall - 4, fill=fill,
                           edge=edge, about=f"rank {r} {label}".strip())  # fmt: skip
                marks.append(box)
                if label:
                    marks.append(Mark("text", box.x + box.w / 2, box.y + box.h / 2,
                                      fill=style.on(fill), text=label, align="middle"))  # fmt: skip
        x += widest[step] * cell
    return Picture(marks, top + ranks * tall + 8, labels.story(ops, grids), x + 8)
