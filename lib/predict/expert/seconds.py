"""How long rows travel, and how long their experts compute: which of the two a layer waits for.

With an even load, S bytes of rows on each of P ranks in n nodes of m, latencies α and bandwidths β:

    flat      the longer of (m - 1)(α_in + S/(P·β_in)) and (P - m)(α_out + S/(P·β_out))
    two hops  (m - 1)(α_in + S/(m·β_in)) + (n - 1)(α_out + S/(n·β_out))

Both bring the same (n - 1)/n · S out of each rank's node. Two hops save (n - 1)(m - 1) latencies between
nodes, and pay with another journey inside, so they win while S is small.

A row costs 2·w·D·F FLOP (w matrices of D × F, forward) and D·i bytes each way, i bytes a number. Without
latency the two journeys take as long as the experts where F = i·c/(w·β), for c FLOP/s and β bytes/s: the
number of tokens, D and k cancel, and only a larger expert or a faster link helps.
"""  # noqa: E501

from lib.predict.arguments import equal_share, real, whole

WAYS = ("flat", "two hops")


def exchange(way: str, ranks: int, nbytes: float, speeds) -> float:
    """Return the seconds of one all_to_all of an even load, `nbytes` of rows on each rank.

    `speeds.moving(op, ranks, bytes, members)` returns seconds; for two hops `speeds.nodes` says how
    many ranks a node has. Raises ValueError for another way, and for two hops on one node.
    """
    members, nodes = range(whole(ranks, "The number of ranks")), speeds.nodes
    if way not in WAYS:
        raise ValueError(f"Rows do not travel {way!r}. Choose one of {', '.join(WAYS)}.")
    if way == "flat":
        return speeds.moving("all_to_all", ranks, nbytes, members)
    if nodes is None:
        raise ValueError("Two hops need several nodes. Give speeds with `node` and `between`.")
    count = equal_share(ranks, nodes.ranks, "There are {} ranks", "nodes of {}")
    inside = speeds.moving("all_to_all", nodes.ranks, nbytes, members[: nodes.ranks])
    return inside + speeds.moving("all_to_all", count, nbytes, members[:: nodes.ranks])


def computing(
    rows: float, width: int, hidden: int, speeds, *, matrices: int = 2, backward: bool = False
) -> float:
    """Return the seconds in which a rank's experts compute `rows` rows: arithmetic alone.

    Backward takes twice as long as forward, for the gradients of rows and of weights.
    """
    flop = 2 * whole(matrices, "matrices") * real(rows, "rows") * width * hidden
    return speeds.compute(flop * (1 + backward), 0)


def hidden_size_that_covers(
    flop_per_second: float, bandwidth: float, *, matrices: int = 2, itemsize: int = 2,
    ranks: int | None = None,
) -> float:  # fmt: skip
    """Return F, the hidden size at which experts compute for as long as their rows travel.

    Both journeys of forward count, and no latency. `bandwidth` is in bytes/s, one way; with `ranks`
    P the share 1/P of the rows that stay on their rank is left out. Smaller experts wait for rows.
    """
    sent = 1.0 if ranks is None else (ranks - 1) / whole(ranks, "The number of ranks")
    rate = real(flop_per_second, "FLOP/s") / real(bandwidth, "The bandwidth", zero=False)
    return itemsize * sent * rate / whole(matrices, "matrices")
