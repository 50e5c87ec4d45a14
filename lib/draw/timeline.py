"""When each rank did what."""

from lib.draw import style
from lib.draw.picture import Mark, Picture
from lib.draw.scales import axis, legend
from lib.draw.words import has_rows, in_words
from lib.ledger import Ledger

_LEFT, _RIGHT, _TOP = 62, 14, 8  # px around a timeline
_COMPUTE, _COMM, _GAP = 18, 16, 9  # px of a rank: what it computes, what it communicates, paper


def timeline(ledger: Ledger, over: Ledger | None = None) -> Picture:
    """Draw when each rank computed and communicated: rank 0 on top, time to the right.

    Waiting for the last rank of a group is hatched, moving is filled, idle is paper; the rows of
    `over` (a prediction, another run) lie over it as dashed outlines, from the same zero.
    """
    has_rows(ledger, "timeline")
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
    lines += [f"  {in_words(ranks)}: {words}" for words, ranks in stories.items()]
    return "\n".join(lines + ([f"  dashed: {over.source}"] if over else []))
