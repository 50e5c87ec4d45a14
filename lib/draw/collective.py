"""What a collective does, piece by piece."""

from lib.draw import labels, style
from lib.draw.picture import Mark, Picture


def collective(*ops: str, ranks: int = 4) -> Picture:
    """Draw what each rank holds before and after a collective, or after each of several in a row.

    A0 is piece 0 of rank A = 0; Σ0 is the sum of everybody's piece 0; an empty row holds nothing.
    """
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
