"""The binomial plan repeats as few runs as the closed form says, and holds as much as it may."""

import pytest

from lib.predict.recompute import BlockCost, binomial, use_of
from lib.predict.recompute.binomial import repeated

EQUAL = BlockCost(1, 0, 1.0)


def fewest(blocks, slots, known):
    """The same by trying every split."""
    if blocks == 1:
        return 0
    if slots == 0:
        return float("inf")
    if (blocks, slots) not in known:
        splits = range(1, blocks)
        known[blocks, slots] = min(
            m + fewest(m, slots, known) + fewest(blocks - m, slots - 1, known) for m in splits
        )
    return known[blocks, slots]


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_it_repeats_as_few_runs_as_possible(slots):
    known = {}
    for blocks in range(1, 25):
        use = use_of(binomial(blocks, slots), [EQUAL] * blocks)
        assert use.again == repeated(blocks, slots) == fewest(blocks, slots, known)
        assert use.peak <= slots + 1


def test_one_slot_runs_the_chain_anew_for_each_block():
    assert binomial(4, 1) == (((((0,), 1), 2)), 3)
    assert repeated(4, 1) == 3 + 2 + 1


def test_many_slots_repeat_each_block_but_the_last_once():
    assert repeated(10, 9) == 9
    assert use_of(binomial(10, 9), [EQUAL] * 10).runs == (2,) * 9 + (1,)


def test_no_slot_is_refused():
    assert binomial(1, 0) == (0,)
    with pytest.raises(ValueError, match="2 blocks need at least one slot"):
        binomial(2, 0)
