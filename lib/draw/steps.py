"""A plan step by step: which piece is where, who sends what to whom, and how many bytes so far.

[Note: stripes]
A piece is a box with a place for each rank, filled in that rank's colour once its part has been
added: a box full of stripes is the whole sum. What was handed on pales. Below, the same in small
for every round: the further a box is from paper, the more parts are in it.
"""

from math import hypot

from lib.draw import labels, style
from lib.draw.picture import Mark, Picture
from lib.draw.pieces import Acted, act
from lib.draw.places import Places, arrow, corner, numbered, places_of, shape, spot
from lib.predict.rounds import Plan

_STRIP = 56  # px, the height of one round in small


def steps(plan: Plan, numel: int, itemsize: int, view: str | None) -> Picture:
    """Draw `plan` before its first round, and every round in small."""
    acted = act(plan, numel, itemsize)
    ring = view == "ring" or (view is None and (plan.name == "ring" or plan.personal))
    places = places_of(plan, ring)
    size = numel * itemsize
    title = _title(plan, style.amount(size, "B"))
    marks = _stage(plan, acted, places, title)
    more, height = _strip(plan, acted, places.bottom + style.LINE)
    fresh = [sorted(map(list, arrived)) for arrived in acted.fresh]
    moves = [[[m.source, m.destination, m.piece, m.count, int(m.add)] for m in r]
             for r in plan.rounds]  # fmt: skip
    data = {
        "title": title, "ranks": plan.ranks, "pieces": plan.pieces, "whole": plan.whole,
        "personal": plan.personal, "moves": moves, "held": acted.held, "sent": acted.sent,
        "fresh": fresh, "bytes": acted.bytes, "phases": _phases(plan),
        "view": "ring" if ring else "rows",
    }  # fmt: skip
    return Picture(marks + more, height, _story(plan, acted, size), live=("steps", data))


def _title(plan: Plan, size: str) -> str:
    kind = "" if plan.personal else " all-reduce"
    return f"{plan.name.replace('_', '-')}{kind} of {size} on {plan.ranks} ranks"


def _says(plan: Plan, number: int) -> str:
    """What happens in a round to what arrives."""
    if not plan.rounds[number]:
        what = "nobody sends"
    elif plan.personal or plan.whole:
        what = "what arrives is kept"
    else:
        adds, phases = plan.rounds[number][0].add, _phases(plan)
        what = "what arrives is added" if adds else "the sum takes the place"
        what += f" ({phases[not adds]})" if phases else ""
    return f"round {number + 1} of {len(plan.rounds)}: {what}"


def _phases(plan: Plan) -> tuple[str, ...]:
    """The two collectives that the halves of a plan are, where they are."""
    if plan.name in ("tree", "central"):
        return "reduce", "broadcast"
    cut = plan.name in ("ring", "halving_doubling") and plan.pieces == plan.ranks
    return ("reduce-scatter", "all-gather") if cut else ()


# --- what is drawn


def _stage(plan: Plan, acted: Acted, places: Places, title: str) -> list[Mark]:
    """The ranks with what they hold before the first round, and what leaves in it."""
    marks = [
        Mark("text", 8, 12, fill=style.INK, text=title),
        Mark("text", 8, 12 + style.LINE, fill=style.INK, text=_says(plan, 0)),
    ]
    marks += _numbers(plan, places)
    for rank, pieces in enumerate(acted.held[0]):
        marks += _name(places, rank, acted.sent[0][rank])
        for piece, mask in enumerate(pieces):
            if spot(plan, rank, piece):
                marks += _piece(plan, places, rank, piece, mask)
    for number, move in enumerate(plan.rounds[0]):
        marks += _arrow(plan, places, plan.rounds[0], number)
        for piece in range(move.piece, move.piece + move.count):
            x, y = corner(plan, places, move.source, piece)
            mask = acted.held[0][move.source][piece]
            marks.append(Mark("box", x - 2, y - 2, places.w + 4, places.h + 4, fill=style.INK))
            marks += _piece(plan, places, move.source, piece, mask)
    return marks


