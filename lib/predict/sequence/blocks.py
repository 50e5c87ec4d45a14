"""Which rank computes which block of attention's scores, in which step of a ring, and who waits.

    scores [S, S] = queries by keys; at step i rank r has the keys and values of rank (r - i) mod P

A rank begins a step when it has ended the one before and the keys have come. It passes keys on as
soon as it begins with them, so they come when the rank before it has begun its own last step.
Messages take no time here: what is left are the waits that the layout alone causes.
"""

from collections.abc import Sequence
from typing import NamedTuple

from lib.predict.sequence.layout import Piece, pieces_of


class ScoreBlock(NamedTuple):
    """Describes scores of neighbouring queries and keys, counted in the whole sequence.

    With `masked` it is a square on the diagonal, of which a causal mask leaves the lower half.
    """

    queries: range
    keys: range
    masked: bool

    @property
    def scores(self) -> int:
        """Return the number of scores that are computed and not masked."""
        rows = len(self.queries)
        return rows * (rows + 1) // 2 if self.masked else rows * len(self.keys)


class RingRun(NamedTuple):
    """Describes when each rank computes: `begins` and `ends` by step and rank, in scores."""

    begins: list[list[int]]
    ends: list[list[int]]

    @property
    def span(self) -> int:
        """Return when the last rank ends."""
        return max(self.ends[-1])

    def busy(self) -> float:
        """Return the share of the span in which ranks compute, on average."""
        worked = sum(sum(e) - sum(b) for b, e in zip(self.begins, self.ends))
        return worked / (self.span * len(self.ends[0])) if self.span else 1.0


def ring_blocks(
    length: int, ranks: int, layout: str = "zigzag", documents: Sequence[int] | None = None,
    causal: bool = True,
) -> list[list[list[ScoreBlock]]]:  # fmt: skip
    """Return the blocks that are computed, by step and rank.

    `documents` are cumulative lengths, as in cu_seqlens. Raises ValueError for a layout that is not
    known, and for a sequence that the ranks cannot share equally.
    """
    pieces = [pieces_of(length, rank, ranks, layout, documents) for rank in range(ranks)]
    return [
        [_blocks(pieces[rank], pieces[(rank - step) % ranks], causal) for rank in range(ranks)]
        for step in range(ranks)
    ]


def _blocks(queries: Sequence[Piece], keys: Sequence[Piece], causal: bool) -> list[ScoreBlock]:
    """Return the blocks of pieces of the same document that a mask does not cover whole."""
    return [
        ScoreBlock(
            range(q.position, q.position + q.length),
            range(k.position, k.position + k.length),
            causal and q.position == k.position,
        )
        for q in queries
        for k in keys
        if q.document == k.document and not (causal and k.position > q.position)
    ]


def work(blocks: list[list[list[ScoreBlock]]]) -> list[list[int]]:
    """Return the scores of each step and rank."""
    return [[sum(block.scores for block in own) for own in step] for step in blocks]


def play_ring(scores: list[list[int]]) -> RingRun:
    """Play a ring whose ranks compute so many scores in each step; messages take no time."""
    ranks = len(scores[0])
    begins, ends = [[0] * ranks], [list(scores[0])]
    for step in scores[1:]:
        came = [begins[-1][rank - 1] for rank in range(ranks)]  # sent when its step began
        begins.append([max(pair) for pair in zip(ends[-1], came)])
        ends.append([begin + own for begin, own in zip(begins[-1], step)])
    return RingRun(begins, ends)
