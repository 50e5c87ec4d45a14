"""Stills made from rows: when each rank did what, who sent to whom, what a collective does."""

from lib.draw import labels, style
from lib.draw.picture import Mark, Picture
from lib.draw.scales import axis, legend
from lib.ledger import Ledger
from lib.predict.traffic import collective as on_a_ring

_LEFT, _RIGHT, _TOP = 62, 14, 8  # px around a timeline
_COMPUTE, _COMM, _GAP = 18, 16, 9  # px of a rank: what it computes, what it communicates, paper


def timeline(ledger: Ledger, over: Ledger | None = None) -> Picture:
    """Draw when each rank computed and communicated: rank 0 on top, time to the right.

    Waiting for the last rank of a group is hatched, moving is filled, idle is paper; the rows of
    `over` (a prediction, another run) lie over it as dashed outlines, from the same zero.
    """
    _has_rows(ledger, "timeline")
    ranks = ledger.ranks
    # 1. the scale: seconds to pixels, both ledgers from their first start
    span = max(ledger.makespan, over.makespan if over else 0.0) or 1e-9
    pixels = (style.WIDTH - _LEFT - _RIGHT) / span
    rows_of = {rank: _TOP + i * (_COMPUTE + _COMM + _GAP) for i, rank in enumerate(ranks)}
    # 2. what happened
    marks = [
        Mark("text", _LEFT - 8, y + _COMPUTE / 2, fill=style.INK, text=f"rank {r}", align="right")
        for r, y in rows_of.items()
    ]
    marks += _bars(ledger, rows_of, pixels)
    marks += _bars(over, rows_of, pixels, outline=True) if over else []
    # 3. the axis and what the colours mean
    bottom = _TOP + len(ranks) * (_COMPUTE + _COMM + _GAP)
    marks += axis(_LEFT, style.WIDTH - _RIGHT, bottom, span)
    shown = ledger.where(lane=["compute", "comm"])
    names = dict.fromkeys(style.family(op) for op in style.COMPUTE | style.COMM
                          if op in {style.family(o) for o in shown.column("op")})  # fmt: skip
    keys = [(name, style.colour(name), False) for name in names]
    if (ledger.column("waiting") * pixels > 0.5).any():
        keys.append(("waiting for the last rank", None, True))
    if over:
        keys.append((over.source, None, False))
    more, height = legend(keys, _LEFT, bottom + 2 * style.LINE + 10)
    return Picture(marks + more, height, _story(ledger, over))


def _bars(ledger: Ledger, rows_of: dict, pixels: float, outline: bool = False) -> list[Mark]:
    zero, marks = float(ledger.column("start").min()), []
    busy: dict[tuple, float] = {}  # until when the lane of a rank's group was moving bytes
    for row in ledger.where(lane=["compute", "comm"]):
        if row.rank not in rows_of:
            continue
        x, w = _LEFT + (row.start - zero) * pixels, max(row.seconds * pixels, 0.6)
        y, h = rows_of[row.rank], _COMPUTE
        if row.lane == "comm":
            y, h = y + _COMPUTE + 1, _COMM
        about = f"rank {row.rank} {row.op}"
        if outline:  # a sliver would hide what it is laid over
            if w < 2:
                continue
            marks.append(Mark("box", x, y, w, h, edge=style.INK, dash=True, about=about))
            continue
        behind = 0.0
        if row.lane == "comm":  # launched, and still behind another operation of its group
            lane = (row.rank, row.group, row.members, row.op in ("send", "recv"))
            behind = min(max(busy.get(lane, 0.0) - row.start, 0.0), row.seconds)
            busy[lane] = row.end
            x, w = x + behind * pixels, max(w - behind * pixels, 0.6)
        wait = (row.waiting - behind) * pixels
        if wait > 0.5:
            marks.append(Mark("box", x, y, wait, h, edge=style.FAINT, hatch=True,
                              about=f"{about} waiting"))  # fmt: skip
            x, w = x + wait, max(w - wait, 0.6)
        shade = style.colour(row.op)
        edge = style.PAPER if w > 3 else None
        done = "moving" if row.lane == "comm" else "computing"
        marks.append(Mark("box", x, y, w, h, fill=shade, edge=edge, about=f"{about} {done}"))
        label = row.op if row.microbatch < 0 else f"{row.op}{row.microbatch}"
        if row.op != "compute" and w > len(label) * style.LETTER + 4:
            marks.append(Mark("text", x + w / 2, y + h / 2, fill=style.on(shade), text=label,
                              align="middle"))  # fmt: skip
    return marks


def _story(ledger: Ledger, over: Ledger | None) -> str:
    """The same in words, without times: they differ from run to run."""
    of_rank: dict[int, list[str]] = {rank: [] for rank in ledger.ranks}
    spans = ledger.where(lane="compute")
    for rank, op in dict.fromkeys(zip(spans.column("rank").tolist(), spans.column("op"))):
        if op in style.COMPUTE and op != "compute":
            of_rank[rank].append(op)
    of_rank = {rank: sorted(words) for rank, words in of_rank.items()}
    for total in ledger.where(lane="comm").totals(("rank", "op")):
        of_rank[total.of["rank"]].append(f"{total.of['op']} × {total.count}: {total.bytes:,} bytes")
    stories: dict[str, list[int]] = {}
    for rank, words in of_rank.items():
        stories.setdefault(", ".join(words) or "computing", []).append(rank)
    lines = [f"timeline, {ledger.source}: a row a rank, time to the right"]
    lines += [f"  {_ranks(ranks)}: {words}" for words, ranks in stories.items()]
    return "\n".join(lines + ([f"  dashed: {over.source}"] if over else []))


def traffic(ledger: Ledger) -> Picture:
    """Draw how many bytes went from each rank (row) to each rank (column).

    Messages are counted as they were sent. A collective inside the backend shows no messages: it
    is drawn as a ring moves it, and the summary says so.
    """
    _has_rows(ledger, "traffic matrix")
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


def _ranks(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _has_rows(ledger, what: str) -> None:
    if not isinstance(ledger, Ledger):
        kind = type(ledger).__name__
        raise TypeError(f"A {what} is drawn from a Ledger, not from {kind}: use world.record(...).")
    if not len(ledger.where(lane=["compute", "comm"])):
        raise ValueError(f"There is nothing to draw: this ledger has no rows for a {what}.")
