"""Which tokens a rank has and which scores it computes, from numbers alone."""

from itertools import product

import pytest

from lib.predict.sequence.layout import (
    chunks_of,
    key_heads_sent,
    padded_length,
    parts,
    pieces_of,
    ranges_of,
)


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_chunk_is_on_one_rank(ranks, layout):
    chunks = [chunk for rank in range(ranks) for chunk in chunks_of(rank, ranks, layout)]
    assert sorted(chunks) == list(range(len(chunks)))


def test_zigzag_mirrors_its_chunks():
    assert [chunks_of(rank, 4) for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]


@pytest.mark.parametrize(
    ("length", "ranks", "layout", "inner", "expected"),
    [(7, 4, "contiguous", 1, 8), (7, 4, "zigzag", 1, 8), (9, 4, "zigzag", 1, 16),
     (9, 2, "zigzag", 3, 12), (1, 8, "contiguous", 1, 8)],
)  # fmt: skip
def test_padded_lengths(length, ranks, layout, inner, expected):
    assert padded_length(length, ranks, layout, inner) == expected


def computed(length, ranks, layout, documents, causal):
    """Every pair of positions that some rank computes, with how often."""
    pairs = {}
    for rank, source in product(range(ranks), repeat=2):
        places = [
            [p for chunk in ranges_of(length, r, ranks, layout) for p in chunk]
            for r in (rank, source)
        ]
        pieces = (pieces_of(length, r, ranks, layout, documents) for r in (rank, source))
        for part in parts(*pieces, causal):
            rows, columns = places[0][part.queries], places[1][part.keys]
            inside = [
                (q, k)
                for (i, q), (j, k) in product(enumerate(rows), enumerate(columns))
                if not part.causal or j <= i
            ]
            assert len(inside) == part.scores
            for pair in inside:
                pairs[pair] = pairs.get(pair, 0) + 1
    return pairs


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("documents", [None, (0, 5, 6, 17, 24), (0, 7, 20), (0, 1)])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_each_score_that_the_mask_leaves_is_computed_once(ranks, documents, layout, causal):
    ends = documents or (0, 24)
    inside = [(q, k) for a, b in zip(ends, ends[1:]) for q in range(a, b) for k in range(a, b)]
    expected = dict.fromkeys(((q, k) for q, k in inside if k <= q or not causal), 1)
    assert computed(24, ranks, layout, documents, causal) == expected


def work(ranks, layout, documents=None, length=64):
    """The scores that each rank computes."""
    pieces = [pieces_of(length, rank, ranks, layout, documents) for rank in range(ranks)]
    return [sum(part.scores for keys in pieces for part in parts(own, keys)) for own in pieces]


def test_zigzag_shares_causal_work_equally():
    assert len(set(work(4, "zigzag"))) == 1
    first, *_, last = work(4, "contiguous")
    assert (first, last) == (16 * 17 // 2, 3 * 256 + 16 * 17 // 2)


def test_documents_take_the_balance_away():
    found = work(4, "zigzag", (0, 20, 64))
    assert max(found) > 1.15 * sum(found) / 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 2, "striped"), "No layout is called 'striped'. Choose one of contiguous, zigzag."),
        ((2, 2), "There is no rank 2 of 2: ranks count from 0."),
        ((0, 0), "The number of ranks must be a whole number of at least 1, not 0."),
    ],
)
def test_what_there_is_not_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        chunks_of(*arguments)


def test_lengths_and_heads_that_do_not_divide_are_refused():
    words = "A sequence has 10 tokens; 8 chunks cannot share them equally. Pad it first."
    with pytest.raises(ValueError, match=words):
        pieces_of(10, 0, 4)
    assert [key_heads_sent(8, g, 4) for g in (1, 2, 4, 8)] == [4, 4, 4, 8]
    with pytest.raises(ValueError, match="An attention has 3 heads of keys; 2 ranks cannot"):
        key_heads_sent(12, 3, 2)
