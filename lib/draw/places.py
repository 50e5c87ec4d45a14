"""Where the pieces of a plan stand and go: ranks in a ring or in rows; the same as js/places.js."""

from math import cos, floor, hypot, pi, sin
from typing import NamedTuple

from lib.draw import style
from lib.predict.rounds import Move, Plan

HEAD = 48  # px, two lines above the ranks
LABEL = 20  # px of the words above a rank's pieces in a ring, and of those below
_RISE = {2: 0, 3: 80, 4: 92, 5: 120, 6: 112, 7: 170, 8: 186}  # px, half the height of a ring


class Places(NamedTuple):
    """Where everything is: the corner of each rank's pieces, the size of one and of all, px."""

    corners: list[tuple[float, float]]
    pitch: float  # from one piece to the next
    w: float
    h: float
    wide: float
    tall: float
    bottom: float
    ring: bool


def shape(plan: Plan) -> tuple[int, int]:
    """How many pieces stand beside one another, and in how many rows."""
    return (plan.ranks, 2) if plan.personal else (plan.pieces, 1)


def spot(plan: Plan, rank: int, piece: int) -> tuple[int, int] | None:
    """Column and row of a piece at a rank; personal ones lie above, those that came below."""
    if not plan.personal:
        return piece, 0
    source, target = divmod(piece, plan.ranks)
    return (source, 1) if target == rank else (target, 0) if source == rank else None


def places_of(plan: Plan, ring: bool) -> Places:
    """Lay the ranks out, in a ring or in rows, rank 0 on top."""
    width, n, (across, down) = style.WIDTH, plan.ranks, shape(plan)
    if ring:
        most = min(132, width * (0.24 if n <= 4 else 0.17))
        pitch, tall = min(30, max(7, most // across)), 40 // n * n
        w, h, wide = pitch - 2, tall / down - down + 1, across * pitch - 2
        reach = min(width / 2 - 8 - max(wide, 84) / 2, 250 if n <= 4 else 280)
        turns = [2 * pi * r / n - pi / 2 - pi / n for r in range(n)]
        left, top = width / 2 - wide / 2, HEAD + LABEL - _RISE[n] * min(map(sin, turns))
        corners = [
            (floor(left + reach * cos(t) + 0.01), floor(top + _RISE[n] * sin(t) + 0.01))
            for t in turns
        ]
        bottom = max(y for _, y in corners) + tall + LABEL
        return Places(corners, pitch, w, h, wide, tall, bottom, ring)
    top = HEAD + (style.LINE - 2) * numbered(plan)
    tall = (40 if n <= 4 else 34) // n * n
    pitch = min(150, (width - 112) // across)
    w, h = min(48 if across == 1 else 72, pitch * 13 // 25), tall / down - down + 1
    left = 104 + (width - 112 - across * pitch) // 2
    corners = [(left, top + r * (tall + 14)) for r in range(n)]
    wide, bottom = across * pitch - pitch + w, top + n * (tall + 14)
    return Places(corners, pitch, w, h, wide, tall, bottom, ring)


def numbered(plan: Plan) -> bool:
    """Whether columns have numbers: not where each piece has its name on it, or is alone."""
    return plan.pieces > 1 and not (plan.whole or plan.personal)


def corner(plan: Plan, places: Places, rank: int, piece: int) -> tuple[float, float]:
    """The corner of a piece at a rank."""
    (x, y), (column, row) = places.corners[rank], spot(plan, rank, piece)
    return x + column * places.pitch, y + row * (places.h + 2)


def arrow(
    plan: Plan, places: Places, moves: tuple[Move, ...], number: int
) -> list[tuple[float, float]]:
    """From who sends to who receives: straight in a ring, a bow beside the pieces in rows."""
    move = moves[number]
    if places.ring:
        back = (move.destination, move.source)
        return _straight(places, move, any((m.source, m.destination) == back for m in moves))
    same = [m for m in moves[:number] if m.piece == move.piece]  # side by side, not on top
    return _bow(plan, places, move, move.piece + len(same) % move.count)


def _straight(places: Places, move: Move, both: bool) -> list[tuple[float, float]]:
    """Between the edges of two ranks; a little to the right where another comes the other way."""
    (ax, ay), (bx, by) = (
        (x + places.wide / 2, y + places.tall / 2)
        for x, y in (places.corners[move.source], places.corners[move.destination])
    )
    dx, dy = bx - ax, by - ay
    far = hypot(dx, dy)
    out = min((max(places.wide, 66) / 2 + 6) / (abs(dx) or 1e-9),
              (places.tall / 2 + LABEL + 2) / (abs(dy) or 1e-9))  # fmt: skip
    sx, sy = (-dy / far * 6, dx / far * 6) if both else (0.0, 0.0)
    return [(ax + dx * t + sx, ay + dy * t + sy) for t in (out, 1 - out)]


def _bulge(places: Places, move: Move) -> float:
    """How far a bow leaves the straight line between two rows, in pixels."""
    return min(places.pitch - places.w - 5, 20 * abs(move.destination - move.source) - 6)


def _bow(plan: Plan, places: Places, move: Move, piece: int) -> list[tuple[float, float]]:
    (ax, ay), (bx, by) = (corner(plan, places, r, piece) for r in (move.source, move.destination))
    x0, x1, bow = ax + places.w + 2, bx + places.w + 2, _bulge(places, move)
    parts = [i / 12 for i in range(13)]
    return [(x0 + (x1 - x0) * t + bow * 4 * t * (1 - t), ay + (by - ay) * t + places.h / 2)
            for t in parts]  # fmt: skip