def _numbers(plan: Plan, places: Places) -> list[Mark]:
    """The numbers of the pieces, over their columns."""
    if places.ring or not numbered(plan):
        return []
    (x, y), middle = places.corners[0], places.w / 2
    marks = [Mark("text", x - 12, y - 10, fill=style.FAINT, text="piece", align="right")]
    return marks + [
        Mark("text", x + p * places.pitch + middle, y - 10, fill=style.FAINT, text=str(p),
             align="middle")
        for p in range(plan.pieces)
    ]  # fmt: skip


def _name(places: Places, rank: int, sent: int) -> list[Mark]:
    """A rank's name beside its colour, and the bytes that it has sent."""
    x, y = places.corners[rank]
    told, shade = f"{style.amount(sent, 'B')} sent", style.piece(rank)
    if places.ring:
        middle, low = x + places.wide / 2, y + places.tall + 12
        return [
            Mark("box", middle - 31, y - 16, 10, 10, fill=shade),
            Mark("text", middle - 17, y - 11, fill=style.INK, text=f"rank {rank}"),
            Mark("text", middle, low, fill=style.FAINT, text=told, align="middle"),
        ]
    middle = y + places.tall / 2
    return [
        Mark("box", x - 72, middle - 13, 10, 10, fill=shade),
        Mark("text", x - 12, middle - 8, fill=style.INK, text=f"rank {rank}", align="right"),
        Mark("text", x - 12, middle + 9, fill=style.FAINT, text=told, align="right"),
    ]


def _piece(plan: Plan, places: Places, rank: int, piece: int, mask: int) -> list[Mark]:
    """A piece: a frame, and a stripe for each rank whose part is in it."""
    x, y = corner(plan, places, rank, piece)
    w, h, members = places.w, places.h, _members(plan, mask)
    who = ", ".join(map(str, members)) or "nobody"
    marks = [Mark("box", x, y, w, h, fill=style.PAPER, edge=style.GRID,
                  about=f"rank {rank} piece {piece}: {who}")]  # fmt: skip
    if plan.whole or plan.personal:
        for r in members:
            marks.append(Mark("box", x, y, w, h, fill=style.piece(r)))
            text = chr(65 + r) + (str(piece % plan.ranks) if plan.personal else "")
            if w > len(text) * style.LETTER + 2:
                marks.append(Mark("text", x + w / 2, y + h / 2, fill=style.on(style.piece(r)),
                                  text=text, align="middle"))  # fmt: skip
        return marks
    each = h / plan.ranks
    for r in members:
        marks.append(Mark("box", x, y + r * each, w, each, fill=_part(r, mask)))
    return marks


def _members(plan: Plan, mask: int) -> list[int]:
    return [r for r in range(plan.ranks) if abs(mask) >> r & 1]


def _part(rank: int, mask: int) -> style.Shade:
    """The stripe of a rank: pale where the piece was handed on."""
    return labels.tint(style.piece(rank), 0.3) if mask < 0 else style.piece(rank)


def _arrow(plan: Plan, places: Places, moves, number: int) -> list[Mark]:
    """From who sends to who receives."""
    move, points = moves[number], arrow(plan, places, moves, number)
    (ax, ay), (bx, by) = points[-2:]
    far = hypot(bx - ax, by - ay)
    dx, dy = (bx - ax) / far * 7, (by - ay) / far * 7
    tip = (
        (bx - dx - dy * 0.6, by - dy + dx * 0.6),
        (bx, by),
        (bx - dx + dy * 0.6, by - dy - dx * 0.6),
    )
    about = f"rank {move.source} to rank {move.destination}"
    return [Mark("line", edge=style.INK, points=tuple(points), about=about),
            Mark("line", edge=style.INK, points=tip)]  # fmt: skip


