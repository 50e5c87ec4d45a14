"""Chapter 12's ring in slow motion takes the predicted time, and hides what the text says."""

import pytest

from lib.course.sequence_parallel import slow
from tests.course.stored_chapter import shown, stored_chapter
from tests.slow_steps import late

LENGTHS = 1024, 16_384


@pytest.mark.quiet
@pytest.mark.parametrize("tokens", LENGTHS)
def test_the_ring_takes_the_predicted_time_and_sends_the_predicted_bytes(worlds, tokens):
    world = worlds(slow.RANKS, device="cpu")
    run, expected = slow.recorded(world, tokens), slow.predicted(tokens)
    assert world.slow_motion is None
    # Casts to 4 bytes, which a merge of results in 2 bytes needs, are not predicted.
    assert abs(run.makespan / expected.makespan - 1) <= 0.05 + late(run)
    hop = 2 * 8 * tokens * 128 * 2
    for rank in range(slow.RANKS):
        sent = [row.bytes for row in run.where(rank=rank, lane="comm", op="send")]
        assert sent == [hop] * 9


def test_a_short_ring_waits_most_of_the_time_and_a_long_one_for_its_last_hop_alone():
    short, long = (slow.predicted(tokens).where(rank=0) for tokens in LENGTHS)
    assert len(short.where(lane="wait")) == 9
    (last,) = long.where(lane="wait")
    assert last.end > max(row.end for row in long.where(op="send", lane="comm"))
    (arrives,) = [row for row in long.where(op="recv", lane="comm") if row.end == last.end]
    assert arrives.waiting > 0, "the sender is later than rank 0"
    assert last.seconds > arrives.moving, "so the wait is longer than the message"
    assert (slow.SMALL.heads, slow.SMALL.kv_heads) == (21, 7)
    assert (slow.LARGE.heads, slow.LARGE.kv_heads) == (32, 8)
    told = shown(stored_chapter("12-sequence-parallel"), "slow.sends")
    for tokens, ledger in zip(LENGTHS, (short, long)):
        share = slow.exposed(ledger)
        assert f"{tokens:,} tokens: predicted to wait {share:.0%} of the step" in told
    assert told.count("9 sends, same bytes as predicted: True") == 2
