"""The predicted time of ring attention, against times that are worked out by hand."""

from dataclasses import replace

import pytest

from lib.predict.roofline import Speeds
from lib.predict.sequence.ring_step import Attention, ring_seconds, ring_step

IT = Attention(batch=2, heads=4, key_heads=2, length=64, head_size=8)
# Only products take time: a second for a query and a key in all heads of all samples.
PRODUCTS = Speeds(peak=4 * 8 * 4 * 2, memory_bandwidth=1e30, alpha=0.0, bandwidth=1e30)
# Only messages take time: a second each.
MESSAGES = Speeds(peak=1e30, memory_bandwidth=1e30, alpha=1.0, bandwidth=1e30)
BLOCKS = {  # that the busiest rank computes, of side S/P, a masked one counted whole
    ("contiguous", 1): 1, ("contiguous", 2): 2, ("contiguous", 4): 4, ("contiguous", 8): 8,
    ("zigzag", 1): 1, ("zigzag", 2): 1.5, ("zigzag", 4): 2.5, ("zigzag", 8): 4.5,
}  # fmt: skip


def seconds(ranks, speeds=PRODUCTS, **options):
    return ring_step(IT, ranks, speeds, **options).makespan


@pytest.mark.parametrize(("layout", "ranks"), BLOCKS)
def test_where_messages_are_free_it_is_the_time_of_the_busiest_rank(layout, ranks):
    whole, side = BLOCKS[layout, ranks], 64 // ranks
    forward = seconds(ranks, layout=layout, backward=False)
    assert forward == pytest.approx(whole * side**2)
    assert seconds(ranks, layout=layout) == pytest.approx(3.5 * forward)  # 2 products and 5
    skipping = seconds(ranks, layout=layout, backward=False, masked=0.5)
    assert skipping == pytest.approx((whole - 0.5) * side**2)  # one masked block on each rank


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_without_a_mask_both_layouts_compute_every_block(ranks):
    for layout in ("contiguous", "zigzag"):
        forward = seconds(ranks, layout=layout, backward=False, causal=False)
        assert forward == pytest.approx(ranks * (64 // ranks) ** 2)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_where_computation_is_free_it_is_the_time_of_the_hops(ranks):
    """Backward sends keys and values and then the sums of their gradients on the same link."""
    assert seconds(ranks, MESSAGES, backward=False) == pytest.approx(ranks - 1)
    assert seconds(ranks, MESSAGES) == pytest.approx(3 * (ranks - 1))


def test_messages_longer_than_computation_are_waited_for():
    slow = replace(PRODUCTS, alpha=200.0)
    first, hops, last = 16**2, 3, 16**2 / 2  # the first hop is launched before the first block
    assert seconds(4, slow, backward=False) == pytest.approx(max(first, 200.0) + 2 * 200 + last)
    ledger = ring_step(IT, 4, slow, backward=False)
    assert len(ledger.where(lane="comm", op="send", rank=0)) == hops
    sizes = {row.bytes for row in ledger.where(lane="comm")}
    assert sizes == {2 * 2 * 2 * 16 * 8 * 4}  # K and V: [2, 2, 16, 8] in 4 bytes


def test_documents_that_ranks_have_for_themselves_leave_each_rank_its_own_block():
    own = seconds(4, layout="contiguous", documents=(0, 16, 32, 48, 64), backward=False)
    assert own == pytest.approx(16**2)


def test_what_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="A sequence has 64 tokens"):
        seconds(3)


@pytest.mark.parametrize("layout", ["contiguous", "zigzag"])
@pytest.mark.parametrize("speeds", [PRODUCTS, MESSAGES])
def test_the_time_alone_is_that_of_the_rows(layout, speeds):
    for more in ({}, {"backward": False}, {"masked": 0.5}):
        alone = ring_seconds(IT, 4, speeds, layout=layout, **more)
        assert alone == ring_step(IT, 4, speeds, layout=layout, **more).makespan > 0
