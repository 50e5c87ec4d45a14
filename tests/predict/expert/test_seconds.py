"""Times of all_to_alls and experts by hand, and the hidden size at which they are equal."""

import pytest

from lib.predict.expert import seconds
from lib.predict.roofline import Speeds, speeds

ALPHA, NEAR, FAR = 3.4e-6, 450e9, 50e9
TWO_NODES = speeds("H100", "NVLink4", node=4, between="InfiniBand NDR")


def test_flat_is_the_longer_of_near_and_far():
    piece = 8e6 / 8
    far = 4 * (14e-6 + piece / FAR)
    assert seconds.exchange("flat", 8, 8e6, TWO_NODES) == pytest.approx(far)
    one_node = seconds.exchange("flat", 4, 8e6, TWO_NODES)
    assert one_node == pytest.approx(3 * (ALPHA + 2e6 / NEAR))


def test_two_hops_are_one_inside_and_one_between():
    inside, between = 3 * (ALPHA + 2e6 / NEAR), 14e-6 + 4e6 / FAR
    assert seconds.exchange("two hops", 8, 8e6, TWO_NODES) == pytest.approx(inside + between)


def test_two_hops_win_while_messages_are_small():
    ways = lambda nbytes: [seconds.exchange(way, 8, nbytes, TWO_NODES) for way in seconds.WAYS]
    small, large = ways(1e5), ways(1e8)
    assert small[1] < 0.6 * small[0] and large[1] > large[0]


def test_ways_that_are_not_there_are_refused():
    with pytest.raises(ValueError, match="Rows do not travel 'by air'. Choose one of flat, two"):
        seconds.exchange("by air", 8, 1, TWO_NODES)
    with pytest.raises(ValueError, match="Two hops need several nodes"):
        seconds.exchange("two hops", 8, 1, speeds("H100"))
    with pytest.raises(ValueError, match="There are 6 ranks; nodes of 4 cannot share them"):
        seconds.exchange("two hops", 6, 1, TWO_NODES)


@pytest.mark.parametrize("matrices", [2, 3])
@pytest.mark.parametrize("tokens", [64, 4096])
def test_at_that_hidden_size_both_take_as_long(tokens, matrices):
    machine = Speeds(1e15, 3e12, 0.0, 4e11)
    hidden = seconds.hidden_size_that_covers(1e15, 4e11, matrices=matrices, ranks=8)
    rows, width = 2 * tokens, 512  # k = 2
    travelling = 2 * seconds.exchange("flat", 8, rows * width * 2, machine)
    computing = seconds.computing(rows, width, hidden, machine, matrices=matrices)
    assert travelling == pytest.approx(computing)
    both = seconds.computing(rows, width, hidden, machine, matrices=matrices, backward=True)
    assert both == pytest.approx(2 * computing)


def test_deepseeks_experts_are_smaller_than_what_infiniband_asks_for():
    """2,048 wide with three matrices: NVLink 4 covers them (1,465), 50 GB/s do not (13,187)."""
    near, far = (
        seconds.hidden_size_that_covers(989e12, bandwidth, matrices=3) for bandwidth in (NEAR, FAR)
    )
    assert round(near) == 1465 and round(far) == 13_187
    assert near < 2048 < far
