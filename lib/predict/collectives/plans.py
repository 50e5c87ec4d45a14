"""Plans of six all-reduces and an all-to-all: in each round, which rank sends which pieces where.

[Note: a plan is data]
A plan is a list of rounds, and a round is a list of moves that start together. The same plan is run
on ranks (lib/ranks/algorithms.py), drawn, and counted. Every rank cuts its buffer into the same
pieces, with the sizes of np.array_split. A piece that arrives is added to the receiver's own piece
(printed `+`) or, once it is the whole sum, replaces it (printed `=`):

    0>1 +2      rank 0 sends piece 2 to rank 1, which adds it to its own
    3>0 =1:3    rank 3 sends pieces 1 and 2 to rank 0, which replaces its own with them
"""

import re
from dataclasses import dataclass, replace
from functools import cache, wraps

from lib.predict.arguments import whole
from lib.predict.collectives.counts import node_size, pieces


@dataclass(frozen=True, slots=True)
class Move:
    """A message in which `source` sends pieces `piece` .. `piece + count - 1` to `destination`."""

    source: int
    destination: int
    piece: int = 0
    count: int = 1
    add: bool = False

    def __str__(self) -> str:
        what = self.piece if self.count == 1 else f"{self.piece}:{self.piece + self.count}"
        return f"{self.source}>{self.destination} {'+' if self.add else '='}{what}"

    @classmethod
    def read(cls, text: str) -> "Move":
        """Read a move from the text that it prints as."""
        match = re.fullmatch(r"(\d+)>(\d+) ([+=])(\d+)(?::(\d+))?", text)
        if not match:
            raise ValueError(f"{text!r} is not a move. Write `0>1 +2`, `0>1 =2` or `0>1 +2:4`.")
        source, destination, first, last = (int(match[i] or 0) for i in (1, 2, 4, 5))
        if source == destination or (match[5] and last <= first):
            raise ValueError(
                f"{text!r} is not a move: a move sends at least one piece to another rank."
            )
        return cls(source, destination, first, last - first if last else 1, match[3] == "+")


@dataclass(frozen=True)
class Plan:
    """Describes one collective as rounds of moves; it prints as one line for each round."""

    name: str
    ranks: int
    pieces: int
    rounds: tuple[tuple[Move, ...], ...]
    whole: bool = False  # True where the pieces are whole buffers, one from each rank
    personal: bool = False  # True where piece s·ranks + d goes from rank s to rank d only

    def sizes(self, numel: int) -> list[int]:
        """Return the elements of each piece where every rank has `numel`."""
        numel = whole(numel, "numel", 0)
        if self.personal:
            return pieces(numel, self.ranks) * self.ranks
        return [numel] * self.pieces if self.whole else pieces(numel, self.pieces)

    def __str__(self) -> str:
        lines = [f"{self.name} on {self.ranks} ranks, {len(self.rounds)} rounds"]
        for number, moves in enumerate(self.rounds, 1):
            lines.append(f"{number:>3}  " + "   ".join(map(str, moves)))
        return "\n".join(lines)


def _planned(function):
    """Check the numbers of ranks, nodes and rails that a plan is for, and build each plan once."""
    code, cached = function.__code__, cache(function)
    needed = code.co_varnames[: code.co_argcount - len(function.__defaults__ or ())]

    @wraps(function)
    def checked(*args, **kwargs):
        values = dict(zip(code.co_varnames, args)) | kwargs
        checks = {name: whole(values[name], name) for name in needed if name in values}
        return cached(**values | checks)

    return checked


def _plan(name: str, ranks: int, cut: int, rounds, whole: bool = False) -> Plan:
    return Plan(name, ranks, cut, tuple(tuple(moves) for moves in rounds), whole)


@_planned
def central(n: int) -> Plan:
    """Plan an all-reduce through rank 0: all buffers go there in turn, and the sum comes back."""
    up = [[Move(r, 0, add=True)] for r in range(1, n)]
    down = [[Move(0, r)] for r in range(1, n)]
    return _plan("central", n, 1, up + down)


@_planned
def everyone(n: int) -> Plan:
    """Plan an all-reduce in which each rank r sends its whole buffer, piece r, to all others."""
    rounds = [[Move(r, (r + k) % n, piece=r) for r in range(n)] for k in range(1, n)]
    return _plan("everyone", n, n, rounds, whole=True)


@_planned
def ring(n: int) -> Plan:
    """Plan a ring: pieces are added up in n-1 rounds, and the sums are passed on in n-1 rounds.

    The halves are a reduce-scatter and an all-gather; in between, rank r holds the sum of piece
    r+1.
    """
    adding = [[Move(r, (r + 1) % n, (r - k) % n, add=True) for r in range(n)] for k in range(n - 1)]
    passing = [[Move(r, (r + 1) % n, (r + 1 - k) % n) for r in range(n)] for k in range(n - 1)]
    return _plan("ring", n, n, adding + passing)


