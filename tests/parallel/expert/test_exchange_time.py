"""Rows take as long in slow motion as is predicted, flat and in two hops: 2 nodes of 4 ranks."""

import pytest
import torch
import torch.distributed as dist

from lib.predict.expert import seconds
from lib.ranks.slow_motion import SlowMotion
from tests.parallel.expert.test_exchange import routes
from tests.slow_steps import least_late

pytestmark = pytest.mark.quiet

SPEEDS = SlowMotion("H100", link="NVLink4", factor=5e3, node=4, between="InfiniBand NDR")
WIDTH = 256


def prepared(nodes, each):
    import __main__

    rows = torch.randn(each * dist.get_world_size(), WIDTH)
    __main__.way, __main__.rows = routes(nodes), rows
    __main__.table = [[each] * dist.get_world_size()] * dist.get_world_size()


def travel():
    import __main__

    arrived = __main__.way.launch(__main__.rows, __main__.table)()
    __main__.way.back(arrived, __main__.table)


def predicted(way, each):
    nbytes = 8 * each * WIDTH * 4
    expected = 2 * seconds.exchange(way, 8, nbytes, SPEEDS)
    if way == "two hops":  # rows are put into the order of places and of nodes, there and back
        expected += 4 * SPEEDS.compute(0, 2 * nbytes + 8 * 8 * each)
    return expected


@pytest.mark.parametrize("each", [1, 200])
@pytest.mark.parametrize(("way", "nodes"), [("flat", 0), ("two hops", 2)])
def test_rows_take_the_predicted_time(worlds, way, nodes, each):
    """Latency counts with one row for each rank, bandwidth with 200 (200 kB)."""
    world = worlds(8)
    world.run(prepared, nodes, each)
    ledger = least_late(world, SPEEDS, travel)
    expected = predicted(way, each)
    for rank in range(8):
        rows = ledger.where(rank=rank)
        taken = max(r.end for r in rows) - min(r.start for r in rows)
        assert taken == pytest.approx(expected, rel=0.05)