def _strip(plan: Plan, acted: Acted, y: float) -> tuple[list[Mark], float]:
    """Every round in small: a row a rank, a column a piece."""
    across, down = shape(plan)
    h = max(4, min(10, _STRIP // (plan.ranks * down)))
    w = 14 if across == 1 else 10 if across <= 4 else 7
    if _stripe(plan):
        w, h = 28 if across == 1 else 14, _stripe(plan) * plan.ranks + 2
    wide, tall = across * w, plan.ranks * down * h
    pitch = max(wide, 34) + 14
    said = "every round; stronger: more added, purple: new"
    if plan.whole or plan.personal:
        said = "every round; colour: the rank it came from"
    elif _stripe(plan):
        said = "every round; a stripe for each rank that is in it"
    marks = [Mark("text", 8, y, fill=style.INK, text=said)]
    x, y = 8.0, y + style.LINE
    for number in range(len(acted.held)):
        if x > 8 and x + wide > style.WIDTH - 8:
            x, y = 8.0, y + tall + style.LINE + 12
        marks += _frame(plan, acted, number, x, y, w, h)
        text = str(number) if number else "start"
        marks.append(Mark("text", x + wide / 2 if wide > 30 else x, y + tall + 11, fill=style.INK,
                          text=text, align="middle" if wide > 30 else "left"))  # fmt: skip
        x += pitch
    return marks, y + tall + style.LINE + 10


def _frame(plan: Plan, acted: Acted, number: int, x, y, w, h) -> list[Mark]:
    """What all ranks hold after a round; neighbours of one shade are one box."""
    (across, down), stripe = shape(plan), _stripe(plan)
    edge, wide, tall = style.GRID if number else style.INK, across * w, plan.ranks * down * h
    about = f"after round {number}" if number else "before the first round"
    marks = [Mark("box", x, y, wide, tall, fill=style.PAPER, edge=edge, about=about)]
    for rank, pieces in enumerate(acted.held[number]):
        if stripe:
            marks += [Mark("box", x + p * w + 1, y + rank * h + 1 + r * stripe, w - 2, stripe,
                           fill=_part(r, mask))
                      for p, mask in enumerate(pieces) for r in _members(plan, mask)]  # fmt: skip
            continue
        found: dict[tuple[int, int], style.Shade] = {}
        for piece, mask in enumerate(pieces):
            if mask and (at := spot(plan, rank, piece)):
                fresh = (rank, piece) in acted.fresh[number]
                found[at[1], at[0]] = _small(plan, mask, fresh)
        run: list = []  # row, first column, columns, shade
        for (row, column), shade in sorted(found.items()):
            if run and run[-1][0] == row and sum(run[-1][1:3]) == column and run[-1][3] == shade:
                run[-1][2] += 1
            else:
                run.append([row, column, 1, shade])
        marks += [Mark("box", x + column * w, y + (rank * down + row) * h, count * w, h, fill=shade)
                  for row, column, count, shade in run]  # fmt: skip
    return marks


def _stripe(plan: Plan) -> int:
    """Height of a stripe in small, 0 where there is no room for one a rank."""
    plain = plan.whole or plan.personal or plan.ranks > 4
    return 0 if plain else 12 // plan.ranks


def _small(plan: Plan, mask: int, fresh: bool) -> style.Shade:
    if plan.whole or plan.personal:
        return style.piece(abs(mask).bit_length() - 1)
    share = abs(mask).bit_count() / plan.ranks
    if fresh:
        return labels.tint(style.COMM["message"], 0.35 + 0.65 * share)
    return labels.tint(style.FAINT, 0.4 * share) if mask < 0 else labels.tint(style.INK, share)


def _story(plan: Plan, acted: Acted, size: int) -> str:
    """The same in words: every round, and the bytes."""
    sent = acted.sent[-1]
    most, total = max(sent), sum(sent)
    each = "each rank sends" if min(sent) == most else "the busiest rank sends"
    title, many = _title(plan, f"{size:,} bytes"), len(plan.rounds)
    rounds = f"{many} round{'s' * (many > 1)}"
    lines = [f"{title}: {rounds}; {each} {most:,} bytes, all {total:,}"]
    lines += [f"  {line}" for line in str(plan).splitlines()[1:]]
    return "\n".join(lines)
