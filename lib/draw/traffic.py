"""Who sent how many bytes to whom."""

from collections.abc import Iterable

from lib.draw import labels, style
from lib.draw.picture import Mark, Picture
from lib.draw.words import has_rows, in_words
from lib.ledger import Ledger
from lib.predict.traffic import collective as on_a_ring

MOST = 64  # ranks in one matrix
_LEFT, _TOP, _TALL = 96, 2 * style.LINE + 8, 30  # px
_FAINTEST = 0.08  # what is little is not nothing
_STRAIGHT = ("all_to_all", "gather", "scatter")  # NCCL sends these as messages, pair by pair
_CHAINS = ("broadcast", "reduce")  # a chain: one of the ring's links is not used

Routes = dict[tuple[str, str, int, int], list[int]]  # op, group, from, to: bytes, messages, calls


def traffic(
    ledger: Ledger, *, node: int | None = None, ranks: Iterable[int] | None = None
) -> Picture:
    """Draw how many bytes went from each rank (row) to each rank (column).

    Messages are counted as they were sent. A collective inside the backend shows no messages: it
    is drawn as a ring moves it (all_to_all, gather and scatter straight to their receivers), and
    the summary says so. `node` ranks share a node: blocks are framed, and what stays inside and
    what leaves is told apart. `ranks` keeps some ranks alone.
    """
    has_rows(ledger, "traffic matrix")
    if node is not None and node < 1:
        raise ValueError(f"A node of {node} ranks holds nobody: give node=8, or leave it out.")
    routes = _routes(ledger)
    known = set(range(ledger.meta.get("ranks", 0))) | set(ledger.ranks)
    known |= {rank for route in routes for rank in route[2:]}
    if ranks is not None:
        known = set(ranks)
        routes = {r: count for r, count in routes.items() if {r[2], r[3]} <= known}
    if not known or len(known) > MOST:
        raise ValueError(
            f"{len(known)} ranks do not fit one matrix, which has room for 1 to {MOST}: choose "
            f"some, as in traffic(ledger, ranks=range({MOST}))."
        )
    shown = sorted(known)
    marks, height, width = _matrix(shown, _pairs(routes), node)
    ops, groups = (sorted({route[i] for route in routes}) for i in (0, 1))
    place = {rank: i for i, rank in enumerate(shown)}
    data = {
        "ranks": shown, "ops": ops, "groups": groups, "node": node or 0, "notes": _notes(routes),
        "routes": [[ops.index(op), groups.index(group), place[a], place[b], *count]
                   for (op, group, a, b), count in sorted(routes.items())],
    }  # fmt: skip
    story = _story(ledger, shown, routes, node)
    return Picture(marks, height, story, width, live=("traffic", data))


def _routes(ledger: Ledger) -> Routes:
    """Bytes, messages and calls of each operation and group, from whom to whom."""
    found: Routes = {}
    by = ("rank", "op", "group", "members", "bytes", "peer")
    for total in ledger.where(lane="comm").totals(by):
        rank, op, group, members, size, peer = total.of.values()
        for other, moved, messages in _ways(op, rank, members, size, peer):
            count = found.setdefault((op, group, rank, other), [0, 0, 0])
            for i, amount in enumerate((moved, messages, 1)):
                count[i] += amount * total.count
    return found


def _ways(op: str, rank: int, members, size: int, peer: int) -> list[tuple[int, int, int]]:
    """To whom one call on one rank sends: (rank, bytes, messages) each."""
    n = len(members)
    if op == "send":
        return [(peer, size, 1)]
    if op in ("recv", "barrier") or n < 2:
        return []
    root, after = peer if peer in members else members[0], members[(members.index(rank) + 1) % n]
    if op in _STRAIGHT:
        others = {
            "all_to_all": [m for m in members if m != rank],
            "gather": [root] if rank != root else [],
            "scatter": [m for m in members if m != root] if rank == root else [],
        }[op]
        return [(other, round(size / n), 1) for other in others]
    if op in _CHAINS and root == (after if op == "broadcast" else rank):
        return []
    wire = on_a_ring(op, n, size)
    return [(after, round(wire.bytes), 1 if op in _CHAINS else wire.rounds)]


def _pairs(routes: Routes) -> dict[tuple[int, int], int]:
    """Bytes from rank to rank, of all operations and groups."""
    moved: dict[tuple[int, int], int] = {}
    for (_, _, a, b), (size, *_) in routes.items():
        moved[a, b] = moved.get((a, b), 0) + size
    return moved


# --- what is drawn: the same as js/traffic.js


