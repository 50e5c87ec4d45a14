"""Who sent how many bytes to whom."""

from lib.draw import labels, style
from lib.draw.picture import Mark, Picture
from lib.draw.words import has_rows
from lib.ledger import Ledger
from lib.predict.traffic import collective as on_a_ring


def traffic(ledger: Ledger) -> Picture:
    """Draw how many bytes went from each rank (row) to each rank (column).

    Messages are counted as they were sent. A collective inside the backend shows no messages: it
    is drawn as a ring moves it, and the summary says so.
    """
    has_rows(ledger, "traffic matrix")
    ranks, moved, assumed = list(ledger.ranks), {}, set()
    for row in ledger.where(lane="comm"):
        if row.op == "send":
            moved[row.rank, row.peer] = moved.get((row.rank, row.peer), 0) + row.bytes
        elif row.op not in ("recv", "barrier") and len(row.members) > 1:
            assumed.add(row.op)
            wire = on_a_ring(row.op, len(row.members), row.bytes)
            after = (row.members.index(row.rank) + 1) % len(row.members)
            pair = row.rank, row.members[after]
            moved[pair] = moved.get(pair, 0) + round(wire.bytes)
    ranks = sorted(set(ranks).union(*moved))
    most, cell = max(moved.values(), default=0), min(84, (style.WIDTH - 110) / len(ranks))
    left, top, tall = 96, 2 * style.LINE + 8, 30
    marks = [
        Mark("text", left, style.LINE / 2 + 4, fill=style.INK, text="to rank"),
        Mark("text", 8, top + tall / 2, fill=style.INK, text="from"),
    ]
    for i, rank in enumerate(ranks):
        x, y = left + i * cell, top + i * tall
        marks.append(Mark("text", x + cell / 2, top - 11, fill=style.INK, text=str(rank),
                          align="middle"))  # fmt: skip
        marks.append(Mark("text", left - 8, y + tall / 2, fill=style.INK, text=f"rank {rank}",
                          align="right"))  # fmt: skip
        for j, other in enumerate(ranks):
            amount = moved.get((rank, other), 0)
            shade = labels.tint(style.COMM["message"], amount / most if most else 0.0)
            box = Mark("box", left + j * cell, y, cell, tall, fill=shade, edge=style.GRID,
                       about=f"rank {rank} to rank {other}: {amount:,} bytes")  # fmt: skip
            marks.append(box)
            text = style.amount(amount, "B") if amount else ""
            if text and cell > len(text) * style.LETTER:
                marks.append(Mark("text", box.x + cell / 2, y + tall / 2, fill=style.on(shade),
                                  text=text, align="middle"))  # fmt: skip
    height, width = top + len(ranks) * tall + 8, left + len(ranks) * cell + 12
    return Picture(marks, height, _matrix(ranks, moved, assumed), width)


def _matrix(ranks, moved, assumed) -> str:
    cells = [["from \\ to", *map(str, ranks), "sent"]]
    for rank in ranks:
        amounts = [moved.get((rank, other), 0) for other in ranks]
        cells.append([f"rank {rank}", *(f"{a:,}" if a else "·" for a in amounts),
                      f"{sum(amounts):,}"])  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["  ".join(c.rjust(w) for c, w in zip(line, widths)) for line in cells]
    if assumed:
        lines.append(f"{', '.join(sorted(assumed))}: as a ring would move it")
    return "\n".join(["traffic: bytes by sender and receiver", *lines])
