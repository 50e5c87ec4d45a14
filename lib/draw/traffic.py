"""Who sent how many bytes to whom."""

from collections.abc import Iterable

from lib.draw.parts import captions
from lib.draw.parts.picture import Picture
from lib.draw.parts.words import has_rows, in_words
from lib.ledger import Ledger
from lib.predict.collectives.formulas import collective as on_a_ring

MOST = 64  # ranks in one matrix
_STRAIGHT = ("all_to_all", "gather", "scatter")  # NCCL sends these as messages, pair by pair
_CHAINS = ("broadcast", "reduce")  # a chain: one of the ring's links is not used

Routes = dict[tuple[str, str, int, int], list[int]]  # op, group, from, to: bytes, messages, calls


def traffic(
    ledger: Ledger,
    *,
    node: int | None = None,
    ranks: Iterable[int] | None = None,
    caption: str = "",
) -> Picture:
    """Draw how many bytes went from each rank (row) to each rank (column).

    Messages are counted as they were sent. A collective inside the backend shows no messages: it
    is drawn as a ring moves it (all_to_all, gather and scatter straight to their receivers), and
    the summary says so. `node` ranks share a node: blocks are framed, and what stays inside and
    what leaves is told apart. `ranks` keeps some ranks alone. `caption` is a sentence more
    for the caption.
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
    ops, groups = (sorted({route[i] for route in routes}) for i in (0, 1))
    place = {rank: i for i, rank in enumerate(shown)}
    data = {
        "ranks": shown, "ops": ops, "groups": groups, "node": node or 0, "notes": _notes(routes),
        "caption": _caption(ledger, routes, caption),
        "routes": [[ops.index(op), groups.index(group), place[a], place[b], *count]
                   for (op, group, a, b), count in sorted(routes.items())],
    }  # fmt: skip
    return Picture(_story(ledger, shown, routes, node), ("traffic", data))


def _routes(ledger: Ledger) -> Routes:
    """Bytes, messages and calls of each operation and group, from whom to whom."""
    found: Routes = {}
    by = ("rank", "op", "group", "members", "bytes", "peer", "parts")
    for total in ledger.where(lane="comm").totals(by):
        rank, op, group, members, size, peer, parts = total.of.values()
        for other, moved, messages in _ways(op, rank, members, size, peer, parts):
            count = found.setdefault((op, group, rank, other), [0, 0, 0])
            for i, amount in enumerate((moved, messages, 1)):
                count[i] += amount * total.count
    return found


def _ways(op: str, rank: int, members, size: int, peer: int, parts) -> list[tuple]:
    """To whom one call on one rank sends: (rank, bytes, messages) each."""
    n = len(members)
    if op == "send":
        return [(peer, size, 1)]
    if op in ("recv", "barrier") or n < 2:
        return []
    if parts:
        return [(m, part, 1) for m, part in zip(members, parts) if m != rank]
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


def _split(moved: dict, node: int) -> tuple[int, int]:
    inside = sum(size for (a, b), size in moved.items() if a // node == b // node)
    return inside, sum(moved.values()) - inside


# --- in words


def _caption(ledger: Ledger, routes: Routes, more: str) -> str:
    """What was counted, and how collectives were that show no messages."""
    first = "Predicted: bytes that a formula gives"
    if ledger.source != "predicted":
        first = "Measured: bytes counted in the calls of real ranks"
    return captions.joined("; ".join([first, *_notes(routes)]), more)


def _notes(routes: Routes) -> list[str]:
    """How collectives were counted that show no messages."""
    ops = sorted({op for op, *_ in routes} - {"send"})
    ring, straight = [op for op in ops if op not in _STRAIGHT], [o for o in ops if o in _STRAIGHT]
    notes = [f"{', '.join(straight)}: counted as one message to each receiver"] if straight else []
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
