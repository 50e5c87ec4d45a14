"""One link inside a node and another between nodes: which one an exchange takes."""

import pytest

from lib.predict.roofline import Between, between_nodes, speeds

FIGURES = speeds("H100", "NVLink4", node=2, between="InfiniBand NDR")
ONE_NODE = speeds("H100", "NVLink4")


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "send"])
def test_inside_a_node_nothing_changes(op):
    assert FIGURES.moving(op, 2, 1e6, (2, 3)) == ONE_NODE.moving(op, 2, 1e6)
    assert FIGURES.moving(op, 2, 1e6) == ONE_NODE.moving(op, 2, 1e6)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "send"])
def test_between_nodes_a_ring_is_as_slow_as_its_slowest_link(op):
    slow = speeds("H100", "InfiniBand NDR")
    assert FIGURES.moving(op, 2, 1e6, (1, 2)) == slow.moving(op, 2, 1e6)
    assert FIGURES.moving(op, 4, 1e6, (0, 1, 2, 3)) == slow.moving(op, 4, 1e6)


def test_an_all_to_all_sends_near_and_far_at_once():
    out = 2 * (14e-6 + 1e6 / 4 / 50e9)  # to the two ranks of the other node
    assert FIGURES.moving("all_to_all", 4, 1e6, (0, 1, 2, 3)) == pytest.approx(out)
    lone = 2 * (14e-6 + 1e6 / 3 / 50e9)  # rank 4 is alone on its node
    assert FIGURES.moving("all_to_all", 3, 1e6, (0, 1, 4)) == pytest.approx(lone)


def test_several_nodes_need_both_figures():
    assert between_nodes(None, None) is None
    assert between_nodes(4, "NDR") == Between(4, 14e-6, 50e9, "InfiniBand NDR")
    with pytest.raises(ValueError, match="several nodes need both"):
        between_nodes(4, None)
    with pytest.raises(ValueError, match="The ranks of a node must be a whole number"):
        between_nodes(0, "NDR")
