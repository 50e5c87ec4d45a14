"""Blocks of attention: together the causal matrix, and the same scores as the ring computes."""

import pytest

from lib.predict.sequence import blocks
from lib.predict.sequence.layout import blocks_of

DOCUMENTS = [None, (0, 7, 13, 14, 32), (0, 5, 27)]
CASES = [(layout, ranks, ends) for layout in ("contiguous", "zigzag") for ranks in (1, 2, 4)
         for ends in DOCUMENTS]  # fmt: skip
S = 32


@pytest.mark.parametrize(("layout", "ranks", "ends"), CASES)
def test_every_score_that_counts_is_computed_once(layout, ranks, ends):
    counted = [[0] * S for _ in range(S)]
    for step in blocks.ring_blocks(S, ranks, layout, ends):
        for block in (block for own in step for block in own):
            for q in block.queries:
                for k in block.keys:
                    counted[q][k] += not (block.masked and k > q)
    cuts = ends or (0, S)
    document = [sum(t >= cut for cut in cuts) if t < cuts[-1] else -t for t in range(S)]
    for q in range(S):
        for k in range(S):
            attends = k <= q and document[q] == document[k] > 0
            assert counted[q][k] == attends, (q, k)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("layout", "ranks", "ends"), CASES)
def test_the_ring_computes_as_many(layout, ranks, ends, causal):
    """The rectangles that lib/parallel/sequence/ring.py computes have the same scores."""
    scores = blocks.work(blocks.ring_blocks(S, ranks, layout, ends, causal))
    for rank in range(ranks):
        steps = blocks_of(S, rank, ranks, layout, ends, causal)
        assert [step[rank] for step in scores] == [
            sum(part.scores for part in own) for own in steps
        ]


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_zigzag_is_balanced_and_contiguous_is_not(ranks):
    """Contiguous: the last rank computes S²/P·(1 - 1/2P) scores, all others less."""
    length = 64 * ranks
    zigzag = blocks.play_ring(blocks.work(blocks.ring_blocks(length, ranks)))
    assert zigzag.busy() == 1.0
    scores = blocks.work(blocks.ring_blocks(length, ranks, "contiguous"))
    run, block = blocks.play_ring(scores), length // ranks
    assert run.span == (ranks - 1) * block**2 + block * (block + 1) // 2
    assert run.busy() < (0.78 if ranks == 2 else 0.58)
    assert [sum(step[rank] > 0 for step in scores) for rank in range(ranks)] == [
        *range(1, ranks + 1)
    ]


def test_a_rank_waits_for_keys_that_the_one_before_has_not_begun_with():
    run = blocks.play_ring([[9, 1], [1, 1]])
    assert run.begins == [[0, 0], [9, 1]] and run.ends == [[9, 1], [10, 2]]
    run = blocks.play_ring([[9, 1, 1], [1, 1, 1], [1, 1, 1]])
    assert (
        run.begins[2] == [10, 9, 2] and run.span == 11
    )  # rank 1 waits for what rank 0 begins late
