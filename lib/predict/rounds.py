"""Six all-reduces and an all-to-all on paper: in each round, who sends which pieces to whom.

[Note: a plan is data]
A plan is a list of rounds, a round a list of moves that leave together. The same plan is run on
ranks (lib/ranks/algorithms.py), drawn, and counted. Every rank cuts its buffer into the same
pieces, sizes as np.array_split has them. What arrives is added to the receiver's own piece
(printed `+`), or, once it is the whole sum, takes its place (printed `=`):

    0>1 +2      rank 0 sends piece 2 to rank 1, which adds it to its own
    3>0 =1:3    rank 3 sends pieces 1 and 2 to rank 0, which keeps them instead of its own
"""

import re
from dataclasses import dataclass, replace
from functools import cache

from lib.predict._counts import pieces


@dataclass(frozen=True, slots=True)
class Move:
    """One message: `source` sends pieces `piece` .. `piece + count - 1` to `destination`."""

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
        """Read a move back from what it prints as."""
        found = re.fullmatch(r"(\d+)>(\d+) ([+=])(\d+)(?::(\d+))?", text)
        if not found:
            raise ValueError(f"{text!r} is not a move: write `0>1 +2`, `0>1 =2` or `0>1 +2:4`.")
        source, destination, first, last = (int(found[i] or 0) for i in (1, 2, 4, 5))
        return cls(source, destination, first, last - first if last else 1, found[3] == "+")


@dataclass(frozen=True)
class Plan:
    """One collective as rounds of moves; prints as a line for each round."""

    name: str
    ranks: int
    pieces: int
    rounds: tuple[tuple[Move, ...], ...]
    whole: bool = False  # the pieces are whole buffers, one from each rank
    personal: bool = False  # piece s·ranks + d goes from rank s to rank d alone

    def sizes(self, numel: int) -> list[int]:
        """Elements of each piece where every rank has `numel`."""
        if self.personal:
            return pieces(numel, self.ranks) * self.ranks
        return [numel] * self.pieces if self.whole else pieces(numel, self.pieces)

    def __str__(self) -> str:
        lines = [f"{self.name} on {self.ranks} ranks, {len(self.rounds)} rounds"]
        for number, moves in enumerate(self.rounds):
            lines.append(f"{number:>3}  " + "   ".join(map(str, moves)))
        return "\n".join(lines)


def _plan(name: str, ranks: int, cut: int, rounds, whole: bool = False) -> Plan:
    return Plan(name, ranks, cut, tuple(tuple(moves) for moves in rounds), whole)


@cache
def central(n: int) -> Plan:
    """Everything goes to rank 0, one message after the other, and the sum comes back."""
    up = [[Move(r, 0, add=True)] for r in range(1, n)]
    down = [[Move(0, r)] for r in range(1, n)]
    return _plan("central", n, 1, up + down)


@cache
def everyone(n: int) -> Plan:
    """Each rank sends its whole buffer to every other; piece r is the buffer of rank r."""
    rounds = [[Move(r, (r + k) % n, piece=r) for r in range(n)] for k in range(1, n)]
    return _plan("everyone", n, n, rounds, whole=True)


@cache
def ring(n: int) -> Plan:
    """Pieces go round a ring: n-1 rounds add up, n-1 rounds pass the sums on.

    After the first half rank r holds the sum of piece r+1: a reduce-scatter, then an all-gather.
    """
    adding = [[Move(r, (r + 1) % n, (r - k) % n, add=True) for r in range(n)] for k in range(n - 1)]
    passing = [[Move(r, (r + 1) % n, (r + 1 - k) % n) for r in range(n)] for k in range(n - 1)]
    return _plan("ring", n, n, adding + passing)


@cache
def tree(n: int) -> Plan:
    """Half of the ranks that still hold something hand it over and leave, until rank 0 has all.

    Who leaves in round k has bit k as its lowest; the sum comes back the way it went.
    """
    bits = [1 << k for k in range((n - 1).bit_length())]
    up = [[Move(r, r - bit, add=True) for r in range(bit, n, 2 * bit)] for bit in bits]
    return _plan("tree", n, 1, up + _back(up))


@cache
def halving_doubling(n: int) -> Plan:
    """Partners split what they hold, half for you and half for me; then they swap the sums.

    The partner is p/2, p/4, ... 1 ranks away. Where n is no power of two, the ranks from p on
    give everything to a partner first and are told the sum at the end.
    """
    p = 1 << (n.bit_length() - 1)
    extra = [[Move(r, r - p, count=p, add=True) for r in range(p, n)]] if n > p else []
    halves = []
    for distance in (p >> k for k in range(1, p.bit_length())):
        # A rank holds 2·distance pieces; those it gives away are the half where its partner is.
        kept = [(r ^ distance) // distance * distance for r in range(p)]
        halves.append([Move(r, r ^ distance, kept[r], distance, add=True) for r in range(p)])
    up = extra + halves
    return _plan("halving_doubling", n, p, up + _back(up))


@cache
def two_level(n: int, node: int | None = None) -> Plan:
    """Inside each node of `node` ranks all goes to the first; the first ranks make a ring.

    By default a node is the largest divisor of n that is at most its square root.
    """
    if node is None:
        node = max(d for d in range(1, n + 1) if n % d == 0 and d * d <= n)
    if node < 1 or n % node:
        raise ValueError(f"{n} ranks do not fill nodes of {node}: choose a divisor of {n}.")
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


def _back(rounds: list[list[Move]]) -> list[list[Move]]:
    """The same rounds the other way: what was added up there comes back as the sum."""
    return [
        [replace(m, source=m.destination, destination=m.source, add=False) for m in moves]
        for moves in reversed(rounds)
    ]


@cache
def all_to_all(n: int) -> Plan:
    """Each rank hands every other the piece meant for it: in round k to the rank k places on."""
    rounds = [[Move(r, (r + k) % n, r * n + (r + k) % n) for r in range(n)] for k in range(1, n)]
    return Plan("all_to_all", n, n * n, tuple(map(tuple, rounds)), personal=True)


PLANS = {f.__name__: f for f in (central, everyone, ring, tree, halving_doubling, two_level)}
