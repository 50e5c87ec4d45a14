"""What expert parallelism sends for a layer, flat and in two hops, inside nodes and between them.

    counts   all_gather [P, E]         how many rows each rank has for each expert
    dispatch all_to_all [A, D]         rows to the ranks of their experts
    combine  all_to_all [R, D]         results back; backward sends both gradients the other ways

`table[a][b]` is the number of rows that rank a sends to rank b; the ranks are numbered node after node.
A row that stays on its rank is in the buffer of the all_to_all and is not sent.

In two hops (lib/parallel/expert/exchange.py) as many rows pass between nodes, in fewer messages, and
more inside them, because a row for another node usually changes its rank before it leaves.
Source: counted; Nie et al. 2022, "HetuMoE" (arXiv 2203.14685), for the two hops.
"""  # noqa: E501

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from lib.predict.arguments import equal_share, real, whole
from lib.predict.collectives.exchange import Exchange
from lib.predict.expert.load import taken

Table = Sequence[Sequence[int]]
COUNT = 8  # bytes of a number of rows


class Sent(NamedTuple):
    """Holds what one rank sends: rows and messages to ranks of its node, and to other nodes."""

    inside: int
    between: int
    messages_inside: int
    messages_between: int

    def __add__(self, other: "Sent") -> "Sent":
        return Sent(*(a + b for a, b in zip(self, other)))


def table_of(by_expert: Table) -> list[list[int]]:
    """Return the rows from rank to rank, [P, P], from those for each expert, [P, E]."""
    ranks = len(by_expert)
    own = equal_share(len(by_expert[0]), ranks, "There are {} experts")
    return [[sum(row[r * own : (r + 1) * own]) for r in range(ranks)] for row in by_expert]


def expected_table(
    tokens: int, experts: int, k: int, ranks: int, capacity: float | None = None,
    decide: str = "all",
) -> list[list[float]]:  # fmt: skip
    """Return the rows [P, P] that ranks send on average if the gate prefers no expert.

    Each rank has `tokens` tokens. A capacity factor counts the tokens of all ranks with
    decide="all", where an expert takes those of lower ranks first, so that these send more; with
    "rank" it counts each rank's own. `flat` and `two_hops` count what of it goes between nodes.
    Raises ValueError for experts that ranks cannot share equally, and for another `decide`.
    """
    own = equal_share(experts, ranks, "There are {} experts")
    if decide not in ("all", "rank"):
        raise ValueError(f"decide must be one of all, rank, not {decide!r}.")
    together = ranks if decide == "all" else 1
    n = whole(tokens, "tokens")
    most = n * together  # no expert has more rows
    if capacity is not None:
        factor = real(capacity, "The capacity factor", zero=False)
        most = ceil(factor * n * together * whole(k, "k") / experts)
    # An expert's rows of the first 0, 1, .. ranks; what one more adds is what that rank sends.
    filled = [taken(n * r, experts, k, most) if r else 0.0 for r in range(together + 1)]
    added = [after - before for before, after in zip(filled, filled[1:])]
    return [[own * added[rank % together]] * ranks for rank in range(ranks)]


def flat(table: Table, node: int) -> list[Sent]:
    """Return what each rank sends straight to every other, in nodes of `node` ranks: one Sent each.

    A message without rows is sent too, because an all_to_all has one for every pair.
    """
    ranks = _ranks(table, node)
    result = []
    for a in range(ranks):
        near = range(a // node * node, a // node * node + node)
        inside = sum(table[a][b] for b in near if b != a)
        between = sum(table[a]) - inside - table[a][a]
        result.append(Sent(inside, between, node - 1, ranks - node))
    return result


def two_hops(table: Table, node: int) -> list[Sent]:
    """Return what each rank sends inside its node, and then in one message to each other node."""
    ranks = _ranks(table, node)
    nodes, result = ranks // node, []
    for a in range(ranks):
        home, place = divmod(a, node)
        inside = sum(table[a][b] for b in range(ranks) if b % node != place)
        from_node = range(home * node, home * node + node)
        far = [b for b in range(ranks) if b % node == place and b // node != home]
        between = sum(table[i][b] for i in from_node for b in far)
        result.append(Sent(inside, between, node - 1, nodes - 1))
    return result


def exchanges(
    table: Table, rank: int, experts: int, width: int, itemsize: int = 4
) -> tuple[list[Exchange], list[Exchange]]:
    """Return what a rank launches for one layer in forward and in backward, with its buffers."""
    ranks, size = len(table), whole(width, "width") * whole(itemsize, "itemsize")
    there = Exchange("all_to_all", ranks, sum(table[rank]) * size)
    back = Exchange("all_to_all", ranks, sum(row[rank] for row in table) * size)
    counts = Exchange("all_gather", ranks, ranks * whole(experts, "experts") * COUNT)
    return [counts, there, back], [there, back]


def even_rows(tokens: float, k: int, ranks: int) -> float:
    """Return the rows that a rank sends away of its `tokens` when the load is even: k·N·(P-1)/P."""
    ranks = whole(ranks, "The number of ranks")
    return real(tokens, "tokens") * whole(k, "k") * (ranks - 1) / ranks


def _ranks(table: Table, node: int) -> int:
    node = whole(node, "The ranks of a node")
    equal_share(len(table), node, "There are {} ranks", "nodes of {}")
    return len(table)