@_planned
def tree(n: int) -> Plan:
    """Plan a binomial tree: in each round half of the active ranks send their sums and stop.

    The ranks that stop in round k are those whose lowest set bit is bit k. At the end rank 0 has
    the sum, which returns along the same edges.
    """
    bits = [1 << k for k in range((n - 1).bit_length())]
    up = [[Move(r, r - bit, add=True) for r in range(bit, n, 2 * bit)] for bit in bits]
    return _plan("tree", n, 1, up + _back(up))


@_planned
def halving_doubling(n: int) -> Plan:
    """Plan recursive halving and doubling: partners exchange halves, then exchange the sums.

    The partner is p/2, p/4, ... 1 ranks away. Where n is not a power of two, the ranks from p on
    send their whole buffer to a partner first and receive the sum at the end.
    """
    p = 1 << (n.bit_length() - 1)
    extra = [[Move(r, r - p, count=p, add=True) for r in range(p, n)]] if n > p else []
    halves = []
    for distance in (p >> k for k in range(1, p.bit_length())):
        # A rank holds 2·distance pieces; it sends the half that contains its partner's number.
        kept = [(r ^ distance) // distance * distance for r in range(p)]
        halves.append([Move(r, r ^ distance, kept[r], distance, add=True) for r in range(p)])
    up = extra + halves
    return _plan("halving_doubling", n, p, up + _back(up))


@_planned
def two_level(n: int, node: int | None = None) -> Plan:
    """Plan a reduce to the first rank of each node, a ring of these ranks, and a broadcast back.

    A node has `node` ranks, by default the largest divisor of n that is at most its square root.
    """
    node = node_size(n, node)
    nodes = n // node
    up = [
        [Move(leader + k, leader, count=nodes, add=True) for leader in range(0, n, node)]
        for k in range(1, node)
    ]
    across = [
        [replace(m, source=m.source * node, destination=m.destination * node) for m in moves]
        for moves in ring(nodes).rounds
    ]
    return _plan("two_level", n, nodes, up + across + _back(up))


@_planned
def multi_rail_ring(nodes: int, per_node: int, rails: int) -> Plan:
    """Plan several rings at once through all ranks of all nodes, each with a share of the pieces.

    Each ring enters and leaves the nodes at different ranks, so that all `rails` links are in use.
    """
    n = nodes * per_node
    rounds = [[] for _ in range(2 * (n - 1))]
    for rail in range(rails):
        first = rail * per_node // rails
        order = [
            node * per_node + (first + local) % per_node
            for node in range(nodes)
            for local in range(per_node)
        ]
        for moves, one in zip(rounds, ring(n).rounds):
            moves += [
                replace(m, source=order[m.source], destination=order[m.destination],
                        piece=rail * n + m.piece)
                for m in one
            ]  # fmt: skip
    return _plan("multi_rail_ring", n, n * rails, rounds)


@_planned
def hierarchical(nodes: int, per_node: int) -> Plan:
    """Plan a reduce-scatter inside each node, an all-reduce between nodes, an all-gather inside.

    All three are rings. Between nodes, the ranks with the same position in their node form a ring.
    """
    inside = [
        [
            replace(m, source=node * per_node + m.source, piece=m.piece * nodes, count=nodes,
                    destination=node * per_node + m.destination)
            for node in range(nodes)
            for m in moves
        ]
        for moves in ring(per_node).rounds
    ]  # fmt: skip
    # After the reduce-scatter, the rank at position p of a node holds the node's sum of chunk p+1.
    across = [
        [
            replace(m, source=m.source * per_node + position, piece=m.piece + chunk * nodes,
                    destination=m.destination * per_node + position)
            for position in range(per_node)
            for chunk in [(position + 1) % per_node]
            for m in moves
        ]
        for moves in ring(nodes).rounds
    ]  # fmt: skip
    half = per_node - 1
    name, n = "hierarchical", nodes * per_node
    return _plan(name, n, n, inside[:half] + across + inside[half:])


def _back(rounds: list[list[Move]]) -> list[list[Move]]:
    """Return the rounds in reverse order and direction, in which the sums come back."""
    return [
        [replace(m, source=m.destination, destination=m.source, add=False) for m in moves]
        for moves in reversed(rounds)
    ]


@_planned
def all_to_all(n: int) -> Plan:
    """Plan an all-to-all: in round k, each rank sends a piece to the rank k higher."""
    rounds = [[Move(r, (r + k) % n, r * n + (r + k) % n) for r in range(n)] for k in range(1, n)]
    return Plan("all_to_all", n, n * n, tuple(map(tuple, rounds)), personal=True)


PLANS = {f.__name__: f for f in (central, everyone, ring, tree, halving_doubling, two_level)}
