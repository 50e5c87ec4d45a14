"""Activations that are offloaded on a rank: their copies are rows, and take the predicted time."""

import sys

import pytest
import torch

from lib.predict.recompute.costs import backward_of, costs_of
from lib.predict.recompute.offload import offload_use, step_with_offload
from lib.predict.recompute.offload_choice import hidden_keep
from lib.predict.shape import MLPShape
from lib.predict.sharded.offload import HostSpeeds
from lib.ranks.host_lanes import HostLanes
from lib.ranks.slow_motion import SlowMotion
from lib.single import MLP
from lib.single.host_memory import HostMemory
from lib.single.recompute.offload import offload_activations
from tests.slow_steps import least_late

SHAPE, BATCH = MLPShape((256,) * 7, bias=False), 256
SPEEDS = SlowMotion("H100", factor=1e5)
HOSTS = {
    "hidden": HostSpeeds(1e-8, 9e11, 1e12),  # a copy is shorter than a block's forward
    "slow": HostSpeeds(1e-7, 2e11, 1e12),  # and here three times as long
}


def build(host, keep, ahead):
    kept = sys.modules["__main__"].__dict__
    memory = HostMemory(HostLanes(HOSTS[host]))
    kept["model"] = offload_activations(MLP(SHAPE), keep, ahead, memory)
    kept["batch"] = torch.randn(BATCH, 256), torch.randn(BATCH, 256)


def step():
    kept = sys.modules["__main__"].__dict__
    model, (x, gradient) = kept["model"], kept["batch"]
    model.zero_grad()
    model(x).backward(gradient)


def figures():
    return costs_of(SHAPE, BATCH, SPEEDS), backward_of(SHAPE, BATCH, SPEEDS)


@pytest.mark.quiet
@pytest.mark.parametrize(("keep", "ahead"), [(1, 1), (0, 0), (0, 2), ({1, 3, 5}, 1)], ids=str)
@pytest.mark.parametrize("host", HOSTS)
def test_a_step_takes_the_predicted_time(worlds, host, keep, ahead):
    worlds(1).run(build, host, keep, ahead)
    ledger = least_late(worlds(1), SPEEDS, step)
    predicted = step_with_offload(*figures(), HOSTS[host], keep, ahead)
    assert ledger.makespan == pytest.approx(predicted.where(lane="compute").column("end").max(),
                                            rel=0.05)  # fmt: skip
    waited, expected = (
        one.where(lane="wait").column("seconds").sum() for one in (ledger, predicted)
    )
    assert waited == pytest.approx(expected, rel=0.05, abs=0.05 * ledger.makespan)
    for op in ("to_host", "to_device"):
        ours, theirs = ledger.where(lane="comm", op=op), predicted.where(lane="comm", op=op)
        assert ours.column("bytes").tolist() == theirs.column("bytes").tolist() != []


def test_copies_are_rows_without_slow_motion_too(worlds):
    worlds(2).run(build, "slow", 1, 1)
    ledger = worlds(2).record(step)
    use = offload_use(*figures(), HOSTS["slow"])
    for rank in range(2):
        own = ledger.where(rank=rank, group="host")
        sums = {total["op"]: (total.count, total.bytes) for total in own.totals("op")}
        assert sums == {"to_host": (5, use.host), "to_device": (5, use.host)}


def test_without_blocks_ahead_more_is_exposed():
    """Everything is, where nothing is asked for ahead: all copies of both directions."""
    for host in HOSTS.values():
        none = offload_use(*figures(), host, keep=1, ahead=0)
        one = offload_use(*figures(), host, keep=1, ahead=1)
        assert none.exposed == pytest.approx(none.to_host + none.to_device)
        assert one.exposed < 0.8 * none.exposed and one.computing == none.computing
        assert none.peak < one.peak
    # The last block has no ReLU, and its shorter forward hides less of a copy.
    hidden = [offload_use(*figures(), HOSTS["hidden"], keep).exposed for keep in (1, 2)]
    assert 0 < hidden[0] < 0.1 * figures()[0][0].forward * 6 and hidden[1] == pytest.approx(0)
    assert hidden_keep(*figures(), HOSTS["hidden"]) == {4, 5}
