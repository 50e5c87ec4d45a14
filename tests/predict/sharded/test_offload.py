"""Offload's predictions: figures of hosts, bytes, and lanes that overlap as in the paper."""

import pytest

from lib.predict.roofline import Speeds, speeds
from lib.predict.shape import GPTShape, MLPShape
from lib.predict.sharded.offload import HOST_MEMORY, HostSpeeds, chunks, host_speeds, traffic
from lib.predict.sharded.offload_step import offloaded_step

TWO = MLPShape((100, 100, 100), bias=False)  # two layers of 10,000 weights
UNIT = Speeds(peak=2e6, memory_bandwidth=1e12, alpha=0, bandwidth=1)  # 10 ms for a row
EVEN = HostSpeeds(0.0, 4e6, 12e6)  # 10,000 weights: 10 ms down, 10 ms up, 10 ms for SGD's step


def spans(ledger, op):
    rows = ledger.where(lane="comm", op=op)
    return [(round(1e3 * row.start), round(1e3 * row.end)) for row in rows]


def test_gradients_go_down_while_backward_computes_and_weights_come_up_while_the_host_steps():
    """Forward 20 ms; backward 20 ms for the last layer, 10 for the first: 50 ms in all."""
    ledger = offloaded_step(TWO, 1, UNIT, EVEN, chunk_bytes=1)
    assert spans(ledger, "to_host") == [(40, 50), (50, 60)]
    assert spans(ledger, "step") == [(50, 60), (50, 70)]  # launched when backward ends
    assert spans(ledger, "to_device") == [(50, 70), (50, 80)]
    assert ledger.makespan == pytest.approx(0.08)
    at_once = offloaded_step(TWO, 1, UNIT, EVEN, chunk_bytes=10**9)
    assert at_once.makespan == pytest.approx(0.06 + 0.02 + 0.02)  # all down, all stepped, all up


def test_a_delayed_update_leaves_only_the_way_up():
    """The host steps while the next forward and backward run; the weights come up after them."""
    first, second, third = (
        offloaded_step(TWO, 1, UNIT, EVEN, chunk_bytes=1, delayed=True, steps=n).makespan
        for n in (1, 2, 3)
    )
    assert first == pytest.approx(0.06)  # no weights come up: the copies down end it
    prompt = offloaded_step(TWO, 1, UNIT, EVEN, chunk_bytes=1, steps=2).makespan / 2
    assert third - second < prompt


def test_the_hosts_memory_is_that_of_the_machine():
    """Two sockets with 8 channels of DDR5-4800 have 614.4 GB/s, for 8 GPUs."""
    assert HOST_MEMORY["H100"] == pytest.approx(76.8e9)
    found = host_speeds("H100")
    assert (found.link, found.bandwidth) == ("PCIe5", 63e9)
    assert found.moving(63e9) == pytest.approx(1 + 5.7e-6) and found.working(76.8e9) == 1.0
    with pytest.raises(ValueError, match="host of a MI300X is not known here"):
        host_speeds("MI300X")
    assert host_speeds("MI300X", memory_bandwidth=1e11).memory_bandwidth == 1e11


def test_traffic_is_2_bytes_a_weight_each_way():
    shape = GPTShape(100, 10, 20, 2, 2)
    assert traffic(shape) == (2 * shape.numel, 2 * shape.numel)
    assert traffic(shape, 4) == (4 * shape.numel, 4 * shape.numel)


def test_pieces_are_cut_from_the_last_weight_on():
    assert chunks([4, 4, 4, 4, 4], 8) == [[4, 3], [2, 1], [0]]
    assert chunks([4, 4], 1) == [[1], [0]] and chunks([4, 4], 100) == [[1, 0]]
    with pytest.raises(ValueError, match="chunk_bytes must be a whole number of at least 1"):
        chunks([4, 4], 0)


def test_the_times_of_an_offloaded_step_are_those_of_the_link_to_the_host():
    told = offloaded_step(TWO, 1, speeds("H100", "NVLink4"), host_speeds("H100")).meta["speeds"]
    assert (told["gpu"], told["link"], told["bandwidth"]) == ("H100", "PCIe5", 63e9)
    assert offloaded_step(TWO, 1, UNIT, EVEN).meta == {}  # figures without a name