def _matrix(ranks: list[int], moved: dict, node: int | None):
    """Give the marks of a matrix, its height and its width."""
    n, most = len(ranks), max(moved.values(), default=0)
    cell = min(84, (style.WIDTH - 110) // n)
    tall = min(_TALL, cell)
    marks = [
        Mark("text", _LEFT, style.LINE / 2 + 4, fill=style.INK, text="to rank"),
        Mark("text", 8, _TOP + tall / 2, fill=style.INK, text="from"),
    ]
    marks += _names(ranks, cell, tall)
    bare = cell < 10  # lines around the cells would be all there is to see
    if bare:
        marks.append(Mark("box", _LEFT, _TOP, n * cell, n * tall, edge=style.GRID))
    texts = [style.amount(amount, "B") for amount in moved.values() if amount]
    fits = all(cell > len(text) * style.LETTER for text in texts)
    for i, rank in enumerate(ranks):
        for j, other in enumerate(ranks):
            amount = moved.get((rank, other), 0)
            if bare and not amount:
                continue
            shade = _shade(amount, most)
            x, y, edge = _LEFT + j * cell, _TOP + i * tall, None if bare else style.GRID
            about = f"rank {rank} to rank {other}: {amount:,} bytes"
            marks.append(Mark("box", x, y, cell, tall, fill=shade, edge=edge, about=about))
            if fits and amount:
                marks.append(Mark("text", x + cell / 2, y + tall / 2, fill=style.on(shade),
                                  text=style.amount(amount, "B"), align="middle"))  # fmt: skip
    height, width = _TOP + n * tall + 8, _LEFT + n * cell + 12
    if node:
        marks += _blocks(ranks, cell, tall, node)
    if not fits:
        marks += _scale(most, height + 8)
        height, width = height + style.LINE + 10, max(width, _LEFT + 190)
    if node:
        text = _inside(moved, node)
        marks.append(Mark("text", 8, height + 8, fill=style.INK, text=text))
        height, width = height + style.LINE + 6, max(width, 16 + len(text) * style.LETTER)
    return marks, height, width


def _shade(amount: int, most: int) -> style.Shade:
    share = _FAINTEST + (1 - _FAINTEST) * (amount / most) if amount else 0.0
    return labels.tint(style.COMM["message"], share)


def _names(ranks: list[int], cell: float, tall: float) -> list[Mark]:
    """The ranks' numbers, as many as have room."""
    marks, wide = [], max(len(str(rank)) for rank in ranks) * style.LETTER + 10
    across, down = (next(s for s in (1, 2, 4, 8, 16, 32) if s * room >= need or s == 32)
                    for room, need in ((cell, wide), (tall, style.LINE - 1)))  # fmt: skip
    for i, rank in enumerate(ranks):
        if i % across == 0:
            marks.append(Mark("text", _LEFT + (i + 0.5) * cell, _TOP - 11, fill=style.INK,
                              text=str(rank), align="middle"))  # fmt: skip
        if i % down == 0:
            marks.append(Mark("text", _LEFT - 8, _TOP + (i + 0.5) * tall, fill=style.INK,
                              text=f"rank {rank}", align="right"))  # fmt: skip
    return marks


def _blocks(ranks: list[int], cell: float, tall: float, node: int) -> list[Mark]:
    """A frame around what stays inside each node."""
    marks, places = [], [rank // node for rank in ranks]
    for here in dict.fromkeys(places):
        first, size = places.index(here), places.count(here)
        marks.append(Mark("box", _LEFT + first * cell, _TOP + first * tall, size * cell,
                          size * tall, edge=style.INK))  # fmt: skip
    return marks


def _scale(most: int, y: float) -> list[Mark]:
    """What the shades mean, where the cells have no room for numbers."""
    marks = [Mark("text", _LEFT - 8, y + 6, fill=style.INK, text="0 B", align="right")]
    for i in range(5):
        shade = labels.tint(style.COMM["message"], i / 4)
        marks.append(Mark("box", _LEFT + i * 16, y, 16, 12, fill=shade, edge=style.GRID))
    text = style.amount(most, "B")
    return [*marks, Mark("text", _LEFT + 88, y + 6, fill=style.INK, text=text)]


def _split(moved: dict, node: int) -> tuple[int, int]:
    inside = sum(size for (a, b), size in moved.items() if a // node == b // node)
    return inside, sum(moved.values()) - inside


def _inside(moved: dict, node: int) -> str:
    inside, outside = (style.amount(size, "B") for size in _split(moved, node))
    return f"inside a node {inside} · between nodes {outside}"


# --- in words


def _notes(routes: Routes) -> list[str]:
    """How collectives were counted that show no messages."""
    ops = sorted({op for op, *_ in routes} - {"send"})
    ring, straight = [op for op in ops if op not in _STRAIGHT], [o for o in ops if o in _STRAIGHT]
    notes = [f"{', '.join(straight)}: as messages straight to each receiver"] if straight else []
    return notes + ([f"{', '.join(ring)}: as a ring would move it"] if ring else [])


def _story(ledger: Ledger, ranks: list[int], routes: Routes, node: int | None) -> str:
    moved = _pairs(routes)
    cells = [["from \\ to", *map(str, ranks), "sent"]]
    for rank in ranks:
        amounts = [moved.get((rank, other), 0) for other in ranks]
        cells.append([f"rank {rank}", *(f"{a:,}" if a else "·" for a in amounts),
                      f"{sum(amounts):,}"])  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["  ".join(c.rjust(w) for c, w in zip(line, widths)) for line in cells]
    if node:
        inside, outside = _split(moved, node)
        lines.append(f"nodes of {node}: {inside:,} bytes inside, {outside:,} bytes between")
    if silent := [rank for rank in ranks if rank not in ledger.ranks]:
        lines.append(f"{in_words(silent)}: no rows in this ledger")
    return "\n".join(["traffic: bytes by sender and receiver", *lines, *_notes(routes)])
