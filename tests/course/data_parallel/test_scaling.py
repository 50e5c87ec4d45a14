"""Scaling on nodes: one node is a ring, efficiency falls, and the published rows recompute."""

import pytest

from lib.course.data_parallel import lessons, scaling
from lib.predict.data.ddp_step import data_parallel_step, exposed, gradients_per_bucket
from lib.predict.roofline import speeds
from lib.predict.shape import MLPShape
from tests.every import every

SHAPE = MLPShape((512,) * 5, bias=False)


def test_one_node_is_a_ring_over_its_own_link():
    hardware = scaling.cluster(8, "InfiniBand NDR", 8)
    ring = speeds("H100", "NVLink4").moving("all_reduce", 8, 10**7)
    assert hardware.moving("all_reduce", 1, 10**7) == pytest.approx(ring)
    assert scaling.cluster(1, "InfiniBand NDR", 8).moving("all_reduce", 1, 10**7) == 0


def test_over_nodes_the_slower_level_counts():
    sparse, dense = (scaling.cluster(32, "InfiniBand NDR", rails) for rails in (1, 8))
    size, latency = 10**9, 14 * 3.4e-6 + 2 * 2 * 14e-6
    assert sparse.moving("all_reduce", 1, size) == pytest.approx(latency + 1.5 * size / 50e9)
    inside, outside = 1.75 * size / 450e9, 1.5 * size / (8 * 50e9)
    assert dense.moving("all_reduce", 1, size) == pytest.approx(latency + max(inside, outside))


def test_a_step_on_one_node_is_that_of_all_its_ranks():
    """The step of one rank, whose all-reduces are told the size of the group, is every rank's."""
    one = scaling.overlapped_step(SHAPE, 64, 4)
    buckets = gradients_per_bucket(SHAPE)
    all_ = data_parallel_step(SHAPE, [64] * 4, speeds("H100", "NVLink4"), buckets=buckets)
    assert one.makespan == pytest.approx(all_.makespan)
    assert exposed(one) == pytest.approx(exposed(all_)) and exposed(one) > 0


def test_efficiency_is_speed_up_divided_by_ranks_and_falls():
    rows = scaling.scaling(lessons.GPT2, "InfiniBand NDR", 8, whole=64)
    assert [row.ranks for row in rows] == [1, 2, 4, 8, 16, 32, 64]
    assert every(row.strong == pytest.approx(row.speed_up / row.ranks) for row in rows)
    for kind in ("strong", "weak"):
        values = [getattr(row, kind) for row in rows]
        assert values[0] == 1 and sorted(values, reverse=True) == values
    lines = scaling.efficiencies({"here": rows})
    assert list(lines) == ["strong, here", "weak, here"]
    slow = scaling.scaling(lessons.GPT2, "Ethernet 100", 1, whole=64)
    both = scaling.efficiencies({"here": rows, "there": slow})
    assert both["weak, there"][0][0] == 8 and both["weak, here"] == lines["weak, here"]
    assert scaling.table(rows).count("\n") == len(rows)


def test_over_ethernet_32_gpus_are_slower_than_16():
    speed_ups = {
        row.ranks: row.speed_up for row in scaling.scaling(lessons.GPT2, "Ethernet 100", 1)
    }
    assert speed_ups[32] < speed_ups[16] < 16 and max(speed_ups.values()) == speed_ups[16]


def test_weak_scaling_over_ethernet_waits_for_the_one_link_of_a_node():
    """31 % on 16 GPUs and 16 % on 512: all-reduces of 40 and 78 ms beside 14 ms of computation."""
    rows = {row.ranks: row.weak for row in scaling.scaling(lessons.GPT2, "Ethernet 100", 1)}
    assert (f"{rows[16]:.0%}", f"{rows[512]:.0%}") == ("31%", "16%")
    for ranks, milliseconds in ((16, 40), (512, 78)):
        nodes = ranks // 8
        bytes_only = 2 * (nodes - 1) / nodes * lessons.GPT2.nbytes() / 12.5e9
        hardware = scaling.cluster(ranks, "Ethernet 100", 1)
        moving = hardware.moving("all_reduce", ranks, lessons.GPT2.nbytes())
        assert round(1e3 * bytes_only) == milliseconds
        assert moving == pytest.approx(bytes_only, rel=0.01)
        step = scaling.overlapped_step(lessons.GPT2, 8, ranks, "Ethernet 100", 1)
        assert round(1e3 * (step.makespan - exposed(step))) == 14


def test_the_data_sheets_promise_a_bus_bandwidth_of_about_400_gb_a_second():
    size, hardware = 2**30, scaling.cluster(256, "EFA 400", 8)
    rate = 2 * 255 / 256 * size / hardware.moving("all_reduce", 256, size)
    assert 390e9 < rate < 410e9


def test_the_published_run_begins_with_itself():
    """16 layers of 4·2048² + 3·2048·8192 weights and the embedding: 1.34 billion, tied."""
    layer = 4 * 2048**2 + 3 * 2048 * 8192
    assert scaling.MEASURED_SHAPE.numel == pytest.approx(16 * layer + 131_072 * 2048, rel=0.01)
    first, *others = scaling.published()
    assert first.hidden == first.exposed == pytest.approx(first.measured)
    assert every(row.hidden > row.measured for row in others)
    step = 8192 / 15700.38  # s on 256 GPUs; what the two predictions say of it
    send = 2 * scaling.MEASURED_SHAPE.nbytes() * (255 / 256 / 64.9e9 - 7 / 8 / 436e9)
    assert others[-1].exposed == pytest.approx(8192 / (8192 / 40149.94 + send))
    assert others[-1].exposed / others[-1].measured == pytest.approx(
        step / (8192 / 40149.94 + send)
    )
    last = others[-1]
    hidden, exposed = (8192 / rate for rate in (last.hidden, last.exposed))
    assert round(exposed - hidden, 2) == 0.14 and round(step - hidden, 2) == 0.32
