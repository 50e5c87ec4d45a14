"""Which tokens of a sequence each rank has, and which pairs of tokens its attention computes.

    x [.., S, ..] -> x [.., S/P, ..]     contiguous: chunk r of P;  zigzag: chunks r and 2P - 1 - r of 2P

[Note: zigzag]
Under a causal mask a token attends to itself and to all tokens before it, so late tokens need more
work than early ones. In the layout "contiguous" the first rank has only early tokens and the last
rank only late ones. In "zigzag" each rank has an early chunk and the late chunk that mirrors it, and
every rank computes equally many scores.

[Note: blocks]
At step i of a ring, rank r has the keys and values of rank (r - i) mod P. `parts` says which
rectangles of that block it computes, and `blocks_of` says it for all steps. A rectangle that the mask
covers whole is left out, so its scores are neither computed nor masked.

Source: Brandon et al. 2023, "Striped Attention" (arXiv 2311.09431), for the problem; Llama 3 (arXiv
2407.21783), section 3.3.2, for two mirrored chunks on each rank.
"""  # noqa: E501

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from lib.predict.arguments import equal_share, is_whole, whole

LAYOUTS = {"contiguous": 1, "zigzag": 2}  # chunks that each rank has


class Piece(NamedTuple):
    """Describes tokens of one document that lie side by side both on the rank and in the sequence.

    `start` counts on the rank and `position` in the whole sequence; `document` is a number.
    """

    document: int
    start: int
    position: int
    length: int


class Part(NamedTuple):
    """Describes a rectangle of scores: queries by keys, counted on their ranks.

    It is computed whole, or with the mask of a square under `causal`.
    """

    queries: slice
    keys: slice
    causal: bool

    @property
    def scores(self) -> int:
        """Return the number of scores that the mask leaves."""
        rows = self.queries.stop - self.queries.start
        columns = self.keys.stop - self.keys.start
        return rows * (rows + 1) // 2 if self.causal else rows * columns


def chunks_of(rank: int, ranks: int, layout: str = "zigzag") -> tuple[int, ...]:
    """Return the numbers of the chunks that a rank has, in the order in which it has them.

    Raises ValueError for a layout that is not known, and for a rank that there is not.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"No layout is called {layout!r}. Choose one of {', '.join(LAYOUTS)}.")
    if not is_whole(rank, 0) or rank >= whole(ranks, "The number of ranks"):
        raise ValueError(f"There is no rank {rank!r} of {ranks}: ranks count from 0.")
    return (rank,) if layout == "contiguous" else (rank, 2 * ranks - 1 - rank)


def padded_length(length: int, ranks: int, layout: str = "zigzag", inner: int = 1) -> int:
    """Return the length of a sequence after padding: the next multiple of P, or of 2P in zigzag.

    With `inner` ranks that share each shard, it is the next multiple of `inner` times as many.
    """
    chunks = ranks * len(chunks_of(0, ranks, layout)) * whole(inner, "The number of inner ranks")
    return -(-whole(length, "The length of a sequence") // chunks) * chunks


def ranges_of(length: int, rank: int, ranks: int, layout: str = "zigzag") -> list[range]:
    """Return the positions that a rank has of a sequence, which needs no padding, as ranges."""
    own = chunks_of(rank, ranks, layout)
    chunks = ranks * len(own)
    size = equal_share(
        length, chunks, "A sequence has {} tokens", "{} chunks", advice="Pad it first."
    )
    return [range(chunk * size, (chunk + 1) * size) for chunk in own]


def boundaries(documents: Sequence[int] | None, length: int) -> list[int]:
    """Return where documents begin and end in a sequence of `length` tokens: [0, .., end].

    `documents` are cumulative lengths, as in cu_seqlens; None is one document. Tokens behind the
    last boundary are padding. Raises ValueError for boundaries that do not start at 0, do not grow,
    or lie behind the end.
    """
    if documents is None:
        return [0, length]
    ends = [int(end) for end in documents]
    if len(ends) < 2 or ends[0] or any(a >= b for a, b in pairwise(ends)) or ends[-1] > length:
        raise ValueError(
            f"The documents {ends} do not fit a sequence of {length} tokens. Give cumulative "
            f"lengths that start at 0, grow, and end at {length} or before."
        )
    return ends


def pieces_of(
    length: int, rank: int, ranks: int, layout: str = "zigzag",
    documents: Sequence[int] | None = None,
) -> list[Piece]:  # fmt: skip
    """Return the pieces of a sequence that a rank has, in order; padding belongs to none."""
    ends, pieces, start = boundaries(documents, length), [], 0
    for chunk in ranges_of(length, rank, ranks, layout):
        first = bisect_right(ends, chunk.start) - 1
        for number in range(first, len(ends) - 1):
            low, high = max(chunk.start, ends[number]), min(chunk.stop, ends[number + 1])
            if low >= high:
                break
            pieces.append(Piece(number, start + low - chunk.start, low, high - low))
        start += len(chunk)
    return pieces


def parts(queries: Sequence[Piece], keys: Sequence[Piece], causal: bool = True) -> list[Part]:
    """Return the rectangles that queries compute with the keys of a rank, as few as possible.

    All pieces of a document lie side by side on a rank, so a document gives one rectangle, in both
    layouts, or none. Without a causal mask each document's queries attend to all of its keys.
    """
    found = []
    for number in sorted({piece.document for piece in queries}):
        rows = [piece for piece in queries if piece.document == number]
        columns = [piece for piece in keys if piece.document == number]
        if not columns:
            continue
        if causal and rows == columns:
            found.append(Part(_whole(rows), _whole(columns), True))
            continue
        seen = [sum(not causal or k.position < q.position for k in columns) for q in rows]
        for count in sorted(set(seen) - {0}):
            reach = [q for q, n in zip(rows, seen) if n == count]
            found.append(Part(_whole(reach), _whole(columns[:count]), False))
    return found


@lru_cache(maxsize=256)  # each layer of a model asks for the same
def blocks_of(
    length: int, rank: int, ranks: int, layout: str = "zigzag",
    documents: tuple[int, ...] | None = None, causal: bool = True,
) -> tuple[tuple[Part, ...], ...]:  # fmt: skip
    """Return the rectangles that a rank computes in each of the P steps of a ring.

    `length` is that of the whole sequence, which needs no padding.
    """
    of = lambda other: pieces_of(length, other, ranks, layout, documents)
    own = of(rank)
    return tuple(tuple(parts(own, of((rank - i) % ranks), causal)) for i in range(ranks))


def key_heads_sent(heads: int, key_heads: int, ranks: int) -> int:
    """Return how many heads of keys Ulysses spreads over the ranks: G, or P copies where G < P.

    Raises ValueError where the ranks cannot share the heads.
    """
    advice = "Choose fewer ranks, or ring attention, which does not split heads."
    equal_share(heads, ranks, "An attention has {} heads", advice=advice)
    if key_heads < ranks:  # each is copied to equally many ranks
        equal_share(ranks, key_heads, "There are {} ranks", "{} heads of keys", advice=advice)
    else:
        equal_share(key_heads, ranks, "An attention has {} heads of keys", advice=advice)
    return max(key_heads, ranks)


def _whole(pieces: Sequence[Piece]) -> slice:
    """Return the place of pieces that lie side by side on their rank."""
    return slice(pieces[0].start, pieces[-1].start + pieces[-1].length)
